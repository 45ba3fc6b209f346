"""Trackers that the trainer has open: declog's sinks join them, and no record of either is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import forks


@pytest.fixture(scope="module")
def kept(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One run, in a process of its own; what both trackers hold of it."""
    folder = tmp_path_factory.mktemp("reported")
    homes = {
        "WANDB_DIR": folder,
        "WANDB_CACHE_DIR": folder / "cache",
        "TRACKIO_DIR": folder / "trackio",
        "HOME": folder,
    }
    env = {name: str(value) for name, value in homes.items()} | {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    command: list[str | Path] = ["-m", "tests.integrations.trl.reported", model, folder]
    done = forks.run(command, env=forks.environment({**forks.OFFLINE, **env}), cwd=folder, imports=forks.TRAINER)
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads((folder / "kept.json").read_text())


def missing(records: list[tuple[int, dict[str, float]]], rows: list[dict[str, Any]], step: str) -> list[Any]:
    """Values of which no row of their step has an equal one."""
    return [
        (at, name, value)
        for at, values in records
        for name, value in values.items()
        if not any(row.get(step) == at and row.get(name) == pytest.approx(value, abs=1e-9) for row in rows)
    ]


def theirs(records: list[Any]) -> list[tuple[int, dict[str, float]]]:
    """What transformers makes of names for its trackers."""
    once = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos")
    return [
        (step, {f"eval/{name[5:]}" if name.startswith("eval_") else f"train/{name}": value
                for name, value in values.items() if name not in once})
        for step, values in records
    ]  # fmt: skip


def test_one_run_of_each_tracker(kept: Any) -> None:
    """The one that TRL opened, under its name; declog opened none, and nothing failed."""
    (run,) = kept["wandb"]
    assert (run["name"], run["finished"], list(kept["trackio"]), kept["failures"]) == ("mine", True, ["mine"], [])


@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_every_number_is_there(tracker: str, kept: Any) -> None:
    """TRL's at its steps, and declog's at theirs, of train and eval."""
    rows = kept["wandb"][0]["rows"] if tracker == "wandb" else kept["trackio"]["mine"]
    ours = [(step, values) for step, _, values in kept["events"]]
    assert len(kept["reported"]) == len(ours) == 7  # four steps, two evaluations, the end
    assert missing(theirs(kept["reported"]), rows, "train/global_step") == []
    assert missing(ours, rows, "declog/step") == []


def test_wandb_draws_each_over_its_own_steps(kept: Any) -> None:
    """Names of declog's have declog's step metric, all others transformers'."""
    metrics = kept["wandb"][0]["metrics"]
    assert (metrics["reward"], metrics["eval_reward"], metrics["*"]) == (
        "declog/step",
        "declog/step",
        "train/global_step",
    )


def test_tables_are_there(kept: Any) -> None:
    """TRL's own, and declog's with TRL's columns, unique prompts and the column of `log_extra`."""
    ours = [(step, data) for step, name, data in kept["tables"] if name == "completions"]
    rows = kept["wandb table"]
    assert [row["prompt"] for row in rows] == [json.dumps(prompt) for _, data in ours for prompt in data["prompt"]]
    assert {"step", "prompt", "completion", "length", "size", "advantages", "why"} == set(rows[0])
    for _, data in ours:
        assert len(set(data["prompt"])) == len(data["prompt"])
    wandb_keys = [key for row in kept["wandb"][0]["rows"] for key in row]
    trackio_keys = [key for row in kept["trackio"]["mine"] for key in row]
    counts = {
        key: (wandb_keys.count(key), trackio_keys.count(key))
        for key in ("completions", "declog/completions", "declog/long")
    }
    assert counts == {"completions": (7, 7), "declog/completions": (4, 4), "declog/long": (0, 4)}
