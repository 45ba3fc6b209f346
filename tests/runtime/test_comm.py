"""The star of ranks over a real TCPStore: long messages, ranks that are late, and ranks that leave."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch.distributed as dist

from declog.errors import CommError, UsageError
from declog.runtime.ranks import store_comm as comm
from declog.runtime.ranks.comm import Comm, Event
from declog.runtime.ranks.store_comm import CHUNK, StoreComm

HOURS = 3600.0  # a deadline that no test could wait for


def job_store() -> Any:
    """The store that a training job has, in this process."""
    return dist.HashStore()  # type: ignore[attr-defined]  # torch does not declare it


@pytest.fixture
def ranks() -> Iterator[list[StoreComm]]:
    """Three ranks of one job, each with its own connection."""
    job = job_store()
    made: dict[int, StoreComm] = {}

    def connect(rank: int) -> None:
        made[rank] = StoreComm.connect(rank, 3, job, 10.0, "test")

    together([lambda rank=rank: connect(rank) for rank in range(3)])  # type: ignore[misc]
    yield [made[rank] for rank in range(3)]
    for rank in (1, 2, 0):
        made[rank].close()


def together(calls: list[Callable[[], object]]) -> None:
    """Run calls at the same time; one that does not end in time is an error."""
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    assert not any(thread.is_alive() for thread in threads), "a call waits for ever"


def received(rank_0: StoreComm, number: int, deadline_s: float) -> list[bytes | None]:
    """What rank 0 receives, unless it waits too long."""
    found: list[bytes | None] = []
    together([lambda: found.extend(rank_0.receive(Event("train", number), deadline_s))])
    return found


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 17])
def test_messages_of_any_length_arrive_whole(size: int, ranks: list[StoreComm]) -> None:
    """A store takes values up to 8 MiB; longer messages travel in pieces, and nothing stays behind."""
    keys = len(ranks[0]._store)
    data = [bytes([rank]) * size for rank in (1, 2)]
    ranks[1].send(Event("train", 0), data[0])
    ranks[2].send(Event("train", 0), data[1])
    assert received(ranks[0], 0, HOURS) == data
    assert len(ranks[0]._store) == keys


def test_all_know_what_each_said(ranks: list[StoreComm]) -> None:
    """`agree` gives every rank every text, in the order of ranks."""
    reported: dict[int, list[str]] = {}
    together([lambda rank=rank: reported.update({rank: ranks[rank].agree("t", f"é{rank}", 10.0)}) for rank in range(3)])  # type: ignore[misc]
    assert reported == {rank: ["é0", "é1", "é2"] for rank in range(3)}


def test_a_rank_that_says_nothing_is_named(ranks: list[StoreComm]) -> None:
    """`agree` ends with the ranks that did not come."""
    with pytest.raises(CommError) as error:
        ranks[0].agree("t", "x", 0.1)
    assert str(error.value) == (
        "[DL603] ranks [1, 2] did not start declog within 0.1 s\n"
        "  fix: call declog.start, and enter the block of each step, `with log.step(k):`, on every rank"
    )


def test_who_waits_at_the_start_says_for_whom(
    ranks: list[StoreComm], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Long before it is an error: nobody can know whether the others will come."""
    monkeypatch.setattr(comm, "NOTICE_S", 0.05)
    with caplog.at_level("WARNING", "declog"), pytest.raises(CommError, match=r"ranks \[1, 2\] did not start declog"):
        ranks[0].agree("t", "x", 0.2)
    assert [record.getMessage() for record in caplog.records] == [
        "rank 0 waits for ranks [1, 2] to start declog, 0.2 s at most: "
        "declog.start, or declog.attach, is called on every rank"
    ]


def test_a_slow_rank_costs_one_wait_until_it_is_back(ranks: list[StoreComm]) -> None:
    """After a missed deadline a rank is only checked; when what it missed arrives, it is waited for again."""
    for event in range(2):
        ranks[1].send(Event("train", event), b"1")
    assert received(ranks[0], 0, 0.05) == [b"1", None]
    assert received(ranks[0], 1, HOURS) == [b"1", None]
    for event in range(3):
        ranks[2].send(Event("train", event), b"2")
    ranks[1].send(Event("train", 2), b"1")
    assert received(ranks[0], 2, HOURS) == [b"1", b"2"]
    assert (ranks[0].late, ranks[0]._suspects) == (2, set())


def test_a_mode_that_a_rank_never_enters_says_nothing_of_its_others(ranks: list[StoreComm]) -> None:
    """Where rank 0 evaluates alone: the class of waits for one mode after a deadline of another was missed."""
    for rank in (1, 2):
        ranks[rank].send(Event("train", 0), b"0")
    assert received(ranks[0], 0, HOURS) == [b"0", b"0"]
    assert ranks[0].receive(Event("eval", 0), 0.05) == [None, None]
    assert (ranks[0].absent("eval"), ranks[0].absent("train")) == ([1, 2], [])
    send = [partial(ranks[rank].send, Event("train", 1), b"1") for rank in (1, 2)]
    timers = [threading.Timer(0.2, one) for one in send]
    for timer in timers:
        timer.start()
    assert received(ranks[0], 1, HOURS) == [b"1", b"1"]  # both are waited for
    for timer in timers:
        timer.join()  # a rank sends from one thread at a time
    ranks[1].send(Event("train", 2), b"2")
    assert received(ranks[0], 2, 0.05) == [b"2", None]  # one that is missed in training is not waited for anywhere
    assert ranks[0].receive(Event("test", 0), 0.05) == [None, None]
    assert ranks[0].receive(Event("test", 1), HOURS) == [None, None]


def test_a_rank_that_left_costs_no_wait(ranks: list[StoreComm]) -> None:
    """What it sent before is taken; after that the others are enough."""
    ranks[1].send(Event("train", 0), b"last")
    ranks[1].close()
    for event in range(2):
        ranks[2].send(Event("train", event), b"2")
    assert received(ranks[0], 0, HOURS) == [b"last", b"2"]
    assert received(ranks[0], 1, HOURS) == [None, b"2"]


def test_rank_0_must_start(ranks: list[StoreComm]) -> None:
    """A rank does not wait for ever for rank 0's address."""
    with pytest.raises(CommError) as error:
        StoreComm.connect(1, 2, job_store(), 0.1, "nobody")
    assert str(error.value) == (
        "[DL603] rank 1 waited 0.1 s for rank 0 to start declog\n"
        "  fix: call declog.start, and enter the block of each step, `with log.step(k):`, on every rank"
    )


def test_one_process_needs_no_store() -> None:
    """Without a job there is nobody to talk to."""
    found = comm.connect()
    assert isinstance(found, Comm)
    assert (found.agree("t", "x", HOURS), found.receive(Event("train", 0), HOURS)) == (["x"], [])


@pytest.mark.parametrize(
    ("rank", "size", "message"),
    [
        (2, 2, "[DL510] rank 2 is not below world_size 2\n  fix: pass the data-parallel rank and size"),
        (0, 2, "[DL510] there are several ranks, and no process group\n"
         "  fix: call torch.distributed.init_process_group before declog.start"),
    ],
)  # fmt: skip
def test_ranks_that_cannot_be(rank: int, size: int, message: str) -> None:
    """A rank outside the job, and a job without a store, are reported at the start."""
    with pytest.raises(UsageError) as error:
        comm.connect(rank, size)
    assert str(error.value) == message


def test_interrupting_shuts_no_connection_of_others() -> None:
    """Whoever connects to anything while a rank connects, a tracker or a client of data, goes on."""
    job = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    made: list[socket.socket] = []
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as server:

        def others() -> None:
            while not stop.is_set():
                made.append(socket.create_connection(server.getsockname()))
                time.sleep(0.0005)

        thread = threading.Thread(target=others)
        thread.start()
        ranks = [StoreComm.connect(rank, 2, job, 10.0, "others") for rank in range(2)]
        stop.set()
        thread.join()
        ranks[1].interrupt()
        sent = [one.send(b"x") for one in made]
        assert sent == [1] * len(made) and made
        job.set("a", "b")
        assert job.get("a") == b"b"
        for one in made:
            one.close()
    with pytest.raises(CommError, match="the connection of rank 1 to rank 0 is lost"):
        ranks[1].send(Event("train", 0), b"")
    for rank in reversed(ranks):
        rank.close()
