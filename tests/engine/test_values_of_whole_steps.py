"""Rows of a rollout read together with an update that has values per step only.

The class: a metric, condition, filter, label or column over two phases, the later of which has no rows of its own in
the step. Its only batch stands for all rows of the step; of several batches declog says that it cannot know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import declog
from declog.testing import FakeComm, MemorySink, run_ranks
from tests.running import profile

REWARDS = np.random.default_rng(1).random((3, 8))
LOSSES = [0.5, 0.25, 2.0]
METRICS = {
    "product": "reward * loss",
    "held_loss": {"expr": "reward", "where": "loss > 0.3"},
    "by_topic": {"expr": "reward - loss", "by": "topic"},
    "of_groups": {"expr": "max(reward, over=completion) - loss", "reduce": "max"},
}
SIGNALS = {
    "rollout": {"reward": "completion", "topic": "completion text"},
    "update": {"loss": "step", "advantage": "completion"},
}
TOPICS = ["a", "b"] * 4


def config(ids: bool, **extra: Any) -> dict[str, Any]:
    axes = {"group": {"size": 4}} | ({"completion": {"ids": "row"}} if ids else {})
    return profile({"row": "completion int"}, METRICS, signals=SIGNALS, axes=axes, **extra)


@pytest.mark.parametrize("ids", [False, True], ids=["positions", "ids"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("first", ["rollout", "update"])
def test_the_only_batch_of_a_step_stands_for_all_its_rows(ids: bool, ranks: int, first: str, tmp_path: Path) -> None:
    """In two generations of a step, whichever phase is observed first."""
    sink = MemorySink()

    def rank(comm: FakeComm) -> dict[str, int]:
        sinks = [] if comm.rank else [sink]
        with declog.start(config(ids), sinks=sinks, comm=comm, output_dir=tmp_path) as log:
            for step, (rewards, loss) in enumerate(zip(REWARDS, LOSSES, strict=True)):
                with log.step(step):
                    if first == "update":
                        log.observe(loss=loss + comm.rank)
                    for rows in (range(4), range(4, 8)):
                        named = {"row": list(rows)} if ids else {}
                        log.observe(reward=rewards[rows] + comm.rank, topic=[TOPICS[row] for row in rows], **named)
                    if first == "rollout":
                        log.observe(loss=loss + comm.rank)
            return dict(log.failures)

    assert run_ranks(ranks, partial(rank)) == [{}] * ranks
    for step, (rewards, loss) in enumerate(zip(REWARDS, LOSSES, strict=True)):
        reward, losses = (np.add.outer(np.arange(ranks), one) for one in (rewards, np.full(8, loss)))
        assert sink.scalars[step] == pytest.approx(
            {
                "product": (reward * losses).mean(), "of_groups": (reward - losses).max(),
                "by_topic/a": (reward - losses)[:, ::2].mean(), "by_topic/b": (reward - losses)[:, 1::2].mean(),
            }
            | ({"held_loss": reward[losses > 0.3].mean()} if (losses > 0.3).any() else {})
        )  # fmt: skip


def test_a_table_of_both_phases_has_the_rows_of_the_step(tmp_path: Path) -> None:
    """Its filter and its columns read both, a text among them."""
    sink = MemorySink()
    table = {"columns": ["topic", "reward", "loss"], "filter": {"where": "reward * loss > 0.2"}}
    with declog.start(config(True, tables={"both": table}), sinks=[sink], output_dir=tmp_path) as log:
        for step, (rewards, loss) in enumerate(zip(REWARDS, LOSSES, strict=True)):
            with log.step(step):
                log.observe(reward=rewards, topic=TOPICS, row=range(8))
                log.observe(loss=loss)
    rows = [
        (topic, reward, loss)
        for rewards, loss in zip(REWARDS, LOSSES, strict=True)
        for topic, reward in zip(TOPICS, rewards, strict=True) if reward * loss > 0.2
    ]  # fmt: skip
    assert (log.failures, [row for _, one in sink.tables("both") for row in zip(*one.data.values(), strict=True)]) == (
        {},
        rows,
    )


def test_a_later_update_reads_the_rows_of_the_latest_generation(tmp_path: Path) -> None:
    """Of two steps that train on one generation, as updates with rows do."""
    sink = MemorySink()
    with declog.start(config(False), sinks=[sink], output_dir=tmp_path) as log:
        for step, loss in enumerate(LOSSES):
            with log.step(step):
                if step != 1:
                    log.observe(reward=REWARDS[step], topic=TOPICS)
                log.observe(loss=loss)
    means = [(REWARDS[of] * loss).mean() for of, loss in zip([0, 0, 2], LOSSES, strict=True)]
    assert [values["product"] for values in sink.scalars.values()] == pytest.approx(means)


@pytest.mark.parametrize("ids", [False, True], ids=["positions", "ids"])
def test_several_batches_of_a_step_are_told_to_name_their_rows(ids: bool, tmp_path: Path) -> None:
    """A micro-batch without rows could be for any of them; the answer, followed, gives the numbers."""
    sink = MemorySink()
    with declog.start(config(ids) | {"run": {}}, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(reward=REWARDS[0], topic=TOPICS, **({"row": range(8)} if ids else {}))
        for loss in LOSSES[:2]:
            log.observe(loss=loss)
    (text,) = log.failures
    assert "several batches of `update` in one step have values per step only" in text
    assert ("axes: {completion: {ids: row_id}}" in text) is not ids
    assert sink.scalars == {}
    with declog.start(config(True), sinks=[sink], output_dir=tmp_path / "mended") as log, log.step(0):
        log.observe(reward=REWARDS[0], topic=TOPICS, row=range(8))
        for loss, rows in zip(LOSSES[:2], np.arange(8).reshape(2, 4), strict=True):
            log.observe(loss=loss, row=rows)
    assert sink.scalars[0]["product"] == pytest.approx((REWARDS[0] * np.repeat(LOSSES[:2], 4)).mean())


def test_nothing_is_said_of_batches_whose_rows_nobody_reads(tmp_path: Path) -> None:
    """The metric over both phases reads a value of the rows of an update that never comes: it is inactive."""
    sink = MemorySink()
    metrics = {"loss": "loss", "gain": "reward * advantage", "none": {"expr": "advantage", "reduce": "count"}}
    data = profile({}, metrics, signals=SIGNALS)
    with declog.start(data, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(reward=REWARDS[0])
        for loss in LOSSES:
            log.observe(loss=loss)
    assert dict(log.failures) == {}
    assert sink.scalars == {0: {"loss": pytest.approx(np.mean(LOSSES))}}
    assert set(log.missing) == {"gain", "none"}


def test_rows_that_an_update_has_not_are_not_those_of_the_step(tmp_path: Path) -> None:
    """An update of which no row was left has none, whatever its loss is."""
    sink = MemorySink()
    data = profile({}, {"gain": "reward * loss", "n": {"expr": "advantage", "reduce": "count"}}, signals=SIGNALS)
    with declog.start(data, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(reward=REWARDS[0])
        log.observe(loss=0.5, advantage=[])
    assert (dict(log.failures), sink.scalars) == ({}, {})


SUMS = {
    "product": {"expr": "reward * loss", "reduce": "sum"},
    "groups": {"expr": "max(reward * loss, over=completion)", "reduce": "sum"},
    "beside": {"expr": "reward * advantage", "reduce": "sum"},
}
OF_STEP: dict[str, Any] = {"loss": 2.0}
WITH_ROWS: dict[str, Any] = {"loss": 3.0, "advantage": [1.0] * 4}


def sums(
    calls: Sequence[Mapping[int, Sequence[Mapping[str, Any]]]], folder: Path, every: int, **metrics: Any
) -> tuple[Counter[str], set[str]]:
    """The sums over all steps, and what was told: ``calls`` has those of each step by rank."""
    sink, ranks = MemorySink(), len(calls[0])
    data = profile({}, SUMS | metrics, signals=CHAIN, axes={"group": {"size": 2}}, every=every) | {"run": {}}

    def rank(comm: FakeComm) -> set[str]:
        sinks = [] if comm.rank else [sink]
        with declog.start(data, sinks=sinks, comm=comm, output_dir=folder / str(every)) as log:
            for number, of_ranks in enumerate(calls):
                with log.step(number):
                    for call in of_ranks[comm.rank]:
                        log.observe(**call)
        return {*log.failures}

    told = set[str]().union(*run_ranks(ranks, rank))
    values = Counter[str]()
    for scalars in sink.scalars.values():
        values.update(scalars)
    return values, told


CHAIN = {
    "rollout": {"reward": "completion"},
    "score": {"quality": "completion", "weight": "step"},
    "update": {"loss": "step", "rate": "step", "advantage": "completion"},
}
REWARD: dict[str, Any] = {"reward": [1.0, 2.0, 3.0, 4.0]}
HALVES = [{"reward": [1.0, 2.0]}, {"reward": [3.0, 4.0]}]


@pytest.mark.parametrize("every", [1, 2, 4])
@pytest.mark.parametrize("whole", [[REWARD], HALVES], ids=["batch", "micro-batches"])
def test_each_batch_of_a_window_is_judged_by_itself(every: int, whole: list[Any], tmp_path: Path) -> None:
    """Class: steps and ranks that differ in what they observe. Each has the values that it has alone.

    Rows of the update in some steps or on some ranks; a step without a rollout before it; an update with empty rows.
    """
    calls = [
        {0: [OF_STEP], 1: [REWARD, WITH_ROWS]},  # on rank 0 no rollout came yet
        {0: [*whole, OF_STEP], 1: [REWARD, WITH_ROWS]},
        {0: [REWARD, WITH_ROWS], 1: [OF_STEP, *whole]},
        {0: [*whole, OF_STEP], 1: [REWARD, {"loss": 3.0, "advantage": []}]},
    ]
    values, told = sums(calls, tmp_path, every)
    assert not [text for text in told if "on rank" not in text]  # while only rank 1 had a rollout
    assert values == {"product": 3 * 20.0 + 3 * 30.0, "groups": 3 * 12.0 + 3 * 18.0, "beside": 30.0}


@pytest.mark.parametrize("every", [1, 3])
def test_a_step_that_is_not_clear_costs_its_own_rows(every: int, tmp_path: Path) -> None:
    """Class: one step of a window, or one rank, cannot be matched. It is told of, and all else keeps its values."""
    twice = {0: [REWARD, OF_STEP, OF_STEP], 1: [REWARD, OF_STEP]}
    once = {0: [REWARD, OF_STEP], 1: [REWARD, OF_STEP]}
    values, (told,) = sums([once, twice, once], tmp_path / "step", every)
    assert (values["product"], "several batches of `update`" in told) == (5 * 20.0, True)
    values, (told,) = sums([{0: [REWARD, OF_STEP], 1: [OF_STEP]}] * 3, tmp_path / "rank", every)
    assert (values["product"], "came on rank 1, and those of `rollout` on rank 0" in told) == (3 * 20.0, True)


@pytest.mark.parametrize("every", [1, 3])
def test_values_of_several_calls_of_a_step_stand_together(every: int, tmp_path: Path) -> None:
    """Class: each value of the step comes once, in calls of its own."""
    calls = [{0: [REWARD, {"loss": 2.0}, {"rate": 3.0}]}] * 3
    data = {"both": {"expr": "reward * loss * rate", "reduce": "sum"}}
    assert sums(calls, tmp_path, every, **data) == ({"product": 60.0, "groups": 36.0, "both": 180.0}, set())


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("whole", [[REWARD], HALVES], ids=["batch", "micro-batches"])
@pytest.mark.parametrize("metrics", ["weighted inactive", "weighted inactive all", "all inactive", "all"])
def test_a_chain_of_phases_with_values_per_step(every: int, whole: list[Any], metrics: str, tmp_path: Path) -> None:
    """Class: two phases in a row have values per step only, and both stand for the rows of the rollout."""
    chain = {
        "weighted": {"expr": "reward * weight", "reduce": "sum"},
        "inactive": {"expr": "quality * loss", "reduce": "mean"},
        "all": {"expr": "reward * weight * loss", "reduce": "sum"},
    }
    calls = [{0: [*whole, {"weight": 5.0}, OF_STEP]}, {0: [OF_STEP]}, {0: [*whole, {"weight": 5.0}, OF_STEP]}]
    values, told = sums(calls, tmp_path, every, **{name: chain[name] for name in metrics.split()})
    right = {"product": 60.0, "groups": 36.0, "weighted": 100.0, "all": 300.0}
    assert (values, told) == ({name: right[name] for name in right if name in {*SUMS, *metrics.split()}}, set())


@pytest.mark.parametrize("ids", [False, True], ids=["positions", "ids"])
def test_two_sources_with_other_rows_are_told_and_mended(ids: bool, tmp_path: Path) -> None:
    """Class: a value of the step is read with rows of two phases that are not the same rows.

    The further metric keeps its values, the other one is told of, and the edit of the answer gives its value.
    """
    metrics = {
        "rewards": {"expr": "reward * loss", "reduce": "sum"},
        "qualities": {"expr": "quality * loss", "reduce": "sum"},
    }

    def run(metrics: dict[str, Any], chain: dict[str, Any], **more: float) -> tuple[dict[str, float], list[str]]:
        sink, extra = MemorySink(), {"axes": {"completion": {"ids": "row"}}} if ids else {}
        data = profile({"row": "completion int"}, metrics, signals=chain, **extra) | {"run": {}}
        with declog.start(data, sinks=[sink], output_dir=tmp_path / str(len(more))) as log, log.step(0):
            log.observe(**REWARD, **({"row": range(4)} if ids else {}), **more)
            log.observe(quality=[3.0, 4.0], **({"row": range(2)} if ids else {}))
            log.observe(**OF_STEP)
        return sink.scalars[0], [*log.failures]

    values, (told,) = run(metrics, CHAIN)
    assert values == {"qualities": 14.0}
    assert "signals: {rollout: {loss_of_rollout: step}}; log.observe(..., loss_of_rollout=...)" in told
    metrics["rewards"]["expr"] = "reward * loss_of_rollout"
    mended = CHAIN | {"rollout": CHAIN["rollout"] | {"loss_of_rollout": "step"}}
    assert run(metrics, mended, loss_of_rollout=2.0) == ({"rewards": 20.0, "qualities": 14.0}, [])
