"""The exchange between ranks: a message per log event to rank 0, and notes. Imports errors only.

``Comm`` is for a single process; ``store_comm.py`` has the one for jobs, ``actors.py`` those for actors and their
driver, and ``fake_comm.py`` one for threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from declog.errors import UsageError


class Event(NamedTuple):
    """A log event of a mode, as each rank counts it: equal on ranks that go through the same steps."""

    mode: str
    number: int

    def __str__(self) -> str:
        return f"{self.mode}/{self.number}"


class Comm:
    """Exchanges one message per rank and log event; this one is for a single process.

    Used from the worker thread, and from ``start``.
    """

    rank = 0
    world_size = 1
    collects = True  # whether this process evaluates the rows of all ranks, as rank 0 does
    replica = False  # whether it sends nothing, because another process has the same rank
    by_exports = False  # whether rows travel as exports: actors and their driver hear no other process
    process = "0"  # the name of this process in the run
    idle: Callable[[], None] = staticmethod(lambda: None)  # called repeatedly while `receive` or `answer` waits

    def __init__(self) -> None:
        self._modes: dict[int, set[str]] = {}  # the modes that each rank sent messages of

    def agree(self, topic: str, text: str, deadline_s: float) -> list[str]:
        """Every rank's ``text`` on a topic, by rank, on every rank; for facts that all must know at the start."""
        return [text]

    def send(self, event: Event, data: bytes) -> None:
        """Send this rank's message of a log event (ranks above 0)."""
        raise UsageError.of("DL510.one_process")

    def receive(self, event: Event, deadline_s: float) -> list[bytes | None]:
        """The messages of ranks 1.. on rank 0; None for a rank that has left, or did not answer in time."""
        return []

    def entered(self, rank: int, mode: str) -> None:
        """Note that a rank sent a message of a mode."""
        self._modes.setdefault(rank, set()).add(mode)

    def absent(self, mode: str) -> list[int]:
        """The ranks that sent messages, none of them of this mode: they may never enter it."""
        return [rank for rank, modes in self._modes.items() if mode not in modes]

    def drop(self, event: Event, rank: int) -> None:
        """Delete a rank's message that rank 0 will not take, if there is one."""

    def publish(self, event: Event, data: bytes) -> None:
        """Publish rank 0's answer to a log event, for all ranks to read."""

    def answer(self, event: Event, deadline_s: float) -> bytes | None:
        """The answer that rank 0 published for a log event; None if it did not come in time."""
        return None

    def write_note(self, key: str, text: str) -> None:
        """Leave a note for all processes."""

    def read_note(self, key: str) -> str | None:
        """The note of a key; None if nobody has left one."""
        return None

    def processes(self) -> Sequence[str]:
        """The names of all processes in the run, without those that have left; also of processes that share a rank."""
        return [self.process]

    def shorten_waits(self, seconds: float) -> None:
        """Make the current call wait for other ranks no longer than this. From any thread."""

    def interrupt(self) -> None:
        """Make the current call and all later ones fail, because its thread must end. From any thread."""

    def close(self) -> None:
        """Release what was opened; idempotent."""
