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


def pasted(entry: dict[str, Any], config: dict[str, Any] = CONFIG) -> dict[str, Any]:
    """The config with an entry `asked`, in whose place the fix stands."""
    metrics = config["metrics"]
    with pytest.raises(ConfigError) as refused:
        declog.plan({**config, "metrics": {**metrics, "asked": entry}})
    (problem,) = refused.value.problems
    edit = re.match(r"(asked|metrics): .*\}", str(problem.fix))
    assert edit is not None
    shown = yaml.safe_load(edit[0])
    return {**config, "metrics": {**metrics, **shown.get("metrics", shown)}}


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


DATA = np.random.default_rng(1)
R, LENGTH, A = DATA.integers(0, 3, 8) / 2, DATA.integers(2, 7, 8), DATA.normal(size=8)
LOGPROBS = -DATA.random((8, 6))
OLD, MASK = LOGPROBS + 0.2 * DATA.normal(size=(8, 6)), np.arange(6)[None] < LENGTH[:, None]
ADV = (R.reshape(2, 4) - R.reshape(2, 4).mean(1, keepdims=True)).ravel()
DEV = abs(LOGPROBS - OLD)
OF_ROWS = {
    "signals": {
        "any": {"reward": "completion", "length": "completion int", "advantages": "completion"}
        | {"logprobs": "token", "old": "token", "mask": "token bool"}
    },
    "axes": {"token": {"mask": "mask"}, "group": {"size": 4}},
    "metrics": {
        "length": {"reduce": ["mean", "max"]},
        "adv": "reward - mean(reward, over=completion)",
        "correct": "reward == 1",
        "lr_dev": "abs(logprobs - old)",
        "longer": {"expr": "reward", "where": "length > 3"},
        "longest": "max(length)",
        "median": "p50(reward)",
    },
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mean(abs(adv))", abs(ADV).mean()),
        ("mean(adv ** 2)", (ADV**2).mean()),
        ("adv > 0", (ADV > 0).mean()),
        ("sqrt(mean(square(adv)))", np.sqrt((ADV**2).mean())),
        ("mean(abs(adv)) / mean(correct)", abs(ADV).mean() / (R == 1).mean()),
        ("lr_dev > 0.1", (DEV > 0.1)[MASK].mean()),
        ("mean(mean(lr_dev, over=token))", ((DEV * MASK).sum(1) / LENGTH).mean()),
        ("lr_dev * advantages", (DEV * A[:, None])[MASK].mean()),
        ("correct and length < 5", ((R == 1) & (LENGTH < 5)).mean()),
        ("adv * correct", (ADV * (R == 1)).mean()),
        ("max(correct, over=completion)", (R == 1).reshape(2, 4).any(1).mean()),
        ("max(abs(adv))", abs(ADV).max()),
        ("max(-adv)", (-ADV).max()),
        ("p95(abs(adv))", np.quantile(abs(ADV), 0.95)),
        ("{expr: longer > 0, where: reward < 1}", (R > 0)[(LENGTH > 3) & (R < 1)].mean()),
        ("mean(square(longer))", (R**2)[LENGTH > 3].mean()),
        ("longest > 5", 1),
        ("sqrt(longest)", np.sqrt(LENGTH.max())),
        ("longest / median", LENGTH.max() / np.median(R)),
        ("mean(adv) ** 2", 0),
        ("100 * correct", 100 * (R == 1).mean()),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_a_metric_that_is_read_as_a_signal_of_rows(text: str, expected: float) -> None:
    """Class: functions, conditions and products of a metric of rows: a formula would compute with its mean."""
    entry = yaml.safe_load(text) if text.startswith("{") else {"expr": text}
    sink = MemorySink()
    with declog.start(pasted(entry, OF_ROWS), sinks=[sink]) as log, log.step(0):
        log.observe(reward=R, length=LENGTH, advantages=A, logprobs=LOGPROBS, old=OLD, mask=MASK)
    assert sink.scalars[0]["asked"] == pytest.approx(expected)
