"""A run's scalars as curves for a page, each with the facts that the plan has about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.records import names_of
from declog.runs.report.blobs import Blobs, narrowed, shuffled
from declog.runs.report.onsets import onsets_by_step
from declog.runs.series import rows_by_name

TEXTS = ("key", "words", "formula", "reduction", "of", "place", "title", "help", "unit", "runbook",
         "chart")  # facts of an output, empty if it has none  # fmt: skip
MOST_CORE = 8
SEARCHED = ("reward", "loss", "kl", "entropy", "grad_norm", "learning_rate")  # used if no metric has the tag `core`


class Meanings:
    """Finds the facts that a plan has about the names that a run logged."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self._modes: Mapping[str, str] = plan.get("modes", {})
        self._prefixes = ["", *plan.get("prefixes", [])]
        # the facts of each output, with the pattern of the names that its template can give
        self._outputs = [(facts, re.compile(names_of(facts["name"]))) for facts in plan.get("outputs", [])]

    def of(self, name: str, mode: str, metric: str | None) -> dict[str, Any]:
        """The facts of a name, with ``base``, the name without prefixes, and a family's ``member`` and ``template``."""
        bases = list(self._bases(name, mode))
        for base in bases:
            for facts, pattern in self._candidates(metric, base):
                template = facts["name"]
                if (match := pattern.fullmatch(base)) is not None:
                    any_name = template.startswith("{") and template.endswith("}")  # no family
                    member = "" if any_name else " ".join(match.groups())
                    return {**_facts(facts), "template": template, "member": member, "base": base}
        return {**_facts({"metric": metric or ""}), "template": "", "member": "", "base": bases[0]}

    def _bases(self, name: str, mode: str) -> Iterator[str]:
        """The name without the prefixes of sinks and of its mode, the shortest first."""
        prefixes = [prefix + self._modes.get(mode, "") for prefix in self._prefixes]
        bases = [name, *(name[len(prefix) :] for prefix in prefixes if name.startswith(prefix))]
        yield from sorted(dict.fromkeys(bases), key=len)

    def _candidates(self, metric: str | None, name: str) -> Iterable[tuple[Mapping[str, Any], re.Pattern[str]]]:
        """The outputs in the order to try: those of the metric first, and exact names before templates."""

        def order(output: tuple[Mapping[str, Any], re.Pattern[str]]) -> tuple[bool, bool, int]:
            facts, _ = output
            return facts["key"] != metric, facts["name"] != name, facts["name"].count("{")

        return sorted(self._outputs, key=order)


@dataclass(frozen=True)
class Curve:
    """One name and mode of a run: ``steps`` and ``values`` are [n], steps rise. ``meaning`` has the plan's facts."""

    name: str
    mode: str
    steps: NDArray[np.float64]
    values: NDArray[np.float64]
    partial: int  # the number of values in which some ranks are missing
    meaning: Mapping[str, Any]


def curves_of(scalars: Any, meanings: Meanings) -> Iterator[Curve]:
    """The curves of an Arrow table of scalars, in the order in which they were first logged."""
    step = scalars["step"].to_numpy()
    value = scalars["value"].to_numpy()
    partial = np.asarray([bool(one) for one in scalars["partial"].to_pylist()])
    metric = scalars["metric"].to_pylist()
    for name, mode, rows in rows_by_name(scalars):
        rows = rows[np.argsort(step[rows], kind="stable")]
        meaning = meanings.of(name, mode, metric[rows[-1]])
        yield Curve(name, mode, step[rows].astype(np.float64), value[rows], int(partial[rows].sum()), meaning)


def core_names(curves: Sequence[Curve]) -> list[str]:
    """The names to show first: those tagged ``core``, else those with a word of ``SEARCHED``; of training if any."""
    trained = [curve for curve in curves if curve.mode == "train"] or curves
    names = [curve.name for curve in trained]
    core = [curve.name for curve in trained if "core" in curve.meaning["tags"]]
    usual = [name for word in SEARCHED for name in names if word in name.split("/")]
    return (core or list(dict.fromkeys(usual)) or names)[:MOST_CORE]


def series(curves: Iterable[Curve], blobs: Blobs) -> dict[str, Any]:
    """The curves as data for the page: ``steps`` are blobs that curves share, ``values`` is one blob of all values.

    ``onsets`` are the steps at which curves broke, in order.
    """
    steps: dict[bytes, int] = {}
    blob_of: list[int] = []
    rows, packed, judged = [], [], []
    for curve in curves:
        raw = shuffled(curve.steps)
        if raw not in steps:
            steps[raw] = len(blob_of)
            blob_of.append(blobs.add(raw))
        kept = narrowed(curve.values)
        packed.append(shuffled(kept))
        rows.append({
            "name": curve.name, "mode": curve.mode, "at": steps[raw], "count": len(kept), "size": kept.itemsize,
            "partial": curve.partial, "notFinite": int((~np.isfinite(curve.values)).sum()), **curve.meaning,
        })  # fmt: skip
        if not curve.name.startswith("declog/"):
            judged.append({**rows[-1], "x": curve.steps, "y": curve.values})
    onsets = onsets_by_step(judged)
    return {"series": rows, "steps": blob_of, "values": blobs.add(b"".join(packed)), "onsets": onsets}


def _facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of an output for the page."""
    more = {key: facts.get(key) for key in ("good", "healthy", "metric")}
    return {**{key: facts.get(key) or "" for key in TEXTS}, **more, "tags": facts.get("tags") or []}
