"""Forks of a run's process: whatever they call and however they end, none hangs, and the run's files are whole."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from tests import forks
from tests.runtime.forking import STEPS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run that forked, and what was printed."""
    folder = tmp_path_factory.mktemp("forks") / "run"
    done = forks.run(["-m", "tests.runtime.forking", folder, "1"], cwd=folder.parent, whole=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder, done.stdout + done.stderr


def test_no_child_hangs_and_each_says_once_that_it_logs_nothing(run: tuple[Path, str]) -> None:
    """They were forked while other threads were inside the recorder; the last one only left its parent's blocks."""
    forks = STEPS
    assert f"codes {[0] * (forks + 1)}" in run[1]
    assert run[1].count("is a fork of the run's: what is observed here is not logged") == forks


def test_files_have_what_the_parent_observed_once(run: tuple[Path, str]) -> None:
    """Nothing of a child's, nothing that a child's end would have written a second time."""
    lines = [json.loads(line) for line in (run[0] / "jsonl" / "scalars.jsonl").read_text().splitlines()]
    found = [
        (line["step"], line["mode"], {name: value for name, value in line["scalars"].items() if "x/" in name})
        for line in lines
        if any("x/" in name for name in line["scalars"])
    ]
    assert found == [(step, "train", {"x/sum": 3.0, "x/count": 2}) for step in range(STEPS)] + [
        (STEPS - 1, "eval", {"eval/x/sum": 5.0, "eval/x/count": 1})
    ]
    assert not any("child" in name for line in lines for name in line["scalars"])
    table = pd.read_parquet(run[0] / "parquet" / "tables" / "t")
    assert sorted(table["text"]) == sorted([f"{step}.{row}" for step in range(STEPS) for row in (0, 1)] + ["eval"])
