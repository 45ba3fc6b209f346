"""Rank 0's side of a log event: the rows of all ranks, what windows hold of earlier ones, and their evaluation.

The same evaluation as on one process, over the merged rows, so that no value depends on the number of ranks. Runs
on the worker thread. Imports evaluation and the ranks' messages, no torch.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from declog import meter
from declog.axes import Axis
from declog.carry import Carry
from declog.comm import Comm
from declog.dispatch import Dispatcher
from declog.errors import CommError, RuntimeFailure
from declog.failures import Failures
from declog.frame import Frame, merged
from declog.functions import DEFAULT, Functions
from declog.handoff import Handoff
from declog.held import Held
from declog.message import decode
from declog.plan import Plan

log = logging.getLogger("declog")

Frames = dict[str, Frame]
Figures = Mapping[str, float]
HURRY_S = 2.0  # how long another rank's rows are still waited for by a run that failed, or for an answer
TWINS_WATCHED = 3  # log events in which ranks are compared


class Collector:
    """Gathers, holds and evaluates; ``wait_s`` is how long it waits for another rank's rows."""

    def __init__(
        self,
        plan: Plan,
        comm: Comm,
        dispatcher: Dispatcher,
        failures: Failures,
        *,
        functions: Functions = DEFAULT,
        wait_s: float = 30.0,
        queued: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self.wait_s = wait_s
        self._plan = plan
        self._comm = comm
        self._dispatcher = dispatcher
        self._failures = failures
        self._queued = queued  # what the sinks' queues say about themselves
        self._held = {mode: {period: Held(plan, period, functions) for period in plan.periods} for mode in plan.modes}
        self._carries = {mode: Carry(plan, functions) for mode in plan.modes}
        self._watched = 0
        self._figures: list[Figures] = []

    def collect(self, handoff: Handoff, frames: Frames, error: str | None, figures: Figures) -> dict[str, float]:
        """Finish a log event of all ranks, given rank 0's own frames; the scalars that it logged, by name."""
        ranks, parts = 1, [frames]
        self._figures.append(figures)
        if error is not None:
            self._failures.report(RuntimeFailure("DL605", error))
        if self._comm.world_size > 1:
            wait_s = min(self.wait_s, HURRY_S) if handoff.hurry else self.wait_s
            if handoff.answer is not None:
                # in time for an answer, but no rank's rows are given up because somebody was impatient
                wait_s = min(wait_s, max(handoff.answer.left / 2, HURRY_S))
            found = dict(enumerate(self._comm.receive(handoff.event, wait_s), 1))
            more, others, latest = self._read(found, tail=handoff.tail)
            ranks, parts = ranks + more, [frames, *others]
            if latest > handoff.step:  # rank 0 ended before the others, without this step
                handoff, ranks = replace(handoff, step=latest), more
        return self.finish(handoff, parts, ranks)

    def finish(self, handoff: Handoff, parts: Sequence[Frames], ranks: int) -> dict[str, float]:
        """Evaluate what is due at this event; slower metrics keep the window until theirs is."""
        self._watch(parts)
        frames = merged(parts)
        frames = self._carries[handoff.mode].apply(frames, self._failures.report)
        due: dict[int, Held] = {}
        partial = None if ranks == self._comm.world_size else ranks
        for period, held in self._held[handoff.mode].items():
            held.add(frames, self._failures.report, partial=partial)
            if handoff.tail or (period and not handoff.part and handoff.count % period == 0):
                due[period] = held.end(self._failures.report)
        if not any(due.values()):  # nothing came since the last log event
            return {}
        figures = {**meter.greatest(self._figures), **self._queued()}
        self._figures.clear()
        return self._dispatcher.dispatch(handoff.step, due, self._failures.report, mode=handoff.mode, figures=figures)

    def _read(self, found: Mapping[int, bytes | None], *, tail: bool) -> tuple[int, list[Frames], int]:
        """The frames of other ranks' messages, of how many ranks they are whole, and the latest step."""
        parts, whole, latest = [], 0, -1
        for rank, data in found.items():
            if data is None:
                message = f"rank {rank} sent no window: it left, or was not in time"
                self._failures.report(CommError("DL603", message, "its rows are missing from the values of this step"))
                continue
            try:
                frames, meta = decode(data, self._plan.grouping)
            except CommError as error:
                self._failures.report(error)
                continue
            part, complete = self.opened(frames, meta, tail=tail)
            parts.append(part)
            whole += complete
            latest = max(latest, int(meta["step"]))
        return whole, parts, latest

    def opened(self, frames: Frames, meta: Mapping[str, Any], *, tail: bool) -> tuple[Frames, bool]:
        """A rank's frames, and whether they are all that it had to send: one that left early sent its tail."""
        if meta["error"] is not None:
            self._failures.report(RuntimeFailure("DL605", meta["error"]))
        self._figures.append(meta["figures"])
        return frames, bool(meta["whole"] and (tail or not meta["tail"]))

    def _watch(self, parts: Sequence[Frames]) -> None:
        """Ranks that hold the same rows should be one: equal ones are told, of the first log events that have rows."""
        if len(parts) < 2 or self._watched >= TWINS_WATCHED:
            return
        prints = [print_ for frames in parts if (print_ := _print(frames)) is not None]
        self._watched += bool(prints)
        if len(set(prints)) < len(prints):
            self._watched = TWINS_WATCHED
            log.warning(
                "[DL606] several ranks recorded exactly the same rows: each row counts as often as it came. "
                "Where ranks are not data-parallel, pass the data-parallel rank and size: "
                "declog.start(..., rank=..., world_size=...)"
            )

    # -- checkpoints

    def state(self) -> tuple[dict[str, Frame], dict[str, Any]]:
        """What the next log events need of the earlier ones: frames by name, and plain data."""
        frames: dict[str, Frame] = {}
        data: dict[str, Any] = {"dispatch": self._dispatcher.state(), "carry": {}, "held": {}}
        for mode, carry in self._carries.items():
            rows, data["carry"][mode] = carry.state()
            frames |= {f"carry/{mode}/{event}": frame for event, frame in rows.items()}
        for mode, by_period in self._held.items():
            for period, held in by_period.items():
                rows, data["held"][f"{mode}/{period}"] = held.state()
                frames |= {f"held/{mode}/{period}/{event}": frame for event, frame in rows.items()}
        return frames, data

    def load(self, frames: Mapping[str, Frame], data: Mapping[str, Any]) -> None:
        """Continue from a state of an equal plan."""
        self._dispatcher.load(data["dispatch"])
        for mode, carry in self._carries.items():
            carry.load(_below(frames, f"carry/{mode}/"), data["carry"].get(mode, {}))
        for mode, by_period in self._held.items():
            for period, held in by_period.items():
                name = f"{mode}/{period}"
                held.load(_below(frames, f"held/{name}/"), data["held"].get(name, {}))

    def load_totals(self, data: Mapping[str, Any]) -> None:
        """Of the state of another plan: what is counted from the start of the run."""
        self._dispatcher.load(data["dispatch"])


def _below(frames: Mapping[str, Frame], prefix: str) -> Frames:
    return {name.removeprefix(prefix): frame for name, frame in frames.items() if name.startswith(prefix)}


def _print(frames: Frames) -> int | None:
    """A checksum of a rank's numbers per completion; None where there are too few to be equal by something else."""
    found, rows = 0, 0
    for frame in frames.values():
        for block in frame.blocks:
            if block.axis is Axis.COMPLETION and block.data.shape[1] > 1 and (block.data != block.data[:, :1]).any():
                rows += block.data.shape[1]
                found = zlib.crc32(block.data.tobytes(), found)
    return found if rows else None
