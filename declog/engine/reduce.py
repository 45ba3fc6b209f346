"""The metrics of a window: those that reduce the same rows are reduced together, in one matrix.

What they have in common is found once, when a run starts. Imports no torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.engine import cell_index
from declog.engine.cell_index import Placed, place_key, row_axis
from declog.engine.cells import WHOLE, Cells, Found, enough, finished, reduce_one, settled
from declog.engine.evaluator import View, alike
from declog.engine.partials import fold_states, here, requested_tokens, states_of
from declog.language.moments import Moments, Stat
from declog.language.nodes import Node
from declog.language.reductions import quantiles
from declog.language.segmented import truth
from declog.plans.ops import MetricOp

Array = NDArray[Any]
BLOCK = 2**15  # values that are reduced at once: 256 KiB stay in a core's cache


class Reductions:
    """How to reduce some metrics, for any window."""

    def __init__(self, ops: Iterable[MetricOp]) -> None:
        self._alone: list[MetricOp] = []
        fused: dict[tuple[Any, ...], list[MetricOp]] = {}
        picked: dict[tuple[Any, ...], list[MetricOp]] = {}
        pooled: dict[tuple[Any, ...], list[MetricOp]] = {}  # of the same labels and pieces
        for op in ops:
            plain = op.by is None and op.weight is None
            if plain and op.reduction.foldable and op.pool == "window" and op.ranks == "all":
                key = (op.phase, op.axis, op.fold is not None, None if op.where is None else op.where.index)
                fused.setdefault(key, []).append(op)
            elif op.reduction.foldable:
                pooled.setdefault((op.phase, op.fold is not None, *place_key(op)), []).append(op)
            elif plain and op.fold is None and (op.reduction.level is not None or op.reduction.name == "last"):
                picked.setdefault((op.phase, *place_key(op)), []).append(op)
            else:
                self._alone.append(op)
        self._pooled = list(pooled.values())
        self._groups: list[_Fused | _Picked] = [*map(_Fused, fused.values()), *map(_Picked, picked.values())]

    def run(self, views: Mapping[str, View]) -> Found:
        """The cells of every metric whose phase has a view."""
        found = Found()
        for op in self._alone:
            if op.phase in views:
                found[op.key] = reduce_one(op, views[op.phase])
        for ops in self._pooled:
            if ops[0].phase in views:
                states = states_of(ops, views[ops[0].phase])
                found.update((op.key, finished(op, state)) for op, state in zip(ops, states, strict=True))
        for group in self._groups:
            if group.phase in views:
                group.run(views[group.phase], found)
        return found


@dataclass(frozen=True)
class _Part:
    """The metrics of one reduction: the rows of the matrix that it takes, and which of its results are whose.

    ``numbers`` are their keys, where each has one value about which neither `empty` nor the members of a family ask.
    """

    ops: Sequence[MetricOp]
    index: slice | Array
    spans: Sequence[tuple[int, int]]
    numbers: Sequence[str]


class _Together:
    """Metrics of the same rows of one phase, in one matrix: a row is a fold, or a member of an expression's value."""

    def __init__(self, ops: Sequence[MetricOp]) -> None:
        self.phase = ops[0].phase
        self._axis = row_axis(ops[0])
        self._folds = list(dict.fromkeys(op.fold for op in ops if op.fold is not None))
        stats: dict[Node, frozenset[Stat]] = {}
        for op in ops if not self._folds else ():
            stats[op.args[0]] = stats.get(op.args[0], frozenset()) | op.reduction.stats
        self._nodes = sorted(stats, key=lambda node: (sorted(stats[node]), node.index))  # alike side by side
        self._stats = [stats[node] for node in self._nodes]
        self._by_reduction: dict[str, list[MetricOp]] = {}
        for op in ops:
            self._by_reduction.setdefault(op.reduction.name, []).append(op)
        self._parts: dict[tuple[int, ...], list[_Part]] = {}

    def parts(self, heights: tuple[int, ...]) -> list[_Part]:
        """What each reduction takes, given how many rows the nodes have."""
        known = self._parts.get(heights)
        if known is None:
            ends = itertools.accumulate(heights)
            names: list[Node | str] = [*self._folds, *self._nodes]
            rows = {name: range(end - height, end) for name, height, end in zip(names, heights, ends, strict=True)}
            known = self._parts[heights] = [_part(ops, rows) for ops in self._by_reduction.values()]
        return known


def _part(ops: Sequence[MetricOp], rows: Mapping[Node | str, range]) -> _Part:
    mine = [rows[op.args[0] if op.fold is None else op.fold] for op in ops]
    index = [row for one in mine for row in one]
    ends = list(itertools.accumulate(map(len, mine), initial=0))
    run = slice(index[0], index[0] + len(index)) if index else slice(0)
    whole = index == [*range(run.start or 0, run.stop)]  # side by side they are taken without a copy
    plain = all(op.empty is None and not op.family for op in ops)
    keys = [op.key for op in ops] if plain else []
    return _Part(ops, run if whole else np.array(index, np.int64), list(itertools.pairwise(ends)), keys)


class _Picked(_Together):
    """Metrics that are found by the order of their values: quantiles, of all in one partition, and the last value.

    One of whose values some are missing is reduced alone.
    """

    def __init__(self, ops: Sequence[MetricOp]) -> None:
        super().__init__(ops)
        self._levels = sorted({op.reduction.level for op in ops if op.reduction.level is not None})

    def run(self, view: View, found: Found) -> None:
        """Add the cells of these metrics."""
        placed = cell_index.placed(next(iter(self._by_reduction.values()))[0], view)
        matrix, heights = view.matrix(self._nodes, self._axis)
        matrix = matrix[:, placed.rows]
        missing: Array = np.asarray(np.isnan(matrix).any(1) if matrix.size else np.ones(len(matrix), bool))
        some = not missing.all()
        by_level = self._by_level(matrix, placed) if self._levels and some else {}
        for part in self.parts(heights):
            level = part.ops[0].reduction.level
            if not some:
                found.update((op.key, reduce_one(op, view)) for op in part.ops)
                continue
            values = (self._last(matrix, placed, view) if level is None else by_level[level])[part.index]
            gone = missing[part.index]
            if part.numbers and placed.pieces == WHOLE and not gone.any() and np.isfinite(values).all():
                found.numbers.update(zip(part.numbers, values[:, 0].tolist(), strict=True))
                continue
            for op, (start, end) in zip(part.ops, part.spans, strict=True):
                if gone[start:end].any():
                    found[op.key] = reduce_one(op, view)
                else:
                    found[op.key] = self._cells(op, values[start:end, None], placed, view)

    @staticmethod
    def _cells(op: MetricOp, values: Array, placed: Placed, view: View) -> Cells:
        cells = Cells(values, view.members(op.args[0]) if op.family else (), pieces=placed.pieces)
        if op.empty is not None or not np.isfinite(values).all():
            counted = np.broadcast_to(np.bincount(placed.piece, minlength=len(placed.pieces)) > 0, values.shape)
            odd = counted & np.isnan(cells.values)  # between infinities
            settled(op, cells, np.zeros(cells.values.shape, bool), counted, odd, here(op, view))
        return cells

    def _by_level(self, matrix: Array, placed: Placed) -> dict[float, Array]:
        """The quantiles of all rows, ``[k, pieces]`` by level."""
        result = np.full((len(self._levels), len(matrix), len(placed.pieces)), np.nan)
        for place in range(len(placed.pieces)):
            mine = matrix if len(placed.pieces) == 1 else matrix[:, placed.piece == place]
            if mine.shape[1]:
                step = max(1, BLOCK // mine.shape[1])
                for start in range(0, len(mine), step):
                    result[:, start : start + step, place] = quantiles(mine[start : start + step], self._levels)
        return dict(zip(self._levels, result, strict=True))

    def _last(self, matrix: Array, placed: Placed, view: View) -> Array:
        """The latest values, ``[k, pieces]``."""
        order = cell_index.latest(view, self._axis)[placed.rows]
        latest = np.lexsort((order, placed.piece))  # stable: the last of equal ones is the last row
        ends = np.searchsorted(placed.piece[latest], np.arange(len(placed.pieces)), side="right") - 1
        there = np.bincount(placed.piece, minlength=len(placed.pieces)) > 0
        return np.where(there, matrix[:, latest[ends]], np.nan)


class _Fused(_Together):
    """Metrics that are finished from moments."""

    def __init__(self, ops: Sequence[MetricOp]) -> None:
        super().__init__(ops)
        self._where = ops[0].where
        self._alike = alike(self._nodes)
        self._all: frozenset[Stat] = frozenset(stat for op in ops for stat in op.reduction.stats)
        pairs = dict.fromkeys((op.fold, op.tokens) for op in ops if op.fold is not None and op.tokens is not None)
        self._pairs = list(pairs)
        self._counted: dict[tuple[str | None, str | None], int] = {pair: at for at, pair in enumerate(pairs)}

    def run(self, view: View, found: Found) -> None:
        """Add the cells of these metrics."""
        rows = None if self._where is None else np.flatnonzero(truth(view.rows(self._where, self._axis)))
        if self._folds:
            states = fold_states(self._folds, view, self._all)
            moments = (states if rows is None else states.take(rows)).pooled()
            heights = (1,) * len(self._folds)
            missing, even = self._missing_tokens(view, rows, moments.n), 0
        else:
            view.take_alike(self._alike)
            matrix, heights = view.matrix(self._nodes, self._axis)
            matrix = matrix if rows is None else matrix[:, rows]
            moments = self._moments(matrix, heights)
            missing, even = matrix.shape[1] - moments.n, matrix.shape[1]
            if missing.any():  # of what did not come nothing is missing: it is absent
                lost = [self._lost(view, *each, rows) for each in zip(self._nodes, heights, strict=True)]
                missing, even = np.maximum(missing - np.concatenate(lost), 0.0), 0
        whole = not missing.any()
        for part in self.parts(heights):
            values = np.asarray(part.ops[0].reduction.run(moments, part.index, even), np.float64)
            if whole and part.numbers and np.isfinite(values).all():
                found.numbers.update(zip(part.numbers, values.tolist(), strict=True))
                continue
            n = moments.n[part.index]
            for op, (start, end) in zip(part.ops, part.spans, strict=True):
                cells = Cells(values[start:end, None, None], view.members(op.args[0]) if op.family else ())
                if self._folds:
                    place = self._counted.get((op.fold, op.tokens))
                    gaps = np.zeros(1) if place is None else missing[place : place + 1]
                else:
                    gaps = missing[part.index][start:end]
                cells.skipped = int(gaps.sum())
                odd = enough(op, n[start:end])[:, None, None] & np.isnan(cells.values)  # infinities against each other
                counted = (n[start:end] > 0)[:, None, None]
                found[op.key] = settled(op, cells, (gaps > 0)[:, None, None], counted, odd, here(op, view))

    def _missing_tokens(self, view: View, rows: Array | None, n: Array) -> Array:
        """How many tokens each pair of a fold and of what counts its tokens lacks, of those that are asked for."""
        if not self._pairs:
            return np.zeros(0)
        asked = requested_tokens(self._pairs, view)
        sought = (asked if rows is None else asked[:, rows]).sum(1)
        found = n[[self._folds.index(fold) for fold, _ in self._pairs]]
        return np.asarray(np.maximum(sought - found, 0.0))

    def _lost(self, view: View, node: Node, members: int, rows: Array | None) -> Array:
        """In how many rows each of a node's members is absent."""
        gone = np.broadcast_to(view.lost(node, self._axis), (members, view.frame.count(self._axis)))
        lost: Array = np.count_nonzero(gone if rows is None else gone[:, rows], 1)
        return lost.astype(np.float64)

    def _moments(self, matrix: Array, heights: Sequence[int]) -> Moments:
        """The moments of all rows, a block at a time."""
        stats = [one for one, height in zip(self._stats, heights, strict=True) for _ in range(height)]
        step = max(1, BLOCK // max(matrix.shape[1], 1))
        parts = [
            Moments.of(matrix[start : start + step], frozenset().union(*stats[start : start + step]))
            for start in range(0, len(matrix), step)
        ]
        return parts[0] if len(parts) == 1 else Moments.joined(parts)
