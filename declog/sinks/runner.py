"""The thread of one sink: a queue bounded in bytes, and failures that are isolated, counted and reported once.

A sink may block, raise or hang: the thread that submits records goes on, until the queue is full. The sink's thread is
a daemon, and ``close`` leaves it behind when time runs out. So code that cannot stop in the middle (torch, comm) must
not run here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from declog.errors import RuntimeFailure, SinkError, error_text
from declog.records import DType, Records, ResumePoint, RunInfo, Table
from declog.sinks import Coalescing, Live, Rewindable, Sink
from declog.sinks._folder import FolderSink
from declog.sinks.waiting import Latch, Outcome, until

logger = logging.getLogger("declog")

Progress = Callable[[], tuple[int | None, int | None]]
OnError = Literal["report", "raise"]

DEFAULT_MAX_BYTES = 64 * 2**20
RETRY_AFTER_S = 0.1
BEAT_S = 0.25  # the interval at which a live sink gets the progress
TOGETHER, TOGETHER_BYTES = 256, 8 * 2**20  # most events, and most bytes, that a coalescing sink gets at once


@dataclass(frozen=True)
class CloseReport:
    """The end of a sink, in numbers of log events.

    ``dropped`` events found no room or came too late, ``failed`` events raised, ``pending`` events were not written in
    time. ``finished`` is false if the sink's thread was left behind.
    """

    dropped: int = 0
    failed: int = 0
    pending: int = 0
    first_error: BaseException | None = None
    finished: bool = True


class SinkRunner:
    """Opens, writes and closes ``sink`` on a thread of its own; ``id`` is its name in the config."""

    def __init__(
        self,
        id: str,
        sink: Sink,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        on_error: OnError = "report",
    ) -> None:
        self.id = id
        self._sink = sink
        self._released = False  # a full queue drops events
        self._max_bytes = max_bytes
        self._on_error = on_error
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # the sink's thread and the worker wait for it
        # (step, log event, bytes); a `ResumePoint` in place of a log event: the run went back to it
        self._queue: deque[tuple[int, Records | ResumePoint, int]] = deque()
        self._bytes = 0
        self._asked: Callable[[], None] | None = None
        self._where: Progress | None = None
        self._shown: int | None = None  # the last step of training that the sink got
        self._writing = 0  # log events that the sink is writing
        self._calls = 0  # calls of the sink that returned; `close` waits as long as it grows
        self._closing = False
        self._abandoned = False
        self._waiting_since: float | None = None  # the time since when a submit waits for room
        self._dropped = 0
        self._failed = 0
        self._first_error: BaseException | None = None
        self._raised = False
        self._thread: threading.Thread | None = None
        self._opened = Outcome()
        self._done = Latch()
        self._report: CloseReport | None = None

    def open(self, run: RunInfo, timeout_s: float | None = None) -> None:
        """Open the sink on its thread and wait. ``SinkError`` DL601 if the sink refuses, or is not open in time.

        A sink that is not open in time is left behind. If it opens later, its thread closes it.
        """
        self._thread = threading.Thread(
            target=self._main, args=(replace(run, sink=self.id),), name=f"declog-sink-{self.id}", daemon=True
        )
        self._thread.start()
        self._opened.wait(timeout_s)
        with self._lock:
            self._abandoned = not self._opened.is_set()
        slow = SinkError.of("DL601.slow", timeout_s=f"{timeout_s:.3g}") if self._abandoned else None
        self._first_error = slow or self._opened.error
        if self._first_error is not None:
            self._thread = None
            raise self._refusal("opened", self._first_error) from self._first_error

    def rewind(self, point: ResumePoint, timeout_s: float) -> bool:
        """Let the sink drop the records that are logged again. Call this after ``open``, before the first ``submit``.

        Returns False for a sink that is not ``Rewindable``: it keeps everything, and has steps twice that are logged
        again. ``SinkError`` DL601 if the sink fails, or is not done in time.
        """
        if self._thread is None or not isinstance(self._sink, Rewindable):
            return False
        self._ask(partial(self._sink.rewind, point), f"rewound to step {point.step}", timeout_s)
        return True

    def move(self, run: RunInfo, timeout_s: float) -> None:
        """Let a file sink continue in the folder and with the id of ``run``. A tracker keeps its run.

        Call this before ``rewind`` and any ``submit``. ``SinkError`` DL601 if the sink fails, or is not done in time.
        """
        if self._thread is not None and isinstance(self._sink, FolderSink):
            self._ask(partial(self._sink.move, replace(run, sink=self.id)), f"moved to {run.output_dir}", timeout_s)

    def _ask(self, action: Callable[[], None], what: str, timeout_s: float) -> None:
        """Run an action on the sink's thread, and wait for it. An action that has not begun in time is withdrawn."""
        done = Outcome()
        with self._lock:
            self._asked = partial(self._run, action, done)
            self._changed.notify_all()
        in_time = done.wait(timeout_s)
        with self._lock:
            self._asked = None
        cause = done.error if in_time else TimeoutError(f"it was not done in {timeout_s:g} s")
        if cause is not None:
            raise self._refusal(what, cause) from cause

    def watch(self, where: Progress) -> None:
        """Let a ``Live`` sink show the progress: ``where`` returns the last ended step and the number of all steps."""
        with self._lock:
            self._where = where if isinstance(self._sink, Live) and self._sink.live else None
            self._changed.notify_all()

    @property
    def rewindable(self) -> bool:
        """Whether the sink can drop the records of later steps, for a resumed run."""
        return isinstance(self._sink, Rewindable)

    @property
    def queued_bytes(self) -> int:
        """The approximate number of bytes that wait to be written; safe to read from any thread."""
        with self._lock:
            return self._bytes

    @property
    def dropped(self) -> int:
        """The number of log events that found no room or came too late; safe to read from any thread."""
        with self._lock:
            return self._dropped

    @property
    def stuck_s(self) -> float:
        """The seconds that a submit has waited for room in the queue; safe to read from any thread."""
        with self._lock:
            return 0.0 if self._waiting_since is None else time.monotonic() - self._waiting_since

    @property
    def lost(self) -> dict[str, int]:
        """The numbers of log events that are missing from this sink, by reason; safe to read from any thread."""
        with self._lock:
            pending = 0 if self._report is None else self._report.pending
            counts = {"could not be written": self._failed, "dropped": self._dropped, "not written in time": pending}
        return {
            str(SinkError.of("DL602.lost", sink=self.id, what=what)): count for what, count in counts.items() if count
        }

    def release(self) -> None:
        """From now on, drop the oldest log events of a full queue instead of waiting for room."""
        with self._lock:
            self._released = True
            self._changed.notify_all()

    def submit(self, step: int, records: Records) -> None:
        """Queue one log event. A full queue blocks the caller or, after ``release``, drops the oldest events.

        An empty queue takes an event of any size. With ``on_error: raise``, an earlier failure is raised here.
        """
        size = estimate_bytes(records)
        with self._lock:
            self._raise_failure()
            while self._bytes and self._bytes + size > self._max_bytes and not self._closing:
                if self._released:
                    oldest = next(at for at, item in enumerate(self._queue) if isinstance(item[1], Records))
                    self._bytes -= self._queue[oldest][2]
                    del self._queue[oldest]
                    self._drop(f"its queue was full ({self._max_bytes} bytes)")
                else:
                    self._waiting_since = self._waiting_since or time.monotonic()
                    self._changed.wait()
            self._waiting_since = None
            if self._closing or self._thread is None:
                self._drop("it came when the sink was not open")
                return
            self._queue.append((step, records, size))
            self._bytes += size
            self._changed.notify_all()

    def go_back(self, point: ResumePoint) -> None:
        """Let the sink drop the records that ``point`` does not keep, after it has written the queued log events.

        A failure is reported, not raised.
        """
        with self._lock:
            if self._thread is not None and not self._closing and isinstance(self._sink, Rewindable):
                self._queue.append((point.step, point, 0))
                self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all submitted log events are written; returns False when time runs out.

        With ``on_error: raise``, a failure is raised here.
        """
        idle = until(self._idle, timeout_s)
        self._raise_failure()
        return idle

    def _idle(self) -> bool:
        with self._lock:
            return not self._queue and not self._writing

    def raise_unraised(self) -> None:
        """With ``on_error: raise``, raise a failure that ``submit`` and ``flush`` have not raised."""
        if not self._raised:
            self._raise_failure()

    def close(self, deadline_s: float) -> CloseReport:
        """Write the queued log events, close the sink, and report. Never raises.

        The sink is left behind when ``deadline_s`` pass without progress.
        """
        if self._report is not None:
            return self._report
        if self._thread is None:
            self._report = CloseReport(dropped=self._dropped, first_error=self._first_error)
            return self._report
        with self._lock:
            self._closing = True
            self._changed.notify_all()
        finished, seen = False, -1
        while not finished and seen != self._calls:
            seen = self._calls
            finished = self._done.wait(max(0.0, deadline_s))
        with self._lock:
            self._abandoned = not finished
            pending = sum(isinstance(item[1], Records) for item in self._queue) + self._writing
            self._report = CloseReport(self._dropped, self._failed, pending, self._first_error, finished)
        self._log_report(self._report)
        return self._report

    def _main(self, run: RunInfo) -> None:
        self._run(partial(self._sink.open, run), self._opened)
        if self._opened.error is not None:
            return
        with self._lock:
            self._closing |= self._abandoned  # `open` has given up: close the sink
        while (work := self._take()) is not None:
            work()
        try:
            self._sink.close()
        except BaseException as error:  # noqa: BLE001  (reported: nothing catches it at the end of a thread)
            self._fail("close", error)
        self._done.set()

    def _take(self) -> Callable[[], None] | None:
        with self._lock:
            self._writing = 0
            self._calls += 1
            self._changed.notify_all()
            while not (self._asked or self._queue or self._closing):
                if not self._changed.wait(None if self._where is None else BEAT_S):
                    return self._beat
            if self._asked is not None:
                action, self._asked = self._asked, None
                return action
            if self._abandoned or not self._queue:
                return None
            events, together = list[tuple[int, Records]](), 0
            most = TOGETHER if isinstance(self._sink, Coalescing) else 1
            while self._queue and len(events) < most and (not events or together + self._queue[0][2] <= TOGETHER_BYTES):
                step, records, size = self._queue[0]
                if isinstance(records, ResumePoint):
                    break
                self._queue.popleft()
                events.append((step, records))
                together += size
            self._bytes -= together
            self._changed.notify_all()
            if not events:
                _, point, _ = self._queue.popleft()
                assert isinstance(point, ResumePoint)
                self._writing = 1
                return partial(self._go_back, point)
            self._writing = len(events)
            return partial(self._write, events)

    def _go_back(self, point: ResumePoint) -> None:
        try:
            if isinstance(self._sink, Rewindable):
                self._sink.rewind(point)
        except BaseException as error:  # noqa: BLE001  (isolated: the log events that follow are written)
            self._fail(f"go back to step {point.step}", error)

    def _beat(self) -> None:
        """Let the sink show the progress, because no log event has come for a while."""
        if self._where is None or not isinstance(self._sink, Live):
            return
        step, steps = self._where()
        if step is None or step == self._shown:
            return
        self._shown = step
        try:
            self._sink.progress(step, steps)
        except BaseException as error:  # noqa: BLE001  (isolated: reported, and not tried again)
            self._where = None
            self._fail("show the progress", error)

    @staticmethod
    def _run(action: Callable[[], None], done: Outcome) -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001  (handed to the thread that waits)
            done.error = error
        done.set()

    def _refusal(self, what: str, cause: BaseException) -> SinkError:
        reason = cause.message if isinstance(cause, RuntimeFailure) else error_text(cause)
        return SinkError.of(
            "DL601.sink", sink=self.id, what=what, reason=reason,
            fix=cause.fix if isinstance(cause, RuntimeFailure) else None,
        )  # fmt: skip

    def _write(self, events: Sequence[tuple[int, Records]]) -> None:
        try:
            failed = self._written(events)
        except BaseException as error:  # noqa: BLE001  (isolated: counted and reported, whatever a backend raises)
            failed = dict.fromkeys(range(len(events)), error)
        for index, cause in failed.items():
            self._fail(f"write step {events[index][0]}", cause)

    def _written(self, events: Sequence[tuple[int, Records]]) -> Mapping[int, BaseException]:
        """Write log events (one, if the sink is not ``Coalescing``); returns errors by the index of the event."""
        if isinstance(self._sink, Coalescing):
            return self._sink.write_many(events)
        ((step, records),) = events
        try:
            self._sink.write(step, records)
        except OSError:
            # A full disk or a broken connection may recover; other errors would occur again.
            time.sleep(RETRY_AFTER_S)
            self._sink.write(step, records)
        return {}

    def _fail(self, what: str, error: BaseException) -> None:
        with self._lock:
            self._failed += 1
            first = self._first_error is None
            if first:
                self._first_error = error
        if first:
            cause, why = (None, f": {error}") if isinstance(error, SinkError) else (error, "")
            logger.error("sink `%s` could not %s%s; further failures are counted", self.id, what, why, exc_info=cause)

    def _drop(self, why: str) -> None:
        self._dropped += 1
        if self._dropped == 1:
            logger.warning("sink `%s` dropped a log event: %s; further drops are counted", self.id, why)

    def _raise_failure(self) -> None:
        if self._on_error == "raise" and self._first_error is not None:
            self._raised, error = True, self._first_error
            raise SinkError.of("DL602.sink", sink=self.id, cause=error_text(error)) from error

    def _log_report(self, report: CloseReport) -> None:
        first = "" if report.first_error is None else f" (first: {error_text(report.first_error)})"
        counts = {f"failed{first}": report.failed, "dropped": report.dropped, "not written in time": report.pending}
        parts = [f"{count} {what}" for what, count in counts.items() if count]
        parts += [] if report.finished else ["the sink did not finish in time and was left behind"]
        if parts:
            logger.warning("sink `%s` closed; log events: %s", self.id, ", ".join(parts))


def estimate_bytes(records: Records) -> int:
    """The approximate memory of one log event, from the lengths of its texts and a sample of its objects."""
    size = 256 + 128 * len(records.scalars)
    size += sum(128 + 16 * len(histogram.counts) for histogram in records.histograms)
    size += sum(128 + len(alert.text) for alert in records.alerts)
    return size + sum(_table_bytes(table) for table in records.tables)


def _table_bytes(table: Table) -> int:
    size = 256
    for column in table.columns:
        values = table.data[column.name]
        size += 64 * len(values)
        if column.type is DType.TEXT:
            size += sum(map(len, filter(None, values)))
        elif column.type is DType.OBJECT and values:
            sample = values[:4]
            size += len(values) * sum(len(repr(value)) for value in sample) // len(sample)
    return size
