"""Answers that print a metric over steps are pasted: a smooth curve, or the best value so far, of whatever is meant."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import yaml

import declog
from declog.errors import Problem

CONFIG: dict[str, Any] = {
    "run": {"name": "pasted"},
    "signals": {"any": {"x": {"axis": "completion"}, "y": {"axis": "completion"}}},
    "metrics": {
        "x": {"expr": "x", "reduce": ["p50", "mean"]},
        "spread": {"expr": "x", "reduce": [{"low": "min"}, {"high": "max"}], "where": "y > 0"},
        "summary": {"expr": "y", "reduce": "summary"},
        "y": "mean(y)",
        "share": {"formula": "y / x.mean"},
        "smooth": {"expr": "y", "combine": "rolling(20)", "where": "x > 0"},
        "x_max": "max(x)",
    },
}


def problems_of(config: dict[str, Any]) -> list[Problem]:
    try:
        declog.plan(copy.deepcopy(config))
    except declog.ConfigError as error:
        return list(error.problems)
    return []


def pasted(config: dict[str, Any], problem: Problem) -> dict[str, Any]:
    """The config with the edit that the fix of a problem of one of its entries shows."""
    edited, fix = copy.deepcopy(config), str(problem.fix)
    section, name, *keys = map(str, problem.path)
    if (both := re.fullmatch(r"write a metric and name it here: `metrics: (\{.+\})`, and `(.+)`", fix)) is not None:
        edited["metrics"] |= yaml.safe_load(both[1])
        entry = edited[section][name]
        edited[section][name] = {**entry, keys[0]: both[2]} if keys and isinstance(entry, dict) else both[2]
    elif (defined := re.fullmatch(r"define it: metrics: (\{.+\})", fix)) is not None:
        edited["metrics"] |= yaml.safe_load(defined[1])
    elif section == "metrics" and (entire := re.fullmatch(r"metrics: (\{((?!; or).)+\})", fix)) is not None:
        edited["metrics"] |= yaml.safe_load(entire[1])
    else:
        whole = re.match(rf"(?:metrics: \{{)?(?:{name}: )?(\{{.+?\}})\}}?(?:; or|$)", fix)
        assert whole is not None, fix
        edited[section][name] = yaml.safe_load(whole[1])
    return edited


@pytest.mark.parametrize(
    "of", ["x", "x.p50", "spread", "spread.high", "summary", "summary.max", "y", "share", "smooth"]
)
@pytest.mark.parametrize(
    "call",
    [
        "mean({}, 50)", "mean({}, window=50)", "rolling_mean({})", "sma({}, n=50)", "moving_average({}, 50)",
        "ema({}, 0.95)", "best({})", "cummax({})", "running_min({})", "max_so_far({})",
    ],
)  # fmt: skip
@pytest.mark.parametrize("section", ["alerts", "metrics"])
def test_a_call_of_a_metric_has_an_edit_that_works(section: str, call: str, of: str) -> None:
    """Class: curves of each kind of metric, in a condition and in a formula; each call in turn where there are two."""
    text = f"y - {call.format(of)}"
    entry = {"when": f"{text} > 1"} if section == "alerts" else {"formula": text}
    config = {**CONFIG, section: {**CONFIG.get(section, {}), "new": entry}}
    (problem,) = problems_of(config)
    if of == "share" and re.match("best|cummax|running|max_", call):  # no reduction of rows has steps of its own
        assert str(problem.fix).startswith(
            "a metric of its own, of a signal: {expr: reward, over: run_step, combine: m"
        )
        return
    edited = pasted(config, problem)
    assert problems_of(edited) == []
    plan = declog.plan(edited)
    new = next(op for op in plan.outputs if op.id not in CONFIG["metrics"] and op.id not in ("new", "logged"))
    assert new.over_run is not None


@pytest.mark.parametrize(("call", "curve"), [("sma({}, 50)", "rolling(50)"), ("ema({}, 0.9)", "ema(0.9)")])
@pytest.mark.parametrize(
    ("of", "key"), [("spread", "spread.low"), ("summary", "summary.mean"), ("share", "share"), ("smooth", "smooth")]
)
def test_a_metric_of_a_metric_is_a_formula(of: str, key: str, call: str, curve: str) -> None:
    """Class: what a metric's expression smooths is a metric and no signal; of several reductions it is the mean."""
    config = {**CONFIG, "metrics": {**CONFIG["metrics"], "new": call.format(of)}}
    (problem,) = problems_of(config)
    assert problem.fix == f"{{formula: {key}, combine: {curve}}}"
    assert "smoothing is `combine:`" in problem.message
    assert problems_of(pasted(config, problem)) == []


@pytest.mark.parametrize(
    "keys",
    [
        {"window": 50}, {"rolling": 50}, {"last": 50}, {"over_last": 50}, {"smooth": 50}, {"n_steps": 50}, {"over": 50},
        {"window": 50, "reduce": "p95"}, {"window": 50, "where": "y > 0", "weight": "y"},
        {"window": 50, "combine": "max"}, {"window": "50 steps", "nan": "propagate"},
        {"window": 50, "reduce": ["mean", "max"], "over": "batch"},
    ],
)  # fmt: skip
def test_a_number_of_steps_is_a_rolling_mean_beside_what_is_said_already(keys: dict[str, Any]) -> None:
    """Class: each word for it; the edit keeps every other key of the entry."""
    config = {**CONFIG, "metrics": {**CONFIG["metrics"], "new": {"expr": "x", **keys}}}
    (problem,) = problems_of(config)
    edited = pasted(config, problem)
    assert problems_of(edited) == []
    entry = edited["metrics"]["new"]
    assert (entry["combine"], entry["over"]) == ("rolling(50)", "batch" if keys.get("over") == "batch" else "step")
    kept = {key: value for key, value in keys.items() if key in ("reduce", "where", "weight", "nan")}
    assert {key: entry.get(key) for key in kept} == kept


def test_the_greatest_over_the_run_is_of_steps() -> None:
    """`over: run` with a way to combine is meant to be of the run's pieces."""
    config = {**CONFIG, "metrics": {"new": {"expr": "x", "over": "run", "combine": "max"}}}
    (problem,) = problems_of(config)
    assert problem.fix == "over: run_step"
    config["metrics"]["new"]["over"] = "run_step"
    assert problems_of(config) == []


@pytest.mark.parametrize(
    ("metric", "formula"),
    [
        ("100 * mean(several)", "100 * several.mean"), ("several", "several.mean"), ("max(several)", "several.max"),
        ("100 * several", "100 * several.mean"), ("2 * max(several) - y_p50", "2 * several.max - y_p50"),
        ("mean(spread)", "spread.low"), ("100 * y_p50", "100 * y_p50"),
    ],
)  # fmt: skip
def test_a_metric_with_several_reductions_is_named_by_the_one_that_is_meant(metric: str, formula: str) -> None:
    """Class: an expression of signals that reads metrics, of which the edit makes a formula."""
    more = {"several": {"expr": "y", "reduce": ["max", "mean"]}, "y_p50": "p50(y)", "new": metric}
    config = {**CONFIG, "metrics": {**CONFIG["metrics"], **more}}
    (problem,) = problems_of(config)
    edited = pasted(config, problem)
    assert edited["metrics"]["new"] == {"formula": formula}
    assert problems_of(edited) == []
