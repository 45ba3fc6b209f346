"""Rows of one kind from several files: of the ranks of a sink, and of several sinks that have the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from declog.sinks._rows import event_steps


def joint(tables: Sequence[Any]) -> Any:
    """The rows of all tables, one behind the other; a column that one does not have is null there."""
    import pyarrow as pa

    return pa.concat_tables(tables, promote_options="permissive")


def by_step(table: Any) -> Any:
    """The rows sorted by the step of their log event; rows of one log event keep their order."""
    import pyarrow.compute as compute

    steps = event_steps(table)
    return table.take(compute.sort_indices(steps)) if steps is not None else table


def merged(tables: Sequence[Any], key: Sequence[str]) -> Any:
    """The rows of several sinks; a row that several have comes from the first."""
    rows = tables[0]
    for table in tables[1:]:
        present = set(_keys(rows, key))
        more = [index for index, one in enumerate(_keys(table, key)) if one not in present]
        if more:
            rows = by_step(joint([rows, table.take(more)]))
    return rows


def _keys(table: Any, key: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    columns = [(event_steps(table) if name == "step" else table[name]).to_pylist() for name in key]
    return zip(*columns, strict=True)
