"""Loops of accelerate's, with gradient accumulation, on one process and on two: ``DeclogTracker``, and the example."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests import forks
from tests.faults import jobs
from tests.sinks.wandb_reader import read_runs

TRACKIO = """
import json
import trackio
from trackio.sqlite_storage import SQLiteStorage

(run,) = trackio.Api().runs("accelerate_arithmetic")
print(json.dumps(SQLiteStorage.get_logs("accelerate_arithmetic", run.name, run_id=run.id)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_loop(ranks: int, tmp_path: Path) -> None:
    """Windows of two steps: the worst of all processes' errors, means of other numbers, and the config of the run."""
    ended = jobs.run(tmp_path, ranks, ["-m", "tests.integrations.accelerating", tmp_path])
    assert ended.codes == (0,) * ranks, "\n".join(text[-3000:] for text in ended.outputs)
    kept = json.loads((tmp_path / "kept.json").read_text())
    steps = kept["steps"]
    assert [len(errors) for errors in steps] == [8] * 4
    assert sorted(kept["scalars"]) == ["1", "3"]
    for last, values in kept["scalars"].items():
        window = steps[int(last) - 1 : int(last) + 1]
        assert values == {
            "worst": pytest.approx(max(map(max, window))),
            "loss": pytest.approx(sum(map(sum, window)) / 16),
            "time/forward": int(last) - 0.5,
        }
    assert kept["config"] == {"lr": 0.1, "nested": {"name": "x"}}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_example(ranks: int, tmp_path: Path) -> None:
    """The Accelerator's three trackers have what the loop logs and what declog does, which pandas finds in all rows."""
    overrides = ["steps=4", "prompts=3", "trackers=[tensorboard,wandb,trackio]", "declog.sinks=[parquet,accelerate]"]
    overrides += ["declog.sink_options.accelerate.profile=full", "hydra.run.dir=run"]
    overrides += ["~declog.tables.samples", "+declog.tables.all={rows: completion, schema: samples}"]
    places = {name: str(tmp_path) for name in ("HOME", "WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR")}
    env = {**places, "WANDB_MODE": "offline", "WANDB_CONSOLE": "off", "TRACKIO_DIR": str(tmp_path / "trackio")}
    ended = jobs.run(tmp_path, ranks, [forks.ROOT / "examples" / "accelerate_grpo.py", *overrides], env=env)
    assert ended.codes == (0,) * ranks, "\n".join(text[-3000:] for text in ended.outputs)

    expected = worked_out(tmp_path / "run" / "parquet", ranks)
    (event_file,) = (tmp_path / "run" / "accelerate_arithmetic").glob("events*")
    board = EventAccumulator(str(event_file))
    board.Reload()
    (run,) = read_runs(tmp_path)
    logs = json.loads(forks.python(TRACKIO, env=env).splitlines()[-1])
    for name, values in expected.items():
        assert [(each.step, each.value) for each in board.Scalars(name)] == close(values), name
        assert run.series(name, "_step" if name.startswith("by_hand") else "declog/step") == close(values), name
        assert [log[name] for log in logs if name in log] == [value for _, value in close(values)], name
    assert [len(log["declog/all"]["_value"]) for log in logs if "declog/all" in log] == [24 * ranks] * 4
    assert len(run.table("declog/all")) == 4 * 24 * ranks
    assert (run.finished, run.config["learning_rate"]) == (True, 1e-3)


def worked_out(folder: Path, ranks: int) -> Mapping[str, Any]:
    """By name what each step has, from the rows of all processes, one after the other: groups of eight on end."""
    rows = pd.read_parquet(folder / "tables" / "all")
    rows["group"] = rows.groupby("step").cumcount() // 8
    assert rows.groupby("step").size().tolist() == [24 * ranks] * 4
    steps = rows.groupby("step")
    spread = rows.groupby(["step", "group"]).reward.std()
    found = {
        "reward": steps.reward.mean(),
        "by_hand/reward": steps.reward.mean(),
        "reward_std": steps.reward.std(),
        "frac_reward_zero_std": (spread == 0).groupby("step").mean(),
        "completions/mean_length": steps.length.mean(),
        "rewards/format/mean": steps["reward/format"].mean(),
    }
    return {name: list(values.items()) for name, values in found.items()}


def close(values: list[tuple[int, float]]) -> list[tuple[int, Any]]:
    return [(step, pytest.approx(value, rel=1e-5, abs=1e-7)) for step, value in values]
