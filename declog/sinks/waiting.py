"""Waiting on a thread that a signal may interrupt, as the main thread is.

``threading.Condition`` and ``threading.Event`` are code of Python: what a signal's handler raises between taking their
lock and the block behind it leaves the lock taken, for ever, and who notifies hangs. What is here waits in code of C.
Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue


class Latch:
    """Something that comes once, and is waited for; ``threading.Event`` without ``clear``."""

    def __init__(self) -> None:
        self._is_set = False
        self._queue: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        """Whether it has come."""
        return self._is_set

    def set(self) -> None:
        """It is there: whoever waits goes on."""
        self._is_set = True
        self._queue.put(None)

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it is there, which is waited for."""
        if not self._is_set:
            try:
                self._queue.get(timeout=seconds)
            except Empty:
                return self._is_set
            self._queue.put(None)  # for the next that waits
        return self._is_set


class Outcome(Latch):
    """The end of what another thread does, and what went wrong with it."""

    error: BaseException | None = None


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether a condition holds, which is asked every few milliseconds, for at most so long."""
    end, pause = time.monotonic() + seconds, 0.0002
    while not condition():
        if (rest := end - time.monotonic()) <= 0:
            return condition()
        time.sleep(min(pause, rest))
        pause = min(2 * pause, 0.01)
    return True
