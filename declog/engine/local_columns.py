"""Computes columns on each rank from the rank's own texts, so that ranks send numbers and not texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.engine.evaluator import View
from declog.engine.frame import Frame, ranges
from declog.engine.layout import FAILURE
from declog.engine.row_ids import RowsById
from declog.errors import RuntimeFailure, error_text
from declog.language.absence import Kind, absent, either
from declog.language.dtypes import Axis, DType
from declog.plans.ops import LocalOp, Plan


def with_locals(frames: Mapping[str, Frame], plan: Plan) -> dict[str, Frame]:
    """A rank's frames with the columns that are computed on the rank itself.

    In place of a column that fails, the frame gets a column with the failure, per batch. Every reader raises it.
    """
    result = dict(frames)
    ops = [op for phase in plan.phases.values() if phase.name in frames for op in phase.locals]
    views: dict[str, View] = {}
    for op in sorted(ops, key=lambda op: int(op.name.removeprefix("local"))):  # a column follows those that it reads
        frame, axis = result[op.phase], op.expr.type.axis
        source = result.get(op.source or op.phase)
        if axis is None or source is None:
            continue
        name = source.phase
        if name not in views or views[name].frame is not source:
            views[name] = View(source, plan.function)
        view = views[name]
        try:
            values, kind = _computed(op, frame, view, plan.ids)
        except BaseException as error:  # noqa: BLE001  (a user's function may raise anything)
            told = np.full(frame.count(Axis.STEP), _as_text(op, error), object)
            result[op.phase] = frame.with_column(op.name + FAILURE, Axis.STEP, told, DType.TEXT)
        else:
            members = view.members(op.expr)
            if members or not op.expr.type.family:  # a family that never came gets no column
                dtype = op.expr.type.dtype
                result[op.phase] = frame.with_column(op.name, axis, values, dtype, members, kind=kind)
    return result


def _computed(op: LocalOp, frame: Frame, view: View, ids: str | None) -> tuple[NDArray[Any], Kind]:
    """The values of a local column and their kind, for the rows of ``frame``; ``view`` has the rows that it reads."""
    assert op.expr.type.axis is not None
    values, kind = np.asarray(view.rows(op.expr, op.expr.type.axis)), view.kind(op.expr)
    if op.source is None:
        return values, kind
    rows = same_rows(frame, view.frame, ids)
    kind = either(rows < 0, absent(kind[..., rows] if np.ndim(kind) else kind))
    values = values[..., rows] if values.shape[-1] else np.full(len(rows), np.nan)
    return np.where(rows < 0, np.nan, values), kind


def _as_text(op: LocalOp, error: BaseException) -> str:
    """The failure of a column as text, from which `View` raises it again on rank 0."""
    failed = error if isinstance(error, RuntimeFailure) else RuntimeFailure.of(
        "DL605.failed", what=f"`{op.expr}`", error=error_text(error), fix=None
    )  # fmt: skip
    return json.dumps([failed.code, failed.message, failed.fix])


def same_rows(frame: Frame, later: Frame, ids: str | None) -> NDArray[np.int64]:
    """For each row of a rank, the row of the same sample in a later phase of its step; -1 if it cannot be matched.

    Samples are matched by id. Without ids, a batch is matched with the next batch of the later phase if both have
    the same number of rows; with several batches in a step, only if the two phases take turns.
    """
    rows = np.full(frame.count(Axis.COMPLETION), -1, np.int64)
    later_ids, ids_here = (None if ids is None else one.column(ids, exact=True) for one in (later, frame))
    for step in np.unique(frame.batches.step):
        earlier, after = (np.flatnonzero(one.batches.step == step) for one in (frame, later))
        if later_ids is not None and ids_here is not None:
            here, there = ranges(frame.batches.rows, earlier), ranges(later.batches.rows, after)
            rows[here], _ = RowsById(later_ids[there], there).rows_of(ids_here[here])
            continue
        earlier, after = (some[np.argsort(one.batches.order[some])] for some, one in ((earlier, frame), (after, later)))
        if len(earlier) > 1 and not _in_turns(frame.batches.order[earlier], later.batches.order[after]):
            continue
        for batch, other in zip(earlier[:, None], after[:, None], strict=False):
            here, there = ranges(frame.batches.rows, batch), ranges(later.batches.rows, other)
            if len(here) == len(there):
                rows[here] = there
    return rows


def _in_turns(one: NDArray[np.int64], other: NDArray[np.int64]) -> bool:
    """Whether the batches of two phases take turns: each is followed by its counterpart."""
    if len(one) != len(other):
        return False
    first, last = np.minimum(one, other), np.maximum(one, other)
    return bool((last[:-1] < first[1:]).all())
