"""The rows that a rank sends to rank 0: all numbers and labels, and the texts of rows that a table may take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from declog.engine import filters
from declog.engine.evaluator import View
from declog.engine.frame import Frame
from declog.engine.tables.table import EXTRA
from declog.language.dtypes import Axis
from declog.language.segmented import NOTHING
from declog.plans.ops import Plan, TableOp
from declog.runtime.rows.kept import PREFIX as KEPT
from declog.runtime.rows.kept import redacted_texts


def projected(plan: Plan, frame: Frame) -> Frame:
    """Return the frame without the texts that rank 0 does not need."""
    tables = [table for table in plan.tables if table.phase == frame.phase and gathered(plan, table)]
    texts = {name: [table for table in tables if name in table.texts] for table in tables for name in table.texts}
    extras = [table for table in tables if any(column.keeps for column in table.columns)]
    keep = {table.id: _candidates(plan, table, frame) for table in tables if table.texts or table in extras}
    sent = plan.phases[frame.phase].sent
    projected_texts = {}
    for key, (axis, values) in frame.texts.items():
        takers = extras if key[0].startswith(EXTRA) else texts.get(key[0], [])
        if key[0].startswith(KEPT):
            projected_texts[key] = axis, redacted_texts(plan, key[0], values)
        elif key[0] in sent or axis is Axis.STEP:
            projected_texts[key] = axis, values
        elif takers:
            kept = np.any([_on(frame, table.axis, keep[table.id], axis) for table in takers], axis=0)
            projected_texts[key] = axis, np.where(kept, values, NOTHING)
    return replace(frame, texts=projected_texts)


def gathered(plan: Plan, table: TableOp) -> bool:
    """Whether rank 0 builds the table from all ranks' rows: false if each rank writes its own table to every sink."""
    return plan.in_code or not table.local.issuperset(table.sinks)


def _candidates(plan: Plan, table: TableOp, frame: Frame) -> NDArray[np.bool_]:
    """The rows of the table's axis that may be in it, as a mask; with `keep: last_batch` only rows of the last batch.

    All rows if the filter raises: rank 0 reports the error if the filter also raises there.
    """
    keep, last_only = np.zeros(frame.count(table.axis), bool), table.keep == "last_batch"
    spread = frame.grouping is not None and frame.grouping.split != "none"
    if table.axis is Axis.GROUP and spread and last_only:
        return ~keep  # a group of the last batch may have begun in an earlier one
    try:
        rows = frame.last(table.axis) if last_only else np.arange(len(keep))
        if table.filter is not None:
            rows = filters.candidates(table.filter, View(frame, plan.function), rows, table.axis)
    except BaseException:  # noqa: BLE001  (a user's function may raise anything)
        return ~keep
    keep[rows] = True
    return keep


def _on(frame: Frame, axis: Axis, keep: NDArray[np.bool_], other: Axis) -> NDArray[np.bool_]:
    """The entries of another axis that belong to the kept rows, as a mask."""
    if axis is other:
        return keep
    if axis > other:
        marks = np.zeros(frame.count(other), bool)
        marks[frame.parts(axis, other).index[keep]] = True
        return marks
    return np.asarray(frame.spread(keep, axis, other))
