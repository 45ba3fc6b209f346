"""Overrides of the command line: short keys, expressions without a second pair of quotes, and what may be added."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from declog.config.compose import compose, config_of
from declog.config.overrides import taken
from declog.errors import CompositionError
from tests.cli.conftest import Cli
from tests.conftest import WritePreset


def read(text: str) -> Any:
    """A value as Hydra reads it."""
    (override,) = OverridesParser.create().parse_overrides([f"key={text}"])
    return override.value()


@pytest.mark.parametrize(
    "text",
    [
        "p95(reward)", "length > 512", 'length > 512 and x == "a"', "x == 'a'", "a == b", "bucket(length, 32, 64)",
        "{member}/{reduce}", "KL {kl:.3f}", "sum(rewards, over=member)", "x if y else 0", "clip_*", " padded ",
        r"matches(text, '\d+')", 'a "quoted" word', "back\\", 'both \\" of them', "50 %", "a: b", "tag:core", "",
    ],
)  # fmt: skip
def test_texts_are_taken_as_they_are(text: str) -> None:
    """Whatever Hydra's grammar thinks of it, the value is the text."""
    assert read(taken(text)) == text


@given(st.text(alphabet="abx 01.()[]{}<>=!,:'\"\\+-*/%&|^~$#@?_"))
def test_no_text_is_changed(text: str) -> None:
    """Either Hydra reads a value of its own grammar as ever, or the text comes through; nothing is mangled."""
    made = taken(text)
    if made == text:
        return
    value = read(made)
    assert value == text or isinstance(value, dict | list)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("1e-3", 0.001), ("true", True), ("null", None), ("[mean,std]", ["mean", "std"]), ("'3'", "3"),
        ('"p95(reward)"', "p95(reward)"), ("{expr: reward}", {"expr": "reward"}), ("slim", "slim"),
    ],
)  # fmt: skip
def test_hydras_values_stay_what_they_are(text: str, value: Any) -> None:
    """Numbers, lists, maps and what is quoted already."""
    assert taken(text) == text
    assert read(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{expr: reward, where: length > 512}", {"expr": "reward", "where": "length > 512"}),
        ("[mean(x), p95(x)]", ["mean(x)", "p95(x)"]),
        ("{expr: x, every: 2, log: false, empty: null}", None),
    ],
)
def test_maps_and_lists_are_read_as_yaml_where_hydra_refuses(text: str, value: Any) -> None:
    """Expressions in them need no quotes of their own."""
    assert read(taken(text)) == (value or {"expr": "x", "every": 2, "log": False, "empty": None})


def profile(small: Path, *words: str, name: str = "small") -> dict[str, Any]:
    """The profile that a command line composes."""
    return config_of(compose(name, words, config_dir=small))


@pytest.mark.parametrize(
    ("word", "path", "value"),
    [
        ("every=4", "every", 4),
        ("declog.every=4", "every", 4),
        ("run.strict=true", "run.strict", True),
        ("axes.group.size=4", "axes.group.size", 4),
        ("metrics.p=p95(reward)", "metrics.p", {"expr": "reward", "reduce": "p95"}),
        ("+metrics.p=p95(reward)", "metrics.p", {"expr": "reward", "reduce": "p95"}),
        ("metrics.p={expr: reward, where: length > 3}", "metrics.p.where", "length > 3"),
        ("metrics.length.where=length > 3 and reward < 1", "metrics.length.where", "length > 3 and reward < 1"),
        ("metrics.reward.where=length > 3", "metrics.reward.where", "length > 3"),
        ("metrics.length.reduce=[mean,p95]", "metrics.length.reduce", ["mean", "p95"]),
        ("tables.samples.to.jsonl=true", "tables.samples.to.jsonl", True),
        ("metrics.reward=null", "metrics.reward", None),
        ("constants.beta=0", "constants.beta", 0),
        ("sinks=[console]", "sinks", ["console"]),
        ("declog.sinks=[console]", "sinks", ["console"]),
        ("sink_options.jsonl.profile=full", "sink_options.jsonl.profile", "full"),
        ("declog=team", "run.name", "team"),
    ],
)
def test_short_words(small: Path, word: str, path: str, value: Any) -> None:
    """What people type, and what becomes of it."""
    data: Any = profile(small, word)
    for key in path.split("."):
        data = data[key]
    assert data == value


def test_several_words_build_on_each_other(small: Path) -> None:
    """An entry that one word adds is there for the next."""
    data = profile(small, "metrics.p={expr: reward}", "metrics.p.where=length > 3", "~metrics.reward")
    assert data["metrics"]["p"] == {"expr": "reward", "where": "length > 3"}
    assert data["metrics"]["reward"] is None
    assert list(profile(small, "sinks=[]").get("sinks") or {}) == []
    short = profile(small, "metrics.p=p95(reward)", "metrics.p.where=length > 3", "metrics.p.where=length > 4")
    assert short["metrics"]["p"] == {"expr": "reward", "reduce": "p95", "where": "length > 4"}


@pytest.mark.parametrize(
    ("word", "fix"),
    [
        ("metrics.rewrad.reduce=p95", "+declog.metrics.rewrad.reduce=p95"),
        ("constants.bet=0", "declog.constants.beta=0  or  +declog.constants.bet=0"),
        ("metrcs.reward=mean(reward)", "declog.metrics.reward="),
        ("declog=tem", "did you mean `team`?"),
    ],
)
def test_typos_are_refused(small: Path, cli: Cli, word: str, fix: str) -> None:
    """A key below an entry that nobody wrote is no new entry; exit code 3."""
    found = cli("check", "small", word, "--config-dir", str(small))
    assert (found.code, found.out) == (3, "")
    assert fix in found.err.partition("  fix: ")[2]


def test_all_wrong_words_are_reported_at_once(small: Path, cli: Cli) -> None:
    """One run, both mistakes."""
    found = cli("check", "small", "metrics.rewrad.reduce=p95", "evry=3", "--config-dir", str(small))
    assert found.err.count("error[DL101]") == 2


def test_sinks_are_listed_also_where_the_file_lists_none(write_preset: WritePreset) -> None:
    """A config without sinks; the other words hold."""
    folder = write_preset("bare", "signals: {any: {reward: {axis: completion}}}\nmetrics: {reward: mean(reward)}\n")
    data = profile(folder, "sinks=[console,jsonl]", "metrics.p=p95(reward)", name="bare")
    assert (list(data["sinks"]), data["metrics"]["p"]["reduce"]) == (["console", "jsonl"], "p95")


def test_a_file_that_is_named_without_its_ending(write_preset: WritePreset) -> None:
    """A name alone is a preset's; the file beside it is the nearest thing."""
    Path("mine.yaml").write_text("metrics: {}\n", encoding="utf-8")
    with pytest.raises(CompositionError) as caught:
        compose("mine")
    assert [problem.fix for problem in caught.value.problems] == ["did you mean the file `mine.yaml`?"]


def test_a_file_of_a_configuration_folder_is_named_before_a_preset_that_is_near(
    cli: Cli, write_preset: WritePreset
) -> None:
    """By itself, in a defaults list and chosen in an override; each fix works."""
    Path("conf/declog").mkdir(parents=True)
    Path("conf/declog/acme_grpo.yaml").write_text("defaults: [trl_grpo, _self_]\n", encoding="utf-8")
    Path("mine.yaml").write_text("defaults: [acme_grpo, _self_]\n", encoding="utf-8")
    for words in (["acme_grpo"], ["grpo", "declog=acme_grpo"]):
        assert "fix: did you mean the file `conf/declog/acme_grpo.yaml`?" in cli("check", *words).err
    fix = "`conf/declog/acme_grpo.yaml`: it is found from its own folder, or where `config_dir` is `conf`"
    assert fix in " ".join(cli("check", "mine.yaml").err.split())
    Path("mine.yaml").rename("conf/declog/mine.yaml")
    right = (
        ["conf/declog/acme_grpo.yaml"],
        ["conf/declog/mine.yaml"],
        ["--config-dir", "conf", "grpo", "declog=acme_grpo"],
    )
    assert [cli("check", *words).code for words in right] == [0, 0, 0]
    write_preset("team_grpo", "defaults: [trl_grpo, _self_]\n")
    assert "fix: did you mean the file `declog/team_grpo.yaml`?" in cli("check", "team_grpo").err
