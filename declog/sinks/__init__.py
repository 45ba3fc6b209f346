"""Where records go: the sink protocol, and the registry of kinds.

One file per backend. A sink imports its tracker inside its constructor only, never torch, and knows
nothing of plans or profiles: it is opened once, written in step order from one thread, closed once.
"""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from declog.records import Records, RunInfo

SCALAR, HISTOGRAM, TABLE, ALERT = "scalar", "histogram", "table", "alert"


@runtime_checkable
class Sink(Protocol):
    """A backend. Options are the constructor's keyword-only arguments, typed, each with a default."""

    accepts: ClassVar[frozenset[str]]

    def open(self, run: RunInfo) -> None:
        """Start; raise to refuse the run (a sink that was asked for and cannot open is fatal)."""

    def write(self, step: int, records: Records) -> None:
        """Take one log event's records. May block or raise: the caller isolates it."""

    def close(self) -> None:
        """Finish; called once, also after a failed write."""
