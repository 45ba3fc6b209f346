"""A signal of an update that comes with the rollout and again with its micro-batches counts twice: it is told.

What may come again, such as a second epoch over one batch, and what changes no number is told of never: masks and ids,
other rows of one batch, signals that only others make a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from declog.runtime.recording.recorder import Recorder
from tests.running import profile, run

CONFIG = profile(
    {},
    {
        "reward": "mean(reward)",
        "advantage": "mean(advantage)",
        "ratio": "mean(ratio)",
        "n": "count(advantage)",
        "size": "mean(sum(mask, over=token))",
        "named": {"expr": "ratio", "by": "id"},
        "change": "mean(ratio - old)",
        "kl": "mean(kl)",
    },
    signals={
        "rollout": {"reward": "completion"},
        "update": {
            "advantage": "completion",
            "ratio": "completion",
            "loss": "step",
            "mask": "token bool",
            "kl": "token",
            "id": "completion text",
            "old": "completion",
        },
    },
    axes={"token": {"mask": "mask"}, "completion": {"ids": "id"}},
)
ROLLOUT, ADVANTAGE = {"reward": [1.0, 0.0]}, {"advantage": [1.0, -1.0]}
MASK: dict[str, Any] = {"mask": [[True, True], [True, False]]}
ID: dict[str, Any] = {"id": ["a", "b"]}
OLD: dict[str, Any] = {"old": [2.0, 3.0]}
UPDATE: dict[str, Any] = {**ADVANTAGE, "ratio": [1.0, 2.0]}
HALVES = [{"advantage": [1.0], "ratio": [1.0]}, {"advantage": [-1.0], "ratio": [2.0]}]


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        pytest.param([{**ROLLOUT, **ADVANTAGE}, *HALVES], 4, id="with the rollout and with micro-batches"),
        pytest.param([{**ROLLOUT, **ADVANTAGE}, {**ADVANTAGE, "ratio": [1.0, 2.0]}], 4, id="one micro-batch"),
        pytest.param([{**ROLLOUT, **ADVANTAGE}, *({**half, "loss": 1.0} for half in HALVES)], 4, id="and a number"),
        pytest.param([ROLLOUT, *HALVES], None, id="with micro-batches only"),
        pytest.param([{**ROLLOUT, **ADVANTAGE, "ratio": [1.0, 2.0]}, *HALVES], None, id="epochs over one batch"),
        pytest.param([{**ROLLOUT, **ADVANTAGE}, {**ROLLOUT, **ADVANTAGE}], None, id="two rollouts"),
        pytest.param([{**ROLLOUT, **ADVANTAGE, **MASK, **ID}, {**UPDATE, **MASK, **ID}], 4, id="masks beside"),
        pytest.param([{**ROLLOUT, **MASK}, {**UPDATE, **MASK}], None, id="a mask"),
        pytest.param([{**ROLLOUT, **ID}, {**UPDATE, **ID}], None, id="an id"),
        pytest.param([{**ROLLOUT, **OLD}, {**UPDATE, **OLD, **MASK}], None, id="of no metric alone"),
        pytest.param([{**ROLLOUT, **UPDATE}, {**UPDATE, **OLD}], None, id="another signal later"),
        pytest.param([{**ROLLOUT, "advantage": [1.0]}, UPDATE], None, id="more rows"),
        pytest.param([{**ROLLOUT, **ADVANTAGE}, {"loss": 1.0}, {"loss": 2.0}], None, id="numbers alone come again"),
    ],
)
def test_rows_that_came_twice_are_told(
    calls: Sequence[dict[str, Any]], told: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once in a run, whichever the step; the numbers are of all that came."""

    def body(log: Recorder) -> None:
        for step in range(3):
            with log.step(step):
                for call in calls:
                    log.observe(**call)

    with caplog.at_level("WARNING", logger="declog"):
        sink = run(CONFIG, body, tmp_path)
    messages = [record.getMessage() for record in caplog.records if "count, too" in record.getMessage()]
    assert len(messages) == (told is not None)
    if told is not None:
        assert messages[0].startswith("`advantage` of phase `update`: in one step it came in a call with signals of")
        assert "with `ratio`" in messages[0]
        assert [scalars["n"] for scalars in sink.scalars.values()] == [told] * 3


def test_a_late_repetition_is_not_looked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only the first ten steps with several batches are compared, so that a long run costs nothing."""

    def body(log: Recorder) -> None:
        for step in range(12):
            with log.step(step):
                for call in [ROLLOUT, *HALVES] if step < 10 else [{**ROLLOUT, **ADVANTAGE}, *HALVES]:
                    log.observe(**call)

    with caplog.at_level("WARNING", logger="declog"):
        run(CONFIG, body, tmp_path)
    assert not [record for record in caplog.records if "count, too" in record.getMessage()]
