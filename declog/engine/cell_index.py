"""Assigns each row to a cell of a metric: to its label (from ``by``) and its piece of the window (from ``pool``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from declog.engine.blocks import Batches, shared
from declog.engine.evaluator import View
from declog.engine.frame import Frame
from declog.language.dtypes import Axis, DType
from declog.language.functions.text import OTHER, label_text, tags
from declog.language.nodes import BUILTIN
from declog.language.segmented import Array, Segments, ordered, present, truth
from declog.plans.ops import MetricOp

PIECES: Mapping[str, Callable[[Batches], tuple[Array, ...]]] = {  # the columns that name the pieces of a pool
    "window": lambda of: (), "step": lambda of: (of.step,), "batch": lambda of: (of.step, of.batch),
    "rank": lambda of: (-of.rank,), "rank_batch": lambda of: (of.step, of.batch, -of.rank),
}  # fmt: skip
UNLABELLED = np.zeros((), np.int64)  # the index of the only label of all rows
Label = str | float  # a value of `by` as it was observed


def row_axis(op: MetricOp) -> Axis:
    """The axis of the rows that a metric reduces. A fold over tokens has one state per completion."""
    return Axis.COMPLETION if op.axis is Axis.TOKEN else op.axis


@dataclass(eq=False)  # never modified; creating a frozen dataclass takes three times as long
class Placed:
    """The rows that count for a metric, and the cell of each: the index of its label and of its piece.

    ``rows`` is a slice if all rows count, in order. A row with several tags appears once per tag. ``cells`` groups the
    rows by cell. ``shape`` is the number of labels and of pieces; without `by` there is one label.
    """

    rows: Any
    labels: tuple[Label, ...]
    label: Array
    pieces: tuple[tuple[int, ...], ...]
    piece: Array
    shape: tuple[int, int]
    cells: Segments


def place_key(op: MetricOp) -> tuple[object, ...]:
    """A cache key: metrics of one phase with equal keys count the same rows, in the same cells."""
    where, weight, by = op.where, op.weight, op.by
    return row_axis(op), op.pool, op.ranks, where and where.index, weight and weight.index, by and by.index


def placed(op: MetricOp, view: View) -> Placed:
    """The rows that count, and their cells; computed once for all metrics with the same `place_key`."""
    return shared(view.facts, place_key(op), lambda: _placed(op, view))


def _placed(op: MetricOp, view: View) -> Placed:
    axis = row_axis(op)
    keep = None if op.where is None else truth(np.array(view.rows(op.where, axis)))
    if op.weight is not None:  # rows without a weight, or with weight 0, do not count
        weighs = ~(view.absent(op.weight, axis) | (view.rows(op.weight, axis) == 0))
        keep = weighs if keep is None else keep & weighs
    if op.ranks == "main":
        first_rank = ranks(view, axis) == 0
        keep = first_rank if keep is None else keep & first_rank
    units, piece = pieces(op, view, axis)
    if op.by is None and (keep is None or keep.all()):
        shape, facts = (1, len(units)), view.facts if axis is Axis.GROUP else view.frame.batches.facts
        cells = shared(facts, ("cells", axis, op.pool, op.ranks), lambda: _cells(UNLABELLED, piece, shape))
        return Placed(slice(None), (), UNLABELLED, units, piece, shape, cells)
    counting = np.arange(view.frame.count(axis)) if keep is None else np.flatnonzero(keep)
    names, rows, label = labels(op, view, axis, counting)
    shape, piece = (1 if op.by is None else len(names), len(units)), piece[rows]
    return Placed(rows, names, label, units, piece, shape, _cells(label, piece, shape))


def _cells(label: Array, piece: Array, shape: tuple[int, int]) -> Segments:
    """The rows by cell; the rows of a single cell are reduced where they lie."""
    if shape == (1, 1) and len(piece):
        return Segments.single(len(piece))
    return Segments(label * max(shape[1], 1) + piece, shape[0] * shape[1])


def ranks(view: View, axis: Axis) -> Array:
    """The rank of each row. A value of all rows of a step belongs to all ranks and counts as rank 0's."""
    if axis is Axis.ALL:
        return np.zeros(view.frame.count(axis), np.int64)
    return view.frame.spread(view.frame.batches.rank, Axis.STEP, axis)


def latest(view: View, axis: Axis) -> Array:
    """A sort key per row; the latest row has the greatest."""
    if axis is Axis.ALL:
        return np.arange(view.frame.count(axis))
    return view.frame.spread(np.argsort(view.frame.latest), Axis.STEP, axis)


def labels(op: MetricOp, view: View, axis: Axis, counting: Array) -> tuple[tuple[Label, ...], Array, Array]:
    """The sorted labels of `by`, the counting rows that have a label, and the index of each row's label.

    If `by` is a comparison, a row with a missing value has no label: the comparison is neither true nor false there. A
    row with several tags appears once per tag.
    """
    if op.by is None:
        return (), counting, UNLABELLED
    integers = op.by.type.dtype is DType.INT
    every_row = np.arange(view.frame.count(axis))
    raw = np.asarray(view.picked(op.by, axis, every_row) if integers else view.counted(op.by, axis))
    rows = counting[present(raw)[counting]]
    if by_rank(op):  # a rank is a label even if none of its rows counts
        names = np.unique(view.frame.batches.rank)
        names = names if op.ranks == "all" else names[names == 0]
        return tuple(names.tolist()), rows, np.searchsorted(names, raw[rows])
    if integers or raw.dtype.kind != "O":
        distinct, label = np.unique(raw[rows].astype(np.int64) if integers else raw[rows], return_inverse=True)
        return tuple(distinct.tolist()), rows, label
    if op.by.type.dtype is DType.OBJECT:
        tag_lists = [tags(item) for item in raw[rows]]
        rows = np.repeat(rows, list(map(len, tag_lists)))
        texts = [text for row in tag_lists for text in row]
    else:  # a list, because a numpy array of texts allocates the length of the longest text for each
        texts = [str(item) for item in raw[rows]]
    position = {text: at for at, text in enumerate(sorted(set(texts)))}
    return tuple(position), rows, np.array([position[text] for text in texts], np.int64)


def by_rank(op: MetricOp) -> bool:
    """Whether the labels are the ranks."""
    return op.by is not None and op.by.op == BUILTIN and op.by.param("name") == "rank"


def pooled(labels: Iterable[str]) -> str:
    """A name for the pooled labels beyond the limit; no label has this name."""
    names, name = set(labels), OTHER
    while name in names:
        name = f"_{name}"
    return name


@dataclass(frozen=True)
class Names:
    """The labels that are shown by name, and the name under which the rest is pooled (None: there is no rest)."""

    shown: tuple[str, ...] = ()
    rest: str | None = None

    @property
    def all(self) -> tuple[str, ...]:
        """All names; the name of the rest comes last."""
        return self.shown if self.rest is None else (*self.shown, self.rest)

    def with_others(self, names: Names) -> Names:
        """These names, followed by those of ``names`` that are new."""
        return Names(tuple(dict.fromkeys((*self.shown, *names.shown))), self.rest or names.rest)


NAMELESS = Names()


def named(labels: tuple[str, ...], counts: Array, limit: int, run: Names = NAMELESS) -> tuple[Names, Array]:
    """At most ``limit`` names of labels, in the labels' order, and for each label the index of its name.

    Labels that are named in ``run`` keep their names; the most frequent of the others get the free ones.
    """
    old = np.isin(np.array(labels, object), np.array(run.shown, object)) if run.shown else np.zeros(len(labels), bool)
    new, free = np.flatnonzero(~old), limit - len(run.shown)
    if len(new) <= free:
        return Names(labels), np.arange(len(labels))
    chosen = np.sort(np.r_[np.flatnonzero(old), new[np.lexsort((new, -counts[new]))[:free]]])
    positions = np.full(len(labels), len(chosen))
    positions[chosen] = np.arange(len(chosen))
    return Names(tuple(labels[item] for item in chosen), run.rest or pooled((*run.shown, *labels))), positions


def shown(value: Label, dtype: DType) -> str:
    """A label as text, as it appears in the name of a scalar."""
    return label_text(value, truth=dtype is DType.BOOL)


def pieces(op: MetricOp, view: View, axis: Axis) -> tuple[tuple[tuple[int, ...], ...], Array]:
    """The pieces into which `pool` cuts the window, and the index of each row's piece (-1: its rank does not count).

    Pieces are in the order of time, and for equal times from the highest rank to the lowest.
    """
    frame, rows = view.frame, Axis.STEP if axis is Axis.GROUP else axis
    first, index = shared(frame.batches.facts, ("pieces", rows, op.pool, op.ranks), lambda: _pieces(op, frame, rows))
    names = zip(*[key[first].tolist() for key in PIECES[op.pool](frame.batches)], strict=True)
    return tuple(names) or ((),) * len(first), frame.spread(index, rows, axis)


def _pieces(op: MetricOp, frame: Frame, axis: Axis) -> tuple[Array, Array]:
    """The first batch of each piece, and the index of each row's piece."""
    batches = frame.batches
    counts = np.ones(len(batches), bool) if op.ranks == "all" else batches.rank == 0
    if axis is Axis.ALL:  # the value belongs to all ranks: it counts for the first batch of the step
        counts |= np.r_[True, np.diff(batches.step) != 0][: len(counts)]
    keys, index = PIECES[op.pool](batches), np.where(counts, 0, -1)
    first = np.zeros(1, np.int64)
    if keys:
        first, index[counts] = ordered(*[key[counts] for key in keys])
        first = np.flatnonzero(counts)[first]
    if axis is not Axis.ALL:
        return first, frame.spread(index, Axis.STEP, axis)
    of_first = np.zeros(frame.count(axis), np.int64)
    of_first[frame.parts(Axis.STEP, axis).index[::-1]] = index[::-1]
    return first, of_first
