"""Ranks of actor systems without collectives (Ray, Monarch): actors export their windows and a driver merges them.

An actor's recorder keeps its messages until ``Recorder.export`` returns them as bytes. The driver's ``Recorder.merge``
finishes a log event when the messages of all actors have arrived.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from declog.engine.frame import Frame
from declog.errors import CommError, DeclogError, PlanMismatchError, Problem, RuntimeFailure, UsageError
from declog.plans.ops import Plan
from declog.runtime.ranks.comm import Comm, Event
from declog.runtime.ranks.log_event import LogEvent
from declog.runtime.ranks.wire import UNREADABLE, Container, Packer
from declog.runtime.run.failures import Failures
from declog.runtime.worker.collector import Collector, fits

log = logging.getLogger("declog")
Export = tuple[int, list[bytes]]  # an actor's rank and its messages
KEPT_BYTES = 256 * 2**20  # an actor that keeps more bytes of messages warns that nobody exports


class ActorComm(Comm):
    """The comm of an actor; keeps messages until they are exported."""

    collects = False
    by_exports = True

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__()
        self.rank = rank
        self.world_size = world_size
        self._lock = threading.Lock()
        self._messages: list[bytes] = []
        self._reported = False

    def send(self, event: Event, data: bytes) -> None:
        with self._lock:
            self._messages.append(data)
            kept = sum(map(len, self._messages))
        if kept > KEPT_BYTES and not self._reported:
            self._reported = True
            log.warning("actor %d keeps %d bytes of log events that nobody exports: call `export`", self.rank, kept)

    def take(self, fingerprint: str) -> bytes:
        """Return the messages since the last export, as bytes, and forget them."""
        with self._lock:
            messages, self._messages = self._messages, []
        packer = Packer()
        buffers = [packer.put(np.frombuffer(message, np.uint8)) for message in messages]
        return packer.seal({"fingerprint": fingerprint, "rank": self.rank, "messages": buffers})


class DriverComm(Comm):
    """The comm of a driver, which has the sinks and records nothing itself."""

    by_exports = True

    def __init__(self, world_size: int) -> None:
        super().__init__()
        self.world_size = world_size


def read_all(exports: Iterable[bytes], plan: Plan, world_size: int) -> tuple[list[Export], DeclogError | None]:
    """Read exports; return the exports that can be merged, and the error of the first that cannot."""
    taken, problem = [], None
    for data in exports:
        try:
            taken.append(read(data, plan, world_size))
        except DeclogError as error:
            problem = problem or error
    return taken, problem


def read(data: bytes, plan: Plan, world_size: int) -> Export:
    """Return an export's rank and messages.

    Raises ``CommError`` for data that is no export, ``PlanMismatchError`` for an export of another plan, and
    ``UsageError`` for a rank outside the world size.
    """
    try:
        export = Container(bytes(data))
        rank, fingerprint = int(export.header["rank"]), export.header["fingerprint"]
        messages = [export.get(buffer).tobytes() for buffer in export.header["messages"]]
    except (CommError, *UNREADABLE) as error:
        cause = error.message if isinstance(error, CommError) else error
        raise CommError.of("DL603.export", error=cause) from None
    if fingerprint != plan.fingerprint:
        raise PlanMismatchError(
            [Problem.of("DL604.actor", rank=rank, fingerprint=fingerprint, driver=plan.fingerprint)]
        )
    if not 0 <= rank < world_size:
        raise UsageError.of("DL510.actor_rank", rank=rank, world_size=world_size)
    return rank, messages


class _Part(NamedTuple):
    """One actor's part of a log event, and its size in bytes."""

    frames: dict[str, Frame]
    event: LogEvent
    bytes: int


class Merger:
    """Merges the log events of a driver's actors; used on the worker thread.

    The merger stops waiting for an actor that missed a log event until the actor exports again, so a dead actor delays
    the log only once. An actor that never entered a mode misses nothing by having no part in that mode's log events.
    """

    def __init__(self, plan: Plan, collector: Collector, failures: Failures, comm: Comm) -> None:
        self._plan = plan
        self._collector = collector
        self._failures = failures
        self._comm = comm
        # the parts of each unfinished log event by actor, in the order in which the events arrived
        self._waiting: dict[Event, dict[int, _Part]] = {}
        self._until: dict[Event, float] = {}  # when each of these events stops waiting for missing parts
        self._missed: set[int] = set()
        # by mode: the latest event, and the actors whose windows are complete
        self._last: dict[str, tuple[LogEvent, set[int]]] = {}
        self._done: dict[str, int] = {}  # the last log event of each mode
        self._begun: Mapping[str, int] = {}  # the number of log events of each mode before this driver resumed the run
        self._skipped: dict[tuple[str, int], int] = {}  # the number of a mode's log events before an actor entered it

    def state(self) -> dict[str, Any]:
        """Return the counts of log events that later actors continue from, as plain data for a checkpoint."""
        begun = {**self._begun, **{mode: number + 1 for mode, number in self._done.items()}}
        return {"begun": begun, "skipped": [[*key, count] for key, count in self._skipped.items()]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that ``state`` returned."""
        self._begun = state["begun"]
        self._skipped = {(mode, rank): count for mode, rank, count in state["skipped"]}

    @property
    def step(self) -> int:
        """The last step of the finished log events; 0 before the first one."""
        return max((item.step for item, _ in self._last.values()), default=0)

    def merge(self, exports: Iterable[Export], wait_s: float) -> float | None:
        """Take exports, and finish every log event that is complete or has waited long enough.

        Returns the seconds that the next unfinished log event may still wait for its actors; None if none waits.
        """
        until = time.monotonic() + wait_s
        for rank, messages in exports:
            if messages:
                self._missed.discard(rank)
            for data in messages:
                self._take(rank, data, until)
        for event in list(self._waiting):
            if not self._ready(event):  # log events are finished in order, so later events wait too
                return max(self._until[event] - time.monotonic(), 0.0)
            self._finish(event)
        return None

    def settle(self) -> None:
        """Finish all waiting log events with the parts that have arrived."""
        for event in list(self._waiting):
            self._finish(event)

    def end(self) -> None:
        """Finish all log events, and end the open windows: no more exports will come."""
        self.settle()
        for item, complete in self._last.values():
            nothing: dict[int, dict[str, Frame]] = {rank: {} for rank in complete}
            self._collect(item._replace(tail=True, part=False, last=True), nothing)

    def _ready(self, event: Event) -> bool:
        if self._missing(event) <= self._missed or time.monotonic() >= self._until[event]:
            return True
        waiting = sum(part.bytes for parts in self._waiting.values() for part in parts.values())
        return waiting > self._plan.backlog_bytes

    def _missing(self, event: Event) -> set[int]:
        return set(range(self._comm.world_size)) - set(self._waiting[event])

    def _take(self, rank: int, data: bytes, until: float) -> None:
        try:
            frames, message = self._collector.read(rank, data)
        except CommError as error:
            self._failures.report(error)
            return
        skipped = self._skipped.setdefault((message.mode, rank), self._begun.get(message.mode, 0))
        message = message._replace(event=message.event + skipped)
        event = message.key
        late = event.number <= self._done.get(event.mode, -1)
        if late and message.last and message.intact and not any(len(frame.batches) for frame in frames.values()):
            return  # the actor's last message is late but has no rows to lose
        self._comm.entered(rank, event.mode)
        if late:
            self._failures.report(CommError.of("DL603.late_actor", rank=rank))
        elif rank in self._waiting.setdefault(event, {}):
            self._failures.report(CommError.of("DL603.twice", rank=rank))
        else:
            self._waiting[event][rank] = _Part(frames, message, len(data))
            self._until.setdefault(event, until)

    def _finish(self, event: Event) -> None:
        missing = self._missing(event)
        parts = dict(sorted(self._waiting.pop(event).items()))
        del self._until[event]
        self._done[event.mode] = event.number
        absent = missing & set(self._comm.absent(event.mode))
        has_rows = any(len(frame.batches) for part in parts.values() for frame in part.frames.values())
        self._collector.skip(event.mode, sorted(absent), has_rows=has_rows)
        self._missed |= missing - absent
        if missing - absent:
            self._failures.report(CommError.of("DL603.no_actor", missing=sorted(missing - absent)))
        events = [part.event for part in parts.values()]
        first = next((one for one in events if not one.last), max(events, key=lambda message: message.steps))
        for rank in [rank for rank, part in parts.items() if not fits(first, part.event)]:
            self._failures.report(self._collector.mismatch(f"actor {rank}", first, parts.pop(rank).event))
        tail = all(part.event.tail for part in parts.values())
        complete = {rank for rank, part in parts.items() if self._collector.opened(part.event, tail=tail)}
        complete -= self._collector.ended(event.mode, {rank: part.event.last for rank, part in parts.items()})
        item = LogEvent(event.number, first.step, first.steps, event.mode, tail=tail, part=first.part, back=first.back)
        self._last[event.mode] = item, complete
        self._collect(item, {rank: part.frames for rank, part in parts.items()}, complete)

    def _collect(
        self, item: LogEvent, parts: Mapping[int, dict[str, Frame]], complete: Collection[int] | None = None
    ) -> None:
        finish = partial(self._collector.finish, item, parts, parts if complete is None else complete)
        self._failures.attempt(finish, RuntimeFailure)
