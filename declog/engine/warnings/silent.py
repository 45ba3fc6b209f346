"""Counts the log events in which a metric of the user had no value.

`Inactive` warns of a metric with many such events although all that it reads came. Runs on rank 0's worker only.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from typing import Any

from declog.errors import nearest
from declog.plans.modes import ModesOfMetrics
from declog.plans.needs import Need, columns_of_user, with_readers
from declog.plans.ops import Plan

log = logging.getLogger("declog")
MANY = 10  # so many log events without a value are no coincidence


class Silent:
    """The user's metrics among ``ids`` that have had no value yet, with the number of their windows.

    A metric with `when`, or a reader of one, may stay hidden and is not counted. Windows count in training; for a
    metric that has no values in training, in its own modes.
    """

    def __init__(self, plan: Plan, ids: Collection[str]) -> None:
        hidden = with_readers(plan, (op.id for op in plan.outputs if op.when is not None))
        self._counts = Counter({id: 0 for id in ids if id in plan.user_metrics and id not in hidden})
        self._every = {op.id: op.every for op in plan.outputs}
        self._many = dict.fromkeys(self._counts, MANY)
        for op in plan.outputs:
            if op.smoothing is not None and op.smoothing.way == "lag":  # it has its first value after so many others
                for id in with_readers(plan, (op.id,)) & self._many.keys():
                    self._many[id] = max(self._many[id], MANY + int(op.smoothing.number))
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
        return [id for id in due if self._counts[id] == self._many[id] and id not in self._sometimes]

    def end(self) -> list[str]:
        """The metrics that had no value in ``MANY`` log events or more, at the end of the run."""
        return [id for id, count in self._counts.items() if count >= self._many[id]]

    def stop_counting(self, id: str) -> int:
        """Return the number of windows without a value of a metric, and stop counting it: it is reported once."""
        return self._counts.pop(id)

    def state(self) -> dict[str, int]:
        """The counts, for a checkpoint."""
        return dict(self._counts)

    def load(self, data: Mapping[str, Any]) -> None:
        """Restore a checkpoint. A metric that is not in it had a value, was reported or is new: it is not counted."""
        self._counts = Counter({id: data[id] for id in self._counts if id in data})


class SilentColumns:
    """The columns of the user's own tables whose signals have not come; ``came`` returns the signals that came.

    A column is reported once its table has had rows in ``MANY`` log events, or at the end of the run.
    """

    def __init__(self, plan: Plan, came: Callable[[], Set[Need]]) -> None:
        self._came = came
        self._needs = columns_of_user(plan)
        self._sources = {Need(op.phase, op.name): op.source for op in plan.signals}
        self._counts = Counter[str]()

    def judge(self, tables: Iterable[str]) -> None:
        """Count a log event in which these tables have rows."""
        for table in self._needs.keys() & tables:
            self._counts[table] += 1
            if self._counts[table] == MANY:
                self._tell(table)

    def end(self) -> None:
        """Report the columns of the tables with fewer log events."""
        for table, count in self._counts.items():
            if count < MANY:
                self._tell(table)

    def _tell(self, table: str) -> None:
        came, columns = self._came(), self._needs[table]
        sources = {self._sources[need] for need in came & self._sources.keys()}
        for column, clauses in columns.items():
            for need in [clause[0] for clause in sorted(clauses) if came.isdisjoint(clause)][:1]:
                near = nearest(need.name, sources - columns.keys())
                fix = f"did you mean `{near}`?" if near else "observe it, or drop the column"
                text = "the table `%s` has no values of its column `%s`: `%s` never came; %s"
                log.warning(text, table, column, self._sources.get(need, need.name), fix)
