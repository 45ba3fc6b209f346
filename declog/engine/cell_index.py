"""The cell of a metric that each row belongs to: its label, by ``by``, and its piece of the window, by ``pool``.

Imports the plan and the evaluation of one frame, no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.engine.evaluator import View
from declog.language.dtypes import Axis, DType
from declog.language.functions.text import label_text, tags
from declog.language.nodes import BUILTIN
from declog.language.segmented import ordered, present, truth
from declog.plans.ops import MetricOp

Array = NDArray[Any]
OTHER = "_other"  # the label of rows beyond max_labels; with more underscores where a row has that label
Label = str | float  # as it was observed


def row_axis(op: MetricOp) -> Axis:
    """The axis of the rows that are reduced: a fold has one state per completion."""
    return Axis.COMPLETION if op.axis is Axis.TOKEN else op.axis


@dataclass(frozen=True)
class Placed:
    """The rows that count for a metric, and the cell of each: its place among the labels and the pieces.

    A row of several tags stands there once for each.
    """

    rows: Array
    labels: tuple[Label, ...]
    label: Array
    pieces: tuple[tuple[int, ...], ...]
    piece: Array


def place_key(op: MetricOp) -> tuple[object, ...]:
    """A key: metrics of one phase with equal keys count the same rows, in the same cells."""
    nodes = (None if node is None else node.index for node in (op.where, op.weight, op.by))
    return row_axis(op), op.pool, op.ranks, *nodes


def placed(op: MetricOp, view: View) -> Placed:
    """The rows that count, and their cells; computed once per key and view."""
    key = place_key(op)
    cached = view.placed.get(key)
    if cached is None:
        cached = view.placed[key] = _placed(op, view)
    return cached


def _placed(op: MetricOp, view: View) -> Placed:
    axis = row_axis(op)
    count = view.frame.count(axis)
    keep = None if op.where is None else truth(np.array(view.rows(op.where, axis)))
    if op.weight is not None:  # a row of no weight does not count
        weighs = ~(view.absent(op.weight, axis) | (view.rows(op.weight, axis) == 0))
        keep = weighs if keep is None else keep & weighs
    if op.ranks == "main":
        first_rank = ranks(view, axis) == 0
        keep = first_rank if keep is None else keep & first_rank
    counting = np.arange(count) if keep is None else np.flatnonzero(keep)
    names, rows, label = labels(op, view, axis, counting)
    units, piece = pieces(op, view, axis)
    return Placed(rows, names, label, tuple(units), piece[rows])


def ranks(view: View, axis: Axis) -> Array:
    """The rank of each row; a value per batch over all ranks counts as the main one's."""
    if axis is Axis.BATCH:
        return np.zeros(view.frame.count(axis), np.int64)
    return view.frame.spread(view.frame.batches.rank, Axis.STEP, axis)


def latest(view: View, axis: Axis) -> Array:
    """A sort key per row: the greatest is the latest row."""
    if axis is Axis.BATCH:
        return np.arange(view.frame.count(axis))
    order = np.empty(len(view.frame.batches), np.int64)
    order[view.frame.latest] = np.arange(len(order))
    return view.frame.spread(order, Axis.STEP, axis)


def labels(op: MetricOp, view: View, axis: Axis, counting: Array) -> tuple[tuple[Label, ...], Array, Array]:
    """The labels of `by`, sorted; of the rows that count those that have one, and the place of each among them.

    A comparison of what is missing has none: neither true nor false. A row of several tags stands there once for each.
    """
    if op.by is None:
        return (), counting, np.zeros(len(counting), np.int64)
    integers = op.by.type.dtype is DType.INT
    every_row = np.arange(view.frame.count(axis))
    raw = np.asarray(view.picked(op.by, axis, every_row) if integers else view.counted(op.by, axis))
    rows = counting[present(raw)[counting]]
    if by_rank(op):  # a rank is there though none of its rows counts
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
    else:  # an array of texts would give each the room of the longest
        texts = [str(item) for item in raw[rows]]
    position = {text: at for at, text in enumerate(sorted(set(texts)))}
    return tuple(position), rows, np.array([position[text] for text in texts], np.int64)


def by_rank(op: MetricOp) -> bool:
    """Whether the labels are the ranks."""
    return op.by is not None and op.by.op == BUILTIN and op.by.param("name") == "rank"


def pooled(labels: Iterable[str]) -> str:
    """The name of the rows beyond the limit, which no label has."""
    names, name = set(labels), OTHER
    while name in names:
        name = f"_{name}"
    return name


@dataclass(frozen=True)
class Names:
    """The labels that are shown by their names, and as what the others are pooled, if any are."""

    shown: tuple[str, ...] = ()
    rest: str | None = None

    @property
    def all(self) -> tuple[str, ...]:
        """All names."""
        return self.shown if self.rest is None else (*self.shown, self.rest)

    def with_others(self, names: Names) -> Names:
        """These names, and then others."""
        return Names(tuple(dict.fromkeys((*self.shown, *names.shown))), self.rest or names.rest)


NAMELESS = Names()


def named(labels: tuple[str, ...], counts: Array, limit: int, run: Names = NAMELESS) -> tuple[Names, Array]:
    """The names of labels, at most ``limit``, in their order, and the place of each label among them.

    What has its name over the run keeps it; beside that those that are the most frequent have one.
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
    """A label in a name."""
    return label_text(value, truth=dtype is DType.BOOL)


def pieces(op: MetricOp, view: View, axis: Axis) -> tuple[list[tuple[int, ...]], Array]:
    """The pieces that `pool` makes of the window, and each row's, -1 where its rank does not count.

    The latest is last, the lowest rank of equal ones.
    """
    key = "pieces", axis is Axis.BATCH, op.pool, op.ranks
    cached = view.placed.get(key)
    if cached is None:
        cached = view.placed[key] = _pieces_of_batches(op, view, axis)
    names, index = cached
    if axis is not Axis.BATCH:
        return names, view.frame.spread(index, Axis.STEP, axis)
    first = np.zeros(view.frame.count(axis), np.int64)
    first[view.frame.parts(Axis.STEP, Axis.BATCH).index[::-1]] = index[::-1]
    return names, first


def _pieces_of_batches(op: MetricOp, view: View, axis: Axis) -> tuple[list[tuple[int, ...]], Array]:
    """The names of the pieces, and the piece of each batch."""
    batches = view.frame.batches
    counts = np.ones(len(batches), bool) if op.ranks == "all" else batches.rank == 0
    if axis is Axis.BATCH:  # a value over all ranks counts as the first one's
        counts |= np.r_[True, (np.diff(batches.step) != 0) | (np.diff(batches.batch) != 0)][: len(counts)]
    if op.pool == "window":
        return [()], np.where(counts, 0, -1)
    keys = {
        "step": (batches.step,), "batch": (batches.step, batches.batch), "rank": (-batches.rank,),
        "rank_batch": (batches.step, batches.batch, -batches.rank),
    }[op.pool]  # fmt: skip
    first, piece = ordered(*(key[counts] for key in keys))
    index = np.full(len(batches), -1)
    index[counts] = piece
    return list(zip(*(key[counts][first].tolist() for key in keys), strict=True)), index
