"""Rows of an update that are matched with those of their rollout, in steps with ids and in steps without.

The class: each micro-batch is matched by what came with it, whatever the other steps of its window have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import declog
from declog.language import functions
from declog.testing import FakeComm, MemorySink, run_ranks
from tests.running import profile

Ids = Sequence[Any] | None
STEPS: tuple[Ids, ...] = ([4, 7, 5, 6], None, [1, 2, 3, 0])
REWARDS = np.array([[0.0, 1.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]])
VALUES = np.random.default_rng(3).random(REWARDS.shape)


def config(type: str, every: int) -> dict[str, Any]:
    """A metric of the update, of rows that the rollout says."""
    return profile(
        {"row": f"completion {type}"},
        {"x": {"expr": "value", "where": "reward == 0"}},
        signals={"rollout": {"reward": "completion"}, "update": {"value": "completion"}},
        axes={"completion": {"ids": "row"}},
        every=every,
    )


@pytest.mark.parametrize(("type", "every", "ranks"), list(product(["int", "text"], [1, 3], [1, 2])), ids=str)
def test_each_step_is_matched_by_what_came_with_it(type: str, every: int, ranks: int, tmp_path: Path) -> None:
    """By ids in any order where these came, else by position."""
    sink = MemorySink()

    def rank(comm: FakeComm) -> dict[str, int]:
        with declog.start(
            config(type, every), sinks=[] if comm.rank else [sink], comm=comm, output_dir=tmp_path
        ) as log:
            for number, ids in enumerate(STEPS):
                with log.step(number):
                    named = None if ids is None else [str(id) if type == "text" else id for id in ids]
                    log.observe(reward=REWARDS[number], **({} if named is None else {"row": named}))
                    if named is None:
                        log.observe(value=VALUES[number])
                        continue
                    for rows in ([3, 0], [2, 1]):
                        log.observe(value=VALUES[number][rows], row=[named[row] for row in rows])
            return dict(log.failures)

    assert run_ranks(ranks, partial(rank)) == [{}] * ranks
    of_steps = [VALUES[step][REWARDS[step] == 0] for step in range(len(STEPS))]
    windows = [np.concatenate(of_steps)] if every == 3 else of_steps
    assert [values["x"] for values in sink.scalars.values()] == pytest.approx([rows.mean() for rows in windows])


def test_a_batch_without_rows_is_matched_with_any(tmp_path: Path) -> None:
    """Of a rank whose part of an update is empty, behind several batches of its rollout, which may be empty, too."""
    sink = MemorySink()
    with declog.start(config("int", 1), sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(reward=[], row=[])
        log.observe(reward=[0.0, 0.0], row=[5, 6])
        log.observe(value=[], row=[])
        log.observe(value=[3.0], row=[6])
    assert (log.failures, sink.scalars) == ({}, {0: {"x": 3.0}})


@pytest.mark.parametrize(("type", "every", "ranks"), list(product(["int", "text"], [1, 3], [1, 2])), ids=str)
def test_rows_that_come_before_their_rollout(
    type: str, every: int, ranks: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Class: turns are observed as they happen, and the reward at the end of their step, by ids of one step alone."""
    sink = MemorySink()

    def rank(comm: FakeComm) -> dict[str, int]:
        with declog.start(
            config(type, every), sinks=[] if comm.rank else [sink], comm=comm, output_dir=tmp_path
        ) as log:
            for number in range(3):
                ids = [f"{number}-{row}" if type == "text" else 4 * number + row for row in range(4)]
                with log.step(number):
                    log.observe(value=VALUES[number][[3, 0]], row=[ids[3], ids[0]])
                    log.observe(reward=REWARDS[number][:2], row=ids[:2])
                    log.observe(value=VALUES[number][[2, 1]], row=[ids[2], ids[1]])
                    log.observe(reward=REWARDS[number][2:], row=ids[2:])
            return dict(log.failures)

    assert run_ranks(ranks, partial(rank)) == [{}] * ranks
    of_steps = [VALUES[step][REWARDS[step] == 0] for step in range(3)]
    windows = [np.concatenate(of_steps)] if every == 3 else of_steps
    assert [values["x"] for values in sink.scalars.values()] == pytest.approx([rows.mean() for rows in windows])
    assert "came before" not in caplog.text


def test_rows_before_a_rollout_whose_ids_come_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Ids of each step mean the step before, and a batch of which only some are there is never of two steps."""
    sink = MemorySink()
    with declog.start(config("int", 1) | {"run": {}}, sinks=[sink], output_dir=tmp_path) as log:
        for number, count in enumerate([2, 2, 3]):
            with log.step(number):
                if number:
                    log.observe(value=[10.0 * number + row for row in range(count)], row=range(count))
                log.observe(reward=[number % 2, (number + 1) % 2, 0.0][:count], row=range(count))
    assert [values.get("x") for values in sink.scalars.values()] == [10.0]
    assert "1 rows of phase `update` have ids `row` that the latest step of `rollout` does not have" in caplog.text
    assert "observe `rollout` first, or give ids that no two steps share" in caplog.text


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("resumed", [False, True], ids=["one-run", "resumed"])
def test_rows_that_come_first_from_the_first_step_on(
    every: int, resumed: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Class: ids that come again in each step, and an update before any rollout: all steps read their own rows.

    Before the first rollout there is no earlier step that could be meant; no run reads its own step once and then the
    step before. A checkpoint knows it, too. A rank whose rollout comes first keeps its own order.
    """
    sink, ranks = MemorySink(), 2
    states: dict[int, Any] = {}

    def rank(comm: FakeComm, steps: range) -> dict[str, int]:
        folder, sinks = tmp_path / str(steps.start), [] if comm.rank else [sink]
        resume = states.get(comm.rank)
        with declog.start(config("int", every), sinks=sinks, comm=comm, output_dir=folder, resume=resume) as log:
            for number in steps:
                with log.step(number):
                    for phase in ("update", "rollout") if comm.rank else ("rollout", "update"):
                        if phase == "update":
                            log.observe(value=[10.0 * number, 10.0 * number + 1], row=[0, 1])
                        else:
                            log.observe(reward=[number % 2, (number + 1) % 2], row=[0, 1])
            states[comm.rank] = log.state_dict()
        return dict(log.failures)

    for steps in (range(3), range(3, 6)) if resumed else (range(6),):
        assert run_ranks(ranks, partial(rank, steps=steps)) == [{}] * ranks
    right = np.array([10.0 * number + number % 2 for number in range(6)])
    means = right if every == 1 else right.reshape(2, 3).mean(1)
    assert [values["x"] for values in sink.scalars.values()] == pytest.approx(means)
    assert "came before" not in caplog.text


def test_ids_of_one_phase_alone_are_told(tmp_path: Path) -> None:
    """The step in which only one of both phases has ids costs the metric of its window, and is named."""
    sink = MemorySink()
    data = config("int", 1) | {"run": {}}
    with declog.start(data, sinks=[sink], output_dir=tmp_path) as log:
        for number in range(2):
            with log.step(number):
                log.observe(reward=REWARDS[number], row=[0, 1, 2, 3])
                log.observe(value=VALUES[number], **({"row": [3, 2, 1, 0]} if number else {}))
    assert [text.splitlines()[0] for text in log.failures] == [
        "[DL511] the ids `row` were not observed in phase `update`"
    ]
    assert [values.get("x") for values in sink.scalars.values()] == [pytest.approx(VALUES[1][::-1][[1, 2, 3]].mean())]


OBJECTS = {"dict": ({"p": 1, "k": 0}, {"k": 1, "p": 1}), "list": (["p", [0]], ["p", 1]), "mixed": (("p", 0), "p")}


@pytest.mark.parametrize("ids", OBJECTS.values(), ids=OBJECTS)
def test_ids_of_any_json_are_compared_as_groups_compare_theirs(ids: tuple[Any, Any], tmp_path: Path) -> None:
    sink = MemorySink()
    with declog.start(config("object", 1), sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(row=[*ids], reward=[0.0, 1.0])
        log.observe(row=[dict(reversed(id.items())) if isinstance(id, dict) else id for id in ids[::-1]], value=[5, 3])
    assert (sink.scalars, dict(log.failures)) == ({0: {"x": 3.0}}, {})


@pytest.fixture
def grumbling() -> Iterator[None]:
    """A function that fails for some real rows, for as long."""

    @declog.function
    def grumbles(x: Any) -> Any:
        if x.device.type != "meta" and bool((x == 0.5).any()):
            raise ValueError("half")
        return x * 1.0

    yield
    functions.DEFAULT.discard("grumbles")


@pytest.mark.usefixtures("grumbling")
def test_what_a_join_raises_costs_only_its_readers(tmp_path: Path) -> None:
    """A user's function may raise anything, of rows of an earlier phase or of the step before."""
    metrics = {"plain": "mean(value)", "of_row": {"expr": "value", "where": "grumbles(reward) > 0"},
               "of_step": "speed - prev(grumbles(speed), 0)"}  # fmt: skip
    phases = {"rollout": {"reward": "completion"}, "update": {"value": "completion", "speed": "step"}}
    config, sink = profile({}, metrics, signals=phases, run={"strict": False}), MemorySink()
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log:
        for number, half in enumerate((1.0, 0.5)):
            with log.step(number):
                log.observe(reward=[half])
                log.observe(value=[2.0], speed=half)
    assert sink.scalars == {0: {"plain": 2.0, "of_row": 2.0, "of_step": 1.0}, 1: {"plain": 2.0}}
    assert len(log.failures) == 2
