"""Metrics of the same rows are reduced together: each has what it has alone, but for rounding of sums over a window."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import declog
from declog.engine.evaluator import View
from declog.engine.frame import Frame
from declog.engine.reduce import Reductions
from declog.language.dtypes import Axis
from declog.plans.ops import Plan
from declog.runtime.rows.batch import Batch
from declog.runtime.rows.window import Window
from declog.runtime.values.packs import Pack
from tests.engine.frames import reduced
from tests.running import closed_batch, profile

REDUCTIONS = ("p05", "p99_9", "last", "mean", "std", "count")
SIGNALS: dict[str, Any] = {
    "x": {"axis": "completion"}, "y": {"axis": "completion"}, "n": {"axis": "completion", "type": "int"},
    "hit": {"axis": "completion", "type": "bool"}, "f": {"axis": "completion", "family": True},
    "gone": {"axis": "completion"},
}  # fmt: skip
VALUES = ("x", "y", "n", "f", "gone", "x - y", "y - x", "hit")
MORE: tuple[dict[str, Any], ...] = (
    {}, {"where": "hit"}, {"where": "x > 100", "empty": -1.0}, {"nan": "propagate", "ranks": "main"},
)  # fmt: skip
POOLS = ("window", "step", "batch", "rank", "rank_batch")


def frame(gaps: bool) -> Frame:
    """Three steps of two ranks and two batches of different sizes; with ``gaps`` some of `y` is missing or infinite."""
    random = np.random.default_rng(7)
    parts = []
    for rank in range(2):
        records: list[Batch] = []
        for step in range(3):
            for batch in range(2):
                rows = int(random.integers(1, 6))
                x, y = torch.from_numpy(random.normal(size=(2, rows)))
                if gaps:
                    y[random.random(rows) < 0.3] = torch.nan
                    y[random.random(rows) < 0.1] = torch.inf
                family = torch.from_numpy(random.normal(size=(2, rows)).astype(np.float32))
                packs = [
                    Pack(Axis.COMPLETION, [("x", None), ("y", None)], [torch.stack([x, y])]),
                    Pack(Axis.COMPLETION, [("n", None)], [torch.from_numpy(random.integers(0, 9, rows))]),
                    Pack(Axis.COMPLETION, [("hit", None)], [torch.from_numpy(random.random(rows) < 0.5)]),
                    Pack(Axis.COMPLETION, [("f", "a"), ("f", "b")], [family]),
                ]
                records.append(closed_batch(rows, step=step, number=batch, order=len(records), packs=packs))
        parts.append(Window([{"default": records}]).frames(PLAN, rank, _raise)["default"])
    return Frame.merge(parts)


def _raise(error: BaseException) -> None:
    raise error


def _plan() -> Plan:
    metrics: dict[str, Any] = {}
    for value, reduction, pool, more in itertools.product(VALUES, REDUCTIONS, POOLS, MORE):
        key = f"m{len(metrics)}"
        name = f"{key}/{{member}}" if value == "f" else key
        metrics[key] = {"expr": value, "reduce": reduction, "over": pool, "name": name, **more}
    return declog.plan(profile(SIGNALS, metrics))


PLAN = _plan()
OPS = [op for op in PLAN.metrics if op.phase == "default"]


@pytest.mark.parametrize("gaps", [False, True])
def test_what_is_reduced_together_is_what_it_is_alone(gaps: bool) -> None:
    """Quantiles, last values, pools, conditions; also where some is missing, infinite, or where nothing came."""
    rows = frame(gaps)
    with np.errstate(all="ignore"):
        found = reduced(Reductions(OPS), View(rows))
        alone = View(rows)
        expected = {op.key: reduced(Reductions([op]), alone)[op.key] for op in OPS}
    assert len(expected) == 8 * 6 * 5 * 4
    for op in OPS:
        mine, other = found[op.key], expected[op.key]
        rounding = 1e-12 if op.reduction.foldable else 0.0  # sums may be added up in another order
        np.testing.assert_allclose(mine.values, other.values, rtol=rounding, atol=0.0, err_msg=repr(op))
        np.testing.assert_array_equal(mine.there, other.there, err_msg=repr(op))
        assert (mine.members, mine.labels, mine.pieces, mine.skipped, mine.nonfinite) == (
            other.members, other.labels, other.pieces, other.skipped, other.nonfinite,
        ), op  # fmt: skip
