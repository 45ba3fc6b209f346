"""A recorder inside a trainer that must go on: mistakes of training code's are reported and left out.

What integrations call besides what users do. Imports the session and what runs behind it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from declog.records import Beside
from declog.runtime.recording.session import Session
from declog.runtime.rows import context
from declog.runtime.rows.scopes import Scope, here, origin, usable
from declog.runtime.worker.background import Background

_NOTHING = nullcontext()


class _Inside(threading.local):
    """How many guards this thread is inside of: what fails there is the outermost's to report."""

    guards = 0


class InTrainer:
    """The part of a recorder by which a trainer's integration calls it."""

    _special: bool

    def __init__(self, session: Session, background: Background) -> None:
        self.plan = session.plan
        self._session = session
        self._background = background
        self._caller: Callable[[], str] | None = None  # where a trainer must go on: whose code calls
        self._reserved: frozenset[str] = frozenset()  # signals that only the trainer's integration observes
        self._inside = _Inside()
        self._idle = False

    @property
    def closed(self) -> bool:
        """Whether the run is over: nothing is recorded any more."""
        return self._session.closed

    def _here(self) -> Scope | None:
        """The scope of here; of a thread that inherited none the trainer's generation, while one is under way."""
        return here(self) or self._session.generation

    def attached(self, caller: Callable[[], str], signals: Collection[str] = (), phase: str | None = None) -> None:
        """From now on a mistake of training code's is reported and left out, unless ``strict``; ``caller`` is whose.

        Signals that the integration observes itself are ``signals``: to observe one is such a mistake. With ``phase``,
        whose batches are made explicit, a column that comes outside of one is such a mistake, too.
        """
        self._caller, self._reserved, self._special = caller, frozenset(signals), True
        self._session.intake.explicit = phase

    def came(self, source: str) -> bool:
        """Whether a signal came in the batch that is open here."""
        session = self._session
        with session.lock:
            batches = session.batches(usable(self._here()), origin())
            ops = self.plan.sources.get(source, ())
            return any(op.phase in batches and op.name in batches[op.phase].names for op in ops)

    def taking(self, column: object) -> AbstractContextManager[None]:
        """A block that takes a column of training code's: inside a trainer that must go on it guards."""
        declared = isinstance(column, str) and column in self.plan.extras
        return self._taking(f"the column `{column}`", "" if declared else "the column is left out")

    def _taking(self, what: str, left_out: str = "") -> AbstractContextManager[None]:
        if self._caller is None or self._inside.guards:
            return _NOTHING
        return self.guard(f"{what} of {context.giver() or self._caller()}", left_out)

    def beside(self, numbers: Beside) -> None:
        """Numbers of the trainer's own, for the sinks of the log event that ends next in the mode of here."""
        session = self._session
        with session.lock:
            session.stream(here(self)).beside = numbers

    def pass_through(self, numbers: Beside, step: int, mode: str = "train") -> None:
        """Give the sinks numbers of the trainer's own, at a step and beside its log event, if it has one.

        They are in no window, and ranks need not call it alike: only rank 0's reach a sink.
        """
        if not self.closed:
            self._background.pass_through(step, mode, numbers)

    @contextmanager
    def idle(self, idle: bool = True) -> Iterator[None]:
        """A block of which nothing is recorded, such as a prediction; or (``idle=False``) one inside it that is."""
        before, self._idle = self._idle, idle
        try:
            yield
        finally:
            self._idle = before

    @contextmanager
    def guard(self, what: str, left_out: str = "") -> Iterator[None]:
        """A block of an integration's own: where it fails the training code goes on, with what comes after the block.

        ``what`` went wrong is reported once and counted in ``failures``. The open window's values then count as not of
        all ranks (``declog/ranks``), unless it is only what is ``left_out``, of which no metric is made. Interrupts
        pass; with ``run.strict`` all errors do. Nothing is told of a recorder that is closed.
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
                    self._session.spoiled(here(self))
                self._session.failures.guarded(what, error, left_out)
        finally:
            self._inside.guards -= 1
