"""Sinks with one fault each, for profiles to name by `kind: tests.faults.sinks:...`."""

from __future__ import annotations

import threading
import time
from typing import ClassVar

from declog.records import Records, RunInfo


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


class Slow(Faulty):
    """A backend that takes its time over the second log event."""

    def __init__(self, *, seconds: float = 3.0) -> None:
        self._seconds = seconds

    def write(self, step: int, records: Records) -> None:
        if step == 1:
            time.sleep(self._seconds)
