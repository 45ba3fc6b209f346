"""A word that stands for several reductions elsewhere is the user's own where it is registered.

The class: functions and reducers with the names of spreads, norms and errors, in expressions, formulas and answers.
"""

from __future__ import annotations

from typing import Any

import pytest

from declog.errors import ConfigError
from declog.language.functions import BUILTIN, Functions
from declog.language.functions.user import function
from declog.language.reductions import BUILTIN as REDUCTIONS
from declog.language.reductions import Reductions, reducer
from tests.language.runs import values

FUNCTIONS, REDUCERS = Functions(BUILTIN), Reductions(REDUCTIONS)
WORDS = ["spread", "ptp", "norm", "rms", "cv", "iqr", "sem"]
for word in WORDS:
    function(lambda x: 2 * x, name=word, registry=FUNCTIONS)


@reducer(registry=REDUCERS)
def l2(values: Any) -> float:
    """Not the norm."""
    return float(len(values))


def config(**metrics: Any) -> dict[str, Any]:
    return {"signals": {"any": {"x": "completion", "y": "completion"}}, "metrics": metrics}


@pytest.mark.parametrize("word", WORDS)
def test_a_function_of_ones_own(word: str) -> None:
    metrics = {"m": f"mean({word}(x - y))", "x": "mean(x)", "y": "mean(y)", "f": {"formula": f"{word}(x - y)"}}
    found = values(config(**metrics), [[{"x": [1.0, 3.0], "y": [0.0, 1.0]}]], functions=FUNCTIONS)
    assert (found["m"], found["f"]) == (3.0, 3.0)


def test_the_answer_keeps_it() -> None:
    with pytest.raises(ConfigError, match=r"expr: mean\(norm\(x\)\)"):
        values(config(m="mean(norm(x)) / mean(y)"), [[{"x": [1.0], "y": [2.0]}]], functions=FUNCTIONS)


def test_a_reducer_of_ones_own() -> None:
    found = values(config(m={"expr": "x", "reduce": "l2"}), [[{"x": [3.0, 4.0], "y": [0.0, 0.0]}]], reductions=REDUCERS)
    assert found["m"] == 2.0
