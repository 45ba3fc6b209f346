"""Records as rows for files: the columns of scalars, histograms and alerts, and the origin of a table's rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from declog.records import Alert, Column, DType, Histogram, Records, Scalar, Table
from declog.sinks._shared import as_float

# The step of the log event and the run's id, in files of a table that has a column `step` or `run_id` of its own.
EVENT_STEP, EVENT_RUN = "declog_step", "declog_run_id"
INT64 = range(-(2**63), 2**63)
COLUMNS: Mapping[str, Sequence[str]] = {
    "scalars": ("step", "mode", "name", "metric", "value", "int_value", "partial", "time", "run_id"),
    "histograms": ("step", "mode", "name", "metric", "counts", "edges", "time", "run_id"),
    "alerts": ("step", "mode", "name", "level", "text", "time", "run_id"),
}


def schema(kind: str) -> Any:
    """The Arrow schema of scalars, histograms or alerts."""
    import pyarrow as pa

    types = {
        "step": pa.int64(), "value": pa.float64(), "int_value": pa.int64(), "partial": pa.bool_(),
        "time": pa.float64(), "counts": pa.list_(pa.int64()), "edges": pa.list_(pa.float64()),
    }  # fmt: skip
    return pa.schema([(name, types.get(name, pa.string())) for name in COLUMNS[kind]])


def event_steps(rows: Any) -> Any:
    """The step of the log event of each row of an Arrow table; None if the table has no such column."""
    import pyarrow as pa
    import pyarrow.compute as compute

    names = [name for name in (EVENT_STEP, "step") if name in rows.column_names]  # null before a table had its own step
    columns = [rows[name] for name in names if pa.types.is_int64(rows[name].type)]  # its own may be a text
    return compute.coalesce(*columns) if columns else None


def with_event_steps(rows: Any) -> Any:
    """An Arrow table in which each row has the step of its log event, if any row has one beside its own step."""
    if EVENT_STEP not in rows.column_names:
        return rows
    return rows.set_column(rows.column_names.index(EVENT_STEP), EVENT_STEP, event_steps(rows))


def scalars_by_name(records: Records) -> dict[str, Any]:
    """The scalars of a log event as ``scalars``, and the names of ``partial`` ones; empty if there are none."""
    values = {"scalars": {scalar.name: scalar.value for scalar in records.scalars}}
    partial = {"partial": [scalar.name for scalar in records.scalars if scalar.partial]}
    return {key: items for key, items in {**values, **partial}.items() if items}


def event_rows(kind: str, events: Sequence[tuple[int, Records]], run_id: str) -> list[dict[str, Any]]:
    """A row for each scalar, histogram or alert of some log events, with the columns of its kind."""
    return [
        {"step": step, "mode": records.mode, "time": records.time, "run_id": run_id, **_cells(item)}
        for step, records in events
        for item in getattr(records, kind)
    ]


def _cells(item: Scalar | Histogram | Alert) -> dict[str, Any]:
    if isinstance(item, Scalar):
        exact = int(item.value) if isinstance(item.value, int) and item.value in INT64 else None
        return {**item._asdict(), "value": as_float(item.value), "int_value": exact}
    if isinstance(item, Histogram):
        return {**vars(item), "counts": list(item.counts), "edges": list(map(float, item.edges))}
    return vars(item)


def table_rows(table: Table, step: int) -> Iterator[dict[str, Any]]:
    """The rows of a table. Each has the columns of `origins`, then the table's own."""
    columns = {**origins(table, step), **{column.name: table.data[column.name] for column in table.columns}}
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def origins(table: Table, step: int) -> dict[str, Sequence[Any]]:
    """The origin of each row as columns: its step, its group, its number and the reason why it was picked.

    A column of the table with the same name wins. If a row's step is not the log event's, there are columns for both.
    """
    names, places = {column.name for column in table.columns}, table.places
    event: Sequence[int] = [step] * table.rows
    steps = event if places is None or "step" in names else places.step
    columns: dict[str, Sequence[Any]] = {"step": steps}
    if "step" in names or (places is not None and any(at != step for at in places.step)):
        columns[EVENT_STEP] = event
    if places is not None:
        details = {"group": places.group, "row": places.row, "why": places.why}
        columns |= {name: values for name, values in details.items() if values is not None and name not in names}
    return columns


def with_why(table: Table) -> Table:
    """The table with a first column ``why``: the reason why each row was picked; unchanged without a filter."""
    places = table.places
    if places is None or places.why is None or any(column.name == "why" for column in table.columns):
        return table
    columns = (Column("why", DType.TEXT), *table.columns)
    return replace(table, columns=columns, data={"why": places.why, **table.data})


def end_of(why: str) -> str:
    """``best`` or ``worst``, from the last filter of extremes among a row's reasons; else empty."""
    return {":top": "best", ":bottom": "worst"}.get("".join(re.findall(r":(?:top|bottom)\b", why)[-1:]), "")


def run_column(table: Table) -> str:
    """The name of the column with the run's id."""
    return EVENT_RUN if any(column.name == "run_id" for column in table.columns) else "run_id"
