"""Runs that go on with more or fewer ranks: every row is logged once, in its window, or the start is refused on all."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.errors import UsageError
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink, run_ranks
from tests.running import profile

PROFILE: dict[str, Any] = {
    "every": 4, "run": {"name": "resized", "strict": True},
    "signals": {"any": {"x": {"axis": "completion"}, "text": {"axis": "completion", "type": "text"}}},
    "metrics": {"x": {"reduce": ["sum", "count", "p50"]}, "total": {"expr": "x", "reduce": "count", "over": "run"},
                "slow": {"expr": "x", "reduce": "sum", "every": 8}},
    "schemas": {"s": {"text": {"type": "text"}}}, "tables": {"own": {"schema": "s"}}, "sinks": ["jsonl"],
}  # fmt: skip
States = dict[int, dict[str, Any]]


def rows(rank: int, step: int) -> dict[str, Any]:
    """What a rank observes in a step."""
    return {"x": [10.0**rank, float(step)], "text": [f"{rank}.{step}", ""]}


def ran(
    ranks: int,
    config: Mapping[str, Any],
    states: Mapping[int, Any],
    folder: Path,
    body: Callable[[Recorder, int], object],
    **options: Any,
) -> tuple[MemorySink, list[list[str]]]:
    """Ranks that begin or go on with a body each: what is logged, and each rank's failures."""
    sink = MemorySink()

    def rank(comm: Comm) -> list[str]:
        sinks = [sink] if comm.rank == 0 else []
        with declog.start(
            config, sinks=sinks, comm=comm, output_dir=folder, resume=states.get(comm.rank), **options
        ) as log:
            body(log, comm.rank)
        return list(log.failures)

    return sink, run_ranks(ranks, rank)


def phase(ranks: int, states: Mapping[int, Any], steps: range, folder: Path, save: int) -> tuple[Any, States]:
    """Some steps on some ranks: what is logged, and the states after step `save`."""
    saved: States = {}

    def body(log: Recorder, rank: int) -> None:
        for step in steps:
            with log.step(step):
                log.observe(**rows(rank, step))
            if step == save:
                saved[rank] = log.state_dict()

    return ran(ranks, PROFILE, states, folder, body, start_s=20.0)[0].scalars, saved


def expected(first: int, then: int, at: int, end: int) -> dict[int, dict[str, float]]:
    """What all rows of both phases make, window by window."""
    found: dict[int, dict[str, float]] = {}
    total = 0
    values: list[float] = []
    slow: list[float] = []
    for step in range(end):
        for rank in range(first if step <= at else then):
            values += rows(rank, step)["x"]
        if step % 4 == 3:
            total += len(values)
            slow += values
            middle = sorted(values)
            half = len(middle) // 2
            found[step] = {
                "x/sum": sum(values), "x/count": len(values), "total": total,
                "x/p50": (middle[half - 1] + middle[half]) / 2,
            }  # fmt: skip
            if step % 8 == 7:
                found[step]["slow"] = sum(slow)
                slow = []
            values = []
    return found


@pytest.mark.parametrize("at", [3, 4, 6, 9])
@pytest.mark.parametrize(("first", "then"), [(1, 2), (2, 4), (2, 3), (4, 2), (3, 1), (2, 2)])
def test_all_rows_are_logged_once_or_the_start_is_refused(first: int, then: int, at: int, tmp_path: Path) -> None:
    """More ranks go on in the middle of a window; fewer only where it holds no rows of those that are no more."""
    _, states = phase(first, {}, range(at + 3), tmp_path, at)
    here = {rank: state for rank, state in states.items() if rank < then}
    if then < first and at % 4 != 3:
        with pytest.raises(UsageError) as error:
            phase(then, here, range(at + 1, 16), tmp_path, -1)
        assert str(error.value) == (
            f"[DL510] the state was saved inside a window of {first} ranks, and there are {then}: rows of the others "
            f"would be lost\n  fix: resume on {first} ranks or more, or from a checkpoint that was saved where a "
            "window ends"
        )
        return
    logged, _ = phase(then, here, range(at + 1, 16), tmp_path, -1)
    assert logged == {step: values for step, values in expected(first, then, at, 16).items() if step > at}
    texts = [
        json.loads(line)["text"]
        for path in tmp_path.glob("jsonl/**/own.jsonl")
        for line in path.read_text().splitlines()
    ]
    made = [f"{rank}.{step}" for step in range(16) for rank in range(first if step <= at else then)]
    assert sorted(text for text in texts if text) == sorted(made)


def refused(states: Mapping[int, Any], ranks: int, folder: Path) -> list[str]:
    """The error of each rank's start."""

    def rank(comm: Comm) -> str:
        with pytest.raises(UsageError) as error:
            declog.start(PROFILE, comm=comm, output_dir=folder, resume=states.get(comm.rank), start_s=20.0)
        return str(error.value).splitlines()[0]

    return run_ranks(ranks, rank)


def test_states_that_do_not_go_together_are_refused_on_every_rank(tmp_path: Path) -> None:
    """Of other checkpoints, of another rank, of some ranks only, or none at all: before anything is opened."""
    _, early = phase(2, {}, range(8), tmp_path, 3)
    _, late = phase(2, early, range(4, 8), tmp_path, 7)
    assert (
        refused({0: early[0], 1: late[1]}, 2, tmp_path)
        == ["[DL510] the states are of different checkpoints: their step is 3 on rank 0, 7 on rank 1"] * 2
    )
    assert (
        refused({0: early[0]}, 2, tmp_path)
        == ["[DL510] the checkpoint is of 2 ranks, and ranks [1] were given no state"] * 2
    )
    assert (
        refused({1: early[1]}, 2, tmp_path)
        == ["[DL510] the checkpoint is of 2 ranks, and ranks [0] were given no state"] * 2
    )
    swapped = refused({0: early[0], 1: early[0]}, 2, tmp_path)
    assert swapped[1] == "[DL510] rank 1 was given the state of rank 0"
    assert swapped[0].startswith("[DL510] rank 1 cannot resume: ")
    broken = refused({0: early[0], 1: {"version": 2}}, 2, tmp_path)
    assert broken[1].startswith("[DL510] this is no state of a recorder")
    assert broken[0].startswith("[DL510] rank 1 cannot resume: ")


EVALUATED = profile({"x": "completion"}, {"x": "mean(x)"}, every=2, modes={"eval": {"prefix": "eval/"}})


def evaluated(
    ranks: int,
    states: Mapping[int, Any],
    steps: range,
    folder: Path,
    evaluates: Mapping[int, set[int]],
    config: Mapping[str, Any] = EVALUATED,
) -> tuple[list[tuple[int, dict[str, float]]], States, list[list[str]]]:
    """Steps of ranks of which some evaluate behind some steps: what is logged, the last states, and failures."""
    saved: States = {}

    def body(log: Recorder, rank: int) -> None:
        for step in steps:
            with log.step(step):
                log.observe(x=[float(step), 10.0 * rank])
            if step in evaluates.get(rank, ()):
                with log.mode("eval"):
                    log.observe(x=[100.0 + rank])
        saved[rank] = log.state_dict()

    sink, failures = ran(ranks, config, states, folder, body, wait_s=2.0)
    return [(step, {item.name: item.value for item in one.scalars}) for step, one in sink.events], saved, failures


@pytest.mark.parametrize("then", [2, 3])
@pytest.mark.parametrize("again", [{0: {5}}, {0: {5}, 1: {5}, 2: {5}}, {}], ids=["rank 0", "all", "none"])
def test_ranks_go_on_that_entered_different_modes(again: Mapping[int, set[int]], then: int, tmp_path: Path) -> None:
    """Rank 0 evaluates alone: the states of one checkpoint count modes that others never entered, and all go on.

    Whoever enters the mode then counts as rank 0 does.
    """
    _, states, failed = evaluated(2, {}, range(4), tmp_path, {0: {1, 3}})
    assert failed == [[], []]
    logged, states, failed = evaluated(then, states, range(4, 8), tmp_path, again)
    together = [
        (step, {"x": sum([step - 0.5] * then + [10.0 * rank for rank in range(then)]) / (2 * then)}) for step in (5, 7)
    ]
    some = {} if len(again) > 1 else {"declog/ranks": 1}
    evaluations = {
        "eval/x": sum(100.0 + rank for rank in range(then if len(again) > 1 else 1)) / max(1, min(len(again), then))
    }
    if again:
        together.insert(1, (5, evaluations | some))
    assert logged == together
    assert failed == [[]] * then
    logged, _, failed = evaluated(then, states, range(8, 10), tmp_path, {rank: {9} for rank in again or (0,)})
    assert ([step for step, _ in logged], failed) == ([9, 9], [[]] * then)


OPEN = {**EVALUATED, "every": 1, "modes": {"eval": {"prefix": "eval/", "every": 2}}}


@pytest.mark.parametrize(
    ("ranks", "before", "after", "rows"),
    [
        (1, {0: {1}}, {}, [100.0]), (2, {0: {1}, 1: {1}}, {}, [100.0, 101.0]), (2, {0: {1}}, {}, [100.0]),
        (2, {0: {1}, 1: {1}}, {0: {5}}, [100.0, 101.0, 100.0]), (2, {0: {1}}, {1: {5}}, [100.0, 101.0]),
        (2, {0: {1}, 1: {1}}, {1: {5}}, [100.0, 101.0, 101.0]), (2, {0: {1}, 1: {1}}, {0: {5}, 1: {5}}, [100.5] * 4),
    ],
)  # fmt: skip
def test_the_open_window_of_a_mode_goes_on(
    ranks: int, before: Any, after: Any, rows: list[float], tmp_path: Path
) -> None:
    """Its rows are logged once at the end, whoever enters the mode again: all ranks end what any had open."""
    _, states, _ = evaluated(ranks, {}, range(4), tmp_path, before, OPEN)
    logged, _, failed = evaluated(ranks, states, range(4, 8), tmp_path, after, OPEN)
    (values,) = [values for _, values in logged if "eval/x" in values]
    assert values["eval/x"] == pytest.approx(sum(rows) / len(rows))
    assert failed == [[]] * ranks


def test_states_around_an_evaluation_of_all_are_of_different_checkpoints(tmp_path: Path) -> None:
    """Between two of them: what both ranks entered is counted alike."""
    both = {0: {1, 3}, 1: {1, 3}}
    _, early, _ = evaluated(2, {}, range(4), tmp_path / "a", {0: {1}, 1: {1}})
    _, late, _ = evaluated(2, {}, range(4), tmp_path / "b", both)
    with pytest.raises(UsageError) as error:
        evaluated(2, {0: early[0], 1: {**late[1], "run_id": ""}}, range(4, 8), tmp_path, both)
    assert str(error.value).splitlines()[0] == (
        "[DL510] the states are of different checkpoints: their number of log events of mode `eval` is 1 on rank 0, "
        "2 on rank 1"
    )


def test_as_many_actors_go_on(tmp_path: Path) -> None:
    """An actor hears of no other: another number of them is refused."""
    with declog.start(PROFILE, role="actor", rank=0, world_size=2) as actor:
        with actor.step(0):
            actor.observe(**rows(0, 0))
        state = actor.state_dict()
    with pytest.raises(UsageError, match="the state is of 2 actors, and there are 3"):
        declog.start(PROFILE, role="actor", rank=0, world_size=3, resume=state)
