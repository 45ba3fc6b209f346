"""One log event of one rank: its rows, its place in the run, and the other facts of its message."""

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
RARE = ("consumed", "unused", "back")  # sent only where they have a value, which is rare
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
        """Give the values to the waiting thread; only the first call counts. None: rank 0 delivered no values."""
        if not self._answered.is_set():
            self._values = values
            self._answered.set()

    def wait(self) -> dict[str, float] | None:
        """Wait for the values until the deadline; None if they did not arrive."""
        return self._values if self._answered.wait(self.remaining) else None


class LogEvent(NamedTuple):
    """A log event that the training thread hands to the worker; most fields also go into a rank's message to rank 0.

    A ``part`` only adds rows: no window ends with it. Long windows are handed over in parts, so that no rank holds many
    steps. ``event`` is the number of this log event in its mode.

    ``sent`` has, by mode, the number of log events that were handed over before this one began. Other ranks, on which
    this one may take less time, also began those before this one. ``begun`` has, by mode, the number of log events that
    had begun when this one is handed over; for a mode that counts steps and has an open block, a number without limit.
    """

    event: int
    step: int
    steps: int  # the number of the mode's steps so far, in this run
    mode: str = "train"
    window: Window = _NO_ROWS
    sent: Mapping[str, int] = _NOTHING
    begun: Mapping[str, int] = _NOTHING
    figures: Mapping[str, float] = _NOTHING  # the costs of recording it
    elapsed: float = 0.0  # the time since the recorder's start
    seconds: float = 0.0  # the time that its steps took; 0: unknown
    tail: bool = False  # every window of the mode ends here
    part: bool = False
    last: bool = False  # the last message of this rank
    answer: Answer | None = None
    short_wait: bool = False  # wait only briefly for other ranks, because the training thread waits
    back: int | None = None  # the run continues behind this earlier step
    failed: bool = False  # its last step, or the run, ended with an error
    # fields that only the message needs
    intact: bool = True  # whether no row is missing
    error: str | None = None  # why its rows are missing
    arrivals: Arrivals = _NOTHING  # the signals that arrived
    consumed: Sequence[str] = ()  # ids of packets that were consumed since the last message
    unused: Sequence[tuple[str, str, int]] = ()  # packets that a rank still had at its end: id, call site, rows

    @property
    def key(self) -> Event:
        """The name of the event, equal on all ranks."""
        return Event(self.mode, self.event)

    def meta(self) -> dict[str, Any]:
        """The fields for its message, as JSON values."""
        rare = [name for name in RARE if getattr(self, name) not in (None, (), [])]
        return {name: getattr(self, name) for name in (*SENT, *rare)}

    @classmethod
    def read(cls, meta: Any) -> LogEvent:
        """Return the log event of a message's ``meta``; raises ``CommError`` for anything else."""
        try:
            names = (*SENT, *(name for name in RARE if name in meta))
            return cls(**{name: meta[name] for name in names} | {"arrivals": spans(meta["arrivals"])})
        except UNREADABLE as error:
            raise CommError.of("DL603.unreadable", error=error) from error
