"""The windows of a mode, in the order of steps: which rows are in which, and when one may close.

A window is what lies between two edges, which are numbers of steps. It closes when this rank has promised that no more
will come: its own step has ended, and no scope at or below the edge is open. What comes for it later is late.
Imports windows and batches only.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from declog.runtime.batch import BatchRecord
from declog.runtime.window import Window

Step = int


@dataclass
class Edge:
    """Where a window ends, or (``part``) where the rows of a long one are handed over before it does."""

    step: Step
    count: int  # steps of the mode until here
    spent: float = 0.0  # seconds that they took
    part: bool = False
    failed: bool = False  # the step ended with an error
    begun: float = field(default_factory=time.monotonic)


class Lane:
    """The open windows of a mode; of a mode whose windows are its blocks, those of one block.

    ``ordered``: step numbers rise, as optimizer steps do. ``last`` is the last step that ended, ``edge`` the step up
    to which all is handed over.
    """

    def __init__(self, mode: str, *, ordered: bool = False, every: int = 0, event: int | None = None) -> None:
        self.mode = mode
        self.every = every  # how many steps a window has, where they are counted
        self.ordered = ordered
        self.event = event  # which log event of the mode the window is, where that is known
        self.last: Step | None = None
        self.edge: Step | None = None
        self.flushed = False  # whether this block has flushed
        self.window = Window()
        self.numbers: dict[Step, dict[str, int]] = {}  # how many batches each step has, by phase
        self.open: dict[Step, int] = {}  # how many scopes
        self.edges: deque[Edge] = deque()  # windows that wait for scopes
        self.held: Step | None = None  # a step that ended, whose numbers the loop still logs, however long it takes
        self.packets: dict[Step, set[str]] = {}  # that were consumed
        self.spent = 0.0  # seconds that steps and blocks took
        self.counted = 0.0  # those of them that log events have
        self.ahead = False  # whether rows came in another order than that of steps

    @property
    def promise(self) -> Step | None:
        """Up to this step all has come; None: nothing is sure yet."""
        if self.last is None:
            return None
        waiting = [step for step in self.open if not self.late(step)] if self.open else None
        return min(self.last, min(waiting) - 1) if waiting else self.last

    def late(self, step: Step) -> bool:
        """Whether the window of a step is closed."""
        return self.edge is not None and step <= self.edge

    def enter(self, step: Step) -> None:
        """A scope of a step is open."""
        self.open[step] = self.open.get(step, 0) + 1

    def leave(self, step: Step) -> None:
        """A scope of a step has ended."""
        left = self.open.pop(step) - 1
        if left:
            self.open[step] = left

    def add(self, phase: str, record: BatchRecord, step: Step) -> None:
        """Take a batch of a step."""
        numbers = self.numbers.get(step)
        if numbers is None:
            numbers = self.numbers[step] = {}
        number = numbers.get(phase, 0)
        record.step, record.batch, numbers[phase] = step, number, number + 1
        records = self.window.batches.get(phase)
        if records is None:
            records = self.window.batches[phase] = []
        elif records and records[-1].step > step:
            self.ahead = True
        records.append(record)

    def ready(self, wait_s: float) -> Edge | None:
        """The next edge that all has come for, or that was waited for long enough."""
        edge, promise = self.edges[0], self.promise
        come = not self.ordered or (promise is not None and promise >= edge.step)
        held = self.held is not None and self.held <= edge.step
        if edge.part or come or (not held and time.monotonic() - edge.begun > wait_s):
            return self.edges.popleft()
        return None

    def take(self, step: Step | None) -> Window:
        """The rows up to a step (None: all), in the order of steps; later ones stay."""
        taken, self.window = self.window, Window()
        if self.ahead:
            for records in taken.batches.values():
                records.sort(key=lambda record: record.step)
        for phase, records in [*taken.batches.items()]:
            if step is not None and records[-1].step > step:
                self.window.batches[phase] = [record for record in records if record.step > step]
                if records[0].step <= step:
                    taken.batches[phase] = [record for record in records if record.step <= step]
                else:
                    del taken.batches[phase]
        if not self.window.batches:
            self.ahead = False
        return taken

    def seconds(self, edge: Edge | None) -> float:
        """How long the steps up to an edge (None: all) took; they are not counted again."""
        before, self.counted = self.counted, self.spent if edge is None else edge.spent
        return self.counted - before

    def closed_to(self, step: Step | None) -> None:
        """All windows up to a step are handed over: nothing can come for them any more."""
        if step is None:
            return
        self.edge = step if self.edge is None else max(self.edge, step)
        if self.numbers:
            self.numbers = {one: known for one, known in self.numbers.items() if one > self.edge}
        if self.packets:
            self.packets = {one: known for one, known in self.packets.items() if one > self.edge}

    def rewind(self, step: Step) -> None:
        """The steps after this one are made again."""
        self.last = step
        self.edge = None if self.edge is None else min(self.edge, step)
        self.numbers = {one: known for one, known in self.numbers.items() if one <= step}
        self.packets = {one: known for one, known in self.packets.items() if one <= step}
