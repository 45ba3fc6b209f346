"""Jobs of two processes with gloo: ``python -m torch.distributed.run --nproc-per-node=2 jobs.py NAME MODEL FOLDER``."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import declog

ROOT = Path(__file__).parents[2]


def torchrun(name: str, model: Path, folder: Path, *, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
    """Run a job to its end; it must succeed."""
    done = start(name, model, folder, timeout_s=timeout_s)
    assert done.returncode == 0, done.stderr[-9000:]
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
    """The cases of two ranks."""
    from tests.trl import cases

    for name, case in cases.CASES.items():
        if 2 not in case.ranks:
            continue
        outcome = cases.run(case, model, folder / name)
        outcome.sink = None
        if int(os.environ["RANK"]) == 0:
            keep(folder, name, outcome)


def best(model: Path, folder: Path) -> None:
    """The best model by a metric that only declog has, and what each rank makes of it."""
    from tests.trl import cases

    trainer = cases.trainer_of(cases.BEST, model, folder)
    with declog.attach(trainer, "trl_grpo", [*cases.STRICT, cases.SURPRISE]):
        trainer.train()
    weights = trainer.accelerator.unwrap_model(trainer.model).lm_head.weight.detach().cpu().clone()
    state = trainer.state
    keep(folder, f"rank{os.environ['RANK']}", (state.log_history, state.best_metric, state.best_global_step, weights))


def resumed(model: Path, folder: Path) -> None:
    """A run without a break, and one that is resumed inside a window."""
    from tests.trl import cases

    whole = cases.resumable(model, folder / "whole")
    cases.resumable(model, folder / "parts", until=7)
    parts = cases.resumable(model, folder / "parts", resume=True)
    keep(folder, f"rank{os.environ['RANK']}", (whole, parts))


def killed(model: Path, folder: Path) -> None:
    """Rank 1 dies in its third step, with declog attached and without."""
    from tests.trl import cases

    def reward(completions: list[str], trainer_state: Any, **columns: Any) -> list[float]:
        if trainer_state.global_step == 2 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return [float(len(each)) for each in completions]

    trainer = cases.trainer_of(cases.BEST, model, folder, rewards=[reward])
    if os.environ["ATTACHED"] == "yes":
        declog.attach(trainer, "trl_grpo", ["declog/sinks=[jsonl]", cases.SURPRISE])
    trainer.train()


def faulty(model: Path, folder: Path) -> None:
    """A fault of each kind on rank 1, late, beside a run without declog."""
    from tests.trl import faults

    rank = os.environ["RANK"]
    own = faults.outcome(model, folder / "alone", None)
    for name in faults.FAULTS:
        found = faults.outcome(model, folder / name, name, late=True, rank=1)
        keep(folder, f"{name}-{rank}", (own, found))


JOBS: dict[str, Callable[[Path, Path], None]] = {
    "values": values, "best": best, "resumed": resumed, "killed": killed, "faulty": faulty,
}  # fmt: skip


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    JOBS[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
