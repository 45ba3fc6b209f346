"""The demo takes up a metric while it trains, as a stranger asks it: by the command, in another process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import declog
from declog.cli import main
from declog.late import ask
from tests import forks
from tests.docs.test_demo import EXAMPLES, SMALL

OVERRIDES = ["steps=5000", *SMALL, "declog.sinks=[parquet]", "+declog.run.late=true"]


def wait_for(happened: Callable[[], bool], job: forks.Fork) -> None:
    """Until something has happened in a job that goes on."""
    end = time.monotonic() + forks.PATIENCE_S
    while not happened():
        assert job.poll() is None and time.monotonic() < end, "the demo does not get there"
        time.sleep(0.1)


def test_the_demo_takes_up_a_metric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It refuses a wrong line with carets, and goes on with a right one; a kill leaves one curve from step 0 on."""
    with forks.start([EXAMPLES / "grpo_arithmetic.py", *OVERRIDES], cwd=tmp_path, output=tmp_path / "out.txt") as job:
        wait_for(lambda: any(tmp_path.rglob("rows/*.bin")), job)
        run = next(tmp_path.rglob("run.json")).parent
        assert main(["add", str(run), "wrong: mean(rewrd)"]) == 2
        refused = capsys.readouterr().err
        assert "unknown signal `rewrd`" in refused and "fix: 'wrong: mean(reward)'" in refused and "^^^^^" in refused
        assert (
            main(["add", str(run), "best: {expr: reward, reduce: p95}", "sums: {expr: length, where: reward > 1}"]) == 0
        )
        assert "the job goes on with it, from step " in capsys.readouterr().out
        taken = declog.read(run)["best"].steps[-1]
        wait_for(lambda: declog.read(run)["best"].steps[-1] > taken + 3, job)
        job.kill()
        job.wait()
    logged = declog.read(run)
    assert logged.state == "killed" and logged.info["late"].keys() == {"best", "sums"}
    late = ask(run, {"again": "{expr: reward, reduce: p95}"})
    expected = {step: scalar.value for step, records in late.events for scalar in records.scalars}
    curve = dict(zip(logged["best"].steps.tolist(), logged["best"].values.tolist(), strict=True))
    assert len(curve) == len(logged["best"].steps) > taken
    assert list(curve) == list(range(len(curve))) and curve.items() <= expected.items()
