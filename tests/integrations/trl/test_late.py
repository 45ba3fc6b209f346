"""TRL on two ranks: a metric is asked for while it trains, all is killed, and the resumed run goes on with it."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import declog
from declog.cli import main
from tests.forks import PATIENCE_S
from tests.integrations.trl.jobs import ASKED, job

LINES = {"late": "{expr: reward, reduce: [p95, count]}", "late_std": "mean(std(reward, over=completion))"}


def test_a_job_of_two_ranks_takes_up_a_metric(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its curve is that of the same metric in the config: from the first step to the last, each step once."""
    run = tmp_path / "declog"
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(job, "asked", model, tmp_path)
        end = time.monotonic() + PATIENCE_S
        while not (tmp_path / "ready").exists() and not ended.done() and time.monotonic() < end:
            time.sleep(0.1)
        codes = [main(["add", str(run), "wrong: mean(rewrd)"])]
        codes.append(main(["add", str(run), *(f"{name}: {line}" for name, line in LINES.items())]))
        (tmp_path / "asked").touch()
    shown = capsys.readouterr()
    assert codes == [2, 0] and "unknown signal `rewrd`" in shown.err and "^^^^^" in shown.err
    assert "the job goes on with it, from step " in shown.out, shown.out
    assert ended.result().codes == (-signal.SIGKILL,) * 2
    assert job("asked", model, tmp_path).codes == (0, 0)
    logged = declog.read(run)
    for name in ("p95", "count"):
        early, late = logged[f"early/{name}"], logged[f"late/{name}"]
        assert early.steps.tolist() == late.steps.tolist() == list(range(1, ASKED + 1))
        assert early.values.tolist() == late.values.tolist()
    assert logged["early_std"].values.tolist() == logged["late_std"].values.tolist()
    assert logged.world_size == 2 and logged.info["late"].keys() == LINES.keys()
