"""Edits of covariances, correlations, slopes and shares of variance are pasted: their numbers are numpy's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import declog
from declog.testing import MemorySink

RANDOM = np.random.default_rng(3)
ADVANTAGES = RANDOM.normal(size=6).round(2)
LOGPROBS = RANDOM.normal(size=(6, 5)).round(2)
ENTROPY = np.where(RANDOM.random((6, 5)) < 0.2, np.nan, RANDOM.random((6, 5)))
REWARD = np.array([0.0, 1.0, 0.5, np.nan, 0.25, 1.0])  # of one completion missing
LENGTH = np.array([5, 3, 4, 1, 2, 5])
MASK = np.arange(5) < LENGTH[:, None]
TOPIC = ["math", "math", "code", "code", "math", "code"]
CONFIG: dict[str, Any] = {
    "run": {"name": "pasted"},
    "axes": {"token": {"mask": "mask"}},
    "signals": {
        "any": {
            **dict.fromkeys(("advantages", "reward"), "completion"),
            **dict.fromkeys(("logprobs", "entropy"), "token"),
            "length": "completion int", "topic": "completion text", "mask": "token bool",
        }
    },
}  # fmt: skip
COLUMNS = {"advantages": ADVANTAGES[:, None] + 0 * LOGPROBS, "logprobs": LOGPROBS, "entropy": ENTROPY}


def logged(config: dict[str, Any]) -> dict[str, float]:
    sink = MemorySink()
    with declog.start(config, sinks=[sink]) as log, log.step(0):
        tokens = {"logprobs": LOGPROBS, "entropy": ENTROPY, "mask": MASK}
        log.observe(advantages=ADVANTAGES, reward=REWARD, length=LENGTH, topic=TOPIC,
                    **{name: torch.tensor(values) for name, values in tokens.items()})  # fmt: skip
    return sink.scalars[0]


def pasted(entry: Any, section: str = "metrics") -> dict[str, float]:
    """The numbers of a run whose metric `m`, or the alert of that name, is edited as its fix says."""
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan({"metrics": {}, **CONFIG, section: {"m": entry}})
    fix = str(caught.value.problems[0].fix)
    match = re.search(r"metrics: (\{.+\})(?:`, and `(.+)`)?", fix)
    if match is None:
        return logged({**CONFIG, "metrics": {"m": re.fullmatch(r"(?:m: )?(.+)", fix)[1]}})  # type: ignore[index]
    metrics = yaml.safe_load(match[1])
    return logged({**CONFIG, "metrics": metrics if match[2] is None else {**metrics, "m": {"formula": match[2]}}})


def pairs(a: str, b: str, rows: np.ndarray = MASK) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of both that exist and are not missing."""
    there = rows & ~np.isnan(COLUMNS[a]) & ~np.isnan(COLUMNS[b])
    return COLUMNS[a][there], COLUMNS[b][there]


def cov(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.cov(a, b)[0, 1])


def corr(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a, b)[0, 1])


@pytest.mark.parametrize(("a", "b"), [("advantages", "logprobs"), ("logprobs", "entropy"), ("entropy", "advantages")])
@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("cov({a}, {b})", cov),
        ({"formula": "cov({a}, {b})"}, cov),
        ({"formula": "1 + covariance({a}, {b})"}, lambda a, b: 1 + cov(a, b)),
        ({"expr": ["{a}", "{b}"], "reduce": "cov"}, cov),
        ("corr({a}, {b})", corr),
        ({"expr": "corr({a}, {b})", "log": True, "tags": ["core"]}, corr),
        ({"expr": ["{a}", "{b}"], "reduce": "corr"}, corr),
        ("cov({a}, {b}) / sqrt(var({a} + 0 * {b}) * var({b} + 0 * {a}))", corr),
    ],
)
def test_moments_of_two_values_are_of_the_tokens_that_have_both(
    entry: Any, expected: Callable[..., float], a: str, b: str
) -> None:
    """Class: one value for each completion beside one for each token, and a value that is missing beside the other."""
    filled = yaml.safe_load(yaml.safe_dump(entry).replace("{a}", a).replace("{b}", b))
    assert pasted(filled)["m"] == pytest.approx(expected(*pairs(a, b)), rel=1e-5)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("cov(advantages, logprobs) / var(advantages)", lambda a, x: cov(a, x) / a.var(ddof=1)),
        ("mean(advantages * logprobs) - mean(advantages) * mean(logprobs)", lambda a, x: cov(a, x) * (1 - 1 / a.size)),
        ("1 - var(advantages - logprobs) / var(advantages)", lambda a, x: 1 - (a - x).var() / a.var()),
        ("1 - mean((advantages - logprobs) ** 2) / pstd(advantages) ** 2",
         lambda a, x: 1 - ((a - x) ** 2).mean() / a.var()),
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", ["expr", "formula"])
def test_moments_beside_each_other_are_of_the_same_tokens(key: str, entry: str, expected: Any) -> None:
    """Class: slopes and shares of variance, as an expression and as a formula."""
    assert pasted({key: entry})["m"] == pytest.approx(expected(*pairs("advantages", "logprobs")), rel=1e-5)


def test_sums_of_completions_stay_those_of_completions() -> None:
    """A sum and a count beside tokens are no moments: so much for each completion."""
    expected = (ADVANTAGES[:, None] * LOGPROBS)[MASK].sum() / 6
    assert pasted("sum(advantages * logprobs) / count(advantages)")["m"] == pytest.approx(expected, rel=1e-5)


def test_a_covariance_of_completions_keeps_its_keys() -> None:
    """Class: labels and conditions, in which a completion without a reward is in no moment; a condition of an alert."""
    entry = {"expr": "cov(reward, length)", "by": "topic", "where": "length < 5"}
    assert pasted(entry)["m/math"] == pytest.approx(cov(np.array([1.0, 0.25]), np.array([3, 2])))
    rows = ~np.isnan(REWARD)
    numbers = pasted({"when": "cov(reward, length) > 0"}, "alerts")
    assert numbers["m"] == float(cov(REWARD[rows], LENGTH[rows]) > 0)


def test_a_weight_of_tokens_is_their_sum() -> None:
    """A value of a completion that is weighted by its tokens has the weight of all of them."""
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan({**CONFIG, "metrics": {"m": {"expr": "advantages", "weight": "logprobs ** 2"}}})
    entry = {"expr": "advantages", "weight": str(caught.value.problems[0].fix)}
    expected = np.average(COLUMNS["advantages"][MASK], weights=LOGPROBS[MASK] ** 2)
    assert logged({**CONFIG, "metrics": {"m": entry}})["m"] == pytest.approx(expected, rel=1e-5)
