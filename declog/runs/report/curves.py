"""A run's scalars as series, each with what the plan says of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.records import names_of
from declog.runs.report.blobs import Blobs, narrowed, shuffled
from declog.runs.report.onsets import onsets_by_step

FACTS = ("key", "words", "formula", "reduction", "of", "place", "title", "help", "unit", "good", "healthy", "runbook",
         "chart")  # fmt: skip
MOST_CORE = 8
SEARCHED = ("reward", "loss", "kl", "entropy", "grad_norm", "learning_rate")  # where no metric is tagged `core`


@dataclass(frozen=True)
class Output:
    """One name of an output, as the plan describes it."""

    facts: Mapping[str, Any]

    @property
    def template(self) -> str:
        """What trackers show, such as ``rewards/{member}``."""
        return str(self.facts["name"])

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The names that the template can give."""
        return re.compile(names_of(self.template))

    def member(self, name: str) -> str | None:
        """Which member of the template a name is; empty where it has none; None where it is not of it."""
        found = self.pattern.fullmatch(name)
        return None if found is None else " ".join(found.groups())


class Meanings:
    """What the plan says of the names that a run logged."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self._modes: Mapping[str, str] = plan.get("modes", {})
        self._prefixes = ["", *plan.get("prefixes", [])]
        self._outputs = [Output(facts) for facts in plan.get("outputs", [])]

    def of(self, name: str, mode: str, metric: str | None) -> dict[str, Any]:
        """Facts of a name: ``base``, its name without the mode's prefix, ``member`` and ``template`` of a family."""
        bases = list(self._bases(name, mode))
        for base in bases:
            for output in self._candidates(metric, base):
                member = output.member(base)
                if member is not None:
                    whole = output.template.startswith("{") and output.template.endswith("}")  # any name: no family
                    facts = {key: output.facts.get(key) for key in (*FACTS, "metric", "tags")}
                    return {**facts, "template": output.template, "member": "" if whole else member, "base": base}
        nothing: dict[str, Any] = {**dict.fromkeys(FACTS), "metric": metric or "", "tags": []}
        return {**nothing, "template": "", "member": "", "base": bases[0]}

    def _bases(self, name: str, mode: str) -> Iterator[str]:
        """A name without what sinks and modes put before it, the shortest first."""
        own = self._modes.get(mode, "")
        found = [name]
        for prefix in self._prefixes:
            if name.startswith(prefix + own):
                found.append(name[len(prefix + own) :])
        yield from sorted(dict.fromkeys(found), key=len)

    def _candidates(self, metric: str | None, name: str) -> Iterable[Output]:
        """The outputs that a name may be of: those of its metric first, and exact names before templates."""
        return sorted(
            self._outputs, key=lambda one: (one.facts["key"] != metric, one.template != name, one.template.count("{"))
        )


@dataclass(frozen=True)
class Curve:
    """One name and mode of a run: ``steps`` and ``values`` are [n], steps rise. ``meaning`` is what the plan says."""

    name: str
    mode: str
    steps: NDArray[np.float64]
    values: NDArray[np.float64]
    partial: int  # values that some ranks are missing in
    meaning: Mapping[str, Any]


def curves_of(scalars: Any, meanings: Meanings) -> Iterator[Curve]:
    """The curves of an Arrow table of scalars, in the order in which they first came."""
    names, modes = _codes(scalars, "name"), _codes(scalars, "mode")
    step = scalars["step"].to_numpy()
    value = scalars["value"].to_numpy()
    partial = np.asarray([bool(one) for one in scalars["partial"].to_pylist()])
    metric = scalars["metric"].to_pylist() if len(scalars) else []
    for rows in _groups(names.index, modes.index):
        rows = rows[np.argsort(step[rows], kind="stable")]
        name, mode = names.words[names.index[rows[0]]], modes.words[modes.index[rows[0]]]
        meaning = _worded(meanings.of(name, mode, metric[rows[-1]]))
        yield Curve(name, mode, step[rows].astype(np.float64), value[rows], int(partial[rows].sum()), meaning)


def core_names(curves: Sequence[Curve]) -> list[str]:
    """The names that stand for a run: those tagged ``core``, else those that are called so; of training first."""
    trained = [curve for curve in curves if curve.mode == "train"] or curves
    names = [curve.name for curve in trained]
    core = [curve.name for curve in trained if "core" in curve.meaning["tags"]]
    known = [name for word in SEARCHED for name in names if word in name.split("/")]
    return (core or list(dict.fromkeys(known)) or names)[:MOST_CORE]


def series(curves: Iterable[Curve], blobs: Blobs) -> dict[str, Any]:
    """Curves for the page: ``steps`` and ``values`` are blobs that several of them share.

    ``onsets`` are the steps at which curves broke, the first one first.
    """
    steps: dict[bytes, int] = {}
    blob_of: list[int] = []
    found, packed, own = [], [], []
    for curve in curves:
        raw = shuffled(curve.steps)
        if raw not in steps:
            steps[raw] = len(blob_of)
            blob_of.append(blobs.add(raw))
        kept = narrowed(curve.values)
        packed.append(shuffled(kept))
        found.append({
            "name": curve.name, "mode": curve.mode, "at": steps[raw], "count": len(kept), "size": kept.itemsize,
            "partial": curve.partial, "notFinite": int((~np.isfinite(curve.values)).sum()), **curve.meaning,
        })  # fmt: skip
        if not curve.name.startswith("declog/"):
            own.append({**found[-1], "x": curve.steps, "y": curve.values})
    onsets = onsets_by_step(own)
    return {"series": found, "steps": blob_of, "values": blobs.add(b"".join(packed)), "onsets": onsets}


def _worded(facts: dict[str, Any]) -> dict[str, Any]:
    """Texts where there are none, for the page."""
    texts = ("key", "words", "formula", "reduction", "of", "place", "title", "help", "unit", "runbook", "chart")
    return {**facts, **{key: facts[key] or "" for key in texts}}


@dataclass(frozen=True)
class Codes:
    """A column of texts: each row's place in ``words``, which are in the order in which they first came."""

    index: NDArray[np.int64]
    words: list[str]


def _codes(table: Any, name: str) -> Codes:
    column = table[name].combine_chunks().dictionary_encode()
    return Codes(column.indices.to_numpy(zero_copy_only=False).astype(np.int64), column.dictionary.to_pylist())


def _groups(*keys: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """The rows of each combination of keys, in the order in which these first came."""
    if not len(keys[0]):
        return
    whole = keys[0]
    for key in keys[1:]:
        whole = whole * (int(key.max()) + 1) + key
    order = np.argsort(whole, kind="stable")
    starts = np.flatnonzero(np.diff(whole[order])) + 1
    yield from sorted(np.split(order, starts), key=lambda rows: int(rows[0]))
