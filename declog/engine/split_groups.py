"""Warns once of groups that go on in the next batch or on the next rank, where `axes.group.split` says none. No torch.

There they count as two groups. Ids that count the groups of a batch (0, 1, 2, ...) come again in the next and go on in
none: the last of one batch is not the first of the next, unless all rows have one id.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from declog.engine.frame import GROUP_ID, Frame
from declog.plans.needs import of_groups, tables_of_groups
from declog.plans.ops import Plan

log = logging.getLogger("declog")
MOST = 4  # how many readers a message names
WIDER = {"none": ("batches", "ranks"), "batches": ("ranks",), "ranks": ()}
WHERE = {"batches": "in the next batch of the step", "ranks": "on the next rank"}


class SplitGroups:
    """The metrics and tables that read groups, by phase, until groups go on where they should end."""

    def __init__(self, plan: Plan) -> None:
        shown = [op.id for op in plan.outputs if op.shown]
        self._readers = {
            phase: [*dict.fromkeys(id for id in shown if id in ids), *(op.id for op in tables_of_groups(plan, phase))]
            for phase in plan.phases if (ids := of_groups(plan, phase)) or tables_of_groups(plan, phase)
        }  # fmt: skip

    def judge(self, frames: Mapping[str, Frame]) -> None:
        """Warn of the groups of a log event that go on."""
        for phase, readers in [*self._readers.items()]:
            frame = frames.get(phase)
            if frame is None or (split := split_of(frame)) is None:
                continue
            del self._readers[phase]
            names = ", ".join([*readers[:MOST], *["..."] * (len(readers) > MOST)])
            log.warning(
                "%s: group ids go on %s, where they count as further groups: say `axes.group.split: %s` if those rows"
                " are of one group", names, WHERE[split], split,
            )  # fmt: skip


def split_of(frame: Frame) -> str | None:
    """The `axes.group.split` that would join groups of these rows: the id of a batch's last row begins the next one."""
    if not frame.by_ids or frame.ids != GROUP_ID or frame.grouping is None:
        return None
    if (values := frame.column(GROUP_ID)) is None:
        return None
    batches = frame.batches
    ends = np.cumsum(batches.rows)
    some = np.flatnonzero(batches.rows)
    if len(some) < 2 or (values == values[0]).all():
        return None
    first, last = values[(ends - batches.rows)[some]], values[ends[some] - 1]
    step, batch, rank = batches.step[some], batches.batch[some], batches.rank[some]
    for split in WIDER[frame.grouping.split]:
        within, along = (rank, batch) if split == "batches" else (batch, rank)
        order = np.lexsort((along, within, step))
        before, after = order[:-1], order[1:]
        next_to = (step[before] == step[after]) & (within[before] == within[after])
        if (next_to & (last[before] == first[after])).any():
            return split
    return None
