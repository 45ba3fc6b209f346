"""Jobs of two processes with gloo, started by torchrun: ``python -m torch.distributed.run jobs.py NAME MODEL FOLDER``."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def torchrun(name: str, model: Path, folder: Path, *, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
    """Run a job to its end; it must succeed."""
    done = start(name, model, folder, timeout_s=timeout_s)
    assert done.returncode == 0, done.stderr[-6000:]
    return done


def start(name: str, model: Path, folder: Path, *, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a job to its end."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__]
    return subprocess.run(
        [*command, name, str(model), str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=folder,
        timeout=timeout_s,
        capture_output=True,
        text=True,
        check=False,
    )


def keep(folder: Path, name: str, result: object) -> None:
    """Leave a rank's result for the test."""
    (folder / f"{name}.pickle").write_bytes(pickle.dumps(result))


def values(model: Path, folder: Path) -> None:
    """All cases."""
    from tests.trl import cases

    for name, case in cases.CASES.items():
        outcome = cases.run(case, model, folder / name)
        outcome.sink = None
        if int(os.environ["RANK"]) == 0:
            keep(folder, name, outcome)


JOBS: dict[str, Callable[[Path, Path], None]] = {"values": values}


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    JOBS[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
