"""Families that declare their members: a misspelt one is found before step 0, an undeclared one where it comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import declog
from declog.errors import ConfigError, InputError
from declog.testing import MemorySink
from tests.running import logged, profile

ROWS = {"axis": "completion"}
SIGNALS: dict[str, Any] = {
    "rewards": {**ROWS, "family": ["format", "accuracy"]}, "others": {**ROWS, "family": True},
}  # fmt: skip
DERIVED = {"scaled": "2 * rewards"}
GIVEN = {"rewards": {"accuracy": [1.0, 0.0], "format": [1.0, 1.0]}}


def refused(metrics: dict[str, Any], **others: Any) -> list[tuple[str, str, str]]:
    """What is wrong with a profile: where, what, and the fix."""
    with pytest.raises(ConfigError) as caught:
        declog.plan(profile(SIGNALS, metrics, derived=DERIVED, **others))
    return [(each.key, each.message, str(each.fix)) for each in caught.value.problems]


def test_members_are_named_as_in_any_family(tmp_path: Path) -> None:
    """One that does not come is absent."""
    metrics = {"rewards": {"reduce": "mean"}, "one": "mean(member(scaled, 'accuracy'))"}
    assert logged(profile(SIGNALS, metrics, derived=DERIVED), [GIVEN], tmp_path / "both") == {
        "rewards/accuracy": 0.5, "rewards/format": 1.0, "one": 1.0,
    }  # fmt: skip
    some = [{"rewards": {"format": [1.0]}}]
    assert logged(profile(SIGNALS, metrics, derived=DERIVED), some, tmp_path / "one") == {"rewards/format": 1.0}


def test_a_member_that_is_misspelt_is_found_before_step_0() -> None:
    """In an expression, also of a derived family, and in a selector; of a family of any members it cannot be."""
    assert refused({"m": "mean(member(rewards, 'acuracy'))", "n": "mean(member(scaled, 'formt'))"}) == [
        ("metrics.m", "`rewards` has no member `acuracy`", "did you mean `accuracy`?"),
        ("metrics.n", "`scaled` has no member `formt`", "did you mean `format`?"),
    ]
    found = refused({"rewards": "mean(rewards)"}, profiles={"slim": {"only": ["rewards/acuracy"]}}, profile="slim")
    assert [(key, message) for key, message, _ in found] == [
        ("profiles.slim.only.0", "`rewards/acuracy` matches nothing")
    ]
    free = profile(
        SIGNALS, {"others": "mean(others)", "m": "mean(member(others, 'x'))"}, profiles={"slim": {"only": ["others/y"]}}
    )
    assert [op.key for op in declog.plan(free).metrics if op.id != "logged"] == ["others", "m"]


def test_members_are_selected_by_name(tmp_path: Path) -> None:
    """As trackers show them, and by a glob of those."""
    metrics = {"rewards": {"reduce": ["mean", "max"], "name": "r/{member}/{reduce}"}}
    for words, expected in (
        ("r/format/mean", {"r/format/mean": 1.0}),
        ("r/acc*", {"r/accuracy/mean": 0.5, "r/accuracy/max": 1.0}),
    ):
        config = profile(SIGNALS, metrics, derived=DERIVED, profiles={"slim": {"only": [words]}}, profile="slim")
        assert logged(config, [GIVEN], tmp_path / words[-3:].strip("*")) == expected


def test_a_name_that_a_member_has_is_not_taken_twice() -> None:
    """The names are known before step 0."""
    found = refused({
        "rewards": "mean(rewards)", "m": {"expr": "rewards", "reduce": "max", "name": "rewards/{member}"},
        "format": {"expr": "member(rewards, 'format')", "name": "rewards/format"},
    })  # fmt: skip
    assert [(key, message) for key, message, _ in found] == [
        ("metrics.m.name", "`rewards` and `m` both write `rewards/format`"),
        ("metrics.m.name", "`rewards` and `m` both write `rewards/accuracy`"),
        ("metrics.format.name", "`rewards` and `format` both write `rewards/format`"),
    ]


def test_a_member_that_nobody_declared_is_refused_where_it_is_given(tmp_path: Path) -> None:
    """With the nearest one."""
    config = profile(SIGNALS, {"rewards": "mean(rewards)"})
    with declog.start(config, sinks=[MemorySink()], output_dir=tmp_path) as log, log.step(0):
        with pytest.raises(InputError) as caught:
            log.observe(rewards={"acuracy": [1.0], "format": [1.0]})
        log.observe(**GIVEN)
    assert str(caught.value) == (
        "[DL501] the family `rewards` declares no member `acuracy`\n  fix: did you mean `accuracy`?"
    )
