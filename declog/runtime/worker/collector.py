"""Rank 0's side of a log event: collects the rows of all ranks, and evaluates them.

The merged rows are evaluated as a single process would, so that no value depends on the number of ranks. Runs on the
worker thread.
"""

from __future__ import annotations

import itertools
import logging
import time
import zlib
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from declog.engine.evaluation import Evaluation, Frames
from declog.engine.frame import GROUP_ID, merged
from declog.engine.log_event import EventFacts, undone
from declog.engine.publish import DROPPED, Dispatcher
from declog.errors import CommError, RuntimeFailure, error_text
from declog.errors.messages import listed
from declog.language.dtypes import Axis
from declog.plans.ops import Plan
from declog.records import Beside
from declog.runtime.ranks.comm import Comm, Event
from declog.runtime.ranks.log_event import LogEvent
from declog.runtime.ranks.message import decode
from declog.runtime.rows.kept import without_kept
from declog.runtime.rows.packets import Fate, fates
from declog.runtime.run import self_metrics
from declog.runtime.run.failures import Failures
from declog.runtime.worker.row_files import RowEvent
from declog.runtime.worker.row_keeper import RowKeeper

log = logging.getLogger("declog")

Figures = Mapping[str, float]
SHORT_WAIT_S = 2.0  # how long rank 0 waits for other ranks' rows if the run failed, or training waits for the values
PATIENCE = 16  # after so many further log events, rank 0 will not begin one that another rank has begun
RANKS_WATCHED = 3  # the number of log events in which the rows of ranks are compared


class LiveMetrics(Protocol):
    """Metrics that are added during the run; see ``declog.late.live``."""

    @property
    def folders(self) -> Collection[Path]:
        """The folders of their files. These metrics rewind the files themselves when the run goes back."""

    def take(self, event: RowEvent) -> None:
        """Take a log event of all ranks, with its kept rows."""

    def close(self) -> None:
        """End: no more log events will follow."""


class Collector:
    """Collects and evaluates log events; waits at most ``wait_s`` seconds for other ranks' rows."""

    def __init__(
        self, plan: Plan, comm: Comm, dispatcher: Dispatcher, failures: Failures, *, wait_s: float,
        queued: Callable[[], Figures], unused: Callable[[], int], rows: RowKeeper | None, live: LiveMetrics | None,
        go_back: Callable[[int, Collection[Path]], None],
    ) -> None:  # fmt: skip
        self.wait_s = wait_s
        self.rows = rows
        self._live = live
        self._go_back = go_back  # lets the sinks drop their rows after a step
        self._plan = plan
        self._comm = comm
        self._dispatcher = dispatcher
        self._failures = failures
        self._queued = queued  # returns the figures of the sinks' queues
        self._unused = unused  # at the end of the run: returns the number of rows in packets that nobody consumed
        self.evaluation = Evaluation(plan, dispatcher, failures.report)
        self._watched = 0  # the number of log events in which ranks' rows were compared
        self._silent: dict[str, list[set[int]]] = {}  # by phase: the ranks without rows in each of its first log events
        self._told_silent = False
        self._skipped: dict[str, set[int]] = {}  # by mode: the ranks that its log events were evaluated without
        self._warned: set[str] = set()  # modes with a warning that some ranks do not enter them
        self._mismatched: set[str] = set()  # ranks with a reported mismatch
        self._figures: list[Figures] = []  # the figures of all ranks' messages since the last log event
        self._ended: set[int] = set()  # ranks that sent their last message
        self._sent: dict[int, deque[Mapping[str, int]]] = {}  # by rank: `sent` of its latest messages
        self._dropped: dict[tuple[int, str], int] = {}  # by rank and mode: log events below this number are dropped

    def collect(self, item: LogEvent, frames: Frames) -> dict[str, float]:
        """Finish a log event of all ranks, given rank 0's frames; return the logged scalars by name."""
        if item.last:
            self._ended.add(0)
        parts, complete = {0: frames}, {0} if self.opened(item, tail=True) else set[int]()
        if self._comm.world_size > 1:
            wait_s = min(self.wait_s, SHORT_WAIT_S) if item.short_wait else self.wait_s
            if item.answer is not None:
                # leave time for the answer, but wait at least briefly for other ranks, however short the caller waits
                wait_s = min(wait_s, max(item.answer.remaining / 2, SHORT_WAIT_S))
            latest, last = -1, {0: item.last}
            messages, absent = self._comm.receive(item.key, wait_s), self._comm.absent(item.mode)
            self.skip(item.mode, absent, has_rows=any(len(frame.batches) for frame in frames.values()))
            for rank, data in enumerate(messages, 1):
                if data is None:
                    if item.mode != "train" and not self._comm.has_sent(rank):  # it may never enter this mode
                        self._skipped.setdefault(item.mode, set()).add(rank)
                    elif rank not in absent:
                        self._failures.report(CommError.of("DL603.no_window", rank=rank))
                    continue
                try:
                    rows, message = self.read(rank, data)
                    self._in_step(item, rank, message)
                except CommError as failure:
                    self._failures.report(failure)
                    continue
                parts[rank], last[rank] = rows, message.last
                # a rank with fewer steps ended before this event, although both events are at their tail
                together = item.tail and message.steps >= item.steps
                complete |= {rank} if self.opened(message, tail=together) else set()
                latest = max(latest, message.step)
            complete -= (ended := self.ended(item.mode, last))
            if latest > item.step or 0 in ended:  # rank 0 ended before the other ranks, and lacks this step
                item, complete = item._replace(step=latest), complete - {0}
        unused = self._unused() if item.last and item.mode == "train" and self.all_ended else 0
        if unused:
            self._figures.append({DROPPED: unused})
        logged = self.finish(item, parts, complete)
        if unused and self._figures:  # the last window has no rows, so no log event showed the count
            figures = self_metrics.greatest(self._figures)
            self._dispatcher.pass_through(item.step, item.mode, Beside(), figures)
        return logged

    def skip(self, mode: str, ranks: Sequence[int], *, has_rows: bool) -> None:
        """Warn once per mode that ``ranks`` have not entered it, so that its values are of the other ranks.

        This is right if for instance rank 0 evaluates alone. If a skipped rank was only slow and enters the mode later,
        its missed log events are reported as a failure.
        """
        for one, skipped in self._skipped.items():
            for rank in filter(self._comm.has_sent, skipped - set(self._comm.absent(one))):
                skipped.discard(rank)
                self._failures.report(CommError.of("DL603.no_window", rank=rank))
        if ranks and has_rows:
            self._skipped.setdefault(mode, set()).update(ranks)
        for one, skipped in self._skipped.items():
            if skipped and one not in self._warned:
                self._warned.add(one)
                log.warning(
                    "`%s` is of %d of %d ranks: rank %s has not entered it (`declog/ranks` beside its values says so); "
                    "if it should, enter `with log.mode('%s'):` on every rank",
                    one, self._comm.world_size - len(skipped), self._comm.world_size,
                    ", ".join(map(str, sorted(skipped)[:4])), one,
                )  # fmt: skip

    def finish(self, item: LogEvent, parts: Mapping[int, Frames], complete: Collection[int]) -> dict[str, float]:
        """Evaluate the metrics and tables that are due at this event; longer windows keep the rows.

        ``parts`` has the frames by rank, and ``complete`` the ranks whose frames have all their rows. Returns the
        logged scalars by name.
        """
        self._watch(list(parts.values()))
        if item.mode == "train" and not self._comm.by_exports:  # actors may have different tasks
            self._note_silent_ranks(item, {rank: parts[rank] for rank in parts if rank in complete})
        frames, taken = self._merged(parts)
        ranks = len(taken & set(complete))
        logs = item.mode == "train" and not self._plan.every  # the trainer decides when to log: longer windows go on
        tail = item.tail and (not logs or item.last or item.back is not None)
        facts = EventFacts(
            item.event, item.mode, item.step, item.steps, tail, item.part, item.back, item.seconds, item.elapsed,
            None if ranks == self._comm.world_size else ranks, time.time(),
        )  # fmt: skip
        self._dispatcher.inactive.judges = not item.failed
        event = None if self.rows is None else self._keep(self.rows, facts, frames)
        logged = self.evaluation.add(
            facts, without_kept(frames), figures=self._cost, beside=item.window.beside, asked=item.answer is not None
        )
        if item.back is not None:
            self.evaluation.rewind(item.back)
        if event is not None and self._live is not None:
            self._live.take(event)
        if (back := undone(item.back)) is not None:
            self._go_back(back, () if self._live is None else self._live.folders)
        return logged

    def _cost(self) -> Figures:
        """Return the costs of declog itself since the last log event, by name."""
        figures = {**self_metrics.greatest(self._figures), **self._queued()}
        self._figures.clear()
        return figures

    def _keep(self, rows: RowKeeper, facts: EventFacts, frames: Frames) -> RowEvent | None:
        """Keep the rows of a log event; if the disk refuses, report it once and stop keeping rows."""
        try:
            return rows.add(facts, frames)
        except Exception as error:  # noqa: BLE001  (logging goes on without kept rows)
            self.rows = None
            rows.stop()
            self._failures.report(RuntimeFailure.of("DL611.stopped", error=error_text(error)))
            return None

    @property
    def all_ended(self) -> bool:
        """Whether all ranks have sent their last message."""
        return len(self._ended) == self._comm.world_size

    def close(self) -> None:
        """End: no more log events will follow."""
        for error in self._dispatcher.inactive.errors if self._plan.strict else ():
            self._failures.report(error, "a signal is missing")
        self._dispatcher.inactive.end()
        self._dispatcher.close()
        if self._live is not None:
            self._live.close()
        if self.rows is not None:
            try:
                self.rows.close()
            except Exception as error:  # noqa: BLE001  (the rows so far are kept)
                self._failures.report(RuntimeFailure.of("DL611.stopped", error=error_text(error)))

    def _merged(self, parts: Mapping[int, Frames]) -> tuple[Frames, set[int]]:
        """Return the merged rows, and their ranks; if a rank's rows do not fit, only these rows are lost."""
        try:
            return merged(list(parts.values())), set(parts)
        except Exception:  # noqa: BLE001  (merging rank by rank finds the rank)
            rows: Frames = {}
            taken: set[int] = set()
            for rank, part in parts.items():
                try:
                    rows = merged([rows, part])
                    taken.add(rank)
                except Exception as error:  # noqa: BLE001
                    failure = CommError.of("DL603.rows", rank=rank)
                    failure.__cause__ = error
                    self._failures.report(failure)
            return rows, taken

    # -- other ranks' messages

    def read(self, rank: int, data: bytes) -> tuple[Frames, LogEvent]:
        """Return a rank's frames and facts from a message; raises ``CommError`` if the message is damaged.

        Also notes the packets that the message lists, and whether it is the rank's last one.
        """
        frames, meta = decode(data, self._plan.grouping)
        message = LogEvent.read(meta)
        fates.heard(message.consumed, itertools.starmap(Fate, message.unused))
        if message.last:
            self._ended.add(rank)
        return frames, message

    def opened(self, message: LogEvent, *, tail: bool) -> bool:
        """Take the facts of a message; return whether it has all rows of its rank.

        ``tail``: a message at the tail may have all rows; it has not if the rank ended early.
        """
        if message.error is not None:
            self._failures.report(RuntimeFailure("DL605", message.error))
        self._figures.append(message.figures)
        self._dispatcher.inactive.came(message.mode, message.event, message.steps, message.arrivals)
        return message.intact and (tail or not message.tail)

    def ended(self, mode: str, last: Mapping[int, bool]) -> set[int]:
        """The ranks that ended before other ranks made this block of a mode; ``last``: whether a message was the last.

        Modes that count steps are left out: there the counts of steps show this.
        """
        if mode == "train" or self._plan.modes[mode].every or all(last.values()):
            return set()
        return {rank for rank in last if last[rank]}

    def _in_step(self, event: LogEvent, rank: int, message: LogEvent) -> None:
        """Raise ``CommError`` if a message is of another log event: it would mix modes, or rows of different steps.

        Also reports and drops log events that only this rank makes: rank 0 has not begun them ``PATIENCE`` log events
        later, or at the end of both.
        """
        if not fits(event, message):
            raise self.mismatch(f"rank {rank}", event, message)
        latest = self._sent.setdefault(rank, deque([{}] * PATIENCE, PATIENCE))
        latest.append(message.sent)
        if event.last != message.last:
            return  # one of the two ranks has ended, and the other makes more log events
        for mode, count in latest[-1 if event.last else 0].items():
            alone = range(max(event.begun.get(mode, 0), self._dropped.get((rank, mode), 0)), count)
            if mode in self._plan.modes and alone:
                self._dropped[rank, mode] = count
                self._failures.report(CommError.of("DL603.mode", rank=rank, mode=mode))
                for number in alone:
                    self._comm.drop(Event(mode, number), rank)

    def mismatch(self, who: str, event: LogEvent, message: LogEvent) -> CommError:
        """Return the error for a message that belongs to another log event, with details once per rank."""
        detail = "" if who in self._mismatched else (
            f" (step {message.step}, its {message.steps}. of mode {message.mode}, where this is step {event.step}, "
            f"the {event.steps}. of mode {event.mode})"
        )  # fmt: skip
        self._mismatched.add(who)
        return CommError.of("DL603.event", who=who, detail=detail)

    def _watch(self, parts: Sequence[Frames]) -> None:
        """Warn of ranks with equal rows, which should be one rank; compares only the first log events with rows."""
        if len(parts) < 2 or self._watched >= RANKS_WATCHED:
            return
        prints = [print_ for frames in parts if (print_ := _print(frames)) is not None]
        self._watched += bool(prints)
        if len(set(prints)) < len(prints):
            self._watched = RANKS_WATCHED
            log.warning("%s", RuntimeFailure.of("DL606.same_rows"))

    def _note_silent_ranks(self, event: LogEvent, parts: Mapping[int, Frames]) -> None:
        """Note once the ranks without rows of a phase in its first log events, if rank 0 has rows of it.

        This is right where rank 0 holds the rows of all ranks. Nothing here distinguishes that from lost rows.
        """
        for phase in () if self._told_silent else self._plan.phases:
            rows = {rank: frames[phase].batches.completions for rank, frames in parts.items() if phase in frames}
            silent = self._silent.setdefault(phase, [])
            if len(silent) < RANKS_WATCHED and rows.get(0):
                silent.append({rank for rank in parts if not rows.get(rank)})
            enough = event.last or len(silent) == RANKS_WATCHED
            if silent and enough and (ranks := sorted(set.intersection(*silent))):
                self._told_silent = True
                log.warning(
                    "note: rank %s observed no rows of `%s` where rank 0 did (%d log event(s) so far): if each rank "
                    "has rows of its own, observe them on every rank, without `if rank == 0`; if rank 0 observes the "
                    "rows of all ranks, this is right", listed([*map(str, ranks)], 4), phase, len(silent),
                )  # fmt: skip
                return

    # -- checkpoints

    def state(self) -> tuple[Frames, dict[str, Any]]:
        """Return the state that later log events need of earlier ones: frames by name, and plain data."""
        frames, data = self.evaluation.state()
        return frames, data if self.rows is None else {**data, "rows": self.rows.count}


def fits(event: LogEvent, message: LogEvent) -> bool:
    """Whether a message belongs to this log event: same mode, step and count, or one of the two ranks has ended."""
    if (message.mode, message.event) != (event.mode, event.event):
        return False
    if message.last and message.steps <= event.steps and message.step <= event.step:
        return True  # that rank ended before this event: the message has its last rows
    if event.last and message.steps >= event.steps:
        return True  # rank 0 ended before the message's event
    expected = event.step, event.steps, event.tail, event.part
    return (message.step, message.steps, message.tail, message.part) == expected


def _print(frames: Frames) -> int | None:
    """A checksum of a rank's numbers per completion; None if no column varies, as equal numbers may be chance."""
    checksum, varies = 0, False
    for block in (block for frame in frames.values() for block in frame.blocks if block.axis is Axis.COMPLETION):
        if block.keys[0][0] != GROUP_ID:  # different ranks may sample the same prompts
            there = (column[column == column] for column in block.data)  # NaN differs from itself
            varies |= any((column != column[:1]).any() for column in there)
            checksum = zlib.crc32(block.data.tobytes(), checksum)
    return checksum if varies else None
