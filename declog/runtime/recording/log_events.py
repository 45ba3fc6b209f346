"""Turns windows that end into log events, and hands these to the worker in the order of steps.

The session calls these methods under its lock. Imports steps, windows and what runs behind the training thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from declog.plans.ops import Plan
from declog.runtime.ranks.log_event import GREATEST, Answer, LogEvent
from declog.runtime.rows.dropped_rows import DroppedRows
from declog.runtime.rows.steps import Step, Stream, WindowEnd
from declog.runtime.rows.window import Window
from declog.runtime.run.failures import Failures
from declog.runtime.run.self_metrics import Meter
from declog.runtime.worker.alarm import Alarm
from declog.runtime.worker.background import Background

PART = 16  # a longer window is sent to rank 0 in parts of so many steps


# a log event on its way to the worker, with its stream and steps, the only phase that it has (None: all), the window
# that ends with it, the step up to which the stream is closed, and `begun` and `sent` as they are afterwards
Outgoing = tuple[
    LogEvent, Stream, Sequence[Step], str | None, WindowEnd | None, int | None, tuple[Mapping[str, int], ...]
]  # fmt: skip


class LogEvents:
    """Hands log events to the worker, and counts them by mode."""

    def __init__(
        self, plan: Plan, logged: Callable[[str], None], failures: Failures, background: Background, meter: Meter,
        dropped: DroppedRows, elapsed: Callable[[], float], alarm: Alarm, streams: Iterable[Stream],
    ) -> None:  # fmt: skip
        self.counts: dict[str, int] = {}  # the number of steps by mode
        # the number of log events by mode; a block's is counted when the block begins, so that ranks agree
        self.begun: Mapping[str, int] = {}
        self._sent: Mapping[str, int] = {}  # the number of log events that were handed over, by mode
        self._counting = [stream for stream in streams if not stream.ordered]  # those of modes that count steps
        self.on_device = False  # whether any batch was on a GPU
        self.outgoing: Outgoing | None = None  # set until the worker has it, also if an interrupt comes between
        self._plan = plan
        self._logged = logged  # called with the mode of each log event that is not a part
        self._failures = failures
        self._background = background
        self._meter = meter
        self._dropped = dropped
        self._elapsed = elapsed
        self._alarm = alarm  # calls the session when a window has waited long enough

    def begin(self, mode: str) -> Stream:
        """Begin a block of a mode, and with it a log event."""
        number = self.begun.get(mode, 0)
        self.begun = {**self.begun, mode: number + 1}
        return Stream(mode, event=number, sent=self._sent)

    def step_ended(self, stream: Stream, number: int, *, failed: bool) -> None:
        """End a step of a mode: hand over the windows that end with it, unless they have to wait for scopes."""
        self.counts[stream.mode] = count = self.counts.get(stream.mode, 0) + 1
        every = stream.every
        part = (count % every if every else count) % PART == 0
        if part or count == self._plan.first:  # the first window may be shorter than the others
            ends = self._plan.ends(stream.mode, count, every)
            if ends or part:
                stream.ends.append(
                    WindowEnd(number, count, stream.spent, part=not ends, failed=failed and ends, sent=self._sent)
                )
        if stream.ends:
            self.advance(stream)

    def advance(self, stream: Stream) -> None:
        """Hand over the windows that are complete, or have waited long enough."""
        while stream.ends:
            end, complete = stream.ends[0], stream.complete
            if not end.part and stream.ordered and complete < end.step:
                seconds = stream.waits(self._background.wait_s)
                if seconds:
                    self._alarm.set(seconds)
                if seconds != 0:
                    return
            self._end_window(stream, end, complete)

    def finish(self, stream: Stream) -> None:
        """Hand over all windows that have ended, without waiting for scopes."""
        while stream.ends:
            self._end_window(stream, stream.ends[0], stream.complete, forced=True)

    def _end_window(self, stream: Stream, end: WindowEnd, complete: int, *, forced: bool = False) -> None:
        """Hand over a window, or a part of one; ``complete`` is the step up to which no scope is open."""
        if not stream.ordered:
            self.log(stream, end.step, stream.upto(None), end=end, tail=True)
            return
        if end.part:
            self.log(stream, end.step, stream.upto(min(end.step, complete)), end=end)
            return
        held = complete < end.step
        if held and not forced:
            self._dropped.partial(end.step, sorted({step for step in stream.holds.values() if step <= end.step}))
            stream.intact = False
        self.log(
            stream, end.step, stream.upto(end.step), end=end, closed=min(complete, end.step) if forced else end.step
        )

    def go_back(self, stream: Stream, step: int, back: int) -> None:
        """Log everything that is finished; the run continues behind the step ``back``, and begins a window."""
        self.log(stream, step, stream.upto(step if stream.last is None else stream.last), tail=True, back=back)
        self.counts[stream.mode] = 0

    def log(
        self, stream: Stream, step: int, steps: Sequence[Step], *, end: WindowEnd | None = None, tail: bool = False,
        failed: bool = False, again: bool = False, last: bool = False, answer: Answer | None = None,
        back: int | None = None, only: str | None = None, closed: int | None = None,
    ) -> None:  # fmt: skip
        """Give the worker a log event with the rows of ``steps`` (of one phase, ``only``).

        Waits for it if the config says so. ``again``: nothing came since the log event before. Rows that come later for
        a step up to ``closed`` are late.
        """
        if self.outgoing is not None:
            self.deliver()
        began = time.perf_counter() if self._meter.timed else 0.0
        mode, part = stream.mode, end is not None and end.part
        window = stream.window(steps, only)
        try:
            if self.on_device:
                window.hand_off()
        except Exception as error:  # noqa: BLE001  (an empty log event is sent, so that ranks stay at one count)
            self._failures.report(error)
            window = Window(intact=False)
        blocks = self._plan.blocking and not part
        figures = {} if part else self._meter.read()
        if figures:
            figures |= self._background.backlog.read()
        number, begun = stream.event, self.begun
        if number is None:
            number = begun.get(mode, 0)
            begun = {**begun, mode: number + 1}
        # after a step that ended with an error, rank 0 does not wait long for the other ranks
        failed |= end is not None and end.failed
        short_wait = blocks and failed and not last
        count = self.counts.get(mode, 0) if end is None else end.count
        sent = stream.sent if not stream.ordered else self._sent if end is None else end.sent
        # any number may come of a mode that counts steps and has an open block
        running = {stream.mode: GREATEST for stream in self._counting if stream.holds}
        item = LogEvent(
            number, step, count, mode, window, sent, {**begun, **running}, figures, self._elapsed(),
            stream.seconds(end), part=part, tail=tail, last=last, failed=failed,
        )  # fmt: skip
        if short_wait or answer is not None or back is not None:
            item = item._replace(short_wait=short_wait, answer=answer, back=back)
        after = begun, {**self._sent, mode: self._sent.get(mode, 0) + 1}
        self.outgoing = item, stream, steps, only, end, closed, after
        self.deliver()
        self._background.backlog.wait()
        if self._meter.timed:
            self._meter.handing += time.perf_counter() - began
        if not part and not again:
            self._logged(mode)
        if blocks and not last:
            self._background.wait()

    def deliver(self) -> None:
        """Hand over the outgoing log event, if there is one. If this is interrupted, it can be called again."""
        if self.outgoing is None:
            return
        item, stream, steps, only, end, closed, (self.begun, self._sent) = self.outgoing
        stream.handed_over(steps, only, end, closed)
        stream.event = None
        if end is not None and stream.ends and stream.ends[0] is end:
            stream.ends.popleft()
        self._background.submit(item)
        self.outgoing = None

    def load(self, begun: Mapping[str, int], counts: Mapping[str, int]) -> None:
        """Restore the counts of a checkpoint."""
        self.begun = {**self.begun, **begun}
        self._sent = {**self._sent, **begun}
        self.counts.update(counts)
