"""The worker thread: one per process, fed through a queue that never blocks training.

Ranks above 0 send their rows to rank 0, which evaluates the rows of all ranks. The thread must not still run inside
torch when the process ends, so it is asked to stop, and joined.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from declog.engine.log_event import undone
from declog.runtime.ranks.comm import Comm, Event
from declog.runtime.ranks.log_event import LogEvent
from declog.runtime.ranks.sender import Sender
from declog.runtime.run.failures import Failures
from declog.runtime.run.self_metrics import Meter
from declog.runtime.values.streams import beside_graphs
from declog.runtime.worker.backlog import Backlog
from declog.runtime.worker.collector import SHORT_WAIT_S, Collector
from declog.runtime.worker.stopping import POLL_S, Stop
from declog.sinks.waiting import Latch


@dataclass
class Task:
    """A function for the worker thread to call, after everything that was handed over before."""

    run: Callable[[], Any]
    result: Any = None
    error: BaseException | None = None
    done: Latch = field(default_factory=Latch)

    def check(self) -> None:
        """Raise the task's error, if it failed."""
        if self.error is not None:
            raise self.error


class Worker:
    """Processes log events in order; ``submit`` returns at once. Only rank 0 has a ``collector``."""

    def __init__(
        self, comm: Comm, sender: Sender, collector: Collector | None, failures: Failures, backlog: Backlog,
        stop: Stop | None = None, *, go_back: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._comm = comm
        self._sender = sender
        self._collector = collector
        self._failures = failures
        self._backlog = backlog
        self._stop = stop
        self._go_back = go_back  # on a rank without a collector: lets the sinks drop their rows after a step
        self._meter = Meter()
        self._ended = False
        self._over = Latch()
        self._last: Event | None = None
        self._queue: queue.SimpleQueue[LogEvent | Task | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, name="declog-worker", daemon=True)
        self._thread.start()

    def submit(self, item: LogEvent | Task) -> None:
        """Hand over a log event or a task, which is processed after everything that was handed over before."""
        if isinstance(item, LogEvent):
            self._backlog.put(item.window.bytes)
        self._queue.put(item)

    def call(self, run: Callable[[], Any], wait_s: float) -> Task:
        """Run a function on the worker thread after everything handed over; wait for it at most ``wait_s`` per item."""
        task = Task(run)
        self.submit(task)
        finished, end = self._backlog.finished, time.monotonic() + wait_s
        while not task.done.wait(0.05) and time.monotonic() < end and not self._over.is_set():
            if self._backlog.finished != finished:
                finished, end = self._backlog.finished, time.monotonic() + wait_s
        return task

    def later(self, run: Callable[[], object]) -> None:
        """Run a function on the worker thread after everything handed over, without waiting; report its error."""
        self.submit(Task(partial(self._failures.attempt, run)))

    def finish(self, *, short_wait: bool = False) -> None:
        """Note that nothing more will be handed over; with ``short_wait`` wait only briefly for other ranks."""
        if short_wait and self._collector is not None:
            self._collector.wait_s = min(self._collector.wait_s, SHORT_WAIT_S)
            self._comm.shorten_waits(SHORT_WAIT_S)
        self._queue.put(None)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the thread's end; return False if the time ran out."""
        # not Thread.join(): after an interrupt it reports a running thread as ended
        return self._over.wait(timeout_s)

    def _main(self) -> None:
        try:
            # No error ends the thread: errors are counted and reported, and raised at the end with `run.strict`.
            while not self._ended:
                self._failures.attempt(self._next)
            if self._collector is not None:
                self._failures.attempt(self._collector.close)
        finally:
            self._over.set()

    def _next(self) -> None:
        if self._stop is not None:
            self._stop.poll()
        try:
            item = self._queue.get(timeout=None if self._stop is None else POLL_S)
        except queue.Empty:
            return
        beside_graphs()
        if item is None:
            self._ended = True
        elif isinstance(item, Task):
            self._run(item)
            self._backlog.done()
        else:
            try:
                if item.key != self._last:  # an interrupted call may have handed the item over twice
                    self._last = item.key
                    self._process(item)
            finally:
                if item.answer is not None:
                    item.answer.give(None)  # has no effect if the answer was given
                self._backlog.done(item.window.bytes)

    def _run(self, task: Task) -> None:
        try:
            task.result = task.run()
        except BaseException as error:  # noqa: BLE001  (`check` raises it)
            task.error = error
        task.done.set()

    def _process(self, event: LogEvent) -> None:
        figures = {} if event.part else {**event.figures, **self._meter.read_worker()}
        event = self._sender.with_arrivals(event._replace(figures=figures))
        with np.errstate(all="ignore"):
            if self._collector is None:
                self._comm.send(event.key, self._sender.message(event))
                if (back := undone(event.back)) is not None:
                    self._go_back(back)
                if event.answer is not None:
                    text = self._comm.answer(event.key, event.answer.remaining)
                    event.answer.give(None if text is None else json.loads(text))
                return
            values = self._collector.collect(event, self._sender.frames(event))
            if event.answer is not None:
                self._comm.publish(event.key, json.dumps(values).encode())
                event.answer.give(values)
