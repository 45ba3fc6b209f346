"""Everything behind the training thread: the worker, rank 0's collector, the sinks and the run's folder."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from declog.engine.frame import Frame
from declog.engine.publish import Dispatcher
from declog.errors import RuntimeFailure, SinkError, UsageError, error_text
from declog.plans.ops import STOP, AlertOp, Plan
from declog.records import Alert, Beside, ResumePoint
from declog.runtime.ranks import actors
from declog.runtime.ranks.comm import Comm
from declog.runtime.ranks.sender import Sender
from declog.runtime.rows.packets import Fate, fates
from declog.runtime.run.checkpoint import RecorderState, resume_point
from declog.runtime.run.failures import Failures
from declog.runtime.run.outlets import Outlets
from declog.runtime.worker.alarm import Alarm
from declog.runtime.worker.backlog import Backlog
from declog.runtime.worker.collector import Collector, LiveMetrics
from declog.runtime.worker.local_tables import LocalTables
from declog.runtime.worker.row_keeper import RowKeeper
from declog.runtime.worker.stopping import Stop
from declog.runtime.worker.worker import Worker
from declog.sinks.runner import CloseReport

log = logging.getLogger("declog")
# arguments: the plan, a function that returns the run, routes to its sinks, its failures, a callback for the lines of
# metrics that are added later
MakeLive = Callable[..., LiveMetrics]
MOST_ALERTS = 1000  # the number of fired alerts that are remembered


class Background:
    """Runs the worker and its parts.

    Each sink may take ``close_s`` seconds at the end; rank 0 waits ``wait_s`` seconds for the rows of other ranks.
    """

    def __init__(
        self, plan: Plan, comm: Comm, outlets: Outlets, failures: Failures, *,
        close_s: float, wait_s: float, live: MakeLive | None,
    ) -> None:  # fmt: skip
        self.comm = comm
        self.close_s = close_s
        self.wait_s = wait_s
        self._plan = plan
        self._failures = failures
        self._outlets = outlets
        self._runners = outlets.runners
        self._missing: Mapping[str, str] = {}
        self._alerts: deque[tuple[int, Alert]] = deque(maxlen=MOST_ALERTS)
        self._stop = Stop(comm, failures, wait_s) if any(STOP in alert.do for alert in plan.alerts) else None
        if self._stop is not None:
            comm.idle = self._stop.poll
        self._collector = self._dispatcher = None
        if comm.collects:
            self._dispatcher = Dispatcher(plan, outlets.routes, failures.report, self._note_missing, self._note_alert)
            rows, metrics = self._rows(), None
            if live is not None and rows is not None:
                metrics = live(plan, lambda: outlets.run, outlets.routes, failures, self._note_late)
            self._collector = Collector(
                plan, comm, self._dispatcher, failures, wait_s=wait_s, queued=self._queued,
                unused=lambda: self._unused(fates.lost(id(self))), rows=rows,
                live=metrics, go_back=partial(outlets.go_back, close_s),
            )  # fmt: skip
        self.merger: actors.Merger | None = None  # on a driver: merges its actors' exports
        if isinstance(comm, actors.DriverComm) and self._collector is not None:
            self.merger = actors.Merger(plan, self._collector, failures, comm)
        local = [route for route in outlets.routes if route.local]
        self._local = LocalTables(plan, local, failures.report) if local else None
        sender = Sender(plan, comm.rank, failures, self._local)
        self.backlog = Backlog(plan, failures, wait_s + close_s)
        self._worker = Worker(
            comm, sender, self._collector, failures, self.backlog, self._stop, go_back=partial(outlets.go_back, close_s)
        )
        self.submit = self._worker.submit  # hands over a log event
        self._alarm = Alarm(lambda: self._worker.later(self._merge))
        fates.open(id(self), collects=self._collector is not None)

    def _rows(self) -> RowKeeper | None:
        """The row keeper, if this process has the run's folder and the plan keeps rows."""
        if self._outlets.folder is None or not self._plan.keep_bytes:
            return None
        return RowKeeper(self._plan, lambda: self._outlets.run, self._plan.keep_bytes)

    @property
    def failures(self) -> dict[str, int]:
        """The failures so far, and the losses of sinks: counts by message."""
        counts = dict(self._failures.counts)
        for runner in self._runners.values():
            counts |= runner.lost
        return counts

    def _note_missing(self, reasons: Mapping[str, str]) -> None:
        """Store the reasons why metrics have no values, also in the run's folder. Runs on the worker thread."""
        self._missing = reasons
        if self._outlets.folder is not None:
            self._outlets.folder.try_write_facts(missing=dict(reasons))

    @property
    def missing(self) -> Mapping[str, str]:
        """The metrics without values, each with the reason; waits for all log events that were handed over."""
        if self._collector is not None:
            self.settle()
        return dict(self._missing)

    def _note_late(self, lines: Mapping[str, str]) -> None:
        """Store, in the run's folder, the metrics that were added during the run. Runs on the worker thread."""
        if self._outlets.folder is not None:
            self._outlets.folder.try_write_facts(late=dict(lines))

    def _note_alert(self, step: int, op: AlertOp, alert: Alert) -> None:
        """Store an alert that fired, and ask for a stop if its config says so. Runs on the worker thread."""
        self._alerts.append((step, alert))
        if STOP in op.do and self._stop is not None:
            self._stop.ask(op.id, step)

    @property
    def alerts(self) -> list[tuple[int, Alert]]:
        """The alerts that fired; waits for all log events that were handed over."""
        if self._collector is not None:
            self.settle()
        return list(self._alerts)

    def should_stop(self, step: int | None) -> bool:
        """Whether an alert ends training after this step, which is the same on every rank."""
        if self._stop is None or step is None:
            return False
        if self.comm.world_size == 1:  # with several ranks, the slowest decides how far training gets
            self.backlog.catch_up()
        return self._stop.after(step)

    def pass_through(self, step: int, mode: str, beside: Beside) -> None:
        """Give the sinks a trainer's numbers, after everything that was handed over before; only on rank 0."""
        if self._dispatcher is not None:
            self._worker.later(partial(self._dispatcher.pass_through, step, mode, beside))

    def settle(self, run: Callable[[], object] = lambda: None) -> None:
        """Wait until everything handed over is done and the worker has called ``run``; raise the error of ``run``."""
        self._worker.call(run, self.close_s).check()

    def written(self, wait_s: float) -> bool:
        """Wait for the sinks; return whether everything that was handed over is written."""

        def flush() -> bool:
            return all(runner.flush(wait_s) for runner in self._runners.values())

        task = self._worker.call(flush, wait_s)
        return task.done.is_set() and task.error is None and bool(task.result)

    def _unused(self, packets: Iterable[Fate]) -> int:
        """Report packets that nobody consumed; return the number of their rows."""
        rows = 0
        for packet in packets:
            rows += packet.rows
            self._failures.count(RuntimeFailure.of("DL513.unused"), packet.rows, packet.call_site)
        return rows

    def _queued(self) -> dict[str, float]:
        """The figures of the sinks' queues, by name."""
        runners = self._runners.values()
        return {
            "declog/queue_bytes": sum(runner.queued_bytes for runner in runners),
            "declog/unsent": sum(runner.dropped for runner in runners),
        }

    def wait(self) -> None:
        """Wait until the sinks have everything that was handed over; report a wait that takes too long."""
        patience = self.wait_s + self.close_s
        if not self._worker.call(lambda: None, patience).done.is_set():
            self._failures.report(RuntimeFailure.of("DL605.slow", seconds=f"{patience:g}"))
            return
        for runner in self._runners.values():
            self._failures.attempt(partial(runner.flush, self.close_s), SinkError)

    # -- the end

    def close(self, *, failed: bool) -> None:
        """Wait for the worker and the sinks, each up to a deadline; with ``strict`` raise the first failure."""
        self._worker.finish(short_wait=failed)
        self._join()
        self._unused(fates.close(id(self), certain=self._collector is None or self._collector.all_ended))
        reports = [runner.close(self.close_s) for runner in self._runners.values()]
        for runner in self._runners.values():
            self._failures.attempt(runner.raise_unraised, SinkError)
        self.comm.close()
        if self._outlets.folder is not None:
            self._outlets.folder.end("failed" if failed else "finished", self.failures)
        if summary := self._failures.summary():
            log.warning("declog finished with %s", summary)
        if self._plan.strict and not failed:
            self._raise(reports)

    def _raise(self, reports: Sequence[CloseReport]) -> None:
        if self._failures.first is not None:
            raise self._failures.first
        for name, report in zip(self._runners, reports, strict=True):
            if isinstance(cause := report.first_error, SinkError):
                raise cause
            if cause is not None:
                raise SinkError.of("DL602.sink", sink=name, cause=error_text(cause)) from cause

    def _join(self) -> None:
        """Wait for the worker while it makes progress; release it from stuck sinks, and at last from other ranks."""
        patience, began, reported = self.wait_s + self.close_s, time.monotonic(), False
        finished, end = self.backlog.finished, began + patience
        while not self._worker.join(0.05):
            if self.backlog.finished != finished:
                finished, end = self.backlog.finished, time.monotonic() + patience
            if not reported and self.backlog.events > 1 and time.monotonic() - began > 5:
                reported = True
                log.warning("closing: %d log events are still to be evaluated", self.backlog.events)
            for runner in self._runners.values():
                if runner.stuck_s > self.close_s:
                    runner.release()
            if time.monotonic() > end:
                self.comm.interrupt()
                if not self._worker.join(self.close_s):
                    log.warning("the last log events were not finished in time: they are left behind")
                return

    # -- checkpoints

    def state(self) -> tuple[dict[str, Frame], dict[str, Any] | None]:
        """Return rank 0's state after all earlier log events: frames by name, and plain data."""
        task = self._worker.call(self._collected, 2 * self.wait_s + self.close_s)
        if task.error is not None or not task.done.is_set():
            problem = task.error or "rank 0 is not done with earlier log events"
            log.warning("the state lacks what rank 0 holds of earlier log events: %s", problem)
        return task.result or ({}, None)

    def _collected(self) -> tuple[dict[str, Frame], dict[str, Any] | None]:
        """Return rank 0's state, after the files are written. Runs on the worker thread."""
        if self.merger is not None:
            self.merger.settle()
        for runner in self._runners.values():
            if runner.rewindable and not runner.flush(self.close_s):
                log.warning("sink `%s` is behind: what it has not written is not in the checkpoint", runner.id)
        frames, data = ({}, None) if self._collector is None else self._collector.state()
        parts = {"local": self._local, "actors": self.merger}
        data = {**(data or {}), **{key: part.state() for key, part in parts.items() if part is not None}}
        return frames, data or None

    def load(
        self, state: RecorderState, frames: Mapping[str, Frame], data: Mapping[str, Any] | None, *, equal: bool
    ) -> None:
        """Restore a state. If the saved plan is not ``equal`` to this one, restore only totals over the run."""
        data, held = data or {}, {}
        if self._local is not None and "local" in data:
            self._local.load(data["local"])
        if self.merger is not None and "actors" in data:
            self.settle(partial(self.merger.load, data["actors"]))
        if self._collector is not None:
            evaluation, rows = self._collector.evaluation, self._collector.rows
            if data:
                load = partial(evaluation.load, frames) if equal else evaluation.load_dispatcher
                self.settle(partial(load, data))
            if rows is not None and "rows" in data:
                rows.go_on(data["rows"], branch=self._outlets.branch)
            held = evaluation.open_windows
        point = resume_point(self._plan, state, frames, held) if equal else ResumePoint(state.step)
        self._outlets.rewind(point, self.close_s)

    def configure(self, values: Mapping[str, Any]) -> None:
        """Add to the trainer's configuration; raises ``OSError`` if it cannot be written into the run's folder."""
        if (write := self._outlets.configure(values)) is not None:
            self.settle(write)  # the worker also writes to the folder

    # -- actors

    def export(self) -> bytes:
        """Return the log events since the last export; raises ``UsageError`` unless this is an actor."""
        if not isinstance(self.comm, actors.ActorComm):
            raise UsageError.of("DL510.export")
        return self.comm.take(self._plan.fingerprint)

    def merge(self, exports: Iterable[bytes], wait_s: float | None) -> None:
        """Log the exports of actors; raises ``UsageError`` unless this is a driver.

        After it has taken all other exports, raises the error of the first export that cannot be merged.
        """
        if self.merger is None:
            raise UsageError.of("DL510.merge")
        taken, wrong = actors.read_all(exports, self._plan, self.comm.world_size)
        wait_s = self.wait_s if wait_s is None else wait_s
        self._worker.later(partial(self._merge, taken, wait_s))
        if wrong is not None:
            raise wrong

    def _merge(self, taken: Sequence[actors.Export] = (), wait_s: float = 0.0) -> None:
        """Finish log events that are complete or have waited long enough. Runs on the worker thread."""
        assert self.merger is not None
        if (seconds := self.merger.merge(taken, wait_s)) is not None:
            self._alarm.set(seconds)

    def end_merging(self) -> None:
        """On a driver: note that no more exports will come."""
        self._alarm.cancel()
        assert self.merger is not None
        self._worker.later(self.merger.end)
