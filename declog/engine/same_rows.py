"""Unites batches of the same rows, matched by row ids: one batch gets the columns of all of them.

A step's rows may be observed in several calls and by several threads, each with its part of the signals or of the rows.
Batches have the same rows if one batch has all the ids, and no two batches have the same signal for the same row.
Values per batch belong to no row: if several of the batches have some, all but one stay as batches without rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from declog.engine.blocks import Block, Key
from declog.engine.frame import Frame, ranges
from declog.engine.layout import KIND
from declog.engine.row_ids import keys_of
from declog.language.dtypes import Axis

Rows = NDArray[np.int64]
HISTOGRAM = ".hist"  # the suffix of a column with the token histogram of each batch


class Came(NamedTuple):
    """The columns of a batch, and which of them are values of rows. Ids, groups and masks are no values.

    A value is a signal, or a member of a family. ``per_step``: whether the batch has values per batch. ``block`` is the
    explicit batch that it belongs to, which takes each value of a row once.
    """

    values: Set[Key]
    columns: Set[Key]
    per_step: bool
    block: int | None = None


class SameRows:
    """The rows of one batch, the ``host``, by id, and all batches that have some of them, each with its rows."""

    def __init__(self, host: int, ids: Sequence[Any], values: Set[Key]) -> None:
        self.by_id: dict[Any, int] = {id: row for row, id in enumerate(ids) if id is not None}
        if len(self.by_id) < len(ids):  # a row has no id, or two rows have the same id
            self.by_id = {}
        self.host = host
        self.batches: list[tuple[int, Rows]] = [(host, np.arange(len(ids)))]
        self.there: dict[Key, NDArray[np.bool_]] = {value: np.ones(len(ids), bool) for value in values}
        self.complete = {*values}  # the values that all rows have

    def rows_of(self, part: SameRows) -> Rows | None:
        """The rows of ``part`` among these rows; None if it has other rows, or if both have a value for one row."""
        first = self.by_id.get(next(iter(part.by_id), None))
        both = [value for value in part.there if value in self.there] if first is not None else []
        if first is None or any(self.there[value][first] and part.there[value][0] for value in both):
            return None
        rows = np.array([self.by_id.get(id, -1) for id in part.by_id], np.int64)
        if (rows < 0).any() or any((self.there[value][rows] & part.there[value]).any() for value in both):
            return None
        return rows

    def take(self, part: SameRows) -> bool:
        """Add the batches of ``part`` if its rows are among these; returns whether they are."""
        rows = self.rows_of(part)
        if rows is None:
            return False
        for value, of_part in part.there.items():
            there = self.there[value].copy() if value in self.there else np.zeros(len(self.by_id), bool)
            there[rows[of_part]] = True
            self.there[value] = there
            if there.all():
                self.complete.add(value)
        self.batches += [(batch, rows[inner]) for batch, inner in part.batches]
        part.by_id, part.batches = {}, []
        return True


def same_rows(frame: Frame, came: Sequence[Came], ids: str, twice: Callable[[int, Key], None]) -> list[SameRows]:
    """Group the batches of each step that have the same rows; ``ids`` is the column of row ids.

    ``twice`` is called with a batch and the value that it has for a second time in its block. That batch is left out.
    """
    values = frame.column(ids, exact=True)
    keys = [None] * frame.batches.completions if values is None else keys_of(values)
    ends = np.cumsum(frame.batches.rows)
    spans = zip((ends - frame.batches.rows).tolist(), ends.tolist(), frame.batches.step.tolist(), strict=True)
    batches: list[SameRows] = []
    with_id: dict[tuple[int, Any], list[SameRows]] = {}  # by step and id of a row
    numbers: dict[tuple[int, Any], list[int]] = {}  # by step and id of a row: the batches that have it
    for number, step in enumerate(frame.batches.step.tolist()):
        for key in keys[ends[number] - frame.batches.rows[number] : ends[number]]:
            numbers.setdefault((step, key), []).append(number)
    of_blocks: dict[tuple[int, Key], set[Any]] = {}  # by block and value: the ids of the rows that have it
    for number, (begin, end, step) in enumerate(spans):
        if (block := came[number].block) is not None:
            with_value = {value: of_blocks.setdefault((block, value), set()) for value in came[number].values}
            new_ids = {id for id in keys[begin:end] if id is not None}
            if again := [value for value, before in with_value.items() if not before.isdisjoint(new_ids)]:
                twice(number, min(again, key=str))
                continue
            for before in with_value.values():
                before |= new_ids
        new = SameRows(number, keys[begin:end], came[number].values)
        batches.append(new)
        spots = [with_id.setdefault((step, id), []) for id in new.by_id]
        open_rows = [rows for rows in spots[0] if rows.complete.isdisjoint(new.complete)] if spots else []
        hosts = [rows for rows in open_rows if rows.rows_of(new) is not None]
        if hosts:
            first = next(iter(new.by_id))
            turns = 1 if len(hosts) == 1 else _turns(came, numbers[step, first], number, hosts)
            hosts[max(0, len(hosts) - turns)].take(new)
            continue
        parts_of = {rows for spot in spots for rows in spot if rows.complete.isdisjoint(new.complete)}
        latest_first = sorted(parts_of, key=lambda rows: -rows.host)
        parts = [rows for rows in latest_first if new.take(rows)]
        for spot in spots:
            if parts:
                spot[:] = [rows for rows in spot if rows.by_id]
            spot.append(new)
    return [rows for rows in batches if rows.batches]


def _turns(came: Sequence[Came], batches: Sequence[int], number: int, hosts: Sequence[SameRows]) -> int:
    """The number of batches, from this one on, that have its values and come before the hosts' values come again.

    If several epochs of one value follow several epochs of another, they are matched in their order.
    """
    turns, of_hosts = 0, set.intersection(*({*rows.there} for rows in hosts)) - came[number].values
    for batch in batches[bisect_left(batches, number) :]:
        if came[batch].values == came[number].values:
            turns += 1
        elif not of_hosts.isdisjoint(came[batch].values):
            break
    return turns


def united(frame: Frame, came: Sequence[Came], all_rows: Sequence[SameRows], per_step: Set[str]) -> Frame:
    """The frame with batches of the same rows united; ``per_step`` has the signals with a value per batch."""
    several = [rows for rows in all_rows if len(rows.batches) > 1]
    if len(all_rows) == len(frame.batches):
        return frame
    without_rows, slots = _without_rows(came, several), {rows.host: rows.host for rows in all_rows}
    for rows in several:  # the host is the last of its batches
        stay = sorted(batch for batch, _ in rows.batches if batch in without_rows)
        slots |= dict(zip([*stay, rows.host], sorted([*stay, rows.host]), strict=True))
    sources = np.array(sorted(slots, key=slots.__getitem__), np.int64)
    has_rows = np.array([batch not in without_rows for batch in sources.tolist()])
    old, spot = frame.batches, {batch: number for number, batch in enumerate(sources.tolist())}
    batches = old.take(sources)
    batches.batch = old.batch[[slots[batch] for batch in sources.tolist()]]
    for rows in several:  # the rows are present since the first of their batches
        batches.order[spot[rows.host]] = min(old.order[batch] for batch, _ in rows.batches)
    batches.rows = np.where(has_rows, batches.rows, 0)
    axes = {key: block.axis for block in frame.blocks for key in block.keys}
    axes |= {key: axis for key, (axis, _) in frame.texts.items()}
    base = {Axis.COMPLETION: ranges(old.rows, sources[has_rows]), Axis.STEP: sources}
    starts, begins = np.cumsum(old.rows) - old.rows, np.cumsum(batches.rows) - batches.rows
    moves: dict[Key, tuple[list[Rows], list[Rows]]] = {}  # by column: rows, and where they come from
    sketches: dict[Key, dict[int, list[Any]]] = {}
    for rows in several:
        number = spot[rows.host]
        for batch, of_batch in sorted(rows.batches, key=lambda item: item[0]):
            for key in came[batch].columns - came[rows.host].columns:
                to, source = of_batch + begins[number], starts[batch] + np.arange(len(of_batch))
                if axes[key] is Axis.STEP:
                    if batch in without_rows and key[0] in per_step:
                        continue
                    to, source = np.array([number]), np.array([batch])
                    if key[0].endswith(HISTOGRAM):
                        sketches.setdefault(key, {}).setdefault(number, []).extend(frame.texts[key][1][batch] or ())
                for rows_of, some in zip(moves.setdefault(key, ([], [])), (to, source), strict=True):
                    rows_of.append(some)

    def origin(key: Key) -> Rows:
        """The row of the old frame in which each row has a column; the host's if none has it."""
        if key not in moves:
            return base[axes[key]]
        rows = base[axes[key]].copy()
        to, source = map(np.concatenate, moves[key])
        rows[to] = source
        return rows

    blocks = []
    for block in frame.blocks:
        if moves.keys().isdisjoint(block.keys) and not block.keys[0][0].endswith(KIND):
            blocks.append(block.pick(base[block.axis]))
            continue
        for row, key in enumerate(block.keys):
            if not key[0].endswith(KIND):
                blocks.append(block.some([row], (key,)).pick(origin(key)))
    for name, member in [key for key in axes if key[0].endswith(KIND)]:
        key, (number, row) = (name.removesuffix(KIND), member), frame.layout.spots[name, member]
        marks = frame.blocks[number]
        kinds = frame.spread(marks.data[row], marks.axis, axes[key])[origin(key)]
        if kinds.any():
            blocks.append(Block(axes[key], ((name, member),), kinds[None]))
    texts: dict[Key, Any] = {}
    for key, (axis, values) in frame.texts.items():
        picked = values[origin(key)]
        if axis is Axis.STEP and key[0] not in per_step:  # statistics of tokens, whose rows are in the host
            picked[~has_rows] = None
        for number, sketch in sketches.get(key, {}).items():
            picked[number] = sketch
        texts[key] = axis, picked
    return replace(frame, batches=batches, blocks=blocks, texts=texts)


def _without_rows(came: Sequence[Came], several: Sequence[SameRows]) -> set[int]:
    """The batches that stay without rows: if several of the same rows have values per batch, all but the host."""
    stay: set[int] = set()
    for rows in several:
        with_values = [batch for batch, _ in rows.batches if came[batch].per_step]
        if len(with_values) > 1:
            stay.update(batch for batch in with_values if batch != rows.host)
    return stay
