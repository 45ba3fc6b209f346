"""What is refused costs its own part: everything else is recorded, wherever rows move."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import declog
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink

PROFILE: dict[str, Any] = {
    "run": {"name": "refused"},
    "modes": {"train": {}, "eval": {"prefix": "eval/"}},
    "axes": {"group": {"size": 2}},
    "signals": {
        "any": {
            "reward": {"axis": "completion"},
            "level": {"axis": "group"},
            "y": {"axis": "completion"},
            "rewards": {"axis": "completion", "family": True},
        }
    },
    "metrics": {
        "n": "count(reward)",
        "sum": "sum(reward)",
        "level": "count(level)",
        "y": "sum(y)",
        "members": "mean(rewards)",
    },
    "tables": {"t": {"columns": ["reward", "rewards"]}},
}
WRONG: dict[str, Any] = {
    "reward": [1.0, 2.0],
    "level": [1.0, 2.0, 3.0],
}  # one group, three values: refused when it closes
Body = Callable[[Recorder, Callable[..., None]], None]


def elsewhere(call: Callable[[], object]) -> None:
    """On another thread."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def observed(log: Recorder, **options: Any) -> None:
    """A wrong batch and a right one, on a thread of its own each."""
    elsewhere(partial(log.observe, **WRONG, **options))
    elsewhere(partial(log.observe, reward=[5.0, 5.0, 5.0, 5.0], **options))


def end_of_a_step(log: Recorder) -> None:
    with log.step(0) as step:
        elsewhere(partial(step.observe, **WRONG))
        elsewhere(partial(step.observe, reward=[5.0] * 4))
        log.observe(reward=[7.0, 7.0])


def own_batch(log: Recorder) -> None:
    with log.step(0) as step:
        elsewhere(partial(step.observe, reward=[5.0] * 4))
        log.observe(reward=[7.0, 7.0])
        log.observe(**WRONG)


def next_step(log: Recorder) -> None:
    observed(log, step="next")
    with log.step(0):
        log.observe(reward=[7.0, 7.0])


def contribution(log: Recorder) -> None:
    with log.step(0):
        log.observe(reward=[7.0, 7.0])
        at = log.at(0)
        with at:
            elsewhere(partial(at.observe, **WRONG))
            elsewhere(partial(at.observe, reward=[5.0] * 4))


def flushed(log: Recorder) -> None:
    with log.step(0) as step:
        elsewhere(partial(step.observe, **WRONG))
        elsewhere(partial(step.observe, reward=[5.0] * 4))
        log.observe(reward=[7.0, 7.0])
        log.flush()


def packets(log: Recorder) -> None:
    with log.step(0):
        wrong = declog.rows(reward=[1.0], y=[1.0, 2.0])
        log.observe(declog.rows(reward=[5.0] * 4), wrong, declog.rows(reward=[7.0, 7.0]))


def packet_and_signals(log: Recorder) -> None:
    with log.step(0):
        log.observe(reward=[7.0, 7.0])
        log.observe(declog.rows(reward=[5.0] * 4), y=[1.0, 2.0, 3.0])


def the_batch_before(log: Recorder) -> None:
    with log.step(0):
        log.observe(reward=[7.0, 7.0])
        log.observe(**WRONG)
        log.observe(reward=[5.0] * 4, y=[0.0] * 4)  # closes the wrong one


def explicit_batch(log: Recorder) -> None:
    with log.step(0):
        log.observe(reward=[5.0] * 4)
        log.observe(reward=[7.0, 7.0])
        with log.batch():
            log.observe(**WRONG)


def numbers(log: Recorder) -> None:
    with log.step(0):
        log.observe(reward=[5.0] * 4)
        log.observe(reward=[7.0, 7.0])
        log.scalars({"y": [1.0, 2.0, 3.0], "loss": 1.0})


WAYS = (
    end_of_a_step, own_batch, next_step, contribution, flushed, packets, packet_and_signals, the_batch_before,
    explicit_batch, numbers,
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_one_refused_part_costs_that_part(way: Callable[[Recorder], None], tmp_path: Path) -> None:
    """It is raised, once all else is recorded; the next step is as ever."""
    sink = MemorySink()
    with declog.start(PROFILE, sinks=[sink], output_dir=tmp_path) as log:
        with pytest.raises(declog.InputError):
            way(log)
        with log.step(1):
            log.observe(reward=[9.0, 9.0])
    found = {step: (values["n"], values["sum"]) for step, values in sink.scalars.items()}
    assert found == {0: (6, 34.0), 1: (2, 18.0)}
    assert dict(log.failures) == {}


def test_what_is_open_when_the_run_ends(tmp_path: Path) -> None:
    """A wrong batch that waits for the open step costs itself: rows that wait, and the step's own, are logged."""
    sink = MemorySink()
    log = declog.start(PROFILE, sinks=[sink], output_dir=tmp_path)
    log.step(0).__enter__()
    log.observe(reward=[7.0, 7.0])
    observed(log, step="next")
    log.close(failed=True)
    assert {step: values["sum"] for step, values in sink.scalars.items()} == {0: 34.0}


def test_a_commit_with_a_refused_batch(tmp_path: Path) -> None:
    """A column that does not fit is refused when the step is committed; rows of threads are of the step."""
    sink = MemorySink()
    profile = {**PROFILE, "schemas": {"s": {"reward": {"type": "float"}, "extra": {"undeclared": "keep"}}}}
    profile["tables"] = {"t": {"schema": "s"}}
    with declog.start(profile, sinks=[sink], output_dir=tmp_path, steps="commit") as log:
        log.log_extra("note", ["a", "b", "c"])
        log.observe(reward=[1.0, 2.0])
        elsewhere(partial(declog.observe, reward=[5.0, 5.0, 5.0, 5.0]))
        with pytest.raises(declog.InputError, match="`note` has 3 values"):
            log.commit(0)
        log.observe(reward=[9.0, 9.0])
        log.commit(1)
    assert {step: values["n"] for step, values in sink.scalars.items()} == {0: 6, 1: 2}


WRAPPED: dict[str, Callable[[Callable[[torch.Tensor], torch.Tensor]], object]] = {
    "vmap": lambda function: torch.vmap(function)(torch.ones(2, 3)),
    "grad": lambda function: torch.func.grad(function)(torch.ones(3)),
    "functionalize": lambda function: torch.func.functionalize(function)(torch.ones(3)),
    "vmap of grad": lambda function: torch.vmap(torch.func.grad(function))(torch.ones(2, 3)),
}
GIVEN: dict[str, Callable[[Recorder, torch.Tensor], object]] = {
    "a signal": lambda log, value: log.observe(reward=value),
    "two signals": lambda log, value: log.observe(reward=value, y=value),
    "a member": lambda log, value: log.observe(rewards={"a": value}),
    "a column": lambda log, value: log.log_extra("note", value),
    "a packet": lambda log, value: log.observe(declog.rows(reward=value)),
    "a number": lambda log, value: log.log_metric("loss", value.sum()),
}


@pytest.mark.parametrize("how", GIVEN)
@pytest.mark.parametrize("transform", WRAPPED)
def test_what_torch_wraps_is_refused_where_it_is_given(transform: str, how: str, tmp_path: Path) -> None:
    """Its values are not there yet; also where a call of the same names was right before. The log event is whole."""
    sink = MemorySink()
    schema = {"schemas": {"s": {"reward": {"type": "float"}, "extra": {"undeclared": "keep"}}}}
    with declog.start(
        {**PROFILE, **schema, "axes": {"group": {"size": 3}}, "tables": {"t": {"schema": "s"}}},
        sinks=[sink],
        output_dir=tmp_path,
    ) as log:
        for step in range(3):
            with log.step(step):
                log.observe(level=[1.0])
                GIVEN[how](log, torch.ones(3))
                if step == 1:

                    def function(value: torch.Tensor) -> torch.Tensor:
                        with pytest.raises(declog.InputError, match=r"torch\.func"):
                            GIVEN[how](log, value)
                        return value.sum()

                    WRAPPED[transform](function)
    assert [values["level"] for values in sink.scalars.values()] == [1, 1, 1]
    assert dict(log.failures) == {}
