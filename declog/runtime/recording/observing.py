"""The part of a recorder that takes values: signals, numbers by name, durations, columns. Imports the session."""

from __future__ import annotations

import logging
import operator
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from declog.errors import InputError, UsageError
from declog.errors.habits import answered
from declog.runtime.ranks.log_event import GREATEST
from declog.runtime.recording import timing
from declog.runtime.recording.in_trainer import InTrainer
from declog.runtime.recording.logged_numbers import LoggedNumbers
from declog.runtime.recording.session import Session
from declog.runtime.rows.packets import Argument, Packet, named, rows_of
from declog.runtime.rows.scopes import Recording, Scope, innermost, origin, usable
from declog.runtime.worker.background import Background

log = logging.getLogger("declog")


class Observing(InTrainer, Recording):
    """What training code gives goes to the open batches of its scope, task and thread."""

    _logged_numbers: LoggedNumbers

    def __init__(self, session: Session, background: Background) -> None:
        super().__init__(session, background)
        self._special = session.meter.timed  # what is observed is not only recorded
        self._said_so = False

    def observe(self, *arguments: Argument, step: Any = None, **signals: Any) -> None:
        """Record signals, and the rows of packets, in the scope of here. A signal given again opens the next batch.

        Signals come by keyword, or in mappings of names to values, for names such as ``train/loss``. They are tensors,
        arrays, lists or numbers, of the shape that the config declares: [completions, tokens], [completions],
        [groups], or one number per step; a family is a mapping of member to values. Raises
        ``InputError`` for a wrong shape, type or count, ``UnknownSignalError`` for an unknown name. With ``step`` they
        belong to that optimizer step, or to the ``"next"`` one that ends here, wherever the call is. Outside of any
        scope they are left out, which is counted in ``failures`` and reported once (``run.strict``: raised).
        """
        scope = innermost()
        if scope is None or scope.takes is not self or arguments or step is not None or self._special:
            meter = self._session.meter
            began = time.perf_counter() if meter.timed else 0.0
            self._observe_any(arguments, signals, step)
            meter.recording += time.perf_counter() - began if meter.timed else 0.0
        else:  # the common case
            session, me = self._session, origin()
            with session.lock:
                batches = scope.batches.get(me)  # of an explicit batch none
                session.intake.observe(session.batches(scope, me) if batches is None else batches, signals)

    def _observe_any(self, arguments: Sequence[Argument], signals: Mapping[str, Any], step: Any) -> None:
        if self._caller is None:
            self._observe(arguments, signals, step)
        elif not self._idle:
            names = {name: None for one in (*arguments, signals) if isinstance(one, Mapping) for name in one}
            reserved = frozenset() if self._inside.guards else self._reserved.intersection(names)
            alone = len(reserved) == len(names) and all(isinstance(one, Mapping) for one in arguments)
            left_out = "the trainer's own is recorded" if reserved and alone else ""
            with self._taking(", ".join(f"`{name}`" for name in names), left_out):
                packets, together = named(arguments, signals)
                if reserved:
                    raise InputError.of("DL509.signal", name=min(reserved))
                self._observe(packets, together, step)

    def _observe(
        self, arguments: Sequence[Argument], signals: Mapping[str, Any], step: Any = None, *, strict: bool = True
    ) -> None:
        if not self._records():
            return
        packets, signals = named(arguments, signals)
        if step is None:
            scope = self._here()
            if scope is not None:
                self._observe_in(scope, packets, signals, strict=strict)
                return
        elif step != "next":
            self._observe_in(Scope(self, "at", step_number(step)), packets, signals, strict=strict)
            return
        session = self._session
        with session.lock:
            if step is None and not session.commits:
                session.dropped.outside(_rows(packets, signals))
                return
            session.take(session.batches(None, origin()), packets, signals, strict=strict)

    def _observe_in(
        self, scope: Scope, arguments: Sequence[Argument], signals: Mapping[str, Any], *, strict: bool = True
    ) -> None:
        """Record in a scope that is known, whatever is open here."""
        if self._in_fork():
            return
        packets, signals = named(arguments, signals)
        session = self._session
        with session.lock:
            if scope.closed:
                if not self.closed:
                    session.dropped.ended(scope, _rows(packets, signals))
            elif scope.owner is not None:
                session.take(session.batches(scope, origin()), packets, signals, strict=strict)
            elif scope.kind == "at":  # a batch of its own
                session.open(scope, origin())
                try:
                    session.take(session.batches(scope, origin()), packets, signals, strict=strict)
                finally:
                    session.end(scope, failed=False)
            else:
                session.dropped.unopened(scope, _rows(packets, signals))

    @answered
    def log_metric(self, name: str, value: Any) -> None:
        """Record a number under a name of its own; its mean over the window is logged as ``name``.

        A name that the config declares, or that another metric wrote first, stays theirs: this value is left out,
        which is reported once (DL508). A config that declares the metric ``logged`` reduces and names them its way.

        On every rank or on some, from any thread, as often as wanted. Outside a step it counts for the next.
        """
        self._metrics_in(self._here(), {name: value})

    def _metrics_in(self, scope: Scope | None, values: Mapping[str, Any]) -> None:
        if self.closed or self._idle or not self._records():
            return
        session = self._session
        with self._taking(f"`{next(iter(values))}`" if len(values) == 1 else "numbers"), session.lock:
            session.intake.metrics(session.batches(usable(scope), origin()), values)

    @answered
    def scalars(
        self, values: Mapping[str, Any], step: int | None = None, *, commit: bool = False, between: str = "/"
    ) -> dict[str, Any]:
        """Record numbers that the loop logs by name, such as those that it gives to a tracker; returns what is none.

        A name that the config observes as a signal is that signal, as ``from: actor/kl_loss`` says it. Any other is
        logged under its name, as ``log_metric`` does. A number may be a tensor on any device, which is not waited for;
        what a mapping holds has its names joined by ``between``.

        Calls of one ``step`` are one step, which a call of a later one completes, or ``commit``; what was observed
        since the step before is of it. Inside ``with log.step(k):`` and in modes they are of that. A call of an earlier
        step is of that where its window is open; else it is late, which is counted and reported. Without ``step`` it
        is as ``log_metric``.
        """
        if not self._records():
            return {}
        rest = self._logged_numbers.take(values, None if step is None else step_number(step), between)
        if commit:
            self._logged_numbers.end()
        return rest

    @answered
    def timer(self, name: str) -> AbstractContextManager[None]:
        """Time a block of the step: seconds, summed over the blocks of one name in a step. No device is waited for.

        They feed the signal ``timers``, a family per step, where the config declares it; else they are logged as
        ``log_metric`` of ``time/{name}``. On a GPU the time is the device's, between what the block's begin and end
        queue. It counts for the step in which the block ends.
        """
        return self._timer_in(None, name)

    @contextmanager
    def _timer_in(self, scope: Scope | None, name: str) -> Iterator[None]:
        if self._session.forked:
            yield  # a fork has no device
            return
        self._drive_refused()
        stop = timing.begin()
        try:
            yield
        finally:
            session = self._session
            with session.lock:
                session.timed(usable(scope or self._here()), origin(), str(name), stop())

    @answered
    def log_extra(self, column: str, values: Any) -> None:
        """Record a column of the step's completions, one value each, as a list or array; again opens the next batch.

        A column that the config declares as a signal is observed as one. Others go to the tables whose schema
        says `undeclared: keep`; where none does they are dropped, and that is reported once. Raises ``InputError`` for
        what cannot be a column, and for any column where a table says `undeclared: error`. Before the step it is of
        the rows that the step begins with.
        """
        self._extra_in(self._here(), column, values)

    def keep(self, **columns: Any) -> None:
        """Keep columns of the step's completions for questions that nobody asked yet, one value per completion each.

        Numbers, bools and texts, as lists, arrays or tensors, that no metric of the run reads: ``declog add`` reads
        them later, as signals of their names. They are of the batch that is open, or of the next one, and change
        nothing about it: what does not fit is left out, which is said once.
        """
        scope = self._here()
        if self.closed or self._idle or not self._records():
            return
        with self._session.lock:
            if scope is not None and not scope.closed:
                self._session.intake.keep(self._session.batches(scope, origin()), columns)

    def _extra_in(self, scope: Scope | None, column: str, values: Any) -> None:
        if self.closed or self._idle or not self._records():
            return
        session, me = self._session, origin()
        with self.taking(column), session.lock:
            if scope is not None and scope.closed:
                session.dropped.ended(scope, rows_of({column: values}))
            elif scope is None and not session.commits and me is not session.main_task:
                session.dropped.outside(rows_of({column: values}))
            else:
                session.intake.extra(session.batches(scope, me), column, values)

    # -- whether anything is recorded

    def _in_fork(self) -> bool:
        """Whether this process is a fork of the run's: nothing is recorded then, which is said once."""
        if self._session.forked and not self._said_so:
            self._said_so = True
            log.warning("%s", UsageError.of("DL510.in_fork", process=os.getpid()))
        return self._session.forked

    def _alive(self) -> None:
        if self.closed:
            raise UsageError.of("DL510.closed")

    def _records(self) -> bool:
        """Whether something can be recorded: not in a fork; raises where the run is over, and on a driver."""
        if self._in_fork():
            return False
        self._alive()
        self._drive_refused()
        return True

    def _drive_refused(self) -> None:
        if self._session.drives:
            raise UsageError.of("DL510.driver")


NO_NUMBER: Any = None  # a step without its number is refused in declog's words


def step_number(step: Any) -> int:
    """A step's number; raises ``UsageError`` for what is none."""
    if type(step) is int and -GREATEST < step < GREATEST:
        return step
    try:
        number = operator.index(step)
    except TypeError:
        if step is NO_NUMBER:
            raise UsageError.of("DL510.no_number") from None
        if not isinstance(step, float) or not step.is_integer():
            fix = "log.step(int(step)), which counts optimizer steps"
            if isinstance(step, float):
                fix = "count optimizer steps"
            elif callable(step):
                fix = "log.wrap(function) makes each call a step; a block is `with log.step(k):`"
            raise UsageError.of("DL510.number", step=step, fix=fix) from None
        number = int(step)
    if abs(number) >= GREATEST:
        raise UsageError.of("DL510.bounds", step=number)
    return number


def _rows(packets: Sequence[Packet], signals: Mapping[str, Any]) -> int:
    """How many rows a call seems to have."""
    return max(sum(packet.rows for packet in packets) + (rows_of(signals) if signals else 0), 1)
