"""The token axis: signals of one mask, with all moments or with means only, and three ways to log the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.benchmarks.contestants import ByHand, Collections, Declog, averaged
from tests.benchmarks.measure import Batch, Contestant

Tensor = torch.Tensor
ALL = ("mean", "std", "min", "max")
MEANS = ("mean",)


def names(signals: int, reductions: Sequence[str]) -> list[str]:
    """The metrics' names, signal by signal."""
    return [f"x{place}/{reduction}" for place in range(signals) for reduction in reductions]


def profile(signals: int, reductions: Sequence[str], every: int) -> dict[str, Any]:
    """The profile, in declog's language."""
    fields = {f"x{place}": {"axis": "token"} for place in range(signals)}
    made = {name: {"expr": name, "reduce": [*reductions], "name": f"{name}/{{reduce}}"} for name in fields}
    return {"run": {"name": "bench"}, "every": every, "axes": {"token": {"mask": "mask"}},
            "signals": {"any": {**fields, "mask": {"axis": "token", "type": "bool"}}}, "metrics": made}  # fmt: skip


def derived() -> dict[str, Any]:
    """32 metrics of 8 expressions, as policy-gradient code logs them: ratios, clipping, divergences."""
    expressions = {
        "ratio": "exp(x0 - x1)",
        "low": "ratio < 0.8",
        "high": "ratio > 1.2",
        "gap": "x2 - x0",
        "kl": "exp(gap) - gap - 1",
        "entropy": "abs(x3)",
        "surprise": "-x0 * ratio",
        "clipped": "clip(ratio, 0.8, 1.2) * x3",
    }
    made = profile(4, (), 1)
    made["derived"] = expressions
    made["metrics"] = {name: {"expr": name, "reduce": [*ALL], "name": f"{name}/{{reduce}}"} for name in expressions}
    return made


def batches(signals: int, rows: int, length: int, count: int = 4) -> list[Batch]:
    """Steps' values; completions are between an eighth of the length and the whole of it long."""
    made: list[Batch] = []
    for seed in range(count):
        random = torch.Generator().manual_seed(seed)
        values = {f"x{place}": torch.randn(rows, length, generator=random) for place in range(signals)}
        ends = torch.randint(length // 8, length + 1, (rows, 1), generator=random)
        made.append({**values, "mask": torch.arange(length) < ends})
    return made


def contestants(signals: int, reductions: Sequence[str], every: int) -> dict[str, Contestant]:
    """Everybody who takes part."""
    return {
        "declog": Declog(profile(signals, reductions, every)),
        "hand-fused": fused(signals, reductions, every),
        "per metric": ByHand(each(signals, reductions), every, averaged),
        "torchmetrics": Collections(_selected, {f"x{place}": list(reductions) for place in range(signals)}, every),
    }


def fused(signals: int, reductions: Sequence[str], every: int) -> ByHand:
    """The mask made a float once, dot products, one ``tolist`` per log event; states where several steps are due."""
    keys = [f"x{place}" for place in range(signals)]
    compute = _all_moments(keys) if len(reductions) > 1 else _means(keys)
    return ByHand(compute, every, _all_finished if len(reductions) > 1 else _means_finished)


def _means(keys: Sequence[str]) -> Callable[[Batch], tuple[Tensor, Tensor]]:
    def step(batch: Batch) -> tuple[Tensor, Tensor]:
        mask = batch["mask"].float().flatten()
        return mask.sum(), torch.stack([torch.dot(batch[key].flatten(), mask) for key in keys])

    return step


def _means_finished(window: list[tuple[Tensor, Tensor]]) -> list[float]:
    if len(window) == 1:
        values: list[float] = (window[0][1] / window[0][0]).tolist()
        return values
    merged: list[float] = (
        torch.stack([total for _, total in window]).sum(0) / torch.stack([n for n, _ in window]).sum()
    ).tolist()
    return merged


def _all_moments(keys: Sequence[str]) -> Callable[[Batch], tuple[Tensor, Tensor]]:
    def step(batch: Batch) -> tuple[Tensor, Tensor]:
        mask = batch["mask"].float()
        flat, padding = mask.flatten(), ~batch["mask"]
        n = flat.sum()
        found = []
        for key in keys:
            x = batch[key]
            mean = torch.dot(x.flatten(), flat) / n
            distance = ((x - mean) * mask).flatten()
            low, high = x.masked_fill(padding, math.inf).min(), x.masked_fill(padding, -math.inf).max()
            found += [mean, torch.dot(distance, distance), low, high]
        return n, torch.stack(found)

    return step


def _all_finished(window: list[tuple[Tensor, Tensor]]) -> list[float]:
    n = torch.stack([item[0] for item in window]).unsqueeze(1)
    mean, m2, low, high = torch.stack([item[1] for item in window]).view(len(window), -1, 4).unbind(2)
    whole = n.sum()
    merged = (mean * n).sum(0) / whole
    squares = (m2 + n * (mean - merged).square()).sum(0)
    values: list[float] = (
        torch.stack([merged, (squares / (whole - 1)).sqrt(), low.amin(0), high.amax(0)], 1).flatten().tolist()
    )
    return values


def each(signals: int, reductions: Sequence[str]) -> Callable[[Batch], list[float]]:
    """One masked reduction and one ``item`` per metric."""

    def mean(x: Tensor, mask: Tensor) -> Tensor:
        return (x * mask).sum() / mask.sum()

    def std(x: Tensor, mask: Tensor) -> Tensor:
        distance = (x - mean(x, mask)) * mask
        return (distance.square().sum() / (mask.sum() - 1)).sqrt()

    calls: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "mean": mean,
        "std": std,
        "min": lambda x, mask: x.masked_fill(~mask, math.inf).min(),
        "max": lambda x, mask: x.masked_fill(~mask, -math.inf).max(),
    }
    keys = [(f"x{place}", calls[one]) for place in range(signals) for one in reductions]
    return lambda batch: [call(batch[key], batch["mask"]).item() for key, call in keys]


def _selected(batch: Batch) -> dict[str, Tensor]:
    return {name: value[batch["mask"]] for name, value in batch.items() if name != "mask"}
