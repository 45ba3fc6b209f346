"""The steps of a mode: which batches each has, and up to which step all have come.

A step is an object that outlives its block. A batch is put into its step once, whoever closes it, and whoever still
works for the step holds it open. A window is all steps up to its end, when none of them is open. What comes before its
step has a number is in a step without one, which the step that ends next absorbs.

Each change is one store, or can be repeated: an interrupt at any line leaves whole batches, each in one step.
Imports batches and windows only.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from declog.engine.frame import Frame
from declog.records import Beside
from declog.runtime.rows.batch import Batch
from declog.runtime.rows.window import Window

_NO_NUMBERS = Beside()
_NO_PACKETS: frozenset[str] = frozenset()


class Step:
    """The batches of one step that are not handed over yet, by phase, and how many each phase has had.

    ``packets`` are the ids of those that it consumed, ``bytes`` about how many the batches take.
    """

    __slots__ = ("batches", "bytes", "counts", "number", "packets")

    def __init__(self, number: int | None = None) -> None:
        self.number = number  # None: it is not known yet
        self.batches: dict[str, list[Batch]] = {}
        self.counts: dict[str, int] = {}
        self.bytes = 0
        self.packets: frozenset[str] = _NO_PACKETS

    def add(self, phase: str, batch: Batch) -> None:
        """Take a closed batch; the same one again changes nothing."""
        if batch.number < 0 and self.number is not None:
            count = self.counts.get(phase, 0)
            batch.step, batch.number, self.counts[phase] = self.number, count, count + 1
        batches = self.batches.get(phase)
        if not batches:  # empty where an interrupt came before its last batch
            self.batches[phase] = [batch]
        elif batches[-1] is batch:
            return
        else:
            batches.append(batch)
        self.bytes += batch.bytes

    def absorb(self, pending: Step, only: str | None = None) -> None:
        """Take what waited for this step's number; of one phase ``only``."""
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
    """Where a window ends, or (``part``) where the rows of a long one are handed over before it does."""

    step: int
    count: int  # steps of the mode until here
    spent: float = 0.0  # seconds that they took
    part: bool = False
    failed: bool = False  # the step ended with an error
    begun: float = field(default_factory=time.monotonic)


class Stream:
    """The steps of a mode that are not logged yet; of a mode whose windows are its blocks, those of one block.

    ``ordered``: step numbers rise, as optimizer steps do. ``last`` is the last step that ended, ``watermark`` the step
    up to which windows are closed: what comes for it is late.
    """

    def __init__(self, mode: str, *, ordered: bool = False, every: int = 0, event: int | None = None) -> None:
        self.mode = mode
        self.ordered = ordered
        self.every = every  # how many steps a window has, where they are counted
        self.event = event  # which log event of the mode the window is, where that is known
        self.last: int | None = None
        self.watermark: int | None = None
        self.flushed = False  # whether this block has flushed
        self.intact = True  # whether all that should have been recorded was
        self.beside = _NO_NUMBERS  # the trainer's own numbers, for the next log event
        self.earlier: dict[str, Frame] = {}  # rows of before a checkpoint
        self.ends: deque[WindowEnd] = deque()  # windows that wait for scopes
        self.held: int | None = None  # a step that ended, whose numbers the loop still logs, however long it takes
        self.spent = 0.0  # seconds that steps and blocks took
        self.counted = 0.0  # those of them that log events have
        self.holds: dict[int, int] = {}  # the number of the step that each open scope contributes to
        self._open: dict[int, Step] = {}  # above the watermark, that have rows here or may get some
        self._in_parts: dict[int, Step] = {}  # those whose rows were handed over, of the window that is open

    def step(self, number: int) -> Step:
        """A step by its number."""
        step = self._open.get(number)
        if step is None:
            step = self._open[number] = self._in_parts.get(number) or Step(number)
        return step

    def leave(self, scope: int) -> None:
        """A scope holds its step open no more."""
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
        """Up to this step all has come; asked when a step has ended."""
        assert self.last is not None
        held = [number - 1 for number in self.holds.values() if not self.late(number)] if self.holds else ()
        return min(self.last, *held) if held else self.last

    def waits(self, wait_s: float) -> float | None:
        """The seconds that the next window still waits for scopes that are open; None: until one of them ends."""
        end = self.ends[0]
        if self.held is not None and self.held <= end.step:
            return None
        return max(end.begun + wait_s - time.monotonic(), 0.0)

    def upto(self, number: int | None) -> list[Step]:
        """The steps up to one (None: all) that have rows here, or may get some, in order."""
        return [self._open[one] for one in sorted(self._open) if number is None or one <= number]

    def ended(self, logged: str | None) -> tuple[Sequence[Step], str | None]:
        """The steps that have ended, of all phases; before the first one those with numbers ``logged`` by name.

        Of these only the phase of the numbers: rows that came ahead are of their step, which is still to be made.
        """
        if self.last is not None or not self.ordered:
            return self.upto(self.last if self.ordered else None), None
        return [step for step in self.upto(None) if logged in step.batches], logged

    def window(self, steps: Sequence[Step], only: str | None = None) -> Window:
        """The rows of steps, in their order, of one phase ``only``; they stay here until they are handed over."""
        rows = [step.batches if only is None else {only: step.batches[only]} for step in steps]
        return Window(rows, self.earlier, self.intact, self.beside, sum([step.bytes for step in steps]))

    def seconds(self, end: WindowEnd | None) -> float:
        """How long the steps up to an end (None: all) took, less those that log events have."""
        return (self.spent if end is None else end.spent) - self.counted

    def handed_over(self, steps: Sequence[Step], only: str | None, end: WindowEnd | None, closed: int | None) -> None:
        """A log event has the rows of steps, of one phase ``only``, and the seconds up to an end (None: all).

        Nothing can come any more for the steps up to one that is ``closed``. Of a mode's window that ends none of the
        steps is known any more: a number may come again.
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
            part = not (over or self.late(last))
            if part or self.holds:  # of others nobody knows the steps any more
                for step in steps:
                    step.batches, step.bytes = {}, 0
            if part:
                self._in_parts.update({number: step for number, step in self._open.items() if number <= last})
            if self.holds or len(steps) != len(self._open):
                held = {*self.holds.values()}
                self._open = {number: step for number, step in self._open.items() if number > last or number in held}
            else:
                self._open = {}
        if self._in_parts:
            self._in_parts = {
                number: step for number, step in self._in_parts.items() if not (over or self.late(number))
            }
        self.earlier, self.intact, self.beside = {}, True, _NO_NUMBERS
        self.counted = self.spent if end is None else end.spent

    def rewind(self, number: int) -> None:
        """The steps after this one are made again. What came for steps that were not made yet is of those still."""
        last = self.last if self.last is not None else number
        self.last = number
        self.watermark = None if self.watermark is None else min(self.watermark, number)
        for one, step in {**self._in_parts, **self._open}.items():
            if number < one <= last:
                step.packets = _NO_PACKETS
                if one not in self.holds.values():
                    self._in_parts.pop(one, None)
                    self._open.pop(one, None)
