"""Hooks that see the calls of a recorder in order, and the clock that they share.

A capture writes the calls down (``capture.py``); ``replay/playback.py`` has a clock that stands still at a recorded
time. Imports nothing of declog.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Clock:
    """The seconds since the recorder's start, which expressions read as ``elapsed``."""

    def __init__(self) -> None:
        self._started = time.perf_counter()

    def elapsed(self) -> float:
        """The seconds until now."""
        return time.perf_counter() - self._started

    def resume(self, elapsed: float) -> None:
        """Continue from the seconds that an interrupted run had taken."""
        self._started -= elapsed


class Hook(Protocol):
    """Sees all calls of one recorder."""

    def call(self, name: str, what: tuple[Any, ...], scope: int, origin: int) -> AbstractContextManager[None]:
        """A block around a call that changes what will be logged; the numbers are its scope's and its task's."""

    def logged(self, mode: str) -> None:
        """Called inside a call, after a log event of a mode was handed to the worker."""

    def in_child(self) -> None:
        """Called in a fork of the process: data that is buffered here must not be written."""

    def close(self) -> None:
        """Called at the end of the run."""
