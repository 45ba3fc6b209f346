"""Runs that are interrupted and resumed: what is logged is what an uninterrupted run logs, once."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import declog
from declog.errors import UsageError
from declog.records import Records
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.log_events import PART
from declog.runtime.recording.recorder import Recorder
from declog.testing import FakeComm, MemorySink, run_ranks
from tests.running import profile

STEPS = 40
CONFIG = profile(
    {},
    {
        "reward": "mean(reward)",
        "p95": "p95(reward)",
        "best": {"expr": "reward", "reduce": "max", "every": 12},
        "slow_p05": {"expr": "reward", "reduce": "p05", "every": 36},
        "loss_change": {"expr": "loss - prev(loss, 0.0)", "reduce": "sum"},
        "weighted": {"expr": "mean(logprobs, over=token) * reward", "reduce": "mean"},
        "tokens": {"expr": "logprobs", "reduce": "count", "over": "run"},
        "spread": {"expr": "reward", "reduce": "std", "over": "run"},
        "best_step": {"expr": "reward", "over": "run_step", "combine": "max"},
        "latest": {"expr": "loss", "reduce": "last", "over": "run"},
        "smooth": {"expr": "logprobs", "combine": "ema(0.9)"},
        "smooth_by": {"expr": "reward", "by": "ids > 3", "over": "batch", "combine": "ema(0.5)"},
        "smooth_of": {"formula": "p95 - reward", "combine": "ema(0.75)"},
        "rolling": {"expr": "logprobs", "combine": "rolling(10)"},
        "rolling_by": {"expr": "reward", "by": "ids > 3", "over": "batch", "combine": "rolling(7)"},
        "rolling_of": {"formula": "p95 - reward", "combine": "rolling(3)"},
    },
    signals={
        "rollout": {"reward": "completion", "ids": "completion int", "text": "completion text"},
        "update": {"ids": "completion int", "logprobs": "token", "mask": "token bool", "loss": "step"},
    },
    every=4,
    axes={"completion": {"ids": "ids"}, "token": {"mask": "mask"}},
    modes={"train": {}, "eval": {"prefix": "eval_", "every": "end"}},
    filters={"best": {"key": "reward", "top": 2, "within": "window"}},
    schemas={"s": {"step": {"type": "int", "expr": "step"}, "text": {"type": "text"}, "reward": {"type": "float"}}},
    tables={"best": {"schema": "s", "filter": "best", "every": 12}},
    alerts={"high": {"when": "reward > -10", "for": 3, "text": "high"}},
)


def observe(log: Recorder, step: int, rank: int, world_size: int) -> None:
    """What one rank's step observes: a share of what all would."""
    random = torch.Generator().manual_seed(1000 * step)
    rewards, logprobs = torch.randn(8, generator=random), torch.randn(8, 5, generator=random)
    mask = torch.rand(8, 5, generator=random) > 0.3
    share = slice(rank * 8 // world_size, (rank + 1) * 8 // world_size)
    ids = torch.arange(8)[share]
    log.observe(reward=rewards[share], ids=ids, text=[f"{step}.{int(row)}" for row in ids])
    log.observe(logprobs=logprobs[share], mask=mask[share], ids=ids, loss=float(step % 7))


def work(log: Recorder, steps: Sequence[int], rank: int, world_size: int) -> None:
    for step in steps:
        with log.step(step):
            observe(log, step, rank, world_size)
        if step % 10 == 9:
            with log.mode("eval"):
                observe(log, step + 5000, rank, world_size)


def test_a_number_between_two_steps_is_in_the_state(tmp_path: Path) -> None:
    """`log_metric` may come from any thread: it does not make the next checkpoint fail, and is not lost with it."""
    with declog.start(CONFIG, sinks=[MemorySink()], output_dir=tmp_path / "first") as log:
        work(log, range(2), 0, 1)
        log.log_metric("between", 7.0)
        state = saved(log.state_dict())
    sink = MemorySink()
    with declog.start(CONFIG, sinks=[sink], output_dir=tmp_path / "second", resume=state) as log:
        work(log, range(2, 4), 0, 1)
    assert sink.scalars[3]["between"] == 7.0


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """A state as it comes back from a file, read without pickled code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def plain(phases: Sequence[tuple[int, Records]]) -> list[Any]:
    """Records without their wall time."""
    return [
        (step, records.mode, {item.name: item.value for item in records.scalars}, records.tables, records.alerts)
        for step, records in phases
    ]


def interrupted(config: dict[str, Any], at: int, world_size: int, folder: Path) -> list[Any]:
    """What a run that is closed where it was saved, and one that resumes it, leave in a sink."""
    sinks = [MemorySink() for _ in range(world_size)]

    def first(comm: Comm) -> dict[str, Any]:
        with declog.start(config, sinks=[sinks[comm.rank]], output_dir=folder, comm=comm) as log:
            work(log, range(at), comm.rank, comm.world_size)
            return log.state_dict()

    def second(comm: Comm) -> None:
        state = saved(states[comm.rank])
        with declog.start(config, sinks=[sinks[comm.rank]], output_dir=folder, comm=comm, resume=state) as log:
            work(log, range(at, STEPS), comm.rank, comm.world_size)

    states = run_ranks(world_size, first)
    run_ranks(world_size, second)
    return plain(sinks[0].events)


def uninterrupted(config: dict[str, Any], world_size: int, folder: Path) -> list[Any]:
    """What one run logs."""

    def body(comm: FakeComm) -> MemorySink:
        sink = MemorySink()
        with declog.start(config, sinks=[sink], output_dir=folder, comm=comm) as log:
            work(log, range(STEPS), comm.rank, comm.world_size)
        return sink

    return plain(run_ranks(world_size, body)[0].events)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_resumed_run_logs_what_one_run_logs(world_size: int, tmp_path: Path) -> None:
    """Wherever it was saved: at a log event, inside windows of any length."""
    expected = uninterrupted(CONFIG, world_size, tmp_path)
    assert [step for step, mode, *_ in expected if mode == "train"] == [*range(3, 40, 4), 39]  # the last: slow ones
    for at in (4, 6, 13, 30):
        assert interrupted(CONFIG, at, world_size, tmp_path) == expected, f"saved after {at} steps"


def test_a_long_window_goes_to_rank_0_in_parts(tmp_path: Path) -> None:
    """And is logged as ever, also where the run is interrupted after a part."""
    metrics = {name: metric for name, metric in CONFIG["metrics"].items() if isinstance(metric, str)}
    config = {**CONFIG, "every": 24, "metrics": metrics, "tables": {"best": {"schema": "s", "filter": "best"}}}
    assert PART < 24
    expected = uninterrupted(config, 2, tmp_path)
    assert [step for step, mode, *_ in expected if mode == "train"] == [23, 39]
    for at in (PART, PART + 3):
        assert interrupted(config, at, 2, tmp_path) == expected, f"saved after {at} steps"


@pytest.mark.parametrize(("at", "end"), [(14, 25), (14, 14), (12, 12), (6, 7), (30, 30), (10, 10)])
def test_files_have_no_step_twice_and_none_is_missing(at: int, end: int, tmp_path: Path) -> None:
    """Rows of steps after the checkpoint are dropped once, and parts of windows, which the close at its place logged.

    What was before stays, at that step too: metrics of shorter windows, and evaluations.
    """
    config = {**CONFIG, "sinks": ["jsonl", "parquet"]}
    with declog.start(config, output_dir=tmp_path / "whole") as log:
        work(log, range(STEPS), 0, 1)
    with declog.start(config, output_dir=tmp_path / "parts") as log:
        work(log, range(at), 0, 1)
        state = log.state_dict()
        work(log, range(at, end), 0, 1)  # logged, and lost with the process
    with declog.start(config, resume=saved(state)) as log:
        assert log.output_dir == tmp_path / "parts"
        work(log, range(at, STEPS), 0, 1)

    import pandas

    columns = ["step", "mode", "name", "value"]
    whole, parts = (
        pandas.read_parquet(tmp_path / name / "parquet" / "scalars")[columns]
        .sort_values(columns)
        .reset_index(drop=True)
        for name in ("whole", "parts")
    )
    assert len(parts) > 40
    pandas.testing.assert_frame_equal(parts, whole)
    lines = [
        [
            {key: value for key, value in json.loads(line).items() if key not in ("time", "run_id")}
            for path in sorted((tmp_path / name / "jsonl").rglob("*.jsonl"))
            for line in path.read_text().splitlines()
        ]
        for name in ("whole", "parts")
    ]
    assert [line for line in lines[1] if "step" in line] == [line for line in lines[0] if "step" in line]


def test_a_state_of_another_profile_continues_its_totals(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rows of windows cannot be continued under another plan: they are dropped, and that is reported."""
    signals = {"length": {"axis": "completion", "type": "int"}}
    before = profile(signals, {"tokens": {"expr": "length", "reduce": "sum", "over": "run"}}, every=2)
    after = profile(signals, {**before["metrics"], "longest": "max(length)"}, every=2)
    with declog.start(before, output_dir=tmp_path) as log:
        for step in range(3):
            with log.step(step):
                log.observe(length=[1, 2])
        state = log.state_dict()
    sink = MemorySink()
    with declog.start(after, sinks=[sink], output_dir=tmp_path, resume=state) as log, log.step(3):
        log.observe(length=[10])
    assert sink.scalars == {3: {"tokens": 16, "longest": 10}}
    assert "of another config: totals are continued" in caplog.text


def test_a_state_is_taken_between_steps_and_loaded_before_them(tmp_path: Path) -> None:
    """Misuse is reported where it happens, with what to do."""
    config = profile({"loss": {"axis": "step"}}, {"loss": "mean(loss)"})
    with declog.start(config, output_dir=tmp_path) as log:
        with log.step(0):
            log.observe(loss=1.0)
            with pytest.raises(UsageError, match="inside a step"):
                log.state_dict()
        state = log.state_dict()
        with pytest.raises(UsageError, match="after the first step"):
            log.load_state_dict(state)
    with declog.start(config, output_dir=tmp_path) as log:
        with pytest.raises(UsageError, match="no state of a recorder"):
            log.load_state_dict({"version": 1})
        with pytest.raises(UsageError, match="True is a word of other loggers"):
            declog.start(config, output_dir=tmp_path / "new", resume=True)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="given the state of rank 3"):
            log.load_state_dict({**state, "rank": 3})


def test_a_path_is_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a folder, and of the file of a state: each answer names lines that work."""
    monkeypatch.chdir(tmp_path)
    config = profile({"loss": {"axis": "step"}}, {"loss": "mean(loss)"}, sinks=["jsonl"])
    with declog.start(config, output_dir="run") as log:
        with log.step(0):
            log.observe(loss=1.0)
        for folder in ("run", Path("run"), "missing"):
            with pytest.raises(UsageError, match=r"is read, by declog\.read, and not resumed") as caught:
                declog.start(config, output_dir="new", resume=folder)  # type: ignore[arg-type]
            assert 'torch.save(log.state_dict(), "state.pt") between' in str(caught.value.fix)
            assert str(caught.value.fix).endswith('resume=torch.load("state.pt")')
        torch.save(log.state_dict(), "state.pt")
    with pytest.raises(UsageError, match=r"fix: resume=torch\.load\('state\.pt'\)"):
        declog.start(config, resume="state.pt")  # type: ignore[arg-type]
    with declog.start(config, resume=torch.load("state.pt")) as log, log.step(1):
        log.observe(loss=2.0)
    assert declog.read("run")["loss"].values.tolist() == [1.0, 2.0]


def test_what_is_computed_otherwise_begins_anew_over_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No total, average or latest value is of two expressions; what stays goes on, whatever folds are called."""
    signals = {
        "mask": {"axis": "token", "type": "bool"}, "kl": {"axis": "token"}, "reward": {"axis": "completion"},
        "source": {"axis": "completion", "type": "text"},
    }  # fmt: skip
    total = {"reduce": "sum", "over": "run"}
    same = {
        "same": {"expr": "reward", **total},
        "same_tokens": {"expr": "2 * kl", **total},
        "same_by": {"expr": "sum(kl, over=token)", "by": "source", "where": "reward > 0", **total},
        "same_ema": {"formula": "part / same_tokens", "combine": "ema(0.5)"},
    }
    before = {
        "part": {"expr": "reward", "reduce": "sum", "log": False},
        **same,
        "total": {"expr": "reward", **total},
        "tokens": {"expr": "kl", **total},
        "where": {"expr": "reward", **total},
        "reduced": {"expr": "reward", **total},
        "folded": {"expr": "sum(kl, over=token)", **total},
        "smooth": {"expr": "reward", "combine": "ema(0.5)"},
        "rolling": {"expr": "reward", "combine": "rolling(5)"},
        "formula": {"formula": "hidden", "combine": "ema(0.5)"},
        "hidden": {"expr": "reward", "log": False},
    }
    after = {
        "new": "mean(5 * kl)",
        "part": before["part"],
        **same,
        "total": {"expr": "10 * reward", **total},
        "tokens": {"expr": "10 * kl", **total},
        "where": {"expr": "reward", "where": "reward < 2", **total},
        "reduced": {"expr": "reward", "over": "run"},
        "folded": {"expr": "max(kl, over=token)", **total},
        "smooth": {"expr": "reward", "combine": "ema(0.9)"},
        "rolling": {"expr": "10 * reward", "combine": "rolling(5)"},
        "formula": {"formula": "hidden", "combine": "ema(0.5)"},
        "hidden": {"expr": "10 * reward", "log": False},
    }
    rows = {"mask": torch.ones(2, 2, dtype=torch.bool), "kl": torch.ones(2, 2), "source": ["a", "b"]}

    with declog.start(profile(signals, before) | {"axes": {"token": {"mask": "mask"}}}, output_dir=tmp_path) as log:
        with log.step(0):
            log.observe(**rows, reward=[1.0, 3.0])
        state = log.state_dict()
    sink = MemorySink()
    with (
        declog.start(
            profile(signals, after) | {"axes": {"token": {"mask": "mask"}}},
            sinks=[sink],
            output_dir=tmp_path,
            resume=state,
        ) as log,
        log.step(1),
    ):
        log.observe(**rows, reward=[1.0, 3.0])

    values = {name: value for name, value in sink.scalars[1].items() if name != "new"}
    assert values == {
        "same": 8.0, "same_tokens": 16.0, "same_by/a": 4.0, "same_by/b": 4.0, "same_ema": (4 / 8 + 4 / 16) / 2,
        "total": 40.0, "tokens": 40.0, "where": 1.0, "reduced": 2.0, "folded": 2.0, "smooth": 2.0, "rolling": 20.0,
        "formula": 20.0,
    }  # fmt: skip
    assert "otherwise now: folded, formula, reduced, rolling, smooth, tokens, total, where" in caplog.text
