"""How values are brought together in one matrix: planned once for each layout of a frame's columns, then run as a list.

Most of what is reduced are columns as they were recorded, and arithmetic of such: these are taken and computed many at
a time. A `View` evaluates whatever else there is, node by node. Imports no torch.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from declog.engine.evaluator import View
from declog.engine.frame import ABSENT, Frame
from declog.engine.partials import Row, fold_moments, tokens_asked
from declog.language.dtypes import Axis, DType
from declog.language.moments import Moments, Stat
from declog.language.nodes import CONST, SIGNAL, Node

Array = NDArray[Any]
Spot = tuple[int, int]  # a column: which block of a frame, and which row of it
LAYOUTS = 32  # that are kept
ARITHMETIC = ("add", "sub", "mul", "div", "neg", "abs")
_AS_IT_IS = {DType.FLOAT: "fiub", DType.INT: "fi", DType.BOOL: "b"}  # kinds of arrays, by what a signal is
_T = TypeVar("_T")
Computed = tuple[tuple[int, tuple[str, ...]], ...]
Outline = tuple[tuple[Row, ...], list[frozenset[Stat]]]
Rows = Callable[[Sequence[Any], Sequence[int], Sequence[tuple[str, ...]]], Outline]


def recent(layouts: OrderedDict[Hashable, _T], key: Hashable, make: Callable[[], _T]) -> _T:
    """What belongs to a layout; that of the layouts which came last is kept."""
    known = layouts.get(key)
    if known is None:
        known = layouts[key] = make()
        if len(layouts) > LAYOUTS:
            layouts.popitem(last=False)
    else:
        layouts.move_to_end(key)
    return known


class Take:
    """Columns of numbers, ``[k, rows]`` of float64, in the order of their spots; those that lie together at once."""

    def __init__(self, spots: Iterable[Spot | None]) -> None:
        self._steps: list[tuple[int, Any, slice]] = []
        self.height = 0
        for block, group in itertools.groupby(spots, lambda spot: None if spot is None else spot[0]):
            some = [*group]
            rows = slice(self.height, self.height + len(some))
            self.height = rows.stop
            if block is not None:
                self._steps.append((block, together([spot[1] for spot in some if spot is not None]), rows))

    def of(self, frame: Frame, count: int) -> Array:
        """The columns of one frame, ``count`` rows each; a column that never came is NaN. Not to be written to."""
        if len(self._steps) == 1 and self._steps[0][2] == slice(0, self.height):
            block, index, _ = self._steps[0]
            return np.asarray(frame.blocks[block].floats[index])
        matrix = np.full((self.height, count), np.nan)
        self.into(matrix, frame)
        return matrix

    def into(self, matrix: Array, frame: Frame) -> None:
        """Fill the first rows of a matrix with the columns that came."""
        for block, index, rows in self._steps:
            matrix[rows] = frame.blocks[block].floats[index]


def together(places: Sequence[int]) -> Any:
    """An index of rows; those that lie together are taken without a copy."""
    beside = bool(places) and list(places) == [*range(places[0], places[0] + len(places))]
    return slice(places[0], places[0] + len(places)) if beside else np.array(places, np.int64)


class _Constants:
    """A number for each row."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._values = np.array([[float(node.param("value"))] for node in nodes])

    def of(self, frame: Frame, count: int) -> Array:
        """The same numbers for any frame."""
        return self._values


class _Call:
    """One arithmetic operation of many values: of columns, of constants, and of other such operations."""

    def __init__(self, run: Callable[..., Any], args: Sequence[_Call | _Constants | Take]) -> None:
        self._run = run
        self._args = args

    def of(self, frame: Frame, count: int) -> Array:
        """The values of one frame."""
        return np.asarray(self._run(np, *(arg.of(frame, count) for arg in self._args)))


class Program:
    """The values of some nodes of one axis, one below the other, for one layout of columns.

    ``recorded`` have known rows: columns as they were recorded, then arithmetic of such. ``computed`` are evaluated by
    a view, and follow. ``never`` came: they have no rows. ``marked`` are those of which some rows may be absent.
    """

    def __init__(self, nodes: Sequence[Node], stats: Sequence[frozenset[Stat]], axis: Axis, view: View) -> None:
        frame = view.frame
        spots = {node.index: _spots(node, axis, frame) for node in nodes}
        # those of which the same is asked side by side, in the order of the columns
        order = {node.index: (sorted(asked), spots[node.index] or []) for node, asked in zip(nodes, stats, strict=True)}
        nodes = sorted(nodes, key=lambda node: order[node.index])
        loads = [node for node in nodes if spots[node.index]]
        shapes = {node.index: None if spots[node.index] else _shape(node, axis, frame) for node in nodes}
        groups: dict[Hashable, list[Node]] = {}
        for node in nodes:
            if shapes[node.index] is not None:
                groups.setdefault(shapes[node.index], []).append(node)
        self._loads = Take(spot for node in loads for spot in spots[node.index] or ())
        self._calls = [_gather(group, axis, view) for group in groups.values()]
        self._call_rows = [len(group) for group in groups.values()]
        self.recorded = [*loads, *(node for group in groups.values() for node in group)]
        self.never = [node.index for node in nodes if node.op == SIGNAL and not frame.has(node.param("name"))]
        known = {*(node.index for node in self.recorded), *self.never}
        self.computed = [node for node in nodes if node.index not in known]
        self.sources = [node.index for node in (*self.recorded, *self.computed)]
        self._members = [() if _flat(node) else frame.members(node.param("name")) for node in self.recorded]
        self._heights = [max(len(members), 1) for members in self._members]
        self.marked = {node.index for node in self.computed} | {
            node.index for node in self.recorded
            if any(frame.has(leaf.param("name") + ABSENT) for leaf in (node, *_leaves(node)) if leaf.op == SIGNAL)
        }  # fmt: skip
        self._axis = axis
        self._outlines: OrderedDict[Hashable, Outline] = OrderedDict()

    def run(self, view: View) -> tuple[Array, Computed]:
        """The matrix; and of each node that is computed how many rows it has, and its members."""
        frame, count = view.frame, view.frame.count(self._axis)
        if not self._calls and not self.computed:
            return self._loads.of(frame, count), ()
        values = [np.asarray(view.judged(node, self._axis)) for node in self.computed]
        computed = tuple(
            (len(one) if one.ndim > 1 else 1, view.members(node))
            for one, node in zip(values, self.computed, strict=True)
        )  # fmt: skip
        matrix = np.empty((sum(self._heights) + sum(height for height, _ in computed), count))
        self._loads.into(matrix, frame)
        end = self._loads.height
        for call, height in zip(self._calls, self._call_rows, strict=True):
            matrix[end : end + height] = call.of(frame, count)
            end += height
        for one, (height, _) in zip(values, computed, strict=True):
            matrix[end : end + height] = one
            end += height
        return matrix, computed

    def outline(self, computed: Computed, rows: Rows) -> Outline:
        """The rows of the matrix, then those of what never came, and the statistics of each of the first ones."""

        def make() -> Outline:
            heights, members = zip(*computed, strict=True) if computed else ((), ())
            made, stats = rows(self.sources, [*self._heights, *heights], [*self._members, *members])
            return (*made, *((source, None) for source in self.never)), stats

        return recent(self._outlines, computed, make)


class FoldProgram:
    """The states of token folds, one below the other, for one layout of columns; those that never came have none.

    ``pairs`` are folds, each with the one that counts of how many tokens it is asked.
    """

    marked: frozenset[Hashable] = frozenset()  # a fold says itself where it did not come

    def __init__(self, pairs: Sequence[tuple[str, str | None]], stats: frozenset[Stat], frame: Frame) -> None:
        self.sources: list[Hashable] = [pair for pair in pairs if frame.has(f"{pair[0]}.n")]
        self.never: list[Hashable] = [pair for pair in pairs if not frame.has(f"{pair[0]}.n")]
        here = [pair for pair in pairs if frame.has(f"{pair[0]}.n")]
        needed: frozenset[Stat] = frozenset(("n", "total"))
        self._stats = {stat: Take(_spot(f"{fold}.{stat}", frame) for fold, _ in here) for stat in stats | needed}
        self._tokens = Take(None if tokens is None else _spot(f"{tokens}.n", frame) for _, tokens in here)
        self._outline: Outline | None = None

    def run(self, view: View) -> tuple[Moments, Array]:
        """The states, every array ``[folds, rows]``, and of how many tokens each was asked for."""
        frame, count = view.frame, view.frame.count(Axis.COMPLETION)
        columns: dict[Stat, Array] = {stat: take.of(frame, count) for stat, take in self._stats.items()}
        return fold_moments(columns), tokens_asked(columns["n"], self._tokens.of(frame, count))

    def outline(self, computed: Computed, rows: Rows) -> Outline:
        """The rows of the states, then those of what never came."""
        if self._outline is None:
            made, stats = rows(self.sources, [1] * len(self.sources), [()] * len(self.sources))
            self._outline = (*made, *((source, None) for source in self.never)), stats
        return self._outline


def _spot(name: str, frame: Frame) -> Spot | None:
    columns = frame.columns(name)
    return columns[0][1:] if columns else None


def _flat(node: Node) -> bool:
    return not node.type.family


def _leaves(node: Node) -> Iterable[Node]:
    for arg in node.args:
        yield arg
        yield from _leaves(arg)


def _spots(node: Node, axis: Axis, frame: Frame) -> list[Spot] | None:
    """Where a signal stands that is reduced just as it was recorded, a family by member; None: it is something else."""
    if node.op != SIGNAL or node.type.axis is not axis or axis is Axis.GROUP or node.type.dtype not in _AS_IT_IS:
        return None
    columns = frame.columns(node.param("name"))
    kinds = _AS_IT_IS[node.type.dtype]
    blocks = [frame.blocks[block] for _, block, _ in columns]
    if any(block.axis is not axis or block.data.dtype.kind not in kinds for block in blocks):
        return None
    if {member is None for member, _, _ in columns} != {_flat(node)} or (node.param("name"), None) in frame.texts:
        return None
    return [(block, row) for _, block, row in columns]


def _shape(node: Node, axis: Axis, frame: Frame) -> Hashable:
    """What nodes share whose operations are run at once; None: it is not arithmetic of recorded columns."""
    if node.op == CONST and isinstance(node.param("value"), (int, float)):
        return CONST
    if not _flat(node) or node.type.dtype is not DType.FLOAT:
        return None
    if _spots(node, axis, frame):
        return SIGNAL
    if node.op not in ARITHMETIC or node.type.axis is not axis:
        return None
    shapes = tuple(_shape(arg, axis, frame) for arg in node.args)
    return None if None in shapes or set(shapes) == {CONST} else (node.op, *shapes)


def _gather(nodes: Sequence[Node], axis: Axis, view: View) -> _Call | _Constants | Take:
    """How the values of nodes of one shape are made at once."""
    first = nodes[0]
    if first.op == CONST:
        return _Constants(nodes)
    if first.op == SIGNAL:
        return Take(spot for node in nodes for spot in _spots(node, axis, view.frame) or ())
    columns = zip(*(node.args for node in nodes), strict=True)
    return _Call(view.function(first.op), [_gather(args, axis, view) for args in columns])
