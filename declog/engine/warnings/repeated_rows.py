"""Warns once of a table that shows a completion several times with equal values, as where epochs bring it again."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.engine.frame import Frame
from declog.engine.row_ids import keys_of
from declog.language.dtypes import Axis
from declog.language.notation import part_of
from declog.plans.ops import Plan, TableOp

log = logging.getLogger("declog")
MOST = 1_000  # a filter that chooses more rows of a window shows nobody single completions


class RepeatedRows:
    """Looks at the tables whose filter chooses few rows of a later phase, until one shows a completion again.

    Without ids of rows, no row is known to be another one's completion.
    """

    def __init__(self, plan: Plan) -> None:
        self._ids = plan.ids or ""
        later = {op.target for op in plan.joins if part_of(op.target) is None}
        self._watched = {
            op.id for op in plan.tables
            if self._ids and op.filter is not None and op.axis is Axis.COMPLETION and op.phase in later
        }  # fmt: skip

    def judge(self, op: TableOp, frame: Frame, rows: NDArray[np.int64], data: Mapping[str, Sequence[Any]]) -> None:
        """``rows`` are the chosen rows of the frame, and ``data`` has their values by column."""
        if op.id not in self._watched or len(rows) > MOST or (ids := frame.column(self._ids, exact=True)) is None:
            return
        batches = frame.parts(Axis.COMPLETION, Axis.STEP).index[rows]
        steps, ranks = frame.batches.step[batches].tolist(), frame.batches.rank[batches].tolist()
        shown = zip(*data.values(), strict=True)
        keys = zip(steps, ranks, keys_of(ids[rows]), shown, strict=True)
        seen = Counter((*key, repr(values)) for *key, values in keys)
        again = [key for key, count in seen.items() if count > 1 and key[2] is not None]
        if again:
            self._watched.remove(op.id)
            log.warning(
                "step %d: the table `%s` shows a completion %d times, with equal values: its rows are of `%s`, and each"
                " epoch brings completions again. `filters: {once: {unique: %s, within: step}}`, and `from: once` in"
                " the table's filter, take each once, if no two ranks have the same ids",
                again[0][0], op.id, seen[again[0]], op.phase, self._ids,
            )  # fmt: skip
