"""Reduces the metrics of a window: metrics whose values fall into the same cells are reduced together, to one state.

``program`` plans how the rows of a state are computed, once per layout of columns. ``outputs`` plans the rows that each
reduction takes, once per layout of members.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from declog.engine import cell_index
from declog.engine.cell_index import NAMELESS, Names, place_key, row_axis
from declog.engine.cells import MetricValues, by_sketch, by_values
from declog.engine.evaluator import View
from declog.engine.layout import recent
from declog.engine.outputs import CHUNK, Outputs, labelled
from declog.engine.partials import Ordered, Row, State, cells_here, members_here, places_of, rows_of, source
from declog.engine.program import FoldProgram, Height, Program
from declog.errors import RuntimeFailure, error_text
from declog.language.moments import ALL, Moments, Stat
from declog.language.segmented import Array, Segments, present
from declog.plans.ops import MetricOp

Outline = tuple[tuple[Row, ...], list[frozenset[Stat]], tuple[Hashable, ...]]
Failed = Callable[[MetricOp, BaseException], None]
Report = Callable[[BaseException], None]
States = Mapping[int, State]  # by the index of a block


class Reductions:
    """Reduces a set of metrics, for any window. ``kept``: states outlive the window, so they have all statistics."""

    def __init__(self, ops: Iterable[MetricOp], *, kept: bool = False) -> None:
        groups: dict[Hashable, list[MetricOp]] = {}
        self._alone: list[MetricOp] = []
        for op in ops:
            if has_state(op):
                limit = None if op.by is None else op.max_labels
                groups.setdefault((op.phase, op.fold is not None, limit, *place_key(op)), []).append(op)
            else:
                self._alone.append(op)
        self._stats: frozenset[Stat] = ALL if kept else frozenset()
        self.blocks = [MetricBlock(group, self._stats) for group in groups.values()]
        self._block_of = {op.key: number for number, block in enumerate(self.blocks) for op in block.ops}
        self._outputs: OrderedDict[Hashable, Outputs] = OrderedDict()

    def by_values(self, views: Mapping[str, View], failed: Failed | None = None, run: Names = NAMELESS) -> MetricValues:
        """The cells of the metrics that have no states; ``run``: the names that labels have over the run.

        A metric that fails is reported and left out.
        """
        results = MetricValues()
        for op in self._alone:
            if op.phase in views:
                with _guarded([op], failed):
                    view = views[op.phase]
                    results[op.key] = by_values(op, view, run) if op.fold is None else by_sketch(op, view)
        return results

    def states(self, views: Mapping[str, View], failed: Failed | None = None) -> dict[int, State]:
        """The states of all other metrics, by block; a metric that fails is reported and left out."""
        return {
            number: state for number, block in enumerate(self.blocks)
            if block.phase in views and (state := self._state(block, views[block.phase], failed)) is not None
        }  # fmt: skip

    def _state(self, block: MetricBlock, view: View, failed: Failed | None) -> State | None:
        try:
            return block.state(view)
        except BaseException:
            if failed is None:
                raise
        working: list[MetricOp] = []
        for ops in block.by_source.values():
            with _guarded(ops, failed):
                MetricBlock(ops, self._stats).state(view)
                working += ops
        return MetricBlock(working, self._stats).state(view) if working else None

    def state_of(self, op: MetricOp, states: States) -> State | None:
        """The state of one metric, taken from its block's."""
        state = states.get(self._block_of.get(op.key, -1))
        rows = None if state is None else state.of(op)
        return rows if rows is not None and rows.rows else None

    def finish(self, states: States, results: MetricValues) -> None:
        """Add the values of all metrics with states; the rarest labels beyond the limit are pooled."""
        alike: dict[tuple[Any, ...], dict[int, State]] = {}
        for number, state in states.items():
            state, rest = labelled(self.blocks[number].ops[0], state)
            alike.setdefault((rest, state.labels, state.missing.shape[1:], "weights" in state.sums), {})[number] = state
        for (rest, *_), parts in alike.items():
            layout = tuple([(number, state.rows, state.never) for number, state in parts.items()])
            blocks = [(self.blocks[number].ops, rows, never) for number, rows, never in layout]
            recent(self._outputs, layout, partial(Outputs, blocks)).finish([*parts.values()], rest, results)


@contextmanager
def _guarded(ops: Sequence[MetricOp], failed: Failed | None) -> Iterator[None]:
    """Report an error for each of the metrics ``ops``; without ``failed`` the error is raised."""
    try:
        yield
    except BaseException as error:
        if failed is None:
            raise
        for op in ops:  # a user's function may raise anything
            failed(op, error)


def failure(what: str, error: BaseException) -> RuntimeFailure:
    """A failure that says what was being evaluated when ``error`` was raised."""
    if isinstance(error, RuntimeFailure):
        failed = RuntimeFailure(error.code, f"{what}: {error.message}", error.fix)
        failed.cause = error.message
        return failed
    text = error_text(error)
    fix = "a reducer gets numpy arrays, [rows] of float64, one per parameter: torch.from_numpy(x) is a tensor of one"
    failed = RuntimeFailure.of("DL605.failed", what=what, error=text, fix=fix if "numpy.ndarray" in text else None)
    failed.__cause__ = error
    return failed


def has_state(op: MetricOp) -> bool:
    """Whether a metric is computed from a state: not a histogram, a function, or one that reduces several columns."""
    ordered = op.reduction.level is not None or op.reduction.name == "last"
    return op.reduction.foldable or (ordered and op.fold is None)


class MetricBlock:
    """Metrics of one phase whose values fall into the same cells: the same labels and pieces of the window.

    For each source, the statistics that its metrics need are computed, and those in ``stats``.
    """

    def __init__(self, ops: Sequence[MetricOp], stats: frozenset[Stat] = frozenset()) -> None:
        self.ops = ops
        first = ops[0]
        self.phase = first.phase
        self._axis = row_axis(first)
        self._folds = first.fold is not None
        self.by_source: dict[Hashable, list[MetricOp]] = {}
        self._stats: dict[Hashable, frozenset[Stat]] = {}
        for op in ops:
            self.by_source.setdefault(source(op), []).append(op)
            taken = self._stats.get(source(op), frozenset() if self._folds else stats)
            self._stats[source(op)] = taken | op.reduction.stats
        self._sources = {name: ops[0] for name, ops in self.by_source.items()}
        self._all: frozenset[Stat] = frozenset().union(*self._stats.values())
        self._pooled = self._all | stats
        self._families = [] if self._folds else [op for op in self._sources.values() if op.family]
        self._shows_empty = bool(stats) or any(op.empty is not None for op in ops)
        self._keeps_never = self._shows_empty or any(op.over_run is not None for op in ops)
        self._by_order = not all(op.reduction.foldable for op in ops)
        self._programs: OrderedDict[Hashable, Any] = OrderedDict()
        self._outlines: OrderedDict[Hashable, Outline] = OrderedDict()

    def state(self, view: View) -> State:
        """The state of a frame's values."""
        first = self.ops[0]
        program = recent(self._programs, view.frame.layout, lambda: self._program(view))
        placed = cell_index.placed(first, view)
        chosen, shape, cells = placed.rows, placed.shape, placed.cells
        weight = None if first.weight is None else np.asarray(view.rows(first.weight, self._axis), np.float64)[chosen]
        weights = ordered = None
        values, heights = program.run(view)
        rows, stats, never = self._outline(view, program, heights)
        if isinstance(values, tuple):
            folds, asked = values[0].take(chosen), values[1]
            moments, weights = (
                (folds.pooled(cells, self._pooled), None) if weight is None else _weighted(folds, weight, cells)
            )
            missing = np.maximum(_added(asked[:, chosen], cells) - moments.n, 0.0) if len(asked) else moments.n
        else:
            matrix = values if isinstance(chosen, slice) else values.take(chosen, 1)  # contiguous rows
            if weight is None:
                moments = _moments(matrix, stats, cells)
            else:
                moments, weights = _weighted(Moments.single(matrix), weight, cells)
            missing = cells.counts - moments.n
            if program.marked and np.count_nonzero(missing):
                missing = self._without_absent(missing, program.marked, rows, view, chosen, cells)
            if stats and self._by_order:
                order = cell_index.latest(view, self._axis)[chosen]
                nothing = np.full((len(rows) - len(matrix), matrix.shape[1]), np.nan)
                ordered = Ordered(np.concatenate([matrix, nothing]), placed.label, placed.piece, order)
        sums = {"missing": missing} if weights is None else {"missing": missing, "weights": weights}
        if len(missing) < len(rows):  # sources that never came
            empty = len(rows) - len(missing), cells.count
            moments = Moments.joined([moments, Moments.empty(empty)])
            sums = {name: np.concatenate([array, np.zeros(empty)]) for name, array in sums.items()}
        sums = {name: array.reshape(len(rows), *shape) for name, array in sums.items()}
        sums["here"] = self._here(view, program, rows, shape)
        counts = np.add.reduce(cells.counts.reshape(shape), 1, np.float64)
        moments = moments.reshape(len(rows), *shape)
        return State(rows, placed.labels, placed.pieces, moments, sums, counts, ordered, never)

    def _program(self, view: View) -> Program | FoldProgram:
        """The program that computes the sources' values from a frame's columns."""
        if self._folds:
            return FoldProgram([(str(op.fold), op.tokens) for op in self._sources.values()], self._all, view.frame)
        nodes = [op.args[0] for op in self._sources.values()]
        return Program(nodes, [*self._stats.values()], self._axis, view)

    def _outline(self, view: View, program: Program | FoldProgram, heights: tuple[Height, ...]) -> Outline:
        """All rows, the statistics that each of them needs, and the sources that never came.

        Sources that never came have rows, the last ones, only in states that are kept, for `empty`, and over the run.
        """

        def make() -> Outline:
            rows: list[Row] = []
            stats: list[frozenset[Stat]] = []
            for name, (height, members) in zip(program.sources, heights, strict=True):
                op = self._sources[name]
                rows += rows_of(op, members if op.family else ())[:height]
                stats += [self._stats[name]] * height
            never = tuple(program.never)
            if self._keeps_never:
                return (*rows, *((name, None) for name in never)), stats, ()
            return tuple(rows), stats, never

        return recent(self._outlines, (view.frame.layout, heights), make)

    def _without_absent(
        self, missing: Array, marked: Collection[Hashable], rows: Sequence[Row], view: View, chosen: Any,
        cells: Segments,
    ) -> Array:  # fmt: skip
        """The counts of missing values without those of rows in which the value is absent."""
        absent = np.zeros((len(missing), view.frame.count(self._axis)))
        for name, places in places_of(rows[: len(missing)]).items():
            if name in marked and missing[places].any():
                absent[places] = view.absent(self._sources[name].args[0], self._axis)
        without: Array = np.maximum(missing - _added(absent[:, chosen], cells), 0.0)
        return without

    def _here(self, view: View, program: Program | FoldProgram, rows: Sequence[Row], shape: tuple[int, int]) -> Array:
        """Whether each cell has rows in each piece; True everywhere without `empty`, unless states are kept."""
        here = np.ones((len(rows), *shape), bool)
        if self._shows_empty:
            if self.ops[0].by is not None:
                here &= cells_here(self.ops[0], view)
            partly = [op for op in self._families if source(op) in program.marked or source(op) in program.never]
            places = places_of(rows) if partly else {}
            for op in partly:
                here[places.get(source(op), [])] &= members_here(op, view)
        return here


def _moments(matrix: Array, stats: Sequence[frozenset[Stat]], cells: Segments) -> Moments:
    """The moments of all rows, computed in chunks that fit into the cache."""
    if not len(matrix):
        return Moments(*[np.zeros((0, cells.count))] * len(ALL))
    step = max(1, CHUNK // max(matrix.shape[1], 1))
    parts = []
    for start in range(0, len(matrix), step):
        some, asked = matrix[start : start + step], frozenset().union(*stats[start : start + step])
        parts.append(Moments.by_segment(some, cells, asked))
    return parts[0] if len(parts) == 1 else Moments.joined(parts)


def _added(values: Array, cells: Segments) -> Array:
    """Sums over the values of each row and cell, ``[k, cells]``, added in order."""
    flat = (cells.count * np.arange(len(values))[:, None] + cells.index).ravel()
    shape = len(values), cells.count
    return np.bincount(flat, values.ravel(), minlength=shape[0] * shape[1]).reshape(shape)


def _weighted(values: Moments, weight: Array, cells: Segments) -> tuple[Moments, Array]:
    """The moments of weighted values in each cell, and the sums of the weights."""
    counted = values.n * present(weight)
    with np.errstate(invalid="ignore"):  # inf times 0
        weights = np.where(counted > 0, counted * weight, 0.0)
        total = np.where(counted > 0, values.total * weight, 0.0)
    return replace(values, n=counted, total=total).pooled(cells), _added(weights, cells)
