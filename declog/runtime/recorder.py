"""The recorder: what a training loop calls. It records on the training thread, and does nothing else there.

``start`` (in ``api.py``) makes one from a plan; a rank other than 0 has the same recorder without sinks.
Imports the runtime only: neither the models of the YAML nor the compiler.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, ParamSpec, TypeVar

from declog.engine.frame import Frame
from declog.engine.publish import Dispatcher, Route
from declog.errors import (
    InputError,
    RuntimeFailure,
    SinkError,
    UnknownSignalError,
    UsageError,
    did_you_mean,
    nearest,
    told,
)
from declog.language.functions import DEFAULT, Functions
from declog.plans.ops import Plan
from declog.records import RunInfo
from declog.runtime import actors, context, timing
from declog.runtime.batch import BatchRecord
from declog.runtime.batches import TIMERS, Intake, Locate, fields_of
from declog.runtime.call_log import Tape
from declog.runtime.checkpoint import RecorderState, pack, unpack
from declog.runtime.collector import Collector
from declog.runtime.comm import Comm
from declog.runtime.failures import Failures
from declog.runtime.local_tables import Apart
from declog.runtime.self_metrics import Meter
from declog.runtime.sender import Sender
from declog.runtime.window import Window
from declog.runtime.window_item import Answer, Handoff
from declog.runtime.worker import Task, Worker
from declog.sinks.run_folder import RunFolder
from declog.sinks.runner import SinkRunner

P = ParamSpec("P")
R = TypeVar("R")
log = logging.getLogger("declog")
_NOTHING = nullcontext()
PART = 16  # a window longer than so many steps goes to rank 0 in parts of so many


class Recorder:
    """Records a run as its plan says. Use it as a context manager, or call ``close``.

    ``output_dir`` is the run's folder of local files, and ``run_id`` its id (None and empty on ranks that have none).
    """

    def __init__(
        self, plan: Plan, comm: Comm, runners: Mapping[str, SinkRunner], routes: Sequence[Route],
        output_dir: Path | None, *, run_id: str = "", functions: Functions = DEFAULT, close_s: float = 30.0,
        wait_s: float = 30.0, locate: Locate | None = None, tape: Tape | None = None, home: RunFolder | None = None,
        run: RunInfo | None = None, fresh: bool = False,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.output_dir = output_dir
        self.run_id = run_id
        self._home = home
        self._run = run
        self._fresh = fresh  # nobody named the run's folder: a run that goes on moves to its own
        self._comm = comm
        self._runners = dict(runners)
        self._close_s = close_s
        self._tape = Tape() if tape is None else tape
        self._lock = threading.RLock()
        self._mode = "train"
        self._windows = {"train": Window()}  # of the modes that were entered, the same ones on every rank
        self._counts: Counter[str] = Counter()  # steps of each mode
        self._step: int | None = None
        self._last_step = 0
        self._sent: Counter[str] = Counter()  # log events of each mode
        self._event_told = False
        self._flushed = False  # whether this block of a mode has flushed
        self._closed = False
        self._caller: Callable[[], str] | None = None  # where a trainer must go on: whose code calls
        self._own: frozenset[str] = frozenset()  # signals that only the trainer's integration observes
        self._inside = _Inside()
        self._idle = False
        self._process = os.getpid()
        self._wait_s = wait_s
        self._meter = Meter()
        self._failures = Failures()
        self._intake = Intake(plan, self._tape, self._failures, self._record, functions=functions, locate=locate)
        self._collector = None
        if comm.collects:
            dispatcher = Dispatcher(plan, routes, functions)
            self._collector = Collector(
                plan, comm, dispatcher, self._failures, functions=functions, wait_s=wait_s, queued=self._queued
            )
        self._merger = None
        if isinstance(comm, actors.DriverComm) and self._collector is not None:
            self._merger = actors.Merger(plan, self._collector, self._failures, comm.world_size)
        mine = [route for route in routes if route.apart]
        self._apart = Apart(plan, mine, functions) if mine else None
        sender = Sender(plan, comm.rank, self._failures, functions, self._apart)
        self._worker = Worker(comm, sender, self._collector, self._failures)
        atexit.register(self.close)
        context.know(self)

    # -- the run

    def __enter__(self) -> Recorder:
        self._alive()
        context.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        context.leave(self)
        self.close(failed=error is not None)

    def close(self, *, failed: bool = False) -> None:
        """Flush the tail window, wait for the worker and the sinks, each within a deadline; idempotent.

        With ``strict: true`` the first failure of declog's own is raised, unless the run itself failed.
        """
        if os.getpid() != self._process:
            return  # a fork's, at its exit
        with self._lock:
            if self._closed:
                return
            self._closed = True
            context.forget(self)
            with self._tape.call("close", failed):
                try:
                    self._keep_timers()  # of after the last step
                except InputError as error:
                    self._failures.report(error)
                try:
                    self._intake.close_all(self._now, quietly=failed or self.in_step)
                except Exception as error:  # noqa: BLE001  (such as columns that came after the last rows)
                    self._failures.report(error)
                if self._merger is not None:
                    self._worker.submit(Task(self._merger.end, report=self._failures.report))
                else:  # also for windows that are longer than the profile's `every`
                    for mode in sorted(self._windows, key=lambda mode: (mode != "train", mode)):  # alike on all ranks
                        self._flush(mode, tail=True, last=True)
        self._tape.close()
        atexit.unregister(self.close)
        self._worker.finish(hurry=failed)
        self._join()
        reports = [runner.close(self._close_s) for runner in self._runners.values()]
        self._comm.close()
        failures = self._failures
        if self._home is not None:
            self._home.end("failed" if failed else "finished", self.failures)
        if failures.counts:
            log.warning(
                "declog finished with %d failure(s) of its own: %s",
                sum(failures.counts.values()),
                "; ".join(f"{name} (x{n})" for name, n in failures.counts.items()),
            )
        if self.plan.strict and not failed:
            if failures.first is not None:
                raise failures.first
            for name, report in zip(self._runners, reports, strict=True):
                if isinstance(cause := report.first_error, SinkError):
                    raise cause
                if cause is not None:
                    raise SinkError("DL602", f"sink `{name}` failed: {told(cause)}") from cause

    @property
    def failures(self) -> Mapping[str, int]:
        """What failed behind the training thread's back so far, and what sinks lost: how often, by message."""
        found = dict(self._failures.counts)
        for runner in self._runners.values():
            found |= runner.lost
        return found

    def _join(self) -> None:
        """Wait for the worker's end, and end what it waits for: a full queue, a process that is stopped."""
        end = time.monotonic() + self._wait_s + self._close_s
        while not self._worker.join(0.05):
            for runner in self._runners.values():
                if runner.stuck_s > self._close_s:
                    runner.release()
            if time.monotonic() > end:
                self._comm.interrupt()
                if not self._worker.join(self._close_s):
                    log.warning("the last log events were not finished in time: they are left behind")
                return

    # -- a step

    def step(self, step: int) -> _Step:
        """One optimizer step, as a `with` block. What is observed inside belongs to it; its end closes the batches."""
        return _Step(self, int(step))

    @property
    def closed(self) -> bool:
        """Whether the run is over: nothing is recorded any more."""
        return self._closed

    @property
    def in_step(self) -> bool:
        """Whether signals may be observed: in a step, or in a block of another mode than train."""
        return self._step is not None or self._mode != "train"

    def _queued(self) -> dict[str, float]:
        """What the sinks' queues say about themselves."""
        runners = self._runners.values()
        return {
            "declog/queue_bytes": sum(runner.queued_bytes for runner in runners),
            "declog/dropped": sum(runner.dropped for runner in runners),
        }

    def _begin_step(self, step: int) -> None:
        self._alive()
        if self._step is not None:
            raise UsageError("DL510", f"step {step} begins inside step {self._step}", "end one step before the next")
        with self._lock, self._tape.call("begin", step):
            self._step = step
            self._intake.numbers.clear()

    def _end_step(self, *, quietly: bool) -> None:
        began = time.perf_counter()
        with self._lock, self._tape.call("end", quietly):
            assert self._step is not None
            failed = True
            try:
                self._keep_timers()
                self._intake.close_all(self._now, quietly=quietly)
                failed = quietly
            finally:  # a step that fails is a step all the same: ranks stay at one count
                self._last_step, self._step = self._step, None
                self._windows.setdefault(self._mode, Window())
                self._counts[self._mode] += 1
                self._meter.steps += 1
                self._meter.recording += time.perf_counter() - began
                every, count = self.plan.modes[self._mode].every, self._counts[self._mode]
                if every and count % every == 0 and not self._closed:
                    self._log(tail=self._mode != "train", failed=failed)
                elif count % PART == 0 and not self._closed:  # a long window goes to rank 0 in parts
                    self._flush(self._mode, tail=False, part=True)

    @contextmanager
    def mode(self, name: str) -> Iterator[None]:
        """A block of another mode, such as ``eval``: its own windows and names; the end of the block logs it.

        Inside it signals may be observed without a step. What was open before is closed at its begin. Where the
        block has flushed and nothing came since on any rank, its end logs nothing.
        """
        self._alive()
        self._records()
        if name not in self.plan.modes:
            close = nearest(name, self.plan.modes)
            fix = f"did you mean `{close}`?" if close else f"declare it: `modes: {{{name}: {{prefix: {name}/}}}}`"
            raise UsageError("DL510", f"the profile `{self.plan.name}` has no mode `{name}`", fix)
        before = self._enter_mode(name)
        failed = True
        try:
            with _Active(self):
                yield
            failed = False
        finally:
            self._leave_mode(name, before, failed)

    def _enter_mode(self, name: str) -> _Outside:
        with self._lock, self._tape.call("enter", name):
            self._intake.close_all(self._now, quietly=False)
            before = _Outside(self._mode, self._intake.numbers, self._intake.take_timed(), self._flushed)
            self._mode, self._intake.numbers, self._flushed = name, Counter(), False
            self._windows.setdefault(name, Window())
            return before

    def _leave_mode(self, name: str, before: _Outside, failed: bool) -> None:
        with self._lock, self._tape.call("leave", failed):
            try:
                self._keep_timers()
                self._intake.close_all(self._now, quietly=failed)
            finally:
                if not self.plan.modes[name].every and name != "train" and not self._closed:
                    # also where nothing came since a flush: on another rank it may have
                    self._log(tail=True, failed=failed, again=self._flushed)
                self._mode, self._intake.numbers, self._flushed = before.mode, before.numbers, before.flushed
                self._intake.give_timed(before.timed)

    def flush(self, wait_s: float | None = None) -> dict[str, float] | None:
        """Log what came since the last log event, now: for trainers that decide when (`every: trainer`).

        Every rank must call it alike. Slower metrics and tables are logged with it, whatever their `every`. With
        ``wait_s`` it waits, at most so many seconds, and returns on every rank the scalars that rank 0 logs at this
        event, by name (those of sinks have the sink's prefix besides), and ``declog/ranks`` where they are not of all
        ranks; None where they did not come in time.
        """
        self._alive()
        self._records()
        answer = None if wait_s is None else Answer(wait_s)
        with self._lock, self._tape.call("flush"):
            try:
                self._intake.close_all(self._now, quietly=False)
            finally:  # one that fails is a log event all the same: ranks stay at one count
                self._flushed = True
                self._log(tail=True, answer=answer)
        return None if answer is None else answer.wait()

    def _log(self, *, tail: bool, failed: bool = False, again: bool = False, answer: Answer | None = None) -> None:
        handoff = self._flush(self._mode, tail=tail, answer=answer, failed=failed, again=again)
        if not self._event_told and not failed:
            self._event_told = True
            self._intake.tell_silent()
        if handoff.done is None:
            return
        if not handoff.done.wait(self._wait_s + self._close_s):
            message = f"a log event took longer than {self._wait_s + self._close_s:g} s: the step goes on without"
            self._failures.report(RuntimeFailure("DL605", message, "see which sink is slow, or drop `blocking: true`"))
            return
        for runner in self._runners.values():
            try:
                runner.flush(self._close_s)
            except SinkError as error:
                self._failures.report(error)

    def wrap(self, step_function: Callable[P, R]) -> Callable[P, R]:
        """The step function, observed: the call is a step, its mapping or dataclass result is observed.

        Keys of the result that the profile does not know are ignored.
        """
        first = self._last_step

        @functools.wraps(step_function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            number = self._last_step + 1 if self._counts else first
            with self.step(number):
                result = step_function(*args, **kwargs)
                self._observe(fields_of(result), strict=False)
            return result

        return wrapped

    # -- what is recorded

    def observe(self, **signals: Any) -> None:
        """Record signals of the step. A signal given again opens its phase's next batch.

        Tensors, arrays, lists or numbers, of the shape that the profile declares: [completions, tokens],
        [completions], [groups], or one number per step; a family is a mapping of member to values. Raises
        ``InputError`` for a wrong shape, type or count, ``UnknownSignalError`` for an unknown name.
        """
        began = time.perf_counter()
        if self._caller is None:
            self._observe(signals, strict=True)
        elif not self._idle:
            own = frozenset() if self._inside.guards else self._own.intersection(signals)
            with self._taking(", ".join(f"`{name}`" for name in signals)):
                if own:
                    message = f"`{min(own)}` is a signal that the trainer is observed for"
                    raise InputError("DL509", message, "declare a signal of another name")
                self._observe(signals, strict=True)
        self._meter.recording += time.perf_counter() - began

    def _observe(self, signals: Mapping[str, Any], *, strict: bool) -> None:
        self._in_step("observe")
        with self._lock:
            if strict:
                self._intake.check(signals)
            with self._tape.call("observe", signals):
                self._intake.observe(signals, self._now)

    @contextmanager
    def batch(self, phase: str, *, rows: int | None = None) -> Iterator[None]:
        """One batch of a phase, made explicit: it is closed at the end of the block.

        With ``rows``, the number of its completions, what is of another number or given twice is an ``InputError``.
        """
        self._in_step("batch")
        if phase not in self.plan.known_phases:
            raise UnknownSignalError(
                "DL501",
                f"the profile `{self.plan.name}` has no phase `{phase}`",
                did_you_mean(phase, self.plan.known_phases, what="phases"),
            )
        self._cut(phase, *() if rows is None else (rows,))
        yield
        self._cut(phase)

    def _cut(self, phase: str, *rows: int) -> None:
        with self._lock, self._tape.call("cut", phase, *rows):
            self._intake.close(phase, self._now)
            for count in rows:
                self._intake.begin(phase, count)

    def log_metric(self, name: str, value: Any) -> None:
        """Record a number under a name of its own; its mean over the window is logged as ``logged/{name}``.

        On every rank or on some, from any thread, as often as wanted. Outside a step it counts for the next.
        """
        if self._closed or self._idle:
            return
        self._records()
        with self._taking(f"`{name}`"), self._lock, self._tape.call("metric", name, value):
            self._intake.metric(name, value, self._now)

    @contextmanager
    def timer(self, name: str) -> Iterator[None]:
        """Time a block of the step: seconds, summed over the blocks of one name in a step. No device is waited for.

        They feed the signal ``timers``, a family per step, where the profile declares it; else they are logged as
        ``log_metric`` of ``time/{name}``. On a GPU the time is the device's, between what the block's begin and end
        queue.
        """
        self._records()
        stop = timing.begin()
        try:
            yield
        finally:
            self._timed(str(name), stop)

    def _timed(self, name: str, stop: Callable[[], timing.Seconds]) -> None:
        with self._lock:
            self._intake.time(name, stop())

    def _keep_timers(self) -> None:
        timed = self._intake.take_timed()
        if timed and TIMERS in self.plan.sources:
            with self._tape.call("observe", {TIMERS: timed}):
                self._intake.observe({TIMERS: timed}, self._now)
        elif TIMERS not in self.plan.known:
            for name, value in timed.items():
                with self._tape.call("metric", f"time/{name}", value):
                    self._intake.metric(f"time/{name}", value, self._now)

    def log_extra(self, column: str, values: Any) -> None:
        """Record a column of the step's completions, one value each, as a list or array; again opens the next batch.

        A column that the profile declares as a signal is observed as one. Others go to the tables whose schema
        says `undeclared: keep`; where none does they are dropped, and that is said once. Raises ``InputError`` for
        what cannot be a column, and for any column where a table says `undeclared: error`.
        """
        if self._closed or self._idle:
            return
        self._records()
        with self.taking(column), self._lock, self._tape.call("extra", column, values):
            self._intake.extra(column, values, self._now)

    # -- inside a trainer that must go on

    def attached(self, caller: Callable[[], str], own: Collection[str] = (), phase: str | None = None) -> None:
        """From now on a mistake of training code's is reported and left out, unless ``strict``; ``caller`` is whose.

        Signals that the integration observes itself are its ``own``: to observe one is such a mistake. With ``phase``,
        whose batches are made explicit, a column that comes outside of one is such a mistake, too.
        """
        self._caller, self._own = caller, frozenset(own)
        self._intake.explicit = phase

    def taking(self, column: object) -> AbstractContextManager[None]:
        """A block that takes a column of training code's: inside a trainer that must go on it guards."""
        known = isinstance(column, str) and column in self.plan.extras
        return self._taking(f"the column `{column}`", "" if known else "the column is left out")

    def _taking(self, what: str, left_out: str = "") -> AbstractContextManager[None]:
        if self._caller is None or self._inside.guards:
            return _NOTHING
        return self.guard(f"{what} of {context.giver() or self._caller()}", left_out)

    @contextmanager
    def idle(self) -> Iterator[None]:
        """A block of which nothing is recorded, such as a prediction."""
        before, self._idle = self._idle, True
        try:
            yield
        finally:
            self._idle = before

    @contextmanager
    def guard(self, what: str, left_out: str = "") -> Iterator[None]:
        """A block of an integration's own: where it fails the training code goes on, with what comes after the block.

        ``what`` went wrong is told once and counted in ``failures``. The open window's values then count as not of
        all ranks (``declog/ranks``), unless it is only what is ``left_out``, of which no metric is made. Interrupts
        pass; with ``strict: true`` all errors do. Nothing is told of a recorder that is closed.
        """
        self._inside.guards += 1
        try:
            yield
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            if self._closed:
                return
            if self.plan.strict:
                raise
            with self._lock:
                if not left_out:
                    self._windows.setdefault(self._mode, Window()).whole = False
                self._failures.guarded(what, error, left_out)
        finally:
            self._inside.guards -= 1

    # -- inside

    @property
    def _now(self) -> int:
        """The step that is open, or the last one."""
        return self._last_step if self._step is None else self._step

    def _record(self, phase: str, record: BatchRecord) -> None:
        """A batch closed: it belongs to the window of the mode."""
        self._windows.setdefault(self._mode, Window()).batches.setdefault(phase, []).append(record)

    def _flush(
        self, mode: str, *, tail: bool, part: bool = False, answer: Answer | None = None, failed: bool = False,
        again: bool = False, last: bool = False,
    ) -> Handoff:  # fmt: skip
        began = time.perf_counter()
        window, self._windows[mode] = self._windows.get(mode, Window()), Window()
        try:
            window.hand_off()
        except Exception as error:  # noqa: BLE001  (a log event without rows is one: ranks stay at one count)
            self._failures.report(error)
            window = Window(whole=False)
        done = threading.Event() if self.plan.blocking and not part else None
        figures = {} if part else self._meter.read()
        hurry = failed and done is not None  # a step that ends with an error does not wait long for other ranks
        handoff = Handoff(
            self._sent[mode], self._now, self._counts[mode], window, tail, mode, part, done, answer, figures, hurry,
            last, dict(self._sent),
        )  # fmt: skip
        self._sent[mode] += 1
        self._worker.submit(handoff)
        if not part and not again:
            self._tape.logged(mode)
        self._meter.handing += time.perf_counter() - began
        return handoff

    # -- actors

    def export(self) -> bytes:
        """On an actor (``role="actor"``): the log events since the last export, for the driver's ``merge``.

        Call it between steps, and once more after ``close`` for the tail window.
        """
        if not isinstance(self._comm, actors.ActorComm):
            raise UsageError("DL510", "`export` is for actors", 'declog.start(..., role="actor", rank=, world_size=)')
        if not self._closed:
            self._worker.call(lambda: None, self._close_s).check()
        return self._comm.take(self.plan.fingerprint)

    def merge(self, exports: Iterable[bytes], patience: int = actors.PATIENCE) -> None:
        """On the driver (``role="driver"``): log what actors exported, in one call or in many. Returns at once.

        A log event is finished when all actors' parts have come, or when an actor of which it has a part exported
        newer ones ``patience`` times: then the others are missing, and it is marked as partial. Who was missing is
        not waited for until it exports again. Bytes that are no export of this plan raise when the others are taken.
        """
        self._alive()
        if self._merger is None:
            raise UsageError("DL510", "`merge` is for the driver", 'declog.start(..., role="driver", world_size=)')
        taken, wrong = actors.read_all(exports, self.plan, self._comm.world_size)
        self._worker.submit(Task(partial(self._merger.merge, taken, patience), report=self._failures.report))
        if wrong is not None:
            raise wrong

    # -- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """This rank's state between two steps: its open windows, and on rank 0 totals and what windows hold.

        Plain values and one uint8 tensor, for ``torch.save`` and ``torch.load(..., weights_only=True)``. Every rank
        saves its own. What was logged before is in rank 0's files when this returns.
        """
        self._alive()
        with self._lock:
            self._keep_logged()
            if self._step is not None or self._intake:
                raise UsageError("DL510", "`state_dict` is called inside a step", "call it between two steps")
            frames = {
                f"window/{mode}/{phase}": frame
                for mode, window in self._windows.items()
                for phase, frame in window.frames(
                    self.plan.phases, self._comm.rank, self.plan.grouping, self._failures.report
                ).items()
            }
            mine = RecorderState(
                self._last_step,
                dict(self._sent),
                self._intake.order,
                dict(self._counts),
                sorted(self._intake.seen),
                self._tape.elapsed(),
            )
            task = self._worker.call(self._collected, 2 * self._wait_s + self._close_s)
        if task.error is not None or not task.done.is_set():
            problem = task.error or "rank 0 is not done with earlier log events"
            log.warning("the state lacks what rank 0 holds of earlier log events: %s", problem)
        others, data = task.result or ({}, None)
        return pack(self.plan, self._comm, mine, frames | others, data, self.output_dir, self.run_id)

    def _keep_logged(self) -> None:
        """What ``log_metric`` gave between two steps goes to the window of the last one."""
        if self._step is None and self.plan.logged is not None:
            with self._tape.call("cut", self.plan.logged.phase):
                self._intake.close(self.plan.logged.phase, self._now, partly=True)

    def _collected(self) -> tuple[dict[str, Frame], dict[str, Any] | None]:
        """On the worker thread, when all earlier log events are done: rank 0's state, with what files had to write."""
        if self._merger is not None:
            self._merger.settle()
        for runner in self._runners.values():
            if runner.rewindable and not runner.flush(self._close_s):
                log.warning("sink `%s` is behind: what it has not written is not in the checkpoint", runner.id)
        frames, data = ({}, None) if self._collector is None else self._collector.state()
        return frames, data if self._apart is None else {**(data or {}), "apart": self._apart.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a run where ``state_dict`` was called: windows, totals, files. Before the first step.

        Files lose the rows of later steps, so that none is there twice. Where the profile was changed since, totals
        are continued and open windows are dropped, with a warning.
        """
        self._alive()
        if self._sent or self._counts or self._intake:
            raise UsageError("DL510", "`load_state_dict` is called after the first step", "call it before the run")
        mine, frames, data, equal = unpack(self.plan, self._comm, state)
        self._go_on(state)
        collector = self._collector
        with self._lock:
            self._last_step, self._intake.order = mine.step, mine.order
            self._sent.update(mine.sent)
            self._counts.update(mine.counts)
            self._intake.seen.update(mine.seen)
            self._tape.resume(mine.elapsed)
            for mode in self.plan.modes:  # other ranks may have rows of others
                self._windows.setdefault(mode, Window())
            for name, frame in frames.items() if equal else ():
                kind, mode, phase = (*name.split("/", 2), "", "")[:3]
                if kind == "window":
                    self._windows[mode].earlier[phase] = frame
        if self._apart is not None and data is not None and "apart" in data:
            self._apart.load(data["apart"])
        if collector is not None and data is not None:
            self._worker.call(
                partial(collector.load, frames, data) if equal else partial(collector.load_totals, data), self._close_s
            ).check()
        for runner in self._runners.values():
            runner.rewind(mine.step, self._close_s)

    def _go_on(self, state: Mapping[str, Any]) -> None:
        """Take the id of the run that goes on and, where nobody named a folder, its folder, if it is there."""
        folder, run_id = state.get("output_dir"), state.get("run_id")
        if self._run is None or not run_id:
            return
        path = Path(folder) if self._fresh and folder and Path(folder).is_dir() else self._run.output_dir
        run = replace(self._run, output_dir=path, run_id=run_id)
        if run == self._run:
            return
        before, home = self._run, self._home
        if home is not None and path != before.output_dir:
            self._home = home.moved(path, run_id)
        elif home is not None:
            home.renamed(run_id)
        for runner in self._runners.values():
            runner.move(run, self._close_s)
        if home is not None and home is not self._home:
            home.abandon()
        self._run, self.output_dir, self.run_id = run, run.output_dir, run.run_id

    def in_child(self) -> None:
        """This process is a fork of the run's: it has no threads, and its locks may be held for ever."""
        if not self._closed:
            self._lock = threading.RLock()
            self._tape.in_child()
            self.__class__ = _InChild

    def _alive(self) -> None:
        if self._closed:
            raise UsageError("DL510", "this recorder is closed", "call declog.start for another run")

    def _records(self) -> None:
        if self._merger is not None:
            raise UsageError("DL510", "a driver records nothing: its actors do", "merge what they export")

    def _in_step(self, what: str) -> None:
        self._alive()
        self._records()
        if not self.in_step:
            raise UsageError("DL510", f"`{what}` is called outside a step", "with log.step(step): ...")


class _Outside(NamedTuple):
    """What was open where a block of a mode began."""

    mode: str
    numbers: Counter[str]
    timed: dict[str, timing.Timed]
    flushed: bool


class _Inside(threading.local):
    """How many guards this thread is inside of: what fails there is the outermost's to report."""

    guards = 0


class _Active:
    """A block in which ``declog.observe`` finds a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> None:
        context.enter(self._recorder)

    def __exit__(self, *error: object) -> None:
        context.leave(self._recorder)


class _Step:
    """The block of a step. ``declog.observe`` finds the recorder inside, also where no `with log:` is open."""

    __slots__ = ("_number", "_recorder")

    def __init__(self, recorder: Recorder, number: int) -> None:
        self._recorder = recorder
        self._number = number

    def __enter__(self) -> None:
        self._recorder._begin_step(self._number)
        context.enter(self._recorder)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._recorder._end_step(quietly=kind is not None)
        finally:
            context.leave(self._recorder)


class _InChild(Recorder):
    """A recorder in a fork of its process, such as a DataLoader's worker: it records nothing, and says so once."""

    _told = False

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        if not self._told:
            self._told = True
            log.warning(
                "[DL510] process %d is a fork of the run's: what is observed here is not logged\n"
                "  fix: return the values to the process that called declog.start, and observe them there", os.getpid()
            )  # fmt: skip

    def _refused(self, *args: Any, **kwargs: Any) -> Any:
        raise UsageError("DL510", "a fork of the run's process has no state", "call it where declog.start was called")

    def _pass(self, *args: Any, **kwargs: Any) -> None:
        """The ends of blocks that the fork came out of, and what asks nothing of anybody."""

    observe = _observe = log_metric = log_extra = flush = merge = _nothing
    state_dict = load_state_dict = export = _refused
    close = in_child = _begin_step = _end_step = _leave_mode = _cut = _timed = _log = _pass

    def _enter_mode(self, name: str) -> _Outside:
        return _Outside(name, Counter(), {}, False)

    @contextmanager
    def timer(self, name: str) -> Iterator[None]:
        yield  # a fork has no device
