"""Evaluates typed trees over a frame: numpy in, numpy out, each node once.

The arrays are float64 with NaN for what is missing, int64, bool, or objects. A value has the rows of its
node's axis; a family has its members in front: ``[members, rows]``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.engine import groups
from declog.engine.blocks import typed
from declog.engine.frame import GROUP_ID, UNDECIDED, Frame
from declog.errors import RuntimeFailure
from declog.language import segmented
from declog.language.absence import QUESTIONS, Absence, either, elementwise
from declog.language.dtypes import MEMBER, Axis, DType
from declog.language.functions import DEFAULT, Function, Functions
from declog.language.functions.structure import SELECTIONS, selected
from declog.language.moments import AGGREGATES, FORMULAS, floats
from declog.language.nodes import LEAVES, WRITTEN, Node
from declog.language.segmented import Segments

Array = NDArray[Any]
Members = tuple[str, ...]
COLUMNS = ("signal", "local", "carried")
PICKS = ("member", *SELECTIONS)  # functions that pick members of a family


class View:
    """One frame's values by node. Holds what was computed, so that equal expressions are computed once."""

    def __init__(self, frame: Frame, functions: Functions = DEFAULT) -> None:
        self.frame = frame
        self._functions = functions
        self._values: dict[int, Array] = {}
        self._absences: dict[int, Absence] = {}
        self._unknown: dict[int, Absence] = {}
        self._members: dict[int, Members] = {}
        self.placed: dict[tuple[object, ...], Any] = {}  # which cells rows are in: many metrics ask alike

    def segments(self, fine: Axis, coarse: Axis) -> Segments:
        """How the entries of an axis fall into those of a coarser one; ``STEP`` pools a batch over its ranks."""
        return self.frame.parts(fine, Axis.BATCH if coarse is Axis.STEP and fine is not Axis.STEP else coarse)

    def members(self, node: Node) -> Members:
        """The members of a family's value."""
        self.value(node)
        return self._members.get(node.index, ())

    def function(self, name: str) -> Callable[..., Any]:
        """What a registered function runs."""
        function = self._functions.get(name)
        if function is None:
            raise RuntimeFailure.of("DL605.function", function=name)
        return function.run

    def came(self, node: Node) -> bool:
        """Whether anything of a value is there: what is computed of a signal that never came is absent."""
        return self.absent(node) is not True

    def value(self, node: Node) -> Array:
        """The value of a node on its own axis, missing where it is absent; 0-dimensional: a constant, or all absent."""
        cached = self._values.get(node.index)
        if cached is None:
            absent = self.absent(node)
            cached = _nothing(node) if absent is True else self._compute(node)
            if absent is not True and absent is not False and node.op not in COLUMNS:
                cached = _blanked(cached, absent)
            self._values[node.index] = cached
        return cached

    def rows(self, node: Node, axis: Axis) -> Array:
        """The value repeated over ``axis``: ``[rows]`` or ``[members, rows]``."""
        values = self.value(node)
        node_axis = node.type.axis
        if node_axis is None or not values.ndim:
            height = (len(members),) if not values.ndim and (members := self.members(node)) else values.shape
            return np.broadcast_to(values, (*height, self.frame.count(axis)))
        return self.frame.spread(values, node_axis, axis)

    def lost(self, node: Node, axis: Axis) -> Absence:
        """The rows of ``axis`` in which a value is absent: ``[rows]``, or by member ``[members, rows]``."""
        absent = self.absent(node)
        if absent is True or absent is False:
            return absent
        assert node.type.axis is not None
        return self.frame.spread(absent, node.type.axis, axis)

    def judged(self, node: Node, axis: Axis) -> Array:
        """The value over ``axis`` as it is reduced: a comparison of a missing value is missing, neither true nor false.

        So a mean of comparisons is of those that could be made, and not healthy where none could.
        """
        values, unknown = self.rows(node, axis), self.undecided(node)
        if unknown is False or node.type.axis is None:
            return values
        return _blanked(values, self.frame.spread(np.asarray(unknown), node.type.axis, axis))

    def undecided(self, node: Node) -> Absence:
        """Where a bool is neither true nor false, since something that it compares is missing."""
        if node.type.dtype is not DType.BOOL or node.op in ("const", "builtin"):
            return False
        cached = self._unknown.get(node.index)
        if cached is None:
            result = self._undecided(node)
            cached = self._unknown[node.index] = result if isinstance(result, np.ndarray) and result.any() else False
        return cached

    def _undecided(self, node: Node) -> Absence:
        function = self._functions.get(node.op)
        if node.op in QUESTIONS:
            gaps = [self._gaps(arg) for arg in node.args]
        elif function is not None and function.stage == "elementwise":
            gaps = [self.undecided(arg) for arg in node.args]
        else:
            marks = self.frame.column(node.param("name") + UNDECIDED) if node.op in ("local", "carried") else None
            unknown = False if marks is None else marks == 1
            if node.op in PICKS:
                unknown = self._picked_members(node, self.undecided(node.args[0]))
            return either(self._gaps(node), unknown)
        if all(gap is False for gap in gaps):
            return False
        return self._passed_on(node, gaps)

    def _gaps(self, node: Node) -> Absence:
        """Where a value is missing or absent."""
        there = segmented.present(self.value(node))
        return False if there.all() else ~there

    # -- absence

    def absent(self, node: Node) -> Absence:
        """Where a value is absent, on its own axis: ``[rows]`` or ``[members, rows]``."""
        cached = self._absences.get(node.index)
        if cached is None:
            cached = self._absent(node)
            if cached is not True and cached is not False and (not cached.ndim or not cached.any()):
                cached = bool(cached.any())
            self._absences[node.index] = cached
        return cached

    def _absent(self, node: Node) -> Absence:
        axis = node.type.axis
        if node.op in ("const", "builtin"):
            return False
        if node.op in COLUMNS:
            name = node.param("name")
            if self.frame.plain(name) is None and self.frame.column(name) is None:
                return True
            assert axis is not None
            marked = self.frame.absent(name, axis)
            return either(self._ungrouped(node), False if marked is None else marked)
        if node.op == "fold":
            counts = self.frame.column(f"{node.param('name')}.n")
            if counts is None:
                return True
            nowhere: Absence = np.isnan(counts) if counts.dtype.kind == "f" else False
            least = FORMULAS[node.param("stat")].least
            return nowhere if least < 2 else either(nowhere, groups.few(counts, least))
        function = self._functions.get(node.op)
        of_args = [self.absent(arg) for arg in node.args]
        if function is not None and function.stage == "elementwise":
            return self._passed_on(node, of_args) if [part for part in of_args if part is not False] else False
        absent = either(self._ungrouped(node), *(self._within(node, arg) for arg in node.args))
        return True if absent is True else either(absent, self._too_few(node))

    def _passed_on(self, node: Node, parts: Sequence[Absence]) -> Absence:
        """Where an elementwise value lacks something, by where its arguments do."""
        across = self._across(node)
        return elementwise(
            node, [across(position, part) for position, part in enumerate(parts)],
            lambda position: segmented.truth(np.asarray(across(position, self.value(node.args[position])))),
            lambda position: across(position, self.undecided(node.args[position])),
        )  # fmt: skip

    def _across(self, node: Node) -> Callable[[int, Any], Any]:
        """Brings what belongs to an argument to the rows of a node, and its members into the order of the first's."""
        order = self._order(node) if node.type.family else {}

        def across(position: int, values: Any) -> Any:
            arg_axis, axis = node.args[position].type.axis, node.type.axis
            if np.ndim(values) and arg_axis is not None and axis is not None:
                values = self.frame.spread(values, arg_axis, axis)
            return values[order[position]] if position in order and np.ndim(values) > 1 else values

        return across

    def _within(self, node: Node, arg: Node) -> Absence:
        """Where a value that knows how axes nest is absent for want of an argument: where all of that is."""
        absent = self.absent(arg)
        if node.op in PICKS:
            return self._picked_members(node, absent)
        begun: Absence = False
        if node.over is Axis.GROUP:  # a batch in which no group begins has no values of its groups
            empty = self.frame.parts(Axis.GROUP, Axis.BATCH).counts == 0
            begun = empty if empty.any() else False
        if absent is True or absent is False:
            return either(begun, absent)
        if node.over == MEMBER or node.op == "members":
            return absent.all(0) if absent.ndim > 1 else absent
        fine, coarse = arg.type.axis, node.type.axis
        if coarse is fine or fine is None or coarse is None:
            return absent
        return either(begun, _all_of(absent, self.frame.parts(fine, coarse)))

    def _picked_members(self, node: Node, marks: Absence) -> Absence:
        """What is marked of the members of a family that a node picks; True: none of them came."""
        members = self.members(node.args[0])
        if node.op == "member":
            position = members.index(node.param("member")) if node.param("member") in members else None
            return True if position is None else marks[position] if np.ndim(marks) > 1 else marks
        places = selected(node, members)
        return True if not places else marks[places] if np.ndim(marks) > 1 else marks

    def _ungrouped(self, node: Node) -> Absence:
        """Where a value that reads groups is absent, since what names the groups did not come."""
        grouping, axis = self.frame.grouping, node.type.axis
        if grouping is None or grouping.size is not None or axis is None or not reads_groups(node):
            return False
        if self.frame.column(GROUP_ID) is None:
            return True
        absent = self.frame.absent(GROUP_ID, Axis.COMPLETION)
        if absent is None or axis is Axis.COMPLETION:
            return False if absent is None else absent
        return _all_of(absent, self.frame.parts(Axis.COMPLETION, axis))

    def _too_few(self, node: Node) -> Absence:
        """Where a group, or what else a value is computed of, has fewer values than that takes."""
        function = self._functions.get(node.op)
        least = 1 if function is None else function.fewest(node)
        if least < 2 or not np.ndim(self.value(node.args[-1])):
            return False
        arg, over = node.args[-1], node.over or Axis.COMPLETION
        coarse = Axis.GROUP if over is Axis.COMPLETION else Axis.BATCH
        parts = None if over == MEMBER or arg.type.axis is None else self.frame.parts(arg.type.axis, coarse)
        return groups.too_few(self._counted(arg), parts, least)

    def picked(self, node: Node, axis: Axis, rows: Array) -> Array:
        """The value at some rows of ``axis``; what is elementwise is computed for those alone.

        An integer keeps its bits also where others are missing: the values are objects then.
        """
        values = self._picked(node, axis, rows)
        if node.type.dtype is DType.INT and values.dtype.kind == "f" and self.came(node):
            values = self._at(node, self._exact(node), axis, rows)
        height = (len(self.members(node)),) if node.type.family else ()
        return values if values.ndim else np.broadcast_to(values, (*height, *rows.shape))

    def _picked(self, node: Node, axis: Axis, rows: Array) -> Array:
        plain = node.type.axis is axis and not node.type.family and node.index not in self._values
        function = self._functions.get(node.op) if plain else None
        if function is None or function.stage != "elementwise" or node.op in WRITTEN.values():
            return self._at(node, self.value(node), axis, rows)
        absent = self.absent(node)
        if absent is True:
            return _nothing(node)
        arrays = [self._picked(arg, axis, rows) for arg in node.args]
        result = _applied(function, arrays)
        return result if absent is False else _blanked(result, absent[rows])

    def _at(self, node: Node, values: Array, axis: Axis, rows: Array) -> Array:
        node_axis = node.type.axis
        if node_axis is None or not values.ndim:
            return values
        return np.asarray(values[..., rows if node_axis is axis else self.frame.parts(axis, node_axis).index[rows]])

    def _exact(self, node: Node) -> Array:
        """An integer's value where something is missing: objects where it is a column, or its first or last."""
        if node.op in COLUMNS:
            values = self.frame.column(node.param("name"), exact=True)
            return self.value(node) if values is None else values
        if node.op in ("first", "last") and node.over is Axis.COMPLETION:
            values = self._exact(node.args[0])
            groups = self.frame.parts(Axis.COMPLETION, Axis.GROUP)
            exact = values.astype(object) if values.dtype.kind == "i" else values
            return segmented.aggregate(AGGREGATES[node.op], exact, groups) if values.ndim else values
        return self.value(node)

    def _compute(self, node: Node) -> Array:
        match node.op:
            case "const":
                value = node.param("value")
                return np.asarray(value, object if isinstance(value, str) else None)
            case "signal" | "local" | "carried":
                return self._signal(node)
            case "builtin":
                return self._builtin(node)
            case "fold":
                return self._fold(node)
        function = self._functions.get(node.op)
        if function is None:
            raise RuntimeFailure.of("DL605.function", function=node.op)
        if function.stage == "aggregate":
            return self._aggregate(node, function.run)
        if function.stage == "elementwise":
            return self._elementwise(node, function)
        if node.type.family and node.args:
            members = self.members(node.args[0])
            places = selected(node, members) if node.op in SELECTIONS else range(len(members))
            self._members[node.index] = tuple(members[position] for position in places)
        argument = self._all_rows if node.op in PICKS else self._counted
        return np.asarray(function.run(self, node, *map(argument, node.args)))

    def _all_rows(self, node: Node) -> Array:
        """A value with all its rows, also where it is absent."""
        values = self.value(node)
        axis = node.type.axis
        return values if axis is None or values.ndim else np.broadcast_to(values, (self.frame.count(axis),))

    def _counted(self, node: Node) -> Array:
        """A value with all its rows as functions of several rows take it: what is neither true nor false is missing."""
        values, unknown = self._all_rows(node), self.undecided(node)
        return values if unknown is False else _blanked(values, unknown)

    def _signal(self, node: Node) -> Array:
        name = node.param("name")
        if node.type.dtype is DType.FLOAT and (plain := self.frame.plain(name)) is not None:
            return np.asarray(plain[0].floats[plain[1]])
        values = self.frame.column(name)
        if values is None:
            return np.asarray(None, object) if node.type.dtype in (DType.TEXT, DType.OBJECT) else np.asarray(np.nan)
        if node.type.family:
            self._members[node.index] = self.frame.members(name)
        return typed(values, node.type.dtype)

    def _builtin(self, node: Node) -> Array:
        batches = self.frame.batches
        name = node.param("name")
        return {"step": batches.step, "rank": batches.rank, "elapsed": batches.elapsed}[name]

    def _fold(self, node: Node) -> Array:
        """What a token aggregate is finished to, from the statistics that the device folded."""
        name, stat = node.param("name"), node.param("stat")
        columns = {part: self.frame.column(f"{name}.{part}") for part in FORMULAS[stat].takes}
        statistics = {
            part: np.asarray(np.nan) if values is None else floats(values) for part, values in columns.items()
        }
        result: Array = FORMULAS[stat](np, statistics)
        return np.nan_to_num(result).astype(np.int64) if stat == "count" and result.ndim else result

    def _aggregate(self, node: Node, run: Callable[[Array, Segments], Array]) -> Array:
        (arg,) = node.args
        over = node.over
        values = self._counted(arg)
        if over == MEMBER:
            if not values.ndim or not len(values) or (values.ndim < 2 and not self.members(arg)):
                return np.asarray(np.nan)
            if node.op in ("first", "last"):  # by name: whatever else came before must not decide
                values = values[np.argsort(self.members(arg))]
            turned = np.ascontiguousarray(values.T)  # [rows, members] or [members]
            flat = turned.reshape(-1, turned.shape[-1])
            reduced = run(flat, Segments.single(flat.shape[-1]))[..., 0]
            return reduced.reshape(turned.shape[:-1])
        if arg.type.family:
            self._members[node.index] = self.members(arg)
        fine = arg.type.axis
        assert isinstance(over, Axis) and fine is not None
        coarse = {Axis.COMPLETION: Axis.GROUP, Axis.GROUP: Axis.BATCH}[over]
        return segmented.aggregate(run, values, self.frame.parts(fine, coarse))

    def _elementwise(self, node: Node, function: Function) -> Array:
        if node.op == WRITTEN[DType.BOOL]:  # as a label; what is neither true nor false is none
            (arg,) = node.args
            unknown = self.undecided(arg)
            return _applied(function, [self.value(arg) if unknown is False else _blanked(self.value(arg), unknown)])
        if node.op == WRITTEN[DType.INT]:  # with every bit
            return _applied(function, [self._exact(node.args[0])])
        axes = {arg.type.axis for arg in node.args if arg.op != "const"}
        if len(axes) < 2 and not node.type.family:  # most: nothing is to be brought anywhere
            return _applied(function, [self.value(arg) for arg in node.args])
        across = self._across(node)
        return _applied(function, [across(position, self.value(arg)) for position, arg in enumerate(node.args)])

    def _order(self, node: Node) -> dict[int, list[int]]:
        """How to bring the members of families into the order of the first; different members are an error."""
        families = [
            (position, self.members(arg))
            for position, arg in enumerate(node.args)
            if arg.type.family and self.members(arg)
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


def reads_groups(node: Node) -> bool:
    """Whether an operation itself depends on which rows are a group."""
    if node.op == "rank":
        return node.param("within") is Axis.GROUP
    if node.op in ("index", "size", "pass_at", "pass_all", "best_at", "majority", "majority_at"):
        return True
    return node.over in (Axis.COMPLETION, Axis.GROUP) or (node.op in LEAVES and node.type.axis is Axis.GROUP)


def _nothing(node: Node) -> Array:
    """The value of what is absent altogether."""
    return np.asarray(None, object) if node.type.dtype in (DType.TEXT, DType.OBJECT) else np.asarray(np.nan)


def _blanked(values: Array, absent: Array) -> Array:
    """Missing where it is absent."""
    return np.where(absent, segmented.NOTHING if values.dtype.kind == "O" else np.nan, values)


def _all_of(absent: Array, parts: Segments) -> Array:
    everywhere: Array = segmented.aggregate(segmented.all_of, absent, parts) == 1
    return everywhere


def _applied(function: Function, arrays: list[Array]) -> Array:
    return by_tensors(function.run, arrays) if function.tensors else np.asarray(function.run(np, *arrays))


def by_tensors(run: Callable[..., Any], arrays: list[Array]) -> Array:
    """A user's function of tensors, of arrays."""
    import torch

    arguments = np.broadcast_arrays(*(array.astype(np.float64) for array in arrays))
    with torch.no_grad():
        result = run(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arguments))
    values = np.asarray(result.numpy() if isinstance(result, torch.Tensor) else result)
    if values.shape != arguments[0].shape:
        raise RuntimeFailure.of("DL314.rows", shape=values.shape, arguments=arguments[0].shape)
    return values
