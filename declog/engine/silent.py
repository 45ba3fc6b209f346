"""Counts the log events without a value of the user's metrics, although all that they read came.

Runs on rank 0's worker only; no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from declog.plans.modes import ModesOfMetrics
from declog.plans.needs import with_readers
from declog.plans.ops import Plan

MANY = 10  # after so many log events without a value it is no chance


class Silent:
    """The user's metrics that have had no value yet, among those of ``ids``, with the number of their windows.

    One with `when` may stay hidden, so it is not among them. Windows count in training; of a metric that has no values
    there, in the modes that have them.
    """

    def __init__(self, plan: Plan, ids: Collection[str]) -> None:
        hidden = with_readers(plan, (op.id for op in plan.outputs if op.when is not None))
        self._counts = Counter({id: 0 for id in ids if id in plan.user_metrics and id not in hidden})
        self._every = {op.id: op.every for op in plan.outputs}
        self._sometimes = with_readers(  # these need not have a value in each window
            plan, (op.id for op in plan.metrics if op.clauses)
        )
        of, names = ModesOfMetrics(plan.outputs, plan.modes), frozenset({"train"})
        self._modes: dict[str, frozenset[str]] = {}
        for op in plan.outputs:
            modes = of.of(op.key)
            self._modes[op.id] = self._modes.get(op.id, frozenset()) | (modes & names or modes)

    def judge(self, mode: str, periods: Collection[int], has_value: Callable[[str], bool]) -> list[str]:
        """Count a log event; returns the metrics that should have had a value by now."""
        for id in [id for id in self._counts if has_value(id)]:
            del self._counts[id]
        due = [id for id in self._counts if mode in self._modes[id] and self._every[id] in periods]
        self._counts.update(due)
        return [id for id in due if self._counts[id] == MANY and id not in self._sometimes]

    def end(self) -> list[str]:
        """The metrics that had no value in many log events, and no other end to wait for."""
        return [id for id, count in self._counts.items() if count >= MANY]

    def told(self, id: str) -> int:
        """How many windows had no value of a metric, of which nothing is said again."""
        return self._counts.pop(id)

    def state(self) -> dict[str, int]:
        """The counts, for a checkpoint."""
        return dict(self._counts)

    def load(self, data: Mapping[str, Any]) -> None:
        """Restore a checkpoint: what is not in it had a value or was told, or it is new."""
        self._counts = Counter({id: data[id] for id in self._counts if id in data})
