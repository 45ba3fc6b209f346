"""Log events that wait for the worker: seen, bounded, and never fewer in silence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import declog
from declog.plans.ops import Plan
from declog.runtime.recording.recorder import Recorder
from declog.runtime.run.failures import Failures
from declog.runtime.worker.backlog import Backlog
from declog.testing import MemorySink
from tests.running import profile, run

SIGNALS = {"x": {"axis": "completion"}}
METRICS = {"mean": "mean(x)", "n": "count(x)", "slow": {"expr": "x", "reduce": "sum", "every": 4}}
ROWS = 16
EVENT = 8 * ROWS  # bytes


class Gate:
    """Keeps the worker until it is opened: a task before all log events."""

    def __init__(self, log: Recorder) -> None:
        self.open = threading.Event()
        inside = threading.Event()

        def hold() -> None:
            inside.set()
            assert self.open.wait(60)

        threading.Thread(target=log._background._worker.call, args=(hold, 60.0), daemon=True).start()
        assert inside.wait(60)


def observed(log: Recorder, steps: range) -> None:
    """Steps whose values are their numbers."""
    for step in steps:
        with log.step(step):
            log.observe(x=torch.full((ROWS,), float(step), dtype=torch.float64))


def test_log_events_that_wait_are_seen(tmp_path: Path) -> None:
    """How many were handed over before each, and their bytes; in the end none."""

    def body(log: Recorder) -> None:
        gate = Gate(log)
        observed(log, range(3))
        gate.open.set()

    sink = run(profile(SIGNALS, METRICS, profiles={"full": {"self_metrics": True}}), body, tmp_path)
    found = [(values["declog/backlog"], values["declog/backlog_bytes"]) for _, values in sorted(sink.scalars.items())]
    assert found[:3] == [(0, 0), (1, EVENT), (2, 2 * EVENT)]


def test_texts_and_numbers_are_counted(tmp_path: Path) -> None:
    """Texts by their characters."""
    signals = {"text": {"axis": "completion", "type": "text"}, "x": {"axis": "completion"}}
    config = profile(signals, {"words": "mean(words(text))", "x": "mean(x)"})
    waiting: list[int] = []

    def body(log: Recorder) -> None:
        gate = Gate(log)
        with log.step(0):
            log.observe(text=["four", "five!", None], x=torch.ones(3))
        waiting.append(log._background.backlog.bytes)
        gate.open.set()

    run(config, body, tmp_path)
    assert waiting == [3 * 4 + 3 * 8 + 4 + 5]


def test_the_step_waits_until_there_is_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is lost, no more than the limit waits, and it is said once."""
    most: list[int] = []

    def body(log: Recorder) -> None:
        gate = Gate(log)
        backlog = log._background.backlog
        observed(log, range(2))

        def opens() -> None:
            while backlog.events < 3:
                time.sleep(0.01)
            most.append(backlog.events)
            gate.open.set()

        threading.Thread(target=opens).start()
        observed(log, range(2, 8))
        most.append(backlog.events)

    sink = run(profile(SIGNALS, METRICS, run={"backlog_bytes": 2 * EVENT}), body, tmp_path)
    assert most[0] == 3 and most[1] <= 2
    assert [sink.scalars[step]["mean"] for step in range(8)] == [float(step) for step in range(8)]
    assert caplog.text.count("steps wait for declog's worker") == 1


def test_a_worker_that_does_not_go_on_is_waited_for_no_more(tmp_path: Path) -> None:
    """The step goes on, and it is a failure: once, and again where it went on meanwhile."""
    plan: Plan = declog.plan(profile(SIGNALS, METRICS, run={"backlog_bytes": 1}))
    failures = Failures()
    backlog = Backlog(plan, failures, patience_s=0.01)
    for _ in range(4):
        backlog.put(8)
        backlog.wait()
    assert list(failures.counts.values()) == [1]
    backlog.done(8)
    for _ in range(2):
        backlog.put(8)
        backlog.wait()
    assert list(failures.counts.values()) == [2]
    assert "finished no log event for 0.01 s" in next(iter(failures.counts))


def test_close_waits_as_long_as_the_backlog_gets_shorter(tmp_path: Path) -> None:
    """However long that is: each thing that the worker finishes gives it as much time again."""
    config = profile(SIGNALS, METRICS)
    sink = MemorySink()
    pause = threading.Event()

    def later(run: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: (pause.wait(0.2), run())

    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log:
        log._background.wait_s = log._background.close_s = 0.75
        worker = log._background._worker
        for step in range(10):
            threading.Thread(target=worker.call, args=(later(lambda: None), 60.0), daemon=True).start()
            observed(log, range(step, step + 1))
    assert sorted(sink.scalars) == list(range(10))
