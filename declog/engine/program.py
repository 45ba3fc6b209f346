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
from declog.engine.frame import KIND, Frame
from declog.engine.partials import fold_moments, tokens_asked
from declog.language.dtypes import Axis, DType
from declog.language.moments import Moments, Stat
from declog.language.nodes import CONST, SIGNAL, Node, walk

Array = NDArray[Any]
Spot = tuple[int, int]  # a column: which block of a frame, and which row of it
LAYOUTS = 32  # that are kept
ARITHMETIC = ("add", "sub", "mul", "div", "neg", "abs")
_AS_IT_IS = {DType.FLOAT: "fiub", DType.INT: "fi", DType.BOOL: "b"}  # kinds of arrays, by what a signal is
_T = TypeVar("_T")
Height = tuple[int, tuple[str, ...]]  # how many rows a source has, and the members of a family


def recent(plans: OrderedDict[Hashable, _T], layout: Hashable, make: Callable[[], _T]) -> _T:
    """The plan of a layout; the plans of the layouts that came last are kept."""
    plan = plans.get(layout)
    if plan is None:
        plan = plans[layout] = make()
        if len(plans) > LAYOUTS:
            plans.popitem(last=False)
    else:
        plans.move_to_end(layout)
    return plan


class Take:
    """Columns of numbers, ``[k, rows]`` of float64, in the order of their spots; those that lie together at once."""

    def __init__(self, spots: Iterable[Spot | None]) -> None:
        self._steps: list[tuple[int, Any, slice]] = []
        self.height = 0
        for block, group in itertools.groupby(spots, lambda spot: None if spot is None else spot[0]):
            neighbours = [*group]
            rows = slice(self.height, self.height + len(neighbours))
            self.height = rows.stop
            if block is not None:
                self._steps.append((block, together([spot[1] for spot in neighbours if spot is not None]), rows))

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


def together(rows: Sequence[int]) -> Any:
    """An index of rows; those that lie together are taken without a copy."""
    beside = bool(rows) and list(rows) == [*range(rows[0], rows[0] + len(rows))]
    return slice(rows[0], rows[0] + len(rows)) if beside else np.array(rows, np.int64)


class _Constants:
    """A number for each row."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._values = np.array([[float(node.param("value"))] for node in nodes])

    def of(self, frame: Frame, count: int) -> Array:
        """The same numbers for any frame."""
        return self._values


class _Call:
    """One arithmetic operation of many values: of columns, of constants, and of other such operations."""

    def __init__(self, run: Callable[..., Any], args: Sequence[_Values]) -> None:
        self._run = run
        self._args = args

    def of(self, frame: Frame, count: int) -> Array:
        """The values of one frame."""
        return np.asarray(self._run(np, *(arg.of(frame, count) for arg in self._args)))


_Values = Take | _Constants | _Call


class _Columns:
    """The columns of a frame in which nodes of one axis find their values; each node is looked up once."""

    def __init__(self, axis: Axis, frame: Frame) -> None:
        self._axis = axis
        self._frame = frame
        self._spots: dict[int, list[Spot]] = {}
        self._shapes: dict[int, Hashable] = {}

    def spots(self, node: Node) -> list[Spot]:
        """The columns of a signal that is reduced just as it was recorded, a family by member; empty: it is not."""
        if node.index not in self._spots:
            self._spots[node.index] = self._recorded(node)
        return self._spots[node.index]

    def _recorded(self, node: Node) -> list[Spot]:
        axis, frame, kinds = self._axis, self._frame, _AS_IT_IS.get(node.type.dtype, "")
        if node.op != SIGNAL or node.type.axis is not axis or axis is Axis.GROUP:
            return []
        columns = frame.columns(node.param("name"))
        blocks = [frame.blocks[block] for _, block, _ in columns]
        if any(block.axis is not axis or block.data.dtype.kind not in kinds for block in blocks):
            return []
        if {member is None for member, _, _ in columns} != {_flat(node)} or (node.param("name"), None) in frame.texts:
            return []
        return [(block, row) for _, block, row in columns]

    def shape(self, node: Node) -> Hashable:
        """A key: nodes of one key are computed at once; None: the node is not arithmetic of recorded columns."""
        if node.index not in self._shapes:
            self._shapes[node.index] = self._arithmetic(node)
        return self._shapes[node.index]

    def _arithmetic(self, node: Node) -> Hashable:
        if node.op == CONST and isinstance(node.param("value"), (int, float)):
            return CONST
        if not _flat(node) or node.type.dtype is not DType.FLOAT:
            return None
        if self.spots(node):
            return SIGNAL
        if node.op not in ARITHMETIC or node.type.axis is not self._axis:
            return None
        shapes = tuple(map(self.shape, node.args))
        return None if None in shapes or set(shapes) == {CONST} else (node.op, *shapes)

    def gather(self, nodes: Sequence[Node], function: Callable[[str], Callable[..., Any]]) -> _Values:
        """How the values of nodes of one shape are made at once."""
        first = nodes[0]
        if first.op == CONST:
            return _Constants(nodes)
        if first.op == SIGNAL:
            return Take(spot for node in nodes for spot in self.spots(node))
        columns = zip(*(node.args for node in nodes), strict=True)
        return _Call(function(first.op), [self.gather(args, function) for args in columns])


class Program:
    """The values of some nodes of one axis, one below the other, for one layout of columns.

    First come nodes with known rows: columns as they were recorded, then arithmetic of such. ``computed`` are
    evaluated by a view, and follow. ``never`` came: they have no rows. Of ``marked`` some rows may be absent.
    """

    def __init__(self, nodes: Sequence[Node], stats: Sequence[frozenset[Stat]], axis: Axis, view: View) -> None:
        frame, columns = view.frame, _Columns(axis, view.frame)
        # those of which the same is asked side by side, in the order of the columns
        order = {node.index: (sorted(asked), columns.spots(node)) for node, asked in zip(nodes, stats, strict=True)}
        nodes = sorted(nodes, key=lambda node: order[node.index])
        recorded = [node for node in nodes if columns.spots(node)]
        groups: dict[Hashable, list[Node]] = {}
        for node in nodes:
            if not columns.spots(node) and columns.shape(node) is not None:
                groups.setdefault(columns.shape(node), []).append(node)
        self._recorded = Take(spot for node in recorded for spot in columns.spots(node))
        self._calls = [(columns.gather(group, view.function), len(group)) for group in groups.values()]
        planned = [*recorded, *itertools.chain(*groups.values())]
        self.never = [node.index for node in nodes if node.op == SIGNAL and not frame.has(node.param("name"))]
        skipped = {*self.never, *(node.index for node in planned)}
        self.computed = [node for node in nodes if node.index not in skipped]
        self.sources = [node.index for node in (*planned, *self.computed)]
        members = [() if _flat(node) else frame.members(node.param("name")) for node in planned]
        self._heights: list[Height] = [(max(len(names), 1), names) for names in members]
        self.marked = {node.index for node in self.computed} | {
            node.index for node in planned
            if any(leaf.op == SIGNAL and frame.has(leaf.param("name") + KIND) for leaf in walk(node))
        }  # fmt: skip
        self._axis = axis

    def run(self, view: View) -> tuple[Array, tuple[Height, ...]]:
        """The matrix, and the heights of ``sources`` in it."""
        frame, count = view.frame, view.frame.count(self._axis)
        if not self._calls and not self.computed:
            return self._recorded.of(frame, count), tuple(self._heights)
        values = [np.asarray(view.counted(node, self._axis)) for node in self.computed]
        heights = [
            *self._heights,
            *((len(array) if array.ndim > 1 else 1, view.members(node))
              for array, node in zip(values, self.computed, strict=True)),
        ]  # fmt: skip
        matrix = np.empty((sum(height for height, _ in heights), count))
        self._recorded.into(matrix, frame)
        end = self._recorded.height
        for call, height in self._calls:
            matrix[end : end + height] = call.of(frame, count)
            end += height
        for array, (height, _) in zip(values, heights[len(self._heights) :], strict=True):
            matrix[end : end + height] = array
            end += height
        return matrix, tuple(heights)


class FoldProgram:
    """The states of token folds, one below the other, for one layout of columns; those that never came have none.

    ``pairs`` are folds, each with the one that counts of how many tokens it is asked.
    """

    marked: frozenset[Hashable] = frozenset()  # a fold says itself where it did not come

    def __init__(self, pairs: Sequence[tuple[str, str | None]], stats: frozenset[Stat], frame: Frame) -> None:
        came = [pair for pair in pairs if frame.has(f"{pair[0]}.n")]
        self.sources: Sequence[Hashable] = came
        self.never: Sequence[Hashable] = [pair for pair in pairs if pair not in came]
        needed: frozenset[Stat] = frozenset(("n", "total"))
        self._stats = {stat: Take(_spot(f"{fold}.{stat}", frame) for fold, _ in came) for stat in stats | needed}
        self._tokens = Take(None if tokens is None else _spot(f"{tokens}.n", frame) for _, tokens in came)
        self._heights: tuple[Height, ...] = ((1, ()),) * len(came)

    def run(self, view: View) -> tuple[Moments, Array, tuple[Height, ...]]:
        """The states, every array ``[folds, rows]``, of how many tokens each was asked for, and their heights."""
        frame, count = view.frame, view.frame.count(Axis.COMPLETION)
        columns: dict[Stat, Array] = {stat: take.of(frame, count) for stat, take in self._stats.items()}
        return fold_moments(columns), tokens_asked(columns["n"], self._tokens.of(frame, count)), self._heights


def _spot(name: str, frame: Frame) -> Spot | None:
    columns = frame.columns(name)
    return columns[0][1:] if columns else None


def _flat(node: Node) -> bool:
    return not node.type.family
