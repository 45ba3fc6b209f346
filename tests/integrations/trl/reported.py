"""A run of TRL's that reports to wandb and trackio itself, with declog's sinks for both: what each tracker has of it.

``python -m tests.integrations.trl.reported MODEL FOLDER``; the environment says that wandb is offline, and where both
keep their files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import declog
from declog.testing import MemorySink
from tests.integrations.trl import cases
from tests.integrations.trl.cases import Case

CASE = Case(
    args={
        "report_to": ["wandb", "trackio"], "log_completions": True, "logging_steps": 1, "max_steps": 4, "eval_steps": 2,
        "project": "theirs", "run_name": "mine",
    },
)  # fmt: skip
OVERRIDES = [
    "declog.sinks=[wandb,trackio]", "+declog.metrics.reward_p95='p95(reward)'",
    "declog.tables.completions.filter=unique_prompts",
    "+declog.filters.long={key: length, top: 2, within: window}",
    "+declog.tables.long={rows: completion, schema: trl, filter: long, to: {trackio: true}}",
]  # fmt: skip


def main(model: Path, folder: Path) -> None:
    """Train, and leave what was reported, and what both trackers hold."""
    import wandb
    from trackio.sqlite_storage import SQLiteStorage
    from transformers import TrainerCallback

    from tests.sinks.wandb_reader import read_runs

    reported: list[Any] = []

    class Tracker(TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any) -> None:
            reported.append((state.global_step, {name: value for name, value in logs.items() if value is not None}))

    trainer = cases.trainer_of(CASE, model, folder / "run", callbacks=[Tracker()])
    sink = MemorySink()
    with declog.attach(trainer, "trl_grpo", OVERRIDES, sinks=[sink]) as log:
        trainer.train()
    wandb.finish()
    runs = read_runs(folder)
    kept = {
        "reported": reported,
        "events": cases.events(sink),
        "tables": [[step, name, table.data] for name in ("completions", "long") for step, table in sink.tables(name)],
        "failures": list(log.failures),
        "wandb": [
            {"rows": run.rows, "name": run.name, "metrics": run.metrics, "finished": run.finished} for run in runs
        ],
        "wandb table": runs[0].table("declog/completions"),
        "trackio": {
            run["name"]: SQLiteStorage.get_logs(project, run["name"])
            for project in SQLiteStorage.get_projects()
            for run in SQLiteStorage.get_run_records(project)
        },
    }
    (folder / "kept.json").write_text(json.dumps(kept))


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
