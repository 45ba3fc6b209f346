"""What ranks exchange: a message of each log event to rank 0, and notes. Imports errors only.

``Comm`` is a process that is alone; ``store_comm.py`` has the one of jobs, ``actors.py`` those of actors and of their
driver, ``fake_comm.py`` one for threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from declog.errors import UsageError


class Event(NamedTuple):
    """A log event of a mode, counted by each rank: the same one on ranks that go through the same steps."""

    mode: str
    number: int

    def __str__(self) -> str:
        return f"{self.mode}/{self.number}"


class Comm:
    """Exchanges one message per rank and log event; this one is for a process that is alone.

    Used from the worker thread only, and from ``start``.
    """

    rank = 0
    world_size = 1
    collects = True  # whether this process evaluates the rows of all ranks: rank 0 does
    process = "0"  # the name of this process among those of the run
    idle: Callable[[], None] = staticmethod(lambda: None)  # called again and again while `receive` or `answer` waits

    def agree(self, topic: str, text: str, deadline_s: float) -> list[str]:
        """Every rank's ``text`` on a topic, by rank, on every rank: for what all must know at the start."""
        return [text]

    def send(self, event: Event, data: bytes) -> None:
        """Hand over this rank's message of a log event (ranks above 0)."""
        raise UsageError.of("DL510.one_process")

    def receive(self, event: Event, deadline_s: float) -> list[bytes | None]:
        """The messages of ranks 1.. on rank 0; None for a rank that has left, or did not answer in time."""
        return []

    def drop(self, event: Event, rank: int) -> None:
        """Forget a rank's message that rank 0 will not take, where it is there."""

    def publish(self, event: Event, data: bytes) -> None:
        """Rank 0's answer to a log event, for all ranks to read."""

    def answer(self, event: Event, deadline_s: float) -> bytes | None:
        """What rank 0 published for a log event; None where it did not in time."""
        return None

    def write_note(self, key: str, text: str) -> None:
        """Leave a note for all processes."""

    def read_note(self, key: str) -> str | None:
        """The note of a key; None where nobody has left it."""
        return None

    def processes(self) -> Sequence[str]:
        """The names of all processes of the run that have not left it, of those that share a rank, too."""
        return [self.process]

    def shorten_waits(self, seconds: float) -> None:
        """Let the call that is under way wait for other ranks no longer than this. From any thread."""

    def interrupt(self) -> None:
        """Make the call that is under way fail, and all later ones: a thread in it must end. From any thread."""

    def close(self) -> None:
        """Let go of what was opened; idempotent."""
