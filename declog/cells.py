"""Metrics' values: reductions over a window's rows, and formulas over them.

A metric has one value per cell: ``[members, labels]``, of a family and of ``by``. It is reduced over the
pieces that its ``pool`` names and combined over them. Metrics that reduce the same rows are reduced in
``together.py``. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog import reducers
from declog.axes import Axis, Kind
from declog.evaluate import Formula, View
from declog.kernels import Segments, present, truth
from declog.plan import FormulaOp, MetricOp
from declog.reducers import Moments, Stat
from declog.sketch import Sketch
from declog.tree import METRIC, Node, walk

Array = NDArray[Any]
OTHER = "other"  # the label of rows beyond max_labels


@dataclass
class Cells:
    """A metric's values over a window: ``values[members, labels, pieces]``, NaN for none.

    ``kept`` marks a NaN that is a value (``nan: propagate``). ``skipped`` counts missing values that were
    left out. ``histograms`` holds (counts, edges) instead, by (member, label).
    """

    values: Array
    members: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    kept: Array | None = None
    skipped: int = 0
    histograms: dict[tuple[int, int], tuple[Array, Array]] = field(default_factory=dict)

    def combined(self, how: str) -> tuple[Array, Array]:
        """One value per cell over the pieces, and which of them there are: both ``[members, labels]``."""
        values, there = self.values, present(self.values)
        if self.kept is not None:
            there = there | self.kept
        if values.shape[-1] == 1 and how != "var":  # the variance of one value is absent
            return values[..., 0], there[..., 0]
        some = np.asarray(there.any(-1))
        zeroed = np.where(there, values, 0.0)
        n = np.maximum(there.sum(-1), 1)
        if how == "sum":
            combined = zeroed.sum(-1)
        elif how == "min":
            combined = np.where(there, values, np.inf).min(-1, initial=np.inf)
        elif how == "max":
            combined = np.where(there, values, -np.inf).max(-1, initial=-np.inf)
        elif how == "last":
            place = np.where(there, np.arange(values.shape[-1]), -1).max(-1, initial=-1)
            combined = (
                np.take_along_axis(zeroed, np.maximum(place, 0)[..., None], -1)[..., 0]
                if values.shape[-1]
                else np.zeros(values.shape[:-1])
            )
        elif how == "var":
            mean = (zeroed.sum(-1) / n)[..., None]
            combined = np.where(there, (values - mean) ** 2, 0.0).sum(-1) / np.maximum(n - 1, 1)
            some = some & (n > 1)
        else:
            combined = zeroed.sum(-1) / n
        return combined, some


def row_axis(op: MetricOp) -> Axis:
    """The axis of the rows that are reduced: a fold has one state per completion."""
    return Axis.COMPLETION if op.axis is Axis.TOKEN else op.axis


def settled(op: MetricOp, cells: Cells, missing: Array) -> Cells:
    """The cells, with what `nan` and `empty` say about missing values."""
    if op.empty is not None:
        cells.values = np.where(present(cells.values), cells.values, op.empty)
    if op.nan == "propagate" and missing.any():
        cells.values = np.where(missing, np.nan, cells.values)
        cells.kept = missing
    return cells


def fold_states(names: Sequence[str], view: View, stats: frozenset[Stat]) -> Moments:
    """The folds' states: every array ``[folds, rows]``; a fold that never came has none."""
    rows = view.frame.count(Axis.COMPLETION)
    neutral: dict[Stat, float] = {"n": 0.0, "total": 0.0, "m2": 0.0, "min": np.inf, "max": -np.inf}

    def matrix(stat: Stat) -> Array:
        columns = [
            view.frame.column(f"{name}.{stat}") if stat in stats or stat in ("n", "total") else None for name in names
        ]
        stacked = np.stack(
            [np.full(rows, neutral[stat]) if column is None else column.astype(np.float64) for column in columns]
        )
        if not np.isfinite(stacked).all() and stat != "total":
            stacked = np.where(np.isnan(stacked), neutral[stat], stacked)  # a batch in which it never came
        return stacked

    states = Moments(*(matrix(stat) for stat in reducers.STATS))
    if np.isnan(states.total).any():
        states = Moments(
            states.n,
            np.where((states.n == 0) & np.isnan(states.total), 0.0, states.total),
            states.m2,
            states.min,
            states.max,
        )
    return states


# ---- one metric, by label and piece ----------------------------------------------------------------------


def reduce_one(op: MetricOp, view: View) -> Cells:
    """The cells of one metric, by label and piece."""
    axis = row_axis(op)
    rows = view.frame.count(axis)
    keep = np.ones(rows, bool) if op.where is None else truth(np.array(view.rows(op.where, axis)))
    labels, label = _labels(op, view, axis, keep)
    pieces, piece = _pieces(op, view, axis)
    keep &= label >= 0
    if op.ranks == "main":
        keep &= _ranks(view, axis) == 0
    chosen = np.flatnonzero(keep)
    cell = label[chosen] * max(pieces, 1) + piece[chosen]
    shape = (len(labels) if op.by is not None else 1, pieces)
    if not op.reduction.foldable and op.fold is not None:
        return _by_sketch(op, view)
    if not op.reduction.foldable:
        return _by_values(op, view, axis, chosen, cell, shape, labels)
    members: tuple[str, ...] = ()
    sought: Array | None = None
    if op.fold is not None:
        states = fold_states([op.fold], view, frozenset(op.reduction.stats)).take(chosen)
        counts = None if op.tokens is None else view.frame.column(f"{op.tokens}.n")
        if counts is not None:
            tokens = np.nan_to_num(counts.astype(np.float64))[chosen]
            sought = np.bincount(cell, tokens, minlength=shape[0] * shape[1])
    else:
        values = np.asarray(view.rows(op.args[0], axis), np.float64)
        values = (values[None] if values.ndim == 1 else values)[:, chosen]
        members, sought = view.members(op.args[0]), np.bincount(cell, minlength=shape[0] * shape[1])
        ok = present(values)
        zero = np.where(ok, values, 0.0)
        states = Moments(
            ok.astype(np.float64),
            zero,
            np.zeros_like(zero),
            np.where(ok, values, np.inf),
            np.where(ok, values, -np.inf),
        )
    there = states.n
    if op.weight is not None:
        weight = np.asarray(view.rows(op.weight, axis), np.float64)[chosen]
        there = there * present(weight)
        weight = np.where(present(weight), weight, 0.0)
        states = Moments(states.n * weight, states.total * weight, states.m2, states.min, states.max)
    moments = _pooled_by(states, cell, shape[0] * shape[1])
    result = np.asarray(op.reduction.run(moments), np.float64)
    result = result.reshape(len(result), *shape)
    lacking = np.zeros((len(there), len(sought) if sought is not None else 1))
    if sought is not None:
        lacking = sought - np.stack([np.bincount(cell, row, minlength=len(sought)) for row in there])
    missing = (lacking > 0).reshape(result.shape) if sought is not None else np.zeros(result.shape, bool)
    skipped = int(lacking.sum())
    return settled(
        op, Cells(result, members if op.family else (), labels if op.by is not None else (), skipped=skipped), missing
    )


def _pooled_by(states: Moments, cell: Array, count: int) -> Moments:
    """``Moments.pooled`` per cell: ``[members, rows]`` to ``[members, count]``."""
    used, index = np.unique(cell, return_inverse=True)
    members = states.n.shape[0]
    if not len(used):
        return Moments.empty((members, count))
    segments = Segments(index, len(used))
    n, total = segments.apply(np.add, states.n), segments.apply(np.add, states.total)
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = states.total / np.maximum(states.n, 1.0) - segments.spread(total / np.maximum(n, 1.0))
        m2 = segments.apply(np.add, states.m2 + np.where(states.n > 0, states.n * gap * gap, 0.0))
    pooled = (n, total, m2, segments.apply(np.minimum, states.min), segments.apply(np.maximum, states.max))
    arrays = []
    for neutral, part in zip((0.0, 0.0, 0.0, np.inf, -np.inf), pooled, strict=True):
        whole = np.full((members, count), neutral)
        whole[:, used] = part
        arrays.append(whole)
    return Moments(*arrays)


def _by_values(
    op: MetricOp, view: View, axis: Axis, chosen: Array, cell: Array, shape: tuple[int, int], labels: tuple[str, ...]
) -> Cells:
    """A reduction that needs the values themselves, cell by cell."""
    columns = [np.asarray(view.rows(node, axis)) for node in op.args]
    columns = [
        column if column.dtype.kind in "fiu" and op.reduction.keeps_kind else column.astype(np.float64)
        for column in columns
    ]
    columns = [column[None] if column.ndim == 1 else column for column in columns]
    members = view.members(op.args[0]) if op.family else ()
    height = max(len(members), 1)
    values = np.full((height, *shape), np.nan)
    missing = np.zeros((height, *shape), bool)
    histograms: dict[tuple[int, int], tuple[Array, Array]] = {}
    order = _latest(view, axis) if op.reduction.ordered else None
    skipped = 0
    for member in range(height):
        parts = [column[min(member, len(column) - 1)][chosen] for column in columns]
        ok = np.logical_and.reduce([present(part) for part in parts])
        skipped += int((~ok).sum())
        for index in range(shape[0] * shape[1]):
            mine = cell == index
            rows = np.flatnonzero(mine & ok)
            place = divmod(index, max(shape[1], 1))
            missing[(member, *place)] = bool((mine & ~ok).any())
            if order is not None:
                rows = rows[np.argsort(order[chosen[rows]], kind="stable")]
            result = reducers.finish(op.reduction, [part[rows] for part in parts], dict(op.params))
            if isinstance(result, tuple):
                histograms[member, place[0]] = result
            else:
                values[(member, *place)] = result
    return settled(
        op, Cells(values, members, labels if op.by is not None else (), skipped=skipped, histograms=histograms), missing
    )


def _by_sketch(op: MetricOp, view: View) -> Cells:
    """A reduction over tokens that needs more than moments: of the histograms of the batches in each piece."""
    assert op.fold is not None and op.reduction.sketch is not None
    pieces, piece = _pieces(op, view, Axis.STEP)
    if op.ranks == "main":
        piece = np.where(view.frame.batches.rank == 0, piece, -1)
    counts = view.frame.column(f"{op.fold}.hist")
    states = fold_states([op.fold], view, frozenset({"n", "min", "max"}))
    batch = view.frame.parts(Axis.COMPLETION, Axis.STEP).index
    values = np.full((1, 1, pieces), np.nan)
    histograms: dict[tuple[int, int], tuple[Array, Array]] = {}
    for place in range(pieces if counts is not None else 0):
        mine = states.take(np.flatnonzero(piece[batch] == place)).pooled()
        if mine.n[0] > 0:
            parts = counts[piece == place] if counts is not None else ()
            result = op.reduction.sketch(Sketch.merge(parts, float(mine.min[0]), float(mine.max[0])), **dict(op.params))
            if isinstance(result, tuple):
                histograms[0, 0] = result
            else:
                values[0, 0, place] = result
    return settled(op, Cells(values, histograms=histograms), np.zeros(values.shape, bool))


def _ranks(view: View, axis: Axis) -> Array:
    """The rank of each row; a value per batch over all ranks counts as the main one's."""
    if axis is Axis.BATCH:
        return np.zeros(view.frame.count(axis), np.int64)
    return view.frame.spread(view.frame.batches.rank, Axis.STEP, axis)


def _latest(view: View, axis: Axis) -> Array:
    """A sort key per row: the greatest is the latest row."""
    order = np.empty(len(view.frame.batches), np.int64)
    order[view.frame.latest] = np.arange(len(order))
    return (
        order
        if axis is Axis.STEP
        else np.asarray(view.frame.spread(order, Axis.STEP, axis))
        if axis is not Axis.BATCH
        else np.arange(view.frame.count(axis))
    )


def _labels(op: MetricOp, view: View, axis: Axis, keep: Array) -> tuple[tuple[str, ...], Array]:
    """The labels of `by`, sorted, and each row's place among them (-1: none). Rare ones beyond the limit are pooled."""
    if op.by is None:
        return (), np.zeros(len(keep), np.int64)
    raw = np.asarray(view.rows(op.by, axis))
    there = present(raw) & keep
    index = np.full(len(raw), -1, np.int64)
    if not there.any():
        return (), index
    if raw.dtype.kind == "O":
        distinct, inverse = np.unique(np.array([str(item) for item in raw[there]]), return_inverse=True)
        names = [str(item) for item in distinct]
    else:
        distinct, inverse = np.unique(raw[there], return_inverse=True)
        names = [_label(item, op.by.type.kind) for item in distinct]
    if len(names) > op.max_labels:
        counts = np.bincount(inverse)
        frequent = np.sort(np.lexsort((np.arange(len(counts)), -counts))[: op.max_labels])
        place = np.full(len(names), len(frequent))
        place[frequent] = np.arange(len(frequent))
        inverse, names = place[inverse], [*(names[item] for item in frequent), OTHER]
    index[there] = inverse
    return tuple(names), index


def _label(value: Any, kind: Kind) -> str:
    if kind is Kind.BOOL:
        return "true" if value else "false"
    return str(int(value)) if float(value).is_integer() else str(value)


def _pieces(op: MetricOp, view: View, axis: Axis) -> tuple[int, Array]:
    """How many pieces `pool` makes of the window, and each row's; the latest is last, the lowest rank of equal ones."""
    rows = view.frame.count(axis)
    if op.pool == "window":
        return 1, np.zeros(rows, np.int64)
    batches = view.frame.batches
    keys = {
        "step": (batches.step,), "batch": (batches.step, batches.batch), "rank": (-batches.rank,),
        "rank_batch": (batches.step, batches.batch, -batches.rank),
    }[op.pool]  # fmt: skip
    parts = Segments.of_keys(*keys)
    known = np.unique(parts.index, return_index=True)[1]  # a batch of each piece
    place = np.argsort(np.lexsort([key[known] for key in reversed(keys)]))
    index = place[parts.index]
    if axis is Axis.STEP:
        return parts.count, index
    if axis is Axis.BATCH:
        first = np.zeros(rows, np.int64)
        batch = view.frame.parts(Axis.STEP, Axis.BATCH).index
        first[batch[::-1]] = index[::-1]
        return parts.count, first
    return parts.count, view.frame.spread(index, Axis.STEP, axis)


# ---- formulas ----------------------------------------------------------------------------------------------


def formulas(ops: Iterable[FormulaOp], cells: dict[str, Cells]) -> None:
    """Compute formulas from the cells of the metrics they read, and add theirs."""
    for op in ops:
        used = sorted({str(node.param("name")) for node in walk(op.expr) if node.op == METRIC})
        sources = [cells[key] for name in used if (key := name.rpartition(":")[2]) in cells]
        if not sources:
            continue
        members = tuple(dict.fromkeys(member for name in used if name in cells for member in cells[name].members))
        values = {name: _looked_up(name, cells, members) for name in used}
        result = np.asarray(Formula(values).value(op.expr), np.float64)
        result = np.broadcast_to(result, np.broadcast_shapes(result.shape, *(value.shape for value in values.values())))
        if op.empty is not None:
            result = np.where(present(result), result, op.empty)
        made = Cells(np.array(result), members)
        kept = [source.kept for source in sources if source.kept is not None]
        if kept:
            made.kept = np.isnan(result) & np.logical_or.reduce([np.broadcast_to(item, result.shape) for item in kept])
        cells[op.key] = made


def _looked_up(name: str, cells: Mapping[str, Cells], members: tuple[str, ...]) -> Array:
    """A metric's values in the order of ``members``, or what is asked of it: ``columns:id``, ``nan_count:id``."""
    asked, _, key = name.rpartition(":")
    found = cells.get(key)
    if found is None:
        return np.full((1, 1, 1), np.nan)
    if asked:
        return np.full((1, 1, 1), float(len(found.members) if asked == "columns" else found.skipped))
    if not found.members or found.members == members:
        return found.values
    order = [found.members.index(member) if member in found.members else -1 for member in members]
    padded = np.concatenate([found.values, np.full((1, *found.values.shape[1:]), np.nan)])
    return padded[order]


def holds(condition: Node, cells: Mapping[str, Cells], combine: Mapping[str, str]) -> bool:
    """Whether a condition over metrics, as they are logged, is true in any cell of this log event."""
    values: dict[str, Array] = {}
    for node in walk(condition):
        if node.op == METRIC:
            name = str(node.param("name"))
            known = cells.get(name)
            values[name] = _looked_up(name, cells, ()) if known is None else known.combined(combine[name])[0]
    return bool(np.any(truth(np.asarray(Formula(values).value(condition)))))
