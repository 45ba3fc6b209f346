"""Windows that outgrow their limit: folded early, they log what they log whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import declog
from declog.language.functions import DEFAULT, Functions
from declog.runtime.recording.recorder import Recorder
from declog.testing import FakeComm, MemorySink, run_ranks
from tests.running import profile

POOLS = ("window", "step", "batch", "rank", "rank_batch")
METRICS: dict[str, Any] = {
    f"{name}_{pool}": {"expr": expr, "reduce": name, "over": pool, **({} if pool == "window" else {"combine": combine})}
    for pool, combine in zip(POOLS, ("mean", "mean", "max", "last", "var"), strict=True)
    for name, expr in (
        ("mean", "reward"), ("std", "reward"), ("max", "kl"), ("sum", "length"),
        ("mean", "std(reward, over=completion)"),
    )
}  # fmt: skip
METRICS |= {
    "by_source": {"expr": "reward", "by": "source"},
    "rare": {"expr": "reward", "by": "number", "max_labels": 3},
    "tagged": {"expr": "reward", "by": "tags", "weight": "length"},
    "several": {"expr": "kl", "by": ["source", "tags"], "max_labels": 5, "reduce": "max"},
    "share": {"formula": "tagged / weighted"},
    "weighted": {"expr": "reward", "weight": "length"},
    "some": {"expr": "kl", "reduce": [{"n": "count"}, "var"], "where": "reward > 0"},
    "members": {"expr": "parts", "reduce": ["mean", "min"]},
    "main": {"expr": "reward", "ranks": "main"},
    "gaps": {"expr": "holes", "reduce": [{"n": "count"}, "mean"]},
    "seen": {"formula": "gaps.n + sum_window"},
    "quantile": "p90(reward)",
    "last": "last(loss)",
    "middle": "p50(kl)",
    "changes": {"expr": "loss - prev(loss, 0.0)", "reduce": "max"},
    "tokens": {"expr": "length", "reduce": "sum", "over": "run"},
    "spread": {"expr": "kl", "reduce": "std", "over": "run", "by": "tags"},
    "best": {"expr": "reward", "over": "run_step", "combine": "max"},
    "smooth": {"expr": "reward", "weight": "length", "combine": "ema(0.9)", "by": "source"},
    "smooth_share": {"formula": "tagged / weighted", "combine": "ema(0.5)"},
    "rolling": {"expr": "reward", "weight": "length", "combine": "rolling(5)", "by": "source"},
    "rolling_share": {"formula": "tagged / weighted", "combine": "rolling(2)"},
}
CONFIG = profile(
    {
        "reward": {"axis": "completion"}, "length": {"axis": "completion", "type": "int"},
        "holes": {"axis": "completion"}, "number": {"axis": "completion", "type": "int"},
        "tags": {"axis": "completion", "type": "object"},
        "source": {"axis": "completion", "type": "text"}, "text": {"axis": "completion", "type": "text"},
        "parts": {"axis": "completion", "family": True}, "kl": {"axis": "token"},
        "mask": {"axis": "token", "type": "bool"}, "loss": {"axis": "step"},
    },
    METRICS,
    axes={"group": {"size": 2}, "token": {"mask": "mask"}},
    filters={
        "best": {"key": "reward", "top": 2, "bottom": 1, "within": "window"},
        "odd": {"random": 3, "within": "window", "where": "rank(reward, within=group) == 1"},
    },
    schemas={"s": {"step": {"type": "int", "expr": "step"}, "text": {"type": "text"}, "reward": {"type": "float"},
                   "place": {"type": "int", "expr": "rank(reward, within=group)"}}},
    tables={"best": {"schema": "s", "filter": "best"}, "odd": {"schema": "s", "filter": "odd"},
            "latest": {"schema": "s", "keep": "last_batch"}},
    every=24,
)  # fmt: skip


def observe(log: Recorder, step: int, batch: int, rank: int) -> None:
    random = torch.Generator().manual_seed(step * 100 + batch * 10 + rank)
    rows = 4
    rewards = torch.randn(rows, generator=random).double()
    holes = rewards.clone()
    holes[step % rows] = float("nan")
    log.observe(
        reward=rewards, length=torch.randint(1, 9, (rows,), generator=random), holes=holes,
        number=torch.randint(0, 9, (rows,), generator=random), loss=float(rewards.sum()),
        source=["ab"[row % 2] if step % 3 else "c" for row in range(rows)],
        tags=[["xyz"[row % 3 :], "v"[: row % 2]] for row in range(rows)],
        text=[f"{step}.{batch}.{rank}.{row}" for row in range(rows)],
        parts={"x": rewards, **({"y": -rewards} if step > 10 else {})},
        kl=torch.randn(rows, 3, generator=random).double(), mask=torch.rand(rows, 3, generator=random) > 0.4,
    )  # fmt: skip


def logged(limit: int, world_size: int, folder: Path) -> list[Any]:
    sink = MemorySink()

    def body(comm: FakeComm) -> None:
        config = {**CONFIG, "run": {"window_bytes": limit}}
        sinks = [sink] if comm.rank == 0 else []
        with declog.start(config, sinks=sinks, output_dir=folder, comm=comm) as log:
            for step in range(60):
                with log.step(step):
                    for batch in range(2):
                        observe(log, step, batch, comm.rank)

    run_ranks(world_size, body)
    return [
        (step, {item.name: item.value for item in records.scalars}, records.tables) for step, records in sink.events
    ]


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("limit", [1, 20_000])
def test_a_window_that_is_folded_early_logs_the_same(
    limit: int, world_size: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every reduction, pool, label, weight, family, table and total."""
    expected, found = (logged(size, world_size, tmp_path) for size in (2**30, limit))
    assert [step for step, *_ in found] == [step for step, *_ in expected] == [23, 47, 59]
    for (_, values, tables), (_, others, same) in zip(found, expected, strict=True):
        assert values.keys() == others.keys() and len(values) > 40
        for name, value in values.items():
            np.testing.assert_allclose(value, others[name], rtol=1e-9, atol=1e-12, err_msg=name)
        assert tables == same
    assert ("over window_bytes (1)" in caplog.text) == (limit == 1)


@pytest.mark.parametrize("limit", [1, 2**30])
def test_a_window_goes_on_from_a_checkpoint(limit: int, tmp_path: Path) -> None:
    """What was folded is saved as states, other rows as they are: the values are those of a run without a break."""
    (_, expected, tables), *_ = logged(2**30, 1, tmp_path)
    config = {**CONFIG, "run": {"window_bytes": limit}}
    state: dict[str, Any] | None = None
    for steps in (range(18), range(18, 24)):
        sink = MemorySink()
        with declog.start(config, sinks=[sink], output_dir=tmp_path / str(steps.start)) as log:
            if state is not None:
                log.load_state_dict(state)
            for step in steps:
                with log.step(step):
                    for batch in range(2):
                        observe(log, step, batch, 0)
            state = log.state_dict()
    ((step, records),) = sink.events
    found = {item.name: item.value for item in records.scalars}
    assert step == 23 and records.tables == tables and found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-9, atol=1e-12, err_msg=name)


def test_an_expression_that_fails_while_it_is_folded_is_reported(tmp_path: Path) -> None:
    """Its metric is not logged, the others are."""
    functions = Functions(DEFAULT)

    @declog.function(registry=functions)
    def broken(x: Any) -> Any:
        if len(x) > 3:  # not yet where the profile is checked
            raise ZeroDivisionError("mine")
        return x

    sink = MemorySink()
    config = profile(
        {"reward": {"axis": "completion"}}, {"bad": "mean(broken(reward))", "good": "mean(reward)"},
        every=20, run={"window_bytes": 1},
    )  # fmt: skip
    with declog.start(config, sinks=[sink], output_dir=tmp_path, functions=functions) as log:
        for step in range(20):
            with log.step(step):
                log.observe(reward=[float(step)] * 4)
    assert sink.scalars == {19: {"good": 9.5}}


@pytest.mark.parametrize("pool", ["window", "step"])
@pytest.mark.parametrize("nan", ["skip", "propagate"])
def test_what_comes_late_or_never_is_absent_alike(nan: str, pool: str, tmp_path: Path) -> None:
    """Of what never came nothing is missing, nor of what came late before it did; however the window is held."""
    late = {"axis": "completion"}
    names = {"late": "late", "never": "never", "parts": "parts"}
    signals = {"reward": {"axis": "completion"}, "late": late, "never": late, "parts": {**late, "family": True}}
    metrics: dict[str, Any] = {
        f"{name}_{kind}": {"expr": expr, "reduce": reduction, "nan": nan, "over": pool}
        for name, expr in names.items() for kind, reduction in (("sum", "sum"), ("middle", "p50"))
    }  # fmt: skip
    metrics["n"] = {"expr": "reward", "reduce": "count", "over": pool}  # all rows are recorded
    found = []
    for limit in (2**30, 1):
        sink = MemorySink()
        config = profile(signals, metrics, every=32, run={"window_bytes": limit})
        with declog.start(config, sinks=[sink], output_dir=tmp_path / str(limit)) as log:
            for step in range(32):
                given: dict[str, Any] = {"reward": [1.0, 2.0]}
                if step >= 20:
                    given |= {"late": [1.0, 2.0], "parts": {"a": [1.0, 2.0]}}
                with log.step(step):
                    log.observe(**given)
        found.append(sink.scalars[31])
    whole, folded = found
    assert whole.keys() == folded.keys() == {"late_sum", "late_middle", "parts_sum/a", "parts_middle/a", "n"}
    assert (whole["late_sum"], whole["parts_sum/a"]) == ((36.0, 36.0) if pool == "window" else (3.0, 3.0))
    np.testing.assert_equal(folded, whole)
