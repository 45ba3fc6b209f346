"""A reduction inside of an expression is answered with a metric for each, and a formula: also another library's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import yaml

import declog
from declog.language.reductions import BUILTIN, Reductions

SIGNALS = {"length": "completion int", "reward": "completion"}


def of_column(values: Any, q: Any) -> float:
    """Its number is a second column."""
    return float(np.quantile(values, q))


def of_constant(values: Any, *, q: float) -> float:
    """Its number is a constant."""
    return float(np.quantile(values, q))


def refused(expr: Any, **registered: Any) -> Any:
    """The only problem of the metric `m`; ``registered`` are reductions by name."""
    reductions = Reductions(BUILTIN)
    for name, run in registered.items():
        declog.reducer(run, name=name, registry=reductions)
    with pytest.raises(declog.ConfigError) as error:
        declog.plan({"signals": {"any": SIGNALS}, "metrics": {"m": expr}}, reductions=reductions)
    (problem,) = error.value.problems
    return problem


def edit(formula: str, *parts: str) -> str:
    """The edit: hidden metrics and the formula."""
    metrics = [f"m_{number}: {{expr: {part}, log: false}}" for number, part in enumerate(parts, 1)]
    return f"metrics: {{{', '.join(metrics)}, m: {{formula: {formula}}}}}"


@pytest.mark.parametrize(
    ("expr", "fix"),
    [
        ("quantile(length, 0.75) - quantile(length, 0.25)", edit("m_1 - m_2", "p75(length)", "p25(length)")),
        ("quantile(length, q=0.75) / mean(length)", edit("m_1 / m_2", "p75(length)", "mean(length)")),
        ("percentile(length, 95) - 1", edit("m_1 - 1", "p95(length)")),
        ("np_quantile(length) - 1", None),
        ("median(length) / max(length)", edit("m_1 / m_2", "p50(length)", "max(length)")),
        ("p75(length) - p25(length)", edit("m_1 - m_2", "p75(length)", "p25(length)")),
    ],
)
def test_words_of_other_libraries(expr: str, fix: str | None) -> None:
    """Class: quantiles as numpy, pandas and Prometheus call them; another name is no quantile."""
    problem = refused(expr)
    assert problem.code == "DL303"
    if fix is None:
        assert "metrics: {" not in str(problem.fix)
        return
    assert problem.fix == fix
    declog.plan({"signals": {"any": SIGNALS}, **yaml.safe_load(fix)})


@pytest.mark.parametrize(
    ("run", "call", "written"),
    [
        (of_column, "quantile(length, reward)", '"quantile(length, reward)"'),
        (of_constant, "quantile(length, q=0.75)", '"quantile(length, q=0.75)"'),
        (of_constant, "quantile(length, 0.75)", '"quantile(length, q=0.75)"'),
    ],
)
def test_one_that_is_registered(run: Any, call: str, written: str) -> None:
    """Class: a reduction of the user's that has the name of another library's is the user's."""
    problem = refused(f"{call} - 1", quantile=run)
    assert problem.message == "`quantile` is a reduction, not a function"
    assert problem.fix == edit("m_1 - 1", written)


@pytest.mark.parametrize("name", ["gini", "quantile", "odd", "corr"])
def test_where_no_formula_stands(name: str) -> None:
    """Class: names that a table of other libraries has, and others; a condition of rows."""
    registered = {} if name == "corr" else {name: of_constant}
    problem = refused({"expr": "reward", "where": f"{name}(length) + 1 > 3"}, **registered)
    assert (problem.code, problem.message) == ("DL303", f"`{name}` is a reduction, not a function")
    assert f"a metric of its own is `{name}(x" in str(problem.fix)


def of_texts(texts: list[str]) -> float:
    return float(len(texts))


@pytest.mark.parametrize(("name", "run", "of_groups"), [
    ("p90", None, True), ("top_mean", None, True), ("ours", of_constant, True),
    ("ours", of_texts, False), ("histogram", None, False), ("corr", None, False),
])  # fmt: skip
def test_only_what_takes_an_axis_is_said_to(name: str, run: Any, of_groups: bool) -> None:
    """Class: what reduces texts or several columns, or to a histogram, has no value of each group."""
    registered = {} if run is None else {name: run}
    problem = refused({"expr": "reward", "where": f"{name}(length) + 1 > 3"}, **registered)
    assert (f"`{name}(x, over=completion)`" in str(problem.fix)) == of_groups
