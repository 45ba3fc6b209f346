"""Turns metrics' values into records with the names that the config gives them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from declog.engine.cells import Cells, MetricValues
from declog.engine.partials import Names
from declog.engine.reduce import Report
from declog.errors import RuntimeFailure
from declog.language.dtypes import DType
from declog.language.functions.text import BETWEEN
from declog.language.nodes import LOGGED
from declog.plans.needs import signals_of
from declog.plans.ops import FormulaOp, MetricOp, Plan
from declog.records import NONFINITE, SELF, Histogram, Scalar, names_of

Op = MetricOp | FormulaOp
Output = tuple[str, bool]  # a metric's key, and whether its name is an alias; profiles choose by both
FIELD = re.compile(r"\{(\w+)\}")
EXACT = 2.0**53  # floats hold all integers up to this


@dataclass
class Named:
    """The named values of a log event, each with the output by which profiles choose it."""

    scalars: list[tuple[Output, Scalar]] = field(default_factory=list)
    histograms: list[tuple[Output, Histogram]] = field(default_factory=list)


@dataclass(frozen=True)
class _Entry:
    """A metric and its names; ``names`` is None if they depend on its cells."""

    op: Op
    integer: bool
    names: tuple[tuple[Output, str], ...] | None


class Naming:
    """Names the values of a plan's metrics."""

    def __init__(self, plan: Plan, combine: dict[str, str], report: Report) -> None:
        self._plan = plan
        self._report = report
        self._combine = combine
        self._entries = {
            period: [_entry(op) for op in plan.outputs if op.shown and op.every == period] for period in plan.periods
        }
        self._shown = {op.key: op for op in plan.outputs if op.shown}
        self._declared = {item.template: op.id for op, item in plan.shown_names if "{" not in item.template}
        self._nonfinite = {NONFINITE + op.id for op in plan.outputs}
        patterns = [(re.compile(names_of(item.template)), (op.key, item.alias)) for op, item in plan.shown_names]
        # the pattern that matches any name comes last
        self._patterns = sorted(patterns, key=lambda pattern: pattern[0].pattern == "(.+)")
        self._owners: dict[str, Output] = {}  # by name, with the mode's prefix: the output that wrote it
        self._reported: set[str] = set()

    def add(self, named: Named, period: int, results: MetricValues, partial: bool, prefix: str) -> None:
        """Add the values of one period's metrics; ``partial``: ranks are missing from its window."""
        numbers, taken, owners, scalars = results.numbers, set[str](), self._owners, named.scalars
        for entry in self._entries[period]:
            key, names = entry.op.key, entry.names
            value = numbers.get(key)
            if value is None or names is None:
                if key in results:
                    self._add_cells(named, entry, results[key], partial, prefix, taken)
                continue
            if entry.integer and value.is_integer() and abs(value) < EXACT:
                value = int(value)
            for output, name in names:
                owners[prefix + name] = output
                scalars.append((output, Scalar(name, value, key, partial)))

    def _add_cells(
        self, named: Named, entry: _Entry, cells: Cells, partial: bool, prefix: str, taken: set[str]
    ) -> None:
        op = entry.op
        if not cells.named(op):
            return
        for member, label, value in _present(cells, self._combine[op.key]):
            number = int(value) if entry.integer and value.is_integer() and abs(value) < EXACT else value
            for item in op.names:
                name = _filled(item.template, op.labels, *_cell(cells, member, label))
                if name == item.template:
                    self._owners[prefix + name] = op.key, item.alias
                elif (
                    name in self._declared or name in self._nonfinite or name in taken or name.startswith(SELF)
                    or self._owners.setdefault(prefix + name, (op.key, item.alias)) != (op.key, item.alias)
                ):  # fmt: skip  # a name belongs to the output that wrote it first, in any window and mode
                    self._shadow(name, op)
                    continue
                taken.add(name)
                named.scalars.append(((op.key, item.alias), Scalar(name, number, op.key, partial)))
        for (member, label), (counts, edges) in cells.histograms.items():
            for item in op.names:
                name = _filled(item.template, op.labels, *_cell(cells, member, label))
                histogram = Histogram(name, [int(n) for n in counts], [float(edge) for edge in edges], op.key)
                named.histograms.append(((op.key, item.alias), histogram))

    def _shadow(self, name: str, op: Op) -> None:
        if name in self._reported:
            return
        self._reported.add(name)
        metric = self._declared.get(name)
        if metric is not None and op.id == LOGGED:
            self._report(RuntimeFailure.of("DL508.number", name=name, metric=metric, signals=self._observed(metric)))
        else:
            why = "is written already" if metric is None else f"is the name of the metric `{metric}`"
            self._report(RuntimeFailure.of("DL508.metric", key=op.key, name=name, why=why))

    def _observed(self, metric: str) -> str:
        """The call that observes the signals of a metric, and the rows that they have values for."""
        needs = {clause[0] for clause in signals_of(self._plan)[metric]}
        signals = sorted(
            (op.argument, op.axis.label)
            for phase, name in needs for op in self._plan.phases[phase].signals if op.name == name
        )  # fmt: skip
        calls = ", ".join(argument for argument, _ in signals)
        return f"log.observe({calls}), one value per {' or per '.join(sorted({axis for _, axis in signals})) or 'row'}"

    def passed_through(self, numbers: Mapping[str, float], *, partial: bool) -> list[tuple[Output, Scalar]]:
        """A trainer's numbers as scalars, each assigned to the metric that has this name in other log events."""
        scalars = []
        for name, value in numbers.items():
            output = next((output for pattern, output in self._patterns if pattern.fullmatch(name)), None)
            if output is not None and value == value:
                scalars.append((output, Scalar(name, value, output[0], partial)))
        return scalars

    def nonfinite(self, results: MetricValues) -> list[Scalar]:
        """The number of NaN and infinite values of each metric that has any."""
        counts = {key: n for key, cells in results.cells.items() if key in self._shown and (n := cells.nonfinite)}
        return [Scalar(NONFINITE + op.id, counts[key], key) for key, op in self._shown.items() if key in counts]


def _entry(op: Op) -> _Entry:
    names = tuple(((op.key, item.alias), item.template) for item in op.names if "{" not in item.template)
    integer = (
        isinstance(op, MetricOp)
        and op.dtype is DType.INT
        and op.combine in ("sum", "min", "max", "first", "last", "mean")
        and op.pool == "window"
        and op.smoothing is None
    )
    return _Entry(op, integer, names if len(names) == len(op.names) else None)


def _present(cells: Cells, how: str) -> Iterable[tuple[int, int, float]]:
    """The present values as (member, label, value). Labels that begin with numbers are in the order of the numbers."""
    values, there = cells.combined(how)
    if values.size == 1:  # most metrics
        return ((0, 0, float(values[0, 0])),) if there[0, 0] else ()
    order = _in_order(cells.labels) if cells.labels else np.arange(values.shape[1])
    members, ordered = there[:, order].nonzero()
    labels = order[ordered]
    return zip(members.tolist(), labels.tolist(), values[members, labels].tolist(), strict=True)


@lru_cache(maxsize=512)
def _in_order(labels: Names) -> NDArray[np.int64]:
    """The indices of labels in order: first numbers, such as the buckets `0-7`, `8-15`, `16+`, then words."""

    def key(index: int) -> list[tuple[bool, float, str]]:
        parts = [(part, _NUMBER.match(part)) for part in labels[index].split(BETWEEN)]
        return [(number is None, float(number[1]) if number else 0.0, part) for part, number in parts]

    return np.array(sorted(range(len(labels)), key=key), np.int64)


_NUMBER = re.compile(r"(-?(?:inf|\d+(?:\.\d+)?(?:e[+-]?\d+)?))(?:[+-]|\Z)")


def shown_name(op: Op, member: str | None, label: str | None) -> str | None:
    """The name of one value of a metric, as trackers show it; None if the name has a field without a value."""
    name = _filled(op.names[0].template, op.labels, member, label)
    return None if "{" in name else name


def _cell(cells: Cells, member: int, label: int) -> tuple[str | None, str | None]:
    """The member and the label of a cell by name."""
    return cells.members[member] if cells.members else None, cells.labels[label] if cells.labels else None


@lru_cache(maxsize=4096)
def _filled(template: str, names: tuple[str, ...], member: str | None, label: str | None) -> str:
    """The name of a cell. Each part of a label fills a field of its own; the pooled rest fills all of them."""
    fields = {} if member is None else {"member": member}
    if label is not None:
        parts = label.split(BETWEEN) if len(names) > 1 else [label]
        fields |= {"label": "/".join(parts)}
        fields |= dict(zip(names, parts if len(parts) > 1 else parts * len(names), strict=True))
    return FIELD.sub(lambda match: fields.get(match[1], match[0]), template)
