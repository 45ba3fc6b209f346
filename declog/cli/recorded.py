"""Records in columns, as data, and side by side, as ``declog preview`` prints them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from declog.cli.output import aligned, counted
from declog.errors.visible import visible
from declog.records import Histogram, Records, Scalar, Table

Events = Sequence[tuple[int, Records]]
SHOWN = 5  # log events with a column, by default
ROWS = 4  # rows of a table that are shown
WIDTH = 24  # of a table's cell


def as_data(events: Events) -> list[dict[str, Any]]:
    """Log events for programs: everything that a sink gets, except the time."""
    return [{**_event(step, records), "bytes": size(step, records)} for step, records in events]


def size(step: int, records: Records) -> int:
    """The bytes of a log event as a line of JSON."""
    return len(json.dumps(_event(step, records), ensure_ascii=False, default=str).encode("utf-8", "surrogatepass"))


def _event(step: int, records: Records) -> dict[str, Any]:
    return {
        "step": step,
        "mode": records.mode,
        "scalars": {item.name: item.value for item in records.scalars},
        "partial": any(item.partial for item in records.scalars),
        "histograms": {
            item.name: {"counts": list(item.counts), "edges": list(item.edges)} for item in records.histograms
        },
        "tables": {item.name: {name: list(values) for name, values in item.data.items()} for item in records.tables},
        "alerts": [asdict(item) for item in records.alerts],
    }


def as_text(events: Events, everything: bool) -> Iterator[str]:
    """Log events for people: values in columns, by mode; the last rows of each table; alerts."""
    return map(visible, _lines(events, everything))


def _lines(events: Events, everything: bool) -> Iterator[str]:
    for mode in dict.fromkeys(records.mode for _, records in events):
        of_mode = [(step, records) for step, records in events if records.mode == mode]
        values = [(step, records) for step, records in of_mode if records.scalars or records.histograms]
        if values:
            yield from _columns(mode, values, everything)
        for name in dict.fromkeys(table.name for _, records in of_mode for table in records.tables):
            tables = [(step, table) for step, records in of_mode for table in records.tables if table.name == name]
            for step, table in tables if everything else tables[-1:]:
                yield from _table(step, table)
        for step, records in of_mode:
            yield from (f"  alert at step {step}: {one.name} ({one.level}) {one.text}" for one in records.alerts)


def _columns(mode: str, events: Events, everything: bool) -> Iterator[str]:
    shown, skipped = list(events), len(events) > SHOWN and not everything
    if skipped:
        shown = [*events[:2], *events[2 - SHOWN :]]
    named: list[Scalar | Histogram] = []
    for _, records in events:
        named += [*records.scalars, *records.histograms]
    names = dict.fromkeys(item.name for item in named)
    rows = [["step", *(str(step) for step, _ in shown)]]
    rows += [[name, *(_value(records, name) for _, records in shown)] for name in names]
    for number, row in enumerate(rows if skipped else ()):
        row.insert(3, "" if number else "...")
    for number, line in enumerate(aligned(rows, numbers=True)):
        yield f"  {line}" + ("" if number or mode == "train" else f"  ({mode})")


def _value(records: Records, name: str) -> str:
    for item in records.scalars:
        if item.name == name:
            return number(item.value)
    return next((f"{sum(item.counts)} values" for item in records.histograms if item.name == name), "")


def number(value: float | int | bool) -> str:
    """A value in few digits."""
    return str(value) if isinstance(value, bool | int) else f"{value:.6g}"


def _table(step: int, table: Table) -> Iterator[str]:
    yield f"  table {table.name} at step {step}: {counted(table.rows, 'row')}"
    names = [column.name for column in table.columns]
    rows = [[_cell(table.data[name][row]) for name in names] for row in range(min(table.rows, ROWS))]
    yield from (f"    {line}" for line in aligned([names, *rows]))
    if table.rows > ROWS:
        yield f"    ... {table.rows - ROWS} more"


def _cell(value: Any) -> str:
    text = "" if value is None else number(value) if isinstance(value, float | int) else str(value)
    text = visible(text.replace("\n", "\\n"))
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."


# -- side by side


def differences(one: Events, other: Events) -> dict[str, Any]:
    """The differences between two sinks: names in one of them only, and values, rows and alerts that differ."""
    before, after = _values(one), _values(other)
    both = [name for name in before if name in after]
    changed = {name: changes for name in both if (changes := _changed(before[name], after[name]))}
    return {
        "removed": {name: _sample(before[name]) for name in before if name not in after},
        "added": {name: _sample(after[name]) for name in after if name not in before},
        "changed": changed,
        "equal": len(both) - len(changed),
        "bytes": [sum(size(step, records) for step, records in events) for events in (one, other)],
    }


def side_by_side(difference: dict[str, Any]) -> Iterator[str]:
    """Differences for people."""
    return map(visible, _differences(difference))


def _differences(difference: dict[str, Any]) -> Iterator[str]:
    width = max((len(name) for key in ("removed", "added", "changed") for name in difference[key]), default=0)
    for sign, key in (("-", "removed"), ("+", "added")):
        for name, sample in difference[key].items():
            yield f"  {sign} {name.ljust(width)}  {sample}"
    for name, items in difference["changed"].items():
        first = items[0]
        at = f"step {first['step']}" + ("" if first["mode"] == "train" else f" ({first['mode']})")
        more = f"; {len(items) - 1} more" if len(items) > 1 else ""
        yield f"  ~ {name.ljust(width)}  {at}: {first['before']} -> {first['after']}{more}"
    yield f"  = {difference['equal']} equal; {difference['bytes'][0]:,} -> {difference['bytes'][1]:,} bytes"


Place = tuple[str, int]


def _values(events: Events) -> dict[str, dict[Place, Any]]:
    """Everything with a name, by name and log event: numbers as they are, other records in words, with their data."""
    values: dict[str, dict[Place, Any]] = {}
    for step, records in events:
        at = (records.mode, step)
        for scalar in records.scalars:
            values.setdefault(scalar.name, {})[at] = scalar.value
        for histogram in records.histograms:
            counts, edges = list(histogram.counts), list(histogram.edges)
            values.setdefault(histogram.name, {})[at] = (f"counts {counts}", edges)
        for table in records.tables:
            words = f"{table.rows} rows of {', '.join(table.data)}"
            values.setdefault(f"table {table.name}", {})[at] = (words, repr(table.data))
        for alert in records.alerts:
            values.setdefault(f"alert {alert.name}", {})[at] = alert.text
    return values


def _changed(before: dict[Place, Any], after: dict[Place, Any]) -> list[dict[str, Any]]:
    return [
        {"mode": at[0], "step": at[1], "before": _words(before.get(at)), "after": _words(after.get(at))}
        for at in dict.fromkeys([*before, *after])
        if not _equal(before.get(at), after.get(at))
    ]


def _equal(before: Any, after: Any) -> bool:
    if isinstance(before, float) and isinstance(after, float) and math.isnan(before) and math.isnan(after):
        return True
    return bool(before == after)


def _words(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, tuple):
        return str(value[0])
    return number(value) if isinstance(value, float | int) else str(value)


def _sample(values: dict[Place, Any]) -> str:
    (_, step), value = next(iter(values.items()))
    more = f"; {len(values) - 1} more" if len(values) > 1 else ""
    return f"step {step}: {_words(value)}{more}"
