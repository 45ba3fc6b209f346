"""What differs between what should be logged and what was."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from declog.testing import MemorySink
from tests.oracle.cases import Case
from tests.oracle.expected import expected
from tests.oracle.log_events import Logged
from tests.oracle.reductions import Between, Bins
from tests.oracle.run import as_number, logged

RELATIVE, NARROW = 1e-9, 1e-6  # of float64, and of what float32 tokens had a part in


def same(right: Any, given: Any, off: float = 0.0) -> bool:
    """Equal to 1e-9 of itself, or of what it was computed from; NaN is NaN."""
    if isinstance(right, Between):
        return right.holds(given)
    if isinstance(right, bool | str) or right is None or given is None or isinstance(given, str):
        return type(right) is type(given) and bool(right == given)
    if math.isnan(right) or math.isinf(right):
        return str(float(right)) == str(float(given))
    return bool(abs(right - given) <= max((NARROW if off else RELATIVE) * abs(right), RELATIVE, off))


def differences(case: Case, folder: Path) -> list[str]:
    """Everything that differs, a line each."""
    sink = logged(case, folder)
    return list(compared(expected(case), sink, case))


def compared(right: list[Logged], sink: MemorySink, case: Case) -> Iterator[str]:
    """By log event: scalars, histograms, tables and alerts."""
    merged: dict[tuple[int, str], list[Any]] = {}
    for step, records in sink.events:
        if records:
            merged.setdefault((step, records.mode), []).append(records)
    merged_wanted: dict[tuple[int, str], Logged] = {}
    for event in right:
        into = merged_wanted.setdefault((event.number, event.mode), Logged(event.number, event.mode))
        into.scalars.update(event.scalars)
        into.tables.update(event.tables)
        into.alerts.update(event.alerts)
        into.off.update(event.off)
        into.broken |= event.broken
    for at in sorted({*merged, *merged_wanted}):
        event, all_records = merged_wanted.get(at, Logged(*at)), merged.get(at, [])
        where = f"{at[1]} {at[0]}"
        values = {item.name: as_number(item.value) for records in all_records for item in records.scalars}
        bins = {item.name: item for records in all_records for item in records.histograms}
        yield from scalars(where, event, values, bins)
        tables = {item.table: item for records in all_records for item in records.tables if item.rows}
        for name in sorted({*tables, *event.tables}):
            yield from rows(
                f"{where} table {name}", event.tables.get(name, []), tables.get(name), event.off.get(name, 0.0)
            )
        alerts = {item.name: item.text for records in all_records for item in records.alerts}
        for name in sorted({*alerts, *event.alerts}):
            yield from alert(f"{where} alert {name}", event.alerts.get(name), alerts.get(name))


def scalars(where: str, event: Logged, values: dict[str, Any], bins: dict[str, Any]) -> Iterator[str]:
    reported = {name for name in values if "nonfinite/" in name}
    if reported != event.broken or any(values[name] <= 0 for name in reported):
        yield f"{where}: {sorted(event.broken)} should be reported, and {sorted(reported)} are"
    for name in sorted({*values, *bins, *event.scalars} - reported):
        right, off = event.scalars.get(name, ("absent", 0.0))
        if isinstance(right, Bins):
            found = bins.get(name)
            if found is None or not same_bins(right, found):
                yield f"{where} {name}: {right} is logged as {found}"
        elif name not in values:
            yield f"{where} {name}: {right} is not logged"
        elif right == "absent" or not same(right, values[name], off):
            yield f"{where} {name}: {right} is logged as {values[name]}"


def same_bins(right: Bins, found: Any) -> bool:
    if len(found.counts) != len(right.counts) or sum(found.counts) != sum(right.counts):
        return False
    ends = [(right.edges[0], found.edges[0]), (right.edges[-1], found.edges[-1])]
    edges = ends if right.loose else list(zip(right.edges, found.edges, strict=True))
    off = (
        0.0101 * max(map(abs, right.edges)) if right.loose and right.outside else 0.0
    )  # of tokens that are in a sketch
    if not all(same(a, float(b), off) for a, b in edges):
        return False
    return right.loose or list(right.counts) == [int(item) for item in found.counts]


def rows(where: str, right: list[dict[str, Any]], table: Any, off: float) -> Iterator[str]:
    if table is None:
        yield f"{where}: {len(right)} rows are not logged"
        return
    names = list(right[0]) if right else []
    given = [dict(zip(table.data, row, strict=True)) for row in zip(*table.data.values(), strict=True)]
    if len(given) != len(right) or set(table.data) != set(names):
        yield f"{where}: {len(right)} rows of {names} are {len(given)} of {list(table.data)}\n  {right}\n  {given}"
        return
    for place, (one, other) in enumerate(zip(right, given, strict=True)):
        for name in names:
            if not same(one[name], as_number(other[name]), off if isinstance(one[name], float) else 0.0):
                yield f"{where} row {place} {name}: {one[name]!r} is {other[name]!r}"


def alert(where: str, right: tuple[str, float, float] | None, given: str | None) -> Iterator[str]:
    if right is None or given is None:
        yield f"{where}: {right} is {given!r}"
        return
    start, value, off = right
    if start.endswith(("absent", "hidden")):
        if given != start:
            yield f"{where}: {right} is {given!r}"
        return
    if not given.startswith(start) or not same(value, float(given.removeprefix(start)), max(off, 1e-11 * abs(value))):
        yield f"{where}: {right} is {given!r}"


def report(case: Case, found: list[str]) -> str:
    """The seed, what differs, and the profile."""
    profile = yaml.safe_dump(case.profile, sort_keys=False, allow_unicode=True, width=160)
    lines = "\n".join(sorted(found, key=len)[:12])
    first = f"seed {case.seed}, {case.ranks} ranks: {len(found)} differences"
    return f"{first}\n{lines}\n\n{profile}\n{sorted(case.dtypes.items())}"
