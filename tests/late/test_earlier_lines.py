"""A metric that an earlier ``declog add`` wrote is a metric for the next one, as a metric of the config is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import declog
from declog.cli import main
from declog.late import ask, write
from declog.late import live as live_module
from declog.late.live import hand_over

CONFIG: dict[str, Any] = {
    "run": {"name": "earlier", "late": True},
    "signals": {"any": {"length": "completion int", "source": "completion text"}},
    "metrics": {"mean_by_x": {"expr": "length", "by": "source"}},
    "sinks": ["jsonl"],
}
EARLIER = ["by_x: {expr: length, by: source, reduce: max}", "q: {expr: length, reduce: [p50, p90]}"]
LENGTHS = np.array([[4, 9, 16, 25], [1, 5, 70, 8], [3, 30, 2, 12]])


def train(log: declog.Recorder, steps: range) -> None:
    """A step is a row of ``LENGTHS``."""
    for step in steps:
        with log.step(step):
            log.observe(length=LENGTHS[step], source=["a", "b", "a", "b"])


def test_formulas_over_earlier_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Labels, quantiles and formulas of earlier lines; a name near to another metric's reads its own."""
    run = tmp_path / "run"
    with declog.start(CONFIG, output_dir=run) as log:
        train(log, range(3))
    for line in (
        *EARLIER,
        "b: {formula: \"label(by_x, 'b')\"}",
        "wide: {formula: q.p90 - q.p50}",
        "c: {formula: b - wide}",
    ):
        assert main(["add", str(run), line]) == 0, capsys.readouterr().err
    most = LENGTHS[:, [1, 3]].max(axis=1)
    wide = np.percentile(LENGTHS, 90, axis=1) - np.percentile(LENGTHS, 50, axis=1)
    read = declog.read(run)
    np.testing.assert_allclose(read["b"].values, most)
    np.testing.assert_allclose(read["c"].values, most - wide)
    assert main(["add", str(run), "d: {formula: by_z}"]) == 2
    assert "by_x" in capsys.readouterr().err.splitlines()[-1]


def test_a_running_job_and_a_branch_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job goes on with a formula over an earlier line that it was not asked to go on with, and so does a branch."""
    monkeypatch.setattr(live_module, "LOOK_S", 0.0)
    run = tmp_path / "run"
    with declog.start(CONFIG, output_dir=run) as log:
        train(log, range(1))
        log.written()
        write(run, ask(run, {"by_x": "{expr: length, by: source, reduce: max}"}))
        late = ask(run, {"b": "{formula: \"label(by_x, 'b')\"}"})
        write(run, late)
        hand_over(run, late, 0.0)
        train(log, range(1, 2))
        state = log.state_dict()
    with declog.start(CONFIG, output_dir=tmp_path / "branch", resume=state) as log:
        train(log, range(2, 3))
    for folder in (run, tmp_path / "branch"):
        values = declog.read(folder)["b"].values
        np.testing.assert_allclose(values, LENGTHS[: len(values), [1, 3]].max(axis=1))
    assert len(values) == 3
