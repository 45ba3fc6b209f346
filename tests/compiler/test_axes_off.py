"""Signals that axes name, switched off: what one is the mask of is off, too; what rows need of one is refused."""

from __future__ import annotations

from typing import Any

import pytest

import declog
from declog.errors import ConfigError

OFF = {"enabled": False}
ROWS: dict[str, Any] = {"axis": "completion"}
INTS: dict[str, Any] = {"axis": "completion", "type": "int"}
TOKENS: dict[str, Any] = {"axis": "token"}
ALL: dict[str, Any] = {"axis": "token", "mask": "all"}
BOOLS: dict[str, Any] = {"axis": "token", "type": "bool"}


@pytest.mark.parametrize("mask", ["mask", "other and mask"])
@pytest.mark.parametrize("expr", ["kl", "sum(kl, over=token)", "size(token)", "kl * mask", "derived", "d2"])
def test_what_a_mask_that_is_off_is_the_mask_of_is_off(expr: str, mask: str) -> None:
    """And no other metric."""
    signals = {"x": ROWS, "mask": {**BOOLS, **OFF}, "other": {**BOOLS, "mask": "all"}, "kl": TOKENS}
    derived = {"derived": "kl * 2", "d2": {"expr": "kl", "mask": "mask"}}
    metrics = {"m": {"expr": expr}, "f": {"formula": "m + 1"}, "w": {"expr": "x", "where": "size(token) > 1"},
               "x": "mean(x)"}  # fmt: skip
    config = {"axes": {"token": {"mask": mask}}, "signals": {"any": signals}, "derived": derived, "metrics": metrics}
    plan = declog.plan(config)
    assert [op.id for op in plan.outputs] == ["x", "logged"]
    off = dict(plan.inactive)
    assert [off[f"metrics.{name}"].count("the signal `mask` is off (enabled: false)") for name in "mfw"] == [1, 1, 1]


@pytest.mark.parametrize(
    ("axes", "metric", "path"),
    [
        ({"token": {"lengths": "row"}}, "mean(kl)", ("axes", "token", "lengths")),
        ({"group": {"of": "row"}}, "mean(std(x, over=completion))", ("axes", "group", "of")),
        ({"completion": {"ids": "row"}}, "mean(x * y)", ("axes", "completion", "ids")),
    ],
)
def test_what_rows_need_of_a_signal_that_is_off_is_refused(
    axes: dict[str, Any], metric: str, path: tuple[str, ...]
) -> None:
    """Once, where the axis names it; what does not read it is not touched."""
    signals = {
        "rollout": {"x": ROWS}, "update": {"y": ROWS}, "any": {"row": {**INTS, **OFF}, "kl": {**TOKENS, "mask": "all"}},
    }  # fmt: skip
    profile = {"axes": axes, "signals": signals}
    with pytest.raises(ConfigError) as raised:
        declog.plan({**profile, "metrics": {"m": metric, "n": {"expr": metric[5:-1], "reduce": "max"}}})
    assert [(problem.code, problem.path) for problem in raised.value.problems] == [("DL310", path)]
    assert "`row` is off (enabled: false)" in str(raised.value)
    assert [op.id for op in declog.plan({**profile, "metrics": {"y": "mean(y)"}}).outputs] == ["y", "logged"]
