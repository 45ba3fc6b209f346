"""One log event of one rank: its rows, its place in the run, and what its message says besides the rows.

Imports the window only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from declog.engine.spans import Arrivals, spans
from declog.errors import CommError
from declog.runtime.ranks.comm import Event
from declog.runtime.ranks.wire import UNREADABLE
from declog.runtime.rows.window import Window
from declog.sinks.waiting import Latch

GREATEST = 2**62
SENT = (
    "event", "mode", "step", "steps", "tail", "part", "last", "sent", "error", "intact", "figures", "arrivals",
)  # fmt: skip
RARE = ("consumed", "unused", "back")  # fields that most messages leave out
_NOTHING: Mapping[str, Any] = {}
_NO_ROWS = Window()


class Answer:
    """The values of a log event, for a training thread that waits for them until ``deadline``."""

    def __init__(self, wait_s: float) -> None:
        self.deadline = time.monotonic() + wait_s
        self._answered = Latch()
        self._values: dict[str, float] | None = None

    @property
    def remaining(self) -> float:
        """The seconds until the deadline."""
        return max(0.0, self.deadline - time.monotonic())

    def give(self, values: dict[str, float] | None) -> None:
        """End the waiting; only the first call counts. None: rank 0 did not deliver."""
        if not self._answered.is_set():
            self._values = values
            self._answered.set()

    def wait(self) -> dict[str, float] | None:
        """The values if they came in time, else None."""
        return self._values if self._answered.wait(self.remaining) else None


class LogEvent(NamedTuple):
    """What the training thread hands to the worker; most of it also goes into a rank's message to rank 0.

    A ``part`` only has rows: no window ends with it. Long windows are handed over in parts, so that no rank holds many
    steps. ``event`` counts the log events of its mode. ``sent`` has the number by mode of those that were handed over
    before this one began: other ranks, on which this one may take less time, began these before it, too. ``begun`` has
    those that were begun when it is handed over; for a mode that counts steps and has an open block, any number.
    """

    event: int
    step: int
    steps: int  # the number of the mode's steps so far, in this run
    mode: str = "train"
    window: Window = _NO_ROWS
    sent: Mapping[str, int] = _NOTHING
    begun: Mapping[str, int] = _NOTHING
    figures: Mapping[str, float] = _NOTHING  # what recording it cost
    elapsed: float = 0.0  # the time since the recorder's start
    seconds: float = 0.0  # how long its steps took; 0: not known
    tail: bool = False  # every window of the mode ends here
    part: bool = False
    last: bool = False  # the last message of this rank
    answer: Answer | None = None
    short_wait: bool = False  # the training thread waits, so other ranks are waited for only briefly
    back: int | None = None  # the run continues behind this earlier step
    failed: bool = False  # its last step, or the run, ended with an error
    # fields of the message besides those above
    intact: bool = True  # whether its rows are all that there are
    error: str | None = None  # why its rows are missing
    arrivals: Arrivals = _NOTHING  # the signals that came
    consumed: Sequence[str] = ()  # ids of packets that were consumed since the last message
    unused: Sequence[tuple[str, str, int]] = ()  # packets that a rank had at its end: id, call site and rows

    @property
    def key(self) -> Event:
        """The name of the event, equal on all ranks."""
        return Event(self.mode, self.event)

    def meta(self) -> dict[str, Any]:
        """The facts for its message, as JSON."""
        rare = [name for name in RARE if getattr(self, name) not in (None, (), [])]
        return {name: getattr(self, name) for name in (*SENT, *rare)}

    @classmethod
    def read(cls, meta: Any) -> LogEvent:
        """The log event from a message's facts; raises ``CommError`` for anything else."""
        try:
            names = (*SENT, *(name for name in RARE if name in meta))
            return cls(**{name: meta[name] for name in names} | {"arrivals": spans(meta["arrivals"])})
        except UNREADABLE as error:
            raise CommError.of("DL603.unreadable", error=error) from error
