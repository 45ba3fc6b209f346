"""How long the steps of a window took, in formulas and conditions: throughput."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.errors import ConfigError
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink
from tests.running import profile, run

SIGNALS = {"n": {"axis": "completion", "type": "int"}}
METRICS: dict[str, Any] = {
    "tokens": "sum(n)", "speed": {"formula": "tokens / seconds"}, "seconds_here": {"formula": "seconds"},
    "since": {"formula": "elapsed"}, "product": {"formula": "tokens / seconds * seconds"},
    "rate": {"formula": "step / elapsed * elapsed"}, "late": {"expr": "n", "when": "step >= 3"},
}  # fmt: skip
CONFIG = profile(SIGNALS, METRICS, every=2, modes={"train": {}, "eval": {"prefix": "eval_"}})


def test_steps_and_evaluations_take_their_own_time(tmp_path: Path) -> None:
    """An evaluation inside a step and one between steps: nothing is counted twice, and all windows have some."""

    def body(log: Recorder) -> None:
        for step in range(4):
            with log.step(step):
                log.observe(n=[10, 20])
                if step == 1:
                    with log.mode("eval"):
                        time.sleep(0.02)
                        with log.step(step):
                            log.observe(n=[1])
            with log.mode("eval"):
                log.observe(n=[3])

    sink = run(CONFIG, body, tmp_path)
    found = [{item.name: item.value for item in records.scalars} for _, records in sink.events]
    train = [values for values in found if "tokens" in values]
    evals = [values for values in found if "eval_tokens" in values]
    took = [values["seconds_here"] for values in train] + [values["eval_seconds_here"] for values in evals]
    assert (len(train), len(evals), min(took) > 0) == (2, 5, True)
    assert sum(took) <= max(values.get("since", values.get("eval_since", 0.0)) for values in found)
    assert [round(values[name], 6) for values in train for name in ("product", "rate")] == [60, 1, 60, 3]
    assert ["late" in values for values in train] == [False, True]
    assert [values["speed"] for values in train] == [values["tokens"] / values["seconds_here"] for values in train]


def test_a_window_that_was_open_keeps_its_time(tmp_path: Path) -> None:
    """A run that is resumed inside a window: its first step counts, too."""
    with declog.start(CONFIG, sinks=[MemorySink()], output_dir=tmp_path / "first") as log:
        with log.step(0):
            time.sleep(0.02)
            log.observe(n=[1])
        state = log.state_dict()
    sink = MemorySink()
    with declog.start(CONFIG, sinks=[sink], output_dir=tmp_path / "second", resume=state) as log, log.step(1):
        log.observe(n=[1])
    assert (sink.scalars[1]["tokens"], sink.scalars[1]["seconds_here"] > 0.02) == (2, True)


def test_seconds_are_of_whole_windows() -> None:
    """A step or a batch of a window has none of its own."""
    with pytest.raises(ConfigError) as caught:
        declog.plan(profile(SIGNALS, {"n": {"reduce": "sum", "over": "step"}, "f": {"formula": "n / seconds"}}))
    assert str(caught.value) == (
        "error[DL310] metrics.f.formula\n"
        "  `seconds` is of the whole window, and `n` has a value for each step of it\n"
        "    n / seconds\n"
        "  fix: metrics: {n: {reduce: sum, over: window}}"
    )


@pytest.mark.parametrize(
    "formulas",
    [{"f": {"formula": "n / seconds"}}, {"took": {"formula": "2 * seconds"}, "f": {"formula": "n / took"}},
     {"twice": {"formula": "2 * n"}, "f": {"formula": "twice / seconds"}}],
)  # fmt: skip
def test_a_total_of_the_run_has_no_seconds_of_a_window(formulas: dict[str, Any]) -> None:
    """Their ratio would grow with the run, also where another formula is between them."""
    with pytest.raises(ConfigError) as caught:
        declog.plan(profile(SIGNALS, {"n": {"reduce": "sum", "over": "run"}, **formulas}))
    assert str(caught.value) == (
        "error[DL310] metrics.f.formula\n"
        "  `n` is a total of the whole run, and `seconds` are those of one window\n"
        f"    {formulas['f']['formula']}\n"
        "  fix: `elapsed` for the whole run, or a metric without `over: run`"
    )


def test_a_metric_of_that_name_is_meant_first(tmp_path: Path) -> None:
    """Names of one's own come first."""

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(n=[4])

    sink = run(profile(SIGNALS, {"seconds": "sum(n)", "twice": {"formula": "2 * seconds"}}), body, tmp_path)
    assert sink.scalars[0] == {"seconds": 4, "twice": 8.0}
