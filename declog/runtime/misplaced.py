"""Rows that belong to no step, or came too late: counted by kind, each reported once, never dropped in silence.

A logger does not stop a run: only under ``strict`` is what the caller can mend raised where it is given.
Imports errors and failures only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from declog.errors import RuntimeFailure, UsageError
from declog.runtime.failures import Failures
from declog.runtime.scopes import Scope, place
from declog.runtime.self_metrics import Meter

if TYPE_CHECKING:
    from declog.runtime.packets import Fate, Packet

log = logging.getLogger("declog")


class RunsAhead:
    """Watches for the one mistake that looks as if all were right: a task of step k that works for step k + 1."""

    def __init__(self) -> None:
        self.came: dict[str, tuple[int, int]] = {}  # by signal: in how many steps, and the last of them
        self.steps = 0
        self._last: tuple[int | None, int | None] = (None, None)  # the one before the last, and the last

    def observed(self, scope: Scope, signals: Iterable[str]) -> None:
        """A task that was started inside a scope observed there."""
        if scope.kind == "step" and scope.mode == "train" and scope.number is not None:
            for name in signals:
                count, last = self.came.get(name, (0, None))
                if last != scope.number:
                    self.came[name] = count + 1, scope.number

    def ended(self, step: int) -> None:
        """A step has ended; before the first such signal came nothing is missed by not saying so."""
        self._last = self._last[1], step

    def report(self) -> None:
        """Where the last step alone has nothing of what came from tasks in all before, say how it is given its step."""
        for name, (count, last) in self.came.items():
            if count > 1 and count == self.steps - 1 and last == self._last[0]:
                log.warning(
                    "`%s` came from tasks that were started inside steps, and step %s has none: "
                    "where they run ahead, give them their step: with log.at(k)", name, self._last[1],
                )  # fmt: skip


class Misplaced:
    """What a run does with such rows."""

    def __init__(self, failures: Failures, meter: Meter, *, strict: bool) -> None:
        self._failures = failures
        self._meter = meter
        self._strict = strict

    def outside(self, rows: int) -> None:
        """Observed where the run is open, and no scope."""
        self._wrong(rows, "DL513.outside")

    def ended(self, scope: Scope, rows: int) -> None:
        """Observed in a scope that has ended, by a task that was started in it or through its handle."""
        kind = {"step": "a step", "at": "an `at`", "mode": "a block of a mode", "batch": "a batch"}[scope.kind]
        self._wrong(rows, "DL513.ended", kind=kind, scope=scope)

    def unopened(self, scope: Scope, rows: int) -> None:
        """Observed through the handle of a scope that has not begun."""
        self._wrong(rows, "DL513.unopened", scope=scope)

    def twice(self, packet: Packet, step: int) -> None:
        """A packet was consumed once more by one step."""
        self._note(RuntimeFailure.of("DL513.twice", step=step, place=packet.place), packet.rows)

    def unused(self, packet: Fate) -> None:
        """A packet that nobody consumed."""
        self._note(RuntimeFailure.of("DL513.unused"), packet.rows, packet.place)

    def never_bound(self, rows: int) -> None:
        """What waited for a step when the run ended."""
        self._note(RuntimeFailure.of("DL513.unbound"), rows)

    def late(self, step: int, rows: int) -> None:
        """Rows of a step whose window is closed."""
        self._meter.late += rows
        self._failures.count(RuntimeFailure.of("DL513.late", step=step), rows, place())

    def partial(self, edge: int, steps: list[int]) -> None:
        """A window was closed while scopes of it are open: they took longer than others are waited for."""
        self._failures.count(RuntimeFailure.of("DL513.partial", edge=edge, steps=steps[:4]), 1, place())

    def _wrong(self, rows: int, key: str, **facts: object) -> None:
        if self._strict:
            raise UsageError.of(key, **facts)
        self._note(RuntimeFailure.of(key, **facts), rows)

    def _note(self, failure: RuntimeFailure, rows: int, where: str | None = None) -> None:
        self._meter.dropped += rows
        self._failures.count(failure, rows, where or place())
