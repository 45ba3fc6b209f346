"""Ways to observe: one call of many columns, many calls of one, micro-batches; and metrics of what presets have.

What they are compared with: copies that are appended to a list by hand, and numpy that is written for the metrics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tests.benchmarks.contestants import Declog
from tests.benchmarks.measure import Batch, Contestant

EVERY, ROWS = 10, 64
Calls = Sequence[Mapping[str, torch.Tensor]]


def columns(count: int) -> dict[str, torch.Tensor]:
    """Some columns of a step."""
    random = torch.Generator().manual_seed(0)
    return {f"x{place}": torch.rand(ROWS, generator=random) for place in range(count)}


def profile(count: int, reductions: Sequence[str] = ("mean",), every: int = EVERY) -> dict[str, Any]:
    """All reductions of each column; ``last:step`` is pooled by step."""
    metrics: dict[str, Any] = {}
    for place in range(count):
        for reduction in reductions:
            reduce, _, pool = reduction.partition(":")
            entry = {"expr": f"x{place}", "reduce": reduce, "name": f"x{place}/{reduction}"}
            metrics[f"x{place}_{len(metrics)}"] = {**entry, "over": pool} if pool else entry
    signals = {f"x{place}": {"axis": "completion"} for place in range(count)}
    return {"run": {"name": "bench"}, "every": every, "signals": {"any": signals}, "metrics": metrics}


def ways() -> dict[str, tuple[int, Calls]]:
    """How many columns a profile has, and the calls of each step."""
    forty = columns(40)
    return {
        "1 call of 1 column": (1, [columns(1)]),
        "1 call of 8 columns": (8, [columns(8)]),
        "1 call of 40 columns": (40, [forty]),
        "8 calls of 1 column": (8, [{name: value} for name, value in columns(8).items()]),
        "40 calls of 1 column": (40, [{name: value} for name, value in forty.items()]),
        "8 micro-batches of 4 columns": (4, [columns(4)] * 8),
        "64 micro-batches of 10 columns": (10, [columns(10)] * 64),
    }


class Calling(Declog):
    """declog, with some calls in each step."""

    def __init__(self, config: Mapping[str, Any], calls: Calls) -> None:
        super().__init__(config)
        self._calls = calls

    def step(self, batch: Batch) -> None:
        with self.log.step(self._steps):
            for call in self._calls:
                self.log.observe(**call)
        self._steps += 1


class Copying:
    """Copies of all values in a list, which is let go of after some steps: the least that recording can be."""

    every = EVERY

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._kept: list[dict[str, torch.Tensor]] = []

    def step(self, batch: Batch) -> None:
        for call in self._calls:
            self._kept.append({name: value.clone() for name, value in call.items()})

    def settle(self) -> float:
        self._kept.clear()
        return 0.0


class Numpy:
    """What a worker would do that knows the metrics: one matrix, each reduction once."""

    every = 1

    def __init__(self, compute: Callable[[np.ndarray[Any, Any]], Sequence[np.ndarray[Any, Any]]]) -> None:
        self._compute = compute
        self._spent = 0.0

    def step(self, batch: Batch) -> None:
        began = time.thread_time()
        matrix = torch.stack(list(batch.values())).double().numpy()
        values = np.concatenate([np.atleast_2d(one) for one in self._compute(matrix)], axis=0)
        self.last = dict(enumerate(values.ravel().tolist()))
        self._spent += time.thread_time() - began

    def settle(self) -> float:
        return self._spent


MIXED = ("mean", "std", "min", "max", "count", "sum", "p50", "p90", "p99", "last:step")


def by_hand(matrix: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """The numbers of ``MIXED``."""
    quantiles = np.quantile(matrix, (0.5, 0.9, 0.99), axis=1)
    total, count = matrix.sum(1), np.full(len(matrix), matrix.shape[1])
    return [
        matrix.mean(1), matrix.std(1, ddof=1), matrix.min(1), matrix.max(1), count, total, quantiles, matrix[:, -1],
    ]  # fmt: skip


def recorders(name: str) -> dict[str, Contestant]:
    """Who takes part for one way to call."""
    count, calls = ways()[name]
    return {"declog": Calling(profile(count), calls), "copies": Copying(calls)}
