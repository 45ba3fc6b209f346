"""A function of numbers that fails on tensors is answered with the line that works, in place of its lines."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np
import pytest

import declog
from declog.language.functions import BUILTIN, Functions
from tests.language.runs import one_step

LIMIT = 5
X, Y = np.array([0.5, 3.0, 8.0, 1.0]), np.array([3.0, 0.0, 2.0, 5.0])


def conditional(x: float, y: int) -> float:
    return x if y < LIMIT else 0.0


def bounded(x: float, y: float) -> float:
    """The share of a limit."""
    return min(max(x - y, 0) / LIMIT, 1)


def branches(x: float, y: float) -> float:
    size = abs(x)
    if 0 < size <= 2 and not (y == 3 or y < 0):
        return 1
    elif y > 4 or x > LIMIT:
        return -1.0
    return sqrt(size) + math.log1p(y)


def of_numpy(x: float, y: float) -> float:
    return np.tanh(x) if x else float(int(y))


def a_condition(x: float, y: float) -> bool:
    return 0 < x < y


def looping(x: float, y: float) -> float:
    for _ in range(3):
        x += y
    return x if x > 0 else 0.0


def answer(run: Callable[..., float]) -> str:
    """The fix for a metric of a function."""
    functions = Functions(BUILTIN)
    declog.function(run, name="f", registry=functions)
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan(CONFIG, functions=functions)
    (problem,) = caught.value.problems
    return str(problem.fix)


CONFIG: dict[str, Any] = {
    "run": {"name": "numbers"},
    "signals": {"any": {"x": "completion", "y": "completion"}},
    "metrics": {"m": {"expr": "f(x, y)", "reduce": "mean"}},
}


@pytest.mark.parametrize("run", [conditional, bounded, branches, of_numpy, a_condition], ids=lambda run: run.__name__)
def test_the_line_works(run: Callable[..., float]) -> None:
    """Class: `if`, `and`, chains, `min`, `max`, Python's and numpy's functions; the mean is that of the rows."""
    line = re.fullmatch(r"import torch, and `return (.+)`", answer(run))
    assert line is not None
    functions = Functions(BUILTIN)
    declog.function(
        eval(f"lambda x, y: {line[1]}", {**globals(), "torch": sys.modules["torch"]}), name="f", registry=functions
    )
    values = one_step(CONFIG, {"x": X, "y": Y}, functions=functions)
    assert values["m"] == pytest.approx(np.mean([run(*row) for row in zip(X, Y, strict=True)]))


def test_a_loop_has_words() -> None:
    """What no line says has the advice."""
    assert answer(looping).startswith("it gets torch tensors")
