"""Gives rows to batches that have values per step only: those of an earlier phase, for which they stand.

Such a batch stands for all rows of its rank in its step, or else in the latest step before. Each batch is looked at by
itself, so that the values do not depend on what else came in its window, or on other ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from declog.engine.frame import Frame
from declog.engine.layout import KIND
from declog.engine.row_ids import ABSENT, LOOKED_UP, Search, on_another_rank, rows_of_step, spans
from declog.errors import RuntimeFailure, in_flow
from declog.errors.messages import listed
from declog.language.absence import absent
from declog.language.dtypes import Axis, DType
from declog.plans.needs import IDS_OF_ROWS, ROW_ID
from declog.plans.ops import JoinOp, Plan

Ahead = Mapping[tuple[str, str], set[int]]  # by source and target: ranks
Matched = Callable[[Search, int, slice], tuple[NDArray[np.int64], set[tuple[int, int]]]]


class WholeSteps:
    """The batches of a log event that stand for rows of other phases.

    ``is_read`` says whether a reader of a join could have a value with these columns, ``matched`` finds the source rows
    of a batch that has rows; ``ahead`` has the ranks of :class:`Search`. ``rows`` has the source row of each target
    row, by source and target.
    """

    def __init__(
        self, plan: Plan, is_read: Callable[[JoinOp, Collection[str]], bool], ahead: Ahead, matched: Matched
    ) -> None:  # fmt: skip
        self._ids, self._phases = plan.ids, [*plan.phases]
        self._joins = [op for op in plan.joins if op.axis is Axis.COMPLETION]
        self._is_read, self._ahead, self._matched = is_read, ahead, matched
        self._standing: set[tuple[str, int, int]] = set()  # phase, rank and step of batches that stand for rows
        self.rows: dict[tuple[str, str], NDArray[np.int64]] = {}

    def begin(self, held: Mapping[str, Frame]) -> None:
        """Begin a log event, with the rows that are held from earlier ones."""
        self.rows.clear()
        steps = {(phase, *of) for phase, rows in held.items() for of in _ranks_and_steps(rows)}
        self._standing &= steps

    def with_rows(
        self, target: Frame, sources: Mapping[str, Frame | None]
    ) -> tuple[Frame, list[tuple[JoinOp, RuntimeFailure]]]:
        """The target with the rows that its batches stand for, and what is told of joins of which that is not known."""
        searched = {phase: rows for phase, rows in sources.items() if rows is not None}
        joins = [op for op in self._joins if op.target == target.phase and op.source in searched]
        told: dict[tuple[str, str], tuple[JoinOp, RuntimeFailure]] = {}
        standing: dict[int, dict[str, NDArray[np.int64]]] = {}  # by batch: the rows of each source
        for (rank, step), (first, names, twice) in _of_steps(target).items() if joins else ():
            read = [op for op in joins if self._is_read(op, names)]
            latest = {op.source: rows_of_step(searched[op.source].batches, rank, step) for op in read}
            for op in read:
                if (elsewhere := on_another_rank(searched[op.source], op.target, rank)) is not None:
                    told.setdefault((op.source, "rank"), (op, elsewhere))
            steps = {source: of for source, (of, rows) in latest.items() if len(rows)}
            if not steps:
                continue
            source = max(steps, key=lambda phase: (steps[phase], self._phases.index(phase)))
            unclear = [op for op in read if not self._is_read(op, names - twice)]
            if unclear:
                told.setdefault((source, "several"), (unclear[0], self._of_several(target.phase, source)))
                continue
            rows = latest[source][1]
            standing[first] = {source: rows}
            for op in read:
                if op.source == source or op.source not in steps or op.source in standing[first]:
                    continue
                same = self._same_rows(searched[source], searched[op.source], (rank, steps[source]), rows)
                if same is not None:
                    standing[first][op.source] = same
                else:
                    error = _of_other_rows(op, source, len(rows), len(latest[op.source][1]), names)
                    told.setdefault((op.source, "rows"), (op, error))
        return self._expanded(target, standing, searched, joins), [*told.values()]

    def _expanded(
        self,
        target: Frame,
        standing: Mapping[int, Mapping[str, NDArray[np.int64]]],
        sources: Mapping[str, Frame],
        joins: Collection[JoinOp],
    ) -> Frame:
        """The target with these rows and their ids; its other batches stay as they are."""
        if not standing:
            return target
        counts = target.batches.rows.copy()
        for batch, by_source in standing.items():
            counts[batch] = len(next(iter(by_source.values())))
            self._standing.add((target.phase, int(target.batches.rank[batch]), int(target.batches.step[batch])))
        chosen = np.zeros(len(counts), bool)
        chosen[[*standing]] = True
        stands, keeps = _per_step(target.take(np.flatnonzero(chosen))), target.take(np.flatnonzero(~chosen))
        stands = replace(stands, batches=replace(stands.batches, rows=counts[chosen]))
        rows_of = [next(iter(standing[batch].items())) for batch in np.flatnonzero(chosen).tolist()]
        stands = self._with_ids(stands, rows_of, sources)
        frame = Frame.merge([stands, keeps])  # batches are in order, so each keeps its position
        for source in {op.source for op in joins}:
            rows = self.rows[source, target.phase] = np.full(frame.count(Axis.COMPLETION), LOOKED_UP, np.int64)
            for batch, span in enumerate(spans(frame)):
                if chosen[batch]:
                    rows[span] = standing[batch].get(source, ABSENT)
        return frame

    def _with_ids(
        self, stands: Frame, rows: Sequence[tuple[str, NDArray[np.int64]]], sources: Mapping[str, Frame]
    ) -> Frame:
        """Batches with the ids of the rows for which they stand: of each batch, the source and the rows there."""
        if self._ids is None or stands.has(self._ids):
            return stands
        ids = {source: sources[source].column(self._ids, exact=True) for source, _ in rows}
        if all(column is None for column in ids.values()):
            return stands
        dtype = DType.TEXT if any((self._ids, None) in sources[source].texts for source in ids) else DType.INT
        values = np.full(stands.count(Axis.COMPLETION), None, object)
        for span, (source, of_batch) in zip(spans(stands), rows, strict=True):
            if (column := ids[source]) is not None:
                values[span] = column[of_batch]
        return stands.with_column(self._ids, Axis.COMPLETION, values, dtype)

    def _same_rows(
        self, source: Frame, other: Frame, of: tuple[int, int], rows: NDArray[np.int64]
    ) -> NDArray[np.int64] | None:
        """The rows of another phase that are the same as all rows of ``source`` in a step; None if they are not."""
        if self._phases.index(other.phase) > self._phases.index(source.phase):
            return None
        _, of_other = rows_of_step(other.batches, *of)
        if (source.phase, *of) in self._standing:
            return of_other if len(of_other) == len(rows) else None
        batches = source.batches
        search = Search(other, source, self._ids, self._ahead.get((other.phase, source.phase), set()))
        matched = [np.zeros(0, np.int64)]
        for batch, span in enumerate(spans(source)):
            if (batches.rank[batch], batches.step[batch]) == of and span.start < span.stop:
                try:
                    matched.append(self._matched(search, batch, span)[0])
                except RuntimeFailure:
                    return None
        same = np.concatenate(matched)
        return same if np.array_equal(np.sort(same), of_other) else None

    def _of_several(self, target: str, source: str) -> RuntimeFailure:
        declare, ids = "" if self._ids else f"`{IDS_OF_ROWS}`, and ", self._ids or ROW_ID
        return RuntimeFailure.of("DL511.rowless", target=target, source=source, declare=declare, ids=ids)


def _of_other_rows(op: JoinOp, source: str, count: int, rows: int, names: Collection[str]) -> RuntimeFailure:
    words = {f"{name}_of_{op.source}": "step" for name in sorted(names) if name.isidentifier()}
    return RuntimeFailure.of(
        "DL511.stands", target=op.target, source=source, count=count, other=op.source, rows=rows, expr=op.expr,
        declare=in_flow({"signals": {op.source: words}})[1:-1], call=", ".join(f"{name}=..." for name in words),
        reads=listed([*words], 4, "or"),
    )  # fmt: skip


def _of_steps(target: Frame) -> dict[tuple[int, int], tuple[int, set[str], set[str]]]:
    """By rank and step without any rows: the first batch, the columns that came, and those that came several times."""
    batches, rowless = target.batches, target.rowless
    if not rowless.any():
        return {}
    of: dict[tuple[int, int], list[int]] = defaultdict(list)
    for batch in np.lexsort((batches.order, batches.step)).tolist():
        of[int(batches.rank[batch]), int(batches.step[batch])].append(batch)
    without_rows = {key: some for key, some in of.items() if rowless[some].all()}
    marks = {
        name: np.broadcast_to(absent(target.kind(name, Axis.STEP)), (*_members(target, name), len(batches)))
        for name in (_names_per_step(target) if without_rows else ())
    }
    came = {name: np.atleast_1d(~mark.reshape(-1, len(batches)).all(axis=0)) for name, mark in marks.items()}
    result = {}
    for key, some in without_rows.items():
        counts = {name: int(there[some].sum()) for name, there in came.items()}
        names = {name for name, count in counts.items() if count}
        result[key] = some[0], names, {name for name in names if counts[name] > 1}
    return result


def _members(frame: Frame, name: str) -> tuple[int, ...]:
    members = frame.members(name)
    return (len(members),) if members else ()


def _names_per_step(frame: Frame) -> set[str]:
    blocks = {name for block in frame.blocks if block.axis is Axis.STEP for name, _ in block.keys}
    texts = {name for (name, _), (axis, _) in frame.texts.items() if axis is Axis.STEP}
    return {name for name in blocks | texts if not name.endswith(KIND)}


def _per_step(frame: Frame) -> Frame:
    """The frame with its columns per step, and the kinds of these."""
    names = _names_per_step(frame)
    blocks = []
    for block in frame.blocks:
        kept = [row for row, (name, _) in enumerate(block.keys) if name.removesuffix(KIND) in names]
        if kept and block.axis is Axis.STEP:
            blocks.append(block.some(np.array(kept, np.int64), tuple([block.keys[row] for row in kept])))
    return replace(frame, blocks=blocks, texts={key: one for key, one in frame.texts.items() if one[0] is Axis.STEP})


def _ranks_and_steps(frame: Frame) -> set[tuple[int, int]]:
    return {*zip(frame.batches.rank.tolist(), frame.batches.step.tolist(), strict=True)}
