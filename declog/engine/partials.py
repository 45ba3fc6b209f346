"""Mergeable states of metrics: moments of their values, cell by cell, without the values themselves.

Metrics whose values fall into the same cells share one state (``reduce.py`` makes states, ``outputs.py`` finishes
them). When a window exceeds its size limit, the states of its parts are merged instead of their rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from declog.engine import cell_index
from declog.engine.cell_index import Label
from declog.engine.evaluator import View
from declog.language.dtypes import Axis
from declog.language.moments import NEUTRAL, STATS, Moments, Stat
from declog.language.nodes import ALONE, Node
from declog.language.segmented import Array, Segments
from declog.plans.ops import MetricOp

Piece = tuple[int, ...]
Row = tuple[Hashable, str | None]  # a source of values, and the member if it is a family
Names = tuple[Any, ...]
_STORED = {"missing": "lacking"}  # names of sums that are different in checkpoints


def source(op: MetricOp) -> Hashable:
    """A key for the values that a metric reduces; metrics with the same source share the rows of a state."""
    return op.args[0].index if op.fold is None else (op.fold, op.tokens)


def rows_of(op: MetricOp, members: Sequence[str]) -> tuple[Row, ...]:
    """The rows of one metric in a state: one per member, or a single one."""
    return tuple((source(op), member) for member in members or (None,))


def places_of(rows: Sequence[Row], start: int = 0) -> dict[Hashable, list[int]]:
    """The positions of the rows of each source."""
    places: dict[Hashable, list[int]] = {}
    for row, (of, _) in enumerate(rows, start):
        places.setdefault(of, []).append(row)
    return places


def reindexed(values: Array, axis: int, names: Names, wanted: Names, fill: float | bool) -> Array:
    """Values along an axis, moved from the positions of ``names`` to those of ``wanted``; new names get ``fill``."""
    return values if names == wanted else _moved(values, axis, len(wanted), _common(names, wanted), fill)


@lru_cache(maxsize=64)
def _common(names: Names, wanted: Names) -> Array:
    """The positions of the names that both have: in ``wanted``, and in ``names``."""
    position = {name: at for at, name in enumerate(names)}
    pairs = [(at, position[name]) for at, name in enumerate(wanted) if name in position]
    return np.array(pairs, np.int64).reshape(-1, 2).T


def _moved(values: Array, axis: int, count: int, positions: Array, fill: float | bool) -> Array:
    before = (slice(None),) * axis
    moved = np.full((*values.shape[:axis], count, *values.shape[axis + 1 :]), fill, values.dtype)
    moved[(*before, positions[0])] = values[(*before, positions[1])]
    return moved


@dataclass(frozen=True)
class Ordered:
    """The values themselves, ``values[rows, n]``, for reductions that depend on order: quantiles and ``last``.

    ``label`` and ``piece`` give the cell of each of the ``n`` values, and ``order`` is a sort key in time.
    """

    values: Array
    label: Array
    piece: Array
    order: Array

    def of(self, label: int, piece: int, *, alone: bool) -> tuple[Array, Array]:
        """The values of one cell and their sort keys; ``alone``: there is only this cell."""
        if alone:
            return self.values, self.order
        rows = np.flatnonzero((self.label == label) & (self.piece == piece))
        return self.values[:, rows], self.order[rows]


@dataclass(eq=False)  # never modified; creating a frozen dataclass takes three times as long
class State:
    """The moments of metrics whose values fall into the same cells, ``[rows, labels, pieces]``, with all labels.

    A row is a source of values and one of its members; the member is None if the source is no family, or if the family
    never came. ``counts`` has the number of rows of each label. Without `by` there is one label without a name.

    ``sums`` has other arrays of the same shape that add up. ``missing`` counts the missing values (or tokens) of each
    cell; absent ones are not counted. ``here`` counts the parts in which a cell came. With `weight`, the moments are
    those of weighted values, and ``weights`` has the sums of the weights. Weights may be negative, so their sum may be
    0 although there are values. ``never`` has sources that never came and of which there are no rows.
    """

    rows: tuple[Row, ...]
    labels: tuple[Label, ...]
    pieces: tuple[Piece, ...]
    moments: Moments
    sums: Mapping[str, Array]
    counts: Array
    ordered: Ordered | None = None  # from a single frame; merging drops it
    never: tuple[Hashable, ...] = ()

    @property
    def missing(self) -> Array:
        """The number of missing values in each cell."""
        return self.sums["missing"]

    @property
    def weights(self) -> Array | None:
        """The sum of the weights of each cell; None: the metrics have no `weight`."""
        return self.sums.get("weights")

    @cached_property
    def complete(self) -> bool:
        """Whether no value is missing."""
        return not np.count_nonzero(self.missing)

    @cached_property
    def even(self) -> int:
        """The number of values per cell if it is the same for all cells, else 0."""
        n = self.moments.n
        return int(n.flat[0]) if n.size and np.count_nonzero(n == n.flat[0]) == n.size else 0

    @property
    def members(self) -> tuple[str, ...]:
        """The members of the rows, for a state of one family."""
        return tuple(member for _, member in self.rows if member is not None)

    @classmethod
    def merged(cls, states: Sequence[State]) -> State:
        """One state for the values of several states."""
        if len(states) == 1:
            return states[0]
        rows = dict.fromkeys(row for state in states for row in state.rows)
        families = {of for of, member in rows if member is not None}
        names = tuple(row for row in rows if row[1] is not None or row[0] not in families)
        alike = aligned(states, names)
        return cls(
            names, alike[0].labels, alike[0].pieces, Moments.stacked([state.moments for state in alike]).pooled(),
            {name: np.sum([state.sums[name] for state in alike], 0) for name in alike[0].sums},
            np.sum([state.counts for state in alike], 0),
        )  # fmt: skip

    @classmethod
    def beside(cls, states: Sequence[State]) -> State:
        """The rows of several states stacked. All have equally many cells; labels and pieces are those of the first."""
        if len(states) == 1:
            return states[0]
        first = states[0]
        return cls(
            tuple([row for state in states for row in state.rows]), first.labels, first.pieces,
            Moments.joined([state.moments for state in states]),
            {name: np.concatenate([state.sums[name] for state in states]) for name in first.sums}, first.counts,
        )  # fmt: skip

    def of(self, op: MetricOp) -> State:
        """The state with only the rows of one metric; without rows if the state does not have its source."""
        taken = places_of(self.rows).get(source(op), [])
        return replace(
            self, rows=tuple(self.rows[row] for row in taken),
            moments=self.moments.map(lambda array, _: array[taken]),
            sums={name: array[taken] for name, array in self.sums.items()},
            ordered=None if self.ordered is None else replace(self.ordered, values=self.ordered.values[taken]),
        )  # fmt: skip

    def within(self, rows: tuple[Row, ...], labels: tuple[Label, ...], pieces: tuple[Piece, ...]) -> State:
        """The state moved to these rows, labels and pieces; rows that are not among them are dropped."""
        if (self.rows, self.labels, self.pieces) == (rows, labels, pieces):
            return self

        def among(values: Array, neutral: float = 0.0) -> Array:
            for axis, count, positions in moves:
                values = _moved(values, axis, count, positions, neutral)
            return values

        axes: list[tuple[Names, Names]] = [(self.rows, rows), (self.labels, labels), (self.pieces, pieces)]
        moves = [(axis, len(pair[1]), _common(*pair)) for axis, pair in enumerate(axes) if pair[0] != pair[1]]
        sums = {name: among(array) for name, array in self.sums.items()}
        counts = reindexed(self.counts, 0, self.labels, labels, 0.0)
        return State(rows, labels, pieces, self.moments.map(among), sums, counts)

    def pooled(self, names: tuple[str, ...], index: Array) -> State:
        """The state with labels pooled: label i becomes ``names[index[i]]``."""
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
        """The state of one metric as plain data, for a checkpoint."""
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


def aligned(states: Sequence[State], rows: tuple[Row, ...] | None = None) -> list[State]:
    """The states moved to common labels and pieces, and to ``rows`` unless None."""
    labels = tuple(sorted({label for state in states for label in state.labels}))
    pieces = tuple(sorted({piece for state in states for piece in state.pieces}))
    return [state.within(state.rows if rows is None else rows, labels, pieces) for state in states]


def cells_here(op: MetricOp, view: View) -> Array:
    """Whether each label has rows in each piece, ``[1, labels, pieces]``; without `by` True everywhere."""
    placed = cell_index.placed(op, view)
    count = placed.shape[1]
    if op.by is None:
        return np.ones((1, 1, count), bool)
    label, piece = placed.label, placed.piece
    if cell_index.by_rank(op):  # a rank counts as present in each piece in which it has a batch
        _, piece = cell_index.pieces(op, view, Axis.STEP)
        label = np.searchsorted(placed.labels, view.frame.batches.rank)
    cells = (label * count + piece)[piece >= 0]
    return np.bincount(cells, minlength=len(placed.labels) * count).reshape(1, -1, count) > 0


def members_here(op: MetricOp, view: View) -> Array:
    """Whether each member of a family has values in each piece, ``[members, 1, pieces]``; ``[1, 1, pieces]`` for all.

    A piece without any rows counts as having every member.
    """
    axis = cell_index.row_axis(op)
    count = cell_index.placed(op, view).shape[1]
    absent = view.absent(op.args[0], axis)
    if absent is True or absent is False:
        return np.full((1, 1, count), absent is False)
    _, piece = cell_index.pieces(op, view, axis)
    rows = np.bincount(piece[piece >= 0], minlength=count)
    lost = np.array([np.bincount(piece[row & (piece >= 0)], minlength=count) for row in np.atleast_2d(absent)])
    return np.asarray((lost < rows) | (rows == 0))[:, None]


def alone(args: Sequence[Node]) -> bool:
    """Whether the members of a family are observed one by one, such as numbers by name: one may come without others."""
    return any(map(_alone, (node for node in args if node.type.family)))


def _alone(node: Node) -> bool:
    families = [arg for arg in node.args if arg.type.family]
    return all(map(_alone, families)) if families else (ALONE, True) in node.params


def tokens_asked(values: Array, counts: Array) -> Array:
    """The number of tokens per completion that should have a value in a fold; 0 if the fold or the count is absent."""
    return np.where(np.isnan(values) | np.isnan(counts), 0.0, counts)


def fold_moments(columns: Mapping[Stat, Array]) -> Moments:
    """The moments of folds from their columns, ``[folds, rows]``; neutral in batches in which a fold did not come."""
    count = columns["n"]
    arrays = [columns[stat] if stat in columns else np.full(count.shape, NEUTRAL[stat]) for stat in STATS]
    states, here = Moments(*arrays), count > 0  # False also for NaN, where the fold did not come
    return states if here.all() else states.map(lambda array, neutral: np.where(here, array, neutral))
