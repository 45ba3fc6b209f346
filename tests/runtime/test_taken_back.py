"""A run that goes back (`log.rewind(k)`) reads as one that was resumed behind step k: what came behind k is not there.

Class: everything that is read of a run, of every kind of record, mode, sink and rank; live and when it is over.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import declog
from declog.integrations.open_step import OpenStep
from declog.late import ask
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink, run_ranks
from tests.running import Tracker, pairs

CONFIG: dict[str, Any] = {
    "run": {"name": "back"},
    "signals": {"rollout": {"x": "completion", "who": "completion text"}, "control": {"beta": "step"}},
    "modes": {"eval": {"prefix": "eval/"}},
    "metrics": {
        "x": "mean(x)", "who": {"expr": "x", "by": "who"}, "drift": "mean(beta - prev(beta, 0))",
        "spread": {"expr": "x", "reduce": "histogram(bins=3)"},
        "smooth": {"expr": "x", "combine": "rolling(3)"},
    },
    "schemas": {"all": {"x": "float", "who": "text"}},
    "tables": {
        "worst": {"rows": "completion", "schema": "all", "filter": "low"},
        "rows": {"rows": "completion", "schema": "all"},
    },
    "filters": {"low": {"key": "x", "bottom": 1}},
    "alerts": {"high": {"when": "x > 50"}},
}  # fmt: skip
STEPS, BACK = range(6), 2
AGAIN = [*range(BACK + 1), *range(10 + BACK, 15)]  # what each step observes in the end


def train(log: Recorder, values: Sequence[int], first: int, *, rank: int = 0) -> None:
    """Steps from ``first`` on, with an evaluation after each second one."""
    for step, value in enumerate(values, first):
        with log.step(step):
            log.observe(x=[40.0 * value, 1.0 * rank], who=["late" if value > 9 else "early", "all"], beta=float(value))
        if step % 2:
            with log.mode("eval"):
                log.observe(x=[1.0 * value], who=["all"])


def seen(folder: Path) -> dict[str, Any]:
    """Everything that is read of a run, without times and ids."""
    run = declog.read(folder)
    left_out = {"time", "run_id"}
    rows = {
        "scalars": run.scalars, "histograms": run.histograms, "alerts": run.alerts, **run.tables, "wide": run.wide(),
        **{f"wide {mode}": run.wide(mode) for mode in run.modes},
    }  # fmt: skip
    series = {name: pairs(run[name]) for name in run}
    return {"series": series} | {
        name: [{key: value for key, value in row.items() if key not in left_out} for row in frame]
        for name, frame in rows.items()
    }


@pytest.mark.parametrize("sinks", [["parquet"], ["jsonl"], ["parquet", "jsonl"]], ids="+".join)
@pytest.mark.parametrize("ranks", [1, 2])
def test_it_reads_as_a_run_that_was_resumed(ranks: int, sinks: list[str], tmp_path: Path) -> None:
    """Also of tables that each rank writes itself, and while the run goes on."""
    config = {**CONFIG, "sinks": sinks}
    states: dict[int, Any] = {}

    def back(comm: Comm) -> None:
        with declog.start(config, output_dir=tmp_path / "back", comm=comm) as log:
            train(log, STEPS, 0, rank=comm.rank)
            log.rewind(BACK)
            train(log, AGAIN[BACK + 1 :], BACK + 1, rank=comm.rank)
            if not comm.rank and ranks == 1:
                assert log.written()
                assert seen(tmp_path / "back")["series"]["x"][-1][0] == len(AGAIN) - 1

    def until(comm: Comm) -> None:
        with declog.start(config, output_dir=tmp_path / "resumed", comm=comm) as log:
            train(log, STEPS[: BACK + 1], 0, rank=comm.rank)
            states[comm.rank] = log.state_dict()
            train(log, STEPS[BACK + 1 :], BACK + 1, rank=comm.rank)

    def resumed(comm: Comm) -> None:
        with declog.start(config, output_dir=tmp_path / "resumed", comm=comm, resume=states[comm.rank]) as log:
            train(log, AGAIN[BACK + 1 :], BACK + 1, rank=comm.rank)

    for rank in (back, until, resumed):
        run_ranks(ranks, rank)
    assert seen(tmp_path / "back") == seen(tmp_path / "resumed")
    assert [step for step, _ in seen(tmp_path / "back")["series"]["x"]] == [*range(len(AGAIN))]


WINDOWS: dict[str, Any] = {
    "run": {"name": "windows"},
    "every": 3,
    "signals": {"any": {"x": "completion"}},
    "metrics": {
        "x": "sum(x)", "slow": {"expr": "x", "reduce": "sum", "every": 9},
        "all": {"expr": "x", "reduce": "sum", "over": "run"},
    },
    "schemas": {"all": {"x": "float"}},
    "tables": {"rows": {"rows": "completion", "schema": "all", "every": 9, "filter": "some"}},
    "filters": {"some": {"key": "x", "top": 99}},
}  # fmt: skip


@pytest.mark.parametrize("limit", [10**6, 1])
def test_steps_that_are_not_taken_back_stay(limit: int, tmp_path: Path) -> None:
    """Class: windows that are open at the step behind which the run continues end there, and what is behind does not.

    Rows that were folded into states are not parted: they are where the first of them is.
    """
    sink, tracker = MemorySink(), Tracker()
    config = {**WINDOWS, "run": {"window_bytes": limit}, "sinks": ["parquet"]}
    with declog.start(config, sinks=[sink, tracker], output_dir=tmp_path) as log:
        for step in range(5):
            with log.step(step):
                log.observe(x=[10.0**step])
        log.rewind(3)
        with log.step(4):
            log.observe(x=[0.5])
    run, folded = declog.read(tmp_path), 10_000.0 * (limit == 1)
    assert pairs(run["x"]) == [(2, 111.0), (3, 1_000.0 + folded), (4, 0.5)]
    assert pairs(run["slow"]) == [(3, 1_111.0 + folded), (4, 0.5)]
    assert pairs(run["all"])[-1] == (4, 11_111.5)
    assert [row["x"] for row in run.tables["rows"]] == [1.0, 10.0, 100.0, 1_000.0, *[10_000.0] * bool(folded), 0.5]
    assert {step: values["x"] for step, values in sink.scalars.items()} == dict(pairs(run["x"]))
    values = [(step, item.value) for step, records in tracker.events for item in records.scalars if item.name == "x"]
    assert values == pairs(run["x"])[:2] + [(4, 10_000.0)] * (limit > 1) + [(4, 0.5)]


def test_a_trainer_that_trains_twice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Class: what begins again by itself: nothing of the first training is lost, also for what is asked late."""
    with declog.start({**WINDOWS, "every": 1, "sinks": ["jsonl"]}, output_dir=tmp_path) as log:
        for value, steps in ((1.0, 5), (7.0, 2)):
            open_step = OpenStep(log, 1)
            for step in range(steps):
                open_step.begin(SimpleNamespace(global_step=step, max_steps=steps))
                log.observe(x=[value])
            open_step.end()
    both = [(step + 1, 1.0) for step in range(5)] + [(1, 7.0), (2, 7.0)]
    lines = (tmp_path / "jsonl/scalars.jsonl").read_text().splitlines()
    assert [(row["step"], row["scalars"]["x"]) for row in map(json.loads, lines) if "x" in row["scalars"]] == both
    assert pairs(declog.read(tmp_path)["x"]) == sorted(dict(both).items())  # the latest of each step
    late = ask(tmp_path, {"late": "max(x)"})
    assert [(step, item.value) for step, records in late.events for item in records.scalars] == both
    assert len([record for record in caplog.records if "trains again" in record.getMessage()]) == 1
    assert declog.read(tmp_path)["all"].values[1] == 19.0  # totals have all that was observed


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("before", [3, 7, 40])
def test_windows_begin_anew(
    before: int, ranks: int, cut: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Class: counts of steps, of the config's windows, longer ones and a shorter first one, and since a signal came.

    Behind its beginning a run that goes back logs as a new one; ``cut``: also where it is resumed before its next step.
    """
    plain = {name: metric for name, metric in WINDOWS["metrics"].items() if name != "all"}
    config = {**WINDOWS, "metrics": plain, "modes": {"train": {"first": 1}}}
    states: dict[int, Any] = {}

    def steps(log: Recorder, count: int, comm: Comm) -> None:
        for step in range(count):
            with log.step(step):
                log.observe(x=[10.0 * step + comm.rank])

    def logged(name: str, *, back: bool) -> list[Any]:
        sink = MemorySink()

        def process(comm: Comm, *, again: bool) -> None:
            sinks = [sink] if comm.rank == 0 else []
            with declog.start(
                config, sinks=sinks, output_dir=tmp_path / name, comm=comm, resume=states.pop(comm.rank, None)
            ) as log:
                if back and not again:
                    steps(log, before, comm)
                    log.rewind(-1)
                    assert log.last_step == -1
                if again or not (back and cut):
                    steps(log, 29, comm)
                else:
                    states[comm.rank] = log.state_dict()

        run_ranks(ranks, lambda comm: process(comm, again=False))
        if back and cut:
            run_ranks(ranks, lambda comm: process(comm, again=True))
        return [(step, records.scalars, records.tables) for step, records in sink.events if records.scalars]

    assert logged("back", back=True) == logged("new", back=False)
    assert "stopped" not in caplog.text and "inactive" not in caplog.text
