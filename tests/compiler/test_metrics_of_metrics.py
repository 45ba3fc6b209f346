"""A metric whose expression names another metric: the fix, as it is printed, gives what was said beside that name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import yaml

import declog
from declog.errors import ConfigError
from declog.testing import MemorySink

REWARDS = np.random.default_rng(0).random((5, 8))  # of five steps
SQUARES = (REWARDS**2).mean(1)  # of each step
SOME = np.array([row[row > 0.3].mean() for row in REWARDS])
GAP = SQUARES - SOME
CONFIG: dict[str, Any] = {
    "signals": {"any": {"reward": "completion"}},
    "metrics": {
        "squares": "mean(reward ** 2)",
        "total": "sum(reward)",
        "some": {"expr": "reward", "where": "reward > 0.3"},
        "share": {"formula": "squares / some"},
        "doubled": {"formula": "share * 2"},
    },
}


def pasted(entry: dict[str, Any]) -> dict[str, Any]:
    """The config with an entry `asked`, in whose place the fix stands."""
    metrics = CONFIG["metrics"]
    with pytest.raises(ConfigError) as refused:
        declog.plan({**CONFIG, "metrics": {**metrics, "asked": entry}})
    (problem,) = refused.value.problems
    edit = re.match(r"(asked|metrics): .*\}", str(problem.fix))
    assert edit is not None
    shown = yaml.safe_load(edit[0])
    return {**CONFIG, "metrics": {**metrics, **shown.get("metrics", shown)}}


def last(values: np.ndarray, count: int) -> list[float]:
    """The mean of the last values at each step."""
    return [float(values[max(0, step - count + 1) : step + 1].mean()) for step in range(len(values))]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"expr": "squares", "over": "step", "combine": "rolling(3)"}, lambda: last(SQUARES, 3)),
        ({"expr": "mean(squares)", "over": "step", "combine": "rolling(3)"}, lambda: last(SQUARES, 3)),
        ({"expr": "squares", "combine": "rolling(3)"}, lambda: last(SQUARES, 3)),
        ({"expr": "squares", "over": "run_step", "combine": "max"}, lambda: np.maximum.accumulate(SQUARES)),
        ({"expr": "some", "over": "run_step", "combine": "max"}, lambda: np.maximum.accumulate(SOME)),
        ({"expr": "some", "where": "reward < 0.9"}, lambda: [r[(r > 0.3) & (r < 0.9)].mean() for r in REWARDS]),
        ({"expr": "squares", "reduce": "max"}, lambda: (REWARDS**2).max(1)),
        ({"expr": "p90(squares)"}, lambda: np.quantile(REWARDS**2, 0.9, axis=1)),
        ({"expr": "p90(squares) / 2"}, lambda: np.quantile(REWARDS**2, 0.9, axis=1) / 2),
        ({"expr": "max(squares) / mean(reward * 2)"}, lambda: (REWARDS**2).max(1) / (REWARDS * 2).mean(1)),
        ({"expr": "total", "reduce": "max"}, lambda: REWARDS.max(1)),
        ({"expr": "max(total)", "where": "reward < 0.9"}, lambda: [row[row < 0.9].max() for row in REWARDS]),
        ({"expr": "p90(share)"}, lambda: SQUARES / SOME),
        ({"expr": "share", "combine": "rolling(3)"}, lambda: last(SQUARES / SOME, 3)),
        ({"expr": "share", "over": "step", "combine": "rolling(3)"}, lambda: last(SQUARES / SOME, 3)),
        ({"expr": "squares - some"}, lambda: GAP),
    ],
    ids=lambda part: str(part) if isinstance(part, dict) else "",
)  # fmt: skip
def test_the_fix_gives_what_is_said_beside_the_name(entry: dict[str, Any], expected: Callable[[], Any]) -> None:
    """No key that changes the number is lost."""
    sink = MemorySink()
    with declog.start(pasted(entry), sinks=[sink]) as log:
        for step, rewards in enumerate(REWARDS):
            with log.step(step):
                log.observe(reward=rewards)
    assert [values["asked"] for values in sink.scalars.values()] == pytest.approx([*expected()])


@pytest.mark.parametrize("combine", ["max", "mean"])
@pytest.mark.parametrize("expr", ["squares - some", "doubled"])
def test_what_is_computed_of_metrics_is_combined_over_steps(expr: str, combine: str) -> None:
    """Of each step first, then of the window's five: the formula that stands in the fix has `over` by its metrics."""
    values = {"squares - some": GAP, "doubled": 2 * SQUARES / SOME}[expr]
    sink = MemorySink()
    config = pasted({"expr": expr, "over": "step", "combine": combine})
    with declog.start({**config, "every": 5}, sinks=[sink]) as log:
        for step, rewards in enumerate(REWARDS):
            with log.step(step):
                log.observe(reward=rewards)
    assert [each["asked"] for each in sink.scalars.values()] == pytest.approx([getattr(values, combine)()])


@pytest.mark.parametrize(
    "combine", [{"over": "run_step", "combine": "max"}, {"over": "step", "combine": "std"}], ids=str
)
@pytest.mark.parametrize("expr", ["share", "squares - some"])
def test_nothing_is_said_of_steps_where_no_entry_has_them(expr: str, combine: dict[str, str]) -> None:
    """The parts of a formula are combined first over the run, and for a deviation: that is another number."""
    asked = {"expr": expr, **combine}
    with pytest.raises(ConfigError, match=f"a formula has no `combine: {combine['combine']}`"):
        declog.plan({**CONFIG, "metrics": {**CONFIG["metrics"], "asked": asked}})
