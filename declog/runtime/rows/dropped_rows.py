"""Rows that belong to no step, or arrive too late: counted by kind, and each kind is reported once.

A logger does not stop a run: only with ``run.strict`` the call raises the mistakes that its caller can mend.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from declog.errors import RuntimeFailure, UsageError
from declog.runtime.rows.packets import Packet
from declog.runtime.rows.scopes import Scope, call_site
from declog.runtime.run.failures import Failures
from declog.runtime.run.self_metrics import Meter

log = logging.getLogger("declog")


class DroppedRows:
    """Counts and reports dropped rows."""

    def __init__(self, failures: Failures, meter: Meter, *, strict: bool) -> None:
        self._failures = failures
        self._meter = meter
        self._strict = strict
        # the step or mode of the last call of `log.step(k)` or `log.mode(name)`, until its block begins
        self.unentered: int | str | None = None
        self._loop = threading.get_ident()  # the thread that made the last block, or else started the run
        self._outside: set[str] = set()  # the calls before any block; behind a block they are the same mistake
        self._warned: set[str] = set()  # modes with a warning that a block was made and not entered

    def announce(self, block: int | str) -> None:
        """Note that `log.step` or `log.mode` was called for a block, which has not begun yet."""
        before, self.unentered, self._loop = self.unentered, block, threading.get_ident()
        if isinstance(before, str) and isinstance(block, int) and before not in self._warned:
            self._warned.add(before)
            log.warning("%s", UsageError.of("DL513.unentered_mode", call=_called(before)[1], mode=before))

    def outside(self, rows: int) -> None:
        """Count rows that were observed while the run is open, but outside of any scope."""
        site = call_site()
        if self._loop != threading.get_ident():
            self._wrong(rows, "DL513.outside_in_thread")
        elif self.unentered is None or site in self._outside:
            self._outside.add(site)
            self._wrong(rows, "DL513.outside")
        else:
            what, call = _called(self.unentered)
            self._wrong(rows, "DL513.unentered", call=call, what=what)

    def ended(self, scope: Scope, rows: int) -> None:
        """Count rows that were observed in an ended scope: by a task that was started in it, or through its handle."""
        kind = {"step": "a step", "at": "an `at`", "mode": "a block of a mode", "batch": "a batch"}[scope.kind]
        self._wrong(rows, "DL513.ended", kind=kind, scope=scope)

    def unopened(self, scope: Scope, rows: int) -> None:
        """Count rows that were observed through the handle of a scope that has not begun."""
        self._wrong(rows, "DL513.unopened", scope=scope)

    def twice(self, packet: Packet, step: int) -> None:
        """Count the rows of a packet that a step consumed a second time."""
        self._note(RuntimeFailure.of("DL513.twice", step=step, call_site=packet.call_site), packet.rows)

    def never_bound(self, rows: int) -> None:
        """Count rows that still waited for a step when the run ended."""
        if self.unentered is None:
            self._note(RuntimeFailure.of("DL513.unbound"), rows)
            return
        what, call = _called(self.unentered)
        self._note(RuntimeFailure.of("DL513.unentered", call=call, what=what), rows)

    def never_ended(self, steps: Sequence[int]) -> None:
        """Warn that no step began for which rows were recorded ahead: the rows waited for the end of the run."""
        log.warning("%s", UsageError.of("DL513.unended", count=len(steps), first=steps[0], last=steps[-1]))

    def late(self, step: int, rows: int, *, committed: bool) -> None:
        """Count rows of a step whose window is closed; ``committed``: the run has ``steps="commit"``."""
        self._meter.late += rows
        failure = RuntimeFailure.of("DL513.late", step=step)
        if committed:
            failure = RuntimeFailure.of("DL513.committed", step=step)
        self._failures.count(failure, rows, call_site())

    def partial(self, end: int, steps: list[int]) -> None:
        """Note that the window with the last step ``end`` closed while scopes of its ``steps`` were open.

        The scopes took longer than a window waits.
        """
        self._failures.count(RuntimeFailure.of("DL513.partial", end=end, steps=steps[:4]), 1, call_site())

    def _wrong(self, rows: int, key: str, **facts: object) -> None:
        if self._strict:
            raise UsageError.of(key, **facts)
        self._note(RuntimeFailure.of(key, **facts), rows)

    def _note(self, failure: RuntimeFailure, rows: int) -> None:
        self._meter.dropped += rows
        self._failures.count(failure, rows, call_site())


def _called(unentered: int | str) -> tuple[str, str]:
    """The kind of block that was not entered, and the call that made it, as text."""
    if isinstance(unentered, str):
        return "mode", f'log.mode("{unentered}")'
    return "step", f"log.step({unentered})"
