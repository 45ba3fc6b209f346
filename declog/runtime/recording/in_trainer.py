"""The recorder's methods for integrations with trainers.

A mistake must not stop training there: a mistake of the training code is reported, and its values are left out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from declog.errors import UsageError
from declog.records import Beside
from declog.runtime.recording.session import Session
from declog.runtime.rows import context
from declog.runtime.rows.scopes import Scope, here, origin, usable
from declog.runtime.worker.background import Background

_NOTHING = nullcontext()


class _Inside(threading.local):
    """The number of guards around this thread's current call."""

    guards = 0


class InTrainer:
    """The part of a recorder that integrations use."""

    def __init__(self, session: Session, background: Background, arguments: Sequence[str]) -> None:
        self.plan = session.plan
        self.trained_beside: InTrainer | None = None  # the last recorder of a trainer that trained while this was open
        self._arguments = arguments  # those by which an integration starts such a run, as text
        self._session = session
        self._background = background
        self._caller: Callable[[], str] | None = None  # names the calling code in messages; None: mistakes are raised
        self._reserved: frozenset[str] = frozenset()  # signals that only the trainer's integration observes
        self._inside = _Inside()
        self._trains: bool | None = None  # whether a trainer trains with this recorder now; None: no trainer is known
        self._idle = False

    @property
    def closed(self) -> bool:
        """Whether the run is over, so that nothing more is recorded."""
        return self._session.closed

    @property
    def integrated(self) -> bool:
        """Whether the current call is one of the integration of a trainer that trains now."""
        return bool(self._trains and self._inside.guards)

    def _here(self) -> Scope | None:
        """The current scope; in a thread without a scope, the open batch of the trainer's generation."""
        return here(self) or self._session.generation

    def training(self, under_way: bool) -> None:
        """Note that the trainer's training begins in this task, or that it has ended."""
        self._trains = under_way
        if under_way:
            self._session.main_task = origin()
            context.trains(self)

    def _without_steps(self) -> UsageError:
        """The warning of a run that ends without a step. A trainer inside of it may have had a run of its own."""
        trained = self.trained_beside
        if trained is None and self._caller is not None:
            return UsageError.of("DL513.untrained", call=self._call(self._arguments))
        if trained is None:
            return UsageError.of("DL513.nothing")
        return UsageError.of("DL513.trained", call=trained._call(self._arguments))

    def _call(self, arguments: Sequence[str]) -> str:
        """The call by which this recorder's integration starts a run with a config."""
        if self._caller is None:
            return f"declog.callback({', '.join(arguments)})"
        return f"log = declog.attach({', '.join(['trainer', *arguments])})"

    def _anew(self) -> str:
        """How a second training of a trainer has a run of its own."""
        if self._caller is None:
            return "for a run of its own, start declog anew for it"
        return f"for a run of its own, before the second train(): declog.detach(trainer); {self._call(self._arguments)}"

    def attached(self, caller: Callable[[], str], signals: Collection[str] = (), phase: str | None = None) -> None:
        """From now on, report mistakes of the training code instead of raising them, unless ``run.strict`` is set.

        ``caller`` names the training code in messages. The integration itself observes ``signals``: observing them
        elsewhere is a mistake. The batches of ``phase`` are explicit: a column outside such a batch is a mistake too.
        No batch of the trainer's is refused because it lacks a required signal of the training code.
        """
        self._caller, self._reserved = caller, frozenset(signals)
        intake = self._session.intake
        intake.explicit = phase
        if signals and not self.plan.strict:
            for op in self.plan.signals:
                if op.source not in self._reserved:
                    intake.pieces.setdefault(op.phase, set()).add(op.name)

    def came(self, source: str) -> bool:
        """Whether an open batch has the signal that is observed as ``source``."""
        session = self._session
        with session.lock:
            batches = session.batches(usable(self._here()), origin())
            ops = self.plan.sources.get(source, ())
            return any(op.phase in batches and op.name in batches[op.phase].names for op in ops)

    def taking(self, column: object) -> AbstractContextManager[None]:
        """Return a block that records a column of the training code; with an integration attached it is a guard."""
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
        """Give the sinks the trainer's own numbers at a step, beside the step's log event if it has one.

        The numbers belong to no window. Only rank 0's numbers reach a sink, so other ranks need not call this.
        """
        if not self.closed:
            self._background.pass_through(step, mode, numbers)

    @contextmanager
    def idle(self, idle: bool = True) -> Iterator[None]:
        """Record nothing inside the block, for instance in a prediction; ``idle=False`` records again inside it."""
        before, self._idle = self._idle, idle
        try:
            yield
        finally:
            self._idle = before

    def guard(self, what: str | Callable[[], str], left_out: str = "") -> Guard:
        """Return a block whose errors do not reach the training code, which continues after the block.

        A failure is reported once, with ``what`` was done, and counted in ``failures``. The open window is then marked
        as lacking this rank's values (``declog/ranks``). Pass ``left_out``, a text that names the missing values, if no
        metric reads them: then the window is not marked. Interrupts pass through; with ``run.strict`` all errors do.
        After ``close`` nothing is reported. The same guard may be entered many times.
        """
        return Guard(self, what, left_out)


@dataclass(frozen=True, slots=True)
class Guard:
    """The block that ``InTrainer.guard`` returns."""

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
                session.stream(here(recorder)).intact = False  # the window lacks values
            session.failures.guarded(self.what if isinstance(self.what, str) else self.what(), error, self.left_out)
        return True
