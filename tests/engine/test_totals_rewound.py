"""Where a run goes back, values over the run that go on with what came behind the step are told, once, by name.

The class: totals, extremes and means of all rows, of pieces, ``ema`` and latest values, over one mode and over all. Not
told: a restart, a curve that forgets later steps, hidden metrics, a run that loads the state of that step.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import declog
from declog.testing import MemorySink

TOLD = "what came behind it stays in the values over the run, {};"


def messages(metrics: str, folder: Path, caplog: pytest.LogCaptureFixture, *back: int) -> list[str]:
    """What is said of the run's totals by a run that goes back."""
    config = folder / "mine.yaml"
    config.write_text(f"signals: {{any: {{reward: completion}}}}\nmetrics: {metrics}\n")
    with (
        caplog.at_level(logging.WARNING, logger="declog"),
        declog.start(config, sinks=[MemorySink()], output_dir=folder) as log,
    ):
        for step in range(4):
            with log.step(step):
                log.observe(reward=[1.0 + step, 2.0])
        for last in back:
            log.rewind(last)
            with log.step(last + 1):
                log.observe(reward=[0.0, 1.0])
    texts = [record.getMessage() for record in caplog.records]
    return [text for text in texts if "stays in the values over the run" in text]


@pytest.mark.parametrize(
    "entry",
    [
        "{expr: sum(reward), over: run}", "{expr: reward, over: run_step, combine: max}", "{expr: reward, over: run}",
        "{expr: reward, over: step, combine: ema(0.9)}", "{expr: count(reward), over: run}",
    ],
)  # fmt: skip
def test_what_goes_on_is_told_once(entry: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (text,) = messages(f"{{a: {entry}, b: mean(reward)}}", tmp_path, caplog, 1, 0)
    assert text.startswith(f"the run goes back to the end of step 1, but {TOLD.format('a')}")


@pytest.mark.parametrize(
    "entry",
    [
        "{expr: reward, over: step, combine: rolling(3)}", "{expr: sum(reward), over: run, log: false}",
        "{expr: reward, over: step, combine: lag(1)}", "mean(reward)",
    ],
)  # fmt: skip
def test_what_forgets_later_steps_is_not_told(entry: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert messages(f"{{a: {entry}}}", tmp_path, caplog, 1) == []


@pytest.mark.parametrize("back", [[3], [7], [3, 3]])
def test_a_step_with_nothing_behind_it_is_not_told(
    back: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What comes behind such a step comes once; a later way back is told."""
    entry = "{a: {expr: sum(reward), over: run}}"
    assert messages(entry, tmp_path, caplog, *back[:1]) == []
    assert len(messages(entry, tmp_path, caplog, back[0], 1)) == 1


def test_a_restart_is_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = {
        "signals": {"any": {"reward": "completion"}},
        "metrics": {"a": {"expr": "sum(reward)", "over": "run"}},
    }
    with (
        caplog.at_level(logging.WARNING, logger="declog"),
        declog.start(config, sinks=[MemorySink()], output_dir=tmp_path) as log,
    ):
        for _ in range(2):
            with log.step(0):
                log.observe(reward=[1.0])
            log.restart()
    assert "stays in the values" not in caplog.text


def test_the_state_of_the_step_has_the_totals(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What the message says: a checkpoint brings the values of then."""
    config = {
        "signals": {"any": {"reward": "completion"}},
        "metrics": {"highest": {"expr": "reward", "over": "run_step", "combine": "max"}},
    }
    state: dict[str, object] = {}
    values = {}
    for part, steps in enumerate([range(4), range(2, 4)]):
        sink = MemorySink()
        with declog.start(config, sinks=[sink], output_dir=tmp_path / str(part)) as log:
            if part:
                log.load_state_dict(state)
            for step in steps:
                with log.step(step):
                    log.observe(reward=[float(step)] if not part else [0.5])
                if step == 1:
                    state = log.state_dict()
        values = sink.scalars
    assert [values[step]["highest"] for step in (2, 3)] == [1.0, 1.0]
    assert "stays in the values" not in caplog.text
