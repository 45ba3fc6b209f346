"""The part of a recorder that takes values: signals, numbers by name, durations, columns."""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from declog.errors import InputError, UsageError
from declog.errors.habits import answered
from declog.language.dtypes import Axis
from declog.runtime.ranks.log_event import GREATEST
from declog.runtime.recording import timing
from declog.runtime.recording.in_trainer import InTrainer
from declog.runtime.recording.logged_numbers import LoggedNumbers
from declog.runtime.recording.session import Session
from declog.runtime.rows.kept import HOW_TO_KEEP
from declog.runtime.rows.packets import Argument, Packet, named, rows_of
from declog.runtime.rows.scopes import Recording, Scope, innermost, origin, usable
from declog.runtime.values.inputs import words_of
from declog.runtime.worker.background import Background

log = logging.getLogger("declog")


class Observing(InTrainer, Recording):
    """The recorder's methods that take values; they go to the open batches of the scope, task and thread."""

    _logged_numbers: LoggedNumbers

    def __init__(self, session: Session, background: Background, arguments: Sequence[str]) -> None:
        super().__init__(session, background, arguments)
        self._no_short_cut = session.meter.timed  # `observe` must not take its short cut
        self._said_so = False

    def observe(self, *arguments: Argument, step: Any = None, **signals: Any) -> None:
        """Record signals and rows of packets in the current block. Observing a signal again opens the next batch.

        Pass signals by keyword, or in mappings of names to values, for names such as ``train/loss``. Values are
        tensors, arrays, lists or numbers in the shape that the config declares: [completions, tokens], [completions],
        [groups], or one number per step; a family is a mapping of members to values. A wrong shape, type or count
        raises ``InputError``, an unknown name ``UnknownSignalError``.

        With ``step=k`` the values belong to optimizer step ``k``, with ``step="next"`` to the step that ends next on
        this rank, wherever the call is. Values outside of any block are left out, counted in ``failures`` and reported
        once; with ``run.strict`` they are an error.
        """
        scope = innermost()
        try:
            if (
                scope is None or scope.takes is not self or arguments or step is not None
                or self._no_short_cut or self._idle
                # with an integration attached, only calls inside its guard, which reports mistakes, take the short cut
                or (self._caller is not None and not self._inside.guards)
            ):  # fmt: skip
                meter = self._session.meter
                began = meter.clock()
                self._observe_any(arguments, signals, step)
                meter.recording += meter.clock() - began
            else:  # the short cut for the usual call
                session, me = self._session, origin()
                with session.lock:
                    if scope.takes is self:
                        batches = scope.batches.get(me)  # None in an explicit batch
                        session.intake.observe(session.batches(scope, me) if batches is None else batches, signals)
                        return
                self._observe_in(scope, (), signals)  # another thread has ended the scope
        except InputError as error:  # a mistake of the caller, whose own lines show it: drop the inner frames
            error.__traceback__ = None
            raise

    def _observe_any(self, arguments: Sequence[Argument], signals: Mapping[str, Any], step: Any) -> None:
        if self._idle:
            return
        if self._caller is None:
            self._observe(arguments, signals, step)
        else:
            names = {name: None for one in (*arguments, signals) if isinstance(one, Mapping) for name in one}
            reserved = frozenset() if self._inside.guards else self._reserved.intersection(names)
            alone = len(reserved) == len(names) and all(isinstance(one, Mapping) for one in arguments)
            left_out = "the trainer's own is recorded" if reserved and alone else ""
            with self._taking(", ".join(f"`{name}`" for name in names), left_out):
                packets, together = named(arguments, signals)
                if reserved:
                    raise InputError.of("DL509.signal", name=min(reserved))
                if self._session.generation is not None:
                    self._refuse_other_phase(together, str(self._session.intake.explicit))
                self._observe(packets, together, step)

    def _refuse_other_phase(self, signals: Mapping[str, Any], phase: str) -> None:
        """Raise ``InputError`` for rows of another phase than the generation's: the trainer shuffles its rows later."""
        for name in signals:
            ops = self.plan.sources.get(name, ())
            if ops and all(op.phase != phase and op.axis is not Axis.STEP for op in ops):
                home, words = (*ops[0].homes, "any")[0], words_of(signals[name])
                raise InputError.of(
                    "DL509.generation", name=name, phase=phase, other=ops[0].phase, home=home, words=words
                )

    def observe_generated(self, signals: Mapping[str, Any]) -> None:
        """Record rows of the trainer's open generation, for its integration: columns of its data, by their names."""
        self._refuse_other_phase(signals, str(self._session.intake.explicit))
        self.observe(**signals)

    def observe_reserved(self, signals: Mapping[str, Any]) -> None:
        """Record signals of the trainer, for its integration; rows of the training code that do not fit are left out.

        The training code may have observed other rows in the trainer's open batch, such as those of a whole generation
        in a micro-batch.
        """
        try:
            self.observe(**signals)
        except InputError as error:
            phases = {op.phase for name in signals for op in self.plan.sources.get(name, ())}
            if self.plan.strict or not self._leave_out_foreign(phases, error):
                raise
            self.observe(**signals)

    def _leave_out_foreign(self, phases: Collection[str], error: InputError) -> bool:
        """Drop the open batches of these phases that have signals of the training code alone; whether there were any.

        Reports the ``error`` for which they are dropped.
        """
        session = self._session
        with session.lock:
            scope, me = usable(self._here()), origin()
            foreign = {
                phase: names
                for phase, batch in session.batches(scope, me).items()
                if phase in phases and (names := batch.sources) and self._reserved.isdisjoint(names)
            }
            for phase, names in foreign.items():
                session.drop_rows(scope, me, phase)
                shown = " and ".join(f"`{name}`" for name in sorted(names))
                if error.code == "DL503" and session.generation is scope:
                    edit = ", ".join(f"{name}=[[... for token in ids] for ids in completion_ids]" for name in names)
                    error = InputError(
                        error.code, error.message, f"a list for each completion, as its ids have: {edit}"
                    )
                session.failures.guarded(f"{shown} of the training code", error, "its values are left out")
        return bool(foreign)

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
        """Record in the given scope, not in the current one."""
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
            elif scope.kind == "at":  # a handle that was not entered: the call is a batch of its own
                session.open(scope, origin())
                try:
                    session.take(session.batches(scope, origin()), packets, signals, strict=strict)
                finally:
                    session.end(scope, failed=False)
            else:
                session.dropped.unopened(scope, _rows(packets, signals))

    @answered
    def log_metric(self, name: str, value: Any) -> None:
        """Record a number under any name; its mean over the window is logged as ``name``.

        A value whose name belongs to a metric of the config is left out, which is reported once (DL508). A config that
        declares the metric ``logged`` decides how such numbers are reduced and named.

        Call it on all ranks or only some, from any thread, as often as needed. Outside a step the number counts for
        the next one.
        """
        self._metrics_in(self._here(), {name: value})

    def log_metrics(self, values: Mapping[str, Any]) -> None:
        """Record several numbers as ``log_metric`` does; for integrations."""
        self._metrics_in(self._here(), values)

    def _metrics_in(self, scope: Scope | None, values: Mapping[str, Any]) -> None:
        if not values or self.closed or self._idle or not self._records():
            return
        session = self._session
        with self._taking(f"`{next(iter(values))}`" if len(values) == 1 else "numbers"), session.lock:
            session.intake.metrics(session.batches(usable(scope), origin()), values)

    @answered
    def scalars(
        self, values: Mapping[str, Any], step: int | None = None, *, commit: bool = False, between: str = "/",
        note: bool = True,
    ) -> dict[str, Any]:  # fmt: skip
        """Record named numbers, such as a loop passes to a tracker; returns the values that are no numbers.

        With ``note`` a warning names each of these once. None is no value: it is silently left out.

        A name that the config declares as a signal is observed as that signal (see ``from: actor/kl_loss``). Other
        numbers are logged under their names, as by ``log_metric``. A number may be a tensor on any device; this does
        not wait for the device. Names inside nested mappings are joined by ``between``.

        All calls with the same ``step`` form one step, which also has everything observed since the step before. The
        step ends with the first call for a later step, or with ``commit``. Inside ``with log.step(k):`` and in modes
        the numbers belong to that block. A call for an earlier step counts there if its window is still open; else it
        is late, which is counted and reported. Without ``step`` the numbers are recorded as by ``log_metric``.
        """
        if not self._records():
            return {}
        rest = self._logged_numbers.take(values, None if step is None else step_number(step), between)
        if note and rest:
            self._logged_numbers.note(rest, between)
        if commit:
            self._logged_numbers.end()
        return rest

    @answered
    def timer(self, name: str) -> AbstractContextManager[None]:
        """Time a block, in seconds; blocks with the same name in one step add up. Does not wait for the device.

        The times feed the signal ``timers``, a family per step, if the config declares it; else they are logged as
        ``time/{name}``. On a GPU the time is the device's: from the end of the work queued before the block to the end
        of the work queued in it. The time counts for the step in which the block ends.
        """
        return self._timer_in(None, name)

    @contextmanager
    def _timer_in(self, scope: Scope | None, name: str) -> Iterator[None]:
        if self._session.forked:
            yield  # a forked process cannot use the device
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
        """Record a column with one value per completion of the step. Recording a column again opens the next batch.

        ``values`` is a list or an array. A column that the config declares as a signal is observed as that signal.
        Other columns go to tables whose schema has `undeclared: keep`; without such a table they are dropped, which is
        reported once. Raises ``InputError`` for values that cannot be a column, and for an undeclared column if a table
        has `undeclared: error`. A column that is recorded before the step belongs to the step's first rows.
        """
        self._extra_in(self._here(), column, values)

    def keep(self, **columns: Any) -> None:
        """Keep columns for later questions, one value per completion each; no metric of the run needs to read them.

        Values are numbers, bools or texts, in lists, arrays or tensors. ``declog add`` reads the columns later, as
        signals of these names. They belong to the step's open batch, or to its next one, and never change the batch.
        A column is left out, which is reported once, if it does not fit the batch, if it has texts where its name had
        numbers before (or the reverse), or if no step is open.
        """
        scope, session = self._here(), self._session
        if self.closed or self._idle or not self._records():
            return
        with session.lock:
            if session.commits if scope is None else scope.step is not None:
                session.intake.keep(session.batches(scope, origin()), columns)
                return
            for name in columns:
                session.intake.leave_out(name, f"no step is open{HOW_TO_KEEP}")

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
        """Whether this process is a fork of the run's process, where nothing is recorded; the first call warns."""
        if self._session.forked and not self._said_so:
            self._said_so = True
            log.warning("%s", UsageError.of("DL510.in_fork", process=os.getpid()))
        return self._session.forked

    def _alive(self) -> None:
        if self.closed:
            raise UsageError.of("DL510.closed")

    def _records(self) -> bool:
        """Whether values can be recorded: not in a fork. Raises ``UsageError`` after the run's end, and on a driver."""
        if self._in_fork():
            return False
        self._alive()
        self._drive_refused()
        return True

    def _drive_refused(self) -> None:
        if self._session.drives:
            raise UsageError.of("DL510.driver")


NO_NUMBER: Any = None  # the default of `step`, so that a call without a number gets declog's own error


def step_number(step: Any) -> int:
    """Return a step's number as an int; raises ``UsageError`` for a value that is no step number."""
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
    """The number of rows in a call, as far as its values show it; at least 1."""
    return max(sum(packet.rows for packet in packets) + (rows_of(signals) if signals else 0), 1)
