"""A number of float32 equals the literal that it was written as, in every comparison, as in a float32 tensor of torch.

The class: values that are exact as float32 and not as float64 (0.1, 0.7), beside literals of a config.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from declog.language.segmented import of_constant
from tests.running import profile, run

REWARDS = [0.1, 0.2, 0.7, 1.0, 0.1, 0.3, 0.0, 0.6]
HALF_WAY = float(np.float32(0.1)) / 2 + 0.05  # between 0.1 and its float32
CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "x == 0.1": lambda x: x == 0.1, "x != 0.1": lambda x: x != 0.1, "x > 0.1": lambda x: x > 0.1,
    "x >= 0.7": lambda x: x >= 0.7, "x < 0.7": lambda x: x < 0.7, "x <= 0.1": lambda x: x <= 0.1,
    "0.1 == x": lambda x: x == 0.1, "0.7 <= x": lambda x: x >= 0.7, "0.1 < x": lambda x: x > 0.1,
    "0.1 < x <= 0.7": lambda x: (x > 0.1) & (x <= 0.7), "x in [0.1, 0.2]": lambda x: (x == 0.1) | (x == 0.2),
    "x > low": lambda x: x > 0.1, "not x > 0.1": lambda x: ~(x > 0.1),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, None], ids=str)
@pytest.mark.parametrize("text", CASES)
def test_comparisons_are_those_of_torch(text: str, dtype: torch.dtype | None, tmp_path: Path) -> None:
    """Whatever the dtype, also per token, and of rows that are chosen by it."""
    metrics = {
        "share": f"mean({text})", "tokens": f"mean({text.replace('x', 't')})",
        "chosen": {"expr": "x", "reduce": "count", "where": text},
    }  # fmt: skip
    signals = {"x": "completion", "t": "token"}
    config = profile(signals, metrics, constants={"low": 0.1}, axes={"token": {"mask": "all"}})
    x: Any = REWARDS if dtype is None else torch.tensor(REWARDS, dtype=dtype)
    right = CASES[text](torch.tensor(REWARDS, dtype=dtype or torch.float64))

    def body(log: Any) -> None:
        with log.step(0):
            log.observe(x=x, t=[[item] for item in REWARDS] if dtype is None else x[:, None])

    logged = run(config, body, tmp_path).scalars[0]
    assert logged == {"share": right.double().mean(), "chosen": right.sum(), "tokens": right.double().mean()}


def test_a_bucket_has_its_edge(tmp_path: Path) -> None:
    """An edge belongs to the bucket below it."""
    config = profile({"x": "completion"}, {"n": {"expr": "x", "reduce": "count", "by": "bucket(x, 0.1, 0.7)"}})

    def body(log: Any) -> None:
        with log.step(0):
            log.observe(x=torch.tensor(REWARDS))

    assert run(config, body, tmp_path).scalars[0] == {"n/0-0.1": 3, "n/0.1-0.7": 4, "n/>0.7": 1}


@pytest.mark.parametrize("level", [0.1, 0.7])
def test_an_alert_on_a_metric_of_equal_values(level: float, tmp_path: Path) -> None:
    """A mean of equal rewards is their value, not above it."""
    conditions = {"a": f"x > {level}", "b": f"x >= {level}", "c": f"{level} < x"}
    alerts = {name: {"when": text} for name, text in conditions.items()} | {"x": {"above": level}}
    config = profile({"x": "completion"}, {"x": "mean(x)"}, alerts=alerts)

    def body(log: Any) -> None:
        with log.step(0):
            log.observe(x=torch.full((4,), level))

    sink = run(config, body, tmp_path)
    assert [alert.name for _, event in sink.events for alert in event.alerts] == ["b"]


def test_only_the_nearest_float32_of_a_fraction_is_the_literal() -> None:
    """Neighbours, integers, infinities and what is too small or large for a float32 stay as they are."""
    near = np.array([0.1, float(np.float32(0.1)), HALF_WAY, np.nextafter(np.float32(0.1), np.float32(1))])
    assert of_constant(near, np.float64(0.1)).tolist() == [0.1, 0.1, HALF_WAY, near[3]]
    large = np.array([2.0**24, 0.0, np.inf, -np.inf, np.nan])
    for constant in (2**24 + 1, 1e-50, 1e300, np.inf, -np.inf, np.nan, 3):
        np.testing.assert_array_equal(of_constant(large, constant), large)
    integers = np.array([2**24, 2**24 + 1])
    assert of_constant(integers, 2.0**24 + 1).tolist() == integers.tolist()
