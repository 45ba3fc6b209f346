"""Runs of wandb and trackio that a program opened by hand, one after the other: what both hold at the end.

``python -m tests.sinks.open_runs FOLDER``; the environment says that wandb is offline, and where both keep their files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trackio
import wandb
from accelerate import Accelerator
from trackio.sqlite_storage import SQLiteStorage

import declog
from tests.running import profile
from tests.sinks.wandb_reader import read_runs

PROFILE = profile(
    {"score": {"axis": "completion"}}, {"score": "mean(score)"}, run={"strict": False},
    schemas={"s": {"score": {"type": "float"}}}, tables={"t": {"schema": "s"}}, sinks=["wandb", "trackio"],
)  # fmt: skip


def steps(log: declog.Recorder, base: float, mine: Callable[[float], object] = lambda value: None) -> None:
    """Three steps of two rows each, and a number of the program's own after each."""
    for step in range(3):
        with log.step(step):
            log.observe(score=[base + step, base + step + 1])
        mine(base + step)


def opened(project: str) -> Callable[[float], object]:
    """Open a run of each by hand; what logs a number of the program's own there."""
    run, other = wandb.init(project=project), trackio.init(project=project, embed=False)
    return lambda value: (run.log({"mine": value}), other.log({"mine": value}))


def finish() -> None:
    trackio.finish()  # type: ignore[no-untyped-call]
    wandb.finish()


def main(folder: Path) -> None:
    failures: dict[str, Any] = {}

    mine = opened("twice")
    for base in (0.0, 100.0):
        with declog.start(PROFILE, base_dir=folder / "runs") as log:
            steps(log, base, mine)
        failures[f"twice {base}"] = list(log.failures)
    finish()

    accelerator = Accelerator(cpu=True, log_with=["wandb", "trackio"])
    accelerator.init_trackers("trackers", init_kwargs={"trackio": {"embed": False}})
    with declog.start(PROFILE, base_dir=folder / "runs") as log:
        steps(log, 0.0, lambda value: accelerator.log({"mine": value}))
    failures["trackers"] = list(log.failures)
    accelerator.end_training()

    mine = opened("finished")
    log = declog.start(PROFILE, base_dir=folder / "runs")
    finish()
    steps(log, 0.0)
    log.close()
    failures["finished"] = list(log.failures)

    wandb.init(project="disabled", mode="disabled")
    with declog.start({**PROFILE, "sinks": ["wandb"]}, base_dir=folder / "runs") as log:
        steps(log, 0.0)
    failures["disabled"] = list(log.failures)
    wandb.finish()

    runs = [
        {
            "project": run.project, "mine": run.series("mine"), "score": run.series("score", "declog/step"),
            "rows": [row["score"] for row in run.table("declog/t")],
        }
        for run in read_runs(folder)
    ]  # fmt: skip
    boards = {
        project: [SQLiteStorage.get_logs(project, run["name"]) for run in SQLiteStorage.get_run_records(project)]
        for project in SQLiteStorage.get_projects()
    }
    (folder / "kept.json").write_text(json.dumps({"failures": failures, "wandb": runs, "trackio": boards}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
