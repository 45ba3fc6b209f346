"""The tables that a run's plan sends to files: what there is of one into which no row was written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from declog.runs.frame import Frame

KINDS = ("parquet", "jsonl")  # of sinks whose files are read
ARROW = {"float": "float64", "int": "int64", "bool": "bool_"}  # by the type of a column; the others are texts


def empty_tables(plan: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Frame]:
    """The tables that the plan sends to files, by id, with their columns and without rows."""
    options = config.get("sink_options") or {}
    return {
        table["id"]: _empty(table.get("columns"))
        for table in plan.get("tables", ())
        if any(kind_of(taker.partition(" ")[0], options) in KINDS for taker in str(table.get("to", "")).split(", "))
    }


def kind_of(sink: str, options: Mapping[str, Any]) -> str:
    """The kind of a sink, which is its id unless its options say another."""
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
