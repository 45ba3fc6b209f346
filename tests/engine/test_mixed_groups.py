"""A label of a group is the first of its rows: where these differ, two prompts stand in one group, and it is told once.

The class: labels that are texts, ints and parts of others, in training and in evaluations with another number of
completions per prompt, grouped by size and by ids. Never told: equal labels, missing ones, rows grouped by their ids.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import declog
from declog.testing import MemorySink

SIGNALS = [
    "+signals.rollout.task=completion text",
    "+signals.rollout.level=completion int",
    "+metrics.solved={expr: 'max(reward, over=completion)', by: $BY}",
    "axes.group.size=4",
]
PAIRS = ["math"] * 2 + ["code"] * 2 + ["chat"] * 4
FOURS = ["math"] * 4 + ["code"] * 4


def messages(
    rows: dict[str, Any], folder: Path, caplog: pytest.LogCaptureFixture, by: str = "first(task, over=completion)"
) -> list[str]:
    """What is told of the groups of an evaluation with these rows, behind a step of right ones."""
    words = [word.replace("$BY", by if by[0] == "[" else f"'{by}'") for word in SIGNALS]
    with (
        caplog.at_level(logging.WARNING, logger="declog"),
        declog.start("grpo", words, sinks=[MemorySink()], output_dir=folder) as log,
    ):
        for step in range(3):
            with log.step(step):
                log.observe(reward=np.ones(8), task=FOURS, level=[1] * 4 + [2] * 4)
                with log.mode("eval"):
                    log.observe(reward=np.arange(8) % 2, **rows)
    return [record.getMessage() for record in caplog.records if "rows of different" in record.getMessage()]


@pytest.mark.parametrize(
    ("rows", "by"),
    [
        ({"task": PAIRS}, "first(task, over=completion)"),
        ({"level": [1, 2] * 4}, "first(level, over=completion)"),
        ({"task": PAIRS, "level": [1] * 8}, "['first(task, over=completion)', 'first(level, over=completion)']"),
        ({"task": FOURS[::-1][2:] + FOURS[:2], "level": [1] * 8}, "first(task, over=completion)"),
    ],
)
def test_labels_that_differ_in_a_group(
    rows: dict[str, Any], by: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (message,) = messages(rows, tmp_path, caplog, by)
    assert message.startswith("solved: in mode `eval` the groups of `axes.group.size`, 4 rows on end, have rows of")
    assert message.endswith("observe of which prompt each row is, prompt_id=...")


@pytest.mark.parametrize(
    "rows",
    [
        {"task": FOURS}, {}, {"task": ["math", None, "math", None, "code", "code", None, "code"]},
        {"task": PAIRS, "prompt_id": [0, 0, 1, 1, 2, 2, 2, 2]}, {"task": [None] * 8},
    ],
)  # fmt: skip
def test_labels_of_one_prompt(rows: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert messages(rows, tmp_path, caplog) == []


@pytest.mark.parametrize(
    "by", ["'x' if first(reward, over=completion) > 2 else 'y'", "first(level % 2, over=completion)"]
)
def test_the_first_of_computed_values_is_meant(by: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert messages({"task": FOURS, "level": [1, 2] * 4}, tmp_path, caplog, f'["{by}"]') == []


def test_a_label_of_another_phase(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A metric of the update whose label came with the rewards."""
    words = [*SIGNALS[:2], SIGNALS[3], "+metrics.solved={expr: 'max(advantages, over=completion)', by: '$BY'}"]
    with (
        caplog.at_level(logging.WARNING, logger="declog"),
        declog.start(
            "grpo",
            [word.replace("$BY", "first(task, over=completion)") for word in words],
            sinks=[MemorySink()],
            output_dir=tmp_path,
        ) as log,
        log.step(0),
        log.mode("eval"),
    ):
        log.observe(reward=np.arange(8) % 2, task=PAIRS)
        log.observe(advantages=np.arange(8.0))
    assert "solved: in mode `eval` the groups of `axes.group.size`" in caplog.text
    assert "rows of different `task`" in caplog.text


@pytest.mark.parametrize("task", [["a", "b", "a", "b"]])
def test_ids_that_do_not_fit_the_label(task: Sequence[str], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Groups by ids, whose rows have several labels: there it is the label that is of no group."""
    config = {
        "defaults": ["grpo", "_self_"],
        "signals": {"rollout": {"task": "completion text"}},
        "metrics": {"best": {"expr": "max(reward, over=completion)", "by": "first(task, over=completion)"}},
    }
    with (
        caplog.at_level(logging.WARNING, logger="declog"),
        declog.start(config, sinks=[MemorySink()], output_dir=tmp_path) as log,
        log.step(0),
    ):
        log.observe(reward=np.ones(4), task=task, prompt_id=[0, 0, 1, 1])
    assert "best: in mode `train` the groups have rows of different `task`" in caplog.text
