"""The steps of a mode: which batches each step has, and up to which step everything has come.

A step is an object that outlives its block. Every batch is added to its step once, and each scope that still works for
the step holds it open. A window has all steps up to its end, as soon as none of them is open. Values that come before
their step has a number are in a step without one, which the next step that ends absorbs.

Each change is one assignment, or can be repeated: after an interrupt at any line, each batch is whole and in one step.
Imports batches, windows and streams only.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from declog.engine.frame import Frame
from declog.errors import UsageError
from declog.records import Beside
from declog.runtime.rows.batch import Batch
from declog.runtime.rows.observation import Observation
from declog.runtime.rows.window import Window
from declog.runtime.values.streams import Streams

_ONE_BLOCK = "one block for all of step {step}: `with log.step({step}):` around both; or number steps on from {next}"
_EPOCHS = "number steps on from {next}, over epochs, too: `with log.step({next} * epoch + step):`"
_NO_NUMBERS = Beside()
_NOTHING_SENT: Mapping[str, int] = {}
_NO_PACKETS: frozenset[str] = frozenset()


class Step:
    """The batches of one step that are not handed over yet, by phase, and how many each phase has had.

    ``packets`` has the ids of the packets that it consumed, ``bytes`` the approximate size of the batches, ``names``
    by phase the signals that batches came with, each set of them once.
    """

    __slots__ = ("batches", "bytes", "counts", "names", "number", "packets")

    def __init__(self, number: int | None = None) -> None:
        self.number = number  # None: not known yet
        self.batches: dict[str, list[Batch]] = {}
        self.counts: dict[str, int] = {}
        self.bytes = 0
        self.names: dict[str, set[Set[str]]] = {}
        self.packets: frozenset[str] = _NO_PACKETS

    def add(self, phase: str, batch: Batch) -> None:
        """Add a closed batch; adding the same one again changes nothing."""
        if batch.number < 0 and self.number is not None:
            count = self.counts.get(phase, 0)
            batch.step, batch.number, self.counts[phase] = self.number, count, count + 1
        batches = self.batches.get(phase)
        if not batches:  # empty if an interrupt came while batches were moved
            self.batches[phase] = [batch]
        elif batches[-1] is batch:
            return
        else:
            batches.append(batch)
        self.bytes += batch.bytes

    def absorb(self, pending: Step, only: str | None = None) -> None:
        """Take the batches that waited for this step's number; only those of one phase, if ``only`` names it."""
        for phase in [phase for phase in pending.batches if only in (None, phase)]:
            batches = pending.batches[phase]
            while batches:
                self.add(phase, batches[0])
                del batches[0]
            del pending.batches[phase]
        if only is None:
            self.packets |= pending.packets
            pending.packets = _NO_PACKETS


@dataclass(eq=False)
class WindowEnd:
    """The end of a window, or of a ``part`` of a long window whose rows are handed over before its end."""

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
    to the step ``watermark``; values that come later for such a step are late. ``sent`` has the number of log events
    by mode that were handed over when a block, or the end of an ordered window, began.
    """

    def __init__(
        self, mode: str, *, ordered: bool = False, every: int = 0, event: int | None = None,
        sent: Mapping[str, int] = _NOTHING_SENT,
    ) -> None:  # fmt: skip
        self.mode = mode
        self.ordered = ordered
        self.every = every  # the number of steps in a window; 0: not counted
        self.sent = sent
        self.event = event  # the number of the window's log event, if it is known before the end
        self.last: int | None = None
        self.watermark: int | None = None
        self.intact = True  # False: something that should have been recorded was not
        self.beside = _NO_NUMBERS  # the trainer's own numbers, for the next log event
        self.earlier: dict[str, Frame] = {}  # rows of the open window from before a checkpoint
        self.back: int | None = None  # the step behind which the run went back the last time
        self.ends: deque[WindowEnd] = deque()  # ends of windows that wait for scopes
        self.held: int | None = None  # a step that ended, but whose numbers the loop may still log at any time
        self.spent = 0.0  # the seconds that steps and blocks took
        self.counted = 0.0  # the part of `spent` that log events have
        self.holds: dict[int, int] = {}  # by open scope: the number of the step that it holds open
        self._open: dict[int, Step] = {}  # steps above the watermark that have rows here or may get some
        self._in_parts: dict[int, Step] = {}  # steps of the open window whose rows were handed over in a part

    @property
    def next_step(self) -> int:
        """The number after the last step's; 0 before the first step."""
        return 0 if self.last is None else self.last + 1

    @property
    def with_rows(self) -> list[int]:
        """The numbers of the steps whose rows are not logged yet."""
        return [step.number for step in self.upto(None) if step.batches and step.number is not None]

    def check_rises(self, number: int) -> None:
        """Raise ``UsageError`` DL510 unless a step that begins has a higher number than the last one."""
        if self.last is not None and number <= self.last:
            if self.back == self.last:
                raise UsageError.of("DL510.kept", step=number, last=self.last, next=self.last + 1, back=number - 1)
            fix = (_ONE_BLOCK if number == self.last else _EPOCHS).format(step=number, next=self.last + 1)
            raise UsageError.of("DL510.rises", step=number, last=self.last, fix=fix, back=number - 1)

    def step(self, number: int) -> Step:
        """The step with a number; a new one if it is not open."""
        step = self._open.get(number)
        if step is None:
            step = self._open[number] = self._in_parts.get(number) or Step(number)
        return step

    def leave(self, scope: int) -> None:
        """Note that a scope no longer holds its step open."""
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
        """The step up to which everything has come; may be read after the first step has ended."""
        assert self.last is not None
        held = [number - 1 for number in self.holds.values() if not self.late(number)] if self.holds else ()
        return min(self.last, *held) if held else self.last

    def waits(self, wait_s: float) -> float | None:
        """The seconds that the next window still waits for open scopes; None: until one of them ends."""
        end = self.ends[0]
        if self.held is not None and self.held <= end.step:
            return None
        return max(end.begun + wait_s - time.monotonic(), 0.0)

    def upto(self, number: int | None) -> list[Step]:
        """The open steps up to a number (None: all), in order."""
        return [self._open[one] for one in sorted(self._open) if number is None or one <= number]

    def ended(self, logged: str | None) -> tuple[Sequence[Step], str | None]:
        """The steps that have ended, and None: with all phases.

        Before the first step ends: the steps that have numbers logged by name, and the phase ``logged`` of these
        numbers. Other rows that came ahead belong to a step that is still to be made.
        """
        if self.last is not None or not self.ordered:
            return self.upto(self.last if self.ordered else None), None
        return [step for step in self.upto(None) if logged in step.batches], logged

    def window(self, steps: Sequence[Step], only: str | None = None) -> Window:
        """The rows of steps, in order, of all phases or ``only`` one; they stay here until they are handed over."""
        rows = [step.batches if only is None else {only: step.batches[only]} for step in steps]
        return Window(rows, self.earlier, self.intact, self.beside, sum([step.bytes for step in steps]))

    def seconds(self, end: WindowEnd | None) -> float:
        """The seconds that steps up to an end (None: all) took, without those that log events have."""
        return (self.spent if end is None else end.spent) - self.counted

    def handed_over(self, steps: Sequence[Step], only: str | None, end: WindowEnd | None, closed: int | None) -> None:
        """Forget the rows that a log event has: those of ``steps``, of one phase ``only``, and the time up to ``end``.

        Steps up to ``closed`` are closed from now on. After a block of another mode all its steps are forgotten, so
        that their numbers may come again.
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
        """Go back to a step: later steps are made again. Rows for steps that were not made yet stay with these."""
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

    ``partial_step``: others observe in the step, too, so no batch needs to have all signals. ``once``: this is an
    explicit batch, which takes each signal once. ``stream`` None: the step is the one that ends next. ``scope`` and
    ``origin`` are the numbers of the block and of the task or thread, for captures. ``kept`` has columns for later
    questions that wait for the end of their batch: copies, with the CUDA streams that made them. Of several with one
    name, the first belongs to the batch that ends first.
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

    def adopt(self, other: OpenBatches) -> None:
        """Move columns of another task without rows to the open batches here, if they fit the rows."""
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
