"""Tables without a filter: each rank writes its own rows to its own files, and does not send them to rank 0.

Runs on the worker thread, on every rank of a job with several ranks.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from declog.engine.evaluator import View
from declog.engine.frame import Frame
from declog.engine.publish import Route, prefixed, submit
from declog.engine.reduce import Report
from declog.engine.tables.table import Tables
from declog.plans.ops import Plan
from declog.records import Records


class LocalTables:
    """Builds a rank's own tables and hands them to its sinks; ``routes`` lead to the sinks that every rank has."""

    def __init__(self, plan: Plan, routes: Sequence[Route], report: Report) -> None:
        self._report = report
        self._plan = plan
        self._routes = routes
        self._tables = Tables(report, plan)
        self._ops = [op for op in plan.tables if op.local]
        self._events: Counter[str] = Counter()  # the number of log events by mode, for sinks that take each N-th

    def write(self, step: int, mode: str, frames: Mapping[str, Frame]) -> None:
        """Write the rows of one log event."""
        if not frames:
            return
        self._events[mode] += 1
        views = {phase: View(frame, self._plan.function) for phase, frame in frames.items()}
        due = [op for op in self._ops if op.phase in views]
        tables = [(op, self._tables.build(op, views[op.phase])) for op in due]
        for route in self._routes:
            if self._events[mode] % route.every == 0:
                taken = [table for op, table in tables if table is not None and route.id in op.local]
                shown = prefixed(taken, route.prefix + self._plan.modes[mode].prefix)
                submit(route, step, Records(mode, time.time(), tables=tuple(shown)), self._report)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"tables": self._tables.state(), "events": dict(self._events)}

    def load(self, data: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self._tables.load(data["tables"])
        self._events.update(data["events"])
