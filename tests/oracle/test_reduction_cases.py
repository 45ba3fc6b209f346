"""Reductions over ranks, batches and steps, taken from other systems, through the public API."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from declog.language.moments import Moments
from declog.language.reductions import BUILTIN
from tests.language.runs import Step, values

DATA = Path(__file__).parents[1] / "data"
REDUCTIONS: list[dict[str, Any]] = json.loads((DATA / "reductions.json").read_text(encoding="utf-8"))


WITH_RANKS = [case for case in REDUCTIONS if "ranks" in case]


def _numbers(values: list[Any]) -> list[float]:
    return [math.nan if item == "nan" else float(item) for item in values]


def _reduced(case: dict[str, Any]) -> dict[str, Any]:
    return {
        "signals": {"any": {"x": {"axis": "completion"}}},
        "metrics": {"m": {"expr": "x", "reduce": case["reduce"], "nan": case.get("nan", "skip")}},
    }


@pytest.mark.parametrize("case", WITH_RANKS, ids=lambda case: case["id"])
def test_a_reduction_over_ranks(case: dict[str, Any]) -> None:
    """Each rank observes its values; what is logged does not depend on where they were."""
    ranks: list[list[Step]] = [[[{"x": _numbers(items)}]] for items in case["ranks"]]

    logged = values(_reduced(case), *ranks)

    assert ({} if case["expect"] is None else {"m": case["expect"]}) == pytest.approx(logged, rel=1e-12)


@pytest.mark.parametrize("case", WITH_RANKS, ids=lambda case: case["id"])
def test_a_reduction_over_batches(case: dict[str, Any]) -> None:
    """The same values as batches of one step, and as steps of one window."""
    batches = [{"x": _numbers(items)} for items in case["ranks"]]
    expected = {} if case["expect"] is None else {"m": pytest.approx(case["expect"], rel=1e-12)}

    assert expected == values(_reduced(case), [batches])
    assert expected == values({**_reduced(case), "every": len(batches)}, [[batch] for batch in batches])


def test_f01_merged_states() -> None:
    """F01 gives sums and counts, not values: they are merged as states."""
    (case,) = (case for case in REDUCTIONS if "parts" in case)
    whole = Moments.empty((1,))
    for part in (part for parts in case["parts"] for part in parts):
        n, total = np.array([float(part["count"])]), np.array([float(part["sum"])])
        whole = Moments.stacked([whole, Moments(n, total, np.zeros(1), total, total)]).pooled()
    mean = BUILTIN.get("mean")

    assert mean is not None
    assert [case["expect"]] == mean.run(whole).tolist()
