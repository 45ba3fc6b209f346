"""Counts and limits the log events and bytes that the worker has not evaluated yet.

The training thread adds log events, the worker removes them.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial

from declog.errors import RuntimeFailure
from declog.plans.ops import Plan
from declog.runtime.run.failures import Failures
from declog.sinks.waiting import until

log = logging.getLogger("declog")
AHEAD = 4  # the log events that training may be ahead when it asks whether an alert ends it
CATCH_UP_S = 2.0  # the seconds that training waits for the worker then, in the whole run


class Backlog:
    """Limits the backlog to the plan's ``backlog_bytes``: beyond that, steps wait.

    If the worker finishes nothing for ``patience_s`` seconds, this is reported, and steps stop waiting until the worker
    makes progress again.
    """

    def __init__(self, plan: Plan, failures: Failures, patience_s: float) -> None:
        self.events = 0
        self.bytes = 0
        self.finished = 0  # the number of finished items of any kind, which shows that the worker makes progress
        self._limit = plan.backlog_bytes
        self._failures = failures
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._reported = False
        self._stalled = -1  # the number of finished items when a wait ended without progress
        self._catch_up_s = CATCH_UP_S

    def read(self) -> dict[str, float]:
        """Return the current figures by name."""
        return {"declog/backlog": self.events, "declog/backlog_bytes": self.bytes}

    def put(self, size: int) -> None:
        """Add a log event of ``size`` bytes."""
        with self._lock:
            self.events += 1
            self.bytes += size

    def done(self, size: int | None = None) -> None:
        """Remove a finished item: a log event of ``size`` bytes, or with None another item."""
        with self._lock:
            self.finished += 1
            if size is not None:
                self.events -= 1
                self.bytes -= size

    def wait(self) -> None:
        """Wait on the training thread until the backlog is within its limit; a single log event always is."""
        if self.bytes <= self._limit or self.events < 2 or self._stalled == self.finished:
            return
        if not self._reported:
            self._reported = True
            log.warning(
                "steps wait for declog's worker: %d log events of %d bytes wait for it, over backlog_bytes (%d); "
                "log less often, or with fewer metrics", self.events, self.bytes, self._limit,
            )  # fmt: skip
        while self.bytes > self._limit and self.events > 1:
            finished = self.finished
            if not until(partial(self._is_past, finished), self._patience_s):
                self._stalled = finished
                self._failures.report(RuntimeFailure.of("DL605.backlog", seconds=f"{self._patience_s:g}"))
                return

    def catch_up(self) -> None:
        """Wait on the training thread while it is far ahead: loops without work make hundreds of steps in no time."""
        if self.events > AHEAD and self._catch_up_s > 0:
            start = time.monotonic()
            until(lambda: self.events <= AHEAD, self._catch_up_s)
            self._catch_up_s -= time.monotonic() - start

    def _is_past(self, finished: int) -> bool:
        return self.finished != finished
