"""The recorder: the object that a training loop calls. On the training thread it only records.

``start`` (in ``api.py``) makes a recorder from a plan. Ranks above 0 have the same recorder without sinks.
"""

from __future__ import annotations

import atexit
import logging
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from declog.errors import UnknownSignalError, UsageError
from declog.errors.habits import answered, meant, no_attribute
from declog.imports import after
from declog.plans.modes import instead_of_mode
from declog.plans.ops import Plan
from declog.records import Alert
from declog.runtime.ranks.comm import Comm
from declog.runtime.ranks.log_event import Answer
from declog.runtime.recording import session_state, wrapping
from declog.runtime.recording.logged_numbers import LoggedNumbers
from declog.runtime.recording.observing import NO_NUMBER, Observing, step_number
from declog.runtime.recording.seen_session import SeenSession
from declog.runtime.recording.session import Session
from declog.runtime.recording.timing import Clock
from declog.runtime.rows import context
from declog.runtime.rows.batches import Locate
from declog.runtime.rows.scopes import Scope, ended, here, in_step, origin, usable
from declog.runtime.run.capture import CaptureLog
from declog.runtime.run.checkpoint import pack, unpack
from declog.runtime.run.failures import Failures
from declog.runtime.run.outlets import Outlets
from declog.runtime.worker.background import Background, MakeLive

P = ParamSpec("P")
R = TypeVar("R")
log = logging.getLogger("declog")
# torch.compile does not trace into declog: a call breaks the graph once, and under fullgraph=True the error names it
after("torch._dynamo.trace_rules", lambda dynamo: dynamo.add("declog"))


class Recorder(Observing):
    """Records a run according to its plan. Use it as a context manager, or call ``close``.

    Set ``total_steps`` if the number of steps is known: the console then shows how much time is left.
    """

    def __init__(
        self, plan: Plan, comm: Comm, outlets: Outlets, *, close_s: float = 30.0,
        wait_s: float = 30.0, locate: Locate | None = None, clock: Clock | None = None, commits: bool = False,
        capture: CaptureLog | None = None, live: MakeLive | None = None, arguments: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._outlets = outlets
        self.total_steps: int | None = None
        self._failures = Failures()
        background = Background(plan, comm, outlets, self._failures, close_s=close_s, wait_s=wait_s, live=live)
        make: Callable[..., Session] = Session if capture is None else partial(SeenSession, capture)
        clock = capture or clock or Clock()
        session = make(plan, clock, self._failures, background, locate)
        super().__init__(session, background, arguments)
        for runner in outlets.runners.values():
            runner.watch(self._progress)
        self._ended = self._failed = False
        self._runs: list[Scope] = []  # blocks of `with log:`
        self._logged_numbers = LoggedNumbers(self, session)
        session.commits, session.main_task = commits, origin()
        if commits:  # without blocks, the run is one scope from its start to its end
            session.runs.add(Scope(self, "run").id)
        atexit.register(self.close)
        context.know(self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            fix = meant(name, [key for key in dir(type(self)) if not key.startswith("_")], "log", in_step=in_step())
            raise no_attribute(f"'Recorder' object has no attribute {name!r}{fix}")

        def __getitem__(self, name: object) -> NoReturn:
            fix = meant("values", (), "log").replace("reward", name if isinstance(name, str) else "reward")
            raise TypeError(f"'Recorder' object is not subscriptable{fix}")

        __iter__ = __contains__ = None  # otherwise Python asks for items 0, 1, ...

        def __setattr__(self, name: str, value: object) -> None:
            """Refuse a value in place of a method, as in ``log.mode = "eval"``; tests may put a function there."""
            if not (name.startswith("_") or name in ("plan", "total_steps") or callable(value)):
                fix = meant(name, ["total_steps"], "log", "set")
                if fix or hasattr(type(self), name):
                    shown = repr(value) if isinstance(value, int | str) else "..."
                    raise no_attribute(f"`log.{name}` cannot be set{fix.replace('{repr}', shown)}")
            super().__setattr__(name, value)

    # -- the run

    @property
    def output_dir(self) -> Path | None:
        """The run's folder of local files; None on ranks that have none."""
        return self._outlets.output_dir

    @property
    def run_id(self) -> str:
        """The run's id; empty on ranks that have no folder."""
        return self._outlets.run_id

    @property
    def idle_in(self) -> frozenset[tuple[int, Path]]:
        """The run's folders, each with this rank, if the run's loop has ended; empty while the loop may go on.

        A new run that asks for one of these folders closes this run and takes the folder. The loop has ended if its
        trainer says so. Otherwise the task of its steps must have ended or be the current one; without a trainer the
        loop must also have begun, with no block open. With several ranks only rank 0 knows the run's own folder, so
        only the folder that the caller asked for counts, which all ranks know.
        """
        session, comm = self._session, self._background.comm
        blocks = self._trains is None and (self._runs or session.scopes or not session.begun)
        elsewhere = self._trains is not False and session.main_task is not origin() and not ended(session.main_task)
        if session.forked or blocks or elsewhere:
            return frozenset()
        folders = {self._outlets.asked, self.output_dir if comm.world_size == 1 else None}
        return frozenset((comm.rank, folder) for folder in folders if folder is not None)

    def note(self, **facts: Any) -> None:
        """Store facts in the run's folder, on the rank that has it; for integrations."""
        if self._outlets.folder is not None:
            self._outlets.folder.try_write_facts(**facts)

    def __enter__(self) -> Recorder:
        self._runs.append(Scope(self, "run").__enter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if str(error) == "'bool' object is not callable":
            frames = [frame for frame, _ in traceback.walk_tb(trace)]
            if error is not None and "should_stop" in frames[-1].f_code.co_names:
                error.add_note("  fix: `log.should_stop`, without parentheses")
        elif error is not None and str(error).startswith("'method' object does not support the context manager"):
            error.add_note("  fix: `with log.step(step):`, a call with the step's number")
        try:
            self._runs.pop().__exit__(kind, error, trace)
        finally:
            self.close(failed=error is not None)

    def close(self, *, failed: bool = False) -> None:
        """Log the last window, and wait for the worker and the sinks, each up to a deadline; idempotent.

        An interrupt is raised after everything is written; a second interrupt stops the writing. With ``run.strict``
        raises the first of declog's own failures, unless the run itself ``failed``.
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
        """Hand over all steps, write and close. After an interrupt, another call continues."""
        came = self._session.begun or self._session.meter.dropped  # dropped rows are reported already
        if not (self._failed or came or self._session.drives) and self._background.comm.collects:
            log.warning("%s", self._without_steps())
        self._session.close(failed=self._failed)
        try:
            self._background.close(failed=self._failed)
        except Exception:  # `strict` raises after everything is closed
            self._ended = True
            atexit.unregister(self.close)
            raise
        self._ended = True
        atexit.unregister(self.close)

    def __copy__(self) -> Recorder:
        """Return the recorder itself: a copied object that holds it, such as a trainer, records into the same run."""
        return self

    def __deepcopy__(self, memo: Any) -> Recorder:
        return self

    def __reduce__(self) -> NoReturn:
        raise UsageError.of("DL510.pickle")

    @property
    def failures(self) -> Mapping[str, int]:
        """The failures so far outside of the training thread, and the losses of sinks: counts by message."""
        return self._background.failures

    @property
    def missing(self) -> Mapping[str, str]:
        """The metrics that have no values because their signals do not arrive, each with the reason; on rank 0.

        Waits until all log events so far are evaluated. A metric leaves this mapping when its signals arrive.
        """
        return self._background.missing

    @property
    def alerts(self) -> list[tuple[int, Alert]]:
        """The last thousand alerts that fired, each with the step of its log event; on rank 0.

        Waits until all log events so far are evaluated.
        """
        return self._background.alerts

    @property
    def should_stop(self) -> bool:
        """Whether an alert with `do: [stop]` ends training after the open step, or after the last one if none is open.

        Ask once per step on every rank, and leave the loop when this is true: all ranks then leave it after the same
        step. With several ranks this waits only if this rank is ahead while the ranks agree on that step. In a single
        process it waits while more than four log events are not evaluated yet, at most two seconds in the whole run:
        otherwise a loop without work would make hundreds of steps before the alert stops it.
        """
        session = self._session
        open_step = None if session.step is None else session.step.number
        return not self._session.forked and self._background.should_stop(
            session.train.last if open_step is None else open_step
        )

    def _progress(self) -> tuple[int | None, int | None]:
        """The last step and the total number of steps; read by the threads of sinks."""
        return self._session.train.last, self.total_steps

    # -- scopes

    @answered
    def step(self, step: int = NO_NUMBER) -> Scope:
        """Return a `with` block for one optimizer step; at the end of the block the step is complete.

        Everything observed inside the block belongs to the step, also from tasks that are started inside. Step numbers
        must rise, and may have gaps: a number that is not above the last one raises ``UsageError``. So does a step
        inside a step. The returned scope is also a handle: ``step.observe(...)`` reaches the step from any thread.
        """
        number = step_number(step)
        self._session.dropped.announce(number)
        return Scope(self, "step", number)

    @answered
    def at(self, step: int = NO_NUMBER) -> Scope:
        """Return a block that contributes to a step that another block owns: for prefetches, tasks and threads.

        The block may begin before the step. The step's window waits for the block, at most ``wait_s`` seconds. Without
        a `with`, each ``log.at(k).observe(...)`` is one batch.
        """
        return Scope(self, "at", step_number(step))

    def commit(self, step: int = NO_NUMBER) -> None:
        """End the step that has all calls since the last commit; for ``declog.start(..., steps="commit")``."""
        if not self._session.commits:
            raise UsageError.of("DL510.commit")
        with self.step(step):
            pass

    def rewind(self, step: int) -> None:
        """Go back to a step, for instance after a checkpoint was loaded: the next step may be ``step`` + 1.

        Everything recorded so far is logged first. Then the sinks that can do so drop their rows of later steps, as
        when a run is resumed at that step. Call this between two steps, and on every rank.
        """
        if self._records():
            self._session.rewind(step_number(step))

    def restart(self) -> None:
        """Begin again, for a second training in one run: the next step may have any number, and logged rows stay.

        Everything recorded so far is logged first. Call this between two steps, and on every rank.
        """
        if not self._records():
            return
        if self.last_step is not None and self.output_dir is not None:
            log.warning(
                "the run of %s trains again: its steps come beside those of before\n  fix: %s", self.output_dir,
                self._anew(),
            )  # fmt: skip
        self._session.rewind(-1, restart=True)

    @property
    def last_step(self) -> int | None:
        """The last optimizer step that has ended; None before the first. The next step needs a higher number."""
        return self._session.train.last

    @property
    def in_step(self) -> bool:
        """Whether signals may be observed here: inside a block of ``step``, ``at`` or ``mode``."""
        scope = here(self)
        return scope is not None and not scope.closed

    @answered
    def mode(self, name: str, step: int | None = None) -> Scope:
        """Return a block of another mode, such as ``eval``, with its own windows and names; its end logs its values.

        Inside, signals may be observed without a step. The values are logged at ``step``, by default the step around
        the block, or the last one. The block may run beside steps, as a task. If the block was flushed and no rank has
        observed anything since, its end logs nothing.
        """
        self._records()
        if name not in self.plan.modes:
            said = getattr(name, "__name__", str(name))  # `eval` is also a Python function
            fix = instead_of_mode(said, self.plan.modes)
            raise UsageError.of("DL510.mode", config=self.plan.name, name=name, fix=fix)
        number = None if step is None else step_number(step)
        if name != "train":
            self._session.dropped.announce(name)
        return Scope(self, "run" if name == "train" else "mode", number, name)

    def batch(self, phase: str | None = None, *, rows: int | None = None) -> Scope:
        """Return a block for one explicit batch, of one phase or of all; the batch ends with the block.

        Tasks that are started inside the block fill the same batch. With ``rows``, the number of the phase's
        completions, a signal with another number of rows raises ``InputError``. So does observing a signal twice.
        """
        self._records()
        if not self.in_step:
            raise UsageError.of("DL510.outside", what="batch")
        if phase is not None and phase not in self.plan.known_phases:
            raise UnknownSignalError.of("DL501.phase", config=self.plan.name, name=phase, known=self.plan.known_phases)
        return Scope.of_batch(self, phase, rows)

    @property
    def innermost(self) -> int:
        """The id of the open block that was made last; 0 if no block is open."""
        return max([*self._session.scopes, *self._session.runs], default=0)

    def _next_step(self) -> Scope:
        return self.step(self._session.train.next_step)

    def flush(self, wait_s: float | None = None) -> dict[str, float] | None:
        """Log everything since the last log event now; for trainers that decide when to log (`every: trainer`).

        Call this on every rank. Metrics and tables with a longer `every` are logged too. With ``wait_s`` this waits at
        most that many seconds, and returns on every rank the scalars that rank 0 logs at this event, by name, without
        the prefixes of sinks, and with ``declog/ranks`` if ranks are missing. Returns None without ``wait_s``, or if
        the scalars did not arrive in time.
        """
        if not self._records():
            return None
        answer = None if wait_s is None else Answer(wait_s)
        self._session.flush(here(self), answer)
        return None if answer is None else answer.wait()

    def written(self, wait_s: float = 30.0) -> bool:
        """Wait at most ``wait_s`` seconds for the sinks; return whether all log events so far are written."""
        self._alive()
        return self._background.written(wait_s)

    def wrap(self, step_function: Callable[P, R]) -> Callable[P, R]:
        """Wrap a step function: each call is a step, numbered from 0, and its result is observed.

        The function, also an ``async`` one, returns a mapping, a dataclass, a named tuple, ``(loss, mapping)``, a
        number (observed as ``loss``) or None. Keys that the config does not declare are ignored. Any other result
        raises ``UsageError``, and so does a generator function.
        """
        return wrapping.wrap(self, step_function)

    # -- the trainer's configuration

    def config(self, values: Mapping[str, Any]) -> None:
        """Add to the trainer's configuration: values as in ``declog.start(run_config=...)``.

        The values are merged into ``run_config.yaml`` in the run's folder, which the report reads: a value replaces the
        one with the same key, and mappings are merged. Keys that name secrets are left out. Trackers keep the
        configuration that the run began with. Only rank 0 writes; other ranks may call this or not. Errors of the disk
        raise ``OSError``; after ``close`` nothing is written.
        """
        if self.closed or self._in_fork():
            return
        with self._taking("`log.config`"):
            if not isinstance(values, Mapping):
                raise UsageError.of("DL510.config", came=type(values).__name__)
            self._background.configure(values)

    # -- actors

    def export(self) -> bytes:
        """Return an actor's log events since the last export, for the driver's ``merge`` (``role="actor"``).

        Call this between steps, and once more after ``close`` for the last window.
        """
        if self._session.forked:
            raise UsageError.of("DL510.fork")
        if not self.closed and not self._background.comm.collects:
            self._background.settle()
        return self._background.export()

    def merge(self, exports: Iterable[bytes], wait_s: float | None = None) -> None:
        """Log the exports of actors, in one call or in many; on the driver (``role="driver"``). Returns at once.

        A log event is finished when the parts of all actors have arrived. It is finished without the missing parts
        after ``wait_s`` seconds (default: the ``wait_s`` of ``start``), or when the waiting parts exceed the plan's
        ``backlog_bytes``. An actor whose part was missing is not waited for until it exports again. Bytes that are no
        export of this plan raise an error, after all other exports have been taken.
        """
        self._alive()
        if not self._in_fork():
            self._background.merge(exports, wait_s)

    # -- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state between two steps: open windows, and on rank 0 also totals over the run.

        The state has plain values and one uint8 tensor, for ``torch.save`` and ``torch.load(..., weights_only=True)``.
        Every rank saves its own state. When this returns, everything logged so far is in rank 0's files.
        """
        self._original()
        with self._session.lock:
            progress, frames = session_state.state(self._session, usable(here(self)), self._background.comm.rank)
            facts, data = self._background.state()
        if (merger := self._background.merger) is not None:  # a driver makes no steps: it is at the last step it logged
            progress = replace(progress, step=max(progress.step, merger.step))
        return pack(self.plan, self._background.comm, progress, frames | facts, data, self.output_dir, self.run_id)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a run where ``state_dict`` was called, with its windows, totals and files. Call it before any step.

        Rows of later steps are removed from the files, so that no row is in them twice. If this run has another folder
        than the saved run, it is a branch, and the saved run's files stay as they are. If the config was changed since,
        totals continue and open windows are dropped, with a warning.
        """
        self._original()
        if self._session.begun:
            raise UsageError.of("DL510.load")
        comm = self._background.comm
        progress, frames, data, equal = unpack(self.plan, comm, state)
        wanted = (self._outlets.asked, state["output_dir"] if comm.world_size == 1 else None)
        context.close_ended(comm.rank, [Path(folder) for folder in wanted if folder is not None], but=self)
        self._outlets.go_on(state, self._background.close_s, trainer=self._trains is not None)
        session_state.load(self._session, progress, frames if equal else {}, state.get("ranks"))
        self._background.load(progress, frames, data, equal=equal)

    def in_child(self) -> None:
        """Note that this process is a fork of the run's process: it has no threads, and a lock may stay locked."""
        if not self.closed:
            self._no_short_cut = True
            self._session.in_child()

    def _original(self) -> None:
        """Raise ``UsageError`` if the recorder has no state: after the run's end, and in a fork of its process."""
        self._alive()
        if self._session.forked:
            raise UsageError.of("DL510.fork")
