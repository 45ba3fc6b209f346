"""Many ranks in one process: threads that exchange as ranks do, for tests and for what is played again.

Imports the errors and the transport's types; neither torch nor the recorder.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from declog.errors import CommError
from declog.runtime.ranks.comm import Comm, Event

Result = TypeVar("Result")
IDLE_S = 0.1  # how often a rank that waits looks for notes


class FakeComm(Comm):
    """One rank of a job whose ranks are threads of one process; see ``run_ranks``."""

    def __init__(self, rank: int, world_size: int, shared: _Shared) -> None:
        self.rank = rank
        self.world_size = world_size
        self.process = str(rank)
        self.collects = rank == 0
        self._latest = math.inf  # the wait that is under way ends at this moment
        self._shared = shared

    @classmethod
    def job(cls, world_size: int) -> list[FakeComm]:
        """One comm per rank. Start the ranks' recorders from as many threads: ``start`` waits for all."""
        shared = _Shared()
        return [cls(rank, world_size, shared) for rank in range(world_size)]

    def agree(self, topic: str, text: str, deadline_s: float) -> list[str]:
        with self._shared.changed:
            votes = self._shared.votes.setdefault(topic, {})
            votes[self.rank] = text
            self._shared.changed.notify_all()
            if not self._shared.changed.wait_for(lambda: len(votes) == self.world_size, deadline_s):
                missing = [rank for rank in range(self.world_size) if rank not in votes]
                raise CommError.of("DL603.fake_ranks", missing=missing, deadline_s=f"{deadline_s:g}")
            return [votes[rank] for rank in range(self.world_size)]

    def send(self, event: Event, data: bytes) -> None:
        with self._shared.changed:
            self._shared.messages[event, self.rank] = data
            self._shared.sent += 1
            self._shared.changed.notify_all()

    def receive(self, event: Event, deadline_s: float) -> list[bytes | None]:
        messages, closed = self._shared.messages, self._shared.closed
        ranks = range(1, self.world_size)
        with self._shared.changed:
            end, self._latest = time.monotonic() + deadline_s, math.inf
            while not all((event, rank) in messages or rank in closed for rank in ranks):
                remaining = min(end, self._latest) - time.monotonic()
                if remaining <= 0:
                    break
                self.idle()
                self._shared.changed.wait(min(remaining, IDLE_S))
            return [messages.pop((event, rank), None) for rank in ranks]

    def drop(self, event: Event, rank: int) -> None:
        with self._shared.changed:
            self._shared.messages.pop((event, rank), None)

    def publish(self, event: Event, data: bytes) -> None:
        with self._shared.changed:
            self._shared.answers[event] = data
            self._shared.changed.notify_all()

    def answer(self, event: Event, deadline_s: float) -> bytes | None:
        with self._shared.changed:
            end = time.monotonic() + deadline_s
            while event not in self._shared.answers and 0 not in self._shared.closed:
                if (remaining := end - time.monotonic()) <= 0:
                    break
                self.idle()
                self._shared.changed.wait(min(remaining, IDLE_S))
            return self._shared.answers.get(event)

    def write_note(self, key: str, text: str) -> None:
        with self._shared.changed:
            self._shared.notes[key] = text

    def read_note(self, key: str) -> str | None:
        return self._shared.notes.get(key)

    def processes(self) -> list[str]:
        return [str(rank) for rank in range(self.world_size) if rank not in self._shared.closed]

    def shorten_waits(self, seconds: float) -> None:
        with self._shared.changed:
            self._latest = min(self._latest, time.monotonic() + seconds)
            self._shared.changed.notify_all()

    def close(self) -> None:
        with self._shared.changed:
            self._shared.closed.add(self.rank)
            self._shared.changed.notify_all()


class _Shared:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.votes: dict[str, dict[int, str]] = {}
        self.messages: dict[tuple[Event, int], bytes] = {}
        self.answers: dict[Event, bytes] = {}
        self.notes: dict[str, str] = {}
        self.closed: set[int] = set()
        self.sent = 0


def run_ranks(world_size: int, body: Callable[[FakeComm], Result], *, timeout_s: float = 60.0) -> list[Result]:
    """Run ``body`` once per rank, each on a thread with its comm, and return what they return, by rank.

    ``body`` is what a rank's process would do: ``declog.start(..., comm=comm)``, steps, ``close``. It calls the
    methods of its own recorder, since ``declog.observe`` finds recorders process-wide. The lowest failing
    rank's error is raised when all have ended; ranks that are still running after ``timeout_s`` are an error.
    """
    results: dict[int, Result] = {}
    errors: dict[int, BaseException] = {}

    def main(comm: FakeComm) -> None:
        try:
            results[comm.rank] = body(comm)
        except BaseException as error:  # noqa: BLE001  (raised below, in the caller's thread)
            errors[comm.rank] = error
        finally:
            comm.close()

    comms = FakeComm.job(world_size)
    threads = [threading.Thread(target=main, args=(comm,), name=f"rank-{comm.rank}", daemon=True) for comm in comms]
    for thread in threads:
        thread.start()
    end = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    if errors:  # reported first: others may hang because of it
        raise errors[min(errors)]
    hung = [comm.rank for comm, thread in zip(comms, threads, strict=True) if thread.is_alive()]
    if hung:
        raise TimeoutError(f"ranks {hung} did not end within {timeout_s:g} s")
    return [results[rank] for rank in range(world_size)]
