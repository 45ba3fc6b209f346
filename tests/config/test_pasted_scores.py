"""Edits for scores of groups, labels and first steps are pasted into the file, and compared with numpy."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import declog
from declog.testing import MemorySink
from tests.config.test_pasted_answers import problems_of
from tests.config.test_pasted_rows import edit_of

HEADER = """\
defaults: [grpo, _self_]
axes: {group: {size: 4}}
signals: {rollout: {answer: completion text, score: completion, correct: completion bool, stop: completion text}}
"""
STEPS, ROWS = 3, 8
RANDOM = np.random.default_rng(7)
REWARD, SCORE = RANDOM.random((STEPS, ROWS)), RANDOM.random((STEPS, ROWS))
CORRECT = RANDOM.random((STEPS, ROWS)) < 0.5
LENGTH = RANDOM.integers(1, 9, (STEPS, ROWS))
ANSWER = RANDOM.choice(["A", "B"], (STEPS, ROWS), p=[0.7, 0.3])
STOP = RANDOM.choice(["eos", "length", "tool"], (STEPS, ROWS))


def pasted(entry: str, folder: Path) -> list[dict[str, float]]:
    """The numbers of each step, by name, after the edit for the metric `m` is made. The edit has no mistake."""
    text = f"metrics:\n  m: {entry}\n"
    problem = problems_of(text, folder, HEADER)[0]
    fix = str(problem.fix)
    config = yaml.safe_load(HEADER + text)
    if "metrics: {" in fix:
        edit = re.search(r"metrics: \{.*", fix)
        assert edit is not None
        config["metrics"] |= edit_of(replace(problem, fix=edit[0]))["metrics"]
        here = re.search("and `([^`]+)`", fix)
        config["metrics"] |= {} if here is None else {"m": {"formula": here[1]}}
    elif fix.startswith("{"):
        config["metrics"]["m"] = edit_of(problem)
    elif fix.startswith("m: "):
        config["metrics"] |= edit_of(replace(problem, fix=f"{{{fix}}}"))
    elif problem.path[-1] == "where":
        config["metrics"]["m"]["where"] = yaml.safe_load(fix.removeprefix("write ").strip("`"))
    else:
        written = re.search("`([^`]+)`", fix)
        value = fix if written is None else written[1]
        config["metrics"]["m"] = yaml.safe_load(value) if value.startswith("{") else {"expr": value}
    (folder / "declog" / "mine.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    sink = MemorySink()
    with declog.start(declog.compose("mine", config_dir=folder), sinks=[sink]) as log:
        for step in range(STEPS):
            with log.step(step):
                log.observe(reward=REWARD[step], score=SCORE[step], correct=CORRECT[step], length=LENGTH[step])
                log.observe(answer=ANSWER[step].tolist(), stop=STOP[step].tolist())
    return [dict(sink.scalars[step]) for step in range(STEPS)]


def of_groups(values: np.ndarray) -> np.ndarray:
    """The values by groups of four completions."""
    return values.reshape(-1, 4)


def majority(answers: np.ndarray) -> list[str]:
    """The most frequent answer of each group; of equal ones the first."""
    return [Counter(group.tolist()).most_common(1)[0][0] for group in of_groups(answers)]


def pass_at(correct: np.ndarray, k: int) -> float:
    """The mean over groups of the unbiased pass@k."""
    counts = of_groups(correct).sum(1)
    return float(np.mean([1 - math.comb(4 - count, k) / math.comb(4, k) for count in counts]))


@pytest.mark.parametrize("call", ["share(stop)", "proportion(stop)", "stop.value_counts(normalize=True)"])
def test_the_shares_of_labels(call: str, tmp_path: Path) -> None:
    """Class: the share of each label of a text is a count by its labels, divided by the count of all."""
    for step, values in enumerate(pasted(f'"{call}"', tmp_path)):
        labels, counts = np.unique(STOP[step], return_counts=True)
        shares = {f"m/{label}": count / ROWS for label, count in zip(labels, counts, strict=True)}
        assert {name: value for name, value in values.items() if name.startswith("m/")} == pytest.approx(shares)


@pytest.mark.parametrize("entry", ["{expr: stop, reduce: value_counts}", '"value_counts(stop)"'])
def test_the_counts_of_labels(entry: str, tmp_path: Path) -> None:
    """Class: how often each label of a text comes is a count of the rows by their labels."""
    for step, values in enumerate(pasted(entry, tmp_path)):
        labels, counts = np.unique(STOP[step], return_counts=True)
        expected = {f"m/{label}": count for label, count in zip(labels, counts, strict=True)}
        assert {name: value for name, value in values.items() if name.startswith("m/")} == expected


@pytest.mark.parametrize("call", ["mode(answer, over=completion)", "most_common(answer)", "consensus(answer)"])
def test_the_most_frequent_text(call: str, tmp_path: Path) -> None:
    """Class: words for the most frequent text of a group are `majority`, with or without the axis."""
    for step, values in enumerate(pasted(f"\"{call} == 'A'\"", tmp_path)):
        assert values["m"] == np.mean([answer == "A" for answer in majority(ANSWER[step])])


@pytest.mark.parametrize(
    ("call", "k"), [("pass@4(correct)", 4), ("pass@k(correct, k=2)", 2), ("1 - pass@2(correct)", 2)]
)
def test_pass_at_k_with_its_sign(call: str, k: int, tmp_path: Path) -> None:
    """Class: `@k` behind the name of a function is its number of draws."""
    for step, values in enumerate(pasted(f'"{call}"', tmp_path)):
        expected = pass_at(CORRECT[step], k)
        assert values["m"] == pytest.approx(1 - expected if call.startswith("1 -") else expected)


@pytest.mark.parametrize("call", ["max_by(reward, score)", "reward[argmax(score)]", "take(reward, argmax(score))"])
def test_the_value_of_the_best_score_beside_each_row(call: str, tmp_path: Path) -> None:
    """Class: one value of a group beside the values of all its rows is computed for each row, and chooses no rows."""
    for step, values in enumerate(pasted(f'"mean(abs(reward - {call}))"', tmp_path)):
        places = of_groups(SCORE[step]).argmax(1)[:, None]
        rewards = of_groups(REWARD[step])
        chosen = np.take_along_axis(rewards, places, 1)
        assert values["m"] == pytest.approx(np.abs(rewards - chosen).mean())


@pytest.mark.parametrize(
    ("entry", "of_best", "best"),
    [
        ('"first(reward, over=completion, by=-score)"', REWARD, np.argmax),
        ('"last(reward, over=completion, by=score)"', REWARD, np.argmax),
        ('"mean(correct[argmax(score, over=completion)])"', CORRECT, np.argmax),
        ('"reward[score.argmin()]"', REWARD, np.argmin),
        ('"1 - correct[argmax(score)]"', 1 - CORRECT, np.argmax),
        ('"argmax(score, reward, over=completion)"', REWARD, np.argmax),
        ('"np.take(reward, np.argmin(score))"', REWARD, np.argmin),
        ('"2 * max_by(reward, score)"', 2 * REWARD, np.argmax),
        ('"min(reward, key=score)"', REWARD, np.argmin),
        ("{expr: reward, where: score == argmax(score)}", REWARD, np.argmax),
        ('"argmax(score)"', np.tile(np.arange(ROWS) % 4, (STEPS, 1)), np.argmax),
        ("{expr: reward, argmax: score}", REWARD, np.argmax),
        ("{expr: correct, key: score, bottom: 1}", CORRECT, np.argmin),
        ("{expr: reward, filter: {sort_by: score, top: 1}}", REWARD, np.argmax),
    ],
)
def test_the_value_of_the_best_score(entry: str, of_best: np.ndarray, best: Any, tmp_path: Path) -> None:
    """Class: the value of the completion of each group that is the best by another score is chosen by a condition."""
    for step, values in enumerate(pasted(entry, tmp_path)):
        places = best(of_groups(SCORE[step]), axis=1)
        assert values["m"] == pytest.approx(of_groups(of_best[step])[np.arange(ROWS // 4), places].mean())


@pytest.mark.parametrize(
    "formula", ["reward - first(reward)", "reward - start(reward)", "reward - reward[0]", "reward - reward.first()"]
)
def test_the_value_of_the_first_step(formula: str, tmp_path: Path) -> None:
    """Class: the first value of a metric is that of the run's first step, and no value of the same log event."""
    changes = REWARD.mean(1) - REWARD[0].mean()
    assert [one["m"] for one in pasted(f'{{formula: "{formula}"}}', tmp_path)] == pytest.approx(changes.tolist())


@pytest.mark.parametrize(
    "entry",
    [
        '"count(length > 4) / count()"',
        '"count(length > 4) / count(length)"',
        '{formula: "count(length > 4) / count(reward)"}',
        '{formula: "sum(length > 4) / count(length)", tags: [core]}',
        '"sum(length > 4) / count(length)"',
        '"sum(length > 4) / count(reward)"',
        '"sum(length > 4) / count(length > 4)"',
        '"sum(length > 4) / len(length)"',
        '"100 * sum(length > 4) / count(length) / 100"',
    ],
)
def test_the_share_of_rows_with_a_condition(entry: str, tmp_path: Path) -> None:
    """Class: a count of a condition, divided by that of the rows, is the condition's mean."""
    assert [one["m"] for one in pasted(entry, tmp_path)] == pytest.approx((LENGTH > 4).mean(1).tolist())


@pytest.mark.parametrize("entry", ["1 - count(length > 4) / count(length)", "1 - count(length > 4) / count()"])
def test_a_count_of_a_condition_inside_a_formula(entry: str, tmp_path: Path) -> None:
    """Class: `count` counts what is not missing; an edit that splits a formula sums a condition."""
    assert [one["m"] for one in pasted(f'"{entry}"', tmp_path)] == pytest.approx((LENGTH <= 4).mean(1).tolist())


@pytest.mark.parametrize("keys", ["expr: 1, reduce: sum, by: stop", "expr: 1, reduce: count, by: stop, where: correct"])
def test_ones_by_label(keys: str, tmp_path: Path) -> None:
    """Class: ones that are counted by a label are the rows of each label."""
    for step, values in enumerate(pasted(f"{{{keys}}}", tmp_path)):
        rows = STOP[step][CORRECT[step]] if "where" in keys else STOP[step]
        labels, counts = np.unique(rows, return_counts=True)
        expected = {f"m/{label}": count for label, count in zip(labels, counts, strict=True)}
        assert {name: value for name, value in values.items() if name.startswith("m/")} == expected


@pytest.mark.parametrize(
    "entry",
    [
        "{expr: count(*), where: correct}",
        '{expr: "*", reduce: count, where: correct}',
        "{expr: count(), where: correct, tags: core}",
        "{expr: 1, reduce: sum, where: correct}",
        "count(*) where correct",
        "count(score where correct)",
        "SELECT count(*) FROM samples WHERE correct",
    ],
)
def test_a_count_of_rows_with_a_condition(entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Class: a count of the rows with a condition is 0 in a step without such a row, and not absent."""
    few = CORRECT & (np.arange(STEPS) != 1)[:, None]
    monkeypatch.setitem(globals(), "CORRECT", few)
    assert [one["m"] for one in pasted(entry, tmp_path)] == few.sum(1).tolist()
