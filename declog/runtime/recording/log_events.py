"""Turns ended windows into log events, and hands them to the worker in the order of steps.

The session calls these methods under its lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from declog.plans.ops import Plan
from declog.runtime.ranks.log_event import GREATEST, Answer, LogEvent
from declog.runtime.recording.timing import Clock
from declog.runtime.rows.dropped_rows import DroppedRows
from declog.runtime.rows.steps import Step, Stream, WindowEnd
from declog.runtime.rows.window import Window
from declog.runtime.run.failures import Failures
from declog.runtime.run.self_metrics import Meter
from declog.runtime.worker.alarm import Alarm
from declog.runtime.worker.background import Background

PART = 16  # the steps of a part: a longer window is sent to rank 0 in parts


class LogEvents:
    """The part of a session that owns the streams, hands log events to the worker, and counts them by mode."""

    def __init__(self, plan: Plan, clock: Clock, failures: Failures, background: Background) -> None:
        self.plan = plan
        self.clock = clock
        self.failures = failures
        self.lock = threading.RLock()
        self.closed = False
        self.meter = Meter(any(profile.self_metrics for profile in plan.profiles.values()))
        self.dropped = DroppedRows(failures, self.meter, strict=plan.strict)
        # the streams of train and of modes that count steps; in other modes each block has its own stream
        self.streams = {
            mode: Stream(mode, ordered=mode == "train", every=op.every) for mode, op in plan.modes.items() if op.every
        }
        self.train = self.streams.setdefault("train", Stream("train", ordered=True))
        self.counts: dict[str, int] = {}  # the number of steps by mode
        # the number of log events by mode; a block's log event counts when the block begins, so that ranks agree
        self.begun_by_mode: Mapping[str, int] = {}
        self._sent: Mapping[str, int] = {}  # the number of log events that were handed over, by mode
        self.on_device = False  # whether any batch was on a GPU
        # hands over a log event; an interrupt leaves it set until the worker has the log event
        self._outgoing: Callable[[], None] | None = None
        self._background = background
        self._alarm = Alarm(self._overdue)  # rings when a window has waited long enough

    def _overdue(self) -> None:
        """Hand over the windows that have waited long enough for open scopes; called by the alarm."""
        with self.lock:
            for stream in self.streams.values() if not self.closed else ():
                self.advance(stream)

    def _logged(self, mode: str) -> None:
        """React to a log event, other than a part, that was handed to the worker; for subclasses."""

    def begin_block(self, mode: str) -> Stream:
        """Begin a block of a mode and its log event; return the block's stream."""
        number = self.begun_by_mode.get(mode, 0)
        self.begun_by_mode = {**self.begun_by_mode, mode: number + 1}
        return Stream(mode, event=number, sent=self._sent)

    def step_ended(self, stream: Stream, number: int, *, failed: bool) -> None:
        """End a step of a mode: hand over the windows that end with it, unless they must wait for open scopes."""
        self.counts[stream.mode] = count = self.counts.get(stream.mode, 0) + 1
        every = stream.every
        part = (count % every if every else count) % PART == 0
        if part or count == self.plan.first:  # the first window may be shorter than the others
            ends = self.plan.ends(stream.mode, count, every)
            if ends or part:
                stream.ends.append(
                    WindowEnd(number, count, stream.spent, part=not ends, failed=failed and ends, sent=self._sent)
                )
        if stream.ends:
            self.advance(stream)

    def advance(self, stream: Stream) -> None:
        """Hand over the ended windows that are complete or have waited long enough; set the alarm for the next."""
        while stream.ends:
            end, complete = stream.ends[0], stream.complete
            if not end.part and stream.ordered and complete < end.step:
                seconds = stream.waits(self._background.wait_s)
                if seconds:
                    self._alarm.set(seconds)
                if seconds != 0:
                    return
            self._end_window(stream, complete)

    def finish_windows(self, stream: Stream) -> None:
        """Hand over all ended windows, without waiting for open scopes."""
        while stream.ends:
            self._end_window(stream, stream.complete, forced=True)

    def _end_window(self, stream: Stream, complete: int, *, forced: bool = False) -> None:
        """Hand over the next window or part of a window; with ``forced`` steps above ``complete`` stay open."""
        end = stream.ends[0]
        if not stream.ordered:
            self.log(stream, end.step, stream.upto(None), end=end)
        elif end.part:
            self.log(stream, end.step, stream.upto(min(end.step, complete)), end=end)
        else:
            if complete < end.step and not forced:
                self.dropped.partial(end.step, sorted({step for step in stream.holds.values() if step <= end.step}))
                stream.intact = False
            closed = min(end.step, complete) if forced else end.step
            self.log(stream, end.step, stream.upto(end.step), end=end, closed=closed)

    def go_back(self, stream: Stream, step: int, back: int) -> None:
        """Log all finished steps; the run then continues after the step ``back`` with a new window."""
        self.log(stream, step, stream.upto(step if stream.last is None else stream.last), back=back)
        self.counts[stream.mode] = 0

    def log(
        self, stream: Stream, step: int, steps: Sequence[Step], *, end: WindowEnd | None = None, failed: bool = False,
        last: bool = False, answer: Answer | None = None, back: int | None = None, only: str | None = None,
        closed: int | None = None,
    ) -> None:  # fmt: skip
        """Give the worker a log event with the rows of ``steps``, of all phases or of the phase ``only``.

        Waits until the log event is done if the config has ``run.blocking``. Rows that arrive later for a step up to
        ``closed`` are late.
        """
        self.deliver()
        began = self.meter.clock()
        mode, part = stream.mode, end is not None and end.part
        window = stream.window(steps, only)
        try:
            if self.on_device:
                window.hand_off()
        except Exception as error:  # noqa: BLE001  (an empty log event is sent, so that all ranks count the same)
            self.failures.report(error)
            window = Window(intact=False)
        blocks = self.plan.blocking and not part
        figures = {} if part else self.meter.read()
        if figures:
            figures |= self._background.backlog.read()
        number, begun = stream.event, self.begun_by_mode
        if number is None:
            number = begun.get(mode, 0)
            begun = {**begun, mode: number + 1}
        # after a step that ended with an error, rank 0 does not wait long for the other ranks
        failed |= end is not None and end.failed
        count = self.counts.get(mode, 0) if end is None else end.count
        sent = stream.sent if not stream.ordered else self._sent if end is None else end.sent
        # a mode that counts steps and has an open block may begin any number of log events
        running = {stream.mode: GREATEST for stream in self.streams.values() if stream.holds and not stream.ordered}
        item = LogEvent(
            number, step, count, mode, window, sent, {**begun, **running}, figures, self.clock.elapsed(),
            stream.seconds(end), part=part, tail=end is None or not stream.ordered, last=last, failed=failed,
            short_wait=blocks and failed and not last, answer=answer, back=back,
        )  # fmt: skip
        sent_after = {**self._sent, mode: self._sent.get(mode, 0) + 1}

        def hand_over() -> None:
            self.begun_by_mode, self._sent = begun, sent_after
            stream.handed_over(steps, only, end, closed)
            stream.event = None
            if end is not None and stream.ends and stream.ends[0] is end:
                stream.ends.popleft()
            self._background.submit(item)

        self._outgoing = hand_over
        self.deliver()
        self._background.backlog.wait()
        self.meter.handing += self.meter.clock() - began
        if not part:
            self._logged(mode)
        if blocks and not last:
            self._background.wait()

    def deliver(self) -> None:
        """Hand over the outgoing log event, if one is set. May be called again after an interrupt."""
        if self._outgoing is not None:
            self._outgoing()
            self._outgoing = None

    def load_counts(self, begun: Mapping[str, int], counts: Mapping[str, int]) -> None:
        """Restore the counts of log events and of steps, by mode, from a checkpoint."""
        self.begun_by_mode = {**self.begun_by_mode, **begun}
        self._sent = {**self._sent, **begun}
        self.counts.update(counts)
