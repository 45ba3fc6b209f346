"""A simple config for a capture, which logs each signal that the training code observed.

Declarations come from the captured run's own config. For an undeclared signal the values decide: one number is per
step, a list or a vector per completion, a list of lists or a matrix per token, and a mapping is a family. The config
logs the last value of numbers per step, mean and deviation of rows, and texts in a table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch

from declog.errors import in_flow
from declog.language.keys import entries
from declog.language.spec import ANY
from declog.replay.capture_reader import Capture

LOOKED_AT = 2_000  # the number of calls that are read: later calls are of the same kinds
ROWS = 4  # the number of rows of the table
DTYPES = {"b": "bool", "i": "int", "u": "int", "f": "float", "U": "text"}


@dataclass(frozen=True)
class Observed:
    """An observed signal. ``entry`` is its declaration, ``call`` the names that were observed in the same call."""

    name: str
    entry: Mapping[str, Any]
    call: frozenset[str]
    phases: tuple[str, ...] = (ANY,)

    @property
    def axis(self) -> str:
        """The axis of the values."""
        return str(self.entry["axis"])

    @property
    def dtype(self) -> str:
        """The type of the values."""
        return str(self.entry.get("type", "float"))


def observed(capture: Capture) -> list[Observed]:
    """The signals that a run's training code observed, in order of arrival."""
    declared = _declared(capture.run["profile"])
    signals: dict[str, Observed] = {}
    together: list[set[str]] = []  # sets of names that were observed in one call, or in calls that share a name
    for call in islice(capture.calls(min(capture.files)), LOOKED_AT):
        if call.name != "observe":
            continue
        values: Mapping[str, Any] = call.what[0]
        met = [names for names in together if names & values.keys()]
        together = [names for names in together if names not in met] + [set(values).union(*met)]
        shapes = {name: _entry(value) for name, value in values.items() if name not in declared}
        lengths = Counter(_rows(values[name]) for name, entry in shapes.items() if entry and entry["axis"] != "step")
        rows = max(lengths, key=lambda length: (lengths[length], length), default=0)
        for source, value in values.items():
            name, entry, phases = declared.get(source, (source, shapes.get(source), (ANY,)))
            if entry is None or (source in shapes and entry["axis"] != "step" and _rows(value) != rows):
                continue  # the value does not have this batch's rows, so its axis is unknown
            signals.setdefault(name, Observed(name, entry, frozenset(values), phases))
    if not declared and len(together) > 1:  # each set has different rows, such as a rollout's and an update's
        first = list(signals)
        together.sort(
            key=lambda names: min((first.index(name) for name in names if name in signals), default=len(first))
        )
        phase_names = ["rollout", "update", *(f"phase_{number}" for number in range(3, len(together) + 1))]
        of = {name: phase for phase, names in zip(phase_names, together, strict=False) for name in names}
        signals = {name: replace(one, phases=(of[name],)) for name, one in signals.items()}
    return list(signals.values())


def config_text(capture: Capture, signals: Sequence[Observed]) -> str:
    """The config of some signals, as YAML."""
    config: Mapping[str, Any] = capture.run["profile"]
    axes = {key: value for key, value in (config.get("axes") or {}).items() if isinstance(value, Mapping)}
    masks = [one.name for one in signals if one.axis == "token" and one.dtype == "bool"]
    if masks and not axes.get("token"):
        axes["token"] = {"mask": masks[0]}
    run = f"run: {{name: {capture.run['name']}}}"
    lines = ["sinks: [console, jsonl]", "", run, *_section("axes", axes), "signals:"]
    mask = {} if axes.get("token") else {"mask": "all"}
    for phase in dict.fromkeys(phase for one in signals for phase in one.phases):
        of_phase = [one for one in signals if phase in one.phases]
        entries = {one.name: {**one.entry, **(mask if one.axis == "token" else {})} for one in of_phase}
        lines += [f"  {line}" for line in _section(phase, entries)]
    lines += _section("metrics", dict(_metrics(signals)))
    completions = [one for one in signals if one.axis == "completion"]
    texts = [one for one in completions if one.dtype in ("text", "object")]
    if texts:
        kinds = {"object": "json"}
        rows = [one for one in completions if not one.entry.get("family") and _of_one_phase(one, texts[0])]
        lines += _section("filters", {"some": {"random": ROWS}})
        lines += _section("schemas", {"samples": {one.name: kinds.get(one.dtype, one.dtype) for one in rows}})
        lines += _section("tables", {"samples": {"schema": "samples", "filter": "some", "every": 10}})
    return "\n".join(lines) + "\n"


def _section(name: str, entries: Mapping[str, Any]) -> list[str]:
    """The lines of a key and its entries, one line each; empty without entries."""
    return [f"{name}:", *(f"  {key}: {in_flow(entry)}" for key, entry in entries.items())] if entries else []


def _metrics(signals: Sequence[Observed]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for one in signals:
        family = one.entry.get("family")
        if one.dtype in ("text", "object") or (one.axis == "token" and one.dtype == "bool"):
            continue
        per_row = one.axis == "completion" and one.dtype != "bool" and not family
        reduce: Any = "last" if one.axis == "step" else ["mean", "std"] if per_row else "mean"
        named = {"name": f"{one.name}/{{member}}"} if family else {}
        yield one.name, {"expr": one.name, "reduce": reduce, **named}


def _of_one_phase(one: Observed, other: Observed) -> bool:
    """Whether two signals have the same phase: they were observed in one call, or their phases are equal."""
    return one.name in other.call or one.call == other.call or (one.phases == other.phases)


def _declared(config: Mapping[str, Any]) -> dict[str, tuple[str, Mapping[str, Any], tuple[str, ...]]]:
    """The entries and phases of a config's signals, by the names under which they are observed."""
    kept = ("axis", "type", "family", "from", "mask", "required")
    declared: dict[str, tuple[str, Mapping[str, Any], tuple[str, ...]]] = {}
    for (_, phase, name), entry in entries(config, "signals"):
        if isinstance(entry, Mapping) and entry.get("axis"):
            source = str(entry.get("from") or name)
            said = {key: entry[key] for key in kept if entry.get(key) not in (None, False)}
            declared[source] = (str(name), said, (*declared.get(source, ("", {}, ()))[2], str(phase)))
    return declared


def _entry(value: Any) -> dict[str, Any] | None:
    """The likely declaration of an undeclared value; None if it cannot be a signal."""
    if isinstance(value, Mapping):
        inner = _entry(next(iter(value.values()), None))
        return None if inner is None or "family" in inner else {**inner, "family": True}
    if isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        first: Any = next((item for item in value if item), None)
        if isinstance(first, Mapping) or (isinstance(first, list) and isinstance(first[0], Mapping)):
            return {"axis": "completion", "type": "object"}
        inner = None if first is None else _entry(first)
        return None if inner is None or inner["axis"] != "completion" else {**inner, "axis": "token"}
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    try:
        array = value.float().numpy() if floating else np.asarray(value)
    except (TypeError, ValueError):
        return None
    if array.dtype.kind not in DTYPES or array.ndim > 2:
        return None
    dtype = DTYPES[array.dtype.kind]
    entry = {"axis": ("step", "completion", "token")[array.ndim]}
    return entry if dtype == "float" else {**entry, "type": dtype}


def _rows(value: Any) -> int:
    """The number of rows of a value."""
    if isinstance(value, Mapping):
        return _rows(next(iter(value.values()), ()))
    with_rows = isinstance(value, Sequence) or (isinstance(value, torch.Tensor | np.ndarray) and value.ndim > 0)
    return len(value) if with_rows else 0
