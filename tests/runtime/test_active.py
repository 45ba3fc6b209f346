"""Step functions that are wrapped, and helpers that find the open recorder from anywhere."""

from __future__ import annotations

import dataclasses
import threading
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink
from tests.running import profile, run

LOSS = {"loss": {"axis": "step"}}


@dataclasses.dataclass
class Result:
    """What a step function may return."""

    loss: float
    note: str = "not a signal"


Pair = namedtuple("Pair", ["loss", "note"])


@pytest.mark.parametrize(
    "result",
    [{"loss": 0.5, "note": "x", 3: 4}, Result(0.5), Pair(0.5, "x")],
    ids=["mapping", "dataclass", "namedtuple"],
)
def test_a_wrapped_step_is_observed(result: Any, tmp_path: Path) -> None:
    """The call is the step, numbered from 0; keys of the result that are no signals are ignored."""

    def body(log: Recorder) -> None:
        wrapped = log.wrap(lambda: result)
        assert [wrapped(), wrapped()] == [result, result]

    config = profile(LOSS, {"loss": "mean(loss)"})
    assert run(config, body, tmp_path).scalars == {0: {"loss": 0.5}, 1: {"loss": 0.5}}


def test_a_wrapped_step_keeps_arguments_name_and_other_results(tmp_path: Path) -> None:
    """A result is passed on; what the function observes itself counts."""

    def train(factor: float, *, offset: float = 0.0) -> tuple[float, dict[str, float]]:
        declog.observe(loss=factor + offset)
        return factor, {"other": offset}

    log = declog.start(profile(LOSS, {"loss": "mean(loss)"}), sinks=[sink := MemorySink()], output_dir=tmp_path)
    wrapped = log.wrap(train)
    assert (wrapped(2.0, offset=1.0), wrapped.__name__) == ((2.0, {"other": 1.0}), "train")
    log.close()
    assert sink.scalars == {0: {"loss": 2.5}}  # two batches: what it observed, and what it returned


def test_steps_of_a_wrapped_function_follow_those_before(tmp_path: Path) -> None:
    """A function wrapped in mid-run counts on."""

    def body(log: Recorder) -> None:
        with log.step(41):
            log.observe(loss=1.0)
        log.wrap(lambda: {"loss": 2.0})()

    assert run(profile(LOSS, {"loss": "mean(loss)"}), body, tmp_path).scalars == {41: {"loss": 1.0}, 42: {"loss": 2.0}}


# ---- from anywhere


def helper(value: float) -> None:
    """A function deep below the loop that knows no recorder."""
    declog.observe(loss=value)
    declog.log_metric("seen", value)


def test_helpers_find_the_active_recorder(tmp_path: Path) -> None:
    """`declog.observe` reaches the innermost recorder; outside a step it is counted, and outside a run nothing."""
    config = {**profile(LOSS, {"loss": "mean(loss)"}), "run": {"strict": False}}
    helper(100.0)
    outer, inner = MemorySink(), MemorySink()
    with declog.start(config, sinks=[outer], output_dir=tmp_path / "outer") as log:
        declog.observe(loss=100.0)
        with log.step(0):
            helper(1.0)
            with declog.start(config, sinks=[inner], output_dir=tmp_path / "inner") as other, other.step(5):
                helper(7.0)
        with log.step(1):
            helper(3.0)
    helper(100.0)
    assert outer.scalars == {
        0: {"loss": 1.0, "seen": 1.0, "declog/dropped": 1},
        1: {"loss": 3.0, "seen": 3.0},
    }
    assert inner.scalars == {5: {"loss": 7.0, "seen": 7.0}}
    assert declog.current() is None


def test_metrics_may_be_logged_from_any_thread(tmp_path: Path) -> None:
    """Every value of every thread counts once in the mean under its own name."""

    def work(start: int) -> None:
        for value in range(start, start + 200):
            declog.log_metric("queue", value)

    def body(log: Recorder) -> None:
        with log.step(0):
            threads = [threading.Thread(target=work, args=(200 * index,)) for index in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    config = profile({}, {"logged": {"reduce": ["mean", "count", "max"], "name": "logged/{member}/{reduce}"}})
    assert run(config, body, tmp_path).scalars == {
        0: {"logged/queue/mean": 399.5, "logged/queue/count": 800, "logged/queue/max": 799.0}
    }


def test_a_closed_recorder_is_not_found(tmp_path: Path) -> None:
    """Also where it was closed inside a step: the one around it is."""
    config = profile({"loss": {"axis": "step"}}, {"loss": "mean(loss)"})
    outer = MemorySink()
    with declog.start(config, sinks=[outer], output_dir=tmp_path) as log, log.step(0):
        inner = declog.start(config, sinks=[MemorySink()], output_dir=tmp_path / "inner")
        with inner.step(5):
            assert declog.current() is inner
            inner.close()
            assert declog.current() is log
            declog.observe(loss=1.0)
        assert declog.current() is log
    assert declog.current() is None
    assert outer.scalars == {0: {"loss": 1.0}}
