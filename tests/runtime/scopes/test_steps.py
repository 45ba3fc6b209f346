"""Step numbers: windows end at edges, gaps are fine, and what repeats or falls says what to do."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import declog
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink, run_ranks
from tests.running import Tracker, pairs
from tests.runtime.scopes.running import LATE, OUTSIDE, PROFILE, UNBOUND, run


def steps(numbers: Sequence[Any]) -> Any:
    """A body whose steps have these numbers; each observes one row, its place among them."""

    def body(log: Recorder) -> None:
        for place, number in enumerate(numbers):
            with log.step(number):
                log.observe(reward=[float(place)])

    return body


@pytest.mark.parametrize(
    ("every", "numbers", "expected"),
    [
        (1, [0, 5, 17], {0: (0.0, 1), 5: (1.0, 1), 17: (2.0, 1)}),
        (2, [10, 20, 30, 40, 50], {20: (0.5, 2), 40: (2.5, 2), 50: (4.0, 1)}),
        (1, [-3, -1, 2], {-3: (0.0, 1), -1: (1.0, 1), 2: (2.0, 1)}),
        (1, [0.0, np.int64(3), torch.tensor(7)], {0: (0.0, 1), 3: (1.0, 1), 7: (2.0, 1)}),
    ],
    ids=["gaps", "gaps and windows", "negative", "other integers"],
)
def test_numbers_that_rise(every: int, numbers: Sequence[Any], expected: Any, tmp_path: Path) -> None:
    """Whatever lies between them, a window is so many steps."""
    logged = run(steps(numbers), tmp_path, every=every)
    assert {step: values for (_, step), values in logged.of("reward", "n").items()} == expected
    assert logged.failures == {}


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (3, "step 3 begins after step 3 has ended: step numbers rise\n"
            "  fix: one block for all of step 3: `with log.step(3):` around both, or the loop of micro-batches; "
            "or say that the trainer goes back, which drops what came behind: log.rewind(2)"),
        (1, "step 1 begins after step 3 has ended: step numbers rise\n"
            "  fix: number steps on from 4, over epochs, too: `with log.step(4 * epoch + step):`; or say that "
            "the trainer goes back, which drops what came behind: log.rewind(0)"),
        (4.5, "a step is a whole number, and 4.5 came\n  fix: count optimizer steps"),
        (float("nan"), "a step is a whole number, and nan came\n  fix: count optimizer steps"),
        ("5", "a step is a whole number, and '5' came\n  fix: log.step(int(step)), which counts optimizer steps"),
        (
            print,
            "a step is a whole number, and <built-in function print> came\n  fix: log.wrap(function) makes each call a "
            "step; a block is `with log.step(k):`",
        ),
        (2**70, f"step {2**70} is out of bounds\n  fix: count optimizer steps"),
    ],
)  # fmt: skip
def test_numbers_that_do_not(number: Any, message: str, tmp_path: Path) -> None:
    """One that repeats or falls, and what is no number of a step, is an error where it is given; the run goes on."""

    def body(log: Recorder) -> None:
        steps([0, 3])(log)
        with pytest.raises(declog.UsageError) as error, log.step(number):
            pass
        assert str(error.value) == f"[DL510] {message}"
        with log.step(4):
            log.observe(reward=[9.0])

    logged = run(body, tmp_path)
    assert logged.of("reward") == {("train", 0): (0.0,), ("train", 3): (1.0,), ("train", 4): (9.0,)}


def test_a_trainer_that_goes_back(tmp_path: Path) -> None:
    """`rewind` logs what is open, and lets the numbers begin again: also a cell of a notebook that is run twice."""
    sink = Tracker()
    config = {
        "run": {"name": "r"},
        "every": 2,
        "signals": {"any": {"reward": {"axis": "completion"}}},
        "metrics": {"n": "count(reward)"},
    }
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log:
        steps([0, 1, 2])(log)
        log.rewind(-1)
        steps([0, 1])(log)
        failures = dict(log.failures)
    assert [(step, [item.value for item in records.scalars]) for step, records in sink.events] == [
        (1, [2]), (2, [1]), (1, [2]),
    ]  # fmt: skip
    assert failures == {}


@pytest.mark.parametrize(("begun", "ahead"), [(False, -1), (True, -1), (False, 0)])
def test_rows_ahead_are_of_their_step_alone(begun: bool, ahead: int, tmp_path: Path) -> None:
    """Whatever is done between two steps, also before the first: a flush logs, and a checkpoint has, what has ended.

    Numbers before the first step stand at step 0, and rows that are ahead for step 0 are not logged with them.
    """
    config = {
        "run": {"name": "r"},
        "every": 9,
        "signals": {"any": {"x": {"axis": "completion"}}},
        "metrics": {"n": "count(x)"},
    }
    sink, resumed = MemorySink(), MemorySink()
    with declog.start(config, sinks=[sink], output_dir=tmp_path / "run") as log:
        if begun:
            with log.step(-2):
                log.observe(x=[1.0])
        log.observe(x=[1.0, 1.0, 1.0], step=ahead)
        log.log_metric("before", 5.0)
        state = log.state_dict()
        log.flush()
        with log.step(ahead):
            log.observe(x=[1.0])
    with declog.start(config, sinks=[resumed], output_dir=tmp_path / "other", resume=state) as log, log.step(0):
        log.observe(x=[1.0, 1.0])
    flushed = {-2: {"n": 1, "before": 5.0}} if begun else {0: {"before": 5.0}}
    logged = [(step, {item.name: item.value for item in records.scalars}) for step, records in sink.events]
    assert [event for event in logged if event[1]] == [*flushed.items(), (ahead, {"n": 4})]
    assert resumed.scalars == {0: {"n": 2 + begun, "before": 5.0}}


def test_rewind_is_for_between_steps(tmp_path: Path) -> None:
    """Inside a step it is an error."""

    def body(log: Recorder) -> None:
        with log.step(3), pytest.raises(declog.UsageError, match="`rewind` is called inside step 3"):
            log.rewind(1)

    run(body, tmp_path)


def test_a_resumed_run_goes_on_above(tmp_path: Path) -> None:
    """A state holds the last step: a number that is not above it is an error, and late rows stay late."""
    config = {
        "run": {"name": "r"},
        "signals": {"any": {"x": {"axis": "completion"}}},
        "metrics": {"n": "count(x)"},
        "sinks": [],
    }
    with declog.start(config, output_dir=tmp_path) as log:
        for step in range(3):
            with log.step(step):
                log.observe(x=[1.0])
        state = log.state_dict()
    sink = MemorySink()
    with declog.start(config, output_dir=tmp_path, resume=state, sinks=[sink]) as log:
        with pytest.raises(declog.UsageError, match="step 2 begins after step 2 has ended"), log.step(2):
            pass
        log.observe(x=[5.0, 6.0], step=1)
        with log.step(3):
            log.observe(x=[1.0])
        failures = dict(log.failures)
    assert (sink.scalars, failures) == ({3: {"n": 1, "declog/late": 2}}, {LATE: 2})


def test_a_window_waits_for_what_contributes_to_it(tmp_path: Path) -> None:
    """A step has ended, and an `at` of it has not: its window closes with that; later steps wait their turn."""

    def body(log: Recorder) -> None:
        slow = log.at(0)
        slow.__enter__()
        for step in range(3):
            with log.step(step):
                log.observe(reward=[float(step)])
        log.observe(reward=[10.0])  # in the `at`, which this code is in
        slow.__exit__(None, None, None)
        with log.step(3):
            log.observe(reward=[3.0])

    logged = run(body, tmp_path)
    assert logged.of("reward", "n") == {
        ("train", 0): (5.0, 2), ("train", 1): (1.0, 1), ("train", 2): (2.0, 1), ("train", 3): (3.0, 1),
    }  # fmt: skip
    assert logged.failures == {}


def test_a_window_waits_so_long_and_no_longer(tmp_path: Path) -> None:
    """After `wait_s` it closes without the rest, is marked, and the rest is late."""
    sink = MemorySink()
    config = {
        "run": {"name": "r"},
        "signals": {"any": {"x": {"axis": "completion"}}},
        "metrics": {"n": "count(x)"},
        "sinks": [],
    }
    with declog.start(config, output_dir=tmp_path, sinks=[sink], wait_s=0.0) as log:
        entered, leave = threading.Event(), threading.Event()

        def contribute() -> None:
            with log.at(0):
                entered.set()
                leave.wait()
                log.observe(x=[1.0, 1.0])

        thread = threading.Thread(target=contribute)
        thread.start()
        entered.wait()
        with log.step(0):
            log.observe(x=[1.0])
        with log.step(1):
            log.observe(x=[1.0])
        leave.set()
        thread.join()
        with log.step(2):
            log.observe(x=[1.0])
        failures = dict(log.failures)
    assert sink.scalars == {
        0: {"n": 1, "declog/ranks": 0}, 1: {"n": 1}, 2: {"n": 1, "declog/late": 2},
    }  # fmt: skip
    assert failures == {"[DL513] a window was closed while a scope of one of its steps is open": 1, LATE: 2}


def test_rows_ahead_of_the_last_step_are_logged_at_the_end(tmp_path: Path) -> None:
    """What was prefetched for a step that never came stands at that step, in the tail."""

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(reward=[1.0], step=1)
        log.observe(reward=[2.0, 2.0], step="next")

    logged = run(body, tmp_path)
    assert (logged.of("reward", "n"), logged.failures) == ({("train", 1): (1.0, 1)}, {UNBOUND: 2})


def test_steps_in_commit_style(tmp_path: Path) -> None:
    """Everything since the last commit is of the step that is committed; what is missed is said as in a block."""

    def body(log: Recorder) -> None:
        for step in (1, 4):
            log.observe(prompt=["a", "b"])
            log.log_metric("mine", step)
            log.observe(reward=[1.0, float(step)])
            log.commit(step)
        with pytest.raises(declog.UsageError, match="step 2 begins after step 4 has ended"):
            log.commit(2)
        with log.mode("eval"):
            log.observe(reward=[7.0])

    logged = run(body, tmp_path, steps="commit")
    assert logged.of("reward", "mine") == {
        ("eval", 4): (7.0,), ("train", 1): (1.0, 1.0), ("train", 4): (2.5, 4.0),
    }  # fmt: skip
    assert logged.pairs == [("a", 1.0), ("b", 1.0), ("a", 1.0), ("b", 4.0), (None, 7.0)]
    assert logged.failures == {}


def test_commits_from_anywhere(tmp_path: Path) -> None:
    """Between commits, without a block, what finds the recorder by itself records, and after the end nothing does."""
    profile = {"signals": {"any": {"reward": {"axis": "completion"}}}, "metrics": {"reward": "mean(reward)"}}
    sink = MemorySink()
    log = declog.start(profile, sinks=[sink], output_dir=tmp_path, steps="commit")
    assert declog.current() is log
    declog.observe(reward=[1.0])
    declog.log_metric("own", 3.0)
    with declog.timer("block"):
        declog.log_metric("own", 4.0)
    log.commit(0)
    with declog.start(profile, sinks=[], output_dir=tmp_path / "other") as other:
        assert declog.current() is other
    assert declog.current() is log
    log.close()
    assert set(sink.scalars[0]) == {"reward", "own", "time/block"}
    assert declog.current() is None


def test_commit_without_asking_for_it(tmp_path: Path) -> None:
    """Where steps are blocks it says how to start."""

    def body(log: Recorder) -> None:
        with pytest.raises(declog.UsageError, match="`commit` is called, and steps are blocks"):
            log.commit(0)

    run(body, tmp_path)


def test_blocks_that_do_not_end_as_they_began(tmp_path: Path) -> None:
    """As callbacks of a trainer open and close them: what is still open takes what comes."""

    def body(log: Recorder) -> None:
        step, block = log.step(0), log.mode("eval", step=0)
        step.__enter__()
        log.observe(reward=[1.0])
        block.__enter__()
        log.observe(reward=[10.0])
        step.__exit__(None, None, None)
        log.observe(reward=[30.0])
        block.__exit__(None, None, None)
        with log.step(1):
            log.observe(reward=[2.0])
        log.observe(reward=[99.0])

    logged = run(body, tmp_path)
    assert logged.of("reward") == {("eval", 0): (20.0,), ("train", 0): (1.0,), ("train", 1): (2.0,)}
    assert logged.failures == {OUTSIDE: 1}


def test_a_handle_that_is_kept_keeps_no_rows(tmp_path: Path) -> None:
    """Of each kind of block with rows: a loop that keeps its handles does not grow by the rows of its steps."""
    handles = []

    def body(log: Recorder) -> None:
        with log.step(0) as step:
            with log.batch() as batch:
                log.observe(reward=[1.0])
            with log.at(0) as contribution:
                log.observe(reward=[2.0])
            assert step.step is not None
            log.observe(reward=[3.0])
        handles.extend([step, batch, contribution])

    logged = run(body, tmp_path, every=1)
    assert logged.of("reward", "n") == {("train", 0): (2.0, 3)}
    assert [(handle.step, handle.batches) for handle in handles] == [(None, {})] * 3


@pytest.mark.parametrize("at", [False, True], ids=["step=k", "at(k)"])
def test_rows_that_name_steps_that_no_one_begins(at: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At the end of the run each step is logged, and one warning says what a loop does in place of it."""

    def body(log: Recorder) -> None:
        for k in range(3):
            if at:
                with log.at(k):
                    log.observe(reward=[float(k)])
            else:
                log.observe(step=k, reward=[float(k)])

    logged = run(body, tmp_path)
    assert logged.of("reward", "n") == {("train", k): (float(k), 1) for k in range(3)}
    assert logged.failures == {}
    assert caplog.text.count("rows of 3 steps, 0 to 2, named their step, and none of these steps began") == 1


@pytest.mark.parametrize(("every", "expected"), [(1, {1000: 1.0, 2000: 2.0, 3000: 3.0}), (2, {1000: 1.0, 3000: 2.5})])
def test_rows_that_count_in_other_units_than_the_loop(
    every: int, expected: dict[int, float], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Tokens, samples or epochs as `step=` in a block of another step: each stands at its own, and one warning."""

    def body(log: Recorder) -> None:
        for k in (1, 2, 3):
            with log.step(k):
                log.observe(reward=[float(k)], step=1000 * k)
                log.scalars({"x": k}, step=1000 * k)

    logged = run(body, tmp_path, every=every)
    assert logged.of("reward", "x") == {("train", step): (value, value) for step, value in expected.items()}
    assert logged.failures == {}
    assert caplog.text.count("rows of 3 steps, 1000 to 3000, named their step, and none of these steps began") == 1


def test_rows_that_are_ahead_when_a_loop_stops(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A loop that prefetches two steps is right: nothing is said, and each step of which only rows came is logged."""

    def body(log: Recorder) -> None:
        for k in range(3):
            log.observe(reward=[float(k)], step=k)
        for k in range(2):
            with log.step(k):
                log.observe(reward=[k + 3.0], step=k + 3)

    logged = run(body, tmp_path)
    assert logged.of("reward") == {("train", k): (float(k),) for k in range(5)}
    assert "DL513" not in caplog.text


def test_ranks_that_are_ahead_by_other_steps_end_in_one_log_event(tmp_path: Path) -> None:
    """Ranks send the same log events, so the last one has what each rank recorded ahead."""
    sink = MemorySink()

    def rank(comm: Comm) -> dict[str, int]:
        sinks = [sink] if comm.rank == 0 else []
        with declog.start(
            {**PROFILE, "sinks": []}, sinks=sinks, output_dir=tmp_path / str(comm.rank), comm=comm
        ) as log:
            with log.step(0):
                log.observe(reward=[0.0])
            for k in range(1, 3 + comm.rank):
                log.observe(reward=[float(k)], step=k)
        return dict(log.failures)

    assert run_ranks(2, rank) == [{}, {}]
    assert {step: values["n"] for step, values in sink.scalars.items()} == {0: 2, 3: 5}


def test_in_a_resumed_run_too(tmp_path: Path) -> None:
    """The steps of the run before are none that this one began."""
    config = {"signals": {"any": {"reward": "completion"}}, "metrics": {"reward": "mean"}, "sinks": ["jsonl"]}
    with declog.start(config, output_dir=tmp_path) as log:
        for k in range(2):
            with log.step(k):
                log.observe(reward=[float(k)])
        state = log.state_dict()
    log = declog.start(config, output_dir=tmp_path, resume=state)
    for k in range(2, 5):
        log.observe(step=k, reward=[float(k)])
    log.close()
    assert pairs(declog.read(tmp_path)["reward"]) == [(k, float(k)) for k in range(5)]
