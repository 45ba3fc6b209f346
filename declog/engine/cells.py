"""Metrics' values: reductions over a window's rows.

A metric has one value per cell ``[members, labels]``: members of a family, labels of ``by``. It is reduced within
each piece of the window that its ``pool`` names, and the pieces' values are combined. Metrics that reduce the same
rows are reduced together in ``reduce.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from declog.engine import cell_index
from declog.engine.cell_index import Names
from declog.engine.evaluator import View
from declog.engine.partials import Piece, alone, cells_here, fold_moments, members_here, tokens_asked
from declog.language import reductions
from declog.language.absence import either
from declog.language.dtypes import Axis, DType
from declog.language.functions.text import BETWEEN
from declog.language.moments import FORMULAS, Moments, Stat, floats
from declog.language.quantile_sketch import Sketch
from declog.language.segmented import Array, Segments, present, truth
from declog.plans.ops import FormulaOp, MetricOp

WHOLE: tuple[Piece, ...] = ((),)  # the single piece of a window that is not cut


@dataclass
class Cells:
    """A metric's values over a window: ``values[members, labels, pieces]``, NaN where there is none.

    ``kept`` marks each NaN that is a value: all values were missing, or one was under ``nan: propagate``, or the NaN
    comes from infinities. ``infinite`` marks the last kind. ``skipped`` counts the missing values, ``nonfinite`` those
    that made a NaN and the infinite results. A histogram metric has ``histograms`` instead of values: (counts, edges)
    by (member, label). ``pieces`` names each piece by step, batch and rank, as far as the metric distinguishes them.
    """

    values: Array
    members: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    kept: Array | None = None
    infinite: Array | None = None
    skipped: int = 0
    nonfinite: int = 0
    histograms: dict[tuple[int, ...], tuple[Array, Array]] = field(default_factory=dict)
    pieces: tuple[Piece, ...] = WHOLE
    rest: str | None = None  # the label of the pooled rest, chosen so that no other label has it
    # the stacked values of all metrics that were reduced together, and the rows of these cells in them
    block: tuple[ValueBlock, slice] | None = field(default=None, init=False, repr=False)

    @property
    def there(self) -> Array:
        """Bools of the shape of ``values``: whether the cell has a value, which may be NaN."""
        return present(self.values) if self.kept is None else present(self.values) | self.kept

    @property
    def has_values(self) -> bool:
        """Whether any value is not NaN."""
        return bool(present(self.values).any())

    @property
    def counted(self) -> Array:
        """Bools of the shape of ``values``: a number, or a NaN that comes from infinities, not from missing values."""
        return present(self.values) if self.infinite is None else present(self.values) | self.infinite

    @property
    def infinities(self) -> Array:
        """Bools of the shape of ``values``: infinite, or a NaN that comes from infinities."""
        return np.isinf(self.values) if self.infinite is None else np.isinf(self.values) | self.infinite

    def named(self, op: MetricOp | FormulaOp) -> bool:
        """Whether the cells have names. A family without members has none, nor has a metric by label without labels."""
        return bool((self.members or not op.family) and (self.labels or not op.labels))

    def of_labels(self, places: list[int]) -> Cells:
        """The cells of a selection of labels, by position."""
        kept, infinite = (None if marks is None else marks[:, places] for marks in (self.kept, self.infinite))
        labels = tuple(self.labels[position] for position in places)
        return replace(self, values=self.values[:, places], labels=labels, kept=kept, infinite=infinite)

    def of_label(self, name: str) -> Cells | None:
        """The cells of the label that trackers show as ``name``, without labels; None: it did not come."""
        label = self.label_shown(name)
        return None if label is None else replace(self.of_labels([self.labels.index(label)]), labels=(), rest=None)

    def label_shown(self, name: str) -> str | None:
        """The label that trackers show as ``name``; None: it did not come."""
        return next((label for label in self.labels if label.replace(BETWEEN, "/") == name), None)

    def mark(self, kept: Array, infinite: Array) -> None:
        """Set ``kept`` and ``infinite``, and set ``nonfinite`` to the number of kept NaN and infinite values."""
        self.kept, self.infinite = (marks if np.count_nonzero(marks) else None for marks in (kept, infinite))
        self.nonfinite = int(np.count_nonzero(np.isinf(self.values)) + np.count_nonzero(kept))

    def hidden(self) -> Cells:
        """The same pieces without any value."""
        return Cells(np.full((1, 1, self.values.shape[-1]), np.nan), pieces=self.pieces)

    def combined(self, how: str) -> tuple[Array, Array]:
        """The pieces combined to one value per cell, and whether the cell has a value: both ``[members, labels]``."""
        if self.block is None:
            return combined(self.values, self.there, how)
        values, there = self.block[0].combined(how)
        return values[self.block[1]], there[self.block[1]]

    def logged(self, how: str) -> Cells:
        """The same metric with its pieces combined to one value per cell."""
        values, there = (array[..., None] for array in self.combined(how))
        kept, values = there & ~present(values), np.where(there, values, np.nan)
        return Cells(values, self.members, self.labels, kept, skipped=self.skipped, rest=self.rest)


def combined(values: Array, there: Array, how: str) -> tuple[Array, Array]:
    """The values combined over the last axis, and whether each result is there."""
    if values.shape[-1] == 1 and FORMULAS[how].least == 1:  # the variance of one value is absent
        return values[..., 0], there[..., 0]
    if how in ("first", "last"):
        if how == "first":
            values, there = values[..., ::-1], there[..., ::-1]
        position = np.where(there, np.arange(values.shape[-1]), -1).max(-1, initial=-1)
        padded = np.concatenate([values, np.full((*values.shape[:-1], 1), np.nan)], -1)  # position -1 reads this NaN
        return np.take_along_axis(padded, position[..., None], -1)[..., 0], position >= 0
    moments = Moments.of(values, FORMULAS[how].mergeable, there)
    return FORMULAS[how].of(moments), moments.n >= FORMULAS[how].least


class MetricValues(MutableMapping[str, Cells]):
    """The cells of metrics by key.

    ``numbers`` has the metrics that are logged as one finite value, which are most. ``cells`` has all other metrics,
    and also those of ``numbers`` that have several pieces. For a metric without ``cells``, a look-up makes `Cells` of
    its number: ``missing`` counts the values left out, and ``pieces`` names its piece of the window if that has a name.
    """

    def __init__(self) -> None:
        self.numbers: dict[str, float] = {}
        self.missing: dict[str, int] = {}
        self.pieces: dict[str, tuple[Piece, ...]] = {}
        self.cells: dict[str, Cells] = {}

    def __getitem__(self, key: str) -> Cells:
        return self.cells[key] if key in self.cells else self._number(key, self.pieces.get(key, WHOLE))

    def __setitem__(self, key: str, cells: Cells) -> None:
        del self[key]
        self.cells[key] = cells

    def __delitem__(self, key: str) -> None:
        stores: tuple[dict[str, Any], ...] = (self.numbers, self.missing, self.cells)
        for store in stores:
            store.pop(key, None)

    def __contains__(self, key: object) -> bool:
        return key in self.numbers or key in self.cells

    def __iter__(self) -> Iterator[str]:
        return iter({**self.numbers, **self.cells})

    def __len__(self) -> int:
        return len(self.numbers.keys() | self.cells)

    def logged(self, key: str, how: str) -> Cells:
        """A metric with its pieces combined to one value per cell."""
        return self._number(key) if key in self.numbers else self.cells[key].logged(how)

    def _number(self, key: str, pieces: tuple[Piece, ...] = WHOLE) -> Cells:
        return Cells(np.array([[[self.numbers[key]]]]), skipped=self.missing.get(key, 0), pieces=pieces)

    def join(self, other: MetricValues) -> None:
        """Add the values of other metrics."""
        self.numbers |= other.numbers
        self.missing |= other.missing
        self.pieces |= other.pieces
        self.cells |= other.cells

    def add_numbers(self, keys: Sequence[str], values: Array, skipped: Array) -> None:
        """Add the finite values of metrics that have one cell each; ``skipped`` counts what each left out."""
        finite = np.isfinite(values)
        self.numbers.update(zip(itertools.compress(keys, finite.tolist()), values[finite].tolist(), strict=True))
        self.missing.update(
            (keys[position], int(skipped[position])) for position in np.flatnonzero(finite & (skipped > 0)).tolist()
        )

    def skipped(self) -> dict[str, int]:
        """The number of values that each metric left out, for the metrics that did."""
        return self.missing | {key: cells.skipped for key, cells in self.cells.items() if cells.skipped}


class Rules:
    """Applies the keys `nan` and `empty` of several metrics to their stacked values, ``[rows, labels, pieces]``.

    Metric i has ``heights[i]`` rows: one per member of a family, else one.
    """

    def __init__(self, ops: Sequence[MetricOp], members: Sequence[Sequence[str]], heights: Sequence[int]) -> None:
        self._count = len(ops)
        self._op = np.repeat(np.arange(len(ops)), heights)

        def column(values: Iterable[Any]) -> Array:
            return np.array([*values])[self._op][:, None, None]

        self._propagate = column(op.nan == "propagate" for op in ops)
        self._propagates = bool(self._propagate.any())
        of_missing = [op.reduction.of_missing for op in ops]
        self._of_missing = column(np.nan if value is None else value for value in of_missing)
        self._least = column(2 if op.reduction.name in ("std", "var") else 1 for op in ops)
        self._alone = column(alone(op.args) for op in ops)
        # `empty` adds nothing to a total over the run, and a family that never came has no cell to fill
        self._empty = column(
            np.nan if op.empty is None or op.over_run is not None or (op.family and not names) else float(op.empty)
            for op, names in zip(ops, members, strict=True)
        )

    def apply(self, values: Array, missing: Array, n: Array, here: Array, between: Array | None = None) -> ValueBlock:
        """Apply `nan` and `empty` to the values.

        ``missing`` and ``n`` count the missing values and the present ones of each cell. ``here`` marks the pieces in
        which a cell came. ``between`` marks results that are NaN because of infinities; by default these are the NaN of
        cells with enough values. A cell skips its missing values; if all its values are missing it is NaN, not absent.
        `empty` fills cells that came but had no value that counts. Absent members and labels stay absent.
        """
        some_missing, finite = np.count_nonzero(missing) > 0, np.count_nonzero(np.isfinite(values)) == values.size
        none = np.zeros(self._count, np.int64)
        if finite and not (some_missing and self._propagates):  # the usual case: nothing to mark
            return ValueBlock(values, None, None, self._of_ops(missing) if some_missing else none, none, none)
        there, incomplete = present(values), missing > 0
        values = np.where(incomplete & ~there & ~self._propagate, self._of_missing, values)
        shown = incomplete & self._propagate
        infinite = (n >= self._least if between is None else between) & ~there
        there = present(values)
        kept = shown | (incomplete & ~there & ~self._came(n > 0))
        skipped = self._of_ops(missing)
        nonfinite = np.where(self._of_ops(kept) > 0, skipped, 0) + self._of_ops(infinite)
        kept = kept | infinite
        marked = self._of_ops(kept) > 0
        values = np.where(shown, np.nan, np.where(there | kept | ~here, values, self._empty))
        nonfinite = nonfinite + self._of_ops(np.isinf(values))
        return ValueBlock(values, kept, infinite & ~shown, skipped, nonfinite, marked)

    def _came(self, counted: Array) -> Array:
        """Whether any cell of the metric had a value; by member, if the members are observed one by one."""
        by_row: Array = np.asarray(counted.any((1, 2)))
        by_op = np.bincount(self._op, by_row, minlength=self._count)[self._op] > 0
        return np.where(self._alone, by_row[:, None, None], by_op[:, None, None])

    def _of_ops(self, values: Array) -> Array:
        """Sums over the cells of each metric."""
        rows = values.sum((1, 2))
        return np.bincount(self._op, rows, minlength=self._count).astype(np.int64)


@dataclass(frozen=True)
class ValueBlock:
    """The stacked values of several metrics, ``[rows, labels, pieces]``; see `Cells`. Counts are per metric."""

    values: Array
    kept: Array | None
    infinite: Array | None
    skipped: Array
    nonfinite: Array
    marked: Array  # whether any cell of the metric is in ``kept``
    _combined: dict[str, tuple[Array, Array]] = field(default_factory=dict)

    def combined(self, how: str) -> tuple[Array, Array]:
        """All values combined over the pieces, as in `Cells.combined`; cached."""
        if how not in self._combined:
            there = present(self.values)
            self._combined[how] = combined(self.values, there if self.kept is None else there | self.kept, how)
        return self._combined[how]

    def cells(self, index: int, rows: slice, **names: Any) -> Cells:
        """The cells of the metric at an index, which has these rows."""
        cells = Cells(
            self.values[rows], skipped=int(self.skipped[index]), nonfinite=int(self.nonfinite[index]), **names
        )
        if self.marked[index] and self.kept is not None and self.infinite is not None:
            cells.kept, cells.infinite = self.kept[rows], self.infinite[rows]
        cells.block = self, rows
        return cells


def came_at_all(op: MetricOp, counted: Array) -> Array:
    """Whether any cell had a value; by member, if the members are observed one by one."""
    return np.asarray(counted.any((1, 2), keepdims=True) if alone(op.args) else counted.any())


# ---- one metric of the values themselves, by label and piece ---------------------------------------------


class _Result(NamedTuple):
    """The result of a cell, and the number of its values, of its missing values and of its infinite values."""

    value: Any
    n: float
    missing: float
    infinite: int


def _cells(op: MetricOp, results: Iterable[tuple[tuple[int, ...], _Result]], here: Array, **names: Any) -> Cells:
    """The cells of a metric from the result of each; ``here`` marks the pieces in which a cell came."""
    values, n, missing = np.full(here.shape, np.nan), np.zeros(here.shape), np.zeros(here.shape)
    between = np.zeros(here.shape, bool)  # results that are NaN because of infinities
    histograms: dict[tuple[int, ...], tuple[Array, Array]] = {}
    outside = 0  # infinite values, which no bin of a histogram holds
    for at, result in results:
        n[at], missing[at] = result.n, result.missing
        if isinstance(result.value, tuple):
            histograms[at[:2]] = result.value
        else:
            values[at] = result.value
        if op.reduction.histogram:
            outside += result.infinite
        else:
            between[at] = result.infinite and np.isnan(values[at])
    rules = Rules([op], [names.get("members", ())], [len(values)])
    cells = rules.apply(values, missing, n, here, between).cells(0, slice(None), histograms=histograms, **names)
    cells.nonfinite += outside
    return cells


def by_values(op: MetricOp, view: View, run: Names) -> Cells:
    """The cells of a reduction without a mergeable state, which is called with the values of each cell."""
    axis, placed = cell_index.row_axis(op), cell_index.placed(op, view)
    chosen, label = placed.rows, placed.label
    labels: tuple[str, ...] = ()
    rest, came = None, cells_here(op, view)
    if op.family:
        came = came & members_here(op, view)
    if op.by is not None:
        shown = tuple(cell_index.shown(item, op.by.type.dtype) for item in placed.labels)
        names, position = cell_index.named(shown, np.bincount(label, minlength=len(shown)), op.max_labels, run)
        labels, label, rest = names.all, position[label], names.rest
        came = np.swapaxes(Segments(position, len(labels)).apply(np.logical_or, np.swapaxes(came, 1, 2)), 1, 2)
    shape = (len(labels) if op.by is not None else 1, placed.shape[1])
    cell = label * max(shape[1], 1) + placed.piece
    columns = [
        np.atleast_2d(column if position in op.reduction.texts else floats(column))
        for position, column in enumerate(view.counted(node, axis) for node in op.args)
    ]
    members = view.members(op.args[0]) if op.family else ()
    height = max(len(members), 1)
    # values are absent where the signal did not come; they do not count as missing
    nowhere = either(*(view.absent(node, axis) for node in op.args))
    asked = ~np.broadcast_to(nowhere, (height, view.frame.count(axis)))[:, chosen]

    def results() -> Iterator[tuple[tuple[int, ...], _Result]]:
        for member in range(height):
            parts = [column[min(member, len(column) - 1)][chosen] for column in columns]
            ok = np.logical_and.reduce([present(part) for part in parts])
            for index, at in enumerate(itertools.product(*map(range, shape))):
                here = cell == index
                rows = np.flatnonzero(here & ok)
                counted = [part[rows] for part in parts]
                value = reductions.finish(op.reduction, counted, dict(op.params))
                missing = int(np.count_nonzero(here & ~ok & asked[member]))
                infinite = sum(int(np.isinf(part).sum()) for part in counted if part.dtype.kind == "f")
                yield (member, *at), _Result(value, len(counted[0]), missing, infinite)

    here = np.broadcast_to(came, (height, *shape))
    return _cells(op, results(), here, members=members, labels=labels, pieces=placed.pieces, rest=rest)


def by_sketch(op: MetricOp, view: View) -> Cells:
    """The cells of a reduction over tokens that needs histograms, from the merged histograms of each piece."""
    pieces, piece = cell_index.pieces(op, view, Axis.STEP)
    if op.where is not None:  # here it selects whole batches
        piece = np.where(truth(np.array(view.rows(op.where, Axis.STEP))), piece, -1)
    counts = view.frame.column(f"{op.fold}.hist")
    columns: dict[Stat, Array] = {stat: view.frame.floats([f"{op.fold}.{stat}"]) for stat in ("n", "min", "max")}
    states = fold_moments(columns)
    batch = view.frame.parts(Axis.COMPLETION, Axis.STEP).index
    tokens = tokens_asked(*view.frame.floats([f"{op.fold}.n", f"{op.tokens}.n"]))

    def results() -> Iterator[tuple[tuple[int, ...], _Result]]:
        for position in range(len(pieces)):
            here = np.flatnonzero(piece[batch] == position)
            pooled = states.take(here).pooled()
            value, n, infinite = np.nan, float(pooled.n[0]), 0
            if n > 0:
                assert counts is not None and op.reduction.sketch is not None
                parts, low, high = counts[piece == position], float(pooled.min[0]), float(pooled.max[0])
                sketch = Sketch.merge(parts, low, high, integers=op.dtype is not DType.FLOAT)
                value, infinite = op.reduction.sketch(sketch, **dict(op.params)), sketch.infinite
            yield (0, 0, position), _Result(value, n, max(tokens[here].sum() - n, 0.0), infinite)

    return _cells(op, results(), np.ones((1, 1, len(pieces)), bool), pieces=pieces)
