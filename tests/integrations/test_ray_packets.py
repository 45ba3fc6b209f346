"""Workers, trainers and a driver on a Ray cluster: the numbers are those by hand, and nothing is lost by mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.forks import PATIENCE_S
from tests.integrations.ray_packets import ROWS, STEPS, TRAINER_DIES, TRAINERS, reward, version, workers

ROOT = Path(__file__).parents[2]


def test_packets_of_killed_workers_and_trainers(tmp_path: Path) -> None:
    """Each packet counts once in the step that trained on it, however far a trainer is ahead and whoever is killed."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as short:  # names of sockets have at most 107 bytes
        done = subprocess.run(
            [sys.executable, "-m", "tests.integrations.ray_packets"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "RAY_TMPDIR": short,
                 "RAY_memory_monitor_refresh_ms": "0", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    expected = {}
    for step in range(STEPS):
        trainers = range(TRAINERS if step < TRAINER_DIES else 1)
        packets = [reward(worker, version(step)) for trainer in trainers for worker in workers(step, trainer)]
        expected[str(step)] = {"n": ROWS * len(packets), "sum": ROWS * sum(packets), "version": version(step)}
        if len(trainers) < TRAINERS:
            expected[str(step)]["declog/ranks"] = len(trainers)
    assert found["values"] == expected
    assert list(found["failures"].values()) == [STEPS - TRAINER_DIES + 1]  # of each step, and of the end of the run
    assert "actors [1] exported no window" in next(iter(found["failures"]))
