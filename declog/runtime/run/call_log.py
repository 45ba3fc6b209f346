"""Who sees the calls of a recorder, in order, and the clock that they have in common.

A capture writes them down (``capture.py``); ``replay/playback.py`` has a clock that stands still at a written time.
Imports nothing of declog.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Clock:
    """Seconds since the recorder's start, as ``elapsed`` in expressions."""

    def __init__(self) -> None:
        self._started = time.perf_counter()

    def elapsed(self) -> float:
        """The seconds until now."""
        return time.perf_counter() - self._started

    def resume(self, elapsed: float) -> None:
        """The run had taken so many seconds when it was interrupted."""
        self._started -= elapsed


class Hook(Protocol):
    """Sees all calls of one recorder."""

    def call(self, name: str, what: tuple[Any, ...], scope: int, origin: int) -> AbstractContextManager[None]:
        """A block around a call that changes what will be logged; the numbers of its scope, and of who makes it."""

    def logged(self, mode: str) -> None:
        """A log event of a mode was handed to the worker, inside a call."""

    def in_child(self) -> None:
        """This process is a fork of the run's: what is kept here is not written."""

    def close(self) -> None:
        """The run is over."""
