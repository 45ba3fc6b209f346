"""What the cases of MaxEnt-GRPO share: the data, how a profile computes it, and the cases of other parts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.language.runs import one_step

DATA = Path(__file__).parents[1] / "data" / "maxent.json"
MAXENT: dict[str, dict[str, Any]] = {case["id"]: case for case in json.loads(DATA.read_text(encoding="utf-8"))}

STEP = {"axis": "step"}
ROWS = {"axis": "completion"}
GROUPED = {"group": {"size": 2}}


def flat(groups: list[list[Any]]) -> list[Any]:
    """The rows of all groups."""
    return [item for group in groups for item in group]


def logged(metrics: dict[str, Any], observed: dict[str, Any], **profile: Any) -> dict[str, float]:
    """One step's values; a signal is per step where it is a number, a family where it is a mapping."""
    signals = {}
    for name, value in observed.items():
        inner = next(iter(value.values())) if isinstance(value, dict) else value
        first = inner[0] if isinstance(inner, list) else inner
        signals[name] = {
            "axis": "completion" if isinstance(inner, list) else "step",
            "type": "text" if isinstance(first, str) else "float",
            "family": isinstance(value, dict),
        }
    signals |= profile.pop("signals", {})
    return one_step({**profile, "signals": {"any": signals}, "metrics": metrics}, observed)


CASES: dict[str, Callable[[dict[str, Any]], None]] = {}


def case(id: str) -> Callable[[Callable[[dict[str, Any]], None]], Callable[[dict[str, Any]], None]]:
    """Marks what asserts a case of maxent.json."""

    def register(run: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
        assert id not in CASES
        CASES[id] = run
        return run

    return register


# What the language cannot say yet, or what is no value of a metric.
ELSEWHERE = {
    "R13": "which ranks gather: declog has no collectives: tests/engine/windows/test_windows.py",
    "R15": "micro-batches of one step: tests/engine/windows/test_windows.py",
    "R17": "rows of a table with texts: tests of tables (its ranks and sizes are in R29 here)",
    "R19": "defaults of a table's destination: tests of tables",
    "R23": "no lists among a tracker's values: tests of sinks",
    "R31": "a NaN that is named in an error: tests/engine/windows/test_windows.py",
    "E36": "the controller, with `when`: tests/engine/windows/test_windows.py",
    "E42": "should_log: tests/engine/windows/test_windows.py",
    "E44": "should_log: tests/engine/windows/test_windows.py",
    "E46": "should_log with steps -2, taken as 1: the source's defect, refused: tests/engine/windows/test_windows.py",
    "E48": "should_log by epoch: tests/engine/windows/test_windows.py",
    "E50": "should_log off: tests/engine/windows/test_windows.py",
}
