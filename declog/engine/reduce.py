"""The metrics of a window: those whose values are in the same cells are reduced together, from one state.

How the rows are made is planned once for each layout of columns, and what each reduction takes of them once for each
layout of members. Imports no torch.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.engine import cell_index
from declog.engine.cell_index import NAMELESS, Names, place_key, row_axis
from declog.engine.cells import Cells, Found, Rules, by_sketch, by_values
from declog.engine.evaluator import View
from declog.engine.partials import (
    Ordered,
    Row,
    State,
    cells_here,
    members_here,
    rows_of,
    source,
)
from declog.engine.program import FoldProgram, Program, recent, together
from declog.language.moments import ALL, Moments, Stat
from declog.language.reductions import Reduction, quantiles
from declog.language.segmented import Segments, present
from declog.plans.ops import MetricOp

Array = NDArray[Any]
CHUNK = 2**15  # values that are reduced at once: 256 KiB stay in a core's cache


class Reductions:
    """How to reduce some metrics, for any window."""

    def __init__(self, ops: Iterable[MetricOp]) -> None:
        ops = list(ops)
        self._blocks = blocks(ops)
        self._alone = [op for op in ops if not has_state(op)]

    def run(self, views: Mapping[str, View]) -> Found:
        """The cells of every metric whose phase has a view."""
        found = Found()
        for op in self._alone:
            if op.phase in views:
                found[op.key] = _by_itself(op, views[op.phase], NAMELESS)
        for block in self._blocks:
            if block.phase in views:
                block.finish(block.state(views[block.phase]), found)
        return found


def has_state(op: MetricOp) -> bool:
    """Whether a metric is finished from a state: not one of several columns, a histogram, or a user's reduction."""
    ordered = op.reduction.level is not None or op.reduction.name == "last"
    return op.reduction.foldable or (ordered and op.fold is None)


def blocks(ops: Iterable[MetricOp], *, kept: bool = False) -> list[Block]:
    """The blocks of the metrics that are finished from states; ``kept``: a checkpoint may hold their states."""
    groups: dict[Hashable, list[MetricOp]] = {}
    for op in ops:
        if has_state(op):
            limit = None if op.by is None else op.max_labels
            groups.setdefault((op.phase, op.fold is not None, limit, *place_key(op)), []).append(op)
    return [Block(group, ALL if kept else frozenset()) for group in groups.values()]


def reduce_one(op: MetricOp, view: View, run: Names = NAMELESS) -> Cells:
    """The cells of one metric, by label and piece; ``run``: the names that labels have over the run."""
    if not has_state(op):
        return _by_itself(op, view, run)
    block, found = Block([op]), Found()
    block.finish(block.state(view), found, run)
    return found[op.key]


def _by_itself(op: MetricOp, view: View, run: Names) -> Cells:
    return by_values(op, view, run) if op.fold is None else by_sketch(op, view)


def labelled(op: MetricOp, state: State, run: Names = NAMELESS) -> tuple[State, str | None]:
    """A state by the names of its labels, of which those beyond the limit are pooled, and the name of these."""
    if op.by is None:
        return state, None
    labels = tuple(cell_index.shown(item, op.by.type.dtype) for item in state.labels)
    names, place = cell_index.named(labels, state.counts, op.max_labels, run)
    return replace(state, labels=labels) if names.rest is None else state.pooled(names.all, place), names.rest


def cells_of(op: MetricOp, state: State, rest: str | None, ever: Array | None = None) -> Cells:
    """The cells of a metric from its state whose labels are names.

    ``ever`` is how many values were missing up to now, where the state goes on: a count of nothing else stays 0.
    """
    found = Found()
    _Outputs([op], state.rows).finish(state, rest, found, {})
    cells = found[op.key]
    if ever is not None and op.reduction.of_missing is not None and op.nan != "propagate":
        values = np.where((ever > 0) & ~present(cells.values), op.reduction.of_missing, cells.values)
        return replace(cells, values=values)
    return cells


class Block:
    """Metrics of one phase whose values are in the same cells: by labels, and by pieces of the window.

    Of each source those statistics are computed that its metrics take, and those of ``stats``.
    """

    def __init__(self, ops: Sequence[MetricOp], stats: frozenset[Stat] = frozenset()) -> None:
        self.ops = ops
        first = ops[0]
        self.phase = first.phase
        self._axis = row_axis(first)
        self._folds = first.fold is not None
        self._sources: dict[Hashable, MetricOp] = {}
        self._stats: dict[Hashable, frozenset[Stat]] = {}
        for op in ops:
            self._sources.setdefault(source(op), op)
            taken = self._stats.get(source(op), frozenset() if self._folds else stats)
            self._stats[source(op)] = taken | op.reduction.stats
        self._all: frozenset[Stat] = frozenset().union(*self._stats.values())
        self._families = [] if self._folds else [op for op in self._sources.values() if op.family]
        self._levels = sorted({op.reduction.level for op in ops if op.reduction.level is not None})
        self._shows_empty = bool(stats) or any(op.empty is not None for op in ops)
        self._last = any(op.reduction.name == "last" for op in ops)
        self._programs: OrderedDict[Hashable, Any] = OrderedDict()
        self._outputs: OrderedDict[Hashable, _Outputs] = OrderedDict()

    def state(self, view: View) -> State:
        """The state of one frame's values."""
        first = self.ops[0]
        placed = cell_index.placed(first, view)
        shape = (len(placed.labels) if first.by is not None else 1, len(placed.pieces))
        count = shape[0] * shape[1]
        cells = None if shape == (1, 1) else Segments(placed.label * max(shape[1], 1) + placed.piece, count)
        every = first.by is None and len(placed.rows) == view.frame.count(self._axis)  # then they are in order
        chosen = slice(None) if every else placed.rows
        weight = None if first.weight is None else np.asarray(view.rows(first.weight, self._axis), np.float64)[chosen]
        weights = ordered = None
        program = recent(self._programs, view.frame.layout, lambda: self._program(view))
        if self._folds:
            folds, asked = program.run(view)
            rows, _ = program.outline((), self._rows)
            folds = folds.take(chosen)
            moments, weights = (_pooled(folds, cells), None) if weight is None else _weighted(folds, weight, cells)
            lacking = np.maximum(_added(asked[:, chosen], cells) - moments.n, 0.0) if len(asked) else moments.n
        else:
            matrix, computed = program.run(view)
            rows, stats = program.outline(computed, self._rows)
            matrix = matrix if every else matrix.take(placed.rows, 1)  # its rows side by side in memory
            if weight is None:
                moments = _moments(matrix, stats, cells)
            else:
                moments, weights = _weighted(Moments.single(matrix), weight, cells)
            sizes = len(placed.rows) if cells is None else cells.counts
            lacking = sizes - moments.n.reshape(len(matrix), count)
            if program.marked and lacking.any():
                lacking = self._without_absent(lacking, program.marked, rows, view, chosen, cells)
            if self._levels or self._last:
                order = cell_index.latest(view, self._axis)[chosen]
                nothing = np.full((len(rows) - len(matrix), matrix.shape[1]), np.nan)
                ordered = Ordered(np.concatenate([matrix, nothing]), placed.label, placed.piece, order)
        never = len(rows) - len(lacking)

        def laid_out(array: Array, neutral: float = 0.0) -> Array:
            array = array.reshape(len(rows) - never, count)
            array = np.concatenate([array, np.full((never, count), neutral)]) if never else array
            return array.reshape(len(rows), *shape)

        return State(
            rows, placed.labels, placed.pieces, moments.map(laid_out), laid_out(lacking),
            np.bincount(placed.label, minlength=shape[0]).astype(np.float64),
            self._here(view, program, rows, shape), None if weights is None else laid_out(weights), ordered,
        )  # fmt: skip

    def finish(self, state: State, found: Found, run: Names = NAMELESS) -> None:
        """Add the cells of these metrics; of labels beyond the limit the rare ones are pooled."""
        outputs = recent(self._outputs, state.rows, lambda: _Outputs(self.ops, state.rows))
        state, rest = labelled(self.ops[0], state, run)
        picked = {} if state.ordered is None else _picked(state, state.ordered, self._levels, self._last)
        outputs.finish(state, rest, found, picked)

    def _program(self, view: View) -> Program | FoldProgram:
        """How the values of the sources are made for the columns of a frame."""
        if self._folds:
            return FoldProgram([(str(op.fold), op.tokens) for op in self._sources.values()], self._all, view.frame)
        nodes = [op.args[0] for op in self._sources.values()]
        return Program(nodes, [*self._stats.values()], self._axis, view)

    def _rows(
        self, sources: Sequence[Hashable], heights: Sequence[int], members: Sequence[tuple[str, ...]]
    ) -> tuple[tuple[Row, ...], list[frozenset[Stat]]]:
        """The rows of sources, by how many each has and the members of families, and the statistics of each row."""
        rows: list[Row] = []
        stats: list[frozenset[Stat]] = []
        for name, height, names in zip(sources, heights, members, strict=True):
            op = self._sources[name]
            rows += rows_of(op, names if op.family else ())[:height]
            stats += [self._stats[name]] * height
        return tuple(rows), stats

    def _without_absent(
        self, lacking: Array, marked: Collection[Hashable], rows: Sequence[Row], view: View, chosen: Any,
        cells: Segments | None,
    ) -> Array:  # fmt: skip
        """How many values are missing, of those that are no values: not those that did not come."""
        gone = np.zeros((len(lacking), view.frame.count(self._axis)))
        for name, places in _places(rows[: len(lacking)]).items():
            if name in marked:
                gone[places] = view.lost(self._sources[name].args[0], self._axis)
        lacking = lacking - _added(gone[:, chosen], cells)
        return np.maximum(lacking, 0.0)

    def _here(self, view: View, program: Program | FoldProgram, rows: Sequence[Row], shape: tuple[int, int]) -> Array:
        """In which pieces each cell came; all, where no metric tells by `empty` that it came without a value."""
        if not self._shows_empty:
            return np.ones((len(rows), *shape), bool)
        here = np.broadcast_to(cells_here(self.ops[0], view), (len(rows), *shape))
        partly = [op for op in self._families if source(op) in program.marked or source(op) in program.never]
        if partly:
            here, places = here.copy(), _places(rows)
            for op in partly:
                here[places.get(source(op), [])] &= members_here(op, view)
        return here


class _Outputs:
    """What the metrics of a block take of the rows of a state: those that are numbers come first; by reduction."""

    def __init__(self, ops: Sequence[MetricOp], rows: Sequence[Row]) -> None:
        places = _places(rows)
        self._ops = sorted(
            (op for op in ops if source(op) in places),
            key=lambda op: (not _is_number(op), op.reduction.name, places[source(op)]),
        )
        mine = [places[source(op)] for op in self._ops]
        self._spans = list(itertools.pairwise(itertools.accumulate(map(len, mine), initial=0)))
        self._reductions: list[tuple[Reduction, Any, slice]] = []
        kinds = [(_is_number(op), op.reduction.name) for op in self._ops]
        for _, group in itertools.groupby(range(len(mine)), kinds.__getitem__):
            some = [*group]
            taken = together([place for at in some for place in mine[at]])
            span = slice(self._spans[some[0]][0], self._spans[some[-1]][1])
            self._reductions.append((self._ops[some[0]].reduction, taken, span))
        self._index = together([place for each in mine for place in each])
        self._count = sum(map(len, mine))
        members = [[member for place in each if (member := rows[place][1]) is not None] for each in mine]
        self._members = [tuple(each) if op.family else () for op, each in zip(self._ops, members, strict=True)]
        self._rules = Rules(self._ops, self._members, [len(each) for each in mine])
        self._keys = [op.key for op in self._ops if _is_number(op)]

    def finish(self, state: State, rest: str | None, found: Found, picked: Mapping[float | None, Array]) -> None:
        """Add the cells of these metrics; ``picked`` are the values of all rows that their order decides."""
        values = np.empty((self._count, *state.lacking.shape[1:]))
        for reduction, index, span in self._reductions:
            if not reduction.foldable:
                values[span] = picked[reduction.level][index]
            else:
                values[span] = reduction.run(state.moments, index, state.even)
            if state.weights is not None and reduction.name == "mean":  # of no weight in all NaN, though values count
                weights = state.weights[index]
                with np.errstate(invalid="ignore"):
                    shares = state.moments.total[index] / (weights + (weights == 0))
                values[span] = np.where(weights == 0, np.nan, shares)
        one = values.shape[1:] == (1, 1) and not state.labels
        keys = self._keys if one else []
        if len(keys) == self._count and state.whole and np.isfinite(values).all():  # most metrics
            found.add_whole(keys, values.ravel().tolist(), state.pieces)
            return
        index = self._index
        settled = self._rules.settled(values, state.lacking[index], state.moments.n[index], state.here[index])
        if one:
            found.add_numbers(keys, settled.values[: len(keys), 0, 0], settled.skipped[: len(keys)], state.pieces)
        labels = tuple(map(str, state.labels))
        for place, (op, (start, end)) in enumerate(zip(self._ops, self._spans, strict=True)):
            if op.key not in found.numbers:
                found[op.key] = settled.cells(
                    place, slice(start, end), members=self._members[place], labels=labels, pieces=state.pieces,
                    rest=rest,
                )  # fmt: skip


def _is_number(op: MetricOp) -> bool:
    """Whether a value of the only cell of a window is all that a metric has: a variance of one piece is absent."""
    return not op.family and op.combine != "var"


def _moments(matrix: Array, stats: Sequence[frozenset[Stat]], cells: Segments | None) -> Moments:
    """The moments of all rows, some of them at a time."""
    if not len(matrix):
        return Moments.empty((0, 1 if cells is None else cells.count))
    step = max(1, CHUNK // max(matrix.shape[1], 1))
    parts = []
    for start in range(0, len(matrix), step):
        some, asked = matrix[start : start + step], frozenset().union(*stats[start : start + step])
        parts.append(Moments.of(some, asked) if cells is None else Moments.by_segment(some, cells, asked))
    return parts[0] if len(parts) == 1 else Moments.joined(parts)


def _picked(state: State, ordered: Ordered, levels: Sequence[float], last: bool) -> dict[float | None, Array]:
    """By level the quantiles, and by None the last values of all rows, ``[rows, labels, pieces]``."""
    shape = state.lacking.shape
    picked: dict[float | None, Array] = {
        level: np.full(shape, np.nan) for level in (*levels, *([None] if last else []))
    }
    for label, piece in itertools.product(range(shape[1]), range(shape[2])):
        mine: Any = slice(None)
        if shape[1:] != (1, 1):
            mine = np.flatnonzero((ordered.label == label) & (ordered.piece == piece))
        values = ordered.values[:, mine]
        if levels:
            step = max(1, CHUNK // max(values.shape[1], 1))
            for start in range(0, len(values), step):
                some = quantiles(values[start : start + step], levels)
                for level, row in zip(levels, some, strict=True):
                    picked[level][start : start + step, label, piece] = row
        if last and values.shape[1]:
            back = values[:, np.argsort(ordered.order[mine], kind="stable")[::-1]]
            latest = (back == back).argmax(1)  # of no value the first, which is none
            picked[None][:, label, piece] = back[np.arange(len(back)), latest]
    return picked


def _places(rows: Sequence[Row]) -> dict[Hashable, list[int]]:
    """Where the rows of each source stand."""
    places: dict[Hashable, list[int]] = {}
    for place, (of, _) in enumerate(rows):
        places.setdefault(of, []).append(place)
    return places


def _added(values: Array, cells: Segments | None) -> Array:
    """Sums over all values of a row, ``[k, 1]``, or over those of each cell, ``[k, cells]``, in their order."""
    count = 1 if cells is None else cells.count
    index = count * np.arange(len(values))[:, None] + (0 if cells is None else cells.index)
    flat = np.broadcast_to(index, values.shape).ravel()
    return np.bincount(flat, values.ravel(), minlength=len(values) * count).reshape(len(values), count)


def _weighted(values: Moments, weight: Array, cells: Segments | None) -> tuple[Moments, Array]:
    """Moments of each cell whose sums are of weighted values, and the sums of the weights."""
    counted = values.n * present(weight)
    with np.errstate(invalid="ignore"):  # inf times 0
        weights = np.where(counted > 0, counted * weight, 0.0)
        total = np.where(counted > 0, values.total * weight, 0.0)
    return _pooled(replace(values, n=counted, total=total), cells), _added(weights, cells)


def _pooled(values: Moments, cells: Segments | None) -> Moments:
    """Moments of each cell, ``[k, cells]``."""
    return values.pooled(Segments(np.zeros(values.n.shape[-1], np.int64), 1) if cells is None else cells)
