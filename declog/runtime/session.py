"""A run on the training thread: its steps, the modes that it is in, its windows, and the log events they become.

``recorder.py`` is how users reach it. Records, and does nothing else: what is handed over is `background.py`'s.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from declog.engine.frame import Frame
from declog.errors import InputError, UsageError
from declog.language.functions import Functions
from declog.plans.ops import Plan
from declog.runtime import timing
from declog.runtime.background import Background
from declog.runtime.batch import BatchRecord
from declog.runtime.batches import TIMERS, Intake, Locate
from declog.runtime.call_log import Tape
from declog.runtime.checkpoint import RecorderState
from declog.runtime.failures import Failures
from declog.runtime.self_metrics import Meter
from declog.runtime.window import Window
from declog.runtime.window_item import Answer, WindowItem

PART = 16  # a window longer than so many steps goes to rank 0 in parts of so many


class Outside(NamedTuple):
    """What was open where a block of a mode began."""

    mode: str
    numbers: Counter[str]
    timed: dict[str, timing.Timed]
    flushed: bool


class Session:
    """Every call is written on the tape before it is executed, under one lock."""

    def __init__(
        self, plan: Plan, tape: Tape, failures: Failures, background: Background, *, functions: Functions,
        locate: Locate | None,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.tape = tape
        self.lock = threading.RLock()
        self.meter = Meter()
        self.intake = Intake(plan, tape, failures, self._record, functions=functions, locate=locate)
        self.closed = False
        self._failures = failures
        self._background = background
        self._mode = "train"
        self._windows = {"train": Window()}  # of the modes that were entered, the same ones on every rank
        self._counts: Counter[str] = Counter()  # steps of each mode
        self._step: int | None = None
        self._last_step = 0
        self._sent: Counter[str] = Counter()  # log events of each mode
        self._event_told = False
        self._flushed = False  # whether this block of a mode has flushed

    @property
    def in_step(self) -> bool:
        """Whether signals may be observed: in a step, or in a block of another mode than train."""
        return self._step is not None or self._mode != "train"

    @property
    def now(self) -> int:
        """The step that is open, or the last one."""
        return self._last_step if self._step is None else self._step

    @property
    def begun(self) -> bool:
        """Whether anything came yet."""
        return bool(self._sent or self._counts or self.intake)

    def next_step(self, first: int) -> int:
        """The number after the last step's; ``first`` where there was none."""
        return self._last_step + 1 if self._counts else first

    def spoiled(self) -> None:
        """The open window lacks something that this rank should have recorded."""
        self._windows.setdefault(self._mode, Window()).whole = False

    # -- steps and modes

    def begin(self, step: int) -> None:
        """A step begins."""
        if self._step is not None:
            raise UsageError.of("DL510.nested", step=step, open=self._step)
        with self.lock, self.tape.call("begin", step):
            self._step = step
            self.intake.numbers.clear()

    def end(self, *, quietly: bool) -> None:
        """The step ends: its batches close, and where a window ends with it, that is handed over."""
        began = time.perf_counter()
        with self.lock, self.tape.call("end", quietly):
            assert self._step is not None
            failed = True
            try:
                self._keep_timers()
                self.intake.close_all(self.now, quietly=quietly)
                failed = quietly
            finally:  # a step that fails is a step all the same: ranks stay at one count
                self._last_step, self._step = self._step, None
                self._windows.setdefault(self._mode, Window())
                self._counts[self._mode] += 1
                self.meter.steps += 1
                self.meter.recording += time.perf_counter() - began
                every, count = self.plan.modes[self._mode].every, self._counts[self._mode]
                if every and count % every == 0 and not self.closed:
                    self._log(tail=self._mode != "train", failed=failed)
                elif count % PART == 0 and not self.closed:  # a long window goes to rank 0 in parts
                    self._flush(self._mode, tail=False, part=True)

    def enter(self, mode: str) -> Outside:
        """A block of another mode begins: what was open is closed. Returns what ``leave`` puts back."""
        with self.lock, self.tape.call("enter", mode):
            self.intake.close_all(self.now, quietly=False)
            before = Outside(self._mode, self.intake.numbers, self.intake.take_timed(), self._flushed)
            self._mode, self.intake.numbers, self._flushed = mode, Counter(), False
            self._windows.setdefault(mode, Window())
            return before

    def leave(self, mode: str, before: Outside, failed: bool) -> None:
        """The block ends, and with it the mode's window."""
        with self.lock, self.tape.call("leave", failed):
            try:
                self._keep_timers()
                self.intake.close_all(self.now, quietly=failed)
            finally:
                if not self.plan.modes[mode].every and mode != "train" and not self.closed:
                    # also where nothing came since a flush: on another rank it may have
                    self._log(tail=True, failed=failed, again=self._flushed)
                self._mode, self.intake.numbers, self._flushed = before.mode, before.numbers, before.flushed
                self.intake.give_timed(before.timed)

    # -- what is recorded

    def observe(self, signals: Mapping[str, Any], *, strict: bool) -> None:
        """Record signals; with ``strict`` a name that the profile does not know is an error."""
        with self.lock:
            if strict:
                self.intake.check(signals)
            with self.tape.call("observe", signals):
                self.intake.observe(signals, self.now)

    def cut(self, phase: str, *rows: int) -> None:
        """Close the phase's batch; with the number of its ``rows`` the next one begins."""
        with self.lock, self.tape.call("cut", phase, *rows):
            self.intake.close(phase, self.now)
            for count in rows:
                self.intake.begin(phase, count)

    def metric(self, name: str, value: Any) -> None:
        """Record a number under a name of its own."""
        with self.lock, self.tape.call("metric", name, value):
            self.intake.metric(name, value, self.now)

    def extra(self, column: str, values: Any) -> None:
        """Record a column of completions."""
        with self.lock, self.tape.call("extra", column, values):
            self.intake.extra(column, values, self.now)

    def timed(self, name: str, seconds: timing.Seconds) -> None:
        """Record how long a block took."""
        with self.lock:
            self.intake.time(name, seconds)

    def _keep_timers(self) -> None:
        timed = self.intake.take_timed()
        if timed and TIMERS in self.plan.sources:
            with self.tape.call("observe", {TIMERS: timed}):
                self.intake.observe({TIMERS: timed}, self.now)
        elif TIMERS not in self.plan.known:
            for name, value in timed.items():
                with self.tape.call("metric", f"time/{name}", value):
                    self.intake.metric(f"time/{name}", value, self.now)

    def _record(self, phase: str, record: BatchRecord) -> None:
        """A batch closed: it belongs to the window of the mode."""
        self._windows.setdefault(self._mode, Window()).batches.setdefault(phase, []).append(record)

    # -- log events

    def flush(self, answer: Answer | None = None) -> None:
        """Log what came since the last log event."""
        with self.lock, self.tape.call("flush"):
            try:
                self.intake.close_all(self.now, quietly=False)
            finally:  # one that fails is a log event all the same: ranks stay at one count
                self._flushed = True
                self._log(tail=True, answer=answer)

    def close(self, *, failed: bool) -> bool:
        """Hand the tail windows over, once; whether this call was the one."""
        with self.lock:
            if self.closed:
                return False
            self.closed = True
            with self.tape.call("close", failed):
                try:
                    self._keep_timers()  # of after the last step
                except InputError as error:
                    self._failures.report(error)
                try:
                    self.intake.close_all(self.now, quietly=failed or self.in_step)
                except Exception as error:  # noqa: BLE001  (such as columns that came after the last rows)
                    self._failures.report(error)
                if self._background.merger is not None:
                    self._background.end_merging()
                else:  # also for windows that are longer than the profile's `every`
                    for mode in sorted(self._windows, key=lambda mode: (mode != "train", mode)):  # alike on all ranks
                        self._flush(mode, tail=True, last=True)
        self.tape.close()
        return True

    def _log(self, *, tail: bool, failed: bool = False, again: bool = False, answer: Answer | None = None) -> None:
        item = self._flush(self._mode, tail=tail, answer=answer, failed=failed, again=again)
        if not self._event_told and not failed:
            self._event_told = True
            self.intake.tell_silent()
        self._background.wait_for(item)

    def _flush(
        self, mode: str, *, tail: bool, part: bool = False, answer: Answer | None = None, failed: bool = False,
        again: bool = False, last: bool = False,
    ) -> WindowItem:  # fmt: skip
        began = time.perf_counter()
        window, self._windows[mode] = self._windows.get(mode, Window()), Window()
        try:
            window.hand_off()
        except Exception as error:  # noqa: BLE001  (a log event without rows is one: ranks stay at one count)
            self._failures.report(error)
            window = Window(whole=False)
        done = threading.Event() if self.plan.blocking and not part else None
        figures = {} if part else self.meter.read()
        hurry = failed and done is not None  # a step that ends with an error does not wait long for other ranks
        item = WindowItem(
            self._sent[mode], self.now, self._counts[mode], window, tail, mode, part, done, answer, figures, hurry,
            last, dict(self._sent),
        )  # fmt: skip
        self._sent[mode] += 1
        self._background.submit(item)
        if not part and not again:
            self.tape.logged(mode)
        self.meter.handing += time.perf_counter() - began
        return item

    # -- checkpoints

    def state(self, rank: int) -> tuple[RecorderState, dict[str, Frame]]:
        """Where this rank is, and the rows of its open windows; between two steps only."""
        if self._step is None and self.plan.logged is not None:
            # what `log_metric` gave between two steps goes to the window of the last one
            with self.tape.call("cut", self.plan.logged.phase):
                self.intake.close(self.plan.logged.phase, self.now, partly=True)
        if self._step is not None or self.intake:
            raise UsageError.of("DL510.state_in_step")
        frames = {
            f"window/{mode}/{phase}": frame
            for mode, window in self._windows.items()
            for phase, frame in window.frames(
                self.plan.phases, rank, self.plan.grouping, self._failures.report
            ).items()
        }  # fmt: skip
        mine = RecorderState(
            self._last_step, dict(self._sent), self.intake.order, dict(self._counts), sorted(self.intake.seen),
            self.tape.elapsed(),
        )  # fmt: skip
        return mine, frames

    def load(self, mine: RecorderState, frames: Mapping[str, Frame]) -> None:
        """Continue where ``state`` was called."""
        with self.lock:
            self._last_step, self.intake.order = mine.step, mine.order
            self._sent.update(mine.sent)
            self._counts.update(mine.counts)
            self.intake.seen.update(mine.seen)
            self.tape.resume(mine.elapsed)
            for mode in self.plan.modes:  # other ranks may have rows of others
                self._windows.setdefault(mode, Window())
            for name, frame in frames.items():
                kind, mode, phase = (*name.split("/", 2), "", "")[:3]
                if kind == "window":
                    self._windows[mode].earlier[phase] = frame
