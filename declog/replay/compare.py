"""The differences between logged and expected values, one for each position in a test."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from declog.language.spec_of_tests import Expectations, Expected, ExpectedTable
from declog.records import NONFINITE, Histogram, Records, Scalar, Table

MOST = 8  # the most values of one column that are shown


Events = Sequence[tuple[int, Records]]  # log events with their steps


@dataclass(frozen=True)
class Difference:
    """A position in a test, the expected value, and the logged one."""

    where: str
    expected: str
    got: str

    def at(self, prefix: str) -> Difference:
        """The same difference at a longer path."""
        return replace(self, where=f"{prefix}.{self.where}" if self.where else prefix)

    def __str__(self) -> str:
        got = self.got.replace("\n", "\n             ")
        return f"  {self.where or 'the run'}\n    expected {self.expected}\n    got      {got}"


def compare(expectations: Expectations, events: Events, tol: float, mode: str = "train") -> Iterator[Difference]:
    """The differences between expectations and log events. Ids of metrics stand for the metrics' values in ``mode``."""
    for name, expected in expectations.expect.items():
        logged, problem = _logged(name, events, mode)
        if problem is not None:
            yield Difference(f"expect.{name}", "one value", problem)
        elif expected is None:
            if logged:
                step, record = logged[-1]
                yield Difference(f"expect.{name}", "nothing", f"{_shown(record)} at step {step}")
        elif not logged:
            near = sorted({record.name for _, records in events for record in records.scalars})
            shown = f"; logged: {', '.join(near[:12])}{', ...' if len(near) > 12 else ''}" if near else ""
            yield Difference(f"expect.{name}", _expectation(expected, tol), f"nothing{shown}")
        elif not _holds(expected, logged[-1][1], tol):
            yield Difference(f"expect.{name}", _expectation(expected, tol), _shown(logged[-1][1]))
    for name, table in expectations.tables.items():
        named = [item for _, records in events for item in records.tables if name in (item.table, item.name)]
        yield from (one.at(f"tables.{name}") for one in _table(table, named, tol))
    if expectations.alerts is not None:
        yield from _alerts(expectations.alerts, [alert.name for _, records in events for alert in records.alerts])


# -- values


def _logged(name: str, events: Events, mode: str) -> tuple[list[tuple[int, Scalar | Histogram]], str | None]:
    """The records with a name or a metric's id, and a reason for refusing the id if its records differ."""
    named: list[tuple[int, Scalar | Histogram]] = []
    of_metric: dict[str, list[tuple[int, Scalar | Histogram]]] = {}  # by name
    for step, records in events:
        logged: list[Scalar | Histogram] = [*records.scalars, *records.histograms]
        for record in logged:
            if record.name == name:
                named.append((step, record))
            # the record that counts a metric's NaN values is no value of the metric
            elif record.metric == name and records.mode == mode and not record.name.endswith(f"{NONFINITE}{name}"):
                of_metric.setdefault(record.name, []).append((step, record))
    if named:
        return named, None
    shown = {key: _shown(stepped[-1][1]) for key, stepped in sorted(of_metric.items())}
    if len({*shown.values()}) > 1:
        return [], f"several, {', '.join(f'{key}: {text}' for key, text in shown.items())}; write one of these names"
    return [one for stepped in of_metric.values() for one in stepped], None


def _holds(expected: Expected, record: Scalar | Histogram, tol: float) -> bool:
    if isinstance(record, Histogram) or expected.counts is not None:
        return isinstance(record, Histogram) and list(record.counts) == expected.counts
    value = float(record.value)
    if expected.value is not None and not close(value, expected.value, tol if expected.tol is None else expected.tol):
        return False
    return (expected.above is None or value > expected.above) and (expected.below is None or value < expected.below)


def close(value: float, expected: float, tol: float) -> bool:
    """Whether two numbers are equal within an absolute or relative tolerance. NaN equals NaN."""
    if math.isnan(value) or math.isnan(expected):
        return math.isnan(value) and math.isnan(expected)
    return math.isclose(value, expected, rel_tol=tol, abs_tol=tol)


def _expectation(expected: Expected, tol: float) -> str:
    parts = []
    if expected.value is not None:
        parts.append(f"{expected.value:.9g} (within {tol if expected.tol is None else expected.tol:g})")
    parts += [] if expected.above is None else [f"above {expected.above:.9g}"]
    parts += [] if expected.below is None else [f"below {expected.below:.9g}"]
    parts += [] if expected.counts is None else [f"counts {expected.counts}"]
    return ", ".join(parts)


def _shown(record: Scalar | Histogram) -> str:
    return f"counts {list(record.counts)}" if isinstance(record, Histogram) else f"{record.value:.9g}"


# -- tables and alerts


def _table(expected: ExpectedTable | None, tables: Sequence[Table], tol: float) -> Iterator[Difference]:
    rows = sum(table.rows for table in tables)
    if expected is None:
        if rows:
            yield Difference("", "no rows", f"{rows} rows")
        return
    if expected.rows is not None and rows != expected.rows:
        yield Difference("rows", str(expected.rows), str(rows))
    for column, values in expected.columns.items():
        names = sorted({item.name for table in tables for item in table.columns})
        where = f"columns.{column}"
        if column not in names:
            if values is not None:
                yield Difference(where, f"{values}", f"no such column; there are {', '.join(names) or 'no rows'}")
            continue
        if values is None:
            yield Difference(where, "no such column", "it is there")
            continue
        got = [item for table in tables for item in table.data.get(column, [None] * table.rows)]
        if len(got) != len(values) or not all(_same(*pair, tol) for pair in zip(got, values, strict=True)):
            yield Difference(where, _list(values), _list(got))


def _same(got: Any, expected: Any, tol: float) -> bool:
    numbers = (int, float)
    if isinstance(got, numbers) and isinstance(expected, numbers) and not isinstance(got, bool):
        return close(float(got), float(expected), tol)
    return bool(got == expected)


def _list(values: Sequence[Any]) -> str:
    shown = ", ".join(f"{item:.9g}" if isinstance(item, float) else repr(item) for item in values[:MOST])
    return f"[{shown}{f', ... {len(values)} in all' if len(values) > MOST else ''}]"


def _alerts(expected: list[str] | dict[str, int | None], fired: Sequence[str]) -> Iterator[Difference]:
    if isinstance(expected, list):
        if set(expected) != set(fired):
            yield Difference("alerts", ", ".join(expected) or "none", ", ".join(sorted(set(fired))) or "none")
        return
    for name, times in expected.items():
        if fired.count(name) != (times or 0):
            yield Difference(f"alerts.{name}", f"{times or 0} times", f"{fired.count(name)} times")
