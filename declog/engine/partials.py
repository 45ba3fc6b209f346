"""Mergeable states of metrics: what their values come to, cell by cell, without the values.

All metrics whose values are in the same cells have one state together (``reduce.py`` makes and finishes it). Where a
window grows beyond its limit, the states of its parts are merged instead of their rows. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.engine import cell_index
from declog.engine.cell_index import Label
from declog.engine.evaluator import View
from declog.language.dtypes import Axis
from declog.language.moments import NEUTRAL, STATS, Moments, Stat
from declog.language.nodes import ALONE, Node
from declog.language.segmented import Segments
from declog.plans.ops import MetricOp

Array = NDArray[Any]
Piece = tuple[int, ...]
Row = tuple[Hashable, str | None]  # a source of values, and the member of a family
Names = tuple[Any, ...]
_STORED = {"missing": "lacking"}  # names in checkpoints, where they differ


def source(op: MetricOp) -> Hashable:
    """The values that a metric reduces, as a key: metrics of one source share the rows of a state."""
    return op.args[0].index if op.fold is None else (op.fold, op.tokens)


def rows_of(op: MetricOp, members: Sequence[str]) -> tuple[Row, ...]:
    """The rows of one metric's state."""
    return tuple((source(op), member) for member in members or (None,))


def places_of(rows: Sequence[Row], start: int = 0) -> dict[Hashable, list[int]]:
    """The positions of the rows of each source."""
    places: dict[Hashable, list[int]] = {}
    for row, (of, _) in enumerate(rows, start):
        places.setdefault(of, []).append(row)
    return places


def reindexed(values: Array, axis: int, names: Names, wanted: Names, fill: float | bool) -> Array:
    """Values of some names along an axis among those of other names; ``fill`` stands where a name is new."""
    return values if names == wanted else _taken(values, axis, _order(names, wanted), fill)


def _order(names: Names, wanted: Names) -> Array:
    """Where each of the names that are wanted stands among others; -1 where it is new."""
    position = {name: at for at, name in enumerate(names)}
    return np.array([position.get(name, -1) for name in wanted], np.int64)


def _taken(values: Array, axis: int, order: Array, fill: float | bool) -> Array:
    padding = np.full_like(np.take(values, [0], axis) if values.shape[axis] else values.sum(axis, keepdims=True), fill)
    return np.take(np.concatenate([values, padding], axis), order, axis)


@dataclass(frozen=True)
class Ordered:
    """The values of a state's rows where their order decides, ``values[rows, n]``: quantiles, and the last one.

    ``label`` and ``piece`` say in which cell each of the ``n`` is, and ``order`` sorts them in time.
    """

    values: Array
    label: Array
    piece: Array
    order: Array

    def of(self, label: int, piece: int, *, alone: bool) -> tuple[Array, Array]:
        """The values of one cell, and their order; ``alone``: it is the only cell."""
        if alone:
            return self.values, self.order
        rows = np.flatnonzero((self.label == label) & (self.piece == piece))
        return self.values[:, rows], self.order[rows]


@dataclass(frozen=True)
class State:
    """The moments of metrics whose values are in the same cells, ``[rows, labels, pieces]``; of all labels.

    A row is a source of values and a member of it; what is no family has none, nor has a family that never came.
    ``counts`` are the frame's rows of each label. Without `by` there is one label without a name.

    ``sums`` are what adds up besides: ``missing`` counts the values (or tokens) of each cell that came and are missing,
    ``here`` the parts in whose pieces a cell came. What is absent lacks nothing. With `weight` the moments' sums are of
    weighted values, and ``weights`` has what the weights come to, which may be nothing though values count: they may be
    negative.
    """

    rows: tuple[Row, ...]
    labels: tuple[Label, ...]
    pieces: tuple[Piece, ...]
    moments: Moments
    sums: Mapping[str, Array]
    counts: Array
    ordered: Ordered | None = None  # of one frame's values: it is not merged

    @property
    def missing(self) -> Array:
        """How many values of each cell are missing."""
        return self.sums["missing"]

    @property
    def weights(self) -> Array | None:
        """The sum of the weights of each cell; None: the metrics have no `weight`."""
        return self.sums.get("weights")

    @cached_property
    def complete(self) -> bool:
        """Whether no value is missing."""
        return not self.missing.any()

    @cached_property
    def even(self) -> int:
        """How many values each cell has, where all have as many; else 0."""
        n = self.moments.n
        return int(n.flat[0]) if n.size and (n == n.flat[0]).all() else 0

    @property
    def members(self) -> tuple[str, ...]:
        """The members of its rows, where they are of one family."""
        return tuple(member for _, member in self.rows if member is not None)

    @classmethod
    def empty(cls, rows: tuple[Row, ...], pieces: tuple[Piece, ...]) -> State:
        """The state of values that never came, without labels."""
        shape = len(rows), 1, len(pieces)
        sums = {"missing": np.zeros(shape), "here": np.ones(shape)}
        return cls(rows, (), pieces, Moments.empty(shape), sums, np.zeros(1))

    @classmethod
    def merged(cls, states: Sequence[State]) -> State:
        """The state of several sets of values together."""
        if len(states) == 1:
            return states[0]
        rows = dict.fromkeys(row for state in states for row in state.rows)
        families = {of for of, member in rows if member is not None}
        names = tuple(row for row in rows if row[1] is not None or row[0] not in families)
        alike = aligned(states, names)
        return cls(
            names, alike[0].labels, alike[0].pieces, Moments.stacked([state.moments for state in alike]).pooled(),
            {name: np.sum(arrays, 0) for name, arrays in _sums(alike)}, np.sum([state.counts for state in alike], 0),
        )  # fmt: skip

    @classmethod
    def beside(cls, states: Sequence[State]) -> State:
        """The rows of several states in one; they have as many cells each, and the first names them for all."""
        if len(states) == 1:
            return states[0]
        first = states[0]
        return cls(
            tuple(row for state in states for row in state.rows), first.labels, first.pieces,
            Moments.joined([state.moments for state in states]),
            {name: np.concatenate(arrays) for name, arrays in _sums(states)}, first.counts,
        )  # fmt: skip

    def of(self, op: MetricOp) -> State:
        """The rows of one metric alone; none where its source is not among them."""
        taken = places_of(self.rows).get(source(op), [])
        return replace(
            self, rows=tuple(self.rows[row] for row in taken),
            moments=self.moments.map(lambda array, _: array[taken]),
            sums={name: array[taken] for name, array in self.sums.items()},
            ordered=None if self.ordered is None else replace(self.ordered, values=self.ordered.values[taken]),
        )  # fmt: skip

    def within(self, rows: tuple[Row, ...], labels: tuple[Label, ...], pieces: tuple[Piece, ...]) -> State:
        """The same among more rows, labels and pieces, in their order; a row that is not among them is left out."""
        if (self.rows, self.labels, self.pieces) == (rows, labels, pieces):
            return self

        def among(values: Array, neutral: float = 0.0) -> Array:
            for axis, order in orders:
                values = _taken(values, axis, order, neutral)
            return values

        axes: list[tuple[Names, Names]] = [(self.rows, rows), (self.labels, labels), (self.pieces, pieces)]
        orders = [(axis, _order(*pair)) for axis, pair in enumerate(axes) if pair[0] != pair[1]]
        sums = {name: among(array) for name, array in self.sums.items()}
        counts = reindexed(self.counts, 0, self.labels, labels, 0.0)
        return State(rows, labels, pieces, self.moments.map(among), sums, counts)

    def pooled(self, names: tuple[str, ...], index: Array) -> State:
        """The state by fewer labels; ``index`` is the place of each label among ``names``."""
        parts = Segments(index, len(names))

        def summed(values: Array) -> Array:  # [..., labels, pieces]
            return np.swapaxes(parts.apply(np.add, np.swapaxes(values, -1, -2)), -1, -2)

        def turned(values: Array, _: float = 0.0) -> Array:
            return np.swapaxes(values, 1, 2)

        return replace(
            self, labels=names, moments=self.moments.map(turned).pooled(parts).map(turned),
            sums={name: summed(array) for name, array in self.sums.items()},
            counts=parts.apply(np.add, self.counts),
            ordered=None if self.ordered is None else replace(self.ordered, label=index[self.ordered.label]),
        )  # fmt: skip

    def plain(self) -> dict[str, Any]:
        """The state of one metric for a checkpoint, as JSON has it."""
        arrays: dict[str, Any] = {stat: getattr(self.moments, stat).tolist() for stat in STATS}
        arrays |= {_STORED.get(name, name): array.tolist() for name, array in self.sums.items()}
        return {
            "members": self.members, "labels": self.labels, "pieces": self.pieces, "shape": self.missing.shape,
            "rows": self.counts.tolist(), **arrays,
        }  # fmt: skip

    @classmethod
    def of_plain(cls, op: MetricOp, data: Mapping[str, Any]) -> State:
        """The state of one metric from a checkpoint."""
        shape = tuple(data["shape"])

        def array(name: str) -> Array:
            return np.array(data[name], np.float64).reshape(shape)

        stored = {name: _STORED.get(name, name) for name in ("missing", "here", "weights")}
        sums = {name: array(key) for name, key in stored.items() if data.get(key) is not None}
        return cls(
            rows_of(op, data["members"]), tuple(data["labels"]), tuple(tuple(piece) for piece in data["pieces"]),
            Moments(*map(array, STATS)), {"here": np.ones(shape), **sums}, np.array(data["rows"], np.float64),
        )  # fmt: skip


def _sums(states: Sequence[State]) -> Iterable[tuple[str, list[Array]]]:
    """The sums that all of some states have, each with the arrays of all."""
    names = [name for name in states[0].sums if all(name in state.sums for state in states)]
    return [(name, [state.sums[name] for state in states]) for name in names]


def aligned(states: Sequence[State], rows: tuple[Row, ...] | None = None) -> list[State]:
    """States among the same labels and pieces, and, if there are any, among the same rows."""
    labels = tuple(sorted({label for state in states for label in state.labels}))
    pieces = tuple(sorted({piece for state in states for piece in state.pieces}))
    return [state.within(state.rows if rows is None else rows, labels, pieces) for state in states]


def cells_here(op: MetricOp, view: View) -> Array:
    """In which pieces each label came with its rows, ``[1, labels, pieces]``; without `by` in all of them."""
    placed = cell_index.placed(op, view)
    count = len(placed.pieces)
    if op.by is None:
        return np.ones((1, 1, count), bool)
    label, piece = placed.label, placed.piece
    if cell_index.by_rank(op):  # a rank is there with each of its batches
        _, piece = cell_index.pieces(op, view, Axis.STEP)
        label = np.searchsorted(placed.labels, view.frame.batches.rank)
    cells = (label * count + piece)[piece >= 0]
    return np.bincount(cells, minlength=len(placed.labels) * count).reshape(1, -1, count) > 0


def members_here(op: MetricOp, view: View) -> Array:
    """In which pieces each member of a family came with its values, ``[members, 1, pieces]``, or 1 for all of them.

    A member came with a row that has it; of no rows at all nobody can say which.
    """
    axis = cell_index.row_axis(op)
    count = len(cell_index.placed(op, view).pieces)
    absent = view.absent(op.args[0], axis)
    if absent is True or absent is False:
        return np.full((1, 1, count), absent is False)
    _, piece = cell_index.pieces(op, view, axis)
    rows = np.bincount(piece[piece >= 0], minlength=count)
    lost = np.array([np.bincount(piece[row & (piece >= 0)], minlength=count) for row in np.atleast_2d(absent)])
    return np.asarray((lost < rows) | (rows == 0))[:, None]


def alone(args: Sequence[Node]) -> bool:
    """Whether members come each for itself, as numbers by name do, and not as one value of a batch."""
    return any(map(_alone, (node for node in args if node.type.family)))


def _alone(node: Node) -> bool:
    families = [arg for arg in node.args if arg.type.family]
    return all(map(_alone, families)) if families else (ALONE, True) in node.params


def known_tokens(op: MetricOp, view: View) -> Array | None:
    """How many tokens each completion is asked for values of; none where what the metric reads is absent."""
    if op.tokens is None or op.fold is None or view.frame.plain(f"{op.tokens}.n") is None:
        return None
    counted, tokens = view.frame.floats([f"{op.fold}.n", f"{op.tokens}.n"])
    return tokens_asked(counted, tokens)


def tokens_asked(values: Array, counts: Array) -> Array:
    """How many tokens of each completion a fold should have values of; 0 where the fold or the tokens are absent."""
    return np.where(np.isnan(values) | np.isnan(counts), 0.0, counts)


def fold_states(name: str, view: View, stats: Sequence[Stat]) -> Moments:
    """One fold's states: every array ``[1, rows]``; a fold that never came has none."""
    return fold_moments({stat: view.frame.floats([f"{name}.{stat}"]) for stat in stats})


def fold_moments(columns: Mapping[Stat, Array]) -> Moments:
    """The states of folds from their columns, ``[folds, rows]``: none in a batch in which a fold did not come."""
    count = columns["n"]
    states = Moments(*(columns.get(stat, np.full(count.shape, neutral)) for stat, neutral in NEUTRAL.items()))
    here = count > 0  # not in a batch in which it never came
    return states if here.all() else states.map(lambda array, neutral: np.where(here, array, neutral))
