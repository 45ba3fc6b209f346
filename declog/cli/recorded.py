"""Shows records for ``declog preview``: in columns, as data for programs, and side by side."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from declog.cli.output import aligned, counted
from declog.errors.visible import visible
from declog.records import Records, Table

Events = Sequence[tuple[int, Records]]
SHOWN = 5  # by default, the most log events with a column
ROWS = 4  # the most rows of a table
WIDTH = 24  # the most characters of a table's cell


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
    """Log events for people, by mode: values in columns, each table (``everything``: at all its steps), and alerts."""
    for mode in dict.fromkeys(records.mode for _, records in events):
        of_mode = [(step, records) for step, records in events if records.mode == mode]
        yield from _columns(mode, of_mode, everything)
        tables: dict[str, list[tuple[int, Table]]] = defaultdict(list)
        for step, records in of_mode:
            for table in records.tables:
                tables[table.name].append((step, table))
        for stepped in tables.values():
            for step, table in stepped if everything else stepped[-1:]:
                yield from _table(step, table)
        for step, records in of_mode:
            for alert in records.alerts:
                yield visible(f"  alert at step {step}: {alert.name} ({alert.level}) {alert.text}")


def _columns(mode: str, of_mode: Events, everything: bool) -> Iterator[str]:
    """The values of a mode: a line for each name, and a column for each log event, or for the first and last ones."""
    events = [(step, records) for step, records in of_mode if records.scalars or records.histograms]
    if not events:
        return
    cells: dict[str, dict[int | None, str]] = defaultdict(dict)  # by name and log event
    for index, (_, records) in enumerate(events):
        for scalar in records.scalars:
            cells[scalar.name][index] = _short(scalar.value)
        for histogram in records.histograms:
            cells[histogram.name][index] = f"{sum(histogram.counts)} values"
    shown: list[int | None] = [*range(len(events))]
    if len(events) > SHOWN and not everything:
        shown[2 : 2 - SHOWN] = [None]
    rows = [["step", *("..." if index is None else str(events[index][0]) for index in shown)]]
    rows += [[name, *(of_name.get(index, "") for index in shown)] for name, of_name in cells.items()]
    head, *lines = aligned([[visible(cell) for cell in row] for row in rows], "<>")
    yield f"  {head}" + ("" if mode == "train" else f"  ({visible(mode)})")
    yield from (f"  {line}" for line in lines)


def _short(value: Any) -> str:
    """A value as text; floats have 6 digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _table(step: int, table: Table) -> Iterator[str]:
    yield visible(f"  table {table.name} at step {step}: {counted(table.rows, 'row')}")
    names = [column.name for column in table.columns]
    rows = [[_cell(table.data[name][row]) for name in names] for row in range(min(table.rows, ROWS))]
    yield from (f"    {line}" for line in aligned([[*map(visible, names)], *rows]))
    if table.rows > ROWS:
        yield f"    ... {table.rows - ROWS} more"


def _cell(value: Any) -> str:
    text = visible("" if value is None else _short(value).replace("\n", "\\n"))
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."


# -- side by side


def differences(one: Events, other: Events) -> dict[str, Any]:
    """The differences between two sinks: names in only one of them, and values, rows and alerts that differ."""
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
    lines = [("-", name, sample) for name, sample in difference["removed"].items()]
    lines += [("+", name, sample) for name, sample in difference["added"].items()]
    for name, (first, *rest) in difference["changed"].items():
        at = f"step {first['step']}" + ("" if first["mode"] == "train" else f" ({first['mode']})")
        lines.append(("~", name, f"{at}: {first['before']} -> {first['after']}{_more(rest)}"))
    width = max((len(name) for _, name, _ in lines), default=0)
    yield from (visible(f"  {sign} {name.ljust(width)}  {text}") for sign, name, text in lines)
    yield f"  = {difference['equal']} equal; {difference['bytes'][0]:,} -> {difference['bytes'][1]:,} bytes"


Position = tuple[str, int]  # a mode and a step


def _values(events: Events) -> dict[str, dict[Position, Any]]:
    """All records by name and log event: numbers unchanged, other records as words, with data to compare."""
    values: dict[str, dict[Position, Any]] = defaultdict(dict)
    for step, records in events:
        at = (records.mode, step)
        for scalar in records.scalars:
            values[scalar.name][at] = scalar.value
        for histogram in records.histograms:
            values[histogram.name][at] = (f"counts {list(histogram.counts)}", list(histogram.edges))
        for table in records.tables:
            values[f"table {table.name}"][at] = (f"{table.rows} rows of {', '.join(table.data)}", repr(table.data))
        for alert in records.alerts:
            values[f"alert {alert.name}"][at] = alert.text
    return values


def _changed(before: dict[Position, Any], after: dict[Position, Any]) -> list[dict[str, Any]]:
    """The log events whose values differ; NaN equals NaN."""
    pairs = {at: (before.get(at), after.get(at)) for at in (*before, *after)}
    return [
        {"mode": mode, "step": step, "before": _words(was), "after": _words(now)}
        for (mode, step), (was, now) in pairs.items()
        if was != now and (was == was or now == now)
    ]


def _words(value: Any) -> str:
    if value is None:
        return "nothing"
    return str(value[0]) if isinstance(value, tuple) else _short(value)


def _sample(values: dict[Position, Any]) -> str:
    ((_, step), value), *rest = values.items()
    return f"step {step}: {_words(value)}{_more(rest)}"


def _more(rest: Sequence[Any]) -> str:
    return f"; {len(rest)} more" if rest else ""
