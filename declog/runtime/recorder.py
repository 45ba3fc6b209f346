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
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from declog.engine.publish import Route
from declog.errors import InputError, UnknownSignalError, UsageError, nearest
from declog.language.functions import DEFAULT, Functions
from declog.plans.ops import Plan
from declog.records import RunInfo
from declog.runtime import actors, context, timing
from declog.runtime.background import Background
from declog.runtime.batches import Locate, fields_of
from declog.runtime.call_log import Tape
from declog.runtime.checkpoint import pack, unpack
from declog.runtime.comm import Comm
from declog.runtime.failures import Failures
from declog.runtime.session import Outside, Session
from declog.runtime.window_item import Answer
from declog.sinks.run_folder import RunFolder
from declog.sinks.runner import SinkRunner

P = ParamSpec("P")
R = TypeVar("R")
log = logging.getLogger("declog")
_NOTHING = nullcontext()


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
        self._failures = Failures()
        self._background = Background(
            plan, comm, runners, routes, self._failures, functions=functions, close_s=close_s, wait_s=wait_s,
            home=home, run=run, fresh=fresh,
        )  # fmt: skip
        self._session = Session(
            plan, Tape() if tape is None else tape, self._failures, self._background, functions=functions,
            locate=locate,
        )  # fmt: skip
        self._caller: Callable[[], str] | None = None  # where a trainer must go on: whose code calls
        self._own: frozenset[str] = frozenset()  # signals that only the trainer's integration observes
        self._inside = _Inside()
        self._idle = False
        self._process = os.getpid()
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
        context.forget(self)
        if self._session.close(failed=failed):
            atexit.unregister(self.close)
            self._background.close(failed=failed)

    @property
    def failures(self) -> Mapping[str, int]:
        """What failed behind the training thread's back so far, and what sinks lost: how often, by message."""
        return self._background.failures

    # -- a step

    def step(self, step: int) -> _Step:
        """One optimizer step, as a `with` block. What is observed inside belongs to it; its end closes the batches."""
        return _Step(self, int(step))

    @property
    def closed(self) -> bool:
        """Whether the run is over: nothing is recorded any more."""
        return self._session.closed

    @property
    def in_step(self) -> bool:
        """Whether signals may be observed: in a step, or in a block of another mode than train."""
        return self._session.in_step

    def _begin_step(self, step: int) -> None:
        self._alive()
        self._session.begin(step)

    def _end_step(self, *, quietly: bool) -> None:
        self._session.end(quietly=quietly)

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
            raise UsageError.of(
                "DL510.mode", profile=self.plan.name, name=name,
                fix=f"did you mean `{close}`?" if close else f"declare it: `modes: {{{name}: {{prefix: {name}/}}}}`",
            )  # fmt: skip
        before = self._enter_mode(name)
        failed = True
        try:
            with _Active(self):
                yield
            failed = False
        finally:
            self._leave_mode(name, before, failed)

    def _enter_mode(self, name: str) -> Outside:
        return self._session.enter(name)

    def _leave_mode(self, name: str, before: Outside, failed: bool) -> None:
        self._session.leave(name, before, failed)

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
        self._session.flush(answer)
        return None if answer is None else answer.wait()

    def wrap(self, step_function: Callable[P, R]) -> Callable[P, R]:
        """The step function, observed: the call is a step, its mapping or dataclass result is observed.

        Keys of the result that the profile does not know are ignored.
        """
        first = self._session.now

        @functools.wraps(step_function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.step(self._session.next_step(first)):
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
                    raise InputError.of("DL509.signal", name=min(own))
                self._observe(signals, strict=True)
        self._session.meter.recording += time.perf_counter() - began

    def _observe(self, signals: Mapping[str, Any], *, strict: bool) -> None:
        self._in_step("observe")
        self._session.observe(signals, strict=strict)

    @contextmanager
    def batch(self, phase: str, *, rows: int | None = None) -> Iterator[None]:
        """One batch of a phase, made explicit: it is closed at the end of the block.

        With ``rows``, the number of its completions, what is of another number or given twice is an ``InputError``.
        """
        self._in_step("batch")
        if phase not in self.plan.known_phases:
            raise UnknownSignalError.of("DL501.phase", profile=self.plan.name, name=phase, known=self.plan.known_phases)
        self._cut(phase, *() if rows is None else (rows,))
        yield
        self._cut(phase)

    def _cut(self, phase: str, *rows: int) -> None:
        self._session.cut(phase, *rows)

    def log_metric(self, name: str, value: Any) -> None:
        """Record a number under a name of its own; its mean over the window is logged as ``logged/{name}``.

        On every rank or on some, from any thread, as often as wanted. Outside a step it counts for the next.
        """
        if self.closed or self._idle:
            return
        self._records()
        with self._taking(f"`{name}`"):
            self._session.metric(name, value)

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
        self._session.timed(name, stop())

    def log_extra(self, column: str, values: Any) -> None:
        """Record a column of the step's completions, one value each, as a list or array; again opens the next batch.

        A column that the profile declares as a signal is observed as one. Others go to the tables whose schema
        says `undeclared: keep`; where none does they are dropped, and that is said once. Raises ``InputError`` for
        what cannot be a column, and for any column where a table says `undeclared: error`.
        """
        if self.closed or self._idle:
            return
        self._records()
        with self.taking(column):
            self._session.extra(column, values)

    # -- inside a trainer that must go on

    def attached(self, caller: Callable[[], str], own: Collection[str] = (), phase: str | None = None) -> None:
        """From now on a mistake of training code's is reported and left out, unless ``strict``; ``caller`` is whose.

        Signals that the integration observes itself are its ``own``: to observe one is such a mistake. With ``phase``,
        whose batches are made explicit, a column that comes outside of one is such a mistake, too.
        """
        self._caller, self._own = caller, frozenset(own)
        self._session.intake.explicit = phase

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
            if self.closed:
                return
            if self.plan.strict:
                raise
            with self._session.lock:
                if not left_out:
                    self._session.spoiled()
                self._failures.guarded(what, error, left_out)
        finally:
            self._inside.guards -= 1

    # -- actors

    def export(self) -> bytes:
        """On an actor (``role="actor"``): the log events since the last export, for the driver's ``merge``.

        Call it between steps, and once more after ``close`` for the tail window.
        """
        if not self.closed and not self._background.comm.collects:
            self._background.settle()
        return self._background.export()

    def merge(self, exports: Iterable[bytes], patience: int = actors.PATIENCE) -> None:
        """On the driver (``role="driver"``): log what actors exported, in one call or in many. Returns at once.

        A log event is finished when all actors' parts have come, or when an actor of which it has a part exported
        newer ones ``patience`` times: then the others are missing, and it is marked as partial. Who was missing is
        not waited for until it exports again. Bytes that are no export of this plan raise when the others are taken.
        """
        self._alive()
        self._background.merge(exports, patience)

    # -- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """This rank's state between two steps: its open windows, and on rank 0 totals and what windows hold.

        Plain values and one uint8 tensor, for ``torch.save`` and ``torch.load(..., weights_only=True)``. Every rank
        saves its own. What was logged before is in rank 0's files when this returns.
        """
        self._alive()
        with self._session.lock:
            mine, frames = self._session.state(self._background.comm.rank)
            others, data = self._background.state()
        return pack(self.plan, self._background.comm, mine, frames | others, data, self.output_dir, self.run_id)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a run where ``state_dict`` was called: windows, totals, files. Before the first step.

        Files lose the rows of later steps, so that none is there twice. Where the profile was changed since, totals
        are continued and open windows are dropped, with a warning.
        """
        self._alive()
        if self._session.begun:
            raise UsageError.of("DL510.load")
        mine, frames, data, equal = unpack(self.plan, self._background.comm, state)
        if (run := self._background.go_on(state)) is not None:
            self.output_dir, self.run_id = run.output_dir, run.run_id
        self._session.load(mine, frames if equal else {})
        self._background.load(frames, data, mine.step, equal=equal)

    def in_child(self) -> None:
        """This process is a fork of the run's: it has no threads, and its locks may be held for ever."""
        if not self.closed:
            self._session.lock = threading.RLock()
            self._session.tape.in_child()
            self.__class__ = _InChild

    def _alive(self) -> None:
        if self.closed:
            raise UsageError.of("DL510.closed")

    def _records(self) -> None:
        if self._background.merger is not None:
            raise UsageError.of("DL510.driver")

    def _in_step(self, what: str) -> None:
        self._alive()
        self._records()
        if not self.in_step:
            raise UsageError.of("DL510.outside", what=what)


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
            log.warning("%s", UsageError.of("DL510.in_fork", process=os.getpid()))

    def _refused(self, *args: Any, **kwargs: Any) -> Any:
        raise UsageError.of("DL510.fork")

    def _pass(self, *args: Any, **kwargs: Any) -> None:
        """The ends of blocks that the fork came out of, and what asks nothing of anybody."""

    observe = _observe = log_metric = log_extra = flush = merge = _nothing
    state_dict = load_state_dict = export = _refused
    close = in_child = _begin_step = _end_step = _leave_mode = _cut = _timed = _log = _pass

    def _enter_mode(self, name: str) -> Outside:
        return Outside(name, Counter(), {}, False)

    @contextmanager
    def timer(self, name: str) -> Iterator[None]:
        yield  # a fork has no device
