"""A profile that was planned is not planned again: the plan is the same object where nothing it is made of differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import declog
from declog.language.reductions import DEFAULT, Reductions
from tests.conftest import WritePreset
from tests.running import profile, run

PROFILE: dict[str, Any] = {
    "run": {"name": "shared"}, "constants": {"beta": {"default": 0.0}},
    "signals": {"any": {"x": {"axis": "completion"}, "kl": {"axis": "completion", "enabled": "beta != 0"}}},
    "metrics": {"x": {"expr": "x", "every": 1}, "kl": "mean(kl)"},
}  # fmt: skip


def test_equal_profiles_have_one_plan() -> None:
    """Mappings by what they say, a composed profile by itself, whoever starts it."""
    composed = declog.compose("minimal")
    assert declog.plan(PROFILE) is declog.plan({**PROFILE})
    assert declog.plan(composed) is declog.plan(composed)
    assert declog.plan(PROFILE).canonical == declog.compile(declog.validate(PROFILE)).canonical


@pytest.mark.parametrize(
    "other", [{"metrics": {"x": {"expr": "x", "every": 2}}}, {"axes": {"group": {"size": 2}}}], ids=str
)
def test_what_differs_has_its_own(other: dict[str, Any]) -> None:
    """Each value of a profile counts."""
    assert declog.plan({**PROFILE, **other}).canonical != declog.plan(PROFILE).canonical


def test_constants_and_profiles_count() -> None:
    """What an adapter gives, and what sinks in code show."""
    plans = [
        declog.plan(PROFILE), declog.plan(PROFILE, constants={"beta": 0.1}), declog.plan(PROFILE, profiles=["slim"]),
    ]  # fmt: skip
    assert ["kl" in [op.id for op in plan.outputs] for plan in plans] == [False, True, False]
    assert len({id(plan) for plan in plans}) == 3


def test_registered_functions_count(tmp_path: Path) -> None:
    """One of the same name that was registered since is the one that runs."""
    registry = Reductions(DEFAULT)
    found = []
    for level in (1.0, 2.0):

        def mine(values: np.ndarray, *, level: float = level) -> float:
            return level

        registry.discard("mine")
        declog.reducer(mine, registry=registry)
        made = profile(PROFILE["signals"]["any"], {"x": "mine(x)"}, constants=PROFILE["constants"])
        found.append(run(made, body, tmp_path / str(level), reductions=registry).scalars[0]["x"])
    assert found == [1.0, 2.0]


def body(log: declog.Recorder) -> None:
    """One step."""
    with log.step(0):
        log.observe(x=[5.0])


def test_a_file_that_was_edited_is_read_again(write_preset: WritePreset) -> None:
    """A name stands for what its file says now."""
    text = "run: {name: mine}\nsignals: {any: {x: completion}}\nmetrics: {x: %s}\n"
    folder: Path = write_preset("mine", text % "mean(x)")
    first = declog.plan(declog.compose("mine", config_dir=folder))
    write_preset("mine", text % "sum(x)")
    second = declog.plan(declog.compose("mine", config_dir=folder))
    assert [plan.canonical["metrics.x.reduce"] for plan in (first, second)] == ["mean", "sum"]
