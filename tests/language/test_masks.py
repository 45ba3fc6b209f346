"""A token signal says which of its tokens exist, or the profile is refused: a mean over padding is a wrong number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import declog
from declog.testing import MemorySink

TOKEN = {"axis": "token"}
BOOL = {"axis": "token", "type": "bool"}


@pytest.mark.parametrize(
    ("profile", "fix"),
    [
        ({"signals": {"any": {"lp": TOKEN}}}, "completion_mask"),
        ({"signals": {"any": {"lp": TOKEN, "m": BOOL}}}, "m"),
        ({"signals": {"any": {"lp": TOKEN, "tool": BOOL, "my_mask": BOOL}}}, "my_mask"),
        ({"signals": {"any": {"lp": TOKEN, "kl": {**TOKEN, "mask": "m"}, "m": BOOL}}}, "m"),
        ({"signals": {"any": {"lp": TOKEN}}}, "completion_mask"),
        ({"metrics": {"lp": {"observe": "token"}}}, "completion_mask"),
    ],
)
def test_a_token_signal_without_a_mask_is_refused(profile: dict[str, Any], fix: str) -> None:
    """Observed anywhere, used or not; the error names the mask that is there, or one to declare."""
    with pytest.raises(declog.ConfigError) as raised:
        declog.plan({"run": {"name": "x"}, "metrics": {}, **profile})
    problem = next(each for each in raised.value.problems if "lp" in each.path)
    assert problem.code == "DL203"
    assert str(problem.fix).startswith(f"axes: {{token: {{mask: {fix}}}}}")


def test_all_signals_without_a_mask_are_one_mistake() -> None:
    """Class: one omission that many lines share is reported once, with their places."""
    with pytest.raises(declog.ConfigError) as raised:
        declog.plan({"signals": {"update": {"m": BOOL, "a": TOKEN, "b": TOKEN}}})
    (problem,) = raised.value.problems
    assert problem.related == (("signals", "update", "a"), ("signals", "update", "b"))


@pytest.mark.parametrize(
    "profile",
    [
        {"axes": {"token": {"mask": "m"}}, "signals": {"any": {"lp": TOKEN, "m": BOOL}}},
        {"axes": {"token": {"mask": "all"}}, "signals": {"any": {"lp": TOKEN}}},
        {
            "axes": {"token": {"lengths": "n"}},
            "signals": {"any": {"lp": TOKEN, "n": {"axis": "completion", "type": "int"}}},
        },
        {"signals": {"any": {"lp": {**TOKEN, "mask": "m"}, "m": BOOL}}},
        {"signals": {"any": {"lp": {**TOKEN, "mask": "m and k"}, "m": BOOL, "k": BOOL}}},
        {"signals": {"any": {"lp": {**TOKEN, "mask": "all"}}}},
        {"signals": {"any": {"lp": {**TOKEN, "enabled": "beta != 0"}}}, "constants": {"beta": 0}},
    ],
)
def test_where_it_is_said_the_profile_compiles(profile: dict[str, Any]) -> None:
    """By the axis, by the signal, by packed lengths; the mask itself needs none, nor what is switched off."""
    assert declog.plan({"run": {"name": "x"}, **profile}).name == "x"


@pytest.mark.parametrize(("mask", "expected"), [("m", 1.0), ("all", 0.375)])
def test_each_half_of_the_fix_gives_its_number(mask: str, expected: float, tmp_path: Path) -> None:
    """The mean over the tokens that exist, or over all."""
    profile = {
        "axes": {"token": {"mask": mask}},
        "signals": {"any": {"lp": TOKEN, "m": BOOL}},
        "metrics": {"lp": "mean(lp)"},
    }
    sink = MemorySink()
    with declog.start(profile, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        tokens = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]])
        log.observe(lp=tokens.double(), **({"m": tokens.bool()} if mask == "m" else {}))
    assert sink.scalars[0]["lp"] == expected
