"""Evaluates typed trees over a frame: numpy in, numpy out, each node once.

A value is an array of float64 (NaN: missing), int64, bool or objects, with the rows of its node's axis. A family has
its members in front: ``[members, rows]``. Each value has a kind, which marks the absent rows, and for bools the rows
that are neither true nor false (see ``language/absence.py``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from declog.engine import groups
from declog.engine.blocks import Facts, typed
from declog.engine.frame import Frame
from declog.engine.layout import FAILURE
from declog.engine.user_functions import by_rows, by_tensors
from declog.errors import RuntimeFailure
from declog.language import segmented
from declog.language.absence import ABSENT, MISSING, PRESENT, QUESTIONS, Kind, absent, either, elementwise
from declog.language.dtypes import MEMBER, Axis, DType
from declog.language.functions import DEFAULT, Function, FunctionOf
from declog.language.functions.structure import SELECTIONS, selected
from declog.language.moments import AGGREGATES, FORMULAS
from declog.language.nodes import CONST, MODE, WRITTEN, Node, reads_groups, walk
from declog.language.segmented import Array, Segments

T = TypeVar("T")
Members = tuple[str, ...]
Value = tuple[Array, Kind]
COLUMNS = ("signal", "local", "carried")
PICKS = ("member", *SELECTIONS)  # functions that pick members of a family
_CHOOSING = (PRESENT, "if", "and", "or")  # these may have a value although an argument never came


class View:
    """Evaluates nodes over one frame. Results are cached, so equal expressions are computed once."""

    def __init__(self, frame: Frame, function_of: FunctionOf = DEFAULT.get) -> None:
        self.frame = frame
        self._function_of = function_of
        self._values: dict[int, Value] = {}
        self._members: dict[int, Members] = {}
        self._held: View | None = None
        self.facts: Facts = {}

    def segments(self, fine: Axis, coarse: Axis) -> Segments:
        """The segments of ``fine`` entries that belong to each ``coarse`` one; ``STEP`` means the rows of all ranks."""
        return self.frame.parts(fine, Axis.ALL if coarse is Axis.STEP and fine is not Axis.STEP else coarse)

    def members(self, node: Node) -> Members:
        """The members of a family's value, in its order."""
        self._evaluated(node)
        return self._members.get(node.index, ())

    def function(self, name: str) -> Function:
        """The function of an operation."""
        function = self._function_of(name)
        assert function is not None
        return function

    def value(self, node: Node) -> Array:
        """The value of a node on its own axis; absent rows are NaN or None. A constant is 0-dimensional.

        A node that is absent in all rows may be 0-dimensional, too.
        """
        return self._evaluated(node)[0]

    def kind(self, node: Node, axis: Axis | None = None) -> Kind:
        """The kind of a node's value, on its own axis or spread over a finer one: absent rows, and missing bools.

        False (nothing is absent), True (all is absent), ``[rows]`` or ``[members, rows]``.
        """
        kind = self._read_by(node, axis)._evaluated(node)[1]
        if isinstance(kind, bool) or axis is None or node.type.axis is None:
            return kind
        return self.frame.spread(kind, node.type.axis, axis)

    def absent(self, node: Node, axis: Axis | None = None) -> Kind:
        """Where a value is absent, on its own axis or spread over a finer one: False, True, or bools."""
        return absent(self.kind(node, axis))

    def rows(self, node: Node, axis: Axis) -> Array:
        """The value repeated over ``axis``: ``[rows]`` or ``[members, rows]``."""
        return self._spread(node, self._read_by(node, axis).value(node), axis)

    def counted(self, node: Node, axis: Axis) -> Array:
        """The value over ``axis`` as reductions read it: a comparison with a missing value is missing, not false.

        So a mean of comparisons covers only the rows where the comparison has an answer, and is missing without any.
        """
        return self._spread(node, self._read_by(node, axis)._counted(node), axis)

    def _read_by(self, node: Node, axis: Axis | None) -> View:
        """The view that has a node's value for entries of ``axis``: of the frame in which values per step hold.

        For its own axis, a value per step is only where it came, unless it is computed with a value of rows.
        """
        if node.type.axis is not Axis.STEP or axis in (None, Axis.STEP, Axis.ALL) or self.frame.held is self.frame:
            return self
        if self._held is None:
            self._held = View(self.frame.held, self._function_of)
        return self._held

    def _spread(self, node: Node, values: Array, axis: Axis) -> Array:
        node_axis = node.type.axis
        if node_axis is None or not values.ndim:
            height = (len(members),) if not values.ndim and (members := self.members(node)) else values.shape
            return np.broadcast_to(values, (*height, self.frame.count(axis)))
        return self.frame.spread(values, node_axis, axis)

    def _evaluated(self, node: Node) -> Value:
        """A node's value and its kind; cached."""
        cached = self._values.get(node.index)
        if cached is None:
            cached = self._values[node.index] = self._compute(node)
        return cached

    def _compute(self, node: Node) -> Value:
        match node.op:
            case "const":
                return np.asarray(node.leaf, object if isinstance(node.leaf, str) else None), False
            case "builtin":
                batches = self.frame.batches
                if node.leaf == MODE:
                    return np.full(len(batches), self.frame.mode, object), False
                columns = {"step": batches.step, "rank": batches.rank, "elapsed": batches.elapsed}
                return columns[node.leaf], False
            case "signal" | "local" | "carried":
                return self._column(node)
            case "fold":
                return self._fold(node)
        function = self.function(node.op)
        if function.stage == "elementwise":
            return self._of_rows(node, function)
        kind = _simplified(self._kind(node, function))
        if kind is True:
            return _nothing(node)
        if function.stage == "aggregate":
            return _blanked(self._aggregate(node, function.aggregate(node)), kind)
        if node.type.family and node.args:
            members = self.members(node.args[0])
            places = selected(node, members) if node.op in SELECTIONS else range(len(members))
            self._members[node.index] = tuple(members[position] for position in places)
        values_of = self.value if node.op in PICKS else self._counted
        arrays = [self._all_rows(arg, values_of(arg)) for arg in node.args]
        return _blanked(np.asarray(function.run(self, node, *arrays)), kind)

    def _column(self, node: Node) -> Value:
        name, axis = node.leaf, node.type.axis
        assert axis is not None
        if self.frame.has(name + FAILURE):
            failures = [item for item in self.frame.texts[name + FAILURE, None][1] if item is not None]
            if failures:
                raise RuntimeFailure(*json.loads(failures[0]))
        kind = either(self._ungrouped(node), _simplified(self.frame.kind(name, axis)))
        if kind is not True and node.type.dtype is DType.FLOAT and (plain := self.frame.plain(name)) is not None:
            return plain[0].floats[plain[1]], kind
        if kind is True or (values := self.frame.column(name)) is None:
            return _nothing(node)
        if node.type.family:
            self._members[node.index] = self.frame.members(name)
        return typed(values, node.type.dtype), kind

    def _fold(self, node: Node) -> Value:
        """An aggregate over tokens, from the statistics that were folded on the device."""
        name, formula = node.leaf, FORMULAS[node.param("stat")]
        counts = self.frame.column(f"{name}.n")
        if counts is None:
            return _nothing(node)
        columns = self.frame.floats([f"{name}.{part}" for part in formula.takes])
        values: Array = formula(np, dict(zip(formula.takes, columns, strict=True)))
        kind = either(np.isnan(counts), groups.few(counts, formula.least) if formula.least > 1 else False)
        if node.param("stat") == "count":
            values = np.where(np.isnan(values), 0.0, values).astype(np.int64)
        return _blanked(values, _simplified(kind))

    def _counted(self, node: Node) -> Array:
        """A value in which bools that are neither true nor false are missing."""
        values, kind = self._evaluated(node)
        return values if isinstance(kind, bool) else _missing_where(kind == MISSING, values)

    def _of_rows(self, node: Node, function: Function) -> Value:
        """The value of an elementwise node, from the values of its arguments."""
        order = self._order(node) if node.type.family else {}
        args: list[Value] = []
        reader = Axis.GROUP if node.type.axis is Axis.STEP and _reads_rows(node) else node.type.axis
        for arg in node.args:
            args.append(self._read_by(arg, reader)._evaluated(arg))
            if args[-1][1] is True and node.op not in _CHOOSING:
                return _nothing(node)
        if node.op == WRITTEN[DType.INT]:  # large integers must not pass through floats
            args = [(self._exact(node.args[0]), args[0][1])]
        axes = {arg.type.axis for arg in node.args if arg.op != "const"}
        if len(axes) > 1 or node.type.family:  # else the arguments lie on the same rows already
            args = [
                (self._across(node, position, values, order), self._across(node, position, kind, order))
                for position, (values, kind) in enumerate(args)
            ]
        return applied(node, function, args)

    def _across(self, node: Node, position: int, values: Any, order: dict[int, list[int]]) -> Any:
        """Spread an argument's values, or its kind, over the rows of the node, and put its members in order."""
        arg_axis, axis = node.args[position].type.axis, node.type.axis
        if np.ndim(values) and arg_axis is not None and axis is not None:
            values = self.frame.spread(values, arg_axis, axis)
        return values[order[position]] if position in order and np.ndim(values) > 1 else values

    # -- kinds of nodes that are not elementwise

    def _kind(self, node: Node, function: Function) -> Kind:
        """The kind of a node that is not elementwise: False, True, ``[rows]`` or ``[members, rows]``."""
        if node.op in PICKS:
            kind = either(self._ungrouped(node), self._picked_members(node, self.kind(node.args[0])))
        else:
            kind = either(self._ungrouped(node), *(self._within(node, arg) for arg in node.args))
        return True if kind is True else either(kind, self._too_few(node, function.fewest(node)))

    def _within(self, node: Node, arg: Node) -> Kind:
        """The rows of the coarser axis for which all rows of an argument are absent."""
        if node.op in QUESTIONS:  # comparisons of texts
            return _counting(node, arg.type.dtype, *self._evaluated(arg))
        where, fine, coarse = self.absent(arg), arg.type.axis, node.type.axis
        begun: Kind = False
        if coarse is Axis.ALL and isinstance(node.over, Axis):  # a step without rows, or where no group begins
            assert fine is not None
            empty = self.frame.parts(fine, Axis.ALL).counts == 0
            begun = empty if empty.any() else False
        if where is True or where is False:
            return either(begun, where)
        if node.over == MEMBER or node.op == "members":
            return where.all(0) if where.ndim > 1 else where
        if coarse is fine or fine is None or coarse is None:
            return where
        return either(begun, _all_of(where, self.frame.parts(fine, coarse)))

    def _picked_members(self, node: Node, kind: Kind) -> Kind:
        """The kind of the family members that a node picks; True: none of them came."""
        members = self.members(node.args[0])
        if node.op == "member":
            position = members.index(node.param("member")) if node.param("member") in members else None
            return True if position is None else kind[position] if np.ndim(kind) > 1 else kind
        places = selected(node, members)
        return True if not places else kind[places] if np.ndim(kind) > 1 else kind

    def _ungrouped(self, node: Node) -> Kind:
        """For a node that reads groups: the rows whose group is unknown, because no signal names it."""
        axis = node.type.axis
        if axis is None or not reads_groups(node):
            return False
        where = self.frame.ungrouped
        if where is True or where is False or axis is Axis.COMPLETION:
            return where
        return _all_of(where, self.frame.parts(Axis.COMPLETION, axis))

    def _too_few(self, node: Node, least: int) -> Kind:
        """The rows whose group, step or family has fewer values than the function needs."""
        if least < 2 or not np.ndim(self.value(node.args[-1])):
            return False
        arg = node.args[-1]
        fine, coarse = arg.type.axis, node.type.axis
        parts = None if node.over == MEMBER or fine is None or coarse is None else self.frame.parts(fine, coarse)
        return groups.too_few(self._all_rows(arg, self._counted(arg)), parts, least)

    # -- a selection of rows

    def picked(self, node: Node, axis: Axis, rows: Array) -> Array:
        """The value at these rows of ``axis``; elementwise nodes are computed for these rows only.

        Integers stay exact also if some are missing: the values are objects then.
        """
        values, _ = self._picked(node, axis, rows)
        if node.type.dtype is DType.INT and values.dtype.kind == "f" and self.kind(node) is not True:
            values = self._at(node, self._exact(node), axis, rows)
        height = (len(self.members(node)),) if node.type.family else ()
        return values if values.ndim else np.broadcast_to(values, (*height, *rows.shape))

    def _picked(self, node: Node, axis: Axis, rows: Array) -> Value:
        plain = node.type.axis is axis is not Axis.STEP and not node.type.family and node.index not in self._values
        function = self._function_of(node.op) if plain else None
        if function is None or function.stage != "elementwise" or node.op in WRITTEN.values():
            values, kind = self._read_by(node, axis)._evaluated(node)
            return self._at(node, values, axis, rows), self._at(node, kind, axis, rows)
        return applied(node, function, [self._picked(arg, axis, rows) for arg in node.args])

    def _at(self, node: Node, values: Any, axis: Axis, rows: Array) -> Any:
        node_axis = node.type.axis
        if node_axis is None or isinstance(values, bool) or not values.ndim:
            return values
        return values[..., rows if node_axis is axis else self.frame.parts(axis, node_axis).index[rows]]

    def _exact(self, node: Node) -> Array:
        """The value of an integer node without rounding.

        A column with missing values is returned as objects; so are its `first` and `last` per group or step.
        """
        if node.op in COLUMNS:
            values = self.frame.column(node.param("name"), exact=True)
            return self.value(node) if values is None else values
        if node.op in ("first", "last") and node.over in (Axis.COMPLETION, Axis.GROUP, Axis.STEP):
            values = self._exact(node.args[0])
            exact = values.astype(object) if values.dtype.kind == "i" else values
            return segmented.aggregate(AGGREGATES[node.op], exact, self._rows_of(node)) if values.ndim else values
        return self.value(node)

    def _all_rows(self, node: Node, values: Array) -> Array:
        """A value with all rows of its axis, also if it is 0-dimensional."""
        axis = node.type.axis
        return values if axis is None or values.ndim else np.broadcast_to(values, (self.frame.count(axis),))

    def _aggregate(self, node: Node, run: Callable[[Array, Segments], Array]) -> Array:
        (arg,) = node.args
        over = node.over
        values = self._all_rows(arg, self._counted(arg))
        if over == MEMBER:
            if not values.ndim or not len(values) or (values.ndim < 2 and not self.members(arg)):
                return np.asarray(np.nan)
            if node.op in ("first", "last"):  # in the order of names, not in the order in which members came
                values = values[np.argsort(self.members(arg))]
            return reduced(run, values, 0)
        if arg.type.family:
            self._members[node.index] = self.members(arg)
        return segmented.aggregate(run, values, self._rows_of(node))

    def _rows_of(self, node: Node) -> Segments:
        """The rows that each value of an aggregate covers."""
        fine, coarse = node.args[0].type.axis, node.type.axis
        assert fine is not None and coarse is not None
        return self.frame.parts(fine, coarse)

    def _order(self, node: Node) -> dict[int, list[int]]:
        """The order that brings the members of each family into the order of the first.

        Families with different members raise DL503.
        """
        families = [
            (position, members)
            for position, arg in enumerate(node.args)
            if arg.type.family and (members := self.members(arg))
        ]
        if not families:
            return {}
        first = families[0][1]
        self._members[node.index] = first
        order = {}
        for position, members in families[1:]:
            if set(members) != set(first):
                missing = sorted(set(first) ^ set(members))
                raise RuntimeFailure.of("DL503.members", node=node, missing=", ".join(missing))
            if members != first:
                order[position] = [members.index(member) for member in first]
        return order


def reduced(run: Callable[[Array, Segments], Array], values: Array, axis: int) -> Array:
    """A reduction of values over one axis, which it removes."""
    last = np.ascontiguousarray(np.moveaxis(values, axis, -1))
    flat = last.reshape(-1, last.shape[-1])
    return run(flat, Segments.single(last.shape[-1]))[..., 0].reshape(last.shape[:-1])


def applied(node: Node, function: Function, args: Sequence[Value]) -> Value:
    """Apply an elementwise function to values and their kinds, which lie on the rows of the node."""
    kind: Kind = False
    arrays, kinds, here = [], [], True
    for arg, (values, of_arg) in zip(node.args, args, strict=True):
        if of_arg is not False or (node.type.dtype is DType.BOOL and (arg.op != CONST or arg.leaf != arg.leaf)):
            of_arg = _counting(node, arg.type.dtype, values, of_arg)
        arrays.append(values)
        kinds.append(of_arg)
        here = here and of_arg is False
    if not here:
        kind = _simplified(elementwise(node, kinds, lambda position: segmented.truth(np.asarray(arrays[position]))))
    if kind is True:
        return _nothing(node)
    if node.op == WRITTEN[DType.BOOL]:  # a bool as a label: neither true nor false is no label
        arrays = [_missing_where(np.equal(args[0][1], MISSING), arrays[0])]
    if function.takes == "values":
        result, gaps = by_rows(node, function, arrays)
        kind = either(kind, gaps)
    elif function.takes == "tensors":
        result = by_tensors(function.run, arrays)
    else:
        result = np.asarray(function.run(np, *arrays))
    return (result, False) if kind is False else _blanked(result, kind)


def _counting(node: Node, dtype: DType, values: Array, kind: Kind) -> Kind:
    """The kind that an argument passes on to the operation's result.

    A missing value makes a bool result missing. In numbers NaN marks it already.
    """
    bool_of_bool = node.type.dtype is dtype is DType.BOOL
    if kind is not False and not bool_of_bool:  # only operations on bools pass on that a bool is missing
        kind = absent(kind)
    if kind is True or not (bool_of_bool or node.op in QUESTIONS) or values.dtype.kind not in "fO":
        return kind
    there = segmented.present(values)
    return kind if np.count_nonzero(there) == there.size else either(kind, np.where(there, 0, MISSING).astype(np.uint8))


def _simplified(kind: Kind) -> Kind:
    """A kind as a single bool, if it marks no row or is 0-dimensional."""
    if isinstance(kind, bool):
        return kind
    return kind if kind.ndim and np.count_nonzero(kind) else bool(not kind.ndim and kind & ABSENT)


def _nothing(node: Node) -> Value:
    """The value and kind of a node that is absent in all rows."""
    return np.asarray(None, object) if node.type.dtype in (DType.TEXT, DType.OBJECT) else np.asarray(np.nan), True


def _blanked(values: Array, kind: Kind) -> Value:
    """The value with NaN or None in the absent rows, and its kind."""
    return values if isinstance(kind, bool) else _missing_where(absent(kind), values), kind


def _missing_where(where: Array, values: Array) -> Array:
    if not np.count_nonzero(where):
        return values
    return np.where(where, segmented.NOTHING if values.dtype.kind == "O" else np.nan, values)


def _all_of(where: Array, parts: Segments) -> Array:
    everywhere: Array = segmented.aggregate(segmented.all_of, where, parts) == 1
    return everywhere


@lru_cache(maxsize=4096)  # each log event asks this again
def _reads_rows(node: Node) -> bool:
    """Whether a value per step is computed of rows, such as the mean of its groups' means."""
    return any(item.type.axis in (Axis.TOKEN, Axis.COMPLETION, Axis.GROUP) for item in walk(node))
