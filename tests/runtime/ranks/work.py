"""The rows of a made-up job on several ranks, and what one process makes of all of them.

Ranks have different numbers of completions and of micro-batches. Every value is a function of (rank, step,
batch), so that any process can make any rank's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import declog
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink

GROUP = 4
STEPS = 3
SIZES = {0: (12, 8, 4), 1: (4, 20), 2: (8,), 3: (16, 4, 4, 8)}  # completions of each micro-batch, by rank
SOURCES = ("math", "code", "chat")


def profile() -> dict[str, Any]:
    """The GRPO preset with more of everything that could depend on the number of ranks."""
    data: dict[str, Any] = declog.config_of(
        declog.compose("grpo", ["declog.sinks=[]", f"declog.axes.group.size={GROUP}"])
    )
    data["run"] = {"strict": True}
    data["profiles"]["full"]["self_metrics"] = False  # costs differ from run to run
    data["signals"]["rollout"]["source"] = {"axis": "completion", "type": "text"}
    data["derived"]["words"] = "len(completion)"
    data["metrics"] |= {
        "spread": {
            "expr": "reward",
            "reduce": ["std", "pstd", "var", "min", "max", "sum", "count", "p05", "p50", "p99.9"],
        },
        "by_source": {"expr": "reward", "by": "source", "reduce": ["mean", "p50", "count"]},
        "tokens": {"expr": "entropy", "reduce": ["std", "min", "max", "p50", "sum"]},
        "words": {"expr": "words", "reduce": ["mean", "max"]},
        "slow": {"expr": "reward", "reduce": ["mean", "p90"], "every": 2},
        "weighted": {"expr": "reward", "weight": "length", "reduce": "mean"},
        "ratio_of": {"formula": "length.max / num_completions"},
    }
    data["filters"] |= {
        "best": {"key": "reward", "top": 3, "bottom": 2, "within": "window", "limit": 4},
        "odd": {"first": 2, "within": "batch", "where": "contains(completion, '1')"},
    }
    data["tables"] |= {
        "best": {"schema": "samples", "filter": "best", "every": 2},
        "odd": {"schema": "samples", "filter": "odd", "keep": "last_batch"},
    }
    return data


def rollout(rank: int, step: int, batch: int) -> dict[str, Any]:
    """The rollout of one micro-batch of one rank."""
    n = SIZES[rank][batch]
    seed = torch.Generator().manual_seed(1000 * rank + 10 * step + batch)
    return {
        "rewards": {
            "correct": torch.randint(0, 2, (n,), generator=seed).double(),
            "format": torch.rand(n, generator=seed, dtype=torch.float64),
        },
        "length": torch.randint(1, 30, (n,), generator=seed),
        "truncated": torch.rand(n, generator=seed) > 0.8,
        "prompt": [f"prompt {rank}.{step}.{batch}.{row // GROUP}" for row in range(n)],
        "completion": [f"completion {rank}.{step}.{batch}.{row}" for row in range(n)],
        "source": [SOURCES[(rank + row) % 3] if row % 7 else None for row in range(n)],
    }


def update(rank: int, step: int, batch: int) -> dict[str, Any]:
    """The update of one micro-batch of one rank: as wide as its longest completion."""
    n, width = SIZES[rank][batch], 5 + rank + batch
    seed = torch.Generator().manual_seed(1000 * rank + 10 * step + batch + 7)

    def tokens() -> torch.Tensor:
        return torch.randn(n, width, generator=seed, dtype=torch.float64)

    return {
        "completion_mask": torch.rand(n, width, generator=seed) > 0.3, "advantages": tokens()[:, 0],
        "logprobs": tokens(), "old_logprobs": tokens(), "ref_logprobs": tokens(), "entropy": tokens().abs(),
        "loss": torch.rand((), generator=seed, dtype=torch.float64), "learning_rate": 1.0 / (step + 1),
        "grad_norm": float(rank + batch),
    }  # fmt: skip


def train(log: Recorder, ranks: Sequence[int]) -> None:
    """The steps of these ranks' rows: of one rank in a job, of all of them in one process."""
    with log:
        for step in range(STEPS):
            with log.step(step):
                for make in (rollout, update):
                    for batch in range(max(len(SIZES[rank]) for rank in ranks)):
                        for rank in ranks:
                            if batch < len(SIZES[rank]):
                                log.observe(**make(rank, step, batch))
                                if make is rollout and rank != 1:  # a column that some ranks have
                                    log.log_extra("place", np.arange(SIZES[rank][batch]) + np.float32(0.5))
                for rank in ranks:
                    log.log_metric("mine", rank + step)
                    log.log_metric(f"of_{rank}", 0.5)


def found(sink: MemorySink) -> dict[str, Any]:
    """What a sink got, as plain data: scalars by step and name, tables by step and id."""
    return {
        "scalars": {str(step): values for step, values in sink.scalars.items()},
        "partial": sorted({item.name for _, records in sink.events for item in records.scalars if item.partial}),
        "tables": [
            [step, table.table, {name: list(values) for name, values in table.data.items()}]
            for step, records in sink.events
            for table in records.tables
        ],
    }


def alone(ranks: int, folder: Path) -> dict[str, Any]:
    """What one process logs of all ranks' rows."""
    sink = MemorySink()
    train(declog.start(profile(), sinks=[sink], output_dir=folder), range(ranks))
    return found(sink)


# ---- groups that are spread over ranks


def split_profile() -> dict[str, Any]:
    """Groups by id over ranks, with statistics and a selection per group."""
    return {
        "run": {"name": "split", "strict": True}, "axes": {"group": {"of": "prompt_id", "split": "ranks"}},
        "signals": {
            "any": {
                "reward": {"axis": "completion"}, "prompt_id": {"axis": "completion", "type": "int"},
                "text": {"axis": "completion", "type": "text"},
            },
        },
                "derived": {"advantage": "(reward - mean(reward, over=completion)) / std(reward, over=completion)"},
        "metrics": {
            "group_std": "mean(std(reward, over=completion))", "groups": "count(size(completion))",
            "advantage": {"expr": "advantage", "reduce": ["min", "max", "std"]},
            "best": {"expr": "reward", "where": "rank(-reward, within=group) == 1", "reduce": ["mean", "count"]},
        },
        "filters": {"extremes": {"key": "advantage", "top": 1, "bottom": 1, "within": "group"}},
        "schemas": {"s": {"text": {"type": "text"}, "advantage": {"type": "float"}}},
        "tables": {"t": {"schema": "s", "filter": "extremes"}},
    }  # fmt: skip


def split_rows(rank: int, step: int) -> dict[str, Any]:
    """Rows of one rank: every rank has rows of the same prompts, in uneven numbers."""
    n = 5 + 4 * rank
    seed = torch.Generator().manual_seed(77 * rank + step)
    return {
        "reward": torch.rand(n, generator=seed, dtype=torch.float64),
        "prompt_id": torch.randint(100, 104, (n,), generator=seed),
        "text": [f"{rank}.{step}.{row}" for row in range(n)],
    }


def train_split(log: Recorder, ranks: Sequence[int]) -> None:
    """Two steps; one process has the rows of all ranks in one batch."""
    with log:
        for step in range(2):
            with log.step(step):
                parts = [split_rows(rank, step) for rank in ranks]
                log.observe(
                    reward=torch.cat([part["reward"] for part in parts]),
                    prompt_id=torch.cat([part["prompt_id"] for part in parts]),
                    text=[text for part in parts for text in part["text"]],
                )


def split_alone(ranks: int, folder: Path) -> dict[str, Any]:
    """What one process logs of all ranks' rows of spread groups."""
    sink = MemorySink()
    train_split(declog.start(split_profile(), sinks=[sink], output_dir=folder), range(ranks))
    return found(sink)
