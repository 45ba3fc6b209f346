"""Runs of wandb and trackio that the program opened by hand, or accelerate for it: joined, and nothing is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import forks

pytestmark = pytest.mark.slow  # wandb and trackio, started four times


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What both trackers hold of several runs of one process."""
    folder = tmp_path_factory.mktemp("open")
    places = {name: str(folder) for name in ("HOME", "WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR")}
    env = {**places, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "TRACKIO_DIR": str(folder / "trackio")}
    done = forks.run(["-m", "tests.sinks.open_runs", folder], env=forks.environment(env), cwd=folder)
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads((folder / "kept.json").read_text())


def test_one_run_of_each(kept: Any) -> None:
    """declog opened none of its own; a run that is disabled is none."""
    assert [run["project"] for run in kept["wandb"]] == ["twice", "trackers", "finished"]
    assert {project: len(runs) for project, runs in kept["trackio"].items()} == {
        "twice": 1, "trackers": 1, "finished": 1,
    }  # fmt: skip


@pytest.mark.parametrize(("project", "bases"), [("twice", (0, 100)), ("trackers", (0,))])
def test_both_have_everything(project: str, bases: tuple[int, ...], kept: Any) -> None:
    """The program's own numbers and declog's, of one recorder or of two, and all rows of the tables."""
    (run,) = (run for run in kept["wandb"] if run["project"] == project)
    values = [float(base + step) for base in bases for step in range(3)]
    scores = [[step, base + step + 0.5] for base in bases for step in range(3)]
    rows = [score for value in values for score in (value, value + 1)]
    assert ([value for _, value in run["mine"]], run["score"], run["rows"]) == (values, scores, rows)
    (logs,) = kept["trackio"][project]
    assert [row["mine"] for row in logs if "mine" in row] == values
    ours = [row for row in logs if "score" in row]
    assert [[row["declog/step"], row["score"]] for row in ours] == scores
    assert [each["score"] for row in ours for each in row["declog/t"]["_value"]] == rows


def test_nothing_failed_but_what_came_too_late(kept: Any) -> None:
    """In a run that the program had finished before: each log event is counted, and reported with what to do."""
    (late,) = kept["failures"].pop("finished")
    assert late == "[DL602] sink `wandb`: log events could not be written"
    assert set(map(tuple, kept["failures"].values())) == {()}
