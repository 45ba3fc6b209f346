"""What the training thread gives to the worker: a log event's window, and a place for what it waits for.

Imports the window only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from declog.runtime.window import Window


class Answer:
    """The values of a log event, for a training thread that waits for them; it waits until ``deadline``."""

    def __init__(self, wait_s: float) -> None:
        self.deadline = time.monotonic() + wait_s
        self._given = threading.Event()
        self._values: dict[str, float] | None = None

    @property
    def left(self) -> float:
        """Seconds until nobody waits any more."""
        return max(0.0, self.deadline - time.monotonic())

    def give(self, values: dict[str, float] | None) -> None:
        """End the waiting, the first time it is called; None: rank 0 did not deliver."""
        if not self._given.is_set():
            self._values = values
            self._given.set()

    def wait(self) -> dict[str, float] | None:
        """What was given in time, or None."""
        return self._values if self._given.wait(self.left) else None


@dataclass(slots=True)
class WindowItem:
    """One log event of one rank: the window, and where in the run it is.

    A ``part`` is rows only: no window ends with it. Long windows are handed over in parts, so that no rank holds
    many steps. ``event`` counts those of its mode; ``sent`` says how many of each mode went before, and
    ``begun`` how many there are besides whose blocks are still open.
    """

    event: int
    step: int
    count: int  # optimizer steps so far, of this run
    window: Window
    tail: bool = False  # every window of the mode ends here
    mode: str = "train"
    part: bool = False
    done: threading.Event | None = None  # set when the event is finished, where somebody waits
    answer: Answer | None = None
    figures: Mapping[str, float] = field(default_factory=dict)  # what recording it cost
    short_wait: bool = False  # somebody waits who should not wait long for other ranks
    last: bool = False  # this rank ends here
    sent: Mapping[str, int] = field(default_factory=dict)
    begun: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0  # that its steps took; 0: that is not known
    elapsed: float = 0.0  # since the recorder's start
    bytes: int = 0  # of its rows
    back: int | None = None  # behind it the run goes on after this earlier step
