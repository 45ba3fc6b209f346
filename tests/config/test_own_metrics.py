"""A metric of one's own is in `full`; `only` is a closed list, and `check` says what of one's own it leaves out."""

from __future__ import annotations

import pytest

import declog
from declog.cli import main
from tests.conftest import WritePreset

NOTE = "note: no sink shows "


def shown(plan: declog.Plan) -> list[str]:
    """The metrics of one's own that a sink shows."""
    profiles = [plan.profiles[sink.profile] for sink in plan.sinks]
    return sorted({key for profile in profiles for key, _ in profile.outputs if key.startswith("mine")})


@pytest.mark.parametrize(
    ("own", "expected", "unseen"),
    [
        ("metrics: {mine: p95(reward)}", ["mine"], []),
        ("profile: slim\nmetrics: {mine: p95(reward), mine_too: {expr: reward, log: false}}", [], ["mine"]),
        ("profile: slim\nmetrics: {mine: {expr: reward, tags: core}, mine_b: mean(reward)}", ["mine"], ["mine_b"]),
        ("profile: slim\nmetrics: {mine: p95(reward)}\nprofiles: {slim: {only: [mine]}}", ["mine"], []),
        ("metrics: {mine: p95(reward)}\nprofiles: {full: {hide: [mine]}}", [], ["mine"]),
        ("metrics: {mine: p95(reward)}\nsink_options: {console: {profile: slim}}", ["mine"], []),
        ("profile: slim\nmetrics: {mine: {expr: reward, enabled: false}}", [], []),
        ("profile: slim\nmetrics: {mine: mean(reward)}\nalerts: {mine: '> 5'}", [], ["mine"]),
    ],
)  # fmt: skip
def test_a_profile_shows_what_it_says(
    write_preset: WritePreset, capsys: pytest.CaptureFixture[str], own: str, expected: list[str], unseen: list[str]
) -> None:
    """Who declares a metric changes nothing, and the file is as its data; the note of `check` is about one's own."""
    directory = write_preset("own", f"defaults: [grpo, _self_]\n{own}\n")
    composed = declog.compose("own", config_dir=directory)
    plans = [declog.plan(composed), declog.plan(declog.config_of(composed))]
    assert [shown(plan) for plan in plans] == [expected, expected]
    assert plans[0].fingerprint == plans[1].fingerprint
    assert [{*plan.unseen} & {"mine", "mine_b", "mine_too"} for plan in plans] == [{*unseen}] * 2
    assert main(["check", "own", "--config-dir", str(directory)]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith(NOTE)]
    noted = [] if "hide" in own else unseen
    assert [line.removeprefix(NOTE).partition(":")[0] for line in notes] == [f"`{name}`" for name in noted]


def test_an_override_is_as_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    """What a shell adds to a preset is one's own; what the preset leaves out of its own short list is no news."""
    words = ["grpo", "metrics.mine=p95(reward)", "profile=slim"]
    assert shown(declog.plan("grpo", words[1:])) == []
    assert main(["check", *words]) == 0
    assert NOTE + "`mine`:" in capsys.readouterr().out
    assert main(["check", "grpo", "profile=slim"]) == 0
    assert NOTE not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("own", "noted"),
    [
        ("profile: paper\nprofiles: {paper: {only: [reward]}}", False),
        ("profile: paper\nprofiles: {paper: {only: [reward], show: [kl]}}", False),
        ("sink_options: {console: {profile: paper}, parquet: {profile: slim}}\nprofiles: {paper: {only: [kl]}}", True),
        ("profile: paper\nprofiles: {paper: {hide: [mine]}}", False),
        ("profile: slim\nprofiles: {slim: {hide: [kl, mine]}}", False),
        ("profile: slim\nprofiles: {slim: {hide: [kl]}}", True),
        ("profile: slim", True),  # the list is the preset's
    ],
)
def test_a_closed_list_of_ones_own_leaves_out_on_purpose(
    write_preset: WritePreset, capsys: pytest.CaptureFixture[str], own: str, noted: bool
) -> None:
    """Class: a metric that a profile of one's own leaves out of its `only`, or names in its `hide`, has no note."""
    directory = write_preset("own", f"defaults: [grpo, _self_]\nmetrics: {{mine: p95(reward)}}\n{own}\n")
    assert main(["check", "own", "--config-dir", str(directory)]) == 0
    assert (NOTE in capsys.readouterr().out) is noted
