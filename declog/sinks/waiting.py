"""Waiting on a thread that a signal may interrupt, such as the main thread.

``threading.Condition`` and ``threading.Event`` are written in Python. If a signal handler raises between the taking of
their lock and the block after it, the lock stays taken for ever, and the notifying thread hangs. The classes here wait
in C code.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue


class Latch:
    """An event that is set once, and that threads wait for: ``threading.Event`` without ``clear``."""

    def __init__(self) -> None:
        self._is_set = False
        self._queue: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        """Whether the latch is set."""
        return self._is_set

    def set(self) -> None:
        """Set the latch, and wake the threads that wait."""
        self._is_set = True
        self._queue.put(None)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the latch is set, or for so many seconds; returns whether it is set."""
        if not self._is_set:
            try:
                self._queue.get(timeout=seconds)
            except Empty:
                return self._is_set
            self._queue.put(None)  # for the next thread that waits
        return self._is_set


class Outcome(Latch):
    """A latch for the end of another thread's action, with the error that the action raised."""

    error: BaseException | None = None


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds, for at most so many seconds; returns whether it holds.

    The condition is called every few milliseconds.
    """
    end, pause = time.monotonic() + seconds, 0.0002
    while not condition():
        if (rest := end - time.monotonic()) <= 0:
            return condition()
        time.sleep(min(pause, rest))
        pause = min(2 * pause, 0.01)
    return True
