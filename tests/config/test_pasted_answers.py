"""Answers are pasted into the file where they say: in {...} with quotes, and what they define gives what was meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

import declog
from declog.cli import main
from declog.config.quoting import stays_plain
from declog.errors import Problem
from declog.testing import MemorySink

HEADER = "defaults: [grpo, _self_]\nsignals: {rollout: {level: completion int, source: completion text}}\n"


def problems_of(text: str, folder: Path, header: str = HEADER) -> Sequence[Problem]:
    """What is wrong with a file that says so."""
    (folder / "declog").mkdir(exist_ok=True)
    (folder / "declog" / "mine.yaml").write_text(header + text, encoding="utf-8")
    try:
        declog.plan(declog.compose("mine", config_dir=folder))
    except declog.ConfigError as error:
        return error.problems
    return []


PLACES = {
    "flow": "metrics: {m: {expr: entropy, {KEY}: {VALUE}}}\n",
    "lines": "metrics: {\n  m: {\n    expr: entropy,\n    {KEY}: {VALUE}}}\n",
    "block": "metrics:\n  m:\n    expr: entropy\n    {KEY}: {VALUE}\n",
    "quoted": 'metrics: {m: {expr: entropy, {KEY}: "{VALUE}"}}\n',
}
REWARDS = {name: text.replace("entropy", "reward") for name, text in PLACES.items()}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("places", "key", "value"),
    [
        (REWARDS, "where", "length > p90(length)"),
        (REWARDS, "where", "reward > mean(reward) and length > 3"),
        (REWARDS, "where", "rank(length) > 3"),
        (REWARDS, "by", "floor(reward / 10)"),
        (REWARDS, "where", "length > median(length)"),
        (PLACES, "by", "floor(entropy / 10)"),
    ],
)
def test_an_expression_is_pasted_as_it_stands(
    places: dict[str, str], key: str, value: str, place: str, tmp_path: Path
) -> None:
    """Class: the text between the ticks takes the place of the value, in each style of YAML, and nothing is wrong."""
    text = places[place].replace("{KEY}", key)
    (problem,) = problems_of(text.replace("{VALUE}", value), tmp_path)
    written = re.search(r"`([^`]+)`", str(problem.fix))
    assert written is not None
    assert (written[1][0] == '"') == (place in ("flow", "lines"))
    of_part = str(problem.fix).startswith("`") and written[1][0] != '"'  # it stands for what is marked
    pasted = value.replace(problem.marked, written[1]) if of_part else written[1]
    assert problems_of(text.replace("{VALUE}", pasted), tmp_path) == []


@pytest.mark.parametrize("ending", ["", ", every: 2", ', tags: [core], name: "a/{label}", by: source'])
@pytest.mark.parametrize(
    ("expr", "where", "reduce", "rest"),
    [
        ("entropy", "entropy > p80(entropy)", "top_mean(share=0.2)", None),
        ("entropy", "entropy >= p90(entropy) and kl > 0", "top_mean(share=0.1)", "kl > 0"),
        ("mean(entropy)", "kl > 0 and entropy < median(entropy)", "bottom_mean(share=0.5)", "kl > 0"),
        ("reward", "reward > p75(reward)", "top_mean(share=0.25)", None),
        ("reward", "reward <= p25(reward) and length > 3", "bottom_mean(share=0.25)", "length > 3"),
        ("reward - 1", "reward - 1 < p5(reward - 1)", "bottom_mean(share=0.05)", None),
    ],
)
def test_a_mean_of_the_values_beyond_a_quantile(
    expr: str, where: str, reduce: str, rest: str | None, ending: str, tmp_path: Path
) -> None:
    """Class: the same values in the mean and in its condition: the entry of the tail's mean, with the other keys."""
    if "entropy" in expr:
        ending = ending.replace(", by: source", "").replace("{label}", "b")  # a sketch has no labels
    text = f'metrics: {{m: {{expr: "{expr}", where: "{where}"{ending}}}}}\n'
    problem = problems_of(text, tmp_path)[0]
    entry = yaml.safe_load(f"metrics: {{{problem.fix}}}")["metrics"]["m"]
    said = yaml.safe_load(text)["metrics"]["m"]
    kept = {key: value for key, value in said.items() if key not in ("expr", "where")}
    condition = {} if rest is None else {"where": rest}
    assert entry == {"expr": expr.removeprefix("mean(").removesuffix(")"), "reduce": reduce, **condition, **kept}
    assert problems_of(f"metrics: {{{problem.fix}}}\n", tmp_path) == []


@pytest.mark.parametrize(
    "where", ["entropy > p80(entropy)", "entropy <= p99.9(entropy)", "kl > 0 and entropy > p80(entropy)"]
)
def test_a_mean_of_other_tokens_than_those_of_its_condition(where: str, tmp_path: Path) -> None:
    """The condition is a signal that the loop observes; what is said of it compiles, and its line is torch's."""
    (problem,) = problems_of(f'metrics: {{m: {{expr: kl, where: "{where}"}}}}\n', tmp_path)
    if "99.9" in where:  # no expression of Python
        return
    signals, observed, condition = re.findall(r"`([^`]+)`", str(problem.fix))
    assert (
        problems_of(
            f"metrics: {{m: {{expr: kl, {condition}}}}}\n", tmp_path, HEADER.replace("signals: {", f"{signals[:-1]}, ")
        )
        == []
    )
    assert re.fullmatch(
        r"log.observe\(entropy_above_p80=entropy > entropy\[completion_mask\].quantile\(0.8\)\)", observed
    )


@pytest.mark.parametrize(
    ("text", "flow", "block"),
    [
        ("reward > 0.5", True, True),
        ("max(reward, 0)", False, True),
        ("member(rewards, 'a') > 0", False, True),
        ("contains(completion, ': ')", False, False),
        ("source in ['a']", False, True),
        ("'a' == source", False, False),
        ("1 if x else 0", True, True),
    ],
)
def test_what_yaml_takes_apart(text: str, flow: bool, block: bool) -> None:
    """A text is plain where YAML reads it as it stands."""
    assert (stays_plain(text, in_flow=True), stays_plain(text, in_flow=False)) == (flow, block)


@pytest.mark.parametrize(
    "call", ["bucket(length, [10, 20])", "bucket(length, (10, 20))", "bucket(length, edges=[10, 20])"]
)
def test_a_list_of_arguments(call: str, tmp_path: Path) -> None:
    """Class: a list, a tuple or a named list of values is those values."""
    (problem,) = problems_of(f'metrics: {{m: {{expr: reward, by: "{call}"}}}}\n', tmp_path)
    assert str(problem.fix).startswith("write `bucket(length, 10, 20)`, if an edge is of the bucket below; ")


def test_a_list_that_is_none_of_arguments(tmp_path: Path) -> None:
    """What would not be right as arguments, either, is answered as a list."""
    (problem,) = problems_of("metrics: {m: 'abs([reward, length])'}\n", tmp_path)
    assert "a list is not part of the language" in problem.message


CONFIG = {
    "run": {"name": "pasted"},
    "signals": {"any": {"reward": "completion", "grad_norm": "step"}},
    "metrics": {"reward": "mean", "grad_norm": "mean"},
}
VALUES = np.random.default_rng(0).exponential(size=60).astype(np.float32)


def logged(name: str, entry: object) -> list[float]:
    """What a metric logs once its fix is pasted: of values of two rows, and of one number per step."""
    metrics = {**CONFIG["metrics"], name: entry}  # type: ignore[dict-item]
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan({**CONFIG, "metrics": metrics})
    fix = str(caught.value.problems[0].fix)
    beside = re.fullmatch(r"write a metric and name it here: `metrics: (\{.+\})`, and `(.+)`", fix)
    entire = re.fullmatch(r"metrics: (\{.+\})", fix)
    text = re.fullmatch(r"write `(.+)`", fix)
    if beside is not None:
        metrics |= {**yaml.safe_load(beside[1]), name: {"formula": beside[2]}}
    elif entire is not None:
        metrics |= yaml.safe_load(entire[1])
    else:
        assert text is not None
        metrics[name] = text[1]
    sink = MemorySink()
    with declog.start({**CONFIG, "metrics": metrics}, sinks=[sink]) as log:
        for step, value in enumerate(VALUES):
            with log.step(step):
                log.observe(reward=np.array([value - 1, value + 1]), grad_norm=float(value))
    return [values.get(name, np.nan) for _, values in sorted(sink.scalars.items())]


CHANGES = np.diff(VALUES)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"formula": "reward - previous(reward)"}, CHANGES),
        ({"formula": "reward - prev(reward)"}, CHANGES),
        ({"formula": "reward - lag(reward, 1)"}, CHANGES),
        ({"formula": "delta(reward)"}, CHANGES),
        ({"formula": "reward - reward[-1]"}, CHANGES),
        ({"formula": "shift(reward, 3)"}, VALUES[:-3]),
        ({"formula": "diff(grad_norm, 2) / grad_norm"}, (VALUES[2:] - VALUES[:-2]) / VALUES[2:]),
        ("diff(reward)", CHANGES),
        ("mean(reward) - prev(mean(reward))", CHANGES),
        ("grad_norm - prev(grad_norm)", CHANGES),
        ("diff(grad_norm)", CHANGES),
    ],
)
def test_a_value_of_an_earlier_step_is_that_value(entry: object, expected: np.ndarray) -> None:
    """Class: a value of steps before, and the change since, in the words of other tools, from rows and from steps."""
    np.testing.assert_allclose(logged("m", entry)[len(VALUES) - len(expected) :], expected, atol=1e-5, rtol=1e-4)


def test_values_of_earlier_steps_with_other_keys_beside_each_other() -> None:
    """Class: answers of one file that are pasted together, which must not name two metrics alike, nor read one wrongly.

    Of rows with labels, of some rows, of several reductions, of the run, of the window, and of a metric without a
    signal of its name.
    """
    config: dict[str, Any] = {
        "run": {"name": "pasted"},
        "signals": {"any": {"score": "completion", "topic": "completion text"}},
        "metrics": {
            "reward": "p95(score)",
            "d": {"expr": "reward - prev(reward)"},
            "several": {"expr": "score - prev(score)", "reduce": ["mean", {"high": "max"}], "by": "topic"},
            "some": {"expr": "delta(score)", "reduce": "max", "where": "score < 50"},
            "all": {"expr": "score - score[-1]", "over": "run"},
            "steps": {"expr": "score - prev(score)", "over": "step"},
        },
    }
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan(config)
    metrics: dict[str, Any] = config["metrics"]
    for problem in caught.value.problems:
        del metrics[str(problem.path[1])]
        pasted = yaml.safe_load(re.sub("^metrics: |: how .*", "", str(problem.fix)))
        assert metrics.keys().isdisjoint(pasted.keys() - {"score_mean", "score_mean_before"})
        metrics |= pasted
    scores = np.random.default_rng(1).uniform(0, 100, size=(6, 4)).astype(np.float32)
    sink = MemorySink()
    with declog.start(config, sinks=[sink]) as log:
        for step, rows in enumerate(scores):
            with log.step(step):
                log.observe(score=rows, topic=["a", "b", "a", "b"])
    some = np.array([rows[rows < 50].max(initial=-1) for rows in scores])
    means = np.array([scores[: step + 1].mean() for step in range(6)])
    expected = {
        "d": np.quantile(scores, 0.95, axis=1), "several/mean/a": scores[:, ::2].mean(1), "all": means,
        "several/high/b": scores[:, 1::2].max(1), "some": some, "steps": scores.mean(1),
    }  # fmt: skip
    assert some.min() > 0
    for name, values in expected.items():
        logged = [sink.scalars[step].get(name) for step in range(6)]
        np.testing.assert_allclose(logged[1:], np.diff(values), rtol=1e-3, err_msg=name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "call", "bins"),
    [
        ("length", "histogram(length, edges=[0, 8, 16, 20, 32])", [0, 8, 16, 20, 32]),
        ("score", "histogram(score, bins=[0, 0.5, 0.75, 1])", [0, 0.5, 0.75, 1]),
        ("length", "histogram(length, bins=[0, 8, 16, 24, 32])", [0, 8, 16, 24, 32]),
        ("length", "np.histogram(length, 4, (0, 32))", [0, 8, 16, 24, 32]),
        ("length", "hist(length, 4, 0, 32)", [0, 8, 16, 24, 32]),
        ("score", "histogram(score, bins=4, min=0, max=1)", [0, 0.25, 0.5, 0.75, 1]),
        ("score", "histogram(score, 10, 0, 1)", np.linspace(0, 1, 11)),
        ("score", "torch.histc(score, bins=5, min=0, max=1)", np.linspace(0, 1, 6)),
    ],
)
def test_a_histogram_with_its_edges_counts_as_numpy_does(name: str, call: str, bins: Sequence[float]) -> None:
    """Class: an answer that leaves out where the bins are; of whole numbers, which lie at edges, and of others.

    Bins as wide as each other are a histogram's, others counts by bucket.
    """
    random = np.random.default_rng(0)
    data = {"length": random.integers(0, 33, 300), "score": random.random(300)}
    config: dict[str, Any] = {
        "run": {"name": "pasted"}, "signals": {"any": {"length": "completion int", "score": "completion"}},
        "metrics": {"h": call, "other": "mean(length)"},
    }  # fmt: skip
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan(config)
    fix = str(caught.value.problems[0].fix)
    counts = re.fullmatch(r"metrics: (\{.+\}): so many in each part; the first and the last have all.+", fix)
    config["metrics"] |= yaml.safe_load(counts[1]) if counts else {"h": yaml.safe_load(fix)}
    sink = MemorySink()
    with declog.start(config, sinks=[sink]) as log, log.step(0):
        log.observe(**data)
    expected = np.histogram(data[name], np.asarray(bins))[0].tolist()
    ((_, records),) = sink.events
    assert (counts is None) == np.allclose(np.diff(bins, 2), 0)
    if counts is None:
        (record,) = records.histograms
        assert list(record.counts) == expected and list(record.edges) == pytest.approx([*bins])
        return
    logged = {key.removeprefix("h/"): value for key, value in sink.scalars[0].items() if key.startswith("h/")}
    uppers = {label: float(re.findall(r"[\d.]+", label)[-1]) + (">" in label or "+" in label) for label in logged}
    assert [logged[label] for label in sorted(logged, key=uppers.__getitem__)] == expected


def of_last(function: str) -> np.ndarray:
    return np.asarray(pd.Series(VALUES, dtype=float).rolling(50, min_periods=1).agg(function))


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"formula": "grad_norm / median(grad_norm)"}, VALUES / of_last("median")),
        ({"formula": "grad_norm - avg(grad_norm)"}, VALUES - of_last("mean")),
        ({"formula": "std(grad_norm)"}, of_last("std")),
        ({"formula": "grad_norm - max(grad_norm)"}, VALUES - of_last("mean") - 2.33 * of_last("std")),
    ],
)
def test_the_usual_value_is_that_of_the_last_steps(entry: object, expected: np.ndarray) -> None:
    """Class: a reduction of one number per step is one of earlier steps, and no second name for the number itself."""
    np.testing.assert_allclose(logged("m", entry), expected, atol=2e-3)


def test_a_count_is_one_of_rows() -> None:
    """Class: a reduction of rows in a formula is a metric of them, also of a metric of one's own."""
    for call, expected in [("count(reward)", 2), ("count(high)", 1), ("sum(high)", 1)]:
        metrics = {**CONFIG["metrics"], "high": {"expr": "reward", "where": "reward > mean(reward, over=completion)"}}  # type: ignore[dict-item]
        config = {**CONFIG, "axes": {"group": {"size": 2}}, "metrics": {**metrics, "n": {"formula": f"{call} / 1"}}}
        with pytest.raises(declog.ConfigError) as caught:
            declog.plan(config)
        config["metrics"] = {**metrics, **yaml.safe_load(str(caught.value.problems[0].fix))["metrics"]}
        sink = MemorySink()
        with declog.start(config, sinks=[sink]) as log, log.step(0):
            log.observe(reward=np.array([0.0, 1.0]), grad_norm=1.0)
        assert sink.scalars[0]["n"] == expected


@pytest.mark.parametrize(
    ("keys", "reads"),
    [
        ("where: reward == 0, reduce: p50", np.median),
        ("where: loss_mask and reward == 0", np.mean),
    ],
)
def test_a_condition_of_the_rollout_on_tokens(keys: str, reads: Callable[[np.ndarray], Any], tmp_path: Path) -> None:
    """Class: a signal of the rollout is observed in the update by another name, which stands for it and no more."""
    text = f"signals: {{update: {{loss_mask: token bool}}}}\nmetrics: {{m: {{expr: entropy, {keys}}}}}\n"
    (problem,) = problems_of(text, tmp_path, "defaults: [grpo, _self_]\n")
    declared = re.search(r"signals: \{update: \{(.+?)\}\}, with `(.+)` in place of `(.+)`", str(problem.fix))
    assert declared is not None
    text = text.replace("loss_mask: token bool", f"loss_mask: token bool, {declared[1]}").replace(
        declared[3], declared[2]
    )
    assert problems_of(text, tmp_path, "defaults: [grpo, _self_]\n") == []
    sink, mask = MemorySink(), np.ones((4, 3), bool)
    entropy, rewards = np.arange(12.0).reshape(4, 3) ** 2, np.array([0, 1, 0, 1])
    config = declog.compose("mine", config_dir=tmp_path)
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(reward=rewards, length=[3] * 4, row_id=range(4))
        log.observe(entropy=entropy, completion_mask=mask, loss_mask=mask, reward_of_update=rewards, row_id=range(4))
    assert sink.scalars[0]["m"] == pytest.approx(reads(entropy[rewards == 0]), rel=0.02)


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        ("empty: mean(len(completion) == 0)", None),
        ("weight: max(length)", None),
        ("where: reward > 0", "`where` is a metric of its own here"),
        ("v: {expr: reward, over: step, combine: var}", "metrics: {v: {every: 10}}"),
        ("v: {expr: reward, over: step, combine: var, every: 4}", None),
        ("v: {expr: reward, over: run_step, combine: var}", None),
        ("v: {expr: loss, over: batch, combine: var}", None),
        ("v: sum(entropy * completion_mask)", None),
        ("v: sum(2)", "`v` counts steps or calls"),
    ],
)
def test_notes_are_of_what_is_hardly_meant(
    keys: str, note: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A metric with a key's name is no lost key where it is reduced; a variance of one step has no value."""
    problems_of(f"metrics:\n  chars: mean(len(completion))\n  {keys}\n", tmp_path)
    assert main(["check", str(tmp_path / "declog" / "mine.yaml")]) == 0
    printed = re.sub(r"\s+", " ", capsys.readouterr().out + capsys.readouterr().err)
    assert ("note:" not in printed) if note is None else note in printed
