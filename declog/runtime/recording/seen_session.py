"""A session whose calls are seen: by a capture, which writes them down. Imports the session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from declog.runtime.ranks.log_event import Answer
from declog.runtime.recording.session import Session
from declog.runtime.rows.batches import Intake, OpenBatches
from declog.runtime.rows.scopes import Origin, Scope
from declog.runtime.run.call_log import Hook
from declog.runtime.run.failures import Refused

_BEGINS = {"step": "begin", "at": "at", "mode": "enter", "batch": "batch"}  # how captures call what a scope does
_ENDS = {"step": "end", "at": "unat", "mode": "leave", "batch": "unbatch"}


class SeenIntake(Intake):
    """Shows calls that give values."""

    seen_by: Callable[..., AbstractContextManager[None]]

    def observe(self, batches: OpenBatches, signals: Mapping[str, Any], *, strict: bool = True) -> None:
        if strict:
            self.check(signals)
        with self.seen_by("observe", (signals,), batches.scope, batches.origin):
            super().observe(batches, signals, strict=False)

    def packet(self, alone: OpenBatches, signals: Mapping[str, Any], refused: Refused) -> None:
        with self.seen_by("packet", (signals,), alone.scope, alone.origin):
            super().packet(alone, signals, refused)

    def metrics(self, batches: OpenBatches, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            with self.seen_by("metric", (name, value), batches.scope, batches.origin):
                super().metrics(batches, {name: value})

    def extra(self, batches: OpenBatches, column: str, values: Any) -> None:
        with self.seen_by("extra", (column, values), batches.scope, batches.origin):
            super().extra(batches, column, values)


class SeenSession(Session):
    """Shows ``hooks`` each call that changes what will be logged, in the number of a scope and by that of a task."""

    intakes = SeenIntake

    def __init__(self, hooks: Sequence[Hook], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        assert isinstance(self.intake, SeenIntake)
        self.intake.seen_by = self._seen
        self._hooks = hooks
        self._origins: WeakKeyDictionary[Origin, int] = WeakKeyDictionary()

    @contextmanager
    def _seen(self, name: str, what: tuple[Any, ...], scope: int = 0, origin: int = 0) -> Iterator[None]:
        with ExitStack() as seen:
            for hook in self._hooks:
                seen.enter_context(hook.call(name, what, scope, origin))
            yield

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
        with self._seen(_BEGINS[scope.kind], what, scope.id, scope.origin):
            super()._begin(scope, around, me)

    def end(self, scope: Scope, *, failed: bool) -> None:
        with self.lock, ExitStack() as seen:
            if scope.kind in _ENDS and not (scope.closed or self.closed or self.forked):
                seen.enter_context(self._seen(_ENDS[scope.kind], (failed,), scope.id, scope.origin))
            super().end(scope, failed=failed)

    def batches(self, scope: Scope | None, me: Origin) -> OpenBatches:
        batches = super().batches(scope, me)
        batches.origin = batches.origin or self._number(me)
        return batches

    # -- log events

    def rewind(self, step: int) -> None:
        with self.lock, self._seen("rewind", (step,)):
            super().rewind(step)

    def _flush(self, scope: Scope | None, answer: Answer | None) -> None:
        ids = (0, 0) if scope is None else (scope.id, scope.origin)
        with self._seen("flush", (), *ids):
            super()._flush(scope, answer)

    def cut_logged(self) -> None:
        if self.plan.logged is not None:
            with self._seen("cut", ()):
                super().cut_logged()

    def _finish(self, failed: bool) -> None:
        with self._seen("close", (failed,)):
            super()._finish(failed)
        for hook in self._hooks:
            hook.close()

    def _logged(self, mode: str) -> None:
        for hook in self._hooks:
            hook.logged(mode)

    def in_child(self) -> None:
        super().in_child()
        for hook in self._hooks:
            hook.in_child()


def _id(scope: Scope | None) -> int:
    return 0 if scope is None else scope.id
