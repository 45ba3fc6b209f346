"""A metric or a table with an `every` of its own where the trainer says when it logs, as TRL does.

The class: a window that is longer than the trainer's ends with the first log event at or after each multiple of its
steps, on any number of ranks, in a run that is resumed inside of it, asked late, or taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import declog
from declog.engine.joins import Carryover
from declog.late import ask
from declog.records import Records
from declog.testing import FakeComm, MemorySink, run_ranks
from tests.running import Tracker, profile

CONFIG = profile(
    {"x": "completion"},
    {
        "each": "mean(x)",
        "slow": {"expr": "x", "every": 5},
        "most": {"expr": "x", "reduce": "max", "every": 7},
        "low": {"expr": "x", "where": "x < 0.5", "every": 5},
    },
    every="trainer",
    schemas={"s": {"x": {"type": "float"}}},
    tables={"worst": {"schema": "s", "filter": {"key": "x", "bottom": 2}, "every": 5}},
)
ROWS = np.random.default_rng(5).random((23, 4))
STEPS = len(ROWS)


def windows(ends: Sequence[int], every: int) -> list[tuple[int, int]]:
    """The steps of each window, by the steps behind which the trainer logs; what is left ends with the run."""
    bounds = [0]
    for end in ends:
        if end // every > bounds[-1] // every:
            bounds.append(end)
    bounds += [STEPS] * (bounds[-1] < STEPS)
    return list(pairwise(bounds))


def logged(folder: Path, ends: Sequence[int], *, ranks: int = 1, cut: int | None = None) -> MemorySink:
    """What is logged where the trainer logs behind these steps; ``cut``: resumed after so many steps."""
    sink = MemorySink()

    def rank(comm: FakeComm, numbers: range, states: Sequence[Any]) -> Any:
        sinks = [] if comm.rank else [sink]
        with declog.start(CONFIG, sinks=sinks, comm=comm, output_dir=folder, resume=states[comm.rank]) as log:
            for number in numbers:
                with log.step(number):
                    log.observe(x=ROWS[number][comm.rank :: ranks])
                if number + 1 in ends:
                    log.flush()
            return log.state_dict() if numbers.stop == cut else None

    states: list[Any] = [None] * ranks
    for numbers in (range(cut), range(cut, STEPS)) if cut else (range(STEPS),):
        states = run_ranks(ranks, partial(rank, numbers=numbers, states=states))
    return sink


def values(events: Sequence[tuple[int, Records]], name: str) -> dict[int, float]:
    """What was logged under a name, by the number of steps that had ended."""
    return {step + 1: item.value for step, each in events for item in each.scalars if item.name == name}


@pytest.mark.parametrize("ends", [range(1, STEPS + 1), range(2, STEPS, 2), [3, 4, 9, 16, 17, 22], [12]], ids=str)
@pytest.mark.parametrize("ways", [{}, {"ranks": 2}, {"cut": 7}, {"ranks": 2, "cut": 10}], ids=str)
def test_it_ends_behind_each_multiple_of_its_steps(ends: Sequence[int], ways: dict[str, int], tmp_path: Path) -> None:
    """Values are numpy's over the steps of the window, and a table picks of all of its rows."""
    sink = logged(tmp_path, ends, **ways)
    of_five = {end: ROWS[begin:end] for begin, end in windows(ends, 5)}
    of_seven = {end: ROWS[begin:end] for begin, end in windows(ends, 7)}
    if "cut" in ways and ways["cut"] not in ends:  # the trainer's own window goes on, too
        assert ways["cut"] not in values(sink.events, "each")
    assert values(sink.events, "slow") == pytest.approx({end: rows.mean() for end, rows in of_five.items()})
    assert values(sink.events, "most") == pytest.approx({end: rows.max() for end, rows in of_seven.items()})
    assert values(sink.events, "low") == pytest.approx({end: rows[rows < 0.5].mean() for end, rows in of_five.items()})
    tables = {step + 1: sorted(table.data["x"]) for step, each in sink.events for table in each.tables}
    assert tables == {end: pytest.approx(sorted(rows.flatten())[:2]) for end, rows in of_five.items()}


def test_one_that_fails_is_lost_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The window behind a log event that could not be finished has all of its steps, and ends where it would have."""
    apply = Carryover.apply
    calls: list[int] = []

    def failing(carry: Carryover, frames: Any) -> Any:
        calls.append(len(calls))
        if len(calls) == 5:
            raise ValueError("the fifth log event")
        return apply(carry, frames)

    monkeypatch.setattr(Carryover, "apply", failing)
    sink = MemorySink()
    with declog.start(CONFIG | {"run": {}}, sinks=[sink], output_dir=tmp_path) as log:
        for number in range(12):
            with log.step(number):
                log.observe(x=ROWS[number])
            log.flush()
    assert values(sink.events, "slow") == pytest.approx({10: ROWS[5:10].mean(), 12: ROWS[10:12].mean()})
    assert sum(log.failures.values()) == 1


def test_it_is_asked_late(tmp_path: Path) -> None:
    """Of the rows that the run kept: at the same steps, with the same values."""
    sink = logged(tmp_path, range(2, STEPS, 2))
    asked = ask(tmp_path, {"later": "{expr: x, every: 5}"})
    assert values(asked.events, "later") == pytest.approx(values(sink.events, "slow"))


def test_a_run_that_is_taken_back(tmp_path: Path) -> None:
    """What was open ends there; steps that are made again count anew, as they do for windows of any loop."""
    sink = Tracker()
    with declog.start(CONFIG, sinks=[sink], output_dir=tmp_path) as log:
        for number in range(13):
            with log.step(number):
                log.observe(x=ROWS[number])
            log.flush()
        log.rewind(3)
        for number in range(4, 12):
            with log.step(number):
                log.observe(x=ROWS[number])
            log.flush()
    slow = [(step + 1, item.value) for step, each in sink.events for item in each.scalars if item.name == "slow"]
    spans = ((0, 5), (5, 10), (10, 13), (4, 9), (9, 12))
    assert [step for step, _ in slow] == [end for _, end in spans]
    assert [mean for _, mean in slow] == pytest.approx([ROWS[begin:end].mean() for begin, end in spans])
