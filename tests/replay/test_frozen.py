"""What `spec: 1` promises: a preset that was written under it means the same in every later version."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import declog
from declog.testing import MemorySink

PRESET = Path(__file__).parents[1] / "data" / "frozen" / "spec_1.yaml"
# Worked by hand: rewards 0 1 1 1 and 0 0 1 1, lengths 1 2 3 4 twice, ratios 1 and 2.
SCALARS = {
    "reward/mean": 5 / 8, "reward/max": 1.0, "p50": 1.0, "share/solved": 5 / 8,
    "by_source/math": 6 / 8 - 1 / 4, "by_source/code": 3 / 4, "rewards/a": 0.25, "rewards/b": 0.75,
    "long": 1.0, "weighted": 16 / 20, "zero_std": 3 / 4, "ratio/mean": 1.5, "ratio/max": 2.0, "loss": 4.0,
    "batches": 3 / 4, "tokens": 20, "doubled": 10 / 8,
}  # fmt: skip


def test_the_preset_gives_the_names_and_values_that_it_gave(tmp_path: Path) -> None:
    """No warning, no other name, no other value; the table, the redaction and the alert too."""
    assert declog.plan(PRESET).warnings == ()
    sink = MemorySink()
    with declog.start(PRESET, sinks=[sink], output_dir=tmp_path) as log:
        for step, reward in enumerate([[0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]]):
            with log.step(step):
                log.observe(
                    reward=reward, rewards={"a": [0.25] * 4, "b": [0.75] * 4}, source=["math", "code"] * 2,
                    length=[1, 2, 3, 4], prompt=["a@b.c", "x", "a@b.c", "y"],
                )  # fmt: skip
                log.observe(
                    mask=[[True, True]] * 4, logprobs=[[0.0, math.log(2)]] * 4, old_logprobs=[[0.0, 0.0]] * 4,
                    loss=3.0 + step,
                )  # fmt: skip
    ((step, values),) = sink.scalars.items()
    assert (step, sorted(values)) == (1, sorted(SCALARS))
    assert values == pytest.approx(SCALARS)
    ((_, table),) = sink.tables("best")
    assert table.data == {"prompt": ["x"], "reward": [1.0]}
    assert [alert.name for _, alert in sink.alerts] == []


def test_a_later_language_is_not_read_as_this_one() -> None:
    """It is refused by name."""
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan(
            {"spec": 2, "signals": {"any": {"reward": {"axis": "completion"}}}, "metrics": {"reward": "mean(reward)"}}
        )
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == ("DL202", ("spec",))
    assert "later declog" in str(problem.fix)
