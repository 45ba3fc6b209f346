"""The metrics of a window: those that reduce the same rows are reduced together, in one matrix.

What they have in common is found once, when a run starts. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.engine import cell_index
from declog.engine.cell_index import Placed, place_key, row_axis
from declog.engine.cells import Cells, enough, finished, reduce_one, settled
from declog.engine.evaluator import View
from declog.engine.frame import Block
from declog.engine.partials import elsewhere, fold_states, known_tokens, states_of
from declog.language.dtypes import Axis, DType
from declog.language.moments import Moments, Stat
from declog.language.nodes import Node
from declog.language.reductions import Reduction, quantiles
from declog.language.segmented import truth
from declog.plans.ops import MetricOp

Array = NDArray[Any]
Index = slice | Array
BLOCK = 2**15  # values that are reduced at once: 256 KiB stay in a core's cache


class Reductions:
    """How to reduce some metrics, for any window."""

    def __init__(self, ops: Iterable[MetricOp]) -> None:
        self._alone: list[MetricOp] = []
        fused: dict[tuple[Any, ...], list[MetricOp]] = {}
        picked: dict[tuple[Any, ...], list[MetricOp]] = {}
        pooled: dict[tuple[Any, ...], list[MetricOp]] = {}
        for op in ops:
            plain = op.by is None and op.weight is None
            if plain and op.reduction.foldable and op.pool == "window" and op.ranks == "all":
                key = (op.phase, op.axis, op.fold is not None, None if op.where is None else op.where.index)
                fused.setdefault(key, []).append(op)
            elif plain and op.reduction.foldable and op.fold is None:
                pooled.setdefault((op.phase, *place_key(op)), []).append(op)
            elif plain and op.fold is None and (op.reduction.level is not None or op.reduction.name == "last"):
                picked.setdefault((op.phase, *place_key(op)), []).append(op)
            else:
                self._alone.append(op)
        self._groups: list[_Fused | _Pooled | _Picked] = [
            *map(_Fused, fused.values()), *map(_Pooled, pooled.values()), *map(_Picked, picked.values()),
        ]  # fmt: skip

    def run(self, views: Mapping[str, View]) -> dict[str, Cells]:
        """The cells of every metric whose phase has a view."""
        found = {op.key: reduce_one(op, views[op.phase]) for op in self._alone if op.phase in views}
        for group in self._groups:
            if group.phase in views:
                group.run(views[group.phase], found)
        return found


class _Pooled:
    """Metrics of the same rows in the same pieces of the window, each finished from moments."""

    def __init__(self, ops: Sequence[MetricOp]) -> None:
        self.phase = ops[0].phase
        self._ops = ops

    def run(self, view: View, found: dict[str, Cells]) -> None:
        """Add the cells of these metrics."""
        for op, state in zip(self._ops, states_of(self._ops, view), strict=True):
            found[op.key] = finished(op, state)


class _Picked:
    """Metrics of the same rows that are found by their order: quantiles, of all in one partition, and the last value.

    One of whose values some are missing is reduced alone.
    """

    def __init__(self, ops: Sequence[MetricOp]) -> None:
        self.phase = ops[0].phase
        self._ops = ops
        self._axis = row_axis(ops[0])
        self._levels = sorted({op.reduction.level for op in ops if op.reduction.level is not None})
        self._nodes = {op.args[0].index: op.args[0] for op in ops}

    def run(self, view: View, found: dict[str, Cells]) -> None:
        """Add the cells of these metrics."""
        placed = cell_index.placed(self._ops[0], view)
        whole: dict[int, Array] = {}
        for index, node in self._nodes.items():
            values = np.asarray(view.judged(node, self._axis), np.float64)
            values = (values[None] if values.ndim == 1 else values)[:, placed.rows]
            if values.size and not np.isnan(values).any():
                whole[index] = values
        quantiles = self._by_level(whole, placed) if self._levels and whole else {}
        for op in self._ops:
            node = op.args[0]
            if node.index not in whole:
                found[op.key] = reduce_one(op, view)
                continue
            level = op.reduction.level
            values = self._last(whole[node.index], placed, view) if level is None else quantiles[node.index, level]
            cells = Cells(values[:, None], view.members(node) if op.family else (), pieces=placed.pieces)
            if op.empty is not None or not np.isfinite(values).all():
                counted = np.broadcast_to(np.bincount(placed.piece, minlength=len(placed.pieces)) > 0, values.shape)
                odd = counted[:, None] & np.isnan(cells.values)  # between infinities
                settled(op, cells, np.zeros(cells.values.shape, bool), counted[:, None], odd)
            found[op.key] = cells

    def _by_level(self, whole: Mapping[int, Array], placed: Placed) -> dict[tuple[int, float], Array]:
        """The quantiles of all columns, ``[members, pieces]`` by node and level."""
        heights = [len(values) for values in whole.values()]
        matrix = np.concatenate(list(whole.values()))
        result = np.full((len(self._levels), len(matrix), len(placed.pieces)), np.nan)
        for place in range(len(placed.pieces)):
            mine = matrix if len(placed.pieces) == 1 else matrix[:, placed.piece == place]
            if mine.shape[1]:
                step = max(1, BLOCK // mine.shape[1])
                for start in range(0, len(mine), step):
                    part = quantiles(mine[start : start + step], self._levels)
                    result[:, start : start + step, place] = part
        starts = np.cumsum([0, *heights]).tolist()
        return {
            (index, level): result[at, start : start + height]
            for at, level in enumerate(self._levels)
            for index, start, height in zip(whole, starts, heights, strict=False)
        }

    def _last(self, values: Array, placed: Placed, view: View) -> Array:
        """The latest values, ``[members, pieces]``."""
        order = cell_index.latest(view, self._axis)[placed.rows]
        latest = np.lexsort((order, placed.piece))  # stable: the last of equal ones is the last row
        ends = np.searchsorted(placed.piece[latest], np.arange(len(placed.pieces)), side="right") - 1
        there = np.bincount(placed.piece, minlength=len(placed.pieces)) > 0
        return np.where(there, values[:, latest[ends]], np.nan)


class _Fused:
    """Metrics of the same rows of one phase, each finished from moments.

    A row of the matrix is a fold, or a member of an expression's value; ``heights`` says how many each has.
    """

    def __init__(self, ops: Sequence[MetricOp]) -> None:
        first = ops[0]
        self.phase = first.phase
        self._axis = row_axis(first)
        self._where = first.where
        self._stats: frozenset[Stat] = frozenset(stat for op in ops for stat in op.reduction.stats)
        self._folds = list(dict.fromkeys(op.fold for op in ops if op.fold is not None))
        requested: dict[int, tuple[Node, frozenset[Stat]]] = {}
        for op in ops if not self._folds else ():
            node = op.args[0]
            known = requested[node.index][1] if node.index in requested else frozenset()
            requested[node.index] = node, known | op.reduction.stats
        alike = sorted(requested.values(), key=lambda item: (sorted(item[1]), item[0].index))  # alike side by side
        self._nodes = [node for node, _ in alike]
        self._signals = {
            place: node.param("name") for place, node in enumerate(self._nodes)
            if node.op == "signal" and node.type.dtype is DType.FLOAT and not node.type.family
            and node.type.axis is self._axis and self._axis is not Axis.GROUP
        }  # fmt: skip
        self._requested = [stats for _, stats in alike]
        self._by_reduction: dict[str, list[MetricOp]] = {}
        for op in ops:
            self._by_reduction.setdefault(op.reduction.name, []).append(op)
        self._orders: dict[tuple[int, ...], list[tuple[Reduction, Index, list[tuple[MetricOp, int, int]]]]] = {}

    def run(self, view: View, found: dict[str, Cells]) -> None:
        """Add the cells of these metrics."""
        rows = None if self._where is None else np.flatnonzero(truth(view.rows(self._where, self._axis)))
        if self._folds:
            states = fold_states(self._folds, view, self._stats)
            moments = (states if rows is None else states.take(rows)).pooled()
            gaps, heights = None, (1,) * len(self._folds)
        else:
            pieces = self._pieces(view)
            pieces = pieces if rows is None else [piece[:, rows] for piece in pieces]
            heights = tuple(len(piece) for piece in pieces)
            moments = self._moments(pieces)
            missing = pieces[0].shape[1] - moments.n
            if missing.any():  # of what did not come nothing is missing: it is absent
                missing -= np.concatenate(
                    [self._lost(view, *each, rows) for each in zip(self._nodes, heights, strict=True)]
                )
                missing = np.maximum(missing, 0.0)
            gaps = missing if missing.any() else None
        for reduction, index, places in self._order(heights):
            values = np.asarray(reduction.run(moments.take(index)), np.float64)[:, None, None]
            n, plain = moments.n[index], gaps is None and bool(np.isfinite(values).all())
            for op, start, end in places:
                cells = Cells(values[start:end], view.members(op.args[0]) if op.family else ())
                found[op.key] = cells
                if plain and op.tokens is None and op.empty is None:  # most metrics
                    continue
                counted = (n[start:end] > 0)[:, None, None]
                # infinities against each other
                odd = enough(op, n[start:end])[:, None, None] & np.isnan(cells.values)
                if gaps is not None or op.tokens is not None:
                    missing = _missing_tokens(op, view, rows, n[start:end]) if gaps is None else gaps[index][start:end]
                    cells.skipped = int(missing.sum())
                    settled(op, cells, (missing > 0)[:, None, None], counted, odd)
                else:
                    settled(op, cells, np.zeros(cells.values.shape, bool), counted, odd)

    def _lost(self, view: View, node: Node, members: int, rows: Array | None) -> Array:
        """In how many rows each of a node's members is absent."""
        gone = np.broadcast_to(view.lost(node, self._axis), (view.frame.count(self._axis),))
        lost = np.full(members, np.count_nonzero(gone if rows is None else gone[rows]), np.float64)
        away = elsewhere([node], view, self._axis)
        return lost + (away if rows is None else away[:, rows]).sum(1) if len(away) else lost

    def _pieces(self, view: View) -> list[Array]:
        """The values that are reduced, each ``[members, rows]``: signals of one block at once."""
        found: dict[int, Array] = {}
        blocks: dict[int, tuple[Block, list[int], list[int]]] = {}
        for place, name in self._signals.items():
            if (plain := view.frame.plain(name, self._axis)) is not None:
                block, row = plain
                _, places, rows = blocks.setdefault(id(block), (block, [], []))
                places.append(place)
                rows.append(row)
        for block, places, rows in blocks.values():
            matrix = block.data[rows].astype(np.float64)
            found |= {place: matrix[at : at + 1] for at, place in enumerate(places)}
        for place, node in enumerate(self._nodes):
            if place not in found:
                values = np.asarray(view.judged(node, self._axis), np.float64)
                found[place] = values[None] if values.ndim == 1 else values
        return [found[place] for place in range(len(self._nodes))]

    def _moments(self, pieces: Sequence[Array]) -> Moments:
        """The moments of all pieces, a block at a time."""
        step = max(1, BLOCK // max(pieces[0].shape[1], 1))
        parts = []
        for start in range(0, len(pieces), step):
            block = pieces[start : start + step]
            requested = frozenset().union(*self._requested[start : start + step])
            parts.append(Moments.of(block[0] if len(block) == 1 else np.concatenate(block), requested))
        return parts[0] if len(parts) == 1 else Moments.joined(parts)

    def _order(self, heights: tuple[int, ...]) -> list[tuple[Reduction, Index, list[tuple[MetricOp, int, int]]]]:
        """By reduction: the rows of the matrix that it takes, and which of its results are whose."""
        known = self._orders.get(heights)
        if known is not None:
            return known
        ends = np.cumsum(heights).tolist()
        names: list[int | str] = [*self._folds, *(node.index for node in self._nodes)]
        spans = {name: range(end - height, end) for name, height, end in zip(names, heights, ends, strict=True)}
        order = []
        for ops in self._by_reduction.values():
            index: list[int] = []
            places = []
            for op in ops:
                span = spans[op.args[0].index if op.fold is None else op.fold]
                places.append((op, len(index), len(index) + len(span)))
                index += span
            run = slice(index[0], index[0] + len(index)) if index else slice(0)
            whole = index == [*range(run.start or 0, run.stop)]  # side by side they are taken without a copy
            order.append((ops[0].reduction, run if whole else np.array(index, np.int64), places))
        self._orders[heights] = order
        return order


def _missing_tokens(op: MetricOp, view: View, rows: Array | None, found: Array) -> Array:
    """How many tokens a metric over tokens did not find, of those that exist."""
    known = known_tokens(op, view)
    if known is None:
        return np.zeros_like(found)
    return np.asarray((known if rows is None else known[rows]).sum() - found)
