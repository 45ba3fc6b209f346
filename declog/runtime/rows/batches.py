"""Open batches: one per phase for each task or thread in a scope, until the batch closes and goes into its step.

A value goes into the open batch of its signal's phase. Observing a signal again opens the next batch.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from declog.engine.blocks import Key
from declog.errors import InputError, RuntimeFailure
from declog.language.dtypes import Axis
from declog.language.nodes import TIMERS
from declog.plans.needs import ROW_ID
from declog.plans.ops import Plan, SignalOp
from declog.runtime.recording.timing import Timed
from declog.runtime.rows.batch import Batch, repeated
from declog.runtime.rows.calls import LearnedCall, LearnedCalls, Stack, observations, of_phase
from declog.runtime.rows.folds import Folds
from declog.runtime.rows.homes import announced, fitting, homes_of, intended_signals
from declog.runtime.rows.kept import HOW_TO_KEEP, PREFIX, SIGNALS, plain_name
from declog.runtime.rows.observation import NOTHING, Observation, ReadObservation
from declog.runtime.rows.paired_rows import PairedRows
from declog.runtime.rows.steps import OpenBatches
from declog.runtime.rows.unknown_signals import unknown_signals
from declog.runtime.run.failures import Failures, Refused, forget_frames
from declog.runtime.values.extras import Undeclared, kept_column, plain_column
from declog.runtime.values.inputs import describe, undeclared
from declog.runtime.values.streams import NO_STREAMS

log = logging.getLogger("declog")
_NONE: frozenset[str] = frozenset()
Locate = Callable[[InputError], InputError]  # adds where a missing signal is declared, drops fixes the config refuses
LEARNED = 8  # a call with the same names is learned at most so often: after that its dtypes change too often
CALLS = 1000  # the most calls, by names, that are learned


class Intake:
    """Fills open batches, and passes each closed batch to ``keep``, with its `OpenBatches` and its phase."""

    def __init__(
        self,
        plan: Plan,
        elapsed: Callable[[], float],
        failures: Failures,
        keep: Callable[[OpenBatches, str, Batch], None],
        *,
        locate: Locate | None = None,
    ) -> None:
        self.seen: set[str] = set()  # phases whose first batch has closed
        self.order = 0  # the number of batches that were opened
        self.explicit: str | None = None  # a phase that has rows in explicit batches only
        self._plan = plan
        self._elapsed = elapsed
        self._failures = failures
        self._keep = keep
        self._kept_texts: dict[str, bool] = {}  # whether a column of `log.keep` has texts, by its name
        self._locate: Locate = locate or (lambda error: error)
        self.pieces: dict[str, set[str]] = {}  # by phase: the signals that partial batches have had so far
        self._homes = homes_of(plan)
        # the folds of a new batch, by phase; they expect the signals that the batch before had
        functions = cache(plan.function)
        self._folds = {name: Folds(phase, phase.reads, functions, self._report) for name, phase in plan.phases.items()}
        self._undeclared = Undeclared(plan)
        self._paired = PairedRows(plan)
        self._any = {op.axis: op for phase in plan.phases.values() for op in phase.signals if op.any}
        self._unread = {  # kept signals that no metric reads, with the names of their columns
            source: [replace(op, name=SIGNALS + op.name) for op in ops] for source, ops in plan.unread.items()
        }
        self._calls: dict[tuple[str, ...], LearnedCalls] = {}  # learned calls by the names of their values
        self._learned: Counter[tuple[str, ...]] = Counter()  # how often calls with these names were learned
        self._left_out: set[str] = set()  # reported names of columns that cannot be kept

    # -- values

    def check(self, signals: Mapping[str, Any], batches: Mapping[str, Batch] = NOTHING) -> None:
        """Raise ``UnknownSignalError`` for a name that is no signal of the config."""
        if not (self._any or self._plan.signal_names.issuperset(signals)):
            raise unknown_signals(self._plan, signals, announced(batches))

    def observe(self, batches: OpenBatches, signals: Mapping[str, Any], *, strict: bool = True) -> None:
        """Take the values of one call, those of a phase into one batch; if one value is wrong, take none.

        With ``strict`` a name that is no signal of the config raises ``UnknownSignalError``.
        """
        learned = self._calls.get(tuple(signals))
        if learned is not None:
            values, stack = [*signals.values()], learned.stack
            if stack is not None and self._take_stack(batches, learned.read[0], stack, values):
                return
            if self._take_learned(batches, learned, values):
                return
        if strict:
            self.check(signals, batches)
        self._read(batches, signals)

    def _take_learned(self, batches: OpenBatches, learned: LearnedCalls, values: Sequence[Any]) -> bool:
        """Take a call that is like the learned one; return False, and take nothing, if it is not."""
        waiting, calls = observations(learned.kept, values), observations(learned.read, values)
        if waiting is None or calls is None:
            return False
        self._take(batches, calls)
        for call in waiting:
            _await_end(batches, call)
        return True

    def _take_stack(self, batches: OpenBatches, call: LearnedCall, stack: Stack, values: Sequence[Any]) -> bool:
        """Take a call of one stack, the most frequent call, without an ``Observation``.

        Returns False, and takes nothing, if the call is not like the learned one.
        """
        data = stack.copy(values)
        if data is None:
            return False
        phase = call.phase
        batch = batches.get(phase.name)
        if batch is None or batch.closed or not batch.names.isdisjoint(call.names):
            if batch is not None and (batches.once or batch.size is not None):
                return False
            batch = Batch(phase, self._folds[phase.name])
        if not batch.take_stack(call, stack, data):
            return False
        if not batch.order:
            self._put(batches, {phase.name: batch})
        return True

    def _read(self, batches: OpenBatches, signals: Mapping[str, Any]) -> None:
        """Read and take a call's values one by one, and learn the call: the next one is probably like it."""
        sources, homes = self._plan.sources, self._homes
        chosen: list[tuple[int, SignalOp]] = []
        unread: list[tuple[int, Sequence[SignalOp]]] = []
        # whether the names alone decide the signals, without the values or earlier calls
        alike = not self._any and self._plan.signal_names.issuperset(signals)
        earlier = {**batches} if self._any else {}
        intended: Mapping[str, Sequence[SignalOp]] | None = None
        for position, (source, value) in enumerate(signals.items()):
            ops: Sequence[SignalOp] = sources.get(source, ())
            if source in self._unread:
                unread.append((position, self._unread[source]))
            if self._any and not ops and source not in self._plan.signal_names:
                self._undeclared_signal(batches, source, value, earlier)
                continue
            if source not in homes and ops:  # the other signals of the call decide its phase
                if intended is None:
                    intended = intended_signals(self._plan, batches, signals)
                alike = alike and (len(ops) == 1 or not homes.keys().isdisjoint(signals))
                ops = intended[source]
            if len(ops) > 1:
                named, ops = ops, fitting(ops, value)
                alike = alike and ops is named
            chosen += [(position, op) for op in ops]
        values = [*signals.values()]
        pairs = [(op, values[position]) for position, op in chosen]
        calls = {
            phase: ReadObservation(self._plan.phases[phase], {op.name for _, op in chosen if op.phase == phase}, pairs)
            for phase in dict.fromkeys(op.phase for _, op in chosen)
        }
        try:
            for position, op in chosen:
                calls[op.phase].add(op, values[position])
        except InputError as error:
            raise self._locate(error) from error.__cause__
        self._take(batches, [*calls.values()])
        astray = {op.name for source, ops in (intended or {}).items() if not ops for op in sources[source]}
        for phase in calls if astray else ():
            batches[phase].astray = batches[phase].astray | astray
        read_here = {position for position, _ in chosen}
        kept = [
            (position, next((op for op in ops if op.phase in calls), ops[0])) for position, ops in unread
            if position not in read_here or any(op.phase in calls for op in ops)
        ]  # fmt: skip
        for position, op in kept:
            self._keep_signal(batches, op, values[position])
        names = tuple(signals)
        if alike and self._learned[names] < LEARNED and len(self._calls) < CALLS:
            self._learned[names] += 1
            read = [LearnedCall(call, of_phase(chosen, phase), values) for phase, call in calls.items()]
            unread_calls = [
                LearnedCall(self._columns(*(op for _, op in of_phase(kept, phase))), of_phase(kept, phase), values)
                for phase in dict.fromkeys(op.phase for _, op in kept)
            ]
            stack = read[0].alone if len(read) == 1 and not unread_calls else None
            self._calls[names] = LearnedCalls(read, unread_calls, stack)

    def _columns(self, *ops: SignalOp) -> ReadObservation:
        """Return an empty call for the kept columns of one phase's signals."""
        return ReadObservation(self._plan.phases[ops[0].phase], {op.name for op in ops})

    def _keep_signal(self, batches: OpenBatches, op: SignalOp, value: Any) -> None:
        """Keep the value of a signal that no metric reads; a value that does not fit the signal is left out."""
        call = self._columns(op)
        try:
            call.add(op, value)
        except InputError as error:
            self.leave_out(op.source, error.message)
        else:
            _await_end(batches, call)

    def _undeclared_signal(self, batches: OpenBatches, name: str, value: Any, earlier: Mapping[str, Batch]) -> None:
        """Take an undeclared value: numbers and rows of numbers by name, texts for tables, mappings by member.

        A value with another number of rows than ``earlier`` calls belongs to other rows, and opens the next batch.
        """
        if isinstance(value, Mapping):
            for member, inside in value.items():
                self._undeclared_signal(batches, f"{name}/{member}", inside, earlier)
            return
        kind, plain = undeclared(value)
        op = None if kind is None else self._any.get(kind)
        if kind is Axis.COMPLETION and op is not None and not batches.once:
            batch = earlier.get(op.phase)
            other_rows = batch is not None and batch.size is None and batch.completions not in (None, len(plain))
            if batch is not None and other_rows and batch is batches.get(op.phase):
                self._put(batches, {op.phase: Batch(batch.phase, self._folds[op.phase])})
        try:
            if kind is Axis.COMPLETION and op is None:
                return
            if op is not None:
                call = ReadObservation(self._plan.phases[op.phase], {name})
                call.add(op, {name: plain})
                self._take(batches, [call])
            if plain is None and value is not None:
                self.leave_out(name, f"{describe(value)} is neither a number nor a list, array or tensor of values")
            elif kind is not Axis.STEP and plain is not None and self._plan.extra is not None:
                Intake.extra(self, batches, name, plain)  # not `self.extra`: a capture must not see it as another call
                if (batch := batches.get(self._plan.extra)) is not None:
                    batch.loose = True
        except InputError as error:  # the batch has another number of rows
            self.leave_out(name, error.message)

    def leave_out(self, name: str, why: str) -> None:
        """Log once per column why it is not kept."""
        if name not in self._left_out:
            self._left_out.add(name)
            log.warning("`%s` is left out: %s", name, why)

    def metrics(self, batches: OpenBatches, values: Mapping[str, Any]) -> None:
        """Take numbers of ``log_metric``, if a profile shows them."""
        op = self._plan.logged
        if op is not None:
            # each number is its own signal, so that repeating one does not affect the others
            call = ReadObservation(self._plan.phases[op.phase], {*values})
            call.add(op, values)
            self._take(batches, [call])

    def _take(self, batches: OpenBatches, calls: Sequence[Observation]) -> None:
        """Add one call's values to the open batches. A phase with a repeated signal gets its next batch."""
        taken: dict[str, Batch] = {}
        new = several = len(calls) > 1
        for call in calls:
            phase = call.phase.name
            batch = batches.get(phase)
            if (
                batch is None
                or batch.closed
                or (not batch.names.isdisjoint(call.names) and self._again(batches, batch, call))
            ):
                batch, new = Batch(call.phase, self._folds[phase]), True
            elif several:  # work on copies, so that the batches of all phases are replaced at once
                batch = batch.copied()
            batch.take(call)
            if several:
                batch.shared = batch.shared | call.names
            taken[phase] = batch
        if new:
            self._put(batches, taken)
        for call in calls:
            batches.step.hold(taken[call.phase.name], call.names)

    def _again(self, batches: OpenBatches, batch: Batch, call: Observation) -> bool:
        """Whether a call opens the next batch, because the open one already has one of its signals.

        Raises ``InputError`` if that batch takes each signal once, unless row ids, repeated too, join the batches.
        """
        if not (again := batch.again(call)):
            return False
        if self._plan.ids not in again and (batches.once or batch.size is not None):
            signals = [signal for signal in (*batch.phase.signals, *batch.phase.unread) if signal.name in again]
            what = f"`{min(signal.source for signal in signals)}`"
            if all(signal.axis is Axis.STEP for signal in signals):
                raise InputError.of("DL509.twice_per_step", what=what, phase=batch.phase.name)
            raise InputError.of("DL509.twice", what=what, phase=batch.phase.name, ids=self._plan.ids or ROW_ID)
        return True

    def _put(self, batches: OpenBatches, taken: Mapping[str, Batch]) -> None:
        """Store the batches of a call in one update, after closing the open batches that they replace."""
        refused: Exception | None = None
        for phase in filter(taken.__contains__, self._plan.phases):  # a later phase reads the rows of its own call
            if not (batch := taken[phase]).order:
                if phase in batches:
                    try:
                        self.close(batches, phase, followed=True)
                    except Exception as error:  # noqa: BLE001  (raised below: the new batch is not affected)
                        refused = refused or error
                self.order += 1
                batch.order = self.order
        batches.update(taken)
        if refused is not None:
            raise refused

    def extra(self, batches: OpenBatches, column: str, values: Any) -> None:
        """Take a column of ``log_extra``: as the signal that it is declared as, else for tables that keep columns."""
        if column in self._plan.extras:
            Intake.observe(self, batches, {column: values})  # not `self.observe`: a capture has seen this call already
            return
        if not self._undeclared.takes(column):
            return
        phase = self._plan.extra
        assert phase is not None
        plain = plain_column(column, values)
        batch = batches.get(phase)
        if batch is None and phase == self.explicit:
            raise InputError.of("DL509.under_way", column=column, phase=phase)
        if batch is not None and column in batch.extras:
            if batches.once or batch.size is not None:
                raise InputError.of("DL509.column_twice", column=column, phase=phase)
            batch = None
        batch = batch or Batch(self._plan.phases[phase], self._folds[phase])
        batch.add_extra(column, plain)
        self._put(batches, {phase: batch})

    def keep(self, batches: OpenBatches, columns: Mapping[str, Any]) -> None:
        """Keep columns for later questions; they wait until the open batch, or the next one, closes."""
        if self._plan.kept is None:
            return
        for name, values in columns.items():
            try:
                column = kept_column(name, values, self._kept_texts)
            except InputError as error:
                self.leave_out(name, error.message)
                continue
            if column is None:
                continue
            key: Key = (PREFIX + name, None)
            call = Observation(self._plan.phases[self._plan.kept], {key[0]})
            call.counts = {"completions": len(column)}
            if isinstance(column, list):
                call.texts = {key: (Axis.COMPLETION, column)}
            else:
                call.put(Axis.COMPLETION, (key,), column)
            _await_end(batches, call)

    def _give_kept(self, batches: OpenBatches, batch: Batch) -> None:
        """Add the waiting kept columns to a batch that closes; leave out columns with another number of rows."""
        earlier: list[Observation] = []
        names, later = set[str](), [item for item in batches.kept if item[0].phase is not batch.phase]
        for call, streams in [item for item in batches.kept if item[0].phase is batch.phase]:
            if repeated(call, names, earlier):
                later.append((call, streams))
                continue
            if not batch.keep(call, streams):
                count = call.counts.get("completions", 0)
                for name in sorted(call.names):
                    why = f"it has {count} values to keep, and its batch {batch.completions} completions"
                    self.leave_out(plain_name(name), why)
            earlier, names = [*earlier, call], names | call.names
        batches.kept = later

    def packet(self, alone: OpenBatches, signals: Mapping[str, Any], refused: Refused) -> None:
        """Take the rows of a packet, as a separate batch."""
        Intake.observe(self, alone, signals, strict=False)
        self.close_all(alone, refused)

    def timed(self, batches: OpenBatches, timed: Mapping[str, Timed], refused: Refused) -> None:
        """Record durations of blocks, by name: as the signal `timers` if it is declared, else as numbers `time/...`."""
        try:
            if TIMERS in self._plan.sources:
                self.observe(batches, {TIMERS: timed})
            elif TIMERS not in self._plan.signal_names:
                for name, value in timed.items():
                    self.metrics(batches, {f"time/{name}": value})
        except Exception as error:  # noqa: BLE001  (raised when all else is recorded)
            refused.add(error)

    def begin(self, batches: OpenBatches, phase: str, rows: int) -> None:
        """Open a batch with an announced number of completions, which takes each signal once."""
        self._put(batches, {phase: Batch(self._plan.phases[phase], self._folds[phase], size=rows)})

    def _report(self, failure: RuntimeFailure) -> None:
        """Report a failed fold, and drop the frames of its traceback, which hold tensors."""
        self._failures.report(failure)
        forget_frames(failure)

    # -- closing

    def close_all(self, batches: OpenBatches, refused: Refused, *, only: str | None = None) -> None:
        """Close all batches; an error affects only its own batch."""
        for phase in [*batches] if only is None else [only]:
            try:
                self.close(batches, phase, partly=refused.failing)
            except Exception as error:  # noqa: BLE001  (raised after all are closed)
                refused.add(error)
        if only is None and batches.kept:
            self.leave_kept(batches)

    def leave_kept(self, batches: OpenBatches) -> None:
        """Leave out kept columns that still wait for a batch."""
        for name in sorted(name for call, _ in batches.kept for name in call.names if not name.startswith(SIGNALS)):
            self.leave_out(plain_name(name), "it was to be kept, and no completions came with it" + HOW_TO_KEEP)
        batches.kept = ()

    def close(self, batches: OpenBatches, phase: str, *, partly: bool = False, followed: bool = False) -> None:
        """Close the open batch of a phase; ``partly``: the step failed midway, so signals may be missing.

        ``followed``: the next batch opens; if row ids join the two, it may have the signals that this one lacks.
        """
        batch = batches.get(phase)
        if batch is None:
            return
        if batches.kept and batch.completions is not None and not batch.closed:
            self._give_kept(batches, batch)
        partial = piece = batches.partial_step
        came = None if partial or partly or phase in self.seen else self.pieces.get(phase, _NONE)
        if came is not None and followed and self._plan.ids in batch.names and batch.missing(came):
            came, piece = None, True
        batch.block = batches.scope if batches.once else None
        held = batches.step.held_for(phase)
        try:
            batch.close(self._elapsed(), held, self._plan.grouping, first=came, partial=partial, mode=batches.mode)
        except Exception as error:  # noqa: BLE001  (it is raised again)
            del batches[phase]
            raise (self._locate(error) if isinstance(error, InputError) else error) from error.__cause__
        if batch.names:
            if piece:
                self.pieces.setdefault(phase, set()).update(batch.names)
            elif came is not None:
                self.seen.add(phase)
            if not partly:
                if batch.phase.folds:
                    self._folds[phase] = batch.folds.next(batch.names)
                if before := batches.step.batches.get(phase):
                    self._paired.compare(phase, before[-1], batch, batches.step.names.setdefault(phase, set()))
            self._keep(batches, phase, batch)
        batches.pop(phase, None)
        if batch.misfits:
            for misfit in batch.misfits[1:] if not partly else ():
                self._failures.report(misfit)
            raise batch.misfits[0]


def _await_end(batches: OpenBatches, call: Observation) -> None:
    """Copy kept columns, and let them wait until their batch closes."""
    call.copy()
    batches.kept = [*batches.kept, (call, NO_STREAMS.noted(call.devices))]
