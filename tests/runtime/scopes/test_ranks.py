"""Asynchronous work on several ranks: what ranks agree on are edges; tasks are each rank's own matter."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink, run_ranks
from tests.runtime.scopes.running import collected

PROFILE: dict[str, Any] = {
    "run": {"name": "ranks"},
    "modes": {"train": {}, "eval": {"prefix": "eval/"}},
    "signals": {"any": {"x": {"axis": "completion"}}},
    "metrics": {"n": "count(x)", "sum": "sum(x)"},
}
turn = functools.partial(asyncio.sleep, 0)


async def turns(count: int) -> None:
    """Let others go on so many times."""
    for _ in range(count):
        await turn()


async def train(log: Recorder, rank: int) -> None:
    """Five steps with gaps, each prefetched one step ahead; evaluations that end in another order on each rank."""

    async def generate(step: int, delay: int) -> None:
        with log.at(step):
            for _ in range(rank + 1):
                await turns(delay)
                log.observe(x=[float(step)])

    async def evaluate(step: int, delay: int) -> None:
        with log.mode("eval", step=step):
            await turns(delay)
            log.observe(x=[100.0 * (rank + 1) + step])

    numbers = [0, 3, 4, 9, 10]
    ahead = [asyncio.create_task(generate(0, 1))]
    evaluations = []
    for place, step in enumerate(numbers):
        with log.step(step):
            if place < 2:
                delays = (10, 60) if rank % 2 else (120, 10)
                evaluations.append(asyncio.create_task(evaluate(step, delays[place])))
            await turns(1)
            log.observe(x=[0.5])
            if place + 1 < len(numbers):  # it may end long after the step that it is for
                ahead.append(asyncio.create_task(generate(numbers[place + 1], 3 + 9 * rank)))
                await turn()
    await asyncio.gather(*ahead, *evaluations)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("every", [1, 2])
def test_ranks_agree_on_edges(world_size: int, every: int, tmp_path: Path) -> None:
    """Windows have the rows of their steps of all ranks, in whatever order tasks were done on each."""
    sink = MemorySink()

    def rank(comm: Comm) -> dict[str, int]:
        sinks = [sink] if comm.rank == 0 else []
        with declog.start(
            {**PROFILE, "every": every}, sinks=sinks, output_dir=tmp_path / str(comm.rank), comm=comm
        ) as log:
            asyncio.run(train(log, comm.rank))
            return dict(log.failures)

    assert run_ranks(world_size, rank) == [{}] * world_size
    ranks = range(world_size)
    each = {step: (sum(r + 2 for r in ranks), sum(0.5 + (r + 1) * step for r in ranks)) for step in (0, 3, 4, 9, 10)}
    expected: dict[Any, Any] = {
        ("eval", step): (world_size, sum(100.0 * (r + 1) + step for r in ranks)) for step in (0, 3)
    }
    for window in ([0], [3], [4], [9], [10]) if every == 1 else ([0, 3], [4, 9], [10]):
        expected["train", window[-1]] = tuple(sum(each[step][part] for step in window) for part in (0, 1))
    assert collected(sink, {}).of("n", "sum") == expected


def test_ranks_whose_steps_differ_are_reported(tmp_path: Path) -> None:
    """A rank that ends another step than the others: its rows are left out, and marked."""
    sink = MemorySink()

    def rank(comm: Comm) -> list[str]:
        sinks = [sink] if comm.rank == 0 else []
        with declog.start(PROFILE, sinks=sinks, output_dir=tmp_path / str(comm.rank), comm=comm) as log:
            for step in (0, 1 + comm.rank, 5):
                with log.step(step):
                    log.observe(x=[1.0])
            log.flush(wait_s=20.0)
            return list(log.failures)

    (first, _) = run_ranks(2, rank)
    assert {step: values["n"] for step, values in sink.scalars.items()} == {0: 2, 1: 1, 5: 2}
    assert len(first) == 1
    assert "rank 1 sent another log event than this one (step 2" in first[0]
