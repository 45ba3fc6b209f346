"""The steps of a mode: the batches of each step, and the step up to which everything is recorded.

A step is an object that outlives its block. Every batch is added to its step once, and each scope that still works for
the step holds it open. A window has all steps up to its end, as soon as none of them is open. Values that are recorded
before their step has a number are in a step without a number; the next step that ends absorbs it.

Each change is one assignment, or can be repeated: after an interrupt at any line, each batch is whole and in one step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import torch

from declog.engine.frame import Frame
from declog.errors import UsageError
from declog.records import Beside
from declog.runtime.rows.batch import Batch
from declog.runtime.rows.observation import NOTHING, Observation
from declog.runtime.rows.window import Window
from declog.runtime.values.streams import NO_STREAMS, Streams

_ONE_BLOCK = "one block for all of step {step}: `with log.step({step}):` around both, or the loop of micro-batches"
_EPOCHS = "number steps on from {next}, over epochs, too: `with log.step({next} * epoch + step):`"
_NO_NUMBERS = Beside()
_NOTHING_SENT: Mapping[str, int] = {}
_NO_PACKETS: frozenset[str] = frozenset()


class Step:
    """The batches of one step that are not handed over yet, by phase.

    ``counts`` has the number of batches that each phase has had, ``packets`` the ids of the consumed packets, ``bytes``
    the approximate size of the batches, and ``names`` by phase the sets of signals that its batches have had. ``held``
    has by phase the latest values per step that folds of tokens read, with their ``streams``, and ``folded_without``
    the names of those that some tokens were folded without.
    """

    __slots__ = ("batches", "bytes", "counts", "folded_without", "held", "names", "number", "packets", "streams")

    def __init__(self, number: int | None = None) -> None:
        self.number = number  # None: the step has no number yet
        self.batches: dict[str, list[Batch]] = {}
        self.counts: dict[str, int] = {}
        self.bytes = 0
        self.names: dict[str, set[Set[str]]] = {}
        self.packets: frozenset[str] = _NO_PACKETS
        self.held: dict[str, Mapping[str, torch.Tensor]] = {}
        self.streams = NO_STREAMS
        self.folded_without: dict[str, Set[str]] = {}

    def held_for(self, phase: str) -> Mapping[str, torch.Tensor]:
        """The values per step that hold for the tokens of a batch of a phase, which is folded now."""
        held = self.held.get(phase, NOTHING)
        self.streams.join(held.values())
        return held

    def hold(self, batch: Batch, names: Set[str]) -> None:
        """Let values per step of a call with these ``names`` hold for later tokens; report those that came too late."""
        if not batch.held or batch.folds.per_step.isdisjoint(names):
            return
        phase = batch.phase.name
        without = self.folded_without.get(phase, frozenset())
        if late := batch.names & without:
            self.folded_without[phase] = without - late
            batch.folds.report_late(late)
        self.held[phase] = {**self.held.get(phase, {}), **batch.held}
        if devices := {value.device for value in batch.held.values() if value.is_cuda}:
            self.streams = self.streams.noted(devices)

    def add(self, phase: str, batch: Batch) -> None:
        """Add a closed batch; adding the same one again changes nothing."""
        if batch.number < 0 and self.number is not None:
            count = self.counts.get(phase, 0)
            batch.step, batch.number, self.counts[phase] = self.number, count, count + 1
        batches = self.batches.get(phase)
        if not batches:  # an interrupt while batches were moved leaves an empty list
            self.batches[phase] = [batch]
        elif batches[-1] is batch:
            return
        else:
            batches.append(batch)
        self.bytes += batch.bytes
        if batch.folded_without:
            self.folded_without[phase] = self.folded_without.get(phase, frozenset()) | batch.folded_without

    def absorb(self, pending: Step, only: str | None = None) -> None:
        """Take the batches that waited for this step's number, of all phases or of the phase ``only``."""
        for phase in [phase for phase in pending.batches if only in (None, phase)]:
            batches = pending.batches[phase]
            while batches:
                self.hold(batches[0], batches[0].names)
                self.add(phase, batches[0])
                del batches[0]
            del pending.batches[phase]
        if only is None:
            self.packets |= pending.packets
            pending.packets = _NO_PACKETS


@dataclass(eq=False)
class WindowEnd:
    """The end of a window, or with ``part`` a step before its end, up to which a long window's rows are handed over."""

    step: int
    count: int  # the number of the mode's steps until here
    spent: float = 0.0  # the seconds that these steps took
    part: bool = False
    failed: bool = False  # the step ended with an error
    sent: Mapping[str, int] = field(default_factory=dict)  # see `Stream`
    begun: float = field(default_factory=time.monotonic)


class Stream:
    """The steps of a mode that are not logged yet; in a mode that logs once per block, the steps of one block.

    ``ordered``: step numbers rise, as optimizer steps do. ``last`` is the last step that ended. Windows are closed up
    to the step ``watermark``: a value that arrives later for such a step is late. ``sent`` has, by mode, the number of
    log events that were handed over when the block began; an ordered stream has this number in each ``WindowEnd``.
    """

    def __init__(
        self, mode: str, *, ordered: bool = False, every: int = 0, event: int | None = None,
        sent: Mapping[str, int] = _NOTHING_SENT,
    ) -> None:  # fmt: skip
        self.mode = mode
        self.ordered = ordered
        self.every = every  # the number of steps in a window; 0: steps do not end windows
        self.sent = sent
        self.event = event  # the number of the window's log event, if it is known before the window ends
        self.last: int | None = None
        self.watermark: int | None = None
        self.intact = True  # False: the window lacks values that should have been recorded
        self.beside = _NO_NUMBERS  # the trainer's own numbers, for the next log event
        self.earlier: dict[str, Frame] = {}  # rows of the open window from before a checkpoint
        self.back: int | None = None  # the step that the last rewind went back to
        self.reached = False  # whether a step began for which rows had been recorded ahead
        self.ends: deque[WindowEnd] = deque()  # ends of windows that wait for scopes
        self.held: int | None = None  # a step that has ended, but for which the loop may still log numbers
        self.spent = 0.0  # the seconds that steps and blocks took
        self.counted = 0.0  # the part of `spent` that log events have
        self.holds: dict[int, int] = {}  # by the id of an open scope: the number of the step that it holds open
        self._open: dict[int, Step] = {}  # steps above the watermark that have rows or may get some
        self._in_parts: dict[int, Step] = {}  # steps of the open window whose rows were handed over in a part

    @property
    def next_step(self) -> int:
        """The number after the last step's number; 0 before the first step."""
        return 0 if self.last is None else self.last + 1

    @property
    def with_rows(self) -> list[int]:
        """The numbers of the steps whose rows are not logged yet."""
        return [step.number for step in self.upto(None) if step.batches and step.number is not None]

    @property
    def ahead(self) -> list[int]:
        """The numbers of the steps that rows were recorded for, and that have not ended."""
        return [number for number in self.with_rows if self.last is None or number > self.last]

    def begins(self, number: int) -> None:
        """Note that a step begins. Raises ``UsageError`` DL510 unless its number is higher than the last step's."""
        if self.last is not None and number <= self.last:
            if self.back == self.last:
                raise UsageError.of("DL510.kept", step=number, last=self.last, next=self.last + 1, back=number - 1)
            fix = (_ONE_BLOCK if number == self.last else _EPOCHS).format(step=number, next=self.last + 1)
            raise UsageError.of("DL510.rises", step=number, last=self.last, fix=fix, back=number - 1)
        self.reached |= number in self._open

    def step(self, number: int) -> Step:
        """Return the open step with a number, or open it."""
        step = self._open.get(number)
        if step is None:
            step = self._open[number] = self._in_parts.get(number) or Step(number)
        return step

    def leave(self, scope: int) -> None:
        """Note that a scope no longer holds its step open; forget a step that nothing was recorded for."""
        number = self.holds.pop(scope, None)
        if number is None or number in self.holds.values():
            return
        step = self._open.get(number)
        if step is not None and not (step.batches or step.counts or step.packets):
            del self._open[number]

    def late(self, number: int) -> bool:
        """Whether the window of a step is closed."""
        return self.watermark is not None and number <= self.watermark

    @property
    def complete(self) -> int:
        """The step up to which no scope can add rows any more; may be read only after the first step has ended."""
        assert self.last is not None
        held = [number - 1 for number in self.holds.values() if not self.late(number)] if self.holds else ()
        return min(self.last, *held) if held else self.last

    def waits(self, wait_s: float) -> float | None:
        """The seconds that the next window still waits for open scopes; None: until the scope of ``held`` ends."""
        end = self.ends[0]
        if self.held is not None and self.held <= end.step:
            return None
        return max(end.begun + wait_s - time.monotonic(), 0.0)

    def upto(self, number: int | None) -> list[Step]:
        """The open steps up to a number (None: all), in order."""
        return [self._open[one] for one in sorted(self._open) if number is None or one <= number]

    def ended(self, logged: str | None) -> tuple[Sequence[Step], str | None]:
        """Return the ended steps, and None, which means all their phases.

        Before the first step ends, returns the steps that have numbers logged by name, and ``logged``, the phase of
        these numbers: other rows that are already recorded belong to steps that have not begun.
        """
        if self.last is not None or not self.ordered:
            return self.upto(self.last if self.ordered else None), None
        return [step for step in self.upto(None) if logged in step.batches], logged

    def window(self, steps: Sequence[Step], only: str | None = None) -> Window:
        """Return a window with the rows of steps, of all phases or ``only`` one; ``handed_over`` forgets them later."""
        rows = [step.batches if only is None else {only: step.batches[only]} for step in steps]
        return Window(rows, self.earlier, self.intact, self.beside, sum([step.bytes for step in steps]))

    def seconds(self, end: WindowEnd | None) -> float:
        """The seconds that steps up to an end (None: all) took, without the seconds that log events already have."""
        return (self.spent if end is None else end.spent) - self.counted

    def handed_over(self, steps: Sequence[Step], only: str | None, end: WindowEnd | None, closed: int | None) -> None:
        """Forget the rows that a log event has: those of ``steps``, of all phases or ``only`` one, up to ``end``.

        The time up to ``end`` (None: all) counts as logged. Steps up to ``closed`` are closed from now on. A window of
        another mode that ends forgets all its steps, so that their numbers may be used again.
        """
        if closed is not None:
            self.watermark = closed if self.watermark is None else max(self.watermark, closed)
        over = not self.ordered and end is not None and not end.part
        if only is not None:
            for step in steps:
                step.batches = {name: step.batches[name] for name in step.batches if name != only}
        elif steps:
            last = steps[-1].number
            assert last is not None
            for step in steps:
                step.batches, step.bytes = {}, 0
            if not (over or self.late(last)):  # a part
                self._in_parts.update({number: step for number, step in self._open.items() if number <= last})
            held = {*self.holds.values()}
            self._open = {number: step for number, step in self._open.items() if number > last or number in held}
        if self._in_parts:
            self._in_parts = {
                number: step for number, step in self._in_parts.items() if not (over or self.late(number))
            }
        self.earlier, self.intact, self.beside = {}, True, _NO_NUMBERS
        self.counted = self.spent if end is None else end.spent

    def rewind(self, number: int) -> None:
        """Go back to a step: later steps will be made again. Rows for steps after the last one stay."""
        last = self.last if self.last is not None else number
        self.last = self.back = number
        self.watermark = None if self.watermark is None else min(self.watermark, number)
        for one, step in {**self._in_parts, **self._open}.items():
            if number < one <= last:
                step.packets = _NO_PACKETS
                if one not in self.holds.values():
                    self._in_parts.pop(one, None)
                    self._open.pop(one, None)


class OpenBatches(dict[str, Batch]):
    """The open batches of one task or thread that works for a step, by phase.

    ``partial_step``: other tasks also observe in the step, so no batch needs to have all signals. ``once``: this is an
    explicit batch, which takes each signal once. ``stream`` is None for the step that ends next. For captures,
    ``scope`` and ``origin`` are the numbers of the block and of the task or thread.

    ``kept`` has columns for later questions that wait until their batch closes: copies, with the CUDA streams that made
    them. Of several columns with one name, the first belongs to the batch that closes first.
    """

    __slots__ = ("kept", "once", "origin", "partial_step", "scope", "step", "stream")

    def __init__(self, step: Step, stream: Stream | None, scope: int, *, partial_step: bool) -> None:
        self.step = step
        self.stream = stream
        self.scope = scope
        self.origin = 0
        self.partial_step = partial_step
        self.once = False
        self.kept: Sequence[tuple[Observation, Streams]] = ()

    @property
    def mode(self) -> str:
        """The mode whose rows these are."""
        return "train" if self.stream is None else self.stream.mode

    def adopt(self, other: OpenBatches) -> None:
        """Move another task's columns that have no rows into these open batches, if the numbers of rows fit."""
        for phase, batch in list(other.items()):
            main_batch = self.get(phase)
            if batch.names or main_batch is None or main_batch.completions is None:
                continue
            extras = {
                column: values for column, values in batch.extras.items()
                if column not in main_batch.extras and len(values) == main_batch.completions
            }  # fmt: skip
            main_batch.extras = {**main_batch.extras, **extras}
            batch.extras = {column: values for column, values in batch.extras.items() if column not in extras}
            if not batch.extras:
                del other[phase]
