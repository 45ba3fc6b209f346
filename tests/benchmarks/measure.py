"""How the benchmarks measure: contestants in turn on one thread, medians of ratios, live tensor memory.

Times are CPU times of a thread, so that other processes of the machine are not in them. Imports torch only.
"""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Batch = Mapping[str, Any]
PAUSE_S = 0.0005  # after a log event, for all alike: a training loop then does something else, and caches are cold


class Contestant(Protocol):
    """A way to log each ``every`` steps: ``step`` is what a training loop calls, ``settle`` is not measured."""

    every: int

    def step(self, batch: Batch) -> object:
        """One optimizer step's values."""

    def settle(self) -> float:
        """Wait until nothing runs in the background; its CPU seconds so far."""


@dataclass
class Times:
    """Seconds per step of one contestant, by round."""

    training: list[float]
    background: list[float]

    @property
    def whole(self) -> list[float]:
        """Both threads together."""
        return [a + b for a, b in zip(self.training, self.background, strict=True)]


def race(
    contestants: Mapping[str, Contestant], batches: Sequence[Batch], *, steps: int, rounds: int
) -> dict[str, Times]:
    """Each contestant in turn, ``rounds`` times ``steps`` steps, the turns rotated: A B C, B C A, C A B, ..."""
    names = list(contestants)
    times = {name: Times([], []) for name in names}
    for turn in range(-1, rounds):  # the first is for warming up
        for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
            training, background = _turn(contestants[name], batches, steps)
            if turn >= 0:
                times[name].training.append(training / steps)
                times[name].background.append(background / steps)
    return times


def _turn(contestant: Contestant, batches: Sequence[Batch], steps: int) -> tuple[float, float]:
    gc.collect()
    before = contestant.settle()
    spent = 0.0
    for place in range(steps):
        batch = batches[place % len(batches)]
        start = time.thread_time()
        contestant.step(batch)
        spent += time.thread_time() - start
        if (place + 1) % contestant.every == 0:
            contestant.settle()
            time.sleep(PAUSE_S)
    return spent, contestant.settle() - before


def ratio(upper: Sequence[float], lower: Sequence[float]) -> float:
    """The median of the ratios, round by round."""
    return statistics.median(a / b for a, b in zip(upper, lower, strict=True))


def micros(seconds: Sequence[float]) -> float:
    """The median in microseconds."""
    return statistics.median(seconds) * 1e6


class _Live(TorchDispatchMode):
    """Counts the bytes of tensors that operators make and somebody still holds, but for small ones."""

    def __init__(self, least: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self._least = least
        self.peak: int = 0
        self._sizes: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {StorageWeakRef(item.untyped_storage()) for item in tree_leaves((args, kwargs)) if _is_tensor(item)}
        result = func(*args, **(kwargs or {}))
        for item in tree_leaves(result):
            if _is_tensor(item):
                storage = item.untyped_storage()
                ref = StorageWeakRef(storage)
                if storage.nbytes() >= self._least and ref not in given:  # a view, or a result in place, is nothing new
                    self._sizes[ref] = storage.nbytes()
        self._sizes = {ref: size for ref, size in self._sizes.items() if not ref.expired()}
        self.peak = max(self.peak, sum(self._sizes.values()) + tracemalloc.get_traced_memory()[0])
        return result


def _is_tensor(item: object) -> bool:
    return isinstance(item, torch.Tensor)


def peak_bytes(run: Callable[[], object], least: int) -> int:
    """The most bytes of numpy's arrays and of tensors of ``least`` bytes and more that ``run`` held at one time.

    It is called twice, and measured the second time: the first one imports and learns.
    """
    with _Live(least):
        run()
    live = _Live(least)
    tracemalloc.start()
    try:
        with live:
            run()
        return max(live.peak, tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


class Aims:
    """What is aimed at and what came: lines of the table with which `make bench` ends."""

    HEADING = "What is aimed at"

    def __init__(self) -> None:
        self._rows: list[tuple[str, str, str, str]] = []

    def most(self, what: str, limit: float, found: Sequence[float], unit: str = "") -> None:
        """Each of what came should be at most so much."""
        self._add(what, f"at most {limit:g}{unit}", found, sum(value <= limit for value in found), unit)

    def least(self, what: str, limit: float, found: Sequence[float], unit: str = "") -> None:
        """Each of what came should be at least so much."""
        self._add(what, f"at least {limit:g}{unit}", found, sum(value >= limit for value in found), unit)

    def _add(self, what: str, aim: str, found: Sequence[float], met: int, unit: str) -> None:
        if not found:
            return
        ends = dict.fromkeys(f"{value:.2f}" if value < 10 else f"{value:.0f}" for value in (min(found), max(found)))
        count = f"{met} of {len(found)}" if 0 < met < len(found) else "yes" if met else "no"
        self._rows.append((what, aim, " to ".join(ends) + unit, count))

    def print(self) -> None:
        """All lines."""
        section(self.HEADING, ("what", "aim", "now", "met"), self._rows)


def section(title: str, head: Sequence[str], rows: Sequence[Sequence[object]], *notes: str) -> None:
    """Print a table under a heading, with what is to be said about it below."""
    print(f"\n### {title}\n")
    print(table(head, rows), *notes, sep="\n\n", flush=True)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows as a Markdown table."""
    cells = [[str(item) for item in row] for row in (head, *rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(head))]
    lines = ["| " + " | ".join(item.rjust(width) for item, width in zip(row, widths, strict=True)) + " |"
             for row in cells]  # fmt: skip
    lines.insert(1, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
    return "\n".join(lines)
