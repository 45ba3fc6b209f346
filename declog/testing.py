"""For tests, yours and declog's: a sink that remembers, many ranks in one process, a profile's own tests."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from declog.errors import CommError
from declog.records import Alert, Records, RunInfo, Table

if TYPE_CHECKING:
    from declog.replay.profile_tests import ProfileTest
    from declog.runtime.comm import Event

Result = TypeVar("Result")


class MemorySink:
    """Keeps what it gets. ``events`` are (step, records) in the order of writing."""

    accepts: ClassVar[frozenset[str]] = frozenset({"scalar", "histogram", "table", "alert"})

    def __init__(self) -> None:
        self.run: RunInfo | None = None
        self.events: list[tuple[int, Records]] = []
        self.closed = False

    def open(self, run: RunInfo) -> None:
        self.run = run

    def rewind(self, step: int) -> None:
        self.events = [event for event in self.events if event[0] <= step]

    def write(self, step: int, records: Records) -> None:
        self.events.append((step, records))

    def close(self) -> None:
        self.closed = True

    @property
    def scalars(self) -> dict[int, dict[str, float]]:
        """Values by step and name; two log events of one step together."""
        found: dict[int, dict[str, float]] = {}
        for step, records in self.events:
            found.setdefault(step, {}).update({item.name: item.value for item in records.scalars})
        return found

    @property
    def alerts(self) -> list[tuple[int, Alert]]:
        """The alerts, with their steps."""
        return [(step, alert) for step, records in self.events for alert in records.alerts]

    def tables(self, name: str) -> list[tuple[int, Table]]:
        """The tables of one name, with their steps."""
        return [(step, table) for step, records in self.events for table in records.tables if table.name == name]


class FakeComm:
    """One rank of a job whose ranks are threads of one process; see ``run_ranks``."""

    def __init__(self, rank: int, world_size: int, shared: _Shared) -> None:
        self.rank = rank
        self.world_size = world_size
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
            told = self._shared.told.setdefault(topic, {})
            told[self.rank] = text
            self._shared.changed.notify_all()
            if not self._shared.changed.wait_for(lambda: len(told) == self.world_size, deadline_s):
                missing = [rank for rank in range(self.world_size) if rank not in told]
                raise CommError("DL603", f"ranks {missing} did not start declog within {deadline_s:g} s")
            return [told[rank] for rank in range(self.world_size)]

    def send(self, event: Event, data: bytes) -> None:
        with self._shared.changed:
            self._shared.messages[event, self.rank] = data
            self._shared.sent += 1
            self._shared.changed.notify_all()

    def receive(self, event: Event, deadline_s: float) -> list[bytes | None]:
        messages, left = self._shared.messages, self._shared.left
        ranks = range(1, self.world_size)
        with self._shared.changed:
            end, self._latest = time.monotonic() + deadline_s, math.inf
            while not all((event, rank) in messages or rank in left for rank in ranks):
                remaining = min(end, self._latest) - time.monotonic()
                if remaining <= 0 or not self._shared.changed.wait(remaining):
                    break
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
            self._shared.changed.wait_for(lambda: event in self._shared.answers or 0 in self._shared.left, deadline_s)
            return self._shared.answers.get(event)

    def hurry(self, seconds: float) -> None:
        with self._shared.changed:
            self._latest = min(self._latest, time.monotonic() + seconds)
            self._shared.changed.notify_all()

    def interrupt(self) -> None:
        return None

    def close(self) -> None:
        with self._shared.changed:
            self._shared.left.add(self.rank)
            self._shared.changed.notify_all()


class _Shared:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.told: dict[str, dict[int, str]] = {}
        self.messages: dict[tuple[Event, int], bytes] = {}
        self.answers: dict[Event, bytes] = {}
        self.left: set[int] = set()
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
    if errors:  # told first: others may hang because of it
        raise errors[min(errors)]
    hung = [comm.rank for comm, thread in zip(comms, threads, strict=True) if thread.is_alive()]
    if hung:
        raise TimeoutError(f"ranks {hung} did not end within {timeout_s:g} s")
    return [results[rank] for rank in range(world_size)]


def profile_tests(
    config: Any,
    overrides: Sequence[str] = (),
    *,
    select: str = "",
    **registries: Any,
) -> list[ProfileTest]:
    """The entries of a profile's ``tests:``, each with a ``name`` and a method ``run``, for pytest's ``parametrize``.

    ``config`` is what ``declog.start`` takes: a preset's name (with ``overrides``), a composed config, a mapping.
    ``select`` is a part of the names, or a pattern; ``registries`` are ``functions``, ``reductions``, ``columns``, as
    ``start`` takes them. Raises ``ConfigError`` where the profile is wrong.
    """
    from declog.replay import profile_tests as found

    return found.profile_tests(config, overrides, select=select, **registries)


def run_profile_tests(
    config: Any,
    overrides: Sequence[str] = (),
    *,
    select: str = "",
    **registries: Any,
) -> list[str]:
    """Run a profile's tests and return their names; raises ``AssertionError`` with all that is not as expected.

    No test at all is an error, too. The arguments are those of ``profile_tests``.
    """
    tests = profile_tests(config, overrides, select=select, **registries)
    assert tests, "the profile has no test" + (f" like `{select}`" if select else "")
    results = [test.run() for test in tests]
    wrong = "\n\n".join(str(result) for result in results if not result.passed)
    assert not wrong, f"the profile does not log what its tests expect\n\n{wrong}"
    return [test.name for test in tests]
