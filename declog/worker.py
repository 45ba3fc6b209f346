"""The background side of a log event: to the host, exchange, evaluate, dispatch.

One thread per process, fed by the training thread through a queue that never blocks it. Ranks above 0 send
their rows to rank 0; rank 0 evaluates the rows of all ranks as one process would. The thread is never
abandoned inside torch: it is told to stop and joined.
"""

from __future__ import annotations

import logging
import queue
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from declog import filters
from declog.axes import Axis
from declog.carry import Carry
from declog.comm import Comm
from declog.dispatch import Dispatcher
from declog.errors import CommError, DeclogError, RuntimeFailure
from declog.evaluate import View
from declog.frame import Block, Frame
from declog.functions import DEFAULT, Functions
from declog.kernels import NOTHING
from declog.message import decode, encode
from declog.plan import Plan, TableOp
from declog.tables import EXTRA
from declog.window import Window

log = logging.getLogger("declog")
HURRY_S = 2.0  # how long a run that failed still waits for another rank's rows


@dataclass
class Handoff:
    """One log event of one rank: the window, and where in the run it is."""

    event: int
    step: int
    count: int  # optimizer steps so far, of this run
    window: Window
    tail: bool = False  # every window of the mode ends here
    mode: str = "train"
    done: threading.Event | None = None  # set when the event is finished, where somebody waits


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, DeclogError) else f"{type(error).__name__}: {error}"


@dataclass
class Failures:
    """What went wrong behind the training thread's back: counted, the first of a kind told at once."""

    counts: dict[str, int] = field(default_factory=dict)
    first: BaseException | None = None

    def report(self, error: BaseException) -> None:
        """Note an error; its traceback is logged the first time."""
        name = str(error) if isinstance(error, RuntimeFailure) else f"{type(error).__name__}: {error}"
        known = self.counts.get(name, 0)
        self.counts[name] = known + 1
        self.first = self.first or error
        if not known:
            cause = error.__cause__ if isinstance(error, RuntimeFailure) else error
            detail = "" if cause is None else "\n" + "".join(traceback.format_exception(cause))
            log.error("a log event could not be finished: %s%s", name, detail)


class Worker:
    """Takes windows in order; ``submit`` returns at once."""

    def __init__(
        self, plan: Plan, comm: Comm, dispatcher: Dispatcher, *, functions: Functions = DEFAULT, wait_s: float = 30.0
    ) -> None:
        self.failures = Failures()
        self._plan = plan
        self._comm = comm
        self._dispatcher = dispatcher
        self._functions = functions
        self._wait_s = wait_s
        self._queue: queue.SimpleQueue[Handoff | None] = queue.SimpleQueue()
        self._held: dict[str, dict[int, list[dict[str, Frame]]]] = {
            mode: {period: [] for period in plan.periods} for mode in plan.modes
        }
        self._carries = {mode: Carry(plan, functions) for mode in plan.modes}
        self._thread = threading.Thread(target=self._main, name="declog-worker", daemon=True)
        self._thread.start()

    def submit(self, handoff: Handoff) -> None:
        """Hand over one log event."""
        self._queue.put(handoff)

    def close(self, *, hurry: bool = False) -> None:
        """Finish what was handed over, and join the thread; in a hurry without long waits for other ranks."""
        if hurry:
            self._wait_s = min(self._wait_s, HURRY_S)
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _main(self) -> None:
        while (handoff := self._queue.get()) is not None:
            try:
                self._process(handoff)
            # The worker outlives any event: what goes wrong is counted and told, and raised under `strict`.
            except Exception as error:  # noqa: BLE001
                self.failures.report(error)
            finally:
                if handoff.done is not None:
                    handoff.done.set()

    def _process(self, handoff: Handoff) -> None:
        with np.errstate(all="ignore"):
            if self._comm.rank:
                self._comm.send(handoff.event, self._message(handoff))
                return
            frames, local_error = self._local(handoff)
            ranks = 1
            if self._comm.world_size > 1:
                ranks, frames = self._gather(handoff, frames)
            if local_error is not None:
                self.failures.report(RuntimeFailure("DL605", local_error))
            self._finish(handoff, frames, ranks)

    # -- this rank

    def _message(self, handoff: Handoff) -> bytes:
        """What rank 0 needs of this rank. Whatever fails here, the rank sends: else the others would wait for it."""
        meta: dict[str, Any] = {"step": handoff.step, "count": handoff.count, "tail": handoff.tail}
        meta |= {"error": None, "whole": True}
        try:
            frames, meta["error"] = self._local(handoff)
            return encode(self._slim(frames), meta)
        except Exception as error:  # noqa: BLE001  (reported here, and told to rank 0)
            self.failures.report(error)
            return encode({}, {**meta, "error": f"rank {self._comm.rank} sent no rows: {_told(error)}", "whole": False})

    def _local(self, handoff: Handoff) -> tuple[dict[str, Frame], str | None]:
        """This rank's frames with its local columns, and why they lack some of those."""
        frames = handoff.window.frames(self._plan.events, self._comm.rank, self._plan.grouping)
        try:
            for name, event in self._plan.events.items():
                if name in frames and event.locals:
                    frames[name] = self._with_locals(frames[name], name)
        except Exception as error:  # noqa: BLE001  (a user's function may raise anything; rank 0 reports it)
            return frames, f"rank {self._comm.rank}: {_told(error)}"
        return frames, None

    def _with_locals(self, frame: Frame, event: str) -> Frame:
        for op in self._plan.events[event].locals:
            axis = op.expr.type.axis
            if axis is None:
                continue
            values = np.asarray(View(frame, self._functions).rows(op.expr, axis))
            frame = Frame(
                frame.event,
                frame.batches,
                [*frame.blocks, Block(axis, ((op.name, None),), values[None])],
                frame.texts,
                frame.grouping,
            )
        return frame

    def _slim(self, frames: Mapping[str, Frame]) -> dict[str, Frame]:
        """What rank 0 needs: numbers, labels, and the text of rows that a filter may take."""
        found = {}
        for name, frame in frames.items():
            keep = np.zeros(int(frame.batches.rows.sum()), bool)
            texts: set[str] = set()
            for table in self._plan.tables:
                if table.event == name:
                    texts |= set(table.texts)
                    keep[self._candidates(table, frame)] = True
            travels = self._plan.events[name].travels
            whole = {}
            for key, (axis, values) in frame.texts.items():
                if key[0] in travels or axis is not Axis.COMPLETION:
                    whole[key] = (axis, values)
                elif key[0] in texts or key[0].startswith(EXTRA):
                    whole[key] = (axis, np.where(keep, values, NOTHING))
            found[name] = Frame(frame.event, frame.batches, frame.blocks, whole, frame.grouping)
        return found

    def _candidates(self, table: TableOp, frame: Frame) -> filters.Rows | slice:
        """Rows that may be in the table: of the last batch, the last rows of the frame, where it keeps only that."""
        kept = frame.tail() if table.keep == "last_batch" else frame
        skipped = frame.count(Axis.COMPLETION) - kept.count(Axis.COMPLETION)
        if table.filter is None:
            return slice(skipped, None)
        return skipped + filters.candidates(table.filter, View(kept, self._functions))

    # -- rank 0

    def _gather(self, handoff: Handoff, frames: dict[str, Frame]) -> tuple[int, dict[str, Frame]]:
        parts, whole = [frames], 1
        for rank, data in enumerate(self._comm.receive(handoff.event, self._wait_s), 1):
            if data is None:
                message = f"rank {rank} sent no window: it left, or was not in time"
                self.failures.report(CommError("DL603", message, "its rows are missing from the values of this step"))
                continue
            try:
                other, meta = decode(data, self._plan.grouping)
            except CommError as error:
                self.failures.report(error)
                continue
            if meta["error"] is not None:
                self.failures.report(RuntimeFailure("DL605", meta["error"]))
            parts.append(other)
            whole += meta["whole"] and (handoff.tail or not meta["tail"])  # a rank that left early sent its tail
        names = dict.fromkeys(name for part in parts for name in part)
        return whole, {name: Frame.merge([part[name] for part in parts if name in part]) for name in names}

    def _finish(self, handoff: Handoff, frames: dict[str, Frame], ranks: int) -> None:
        """Evaluate what is due at this event; slower metrics keep the window until theirs is."""
        frames = self._carries[handoff.mode].apply(frames, self.failures.report)
        due: dict[int, dict[str, Frame]] = {}
        for period, held in self._held[handoff.mode].items():
            held.append(frames)
            if handoff.tail or (period and handoff.count % period == 0):
                names = dict.fromkeys(name for part in held for name in part)
                due[period] = {name: Frame.merge([part[name] for part in held if name in part]) for name in names}
                held.clear()
        partial = None if ranks == self._comm.world_size else ranks
        self._dispatcher.dispatch(handoff.step, due, self.failures.report, mode=handoff.mode, partial=partial)
