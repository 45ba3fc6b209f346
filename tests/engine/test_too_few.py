"""What is computed of a group with too few rows is absent, as `reduce: std` of one row: no NaN, and no alarm."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.runtime.ranks.comm import Comm
from declog.testing import MemorySink, run_ranks
from tests.running import logged, profile

ROWS = {"axis": "completion"}
SIGNALS: dict[str, Any] = {
    "id": {**ROWS, "type": "int"}, "x": ROWS, "right": {**ROWS, "type": "bool"}, "text": {**ROWS, "type": "text"},
    "scores": {**ROWS, "family": True}, "value": {"axis": "group"},
    "mask": {"axis": "token", "type": "bool"}, "lp": {"axis": "token"},
}  # fmt: skip
EXPRESSIONS: dict[str, tuple[str, dict[str, Any], dict[str, Any], float]] = {  # too little, enough, and what that is
    "std of a group": ("std(x, over=completion)", {"x": [1, 2]}, {"x": [1, 2, 3, 3], "id": [1, 1, 2, 3]}, 0.5**0.5),
    "var of a group": ("var(x, over=completion)", {"x": [1, 2]}, {"x": [1, 3], "id": [1, 1]}, 2.0),
    "what is made of one": ("1 + 2 * std(x, over=completion)", {"x": [1, 2]}, {"x": [1, 1], "id": [1, 1]}, 1.0),
    "each row's": ("x - std(x, over=completion)", {"x": [1, 2]}, {"x": [3, 3, 9], "id": [1, 1, 2]}, 3.0),
    "of bools": ("std(right, over=completion)", {"right": [True, False]}, {"right": [True, True], "id": [1, 1]}, 0.0),
    "of members": ("std(scores, over=member)", {"scores": {"a": [1, 2]}}, {"scores": {"a": [1], "b": [1]}}, 0.0),
    "of members of a group": ("std(scores, over=completion)", {"scores": {"a": [1, 2]}},
                              {"scores": {"a": [1, 1, 5]}, "id": [1, 1, 3]}, 0.0),
    "of groups": ("std(max(x, over=completion), over=group)", {"x": [4, 1], "id": [1, 1]}, {"x": [1, 1]}, 0.0),
    "of values per group": ("std(value, over=group)", {"value": [2], "x": [1]}, {"value": [2, 2], "x": [1, 1]}, 0.0),
    "distances": ("jaccard(text, over=completion)", {"text": ["a b", "c"]},
                  {"text": ["a", "a", "z"], "id": [1, 1, 2]}, 0.0),
    "pass@2": ("pass_at(right, 2)", {"right": [True, False]}, {"right": [True, False, True], "id": [1, 1, 2]}, 1.0),
    "pass^2": ("pass_all(right, 2)", {"right": [True, False]}, {"right": [True, True, False], "id": [1, 1, 2]}, 1.0),
    "best@3": ("best_at(x, 3)", {"x": [5, 1]}, {"x": [5, 1, 2, 7], "id": [1, 1, 1, 2]}, 5.0),
    "majority@2": ("majority_at(text, right, 2)", {"text": ["a", "b"], "right": [True, True]},
                   {"text": ["a", "a", "b"], "right": [True, True, False], "id": [1, 1, 2]}, 1.0),
    "std of tokens": ("std(lp, over=token)", {"lp": [[1.0, 9], [2, 9]], "mask": [[True, False]] * 2},
                      {"lp": [[1.0, 1], [2, 9]], "mask": [[True, True], [True, False]]}, 0.0),
    "each token's": ("lp - std(lp, over=token)", {"lp": [[1.0, 9], [2, 9]], "mask": [[True, False]] * 2},
                     {"lp": [[1.0, 1], [2, 9]], "mask": [[True, True], [True, False]]}, 1.0),
    "a side of tokens": ("var(lp, over=token) if lp > 0 else lp",
                         {"lp": [[1.0, 9], [2, 9]], "mask": [[True, False]] * 2},
                         {"lp": [[1.0, 1], [-2, 9]], "mask": [[True, True], [True, False]]}, 0.0),
    "tokens of tokens": ("mean(lp / (1 + std(lp, over=token)), over=token)",
                         {"lp": [[1.0, 9], [2, 9]], "mask": [[True, False]] * 2},
                         {"lp": [[4.0, 4], [2, 9]], "mask": [[True, True], [True, False]]}, 4.0),
}  # fmt: skip


def config(expr: str, **metric: Any) -> dict[str, Any]:
    alerts = {"odd": {"when": "not isfinite(m)", "level": "error", "text": "{m}"}}
    axes = {"group": {"of": ["id"]}, "token": {"mask": "mask"}}
    return profile(SIGNALS, {"m": {"expr": expr, **metric}}, axes=axes, alerts=alerts)


def given(columns: dict[str, Any]) -> dict[str, Any]:
    """A batch whose rows are each a group, where it does not say otherwise."""
    rows = max(len(next(iter(item.values())) if isinstance(item, dict) else item) for item in columns.values())
    return {"id": list(range(rows)), **columns}


@pytest.mark.parametrize("nan", ["skip", "propagate", "raise"])
@pytest.mark.parametrize("case", EXPRESSIONS)
def test_what_has_too_few_rows_is_absent(case: str, nan: str, tmp_path: Path) -> None:
    """Over completions, groups, members and tokens: nothing is logged of groups of one, and others count alone."""
    expr, few, enough, value = EXPRESSIONS[case]
    found = config(expr, nan=nan)
    assert logged(found, [given(few)], tmp_path / "few") == {}
    assert list(logged(found, [given(enough)], tmp_path / "enough").values()) == [pytest.approx(value)]


def test_missing_values_are_no_few_rows(tmp_path: Path) -> None:
    """A group of nothing but missing values is missing, and says so; of one value beside them it has one."""
    found = config("std(x, over=completion)")
    assert math.isnan(logged(found, [{"x": [math.nan] * 2, "id": [1, 1]}], tmp_path / "a")["m"])
    assert logged(found, [{"x": [math.nan, 1.0], "id": [1, 1]}], tmp_path / "b") == {}
    assert math.isnan(logged(found, [{"x": [math.inf, 1.0], "id": [1, 1]}], tmp_path / "c")["m"])


def test_a_condition_and_a_formula_know_that_it_is_absent(tmp_path: Path) -> None:
    """`present` answers, and a formula of what is absent is absent."""
    data = config("1 if present(std(x, over=completion)) else 0") | {"run": {"strict": False}}
    data["metrics"] |= {"spread": "mean(std(x, over=completion))", "twice": {"formula": "2 * spread"}}
    assert logged(data, [{"x": [1.0, 2.0], "id": [1, 2]}], tmp_path) == {"m": 0.0}


@pytest.mark.parametrize("split", ["none", "ranks"])
def test_groups_of_one_over_ranks(split: str, tmp_path: Path) -> None:
    """A group of one row on each of two ranks is one of two where groups are spread, and else has no deviation."""

    def rank(comm: Comm) -> MemorySink:
        sink, data = MemorySink(), config("std(x, over=completion)")
        data["axes"]["group"]["split"] = split
        with declog.start(data, sinks=[sink], output_dir=tmp_path, comm=comm) as log, log.step(0):
            log.observe(x=[float(comm.rank)], id=[7])
        return sink

    assert run_ranks(2, rank)[0].scalars.get(0, {}) == ({"m": pytest.approx(0.5**0.5)} if split == "ranks" else {})


ONE: dict[str, tuple[list[str], dict[str, Any]]] = {
    "maxent_grpo": (["sinks=[]"], {"prompt_id": [0, 1], "completion": ["a b", "c d"]}),
    "grpo": (["axes.group.size=1"], {"reward": [1.0, 0.0]}),
    "rloo": ([], {"reward": [1.0, 0.0], "group": ["a", "b"]}),
}  # fmt: skip


@pytest.mark.parametrize("preset", ONE)
def test_one_completion_per_prompt_is_no_alarm(preset: str, tmp_path: Path) -> None:
    """Presets log nothing that is not a number, and raise no alert, of what one completion cannot have."""
    overrides, columns = ONE[preset]
    sink = MemorySink()
    with declog.start(preset, ["sinks=[]", *overrides], sinks=[sink], output_dir=tmp_path) as log:
        for step in range(4):
            with log.step(step):
                log.observe(**columns)
    values = {name: value for one in sink.scalars.values() for name, value in one.items()}
    assert [name for name, value in values.items() if math.isnan(value) or name.startswith("nonfinite")] == []
    assert (sink.alerts, log.failures) == ([], {})
