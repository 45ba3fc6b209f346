"""Values of modes that never meet are refused, in each place of an expression over metrics, and named as they are read.

The class: formulas and conditions (of alerts, metrics and profiles), of metrics with `where` and of labels.
"""

from __future__ import annotations

from typing import Any

import pytest

import declog
from declog.errors import ConfigError

METRICS: dict[str, Any] = {
    "a": {"expr": "r", "where": "mode == 'train'"}, "b": {"expr": "r", "where": "mode == 'eval'"},
    "l": {"expr": "r", "by": "mode"}, "r": "mean(r)",
}  # fmt: skip
CONFIG: dict[str, Any] = {
    "run": {"name": "m"}, "signals": {"any": {"r": "completion"}}, "modes": {"eval": {"prefix": "eval/"}},
    "sinks": ["console"], "metrics": METRICS,
}  # fmt: skip


def refusal(**sections: Any) -> str | None:
    """Why a config is refused; None if it compiles."""
    try:
        declog.plan({**CONFIG, **sections})
    except ConfigError as error:
        (problem,) = error.problems
        assert problem.code == "DL310"
        return problem.message
    return None


@pytest.mark.parametrize(
    ("formula", "named"),
    [
        ("a - b", "`a` has values in train, `b` has values in eval"),
        ("label(l, 'eval') - label(l, 'train')",
         "`label(l, 'eval')` has values in eval, `label(l, 'train')` has values in train"),
        ("label(l, 'eval') - a", "`label(l, 'eval')` has values in eval, `a` has values in train"),
        ("label(l, 'eval') - r + b", None),
    ],
)  # fmt: skip
def test_a_formula_of_several_modes(formula: str, named: str | None) -> None:
    """Each value that it reads is named, a label with its name."""
    message = refusal(metrics={**METRICS, "f": {"formula": formula}})
    assert message == (None if named is None else f"values of different modes never meet: {named}")


@pytest.mark.parametrize("key", ["only", "hide", "show", "alert", "when"])
@pytest.mark.parametrize(
    ("text", "meets"),
    [("a > 0 and b > 0", False), ("label(l, 'eval') > 0 and a > 0", False), ("a > b", False), ("a > 0 or b > 0", True),
     ("a > 0 and r > 0", True), ("not (a > 0 and b > 0)", None)],
)  # fmt: skip
def test_a_condition_of_several_modes(key: str, text: str, meets: bool | None) -> None:
    """One that can never hold is refused wherever it stands, and one answer is given to all."""
    if key == "alert":
        message = refusal(alerts={"of_modes": {"when": text}})
    elif key == "when":
        message = refusal(metrics={**METRICS, "m": {"expr": "r", "when": text}})
    else:
        message = refusal(profiles={"x": {key: [{"select": "r", "when": text}]}}, profile="x")
    expected = refusal(alerts={"x": {"when": text}})
    assert message == expected
    assert meets is None or (message is None) is meets


@pytest.mark.parametrize("formula", ["r / val", "r/val", "val / r", "eval / val"])
def test_a_quotient_of_metrics_that_are_called_as_a_mode(formula: str) -> None:
    """Class: a metric of one's own named `val` or `eval` divides, and `r / val` is no name of trackers."""
    metrics = {**METRICS, "val": "p90(r)", "eval": "p50(r)", "f": {"formula": formula}}
    assert refusal(metrics=metrics) is None


@pytest.mark.parametrize("condition", ["mode == 'eval'", "mode != 'train'", "mode == 'train'"])
@pytest.mark.parametrize("formula", ["r - one", "one / r", "r - 1.2 * one", "abs(one - r) / 2"])
def test_a_metric_beside_itself_of_one_mode(condition: str, formula: str) -> None:
    """Class: `reward - eval_reward`, whose values would be 0 or 1 in that mode; values of other rows have a warning."""
    metrics = {**METRICS, "one": {"expr": "r", "where": condition}, "f": {"formula": formula}}
    assert (refusal(metrics=metrics) or "").startswith("values of different modes never meet: ")
    for others in ({"expr": "r", "where": f"{condition} and r > 0"}, {"expr": "square(r)", "where": condition}):
        plan = declog.plan({**CONFIG, "metrics": {**metrics, "one": others}})
        (warning,) = plan.warnings
        assert f"alone, and reads `r` of {'train' if 'train' in condition and '==' in condition else 'eval'}" in warning


@pytest.mark.parametrize("combine", ["ema(0.9)", "lag(1)", "rolling(5)", "rolling_max(5)"])
def test_a_curve_of_training_is_no_other_mode(combine: str) -> None:
    """Class: a metric beside its own curve, which only training has: its values do meet those of training."""
    curve = {"expr": "r", "where": "mode == 'train'", "combine": combine}
    assert refusal(metrics={**METRICS, "curve": curve, "x": {"formula": "r - curve"}}) is None
    assert refusal(metrics={**METRICS, "curve": curve}, alerts={"x": {"when": "r < 0.5 * curve"}}) is None
