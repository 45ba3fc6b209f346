"""Weights of any sign: what a weighted sum or mean is, and where there is none."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import declog
from declog.testing import MemorySink
from tests.language.runs import record

ROWS = {"axis": "completion"}
X = [1.0, 2.0, 3.0, 4.0]
PROFILE: dict[str, Any] = {
    "axes": {"token": {"mask": "all"}},
    "signals": {"any": {"x": ROWS, "w": ROWS, "t": {"axis": "token"}}},
    "metrics": {
        "sum": {"expr": "x", "weight": "w", "reduce": "sum"},
        "mean": {"expr": "x", "weight": "w"},
        "token_sum": {"expr": "t", "weight": "w", "reduce": "sum"},
        "token_mean": {"expr": "t", "weight": "w"},
        "by": {"expr": "x", "weight": "w", "reduce": "sum", "by": "x > 2"},
        "run": {"expr": "x", "weight": "w", "reduce": "sum", "over": "run"},
        "run_mean": {"expr": "x", "weight": "w", "over": "run"},
        "steps": {"expr": "x", "weight": "w", "over": "step"},
    },
}


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize(
    "weights",
    [[1.0, 2.0, 0.5, 0.25], [-1.0, 0.5, -2.0, 0.25], [-1.0, -1.0, -1.0, -1.0], [0.25, -0.125, 0.0, 0.0]],
)
def test_weights_may_be_negative(weights: list[float], every: int) -> None:
    """A sum weighted with advantages is there whatever they come to, over rows, tokens, labels, steps and the run."""
    w, x = np.array(weights), np.array(X)
    batch = {"x": X, "w": weights, "t": [[value, value + 1] for value in X]}
    found = record({**PROFILE, "every": every}, [[batch], [batch]]).scalars[1]
    of_tokens = w @ (2 * x + 1)
    right = {
        "sum": every * (w @ x), "mean": w @ x / w.sum(), "token_sum": every * of_tokens,
        "token_mean": of_tokens / (2 * w.sum()), "by/false": every * (w @ x - w[2:] @ x[2:]), "run": 2 * (w @ x),
        "run_mean": w @ x / w.sum(), "steps": w @ x / w.sum(),
        **({"by/true": every * (w[2:] @ x[2:])} if w[2:].any() else {}),
    }  # fmt: skip
    assert found == pytest.approx(right)


def test_weights_that_cancel_leave_a_sum_and_no_mean() -> None:
    """The mean of no weight in all is NaN and reported, since rows counted; of weights that are 0 nothing counts."""
    metrics = {name: PROFILE["metrics"][name] for name in ("sum", "mean", "token_sum", "token_mean", "run")}
    batches = [{"x": X, "w": weights, "t": [[1.0]] * 4} for weights in ([1.0, -1.0, 2.0, -2.0], [0.0] * 4)]
    first, second = (record({**PROFILE, "metrics": metrics}, [[batch]]).scalars.get(0, {}) for batch in batches)
    assert (first["sum"], first["token_sum"], first["run"], second) == (-3.0, 0.0, -3.0, {})
    assert [math.isnan(first[name]) for name in ("mean", "token_mean")] == [True, True]
    assert (first["nonfinite/mean"], first["nonfinite/token_mean"]) == (1, 1)


def test_a_checkpoint_keeps_what_weights_come_to(tmp_path: Path) -> None:
    """A mean over the run goes on where it was."""
    profile = {**PROFILE, "metrics": {"run_mean": PROFILE["metrics"]["run_mean"]}}
    weights = [[-1.0, 0.5, -2.0, 0.25], [3.0, 0.5, -0.25, 1.0]]
    with declog.start(profile, sinks=[MemorySink()], output_dir=tmp_path) as log:
        with log.step(0):
            log.observe(x=X, w=weights[0])
        state = log.state_dict()
    with declog.start(profile, sinks=[sink := MemorySink()], output_dir=tmp_path, resume=state) as log, log.step(1):
        log.observe(x=X, w=weights[1])
    both = np.array(weights)
    assert sink.scalars == {1: {"run_mean": pytest.approx((both @ X).sum() / both.sum())}}
