"""Programs that collect the values of many nodes in one matrix: planned once per layout of columns, then run as a list.

Most metrics reduce recorded columns, or arithmetic on such columns: a program takes and computes many of these at
once. All other nodes are evaluated by a `View`, one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from declog.engine.evaluator import View
from declog.engine.frame import Frame
from declog.engine.layout import KIND, Spot, together
from declog.engine.partials import fold_moments, tokens_asked
from declog.language.dtypes import Axis, DType
from declog.language.functions import Function
from declog.language.moments import Moments, Stat
from declog.language.nodes import CONST, SIGNAL, Node, walk
from declog.language.segmented import Array

ARITHMETIC = ("add", "sub", "mul", "div", "neg", "abs")
_AS_IT_IS = {DType.FLOAT: "fiub", DType.INT: "fi", DType.BOOL: "b"}  # the kinds of arrays that need no conversion
Height = tuple[int, tuple[str, ...]]  # the number of rows of a source, and the members if it is a family


class Take:
    """Takes columns as float64 ``[k, rows]``, in the order of their spots; adjacent columns are taken as one slice."""

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
        """The columns of one frame, ``count`` rows each; NaN where a column never came. The result may be a view."""
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


_Values = Callable[[Frame, int], Array]  # takes a frame and the number of its rows, returns ``[k, rows]`` or ``[k, 1]``


class _Columns:
    """Finds the columns of a frame that hold the values of nodes of one axis."""

    def __init__(self, axis: Axis, frame: Frame) -> None:
        self._axis = axis
        self._frame = frame

    def spots(self, node: Node) -> list[Spot]:
        """The columns of a signal that needs no conversion, one per member of a family; empty for any other node."""
        axis, frame, kinds = self._axis, self._frame, _AS_IT_IS.get(node.type.dtype, "")
        if node.op != SIGNAL or node.type.axis is not axis or axis is Axis.GROUP:
            return []
        name, flat = node.param("name"), not node.type.family
        columns = frame.layout.columns.get(name, [])
        blocks = [frame.blocks[block] for _, block, _ in columns]
        if any(block.axis is not axis or block.data.dtype.kind not in kinds for block in blocks):
            return []
        if {member is None for member, _, _ in columns} != {flat} or (name, None) in frame.texts:
            return []
        return [(block, row) for _, block, row in columns]

    def shape(self, node: Node) -> Hashable:
        """A key: nodes with equal keys are computed at once. None: the node is not arithmetic on recorded columns."""
        if node.op == CONST and isinstance(node.param("value"), (int, float)):
            return CONST
        if node.type.family or node.type.dtype is not DType.FLOAT:
            return None
        if self.spots(node):
            return SIGNAL
        if node.op not in ARITHMETIC or node.type.axis is not self._axis:
            return None
        shapes = tuple(map(self.shape, node.args))
        return None if None in shapes or set(shapes) == {CONST} else (node.op, *shapes)

    def gather(self, nodes: Sequence[Node], function: Callable[[str], Function]) -> _Values:
        """The operation that computes the values of nodes of one shape at once."""
        first = nodes[0]
        if first.op == CONST:
            constants = np.array([[float(node.param("value"))] for node in nodes])
            return lambda frame, count: constants
        if first.op == SIGNAL:
            return Take(spot for node in nodes for spot in self.spots(node)).of
        args = [self.gather(column, function) for column in zip(*(node.args for node in nodes), strict=True)]
        run = function(first.op).run
        return lambda frame, count: np.asarray(run(np, *[arg(frame, count) for arg in args]))


class Program:
    """Stacks the values of nodes of one axis in a matrix, for one layout of columns.

    Recorded columns come first, then arithmetic on them, then the nodes in ``computed``, which a view evaluates. Nodes
    in ``never`` did not come and have no rows. Nodes in ``marked`` may have absent rows.
    """

    def __init__(self, nodes: Sequence[Node], stats: Sequence[frozenset[Stat]], axis: Axis, view: View) -> None:
        frame, columns = view.frame, _Columns(axis, view.frame)
        # nodes that need the same statistics are adjacent, in the order of their columns
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
        members = [frame.members(node.param("name")) if node.type.family else () for node in planned]
        self._heights: list[Height] = [(max(len(names), 1), names) for names in members]
        self.marked = {node.index for node in self.computed} | {
            node.index for node in planned
            if any(leaf.op == SIGNAL and frame.has(leaf.param("name") + KIND) for leaf in walk(node))
        }  # fmt: skip
        self._axis = axis

    def run(self, view: View) -> tuple[Array, tuple[Height, ...]]:
        """The matrix, and the height of each of the ``sources`` in it."""
        frame, count = view.frame, view.frame.count(self._axis)
        if not self._calls and not self.computed:
            return self._recorded.of(frame, count), tuple(self._heights)
        values = [np.asarray(view.counted(node, self._axis)) for node in self.computed]
        heights = [
            *self._heights,
            *[(len(array), view.members(node)) if array.ndim > 1 else (1, ())
              for array, node in zip(values, self.computed, strict=True)],
        ]  # fmt: skip
        matrix = np.empty((sum(height for height, _ in heights), count))
        self._recorded.into(matrix, frame)
        end = self._recorded.height
        for call, height in self._calls:
            matrix[end : end + height] = call(frame, count)
            end += height
        for array, (height, _) in zip(values, heights[len(self._heights) :], strict=True):
            matrix[end : end + height] = array
            end += height
        return matrix, tuple(heights)


class FoldProgram:
    """Stacks the states of token folds, for one layout of columns; folds that never came have no rows.

    ``pairs`` has for each fold the fold that counts the tokens it should have values of.
    """

    marked: frozenset[Hashable] = frozenset()  # folds mark absent rows by a count of NaN

    def __init__(self, pairs: Sequence[tuple[str, str | None]], stats: frozenset[Stat], frame: Frame) -> None:
        came = [pair for pair in pairs if frame.has(f"{pair[0]}.n")]
        self.sources: Sequence[Hashable] = came
        self.never: Sequence[Hashable] = [pair for pair in pairs if pair not in came]
        needed: frozenset[Stat] = frozenset(("n", "total"))
        spots = frame.layout.spots
        self._stats = {stat: Take(spots.get((f"{fold}.{stat}", None)) for fold, _ in came) for stat in stats | needed}
        self._tokens = Take(spots.get((f"{tokens}.n", None)) for _, tokens in came)
        self._heights: tuple[Height, ...] = ((1, ()),) * len(came)

    def run(self, view: View) -> tuple[tuple[Moments, Array], tuple[Height, ...]]:
        """The states ``[folds, rows]``, the number of tokens that should have a value in each, and their heights."""
        frame, count = view.frame, view.frame.count(Axis.COMPLETION)
        columns: dict[Stat, Array] = {stat: take.of(frame, count) for stat, take in self._stats.items()}
        return (fold_moments(columns), tokens_asked(columns["n"], self._tokens.of(frame, count))), self._heights
