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
from declog.runtime.rows.batch import BatchRecord
from declog.runtime.rows.window import Window

_NO_NUMBERS = Beside()
_NO_PACKETS: frozenset[str] = frozenset()


class Step:
    """The batches of one step that are not handed over yet, by phase, and how many each phase has had.

    ``scopes`` are the numbers of those that contribute to it, ``packets`` the ids of those that it consumed.
    """

    __slots__ = ("batches", "counts", "number", "packets", "scopes")

    def __init__(self, number: int | None = None) -> None:
        self.number = number  # None: it is not known yet
        self.batches: dict[str, list[BatchRecord]] = {}
        self.counts: dict[str, int] = {}
        self.packets: frozenset[str] = _NO_PACKETS
        self.scopes: set[int] = set()

    def add(self, phase: str, record: BatchRecord) -> None:
        """Take a closed batch; the same one again changes nothing."""
        if record.batch < 0 and self.number is not None:
            count = self.counts.get(phase, 0)
            record.step, record.batch, self.counts[phase] = self.number, count, count + 1
        records = self.batches.get(phase)
        if records is None:
            self.batches[phase] = [record]
        elif records[-1] is not record:
            records.append(record)

    def absorb(self, pending: Step, only: str | None = None) -> None:
        """Take what waited for this step's number; of one phase ``only``."""
        for phase in [phase for phase in pending.batches if only in (None, phase)]:
            records = pending.batches[phase]
            while records:
                self.add(phase, records[0])
                del records[0]
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
        self.whole = True  # whether all that should have been recorded was
        self.beside = _NO_NUMBERS  # the trainer's own numbers, for the next log event
        self.earlier: dict[str, Frame] = {}  # rows of before a checkpoint
        self.ends: deque[WindowEnd] = deque()  # windows that wait for scopes
        self.held: int | None = None  # a step that ended, whose numbers the loop still logs, however long it takes
        self.spent = 0.0  # seconds that steps and blocks took
        self.counted = 0.0  # those of them that log events have
        self._open: dict[int, Step] = {}  # above the watermark, that have rows here or may get some
        self._in_parts: dict[int, Step] = {}  # those whose rows went in parts of the window that is open

    def step(self, number: int, scope: int | None = None) -> Step:
        """A step by its number; a ``scope`` holds it open from now on."""
        step = self._open.get(number)
        if step is None:
            step = self._open[number] = self._in_parts.get(number) or Step(number)
        if scope is not None:
            step.scopes.add(scope)
        return step

    def leave(self, step: Step, scope: int) -> None:
        """A scope holds a step open no more."""
        step.scopes.discard(scope)
        if step.number is not None and not (step.scopes or step.batches or step.counts or step.packets):
            self._open.pop(step.number, None)

    def late(self, number: int) -> bool:
        """Whether the window of a step is closed."""
        return self.watermark is not None and number <= self.watermark

    @property
    def complete(self) -> int | None:
        """Up to this step all has come; None: nothing is sure yet."""
        if self.last is None:
            return None
        waiting = [number for number, step in self._open.items() if step.scopes and not self.late(number)]
        return min(self.last, min(waiting) - 1) if waiting else self.last

    def waits(self, wait_s: float) -> float | None:
        """The seconds that the next window that ends still waits for scopes, if any; None: until one of them ends."""
        end, complete = self.ends[0], self.complete
        if end.part or not self.ordered or (complete is not None and complete >= end.step):
            return 0.0
        if self.held is not None and self.held <= end.step:
            return None
        return max(end.begun + wait_s - time.monotonic(), 0.0)

    def upto(self, number: int | None) -> list[Step]:
        """The steps up to one (None: all) that have rows here, or may get some, in order."""
        return [self._open[step] for step in sorted(self._open) if number is None or step <= number]

    def ended(self, logged: str | None) -> tuple[Sequence[Step], str | None]:
        """The steps that have ended, of all phases; before the first one those with numbers ``logged`` by name.

        Of these only the phase of the numbers: rows that came ahead are of their step, which is still to be made.
        """
        if self.last is not None or not self.ordered:
            return self.upto(self.last if self.ordered else None), None
        return [step for step in self.upto(None) if logged in step.batches], logged

    def window(self, steps: Sequence[Step], only: str | None = None) -> Window:
        """The rows of steps, in their order, of one phase ``only``; they stay here until they are handed over."""
        batches: dict[str, list[BatchRecord]] = {}
        for step in steps:
            for phase, records in step.batches.items():
                if phase in batches:
                    batches[phase] += records
                elif only in (None, phase):
                    batches[phase] = [*records]
        return Window(batches, self.earlier, self.whole, self.beside)

    def seconds(self, end: WindowEnd | None) -> float:
        """How long the steps up to an end (None: all) took, less those that log events have."""
        return (self.spent if end is None else end.spent) - self.counted

    def handed_over(self, steps: Sequence[Step], only: str | None, end: WindowEnd | None) -> None:
        """A log event has the rows of steps, of one phase ``only``, and the seconds up to an end (None: all)."""
        for step in steps:
            assert step.number is not None
            step.batches = {} if only is None else {name: step.batches[name] for name in step.batches if name != only}
            self._in_parts[step.number] = step
            if not step.scopes and not step.batches:
                self._open.pop(step.number, None)
        if not self.ordered and end is not None and not end.part:
            self._in_parts = {}  # the same number may come again
        self.earlier, self.whole, self.beside = {}, True, _NO_NUMBERS
        self.counted = self.spent if end is None else end.spent

    def close(self, number: int | None) -> None:
        """All windows up to a step are handed over: nothing can come for them any more."""
        if number is not None:
            self.watermark = number if self.watermark is None else max(self.watermark, number)
            for steps in (self._open, self._in_parts):
                for one in [one for one, step in steps.items() if one <= self.watermark and not step.scopes]:
                    del steps[one]

    def rewind(self, number: int) -> None:
        """The steps after this one are made again. What came for steps that were not made yet is of those still."""
        made = self.last if self.last is not None else number
        self.last = number
        self.watermark = None if self.watermark is None else min(self.watermark, number)
        for one, step in {**self._in_parts, **self._open}.items():
            if number < one <= made:
                step.packets = _NO_PACKETS
                if not step.scopes:
                    self._in_parts.pop(one, None)
                    self._open.pop(one, None)
