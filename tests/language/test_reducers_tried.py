"""Users' reductions are tried before step 0; what fails in a run is told once, whatever values it names."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import declog
from declog.errors import ConfigError
from declog.language.reductions import BUILTIN, Reductions
from declog.testing import MemorySink

SIGNALS = {
    "x": "completion", "n": "completion int", "good": "completion bool", "text": "completion text",
}  # fmt: skip


def plan(run: Callable[..., Any], metric: Any = "odd(x)") -> Any:
    """The plan of a metric that a user's reduction `odd` computes."""
    reductions = Reductions(BUILTIN)
    declog.reducer(run, name="odd", registry=reductions)
    return declog.plan({"signals": {"any": SIGNALS}, "metrics": {"m": metric}}, reductions=reductions)


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        (lambda values: values.sort().values[0], "failed: AttributeError: 'NoneType' object has no attribute 'values'"),
        (lambda values: torch.sort(values).values[0], "failed: TypeError: sort()"),
        (lambda values: values.float().mean(), "failed: AttributeError: 'numpy.ndarray' object has no attribute"),
        (lambda values: values.std(unbiased=False), "failed: TypeError: "),
        (lambda values: valeus.mean(), "failed: NameError: "),  # type: ignore[name-defined]  # noqa: F821
        (lambda values: values[values > 0.5], "returned ndarray, which is no number"),
        (lambda values: "high", "returned str, which is no number"),
        (lambda values: [1.0], "returned list, which is no number"),
    ],
)
def test_one_written_for_something_else(run: Callable[..., Any], problem: str) -> None:
    """For tensors, mostly; the fix says what it gets."""
    with pytest.raises(ConfigError) as error:
        plan(run)
    (found,) = error.value.problems
    assert (found.code, found.path) == ("DL314", ("metrics", "m"))
    assert found.message.startswith(f"the reduction `odd` {problem}")
    assert "a numpy array of float64" in str(found.fix) and "torch.from_numpy(values)" in str(found.fix)
    with pytest.raises(ConfigError) as error:
        plan(run, {"expr": "x", "reduce": ["mean", "odd"]})
    assert [one.path for one in error.value.problems] == [("metrics", "m", "reduce")]


def of_labels(scores: Any, labels: Any) -> float:
    """As scikit-learn's: labels are 0 and 1."""
    if not set(labels) <= {0.0, 1.0}:
        raise TypeError("y_true is not binary")
    return float(scores[labels == 1].mean())


def of_texts(texts: list[str], weights: Any, *, most: int) -> float:
    """Of texts, numbers and a constant."""
    return float(sum(len(text) * weight for text, weight in zip(texts, weights, strict=True)) / most)


@pytest.mark.parametrize(
    ("run", "metric"),
    [
        (of_labels, "odd(x, good)"), (of_texts, "odd(text, n, most=3)"), (lambda values: None, "odd(x)"),
        (lambda values: np.histogram(values), "odd(x)"), (lambda values: torch.from_numpy(values).max(), "odd(x)"),
        (lambda values: values.sort() or values[-1], "odd(x)"), (lambda values: math.nan, "odd(x)"),
        (lambda values: True, "odd(n)"), (lambda values: values.mean() / 0, "odd(x)"),
    ],
)  # fmt: skip
def test_one_that_keeps_to_what_it_gets(run: Callable[..., Any], metric: str) -> None:
    """Numbers of any library, none, and histograms; of columns of the types that the config gives it."""
    assert not any("`odd`" in warning for warning in plan(run, metric).warnings)


def of_two(values: Any) -> float:
    """The values may be too few, or others than it is meant for."""
    if len(values) < 2:
        raise ValueError("needs two")
    return float(values.std())


def of_answers(values: Any) -> float:
    """As above."""
    raise ValueError(f"no such answer: {values[0]}")


@pytest.mark.parametrize(("run", "rows"), [(of_two, "1 row;"), (of_answers, "8 rows;")])
def test_one_that_raises_for_its_values(run: Callable[..., Any], rows: str) -> None:
    """These may never come: a warning, once for each reduction."""
    (warning,) = [one for one in plan(run).warnings if "`odd`" in one]
    assert warning.startswith("metrics.m.expr: the reduction `odd` failed: ValueError: ") and rows in warning


def of_numbers(texts: list[str]) -> float:
    """The greatest number that the texts name."""
    return max(int(re.search(r"(\d+)", text).group(1)) for text in texts)  # type: ignore[union-attr]


def of_scored(texts: list[str], scores: Any) -> float:
    """Texts beside numbers."""
    return float(scores[texts.index("text")] + {"a": 1}.get(texts[0]))


@pytest.mark.parametrize(("run", "metric"), [(of_numbers, "odd(text)"), (of_scored, "odd(text, x)")])
def test_one_that_raises_for_its_texts(run: Callable[..., Any], metric: str) -> None:
    """Class: whatever it raises for texts like `text`, it may take the texts of a run: a warning."""
    (warning,) = [one for one in plan(run, metric).warnings if "`odd`" in one]
    assert warning.startswith("metrics.m.expr: the reduction `odd` failed: ")


def of_no_name(texts: list[str]) -> float:
    """A name that is nowhere."""
    return float(len(txts))  # type: ignore[name-defined]  # noqa: F821


def of_no_module(texts: list[str]) -> float:
    """A module that is nowhere."""
    import no_such_module  # type: ignore[import-not-found]

    return float(no_such_module.score(texts))


@pytest.mark.parametrize("run", [of_no_name, of_no_module])
def test_one_of_texts_that_raises_for_any(run: Callable[..., Any]) -> None:
    """No text helps against a name or a module that is not there."""
    with pytest.raises(ConfigError, match=r"the reduction `odd` failed: (NameError|ModuleNotFoundError)"):
        plan(run, "odd(text)")


def of_level(values: Any, q: Any) -> float:
    """Its second parameter is a column, too."""
    return float(np.quantile(values, q))


def of_most(texts: list[str], most: Any, *, least: int) -> float:
    """A constant beside a number that comes as a column."""
    return float(sum(len(text) for text in texts[: int(most)]) / least)


@pytest.mark.parametrize(
    ("run", "metric", "fix"),
    [
        (of_level, "odd(x, 0.75)", "`def odd(values, *, q)`, and `odd(x, q=0.75)`"),
        (of_most, "odd(text, 3, least=2)", "`def odd(texts, *, most, least)`, and `odd(text, most=3, least=2)`"),
        (of_level, {"expr": ["x", "0.75"], "reduce": "odd"}, "`def odd(values, *, q)`, and `odd(x, q=0.75)`"),
    ],
)
def test_a_number_that_is_no_column(run: Callable[..., Any], metric: Any, fix: str) -> None:
    """Class: a parameter that is to be a constant is keyword-only, and is called by its name."""
    with pytest.raises(ConfigError) as error:
        plan(run, metric)
    (problem,) = error.value.problems
    assert (problem.code, str(problem.fix).endswith(f"is keyword-only: {fix}")) == ("DL314", True)


def test_a_failure_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also where its words name a value of the rows, in a reduction as in functions: one count for each metric."""
    functions, reductions = declog.language.functions.Functions(declog.language.functions.BUILTIN), Reductions(BUILTIN)

    @declog.reducer(registry=reductions)
    def of_known(texts: list[str]) -> float:
        return float({"text": 1}[texts[0]])

    @declog.function(registry=functions)
    def number(text: str) -> float:
        return 0.0 if text == "text" else float(text)

    config = {
        "signals": {"any": SIGNALS},
        "metrics": {"known": "of_known(text)", "number": "mean(number(text))", "largest": "max(number(text))"},
    }
    with declog.start(
        config, sinks=[MemorySink()], output_dir=tmp_path, functions=functions, reductions=reductions
    ) as log:
        for step in range(20):
            with log.step(step):
                log.observe(text=[f"it's word {step} of {'abc'[step % 3]}", "b"])
    assert sorted(log.failures.values()) == [20, 20, 20]
    assert [record.levelname for record in caplog.records].count("ERROR") == 2
    assert "(x20)" in caplog.records[-1].message
