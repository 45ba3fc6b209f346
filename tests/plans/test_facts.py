"""The facts of a plan, which `diff` and the lock compare: where a metric's values would differ, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import declog
from declog.plans.words import facts

SIGNALS = {
    "t": {"axis": "token"}, "u": {"axis": "token"}, "row": {"axis": "completion"},
    "mask": {"axis": "token", "type": "bool"}, "answer": {"axis": "token", "type": "bool"},
}  # fmt: skip
METRICS = {"z": "mean(t)", "long": "mean(row * mean(t, over=token))"}


def outputs(metrics: Mapping[str, Any], mask: str = "mask") -> Mapping[str, tuple[str, ...]]:
    config = {"axes": {"token": {"mask": mask}}, "signals": {"any": SIGNALS}, "metrics": metrics}
    plan = declog.plan(config)
    return facts(plan, plan)["outputs"]


@pytest.mark.parametrize("further", ["mean(u)", "std(t)", "max(row * mean(u, over=token))", "p50(t)"])
def test_a_further_metric_changes_no_other(further: str) -> None:
    """Folds and columns are numbered by all metrics: their numbers decide no value, and are in no fact."""
    before, after = outputs(METRICS), outputs({"a": further, **METRICS})
    assert {name: after[name] for name in before} == before


def test_another_mask_changes_what_it_masks() -> None:
    """Which tokens exist is no part of an expression, and decides its values."""
    metrics = {"z": METRICS["z"], "row": "mean(row)"}
    before, after = outputs(metrics), outputs(metrics, mask="answer")
    assert [name for name in before if before[name] != after[name]] == ["z"]


@pytest.mark.parametrize(
    "key", ["every: 2", "empty: 0", "over: batch", "nan: propagate", "where: row > 0", "weight: row", "reduce: max",
            "max_labels: 3", "over: run", "when: z > 1"],
)  # fmt: skip
def test_each_key_that_decides_values_is_in_the_facts(key: str) -> None:
    """With the words equal or not."""
    name, _, value = key.partition(": ")
    entry = {"expr": "row", name: int(value) if value.isdigit() else value}
    before, after = (outputs({"z": "mean(t)", "m": metric}) for metric in ({"expr": "row"}, entry))
    assert before["z"] == after["z"] and before["m"] != after["m"]
