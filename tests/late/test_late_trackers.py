"""What is asked late goes into real trackers: wandb offline and trackio, read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.forks import python
from tests.sinks.test_trackio import READ
from tests.sinks.wandb_reader import read_runs

RUN = """
import json, os, sys
os.chdir(sys.argv[1])
import declog

config = {
    "run": {"project": "sums"}, "signals": {"any": {"reward": "completion", "source": "completion text"}},
    "metrics": {"reward": "mean", "attempts": {"expr": "reward", "by": "source", "reduce": "count"}},
    "sinks": ["jsonl", "wandb", "trackio"],
    "sink_options": {"wandb": {"mode": "offline", "project": "mine"}, "trackio": {"dir": "board", "prefix": "x/"}},
}
with declog.start(config, output_dir="run") as log:
    for step in range(0, 30, 10):
        with log.step(step):
            log.observe(reward=[float(step), 2.0], source=["math", "code"])

from declog.cli import main
for line in ("{expr: reward, by: source, reduce: max}", "{expr: reward, by: source}"):
    assert main(["add", "run", f"by_source: {line}", "--to", "wandb,trackio"]) == 0
"""
EXPECTED = {"by_source/math": [(0, 0.0), (10, 10.0), (20, 20.0)], "by_source/code": [(0, 2.0), (10, 2.0), (20, 2.0)]}


def test_trackers_get_a_run_of_its_own(tmp_path: Path) -> None:
    """At the run's steps, in its project, with its options; asked again, trackio has what was asked last."""
    home = {"HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf"), "TRACKIO_DIR": ""}
    lines = python(RUN + READ + 'print(json.dumps(runs("sums")))', str(tmp_path), env=home).splitlines()
    assert [line.split(" ", 1)[1] for line in lines if "a run of its own" in line] == [
        "a run of its own in wandb", "a run of its own in trackio",
    ] * 2  # fmt: skip
    own, late = sorted(
        json.loads(next(line for line in reversed(lines) if line.startswith("[{"))), key=lambda run: len(run["name"])
    )
    assert late["name"] == f"{own['name']} by_source"
    for name, points in EXPECTED.items():
        assert [(log["step"], log[f"x/{name}"]) for log in late["logs"]] == points
    assert all(f"x/{name}" not in log for log in own["logs"] for name in EXPECTED)
    first, *others = read_runs(tmp_path)
    assert {run.project for run in others} == {"mine"} and len(others) == 2
    assert {run.name for run in others} == {f"{first.name} by_source"}
    assert {name: others[-1].series(name) for name in EXPECTED} == EXPECTED


@pytest.mark.parametrize("to", ["wandbb", "jsonl,nothing"])
def test_a_sink_that_nobody_knows_is_refused(to: str, tmp_path: Path) -> None:
    """Before anything is computed or written, at its place in the words that were given."""
    script = RUN.partition("from declog.cli")[0].replace('["jsonl", "wandb", "trackio"]', '["jsonl"]')
    code = f"""
from declog.cli import main
print(main(["add", "run", "late: max(reward)", "--to", {to!r}]))
"""
    home = {"HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf")}
    assert python(script + code, str(tmp_path), env=home).splitlines()[-1] == "2"
    assert not (tmp_path / "run" / "late").exists()
