"""The metrics of a window: those whose values are in the same cells are reduced together, from one state.

Which values share a row, and what each reduction takes of the rows, is found once for each layout of members. Imports
no torch.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from declog.engine import cell_index
from declog.engine.cell_index import NAMELESS, Names, place_key, row_axis
from declog.engine.cells import WHOLE, Cells, Found, Rules, by_sketch, by_values
from declog.engine.evaluator import View, alike
from declog.engine.partials import (
    Ordered,
    Row,
    State,
    cells_here,
    fold_states,
    members_here,
    requested_tokens,
    rows_of,
    source,
)
from declog.language.dtypes import Axis
from declog.language.moments import ALL, Moments, Stat
from declog.language.nodes import Node
from declog.language.reductions import quantiles
from declog.language.segmented import Segments, present
from declog.plans.ops import MetricOp

Array = NDArray[Any]
CHUNK = 2**15  # values that are reduced at once: 256 KiB stay in a core's cache
LAYOUTS = 32  # that are kept
_T = TypeVar("_T")


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
    _Part([op], state.rows).finish(state, rest, found, {})
    cells = found[op.key]
    if ever is not None and op.reduction.of_missing is not None and op.nan != "propagate":
        cells.values = np.where((ever > 0) & ~present(cells.values), op.reduction.of_missing, cells.values)
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
        sources: dict[Hashable, MetricOp] = {}
        taken: dict[Hashable, frozenset[Stat]] = {}
        for op in ops:
            sources.setdefault(source(op), op)
            taken[source(op)] = taken.get(source(op), frozenset() if self._folds else stats) | op.reduction.stats
        if not self._folds:  # those of which the same is asked side by side
            sources = dict(sorted(sources.items(), key=lambda item: (sorted(taken[item[0]]), item[1].args[0].index)))
        self._sources = list(sources.values())
        self._nodes: list[Node] = [] if self._folds else [op.args[0] for op in self._sources]
        self._stats = [taken[name] for name in sources]
        self._all: frozenset[Stat] = frozenset().union(*self._stats)
        self._alike = alike(self._nodes)
        self._families = [op for op in self._sources if op.family and not self._folds]
        self._levels = sorted({op.reduction.level for op in ops if op.reduction.level is not None})
        self._last = any(op.reduction.name == "last" for op in ops)
        self._rows: OrderedDict[Hashable, tuple[Row, ...]] = OrderedDict()
        self._parts: OrderedDict[Hashable, list[_Part]] = OrderedDict()

    def state(self, view: View) -> State:
        """The state of one frame's values."""
        first = self.ops[0]
        placed = cell_index.placed(first, view)
        shape = (len(placed.labels) if first.by is not None else 1, len(placed.pieces))
        cells = (
            None if shape == (1, 1) else Segments(placed.label * max(shape[1], 1) + placed.piece, shape[0] * shape[1])
        )
        every = first.by is None and len(placed.rows) == view.frame.count(self._axis)  # then they are in order
        chosen = slice(None) if every else placed.rows
        weight = None if first.weight is None else np.asarray(view.rows(first.weight, self._axis), np.float64)[chosen]
        weights = ordered = None
        if self._folds:
            folds = fold_states([str(op.fold) for op in self._sources], view, self._all).take(chosen)
            if weight is None:
                moments = _pooled(folds, cells)
            else:
                moments, weights = _weighted(folds, weight, cells)
            asked = self._asked_tokens(view)[:, chosen]
            lacking = np.maximum(_added(asked, cells) - moments.n, 0.0)
            rows = self._layout((), [1] * len(self._sources), [])
        else:
            view.take_alike(self._alike)
            matrix, heights = view.matrix(self._nodes, self._axis)
            matrix = matrix if every else matrix.take(placed.rows, 1)  # its rows side by side in memory
            if weight is None:
                moments = self._moments(matrix, heights, cells)
            else:
                moments, weights = _weighted(Moments.single(matrix), weight, cells)
            sizes = len(placed.rows) if cells is None else cells.counts
            lacking = sizes - moments.n.reshape(len(matrix), 1 if cells is None else cells.count)
            if lacking.any():
                lacking = self._without_absent(lacking, view, heights, chosen, cells)
            members = [view.members(op.args[0]) for op in self._families]
            rows = self._layout((*heights, *members), heights, members)
            if self._levels or self._last:
                order = cell_index.latest(view, self._axis)[chosen]
                ordered = Ordered(matrix, placed.label, placed.piece, order)

        def laid_out(array: Array, _: float = 0.0) -> Array:
            return array.reshape(len(rows), *shape)

        return State(
            rows, placed.labels, placed.pieces, moments.map(laid_out), laid_out(lacking),
            np.bincount(placed.label, minlength=shape[0]).astype(np.float64), self._here(view, rows, shape),
            None if weights is None else laid_out(weights), ordered,
        )  # fmt: skip

    def finish(self, state: State, found: Found, run: Names = NAMELESS) -> None:
        """Add the cells of these metrics; of labels beyond the limit the rare ones are pooled."""
        parts = _recent(self._parts, state.rows, lambda: self._split(state.rows))
        state, rest = labelled(self.ops[0], state, run)
        picked = {} if state.ordered is None else _picked(state, state.ordered, self._levels, self._last)
        for part in parts:
            part.finish(state, rest, found, picked)

    def _split(self, rows: Sequence[Row]) -> list[_Part]:
        """The metrics by reduction: those whose sources are among the rows of a state."""
        sources = {of for of, _ in rows}
        by_reduction: dict[str, list[MetricOp]] = {}
        for op in self.ops:
            if source(op) in sources:
                by_reduction.setdefault(op.reduction.name, []).append(op)
        return [_Part(ops, rows) for ops in by_reduction.values()]

    def _layout(self, key: Hashable, heights: Sequence[int], members: Sequence[Sequence[str]]) -> tuple[Row, ...]:
        """The rows of a state, by how many there are of each source and what the members of families are."""
        names = {source(op): tuple(each) for op, each in zip(self._families, members, strict=True)}

        def make() -> tuple[Row, ...]:
            pairs = zip(self._sources, heights, strict=True)
            return tuple(row for op, height in pairs for row in rows_of(op, names.get(source(op), ()))[:height])

        return _recent(self._rows, key, make)

    def _moments(self, matrix: Array, heights: Sequence[int], cells: Segments | None) -> Moments:
        """The moments of all rows, some of them at a time."""
        stats = [one for one, height in zip(self._stats, heights, strict=True) for _ in range(height)]
        step = max(1, CHUNK // max(matrix.shape[1], 1))
        parts = []
        for start in range(0, max(len(matrix), 1), step):
            some, asked = matrix[start : start + step], frozenset().union(*stats[start : start + step])
            parts.append(Moments.of(some, asked) if cells is None else Moments.by_segment(some, cells, asked))
        return parts[0] if len(parts) == 1 else Moments.joined(parts)

    def _asked_tokens(self, view: View) -> Array:
        """Of how many tokens each completion is asked for a value, ``[folds, rows]``; 0 where nothing counts them."""
        asked = np.zeros((len(self._sources), view.frame.count(Axis.COMPLETION)))
        pairs = {(op.fold, op.tokens): place for place, op in enumerate(self._sources) if op.fold and op.tokens}
        if pairs:
            asked[[*pairs.values()]] = requested_tokens([(str(fold), str(tokens)) for fold, tokens in pairs], view)
        return asked

    def _without_absent(
        self, lacking: Array, view: View, heights: Sequence[int], chosen: Any, cells: Segments | None
    ) -> Array:
        """How many values are missing, of those that are no values: not those that did not come."""
        lacking = lacking.copy()
        spans = itertools.pairwise(itertools.accumulate(heights, initial=0))
        for node, (start, end) in zip(self._nodes, spans, strict=True):
            gone = view.lost(node, self._axis) if lacking[start:end].any() else False
            if gone is not False:
                whole = np.broadcast_to(gone, (end - start, view.frame.count(self._axis)))
                lacking[start:end] -= _added(whole[:, chosen].astype(np.float64), cells)
        return np.maximum(lacking, 0.0)

    def _here(self, view: View, rows: Sequence[Row], shape: tuple[int, int]) -> Array:
        """In which pieces each cell came."""
        here = np.broadcast_to(cells_here(self.ops[0], view), (len(rows), *shape))
        if self._families:
            here, places = here.copy(), _places(rows)
            for op in self._families:
                here[places.get(source(op), [])] &= members_here(op, view)
        return here


class _Part:
    """The metrics of one reduction, and the rows of a state that they take."""

    def __init__(self, ops: Sequence[MetricOp], rows: Sequence[Row]) -> None:
        places = _places(rows)
        mine = [places[source(op)] for op in ops]
        index = [place for each in mine for place in each]
        side_by_side = bool(index) and index == [*range(index[0], index[0] + len(index))]  # taken without a copy
        self._ops = ops
        self._reduction = ops[0].reduction
        self._index = slice(index[0], index[0] + len(index)) if side_by_side else np.array(index, np.int64)
        self._spans = list(itertools.pairwise(itertools.accumulate(map(len, mine), initial=0)))
        members = [[member for place in each if (member := rows[place][1]) is not None] for each in mine]
        self._members = [tuple(each) if op.family else () for op, each in zip(ops, members, strict=True)]
        self._rules = Rules(ops, self._members, [len(each) for each in mine])
        self._keys = [] if any(op.family for op in ops) else [op.key for op in ops]

    def finish(self, state: State, rest: str | None, found: Found, picked: Mapping[float | None, Array]) -> None:
        """Add the cells of these metrics; ``picked`` are the values of all rows that their order decides."""
        index, name = self._index, self._reduction.name
        if not self._reduction.foldable:
            values = picked[self._reduction.level][index]
        else:
            values = np.asarray(self._reduction.run(state.moments, index, state.even), np.float64)
        if state.weights is not None and name == "mean":  # of no weight in all NaN, though values count
            weights = state.weights[index]
            with np.errstate(invalid="ignore"):
                values = np.where(weights == 0, np.nan, state.moments.total[index] / (weights + (weights == 0)))
        one = bool(self._keys) and values.shape[1:] == (1, 1) and state.pieces == WHOLE and not state.labels
        if one and state.whole and np.isfinite(values).all():  # most metrics
            found.numbers.update(zip(self._keys, values.ravel().tolist(), strict=True))
            return
        n = state.moments.n[index]
        enough = n > (1 if name in ("std", "var") else 0)
        settled = self._rules.settled(values, state.lacking[index], n > 0, enough, state.here[index])
        if one:
            found.add_numbers(self._keys, settled.values[:, 0, 0], settled.skipped)
            if settled.kept is None:
                return
        labels = tuple(map(str, state.labels))
        for place, (op, (start, end)) in enumerate(zip(self._ops, self._spans, strict=True)):
            if op.key not in found.numbers:
                found[op.key] = settled.cells(
                    place, slice(start, end), members=self._members[place], labels=labels, pieces=state.pieces,
                    rest=rest,
                )  # fmt: skip


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


def _recent(layouts: OrderedDict[Hashable, _T], key: Hashable, make: Callable[[], _T]) -> _T:
    """What belongs to a layout; that of the layouts which came last is kept."""
    known = layouts.get(key)
    if known is None:
        known = layouts[key] = make()
        if len(layouts) > LAYOUTS:
            layouts.popitem(last=False)
    else:
        layouts.move_to_end(key)
    return known
