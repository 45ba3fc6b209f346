"""The clock of a run, and the durations of blocks in a step, measured without waiting for the device.

On a GPU, CUDA events time the blocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from declog.runtime.values.streams import capturing

Seconds = Callable[[], float]  # returns a duration; on a GPU it waits for the block's end, so the worker calls it


class Clock:
    """The seconds since the recorder's start, which expressions read as ``elapsed``.

    A capture's clock stands still during a call. A replay's clock stands at the recorded time.
    """

    def __init__(self) -> None:
        self._started = time.perf_counter()

    def elapsed(self) -> float:
        """The seconds from the recorder's start until now."""
        return time.perf_counter() - self._started

    def resume(self, elapsed: float) -> None:
        """Continue from the seconds that an interrupted run had taken."""
        self._started -= elapsed


def begin() -> Callable[[], Seconds]:
    """Start a clock; return a function that stops it, and returns a function that reads the duration."""
    # a CUDA graph that is being captured runs later, so its events measure nothing
    if not torch.cuda.is_initialized() or capturing():
        started = time.perf_counter()

        def stop() -> Seconds:
            seconds = time.perf_counter() - started
            return lambda: seconds

        return stop
    first = _event()
    return lambda: partial(_between, first, _event())


def _event() -> Any:
    event: Any = torch.cuda.Event(enable_timing=True, blocking=True)
    event.record()
    return event


def _between(first: Any, last: Any) -> float:
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3


class Timed:
    """The durations of one name in one step; together they are one number per step."""

    def __init__(self) -> None:
        self._parts: list[Seconds] = []

    def add(self, part: Seconds) -> None:
        """Add the duration of one more block."""
        self._parts.append(part)

    def seconds(self) -> float:
        """The sum of the durations. Called by the worker."""
        return sum(read() for read in self._parts)
