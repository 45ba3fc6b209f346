"""Users' reductions are tried before step 0; what fails in a run is told once, whatever values it names."""

from __future__ import annotations

import math
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
