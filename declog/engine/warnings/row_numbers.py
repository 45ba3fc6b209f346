"""Warns once of row ids that start from 0 in each micro-batch: all batches then match an earlier phase's first rows.

Epochs over these rows alone have the same ids, and values that come again. Batches that take turns with those of the
earlier phase have the same ids, too. Neither causes a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from declog.engine.frame import GROUP_ID, Frame, ranges
from declog.language.dtypes import Axis
from declog.plans.ops import Plan

log = logging.getLogger("declog")
LOOKS = 20  # the ids of two phases are compared in the first so many log events


class RowNumbers:
    """The pairs of an earlier and a later phase whose rows are matched by ids that may start from 0 in each batch."""

    def __init__(self, plan: Plan) -> None:
        pairs = [(op.source, op.target) for op in plan.joins if op.axis is Axis.COMPLETION]
        for phase in plan.phases.values():
            pairs += [(phase.name, op.source) for op in phase.locals if op.source is not None]
        self._pairs = dict.fromkeys(pairs, LOOKS) if plan.ids is not None else {}
        self._ids = str(plan.ids)
        self._marks = {self._ids, GROUP_ID, *(() if plan.grouping is None else plan.grouping.of)}

    def judge(self, frames: Mapping[str, Frame]) -> None:
        """Warn of ids that start from 0 in each batch of a log event, whose phases must not be joined yet."""
        for (source, target), looks in [*self._pairs.items()]:
            first, frame = frames.get(source), frames.get(target)
            if first is None or frame is None:
                continue
            self._pairs[source, target] -= 1
            values = [one.column(self._ids) for one in (first, frame)]
            if (
                looks == 1
                or any(one is None or one.dtype.kind != "i" for one in values)
                or not _from_0(frame, values[1])
            ):
                del self._pairs[source, target]
            elif (anew := self._anew(first, frame)) is not None:
                del self._pairs[source, target]
                step, count, most, rows = anew
                log.warning(
                    "`%s` of phase `%s` counts from 0 in each of the %d batches of step %d: all their rows are taken"
                    " for the first %d of the %d rows of `%s`. Number the rows of the whole generation:"
                    " `for rows in torch.arange(%d).split(%d): log.observe(..., %s=rows)`",
                    self._ids, target, count, step, most, rows, source, rows, most, self._ids,
                )  # fmt: skip

    def _anew(self, first: Frame, frame: Frame) -> tuple[int, int, int, int] | None:
        """A step in which later batches have the rows of the earlier phase once or several times, by their number.

        By their ids they would have the first rows only. Returns the step, the number of the batches, the rows of the
        longest batch, and the rows of the earlier phase; None: there is no such step.
        """
        earlier, later = first.batches, frame.batches
        for step, rank in sorted({*zip(later.step.tolist(), later.rank.tolist(), strict=True)}):
            before, some = (np.flatnonzero((one.step == step) & (one.rank == rank)) for one in (earlier, later))
            some = some[np.argsort(later.order[some])]
            rows, most, total = int(earlier.rows[before].sum()), int(later.rows[some].max()), later.rows[some].sum()
            if (
                not rows
                or not total
                or most >= rows
                or total % rows
                or earlier.order[before].max() > later.order[some[0]]
            ):
                continue
            if not self._come_again(frame, some[np.cumsum(later.rows[some]) <= rows]):
                return step, len(some), most, rows
        return None

    def _come_again(self, frame: Frame, batches: NDArray[np.int64]) -> bool:
        """Whether two successive batches have equal values in a column whose values differ from row to row."""
        for one, other in pairwise(ranges(frame.batches.rows, np.array([batch])) for batch in batches):
            for block in frame.blocks:
                if block.axis is Axis.COMPLETION and len(one) == len(other):
                    before, after = block.data[:, one], block.data[:, other]
                    same = (before == after).all(1) & (before != before[:, :1]).any(1)
                    if any(same[row] and name not in self._marks for row, (name, _) in enumerate(block.keys)):
                        return True
        return False


def _from_0(frame: Frame, ids: NDArray[np.int64] | None) -> bool:
    """Whether the ids of each batch count its rows from 0."""
    begins = np.repeat(np.cumsum(frame.batches.rows) - frame.batches.rows, frame.batches.rows)
    return np.array_equal(np.arange(len(begins)) - begins, ids if ids is not None else [])
