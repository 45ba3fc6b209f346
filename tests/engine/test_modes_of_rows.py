"""`mode` in an expression: metrics, tables and labels of evaluations alone, on any layout of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import declog
from declog.errors import ConfigError
from declog.late import ask
from declog.runtime.ranks.comm import Comm
from declog.testing import MemorySink, run_ranks

STEPS = 4
CONFIG: dict[str, Any] = {
    "every": 2, "modes": {"eval": {"prefix": "eval/"}},
    "signals": {
        "rollout": {"reward": "completion", "source": "completion text", "id": "completion int"},
        "update": {"kl": "token", "mask": "token bool", "id": "completion int"},
    },
    "axes": {"token": {"mask": "mask"}, "completion": {"ids": "id"}},
    "metrics": {
        "reward": "mean", "right": {"expr": "reward > 0.5", "where": "mode == 'eval'"},
        "trained": {"expr": "reward", "where": "mode in ('train', 'eval') and mode != 'eval'", "reduce": "sum"},
        "kl_of_right": {"expr": "kl", "where": "mode == 'eval' and reward > 0.5"},
        "named": {"expr": "reward", "where": "source == mode", "reduce": "count"},
        "median": {"expr": "reward", "by": "mode", "reduce": "p50"},
        "zero": {"expr": "reward", "where": "mode == 'eval'", "empty": 0}, "twice": {"formula": "2 * right"},
    },
    "tables": {"wrong": {
        "columns": ["reward"], "every": 2,
        "filter": {"key": "reward", "bottom": 1, "within": "window", "where": "mode == 'eval'"},
    }},
    "run": {"strict": True, "name": "modes"},
}  # fmt: skip


def observed(log: declog.Recorder, step: int, rank: int) -> None:
    """What a rank observes in a step: a batch of training, and one of an evaluation within it."""
    ids = [100 * rank + 10 * step, 100 * rank + 10 * step + 1]
    log.observe(reward=[0.25 * rank, 1.0], source=["train", "eval"], id=ids)
    log.observe(kl=[[1.0, 2.0], [3.0, 4.0]], mask=[[True, True], [True, False]], id=ids)
    with log.mode("eval"):
        log.observe(reward=[0.0, 0.75 + 0.125 * rank], source=["train", "eval"], id=ids)
        log.observe(kl=[[5.0, 6.0], [7.0, 8.0]], mask=[[True, True], [True, True]], id=ids)


def logged(folder: Path, ranks: int = 1, **run: Any) -> MemorySink:
    """A run on so many ranks."""
    config, sink = {**CONFIG, "run": {**CONFIG["run"], **run}}, MemorySink()

    def body(comm: Comm) -> None:
        sinks = [sink] if comm.rank == 0 else [MemorySink()]
        with declog.start(config, comm=comm, sinks=sinks, output_dir=folder) as log:
            for step in range(STEPS):
                with log.step(step):
                    observed(log, step, comm.rank)

    run_ranks(ranks, body)
    return sink


def values(sink: MemorySink, name: str) -> list[float]:
    """A metric's values, of all log events that have one."""
    return [item.value for _, records in sink.events for item in records.scalars if item.name == name]


@pytest.mark.parametrize("window_bytes", [1, 2**28])
@pytest.mark.parametrize("ranks", [1, 2])
def test_rows_of_one_mode(ranks: int, window_bytes: int, tmp_path: Path) -> None:
    """The condition holds for whole log events, also where windows are folded, texts stay with their rank, and rows of
    one phase are looked up in another."""
    sink = logged(tmp_path, ranks, window_bytes=window_bytes)
    trains, evals = STEPS // 2, STEPS
    assert values(sink, "right") == [] and values(sink, "eval/right") == [0.5] * evals
    assert values(sink, "eval/twice") == [1.0] * evals
    assert values(sink, "trained") == [2 * (1.0 if ranks == 1 else 2.25)] * trains
    assert values(sink, "eval/trained") == []
    assert values(sink, "kl_of_right") == [] and values(sink, "eval/kl_of_right") == [7.5] * evals
    assert values(sink, "named") == [2 * ranks] * trains and values(sink, "eval/named") == [ranks] * evals
    assert values(sink, "zero") == [0.0] * trains and values(sink, "eval/zero") == values(sink, "eval/reward")
    labels = {item.name for _, records in sink.events for item in records.scalars if item.metric == "median"}
    assert labels == {"median/train", "eval/median/eval"}
    tables = [(records.mode, table.rows) for _, records in sink.events for table in records.tables]
    assert {mode for mode, rows in tables if rows} == {"eval"}


@pytest.mark.parametrize("ranks", [1, 2])
def test_quantiles_of_tokens_of_some_batches(ranks: int, tmp_path: Path) -> None:
    """A sketch is of a whole batch: a condition on the mode, the step or a value per step chooses among batches."""
    metrics = {
        "evals": {"expr": "kl", "reduce": "p100", "where": "mode == 'eval'"},
        "late": {"expr": "kl", "reduce": "p100", "where": "step >= 2"},
        "plain": {"expr": "kl", "reduce": "p100"},
    }
    sink = MemorySink()

    def body(comm: Comm) -> None:
        sinks = [sink] if comm.rank == 0 else [MemorySink()]
        config = {**CONFIG, "every": STEPS, "metrics": metrics, "tables": {}}
        with declog.start(config, comm=comm, sinks=sinks, output_dir=tmp_path) as log:
            for step in range(STEPS):
                with log.step(step):
                    log.observe(kl=[[4.0 - step, 1.0]], mask=[[True, True]], id=[10 * step + comm.rank])
                    with log.mode("eval"):
                        log.observe(kl=[[7.0, 8.0 + step]], mask=[[True, True]], id=[10 * step + comm.rank])

    run_ranks(ranks, body)
    assert values(sink, "plain") == [4.0] and values(sink, "late") == [2.0] and values(sink, "evals") == []
    assert values(sink, "eval/evals") == [8.0, 9.0, 10.0, 11.0] and values(sink, "eval/late") == [10.0, 11.0]


def test_a_run_that_is_resumed_inside_a_window(tmp_path: Path) -> None:
    """The rows of an open window are of their mode after a checkpoint, too."""
    straight, first, second = logged(tmp_path / "straight"), MemorySink(), MemorySink()
    with declog.start(CONFIG, sinks=[first], output_dir=tmp_path / "parts") as log:
        with log.step(0):
            observed(log, 0, 0)
        state = log.state_dict()
    with declog.start(CONFIG, sinks=[second], output_dir=tmp_path / "parts", resume=state) as log:
        for step in range(1, STEPS):
            with log.step(step):
                observed(log, step, 0)
    for name in ("trained", "named", "zero", "kl_of_right"):
        assert values(second, name) == values(straight, name)


def test_asked_late(tmp_path: Path) -> None:
    """A metric of evaluations that was forgotten is what it would have been."""
    config = {**CONFIG, "sinks": ["jsonl"]}
    with declog.start(config, output_dir=tmp_path) as log:
        for step in range(STEPS):
            with log.step(step):
                observed(log, step, 0)
    late = ask(str(log.output_dir), {"late": "{expr: reward, where: mode == 'eval' and id < 20, reduce: max}"})
    found = [(records.mode, item.value) for _, records in late.events for item in records.scalars]
    assert found == [("eval", 0.75)] * 2


def test_a_signal_of_that_name_is_meant(tmp_path: Path) -> None:
    """A config that observes a `mode` of its own reads that."""
    config = {"signals": {"any": {"mode": "completion text", "x": "completion"}},
              "metrics": {"a": {"expr": "x", "where": "mode == 'mine'"}}}  # fmt: skip
    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(mode=["mine", "yours"], x=[1.0, 2.0])
    assert sink.scalars[0]["a"] == 1.0


REFUSED = {
    "a mode that the config does not have": ("mode == 'evl'", "there is no mode `evl`", "did you mean `eval`?"),
    "one in a list": ("mode in ('eval', 'test')", "there is no mode `test`", "modes: {test: {prefix: test/}}"),
    "no quotes": ("mode == eval", "`eval` is no signal, and a text stands in quotes", "mode == 'eval'"),
    "a word of trainers": ("is_eval and x > 1", "`is_eval` is no signal", "write `mode == 'eval' and x > 1`"),
}


@pytest.mark.parametrize(("condition", "message", "fix"), REFUSED.values(), ids=REFUSED.keys())
def test_conditions_that_are_refused(condition: str, message: str, fix: str) -> None:
    """Each with the edit."""
    config = {"modes": {"eval": {"prefix": "eval/"}}, "signals": {"any": {"x": "completion"}},
              "metrics": {"a": {"expr": "x", "where": condition}}}  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        declog.plan(config)
    (problem,) = caught.value.problems
    assert problem.message == message and fix in str(problem.fix)


@pytest.mark.parametrize(
    ("of_a", "of_b", "expr", "meets"),
    [
        ("mode == 'train'", "mode == 'eval'", "a - b", False),
        ("mode != 'eval'", "reward > 0 and 'eval' == mode", "2 * a / (1 + b)", False),
        ("mode in ('train', 'test')", "mode in ('eval',)", "a - b", False),
        ("mode == 'train' or mode == 'test'", "mode == 'eval'", "b if a > 0 else b", False),
        ("mode in ('train', 'eval')", "mode == 'eval'", "a - b", True),
        ("mode == 'train' or reward > 0", "mode == 'eval'", "a - b", True),
        ("not mode == 'eval'", "mode == 'eval'", "a if present(a) else b", True),
        ("mode == 'train'", "mode == 'eval'", "a if present(a) else b", True),
        ("mode == 'train'", "reward > 0", "a - b", True),
    ],
)
def test_values_of_different_modes_never_meet(of_a: str, of_b: str, expr: str, meets: bool, tmp_path: Path) -> None:
    """A formula whose metrics are never of one mode is refused; what is not refused has a value in a mode."""
    config = {
        **CONFIG, "every": 1, "modes": {"eval": {"prefix": "eval/"}, "test": {"prefix": "test/"}}, "tables": {},
        "metrics": {
            "a": {"expr": "reward", "where": of_a}, "b": {"expr": "reward", "where": of_b}, "gap": {"formula": expr},
        },
    }  # fmt: skip
    if not meets:
        with pytest.raises(ConfigError) as caught:
            declog.plan(config)
        (problem,) = caught.value.problems
        assert problem.path[:2] == ("metrics", "gap") and "values of different modes never" in problem.message
        return
    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        observed(log, 0, 1)
    assert {"gap", "eval/gap"} & {name for values in sink.scalars.values() for name in values}


def test_an_alert_that_compares_modes() -> None:
    """It never fires; one that holds for either of two modes does."""
    metrics = {name: {"expr": "reward", "where": f"mode == '{name}'"} for name in ("train", "eval")}
    total = {"tokens": {"expr": "reward", "reduce": "sum", "over": "run", "where": "mode == 'eval'"}}
    for when, fine in (
        ("train > 1 and eval < 1", False), ("train - eval > 0.1", False), ("train > 1 or eval < 1", True),
        ("train > tokens", False),
    ):  # fmt: skip
        config = {**CONFIG, "metrics": metrics | total, "tables": {}, "alerts": {"gap": {"when": when}}}
        if fine:
            assert declog.plan(config).alerts
        else:
            with pytest.raises(ConfigError, match="never meet"):
                declog.plan(config)
