"""Phases of step signals only: they have no rows, and their values are those of the step, for rows of every phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.testing import FakeComm, MemorySink, run_ranks
from tests.running import profile

SIGNALS = {
    "rollout": {"reward": "completion", "source": "completion text"}, "update": {"loss": "completion"},
    "control": {"tau": "step", "beta": "step"},
}  # fmt: skip
METRICS: dict[str, Any] = {
    "a": "mean(reward * tau)", "b": "sum(loss * tau)", "tau": "last(tau)",
    "c": {"expr": "reward", "where": "tau > 0.4"}, "d": {"expr": "reward", "weight": "tau"},
    "by": {"expr": "loss", "by": "tau > 1"}, "e": "mean(loss + beta)", "f": "mean(tau * tau)",
}  # fmt: skip


def logged(steps: Sequence[Sequence[Mapping[str, Any]]], folder: Path, **others: Any) -> dict[int, dict[str, float]]:
    """What is logged of the calls of each step."""
    sink = MemorySink()
    config = profile({}, METRICS, signals=SIGNALS, **others)
    with declog.start(config, sinks=[sink], output_dir=folder) as log:
        for step, calls in enumerate(steps):
            with log.step(step):
                for call in calls:
                    log.observe(**call)
    return dict(sink.scalars)


ROLLOUT = {"reward": [1.0, 2.0, 3.0], "source": ["x", "y", "x"]}
UPDATES = [{"loss": [1.0, 3.0]}, {"loss": [5.0]}]


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("order", [("rollout", "update", "control"), ("control", "rollout", "update")])
def test_a_value_of_the_step_is_of_all_its_rows(place: int, order: tuple[str, ...], tmp_path: Path) -> None:
    """Whenever in the step it comes, wherever its phase is declared, and without any ids."""
    calls: list[Mapping[str, Any]] = [ROLLOUT, *UPDATES]
    calls.insert(place, {"tau": 0.5})
    sink = MemorySink()
    config = profile({}, METRICS, signals={name: SIGNALS[name] for name in order})
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        for call in calls:
            log.observe(**call)
    assert sink.scalars[0] == {
        "a": 1.0, "b": 4.5, "tau": 0.5, "c": 2.0, "d": 2.0, "by/false": 3.0, "f": 0.25,
    }  # fmt: skip


def test_the_latest_value_holds_until_another_comes(tmp_path: Path) -> None:
    """Across steps and windows; rows before the first have none, and of two in a step the last one counts."""
    steps: list[list[Mapping[str, Any]]] = [
        [ROLLOUT, UPDATES[0]], [{"tau": 2.0}, ROLLOUT, UPDATES[0]], [ROLLOUT, UPDATES[0]],
        [{"tau": 3.0}, ROLLOUT, {"tau": 0.25, "beta": 1.0}, UPDATES[0]],
    ]  # fmt: skip
    signals = {**SIGNALS, "control": {"tau": "step", "beta": "step"}}
    for every in (1, 2, 4):
        sink = MemorySink()
        config = profile({}, {"b": "sum(loss * tau)", "n": "count(loss * tau)"}, signals=signals, every=every)
        with declog.start(config, sinks=[sink], output_dir=tmp_path / str(every)) as log:
            for step, calls in enumerate(steps):
                with log.step(step):
                    for call in calls:
                        log.observe(**call)
        sums, counts = [0.0, 8.0, 8.0, 1.0], [0, 2, 2, 2]
        expected = {
            step: {"b": sum(sums[step + 1 - every : step + 1]), "n": sum(counts[step + 1 - every : step + 1])}
            for step in range(every - 1, 4, every)
        }
        assert dict(sink.scalars) == {step: values for step, values in expected.items() if values["n"]}


def test_each_rank_has_its_own(tmp_path: Path) -> None:
    """A rank that observes none has none for its rows."""
    sink = MemorySink()

    def body(comm: FakeComm) -> None:
        signals = {**SIGNALS, "control": {"tau": "step", "beta": "step"}}
        config = profile({}, {"a": "mean(reward * tau)", "n": "count(reward * tau)"}, signals=signals)
        sinks = [] if comm.rank else [sink]
        with declog.start(config, sinks=sinks, output_dir=tmp_path, comm=comm) as log, log.step(0):
            log.observe(reward=[1.0, 3.0], source=["x", "x"])
            if comm.rank < 2:
                log.observe(tau=1.0 + comm.rank)

    run_ranks(3, body)
    assert sink.scalars[0] == {"a": 3.0, "n": 4}
