"""What a run declares and has not written: tables without a row, and where the values of a name without scalars are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from declog.errors import did_you_mean
from declog.runs.frame import Frame

if TYPE_CHECKING:
    from declog.runs.run import Run

KINDS = ("parquet", "jsonl")  # of sinks whose files are read
ARROW = {"float": "float64", "int": "int64", "bool": "bool_"}  # by the type of a column; the others are texts


def empty_tables(run: Run) -> dict[str, Frame]:
    """The tables that the plan sends to files, by id, with their columns and without rows."""
    options = run.config.get("sink_options") or {}
    takers = {table["id"]: str(table.get("to", "")).split(", ") for table in run.plan.get("tables", ())}
    return {
        table["id"]: _empty(table.get("columns"))
        for table in run.plan.get("tables", ())
        if any(_kind(taker.partition(" ")[0], options) in KINDS for taker in takers[table["id"]])
    }


def _kind(sink: str, options: Mapping[str, Any]) -> str:
    spec = options.get(sink)
    return str(spec.get("kind", sink)) if isinstance(spec, Mapping) else sink


def _empty(columns: object) -> Frame:
    import pyarrow as pa

    types = {"step": "int64", "mode": "string"}
    for column in columns if isinstance(columns, list) else ():
        if isinstance(column, dict) and "{" not in (name := str(column.get("name"))):
            types[name] = ARROW.get(str(column.get("type")), "string")
    types["run_id"] = "string"
    return Frame(pa.schema([(name, getattr(pa, type_)()) for name, type_ in types.items()]).empty_table())


def of_no_scalar(run: Run, name: str) -> str:
    """What is said of a name that no scalar of a run has: where its values are, that none came, or the nearest name."""
    for section, rows in {"histograms": run.histograms, "alerts": run.alerts}.items():
        if name in rows.arrow()["name"].to_pylist():
            return f'it is in `run.{section}`: [row for row in run.{section}.rows() if row["name"] == "{name}"]'
    if name in run.tables:
        return f'it is a table: run.tables["{name}"].pandas()'
    if any(output["name"] == name for output in run.plan.get("outputs", ())):
        return "no value of it was logged"
    if any(alert["id"] == name for alert in run.plan.get("alerts", ())):
        return "it is an alert, and has not fired"
    return did_you_mean(name, run, what="scalars of this run")
