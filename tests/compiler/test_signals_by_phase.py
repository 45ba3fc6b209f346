"""Signals stand under their phases: a plan depends on what is said there, and not on the order in which it is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import declog
from declog.plans.fingerprint import canonical
from tests.compiler.golden import PRESETS

ROWS = {"axis": "completion"}
TOKENS = {"axis": "token", "mask": "all"}


def by_name(value: Any) -> Any:
    """The value with the keys of all its maps in the order of the alphabet."""
    if isinstance(value, dict):
        return {key: by_name(value[key]) for key in sorted(value)}
    return [by_name(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("preset", [preset.stem for preset in PRESETS])
def test_the_order_of_keys_changes_no_plan(preset: str) -> None:
    """Class: a plan hangs on how its config is written. A preset's keys by the alphabet give the plan of the preset."""
    data = declog.config_of(declog.compose(preset))
    plans = [declog.compile(declog.validate(each)) for each in (data, by_name(data))]
    assert canonical(plans[0]) == canonical(plans[1])
    assert plans[0].fingerprint == plans[1].fingerprint


@pytest.mark.parametrize("phases", [("rollout", "update"), ("update", "rollout")])
def test_a_step_begins_with_rollout_and_ends_with_update(phases: tuple[str, str]) -> None:
    """A reward is looked up for the update's rows, whichever phase is declared first."""
    signals = {phase: {{"rollout": "reward", "update": "gain"}[phase]: ROWS} for phase in phases}
    plan = declog.plan({"run": {"name": "x"}, "signals": signals, "metrics": {"both": "mean(reward * gain)"}})
    assert [(join.source, join.target) for join in plan.joins] == [("rollout", "update")]


def problems(config: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    """What is wrong with a config: the codes, the paths and the fixes."""
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan(config)
    return [(each.code, ".".join(map(str, each.path)), each.fix) for each in caught.value.problems]


@pytest.mark.parametrize(
    "reads",
    [
        {"metrics": {"m": "mean(a * b)"}},
        {"metrics": {"m": {"expr": "a", "weight": "b"}}},
        {"metrics": {"m": {"expr": "a", "by": ["b > 0", "a > 0"]}}},
        {"schemas": {"s": {"a": {}, "b": {}}}, "tables": {"t": {"schema": "s"}}, "sinks": ["jsonl"]},
        {"filters": {"f": {"key": "a", "top": 1, "where": "b > 0"}}},
    ],
)
def test_phases_whose_order_nobody_says_are_not_joined(reads: dict[str, Any]) -> None:
    """Class: a join's direction hangs on the order of packs. Metrics, their weights, labels, tables and filters."""
    fix = "call the earlier one `rollout`, or the later one `update`"
    found = problems({"signals": {"sampling": {"a": ROWS}, "judging": {"b": ROWS}}, **reads})
    assert {(code, said) for code, _, said in found} == {("DL313", fix)}


def test_a_signal_of_several_phases_is_declared_alike_in_each() -> None:
    """All but the help: one declaration says what it is, and the other cannot say something else."""
    alike = {"rollout": {"a": {**ROWS, "help": "first"}}, "update": {"a": ROWS, "b": ROWS}}
    plan = declog.plan({"run": {"name": "x"}, "signals": alike, "metrics": {"m": "mean(a * b)"}})
    assert [op.homes for op in plan.phases["update"].signals] == [("rollout", "update"), ("update",)]
    apart = {"rollout": {"a": ROWS}, "update": {"a": TOKENS}}
    fix = "declare it alike in both, or delete it in one: signals.update.a: null"
    assert problems({"signals": apart, "metrics": {"a": {}}}) == [("DL402", "signals.update.a", fix)]


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"signals": {"any": {"a": ROWS}, "rollout": {"a": ROWS}}}, "signals.rollout.a"),
        ({"signals": {"rollout": {"a": ROWS}}, "derived": {"a": "1"}}, "derived.a"),
    ],
)
def test_a_name_has_one_meaning(config: dict[str, Any], path: str) -> None:
    """Observed wherever it is needed or in a phase, observed or derived."""
    fix = "delete one of them"
    assert problems({**config, "metrics": {"m": "mean(a)"}}) == [("DL402", path, fix)]


def test_what_deletes_a_signal_names_its_phase(tmp_path: Path) -> None:
    """Class: a line of 0.1 deletes nothing any more, and says so with the line that does."""
    (tmp_path / "mine.yaml").write_text("defaults: [grpo, _self_]\nsignals: {kl: null, truncated: null}\n")
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan(declog.compose(tmp_path / "mine.yaml"))
    assert {each.fix for each in caught.value.problems} >= {
        "derived: {kl: null}", "signals: {rollout: {truncated: null}}",
    }  # fmt: skip
