"""Metrics' values: reductions over a window's rows.

A metric has one value per cell: ``[members, labels]``, of a family and of ``by``. It is reduced over the
pieces that its ``pool`` names and combined over them. Metrics that reduce the same rows are reduced in
``reduce.py``. Imports no torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.engine import cell_index
from declog.engine.cell_index import NAMELESS, Names
from declog.engine.evaluator import View
from declog.engine.partials import Piece, State, alone, fold_states, here, known_tokens, state_of
from declog.language import reductions
from declog.language.absence import either
from declog.language.dtypes import Axis
from declog.language.moments import FORMULAS, Moments
from declog.language.quantile_sketch import Sketch
from declog.language.segmented import present
from declog.plans.ops import MetricOp

Array = NDArray[Any]
WHOLE: tuple[Piece, ...] = ((),)  # the only piece of a window that is not cut


@dataclass
class Cells:
    """A metric's values over a window: ``values[members, labels, pieces]``, NaN for none.

    ``kept`` marks a NaN that is a value: of nothing but missing values, or under ``nan: propagate``, or of infinities,
    which ``infinite`` marks, too. ``skipped`` counts missing values, ``broken`` those that made a NaN, and the values
    that are infinite. ``histograms`` holds
    (counts, edges) instead, by (member, label). ``pieces`` names each piece: by step, batch and rank, as far as `pool`
    distinguishes them.
    """

    values: Array
    members: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    kept: Array | None = None
    infinite: Array | None = None
    skipped: int = 0
    broken: int = 0
    histograms: dict[tuple[int, int], tuple[Array, Array]] = field(default_factory=dict)
    pieces: tuple[Piece, ...] = WHOLE
    rest: str | None = None  # the label of the pooled rest, which is another one for other labels

    @property
    def there(self) -> Array:
        """Which values there are, of the shape of ``values``."""
        return present(self.values) if self.kept is None else present(self.values) | self.kept

    @property
    def counted(self) -> Array:
        """Which values come of values that were there: all but those that are NaN for a missing one."""
        return present(self.values) if self.infinite is None else present(self.values) | self.infinite

    @property
    def infinities(self) -> Array:
        """Which values are infinite, or NaN of infinities."""
        return np.isinf(self.values) if self.infinite is None else np.isinf(self.values) | self.infinite

    def of_labels(self, places: list[int]) -> Cells:
        """Those of some labels."""
        kept, infinite = (None if marks is None else marks[:, places] for marks in (self.kept, self.infinite))
        labels = tuple(self.labels[place] for place in places)
        return replace(self, values=self.values[:, places], labels=labels, kept=kept, infinite=infinite)

    def hidden(self) -> Cells:
        """The same pieces without any value."""
        return Cells(np.full((1, 1, self.values.shape[-1]), np.nan), pieces=self.pieces)

    def combined(self, how: str) -> tuple[Array, Array]:
        """One value per cell over the pieces, and which of them there are: both ``[members, labels]``."""
        values, there = self.values, self.there
        if values.shape[-1] == 1 and how != "var":  # the variance of one value is absent
            return values[..., 0], there[..., 0]
        if how == "last":
            place = np.where(there, np.arange(values.shape[-1]), -1).max(-1, initial=-1)
            padded = np.concatenate([values, np.full((*values.shape[:-1], 1), np.nan)], -1)  # -1: there is none
            return np.take_along_axis(padded, place[..., None], -1)[..., 0], place >= 0
        found = Moments.of(values, there=there)
        return FORMULAS[how].of(found), found.n > (1 if how == "var" else 0)


class Found(MutableMapping[str, Cells]):
    """Metrics' cells by key. Of most there is one finite value, kept as a number until somebody asks for its cells."""

    def __init__(self) -> None:
        self.numbers: dict[str, float] = {}
        self.cells: dict[str, Cells] = {}

    def __getitem__(self, key: str) -> Cells:
        found = self.cells.get(key)
        return Cells(np.full((1, 1, 1), self.numbers[key])) if found is None else found

    def __setitem__(self, key: str, cells: Cells) -> None:
        self.numbers.pop(key, None)
        self.cells[key] = cells

    def __delitem__(self, key: str) -> None:
        del (self.cells if key in self.cells else self.numbers)[key]

    def __contains__(self, key: object) -> bool:
        return key in self.numbers or key in self.cells

    def __iter__(self) -> Iterator[str]:
        return itertools.chain(self.numbers, self.cells)

    def __len__(self) -> int:
        return len(self.numbers) + len(self.cells)

    def join(self, other: Found) -> None:
        """Add what other metrics have."""
        self.numbers |= other.numbers
        self.cells |= other.cells


def settled(op: MetricOp, cells: Cells, missing: Array, counted: Array, infinite: Array, came: Array) -> Cells:
    """The cells, with what `nan` and `empty` say about missing values; ``infinite`` is NaN of infinities.

    What is missing here and there may be left out. Where nothing else came it is NaN, and not absent. `empty` is for
    cells in pieces in which they ``came`` and nothing counted: an absent member or label is left out. ``counted``:
    where a value came; of a single one a deviation is absent.
    """
    there = present(cells.values)
    if op.reduction.of_missing is not None and op.nan != "propagate":
        cells.values = np.where(missing & ~there, op.reduction.of_missing, cells.values)
        there = present(cells.values)
    if op.nan == "propagate":
        kept = missing
        cells.values = np.where(missing, np.nan, cells.values)
    else:
        kept = missing & ~there & ~came_at_all(op, counted)
    broken = int(cells.skipped) if kept.any() else 0
    if infinite.any():
        kept = kept | infinite
        cells.infinite = infinite & ~missing if op.nan == "propagate" else infinite
        broken += int(infinite.sum())
    if op.empty is not None and op.over_run is None and (cells.members or not op.family):
        # a total is not added to by what did not count, and a family that never came has no cell
        cells.values = np.where(there | kept | ~came, cells.values, op.empty)
    if kept.any():
        cells.kept = kept
    cells.broken = broken + int(np.isinf(cells.values).sum())
    return cells


def came_at_all(op: MetricOp, counted: Array) -> Array:
    """Whether a value came in any cell, of members that come each for itself by member: else what is missing is NaN."""
    return np.asarray(counted.any((1, 2), keepdims=True) if alone(op.args) else counted.any())


def enough(op: MetricOp, counted: Array) -> Array:
    """Where so much counted that there is a value, be it NaN."""
    return counted > (1 if op.reduction.name in ("std", "var") else 0)


# ---- one metric, by label and piece ----------------------------------------------------------------------


def reduce_one(op: MetricOp, view: View, run: Names = NAMELESS) -> Cells:
    """The cells of one metric, by label and piece; ``run``: the names that labels have over the run."""
    if op.reduction.foldable:
        return finished(op, state_of(op, view))
    return _by_values(op, view, run) if op.fold is None else _by_sketch(op, view)


def finished(op: MetricOp, state: State) -> Cells:
    """The cells of a metric from its state; rare labels beyond the limit are pooled."""
    return cells_of(op, *labelled(op, state))


def labelled(op: MetricOp, state: State, run: Names = NAMELESS) -> tuple[State, str | None]:
    """A state by the names of its labels, of which those beyond the limit are pooled, and the name of these."""
    if op.by is None:
        return state, None
    labels = tuple(cell_index.shown(item, op.by.type.dtype) for item in state.labels)
    names, place = cell_index.named(labels, state.rows, op.max_labels, run)
    return replace(state, labels=labels) if names.rest is None else state.pooled(names.all, place), names.rest


def cells_of(op: MetricOp, state: State, rest: str | None, ever: Array | None = None) -> Cells:
    """The cells of a metric from a state whose labels are names.

    ``ever`` is how many values were missing up to now, where the state goes on: a count of nothing else stays 0.
    """
    moments = state.moments
    lacking = state.lacking
    result = np.asarray(op.reduction.run(moments), np.float64)
    if state.weights is not None and op.reduction.name == "mean":  # of no weight in all NaN, though rows count
        with np.errstate(invalid="ignore"):
            result = np.where(state.weights == 0, np.nan, moments.total / (state.weights + (state.weights == 0)))
    names = tuple(map(str, state.labels))
    cells = Cells(result, state.members, names, skipped=int(lacking.sum()), pieces=state.pieces, rest=rest)
    cells = settled(op, cells, lacking > 0, moments.n > 0, enough(op, moments.n) & np.isnan(result), state.here)
    if ever is not None and op.reduction.of_missing is not None and op.nan != "propagate":
        cells.values = np.where((ever > 0) & ~present(cells.values), op.reduction.of_missing, cells.values)
    return cells


def _by_values(op: MetricOp, view: View, run: Names) -> Cells:
    """A reduction that needs the values themselves, cell by cell."""
    axis, placed = cell_index.row_axis(op), cell_index.placed(op, view)
    chosen, label = placed.rows, placed.label
    labels: tuple[str, ...] = ()
    rest, came = None, here(op, view)
    if op.by is not None:
        shown = tuple(cell_index.shown(item, op.by.type.dtype) for item in placed.labels)
        names, place = cell_index.named(shown, np.bincount(label, minlength=len(shown)), op.max_labels, run)
        labels, label, rest = names.all, place[label], names.rest
        of_labels, came = came, np.zeros((len(came), len(labels), len(placed.pieces)), bool)
        for raw, at in enumerate(place.tolist()):
            came[:, at] |= of_labels[:, raw]
    shape = (len(labels) if op.by is not None else 1, len(placed.pieces))
    cell = label * max(shape[1], 1) + placed.piece
    columns = [np.asarray(view.judged(node, axis)) for node in op.args]
    columns = [
        column
        if place in op.reduction.texts or (column.dtype.kind in "fiu" and op.reduction.keeps_dtype)
        else column.astype(np.float64)
        for place, column in enumerate(columns)
    ]
    columns = [column[None] if column.ndim == 1 else column for column in columns]
    members = view.members(op.args[0]) if op.family else ()
    height = max(len(members), 1)
    values = np.full((height, *shape), np.nan)
    missing, counted = np.zeros((height, *shape), bool), np.zeros((height, *shape), bool)
    histograms: dict[tuple[int, int], tuple[Array, Array]] = {}
    order = cell_index.latest(view, axis) if op.reduction.ordered else None
    gone = either(*(view.lost(node, axis) for node in op.args))  # of what did not come nothing is missing: it is absent
    asked = ~np.broadcast_to(gone, (height, view.frame.count(axis)))[:, chosen]
    between = np.zeros(missing.shape, bool)  # NaN, of infinities
    skipped, outside = 0, 0  # infinities are outside of all bins
    for member in range(height):
        parts = [column[min(member, len(column) - 1)][chosen] for column in columns]
        ok = np.logical_and.reduce([present(part) for part in parts])
        lacking = ~ok & asked[member]
        skipped += int(lacking.sum())
        for index in range(shape[0] * shape[1]):
            mine = cell == index
            rows = np.flatnonzero(mine & ok)
            at = divmod(index, max(shape[1], 1))
            missing[(member, *at)] = bool((mine & lacking).any())
            counted[(member, *at)] = bool(len(rows))
            if order is not None:
                rows = rows[np.argsort(order[chosen[rows]], kind="stable")]
            result = reductions.finish(op.reduction, [part[rows] for part in parts], dict(op.params))
            odd = sum(int(np.isinf(part[rows]).sum()) for part in parts if part.dtype.kind == "f")
            if isinstance(result, tuple):
                histograms[member, at[0]] = result
            else:
                values[(member, *at)] = result
            if op.reduction.histogram:
                outside += odd
            elif odd and result != result:
                between[(member, *at)] = True
    cells = Cells(values, members, labels, skipped=skipped, histograms=histograms, pieces=placed.pieces, rest=rest)
    made = settled(op, cells, missing, counted, between, np.broadcast_to(came, values.shape))
    made.broken += outside
    return made


def _by_sketch(op: MetricOp, view: View) -> Cells:
    """A reduction over tokens that needs more than moments: of the histograms of the batches in each piece."""
    assert op.fold is not None and op.reduction.sketch is not None
    pieces, piece = cell_index.pieces(op, view, Axis.STEP)
    counts = view.frame.column(f"{op.fold}.hist")
    states = fold_states([op.fold], view, frozenset({"n", "min", "max"}))
    batch = view.frame.parts(Axis.COMPLETION, Axis.STEP).index
    tokens = known_tokens(op, view)
    values = np.full((1, 1, len(pieces)), np.nan)
    found, sought, outside = np.zeros(values.shape), np.zeros(values.shape), 0
    histograms: dict[tuple[int, int], tuple[Array, Array]] = {}
    for place in range(len(pieces) if counts is not None else 0):
        here = np.flatnonzero(piece[batch] == place)
        mine = states.take(here).pooled()
        found[0, 0, place], sought[0, 0, place] = mine.n[0], 0 if tokens is None else tokens[here].sum()
        if mine.n[0] > 0:
            parts = counts[piece == place] if counts is not None else ()
            sketch = Sketch.merge(parts, float(mine.min[0]), float(mine.max[0]))
            result = op.reduction.sketch(sketch, **dict(op.params))
            outside += sketch.infinite if op.reduction.histogram else 0
            if isinstance(result, tuple):
                histograms[0, 0] = result
            else:
                values[0, 0, place] = result
    missing = np.maximum(sought - found, 0)
    cells = Cells(values, skipped=int(missing.sum()), histograms=histograms, pieces=tuple(pieces))
    between = (found > 0) & np.isnan(values) & (op.reduction.level is not None)
    made = settled(op, cells, missing > 0, found > 0, between, np.ones(values.shape, bool))
    made.broken += outside
    return made
