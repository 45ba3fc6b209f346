"""Mergeable states of metrics: what their rows come to, cell by cell, without the rows.

A metric over one frame is finished from the state of that frame (``cells.py``); where a window grows beyond its
limit, the states of its parts are merged instead of their rows. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.engine import cell_index
from declog.engine.cell_index import Label
from declog.engine.evaluator import View
from declog.language.absence import either
from declog.language.dtypes import Axis
from declog.language.moments import NEUTRAL, STATS, Moments, Stat
from declog.language.nodes import ALONE, Node
from declog.language.segmented import Segments, present
from declog.plans.ops import MetricOp

Array = NDArray[Any]
Piece = tuple[int, ...]


@dataclass(frozen=True)
class State:
    """The moments of a metric's cells, ``[members, labels, pieces]``; all labels, however many.

    ``lacking`` counts the rows (or tokens) of each cell that came without a value, ``rows`` the rows of each label,
    ``here`` says in which pieces a cell came. What is absent lacks nothing. Without `by` there is one label, without a
    family one member, both without a name. With `weight` sums are of weighted values, and ``weights`` has what the
    weights come to, which may be nothing though rows count: they may be negative.
    """

    members: tuple[str, ...]
    labels: tuple[Label, ...]
    pieces: tuple[Piece, ...]
    moments: Moments
    lacking: Array
    rows: Array
    here: Array
    weights: Array | None = None

    def merge(self, other: State) -> State:
        """The state of both sets of rows."""
        members = tuple(dict.fromkeys((*self.members, *other.members)))
        labels = tuple(sorted({*self.labels, *other.labels}))
        pieces = tuple(sorted({*self.pieces, *other.pieces}))
        one, two = (state._within(members, labels, pieces) for state in (self, other))
        return State(
            members, labels, pieces, one.moments.merge(two.moments), one.lacking + two.lacking, one.rows + two.rows,
            one.here | two.here,
            None if one.weights is None or two.weights is None else one.weights + two.weights,
        )  # fmt: skip

    def among(self, labels: tuple[str, ...]) -> State:
        """The same, with some more labels, in their order."""
        return self._within(self.members, labels, self.pieces)

    def _within(self, members: Sequence[str], labels: Sequence[Label], pieces: Sequence[Piece]) -> State:
        """The same, among more members, labels and pieces."""
        if (self.members, self.labels, self.pieces) == (members, labels, pieces):
            return self
        axes = ((self.members, members), (self.labels, labels), (self.pieces, pieces))
        shape = tuple(len(whole) if whole else size for (_, whole), size in zip(axes, self.lacking.shape, strict=True))
        places = [
            [list(whole).index(item) for item in mine] if whole else range(size)
            for (mine, whole), size in zip(axes, self.lacking.shape, strict=True)
        ]
        if members and not self.members:  # the family had not come yet
            places[0], empty = [], True
        else:
            empty = False
        index = np.ix_(*(np.array(list(place), np.int64) for place in places))

        def spread(values: Array, neutral: float) -> Array:
            whole = np.full(shape, neutral)
            if not empty:
                whole[index] = values
            return whole

        rows = np.zeros(shape[1])
        rows[np.array(list(places[1]), np.int64)] = self.rows
        return State(
            tuple(members), tuple(labels), tuple(pieces), self.moments.map(spread), spread(self.lacking, 0.0), rows,
            spread(self.here, False), None if self.weights is None else spread(self.weights, 0.0),
        )  # fmt: skip

    def pooled(self, names: tuple[str, ...], place: Array) -> State:
        """The state by fewer labels; ``place`` is that of each label among ``names``."""
        parts = Segments(place, len(names))

        def summed(values: Array) -> Array:  # [..., labels, pieces]
            return np.swapaxes(parts.apply(np.add, np.swapaxes(values, -1, -2)), -1, -2)

        def turned(values: Array, _: float = 0.0) -> Array:
            return np.swapaxes(values, 1, 2)

        return replace(
            self, labels=names, moments=self.moments.map(turned).pooled(parts).map(turned),
            lacking=summed(self.lacking), rows=parts.apply(np.add, self.rows),
            here=summed(self.here.astype(np.int64)) > 0,
            weights=None if self.weights is None else summed(self.weights),
        )  # fmt: skip

    def plain(self) -> dict[str, Any]:
        """For a checkpoint, as JSON has it."""
        arrays: dict[str, Any] = {stat: getattr(self.moments, stat).tolist() for stat in STATS}
        return {
            "members": self.members, "labels": self.labels, "pieces": self.pieces, "shape": self.lacking.shape,
            "lacking": self.lacking.tolist(), "rows": self.rows.tolist(), "here": self.here.tolist(),
            "weights": None if self.weights is None else self.weights.tolist(), **arrays,
        }  # fmt: skip

    @classmethod
    def of_plain(cls, data: Mapping[str, Any]) -> State:
        """From a checkpoint."""
        shape = tuple(data["shape"])
        moments = Moments(*(np.array(data[stat], np.float64).reshape(shape) for stat in STATS))
        pieces = tuple(tuple(piece) for piece in data["pieces"])
        lacking = np.array(data["lacking"], np.float64).reshape(shape)
        weights = data.get("weights")
        return cls(
            tuple(data["members"]), tuple(data["labels"]), pieces, moments, lacking, np.array(data["rows"], np.float64),
            np.array(data["here"], bool).reshape(shape) if "here" in data else np.ones(shape, bool),
            None if weights is None else np.array(weights, np.float64).reshape(shape),
        )  # fmt: skip


def state_of(op: MetricOp, view: View) -> State:
    """The state of a metric that is finished from moments, over the rows of one frame."""
    (state,) = states_of([op], view)
    return state


def states_of(ops: Sequence[MetricOp], view: View) -> list[State]:
    """The states of metrics whose rows are in the same cells: all of them folds, or all of them values of rows."""
    first = ops[0]
    axis, placed = cell_index.row_axis(first), cell_index.placed(first, view)
    chosen = placed.rows
    shape = (len(placed.labels) if first.by is not None else 1, len(placed.pieces))
    cells = Segments(placed.label * max(shape[1], 1) + placed.piece, shape[0] * shape[1])
    sources: list[Any] = list(dict.fromkeys(op.args[0] if op.fold is None else op.fold for op in ops))
    if first.fold is not None:
        stats = frozenset(stat for op in ops for stat in op.reduction.stats)
        states, heights = fold_states(sources, view, stats).take(chosen), (1,) * len(sources)
    else:
        matrix, heights = view.matrix(sources, axis)
        states = Moments.single(matrix[:, chosen])
    there, weighed = states.n, None
    if first.weight is not None:
        weight = np.asarray(view.rows(first.weight, axis), np.float64)[chosen]
        there = there * present(weight)
        with np.errstate(invalid="ignore"):  # inf times 0
            weighed = np.where(there > 0, there * weight, 0.0)
            states = replace(states, n=there, total=np.where(there > 0, states.total * weight, 0.0))
    moments = states.pooled(cells).map(lambda array, _: array.reshape(len(array), *shape))

    def counted(rows: Array) -> Array:
        return np.bincount(cells.index, rows, minlength=cells.count).reshape(shape).astype(np.float64)

    found = np.array([counted(row) for row in there])
    weights = None if weighed is None else np.array([counted(row) for row in weighed])
    ends = np.cumsum(heights).tolist()
    spans = {one: slice(end - height, end) for one, height, end in zip(sources, heights, ends, strict=True)}
    rows = np.bincount(placed.label, minlength=shape[0]).astype(np.float64)
    lacks: dict[Any, Array] = {}  # in how many rows, or of how many tokens, a value came without being there
    made = []
    for op in ops:
        source = op.args[0] if op.fold is None else op.fold
        mine = found[spans[source]]
        if (source, op.tokens) not in lacks:
            asked = _asked(op, view, axis) if op.fold is None else known_tokens(op, view)
            there_should_be = 0.0 if asked is None else np.array([counted(row[chosen]) for row in np.atleast_2d(asked)])
            lacks[source, op.tokens] = np.maximum(there_should_be - mine, 0.0)
        part = Moments(*(getattr(moments, stat)[spans[source]] for stat in STATS))
        made.append(
            State(
                view.members(op.args[0]) if op.family else (), placed.labels, placed.pieces, part,
                lacks[source, op.tokens], rows, np.broadcast_to(here(op, view), mine.shape),
                None if weights is None else weights[spans[source]],
            )
        )  # fmt: skip
    return made


def _asked(op: MetricOp, view: View, axis: Axis) -> Array:
    """1 where a row is asked for a value, 0 where that is absent: ``[rows]``, of a family ``[members, rows]``."""
    gone = either(*(view.lost(node, axis) for node in op.args))
    return np.where(np.broadcast_to(gone, (*np.shape(gone)[:-1], view.frame.count(axis))), 0.0, 1.0)


def here(op: MetricOp, view: View) -> Array:
    """In which pieces each cell came: a label with its rows, a member with its values; ``[members, labels, pieces]``.

    Of what has no members, or one member like another, there is one row for all. A member came with a row that has it;
    of no rows at all nobody can say which.
    """
    axis, placed = cell_index.row_axis(op), cell_index.placed(op, view)
    count = len(placed.pieces)
    came = np.ones((1, 1, count), bool)
    if op.by is not None:
        label, piece = placed.label, placed.piece
        if cell_index.by_rank(op):  # a rank is there with each of its batches
            _, piece = cell_index.pieces(op, view, Axis.STEP)
            label = np.searchsorted(placed.labels, view.frame.batches.rank)
        cells = (label * count + piece)[piece >= 0]
        came = np.bincount(cells, minlength=len(placed.labels) * count).reshape(1, -1, count) > 0
    gone = view.lost(op.args[0], axis) if op.family else False
    if gone is True:
        came = np.zeros_like(came)
    elif gone is not False:
        _, piece = cell_index.pieces(op, view, axis)
        rows = np.bincount(piece[piece >= 0], minlength=count)
        lost = np.array([np.bincount(piece[row & (piece >= 0)], minlength=count) for row in np.atleast_2d(gone)])
        came = came & ((lost < rows) | (rows == 0))[:, None]
    return came


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
    (asked,) = requested_tokens([(op.fold, op.tokens)], view)
    return np.asarray(asked)


def requested_tokens(pairs: Sequence[tuple[str, str]], view: View) -> Array:
    """Of how many tokens each completion is asked for a fold's values, given that fold and the one that counts them."""
    own, counts = (view.frame.floats([f"{pair[place]}.n" for pair in pairs]) for place in (0, 1))
    return np.where(np.isnan(own) | np.isnan(counts), 0.0, counts)


def fold_states(names: Sequence[str], view: View, stats: frozenset[Stat]) -> Moments:
    """The folds' states: every array ``[folds, rows]``; a fold that never came has none."""

    def matrix(stat: Stat, neutral: float) -> Array:
        if stat in stats:
            return view.frame.floats([f"{name}.{stat}" for name in names])
        return np.full((len(names), view.frame.count(Axis.COMPLETION)), neutral)

    stats |= {"n", "total"}
    states = Moments(*(matrix(stat, neutral) for stat, neutral in NEUTRAL.items()))
    here = states.n > 0  # not in a batch in which it never came
    return states if here.all() else states.map(lambda array, neutral: np.where(here, array, neutral))
