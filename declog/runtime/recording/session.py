"""A run on the training thread: scopes hold steps open, batches go into steps, and windows consist of steps.

Users call ``recorder.py``, which finds the current scope; here every scope is an argument. The training thread only
records. ``background.py`` takes over from here.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from declog.engine.log_event import RESTART
from declog.errors import UsageError
from declog.plans.ops import Plan
from declog.runtime.ranks.log_event import Answer
from declog.runtime.recording import timing
from declog.runtime.recording.log_events import LogEvents
from declog.runtime.rows import taking
from declog.runtime.rows.batch import Batch
from declog.runtime.rows.batches import Intake, Locate
from declog.runtime.rows.packets import Packet
from declog.runtime.rows.pending import Pending
from declog.runtime.rows.scopes import Origin, Scope, nearest, usable
from declog.runtime.rows.steps import OpenBatches, Stream
from declog.runtime.run.failures import Failures, Refused
from declog.runtime.worker.background import Background


class Session(LogEvents):
    """A run on the training thread; one lock serialises all calls. `SeenSession` also passes them to a capture."""

    intakes = Intake  # the class of ``intake``

    def __init__(
        self, plan: Plan, clock: timing.Clock, failures: Failures, background: Background, locate: Locate | None
    ) -> None:
        super().__init__(plan, clock, failures, background)
        self.logged = None if plan.logged is None else plan.logged.phase  # the phase of numbers of ``log_metric``
        self.intake = self.intakes(plan, clock.elapsed, failures, self._keep, locate=locate)
        self._finished = False  # whether everything was handed over
        self.commits = False  # values outside of any scope belong to the step that is committed next
        self.main_task: Origin | None = None  # the task or thread that opens the steps
        self.start: int | None = None  # the last optimizer step of the run that this one resumes
        self.step: Scope | None = None  # the open optimizer step
        self.scopes: dict[int, Scope] = {}  # open scopes by id
        self.runs: set[int] = set()  # the ids of open `with log:` blocks
        self.generation: Scope | None = None  # the open batch of the trainer's generation
        self.forked = False  # whether this process is a fork of the run's
        self.drives = background.merger is not None  # a driver records nothing itself
        self.modes = {"train"}  # the modes that were entered so far
        self.open_modes: set[str] = set()  # the modes that had open windows, on any rank, in the resumed state
        self.last_step = 0  # the last step of any mode
        self.pending = Pending(self.intake, self.batches)

    @property
    def now(self) -> int:
        """The number of the open step, or else of the last step of any mode."""
        return self.last_step if self.step is None or self.step.number is None else self.step.number

    @property
    def begun(self) -> bool:
        """Whether anything was recorded yet."""
        rows = self.pending.batches or self.train.with_rows  # also rows for steps that have not begun
        return bool(self.begun_by_mode or self.counts or rows or self.step is not None)

    def stream(self, scope: Scope | None) -> Stream:
        """The stream of a scope's mode; without a scope, the stream of training steps."""
        return self.train if scope is None or scope.stream is None else scope.stream

    # -- scopes

    def open(self, scope: Scope, me: Origin) -> None:
        """Begin a scope, inside its parent if it has one. Raises ``UsageError`` if it may not begin here."""
        if self.forked:
            return
        if self.closed:
            raise UsageError.of("DL510.closed")
        kind = scope.kind
        if kind == "run":
            scope.owner = me
            self.runs.add(scope.id)
            return
        if self.drives:
            raise UsageError.of("DL510.driver")
        around = None if scope.parent is None else usable(nearest(scope.parent, scope.recorder))
        with self.lock:
            try:
                if kind in ("step", "mode"):
                    self.dropped.unentered = None
                if kind == "step":
                    scope.stream = self._stream_of_step(scope, around)
                elif kind == "batch":
                    if around is None or around.stream is None:
                        raise UsageError.of("DL510.outside", what="batch")
                    scope.block, scope.stream, scope.step = around, around.stream, around.step
                    scope.mode, scope.number = around.mode, around.number
                elif scope.number is None:
                    scope.number = self.now if around is None or around.number is None else around.number
                self._begin(scope, around, me)
            except BaseException:
                self._leave(scope)
                raise

    def end(self, scope: Scope, *, failed: bool) -> None:
        """End a scope and its batches, and hand over a window that waited for the scope.

        A refused value costs only its own batch. Raises the first error after everything else is recorded.
        """
        if self.forked:
            return
        if scope.kind == "run":
            scope.closed = True
            self.runs.discard(scope.id)
            return
        with self.lock:
            if scope.closed or self.closed:
                self._leave(scope)
                return
            refused, broken = None, True
            try:
                if scope.batches or scope.timed or self.pending.batches:
                    refused, began = Refused(self.failures, failing=failed), self.meter.clock()
                    self._close(scope, refused)
                    self.meter.recording += self.meter.clock() - began
                broken = failed or (refused is not None and refused.first is not None)
            finally:  # a failed step counts as a step, so that all ranks count the same
                self._leave(scope)
                self._end_windows(scope, failed=broken)
            if refused is not None:
                refused.check()

    def _leave(self, scope: Scope) -> None:
        """Close a scope, so that it no longer holds its step open."""
        scope.closed, scope.takes, scope.step = True, None, None  # a kept handle must not keep the rows alive
        if scope.stream is not None:
            scope.stream.leave(scope.id)
        if self.step is scope:
            self.step = None
        if self.generation is scope:
            self.generation = None
        self.scopes.pop(scope.id, None)

    def _stream_of_step(self, scope: Scope, around: Scope | None) -> Stream:
        """The stream that a step belongs to: that of training steps, or of the mode around the step.

        Raises ``UsageError`` for a step inside a step, or for a number that does not rise.
        """
        number, stream = scope.number, self.train
        assert number is not None
        if around is not None and around.mode != "train":
            assert around.stream is not None
            stream = around.stream
            if not stream.ordered and around.kind == "step":
                raise _nested(number, around.number)
        if stream.ordered:
            if self.step is not None:
                if scope.recorder.integrated:
                    raise UsageError.of("DL510.around_training", step=number, open=self.step.number)
                raise _nested(number, self.step.number, f"; what runs ahead says its step: with log.at({number}): ...")
            stream.begins(number)
        return stream

    def _begin(self, scope: Scope, around: Scope | None, me: Origin) -> None:
        """Begin a scope, after ``open`` has checked that it may begin here."""
        kind, stream, scope.owner = scope.kind, scope.stream, me
        if kind == "batch":
            assert around is not None
            self._begin_batch(scope, around, me)
        else:
            if stream is None:
                stream = self.train if kind == "at" else self._stream_of_block(scope, around, me)
            scope.stream, scope.mode, scope.began = stream, stream.mode, self.clock.elapsed()
            assert scope.number is not None
            stream.holds[scope.id] = scope.number
            scope.step = stream.step(scope.number)
            if kind == "step":
                if stream.ordered:
                    self.step, self.main_task = scope, me
                    if self.pending.batches:
                        self.pending.give_columns(scope, me)
                if stream.ends:
                    self.advance(stream)
        scope.takes = scope.recorder
        self.scopes[scope.id] = scope

    def _stream_of_block(self, scope: Scope, around: Scope | None, me: Origin) -> Stream:
        """Begin a mode's block: close the task's open batches around it, and return the block's stream."""
        if around is not None and me in around.batches:
            refused = Refused(self.failures)
            self.intake.close_all(around.batches[me], refused)
            refused.check()
        self.modes.add(scope.mode)
        return self.streams.get(scope.mode) or self.begin_block(scope.mode)

    def _begin_batch(self, scope: Scope, around: Scope, me: Origin) -> None:
        if scope.phase is None:
            batches = self.batches(scope, me)
            batches.once, batches.partial_step = True, around.owner is not me
            return
        scope.batches[scope] = batches = self.batches(around, me)
        self.intake.close(batches, scope.phase)
        if scope.phase == self.intake.explicit:
            self.generation = scope
        if scope.rows is not None:
            self.intake.begin(batches, scope.phase, scope.rows)

    def _end_windows(self, scope: Scope, *, failed: bool) -> None:
        """End the windows that end with a scope; called after its batches are closed."""
        kind, stream, number = scope.kind, scope.stream, scope.number
        assert stream is not None and number is not None
        if kind in ("step", "mode"):
            stream.spent += scope.seconds(self.clock.elapsed())
        if kind == "step":
            self.meter.steps += 1
            self.last_step = stream.last = number
            self.step_ended(stream, number, failed=failed)
        elif kind == "mode":
            if stream.mode not in self.streams and not self.closed:
                # also if this rank recorded nothing since a flush: another rank may have
                step = number if stream.last is None else stream.last
                self.log(stream, step or 0, stream.upto(None), failed=failed)
        elif kind == "at" and stream.ends:
            self.advance(stream)

    def batches(self, scope: Scope | None, me: Origin) -> OpenBatches:
        """The open batches of a task or thread in a scope; without a scope, its batches for the step that ends next."""
        by_origin = self.pending.batches if scope is None else scope.batches
        key = me if scope is None or scope.kind != "batch" else scope
        batches: OpenBatches | None = by_origin.get(key)
        if batches is None:
            if scope is None:
                batches = OpenBatches(self.pending.step, None, 0, partial_step=True)
            else:
                assert scope.step is not None
                partial = scope.kind == "at" or scope.owner is not me
                batches = OpenBatches(scope.step, scope.stream, scope.id, partial_step=partial)
            by_origin[key] = batches
        return batches

    # -- closing

    def _close(self, scope: Scope, refused: Refused) -> None:
        """Close a scope's batches. Those of its own task close last: columns of other tasks may need their rows."""
        if scope.kind == "batch":
            for batches in scope.batches.values():
                self.intake.close_all(batches, refused, only=scope.phase)
            scope.batches = {}
            return
        if scope.timed:
            timed, scope.timed = scope.timed, {}
            self.intake.timed(self.batches(scope, scope.owner), timed, refused)
        if scope is self.step and scope.step is not None and self.pending.batches:
            self.pending.absorb(scope.step, refused, owner=scope.owner if self.commits else None)
        main = scope.batches.get(scope.owner)
        for batches in scope.batches.values():
            if batches is not main:
                if main is not None:
                    main.adopt(batches)
                self.intake.close_all(batches, refused)
        if main is not None:
            self.intake.close_all(main, refused)
        scope.batches = {}

    def _absorb_logged(self, refused: Refused) -> None:
        """Move the numbers that ``log_metric`` recorded between two steps to the last step."""
        if self.logged is not None and self.pending.batches:
            self.pending.absorb(self.train.step(self._label(self.train)), refused, only=self.logged)

    # -- recording

    def take(
        self, batches: OpenBatches, packets: Sequence[Packet], signals: Mapping[str, Any], *, strict: bool = True
    ) -> None:
        """Record a call: its signals in the open batch, each packet in its own batch.

        A refused part does not affect the others; raises the first error after all parts are recorded.
        """
        refused = Refused(self.failures)
        taking.take(
            self.intake, batches, packets, signals, refused, strict=strict,
            twice=lambda packet, step: self.dropped.twice(packet, self.now if step is None else step),
        )  # fmt: skip
        refused.check()

    def drop_rows(self, scope: Scope | None, me: Origin, phase: str) -> None:
        """Drop the signals of the open batch of a phase; an announced batch begins anew, with its columns."""
        batches = self.batches(scope, me)
        batch = batches.pop(phase)
        if batch.size is not None:
            self.intake.begin(batches, phase, batch.size)
            batches[phase].extras = batch.extras

    def timed(self, scope: Scope | None, me: Origin, name: str, seconds: timing.Seconds) -> None:
        """Record the duration of a block."""
        if scope is None:
            self.batches(None, me)
            timed = self.pending.timed.setdefault(me, {})
        else:
            block = scope.outermost
            timed = block.timed = block.timed or {}
        timed.setdefault(name, timing.Timed()).add(seconds)

    def _keep(self, batches: OpenBatches, phase: str, batch: Batch) -> None:
        """Add a closed batch to its step; if the step's window is closed, the batch is late and dropped."""
        step, stream = batches.step, batches.stream
        self.deliver()  # a window whose delivery was interrupted must not get this batch
        if stream is not None and step.number is not None and stream.late(step.number):
            self.dropped.late(step.number, max(batch.rows, 1), committed=self.commits)
        else:
            if batch.ready:
                self.on_device = True
            step.add(phase, batch)

    # -- log events

    def rewind(self, step: int, *, restart: bool = False) -> None:
        """Log everything and go back: the next step may be ``step`` + 1. With ``restart`` sinks keep what is logged."""
        with self.lock:
            stream = self.train
            if self.step is not None:
                raise UsageError.of("DL510.rewind", step=self.step.number)
            if stream.last is not None:
                self.finish_windows(stream)
                self.go_back(stream, self._label(stream), RESTART if restart else step)
            self.last_step = step
            stream.rewind(step)

    def flush(self, scope: Scope | None, answer: Answer | None = None) -> None:
        """Log everything since the last log event, in the mode of ``scope``; ``answer`` gets the logged scalars."""
        with self.lock:
            self._flush(scope, answer)

    def _flush(self, scope: Scope | None, answer: Answer | None) -> None:
        stream = self.stream(scope)
        refused = Refused(self.failures)
        try:
            if stream.ordered and self.step is not None and self.step.step is not None:
                self.pending.absorb(self.step.step, refused)
            elif stream.ordered:
                self._absorb_logged(refused)
                self.pending.close_columns(refused)
            block = self.step if scope is None else scope.outermost
            if block is not None:
                for batches in block.batches.values():
                    self.intake.close_all(batches, refused)
        finally:  # a failed flush counts as a log event, so that all ranks count the same
            label = self._label(stream) if stream.last is not None or scope is None else scope.number or 0
            self.finish_windows(stream)
            in_step = stream.ordered and self.step is not None
            steps, only = (stream.upto(label), None) if in_step else stream.ended(self.logged)
            closed = stream.complete if stream.ordered and stream.last is not None else None
            self.log(stream, label, steps, answer=answer, only=only, closed=closed)
        refused.check()

    def close(self, *, failed: bool) -> None:
        """Hand over the last windows. May be called again after an interrupt."""
        with self.lock:
            if self._finished:
                return
            self.closed = True
            self._alarm.cancel()
            self._finish(failed)
            self._finished = True

    def _finish(self, failed: bool) -> None:
        self.deliver()
        refused = Refused(self.failures)
        self._close_open(failed, refused)
        if refused.first is not None:  # for instance columns that were recorded after the last rows
            self.failures.report(refused.first)
        if self.drives:
            self._background.end_merging()
            return
        self._end_steps_ahead()
        modes = self.modes | self.open_modes
        for mode in sorted(modes, key=lambda mode: (mode != "train", mode)):  # in the same order on all ranks
            for stream in self._open_streams(mode):
                self.finish_windows(stream)  # then the last log event ends all windows, also with a longer `every`
                label = self._label(stream, ahead=True)
                self.log(stream, label, stream.upto(None), failed=failed, last=True)

    def _end_steps_ahead(self) -> None:
        """End, one by one, the steps that rows were recorded for and that never began; the last log event ends one.

        It ends all of them if several ranks made steps: ranks may be ahead by other steps, and send the same events.
        """
        steps, alike = self.train.ahead, self.train.last == self.start or self._background.comm.world_size == 1
        if len(steps) > 1 and not self.train.reached:
            self.dropped.never_ended(steps)
        if len(steps) > 1 and alike:
            for step in steps:
                self.last_step = self.train.last = step
                self.step_ended(self.train, step, failed=False)

    def _open_streams(self, mode: str) -> Sequence[Stream]:
        """The open streams of a mode when the run ends; a new empty stream if none is open."""
        if mode in self.streams:
            return [self.streams[mode]]
        blocks = [scope for scope in self.scopes.values() if scope.kind == "mode" and scope.mode == mode]
        return [scope.stream for scope in blocks if scope.stream is not None] or [Stream(mode)]

    def _close_open(self, failed: bool, refused: Refused) -> None:
        """Close everything open when the run ends: batches and timers of scopes, and values that wait for a step."""
        within = Refused(self.failures, failing=True)
        waiting = Refused(self.failures, failing=failed or bool(self.scopes))
        if self.step is not None and self.step.step is not None:
            self.pending.absorb(self.step.step, waiting)
        else:
            self._absorb_logged(waiting)
        for scope in sorted(self.scopes.values(), key=lambda scope: scope.kind != "batch"):
            self._close(scope, within)
        if waiting.first is not None:
            refused.add(waiting.first)
        if rows := self.pending.rows:
            self.dropped.never_bound(rows)
        self.pending.end(refused)

    def _label(self, stream: Stream, *, ahead: bool = False) -> int:
        """The step at which a log event is logged now; with ``ahead`` the step of the last rows, if that is later."""
        step = self.last_step if stream.last is None else stream.last
        if stream.ordered and self.step is not None and self.step.number is not None:
            step = self.step.number
        return max([step, *stream.with_rows]) if ahead else step

    def cut_logged(self) -> None:
        """Move the numbers that ``log_metric`` recorded between two steps to the last step, without raising errors."""
        self._absorb_logged(Refused(self.failures, failing=True))

    def in_child(self) -> None:
        """Note that this process is a fork of the run's process: it has no threads, and its lock may stay locked."""
        self.forked = True
        self.lock = threading.RLock()


def _nested(number: int, around: int | None, ahead: str = "") -> UsageError:
    """The error of a step that begins inside the step ``around``."""
    fix = f"end one step before the next{ahead}"
    if number == around:
        fix = f"delete the inner `with log.step({number}):`, it is already step {number}"
    return UsageError.of("DL510.nested", step=number, open=around, fix=fix)
