"""One rank of a job that saves checkpoints and is killed in the middle; started again, it continues with the last one.

resuming FOLDER RANK STEP      the rank that is killed, in this step; -1: nobody
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import declog

STEPS = 24
SAVES = 5  # steps between checkpoints
EVERY = 3  # steps of a window, so that most checkpoints fall inside one
PROFILE: dict[str, Any] = {
    "run": {"name": "resuming"}, "every": EVERY,
    "signals": {"any": {"x": {"axis": "completion"}, "text": {"axis": "completion", "type": "text"}}},
    "metrics": {
        "x": "sum(x)", "rows": "count(x)", "total": {"expr": "x", "reduce": "sum", "over": "run"},
        "slow": {"expr": "x", "reduce": "max", "every": 2 * EVERY},
    },
    "schemas": {"s": {"at": {"type": "int", "expr": "step"}, "text": {"type": "text"}}},
    "filters": {"all": {"first": 1000000}}, "tables": {"t": {"schema": "s", "filter": "all"}},
    "sinks": ["lines", "files"],
    "sink_options": {"lines": {"kind": "jsonl"}, "files": {"kind": "parquet", "compact_every": 2}},
}  # fmt: skip


def rows(rank: int, step: int) -> dict[str, Any]:
    """What a rank observes in a step."""
    return {"x": [float(step + 100 * rank), 1.0], "text": [f"{rank}.{step}.0", f"{rank}.{step}.1"]}


def main(folder: str, victim: str, at: str) -> None:
    """From the last checkpoint to the end, or to the kill."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if ranks > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    first, state = latest(Path(folder), rank, ranks)
    with declog.start(PROFILE, output_dir=Path(folder) / "run", resume=state, wait_s=3.0) as log:
        for step in itertools.count(first):
            if step == STEPS:
                break
            with log.step(step):
                log.observe(**rows(rank, step))
                together(ranks)
                if (rank, step) == (int(victim), int(at)):
                    os.kill(os.getpid(), signal.SIGKILL)
            if (step + 1) % SAVES == 0:
                save(Path(folder) / f"checkpoint-{step + 1:03}", rank, {"step": step + 1, "declog": log.state_dict()})
                together(ranks)
    print(f"rank {rank} trained to the end")


def together(ranks: int) -> None:
    """What training does with the others; it fails where one of them has gone."""
    if ranks > 1:
        dist.all_reduce(torch.ones(1000))


def save(folder: Path, rank: int, state: dict[str, Any]) -> None:
    """This rank's file of a checkpoint, whole or not at all."""
    folder.mkdir(exist_ok=True)
    torch.save(state, folder / f"{rank}.part")
    (folder / f"{rank}.part").rename(folder / f"{rank}.pt")


def latest(folder: Path, rank: int, ranks: int) -> tuple[int, Any]:
    """The step to begin with, and this rank's state, from the last checkpoint that all ranks have finished."""
    for checkpoint in sorted(folder.glob("checkpoint-*"), reverse=True):
        if len(list(checkpoint.glob("*.pt"))) == ranks:
            loaded = torch.load(checkpoint / f"{rank}.pt", weights_only=True)
            return loaded["step"], loaded["declog"]
    return 0, None


if __name__ == "__main__":
    main(*sys.argv[1:])
