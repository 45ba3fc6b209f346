"""Windows that end, and the log events that they become: handed to the worker in the order of steps.

The session calls, under its lock. Imports windows and what runs behind the training thread.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping

from declog.plans.ops import Plan
from declog.runtime.background import Background
from declog.runtime.call_log import CallLog
from declog.runtime.failures import Failures
from declog.runtime.lanes import Edge, Lane
from declog.runtime.misplaced import Misplaced
from declog.runtime.self_metrics import Meter
from declog.runtime.window import Window
from declog.runtime.window_item import Answer, WindowItem

PART = 16  # a window longer than so many steps goes to rank 0 in parts of so many


class LogEvents:
    """Hands them over, and counts those of each mode."""

    def __init__(
        self, plan: Plan, calls: CallLog, failures: Failures, background: Background, meter: Meter,
        misplaced: Misplaced,
    ) -> None:  # fmt: skip
        self.counts: Counter[str] = Counter()  # steps of each mode
        self.begun: dict[str, int] = {}  # log events of each mode; a block's when it begins, as on all ranks
        self._sent: dict[str, int] = {}  # those that were handed over
        self._plan = plan
        self._calls = calls
        self._failures = failures
        self._background = background
        self._meter = meter
        self._misplaced = misplaced

    def begin(self, mode: str) -> int:
        """The number of the next log event of a mode, which begins."""
        number = self.begun.get(mode, 0)
        self.begun[mode] = number + 1
        return number

    def step_ended(self, lane: Lane, number: int, *, failed: bool) -> None:
        """A step of a mode has ended: windows that end with it are handed over, or wait for scopes."""
        self.counts[lane.mode] = count = self.counts[lane.mode] + 1
        every = lane.every
        ends = self._plan.ends(lane.mode, count, every)
        if ends or (count % every if every else count) % PART == 0:
            edge = Edge(number, count, lane.spent, part=not ends, failed=failed and ends)
            if not lane.edges and not lane.open and lane.held is None:
                self._end_window(lane, edge)
                return
            lane.edges.append(edge)
        if lane.edges:
            self.advance(lane)

    def advance(self, lane: Lane) -> None:
        """Hand over the windows that all has come for."""
        while lane.edges and (edge := lane.ready(self._background.wait_s)) is not None:
            self._end_window(lane, edge)

    def finish(self, lane: Lane) -> None:
        """Hand over the windows that still wait for scopes: nobody waits any more."""
        while lane.edges:
            self._end_window(lane, lane.edges.popleft(), forced=True)

    def _end_window(self, lane: Lane, edge: Edge, *, forced: bool = False) -> None:
        if not lane.ordered:
            self.log(lane, edge.step, None, edge=edge, tail=True)
            return
        promise = lane.promise
        if edge.part:
            upto = edge.step if promise is None else min(edge.step, promise)
            self.hand_over(lane, edge.step, upto, edge=edge)
            return
        held = promise is None or promise < edge.step
        if held and not forced:
            self._misplaced.partial(edge.step, sorted(step for step in lane.open if step <= edge.step))
            lane.window.whole = False
        self.log(lane, edge.step, edge.step, edge=edge)
        lane.closed_to(promise if held and forced else edge.step)

    def log(
        self, lane: Lane, step: int, upto: int | None, *, edge: Edge | None = None, tail: bool = False,
        failed: bool = False, again: bool = False, answer: Answer | None = None, back: int | None = None,
    ) -> None:  # fmt: skip
        """Hand over a window that ends, and wait for it where the profile says so."""
        if edge is not None and edge.part:
            self.hand_over(lane, step, upto, edge=edge)
            return
        failed = failed or (edge is not None and edge.failed)
        item = self.hand_over(
            lane, step, upto, edge=edge, tail=tail, answer=answer, failed=failed, again=again, back=back
        )
        if item.done is not None:
            self._background.wait_for(item)

    def hand_over(
        self, lane: Lane, step: int, upto: int | None, *, edge: Edge | None = None, tail: bool = False,
        answer: Answer | None = None, failed: bool = False, again: bool = False, last: bool = False,
        back: int | None = None,
    ) -> WindowItem:  # fmt: skip
        """Give the worker the rows of a window up to a step (None: all), or those of a part of it."""
        began = time.perf_counter()
        mode, window, part = lane.mode, lane.take(upto), edge is not None and edge.part
        try:
            window.hand_off()
        except Exception as error:  # noqa: BLE001  (a log event without rows is one: ranks stay at one count)
            self._failures.report(error)
            window = Window(whole=False)
        done = threading.Event() if self._plan.blocking and not part else None
        figures = {} if part else self._meter.read()
        if figures:
            figures |= self._background.backlog.read()
        short_wait = failed and done is not None  # a step that ends with an error does not wait long for other ranks
        event = self.begin(mode) if lane.event is None else lane.event
        item = WindowItem(
            event, step, self.counts[mode] if edge is None else edge.count, window, tail, mode, part, done, answer,
            figures, short_wait, last, self._sent.copy(), self.begun.copy(), lane.seconds(edge), self._calls.elapsed(),
            window.bytes, back,
        )  # fmt: skip
        lane.event = None
        self._sent[mode] = self._sent.get(mode, 0) + 1
        self._background.submit(item)
        self._background.backlog.wait()
        if not part and not again:
            self._calls.logged(mode)
        self._meter.handing += time.perf_counter() - began
        return item

    def load(self, begun: Mapping[str, int], counts: Mapping[str, int]) -> None:
        """Continue where a checkpoint was saved."""
        self.begun.update(begun)
        self._sent.update(begun)
        self.counts.update(counts)
