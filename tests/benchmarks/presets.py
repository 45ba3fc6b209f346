"""What real presets have: clipped fractions of tokens, quantiles, last values, means of batches, and texts.

By hand it is what a trainer's own code does with numpy and torch, each reduction once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from tests.benchmarks.contestants import ByHand, Declog
from tests.benchmarks.measure import Batch, Contestant

ROWS, LENGTH, BEST = 64, 512, 4
NAMES = (
    "clip_low", "clip_high", "kl", "kl_max", "reward", "reward_std", "reward_p10", "reward_p50", "reward_p90",
    "reward_last", "reward_batch", "length", "length_max", "length_p90", "truncated",
)  # fmt: skip


def profile(every: int) -> dict[str, Any]:
    """The profile, with a table of the completions of the greatest rewards."""
    made: Mapping[str, tuple[str, str]] = {
        "clip_low": ("ratio < 0.8", "mean"), "clip_high": ("ratio > 1.2", "mean"), "kl": ("kl", "mean"),
        "kl_max": ("kl", "max"), "reward": ("reward", "mean"), "reward_std": ("reward", "std"),
        "reward_p10": ("reward", "p10"), "reward_p50": ("reward", "p50"), "reward_p90": ("reward", "p90"),
        "reward_last": ("reward", "last"), "reward_batch": ("reward", "mean"), "length": ("length", "mean"),
        "length_max": ("length", "max"), "length_p90": ("length", "p90"), "truncated": ("truncated", "mean"),
    }  # fmt: skip
    metrics: dict[str, Any] = {
        name: {"expr": expr, "reduce": reduce, "name": name} for name, (expr, reduce) in made.items()
    }
    metrics["reward_last"]["over"] = "step"
    metrics["reward_batch"]["over"] = "rank_batch"
    signals = {name: {"axis": "completion"} for name in ("reward", "length")}
    signals |= {name: {"axis": "token"} for name in ("ratio", "kl")}
    signals |= {
        "mask": {"axis": "token", "type": "bool"}, "truncated": {"axis": "completion", "type": "bool"},
        "text": {"axis": "completion", "type": "text"},
    }  # fmt: skip
    return {
        "run": {"name": "bench"}, "every": every, "axes": {"token": {"mask": "mask"}}, "signals": {"any": signals},
        "metrics": metrics,
        "filters": {"best": {"key": "reward", "top": BEST, "within": "step"}},
        "schemas": {"sample": {"text": {"type": "text"}, "reward": {"type": "float"}}},
        "tables": {"samples": {"schema": "sample", "filter": "best"}},
    }  # fmt: skip


def batches(count: int = 4) -> list[Batch]:
    """Steps' values."""
    made: list[Batch] = []
    for seed in range(count):
        random = torch.Generator().manual_seed(seed)
        lengths = torch.randint(LENGTH // 2, LENGTH, (ROWS,), generator=random)
        made.append({
            "reward": torch.rand(ROWS, generator=random), "length": lengths.float(),
            "truncated": lengths > LENGTH * 0.9, "mask": torch.arange(LENGTH) < lengths[:, None],
            "ratio": 1 + 0.2 * torch.randn(ROWS, LENGTH, generator=random),
            "kl": torch.rand(ROWS, LENGTH, generator=random),
            "text": [f"completion {row} " * 20 for row in range(ROWS)],
        })  # fmt: skip
    return made


def contestants(every: int) -> dict[str, Contestant]:
    """Both."""
    return {"declog": Declog(profile(every)), "by hand": by_hand(every)}


def by_hand(every: int) -> ByHand:
    """The same numbers, in the order of ``NAMES``."""
    return ByHand(_step, every, _numbers)


def _step(batch: Batch) -> tuple[Any, ...]:
    mask, kl = batch["mask"], batch["kl"]
    tokens = torch.stack(
        [((batch["ratio"] < 0.8) & mask).sum(), ((batch["ratio"] > 1.2) & mask).sum(), (kl * mask).sum(), mask.sum()]
    )
    rows = torch.stack([batch["reward"], batch["length"], batch["truncated"].float()])
    best = batch["reward"].topk(BEST).indices.tolist()
    return tokens, kl.masked_fill(~mask, -torch.inf).max(), rows, [(batch["text"][row], row) for row in best]


def _numbers(window: list[tuple[Any, ...]]) -> list[float]:
    low, high, kl, count = torch.stack([item[0] for item in window]).double().sum(0).tolist()
    reward, length, truncated = torch.cat([item[2] for item in window], 1).double().numpy()
    quantiles = np.quantile(reward, (0.1, 0.5, 0.9)).tolist()
    means = [float(item[2][0].mean()) for item in window]
    last = [float(item[2][0][-1]) for item in window]
    return [
        low / count, high / count, kl / count, max(float(item[1]) for item in window), reward.mean(),
        reward.std(ddof=1), *quantiles, float(np.mean(last)), float(np.mean(means)), length.mean(), length.max(),
        float(np.quantile(length, 0.9)), truncated.mean(),
    ]  # fmt: skip
