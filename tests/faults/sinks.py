"""Sinks with one fault each, for profiles to name by `kind: tests.faults.sinks:...`."""

from __future__ import annotations

import threading
import time
from typing import ClassVar

from declog.records import Records, RunInfo
from tests.faults.strikes import STEPS


class Faulty:
    """Does nothing, until a subclass's fault."""

    accepts: ClassVar[frozenset[str]] = frozenset({"scalar"})

    def open(self, run: RunInfo) -> None:
        return None

    def write(self, step: int, records: Records) -> None:
        raise NotImplementedError

    def close(self) -> None:
        return None


class Raising(Faulty):
    """A backend that refuses everything."""

    def write(self, step: int, records: Records) -> None:
        raise ConnectionRefusedError("the backend is away")


class Blocked(Faulty):
    """A backend that never answers."""

    def write(self, step: int, records: Records) -> None:
        threading.Event().wait()


class Held(Faulty):
    """A backend that takes its time over its first log event: all others have come when it is done."""

    def open(self, run: RunInfo) -> None:
        self._lines = run.output_dir / "lines" / "scalars.jsonl"

    def write(self, step: int, records: Records) -> None:
        while self._written() < STEPS:
            time.sleep(0.05)

    def _written(self) -> int:
        """The log events in the other sink's file, which opens at its first one, perhaps after this sink's."""
        return len(self._lines.read_text().splitlines()) if self._lines.exists() else 0


class Slow(Faulty):
    """A backend that takes its time over the second log event."""

    def __init__(self, *, seconds: float = 3.0) -> None:
        self._seconds = seconds

    def write(self, step: int, records: Records) -> None:
        if step == 1:
            time.sleep(self._seconds)
