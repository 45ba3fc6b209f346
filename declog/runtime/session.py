"""A run on the training thread: its scopes, its windows, and the log events they become.

``recorder.py`` is how users reach it: it finds the scope, here everything is said explicitly. Records, and does nothing
else: what is handed over is `background.py`'s.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from declog.engine.frame import Frame
from declog.errors import InputError, UsageError
from declog.language.functions import Functions
from declog.plans.ops import Plan
from declog.runtime import timing
from declog.runtime.background import Background
from declog.runtime.batch import BatchRecord
from declog.runtime.batches import TIMERS, Holder, Intake, Locate, Waiting
from declog.runtime.call_log import CallLog
from declog.runtime.checkpoint import RecorderState
from declog.runtime.failures import Failures
from declog.runtime.lanes import Lane
from declog.runtime.log_events import LogEvents
from declog.runtime.misplaced import Misplaced, RunsAhead
from declog.runtime.next_step import NextStep
from declog.runtime.packets import Packet
from declog.runtime.scopes import Origin, Scope
from declog.runtime.self_metrics import Meter
from declog.runtime.window import Window
from declog.runtime.window_item import Answer

_AHEAD = "end one step before the next; what runs ahead says its step: with log.at({step}): ..."


class Session:
    """Every call is written on the call log before it is executed, under one lock."""

    def __init__(
        self, plan: Plan, calls: CallLog, failures: Failures, background: Background, *, functions: Functions,
        locate: Locate | None,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.calls = calls
        self.lock = threading.RLock()
        self.meter = Meter(any(profile.self_metrics for profile in plan.profiles.values()))
        self.intake = Intake(plan, calls, failures, self._keep, functions=functions, locate=locate)
        self.misplaced = Misplaced(failures, self.meter, strict=plan.strict)
        self.closed = False
        self.commits = False  # what comes without a scope is of the step that is committed next
        self.home: Origin | None = None  # whose steps they are
        self.step: Scope | None = None  # the optimizer step that is open
        self.failures = failures
        self._background = background
        # of train and of modes that count steps; the others have one in each block
        self._lanes = {
            mode: Lane(mode, ordered=mode == "train", every=op.every) for mode, op in plan.modes.items() if op.every
        }
        self.train = self._lanes.setdefault("train", Lane("train", ordered=True))  # the windows of optimizer steps
        self._entered = {"train"}  # modes
        self._last_step = 0  # of any mode
        self._next = NextStep(self.intake, self._keep_timed)  # what came without a scope, until a step ends
        self._events = LogEvents(plan, calls, failures, background, self.meter, self.misplaced)
        self.scopes: dict[int, Scope] = {}  # that are open
        self._origins: WeakKeyDictionary[Origin, int] = WeakKeyDictionary()
        self._ahead = RunsAhead()

    @property
    def now(self) -> int:
        """The step that is open, or the last one."""
        return self._last_step if self.step is None or self.step.number is None else self.step.number

    @property
    def begun(self) -> bool:
        """Whether anything came yet."""
        return bool(self._events.begun or self._events.counts or any(self._next.values()) or self.step is not None)

    def next_step(self) -> int:
        """The number after the last step's; 0 where there was none."""
        return 0 if self.train.last is None else self.train.last + 1

    def spoiled(self, scope: Scope | None) -> None:
        """The open window lacks something that this rank should have recorded."""
        lane = self.train if scope is None or scope.lane is None else scope.lane
        lane.window.whole = False

    # -- scopes

    def open(self, scope: Scope, around: Scope | None, me: Origin) -> None:
        """A scope begins, inside the one ``around`` it, if there is one. Raises ``UsageError`` where it cannot."""
        with self.lock:
            if self.calls.keeps:
                scope.origin = self._number(me)
            _OPEN[scope.kind](self, scope, around, me)
            scope.owner = me
            self.scopes[scope.id] = scope

    def end(self, scope: Scope, *, failed: bool) -> None:
        """A scope ends, and with it its batches; a window that waited for it is handed over."""
        with self.lock:
            self.scopes.pop(scope.id, None)
            if not scope.closed and not self.closed:
                word, end = _END[scope.kind]
                if not self.calls.keeps:
                    end(self, scope, failed)
                else:
                    with self.calls.call(word, failed, at=scope):
                        end(self, scope, failed)
            scope.closed = True

    def _number(self, me: Origin) -> int:
        """A number for a task or thread, for the call log."""
        return self._origins.setdefault(me, len(self._origins) + 1) if self.calls.keeps else 0

    def _open_step(self, scope: Scope, around: Scope | None, me: Origin) -> None:
        number = scope.number
        assert number is not None
        lane = self.train
        if around is not None and around.mode != "train":
            assert around.lane is not None
            lane = around.lane
            if not lane.ordered and around.kind == "step":
                raise UsageError.of("DL510.nested", step=number, open=around.number, fix="end one step before the next")
        if lane.ordered:
            if self.step is not None:
                raise UsageError.of("DL510.nested", step=number, open=self.step.number, fix=_AHEAD.format(step=number))
            if lane.last is not None and number <= lane.last:
                raise UsageError.of("DL510.rises", step=number, last=lane.last, next=lane.last + 1, back=number - 1)
        if not self.calls.keeps:
            self._begin_step(scope, lane, number, me)
        else:
            with self.calls.call("begin", number, 0 if around is None else around.id, at=scope):
                self._begin_step(scope, lane, number, me)

    def _begin_step(self, scope: Scope, lane: Lane, number: int, me: Origin) -> None:
        scope.mode, scope.lane, scope.owner, scope.began = lane.mode, lane, me, self.calls.elapsed()
        lane.enter(number)
        if lane.ordered:
            self.step, self.home = scope, me
            if self._next and (bare := self._next.bare(me)):
                self.holder(scope, me).update(bare)
        if lane.edges:
            self._events.advance(lane)

    def _end_step(self, scope: Scope, failed: bool) -> None:
        began = time.perf_counter() if self.meter.timed else 0.0
        lane, number = scope.lane, scope.number
        assert lane is not None and number is not None
        broken = True
        try:
            if scope.timed:
                self._keep_timers(scope)
            if lane.ordered and (self._next or self._next.packets):
                self._next.bind(lane, number, suppress=failed, owner=scope.owner if self.commits else None)
            if scope.holders:
                self._close(scope, suppress=failed)
            broken = failed
        finally:  # a step that fails is a step all the same: ranks stay at one count
            scope.closed = True
            self._spend(scope, lane)
            lane.leave(number)
            self._last_step = lane.last = number
            if lane.ordered:
                self.step = None
                self._ahead.steps += 1
                if self._ahead.came:
                    self._ahead.ended(number)
            if self.meter.timed:
                self.meter.steps += 1
                self.meter.recording += time.perf_counter() - began
            self._events.step_ended(lane, number, failed=broken)

    def _spend(self, scope: Scope, lane: Lane) -> None:
        """A step or a block of a mode is over: how long it took, less what was of others inside it."""
        took = self.calls.elapsed() - scope.began
        lane.spent += max(took - scope.inside, 0.0)
        around = scope.parent
        while around is not None:
            if around.kind in ("step", "mode"):
                around.inside += took
                return
            around = around.parent

    def _open_at(self, scope: Scope, around: Scope | None, me: Origin) -> None:
        assert scope.number is not None
        with self.calls.call("at", scope.number, at=scope):
            scope.lane = self.train
            self.train.enter(scope.number)

    def _end_at(self, scope: Scope, failed: bool) -> None:
        lane = scope.lane
        assert lane is not None and scope.number is not None
        try:
            self._keep_timers(scope)
            self._close(scope, suppress=failed)
        finally:
            scope.closed = True
            lane.leave(scope.number)
            self._events.advance(lane)

    def _open_mode(self, scope: Scope, around: Scope | None, me: Origin) -> None:
        mode = scope.mode
        if scope.number is None:
            scope.number = self.now if around is None or around.number is None else around.number
        with self.calls.call("enter", mode, scope.number, 0 if around is None else around.id, at=scope):
            if around is not None and me in around.holders:  # what this task had open is of before the block
                self.intake.close_all([around.holders[me]], suppress=False)
            scope.lane = self._lanes.get(mode)
            if scope.lane is None:
                scope.lane = Lane(mode, event=self._events.begin(mode))
            self._entered.add(mode)
            scope.began = self.calls.elapsed()

    def _end_mode(self, scope: Scope, failed: bool) -> None:
        lane = scope.lane
        assert lane is not None
        try:
            self._keep_timers(scope)
            self._close(scope, suppress=failed)
        finally:
            scope.closed = True
            self._spend(scope, lane)
            if lane.mode not in self._lanes and not self.closed:
                # also where nothing came since a flush: on another rank it may have
                step = scope.number if lane.last is None else lane.last
                self._events.log(lane, step or 0, None, tail=True, failed=failed, again=lane.flushed)

    def _open_batch(self, scope: Scope, around: Scope | None, me: Origin) -> None:
        if around is None or around.lane is None:
            raise UsageError.of("DL510.outside", what="batch")
        scope.block, scope.lane, scope.mode, scope.number = around, around.lane, around.mode, around.number
        with self.calls.call("batch", scope.phase, scope.rows, around.id, at=scope):
            if scope.phase is None:
                scope.holders[scope] = Holder(scope, scope.origin, once=True, piece=around.owner is not me)
                return
            scope.holders[scope] = holder = self.holder(around, me)
            self.intake.close(holder, scope.phase)
            if scope.rows is not None:
                self.intake.begin(holder, scope.phase, scope.rows)

    def _end_batch(self, scope: Scope, failed: bool) -> None:
        (holder,) = scope.holders.values()
        scope.closed = True
        for phase in list(holder) if scope.phase is None else [scope.phase]:
            self.intake.close(holder, phase, partly=failed)

    def holder(self, scope: Scope | None, me: Origin) -> Holder:
        """The open batches of a task or thread in a scope; without one, those that wait for the next step's end."""
        if scope is None:
            waiting = self._next.get(me)
            if waiting is None:
                waiting = self._next[me] = Waiting(self._number(me))
            return waiting
        holders = scope.holders
        found: Holder | None = holders.get(scope if scope.kind == "batch" else me)
        if found is None:
            piece = scope.kind == "at" or scope.owner is not me
            found = holders[me] = Holder(scope, self._number(me), piece=piece)
        return found

    def _close(self, scope: Scope, *, suppress: bool) -> None:
        """Close a scope's batches: those of its own code last, since columns of tasks may be of their rows."""
        holders = scope.holders
        own = holders.pop(scope.owner, None)
        if own is not None:
            for holder in holders.values():
                self.intake.adopt(own, holder)
            holders[scope.owner] = own
        if holders:
            self.intake.close_all(holders.values(), suppress=suppress)
            scope.holders = {}

    # -- what is recorded

    def observe(self, holder: Holder, signals: Mapping[str, Any], *, strict: bool = True) -> None:
        """Record signals; with ``strict`` a name that the profile does not know is an error."""
        if not self.calls.keeps:
            self.intake.observe(holder, signals, strict=strict)
        else:
            if strict:
                self.intake.check(signals)
            with self.calls.call("observe", signals, at=holder):
                self.intake.observe(holder, signals)
        if holder.piece and holder.scope is not None:
            self._ahead.observed(holder.scope, signals)

    def take(
        self, holder: Holder, packets: Sequence[Packet], signals: Mapping[str, Any], *, strict: bool = True
    ) -> None:
        """Record a call: its signals in the open batch, each packet in one of its own; all of it, or nothing."""
        for packet in packets:
            if strict:
                self.intake.check(packet.signals)
        if signals or not packets:
            self.observe(holder, signals, strict=strict)
        for packet in packets:
            self._consume(holder, packet)

    def _consume(self, holder: Holder, packet: Packet) -> None:
        """A packet's rows are of the holder's step; it counts once in each."""
        packet.consumed()
        scope = holder.scope
        if scope is not None:
            assert scope.lane is not None and scope.number is not None
            known = scope.lane.packets.setdefault(scope.number, set())
        else:
            known = self._next.packets
        if packet.id in known:
            self.misplaced.twice(packet, self.now if scope is None or scope.number is None else scope.number)
            return
        known.add(packet.id)
        one = Holder(scope, holder.origin, piece=True) if scope is not None else Waiting(holder.origin)
        with self.calls.call("packet", packet.signals, at=one):
            self.intake.observe(one, packet.signals)
            self.intake.close_all([one], suppress=False)
        if isinstance(holder, Waiting) and isinstance(one, Waiting):
            holder.waiting += one.waiting

    def metrics(self, holder: Holder, values: Mapping[str, Any]) -> None:
        """Record numbers under names of their own."""
        if not self.calls.keeps:
            self.intake.metrics(holder, values)
            return
        for name, value in values.items():
            with self.calls.call("metric", name, value, at=holder):
                self.intake.metrics(holder, {name: value})

    def extra(self, holder: Holder, column: str, values: Any) -> None:
        """Record a column of completions."""
        with self.calls.call("extra", column, values, at=holder):
            self.intake.extra(holder, column, values)

    def timed(self, scope: Scope | None, me: Origin, name: str, seconds: timing.Seconds) -> None:
        """Record how long a block took."""
        if scope is None:
            self.holder(None, me)
        holder = self._next[me] if scope is None else _whole(scope)
        holder.timed = {**holder.timed, name: holder.timed.get(name, timing.Timed())}
        holder.timed[name].add(seconds)

    def _keep_timers(self, scope: Scope) -> None:
        if scope.timed:
            timed, scope.timed = scope.timed, {}
            self._keep_timed(self.holder(scope, scope.owner), timed)

    def _keep_timed(self, holder: Holder, timed: Mapping[str, timing.Timed]) -> None:
        if timed and TIMERS in self.plan.sources:
            self.observe(holder, {TIMERS: timed})
        elif TIMERS not in self.plan.known:
            for name, value in timed.items():
                self.metrics(holder, {f"time/{name}": value})

    def _keep(self, holder: Holder, phase: str, record: BatchRecord) -> None:
        """A batch closed: it belongs to a window of its scope's mode, or waits for the next step."""
        scope = holder.scope
        if scope is not None:
            lane, step = scope.lane, scope.number
            assert lane is not None and step is not None
            if lane.edge is None or step > lane.edge:
                lane.add(phase, record, step)
            else:
                self._add(lane, phase, record, step)
        elif isinstance(holder, Waiting):
            holder.waiting.append((phase, record))

    def _add(self, lane: Lane, phase: str, record: BatchRecord, step: int) -> None:
        if lane.ordered and lane.edge is not None and step <= lane.edge:
            self.misplaced.late(step, max(record.rows, 1))
        else:
            lane.add(phase, record, step)

    # -- log events

    def rewind(self, step: int) -> None:
        """The trainer goes back: what was recorded until now is logged, and the next step may be the one after."""
        with self.lock, self.calls.call("rewind", step):
            lane = self.train
            if self.step is not None:
                raise UsageError.of("DL510.rewind", step=self.step.number)
            if lane.last is not None:
                self._events.finish(lane)
                self._events.log(lane, self._label(lane), None, tail=True, back=step)
            self._last_step = step
            lane.rewind(step)

    def flush(self, scope: Scope | None, answer: Answer | None = None) -> None:
        """Log what came since the last log event, in the mode of a scope."""
        with self.lock, self.calls.call("flush", at=scope):
            lane = self.train if scope is None or scope.lane is None else scope.lane
            try:
                if lane.ordered and self.step is not None:
                    self._next.bind(lane, self._label(lane), suppress=False)
                elif lane.ordered and self.plan.logged is not None:
                    self._next.bind(lane, self._label(lane), suppress=False, only=self.plan.logged.phase)
                    self._next.close_bare()
                if scope is not None:
                    self.intake.close_all(_whole(scope).holders.values(), suppress=False)
                elif self.step is not None:
                    self.intake.close_all(self.step.holders.values(), suppress=False)
            finally:  # one that fails is a log event all the same: ranks stay at one count
                lane.flushed = True
                label = self._label(lane) if lane.last is not None or scope is None else scope.number or 0
                self._events.finish(lane)
                self._events.log(lane, label, label if lane.ordered else None, tail=True, answer=answer)
                if lane.ordered:
                    lane.closed_to(lane.promise)

    def close(self, *, failed: bool) -> bool:
        """Hand the tail windows over, once; whether this call was the one."""
        with self.lock:
            if self.closed:
                return False
            self.closed = True
            with self.calls.call("close", failed):
                try:
                    self._close_open(failed)
                except Exception as error:  # noqa: BLE001  (such as columns that came after the last rows)
                    self.failures.report(error)
                if self._background.merger is not None:
                    self._background.end_merging()
                else:  # also for windows that are longer than the profile's `every`
                    for mode in sorted(self._entered, key=lambda mode: (mode != "train", mode)):  # alike on all ranks
                        for lane in self._left(mode):
                            self._events.finish(lane)
                            self._events.hand_over(lane, self._label(lane, ahead=True), None, tail=True, last=True)
        self.calls.close()
        self._ahead.report()
        return True

    def _left(self, mode: str) -> list[Lane]:
        """The windows of a mode that are open when the run ends; one that is empty where there is none."""
        if mode in self._lanes:
            return [self._lanes[mode]]
        blocks = [scope for scope in self.scopes.values() if scope.kind == "mode" and scope.mode == mode]
        return [scope.lane for scope in blocks if scope.lane is not None] or [Lane(mode)]

    def _close_open(self, failed: bool) -> None:
        """What is open when the run ends: batches and timers of scopes, and what waits for a step."""
        lane, within = self.train, bool(self.scopes)
        for scope in self.scopes.values():
            if scope.kind == "batch":
                self.intake.close_all(scope.holders.values(), suppress=True)
        for scope in self.scopes.values():
            if scope.kind != "batch":
                try:
                    self._keep_timers(scope)
                except InputError as error:
                    self.failures.report(error)
                self._close(scope, suppress=True)
        open_step = self.step is not None
        if open_step or self.plan.logged is not None:
            only = None if open_step or self.plan.logged is None else self.plan.logged.phase
            self._next.bind(lane, self._label(lane), suppress=failed or within, only=only)
        if lost := self._next.rows:
            self.misplaced.never_bound(lost)
        self._next.close_bare()

    def _label(self, lane: Lane, *, ahead: bool = False) -> int:
        """The step that a log event of now stands at; ``ahead``: that of the last rows, where they are later."""
        if lane.ordered and self.step is not None and self.step.number is not None:
            step = self.step.number
        else:
            step = self._last_step if lane.last is None else lane.last
        if not ahead:
            return step
        return max([step, *(record.step for records in lane.window.batches.values() for record in records)])

    # -- checkpoints

    def state(self, scope: Scope | None, rank: int) -> tuple[RecorderState, dict[str, Frame]]:
        """Where this rank is, and the rows of its open windows up to the last step; between two steps only.

        Other tasks may be under way: what they record is not in it.
        """
        lane = self.train
        if self.step is None:
            self.cut_logged()
        if self.step is not None or scope is not None:
            raise UsageError.of("DL510.state_in_step")
        frames: dict[str, Frame] = {}
        for mode, one in self._lanes.items():
            window = one.window
            if one.ordered and one.last is not None:
                upto = {
                    phase: [record for record in records if record.step <= one.last]
                    for phase, records in window.batches.items()
                }
                window = Window(upto, window.earlier, window.whole)
            found = window.frames(self.plan.phases, rank, self.plan.grouping, self.failures.report)
            frames |= {f"window/{mode}/{phase}": frame for phase, frame in found.items()}
        events, intake = self._events, self.intake
        mine = RecorderState(
            self._last_step, dict(events.begun), intake.order, dict(events.counts), sorted(intake.seen),
            self.calls.elapsed(), lane.last, lane.edge, lane.spent - lane.counted,
        )  # fmt: skip
        return mine, frames

    def cut_logged(self) -> None:
        """What ``log_metric`` gave between two steps goes to the window of the last one."""
        if self.plan.logged is not None:
            with self.calls.call("cut"):
                self._next.bind(self.train, self._label(self.train), suppress=True, only=self.plan.logged.phase)

    def load(self, mine: RecorderState, frames: Mapping[str, Frame]) -> None:
        """Continue where ``state`` was called."""
        with self.lock:
            self._last_step, self.intake.order = mine.step, mine.order
            self._events.load(mine.sent, mine.counts)
            self.intake.seen.update(mine.seen)
            self.calls.resume(mine.elapsed)
            if mine.counts.get("train"):
                self.train.last = mine.step if mine.train is None else mine.train
                self.train.edge = mine.edge
                self.train.spent = mine.spent
            self._entered.update(self.plan.modes)  # other ranks may have rows of others
            for name, frame in frames.items():
                kind, mode, phase = (*name.split("/", 2), "", "")[:3]
                if kind == "window":
                    self._lanes[mode].window.earlier[phase] = frame


_OPEN = {
    "step": Session._open_step, "at": Session._open_at, "mode": Session._open_mode, "batch": Session._open_batch,
}  # fmt: skip
_END = {
    "step": ("end", Session._end_step), "at": ("unat", Session._end_at), "mode": ("leave", Session._end_mode),
    "batch": ("unbatch", Session._end_batch),
}  # fmt: skip


def _whole(scope: Scope) -> Scope:
    """The scope itself, or the one that a batch is of."""
    return scope if scope.block is None else _whole(scope.block)
