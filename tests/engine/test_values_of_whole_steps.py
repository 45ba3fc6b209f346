"""Rows of a rollout read together with an update that has values per step only.

The class: a metric, condition, filter, label or column over two phases, the later of which has no rows of its own in
the step. Its only batch stands for all rows of the step; of several batches declog says that it cannot know.
"""

from __future__ import annotations

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
