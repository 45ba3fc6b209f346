"""Any interleaving of tasks and threads gives the numbers of the sequential run, which are those computed by hand."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from declog.runtime.recording import in_trainer
from declog.runtime.recording import recorder as recorders
from declog.runtime.recording.session import Session
from declog.runtime.rows import scopes, taking
from declog.runtime.rows.batches import Intake
from declog.runtime.rows.scopes import Scope
from declog.runtime.rows.steps import OpenBatches, Step, Stream
from declog.runtime.run.failures import Refused
from tests.runtime.scopes.programs import KINDS, Kind, differences

BLOCKS, PROGRAMS = 4, 8  # of which each is run twice
AHEAD: tuple[Kind, ...] = ("at",)  # tasks whose step may end before they do: no thread's pace decides what is seen
PACKETS: tuple[Kind, ...] = ("packet", "twice", "wrong packet")


@pytest.mark.parametrize("block", range(BLOCKS))
def test_rows_are_where_they_belong(block: int) -> None:
    """Each row once, in the window of its step, beside what it was observed with; what was lost is counted."""
    for seed in range(block * PROGRAMS, (block + 1) * PROGRAMS):
        for schedule in (None, seed):
            assert differences(seed, schedule) == []


# ---- and mistakes of an implementation do not


def _one_batch(self: Session, scope: Scope | None, me: object) -> OpenBatches:
    """A scope has one batch for all its tasks and threads."""
    return BATCHES(self, scope, None if scope is None else scope.owner or me)


def _closes_all(self: Session, scope: Scope, refused: Refused) -> None:
    """The end of a scope closes the batches of all."""
    for other in list(self.scopes.values()):
        if other is not scope and other.kind != "batch":
            CLOSE(self, other, refused)
    CLOSE(self, scope, refused)


def _falls_through(recorder: Any = None) -> Scope | None:
    """An inherited scope that has ended is passed over: the rows are of the one around it."""
    scope = scopes._scope.get()
    while scope is not None:
        if not scope.closed and scope.recorder is recorder and scope.kind != "run":
            return scope
        scope = scope.parent
    return None


def _takes_all(self: Stream, number: int | None) -> list[Step]:
    """A window has whatever came until it ends."""
    return UPTO(self, None)


def _waits_for_nobody(self: Stream) -> int | None:
    """A window ends with its own step."""
    return self.last


def _forgets(intake: Intake, batches: OpenBatches, *args: Any) -> None:
    """A packet counts as often as it comes."""
    batches.step.packets = frozenset()
    CONSUME(intake, batches, *args)


def _of_the_one_after(self: Session, scope: Scope, refused: Refused) -> None:
    """What is observed for the next step is of the one after it."""
    pending = self.pending
    if scope is self.step and scope.number is not None and pending:
        pending.absorb(self.train.step(scope.number + 1), refused, owner=scope.owner if self.commits else None)
    CLOSE(self, scope, refused)


def _threads_only() -> object:
    """Tasks of one thread are one."""
    return threading.current_thread()


def _drops(self: Session, scope: Scope, *args: Any) -> None:
    """A step that begins takes what waits for a step."""
    for batches in self.pending.batches.values() if scope.kind == "step" else ():
        batches.clear()
    BEGIN(self, scope, *args)


def _keeps_by_now(self: Session, batches: OpenBatches, phase: str, record: Any) -> None:
    """A row is of the step that is open when its batch closes."""
    if batches.stream is self.train and self.step is not None:
        assert self.step.number is not None
        self.train.step(self.step.number).add(phase, record)
    else:
        KEEP(self, batches, phase, record)


def _all_or_nothing(self: Refused, error: Exception) -> None:
    """An error takes what is recorded beside it."""
    raise error


def _half_a_call(self: Intake, batches: OpenBatches, signals: Any, **options: Any) -> None:
    """A call that is refused leaves the values before the one that is wrong."""
    for name, value in signals.items():
        OBSERVE(self, batches, {name: value}, **options)


def _drops_what_raises(self: Session, scope: Scope, *, failed: bool) -> None:
    """A block that raises loses its open batches."""
    if failed:
        scope.batches.clear()
    END(self, scope, failed=failed)


def _forgets_all(self: Stream, number: int) -> None:
    """The trainer goes back, and what came for steps ahead is forgotten."""
    self._in_parts.clear()
    self._open.clear()
    REWIND(self, number)


def _remembers_packets(self: Stream, number: int) -> None:
    """The trainer goes back, and the steps that are made again have consumed what they had."""
    before = {one: {*step.packets} for one, step in {**self._in_parts, **self._open}.items()}
    REWIND(self, number)
    for one, packets in before.items():
        if one > number:
            self.step(one).packets |= packets


def _leaves_behind(self: Session, step: int) -> None:
    """The trainer goes back, and the window that is open goes on."""
    self.last_step = step
    self.train.rewind(step)


def _with_rows_ahead(self: Stream, logged: str | None) -> tuple[list[Step], None]:
    """A flush and a checkpoint between two steps have the rows of all steps."""
    return UPTO(self, None), None


def _of_the_window(self: Session, scope: Scope | None, answer: Any) -> None:
    """A flush leaves the windows that wait for tasks, and closes the steps that they contribute to."""
    self.train.watermark = self.train.last
    FLUSH(self, scope, answer)


def _of_any_recorder(recorder: Any = None) -> Scope | None:
    """The innermost scope is that of every recorder."""
    return HERE(None)


BATCHES, CLOSE, CONSUME, KEEP, BEGIN, END, FLUSH = (
    Session.batches, Session._close, taking._consume, Session._keep, Session._begin, Session.end, Session._flush,
)  # fmt: skip
UPTO, REWIND, OBSERVE, HERE = Stream.upto, Stream.rewind, Intake.observe, scopes.here
Patch = tuple[Any, str, Any]
MUTATIONS: dict[str, list[Patch]] = {
    "one batch for all tasks of a scope": [(Session, "batches", _one_batch)],
    "the end of a scope closes all batches": [(Session, "_close", _closes_all)],
    "an ended scope falls through to the outer one": [(in_trainer, "here", _falls_through)],
    "windows take all that came": [(Stream, "upto", _takes_all)],
    "windows wait for nobody": [(Stream, "complete", property(_waits_for_nobody))],
    "packets count as often as they come": [(taking, "_consume", _forgets)],
    "what is next is of the one after": [(Session, "_close", _of_the_one_after)],
    "tasks of a thread are one": [(scopes, "origin", _threads_only), (recorders, "origin", _threads_only)],
    "a step that begins drops what waits": [(Session, "_begin", _drops)],
    "rows are of the step that is open": [(Session, "_keep", _keeps_by_now)],
    "an error takes what is beside it": [(Refused, "add", _all_or_nothing)],
    "a refused call leaves its first values": [(Intake, "observe", _half_a_call)],
    "a block that raises loses its open batches": [(Session, "end", _drops_what_raises)],
    "a rewind forgets what came for steps ahead": [(Stream, "rewind", _forgets_all)],
    "a step that is made again knows its packets": [(Stream, "rewind", _remembers_packets)],
    "a rewind leaves the window open": [(Session, "rewind", _leaves_behind)],
    "what is between two steps has rows ahead": [(Stream, "ended", _with_rows_ahead)],
    "a flush closes steps that tasks contribute to": [(Session, "_flush", _of_the_window)],
    "recorders share their scopes": [(in_trainer, "here", _of_any_recorder)],
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mistake_is_caught(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of the same kind give other numbers, or an error, with each of these implementations."""
    for owner, name, wrong in MUTATIONS[mutation]:
        monkeypatch.setattr(owner, name, wrong)
    assert any(_differs(seed, kinds) for seed in range(60) for kinds in (KINDS, AHEAD, PACKETS))


def _differs(seed: int, kinds: tuple[Kind, ...]) -> bool:
    try:
        return bool(differences(seed, seed, kinds))
    except Exception:  # noqa: BLE001  (a mistake may well be loud)
        return True
