"""Selects the rows that a filter takes. The result is exact over all ranks, because every rank sends its candidates.

A filter runs twice: on each rank's rows, to choose the candidates whose texts are sent, and on the rows of all
ranks, to choose the rows that are logged. The second choice is always a subset of the candidates.

To add a kind: write a function from (op, view, rows) to rows under ``@_kind``, and add its keys to ``FilterSpec`` and
to ``KINDS`` of the compiler.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from declog.engine.evaluator import View
from declog.engine.groups import digest
from declog.language.dtypes import Axis
from declog.language.nodes import reads_other_ranks
from declog.language.segmented import Array, Segments, present, truth
from declog.plans.ops import FilterOp

Rows = NDArray[np.int64]
Chooser = Callable[[FilterOp, View, Rows], Rows]

KINDS: dict[str, Chooser] = {}  # the functions below with the decorator `_kind`, by name


def _kind(choose: Chooser) -> Chooser:
    """Register a kind of filter: the function's name is the kind's, its docstring the help."""
    KINDS[choose.__name__.removeprefix("_")] = choose
    return choose


@dataclass(frozen=True)
class Selection:
    """The rows of a table's axis that a filter took, in row order.

    ``without`` counts the rows that each filter of a chain left out because they have no key, or no label; filters that
    left none out are not in it. ``taken`` holds the rows that each filter took, on that filter's axis.
    """

    rows: Rows
    without: Sequence[tuple[FilterOp, int]] = ()
    taken: Sequence[tuple[FilterOp, Rows]] = ()


def select(op: FilterOp, view: View, rows: Rows, axis: Axis) -> Selection:
    """The rows that a filter takes from ``rows``, which are rows of ``axis``."""
    without, taken = [], []
    among = rows
    for one in op.chain:
        groups = one.axis is not axis  # the filter takes groups, and the rows are completions
        if (groups or "group" in one.within) and axis is Axis.COMPLETION:
            alone = view.frame.ungrouped
            rows = rows[:0] if alone is True else rows if alone is False else rows[~alone[rows]]
        if groups:
            index = view.frame.parts(axis, one.axis).index
            rows = np.unique(index[rows])
        if one.where is not None:
            rows = rows[truth(view.picked(one.where, one.axis, rows))]
        if one.keys:
            there = np.logical_and.reduce([present(view.picked(node, one.axis, rows)) for node in one.keys])
            # a text may have stayed on its rank; `keyed` was sent, and says whether the text exists
            sent = [truth(view.picked(node, one.axis, rows)) for node in one.keyed]
            keyed = np.logical_and.reduce(sent) if sent else there
            if not keyed.all():
                without.append((one, int(np.count_nonzero(~keyed))))
            rows = rows[there]
        rows = np.sort(KINDS[one.kind](one, view, rows))
        if one.limit is not None:
            rows = rows[: one.limit]
        taken.append((one, rows))
        if groups:
            rows = among[np.isin(index[among], rows)]
    return Selection(rows, without, taken)


def reasons(selection: Selection, view: View, axis: Axis) -> tuple[list[str], list[int] | None]:
    """The filters that took each row, as `unique, worst:bottom`. A `top_bottom` filter adds the end of its choice.

    The second list has the position of each row in the choice of the last `top_bottom` filter; None without one.
    """
    reasons_of_rows: list[list[str]] = [[] for _ in selection.rows]
    order = None
    for op, taken in selection.taken:
        end = dict.fromkeys(taken.tolist(), op.id)
        rows = selection.rows if op.axis is axis else view.frame.parts(axis, op.axis).index[selection.rows]
        if op.kind == "top_bottom":
            tops, bottoms = (taken[positions].tolist() for positions in _ends(op, view, taken))
            end = dict.fromkeys(tops, f"{op.id}:top") | dict.fromkeys(bottoms, f"{op.id}:bottom")
            chosen = {row: number for number, row in enumerate(end)}
            order = [chosen.get(row, len(chosen)) for row in rows.tolist()]
        for words, row in zip(reasons_of_rows, rows.tolist(), strict=True):
            if row in end:
                words.append(end[row])
    return [", ".join(words) for words in reasons_of_rows], order


def candidates(op: FilterOp, view: View, rows: Rows, axis: Axis) -> Rows:
    """The rows of this rank that the filter may take from the rows of all ranks: a superset of its choice.

    ``rows`` are rows of ``axis``.
    """
    first = op.chain[0]
    grouping = view.frame.grouping
    split = grouping is not None and grouping.split == "ranks"
    spread = split and any(one.axis is Axis.GROUP or "group" in one.within for one in op.chain)
    if spread or any(reads_other_ranks(node, split) for node in first.reads.values()):
        return rows
    picked = select(replace(first, limit=None), view, rows, axis).rows
    if any(one.axis is not axis for one in op.chain[1:]):  # a later filter takes groups: keep them complete
        index = view.frame.parts(axis, Axis.GROUP).index
        picked = rows[np.isin(index[rows], index[picked])]
    return picked


def _batches(op: FilterOp, view: View, rows: Rows) -> Rows:
    """The index of each row's batch in the frame."""
    frame = view.frame
    return np.asarray(frame.spread(np.arange(len(frame.batches)), Axis.STEP, op.axis)[rows])


def _scopes(op: FilterOp, view: View, rows: Rows) -> Segments:
    """The segments of rows among which the filter chooses: per window, step, batch or group, and per label."""
    frame, keys = view.frame, []
    if not len(rows):
        return Segments.single(0)
    if "group" in op.within:
        keys.append(frame.parts(op.axis, Axis.GROUP).index[rows])
    if "step" in op.within or "batch" in op.within:
        batch = _batches(op, view, rows)
        keys += [frame.batches.step[batch]] + ([frame.batches.batch[batch]] if "batch" in op.within else [])
    if op.label is not None:
        keys.append(_codes(view.picked(op.label, op.axis, rows)))
    return Segments.of_keys(*keys) if keys else Segments.single(len(rows))


def _codes(values: Array) -> Array:
    """The values, with a number in place of each distinct text or object."""
    if values.dtype.kind != "O":
        return values
    texts = [item if isinstance(item, str) else json.dumps(item, sort_keys=True) for item in values]
    return np.unique(np.array(texts, object), return_inverse=True)[1]


def _best(order: Array, scopes: Segments, n: int, ties: Array) -> Array:
    """The positions of the first ``n`` rows of each scope, by ascending ``order``, then by ``ties``."""
    if n <= 0 or not len(order):
        return np.zeros(0, np.int64)
    sorted_rows = np.lexsort((ties, order, scopes.index))
    position = np.arange(len(order)) - np.repeat(scopes.offsets, scopes.counts)
    return sorted_rows[position < n]


@_kind
def _all(op: FilterOp, view: View, rows: Rows) -> Rows:
    """Every row for which ``where`` holds."""
    return rows


@_kind
def _top_bottom(op: FilterOp, view: View, rows: Rows) -> Rows:
    """The ``top`` rows with the greatest ``key`` and, of the others, the ``bottom`` rows with the smallest."""
    chosen: Rows = rows[np.union1d(*_ends(op, view, rows))]
    return chosen


def _ends(op: FilterOp, view: View, rows: Rows) -> tuple[Array, Array]:
    """The positions of the greatest ``top`` rows, and of the smallest ``bottom`` among the remaining rows."""
    assert op.key is not None
    key = view.picked(op.key, op.axis, rows)
    key = key.astype(np.int64) if key.dtype.kind in "Ob" else key  # objects are integers, none of which is missing here
    ties = _ties(op, view, rows)
    top = _best(-key if key.dtype.kind == "f" else ~key, _scopes(op, view, rows), op.top, ties)
    rest = np.setdiff1d(np.arange(len(key)), top)
    bottom = rest[_best(key[rest], _scopes(op, view, rows[rest]), op.bottom, ties[rest])]
    return top, bottom


@_kind
def _random(op: FilterOp, view: View, rows: Rows) -> Rows:
    """``n`` random rows; a repeated run takes the same ones."""
    return rows[_best(_hashes(op, view, rows), _scopes(op, view, rows), op.n, _ties(op, view, rows))]


@_kind
def _fraction(op: FilterOp, view: View, rows: Rows) -> Rows:
    """Each row with the probability ``fraction``."""
    return rows[_hashes(op, view, rows) < op.fraction * 2.0**64]


@_kind
def _first(op: FilterOp, view: View, rows: Rows) -> Rows:
    """The first ``n`` rows."""
    return rows[_best(rows, _scopes(op, view, rows), op.n, rows)]


@_kind
def _unique(op: FilterOp, view: View, rows: Rows) -> Rows:
    """The first row of each distinct ``key``: a text, a number or an object."""
    assert op.key is not None
    keys = Segments.of_keys(_scopes(op, view, rows).index, _codes(view.picked(op.key, op.axis, rows)))
    picked: Rows = rows[keys.position == 0]
    return picked


# ---- rows by id: the same choice on any number of ranks


def _ids(op: FilterOp, view: View, rows: Rows) -> tuple[Array, Array] | None:
    """A 64-bit number for each row's id, and whether the row has an id; None without a signal of ids."""
    if op.ids is None:
        return None
    ids = view.picked(op.ids, op.axis, rows)
    there = present(ids)
    if ids.dtype.kind == "O":
        numbers = [0 if item is None else item if isinstance(item, int) else digest(item) for item in ids]
        return np.array(numbers, np.int64), there
    return np.where(there, ids, 0).astype(np.int64), there


def _ties(op: FilterOp, view: View, rows: Rows) -> Array:
    """The order of rows with equal keys: by (step, id) if rows have ids, else the order of the rows."""
    named = _ids(op, view, rows)
    if named is None:
        return rows
    ids, there = named
    step = view.frame.batches.step[_batches(op, view, rows)]
    position = np.empty(len(rows), np.int64)
    position[np.lexsort((rows, ids, ~there, step))] = np.arange(len(rows))
    return position


def _hashes(op: FilterOp, view: View, rows: Rows) -> Array:
    """A uniform 64-bit number per row, hashed from (step, id), or (step, batch, rank, position in the batch)."""
    batches = view.frame.batches
    batch = _batches(op, view, rows)
    state = np.full(len(rows), np.uint64(0x632BE59BD9B4E019))
    alone = op.axis is Axis.STEP  # one row per batch and rank
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
