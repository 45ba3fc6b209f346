"""One log event of one rank: its rows, where in the run it is, and what its message says besides the rows.

Imports the window only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from declog.engine.inactive import Arrivals, spans
from declog.errors import CommError
from declog.runtime.ranks.comm import Event
from declog.runtime.ranks.wire import UNREADABLE
from declog.runtime.rows.window import Window
from declog.sinks.waiting import Latch

GREATEST = 2**62
SENT = (
    "event", "mode", "step", "steps", "tail", "part", "last", "sent", "error", "intact", "figures", "arrivals",
)  # fmt: skip
RARE = ("consumed", "unused")  # what most messages do not say
_NOTHING: Mapping[str, Any] = {}
_NO_ROWS = Window()


class Answer:
    """The values of a log event, for a training thread that waits for them; it waits until ``deadline``."""

    def __init__(self, wait_s: float) -> None:
        self.deadline = time.monotonic() + wait_s
        self._answered = Latch()
        self._values: dict[str, float] | None = None

    @property
    def remaining(self) -> float:
        """Seconds until nobody waits any more."""
        return max(0.0, self.deadline - time.monotonic())

    def give(self, values: dict[str, float] | None) -> None:
        """End the waiting, the first time it is called; None: rank 0 did not deliver."""
        if not self._answered.is_set():
            self._values = values
            self._answered.set()

    def wait(self) -> dict[str, float] | None:
        """What was given in time, or None."""
        return self._values if self._answered.wait(self.remaining) else None


class LogEvent(NamedTuple):
    """What the training thread gives to the worker, and, but for what is its own, what a rank tells rank 0.

    A ``part`` is rows only: no window ends with it. Long windows are handed over in parts, so that no rank holds
    many steps. ``event`` counts those of its mode; ``sent`` says how many of each mode went before, and
    ``begun`` how many there are besides whose blocks are still open.
    """

    event: int
    step: int
    steps: int  # how many optimizer steps there were so far, in this run
    mode: str = "train"
    window: Window = _NO_ROWS
    sent: Mapping[str, int] = _NOTHING
    begun: Mapping[str, int] = _NOTHING
    figures: Mapping[str, float] = _NOTHING  # what recording it cost
    elapsed: float = 0.0  # since the recorder's start
    seconds: float = 0.0  # that its steps took; 0: that is not known
    tail: bool = False  # every window of the mode ends here
    part: bool = False
    last: bool = False  # this rank ends here
    answer: Answer | None = None
    short_wait: bool = False  # somebody waits who should not wait long for other ranks
    back: int | None = None  # behind it the run goes on after this earlier step
    # of the message, beside the above
    intact: bool = True  # whether the rows are all that there are
    error: str | None = None  # why local columns are missing
    arrivals: Arrivals = _NOTHING  # which signals came
    consumed: Sequence[str] = ()  # ids of packets, since the message before
    unused: Sequence[tuple[str, str, int]] = ()  # packets that a rank had at its end: id, place and rows

    @property
    def key(self) -> Event:
        """What all ranks call it."""
        return Event(self.mode, self.event)

    def meta(self) -> dict[str, Any]:
        """What a message says of it, as JSON."""
        return {name: getattr(self, name) for name in (*SENT, *(name for name in RARE if getattr(self, name)))}

    @classmethod
    def read(cls, meta: Any) -> LogEvent:
        """What a message's meta says; raises ``CommError`` for anything else."""
        try:
            names = (*SENT, *(name for name in RARE if name in meta))
            return cls(**{name: meta[name] for name in names} | {"arrivals": spans(meta["arrivals"])})
        except UNREADABLE as error:
            raise CommError.of("DL603.unreadable", error=error) from error
