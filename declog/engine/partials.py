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
from declog.language.moments import NEUTRAL, STATS, Moments, Stat, floats
from declog.language.nodes import LOGGED, SIGNAL, Node
from declog.language.segmented import Segments, present
from declog.plans.ops import MetricOp

Array = NDArray[Any]
Piece = tuple[int, ...]


@dataclass(frozen=True)
class State:
    """The moments of a metric's cells, ``[members, labels, pieces]``; all labels, however many.

    ``expected`` counts the rows (or tokens) of each cell, ``lacking`` those without a value, ``rows`` the rows of each
    label; nothing lacks where the signal never ``came``, nor a member of those that come each ``alone``. Without `by`
    there is one label, without a family one member, both without a name. With `weight` sums are of weighted values, and
    ``weights`` has what the weights come to, which may be nothing though rows count: they may be negative.
    """

    members: tuple[str, ...]
    labels: tuple[Label, ...]
    pieces: tuple[Piece, ...]
    moments: Moments
    lacking: Array
    rows: Array
    expected: Array
    came: bool
    alone: bool = False
    weights: Array | None = None

    def merge(self, other: State) -> State:
        """The state of both sets of rows."""
        members = tuple(dict.fromkeys((*self.members, *other.members)))
        labels = tuple(sorted({*self.labels, *other.labels}))
        pieces = tuple(sorted({*self.pieces, *other.pieces}))
        one, two = (state._within(members, labels, pieces) for state in (self, other))
        return State(
            members, labels, pieces, one.moments.merge(two.moments), one.lacking + two.lacking, one.rows + two.rows,
            one.expected + two.expected, one.came or two.came, self.alone,
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

        def spread(values: Array, neutral: float | Array) -> Array:
            whole = np.full(shape, neutral)
            if not empty:
                whole[index] = values
            return whole

        moments = self.moments.map(spread)
        rows = np.zeros(shape[1])
        rows[np.array(list(places[1]), np.int64)] = self.rows
        expected = np.zeros(shape[1:])
        expected[np.ix_(*(np.array(list(place), np.int64) for place in places[1:]))] = self.expected
        lacking = spread(self.lacking, 0.0 if self.alone else expected)  # of a member that had not come, each row's
        weights = None if self.weights is None else spread(self.weights, 0.0)
        return State(
            tuple(members),
            tuple(labels),
            tuple(pieces),
            moments,
            lacking,
            rows,
            expected,
            self.came,
            self.alone,
            weights,
        )

    def pooled(self, names: tuple[str, ...], place: Array) -> State:
        """The state by fewer labels; ``place`` is that of each label among ``names``."""
        parts = Segments(place, len(names))

        def summed(values: Array) -> Array:  # [..., labels, pieces]
            return np.swapaxes(parts.apply(np.add, np.swapaxes(values, -1, -2)), -1, -2)

        def turned(values: Array, _: float | Array = 0.0) -> Array:
            return np.swapaxes(values, 1, 2)

        return replace(
            self, labels=names, moments=self.moments.map(turned).pooled(parts).map(turned),
            lacking=summed(self.lacking), rows=parts.apply(np.add, self.rows), expected=summed(self.expected),
            weights=None if self.weights is None else summed(self.weights),
        )  # fmt: skip

    def plain(self) -> dict[str, Any]:
        """For a checkpoint, as JSON has it."""
        arrays: dict[str, Any] = {stat: getattr(self.moments, stat).tolist() for stat in STATS}
        return {
            "members": self.members, "labels": self.labels, "pieces": self.pieces, "shape": self.lacking.shape,
            "lacking": self.lacking.tolist(), "rows": self.rows.tolist(), "expected": self.expected.tolist(),
            "came": self.came, "alone": self.alone,
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
            np.array(data["expected"], np.float64).reshape(shape[1:]), data["came"], data.get("alone", False),
            None if weights is None else np.array(weights, np.float64).reshape(shape),
        )  # fmt: skip


def state_of(op: MetricOp, view: View) -> State:
    """The state of a metric that is finished from moments, over the rows of one frame."""
    axis, placed = cell_index.row_axis(op), cell_index.placed(op, view)
    chosen = placed.rows
    shape = (len(placed.labels) if op.by is not None else 1, len(placed.pieces))
    cell = placed.label * max(shape[1], 1) + placed.piece
    members: tuple[str, ...] = ()
    expected: Array | None = None
    if op.fold is not None:
        states = fold_states([op.fold], view, frozenset(op.reduction.stats)).take(chosen)
        tokens = known_tokens(op, view)
        if tokens is not None:
            expected = np.bincount(cell, tokens[chosen], minlength=shape[0] * shape[1])
    else:
        values = np.asarray(view.judged(op.args[0], axis), np.float64)
        values = (values[None] if values.ndim == 1 else values)[:, chosen]
        members = view.members(op.args[0])
        expected = np.bincount(cell, _expected(op, view, axis)[chosen], minlength=shape[0] * shape[1])
        states = Moments.single(values)
    there, weights = states.n, None
    if op.weight is not None:
        weight = np.asarray(view.rows(op.weight, axis), np.float64)[chosen]
        there = there * present(weight)
        with np.errstate(invalid="ignore"):  # inf times 0
            weighed = np.where(there > 0, there * weight, 0.0)
            weights = np.stack([np.bincount(cell, row, minlength=shape[0] * shape[1]) for row in weighed])
            states = replace(states, n=there, total=np.where(there > 0, states.total * weight, 0.0))
    pooled = states.pooled(Segments(cell, shape[0] * shape[1]))
    whole = (len(pooled.n), *shape)
    lacking: Array = np.zeros(whole)
    if expected is None:
        expected = np.zeros(shape[0] * shape[1])
    else:
        found = np.stack([np.bincount(cell, row, minlength=len(expected)) for row in there])
        lacking = np.maximum(expected - found, 0.0).reshape(whole)
        for member, row in enumerate(elsewhere(op.args, view, axis)):
            lacking[member] -= np.bincount(cell, row[chosen], minlength=len(expected)).reshape(shape)
    rows = np.bincount(placed.label, minlength=shape[0]).astype(np.float64)
    moments = pooled.map(lambda array, _: array.reshape(whole))
    came = op.fold is not None or view.came(op.args[0])
    return State(
        members if op.family else (), placed.labels, placed.pieces, moments, lacking, rows,
        expected.reshape(shape).astype(np.float64), came, alone(op.args),
        None if weights is None else weights.reshape(whole),
    )  # fmt: skip


def states_of(ops: Sequence[MetricOp], view: View) -> list[State]:
    """The states of metrics of values, without weights and labels, whose rows are in the same cells."""
    axis, placed = cell_index.row_axis(ops[0]), cell_index.placed(ops[0], view)
    chosen, pieces = placed.rows, len(placed.pieces)
    nodes = {op.args[0].index: op for op in ops}
    parts, expected = [], {}
    for index, op in nodes.items():
        values = np.asarray(view.judged(op.args[0], axis), np.float64)
        parts.append((values[None] if values.ndim == 1 else values)[:, chosen])
        expected[index] = np.bincount(placed.piece, _expected(op, view, axis)[chosen], minlength=pieces)
    pooled = Moments.single(np.concatenate(parts)).pooled(Segments(placed.piece, pieces))
    ends = np.cumsum([len(part) for part in parts]).tolist()
    spans = {index: slice(end - len(part), end) for index, part, end in zip(nodes, parts, ends, strict=True)}
    rows = np.array([float(len(chosen))])
    made = []
    for op in ops:
        node = op.args[0]
        span, sought = spans[node.index], expected[node.index]
        mine = Moments(*(getattr(pooled, stat)[span, None] for stat in STATS))
        lacking = np.maximum(sought - mine.n, 0.0)
        for member, row in enumerate(elsewhere(op.args, view, axis)):
            lacking[member] -= np.bincount(placed.piece, row[chosen], minlength=pieces)
        made.append(
            State(
                view.members(node) if op.family else (), (), placed.pieces, mine, lacking, rows,
                sought[None].astype(np.float64), view.came(node), alone(op.args),
            )
        )  # fmt: skip
    return made


def _expected(op: MetricOp, view: View, axis: Axis) -> Array:
    """1 for each row that is asked for a value, 0 where that is absent: of what did not come nothing is missing."""
    gone = either(*(view.lost(node, axis) for node in op.args))
    return np.where(np.broadcast_to(gone, (view.frame.count(axis),)), 0.0, 1.0)


def alone(args: Sequence[Node]) -> bool:
    """Whether members come each for itself, as the names of ``log_metric`` do, and not as one value of a batch."""
    return any(node.op == SIGNAL and node.param("name") == LOGGED for node in args)


def elsewhere(args: Sequence[Node], view: View, axis: Axis) -> Array:
    """Where members that come alone did not, in rows in which others did: ``[members, rows]`` of 0 and 1; or none."""
    gone = view.absent(args[0]) if alone(args) else False
    if not isinstance(gone, np.ndarray) or gone.ndim < 2:
        return np.zeros((0, 0))
    return view.frame.spread(gone & ~gone.all(0), Axis.STEP, axis).astype(np.float64)


def known_tokens(op: MetricOp, view: View) -> Array | None:
    """How many tokens each completion is asked for values of; none where what the metric reads is absent."""
    counts = None if op.tokens is None else view.frame.column(f"{op.tokens}.n")
    if counts is None:
        return None
    own = view.frame.column(f"{op.fold}.n")
    known = np.nan_to_num(counts.astype(np.float64))
    if own is None:
        return np.zeros_like(known)
    return np.where(np.isnan(own.astype(np.float64)), 0.0, known)


def fold_states(names: Sequence[str], view: View, stats: frozenset[Stat]) -> Moments:
    """The folds' states: every array ``[folds, rows]``; a fold that never came has none."""
    rows = view.frame.count(Axis.COMPLETION)

    def matrix(stat: Stat, neutral: float) -> Array:
        found = [view.frame.column(f"{name}.{stat}") if stat in stats else None for name in names]
        return np.stack([np.full(rows, neutral) if one is None else floats(one) for one in found])

    stats |= {"n", "total"}
    states = Moments(*(matrix(stat, neutral) for stat, neutral in NEUTRAL.items()))
    here = states.n > 0  # not in a batch in which it never came
    return states if here.all() else states.map(lambda array, neutral: np.where(here, array, neutral))
