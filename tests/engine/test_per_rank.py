"""`axes: {rank: each}`: a value for each rank that there is, of whatever can be one rank's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.language.runs import record, values

ROWS = {"axis": "completion"}
BATCHES = {0: [1.0, 2.0, 7.0, 9.0], 1: [3.0, 4.0]}


@pytest.mark.parametrize("reduce", ["mean", "sum", "count", "p50", "max"])
def test_a_rank_of_which_nothing_counts_is_there(reduce: str) -> None:
    """With `empty` it has that, as a job of one rank has; without, no value."""
    metrics = {"m": {"expr": "x", "reduce": reduce, "where": "x > 5", "empty": 0}, "n": {"expr": "x", "where": "x > 5"}}
    profile = {"axes": {"rank": "each"}, "signals": {"any": {"x": ROWS}}, "metrics": metrics}
    found = values(profile, *([[{"x": rows}]] for rows in BATCHES.values()))
    right = {"mean": 8.0, "sum": 16.0, "count": 2, "p50": 8.0, "max": 9.0}[reduce]
    assert found == {"m/rank0": right, "m/rank1": 0.0, "n/rank0": 8.0}


@pytest.mark.parametrize("more", [{}, {"over": "run"}, {"combine": "ema(0.5)"}, {"combine": "rolling(5)"}])
def test_each_of_many_ranks_has_its_value(more: dict[str, Any]) -> None:
    """No rank is pooled with others, as the rarest of many labels are."""
    ranks = 66
    profile = {
        "axes": {"rank": "each"},
        "signals": {"any": {"x": ROWS}},
        "metrics": {"x": {"expr": "x", "reduce": "mean", **more}},
    }
    found = values(profile, *([[{"x": [float(rank)]}]] for rank in range(ranks)))
    assert found == {f"x/rank{rank}": float(rank) for rank in range(ranks)}


def test_what_is_of_all_ranks_stays_that() -> None:
    """A value per batch over all ranks, and a quantile of tokens, are nobody's own."""
    profile = {
        "axes": {"rank": "each", "group": {"size": 2}, "token": {"mask": "all"}},
        "signals": {"any": {"x": ROWS, "t": {"axis": "token"}}},
        "metrics": {
            "best": "mean(max(mean(x, over=completion), over=group))", "x": "mean(x)", "t": "max(t)", "q": "p100(t)",
        },
    }  # fmt: skip
    steps = [[[{"x": rows, "t": [[row] for row in rows]}]] for rows in BATCHES.values()]
    best = max(float(np.mean(pair)) for rows in BATCHES.values() for pair in np.reshape(rows, (-1, 2)))
    assert record(profile, *steps).scalars == {
        0: {"best": best, "x/rank0": 4.75, "x/rank1": 3.5, "t/rank0": 9.0, "t/rank1": 4.0, "q": 9.0}
    }
