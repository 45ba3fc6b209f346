"""Builds tables: the columns of the selected rows, converted to their declared types."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.engine.evaluator import View
from declog.engine.filters import Rows, Selection, reasons, select
from declog.engine.frame import Frame
from declog.engine.reduce import Report, failure
from declog.engine.tables import token_cells
from declog.engine.tables.cell_values import row_bytes, shortened
from declog.engine.warnings.repeated_rows import RepeatedRows
from declog.errors import RuntimeFailure, error_text
from declog.language.dtypes import Axis, DType
from declog.language.plain_values import CONVERT, fits, natural, plain, returned
from declog.plans.ops import ColumnOp, Plan, TableOp
from declog.records import Column, Places, Table

log = logging.getLogger("declog")
EXTRA = "extra:"  # the prefix of log_extra's columns in a frame
# columns that sinks add; only a declared column may take their place
STAMPS = frozenset({"step", "mode", "group", "row", "why", "declog_step"})


@dataclass(eq=False)  # never modified; creating a frozen dataclass takes three times as long
class _TableColumn:
    """A finished column. ``runtime``: its name came up at run time; a declared column of that name replaces it."""

    column: Column
    values: Sequence[Any]
    runtime: bool = False


class Tables:
    """Builds the tables of a run. Keeps the types and members of run-time columns, which must not change in a run."""

    def __init__(self, report: Report, plan: Plan) -> None:
        self._report = report
        self._repeated = RepeatedRows(plan)
        self._types: dict[str, dict[str, DType]] = {}  # types of log_extra's columns by table, in order of appearance
        self._members: dict[str, dict[str, None]] = {}  # members of families by table and column
        self._reported: set[tuple[str, ...]] = set()

    def build(self, op: TableOp, view: View) -> Table | None:
        """The table's rows in one window; None if there are none, or if building fails, which is reported."""
        try:
            return self._built(op, view)
        except BaseException as error:  # noqa: BLE001  (a user's function may raise anything)
            what = f"the table `{op.id}`"
            named = isinstance(error, RuntimeFailure) and what in error.message
            self._report(error if named else failure(what, error))
        return None

    def _built(self, op: TableOp, view: View) -> Table | None:
        frame = view.frame
        rows = frame.last(op.axis) if op.keep == "last_batch" else np.arange(frame.count(op.axis))
        chosen = Selection(rows) if op.filter is None else select(op.filter, view, rows, op.axis)
        for one, count in chosen.without:
            values = " or ".join(f"`{node}`" for node in one.keys)
            text = "the table `%s`: the filter `%s` leaves out rows without %s, %d of them here (reported once)"
            self._warn(("without", op.id, one.id), text, op.id, one.id, values, count)
        if not len(chosen.rows):
            return None
        why, order = reasons(chosen, view, op.axis) if chosen.taken else (None, None)
        of_window = any(not filter.within and filter.kind != "all" for filter, _ in chosen.taken)
        places = replace(_places(frame, op.axis, chosen.rows, why), order=order, of_window=of_window)
        declared = {column.template for column in op.columns if column.undeclared is None and not column.family}
        finished: dict[str, _TableColumn] = {}
        for column in op.columns:
            for item in self._columns(column, op, view, chosen.rows, places):
                name = item.column.name
                if item.runtime and (name in declared or name in finished or (column.undeclared and name in STAMPS)):
                    self._shadowed(op, column, name)
                else:
                    finished[name] = item
        columns = tuple(item.column for item in finished.values())
        data = {name: item.values for name, item in finished.items()}
        self._repeated.judge(op, frame, chosen.rows, data)
        return self._within_bytes(op, columns, data, places)

    # -- columns

    def _columns(
        self, column: ColumnOp, op: TableOp, view: View, rows: Rows, places: Places
    ) -> Iterator[_TableColumn]:  # fmt: skip
        if column.undeclared is not None:
            yield from self._extras(column, op, view.frame, rows) if column.keeps else ()
        elif column.call is not None:
            yield self._checked(column, op, column.template, self._called(column, op, view, rows))
        elif column.tokens is not None:
            yield self._checked(column, op, column.template, self._tokens(column, op, view, rows))
        elif column.family:
            yield from self._family(column, op, view, rows)
        else:
            values = [None] * len(rows) if column.expr is None else plain(view.picked(column.expr, op.axis, rows))
            if column.origin is not None and all(item is None for item in values):
                values = list(getattr(places, column.origin) or values)
            yield self._checked(column, op, column.template, _typed(column, values))

    def _checked(
        self, column: ColumnOp, op: TableOp, name: str, values: list[Any], *, runtime: bool = False
    ) -> _TableColumn:
        if (column.redact or column.max_chars) and column.tokens is None:
            values = [shortened(column, item) for item in values]
        if column.required and any(item is None for item in values):
            raise RuntimeFailure.of("DL509.null", column=column.id, table=op.id)
        tokens = None if column.tokens is None else tuple(name for name, _ in column.tokens.values)
        return _TableColumn(Column(name, column.type, not column.required, column.role, tokens), values, runtime)

    def _tokens(self, column: ColumnOp, op: TableOp, view: View, rows: Rows) -> list[Any]:
        """Each row's tokens; null if pieces and values belong to different tokens, which is reported."""
        assert column.tokens is not None and column.expr is not None
        ids = list(view.picked(column.expr, op.axis, rows))
        values = {name: list(view.picked(node, op.axis, rows)) for name, node in column.tokens.values}
        cells: list[Any] = []
        for row in range(len(rows)):
            try:
                cells.append(token_cells.cell(column, ids[row], {name: items[row] for name, items in values.items()}))
            except ValueError as error:
                text = "the table `%s`: the column `%s` is null where it has %s (reported once)"
                self._warn(("tokens", op.id, column.id), text, op.id, column.id, error)
                cells.append(None)
        return cells

    def _family(self, column: ColumnOp, op: TableOp, view: View, rows: Rows) -> Iterator[_TableColumn]:
        """A column per member. A member that came in earlier windows only is a column of nulls, unless required."""
        assert column.expr is not None
        values = view.picked(column.expr, op.axis, rows)
        members = view.members(column.expr)
        so_far = self._members.setdefault(f"{op.id}.{column.id}", {})
        so_far.update(dict.fromkeys(members))
        for member in so_far:
            name = column.template.replace("{member}", member)
            if member in members:
                typed = _typed(column, plain(values[members.index(member)]))
                yield self._checked(column, op, name, typed, runtime=True)
            elif not column.required:
                yield self._checked(column, op, name, [None] * len(rows), runtime=True)

    def _extras(self, column: ColumnOp, op: TableOp, frame: Frame, rows: Rows) -> Iterator[_TableColumn]:
        """Columns of log_extra in order of appearance; each keeps the type of its first values."""
        types = self._types.setdefault(op.id, {})
        came = sorted(name.removeprefix(EXTRA) for name, _ in frame.texts if name.startswith(EXTRA))
        for name in dict.fromkeys((*types, *came)):
            extras = frame.column(EXTRA + name)
            values = [None] * len(rows) if extras is None else plain(extras[rows])
            if column.redact or column.max_chars:
                values = [shortened(column, item) for item in values]
            type = types.get(name) or natural(values)
            if type is None:
                continue  # only nulls so far, so its type is open
            types[name] = type
            wrong = [item for item in values if not fits(type, item)]
            if wrong:
                text = (
                    "the table `%s`: the column `%s` of log_extra was %s at first, and %.60r is not: "
                    "what does not fit is null from now on; declare the column to choose its type"
                )
                self._warn(("type", op.id, name), text, op.id, name, type, wrong[0])
            convert = CONVERT[type]
            fitting = [convert(item) if item is not None and fits(type, item) else None for item in values]
            yield _TableColumn(Column(name, type, nullable=True), fitting, runtime=True)

    def _called(self, column: ColumnOp, op: TableOp, view: View, rows: Rows) -> list[Any]:
        """A registered function's value for each selected row."""
        assert column.call is not None
        arguments = {name: self._argument(node, op, view, rows) for name, node in column.args}
        results: list[Any] = []
        failures: list[BaseException] = []
        for row in range(len(rows)):
            try:
                value = column.call.run(**{name: values[row] for name, values in arguments.items()})
                results.append(returned(column.type, value))
            except BaseException as error:  # noqa: BLE001  (a user's function may raise anything)
                failures.append(error)
                results.append(None)
        if failures and column.required:
            failure = RuntimeFailure.of(
                "DL512.raised", column=column.id, table=op.id, function=column.call.name,
                type=type(failures[0]).__name__,
            )  # fmt: skip
            raise failure from failures[0]
        if failures:
            failure = RuntimeFailure.of(
                "DL512.null", column=column.id, table=op.id, function=column.call.name, count=len(failures),
                rows=len(rows), error=error_text(failures[0]),
            )  # fmt: skip
            self._warn(("call", op.id, column.id), "%s", failure)
        return results

    def _argument(self, node: Any, op: TableOp, view: View, rows: Rows) -> list[Any]:
        values = view.picked(node, op.axis, rows)
        if node.type.family:
            members = view.members(node)
            columns = [plain(values[position]) for position in range(len(members))]
            return [{member: column[row] for member, column in zip(members, columns, strict=True)}
                    for row in range(len(rows))]  # fmt: skip
        items = plain(values)
        return copy.deepcopy(items) if node.type.dtype is DType.OBJECT else items

    # -- limits and warnings

    def _within_bytes(
        self, op: TableOp, columns: tuple[Column, ...], data: Mapping[str, Sequence[Any]], places: Places
    ) -> Table | None:
        kept = rows = len(places.row)
        if op.max_bytes is not None:
            kept = int(np.searchsorted(np.cumsum(row_bytes(columns, data, rows)), op.max_bytes, side="right"))
        if kept < rows:
            text = "the table `%s` is cut to %d of %d rows: its `max_bytes` is %d (reported once)"
            self._warn(("bytes", op.id), text, op.id, kept, rows, op.max_bytes)
            data = {name: values[:kept] for name, values in data.items()}
            places = places.until(kept)
        if not kept:
            return None
        return Table(op.name, op.id, columns, data, kept, as_trace=op.as_trace, cut=rows - kept, places=places)

    def _shadowed(self, op: TableOp, column: ColumnOp, name: str) -> None:
        if self._first("shadow", op.id, name):
            why = "sinks add a column of that name" if name in STAMPS else "another column has that name"
            if column.undeclared:
                self._report(RuntimeFailure.of("DL508.column", table=op.id, name=name, why=why))
            else:
                self._report(RuntimeFailure.of("DL508.family", table=op.id, name=name, why=why))

    def _first(self, *what: str) -> bool:
        """Whether this was not reported before; it counts as reported from now on."""
        new = what not in self._reported
        self._reported.add(what)
        return new

    def _warn(self, what: tuple[str, ...], text: str, *values: object) -> None:
        if self._first(*what):
            log.warning(text, *values)

    # -- checkpoints

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint: the run-time columns so far."""
        return {"types": self._types, "members": {key: list(members) for key, members in self._members.items()}}

    def load(self, data: Mapping[str, Any]) -> None:
        """Restore a checkpoint."""
        self._types = {
            table: {name: DType(type) for name, type in types.items()} for table, types in data["types"].items()
        }
        self._members = {key: dict.fromkeys(members) for key, members in data["members"].items()}


def _places(frame: Frame, axis: Axis, rows: Rows, why: list[str] | None) -> Places:
    """The step of each row, and the numbers of the row and its group within it. A frame has whole steps, in order."""
    steps = frame.batches.step

    def counted(of: Axis) -> NDArray[np.int64]:
        inside = frame.spread(steps, Axis.STEP, of)
        return np.asarray(np.arange(len(inside)) - np.searchsorted(inside, inside))

    step, row = frame.spread(steps, Axis.STEP, axis)[rows].tolist(), counted(axis)[rows].tolist()
    group = row if axis is Axis.GROUP else None
    if axis is Axis.COMPLETION and frame.grouping is not None:
        try:
            index = frame.parts(Axis.COMPLETION, Axis.GROUP)
            group = counted(Axis.GROUP)[index.index[rows]].tolist() if index.count else None
        except RuntimeFailure:  # metrics that need groups report this; a table can do without
            group = None
    return Places(step, row, group, why)


def _typed(column: ColumnOp, values: list[Any]) -> list[Any]:
    convert = CONVERT[column.type]
    return [None if item is None else convert(item) for item in values]
