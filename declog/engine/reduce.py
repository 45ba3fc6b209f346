"""The metrics of a window: those that reduce the same rows are reduced together, in one matrix.

What they have in common is found once, when a run starts. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.engine.cell_index import row_axis
from declog.engine.cells import Cells, reduce_one, settled
from declog.engine.evaluator import View
from declog.engine.partials import fold_states, known_tokens
from declog.language.moments import Moments, Stat
from declog.language.nodes import Node
from declog.language.reductions import Reduction
from declog.language.segmented import truth
from declog.plans.ops import MetricOp

Array = NDArray[Any]
BLOCK = 2**15  # values that are reduced at once: 256 KiB stay in a core's cache


class Reductions:
    """How to reduce some metrics, for any window."""

    def __init__(self, ops: Iterable[MetricOp]) -> None:
        self._alone: list[MetricOp] = []
        fused: dict[tuple[Any, ...], list[MetricOp]] = {}
        for op in ops:
            plain = op.by is None and op.weight is None and op.pool == "window" and op.ranks == "all"
            if plain and op.reduction.foldable:
                key = (op.phase, op.axis, op.fold is not None, None if op.where is None else op.where.index)
                fused.setdefault(key, []).append(op)
            else:
                self._alone.append(op)
        self._fused = [_Fused(group) for group in fused.values()]

    def run(self, views: Mapping[str, View]) -> dict[str, Cells]:
        """The cells of every metric whose phase has a view."""
        found = {op.key: reduce_one(op, views[op.phase]) for op in self._alone if op.phase in views}
        for group in self._fused:
            if group.phase in views:
                group.run(views[group.phase], found)
        return found


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
        self._requested = [stats for _, stats in alike]
        self._by_reduction: dict[str, list[MetricOp]] = {}
        for op in ops:
            self._by_reduction.setdefault(op.reduction.name, []).append(op)
        self._orders: dict[tuple[int, ...], list[tuple[Reduction, Array, list[tuple[MetricOp, int, int]]]]] = {}

    def run(self, view: View, found: dict[str, Cells]) -> None:
        """Add the cells of these metrics."""
        rows = None if self._where is None else np.flatnonzero(truth(view.rows(self._where, self._axis)))
        if self._folds:
            states = fold_states(self._folds, view, self._stats)
            moments = (states if rows is None else states.take(rows)).pooled()
            gaps, heights = None, (1,) * len(self._folds)
        else:
            pieces = [self._rows(view, place) for place in range(len(self._nodes))]
            pieces = pieces if rows is None else [piece[:, rows] for piece in pieces]
            heights = tuple(len(piece) for piece in pieces)
            moments = self._moments(pieces)
            missing = pieces[0].shape[1] - moments.n
            if missing.any():  # of what did not come nothing is missing: it is absent
                missing -= np.repeat([self._lost(view, node, rows) for node in self._nodes], heights)
                missing = np.maximum(missing, 0.0)
            gaps = missing if missing.any() else None
        for reduction, index, places in self._order(heights):
            values = np.asarray(reduction.run(moments.take(index)), np.float64)[:, None, None]
            for op, start, end in places:
                cells = Cells(values[start:end], view.members(op.args[0]) if op.family else ())
                span = index[start:end]
                counted = (moments.n[span] > 0)[:, None, None]
                odd = (moments.n[span] > 1)[:, None, None] & np.isnan(cells.values)  # infinities against each other
                if gaps is not None or op.tokens is not None:
                    missing = _missing_tokens(op, view, rows, moments.n[span]) if gaps is None else gaps[span]
                    cells.skipped = int(missing.sum())
                    settled(op, cells, (missing > 0)[:, None, None], counted, odd)
                elif op.empty is not None or not np.isfinite(cells.values).all():
                    settled(op, cells, np.zeros(cells.values.shape, bool), counted, odd)
                found[op.key] = cells

    def _lost(self, view: View, node: Node, rows: Array | None) -> int:
        """In how many rows a value is absent."""
        gone = view.lost(node, self._axis)
        if gone is True or gone is False:
            return gone * (view.frame.count(self._axis) if rows is None else len(rows))
        return int(np.count_nonzero(gone if rows is None else gone[rows]))

    def _rows(self, view: View, place: int) -> Array:
        values = np.asarray(view.judged(self._nodes[place], self._axis), np.float64)
        return values[None] if values.ndim == 1 else values

    def _moments(self, pieces: Sequence[Array]) -> Moments:
        """The moments of all pieces, a block at a time."""
        step = max(1, BLOCK // max(pieces[0].shape[1], 1))
        parts = []
        for start in range(0, len(pieces), step):
            block = pieces[start : start + step]
            requested = frozenset().union(*self._requested[start : start + step])
            parts.append(Moments.of(block[0] if len(block) == 1 else np.concatenate(block), requested))
        return parts[0] if len(parts) == 1 else Moments.joined(parts)

    def _order(self, heights: tuple[int, ...]) -> list[tuple[Reduction, Array, list[tuple[MetricOp, int, int]]]]:
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
            order.append((ops[0].reduction, np.array(index, np.int64), places))
        self._orders[heights] = order
        return order


def _missing_tokens(op: MetricOp, view: View, rows: Array | None, found: Array) -> Array:
    """How many tokens a metric over tokens did not find, of those that exist."""
    known = known_tokens(op, view)
    if known is None:
        return np.zeros_like(found)
    return np.asarray((known if rows is None else known[rows]).sum() - found)
