"""The costs of declog itself: its own metrics under `declog/...`, for profiles with `self_metrics: true`.

Every rank measures itself between two log events; rank 0 shows the greatest values. docs/ranks.md explains each metric.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from declog.engine.publish import DROPPED, LATE, LOST


@dataclass
class Meter:
    """The seconds that a process spent since the last reading, and the rows that it lost.

    The worker writes ``worker``, the training thread everything else.
    """

    timed: bool = True  # whether a profile shows the cost of recording
    recording: float = 0.0
    handing: float = 0.0
    steps: int = 0
    worker: float = 0.0
    dropped: int = 0
    late: int = 0

    def clock(self) -> float:
        """The time in seconds, for measuring the recording; 0 if no profile shows it, because a clock costs time."""
        return time.perf_counter() if self.timed else 0.0

    def read(self) -> dict[str, float]:
        """Return the training thread's figures since the last reading, by name: lost rows, and timings."""
        if not (self.timed or self.dropped or self.late):
            return {}
        figures: dict[str, float] = {DROPPED: self.dropped, LATE: self.late}
        if self.timed:
            figures["declog/observe_us"] = 1e6 * self.recording / max(self.steps, 1)
            figures["declog/flush_us"] = 1e6 * self.handing
        self.recording = self.handing = 0.0
        self.steps = self.dropped = self.late = 0
        return figures

    def read_worker(self) -> dict[str, float]:
        """Return the worker's figures since the last reading, by name. Called by the worker."""
        now = time.thread_time()
        figures = {"declog/worker_ms": 1e3 * (now - self.worker)}
        self.worker = now
        return figures


def greatest(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The greatest value of each figure over the ranks; lost rows are summed instead."""
    names = dict.fromkeys(name for one in figures for name in one)
    return {name: (sum if name in LOST else max)(one[name] for one in figures if name in one) for name in names}
