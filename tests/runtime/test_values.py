"""What a trainer reads back: the values of a log event on every rank, durations of blocks, declog's own cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import declog
from declog.errors import CommError
from declog.records import Records, RunInfo
from declog.runtime.ranks.comm import Comm, Event
from declog.sinks import Sink
from declog.testing import FakeComm, MemorySink, run_ranks
from tests.forks import PATIENCE_S
from tests.running import profile, run

REWARD = {"reward": {"axis": "completion"}}


def test_every_rank_reads_the_values_of_all(tmp_path: Path) -> None:
    """`flush(wait_s=...)` returns the pooled scalars on every rank, of train and of eval."""
    config = profile(
        REWARD, {"reward": {"expr": "reward", "reduce": ["mean", "max"]}},
        every="trainer", modes={"train": {}, "eval": {"prefix": "eval_", "every": "end"}},
    )  # fmt: skip
    sink = MemorySink()

    def body(comm: FakeComm) -> list[Any]:
        with declog.start(config, sinks=[sink] if comm.rank == 0 else [], output_dir=tmp_path, comm=comm) as log:
            with log.step(1):
                log.observe(reward=torch.arange(3.0) + 3 * comm.rank)
            found = [log.flush(wait_s=30)]
            with log.mode("eval"):
                log.observe(reward=[10.0 + comm.rank])
                found.append(log.flush(wait_s=30))
            found.append(log.flush(wait_s=30))
        return found

    expected = [{"reward/mean": 4.0, "reward/max": 8.0}, {"eval_reward/mean": 11.0, "eval_reward/max": 12.0}, {}]
    assert run_ranks(3, body) == [expected] * 3
    assert [(records.mode, len(records.scalars)) for _, records in sink.events] == [("train", 2), ("eval", 2)]


@pytest.mark.parametrize("slow", [0, 1])
def test_an_answer_that_is_late_costs_no_rows(slow: int, tmp_path: Path) -> None:
    """Where one rank is slow, `flush` of the other returns None when its time is over; the rows of both are logged."""
    config = profile(REWARD, {"reward": "mean(reward)"}, every="trainer", run={"strict": False})
    release = threading.Event()
    sink = MemorySink()

    def body(comm: FakeComm) -> Any:
        with declog.start(config, sinks=[sink] if comm.rank == 0 else [], output_dir=tmp_path, comm=comm) as log:
            with log.step(1):
                log.observe(reward=[float(comm.rank)])
            if comm.rank == slow:
                release.wait(30)
            found = log.flush(wait_s=30 if comm.rank == slow else 0.05)
            release.set()
            return found

    assert run_ranks(2, body) == [{"reward": 0.5} if rank == slow else None for rank in range(2)]
    assert sink.scalars == {1: {"reward": 0.5}}


class Unconnected(FakeComm):
    """A rank whose connection breaks at its first message."""

    def send(self, event: Event, data: bytes) -> None:
        raise CommError("DL603", "the connection is lost")


def test_a_rank_without_connection_gets_none(tmp_path: Path) -> None:
    """And does not wait for it; rank 0's say of how many ranks they are."""
    config = profile(REWARD, {"reward": "mean(reward)"}, every="trainer", run={"strict": False})

    def body(comm: FakeComm) -> Any:
        used: Comm = Unconnected(comm._store, comm.rank, comm.world_size) if comm.rank else comm
        with declog.start(config, sinks=[MemorySink()], output_dir=tmp_path, comm=used, wait_s=0.2) as log:
            with log.step(1):
                log.observe(reward=[float(comm.rank)])
            return log.flush(wait_s=60)

    assert run_ranks(2, body, timeout_s=PATIENCE_S) == [{"reward": 0.0, "declog/ranks": 1}, None]


def test_blocks_are_timed(tmp_path: Path) -> None:
    """Seconds, summed by name within a step, reduced over steps like any value per step."""
    config = profile(
        {"loss": {"axis": "step"}},
        {
            "loss": "mean(loss)",
            "time": {
                "expr": "timers",
                "reduce": [{"n": "count"}, "max", "sum"],
                "name": "t/{member}/{reduce}",
            },
        },
        every=2,
        signals={"timing": {"timers": {"axis": "step", "family": True}}},
    )

    def body(log: declog.Recorder) -> None:
        for step in range(2):
            with log.step(step):
                for _ in range(3):
                    with declog.timer("generate"):
                        time.sleep(0.01)
                with log.timer("update"):
                    log.observe(loss=1.0)

    (found,) = run(config, body, tmp_path).scalars.values()
    assert found["t/generate/n"] == found["t/update/n"] == 2
    assert 0.03 <= found["t/generate/max"] < found["t/generate/sum"]
    assert 0.0 < found["t/update/max"] < found["t/update/sum"]


def test_blocks_are_timed_without_a_signal_for_them(tmp_path: Path) -> None:
    """They are logged as log_metric's values are; outside a run nothing happens."""
    with declog.timer("nothing"):
        pass

    def body(log: declog.Recorder) -> None:
        with log.step(0):
            log.observe(loss=1.0)
            with declog.timer("generate"):
                time.sleep(0.01)

    found = run(profile({"loss": {"axis": "step"}}, {"loss": "mean(loss)"}), body, tmp_path).scalars[0]
    assert found.keys() == {"loss", "time/generate"}
    assert found["time/generate"] >= 0.01


class Slow:
    """A sink that takes its time."""

    accepts: ClassVar[frozenset[str]] = frozenset({"scalar"})

    def open(self, run: RunInfo) -> None:
        self.release = threading.Event()

    def write(self, step: int, records: Records) -> None:
        self.release.wait(30)

    def close(self) -> None:
        return None


def test_declog_says_what_it_costs(tmp_path: Path) -> None:
    """In profiles that ask: times, what waits in queues, missing values; the greatest of all ranks."""
    config = profile(
        REWARD,
        {"reward": "mean(reward)"},
        run={"strict": False},
        profiles={"full": {"self_metrics": True}, "slim": {"show": ["reward"]}},
    )
    sink = MemorySink()

    def body(comm: FakeComm) -> None:
        slow = Slow()
        sinks: list[Sink] = [sink, slow] if comm.rank == 0 else []
        with declog.start(config, sinks=sinks, output_dir=tmp_path, comm=comm) as log:
            for step in range(3):
                with log.step(step):
                    log.observe(reward=[1.0, float("nan")])
            log.flush(wait_s=30)
            if comm.rank == 0:
                slow.release.set()

    run_ranks(2, body)
    names = {
        "observe_us", "flush_us", "worker_ms", "backlog", "backlog_bytes", "queue_bytes", "unsent", "dropped", "late",
        "skipped",
    }  # fmt: skip
    for values in sink.scalars.values():
        assert values.keys() == {"reward", *(f"declog/{name}" for name in names)}
        assert values["declog/skipped"] == 2 and values["declog/dropped"] == 0
        assert values["declog/observe_us"] > 0 and values["declog/worker_ms"] > 0
    assert sink.scalars[2]["declog/queue_bytes"] > 0
    found = run({**config, "profile": "slim"}, _one, tmp_path)
    assert found.scalars == {0: {"reward": 1.0}}


def _one(log: declog.Recorder) -> None:
    with log.step(0):
        log.observe(reward=[1.0])


@pytest.mark.parametrize(
    ("of_rank", "same"),
    [
        (lambda rank: [1.0, 2.0], True), (lambda rank: [1.0, 2.0 + rank], False),
        (lambda rank: [float(rank)] * 2, False), (lambda rank: [0.0, 0.0], False),
    ],
    ids=["equal", "different", "constants that differ", "equal constants, which may be chance"],
)  # fmt: skip
def test_ranks_that_hold_the_same_rows_are_reported(
    of_rank: Callable[[int], list[float]], same: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As tensor-parallel ranks do: each row would count twice. A signal that never came is no row that varies."""
    signals = {**REWARD, "length": {"axis": "completion"}}
    config = profile(signals, {"reward": "mean(reward)", "both": "mean(reward + length)"})

    def body(comm: FakeComm) -> None:
        with declog.start(config, sinks=[MemorySink()], output_dir=tmp_path, comm=comm) as log:
            for step in range(3):
                with log.step(step):
                    log.observe(reward=of_rank(comm.rank))

    run_ranks(2, body)
    assert caplog.text.count("DL606") == same


RANKS_WITH_ROWS: dict[str, tuple[set[tuple[int, int]], str]] = {  # ranks and their steps with rows; who is noted
    "rank 0 alone": (
        {(0, step) for step in range(5)},
        "rank 1 and 2 observed no rows of `default` where rank 0 did (3",
    ),
    "rank 0 alone, in one step": ({(0, 0)}, "rank 1 and 2 observed no rows of `default` where rank 0 did (1"),
    "the first rank of each node": ({(rank, step) for rank in (0, 2) for step in range(5)}, "rank 1 observed no rows"),
    "all": ({(rank, step) for rank in range(3) for step in range(5)}, ""),
    "each rank in other steps": ({(rank, step) for rank in range(3) for step in range(5) if (rank + step) % 3}, ""),
    "a rank other than 0": ({(1, step) for step in range(5)}, ""),
    "nobody": (set(), ""),
}


@pytest.mark.parametrize("case", RANKS_WITH_ROWS)
def test_ranks_without_rows_are_noted(case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Class: `if rank == 0:` or `if local_rank == 0:` around `observe`. It is said once, with both readings."""
    (with_rows, said), config = RANKS_WITH_ROWS[case], profile(REWARD, {"reward": "mean(reward)"})

    def body(comm: FakeComm) -> None:
        with declog.start(config, sinks=[MemorySink()], output_dir=tmp_path, comm=comm) as log:
            for step in range(5):
                with log.step(step):
                    if (comm.rank, step) in with_rows:
                        log.observe(reward=[1.0, 2.0 + comm.rank + step])

    run_ranks(3, body)
    notes = [text for record in caplog.records if (text := record.getMessage()).startswith("note: ")]
    assert len(notes) == bool(said) and said in "".join(notes)
