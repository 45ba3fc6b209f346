"""Log events without rows of what a question reads: the answer has what the metric has that was in the config.

Class: values that do not need new rows, over the run so far or `empty`, and formulas of them; in windows of any length.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

import declog
from declog.late import ask, write
from declog.runtime.ranks.comm import Comm
from declog.testing import MemorySink, run_ranks
from tests.late.test_late import as_text, values

LINES: dict[str, Any] = {
    "total": {"expr": "reward", "reduce": "sum", "over": "run"},
    "best": {"expr": "reward", "reduce": "max", "over": "run"},
    "latest": {"expr": "reward", "reduce": "last", "over": "run"}, "by": {"expr": "reward", "by": "who", "over": "run"},
    "smooth": {"expr": "reward", "combine": "ema(0.5)"}, "rolling": {"expr": "reward", "combine": "rolling(3)"},
    "highest": {"expr": "reward", "over": "run_step", "combine": "max"}, "plain": "mean(reward)",
    "none": {"expr": "reward", "reduce": "sum", "empty": 0}, "slow": {"expr": "reward", "over": "run", "every": 6},
    "twice": {"formula": "2 * total"}, "before": "mean(beta - prev(beta, 0))",
}  # fmt: skip
BASE = {"b_reward": {"expr": "reward", "by": "who"}, "b_beta": "mean(beta)", "b_loss": "mean(loss)"}


def lines(prefix: str) -> dict[str, Any]:
    """The lines under ids with a prefix."""
    text = yaml.safe_dump(LINES).replace("2 * total", f"2 * {prefix}total")
    return {f"{prefix}{name}": line for name, line in yaml.safe_load(text).items()}


def train(comm: Comm, metrics: dict[str, Any], every: int, folder: Path, sink: MemorySink, state: Any = None) -> Any:
    """Steps of which a few have rows, evaluations, and a step back; resumed from a ``state`` behind them."""
    config = {
        "run": {"name": "rowless"}, "every": every, "metrics": metrics, "sinks": ["parquet"],
        "signals": {
            "rollout": {"reward": "completion", "who": "completion text"}, "control": {"beta": "step"},
            "update": {"loss": "completion"},
        },
        "modes": {"eval": {"prefix": "eval/", "every": "end"}},
    }  # fmt: skip
    sinks = [sink] if comm.rank == 0 else []
    with declog.start(config, sinks=sinks, output_dir=folder, comm=comm, resume=state) as log:
        for step in range(20) if state is None else range(20, 26):
            if step == 9:
                log.rewind(6)
            with log.step(step if step < 9 else step - 2):
                log.observe(loss=[1.0])
                if step in (2, 3, 11, 25):
                    log.observe(reward=[1.0 * step, comm.rank], who=["a", "b" if step > 3 else "a"])
                if step % 5 == 1:
                    log.observe(beta=0.1 * step)
            if step % 4 == 3:
                with log.mode("eval"):
                    log.observe(loss=[1.0])
                    if step == 7:
                        log.observe(reward=[3.0], who=["a"])
        return log.state_dict()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_late_is_early(every: int, ranks: int, tmp_path: Path) -> None:
    """Also behind a step back and where the run is resumed."""
    sink = MemorySink()
    run = partial(train, metrics={**BASE, **lines("e_")}, every=every, folder=tmp_path, sink=sink)
    states = run_ranks(ranks, run)
    run_ranks(ranks, lambda comm: run(comm, state=states[comm.rank]))
    late = ask(tmp_path, as_text(lines("l_")))
    early = values(sink.events, "e_")
    assert values(late.events, "l_") == early
    assert {"total", "best", "none", "slow"} <= {name for step, mode, name in early if (step, mode) == (23, "train")}
    write(tmp_path, late)
    read = declog.read(tmp_path)
    assert [*read["l_total"]] == [*read["e_total"]]
