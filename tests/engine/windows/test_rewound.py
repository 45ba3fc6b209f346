"""A run that goes back, as where a step failed and is tried again: the abandoned steps are before no other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from declog.runtime.recording.recorder import Recorder
from declog.testing import FakeComm, run_ranks
from tests.running import profile, run

ROW = {"row": {"axis": "completion", "type": "int"}}
SIGNALS: dict[str, Any] = {"rollout": {"x": "completion"}, "update": {"y": "completion"}, "control": {"beta": "step"}}
METRICS = {
    "x": "mean(x)", "drift": "mean(beta - prev(beta, 0))", "held": "mean(x * beta)", "joined": "mean(x * y)",
}  # fmt: skip
Given = tuple[int, list[float] | None, float | None]  # a step's number, its rollout, and its beta


def body(runs: Sequence[Sequence[Given]], steps_of: Recorder) -> None:
    """Several runs of steps, each of which goes back behind what the one before it did."""
    for place, steps in enumerate(runs):
        if place:
            steps_of.rewind(steps[0][0] - 1)
        for number, rows, beta in steps:
            with steps_of.step(number):
                if rows is not None:
                    steps_of.observe(row=[*range(len(rows))], x=rows)
                if beta is not None:
                    steps_of.observe(beta=beta)
                steps_of.observe(row=[1, 0], y=[float(number), 1.0])


FIRST: list[Given] = [(0, [1.0, 2.0], 1.0), (1, [3.0, 4.0], 4.0), (2, None, None)]
ABANDONED: list[Given] = [(3, [50.0, 60.0], 70.0), (4, None, 80.0), (5, [90.0, 95.0], None)]
SECOND: list[Given] = [(3, [7.0, 8.0], None), (4, None, None), (5, [5.0, 6.0], 9.0), (6, None, None), (7, None, 11.0)]


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("every", [1, 3])
def test_what_follows_is_as_if_the_abandoned_steps_had_not_been(
    every: int, ranks: int, cut: bool, tmp_path: Path
) -> None:
    """Of values of the step before, of those that hold, and of rows of an earlier generation.

    ``cut``: the run is resumed from the abandoned steps, twice, and goes back behind them at once.
    """
    config = profile(ROW, METRICS, signals=SIGNALS, axes={"completion": {"ids": "row"}}, every=every, sinks=[])

    def logged(name: str, runs: Sequence[Sequence[Given]]) -> list[tuple[int, dict[str, float]]]:
        found: list[Any] = []
        states: list[Any] = [None] * ranks

        def rank(comm: FakeComm, part: Sequence[Sequence[Given]]) -> Any:
            state: list[Any] = []

            def steps(log: Recorder) -> None:
                body(part, log)
                state.append(log.state_dict())

            sink = run(config, steps, tmp_path / name, comm=comm, resume=states[comm.rank])
            found[:] = [sink] if comm.rank == 0 else found
            return state[0]

        for part in [runs[:2], [[]], [[], *runs[2:]]] if cut and len(runs) > 2 else [runs]:
            states = run_ranks(ranks, partial(rank, part=part))
        shown = [(step, {item.name: item.value for item in records.scalars}) for step, records in found[0].events]
        events = [event for event in shown if event[1]]
        back = [place for place, (one, other) in enumerate(pairwise(events), 1) if other[0] <= one[0]]
        return [event for event in events[back[0] if back else 0 :] if event[0] > 2]

    assert logged("back", [FIRST, ABANDONED, SECOND]) == logged("straight", [FIRST, SECOND])


def test_a_resumed_run_that_goes_back_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It has the values of the step behind which it goes on, and says of no metric that its signals did not come."""
    config = profile({}, {"drift": METRICS["drift"]}, signals={"control": {"beta": "step"}})
    state: list[Any] = []

    def steps(log: Recorder, numbers: Sequence[int]) -> None:
        for number in numbers:
            with log.step(number):
                log.observe(beta=float(number**2))
        state.append(log.state_dict())

    def back(log: Recorder) -> None:
        log.rewind(2)
        steps(log, [3, 4])

    run(config, lambda log: steps(log, range(6)), tmp_path)
    resumed = run(config, back, tmp_path, resume=state[0])
    assert {step: values["drift"] for step, values in resumed.scalars.items()} == {3: 9.0 - 4.0, 4: 16.0 - 9.0}
    assert "inactive" not in caplog.text


def test_a_step_that_a_flush_cuts_is_not_before_itself(tmp_path: Path) -> None:
    """What is logged of its second half has the value of the step before, as the first half has."""
    config = profile({}, {"drift": METRICS["drift"]}, signals={"control": {"beta": "step"}}, every="trainer")

    def steps(log: Recorder) -> None:
        for step, halves in enumerate([(1.0, 2.0), (4.0, 8.0), (16.0, 32.0)]):
            with log.step(step):
                for beta in halves:
                    log.observe(beta=beta)
                    log.flush()

    found = run(config, steps, tmp_path)
    shown = [item.value for _, records in found.events for item in records.scalars]
    assert shown == [1.0 - 0.0, 2.0 - 0.0, 4.0 - 2.0, 8.0 - 2.0, 16.0 - 8.0, 32.0 - 8.0]


def test_a_step_that_is_tried_again_counts_in_averages(tmp_path: Path) -> None:
    """Its window ends at the step at which the one that failed did, and is no late one; `rolling` has the last try."""
    metrics = {
        "smooth": {"expr": "x", "combine": "ema(0.5)"}, "rolling": {"expr": "x", "combine": "rolling(2)"},
        "last": {"expr": "x", "reduce": "last", "over": "run"},
    }  # fmt: skip

    def steps(log: Recorder) -> None:
        for value in (1.0, 3.0):
            with pytest.raises(RuntimeError), log.step(7):
                log.observe(row=[0], x=[value])
                raise RuntimeError("out of memory")
            log.rewind(6)
        with log.step(7):
            log.observe(row=[0], x=[6.0])

    found = run(profile(ROW, metrics, signals={"rollout": {"x": "completion"}}), steps, tmp_path)
    assert [{item.name: item.value for item in records.scalars} for _, records in found.events if records.scalars] == [
        {"smooth": 1.0, "rolling": 1.0, "last": 1.0},
        {"smooth": 2.0, "rolling": 3.0, "last": 3.0},
        {"smooth": 4.0, "rolling": 6.0, "last": 6.0},
    ]
