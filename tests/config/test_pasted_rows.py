"""Edits about rows and their parts are pasted into the file, and what they log is compared with numpy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import declog
from declog.errors import Problem
from declog.testing import FakeComm, MemorySink, run_ranks
from tests.config.test_pasted_answers import problems_of

HEADER = "defaults: [grpo, _self_]\naxes: {group: {size: 4}}\n"


def edit_of(problem: Problem) -> dict[str, Any]:
    """The edit of a fix, without the words behind it."""
    fix = str(problem.fix)
    end = next(at for at in range(len(fix), 0, -1) if fix[at - 1] == "}" and _reads(fix[:at]))
    return dict(yaml.safe_load(fix[:end]))


def _reads(text: str) -> bool:
    try:
        return isinstance(yaml.safe_load(text), dict)
    except yaml.YAMLError:
        return False


@pytest.mark.parametrize("words", ["[completion, turn] float", '"[completion, turn]"', "completion x turn"])
def test_a_signal_of_turns(words: str, tmp_path: Path) -> None:
    """Class: a signal of completions and turns has a row for each turn, however its axes are written."""
    (problem,) = problems_of(f"signals:\n  rollout:\n    turn_reward: {words}\n", tmp_path, HEADER)
    metrics = {"m": "mean(turn_reward)", "first": {"expr": "turn_reward", "where": "turn_index == 0"}}
    turn, reward, sink = np.array([0, 1, 2, 0, 0, 1]), np.array([1.0, 0.5, 0.0, 2.0, 0.25, 4.0]), MemorySink()
    config = {**yaml.safe_load(HEADER), **edit_of(problem), "metrics": metrics}
    (tmp_path / "declog" / "mine.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with declog.start(declog.compose("mine", config_dir=tmp_path), sinks=[sink]) as log, log.step(0):
        log.observe(reward=[0.0, 1.0, 1.0, 0.0])
        log.observe(turn_reward=reward, turn_index=turn)
    assert sink.scalars[0]["m"] == pytest.approx(reward.mean())
    assert sink.scalars[0]["first"] == pytest.approx(reward[turn == 0].mean())


REWARD, LENGTH = np.array([0.0, 1.0, 1.0, 0.25]), np.array([3, 5, 2, 9])


def logged(config: dict[str, Any], folder: Path, every: int = 1, **numbers: float) -> dict[str, float]:
    """The numbers of a run of ``every`` steps of the same rows."""
    sink = MemorySink()
    (folder / "declog" / "mine.yaml").write_text(yaml.safe_dump({**config, "every": every}), encoding="utf-8")
    with declog.start(declog.compose("mine", config_dir=folder), sinks=[sink]) as log:
        for step in range(every):
            with log.step(step):
                log.observe(reward=REWARD, length=LENGTH, **numbers)
    return dict(sink.scalars[every - 1])


@pytest.mark.parametrize("id", ["parts", "rewards", "length"])  # the last two are metrics of the preset
@pytest.mark.parametrize("exprs", ["[reward, length]", '"reward, length"'])
def test_several_expressions(id: str, exprs: str, tmp_path: Path) -> None:
    """Class: reductions of one expression of which there are several are a metric for each; nothing else is wrong."""
    (problem,) = problems_of(f"metrics: {{{id}: {{expr: {exprs}, reduce: [mean, std]}}}}\n", tmp_path, HEADER)
    values = logged({**yaml.safe_load(HEADER), **edit_of(problem)}, tmp_path)
    for name, rows in {"reward": REWARD, "length": LENGTH}.items():
        assert values[f"{id}_{name}/mean"] == pytest.approx(rows.mean())
        assert values[f"{id}_{name}/std"] == pytest.approx(rows.std(ddof=1))


@pytest.mark.parametrize("every", [1, 5])
def test_a_sum_over_a_signal(every: int, tmp_path: Path) -> None:
    """Class: beside a sum, the signal of a formula is summed, too: a rate is that of a log event of any steps."""
    text = (
        "signals: {rollout: {gen_seconds: step float}}\n"
        "metrics: {tokens: {expr: sum(length), log: false}, rate: {formula: tokens / gen_seconds}}\n"
    )
    (problem,) = problems_of(text, tmp_path, HEADER)
    config = {**yaml.safe_load(HEADER + text)}
    fix = str(problem.fix).removeprefix("declare a metric: ")
    config["metrics"] |= yaml.safe_load(fix)["metrics"]
    values = logged(config, tmp_path, every, gen_seconds=2.0)
    assert values["rate"] == pytest.approx(LENGTH.sum() / 2.0)


def test_bools_by_max_and_min(tmp_path: Path) -> None:
    """Class: the greatest and the least of bools are whether any and whether all are true; one answer has both."""
    text = "metrics: {m: 'mean(max(reward > 0.3, over=completion) and not min(length > 2, over=completion))'}\n"
    (problem,) = problems_of(text, tmp_path, HEADER)
    (fix,) = re.findall("write `(.*)`", str(problem.fix))
    values = logged({**yaml.safe_load(HEADER), "metrics": {"m": fix}}, tmp_path)
    assert values["m"] == float((REWARD > 0.3).max() and not (LENGTH > 2).min())


@pytest.mark.parametrize(
    ("text", "values", "edges", "right"),
    [
        ("bucket(length, [3, 5])", LENGTH, [3, 5], False),
        ("bucket(reward, [0.25, 1])", REWARD, [0.25, 1], False),
        ("np.digitize(length, [3, 5])", LENGTH, [3, 5], False),
        ("np.digitize(reward, [0, 1])", REWARD, [0, 1], False),
        ("np.digitize(reward, [0, 1], right=True)", REWARD, [0, 1], True),
    ],
)
def test_edges_count_as_numpy_has_them(
    text: str, values: np.ndarray, edges: list[float], right: bool, tmp_path: Path
) -> None:
    """Class: the labels of the edit are those of `numpy.digitize`, of ints and of floats."""
    (problem,) = problems_of(f'metrics: {{m: {{expr: reward, reduce: count, by: "{text}"}}}}\n', tmp_path, HEADER)
    by = re.findall("`([^`]+)`", str(problem.fix))[-1]
    config = {**yaml.safe_load(HEADER), "metrics": {"m": {"expr": "reward", "reduce": "count", "by": by}}}
    counts = [value for name, value in sorted(logged(config, tmp_path).items()) if name.startswith("m/")]
    assert counts == np.unique(np.digitize(values, edges, right=right), return_counts=True)[1].tolist()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_number_of_ranks(ranks: int, tmp_path: Path) -> None:
    """Class: a name for the number of ranks is defined by a metric that is right on any number of them."""
    text = "metrics: {tokens: sum(length), t: {formula: tokens / world_size}}\n"
    (problem,) = problems_of(text, tmp_path, HEADER)
    config = yaml.safe_load(HEADER + text)
    config["metrics"] |= yaml.safe_load(str(problem.fix).removeprefix("define it: "))["metrics"]
    (tmp_path / "declog" / "mine.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    composed, sink = declog.compose("mine", config_dir=tmp_path), MemorySink()

    def rank(comm: FakeComm) -> None:
        with declog.start(composed, sinks=[] if comm.rank else [sink], comm=comm) as log, log.step(0):
            log.observe(reward=REWARD + comm.rank, length=LENGTH + comm.rank)

    run_ranks(ranks, rank)
    assert sink.scalars[0]["world_size"] == ranks
    assert sink.scalars[0]["t"] == pytest.approx(np.mean([(LENGTH + rank).sum() for rank in range(ranks)]))


def rewards_of_table(keys: dict[str, Any], folder: Path) -> list[float]:
    """The rewards in a table of these keys, of eight rows."""
    config = {**yaml.safe_load(HEADER), "tables": {"t": {"columns": ["reward"], **keys}}}
    (folder / "declog" / "mine.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    sink = MemorySink()
    with declog.start(declog.compose("mine", config_dir=folder), sinks=[sink]) as log, log.step(0):
        log.observe(reward=[0.5, 0.0, 1.0, 0.75, 2.0, 4.0, 0.25, 3.0])
    ((_, table),) = sink.tables("t")
    return sorted(table.data["reward"])


@pytest.mark.parametrize(("choice", "chosen"), [("bottom: 10%", [0.0, 0.25]), ("top: 0.1", [1.0, 4.0])])
def test_a_share_of_the_rows(choice: str, chosen: list[float], tmp_path: Path) -> None:
    """Class: of groups of four a tenth is one row of each, the least or the greatest; no table is empty."""
    text = f"tables: {{t: {{columns: [reward], filter: {{key: reward, {choice}}}}}}}\n"
    (problem,) = problems_of(text, tmp_path, HEADER)
    rows = yaml.safe_load(str(problem.fix).partition("at least: ")[2])
    assert rewards_of_table(rows, tmp_path) == chosen


@pytest.mark.parametrize(
    ("keys", "chosen"),
    [
        ("sort_values: reward, ascending: true, head: 2", [0.0, 0.25]),
        ("sort_values: {by: reward, ascending: false}, head: 2", [3.0, 4.0]),
        ("by: reward, nlargest: 2", [3.0, 4.0]),
        ("order_by: reward desc, limit: 3", [2.0, 3.0, 4.0]),
        ("sort_key: reward, reverse: true, k: 1", [4.0]),
        ("sort_values: reward, ascending: true, tail: 2", [3.0, 4.0]),
        ("query: reward > 0.3, sort: {reward: asc}, n: 2", [0.5, 0.75]),
    ],
)
def test_keys_that_choose_rows_together(keys: str, chosen: list[float], tmp_path: Path) -> None:
    """Class: an order, its direction and a count of other tools are one filter, which every one of the keys names."""
    text = f"tables: {{t: {{columns: [reward], {keys}}}}}\n"
    first, *others = problems_of(text, tmp_path, HEADER)
    assert {str(problem.fix) for problem in others} == {f"drop it: `{first.fix}` is for both"}
    assert rewards_of_table(yaml.safe_load(str(first.fix)), tmp_path) == chosen


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        ("expr: reward, summary: max", [0.5, 2.0, 2.0, 3.0]),
        ("expr: reward, summary: best, goal: minimize", [0.5, 0.5, 0.25, 0.25]),
        ("expr: reward, running_max: true", [0.5, 2.0, 2.0, 3.0]),
        ("expr: max(reward), cummax: true", [1.0, 3.0, 3.0, 5.0]),
        ("expr: reward, define_metric: mean", [0.5, 1.25, 2.75 / 3, 5.75 / 4]),
        ("formula: 2 * reward, summary: max", [1.0, 4.0, 4.0, 6.0]),
    ],
)
def test_a_summary_of_the_run(keys: str, values: list[float], tmp_path: Path) -> None:
    """Class: the key of a tracker, or a library's function that is switched on, is a value of all steps so far."""
    problem = problems_of(f"metrics: {{m: {{{keys}}}}}\n", tmp_path, HEADER)[0]
    config = {**yaml.safe_load(HEADER), "metrics": edit_of(problem)}
    (tmp_path / "declog" / "mine.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    sink = MemorySink()
    with declog.start(declog.compose("mine", config_dir=tmp_path), sinks=[sink]) as log:
        for step, reward in enumerate([0.5, 2.0, 0.25, 3.0]):
            with log.step(step):
                spread = 0.5 if step == 0 else 1.0 if step == 1 else 0.25 if step == 2 else 2.0
                log.observe(reward=[reward - spread, reward + spread, reward, reward])
    assert [sink.scalars[step]["m"] for step in range(4)] == pytest.approx(values)


def test_an_entry_that_is_a_key_of_metrics(tmp_path: Path) -> None:
    """Class: `KEY: {METRIC: value}` among the metrics means `METRIC: {KEY: value}`, also of other tools' keys."""
    (problem,) = problems_of("metrics: {rename: {reward: score, length: words}}\n", tmp_path, HEADER)
    values = logged({**yaml.safe_load(HEADER), **edit_of(problem)}, tmp_path)
    assert values["score"] == pytest.approx(REWARD.mean())
    assert values["words/max"] == LENGTH.max()
    assert "reward" not in values


@pytest.mark.parametrize(
    ("keys", "rows", "percent"),
    [
        ("count(reward), by: long, share: true", np.ones(4), 1),
        ("reward, reduce: sum, by: long, normalize: true", REWARD, 1),
        ("sum(length), by: long, as: percent", LENGTH, 100),
    ],
)
def test_shares_of_labels(keys: str, rows: np.ndarray, percent: int, tmp_path: Path) -> None:
    """Class: a key that asks for shares beside `by` is the share of each label in the rows, or in their sum."""
    header = HEADER + "derived: {long: length > 4}\n"
    text = f"metrics: {{s: {{expr: {keys}}}}}\n"
    (problem,) = problems_of(text, tmp_path, header)
    values = logged({**yaml.safe_load(header), **edit_of(problem)}, tmp_path)
    for label in ("false", "true"):
        of_label = rows[(LENGTH > 4) == (label == "true")]
        assert values[f"s/{label}"] == pytest.approx(percent * of_label.sum() / rows.sum())


@pytest.mark.parametrize(
    ("keys", "number"),
    [
        ("expr: sum(length), divide: 12", LENGTH.sum() / 12),
        ("expr: max(length - 1), multiply: 0.5", 0.5 * (LENGTH.max() - 1)),
        ("expr: reward, reduce: max, subtract: 2", REWARD.max() - 2),
        ("formula: reward + 1, scale: 3", 3 * (REWARD.mean() + 1)),
    ],
)
def test_arithmetic_by_keys(keys: str, number: float, tmp_path: Path) -> None:
    """Class: a key that divides, scales or shifts a metric computes with the metric's own expression or formula."""
    text = f"metrics: {{s: {{{keys}}}}}\n"
    (problem,) = problems_of(text, tmp_path, HEADER)
    edit = yaml.safe_load(str(problem.fix))
    entry = {key: value for key, value in yaml.safe_load(text)["metrics"]["s"].items() if key in ("reduce",)}
    metrics = edit.get("metrics", {"s": {**entry, **edit}})
    assert logged({**yaml.safe_load(HEADER), "metrics": metrics}, tmp_path)["s"] == pytest.approx(number)


OF_GROUP = REWARD.reshape(2, 2)


@pytest.mark.parametrize(
    ("entry", "number"),
    [
        (
            "mean(abs((reward - mean(reward)) / (std(reward) + 1e-4)))",
            (abs(OF_GROUP - OF_GROUP.mean(1, keepdims=True)) / (OF_GROUP.std(1, ddof=1, keepdims=True) + 1e-4)).mean(),
        ),
        ("mean(reward - min(reward))", (OF_GROUP - OF_GROUP.min(1, keepdims=True)).mean()),
        ("any(reward == 1)", (OF_GROUP == 1).any(1).mean()),
        (
            "{expr: length, where: reward >= max(reward) and reward > mean(reward)}",
            LENGTH[(OF_GROUP.max(1, keepdims=True) == OF_GROUP).ravel()].mean(),
        ),
    ],
)
def test_aggregates_beside_each_row(entry: str, number: float, tmp_path: Path) -> None:
    """Class: aggregates without `over` are of each group, all of them in one edit, in expressions and conditions."""
    header = HEADER.replace("4", "2")
    (problem,) = problems_of(f"metrics:\n  s: {entry}\n", tmp_path, header)
    text = re.findall(r"`([^`]+)`", str(problem.fix))[0]
    assert str(problem.fix) == f"write `{text}`, of each prompt's group; with over=step: of all rows of the step"
    text = yaml.safe_load(text)
    edited = {"expr": "length", "where": text} if "where" in entry else text
    assert logged({**yaml.safe_load(header), "metrics": {"s": edited}}, tmp_path)["s"] == pytest.approx(number)
