"""Filters the rows of a run's table by a condition in the language of `where`.

The condition is compiled like a filter's `where`, with columns as signals, and evaluated by the same engine. A column
`reward/correct` is called `reward_correct`; `step` and `rank` are those of the row. Functions of a group use the rows
of that group in the table.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from declog.api import plan
from declog.engine.blocks import Block, Key, batches_of, texts_of
from declog.engine.evaluator import View
from declog.engine.filters import select
from declog.engine.frame import GROUP_ID, Frame
from declog.engine.groups import digests
from declog.engine.local_columns import with_locals
from declog.errors import ConfigError, Problem
from declog.language.dtypes import Axis, DType
from declog.language.scope import RESERVED
from declog.language.segmented import NOTHING
from declog.runs.prompts import RANK, step_of

Row = Mapping[str, Any]
WHERE = "where"


def matching(rows: Sequence[Row], condition: str, constants: Mapping[str, Any] | None = None) -> list[Row]:
    """The rows for which a condition is true, in their order; ``constants`` are those of the run's config.

    Raises ``ConfigError`` with the place in the condition; if the condition names an unknown column, the error lists
    the columns.
    """
    columns = named_columns(rows)
    types = {name: dtype_of([row.get(column) for row in rows]) for name, column in columns.items()}
    compiled = _compiled(condition, types, constants or {}, grouped="group" in columns)
    order = sorted(range(len(rows)), key=lambda index: _batch(rows[index]))
    ordered = [rows[index] for index in order]
    values = {name: [row.get(column) for row in ordered] for name, column in columns.items()}
    frame = _frame([_batch(row) for row in ordered], values, types, compiled)
    (table,) = compiled.tables
    assert table.filter is not None
    frame = with_locals({table.filter.phase: frame}, compiled)[table.filter.phase]
    chosen = select(table.filter, View(frame), np.arange(len(rows)), Axis.COMPLETION).rows
    return [rows[index] for index in sorted(order[row] for row in chosen.tolist())]


def named_columns(rows: Sequence[Row]) -> dict[str, str]:
    """The columns of rows by their names in a condition; columns whose names are no identifiers are left out."""
    named: dict[str, str] = {}
    for column in dict.fromkeys(column for row in rows for column in row):
        name = re.sub(r"\W", "_", column)
        if name.isidentifier() and name not in RESERVED:
            named.setdefault(name, column)
    return named


def dtype_of(values: Sequence[Any]) -> DType:
    """The type of a column by its values; `object` if they have several types."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return DType.BOOL
    if kinds == {int} and all(abs(value) < 2**63 for value in values if value is not None):
        return DType.INT
    if kinds <= {int, float}:
        return DType.FLOAT
    return DType.TEXT if kinds == {str} else DType.OBJECT


def _batch(row: Row) -> tuple[int, int]:
    """The step and the rank of a row."""
    return step_of(row), int(row.get(RANK) or 0)


def _compiled(condition: str, types: Mapping[str, DType], constants: Mapping[str, Any], *, grouped: bool) -> Any:
    plain = {name: value for name, value in constants.items() if isinstance(value, int | float | str)}
    config = {
        "constants": {name: value for name, value in plain.items() if name not in types},
        "signals": {"any": {name: {"axis": "completion", "type": str(type_)} for name, type_ in types.items()}},
        "axes": {"group": {"of": ["group"]}} if grouped else {},
        "filters": {WHERE: {"where": condition}},
        "schemas": {WHERE: {"step": {"type": "int", "expr": "step"}}},
        "tables": {WHERE: {"schema": WHERE, "filter": WHERE}},
        "sinks": ["jsonl"],
    }
    try:
        return plan(config)
    except ConfigError as error:
        raise ConfigError([_of_column(problem, types) for problem in error.problems]) from None


def _of_column(problem: Problem, names: Mapping[str, DType]) -> Problem:
    """The problem of a condition as one of the option `--where`, with `column` for `signal`."""
    message = re.sub(r"\bsignal\b", "column", problem.message)
    fix = problem.fix
    if problem.message_key in ("DL302.signal", "DL302.limit"):
        columns = f"columns: {', '.join(sorted({*names, 'step', 'rank'}))}"
        fix = columns if problem.near is None else f"{fix}  {columns}"
    return replace(problem, message=message, fix=fix, path=("--where",), where=None)


def _frame(
    batches: Sequence[tuple[int, int]], values: Mapping[str, list[Any]], types: Mapping[str, DType], compiled: Any
) -> Frame:
    """The rows as a frame of the engine, with a batch for each step and rank."""
    counts = Counter(batches)
    entries = [(step, 0, rank, count, 0.0, index) for index, ((step, rank), count) in enumerate(counts.items())]
    blocks: list[Block] = []
    texts: dict[Key, tuple[Axis, Any]] = {}
    for name, column in values.items():
        if types[name] in (DType.TEXT, DType.OBJECT):
            texts[name, None] = (Axis.COMPLETION, texts_of(column))
        else:
            blocks.append(_numbers(name, column, types[name]))
    if compiled.grouping is not None and "group" in values:
        ids = digests([-1 if one is None else one for one in values["group"]])
        blocks.append(Block(Axis.COMPLETION, ((GROUP_ID, None),), ids[None]))
    (table,) = compiled.tables
    return Frame(table.filter.phase, batches_of(entries), blocks, texts, compiled.grouping)


def _numbers(name: str, column: Sequence[Any], dtype: DType) -> Block:
    key: Key = (name, None)
    if dtype is DType.FLOAT:
        return Block(Axis.COMPLETION, (key,), np.array([[math.nan if one is None else one for one in column]], float))
    if dtype is DType.INT:
        objects = texts_of([NOTHING if one is None else one for one in column])
        return Block.of_integers(Axis.COMPLETION, (key,), objects)
    valid = np.array([[one is not None for one in column]], bool)
    data = np.array([[bool(one) for one in column]], bool)
    return Block(Axis.COMPLETION, (key,), data, None if valid.all() else valid)
