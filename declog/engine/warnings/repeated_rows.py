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
        self._ids = plan.ids
        self._later = {op.target for op in plan.joins}
        self._told: set[str] = set()

    def judge(self, op: TableOp, frame: Frame, rows: NDArray[np.int64], data: Mapping[str, Sequence[Any]]) -> None:
        """``rows`` are the chosen rows of the frame, and ``data`` has their values by column."""
        if (
            self._ids is None
            or op.filter is None
            or op.axis is not Axis.COMPLETION
            or op.id in self._told
            or op.phase not in self._later
        ):
            return
        ids = frame.column(self._ids, exact=True)
        if ids is None or part_of(op.phase) is not None or len(rows) > MOST:
            return
        batches = frame.parts(Axis.COMPLETION, Axis.STEP).index[rows]
        steps, ranks = frame.batches.step[batches].tolist(), frame.batches.rank[batches].tolist()
        shown = zip(*data.values(), strict=True)
        keys = zip(steps, ranks, keys_of(ids[rows]), shown, strict=True)
        seen = Counter((*key, repr(values)) for *key, values in keys)
        again = [key for key, count in seen.items() if count > 1 and key[2] is not None]
        if again:
            self._told.add(op.id)
            log.warning(
                "step %d: the table `%s` shows a completion %d times, with equal values: its rows are of `%s`, and each"
                " epoch brings completions again. `filters: {once: {unique: %s, within: step}}`, and `from: once` in"
                " the table's filter, take each once, if no two ranks have the same ids",
                again[0][0], op.id, seen[again[0]], op.phase, self._ids,
            )  # fmt: skip
