"""Packets in several hands: whoever consumes one decides it for all copies, and one that nobody reads is told once."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.runtime.recording.recorder import Recorder
from declog.testing import FakeComm, MemorySink, run_ranks
from tests.runtime.scopes.running import UNUSED

PROFILE: dict[str, Any] = {
    "run": {"name": "fates"},
    "signals": {"any": {"reward": {"axis": "completion"}}},
    "metrics": {"reward": "mean(reward)", "n": "count(reward)"},
}


def stored(*rewards: float) -> bytes:
    """A packet of a worker in another process, as an object store keeps it."""
    return pickle.dumps(declog.rows(reward=[*rewards]))


@pytest.mark.parametrize("lost", [0, 2])
@pytest.mark.parametrize("strict", [False, True])
def test_a_driver_that_looks_loses_nothing(strict: bool, lost: int, tmp_path: Path) -> None:
    """It reads what its trainer consumes; what nobody consumes is told once, by the driver."""
    sink, profile = MemorySink(), {**PROFILE, "run": {"strict": strict}}
    actor = declog.start(profile, role="actor", rank=0, world_size=1)
    driver = declog.start(profile, sinks=[sink], output_dir=tmp_path, role="driver", world_size=1)
    for step in range(3):
        packet = stored(1.0, 2.0)
        pickle.loads(packet)
        with actor.step(step):
            actor.observe(pickle.loads(packet))
        driver.merge([actor.export()])
    for _ in range(lost):
        pickle.loads(stored(5.0))
    actor.close()
    driver.merge([actor.export()])
    if lost and strict:
        with pytest.raises(declog.DeclogError, match="never observed"):
            driver.close()
    else:
        driver.close()
    assert [values["reward"] for values in sink.scalars.values()] == [1.5] * 3
    assert (dict(driver.failures), dict(actor.failures)) == ({UNUSED: lost} if lost else {}, {})


@pytest.mark.parametrize("lost", [False, True])
def test_ranks_share_packets(lost: bool, tmp_path: Path) -> None:
    """Each gets all of them and observes its own; what none observes is told once."""
    made = [[stored(float(10 * step + place)) for place in range(4)] for step in range(3)]
    sink, failures = MemorySink(), {}

    def rank(comm: FakeComm) -> None:
        with declog.start(PROFILE, sinks=[sink] if comm.rank == 0 else [], comm=comm, output_dir=tmp_path) as log:
            for step in range(3):
                with log.step(step):
                    batch = [pickle.loads(data) for data in made[step]]
                    log.observe(
                        *[one for place, one in enumerate(batch) if place % 2 == comm.rank and place + lost < 4]
                    )
        failures[comm.rank] = dict(log.failures)

    run_ranks(2, rank)
    assert [values["n"] for values in sink.scalars.values()] == [4 - lost] * 3
    assert sorted((name, count) for found in failures.values() for name, count in found.items()) == [(UNUSED, 3)] * lost


@pytest.mark.parametrize("steps", [3, 4])
@pytest.mark.parametrize("ranks", [1, 2])
def test_lost_packets_are_logged(ranks: int, steps: int, tmp_path: Path) -> None:
    """The last log event says how many rows they had, of all ranks, also where its window has no rows of its own."""
    sink, failures = MemorySink(), {}

    def rank(comm: FakeComm) -> None:
        profile = {**PROFILE, "every": 2}
        with declog.start(profile, sinks=[sink] if comm.rank == 0 else [], comm=comm, output_dir=tmp_path) as log:
            for step in range(steps):
                packets = [declog.rows(reward=[1.0, 2.0]), declog.rows(reward=[5.0] * (comm.rank + 1))]
                with log.step(step):
                    log.observe(packets[0])
        failures[comm.rank] = dict(log.failures)

    run_ranks(ranks, rank)
    rows = steps * sum(range(1, ranks + 1))
    assert {step: values.get("declog/dropped") for step, values in sink.scalars.items()} == {1: None, steps - 1: rows}
    assert failures == {0: {UNUSED: rows}} | {rank: {} for rank in range(1, ranks)}


def test_messages_say_what_was_consumed() -> None:
    """Between processes: what one has waiting and another one consumed is not lost, in whatever order they say it."""
    from declog.runtime.rows.packets import Fate, Fates

    for order in range(2):
        rank_0, rank_1 = Fates(), Fates()
        rank_0.open(1, collects=True)
        rank_1.open(2, collects=False)
        for fates in (rank_0, rank_1):
            for name in ("a", "b", "c"):
                fates.came(Fate(name, "here", 2))
        rank_0.consumed(["a"])
        rank_1.consumed(["b"])
        told = [rank_1.told(last=False), rank_1.told(last=True)]
        assert told == [(["b"], []), ([], [Fate("a", "here", 2), Fate("c", "here", 2)])]
        for consumed, waiting in told if order else reversed(told):
            rank_0.heard(consumed, waiting)
        assert rank_0.close(1, certain=True) == [Fate("c", "here", 2)]
        assert rank_0.close(1, certain=True) == []


def test_two_recorders_share_packets(tmp_path: Path) -> None:
    """Whoever is open when a packet is made, the one that consumes it decides; a lost one is told by the last."""

    def start(name: str) -> Recorder:
        return declog.start({**PROFILE, "run": {"name": name}}, sinks=[MemorySink()], output_dir=tmp_path / name)

    with start("train") as train:
        with start("probe") as probe:
            packet = declog.rows(reward=[1.0, 2.0])
            declog.rows(reward=[3.0])
        with train.step(0):
            train.observe(packet)
    assert (dict(probe.failures), dict(train.failures)) == ({}, {UNUSED: 1})


def test_a_window_goes_out_without_another_call(tmp_path: Path) -> None:
    """After `wait_s`, though nobody calls, without the scope that it waited for; what comes then is late."""
    sink = MemorySink()
    with declog.start(PROFILE, sinks=[sink], output_dir=tmp_path, wait_s=0.5) as log:
        slow = log.at(0)
        slow.__enter__()
        with log.step(0):
            log.observe(reward=[1.0])
        assert sink.scalars == {}
        end = time.monotonic() + 60
        while not sink.scalars and time.monotonic() < end:
            time.sleep(0.02)
        assert sink.scalars[0]["n"] == 1
        slow.observe(reward=[5.0])
        slow.__exit__(None, None, None)
    assert [name.partition("]")[0] for name in log.failures] == ["[DL513", "[DL513"]
    assert sink.scalars[0]["n"] == 1
