"""Batches of the same rows, as their row ids say: one batch gets the columns of all of them. No torch.

A step's rows may be observed in several calls and by several threads, each with its part of the signals or of the rows.
Batches are of the same rows if one has the ids of all of them, and no two have a signal for the same row.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.engine.blocks import Block, Key
from declog.engine.frame import Frame
from declog.engine.joins import keys_of
from declog.engine.layout import KIND
from declog.language.dtypes import Axis

Rows = NDArray[np.int64]


class _Rows:
    """The rows of one batch, by id, and the batches that are of them, each with the rows that it has."""

    def __init__(self, frame: Frame, ids: str, per_step: Set[str]) -> None:
        values = frame.column(ids, exact=True)
        keys = [] if values is None else keys_of(values)
        self.by_id: dict[Any, int] = {key: row for row, key in enumerate(keys) if key is not None}
        if len(self.by_id) < frame.count(Axis.COMPLETION):  # rows without an id, or two with one
            self.by_id = {}
        self.host = frame
        self.batches: list[tuple[Frame, Rows]] = [(frame, np.arange(len(self.by_id)))]
        self.there: dict[str, NDArray[np.bool_]] = {}  # the rows that have a signal
        self._per_step = per_step

    def have(self, names: Set[str]) -> _Rows:
        """All rows have these signals."""
        self.there = {name: np.ones(len(self.by_id), bool) for name in names}
        return self

    def take(self, parts: Sequence[_Rows]) -> bool:
        """Add batches of some of the rows; False, and nothing is added, if two of them have one signal for a row."""
        there = dict(self.there)
        batches = [*self.batches]
        for part in parts:
            rows = np.array([self.by_id.get(id, -1) for id in part.by_id], np.int64)
            if not len(rows) or (rows < 0).any():
                return False
            for name, of_part in part.there.items():
                before = there.get(name, np.zeros(len(self.by_id), bool))
                if (before[rows] & of_part).any():
                    return False
                there[name] = before.copy()
                there[name][slice(None) if name in self._per_step else rows[of_part]] = True
            batches += [(frame, rows[inner]) for frame, inner in part.batches]
        self.there, self.batches = there, batches
        return True


def united(frames: Sequence[Frame], names: Sequence[Set[str]], ids: str, per_step: Set[str]) -> list[Frame]:
    """The batches of a step, of which those of the same rows are one; each frame has one batch, in their order.

    ``names`` has the signals of each, without those that only say which rows and tokens count, ``per_step`` those
    with a value per batch, and ``ids`` is the signal with the rows' ids.
    """
    all_rows: list[_Rows] = []
    for frame, of in zip(frames, names, strict=True):
        new = _Rows(frame, ids, per_step).have(of)
        if any(rows.take([new]) for rows in reversed(all_rows)):
            continue
        latest = {key: rows for rows in all_rows for key in rows.by_id if key in new.by_id}
        parts = [rows for rows in all_rows if rows in latest.values()]
        if parts and new.take(parts):
            all_rows = [rows for rows in all_rows if rows not in parts]
        all_rows.append(new)
    return [rows.host if len(rows.batches) == 1 else _of_all(rows) for rows in all_rows]


def _of_all(rows: _Rows) -> Frame:
    """The frame of a batch with the columns of those that are of its rows."""
    batches = sorted(rows.batches, key=lambda item: int(item[0].batches.batch[0]))
    frames = [frame for frame, _ in batches]
    merged, count = Frame.merge(frames), len(rows.by_id)
    starts = np.cumsum([0, *(frame.count(Axis.COMPLETION) for frame in frames)])
    host = next(number for number, frame in enumerate(frames) if frame is rows.host)

    def origin(key: Key, axis: Axis) -> Rows:
        """The row of the merged frame in which each row of the batch has a column; the host's if none has it."""
        in_host = starts[host] + np.arange(count) if axis is Axis.COMPLETION else np.full(1, host)
        if key in rows.host.layout.keys:
            return in_host
        for number, (frame, of_frame) in enumerate(batches):
            if key in frame.layout.keys and axis is Axis.COMPLETION:
                in_host[of_frame] = starts[number] + np.arange(len(of_frame))
            elif key in frame.layout.keys:
                in_host[:] = number
        return in_host

    blocks = []
    for block in merged.blocks:
        for row, key in enumerate(block.keys):
            if not key[0].endswith(KIND):
                blocks.append(block.some([row], (key,)).pick(origin(key, block.axis)))
    axes = {key: block.axis for block in merged.blocks for key in block.keys}
    axes |= {key: axis for key, (axis, _) in merged.texts.items()}
    for name, member in [key for key in axes if key[0].endswith(KIND)]:
        key, (number, row) = (name.removesuffix(KIND), member), merged.layout.spots[name, member]
        marks = merged.blocks[number]
        kinds = merged.spread(marks.data[row], marks.axis, axes[key])[origin(key, axes[key])]
        if kinds.any():
            blocks.append(Block(axes[key], ((name, member),), kinds[None]))
    texts = {key: (axis, values[origin(key, axis)]) for key, (axis, values) in merged.texts.items()}
    return replace(merged, batches=merged.batches.take(np.full(1, host)), blocks=blocks, texts=texts)
