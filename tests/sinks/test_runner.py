"""The thread that runs a sink: isolation, order, bounds, deadlines."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from declog.errors import SinkError
from declog.records import Records, ResumePoint, RunInfo
from declog.sinks.runner import CloseReport, SinkRunner, estimate_bytes
from tests.forks import PATIENCE_S
from tests.sinks.samples import event, run_info


class Probe:
    """A sink that remembers what it got and does what a test tells it to."""

    accepts: ClassVar[frozenset[str]] = frozenset({"scalar"})

    def __init__(self, on_write: Callable[[int], None] | None = None) -> None:
        self.on_write = on_write
        self.tried: list[int] = []
        self.steps: list[int] = []
        self.threads: set[str] = set()
        self.run: RunInfo | None = None
        self.closed = 0

    def open(self, run: RunInfo) -> None:
        self.threads.add(threading.current_thread().name)
        self.run = run

    def write(self, step: int, records: Records) -> None:
        self.threads.add(threading.current_thread().name)
        self.tried.append(step)
        if self.on_write is not None:
            self.on_write(step)
        self.steps.append(step)

    def close(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.closed += 1


class Gate:
    """Holds a sink inside ``write`` until it is opened, and says when the sink is there."""

    def __init__(self) -> None:
        self.inside = threading.Event()
        self.open = threading.Event()

    def __call__(self, step: int) -> None:
        self.inside.set()
        self.open.wait(30)


def started(sink: Probe, folder: Path, **options: object) -> SinkRunner:
    """A runner whose sink is open."""
    runner = SinkRunner("probe", sink, **options)  # type: ignore[arg-type]
    runner.open(run_info(folder))
    return runner


def test_events_arrive_in_order_on_one_thread_and_the_sink_is_closed_once(tmp_path: Path) -> None:
    """Open, writes and close all happen on the sink's own thread, in the order submitted."""
    sink = Probe()
    runner = started(sink, tmp_path)
    for step in range(50):
        runner.submit(step, event(step))
    report = runner.close(10)
    assert sink.steps == list(range(50))
    assert sink.threads == {"declog-sink-probe"}
    assert (sink.closed, report) == (1, CloseReport())


def test_the_sink_learns_its_own_id(tmp_path: Path) -> None:
    """The run info that a sink opens with names the sink, so that a file sink can name its folder."""
    sink = Probe()
    started(sink, tmp_path).close(10)
    assert sink.run == run_info(tmp_path, sink="probe")


def test_a_sink_that_cannot_open_is_fatal(tmp_path: Path) -> None:
    """Its error comes out of open, as DL601 with the sink's id and the cause."""

    class Broken(Probe):
        def open(self, run: RunInfo) -> None:
            raise PermissionError("no such share")

    runner = SinkRunner("files", Broken())
    with pytest.raises(SinkError) as caught:
        runner.open(run_info(tmp_path))
    assert caught.value.code == "DL601"
    assert "sink `files` could not be opened: PermissionError: no such share" in str(caught.value)
    assert isinstance(caught.value.__cause__, PermissionError)


def test_a_sink_error_on_open_keeps_its_fix(tmp_path: Path) -> None:
    """What the sink suggests reaches the user."""

    class Missing(Probe):
        def open(self, run: RunInfo) -> None:
            raise SinkError("DL601", "no package", "pip install it")

    with pytest.raises(SinkError) as caught:
        SinkRunner("w", Missing()).open(run_info(tmp_path))
    assert caught.value.fix == "pip install it"


def test_a_runner_that_never_opened_closes_quietly(tmp_path: Path) -> None:
    """Close is safe whatever happened before."""

    class Broken(Probe):
        def open(self, run: RunInfo) -> None:
            raise ValueError("no")

    runner = SinkRunner("w", Broken())
    with pytest.raises(SinkError):
        runner.open(run_info(tmp_path))
    report = runner.close(1)
    assert (report.failed, report.pending, type(report.first_error)) == (0, 0, ValueError)


def test_a_failing_write_is_isolated_counted_and_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Other events go on; the log has one traceback for the first failure and one summary at close."""

    def odd(step: int) -> None:
        if step % 2:
            raise ValueError(f"cannot take {step}")

    sink = Probe(odd)
    runner = started(sink, tmp_path)
    with caplog.at_level(logging.WARNING, logger="declog"):
        for step in range(6):
            runner.submit(step, event(step))
        report = runner.close(10)
    assert sink.steps == [0, 2, 4]
    assert (report.failed, str(report.first_error)) == (3, "cannot take 1")
    assert [record.exc_info is not None for record in caplog.records] == [True, False]
    assert "could not write step 1" in caplog.records[0].getMessage()
    assert "3 failed (first: ValueError: cannot take 1)" in caplog.records[1].getMessage()


def test_a_value_error_is_not_tried_again(tmp_path: Path) -> None:
    """Only what may pass by itself is worth a second try."""

    def refuse(step: int) -> None:
        raise ValueError("never")

    sink = Probe(refuse)
    runner = started(sink, tmp_path)
    runner.submit(3, event(3))
    runner.close(10)
    assert sink.tried == [3]


def test_an_os_error_is_tried_once_more(tmp_path: Path) -> None:
    """A disk that was full for a moment costs nothing; one that stays full is a failure."""
    left = {1: 1, 2: 5}

    def full(step: int) -> None:
        if left.get(step, 0):
            left[step] -= 1
            raise OSError(28, "No space left on device")

    sink = Probe(full)
    runner = started(sink, tmp_path)
    for step in range(4):
        runner.submit(step, event(step))
    report = runner.close(10)
    assert (sink.tried, sink.steps, report.failed) == ([0, 1, 1, 2, 2, 3], [0, 1, 3], 1)


def test_even_a_system_exit_stays_on_the_sinks_thread(tmp_path: Path) -> None:
    """A backend that calls sys.exit neither ends the run nor its own thread."""

    def leave(step: int) -> None:
        if step == 0:
            raise SystemExit(3)

    sink = Probe(leave)
    runner = started(sink, tmp_path)
    runner.submit(0, event(0))
    runner.submit(1, event(1))
    report = runner.close(10)
    assert (sink.steps, report.failed, report.finished) == ([1], 1, True)


def test_a_failing_close_is_reported(tmp_path: Path) -> None:
    """An error at the end is an error, and close does not raise it."""

    class Sticky(Probe):
        def close(self) -> None:
            raise RuntimeError("cannot let go")

    runner = started(Sticky(), tmp_path)
    report = runner.close(10)
    assert (report.failed, str(report.first_error), report.finished) == (1, "cannot let go", True)


def test_on_error_raise_hands_the_failure_to_the_caller(tmp_path: Path) -> None:
    """In a strict run the next flush or submit raises it, with the sink's error as the cause."""

    def refuse(step: int) -> None:
        raise KeyError("reward")

    runner = started(Probe(refuse), tmp_path, on_error="raise")
    runner.submit(0, event(0))
    with pytest.raises(SinkError, match=r"\[DL602\] sink `probe` failed: KeyError: 'reward'") as caught:
        runner.flush(10)
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(SinkError):
        runner.submit(1, event(1))
    assert runner.close(10).failed == 1


def test_flush_waits_for_what_was_submitted(tmp_path: Path) -> None:
    """After a flush everything is written; while the sink is stuck, it says so."""
    gate = Gate()
    sink = Probe(gate)
    runner = started(sink, tmp_path)
    runner.submit(0, event(0))
    runner.submit(1, event(1))
    assert gate.inside.wait(PATIENCE_S)
    assert runner.flush(0.01) is False
    gate.open.set()
    assert runner.flush(10) is True
    assert sink.steps == [0, 1]
    runner.close(10)


def test_a_full_queue_drops_the_oldest_events(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once released, the newest events stay, submit never waits, and the drops are counted and said once."""
    gate = Gate()
    sink = Probe(gate)
    runner = started(sink, tmp_path, max_bytes=3 * estimate_bytes(event(1)))
    runner.release()
    runner.submit(0, event(0))
    assert gate.inside.wait(PATIENCE_S)
    with caplog.at_level(logging.WARNING, logger="declog"):
        for step in range(1, 11):
            runner.submit(step, event(1))
        assert sum("dropped a log event" in record.getMessage() for record in caplog.records) == 1
        gate.open.set()
        report = runner.close(10)
    assert (sink.steps, report.dropped) == ([0, 8, 9, 10], 7)
    assert "7 dropped" in caplog.records[-1].getMessage()


def test_a_full_queue_blocks_the_worker_and_loses_nothing(tmp_path: Path) -> None:
    """Submit waits for room, and every event arrives."""
    gate = Gate()
    sink = Probe(gate)
    runner = started(sink, tmp_path, max_bytes=2 * estimate_bytes(event(1)))
    submitted: list[int] = []

    def worker() -> None:
        for step in range(8):
            runner.submit(step, event(1))
            submitted.append(step)

    thread = threading.Thread(target=worker)
    thread.start()
    deadline = time.monotonic() + 10
    while len(submitted) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    thread.join(0.05)
    # One event is inside the sink and two are queued; the fourth has no room.
    assert (thread.is_alive(), submitted) == (True, [0, 1, 2])
    gate.open.set()
    thread.join(10)
    report = runner.close(10)
    assert (sink.steps, report) == (list(range(8)), CloseReport())


def test_an_event_larger_than_the_bound_is_taken_alone(tmp_path: Path) -> None:
    """One enormous table cannot block the worker for ever."""
    sink = Probe()
    runner = started(sink, tmp_path, max_bytes=1)
    for step in range(3):
        runner.submit(step, event(step))
    assert (runner.close(10), sink.steps) == (CloseReport(), [0, 1, 2])


def test_close_leaves_a_stuck_sink_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """When time runs out close says what was not written, and frees a worker that waits for room."""
    gate = Gate()
    sink = Probe(gate)
    runner = started(sink, tmp_path, max_bytes=estimate_bytes(event(1)))
    runner.submit(0, event(0))
    assert gate.inside.wait(PATIENCE_S)
    runner.submit(1, event(1))
    waiting = threading.Thread(target=runner.submit, args=(2, event(1)))
    waiting.start()
    waiting.join(0.1)
    with caplog.at_level(logging.WARNING, logger="declog"):
        report = runner.close(0.05)
    waiting.join(10)
    assert not waiting.is_alive()
    assert (report.pending, report.finished, report.failed) == (2, False, 0)
    assert "2 not written in time, the sink did not finish in time and was left behind" in caplog.text
    gate.open.set()


def test_a_sink_left_behind_takes_no_further_event(tmp_path: Path) -> None:
    """Should it come back to life, it ends instead of writing what was reported as lost."""
    gate = Gate()
    sink = Probe(gate)
    runner = started(sink, tmp_path)
    runner.submit(0, event(0))
    runner.submit(1, event(1))
    assert gate.inside.wait(PATIENCE_S)
    runner.close(0.01)
    gate.open.set()
    thread = next(thread for thread in threading.enumerate() if thread.name == "declog-sink-probe")
    thread.join(10)
    assert (sink.steps, sink.closed) == ([0], 1)


def test_a_refused_rewind_is_not_done_later(tmp_path: Path) -> None:
    """A rewind that the sink had no time to begin is refused: it must not drop rows after the caller got the error."""
    rewound = list[int]()

    class Rewound(Probe):
        def rewind(self, point: ResumePoint) -> None:
            rewound.append(point.step)

    gate = Gate()
    runner = started(Rewound(gate), tmp_path)
    runner.submit(0, event(0))
    assert gate.inside.wait(PATIENCE_S)
    with pytest.raises(SinkError, match="could not be rewound to step 1: TimeoutError: it was not done in"):
        runner.rewind(ResumePoint(1), 0.01)
    gate.open.set()
    assert runner.flush(PATIENCE_S)
    assert runner.close(PATIENCE_S).finished
    assert rewound == []


def test_close_is_idempotent(tmp_path: Path) -> None:
    """The second close reports the same and closes nothing again."""
    sink = Probe()
    runner = started(sink, tmp_path)
    assert runner.close(10) is runner.close(10)
    assert sink.closed == 1


def test_an_event_after_close_is_counted_not_raised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A logger does not stop a run: a late event is dropped, and said."""
    sink = Probe()
    runner = started(sink, tmp_path)
    runner.close(10)
    with caplog.at_level(logging.WARNING, logger="declog"):
        runner.submit(5, event(5))
    assert sink.steps == []
    assert "dropped a log event: it came when the sink was not open" in caplog.text


def test_what_waits_and_what_was_dropped_can_be_read_at_any_time(tmp_path: Path) -> None:
    """For declog's metrics of itself, while the sink is busy."""
    gate = Gate()
    size = estimate_bytes(event(0))
    runner = started(Probe(gate), tmp_path, max_bytes=2 * size)
    runner.release()
    assert (runner.queued_bytes, runner.dropped) == (0, 0)
    runner.submit(0, event(0))
    assert gate.inside.wait(PATIENCE_S)
    for step in range(1, 5):
        runner.submit(step, event(0))
    assert (runner.queued_bytes, runner.dropped) == (2 * size, 2)
    gate.open.set()
    assert runner.flush(10)
    assert (runner.queued_bytes, runner.dropped) == (0, 2)
    runner.close(10)
