"""Values from a thread of one's own: what each way records, and what is said where a thread has no step.

The ways are those that the message offers; the class is any function that records, from any time of the thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink
from tests.running import profile
from tests.runtime.scopes.running import IN_THREAD

CONFIG = profile(
    {"x": {"axis": "step"}, "loss": {"axis": "step"}},
    {"x": "sum(x)", "loss": "mean(loss)"},
    run={"strict": False},
)


def in_thread(function: Callable[[], Any]) -> None:
    """Run a function in a thread of its own until it ends."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("within", [False, True])
def test_a_thread_without_a_step(bound: bool, within: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whether a step of the loop is open or not, and also if it was bound where no step was open."""
    sink = MemorySink()
    with declog.start(CONFIG, sinks=[sink], output_dir=tmp_path) as log:

        def record() -> None:
            declog.observe(x=1.0)

        function = declog.bind(record) if bound else record
        for step in range(2):
            with log.step(step):
                log.observe(loss=1.0)
                if within:
                    in_thread(function)
            if not within:
                in_thread(function)
        assert log.failures == {IN_THREAD: 2}
    text = next(line for line in caplog.messages if line.startswith(IN_THREAD))
    assert 'log.observe(..., step="next")' in text and "declog.bind(function)" in text


def next_step(log: Recorder, step: int) -> Callable[[], Any]:
    """The first way of the message."""
    return lambda: log.observe(x=1.0, step="next")


def of_a_bound_function(log: Recorder, step: int) -> Callable[[], Any]:
    """The second one, in a step."""
    return declog.bind(lambda: declog.observe(x=1.0))


@pytest.mark.parametrize("way", [next_step, of_a_bound_function])
def test_the_ways_that_are_offered(way: Callable[[Recorder, int], Callable[[], Any]], tmp_path: Path) -> None:
    """Each value is in the step."""
    sink = MemorySink()
    with declog.start(CONFIG, sinks=[sink], output_dir=tmp_path) as log:
        for step in range(3):
            with log.step(step):
                log.observe(loss=1.0)
                in_thread(way(log, step))
        assert not log.failures
    assert [values["x"] for values in sink.scalars.values()] == [1.0] * 3


def test_a_step_that_ends_while_a_thread_waits_to_record(tmp_path: Path) -> None:
    """Its values are late for the step, which is counted; nothing is raised in the thread."""
    raised: list[BaseException] = []
    with declog.start(CONFIG, sinks=[MemorySink()], output_dir=tmp_path) as log:
        begun = threading.Event()

        def record() -> None:
            begun.set()
            try:
                log.observe(x=1.0)
            except BaseException as error:  # noqa: BLE001  (any would be wrong)
                raised.append(error)

        with log._session.lock, log.step(0):
            log.observe(loss=1.0)
            thread = threading.Thread(target=declog.bind(record))
            thread.start()
            begun.wait()
            thread.join(0.2)  # it waits for the lock
        thread.join()
        assert log.failures == {"[DL513] observed in a step that has ended": 1} and not raised
