"""What broke first: onsets are found where a curve was made to break, and nowhere in curves that were not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from declog.runs.report.onsets import onsets, onsets_by_step

Array = NDArray[np.float64]
STEPS = np.arange(250.0)


def found(name: str, values: Array, good: str | None = None, **more: object) -> dict[str, float]:
    """The step of each cause of a curve."""
    return {one.cause: one.step for one in onsets(name, np.arange(float(len(values))), values, good=good, **more)}  # type: ignore[arg-type]


def healthy(seed: int) -> Iterator[tuple[str, Array, str | None]]:
    """The curves of a run that is well: name, values, and which direction is good."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(120, 1500))
    steps = np.arange(count)
    learned = 0.1 + 0.8 / (1 + np.exp(-rng.uniform(0.002, 0.03) * (steps - count * rng.uniform(0.2, 0.6))))
    yield "reward", rng.binomial(32, learned) / 32, "up"
    yield "rewards/format/mean", 3 * learned + rng.normal(0, 0.1, count), "up"
    yield "entropy", 2 * np.exp(-steps / (count * rng.uniform(0.1, 0.5))) + 0.3 + rng.normal(0, 0.02, count), None
    yield "kl", 0.001 * np.sqrt(steps) * rng.lognormal(0, 0.3, count), None
    yield "loss", rng.normal(0, 0.05, count), "down"
    spikes = np.where(rng.random(count) < 0.01, 10.0, 1.0)
    yield "grad_norm", rng.lognormal(0, 0.5, count) * spikes, None
    yield "completions/mean_length", 900 + np.cumsum(rng.normal(0, 3, count)), None
    yield "clip_ratio", np.where(rng.random(count) < 0.03, rng.exponential(0.01, count), 0.0), None
    yield "step_time", rng.gamma(50, 0.02, count) + np.where(steps % 50 == 0, 3.0, 0.0), "down"
    yield "flat", np.full(count, 3.0), None
    yield "num_tokens", np.cumsum(rng.integers(100, 200, count)).astype(float), None
    yield "learning_rate", 1e-6 * np.where(steps < count // 2, 1.0, 0.1), None


def test_a_run_that_is_well_has_no_onset() -> None:
    """Class: trends, random walks, spikes, sparse curves and schedules are no accident; 20 runs of 12 curves."""
    told = {
        (seed, name): found(name, values, good)
        for seed in range(20)
        for name, values, good in healthy(seed)
        if found(name, values, good)
    }
    assert told == {}


def diverging() -> dict[str, Array]:
    """A run whose gradients explode from step 178, whose reward falls at 180, and that is NaN from 230."""
    rng = np.random.default_rng(0)
    late = STEPS >= 230
    return {
        "reward": rng.normal(np.minimum(STEPS, 180) / 100 - (STEPS >= 180), 0.0125),
        "loss": np.where(late, np.nan, rng.normal(0.1, 0.02, 250)),
        "kl": np.where(late, np.nan, 3e-4 + 0.02 * np.maximum(0, STEPS - 180) ** 2 + rng.normal(0, 1e-4, 250)),
        "grad_norm": 0.5 * 3 ** np.maximum(0, (STEPS - 178) / 12),
    }


def test_what_broke_first_stands_first() -> None:
    """Gradients, reward, KL, then the loss that became NaN: in the order in which it happened."""
    good = {"reward": "up", "loss": "down"}
    curves = [
        {"name": name, "mode": "train", "template": "", "title": "", "good": good.get(name), "healthy": None,
         "x": STEPS, "y": values}
        for name, values in diverging().items()
    ]  # fmt: skip
    rows = [(row["name"], row["cause"], row["step"]) for row in onsets_by_step(curves)]
    assert rows[:3] == [("grad_norm", "noise", 179), ("reward", "noise", 180), ("kl", "noise", 181)]
    assert sorted(rows[3:]) == [("kl", "finite", 230), ("loss", "finite", 230)]


@pytest.mark.parametrize(
    ("values", "good", "expected"),
    [
        (np.where(STEPS < 100, 1.0, 0.4) + np.random.default_rng(1).normal(0, 0.02, 250), "up", {"noise": 100}),
        (np.where(STEPS < 100, 0.4, 1.0) + np.random.default_rng(1).normal(0, 0.02, 250), "up", {}),
        (np.where(STEPS < 100, 0.4, 1.0) + np.random.default_rng(1).normal(0, 0.02, 250), "down", {"noise": 100}),
        (np.where(STEPS == 100, 9.0, 1.0) + np.random.default_rng(1).normal(0, 0.02, 250), None, {}),
        (np.where(STEPS == 100, np.inf, 1.0), None, {"finite": 100}),
        (np.full(250, np.nan), None, {"finite": 0}),
        (np.array([1.0, np.nan, 1.0]), None, {"finite": 1}),
        (np.array([]), None, {}),
    ],
    ids=[
        "falls",
        "rises, which is good",
        "rises, which is bad",
        "one spike",
        "inf",
        "never a number",
        "short",
        "empty",
    ],
)
def test_which_curves_have_an_onset(values: Array, good: str | None, expected: dict[str, float]) -> None:
    """A change that lasts, in the bad direction; the first value that is not finite, however short the curve is."""
    assert found("curve", values, good) == expected


def test_the_healthy_range_is_left_for_several_values() -> None:
    """One value outside is noise; a curve that never was inside has not left it."""
    once = np.where(STEPS == 20, 5.0, 0.5)
    long = np.where(STEPS >= 20, 5.0, 0.5)
    assert found("kl", once, healthy=(0, 1)) == {}
    assert found("kl", long[:40], healthy=(None, 1)) == {"healthy": 20}
    assert found("kl", np.full(60, 5.0), healthy=(0, 1)) == {}


def test_a_family_is_one_row() -> None:
    """Members that break at different steps: the first step, and how many broke."""
    curves = [
        {"name": f"rewards/{member}", "mode": "train", "template": "rewards/{member}", "title": "", "good": None,
         "healthy": None, "x": STEPS, "y": np.where(step <= STEPS, np.nan, 1.0)}
        for member, step in (("a", 90), ("b", 60))
    ]  # fmt: skip
    (row,) = onsets_by_step(curves)
    assert (row["step"], row["name"], row["members"]) == (60, "rewards/b", 2)


def test_a_change_is_said_in_words() -> None:
    """A factor of positive values, a difference of others."""
    noise = np.random.default_rng(1).normal(0, 0.01, 250)
    (grown,) = onsets("g", STEPS, np.where(STEPS < 100, 1.0, 3.0) + noise)
    (fallen,) = onsets("r", STEPS, np.where(STEPS < 100, 0.0, -0.5) + noise)
    assert grown.change.startswith("\N{MULTIPLICATION SIGN} ")
    assert float(grown.change[2:]) == pytest.approx(3, rel=0.02)
    assert fallen.change.startswith("\N{MINUS SIGN}")
    assert float(fallen.change[1:]) == pytest.approx(0.5, rel=0.05)
