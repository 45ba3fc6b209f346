"""A session that passes its calls to a capture."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from weakref import WeakKeyDictionary

from declog.runtime.ranks.log_event import Answer
from declog.runtime.recording.session import Session
from declog.runtime.rows.batches import Intake
from declog.runtime.rows.scopes import Origin, Scope
from declog.runtime.rows.steps import OpenBatches
from declog.runtime.run.capture import BEGINS, ENDS, CaptureLog
from declog.runtime.run.failures import Refused


class SeenIntake(Intake):
    """An intake that passes the calls that give values to a capture."""

    capture: CaptureLog

    def observe(self, batches: OpenBatches, signals: Mapping[str, Any], *, strict: bool = True) -> None:
        if strict:
            self.check(signals, batches)
        with self.capture.call("observe", (signals,), batches.scope, batches.origin):
            super().observe(batches, signals, strict=False)

    def packet(self, alone: OpenBatches, signals: Mapping[str, Any], refused: Refused) -> None:
        with self.capture.call("packet", (signals,), alone.scope, alone.origin):
            super().packet(alone, signals, refused)

    def metrics(self, batches: OpenBatches, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            with self.capture.call("metric", (name, value), batches.scope, batches.origin):
                super().metrics(batches, {name: value})

    def extra(self, batches: OpenBatches, column: str, values: Any) -> None:
        with self.capture.call("extra", (column, values), batches.scope, batches.origin):
            super().extra(batches, column, values)


class SeenSession(Session):
    """A session that passes the calls that change logged values to ``capture``, with the numbers of scope and task."""

    intakes = SeenIntake

    def __init__(self, capture: CaptureLog, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        assert isinstance(self.intake, SeenIntake)
        self.intake.capture = self._capture = capture
        self._origins: WeakKeyDictionary[Origin, int] = WeakKeyDictionary()

    def _number(self, me: Origin) -> int:
        return self._origins.setdefault(me, len(self._origins) + 1)

    # -- scopes

    def open(self, scope: Scope, me: Origin) -> None:
        with self.lock:
            scope.origin = self._number(me)
            super().open(scope, me)

    def _begin(self, scope: Scope, around: Scope | None, me: Origin) -> None:
        what = {
            "step": (scope.number, _id(around)),
            "at": (scope.number,),
            "mode": (scope.mode, scope.number, _id(around)),
            "batch": (scope.phase, scope.rows, _id(around)),
        }[scope.kind]
        with self._capture.call(BEGINS[scope.kind], what, scope.id, scope.origin):
            super()._begin(scope, around, me)

    def end(self, scope: Scope, *, failed: bool) -> None:
        with self.lock, ExitStack() as seen:
            if scope.kind in ENDS and not (scope.closed or self.closed or self.forked):
                seen.enter_context(self._capture.call(ENDS[scope.kind], (failed,), scope.id, scope.origin))
            super().end(scope, failed=failed)

    def batches(self, scope: Scope | None, me: Origin) -> OpenBatches:
        batches = super().batches(scope, me)
        batches.origin = batches.origin or self._number(me)
        return batches

    def drop_rows(self, scope: Scope | None, me: Origin, phase: str) -> None:
        batches = self.batches(scope, me)
        with self._capture.call("drop", (phase,), batches.scope, batches.origin):
            super().drop_rows(scope, me, phase)

    # -- log events

    def rewind(self, step: int, *, restart: bool = False) -> None:
        with self.lock, self._capture.call("rewind", (step, restart)):
            super().rewind(step, restart=restart)

    def _flush(self, scope: Scope | None, answer: Answer | None) -> None:
        ids = (0, 0) if scope is None else (scope.id, scope.origin)
        with self._capture.call("flush", (), *ids):
            super()._flush(scope, answer)

    def cut_logged(self) -> None:
        if self.plan.logged is not None:
            with self._capture.call("cut", ()):
                super().cut_logged()

    def _finish(self, failed: bool) -> None:
        with self._capture.call("close", (failed,)):
            super()._finish(failed)
        self._capture.writer.close()

    def _logged(self, mode: str) -> None:
        self._capture.logged(mode)

    def in_child(self) -> None:
        super().in_child()
        self._capture.writer.in_child()


def _id(scope: Scope | None) -> int:
    return 0 if scope is None else scope.id
