"""Which rows a filter takes: exact over all ranks, because every rank sends its own candidates.

A filter runs twice: on each rank's rows, to choose the candidates whose text travels, and on the rows of all
ranks, to choose what is logged. What the second run takes is always among the first run's candidates. Imports
no torch.

To add a kind: a function from (op, view, rows) to rows, and its entry in ``KINDS``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.axes import Axis
from declog.evaluate import View
from declog.kernels import Segments, present, truth
from declog.plan import FilterOp
from declog.tree import Node, walk

Array = NDArray[Any]
Rows = NDArray[np.int64]


def select(op: FilterOp, view: View) -> Rows:
    """The completion rows that a filter takes, in row order."""
    rows = np.arange(view.frame.count(Axis.COMPLETION))
    for one in op.chain:
        if one.where is not None:
            rows = rows[truth(np.array(view.rows(one.where, Axis.COMPLETION)))[rows]]
        rows = np.sort(KINDS[one.kind](one, view, rows))
        if one.limit is not None:
            rows = rows[: one.limit]
    return rows


def candidates(op: FilterOp, view: View) -> Rows:
    """Rows of this rank that may be taken when all ranks' rows are known: a superset of what will be."""
    first = op.chain[0]
    grouping = view.frame.grouping
    split = grouping is not None and grouping.split == "ranks"
    if any(_reads_others(node, split) for node in (first.key, first.where) if node is not None):
        return np.arange(view.frame.count(Axis.COMPLETION))
    return select(replace(first, limit=None), view)


def _reads_others(node: Node, split: bool) -> bool:
    """Whether a value depends on rows of other ranks: through its batch, or through a group that is spread."""
    for item in walk(node):
        within = item.param("within") if item.op == "rank" else item.type.axis
        if within in (Axis.STEP, Axis.BATCH) and (item.op == "rank" or within is Axis.BATCH):
            return True
        if split and (within is Axis.GROUP or item.op in ("rank", "index")):
            return True
    return False


def _scopes(op: FilterOp, view: View, rows: Rows) -> Segments:
    """The rows that are chosen from together."""
    frame = view.frame
    if op.within == "window" or not len(rows):
        return Segments.whole(len(rows))
    if op.within == "group":
        return Segments.of_keys(frame.parts(Axis.COMPLETION, Axis.GROUP).index[rows])
    batch = frame.parts(Axis.COMPLETION, Axis.STEP).index[rows]
    keys = [frame.batches.step[batch]] + ([frame.batches.batch[batch]] if op.within == "batch" else [])
    return Segments.of_keys(*keys)


def _best(order: Array, scopes: Segments, n: int) -> Array:
    """Places of the first ``n`` of each scope, by ascending ``order``; ties by row."""
    if n <= 0 or not len(order):
        return np.zeros(0, np.int64)
    sorted_rows = np.lexsort((np.arange(len(order)), order, scopes.index))
    place = np.arange(len(order)) - np.repeat(scopes.offsets, scopes.counts)
    return sorted_rows[place < n]


def _all(op: FilterOp, view: View, rows: Rows) -> Rows:
    return rows


def _top_bottom(op: FilterOp, view: View, rows: Rows) -> Rows:
    """The greatest ``top`` and, of the others, the smallest ``bottom`` of each scope; never a row without a key."""
    assert op.key is not None
    key = np.asarray(view.rows(op.key, Axis.COMPLETION), np.float64)[rows]
    rows, key = rows[present(key)], key[present(key)]
    scopes = _scopes(op, view, rows)
    top = _best(-key, scopes, op.top)
    others = np.setdiff1d(np.arange(len(key)), top)
    bottom = others[_best(key[others], _scopes(op, view, rows[others]), op.bottom)]
    chosen: Rows = rows[np.union1d(top, bottom)]
    return chosen


def _random(op: FilterOp, view: View, rows: Rows) -> Rows:
    return rows[_best(_hashes(op, view, rows), _scopes(op, view, rows), op.n)]


def _fraction(op: FilterOp, view: View, rows: Rows) -> Rows:
    return rows[_hashes(op, view, rows) < op.fraction * 2.0**64]


def _first(op: FilterOp, view: View, rows: Rows) -> Rows:
    return rows[_best(rows, _scopes(op, view, rows), op.n)]


def _unique(op: FilterOp, view: View, rows: Rows) -> Rows:
    """The first row of each distinct key, within each scope; a row without a key is never taken."""
    assert op.key is not None
    key = np.asarray(view.rows(op.key, Axis.COMPLETION))[rows]
    rows, key = rows[present(key)], key[present(key)]
    if key.dtype.kind == "O":
        texts = [item if isinstance(item, str) else json.dumps(item, sort_keys=True) for item in key]
        _, key = np.unique(np.array(texts), return_inverse=True)
    keys = Segments.of_keys(_scopes(op, view, rows).index, key)
    picked: Rows = rows[keys.position == 0]
    return picked


def _hashes(op: FilterOp, view: View, rows: Rows) -> Array:
    """A uniform 64-bit number per row from (seed, step, batch, rank, place in the batch): the same on every rank."""
    frame = view.frame
    batch = frame.parts(Axis.COMPLETION, Axis.STEP)
    keys = (
        frame.batches.step[batch.index],
        frame.batches.batch[batch.index],
        frame.batches.rank[batch.index],
        batch.position,
    )
    state = np.full(len(batch.index), np.uint64((op.seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**64), np.uint64)
    for key in keys:
        state = _mix(state ^ _mix(np.asarray(key, np.int64).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)))
    return state[rows]


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


KINDS: Mapping[str, Callable[[FilterOp, View, Rows], Rows]] = {
    "all": _all, "top_bottom": _top_bottom, "random": _random, "fraction": _fraction, "first": _first,
    "unique": _unique,
}  # fmt: skip
