"""The exchange between ranks: one message per log event to rank 0, and notes.

``Comm`` serves a single process. ``store_comm.py`` has the comm for jobs, ``actors.py`` the comms for actors and their
driver, and ``fake_comm.py`` the comm for threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from declog.errors import UsageError


class Event(NamedTuple):
    """The name of a log event: its mode and its number there. Ranks that go through the same steps name it alike."""

    mode: str
    number: int

    def __str__(self) -> str:
        return f"{self.mode}/{self.number}"


class Comm:
    """Exchanges one message per rank and log event; this base class serves a single process.

    The worker thread and ``start`` use it.
    """

    rank = 0
    world_size = 1
    collects = True  # whether this process evaluates the rows of all ranks, as rank 0 does
    replica = False  # whether this process sends nothing, because another process has the same rank
    by_exports = False  # whether rows travel as exports: actors and their driver hear no other process
    process = "0"  # the name of this process in the run
    idle: Callable[[], None] = staticmethod(lambda: None)  # called repeatedly while `receive` or `answer` waits

    def __init__(self) -> None:
        self._modes: dict[int, set[str]] = {}  # by rank: the modes of the messages that it sent

    def agree(self, topic: str, text: str, deadline_s: float) -> list[str]:
        """Exchange a text on a topic: return every rank's ``text``, by rank, on every rank.

        For facts that all ranks must know at the start.
        """
        return [text]

    def send(self, event: Event, data: bytes) -> None:
        """Send this rank's message of a log event to rank 0 (ranks above 0)."""
        raise UsageError.of("DL510.one_process")

    def receive(self, event: Event, deadline_s: float) -> list[bytes | None]:
        """Receive the messages of ranks 1.. on rank 0; None for a rank that has left, or did not send in time."""
        return []

    def entered(self, rank: int, mode: str) -> None:
        """Note that a rank sent a message of a mode."""
        self._modes.setdefault(rank, set()).add(mode)

    def has_sent(self, rank: int) -> bool:
        """Whether a rank has sent a message of any mode."""
        return rank in self._modes

    def absent(self, mode: str) -> list[int]:
        """The ranks that sent messages, but none of this mode: they may never enter it."""
        return [rank for rank, modes in self._modes.items() if mode not in modes]

    def drop(self, event: Event, rank: int) -> None:
        """Delete a rank's message that rank 0 will not take, if it exists."""

    def publish(self, event: Event, data: bytes) -> None:
        """Publish rank 0's answer to a log event, for all ranks to read."""

    def answer(self, event: Event, deadline_s: float) -> bytes | None:
        """Return the answer that rank 0 published for a log event; None if it did not arrive in time."""
        return None

    def write_note(self, key: str, text: str) -> None:
        """Write a note that all processes can read."""

    def read_note(self, key: str) -> str | None:
        """Read the note of a key; None if nobody has written it."""
        return None

    def processes(self) -> Sequence[str]:
        """The names of the processes in the run, including those that share a rank, without those that have left."""
        return [self.process]

    def shorten_waits(self, seconds: float) -> None:
        """Limit the rest of the current call's wait for other ranks. May be called from any thread."""

    def interrupt(self) -> None:
        """Make the current call and all later calls fail, so that their thread ends. May be called from any thread."""

    def close(self) -> None:
        """Release the comm's resources; idempotent."""
