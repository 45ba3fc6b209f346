"""Curves over earlier steps, compared with pandas."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from declog.language.smoothing import Smoothing


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("ewm(alpha=0.1)", {"alpha": 0.1}),
        ("ema(alpha = 0.25)", {"alpha": 0.25}),
        ("ewma(span=10)", {"span": 10}),
        ("ewm(com=4.5, adjust=False)", {"com": 4.5}),
        ("ewm(halflife=3)", {"halflife": 3}),
    ],
)
def test_the_weight_of_pandas_gives_its_curve(text: str, arguments: dict[str, float]) -> None:
    """Class: pandas names the weight of a moving average in four ways; the `ema` of the answer is the same curve."""
    values = np.random.default_rng(3).random(40)
    curve = Smoothing.of(Smoothing.weighed(text))
    assert curve is not None
    smooth = [kept := float(values[0])] + [kept := curve.following(kept, float(value)) for value in values[1:]]
    expected = pd.Series(values).ewm(**arguments, adjust=False).mean()
    assert smooth == pytest.approx(expected.tolist(), rel=1e-5)
