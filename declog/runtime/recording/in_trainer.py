"""The recorder's methods for integrations with trainers, in which mistakes must not stop training.

Inside such a trainer, mistakes of the training code are reported, and the values left out. Imports the session and
what runs behind it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from declog.records import Beside
from declog.runtime.recording.session import Session
from declog.runtime.rows import context
from declog.runtime.rows.scopes import Scope, here, origin, usable
from declog.runtime.worker.background import Background

_NOTHING = nullcontext()


class _Inside(threading.local):
    """The number of guards around this thread's current call; the outermost one reports a failure."""

    guards = 0


class InTrainer:
    """The part of a recorder that integrations use."""

    def __init__(self, session: Session, background: Background) -> None:
        self.plan = session.plan
        self._session = session
        self._background = background
        self._caller: Callable[[], str] | None = None  # says whose code calls; None: mistakes are raised
        self._reserved: frozenset[str] = frozenset()  # signals that only the trainer's integration observes
        self._inside = _Inside()
        self._trains: bool | None = None  # whether a trainer trains with it now; None: no trainer says
        self._idle = False

    @property
    def closed(self) -> bool:
        """Whether the run is over, so that nothing is recorded any more."""
        return self._session.closed

    def _here(self) -> Scope | None:
        """The current scope; in a thread without one, the trainer's generation while it runs."""
        return here(self) or self._session.generation

    def training(self, under_way: bool) -> None:
        """Note that the trainer's training begins in this task, or that it has ended."""
        self._trains = under_way
        if under_way:
            self._session.main_task = origin()

    def attached(self, caller: Callable[[], str], signals: Collection[str] = (), phase: str | None = None) -> None:
        """From now on, report mistakes of the training code instead of raising them, unless ``strict``.

        ``caller`` says whose code it is. ``signals`` are observed by the integration itself, so it is a mistake to
        observe them elsewhere. The batches of ``phase`` are explicit, so a column outside of one is a mistake, too.
        """
        self._caller, self._reserved = caller, frozenset(signals)
        self._session.intake.explicit = phase

    def came(self, source: str) -> bool:
        """Whether the open batch has a signal."""
        session = self._session
        with session.lock:
            batches = session.batches(usable(self._here()), origin())
            ops = self.plan.sources.get(source, ())
            return any(op.phase in batches and op.name in batches[op.phase].names for op in ops)

    def taking(self, column: object) -> AbstractContextManager[None]:
        """A block that records a column of the training code; inside a trainer it is a guard."""
        declared = isinstance(column, str) and column in self.plan.extras
        return self._taking(f"the column `{column}`", "" if declared else "the column is left out")

    def _taking(self, what: str, left_out: str = "") -> AbstractContextManager[None]:
        if self._caller is None or self._inside.guards:
            return _NOTHING
        return self.guard(f"{what} of {context.giver() or self._caller()}", left_out)

    def beside(self, numbers: Beside) -> None:
        """Add the trainer's own numbers to the next log event of the current mode, for its sinks."""
        session = self._session
        with session.lock:
            session.stream(here(self)).beside = numbers

    def pass_through(self, numbers: Beside, step: int, mode: str = "train") -> None:
        """Give the sinks the trainer's own numbers at a step, beside its log event if it has one.

        The numbers are in no window. Only rank 0's reach a sink, so other ranks need not call this.
        """
        if not self.closed:
            self._background.pass_through(step, mode, numbers)

    @contextmanager
    def idle(self, idle: bool = True) -> Iterator[None]:
        """A block in which nothing is recorded, such as a prediction; ``idle=False`` records again inside of one."""
        before, self._idle = self._idle, idle
        try:
            yield
        finally:
            self._idle = before

    def guard(self, what: str | Callable[[], str], left_out: str = "") -> Guard:
        """A block of an integration whose errors do not reach the training code; it goes on after the block.

        A failure is reported once, with ``what`` was done, and counted in ``failures``. The open window is then marked
        as lacking this rank's values (``declog/ranks``), unless ``left_out`` says what is missing and no metric reads
        it. Interrupts pass through; with ``run.strict`` all errors do. After ``close`` nothing is reported. The same
        guard may be entered many times.
        """
        return Guard(self, what, left_out)


@dataclass(frozen=True, slots=True)
class Guard:
    """The blocks of ``InTrainer.guard``."""

    recorder: InTrainer
    what: str | Callable[[], str]
    left_out: str

    def __enter__(self) -> None:
        self.recorder._inside.guards += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        recorder = self.recorder
        recorder._inside.guards -= 1
        if error is None or isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            return False
        if recorder.closed or recorder.plan.strict:
            return recorder.closed
        session = recorder._session
        with session.lock:
            if not self.left_out:
                session.stream(here(recorder)).intact = False  # something is missing that should have come
            session.failures.guarded(self.what if isinstance(self.what, str) else self.what(), error, self.left_out)
        return True
