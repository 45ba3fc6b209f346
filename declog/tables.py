"""Tables: the picked rows' columns, enforced to their declared types. Imports no torch."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.axes import Axis
from declog.errors import RuntimeFailure
from declog.evaluate import View
from declog.filters import Rows, select
from declog.frame import Frame
from declog.plan import ColumnOp, TableOp
from declog.records import Column, Table

EXTRA = "extra:"  # the prefix of log_extra's columns in a frame


def build(op: TableOp, frame: Frame, make_view: Callable[[Frame], View] = View) -> Table | None:
    """The table's rows in one window; None where there are none."""
    frame = frame.tail() if op.keep == "last_batch" else frame
    view = make_view(frame)
    rows = select(op.filter, view) if op.filter is not None else np.arange(frame.count(Axis.COMPLETION))
    if not len(rows):
        return None
    columns: list[Column] = []
    data: dict[str, Sequence[Any]] = {}
    for column in op.columns:
        for name, values in _values(column, view, rows, op):
            if name in data:
                if column.expr is None:
                    continue  # a run-time column never shadows a declared one
                raise RuntimeFailure(
                    "DL402", f"the table `{op.id}` has two columns `{name}`", "give one of them another name"
                )
            data[name] = values
            columns.append(Column(name, _natural(values) if column.expr is None else column.type, column.nullable))
    return Table(op.name, op.id, tuple(columns), data, len(rows))


def _values(column: ColumnOp, view: View, rows: Rows, op: TableOp) -> list[tuple[str, list[Any]]]:
    frame = view.frame
    if column.expr is None:
        if column.undeclared == "drop":
            return []
        extras = sorted({name for name, _ in frame.texts if name.startswith(EXTRA)})
        if extras and column.undeclared == "error":
            shown = ", ".join(name.removeprefix(EXTRA) for name in extras)
            raise RuntimeFailure(
                "DL509",
                f"the table `{op.id}` refuses undeclared columns: {shown}",
                "declare them in its schema, or `undeclared: keep`",
            )
        return [
            (name.removeprefix(EXTRA), [_extra(column, item) for item in frame.texts[name, None][1][rows]])
            for name in extras
        ]
    whole = view.rows(column.expr, Axis.COMPLETION)
    if not column.family:
        return [(column.template, _typed(column, whole[rows], op))]
    members = view.members(column.expr)
    return [
        (column.template.replace("{column}", member), _typed(column, whole[place][rows], op))
        for place, member in enumerate(members)
    ]


def _typed(column: ColumnOp, values: NDArray[Any], op: TableOp) -> list[Any]:
    plain = [_plain(item) for item in values.tolist()] if values.dtype.kind == "O" else values.tolist()
    try:
        made = [
            None if item is None or (isinstance(item, float) and math.isnan(item)) else _CONVERT[column.type](item)
            for item in plain
        ]
    except (TypeError, ValueError, OverflowError) as error:
        raise RuntimeFailure(
            "DL509",
            f"the column `{column.id}` of the table `{op.id}` is {column.type}, and holds what cannot be: {error}",
            "convert it where it is observed",
        ) from None
    if column.redact or column.max_chars:
        made = [None if item is None else _shortened(column, item) for item in made]
    if not column.nullable and any(item is None for item in made):
        raise RuntimeFailure(
            "DL509",
            f"the column `{column.id}` of the table `{op.id}` has a missing value and is not nullable",
            f"schemas: {{...: {{{column.id}: {{nullable: true}}}}}}",
        )
    return made


def _shortened(column: ColumnOp, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    for label, pattern in column.redact:
        value = re.sub(pattern, lambda _, shown=f"[{label}]": shown, value)  # type: ignore[misc]
    if column.max_chars is not None and len(value) > column.max_chars:
        value = value[: column.max_chars - 1] + "…"
    return value


def _extra(column: ColumnOp, item: Any) -> Any:
    """A value of a run-time column: NaN is missing here too."""
    return None if isinstance(item, float) and math.isnan(item) else _shortened(column, item)


def _plain(item: Any) -> Any:
    """A value of an object column as plain data."""
    return item.item() if isinstance(item, np.generic) else item


def _json(item: Any) -> Any:
    json.dumps(item)  # raises TypeError for what no sink could write
    return item


_CONVERT: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "bool": bool, "text": str, "json": _json}


def _natural(values: Sequence[Any]) -> Any:
    """The type of a run-time column."""
    kinds = {type(item) for item in values if item is not None}
    for type_, name in ((bool, "bool"), (int, "int"), (str, "text")):
        if kinds == {type_}:
            return name
    return "float" if kinds and kinds <= {int, float} else "json" if kinds else "text"
