"""A run that goes back into a window that was logged already loses the rows of its earlier steps, and is told so.

The class: each step that a run may go back to, windows of the config and longer ones, an open window (which is logged
in two parts, and loses nothing), a restart (which drops nothing).
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import declog

LAST, BEHIND = 5, 8  # the last step before the run goes back, and after it
CONFIG: dict[str, Any] = {
    "run": {"name": "cut"},
    "sinks": ["jsonl"],
    "signals": {"any": {"x": "completion"}},
    "metrics": {"rows": {"expr": "x", "reduce": "count"}, "of_three": {"expr": "x", "reduce": "count", "every": 3}},
}


def train(tmp_path: Path, back: int, every: int, last: int = LAST) -> dict[str, float]:
    """Train up to a step, go back, and train again; return how many rows each metric counted in the run's files."""
    with declog.start({**CONFIG, "every": every}, output_dir=tmp_path) as log:
        for steps in (range(last + 1), range(back + 1, BEHIND + 1)):
            for step in steps:
                with log.step(step):
                    log.observe(x=[1.0, 2.0])
            if steps[0] == 0:
                log.rewind(back)
    run = declog.read(tmp_path)
    return {name: sum(run[name].values) for name in CONFIG["metrics"]}


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("back", range(LAST))
def test_rows_that_are_lost_are_told(back: int, every: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The rows of all steps are counted, or a warning names the metric and a step where none is lost."""
    caplog.set_level(logging.WARNING, "declog")
    counted = train(tmp_path, back, every)
    lines = [text for record in caplog.records if "into the middle of a window" in (text := record.getMessage())]
    lost = {name for name, count in counted.items() if count != 2 * (BEHIND + 1)}
    assert [name in " ".join(lines) for name in (": rows", "of_three")] == ["rows" in lost, "of_three" in lost]
    if lines:
        assert lines[0].endswith(f"`log.rewind({back // 3 * 3 - 1})`")


def test_an_open_window_loses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged in two parts, of the steps that stay and of those that go."""
    caplog.set_level(logging.WARNING, "declog")
    assert set(train(tmp_path, back=3, every=1, last=4).values()) == {2 * (BEHIND + 1)}
    assert "into the middle" not in caplog.text


@pytest.mark.parametrize(
    ("steps", "every", "back"),
    [(range(100), 1, 30), (range(1000, 1008), 4, 999), (range(0, 40, 5), 1, 12), (range(0, 40, 5), 2, 17)],
)
def test_a_step_between_windows_loses_nothing(
    steps: range, every: int, back: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Class: more windows than are remembered, the time before the first one, numbers of steps with gaps."""
    caplog.set_level(logging.WARNING, "declog")
    config = {**CONFIG, "every": every, "metrics": {"rows": CONFIG["metrics"]["rows"]}}
    with declog.start(config, output_dir=tmp_path) as log:
        for step in steps:
            with log.step(step):
                log.observe(x=[1.0, 2.0])
        log.rewind(back)
    assert "into the middle" not in caplog.text
