"""A plan executed over calls that were written down: real recorders, ranks as threads, sinks that only remember.

What ``declog preview`` and profile tests have in common. Nothing is opened and nothing is written. Imports the runtime,
and from ``run`` what its sinks may take.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from declog.engine.publish import CODE, Route
from declog.language.functions import DEFAULT, Functions
from declog.plans.ops import Plan
from declog.records import Records
from declog.runtime.batches import Locate
from declog.runtime.call_log import Tape
from declog.runtime.capture import Call
from declog.runtime.fake_comm import FakeComm, run_ranks
from declog.runtime.recorder import Recorder
from declog.sinks import traits

Script = Callable[[], Iterable[Call]]  # the calls of one rank
Events = list[tuple[int, Records]]  # what one sink got, with the steps

ALL = frozenset({"scalar", "histogram", "table", "alert"})
_LONG_S = 1e6  # nobody is late here
_FAILED = RuntimeError("the step failed")


@dataclass
class Rehearsal:
    """What was logged, by sink, in order (`files of rank 1`: its rows there); what failed; names that are not known."""

    events: dict[str, Events] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)  # by name: what it is


def rehearse(
    plan: Plan,
    scripts: Mapping[int, Script],
    world_size: int = 1,
    *,
    profile: str | None = None,
    functions: Functions = DEFAULT,
    locate: Locate | None = None,
) -> Rehearsal:
    """Execute the scripts of some ranks; one that has none has left. Raises what a run would raise.

    ``profile`` is what a sink that is given in code would show, under the id ``<code>``; None: there is none. What
    declog itself costs is not shown: it would be the cost of this.
    """
    found = Rehearsal()
    profiles = {name: replace(op, self_metrics=False) for name, op in plan.profiles.items()}
    plan = replace(plan, profiles=profiles)
    routes = {rank: _routes(plan, rank, world_size, found) for rank in range(world_size)}
    if profile is not None:
        routes[0].append(Route(CODE, profile, 1, "", ALL, _keeper(found, CODE)))

    def main(comm: FakeComm) -> None:
        script = scripts.get(comm.rank)
        if script is None:
            return
        tape = _Written()
        recorder = Recorder(
            plan, comm, {}, routes[comm.rank], None,
            functions=functions, wait_s=_LONG_S, locate=locate, tape=tape,
        )  # fmt: skip
        player = _Player(recorder, tape, found)
        try:
            for call in script():
                player.play(call)
            recorder.close()
        except BaseException:
            recorder.close(failed=True)
            raise
        finally:
            for name, count in recorder.failures.items():
                found.failures[name] = found.failures.get(name, 0) + count

    run_ranks(world_size, main, timeout_s=_LONG_S)
    return found


def _routes(plan: Plan, rank: int, world_size: int, found: Rehearsal) -> list[Route]:
    """The sinks of a rank, as ``start`` opens them: on other ranks than 0 those that get the rank's own rows."""
    routes = []
    for op in plan.sinks:
        apart = frozenset(table.id for table in plan.tables if world_size > 1 and op.id in table.apart)
        if rank == 0 or apart:
            most = traits(op.kind).unfiltered_bytes
            keeper = _keeper(found, op.id if rank == 0 else f"{op.id} of rank {rank}")
            routes.append(Route(op.id, op.profile, op.every, op.prefix, op.accepts, keeper, apart, most))
    return routes


def _keeper(found: Rehearsal, sink: str) -> Callable[[int, Records], None]:
    events = found.events.setdefault(sink, [])

    def submit(step: int, records: Records) -> None:
        events.append((step, records))

    return submit


class _Written(Tape):
    """Stands at the time of the call that is played."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0.0

    def elapsed(self) -> float:
        return self.at


class _Player:
    """Makes the calls of a script on a recorder."""

    def __init__(self, recorder: Recorder, tape: _Written, found: Rehearsal) -> None:
        self._recorder = recorder
        self._tape = tape
        self._found = found
        self._blocks: list[AbstractContextManager[Any]] = []
        self._lock = threading.Lock()

    def play(self, call: Call) -> None:
        """Make a call; what it raised in the run as well is no news."""
        self._tape.at = call.at
        try:
            getattr(self, f"_{call.name}")(*call.what)
        except Exception:
            if not call.failed:
                raise

    def _begin(self, step: int) -> None:
        self._enter_block(self._recorder.step(step))

    def _end(self, failed: bool) -> None:
        self._leave_block(failed)

    def _enter(self, mode: str) -> None:
        self._enter_block(self._recorder.mode(mode))

    def _leave(self, failed: bool) -> None:
        self._leave_block(failed)

    def _enter_block(self, block: AbstractContextManager[Any]) -> None:
        block.__enter__()
        self._blocks.append(block)

    def _leave_block(self, failed: bool) -> None:
        error = _FAILED if failed else None
        self._blocks.pop().__exit__(type(error) if error else None, error, None)

    def _observe(self, signals: Mapping[str, Any]) -> None:
        known = self._recorder.plan.known
        self._recorder.observe(**{name: value for name, value in signals.items() if name in known})
        self._unknown("signal", signals.keys() - known)

    def _cut(self, phase: str, *rows: int) -> None:
        if phase in self._recorder.plan.known_phases:
            self._recorder._cut(phase, *rows)
        else:
            self._unknown("phase", {phase})

    def _metric(self, name: str, value: Any) -> None:
        self._recorder.log_metric(name, value)

    def _extra(self, column: str, *values: Any) -> None:
        if values:  # else the column was nothing that can be kept
            self._recorder.log_extra(column, *values)

    def _flush(self) -> None:
        self._recorder.flush()

    def _close(self, failed: bool) -> None:
        self._recorder.close(failed=failed)

    def _unknown(self, what: str, names: Iterable[str]) -> None:
        for name in names:
            self._found.unknown.setdefault(name, what)
