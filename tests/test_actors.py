"""Actors that export their windows as bytes, and a driver that merges them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import declog
from declog.errors import CommError, PlanMismatchError, UsageError
from declog.recorder import Recorder
from declog.testing import FakeComm, MemorySink, run_ranks
from tests.running import profile

CONFIG = profile(
    {"reward": {"axis": "completion"}, "text": {"axis": "completion", "type": "text"}},
    {"reward": "mean(reward)", "p05": "p05(reward)", "slow": {"expr": "reward", "reduce": "max", "every": 4}},
    every=2,
    filters={"best": {"kind": "top_bottom", "key": "reward", "top": 1, "bottom": 1, "within": "step"}},
    schemas={"s": {"text": {"type": "text"}, "reward": {"type": "float"}}},
    tables={"best": {"schema": "s", "filter": "best"}},
)
ACTORS = 4


def step(log: Recorder, number: int, rank: int) -> None:
    """A step of one actor."""
    rewards = torch.randn(3, generator=torch.Generator().manual_seed(100 * number + rank))
    with log.step(number):
        log.observe(reward=rewards, text=[f"{number}.{rank}.{row}" for row in range(3)])


def expected(folder: Path, steps: int = 7) -> list[Any]:
    """What the same work logs on as many ranks."""
    sink = MemorySink()

    def body(comm: FakeComm) -> None:
        with declog.start(CONFIG, sinks=[sink] if comm.rank == 0 else [], output_dir=folder, comm=comm) as log:
            for number in range(steps):
                step(log, number, comm.rank)

    run_ranks(ACTORS, body)
    return plain(sink)


def plain(sink: MemorySink) -> list[Any]:
    """Records without their wall time."""
    return [(at, {item.name: item.value for item in records.scalars}, records.tables) for at, records in sink.events]


def actors() -> list[Recorder]:
    return [declog.start(CONFIG, role="actor", rank=rank, world_size=ACTORS) for rank in range(ACTORS)]


@pytest.mark.parametrize("every", [1, 2, 3])
def test_merged_exports_log_what_ranks_log(every: int, tmp_path: Path) -> None:
    """However often they are exported, and in whatever order they come; the tail comes with the last export."""
    sink = MemorySink()
    logs = actors()
    with declog.start(CONFIG, sinks=[sink], output_dir=tmp_path, role="driver", world_size=ACTORS):
        for number in range(7):
            for rank, log in enumerate(logs):
                step(log, number, rank)
            if number % every == every - 1:
                declog.merge([log.export() for log in reversed(logs)])
        for log in logs:
            log.close()
        declog.merge([log.export() for log in logs])
    assert plain(sink) == expected(tmp_path)


def test_an_actor_that_exports_late_is_waited_for(tmp_path: Path) -> None:
    """For two merges; all is logged in order, and complete."""
    sink = MemorySink()
    logs = actors()
    with declog.start(CONFIG, sinks=[sink], output_dir=tmp_path, role="driver", world_size=ACTORS) as driver:
        for number in range(6):
            for rank, log in enumerate(logs):
                step(log, number, rank)
            driver.merge([log.export() for log in logs[:3]])
            if number % 2:
                driver.merge([logs[3].export()])
        for log in logs:
            log.close()
        driver.merge([log.export() for log in logs])
    assert plain(sink) == expected(tmp_path, steps=6)


def test_an_actor_that_dies_is_missed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its rows are missing, which is said and marked; those of the others are logged."""
    sink = MemorySink()
    logs = actors()
    with declog.start(CONFIG, sinks=[sink], output_dir=tmp_path, role="driver", world_size=ACTORS) as driver:
        driver.plan.__dict__["strict"] = False
        for number in range(4):
            for rank, log in enumerate(logs[:3]):
                step(log, number, rank)
            driver.merge([log.export() for log in logs[:3]])
    (first, *_) = sink.events
    assert {item.name: item.value for item in first[1].scalars}["declog/ranks"] == 3
    assert all(item.partial for item in first[1].scalars if item.name != "declog/ranks")
    assert "actors [3] exported no window" in caplog.text
    for log in logs:
        log.close()


def test_exports_are_checked(tmp_path: Path) -> None:
    """Bytes that are no export, and exports of another plan, are refused where they are merged."""
    other = {**CONFIG, "metrics": {"reward": "max(reward)"}}
    with declog.start(CONFIG, sinks=[MemorySink()], output_dir=tmp_path, role="driver", world_size=2) as driver:
        with pytest.raises(CommError, match="no export of a recorder"):
            driver.merge([b"something"])
        with declog.start(other, role="actor", rank=1, world_size=2) as actor:
            data = actor.export()
        with pytest.raises(PlanMismatchError, match="actor 1 runs another plan"):
            driver.merge([data])
        with pytest.raises(CommError, match="no export of a recorder"):
            driver.merge([data[:-1] if len(data) > 60 else data + b"x"])
        with pytest.raises(UsageError, match="a driver records nothing"), driver.step(0):
            driver.observe(reward=[1.0])
        with pytest.raises(UsageError, match="`export` is for actors"):
            driver.export()
    with pytest.raises(UsageError, match="`role: actor` needs `rank` and `world_size`"):
        declog.start(CONFIG, role="actor")
