"""Folders and states of other versions: of an earlier one they go on, of a later one they say what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import declog
from declog.cli import main
from declog.errors import UsageError
from declog.testing import MemorySink
from tests.data.runs.earlier import PROFILE, observe

EARLIER = Path(__file__).parents[1] / "data" / "runs" / "1f9550e"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    shutil.copytree(EARLIER / "run", tmp_path / "run")
    return tmp_path / "run"


def test_an_earlier_folder_is_read_and_reported(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every row of both sinks, and what it says of itself."""
    for sink in (None, "jsonl", "parquet"):
        read = declog.read(run, sink=sink)
        found = {(row["step"], row["mode"]): row["value"] for row in read.scalars if row["name"].endswith("max")}
        assert found[3, "train"] == 3.0 and found[7, "train"] == 7.0 and found[3, "eval"] == 3.0
        assert len(read.histograms) == 3 and len(read.alerts) == 1 and len(read.tables["samples"]) > 8
        assert (read.problems, read.state, read.name) == ([], "finished", "earlier")
        assert read.declog["every"] == 4 and {table["id"] for table in read.plan["tables"]} == {"samples"}
    assert main(["report", str(run)]) == main(["samples", str(run)]) == 0
    capsys.readouterr()


@pytest.mark.parametrize("how", ["resume", "load", "branch"])
def test_an_earlier_state_goes_on(how: str, run: Path, tmp_path: Path) -> None:
    """Totals and steps go on, in the run's own files with each step once, or in a branch of it."""
    state = torch.load(EARLIER / "state.pt", weights_only=True)
    config = {**PROFILE, "run": {"append": how == "load"}}
    folder = tmp_path / "branch" if how == "branch" else run
    sink = MemorySink()
    resume = None if how == "load" else state
    with declog.start(config, output_dir=folder, resume=resume, sinks=[sink]) as log:
        if how == "load":
            log.load_state_dict(state)
        assert log.last_step == 5
        for step in range(6, 12):
            with log.step(step):
                observe(log, step)
    assert log.failures == {}
    assert {step: values["best"] for step, values in sink.scalars.items()} == {7: 7.0, 11: 11.0}
    assert sink.scalars[11]["reward/mean"] == pytest.approx(0.75)
    read = declog.read(folder)
    steps = [row["step"] for row in read.scalars if row["name"] == "reward/max" and row["mode"] == "train"]
    assert steps == ([7, 11] if how == "branch" else [3, 7, 11])
    assert read.problems == []
    assert (read.id == state["run_id"]) == (how != "branch")
    if how == "branch":
        assert read.info["parent"]["run_id"] == state["run_id"]


def test_an_earlier_capture_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that two ranks captured give the values that they logged, bit by bit, in both modes."""
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(PROFILE), encoding="utf-8")
    captured = EARLIER / "captured"
    command = ["preview", str(captured / "capture"), str(tmp_path / "mine.yaml"), "--steps", "0:", "--format", "json"]
    assert main(command) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["capture"]["world_size"], shown["failures"]) == (2, {})
    logged = [json.loads(text) for text in (captured / "scalars.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(event["step"], event["mode"], event["scalars"]) for event in shown["sinks"]["jsonl"]] == [
        (event["step"], event["mode"], event["scalars"]) for event in logged
    ]
    assert len(logged) == 3


def test_a_later_state_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """It says which declog saved it; also one that has a format of another kind."""
    profile: dict[str, Any] = {"signals": {"any": {"x": {"axis": "completion"}}}, "metrics": {"x": "mean(x)"}}
    with declog.start(profile, sinks=[MemorySink()], output_dir=tmp_path / "a") as log, log.step(0):
        log.observe(x=[1.0])
    with declog.start(profile, sinks=[MemorySink()], output_dir=tmp_path / "b") as log:
        with log.step(0):
            log.observe(x=[1.0])
        state = log.state_dict()
    assert state["version"] == 4 and state["declog"]
    for version in (5, 99, "new", None):
        later = {**state, "version": version, "declog": "9.9"}
        with pytest.raises(UsageError, match=rf"format {version}(.|\n)*fix: resume with declog 9\.9") as error:
            declog.start(profile, sinks=[MemorySink()], output_dir=tmp_path / "c", resume=later)
        assert "this declog reads 3 to 4" in str(error.value)
