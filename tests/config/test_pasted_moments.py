"""Edits whose numbers matter are pasted, and compared with numpy: moments of two values, of the last steps, keys."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

import declog
from declog.language import functions, row_functions
from declog.language.functions import Functions
from declog.language.row_functions import RowFunctions
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
TOKENS = {"advantages": ADVANTAGES[:, None] + 0 * LOGPROBS, "logprobs": LOGPROBS, "entropy": ENTROPY}


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
    there = rows & ~np.isnan(TOKENS[a]) & ~np.isnan(TOKENS[b])
    return TOKENS[a][there], TOKENS[b][there]


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


@pytest.mark.parametrize("entry", [
    "pvar(reward)", "var(reward, ddof=0)", "var(reward, unbiased=False)", "np.var(reward)", "reward.var(correction=0)",
    {"expr": "reward", "reduce": "pvar"}, {"expr": "reward", "reduce": "var(ddof=0)"},
    {"expr": "reward", "reduce": "np.var"}, {"expr": "reward", "reduce": "population_variance"},
])  # fmt: skip
def test_variances_of_all_values(entry: Any) -> None:
    """Class: a variance that is said to divide by n is no sample's; alone, beside a mean, and with a condition."""
    values = REWARD[~np.isnan(REWARD)]
    assert pasted(entry)["m"] == pytest.approx(values.var())
    if isinstance(entry, dict):
        some = {**entry, "where": "length > 1"}
        assert pasted(some)["m"] == pytest.approx(values.var())
    else:
        assert pasted(f"{entry} / mean(reward)")["m"] == pytest.approx(values.var() / values.mean())


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
    entry = {"expr": "advantages", **yaml.safe_load(str(caught.value.problems[0].fix))}
    expected = np.average(TOKENS["advantages"][MASK], weights=LOGPROBS[MASK] ** 2)
    assert logged({**CONFIG, "metrics": {"m": entry}})["m"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("where", [None, "index(token) < 3", "length > 2"])
@pytest.mark.parametrize("reduce", [["mean", "p50"], [{"at": "mean"}, "max", {"mid": "p50"}], ["p50"]])
def test_what_tokens_of_a_label_have_stays_as_it_is(reduce: list[Any], where: str | None) -> None:
    """Class: reductions of tokens with a label, some of which are impossible; conditions of tokens and completions."""
    entry = {"expr": "abs(logprobs)", "by": "topic", "reduce": reduce, **({} if where is None else {"where": where})}
    numbers = pasted(entry)
    rows = MASK & (np.arange(5) < 3 if where == "index(token) < 3" else True)
    rows = rows & ((LENGTH > 2)[:, None] if where == "length > 2" else True)
    magnitudes = np.where(rows, np.abs(LOGPROBS), np.nan)
    for topic in set(TOPIC):
        of_topic = magnitudes[np.array(TOPIC) == topic]
        names = [item if isinstance(item, str) else next(iter(item)) for item in reduce]
        for name in names:
            if name in ("p50", "mid"):
                id = "m" if len(reduce) == 1 else f"m_{name}"
                of_completions = of_topic[~np.isnan(of_topic).all(1)]
                assert numbers[f"{id}/{name}/{topic}"] == pytest.approx(
                    np.median(np.nanmean(of_completions, 1)), rel=1e-5
                )
            else:
                expected = np.nanmax(of_topic) if name == "max" else np.nanmean(of_topic)
                assert numbers[f"m/{name}/{topic}"] == pytest.approx(expected, rel=1e-5)


HERE = np.where(MASK, ENTROPY, np.nan)


def of_high(quantile: np.ndarray) -> float:
    """The mean of the tokens above a quantile of their completion."""
    return float(LOGPROBS[quantile[:, None] < HERE].mean())


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"expr": "logprobs", "where": "entropy > p80(entropy, over=token)"}, of_high),
        ({"expr": "logprobs", "where": "entropy > median(entropy, over=token)"}, of_high),
        ("mean(p80(entropy, over=token))", np.nanmean),
    ],
)
def test_a_quantile_of_the_tokens_of_each_completion_is_observed(entry: Any, expected: Any) -> None:
    """Class: in a condition of tokens, and as a value of completions; missing tokens do not count."""
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan({**CONFIG, "metrics": {"m": entry}})
    signal, observed, written = re.findall(r"`([^`]+)`", str(caught.value.problems[0].fix))[:3]
    (name, code) = re.fullmatch(r"log\.observe\((\w+)=(.+)\)", observed).groups()  # type: ignore[union-attr]
    tensors = {"entropy": torch.tensor(ENTROPY), "mask": torch.tensor(MASK)}
    value = eval(code, {"torch": torch, **tensors})
    level = 50 if "median" in str(entry) else 80
    quantile = np.nanpercentile(HERE, level, axis=1)
    np.testing.assert_allclose(value, quantile)
    metric = {**entry, "where": written} if isinstance(entry, dict) else written
    declared = yaml.safe_load(signal.removeprefix("signals: "))
    config = {**CONFIG, "signals": {"any": {**CONFIG["signals"]["any"], **declared["any"]}}, "metrics": {"m": metric}}
    sink = MemorySink()
    with declog.start(config, sinks=[sink]) as log, log.step(0):
        log.observe(logprobs=torch.tensor(LOGPROBS), **tensors, **{name: value})
    assert sink.scalars[0]["m"] == pytest.approx(expected(quantile), rel=1e-5)


VALUES = pd.Series([0.1, 0.9, 0.2, 0.4, 0.8, 0.3, 0.3])
ROLLING = VALUES.rolling(4, min_periods=1)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"expr": "reward", "over": "step", "combine": "rolling(4, std)"}, ROLLING.std()),
        ({"expr": "reward", "combine": "rolling_stdev(4)", "tags": ["core"]}, ROLLING.std()),
        ({"expr": "reward", "combine": "rolling(4).var()"}, ROLLING.var()),
        ({"formula": "2 * reward", "combine": "moving_var(4)"}, 4 * ROLLING.var()),
        ({"expr": "reward", "combine": "rolling(4).pstd()"}, ROLLING.std()),
        ("rolling_std(reward, 4)", ROLLING.std()),
        ("movstd(reward, 4)", ROLLING.std()),
        ("reward.rolling(4).std()", ROLLING.std()),
        ("reward.rolling(4).median()", ROLLING.median()),
        ({"formula": "1 + rolling_std(reward, 4)"}, ROLLING.std() + 1),
        ({"formula": "rolling_median(reward, 4)"}, ROLLING.median()),
    ],
)
def test_a_reduction_of_the_last_steps_is_that_of_each_step(entry: Any, expected: Any) -> None:
    """Class: deviation, variance and median in each of the words for them; one value has no deviation."""
    config = {**CONFIG, "metrics": {"reward": "mean(reward)"}}
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan({**config, "metrics": {**config["metrics"], "m": entry}})
    fix = str(caught.value.problems[0].fix)
    if fix.startswith("metrics: "):
        further = yaml.safe_load(fix)["metrics"]
    elif fix.startswith("{"):
        further = {"m": yaml.safe_load(fix)}
    else:
        further = {"m": {**entry, "combine": fix}}
    sink = MemorySink()
    with declog.start({**config, "metrics": {**config["metrics"], **further}}, sinks=[sink]) as log:
        for step, value in enumerate(VALUES):
            with log.step(step):
                log.observe(reward=np.array([value, value]))
    logged = [row.get("m", math.nan) for row in sink.scalars.values()]
    np.testing.assert_allclose(logged, expected, atol=1e-6)


FUNCTIONS, COLUMNS = Functions(functions.DEFAULT), RowFunctions(row_functions.DEFAULT)


@declog.column(registry=COLUMNS)
def words_of(completion: str) -> int:
    return len(completion.split())


@pytest.mark.parametrize("column", [{"expr": "length * 2"}, {"call": "words_of"}])
@pytest.mark.parametrize("of_table", [True, False])
def test_a_key_that_is_a_column_is_what_the_column_computes(column: dict[str, str], *, of_table: bool) -> None:
    """Class: a column of an expression and of a Python function, in the filter of a table and in one by its name."""
    filter: dict[str, Any] = {"key": "size_of", "top": 1}
    columns = {"completion": "text", "size_of": {"type": "int", **column}}
    config: dict[str, Any] = {
        **CONFIG, "signals": {"any": {**CONFIG["signals"]["any"], "completion": "completion text"}},
        "metrics": {}, "schemas": {"s": columns}, "filters": {} if of_table else {"best": filter},
        "tables": {"t": {"schema": "s", "filter": filter if of_table else "best"}},
    }  # fmt: skip
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan(config, columns=COLUMNS)
    fix = str(caught.value.problems[0].fix)
    if "call" in column:
        declog.function(words_of, registry=FUNCTIONS)
        columns |= yaml.safe_load(re.search(r"the column `(.+?)`", fix)[1])  # type: ignore[index]
    filter |= yaml.safe_load(re.search(r"key: [^`]+", fix)[0])  # type: ignore[index]
    sink = MemorySink()
    with declog.start(config, sinks=[sink], functions=FUNCTIONS, columns=COLUMNS) as log, log.step(0):
        log.observe(completion=["a", "b c d", "e f"], length=[1, 3, 2])
    ((_, table),) = sink.tables("t")
    assert [*table.data["completion"]] == ["b c d"]
    assert [*table.data["size_of"]] == [3 if "call" in column else 6]


SUMS = (np.nan_to_num(ENTROPY) * MASK).sum(1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(entropy * 2).sum(-1).mean()", 2 * SUMS.mean()),
        ("entropy.sum(dim=-1).max()", SUMS.max()),
        ("np.mean(np.sum(entropy, axis=1))", SUMS.mean()),
        ("logprobs.max(-1).values.mean()", np.where(MASK, LOGPROBS, -np.inf).max(1).mean()),
        ("logprobs.max(dim=-1)[0].mean()", np.where(MASK, LOGPROBS, -np.inf).max(1).mean()),
        ("entropy.sum(-1).max() - entropy.sum(-1).min()", SUMS.max() - SUMS.min()),
        ("(entropy.sum(-1) / mask.sum(-1)).mean()", (SUMS / LENGTH).mean()),
        ("(length > 3).float().mean()", (LENGTH > 3).mean()),
        ("(length > 3).sum() / len(length)", (LENGTH > 3).mean()),
        ("sum(reward > 0) / count(length)", (REWARD > 0).sum() / 6),
        ("sum(reward > 0) / count(reward)", (REWARD > 0).sum() / 5),
    ],
)
def test_chains_of_methods_along_the_last_axis(text: str, expected: float) -> None:
    """Class: each method of a chain has its axis; a count of other rows is no mean."""
    assert pasted(text)["m"] == pytest.approx(expected, rel=1e-6)
