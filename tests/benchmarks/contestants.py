"""The ways to log that are compared: declog, and torchmetrics as it is used beside a training loop."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torchmetrics

import declog
from declog.records import Records, RunInfo
from tests.benchmarks.measure import Batch

Tensor = torch.Tensor


class CountingSink:
    """Takes scalars, keeps the last ones, and tells how many log events came."""

    accepts: ClassVar[frozenset[str]] = frozenset({"scalar", "table"})

    def __init__(self) -> None:
        self.events = threading.Semaphore(0)
        self.last: dict[str, float] = {}

    def open(self, run: RunInfo) -> None:
        return None

    def write(self, step: int, records: Records) -> None:
        self.last = {item.name: item.value for item in records.scalars}
        self.events.release()

    def close(self) -> None:
        return None


class Declog:
    """declog with a sink that does nothing; ``settle`` waits for the log events that are due."""

    def __init__(self, profile: Mapping[str, Any]) -> None:
        self._sink = CountingSink()
        self.every = int(profile["every"])
        others = set(threading.enumerate())
        self._folder = tempfile.TemporaryDirectory()
        self.log = declog.start(profile, sinks=[self._sink], output_dir=self._folder.name)
        (worker,) = (item for item in set(threading.enumerate()) - others if item.name == "declog-worker")
        assert worker.ident is not None
        self._clock = time.pthread_getcpuclockid(worker.ident)
        self._steps = 0
        self._settled = 0

    def step(self, batch: Batch) -> None:
        with self.log.step(self._steps):
            self.log.observe(**batch)
        self._steps += 1

    def settle(self) -> float:
        while self._settled < self._steps // self.every:
            self._sink.events.acquire()
            self._settled += 1
        time.sleep(0.0002)  # what the worker does after the hand-off to its sinks
        return time.clock_gettime(self._clock)

    def values(self, batches: Sequence[Batch]) -> dict[str, float]:
        """What is logged after these steps."""
        for batch in batches:
            self.step(batch)
        self.settle()
        return self._sink.last

    def close(self) -> None:
        self.log.close()
        self._folder.cleanup()


class ByHand:
    """Code of a training loop: ``step`` gives the numbers of this step, ``merge`` those of a window.

    With ``every`` above 1 and no ``merge``, the window's numbers are the means of the steps' numbers.
    """

    def __init__(self, compute: Callable[[Batch], Any], every: int, finish: Callable[[list[Any]], list[float]]) -> None:
        self._compute = compute
        self.every = every
        self._finish = finish
        self._window: list[Any] = []

    def step(self, batch: Batch) -> list[float]:
        self._window.append(self._compute(batch))
        if len(self._window) < self.every:
            return []
        window, self._window = self._window, []
        return self._finish(window)

    def settle(self) -> float:
        return 0.0


def averaged(window: list[list[float]]) -> list[float]:
    """The mean of each number over the steps of a window, as hand-written loggers do it."""
    return [sum(values) / len(values) for values in zip(*window, strict=True)]


class Std(torchmetrics.Metric):
    """The sample standard deviation, which torchmetrics lacks; a sum of squares, as its regression metrics keep."""

    n: Tensor
    total: Tensor
    squares: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("n", "total", "squares"):
            self.add_state(name, torch.zeros(()), dist_reduce_fx="sum")

    def update(self, value: Tensor) -> None:
        self.n += value.numel()
        self.total += value.sum()
        self.squares += (value * value).sum()

    def compute(self) -> Tensor:
        return ((self.squares - self.total**2 / self.n) / (self.n - 1)).sqrt()


_METRICS: Mapping[str, Callable[[], torchmetrics.Metric]] = {
    "mean": lambda: torchmetrics.MeanMetric(nan_strategy="disable"),  # no look for NaN: its fastest setting
    "std": Std,
    "min": lambda: torchmetrics.MinMetric(nan_strategy="disable"),
    "max": lambda: torchmetrics.MaxMetric(nan_strategy="disable"),
}


class Collections:
    """A ``MetricCollection`` per column, since a collection gives all its metrics the same arguments."""

    def __init__(
        self, columns: Callable[[Batch], Mapping[str, Tensor]], reductions: Mapping[str, Sequence[str]], every: int
    ) -> None:
        self._columns = columns
        self.every = every
        self._count = 0
        self._collections = {
            name: torchmetrics.MetricCollection({one: _METRICS[one]() for one in expected}, compute_groups=False)
            for name, expected in reductions.items()
        }

    def step(self, batch: Batch) -> dict[str, float]:
        columns = self._columns(batch)
        for name, collection in self._collections.items():
            collection.update(columns[name])
        self._count += 1
        if self._count % self.every:
            return {}
        values = {}
        for name, collection in self._collections.items():
            values.update({f"{name}/{key}": value for key, value in collection.compute().items()})
            collection.reset()
        return dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))

    def settle(self) -> float:
        return 0.0
