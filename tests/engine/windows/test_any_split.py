"""The same rows on 1 to 64 ranks, in windows of any length and any limit: the same records."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import declog
from declog.testing import FakeComm, MemorySink, run_ranks
from tests.conftest import examples
from tests.engine.windows.test_byte_cap import CONFIG, METRICS
from tests.forks import PATIENCE_S

STEPS, ROWS = 20, 128
OF_RANKS = ("rank", "main", "last", "changes", "loss")  # what a rank's own value decides
SPLIT = {name: metric for name, metric in METRICS.items() if not any(part in name for part in OF_RANKS)}


@cache
def rows(step: int) -> dict[str, Any]:
    """All rows of a step."""
    random = torch.Generator().manual_seed(step)
    rewards = torch.randn(ROWS, generator=random).double()
    length, number = (torch.randint(1, 9, (ROWS,), generator=random) for _ in range(2))
    kl, mask = torch.randn(ROWS, 3, generator=random).double(), torch.rand(ROWS, 3, generator=random) > 0.4
    holes = torch.where(torch.arange(ROWS) % 5 == step % 5, torch.nan, rewards)
    return {
        "reward": rewards, "length": length, "number": number, "holes": holes, "kl": kl, "mask": mask,
        "source": ["abc"[row % 3] for row in range(ROWS)], "text": [f"{step}.{row}" for row in range(ROWS)],
        "tags": [["xyz"[row % 3 :], "v"[: row % 2]] for row in range(ROWS)],
    }  # fmt: skip


def observe(log: declog.Recorder, step: int, share: slice) -> None:
    """One rank's share of a step's rows."""
    mine = {name: column[share] for name, column in rows(step).items()}
    log.observe(**mine, parts={"x": mine["reward"], "y": -mine["reward"]}, loss=1.0)


def logged(config: dict[str, Any], cuts: list[int], folder: Path) -> list[Any]:
    """What ranks log whose shares of each step end at ``cuts``."""
    sink = MemorySink()
    edges = [0, *cuts, ROWS]

    def body(comm: FakeComm) -> None:
        sinks = [sink] if comm.rank == 0 else []
        with declog.start(config, sinks=sinks, output_dir=folder, comm=comm) as log:
            for step in range(STEPS):
                with log.step(step):
                    observe(log, step, slice(edges[comm.rank], edges[comm.rank + 1]))

    run_ranks(len(edges) - 1, body, timeout_s=PATIENCE_S)
    return [
        (step, {item.name: item.value for item in records.scalars}, records.tables) for step, records in sink.events
    ]


@examples(6, HealthCheck.function_scoped_fixture)
@given(
    ranks=st.sampled_from([2, 3, 8, 17, 64]),
    every=st.sampled_from([1, 3, 17, 20]),
    limit=st.sampled_from([1, 100_000, 2**30]),
    random=st.randoms(use_true_random=False),
)
def test_neither_ranks_nor_limits_change_what_is_logged(
    ranks: int, every: int, limit: int, random: Any, tmp_path: Path
) -> None:
    """Shares are of any size, none included; groups stay whole."""
    cuts = sorted(2 * random.randint(0, ROWS // 2) for _ in range(ranks - 1))
    config = {**CONFIG, "metrics": SPLIT, "every": every}
    expected, found = logged(config, [], tmp_path), logged({**config, "run": {"window_bytes": limit}}, cuts, tmp_path)
    assert [step for step, *_ in found] == [step for step, *_ in expected]
    for (_, values, tables), (_, others, same) in zip(found, expected, strict=True):
        assert values.keys() == others.keys() and len(values) > 20
        for name, value in values.items():
            np.testing.assert_allclose(value, others[name], rtol=1e-9, atol=1e-12, err_msg=name)
        best, others_best = ([table for table in some if table.table == "best"] for some in (tables, same))
        assert best == others_best


ALL = {  # of all rows of a step, or of each row among them
    "best_three": {"expr": "length", "where": "rank(-reward, within=step) <= 3"},
    "place": {"expr": "smaller(reward, within=step)", "where": "length > 4", "reduce": "sum"},
    "above_mean": "mean(reward > mean(reward, over=step))", "above_median": "mean(reward > p50(reward, over=step))",
    "skew": "((reward - mean(reward, over=step)) / pstd(reward, over=step)) ** 3",
    "last": "mean(last(length, over=step))",
    "spread": "max(mean(reward, over=completion), over=group) - min(mean(reward, over=completion), over=group)",
    "groups": "size(group)", "total": {"expr": "sum(sum(length, over=completion), over=group)", "reduce": "sum"},
    "pools": {"expr": "max(max(reward, over=completion), over=group)", "over": "step", "combine": "max"},
}  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("calls", [[128], [4, 124], [32, 32, 64], [8] * 16])
def test_calls_do_not_change_what_all_rows_of_a_step_give(ranks: int, calls: list[int], tmp_path: Path) -> None:
    """Class: several calls bring a step's rows, as those of workers do, on one rank or on several."""
    signals = {"reward": {"axis": "completion"}, "length": {"axis": "completion", "type": "int"}}
    group = {"axis": "completion", "type": "int"}
    config = {
        "signals": {"any": {**signals, "prompt_id": group}},
        "metrics": ALL,
        "axes": {"group": {"of": "prompt_id"}},
    }
    edges = np.cumsum([0, *calls])

    def body(comm: FakeComm) -> MemorySink:
        sink = MemorySink()
        with declog.start(config, sinks=[sink], output_dir=tmp_path, comm=comm) as log:
            for step in range(3):
                with log.step(step):
                    for call in range(comm.rank, len(calls), comm.world_size):
                        mine = slice(edges[call], edges[call + 1])
                        columns = {name: rows(step)[name][mine] for name in signals}
                        log.observe(**columns, prompt_id=torch.arange(ROWS)[mine] // 4)
        return sink

    for step, values in run_ranks(ranks, body, timeout_s=PATIENCE_S)[0].scalars.items():
        reward, length = (rows(step)[name].numpy() for name in signals)
        means, order = reward.reshape(-1, 4).mean(1), reward.argsort().argsort()
        expected = {
            "best_three": length[order >= ROWS - 3].mean(), "place": order[length > 4].sum(),
            "above_mean": (reward > reward.mean()).mean(), "spread": means.max() - means.min(),
            "above_median": (reward > np.median(reward)).mean(), "last": length[-1],
            "skew": (((reward - reward.mean()) / reward.std()) ** 3).mean(),
            "groups": ROWS // 4, "total": length.sum(), "pools": reward.max(),
        }  # fmt: skip
        assert {name: values[name] for name in expected} == pytest.approx(expected)
