"""The rows of a phase that are held from window to window: those of each rank's latest step, or values per step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from declog.engine.frame import Frame
from declog.engine.layout import KIND
from declog.language.absence import absent

KEPT = 4096  # the most steps by which a run can go back


def latest_rows(held: Frame | None, new: Frame) -> Frame:
    """Each rank's batches of its latest step, from held and new rows. Usually the new rows have them all."""
    new = latest_step(new)
    if held is None:
        return new
    steps = dict(zip(new.batches.rank.tolist(), new.batches.step.tolist(), strict=True))
    batches = zip(held.batches.rank.tolist(), held.batches.step.tolist(), strict=True)
    kept = [position for position, (rank, step) in enumerate(batches) if rank not in steps or step >= steps[rank]]
    return latest_step(Frame.merge([held.take(np.array(kept, np.int64)), new])) if kept else new


def with_held_values(*frames: Frame | None) -> Frame:
    """Merge batches of a phase with values per step. A value of a member holds on its rank until the next one comes."""
    frame = Frame.merge([frame for frame in frames if frame is not None])
    if not any(name.endswith(KIND) for name in frame.layout.columns):
        return frame
    batches = frame.batches
    rows = {key: row for block in frame.blocks for key, row in zip(block.keys, block.data, strict=True)}
    here = np.zeros(len(batches), np.uint8)

    def latest(name: str, member: str | None) -> NDArray[np.int64]:
        """For each batch its rank's latest batch so far in which the column came; the batch itself if there is none."""
        there = ~absent(rows.get((name.partition(".")[0] + KIND, member), here))
        places = np.arange(len(batches))
        for rank in np.unique(batches.rank):
            of_rank = np.flatnonzero(batches.rank == rank)
            of_rank = of_rank[np.lexsort((batches.order[of_rank], batches.step[of_rank]))]
            last = np.maximum.accumulate(np.where(there[of_rank], np.arange(len(of_rank)), -1))
            places[of_rank] = np.where(last < 0, of_rank, of_rank[last])
        return places

    blocks = [
        block.some([row], (key,)).pick(latest(*key)) for block in frame.blocks for row, key in enumerate(block.keys)
    ]
    texts = {key: (axis, values[latest(*key)]) for key, (axis, values) in frame.texts.items()}
    return replace(frame, batches=batches, blocks=blocks, texts=texts)


def last_steps(frame: Frame) -> Frame:
    """The batches of the last steps, as many as a run can go back by."""
    steps = np.unique(frame.batches.step)[-KEPT:]
    return frame if len(steps) < KEPT else frame.take(np.flatnonzero(frame.batches.step >= steps[0]))


def latest_step(frame: Frame) -> Frame:
    """Each rank's batches of its latest step."""
    keep = np.zeros(len(frame.batches), bool)
    for rank in np.unique(frame.batches.rank):
        of_rank = frame.batches.rank == rank
        keep |= of_rank & (frame.batches.step == frame.batches.step[of_rank].max())
    return frame.take(np.flatnonzero(keep))
