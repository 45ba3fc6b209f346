"""A late question about rows that nobody can match: one answer, and no log line that says something else."""

from __future__ import annotations

from pathlib import Path

import pytest

import declog
from declog.cli import main
from declog.errors import ConfigError
from declog.late import ask

SIGNALS = {
    "rollout": {"reward": {"axis": "completion"}},
    "update": {"entropy": {"axis": "completion"}},
}
LINE = "{expr: entropy, where: reward == 0}"


def recorded(folder: Path, ids: bool) -> Path:
    """A run whose rewards come as one batch, and whose entropies in two micro-batches."""
    signals = {**SIGNALS, "any": {"row_id": {"axis": "completion", "type": "int"}}} if ids else SIGNALS
    axes = {"axes": {"completion": {"ids": "row_id"}}} if ids else {}
    config = {
        "run": {"name": "rows"},
        **axes,
        "signals": signals,
        "metrics": {"r": "mean(reward)", "e": "mean(entropy)"},
    }
    with declog.start(config, output_dir=folder, sinks=[]) as log:
        for step in range(3):
            with log.step(step):
                named = [{"row_id": [0, 1, 2, 3]}, {"row_id": [0, 1]}, {"row_id": [2, 3]}] if ids else [{}, {}, {}]
                log.observe(reward=[0.0, 1.0, 0.0, 1.0], **named[0])
                log.observe(entropy=[1.0, 2.0], **named[1])
                log.observe(entropy=[3.0, 4.0], **named[2])
    return folder


def test_rows_that_cannot_be_matched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Class: micro-batches without ids. What the fix says of the next run gives the value then."""
    run = recorded(tmp_path / "run", ids=False)
    with pytest.raises(ConfigError, match="cannot be matched by position") as caught:
        ask(run, {"hard": LINE})
    (problem,) = caught.value.problems
    assert problem.code == "DL612" and str(problem.fix).startswith("in the next run, name the rows: `axes:")
    assert "DL511" not in caplog.text
    assert main(["add", str(run), f"hard: {LINE}"]) == 2
    said = capsys.readouterr()
    assert (said.out + said.err).count("fix:") == 1
    late = ask(recorded(tmp_path / "named", ids=True), {"hard": LINE})
    assert [scalar.value for _, records in late.events for scalar in records.scalars] == [2.0] * 3
