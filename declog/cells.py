"""Metrics' values: reductions over a window's rows, and formulas over them.

A metric has one value per cell: ``[members, labels]``, of a family and of ``by``. It is reduced over the
pieces that its ``pool`` names and combined over them. Metrics that reduce the same rows are reduced in
``together.py``. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog import pools, reducers
from declog.axes import Axis, Kind
from declog.evaluate import Formula, View
from declog.kernels import present, truth
from declog.plan import FormulaOp, MetricOp
from declog.reducers import Moments
from declog.sketch import Sketch
from declog.states import State, fold_states, state_of
from declog.tree import METRIC, Node, walk

Array = NDArray[Any]


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


def settled(op: MetricOp, cells: Cells, missing: Array) -> Cells:
    """The cells, with what `nan` and `empty` say about missing values."""
    if op.empty is not None:
        cells.values = np.where(present(cells.values), cells.values, op.empty)
    if op.nan == "propagate" and missing.any():
        cells.values = np.where(missing, np.nan, cells.values)
        cells.kept = missing
    return cells


# ---- one metric, by label and piece ----------------------------------------------------------------------


def reduce_one(op: MetricOp, view: View) -> Cells:
    """The cells of one metric, by label and piece."""
    if op.reduction.foldable:
        return finished(op, state_of(op, view))
    return _by_values(op, view) if op.fold is None else _by_sketch(op, view)


def finished(op: MetricOp, state: State) -> Cells:
    """The cells of a metric from its state; rare labels beyond the limit are pooled."""
    moments, names = state.moments, tuple(pools.shown(item, _kind(op)) for item in state.labels)
    lacking = state.lacking if state.came else np.zeros_like(state.lacking)  # it is absent, not missing
    if len(names) > op.max_labels:
        chosen, place = pools.frequent(state.rows, op.max_labels)
        names = (*(names[item] for item in chosen), pools.OTHER)
        parts = [np.flatnonzero(place == item) for item in range(len(names))]
        pooled = [
            Moments(*(np.moveaxis(array[:, part], 1, -1) for array in _arrays(moments))).pooled() for part in parts
        ]
        moments = Moments(*(np.stack(arrays, 1) for arrays in zip(*map(_arrays, pooled), strict=True)))
        lacking = np.stack([lacking[:, part].sum(1) for part in parts], 1)
    result = np.asarray(op.reduction.run(moments), np.float64)
    cells = Cells(result, state.members, names, skipped=int(lacking.sum()))
    return settled(op, cells, lacking > 0)


def _arrays(moments: Moments) -> tuple[Array, ...]:
    return (moments.n, moments.total, moments.m2, moments.min, moments.max)


def _kind(op: MetricOp) -> Kind:
    return Kind.TEXT if op.by is None else op.by.type.kind


def _by_values(op: MetricOp, view: View) -> Cells:
    """A reduction that needs the values themselves, cell by cell."""
    axis, placed = pools.row_axis(op), pools.placed(op, view)
    chosen, label = placed.rows, placed.label
    labels = tuple(pools.shown(item, _kind(op)) for item in placed.labels)
    if len(labels) > op.max_labels:
        frequent, place = pools.frequent(np.bincount(label, minlength=len(labels)), op.max_labels)
        labels, label = (*(labels[item] for item in frequent), pools.OTHER), place[label]
    shape = (len(labels) if op.by is not None else 1, len(placed.pieces))
    cell = label * max(shape[1], 1) + placed.piece
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
    order = pools.latest(view, axis) if op.reduction.ordered else None
    came = all(view.came(node) for node in op.args)  # of a signal that never came nothing is missing: it is absent
    skipped = 0
    for member in range(height):
        parts = [column[min(member, len(column) - 1)][chosen] for column in columns]
        ok = np.logical_and.reduce([present(part) for part in parts])
        skipped += int((~ok).sum()) if came else 0
        for index in range(shape[0] * shape[1]):
            mine = cell == index
            rows = np.flatnonzero(mine & ok)
            at = divmod(index, max(shape[1], 1))
            missing[(member, *at)] = came and bool((mine & ~ok).any())
            if order is not None:
                rows = rows[np.argsort(order[chosen[rows]], kind="stable")]
            result = reducers.finish(op.reduction, [part[rows] for part in parts], dict(op.params))
            if isinstance(result, tuple):
                histograms[member, at[0]] = result
            else:
                values[(member, *at)] = result
    return settled(op, Cells(values, members, labels, skipped=skipped, histograms=histograms), missing)


def _by_sketch(op: MetricOp, view: View) -> Cells:
    """A reduction over tokens that needs more than moments: of the histograms of the batches in each piece."""
    assert op.fold is not None and op.reduction.sketch is not None
    pieces, piece = pools.pieces(op, view, Axis.STEP)
    if op.ranks == "main":
        piece = np.where(view.frame.batches.rank == 0, piece, -1)
    counts = view.frame.column(f"{op.fold}.hist")
    states = fold_states([op.fold], view, frozenset({"n", "min", "max"}))
    batch = view.frame.parts(Axis.COMPLETION, Axis.STEP).index
    values = np.full((1, 1, len(pieces)), np.nan)
    histograms: dict[tuple[int, int], tuple[Array, Array]] = {}
    for place in range(len(pieces) if counts is not None else 0):
        mine = states.take(np.flatnonzero(piece[batch] == place)).pooled()
        if mine.n[0] > 0:
            parts = counts[piece == place] if counts is not None else ()
            result = op.reduction.sketch(Sketch.merge(parts, float(mine.min[0]), float(mine.max[0])), **dict(op.params))
            if isinstance(result, tuple):
                histograms[0, 0] = result
            else:
                values[0, 0, place] = result
    return settled(op, Cells(values, histograms=histograms), np.zeros(values.shape, bool))


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
