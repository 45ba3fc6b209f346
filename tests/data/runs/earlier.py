"""Writes the folder `1f9550e` beside this file with the code of that commit: python earlier.py OUTPUT_DIR.

`run` is the folder of a run of eight steps; `state.pt` is its state after step 5, with rows in an open window.
`captured` is what two ranks of such a run captured, and the scalars that it logged.
"""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import torch

import declog

PROFILE: dict[str, Any] = {
    "run": {"name": "earlier"},
    "every": 4,
    "axes": {"group": {"size": 2}, "token": {"mask": "mask"}},
    "signals": {
        "any": {
            "reward": {"axis": "completion"},
            "answer": {"axis": "completion", "type": "text"},
            "logprobs": {"axis": "token"},
            "mask": {"axis": "token", "type": "bool"},
            "lr": {"axis": "step"},
            "parts": {"axis": "completion", "family": True},
        }
    },
    "metrics": {
        "reward": {"expr": "reward", "reduce": ["mean", "max", "p50"]},
        "spread": "mean(std(reward, over=completion))",
        "logprob": "mean(logprobs)",
        "lr": {"expr": "lr", "reduce": "last"},
        "parts": "mean(parts)",
        "best": {"expr": "reward", "reduce": "max", "over": "run"},
        "lengths": {"expr": "sum(mask, over=token)", "reduce": "histogram"},
    },
    "schemas": {"rows": {"answer": "text", "reward": "float"}},
    "tables": {"samples": {"schema": "rows", "filter": {"top": 1, "bottom": 1, "key": "reward"}}},
    "alerts": {"high": {"when": "reward.max > 6", "text": "the greatest reward is {reward.max}"}},
    "modes": {"eval": {"prefix": "eval/"}},
    "sinks": ["jsonl", "parquet"],
}


def observe(log: declog.Recorder, step: int) -> None:
    """The rows of one step: four completions of three tokens."""
    log.observe(
        reward=[float(step), 1.0, 2.0, -step], answer=[f"{step}-{row}" for row in range(4)], lr=1 / (1 + step),
        logprobs=torch.full((4, 3), -0.5 * step),
        mask=torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]).bool(),
        parts={"format": [1.0, 0.0, 1.0, 0.0], "length": [0.5] * 4},
    )  # fmt: skip


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    vars(socket)["gethostname"] = lambda: "host"
    with declog.start(PROFILE, output_dir=folder) as log:
        for step in range(8):
            with log.step(step):
                observe(log, step)
            if step == 3:
                with log.mode("eval"):
                    observe(log, step)
            if step == 5:
                torch.save(log.state_dict(), "state.pt")
    target = Path(__file__).parent / "1f9550e"
    target.mkdir()
    shutil.copy("state.pt", target)
    shutil.copytree(folder, target / "run")
