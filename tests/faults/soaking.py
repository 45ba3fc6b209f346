"""One rank of a long run with the shapes of the demo; notes how much of everything there is.

soaking FOLDER STEPS      `noted.jsonl`: at each 500th step resident memory, objects, threads, file handles, keys
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import declog
from declog.runtime.ranks.keystore import Store
from declog.runtime.recording.recorder import Recorder

PROMPTS, GROUP, TOKENS, BATCH, EPOCHS = 32, 8, 4, 64, 2  # examples/conf/grpo_arithmetic.yaml
ROWS = PROMPTS * GROUP
PERIOD = 500  # steps between notes
SAVES = 100  # steps between checkpoints
NAMES = ("correct", "close", "format", "length")


def profile() -> dict[str, Any]:
    """The GRPO preset as the demo has it, with both kinds of local files."""
    made: dict[str, Any] = declog.config_of(declog.compose("grpo", ["declog.sinks=[jsonl, parquet]"]))
    made["tables"]["samples"] |= {"every": 50, "keep": "last_batch"}
    return made


def batches(rank: int) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Some steps' rollout and updates, made once: what grows is then declog."""
    seed = torch.Generator().manual_seed(rank)

    def tokens() -> torch.Tensor:
        return -torch.rand(BATCH, TOKENS, generator=seed)

    return [
        (
            {
                "prompt": [f"{place} + {row // GROUP} =" for row in range(ROWS)],
                "completion": [f"{rank}.{place}.{row}" for row in range(ROWS)],
                "rewards": {name: torch.rand(ROWS, generator=seed) for name in NAMES},
                "reward_weights": dict.fromkeys(NAMES, 1.0),
                "length": torch.randint(1, TOKENS + 1, (ROWS,), generator=seed),
                "truncated": torch.rand(ROWS, generator=seed) < 0.2,
            },
            [
                {
                    "completion_mask": tokens() < -0.2, "advantages": tokens()[:, 0], "logprobs": tokens(),
                    "old_logprobs": tokens(), "ref_logprobs": tokens(), "entropy": -tokens(),
                    "loss": torch.rand((), generator=seed), "grad_norm": 1.0, "learning_rate": 1e-3,
                }
                for _ in range(EPOCHS * ROWS // BATCH)
            ],
        )
        for place in range(4)
    ]  # fmt: skip


def main(folder: str, steps: str) -> None:
    """The run."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if ranks > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    made = batches(rank)
    with (
        Path(folder, f"noted_{rank}.jsonl").open("w") as file,
        declog.start(profile(), output_dir=f"{folder}/run") as log,
    ):
        for step in range(int(steps)):
            rollout, updates = made[step % len(made)]
            with log.step(step):
                log.observe(**rollout)
                for update in updates:
                    log.observe(**update)
            if ranks > 1:
                dist.all_reduce(torch.ones(1000))
            if (step + 1) % 10 == 0:
                log.flush(wait_s=60.0)  # so that the background keeps up
            if (step + 1) % SAVES == 0:
                log.state_dict()  # as for a checkpoint: sinks have written what was logged
            if (step + 1) % PERIOD == 0:
                file.write(json.dumps({"step": step + 1, **counts(log)}) + "\n")
                file.flush()
        failures = log.failures
    print(f"rank {rank} made {steps} steps, failures: {dict(failures)}")


def counts(log: Recorder) -> dict[str, float]:
    """How much there is of what may not grow."""
    gc.collect()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    store = getattr(log._background.comm, "_store", None)  # rank 0's has all keys
    return {
        "memory": pages * os.sysconf("SC_PAGE_SIZE"),
        "objects": len(gc.get_objects()),
        "threads": threading.active_count(),
        "handles": len(os.listdir("/proc/self/fd")),
        "keys": len(store) if isinstance(store, Store) else 0,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
