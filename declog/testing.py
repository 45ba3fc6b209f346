"""For tests, yours and declog's: a sink that remembers, and many ranks in one process."""

from __future__ import annotations

import threading
import time
from typing import ClassVar

from declog.records import Records, RunInfo, Table


class MemorySink:
    """Keeps what it gets. ``events`` are (step, records) in the order of writing."""

    accepts: ClassVar[frozenset[str]] = frozenset({"scalar", "histogram", "table", "alert"})

    def __init__(self) -> None:
        self.run: RunInfo | None = None
        self.events: list[tuple[int, Records]] = []
        self.closed = False

    def open(self, run: RunInfo) -> None:
        self.run = run

    def write(self, step: int, records: Records) -> None:
        self.events.append((step, records))

    def close(self) -> None:
        self.closed = True

    @property
    def scalars(self) -> dict[int, dict[str, float]]:
        """Values by step and name."""
        return {step: {item.name: item.value for item in records.scalars} for step, records in self.events}

    def tables(self, name: str) -> list[tuple[int, Table]]:
        """The tables of one name, with their steps."""
        return [(step, table) for step, records in self.events for table in records.tables if table.name == name]


class FakeComm:
    """The ranks of one job, as objects of one process: ``FakeComm.job(4)``."""

    def __init__(self, rank: int, world_size: int, shared: _Shared) -> None:
        self.rank = rank
        self.world_size = world_size
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
            self._shared.changed.wait_for(lambda: len(told) == self.world_size, deadline_s)
            return [told[rank] for rank in range(self.world_size)]

    def send(self, event: int, data: bytes) -> None:
        with self._shared.changed:
            self._shared.messages[event, self.rank] = data
            self._shared.sent += 1
            self._shared.changed.notify_all()

    def receive(self, event: int, deadline_s: float) -> list[bytes | None]:
        keys = [(event, rank) for rank in range(1, self.world_size)]
        end = time.monotonic() + deadline_s
        with self._shared.changed:
            self._shared.changed.wait_for(
                lambda: all(key in self._shared.messages for key in keys), end - time.monotonic()
            )
            return [self._shared.messages.pop(key, None) for key in keys]

    def close(self) -> None:
        return None


class _Shared:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.told: dict[str, dict[int, str]] = {}
        self.messages: dict[tuple[int, int], bytes] = {}
        self.sent = 0
