"""Which rows a filter takes: exact over all ranks, because every rank sends its own candidates.

A filter runs twice: on each rank's rows, to choose the candidates whose text is sent, and on the rows of all
ranks, to choose what is logged. What the second run takes is always among the first run's candidates. Imports
no torch.

To add a kind: a function from (op, view, rows) to rows under ``@_kind``, its keys in ``FilterSpec``, and those in
``KINDS`` of the compiler.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.engine.evaluator import View
from declog.language.dtypes import Axis
from declog.language.nodes import reads_other_ranks
from declog.language.segmented import Segments, present, truth
from declog.plans.ops import FilterOp

Array = NDArray[Any]
Rows = NDArray[np.int64]
Chooser = Callable[[FilterOp, View, Rows], Rows]

KINDS: dict[str, Chooser] = {}  # the functions below that say so, by name


def _kind(choose: Chooser) -> Chooser:
    """A kind of filter: its name is the function's, its help the docstring."""
    KINDS[choose.__name__.removeprefix("_")] = choose
    return choose


@dataclass(frozen=True)
class Selection:
    """Rows of a table's axis, in row order; and how many were left out for want of a key, by the filters of a chain.

    ``without_key`` has those only that left any out. ``taken`` is what each filter took: of its own axis.
    """

    rows: Rows
    without_key: Mapping[str, int] = field(default_factory=dict)
    taken: Sequence[tuple[FilterOp, Rows]] = ()


def select(op: FilterOp, view: View, rows: Rows, axis: Axis | None = None) -> Selection:
    """The rows that a filter takes of some; they are of ``axis``, where that is not its own."""
    axis = op.axis if axis is None else axis
    without_key: dict[str, int] = {}
    taken = []
    among = rows
    for one in op.chain:
        groups = one.axis is not axis  # it takes groups, and the rows are their completions
        if groups:
            index = view.frame.parts(axis, one.axis).index
            rows = np.unique(index[rows])
        if one.where is not None:
            rows = rows[truth(view.picked(one.where, one.axis, rows))]
        if one.key is not None:
            there = present(view.picked(one.key, one.axis, rows))
            # the key's text may have stayed on its rank: what says whether it is there has travelled
            keyed = there if one.keyed is None else truth(view.picked(one.keyed, one.axis, rows))
            if not keyed.all():
                without_key[one.id] = int(np.count_nonzero(~keyed))
            rows = rows[there]
        rows = np.sort(KINDS[one.kind](one, view, rows))
        if one.limit is not None:
            rows = rows[: one.limit]
        taken.append((one, rows))
        if groups:
            rows = among[np.isin(index[among], rows)]
    return Selection(rows, without_key, taken)


def reasons(selection: Selection, view: View, axis: Axis) -> list[str]:
    """For each row the filters that took it, as `unique, worst:bottom`: a filter of extremes says of which end."""
    reasons_of_rows: list[list[str]] = [[] for _ in selection.rows]
    for op, taken in selection.taken:
        end = dict.fromkeys(taken.tolist(), op.id)
        if op.kind == "top_bottom":
            tops = set(taken[_ends(op, view, taken)[0]].tolist())
            end = {row: f"{op.id}:{'top' if row in tops else 'bottom'}" for row in end}
        rows = selection.rows if op.axis is axis else view.frame.parts(axis, op.axis).index[selection.rows]
        for words, row in zip(reasons_of_rows, rows.tolist(), strict=True):
            if row in end:
                words.append(end[row])
    return [", ".join(words) for words in reasons_of_rows]


def candidates(op: FilterOp, view: View, rows: Rows, axis: Axis | None = None) -> Rows:
    """Those of some rows of this rank that may be taken when all ranks' are known: a superset of what will be.

    The rows are of ``axis``, where that is not the filter's own.
    """
    first = op.chain[0]
    axis = first.axis if axis is None else axis
    grouping = view.frame.grouping
    split = grouping is not None and grouping.split == "ranks"
    spread = split and any(one.axis is Axis.GROUP or one.within == "group" for one in op.chain)
    if spread or any(reads_other_ranks(node, split) for node in (first.key, first.where) if node is not None):
        return rows
    picked = select(replace(first, limit=None), view, rows, axis).rows
    if any(one.axis is not axis for one in op.chain[1:]):  # whole groups of what the first one took
        index = view.frame.parts(axis, Axis.GROUP).index
        picked = rows[np.isin(index[rows], index[picked])]
    return picked


def _batches(op: FilterOp, view: View, rows: Rows) -> Rows:
    """The batch of each row, as a place among the frame's."""
    frame = view.frame
    return np.asarray(frame.spread(np.arange(len(frame.batches)), Axis.STEP, op.axis)[rows])


def _scopes(op: FilterOp, view: View, rows: Rows) -> Segments:
    """The rows that are chosen from together."""
    frame = view.frame
    if op.within == "window" or not len(rows):
        return Segments.single(len(rows))
    if op.within == "group":
        return Segments.of_keys(frame.parts(op.axis, Axis.GROUP).index[rows])
    batch = _batches(op, view, rows)
    keys = [frame.batches.step[batch]] + ([frame.batches.batch[batch]] if op.within == "batch" else [])
    return Segments.of_keys(*keys)


def _best(order: Array, scopes: Segments, n: int, ties: Array) -> Array:
    """Places of the first ``n`` of each scope, by ascending ``order``, then by ``ties``."""
    if n <= 0 or not len(order):
        return np.zeros(0, np.int64)
    sorted_rows = np.lexsort((ties, order, scopes.index))
    position = np.arange(len(order)) - np.repeat(scopes.offsets, scopes.counts)
    return sorted_rows[position < n]


@_kind
def _all(op: FilterOp, view: View, rows: Rows) -> Rows:
    """Every row that ``where`` allows."""
    return rows


@_kind
def _top_bottom(op: FilterOp, view: View, rows: Rows) -> Rows:
    """The greatest ``top`` and, of the others, the smallest ``bottom`` by ``key``."""
    chosen: Rows = rows[np.union1d(*_ends(op, view, rows))]
    return chosen


def _ends(op: FilterOp, view: View, rows: Rows) -> tuple[Array, Array]:
    """Places of the greatest ``top`` among some rows and, of the others, of the smallest ``bottom``."""
    assert op.key is not None
    key = view.picked(op.key, op.axis, rows)
    key = key.astype(np.int64) if key.dtype.kind in "Ob" else key  # integers, some of which were missing
    ties = _ties(op, view, rows)
    top = _best(-key if key.dtype.kind == "f" else ~key, _scopes(op, view, rows), op.top, ties)
    rest = np.setdiff1d(np.arange(len(key)), top)
    bottom = rest[_best(key[rest], _scopes(op, view, rows[rest]), op.bottom, ties[rest])]
    return top, bottom


@_kind
def _random(op: FilterOp, view: View, rows: Rows) -> Rows:
    """So many rows by chance, the same again in another run."""
    return rows[_best(_hashes(op, view, rows), _scopes(op, view, rows), op.n, _ties(op, view, rows))]


@_kind
def _fraction(op: FilterOp, view: View, rows: Rows) -> Rows:
    """Each row with the probability ``fraction``."""
    return rows[_hashes(op, view, rows) < op.fraction * 2.0**64]


@_kind
def _first(op: FilterOp, view: View, rows: Rows) -> Rows:
    """So many of the first rows."""
    return rows[_best(rows, _scopes(op, view, rows), op.n, rows)]


@_kind
def _unique(op: FilterOp, view: View, rows: Rows) -> Rows:
    """The first row of each value: a text, a number or an object."""
    assert op.key is not None
    key = view.picked(op.key, op.axis, rows)
    if key.dtype.kind == "O":
        texts = [item if isinstance(item, str) else json.dumps(item, sort_keys=True) for item in key]
        _, key = np.unique(np.array(texts, object), return_inverse=True)
    keys = Segments.of_keys(_scopes(op, view, rows).index, key)
    picked: Rows = rows[keys.position == 0]
    return picked


# ---- rows by name: the same on any number of ranks


def _ids(op: FilterOp, view: View, rows: Rows) -> tuple[Array, Array] | None:
    """A 64-bit number for each row's id, and whether it has one; None where rows have no ids."""
    if op.ids is None or not view.came(op.ids):
        return None
    ids = view.picked(op.ids, op.axis, rows)
    there = present(ids)
    if ids.dtype.kind == "O":
        numbers = [0 if item is None else item if isinstance(item, int) else _digest(item) for item in ids]
        return np.array(numbers, np.int64), there
    return np.where(there, ids, 0).astype(np.int64), there


def _digest(text: str) -> int:
    data = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(data, "little", signed=True)


def _ties(op: FilterOp, view: View, rows: Rows) -> Array:
    """The order in which rows of equal keys are taken: by (step, id) where rows have ids, else as they stand."""
    named = _ids(op, view, rows)
    if named is None:
        return rows
    ids, there = named
    step = view.frame.batches.step[_batches(op, view, rows)]
    position = np.empty(len(rows), np.int64)
    position[np.lexsort((rows, ids, ~there, step))] = np.arange(len(rows))
    return position


def _hashes(op: FilterOp, view: View, rows: Rows) -> Array:
    """A uniform 64-bit number per row from (step, id), or (step, batch, rank, place in the batch)."""
    batches = view.frame.batches
    batch = _batches(op, view, rows)
    state = np.full(len(rows), np.uint64(0x632BE59BD9B4E019))
    alone = op.axis is Axis.STEP  # a batch of a rank is one row
    position = np.zeros_like(rows) if alone else view.frame.parts(op.axis, Axis.STEP).position[rows]
    keys = (batches.step[batch], batches.batch[batch], batches.rank[batch], position)
    by_place = _hashed(state, keys)
    named = _ids(op, view, rows)
    return by_place if named is None else np.where(named[1], _hashed(state, (keys[0], named[0])), by_place)


def _hashed(state: NDArray[np.uint64], keys: tuple[Array, ...]) -> NDArray[np.uint64]:
    for key in keys:
        state = _mix(state ^ _mix(np.asarray(key, np.int64).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)))
    return state


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
