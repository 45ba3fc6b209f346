"""What one's own file adds is seen: in every profile that a package declares, unless it says otherwise."""

from __future__ import annotations

import pytest

import declog
from tests.conftest import WritePreset


def shown(plan: declog.Plan, profile: str) -> list[str]:
    """The metrics of one's own in a profile."""
    return sorted(key for key, _ in plan.profiles[profile].outputs if key.startswith("mine"))


@pytest.mark.parametrize(
    ("own", "expected", "warnings"),
    [
        ("metrics: {mine: p95(reward), mine_too: {expr: reward, log: false}}", ["mine"], []),
        ("metrics: {mine: p95(reward)}\nprofiles: {slim: {exclude: mine}}", [],
         ["no sink shows `mine`: include it in the profile (slim), or say `log: false`"]),
        ("metrics: {mine: p95(reward)}\nprofiles: {slim: [reward]}", [],
         ["no sink shows `mine`: include it in the profile (slim), or say `log: false`"]),
        ("metrics: {mine: p95(reward), mine_b: mean(reward)}\nprofiles: {slim: [mine_b]}", ["mine_b"],
         ["no sink shows `mine`: include it in the profile (slim), or say `log: false`"]),
    ],
)  # fmt: skip
def test_a_metric_of_ones_own_is_in_the_shipped_profiles(
    write_preset: WritePreset, own: str, expected: list[str], warnings: list[str]
) -> None:
    """The shipped `slim` could not name it; an `exclude`, an `include` and `log: false` of one's own are obeyed."""
    directory = write_preset("own", f"defaults: [grpo, _self_]\nprofile: slim\n{own}\n")
    made = declog.plan(declog.compose("own", config_dir=directory))
    assert (shown(made, "slim"), [text for text in made.warnings if "`mine" in text]) == (expected, warnings)


def test_one_that_an_override_adds_is_ones_own() -> None:
    """From the shell as from a file."""
    made = declog.plan(declog.compose("grpo", ["+declog.metrics.mine=p95(reward)", "declog.profile=slim"]))
    assert shown(made, "slim") == ["mine"]
