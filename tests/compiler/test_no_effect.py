"""What is allowed and does nothing, or always the same, is said when it is compiled: alerts, constants, prefixes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import declog
from declog.config.compose import presets

ROWS: dict[str, Any] = {
    "a": "completion",
    "b": {"axis": "completion", "type": "bool"},
    "t": {"axis": "token", "mask": "all"},
}
METRICS: dict[str, Any] = {
    "a": "mean(a)", "spread": {"expr": "a", "reduce": "std"}, "share": "mean(b)", "hit": "mean(1 if a > 0 else 0)",
    "n": {"expr": "a", "reduce": "count"}, "size": "mean(abs(a))", "odds": {"formula": "share if share > 0 else 1"},
    "cycle": {"formula": "step % 4"}, "tens": {"formula": "n // 10"},
    "total": {"expr": "b", "reduce": "sum"}, "wobble": {"expr": "1 if a > 0 else 2", "combine": "rolling_std(4)"},
    "summed": {"expr": "b", "reduce": "mean", "over": "step", "combine": "sum"},
}  # fmt: skip


def warned(**others: Any) -> list[str]:
    """What a profile is warned of."""
    config: dict[str, Any] = {
        "run": {"name": "small"},
        "signals": {"any": ROWS},
        "metrics": METRICS,
        "sinks": ["jsonl"],
    }
    for key, value in others.items():
        config[key] = {**config.get(key, {}), **value}
    return [str(warning) for warning in declog.plan(config).warnings]


ALERTS: Mapping[str, tuple[Any, str | None]] = {
    "a condition that covers all": ("a >= 1 or a < 1", "`a >= 1 or a < 1` always holds"),
    "one that covers nothing": ("a > 2 and a < 1", "never holds"),
    "one that leaves a point": ("a > 1 or a < 1", None),
    "by `not`": ("not (a > 1) and a > 3", "never holds"),
    "two metrics": ("a > 1 and n > 5 and a < 0", "never holds"),
    "a constant": ("1 > 2", "`1 > 2` never holds"),
    "a share above one": ("share > 1.5", "never holds: `share` is 0 to 1"),
    "a percentage": ("share > 90", "never holds: `share` is 0 to 1"),
    "a share of a conditional": ("hit < 0", "never holds: `hit` is 0 to 1"),
    "a spread below zero": ("spread < 0", "never holds: `spread` is at least 0"),
    "a spread of the last steps below zero": ("wobble < 0", "never holds: `wobble` is at least 0"),
    "a spread of the last steps": ("wobble < 1", None),
    "a spread at zero": ("spread <= 0", None),
    "a count": ("n >= 0", "always holds: `n` is at least 0"),
    "a mean of magnitudes": ("size < 0", "never holds: `size` is at least 0"),
    "a formula": ("odds > 1", "never holds: `odds` is 0 to 1"),
    "a sum of bools": ("total > 3", None),
    "a share that is summed over steps": ("summed > 3", None),
    "a comparison of metrics": ("a > n", None),
    "a function": ("not isfinite(a)", None),
    "arithmetic": ("share * 100 > 90", None),
    "a remainder": ("cycle >= 4", "never holds: `cycle` is 0 to 3"),
    "one that comes": ("cycle >= 3", None),
    "a quotient": ("tens < 0", "never holds: `tens` is at least 0"),
    "an ordinary one": ("share > 0.5", None),
    "a number to which one adds nothing": ("a > 1e9", None),
    "a number near the greatest": ("a > 1e38 or a < -1e300", None),
    "a count beyond what a float counts": ("n > 1e20", None),
}  # fmt: skip


@pytest.mark.parametrize("case", ALERTS)
def test_alerts_that_always_or_never_fire(case: str) -> None:
    """By their bounds, by their condition alone, or by what the metric can be; else nothing is said."""
    alert, expected = ALERTS[case]
    found = warned(alerts={"x": alert})
    assert len(found) == (expected is not None)
    assert expected is None or (expected in found[0] and found[0].startswith("alerts.x: "))


COMPARISONS: Mapping[str, tuple[dict[str, Any], str | None]] = {
    "an index from the end": (
        {"expr": "t", "where": "index(token) == -1"},
        "metrics.x.where: `index(token) == -1` never holds: `index(token)` is at least 0; from the end it is "
        "`index(token) == size(token) - 1`",
    ),
    "the last rows": ({"expr": "t", "where": "index(token) >= -4"}, "from the end it is `index(token) >= size(token)"),
    "within an expression": ({"expr": "t if index(token) < 0 else 0"}, "x.expr: `index(token) < 0` never holds"),
    "a length": ({"expr": "a", "where": "size(token) >= 0"}, "`size(token) >= 0` always holds"),
    "the other way round": (
        {"expr": "t", "where": "-1 == index(token)"},
        "never holds: `index(token)` is at least 0; from the end it is `size(token) - 1 == index(token)`",
    ),
    "a magnitude": ({"expr": "a", "where": "abs(a) < 0"}, "`abs(a) < 0` never holds"),
    "one that can hold": ({"expr": "t", "where": "index(token) == 0"}, None),
    "any value": ({"expr": "a", "where": "a < 0"}, None),
    "a constant": ({"expr": "a", "where": "1 < 2"}, None),
}  # fmt: skip


@pytest.mark.parametrize("case", COMPARISONS)
def test_a_comparison_that_never_or_always_holds(case: str) -> None:
    """Class: a row's value that is compared with a number which it cannot reach, in a condition or an expression."""
    metric, expected = COMPARISONS[case]
    found = warned(
        metrics={"x": metric}, signals={"any": {**ROWS, "mask": "token bool"}}, axes={"token": {"mask": "mask"}}
    )
    assert len(found) == (expected is not None), found
    assert expected is None or expected in found[0]


TURNS: Mapping[str, tuple[dict[str, Any], str | None]] = {
    "neither divides the other": (
        {"sink_options": {"jsonl": {"every": 2}}, "metrics": {"x": {"expr": "a", "every": 3}}},
        "sink_options.jsonl.every: metrics.x has values each 3 steps, and this sink is written each 2: it gets those "
        "of each 6; a sink without `every` gets all",
    ),
    "a table": (
        {"sink_options": {"jsonl": {"every": 4}}, "tables": {"t": {"columns": ["a"], "every": 6}}},
        "sink_options.jsonl.every: tables.t has values each 6 steps, and this sink is written each 4",
    ),
    "each turn": ({"sink_options": {"jsonl": {"every": 2}}, "metrics": {"x": {"expr": "a", "every": 4}}}, None),
    "fewer turns": ({"sink_options": {"jsonl": {"every": 10}}, "metrics": {"x": {"expr": "a", "every": 5}}}, None),
    "the config's `every`": ({"sink_options": {"jsonl": {"every": 3}}}, None),
}


@pytest.mark.parametrize("case", TURNS)
def test_a_sink_that_misses_turns(case: str) -> None:
    """Class: `every` of a sink beside another `every` of a metric or a table: most of its rows do not get there."""
    changes, expected = TURNS[case]
    found = warned(**changes)
    assert len(found) == (expected is not None), found
    assert expected is None or expected in found[0]


CONSTANTS: Mapping[str, tuple[dict[str, Any], str | None]] = {
    "a formula": ({"formula": "a / 0"}, "`a / 0` divides by the constant 0"),
    "within": ({"formula": "1 + 2 * (a / 0)"}, "`a / 0` divides by the constant 0, in `1 + 2 * (a / 0)`"),
    "of rows": ({"expr": "a / (1 - 1)"}, "`a / (1 - 1)` divides by the constant 0"),
    "of tokens": ({"expr": "t / 0"}, "divides by the constant 0"),
    "a condition": ({"expr": "a", "where": "a > 1 / 0"}, "`1 / 0` divides by the constant 0, in `a > 1 / 0`"),
    "a weight": ({"expr": "a", "weight": "a * log(0)"}, "`log(0)` is -inf whatever comes"),
    "a root": ({"expr": "a + sqrt(-1)"}, "`sqrt(-1)` is nan whatever comes"),
    "a constant of the profile": ({"expr": "a / beta"}, "`a / beta` divides by the constant 0"),
    "too great": ({"expr": "a * exp(1000)"}, "`exp(1000)` is inf whatever comes"),
    "infinity as such": ({"expr": "minimum(a, inf)"}, None),
    "by infinity": ({"expr": "a / inf"}, None),
    "a guard": ({"expr": "a / beta if beta != 0 else 0"}, None),
    "a value": ({"expr": "a / a"}, None),
    "switched off": ({"expr": "a / beta", "enabled": "beta != 0"}, None),
}


@pytest.mark.parametrize("case", CONSTANTS)
def test_constants_that_are_not_finite(case: str) -> None:
    """Wherever an expression stands; not where infinity is meant, and not in a branch that is never taken."""
    metric, expected = CONSTANTS[case]
    found = warned(metrics={"x": metric}, constants={"beta": 0})
    assert len(found) == (expected is not None)
    assert expected is None or expected in found[0]


PREFIXES: Mapping[str, tuple[dict[str, Any], str | None]] = {
    "a mode": (
        {"modes": {"train": {}, "eval": {"prefix": "eval", "every": "end"}}},
        "modes.eval.prefix: nothing stands",
    ),
    "a sink": (
        {"sink_options": {"jsonl": {"prefix": "run1"}}},
        "sink_options.jsonl.prefix: nothing stands between `run1` and a name",
    ),
    "a slash": ({"modes": {"train": {}, "eval": {"prefix": "eval/", "every": "end"}}}, None),
    "an underscore": ({"sink_options": {"jsonl": {"prefix": "run1_"}}}, None),
    "none": ({"sink_options": {"jsonl": {"prefix": ""}}}, None),
}


@pytest.mark.parametrize("case", PREFIXES)
def test_prefixes_that_glue_names(case: str) -> None:
    """`evalreward` is nobody's name: what stands in between is missing."""
    others, expected = PREFIXES[case]
    found = warned(**others)
    assert len(found) == (expected is not None)
    assert expected is None or found[0].startswith(expected)


def test_healthy_ranges_that_cannot_be() -> None:
    """A share with a range in percent is never healthy."""
    (found,) = warned(metrics={"x": {"expr": "b"}}, about={"x": {"healthy": [20, 80]}})
    assert found == "about.x: `healthy` is 20 to 80, and the metric 0 to 1"
    assert warned(metrics={"x": {"expr": "b"}}, about={"x": {"healthy": [0.2, 80]}}) == []


@pytest.mark.parametrize("preset", presets())
def test_presets_have_an_effect(preset: str) -> None:
    """Nothing of the kind is in what is shipped."""
    assert declog.plan(preset).warnings == ()


@pytest.mark.parametrize(
    ("metric", "size", "told"),
    [
        ("pass_at(b, 8)", 4, True), ("mean(best_at(a, 5))", 4, True), ("pass_all(b, 4)", 4, False),
        ("majority_at(label, b)", 4, False), ("majority_at(label, b, 9)", 4, True), ("pass_at(b, 8)", None, False),
        ({"expr": "pass_at(b, 8)", "where": "mode == 'eval'"}, 4, False),
    ],
)  # fmt: skip
def test_draws_of_more_rows_than_a_group_has(metric: Any, size: int | None, told: bool) -> None:
    """Class: functions of k rows of a group, whose size the config says. An evaluation may have other groups."""
    group = {"size": size} if size else {"of": "label"}
    signals = {"any": {**ROWS, "label": "completion text"}}
    modes = {"train": {}, "eval": {"prefix": "eval/"}}
    lines = warned(signals=signals, axes={"group": group}, modes=modes, metrics={"m": metric})
    assert any("these have 4" in line and line.startswith("metrics.m") for line in lines) == told
