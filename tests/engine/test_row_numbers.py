"""Row ids that each micro-batch counts anew stand for the rollout's first rows only: values of wrong rows, told once.

The class: micro-batches of equal and of other lengths, several epochs, ranks, windows; metrics that look rows up in the
earlier phase, and lengths that an earlier phase reads of the later one. Never told: indices, also of some rows, epochs
over the same rows, batches that take turns, and a rollout that one batch covers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import declog
from declog.testing import MemorySink, run_ranks

Call = tuple[Sequence[int], Sequence[int]]  # the ids that a micro-batch gives, and the rows that it has
ADVANTAGES = np.array([0.5, -1.0, 2.0, 0.25, -0.75, 1.5, -2.0, 3.0])
TOLD = "`row_id` of phase `update` counts from 0 in each of the {count} batches of step 0"


def anew(*rows: Sequence[int]) -> list[Call]:
    """Micro-batches of which each counts its rows."""
    return [(range(len(some)), some) for some in rows]


WRONG: Mapping[str, list[Call]] = {
    "two": anew(range(4), range(4, 8)), "four": anew(*(range(row, row + 2) for row in range(0, 8, 2))),
    "the last is shorter": anew(range(3), range(3, 6), range(6, 8)), "shuffled": anew([7, 2, 0, 5], [1, 6, 3, 4]),
    "two epochs": anew(range(4), range(4, 8), range(4), range(4, 8)),
}  # fmt: skip
RIGHT: Mapping[str, list[Call]] = {
    "indices": [(some, some) for some in (range(4), range(4, 8))],
    "epochs over all rows": [(range(8), range(8))] * 2,
    "epochs over the first half": anew(range(4), range(4)),
    "epochs over the first half in micro-batches": [(some, some) for some in [range(2), range(2, 4)] * 2],
    "epochs over the first quarter": anew(*[range(2)] * 4),
    "some rows": anew(range(4)), "the last rows": [(range(4, 8), range(4, 8))],
}  # fmt: skip


def told(text: str) -> int:
    return text.count("counts from 0 in each")


def start(folder: Path, *overrides: str, **options: Any) -> declog.Recorder:
    config = ["axes.group.size=4", "metrics.low={expr: advantages, where: reward == 0}", *overrides]
    return declog.start("grpo", config, sinks=[MemorySink()], output_dir=folder, **options)


def observe(log: declog.Recorder, calls: Sequence[Call]) -> None:
    log.observe(reward=np.arange(8) % 2, row_id=range(8))
    for ids, rows in calls:
        log.observe(advantages=ADVANTAGES[list(rows)], row_id=ids)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("name", WRONG)
def test_ids_that_are_counted_anew_are_told_once(
    name: str, every: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with start(tmp_path, f"every={every}") as log:
        for step in range(4):
            with log.step(step):
                observe(log, WRONG[name])
    assert told(caplog.text) == 1 and TOLD.format(count=len(WRONG[name])) in caplog.text
    most = max(len(ids) for ids, _ in WRONG[name])
    assert f"`for rows in torch.arange(8).split({most}): log.observe(..., row_id=rows)`" in caplog.text


@pytest.mark.parametrize("name", RIGHT)
def test_epochs_and_updates_of_some_rows_are_not(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with start(tmp_path) as log:
        for step in range(3):
            with log.step(step):
                observe(log, RIGHT[name])
    assert not told(caplog.text)


def test_batches_that_take_turns_are_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each generation's rows are numbered from 0, and its update looks them up in it."""
    with start(tmp_path) as log, log.step(0):
        for rows in (slice(4), slice(4, 8)):
            log.observe(reward=[0, 1, 0, 1], row_id=range(4))
            log.observe(advantages=ADVANTAGES[rows], row_id=range(4))
    assert not told(caplog.text)


@pytest.mark.parametrize("name", ["two", "the last is shorter"])
def test_lengths_of_the_mask(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No metric looks rows up: the rollout reads lengths of the update, and counts all its completions."""
    sink = MemorySink()
    with declog.start("grpo", ["axes.group.size=4"], sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(reward=range(8), row_id=range(8))
        for ids, rows in WRONG[name]:
            log.observe(completion_mask=[[True] * (1 + row) for row in rows], row_id=ids)
    assert told(caplog.text) == 1
    assert sink.scalars[0]["completions/count"] == 8


def test_an_update_of_some_rows_leaves_the_number_of_completions(tmp_path: Path) -> None:
    sink = MemorySink()
    with declog.start("grpo", ["axes.group.size=4"], sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(reward=range(8), row_id=range(8))
        log.observe(completion_mask=[[True, False]] * 3, row_id=[6, 1, 2])
    assert sink.scalars[0]["completions/count"] == 8
    assert sink.scalars[0]["completions/mean_length"] == 1


def test_on_ranks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    def body(comm: Any) -> None:
        with start(tmp_path, comm=comm) as log, log.step(0):
            observe(log, WRONG["two"])

    run_ranks(2, body)
    assert told(caplog.text) == 1
