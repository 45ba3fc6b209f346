"""Warns once of groups that go on in the next batch or on the next rank, although `axes.group.split` says otherwise.

Such a group counts as two. So does a group of which a micro-batch has fewer rows than the rollout had. Ids that count
the groups of each batch (0, 1, 2, ...) come again in the next batch, but those groups do not go on: the last id of one
batch is not the first id of the next, unless all rows have one id. Groups whose ids come again elsewhere
are told, too, where these are of one row each or the ids do not count.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from declog.engine.frame import GROUP_ID, Frame
from declog.engine.groups import digests, id_signal
from declog.errors import RuntimeFailure
from declog.language.dtypes import Axis
from declog.language.nodes import LOGGED
from declog.language.segmented import Segments
from declog.plans.needs import of_groups, tables_of_groups
from declog.plans.ops import Plan

log = logging.getLogger("declog")
MOST = 4  # how many readers a message names
LOOKS = 20  # the groups of a phase are compared with an earlier phase's in the first so many log events
WIDER = {"none": ("batches", "ranks"), "batches": ("ranks",), "ranks": ()}
WHERE = {"batches": "in the next batch of the step", "ranks": "on the next rank"}


class SplitGroups:
    """The metrics and tables that read groups, by phase. A phase is left out after the warning about its groups."""

    def __init__(self, plan: Plan) -> None:
        shown = [op.id for op in plan.outputs if op.shown]
        self._readers = {
            phase: [*dict.fromkeys(id for id in shown if id in ids), *(op.id for op in tables_of_groups(plan, phase))]
            for phase in plan.phases if (ids := of_groups(plan, phase)) or tables_of_groups(plan, phase)
        }  # fmt: skip
        self._looks = Counter[str]()
        self._ids = plan.ids
        self._ordered = {*self._readers}  # phases whose rows came in the order of their ids so far
        self._first = {phase.name: phase.groups_of for phase in plan.phases.values()}
        phases = [phase for phase in plan.phases if phase != LOGGED]
        self._rollout = phases[0] if len(phases) > 1 else None  # rows of later phases come again in each epoch

    def judge(self, frames: Mapping[str, Frame]) -> None:
        """Warn of groups of a log event that go on, and of row ids that number the rows in another order."""
        for phase, readers in [*self._readers.items()]:
            frame, first = frames.get(phase), frames.get(self._first.get(phase) or "")
            if frame is None:
                continue
            self._looks[phase] += 1
            early = self._looks[phase] <= LOOKS
            if early and phase in self._ordered and self._ids is not None and shuffled(frame, self._ids):
                self._ordered.discard(phase)
                log.warning(
                    "%s: groups are `axes.group.size` rows in the order in which these come, and `%s` numbers them in"
                    " another: observe which group a row is of, %s, with `axes: {group: {size: null, split: batches}}`",
                    _shown(readers), self._ids, _example(frame, self._ids),
                )  # fmt: skip
            split = split_of(frame) or (divided(frame, first) if early and first is not None else None)
            rows = "group ids go on"
            if split is None and early:
                split, rows = scattered(frame, self._ids, first=phase == self._rollout), "the ids of groups come again"
            if split is not None:
                del self._readers[phase]
                log.warning(
                    "%s: %s %s, where they count as further groups: say `axes.group.split: %s` if those rows are of"
                    " one group", _shown(readers), rows, WHERE[split], split,
                )  # fmt: skip


def _shown(readers: Sequence[str]) -> str:
    return ", ".join([*readers[:MOST], *["..."] * (len(readers) > MOST)])


def split_of(frame: Frame) -> str | None:
    """The `axes.group.split` that would join groups; None if none would.

    Two groups would be joined if the last row of a batch and the first row of the next have the same id. Rows of a
    later phase may be in one group already: row ids give them the group of the earlier phase.
    """
    if not frame.by_ids or frame.grouping is None or (values := frame.column(GROUP_ID)) is None:
        return None
    batches = frame.batches
    ends = np.cumsum(batches.rows)
    some = np.flatnonzero(batches.rows)
    if len(some) < 2 or (values == values[0]).all() or (groups := _groups(frame)) is None:
        return None
    begins, lasts = (ends - batches.rows)[some], ends[some] - 1
    step, batch, rank = batches.step[some], batches.batch[some], batches.rank[some]
    for split in WIDER[frame.grouping.split]:
        within, along = (rank, batch) if split == "batches" else (batch, rank)
        order = np.lexsort((along, within, step))
        before, after = order[:-1], order[1:]
        next_to = (step[before] == step[after]) & (within[before] == within[after])
        last, first = lasts[before], begins[after]
        if (next_to & (values[last] == values[first]) & (groups[last] != groups[first])).any():
            return split
    return None


def scattered(frame: Frame, row_ids: str | None = None, *, first: bool) -> str | None:
    """The `axes.group.split` that would join groups whose ids many rows of other batches have, too; None if none.

    So it is where each call generates one completion of every prompt. Only batches of a ``first`` phase are compared,
    and ranks. Ids may number the groups of a batch: then groups of several rows, and those of an evaluation, may be
    others. A row that comes again with the same values, as in epochs or on replicas, is no further row of its group,
    but for another id in ``row_ids``.
    """
    if not frame.by_ids or frame.grouping is None or (ids := frame.column(GROUP_ID)) is None:
        return None
    groups, batches = _groups(frame), frame.batches
    if groups is None or ids.dtype.kind != "i":
        return None
    single = frame.mode in ("", "train") and len(np.unique(groups)) == len(groups)
    row = np.repeat(np.arange(len(batches)), batches.rows)
    step, batch, rank = batches.step[row], batches.batch[row], batches.rank[row]
    for split in WIDER[frame.grouping.split]:
        if first or split == "ranks":
            within, along = (rank, batch) if split == "batches" else (step, rank)
            before, after = _again(np.stack([step, within, ids]), along)
            if 4 * len(after) >= len(ids) and (single or not _are_numbers(ids, batches.rows)):
                rows = None if row_ids is None else frame.column(row_ids, exact=True)
                further = rows is not None and (rows[before] != rows[after]).any()
                return split if further or not _are_equal(frame, before, after) else None
    return None


def _are_numbers(ids: NDArray[np.int64], rows: NDArray[np.int64]) -> bool:
    """Whether the ids of each batch are small numbers, as those that count the groups of a batch, or some of these."""
    batches = [np.unique(part) for part in np.split(ids, np.cumsum(rows)[:-1])]
    most = 4 * max(map(len, batches), default=0) + 2
    numbers = np.concatenate([digests(range(most)), digests(map(str, range(most)))])
    return all(np.isin(part, numbers).all() for part in batches)


def _again(key: NDArray[np.int64], along: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows with the same ``key`` and different ``along``: the k-th row of one, and the k-th of the next."""
    nth = Segments.of_keys(*key, along).position
    order = np.lexsort((along, nth, *key))
    before, after = order[:-1], order[1:]
    again = (key[:, before] == key[:, after]).all(0) & (nth[before] == nth[after]) & (along[before] != along[after])
    return before[again], after[again]


def _are_equal(frame: Frame, before: NDArray[np.int64], after: NDArray[np.int64]) -> bool:
    """Whether a column of floats that is not constant, or every column, has the same values in both selections."""
    columns = [block.data for block in frame.blocks if block.axis is Axis.COMPLETION]
    equal = [(data[:, before] == data[:, after]).all(1) for data in columns]
    floats = (
        (same & (data != data[:, :1]).any(1)).any()
        for data, same in zip(columns, equal, strict=True) if data.dtype.kind == "f"
    )  # fmt: skip
    return any(floats) or all(same.all() for same in equal)


def _groups(frame: Frame) -> NDArray[np.int64] | None:
    """The group of each row; None if rows cannot be grouped, which the readers of groups report."""
    with suppress(RuntimeFailure):
        return frame.parts(Axis.COMPLETION, Axis.GROUP).index
    return None


def divided(frame: Frame, first: Frame) -> str | None:
    """``batches`` if a group has fewer rows than the group with the same id in the phase ``first``, else None."""
    if frame.grouping is None or frame.grouping.split != "none" or not (frame.has(GROUP_ID) and first.has(GROUP_ID)):
        return None
    least = dict[int, int]()
    for id, count in _sizes(first):
        least[id] = min(count, least.get(id, count))
    return "batches" if any(count < least.get(id, 0) for id, count in _sizes(frame)) else None


def _sizes(frame: Frame) -> list[tuple[int, int]]:
    """The id of each group, and the number of its rows."""
    ids, groups = frame.column(GROUP_ID), _groups(frame)
    if ids is None or ids.dtype.kind != "i" or groups is None:
        return []
    _, begins, counts = np.unique(groups, return_index=True, return_counts=True)
    return list(zip(ids[begins].tolist(), counts.tolist(), strict=True))


def shuffled(frame: Frame, ids: str) -> bool:
    """Whether ids number the rows of a batch, or of a step, in an order that would give other groups of one size."""
    grouping, values = frame.grouping, frame.column(ids)
    if grouping is None or grouping.size is None or frame.by_ids or values is None or values.dtype.kind != "i":
        return False
    if grouping.split != "none" and frame.has(GROUP_ID):
        return False
    batches, size = frame.batches, grouping.size
    scope = Segments.of_keys(batches.step, batches.rank, *([batches.batch] if grouping.split == "none" else []))
    piece = scope.index[frame.parts(Axis.COMPLETION, Axis.STEP).index]
    order = np.argsort(piece, kind="stable")
    for numbers in np.split(values[order], np.flatnonzero(np.diff(piece[order])) + 1):
        if len(numbers) % size or not np.array_equal(
            np.sort(numbers), numbers.min(initial=0) + np.arange(len(numbers))
        ):
            continue
        of_ids = (numbers - numbers.min(initial=0)).reshape(-1, size) // size
        if (of_ids != of_ids[:, :1]).any():
            return True
    return False


def _example(frame: Frame, ids: str) -> str:
    """An example of a value that names the group of a row, if ``ids`` number the rows."""
    assert frame.grouping is not None
    return f"such as `{id_signal(frame.grouping)}={ids} // {frame.grouping.size}`"
