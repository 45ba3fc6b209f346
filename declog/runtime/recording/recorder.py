"""The recorder: what a training loop calls. It records on the training thread, and does nothing else there.

``start`` (in ``api.py``) makes one from a plan; a rank other than 0 has the same recorder without sinks.
Imports the runtime only: neither the models of the YAML nor the compiler.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from declog.errors import UnknownSignalError, UsageError, nearest
from declog.errors.habits import answered, meant
from declog.imports import after
from declog.language.functions import DEFAULT, Functions
from declog.plans.ops import Plan
from declog.records import Alert
from declog.runtime.ranks.comm import Comm
from declog.runtime.ranks.log_event import Answer
from declog.runtime.recording import session_state, wrapping
from declog.runtime.recording.logged_numbers import LoggedNumbers
from declog.runtime.recording.observing import NO_NUMBER, Observing, step_number
from declog.runtime.recording.seen_session import SeenSession
from declog.runtime.recording.session import Session
from declog.runtime.rows import context
from declog.runtime.rows.batches import Locate
from declog.runtime.rows.scopes import Scope, here, origin, usable
from declog.runtime.run.call_log import Clock, Hook
from declog.runtime.run.checkpoint import pack, unpack
from declog.runtime.run.failures import Failures
from declog.runtime.run.outlets import Outlets
from declog.runtime.worker.background import Background, MakeLive

P = ParamSpec("P")
R = TypeVar("R")
log = logging.getLogger("declog")
# torch's compiler traces nothing of declog: a call is one clean break of the graph, and a full graph names it
after("torch._dynamo.trace_rules", lambda dynamo: dynamo.add("declog"))


class Recorder(Observing):
    """Records a run as its plan says. Use it as a context manager, or call ``close``.

    ``total_steps`` may be set where it is known how many the run will have: a console then says how long they take.
    """

    def __init__(
        self, plan: Plan, comm: Comm, outlets: Outlets, *, functions: Functions = DEFAULT, close_s: float = 30.0,
        wait_s: float = 30.0, locate: Locate | None = None, clock: Clock | None = None, hooks: Sequence[Hook] = (),
        commits: bool = False, live: MakeLive | None = None,
    ) -> None:  # fmt: skip
        self._outlets = outlets
        self.total_steps: int | None = None
        self._failures = Failures()
        background = Background(
            plan, comm, outlets, self._failures, functions=functions, close_s=close_s, wait_s=wait_s, live=live
        )
        clock = clock or Clock()
        session = (
            SeenSession(hooks, plan, clock, self._failures, background, functions=functions, locate=locate) if hooks
            else Session(plan, clock, self._failures, background, functions=functions, locate=locate)
        )  # fmt: skip
        super().__init__(session, background)
        for runner in outlets.runners.values():
            runner.watch(self._progress)
        self._ended = self._failed = False
        self._runs: list[Scope] = []  # `with log:`
        self._logged_numbers = LoggedNumbers(self, session)
        session.commits, session.main_task = commits, origin()
        if commits:  # it has no blocks, and is open from its start to its end
            session.runs.add(Scope(self, "run").id)
        atexit.register(self.close)
        context.know(self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            public = [member for member in dir(type(self)) if not member.startswith("_")]
            raise AttributeError(f"'Recorder' object has no attribute {name!r}{meant(name, public, 'log')}")

    # -- the run

    @property
    def output_dir(self) -> Path | None:
        """The run's folder of local files; None on ranks that have none."""
        return self._outlets.output_dir

    @property
    def run_id(self) -> str:
        """The run's id; empty on ranks that have no folder."""
        return self._outlets.run_id

    def __enter__(self) -> Recorder:
        self._runs.append(Scope(self, "run").__enter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._runs.pop().__exit__(kind, error, trace)
        finally:
            self.close(failed=error is not None)

    def close(self, *, failed: bool = False) -> None:
        """Flush the tail window, wait for the worker and the sinks, each within a deadline; idempotent.

        An interrupt is raised when it is done; another one ends it.

        With ``run.strict`` the first failure of declog's own is raised, unless the run itself failed.
        """
        if self._session.forked or self._ended:
            return
        self._failed |= failed
        context.forget(self)
        try:
            self._finish()
        except (KeyboardInterrupt, SystemExit):
            log.warning("declog writes what is left: interrupt again to leave it behind")
            self._finish()
            raise

    def _finish(self) -> None:
        """Hand over, write and close. Where it was interrupted it goes on."""
        self._session.close(failed=self._failed)
        try:
            self._background.close(failed=self._failed)
        except Exception:  # with `strict`, of a run that is closed
            self._ended = True
            atexit.unregister(self.close)
            raise
        self._ended = True
        atexit.unregister(self.close)

    def __copy__(self) -> Recorder:
        """A run has one recorder: what holds a copy of it, such as a copied trainer, records into the same run."""
        return self

    def __deepcopy__(self, memo: Any) -> Recorder:
        return self

    def __reduce__(self) -> NoReturn:
        raise UsageError.of("DL510.pickle")

    @property
    def failures(self) -> Mapping[str, int]:
        """What failed behind the training thread's back so far, and what sinks lost: how often, by message."""
        return self._background.failures

    @property
    def missing(self) -> Mapping[str, str]:
        """The metrics that have no values because signals do not come, each with the reason; on rank 0.

        As of the log events so far, which it waits for. What was missing and comes is in it no more.
        """
        return self._background.missing

    @property
    def alerts(self) -> list[tuple[int, Alert]]:
        """The alerts that fired, the last thousand, each with the step of its log event; on rank 0.

        As of the log events so far, which it waits for.
        """
        return self._background.alerts

    @property
    def should_stop(self) -> bool:
        """Whether an alert with `do: [stop]` ends training after the step that is open, or else the last one.

        Ask once a step, on every rank, and end the loop where it is true: it is true after the same step on all ranks.
        It waits for no log event. Only while ranks agree on that step a rank that is ahead waits for the others.
        """
        session = self._session
        open_step = None if session.step is None else session.step.number
        return not self._session.forked and self._background.should_stop(
            session.train.last if open_step is None else open_step
        )

    def _progress(self) -> tuple[int | None, int | None]:
        """For the threads of sinks: nothing is written for them while it trains."""
        return self._session.train.last, self.total_steps

    # -- scopes

    def step(self, step: int = NO_NUMBER) -> Scope:
        """One optimizer step, as a `with` block: its end closes the batches, and says that the step is complete.

        What is observed inside belongs to it, also by tasks that are started inside. Numbers rise, with gaps where
        there are some; one that is not above the last is a ``UsageError``, as is a step inside a step. What is
        returned is a handle, too: ``step.observe(...)`` reaches the step from any thread.
        """
        return Scope(self, "step", step_number(step))

    @answered
    def at(self, step: int = NO_NUMBER) -> Scope:
        """A block that contributes to a step that somebody owns: a prefetch, a task, a thread, before it or in it.

        The step's window waits for it, at most ``wait_s``. As a handle, ``log.at(k).observe(...)`` is one batch.
        """
        return Scope(self, "at", step_number(step))

    def commit(self, step: int = NO_NUMBER) -> None:
        """End a step around all that came since the last commit: with ``declog.start(..., steps="commit")``."""
        if not self._session.commits:
            raise UsageError.of("DL510.commit")
        with self.step(step):
            pass

    def rewind(self, step: int) -> None:
        """The trainer goes back to a step, as after a checkpoint was loaded: the next one may be the one after it.

        What was recorded until now is logged. Between two steps; every rank must call it alike.
        """
        if self._records():
            self._session.rewind(step_number(step))

    @property
    def last_step(self) -> int | None:
        """The last optimizer step that has ended; None where there is none. The next one is above it."""
        return self._session.train.last

    @property
    def in_step(self) -> bool:
        """Whether signals may be observed here: in a step, in what contributes to one, or in another mode."""
        scope = here(self)
        return scope is not None and not scope.closed

    @answered
    def mode(self, name: str, step: int | None = None) -> Scope:
        """A block of another mode, such as ``eval``: its own windows and names; the end of the block logs it.

        Inside it signals may be observed without a step. ``step`` is where its values stand; left out, that of the
        step around the block, or the last one. It may go on beside steps, as a task. Where the block has flushed and
        nothing came since on any rank, its end logs nothing.
        """
        self._records()
        if name not in self.plan.modes:
            close = nearest(getattr(name, "__name__", str(name)), self.plan.modes)  # `eval` is a function, too
            raise UsageError.of(
                "DL510.mode", config=self.plan.name, name=name,
                fix=f"did you mean `{close}`?" if close else f"declare it: `modes: {{{name}: {{prefix: {name}/}}}}`",
            )  # fmt: skip
        number = None if step is None else step_number(step)
        return Scope(self, "run" if name == "train" else "mode", number, name)

    def batch(self, phase: str | None = None, *, rows: int | None = None) -> Scope:
        """One batch, made explicit: it is closed at the end of the block. Tasks that are started inside fill it, too.

        Of one phase, or of all. With ``rows``, the number of the phase's completions, what is of another number or
        given twice is an ``InputError``.
        """
        self._records()
        if not self.in_step:
            raise UsageError.of("DL510.outside", what="batch")
        if phase is not None and phase not in self.plan.known_phases:
            raise UnknownSignalError.of("DL501.phase", config=self.plan.name, name=phase, known=self.plan.known_phases)
        return Scope.of_batch(self, phase, rows)

    @property
    def innermost(self) -> int:
        """The number of the block that was made last of those that are open; 0 where none is."""
        return max([*self._session.scopes, *self._session.runs], default=0)

    def _next_step(self) -> Scope:
        return self.step(self._session.next_step())

    def flush(self, wait_s: float | None = None) -> dict[str, float] | None:
        """Log what came since the last log event, now: for trainers that decide when (`every: trainer`).

        Every rank must call it alike. Slower metrics and tables are logged with it, whatever their `every`. With
        ``wait_s`` it waits, at most so many seconds, and returns on every rank the scalars that rank 0 logs at this
        event, by name (those of sinks have the sink's prefix besides), and ``declog/ranks`` where they are not of all
        ranks; None where they did not come in time.
        """
        if not self._records():
            return None
        answer = None if wait_s is None else Answer(wait_s)
        self._session.flush(here(self), answer)
        return None if answer is None else answer.wait()

    def written(self, wait_s: float = 30.0) -> bool:
        """Whether the sinks have written all log events so far, waiting at most so many seconds for them."""
        self._alive()
        return self._background.written(wait_s)

    def wrap(self, step_function: Callable[P, R]) -> Callable[P, R]:
        """The step function, observed: the call is a step, numbered from 0, and its result is observed.

        For functions and ``async def``, which return a mapping, a dataclass, a named tuple, ``(loss, mapping)``, a
        number, which is observed as ``loss``, or None. Keys that the config does not know are ignored; for any other
        result, and for a generator, it raises ``UsageError``.
        """
        return wrapping.wrap(self, step_function)

    # -- how the trainer is configured

    def config(self, values: Mapping[str, Any]) -> None:
        """Add to how the trainer is configured: values as ``declog.start(run_config=...)`` takes them.

        They are merged into ``run_config.yaml`` in the run's folder, which the report reads: a value stands for the
        one that its key had, and a map is merged into the map there. Keys that name secrets are left out. Trackers
        have what the run began with. Of several ranks rank 0 writes, others may call it or not. ``OSError`` as the
        disk says; after ``close`` nothing is written.
        """
        if self.closed or self._in_fork():
            return
        with self._taking("`log.config`"):
            if not isinstance(values, Mapping):
                raise UsageError.of("DL510.config", came=type(values).__name__)
            self._background.configure(values)

    # -- actors

    def export(self) -> bytes:
        """On an actor (``role="actor"``): the log events since the last export, for the driver's ``merge``.

        Call it between steps, and once more after ``close`` for the tail window.
        """
        if self._session.forked:
            raise UsageError.of("DL510.fork")
        if not self.closed and not self._background.comm.collects:
            self._background.settle()
        return self._background.export()

    def merge(self, exports: Iterable[bytes], wait_s: float | None = None) -> None:
        """On the driver (``role="driver"``): log what actors exported, in one call or in many. Returns at once.

        A log event is finished when all actors' parts have come, or when it has waited ``wait_s`` seconds (by default
        those of ``start``), or when what waits is over the plan's ``backlog_bytes``: then the others are missing, and
        it is marked as partial. Who was missing is not waited for until it exports again. Bytes that are no export of
        this plan raise when the others are taken.
        """
        self._alive()
        if not self._in_fork():
            self._background.merge(exports, wait_s)

    # -- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """This rank's state between two steps: its open windows, and on rank 0 totals and what windows hold.

        Plain values and one uint8 tensor, for ``torch.save`` and ``torch.load(..., weights_only=True)``. Every rank
        saves its own. What was logged before is in rank 0's files when this returns.
        """
        self._original()
        with self._session.lock:
            progress, frames = session_state.state(self._session, usable(here(self)), self._background.comm.rank)
            facts, data = self._background.state()
        return pack(self.plan, self._background.comm, progress, frames | facts, data, self.output_dir, self.run_id)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a run where ``state_dict`` was called: windows, totals, files. Before the first step.

        Files lose the rows of later steps, so that none is there twice. Where another folder was named than that of
        the run, this one is a branch of it: that run's files stay as they are. Where the config was changed since,
        totals are continued and open windows are dropped, with a warning.
        """
        self._original()
        if self._session.begun:
            raise UsageError.of("DL510.load")
        progress, frames, data, equal = unpack(self.plan, self._background.comm, state)
        self._outlets.go_on(state, self._background.close_s)
        session_state.load(self._session, progress, frames if equal else {})
        self._background.load(frames, data, progress.step, equal=equal)

    def in_child(self) -> None:
        """This process is a fork of the run's: it has no threads, and its locks may be held for ever."""
        if not self.closed:
            self._special = True
            self._session.in_child()

    def _original(self) -> None:
        """Raise where there is no state: the run is over, or this is a fork of its process."""
        self._alive()
        if self._session.forked:
            raise UsageError.of("DL510.fork")
