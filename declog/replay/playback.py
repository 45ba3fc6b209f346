"""Execution of a plan over recorded calls, with real recorders, threads as ranks, and sinks that only store records.

``declog preview`` and config tests share this module. No sink is opened, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from declog.engine.publish import CODE, Route
from declog.plans.ops import Plan
from declog.records import Records
from declog.runtime.ranks.fake_comm import FakeComm, run_ranks
from declog.runtime.recording.recorder import Recorder
from declog.runtime.recording.timing import Clock
from declog.runtime.rows.batches import Locate
from declog.runtime.rows.packets import Packet
from declog.runtime.rows.scopes import Scope
from declog.runtime.rows.steps import OpenBatches
from declog.runtime.run.capture import Call
from declog.runtime.run.outlets import Outlets, route_to

Script = Callable[[], Iterable[Call]]  # the calls of one rank
Events = list[tuple[int, Records]]  # the log events of one sink, with their steps

ALL = frozenset({"scalar", "histogram", "table", "alert"})
RECORDED = frozenset({"observe", "packet", "metric", "extra"})  # calls that add values to batches
_LONG_S = 1e6  # a time limit that is never reached


@dataclass
class Rehearsal:
    """The log events by sink (`jsonl of rank 1` for that rank's own rows), the failures, and the unknown names."""

    events: dict[str, Events] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)  # `signal` or `phase`, by unknown name


def rehearse(
    plan: Plan,
    scripts: Mapping[int, Script],
    world_size: int = 1,
    *,
    profile: str | None = None,
    locate: Locate | None = None,
) -> Rehearsal:
    """Execute the scripts of some ranks; a rank without a script does nothing. Raises the errors of a run.

    ``profile`` is the profile of an additional sink ``<code>``, which stands for a sink that code passes; None adds no
    sink. Metrics of declog's own cost are left out: they would measure this execution.
    """
    rehearsal = Rehearsal()
    profiles = {name: replace(op, self_metrics=False) for name, op in plan.profiles.items()}
    plan = replace(plan, profiles=profiles)
    routes = {rank: _routes(plan, rank, world_size, rehearsal) for rank in range(world_size)}
    if profile is not None:
        routes[0].append(Route(CODE, profile, 1, "", ALL, _keeper(rehearsal, CODE)))

    def main(comm: FakeComm) -> None:
        script = scripts.get(comm.rank)
        if script is None:
            return
        clock = _Written()
        recorder = Recorder(
            plan, comm, Outlets(routes=routes[comm.rank]),
            wait_s=_LONG_S, locate=locate, clock=clock,
        )  # fmt: skip
        player = _Player(recorder, clock, rehearsal)
        try:
            with recorder:
                for call in script():
                    player.play(call)
        finally:
            for name, count in recorder.failures.items():
                rehearsal.failures[name] = rehearsal.failures.get(name, 0) + count

    run_ranks(world_size, main, timeout_s=_LONG_S)
    return rehearsal


def _routes(plan: Plan, rank: int, world_size: int, rehearsal: Rehearsal) -> list[Route]:
    """The sinks of a rank, as ``start`` opens them. Ranks above 0 have only sinks that get the rank's own rows."""
    routes = []
    for op in plan.sinks:
        if rank == 0 or any(op.id in table.local for table in plan.tables):
            keeper = _keeper(rehearsal, op.id if rank == 0 else f"{op.id} of rank {rank}")
            routes.append(route_to(plan, op, keeper, gathers=world_size > 1))
    return routes


def _keeper(rehearsal: Rehearsal, sink: str) -> Callable[[int, Records], None]:
    events = rehearsal.events.setdefault(sink, [])
    return lambda step, records: events.append((step, records))


class _Written(Clock):
    """A clock that shows the time of the played call."""

    at = 0.0

    def elapsed(self) -> float:
        return self.at


class _Player:
    """Makes the calls of a script on a recorder, in their order, for all tasks and threads that made them."""

    def __init__(self, recorder: Recorder, clock: _Written, rehearsal: Rehearsal) -> None:
        self._recorder = recorder
        self._session = recorder._session
        self._clock = clock
        self._rehearsal = rehearsal
        self._scopes: dict[int, Scope] = {}
        self._origins: dict[int, object] = {}  # one object for each task or thread of the run
        self._session.main_task = self._origin(1)

    def play(self, call: Call) -> None:
        """Make a call. An error is ignored if the call failed in the run, too."""
        self._clock.at = call.at
        try:
            with self._session.lock:
                if call.name not in RECORDED:
                    getattr(self, f"_{call.name}")(call, *call.what)
                elif not call.scope or call.scope in self._scopes:  # else the capture lacks the beginning of its scope
                    batches = self._session.batches(self._scopes.get(call.scope), self._origin(call.origin))
                    getattr(self, f"_{call.name}")(batches, *call.what)
        except Exception:
            if not call.failed:
                raise

    def _origin(self, number: int) -> object:
        return self._origins.setdefault(number, object())

    # -- scopes

    def _open(self, call: Call, scope: Scope, around: Scope | None = None) -> None:
        scope.parent = around
        self._session.open(scope, self._origin(call.origin))
        self._scopes[call.scope] = scope

    def _close_scope(self, call: Call, failed: bool) -> None:
        if (scope := self._scopes.pop(call.scope, None)) is not None:
            self._session.end(scope, failed=failed)

    _end = _unat = _leave = _unbatch = _close_scope

    def _begin(self, call: Call, step: int, around: int = 0) -> None:
        self._open(call, Scope(self._recorder, "step", step), self._scopes.get(around))

    def _at(self, call: Call, step: int) -> None:
        self._open(call, Scope(self._recorder, "at", step))

    def _drop(self, call: Call, phase: str) -> None:
        self._session.drop_rows(self._scopes.get(call.scope), self._origin(call.origin), phase)

    def _enter(self, call: Call, mode: str, step: int | None = None, around: int = 0) -> None:
        self._open(call, Scope(self._recorder, "mode", step, mode), self._scopes.get(around))

    def _batch(self, call: Call, phase: str | None, rows: int | None, around: int) -> None:
        if phase is not None and phase not in self._recorder.plan.known_phases:
            self._unknown("phase", {phase})
            self._scopes[call.scope] = self._scopes[around]  # its rows join the scope around it
        elif around in self._scopes:
            self._open(call, Scope.of_batch(self._recorder, phase, rows), self._scopes[around])

    # -- values

    def _observe(self, batches: OpenBatches, signals: Mapping[str, Any]) -> None:
        self._session.intake.observe(batches, self._taken(signals))

    def _packet(self, batches: OpenBatches, signals: Mapping[str, Any]) -> None:
        self._session.take(batches, [Packet(self._taken(signals))], {})

    def _taken(self, signals: Mapping[str, Any]) -> dict[str, Any]:
        taken = self._recorder.plan.taken(signals)
        self._unknown("signal", signals.keys() - taken.keys())
        return taken

    def _metric(self, batches: OpenBatches, name: str, value: Any) -> None:
        self._session.intake.metrics(batches, {name: value})

    def _extra(self, batches: OpenBatches, column: str, *values: Any) -> None:
        if values:  # empty if the capture could not keep the column
            self._session.intake.extra(batches, column, *values)

    # -- log events

    def _mark(self, call: Call) -> None:
        """Do nothing: a part that the capture left out ended here."""

    def _cut(self, call: Call) -> None:
        self._session.cut_logged()

    def _rewind(self, call: Call, step: int, restart: bool = False) -> None:
        self._session.rewind(step, restart=restart)

    def _flush(self, call: Call) -> None:
        self._session.flush(self._scopes.get(call.scope))

    def _close(self, call: Call, failed: bool) -> None:
        self._recorder.close(failed=failed)

    def _unknown(self, what: str, names: Iterable[str]) -> None:
        for name in names:
            self._rehearsal.unknown.setdefault(name, what)
