"""What a window needs of those before it: rows of an earlier phase to join with, and previous values.

Kept on rank 0, by mode. Each base window passes through here once, in order, and gets the columns that its
metrics will read. Imports no torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.engine.blocks import Batches
from declog.engine.evaluator import View
from declog.engine.frame import ABSENT, Frame
from declog.errors import RuntimeFailure
from declog.language.absence import Absence
from declog.language.dtypes import Axis, DType
from declog.language.functions import DEFAULT, Functions
from declog.plans.ops import JoinOp, Plan, PreviousOp

Array = NDArray[Any]
Report = Callable[[BaseException], None]
KEPT = 4096  # steps of which is known what a run needs that goes back to one of them


class Carryover:
    """The state of one mode between its windows."""

    def __init__(self, plan: Plan, functions: Functions = DEFAULT) -> None:
        self._plan = plan
        self._functions = functions
        self._rows: dict[str, Frame] = {}  # each source phase's batches of its latest step, by rank
        self._steps: dict[str, deque[Frame]] = {
            op.source: deque(maxlen=KEPT) for op in plan.joins if op.axis is Axis.STEP
        }
        self._previous: dict[str, dict[int, deque[tuple[int, float]]]] = {op.name: {} for op in plan.previous}

    def state(self) -> tuple[dict[str, Frame], dict[str, Any]]:
        """For a checkpoint: the rows by phase, and the previous values."""
        known = {
            name: [[rank, *steps[-1]] for rank, steps in values.items() if steps]
            for name, values in self._previous.items()
        }
        return dict(self._rows), {"previous": known}

    def load(self, rows: Mapping[str, Frame], data: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        self._rows = dict(rows)
        for phase in self._steps.keys() & rows.keys():
            self._steps[phase].append(rows[phase])
        for name, values in data.get("previous", {}).items():
            self._previous[name] = {rank: deque([(step, value)], KEPT) for rank, step, value in values}

    def rewind(self, step: int) -> None:
        """What came of later steps is of no step that follows."""
        for by_rank in self._previous.values():
            for known in by_rank.values():
                while known and known[-1][0] > step:
                    known.pop()
        for phase, latest in list(self._rows.items()):
            rows = _held(*self._steps[phase]) if phase in self._steps else latest
            rows = rows.take(np.flatnonzero(rows.batches.step <= step))
            if phase in self._steps:
                self._steps[phase] = deque([rows], KEPT)
            if len(rows.batches):
                self._rows[phase] = _latest_step(rows)
            else:
                del self._rows[phase]

    def apply(self, frames: Mapping[str, Frame], report: Report) -> dict[str, Frame]:
        """The window's frames with the columns that come from other rows than theirs."""
        made = dict(frames)
        for previous in self._plan.previous:
            if previous.phase in made:
                made[previous.phase] = self._with_previous(previous, made[previous.phase])
        sources = {op.source for op in self._plan.joins}
        whole = {phase: self._searched(phase, made) for phase in sources}
        for op in self._plan.joins:
            target, source = made.get(op.target), whole[op.source]
            if target is None:
                continue
            try:
                made[op.target] = self._joined(op, source, target)
            except RuntimeFailure as error:
                report(error)
            if op.target in sources:
                whole[op.target] = self._searched(op.target, made)
        for phase in sources & made.keys():
            if phase in self._steps:
                self._steps[phase].append(made[phase])
                self._rows[phase] = _latest_step(_held(self._rows.get(phase), made[phase]))
            else:
                self._rows[phase] = _latest_rows(self._rows.get(phase), made[phase])
        return made

    def _searched(self, phase: str, frames: Mapping[str, Frame]) -> Frame | None:
        """The rows of a source that a window's rows may be looked up in: its own, and those that it still needs."""
        known, new = self._rows.get(phase), frames.get(phase)
        if known is None or new is None:
            found = new if known is None else known
            return _held(found) if found is not None and phase in self._steps else found
        if phase in self._steps:
            return _held(known, new)
        if not known.keys <= new.keys:  # members that only rows have which nobody asks for are no members here
            batches = Batches.join([known.batches, new.batches])
            needed = {
                int(item)
                for op in self._plan.joins if op.source == phase and op.target in frames
                for batch in range(len(frames[op.target].batches))
                for item in _candidates(batches, frames[op.target].batches, batch)
            }  # fmt: skip
            known = known.take(np.array([item for item in range(len(known.batches)) if item in needed], np.int64))
        return Frame.merge([known, new])

    # -- previous values

    def _with_previous(self, op: PreviousOp, frame: Frame) -> Frame:
        """Per rank, the value of the step before this one; ``first`` where there is none."""
        view = View(frame, self._functions)
        values = np.asarray(view.rows(op.expr, Axis.STEP), np.float64)
        column = np.array(view.rows(op.first, Axis.STEP), np.float64)
        gone = np.array(np.broadcast_to(view.lost(op.expr, Axis.STEP), column.shape))  # there is no step before it
        known = self._previous[op.name]
        pending: dict[int, tuple[int, float]] = {}  # of the step that is being read, by rank
        batches = zip(frame.batches.step.tolist(), frame.batches.rank.tolist(), strict=True)
        for place, (step, rank) in enumerate(batches):
            if rank in pending and pending[rank][0] != step:
                known.setdefault(rank, deque(maxlen=KEPT)).append(pending.pop(rank))
            earlier = (value for at, value in reversed(known.get(rank, ())) if at < step)  # a flush may cut a step
            if (value := next(earlier, None)) is not None:
                column[place], gone[place] = value, False
            if values[place] == values[place]:
                pending[rank] = (step, float(values[place]))
        for rank, last in pending.items():
            known.setdefault(rank, deque(maxlen=KEPT)).append(last)
        column[gone] = np.nan
        return frame.with_column(op.name, Axis.STEP, column, DType.FLOAT, absent=gone if gone.any() else False)

    # -- joins

    def _of_step(self, op: JoinOp, source: Frame | None, target: Frame) -> Frame:
        """The value of a batch's step, from a phase without rows: whenever it came in it, or held from before."""
        if source is None:
            return target  # it never came: absent
        view = View(source, self._functions)
        values, lost = np.asarray(view.rows(op.expr, Axis.STEP)), np.asarray(view.lost(op.expr, Axis.STEP))
        places = np.full(len(target.batches), -1, np.int64)
        for batch, (step, rank) in enumerate(zip(target.batches.step, target.batches.rank, strict=True)):
            known = np.flatnonzero((source.batches.rank == rank) & (source.batches.step <= step))
            if len(known):
                places[batch] = known[np.lexsort((source.batches.order[known], source.batches.step[known]))[-1]]
        rows = np.maximum(places, 0)
        gone = (places < 0) | (lost[..., rows] if lost.ndim else lost)
        if gone.all():
            return target
        members = view.members(op.expr) if op.expr.type.family else ()
        undecided = view.undecided(op.expr)
        return target.with_column(
            op.name, Axis.STEP, values[..., rows], op.expr.type.dtype, members,
            absent=gone if gone.any() else False,
            undecided=undecided[..., rows] if isinstance(undecided, np.ndarray) else undecided,
        )  # fmt: skip

    def _joined(self, op: JoinOp, source: Frame | None, target: Frame) -> Frame:
        if op.axis is Axis.STEP:
            return self._of_step(op, source, target)
        text = op.expr.type.dtype in (DType.TEXT, DType.OBJECT)
        if source is None:
            raise RuntimeFailure.of("DL511.nothing", source=op.source, target=op.target, expr=op.expr)
        view = View(source, self._functions)
        values = view.picked(op.expr, Axis.COMPLETION, np.arange(source.count(Axis.COMPLETION)))
        places, doubles = self._places(op, source, target)
        if any(not _same(values[..., [one]], values[..., [other]]) for one, other in doubles):
            count = len({one for one, _ in doubles})
            raise RuntimeFailure.of("DL511.twice", ids=self._plan.ids, phase=op.source, count=count, expr=op.expr)
        members = view.members(op.expr) if op.expr.type.family else ()
        if op.expr.type.family and not members:
            return target  # it never came
        if not values.shape[-1]:
            values = np.full((*values.shape[:-1], len(places)), None if text else np.nan)
        else:
            values = values[..., places]

        def looked_up(marks: Absence) -> Absence:
            if marks is True or marks is False:
                return marks
            assert op.expr.type.axis is not None
            return source.spread(marks, op.expr.type.axis, Axis.COMPLETION)[..., places]

        gone, undecided = looked_up(view.absent(op.expr)), looked_up(view.undecided(op.expr))
        return target.with_column(
            op.name, Axis.COMPLETION, values, op.expr.type.dtype, members, absent=gone, undecided=undecided
        )

    def _places(self, op: JoinOp, source: Frame, target: Frame) -> tuple[NDArray[np.int64], set[tuple[int, int]]]:
        """For each row of the target, its row in the source: by id, or by position where that is unambiguous.

        And the rows of one batch, two by two, that have one id, which is asked for.
        """
        ids = self._plan.ids
        source_ids = None if ids is None else source.column(ids, exact=True)
        target_ids = None if ids is None else target.column(ids, exact=True)
        if ids is not None and (source_ids is None or target_ids is None):
            phase = op.source if source_ids is None else op.target
            raise RuntimeFailure.of("DL511.ids", ids=ids, phase=phase)
        starts = np.cumsum(source.batches.rows) - source.batches.rows
        places = np.full(target.count(Axis.COMPLETION), -1, np.int64)
        at, doubles = 0, set[tuple[int, int]]()
        for batch in range(len(target.batches)):
            count = int(target.batches.rows[batch])
            mine = slice(at, at + count)
            at += count
            batches = _candidates(source.batches, target.batches, batch)
            if not len(batches):
                raise RuntimeFailure.of("DL511.first", target=op.target, source=op.source)
            if source_ids is None or target_ids is None:
                if len(batches) != 1 or source.batches.rows[batches[0]] != count:
                    sizes = source.batches.rows[batches].tolist()
                    raise RuntimeFailure.of(
                        "DL511.position", target=op.target, source=op.source, count=count, sizes=sizes
                    )
                places[mine] = starts[batches[0]] + np.arange(count)
                continue
            rows = np.concatenate([starts[item] + np.arange(source.batches.rows[item]) for item in batches])
            places[mine], doubled = _by_id(source_ids[rows], rows, target_ids[mine])
            if doubled:
                of = np.repeat(np.arange(len(source.batches)), source.batches.rows)
                doubles |= {(one, other) for one, other in doubled if of[one] == of[other]}
        if (places < 0).any():
            missing = int((places < 0).sum())
            raise RuntimeFailure.of("DL511.missing", missing=missing, target=op.target, ids=ids, source=op.source)
        return places, doubles


def _candidates(source: Batches, target: Batches, batch: int) -> NDArray[np.int64]:
    """The batches that a batch's rows are looked up in: of its rank, of the latest step that came before it."""
    now = int(target.step[batch])  # rows of later steps may be there already
    before = (source.rank == target.rank[batch]) & (
        (source.step < now) | ((source.step == now) & (source.order < target.order[batch]))
    )
    if before.any():
        before &= source.step == source.step[before].max()
    return np.flatnonzero(before)


def _by_id(known: Array, rows: NDArray[np.int64], ids: Array) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
    """The row of each id, the latest of equal ones; -1 where it is not known. And each with the others of its id."""
    pairs = list(zip(known.tolist(), rows.tolist(), strict=True))
    table = dict(pairs)
    table.pop(None, None)  # a row without an id is nobody's
    wanted = ids.tolist()
    doubled: list[tuple[int, int]] = []
    if len(table) < len(pairs):
        asked = set(wanted)
        doubled = [(table[id], row) for id, row in pairs if id in asked and table.get(id, row) != row]
    return np.array([table.get(item, -1) for item in wanted], np.int64), doubled


def _same(one: Array, other: Array) -> bool:
    """Whether two values, or those of two families, are equal; what is missing in both is."""
    pairs = zip(one.ravel().tolist(), other.ravel().tolist(), strict=True)
    return all(a == b or (a != a and b != b) for a, b in pairs)


def _latest_rows(known: Frame | None, new: Frame) -> Frame:
    """Each rank's batches of its latest step in either; most often all of it is in the new one, and nothing merges."""
    new = _latest_step(new)
    if known is None:
        return new
    steps = dict(zip(new.batches.rank.tolist(), new.batches.step.tolist(), strict=True))
    batches = zip(known.batches.rank.tolist(), known.batches.step.tolist(), strict=True)
    kept = [place for place, (rank, step) in enumerate(batches) if rank not in steps or step >= steps[rank]]
    return _latest_step(Frame.merge([known.take(np.array(kept, np.int64)), new])) if kept else new


def _held(*frames: Frame | None) -> Frame:
    """The batches of a phase without rows: each value, of each member, holds on its rank until another comes."""
    frame = Frame.merge([frame for frame in frames if frame is not None])
    if not frame.gaps:
        return frame
    batches = frame.batches
    absent = {key: row for block in frame.blocks for key, row in zip(block.keys, block.data, strict=True)}

    def latest(name: str, member: str | None) -> NDArray[np.int64]:
        """For each batch the latest one of its rank, up to it, in which a column came; else itself."""
        there = ~absent.get((name.partition(".")[0] + ABSENT, member), np.zeros(len(batches))).astype(bool)
        places = np.arange(len(batches))
        for rank in np.unique(batches.rank):
            mine = np.flatnonzero(batches.rank == rank)
            mine = mine[np.lexsort((batches.order[mine], batches.step[mine]))]
            last = np.maximum.accumulate(np.where(there[mine], np.arange(len(mine)), -1))
            places[mine] = np.where(last < 0, mine, mine[last])
        return places

    blocks = [block.some([row]).pick(latest(*key)) for block in frame.blocks for row, key in enumerate(block.keys)]
    texts = {key: (axis, values[latest(*key)]) for key, (axis, values) in frame.texts.items()}
    return Frame(frame.phase, batches, blocks, texts, frame.grouping)


def _latest_step(frame: Frame) -> Frame:
    """Each rank's batches of the latest step in which it had any."""
    keep = np.zeros(len(frame.batches), bool)
    for rank in np.unique(frame.batches.rank):
        mine = frame.batches.rank == rank
        keep |= mine & (frame.batches.step == frame.batches.step[mine].max())
    return frame.take(np.flatnonzero(keep))
