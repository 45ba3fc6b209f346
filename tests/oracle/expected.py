"""What a case should log: every log event's scalars, tables and alerts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tests.oracle.cases import Case
from tests.oracle.interpreter import World
from tests.oracle.log_events import Logged, moments
from tests.oracle.rows import Tables
from tests.oracle.windows import Metrics, hidden


def expected(case: Case) -> list[Logged]:
    """The log events of a case that show something, in order."""
    world, found = World(case), []
    held: dict[tuple[str, str], int] = {}
    for moment in moments(case):
        metrics = Metrics(world, moment)
        tables = Tables(world, moment)
        logged = Logged(
            moment.number, moment.mode, metrics.logged(), tables.logged(), off=tables.off, broken=metrics.broken()
        )
        for name, spec in case.profile.get("alerts", {}).items():
            key = (moment.mode, name)
            held[key] = held.get(key, 0) + 1 if holds(metrics, case.trees["alerts"][name], spec) else 0
            if held[key] == spec.get("for", 1):  # once, until it does not hold any more
                logged.alerts[name] = filled(metrics, case, name)
        if logged.scalars or logged.tables or logged.alerts or logged.broken:
            found.append(logged)
    return found


def holds(metrics: Metrics, tree: Any, spec: Mapping[str, Any]) -> bool:
    """Whether an alert's condition is true now."""
    return metrics.scalar(tree["condition"]) is True


def filled(metrics: Metrics, case: Case, name: str) -> tuple[str, float, float]:
    """An alert's text up to its number, the number, and how far it may be off."""
    key = case.trees["alerts"][name]["key"]
    if hidden(case, *key.partition(".")[::2]):
        return case.profile["alerts"][name]["text"].partition("{")[0] + "hidden", math.nan, 0.0
    if "" not in metrics.combined(key):
        return case.profile["alerts"][name]["text"].partition("{")[0] + "absent", math.nan, 0.0
    start = case.profile["alerts"][name]["text"].partition("{")[0]
    return start, float(metrics.combined(key)[""]), metrics.off(key.partition(".")[0])
