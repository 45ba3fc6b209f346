"""Carries values from window to window: rows of an earlier phase for joins, and the previous values of expressions.

The state is kept on rank 0, by mode. The frames of each log event pass through here once, in order, and get the
joined columns that metrics read.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.engine.evaluator import View
from declog.engine.frame import EARLIER_GROUP, GROUP_ID, Frame, parted
from declog.engine.held_rows import KEPT, last_steps, latest_rows, latest_step, with_held_values
from declog.engine.reduce import Report, failure
from declog.engine.row_ids import LOOKED_UP, Search, first_batches, has_ids, on_another_rank, spans
from declog.engine.whole_steps import WholeSteps
from declog.errors import RuntimeFailure, in_flow
from declog.language.absence import absent, either
from declog.language.dtypes import Axis, DType
from declog.language.nodes import SIGNAL, Node, walk
from declog.language.notation import part_of
from declog.language.segmented import Array, Segments
from declog.plans.fingerprint import expressions
from declog.plans.needs import IDS_OF_ROWS, ROW_ID, needs_of_joins, stand_ins
from declog.plans.ops import JoinOp, Plan, PreviousOp

log = logging.getLogger("declog")
LOOKS = 4  # how often the order of two phases is looked at


class Carryover:
    """The rows and previous values that one mode carries from window to window."""

    def __init__(self, plan: Plan, report: Report) -> None:
        self._plan = plan
        self._report = report
        self._rows: dict[str, Frame] = {}  # by source phase: each rank's batches of the latest step
        self._steps: dict[str, deque[Frame]] = {
            op.source: deque(maxlen=KEPT) for op in plan.joins if op.axis is Axis.STEP
        }
        self._stand_ins = stand_ins(plan)
        self._needs = needs_of_joins(plan)
        self._groups = [
            (phase.groups_of, phase.name) for phase in plan.phases.values()
            if phase.groups_of is not None and phase.groups_of in plan.phases
        ]  # fmt: skip
        # pairs of phases: rows of the later one, the target, are looked up in the source
        self._pairs = {*self._groups, *((op.source, op.target) for op in plan.joins)}
        self._ahead = {pair: set[int]() for pair in self._pairs}  # ranks whose first target came before its own source
        self._whole_steps = WholeSteps(plan, self._is_read, self._ahead, self._matched)
        self._looks = Counter[tuple[str, str]]()  # by pair of phases: how often their order was looked at
        self._previous: dict[str, dict[int, deque[tuple[int, float]]]] = {op.name: {} for op in plan.previous}

    def state(self) -> tuple[dict[str, Frame], dict[str, Any]]:
        """The state for a checkpoint: rows by phase, and the previous values, as far as a run can go back."""
        for phase, frames in self._steps.items():
            if frames:
                self._steps[phase] = deque([last_steps(with_held_values(*frames))], KEPT)
        rows = self._rows | {phase: frames[0] for phase, frames in self._steps.items() if frames}
        held = {
            name: [[rank, *zip(*steps, strict=True)] for rank, steps in by_rank.items() if steps]
            for name, by_rank in self._previous.items()
        }
        return rows, {
            "previous": held,
            "ahead": [[*pair, sorted(ranks)] for pair, ranks in self._ahead.items() if ranks],
        }

    def load(self, rows: Mapping[str, Frame], data: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint. Earlier versions saved one previous value of each rank."""
        self._rows = {phase: latest_step(frame) if phase in self._steps else frame for phase, frame in rows.items()}
        for phase in self._steps.keys() & rows.keys():
            self._steps[phase].append(rows[phase])
        for source, target, ranks in data.get("ahead", ()):
            self._ahead[source, target] = {*ranks}
        for name, by_rank in data.get("previous", {}).items():
            self._previous[name] = {
                rank: deque(
                    zip(steps, values, strict=True) if isinstance(steps, list | tuple) else [(steps, values)], KEPT
                )
                for rank, steps, values in by_rank
            }

    def rewind(self, step: int) -> None:
        """Forget all steps after ``step``."""
        for by_rank in self._previous.values():
            for held in by_rank.values():
                while held and held[-1][0] > step:
                    held.pop()
        steps = {phase: with_held_values(*self._steps[phase]) for phase in self._steps.keys() & self._rows.keys()}
        before, _ = parted({**self._rows, **steps}, step)
        self._rows = {phase: latest_step(rows) for phase, rows in before.items()}
        self._steps |= {phase: deque([before[phase]] if phase in before else [], KEPT) for phase in steps}

    def apply(self, frames: Mapping[str, Frame]) -> dict[str, Frame]:
        """The frames with the columns that come from other phases or earlier steps."""
        joined = dict(frames)
        for previous in self._plan.previous:
            if previous.phase in joined:
                try:
                    joined[previous.phase] = self._with_previous(previous, joined[previous.phase])
                except BaseException as error:  # noqa: BLE001  (a user's function may raise anything)
                    self._report(failure(f"`{previous.expr}`", error))
        sources = {source for source, _ in self._pairs}
        searched = {phase: self._searched(phase, joined) for phase in sources}
        self._whole_steps.begin(self._rows)
        for target in (phase for phase in self._plan.phases if phase in joined):  # one may stand for rows of another
            expanded, told = self._whole_steps.with_rows(joined[target], searched)
            if expanded is not joined[target]:
                joined[target] = expanded
                searched |= {target: self._searched(target, joined)} if target in sources else {}
            for op, reason in told:
                if not self._is_stood_for(op, joined):
                    self._report(reason)
        for source, target in self._groups:
            if target in joined and (rows := searched[source]) is not None:
                joined[target] = self._with_groups(rows, joined[target])
        for op in self._plan.joins:
            if (frame := joined.get(op.target)) is None:
                continue
            try:
                joined[op.target] = self._joined(op, searched[op.source], frame)
            except RuntimeFailure as error:
                if self._is_missed(op, frame) and not self._is_stood_for(op, joined):
                    self._report(error)
            except BaseException as error:  # noqa: BLE001  (a user's function may raise anything)
                self._report(failure(f"`{op.expr}`", error))
            if op.target in sources:
                searched[op.target] = self._searched(op.target, joined)
        for phase in sources & joined.keys():
            if phase in self._steps:
                self._steps[phase].append(joined[phase])
                self._rows[phase] = latest_step(with_held_values(self._rows.get(phase), joined[phase]))
            else:
                self._rows[phase] = latest_rows(self._rows.get(phase), joined[phase])
        return joined

    def _searched(self, phase: str, frames: Mapping[str, Frame]) -> Frame | None:
        """The rows of a source phase in which targets look up their rows: the new rows, and held ones if needed."""
        held, new = self._rows.get(phase), frames.get(phase)
        if held is None or new is None:
            rows = new if held is None else held
            return with_held_values(rows) if rows is not None and phase in self._steps else rows
        if phase in self._steps:
            return with_held_values(held, new)
        begun = first_batches(new.batches)
        early = {  # the ranks whose targets begin before their new rows
            rank
            for source, target in self._pairs if source == phase and target in frames
            for rank, at in first_batches(frames[target].batches).items() if at <= begun.get(rank, at)
        }  # fmt: skip
        batches = enumerate(zip(held.batches.rank.tolist(), held.batches.step.tolist(), strict=True))
        needed = [
            batch for batch, (rank, step) in batches if rank in early or (rank in begun and step >= begun[rank][0])
        ]
        return Frame.merge([held.take(np.array(needed, np.int64)), new]) if needed else new

    # -- previous values

    def _with_previous(self, op: PreviousOp, frame: Frame) -> Frame:
        """The frame with a column of the value at each rank's previous step; ``first`` if there was none."""
        view = View(frame, self._plan.function)
        values = np.asarray(view.rows(op.expr, Axis.STEP), np.float64)
        column = np.array(view.rows(op.first, Axis.STEP), np.float64)
        nowhere = np.array(np.broadcast_to(view.absent(op.expr, Axis.STEP), column.shape))  # rows without a value
        previous = self._previous[op.name]
        pending: dict[int, tuple[int, float]] = {}  # by rank: the value of the step that is being read
        batches = zip(frame.batches.step.tolist(), frame.batches.rank.tolist(), strict=True)
        for position, (step, rank) in enumerate(batches):
            if rank in pending and pending[rank][0] != step:
                previous.setdefault(rank, deque(maxlen=KEPT)).append(pending.pop(rank))
            # a flush may cut a step in two, so the latest value may be of this step itself
            earlier = (value for at, value in reversed(previous.get(rank, ())) if at < step)
            if (value := next(earlier, None)) is not None:
                column[position], nowhere[position] = value, False
            if values[position] == values[position]:
                pending[rank] = (step, float(values[position]))
        for rank, last in pending.items():
            previous.setdefault(rank, deque(maxlen=KEPT)).append(last)
        column[nowhere] = np.nan
        return frame.with_column(op.name, Axis.STEP, column, DType.FLOAT, kind=nowhere)

    # -- joins

    def _is_missed(self, op: JoinOp, target: Frame) -> bool:
        """Whether a reader of the joined column could have a value: the target's rows have all else that it needs."""
        return bool(target.count(Axis.COMPLETION)) and self._is_read(op, target.layout.names)

    def _is_read(self, op: JoinOp, names: Collection[str]) -> bool:
        """Whether a reader of the joined column could have a value where the target has these columns."""
        folds = tuple(fold for fold in self._plan.phases[op.target].folds if f"{fold.name}.n" in names)
        folded = {leaf.param("name") for leaf in walk(*expressions(folds)) if leaf.op == SIGNAL}
        return any(
            all(any(need.name in folded or need.name in names for need in clause) for clause in clauses)
            for clauses in self._needs[op.name]
        )

    def _is_stood_for(self, op: JoinOp, frames: Mapping[str, Frame]) -> bool:
        """Whether every reader of the joined column prefers another metric, whose values came."""
        preferred = self._stand_ins.get(op.name, [])
        came = [
            not np.all(View(frames[one.phase], self._plan.function).absent(arg, one.axis))
            for one in preferred if one.phase in frames for arg in one.args
        ]  # fmt: skip
        return len(came) >= len(preferred) > 0 and all(came)

    def _of_step(self, op: JoinOp, source: Frame | None, target: Frame) -> Frame:
        """Join a phase that has values per step only: each batch gets its rank's latest value up to its step."""
        if source is None:
            return target  # the source never came: the column is absent
        view = View(source, self._plan.function)
        values, kind = np.asarray(view.rows(op.expr, Axis.STEP)), view.kind(op.expr, Axis.STEP)
        places = np.full(len(target.batches), -1, np.int64)
        for batch, (step, rank) in enumerate(zip(target.batches.step, target.batches.rank, strict=True)):
            earlier = np.flatnonzero((source.batches.rank == rank) & (source.batches.step <= step))
            if len(earlier):
                places[batch] = earlier[np.lexsort((source.batches.order[earlier], source.batches.step[earlier]))[-1]]
        rows = np.maximum(places, 0)
        kind = either(places < 0, kind if isinstance(kind, bool) else kind[..., rows])
        if np.all(absent(kind)):
            return target
        members = view.members(op.expr) if op.expr.type.family else ()
        return target.with_column(op.name, Axis.STEP, values[..., rows], op.expr.type.dtype, members, kind=kind)

    def _with_groups(self, source: Frame, target: Frame) -> Frame:
        """The target with the groups that its rows have in the source, however micro-batches divide them.

        A row that comes again in a step, as in a second epoch, belongs to a further group; in a phase of turns, or of
        other parts of a completion, to the same. A batch that cannot be matched keeps its own groups. So does a batch
        with group ids, unless it has row ids and the source has group ids, too.
        """
        search = self._search(source, target)
        standing = np.array([search.stands(span) for span in spans(target)], bool)
        if target.has(GROUP_ID) and self._plan.ids is None and not standing.any():
            return target
        groups = _earlier_groups(source)
        ids, places = np.zeros(target.count(Axis.COMPLETION), np.int64), np.full(target.count(Axis.COMPLETION), -1)
        there = ~np.repeat(standing, target.batches.rows)
        apart = target.take(np.flatnonzero(~standing)) if standing.any() else target
        if (by_target := _earlier_groups(apart)) is not None:
            ids[there] = by_target
        else:
            there[:] = False
        for batch, span in enumerate(spans(target)):
            by_ids = source.has(GROUP_ID) and has_ids(search.target_ids, span)
            if target.has(GROUP_ID) and not by_ids and not standing[batch]:
                continue
            with suppress(RuntimeFailure):
                matched, doubles = self._matched(search, batch, span)
                if groups is not None and not doubles and (matched >= 0).all():
                    ids[span], places[span], there[span] = groups[matched], matched, True
        if not len(there) or not there.all():
            return target
        step = target.batches.step[target.parts(Axis.COMPLETION, Axis.STEP).index]
        of_parts = part_of(target.phase) is not None
        epochs = np.zeros(len(step), np.int64) if of_parts else Segments.of_keys(step, places).position
        ids = _hashed(ids, np.where(places < 0, -1, epochs))
        return target.with_column(EARLIER_GROUP, Axis.COMPLETION, ids, DType.INT)

    def _joined(self, op: JoinOp, source: Frame | None, target: Frame) -> Frame:
        if op.axis is Axis.STEP:
            return self._of_step(op, source, target)
        if source is None:
            raise RuntimeFailure.of("DL511.nothing", source=op.source, target=op.target, expr=op.expr)
        view = View(source, self._plan.function)
        values = view.picked(op.expr, Axis.COMPLETION, np.arange(source.count(Axis.COMPLETION)))
        search = self._search(source, target)
        places, doubles = self._places(search, op.expr)
        count = len({one for one, _ in doubles})
        if doubles and part_of(op.source) is not None:  # rows of a turn are none of a completion, whatever they hold
            raise RuntimeFailure.of("DL511.parts", phase=op.source, count=count, expr=op.expr)
        if any(not _same(values[..., [one]], values[..., [other]]) for one, other in doubles):
            raise RuntimeFailure.of("DL511.twice", ids=self._plan.ids, phase=op.source, count=count, expr=op.expr)
        self._tell_of_order(search)
        members = view.members(op.expr) if op.expr.type.family else ()
        if op.expr.type.family and not members:
            return target  # the family never came
        if len(places) and (places < 0).all():
            return target
        rows, kind = np.maximum(places, 0), view.kind(op.expr, Axis.COMPLETION)
        values, kind = values[..., rows], kind if isinstance(kind, bool) else kind[..., rows]
        kind = either(places < 0, kind) if (places < 0).any() else kind
        return target.with_column(op.name, Axis.COMPLETION, values, op.expr.type.dtype, members, kind=kind)

    def _search(self, source: Frame, target: Frame) -> Search:
        pair = source.phase, target.phase
        return Search(source, target, self._plan.ids, self._ahead[pair], self._whole_steps.rows.get(pair))

    def _tell_of_order(self, search: Search) -> None:
        """Warn once of rows that read the step before, because they are observed before those of their own step."""
        pair = source, target = search.source.phase, search.target.phase
        if self._looks[pair] >= LOOKS:
            return
        self._looks[pair] += 1
        if (step := search.overtaken()) is not None:
            self._looks[pair] = LOOKS
            log.warning(
                "step %d: `%s` came before `%s`, so its rows read those of the step before, by their `%s`. If those of"
                " the same step are meant, observe `%s` first, or give ids that no two steps share",
                step, target, source, self._plan.ids, source,
            )  # fmt: skip

    def _places(self, search: Search, expr: Node) -> tuple[NDArray[np.int64], set[tuple[int, int]]]:
        """Find the source row of each target row: by id, or by an unambiguous position in batches without ids.

        Also returns the pairs of source rows in one batch that share an id which the target asks for. Raises DL511 if a
        row that is looked up has no source row, whose value of ``expr`` is needed.
        """
        source, target, doubles = search.source, search.target, set[tuple[int, int]]()
        places = np.full(target.count(Axis.COMPLETION), LOOKED_UP, np.int64)
        for batch, span in enumerate(spans(target)):
            if span.start == span.stop:
                continue  # nothing to match
            places[span], doubled = self._matched(search, batch, span)
            doubles |= doubled
        if (places == LOOKED_UP).any():
            words = {
                f"own_{node}": f"{node.type.axis.label} {'family' if node.type.family else node.type.dtype}"
                for node in _named(expr) if node.type.axis is not None
            }  # fmt: skip
            raise RuntimeFailure.of(
                "DL511.missing", missing=int((places == LOOKED_UP).sum()), target=target.phase, ids=self._plan.ids,
                source=source.phase, declare=in_flow({"signals": {target.phase: words}})[1:-1],
                call=", ".join(f"{name}=..." for name in words),
            )  # fmt: skip
        return places, doubles

    def _matched(self, search: Search, batch: int, span: slice) -> tuple[NDArray[np.int64], set[tuple[int, int]]]:
        """Do the same for one batch of the target, whose rows are ``span``; -1 for an id that no source row has."""
        if search.source_rows is not None and search.stands(span):
            return search.source_rows[span], set()
        source, target = search.source, search.target
        ids, count, sizes = self._plan.ids, span.stop - span.start, source.batches.rows
        batches, rows, of_source = search.of(batch)
        asked = has_ids(search.target_ids, span)
        if asked and not len(rows):
            matched = search.matched(batch, span)
            if not len(batches) and (matched[0] >= 0).all():  # so it is in each step
                search.ahead.add(int(target.batches.rank[batch]))
            if len(batches) or (matched[0] >= 0).all():
                return matched
        if not len(batches):
            first = RuntimeFailure.of("DL511.first", target=target.phase, source=source.phase)
            raise on_another_rank(source, target.phase, int(target.batches.rank[batch])) or first
        if not count:
            return np.full(count, -1, np.int64), set()
        if asked != (of_source is not None):
            raise RuntimeFailure.of("DL511.ids", ids=ids, phase=(source if asked else target).phase)
        if of_source is None or search.target_ids is None:
            if len(batches) != 1 or sizes[batches[0]] != count:
                declare = "" if ids else f"`{IDS_OF_ROWS}`, and "
                raise RuntimeFailure.of(
                    "DL511.position", target=target.phase, source=source.phase, count=count,
                    sizes=" and ".join(map(str, sizes[batches].tolist())), declare=declare, ids=ids or ROW_ID,
                )  # fmt: skip
            return rows, set()
        return search.matched(batch, span)


def _named(node: Node) -> Iterator[Node]:
    """The signals that an expression names, observed and derived; not those inside of a derived one."""
    if node.op == SIGNAL or any(map(str.isidentifier, node.names)):
        yield node
    else:
        for arg in node.args:
            yield from _named(arg)


def _earlier_groups(frame: Frame) -> Array | None:
    """A number for the group of each row, different for each group; None if the rows have no groups."""
    try:
        groups, rows = frame.parts(Axis.COMPLETION, Axis.GROUP), frame.parts(Axis.COMPLETION, Axis.STEP)
    except RuntimeFailure:
        return None
    if np.any(frame.ungrouped):
        return None
    _, first = np.unique(groups.index, return_index=True)
    batches = frame.batches.take(rows.index[first])
    return _hashed(batches.step, batches.rank, batches.batch, rows.position[first])[groups.index]


def _hashed(number: NDArray[np.int64], *parts: NDArray[np.int64]) -> NDArray[np.int64]:
    """One number for each row of several columns; it may wrap around."""
    for part in parts:
        number = number * 1_000_003 + part
    return number


def _same(one: Array, other: Array) -> bool:
    """Whether two values, or two families' values, are equal; values that are missing in both are equal."""
    pairs = zip(one.ravel().tolist(), other.ravel().tolist(), strict=True)
    return all(a == b or (a != a and b != b) for a, b in pairs)
