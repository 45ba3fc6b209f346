"""``declog show``: names, the YAML in effect with its places, and who set a key."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

import declog
from declog.config.files import YamlLoader
from declog.plans.words import explain
from tests.cli.conftest import Cli
from tests.conftest import WritePreset
from tests.docs.markdown import ROOT
from tests.running import output_words


def lines(text: str) -> dict[str, str]:
    """What is shown, by what stands before its comment."""
    return {line.partition("  #")[0].strip(): line.partition("  # ")[2] for line in text.splitlines()}


def squeezed(text: str) -> list[str]:
    """Lines whose columns stand two blanks apart."""
    return [re.sub("  +", "  ", line) for line in text.splitlines()]


def test_the_profile_with_the_place_of_each_value(small: Path, cli: Cli) -> None:
    """The file that wins, or the override; a deleted entry is shown as such."""
    shown = lines(cli("show", "team", "every=4", "--yaml", "--config-dir", ".").out)
    assert shown["reduce: p95"] == "declog/team.yaml:6:3"
    assert shown["penalised: null"] == "declog/team.yaml:7:3"
    assert shown["name: completions/{reduce}_length"] == "declog/small.yaml:19:47"
    assert shown["every: 4"] == "override 'declog.every=4'"
    assert shown["sinks: [jsonl]"] == "declog/small.yaml:3:1"


@pytest.mark.parametrize("name", ["small", "team"])
def test_what_is_shown_is_the_profile(small: Path, cli: Cli, name: str) -> None:
    """Read back as YAML it is what the runtime gets."""
    shown = yaml.load(cli("show", name, "--yaml", "--config-dir", ".").out, YamlLoader)
    assert shown == declog.config_of(declog.compose(name, config_dir="."))


@pytest.mark.parametrize("name", declog.presets())
def test_shipped_presets_are_shown_whole(cli: Cli, name: str) -> None:
    """Every value but profile tests, which are many."""
    shown = yaml.load(cli("show", name, "--yaml").out, YamlLoader)
    data = declog.config_of(declog.compose(name))
    assert {key: value for key, value in shown.items() if key != "tests"} == {
        key: value for key, value in data.items() if key != "tests"
    }


def test_interpolations_are_shown_with_their_source(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The value, and where it is from."""
    monkeypatch.chdir(ROOT)
    out = cli("show", "examples/conf/grpo_arithmetic.yaml", "--key", "axes.group.size").out
    assert out.splitlines()[-1].endswith("from ${group_size}")
    assert "size: 8 " in out


def test_a_profile_that_does_not_compile_is_shown_all_the_same(small: Path, cli: Cli) -> None:
    """It is what one looks at to see why; values that are missing are shown as they are."""
    found = cli("show", "small", "metrics.a=mean(rewrad)", "run.name=???", "--yaml", "--config-dir", ".")
    assert found.code == 0
    assert lines(found.out)["expr: rewrad"].startswith("override ")
    assert "name: ???" in found.out
    assert "# this config does not compile (DL102): `declog check` says what is wrong" in found.out


def test_keys(small: Path, cli: Cli) -> None:
    """One or some of them, under their parents; a wrong one with the nearest."""
    out = cli("show", "small", "--key", "metrics.length.reduce", "--key", "every", "--config-dir", ".").out
    assert yaml.safe_load(out) == {"metrics": {"length": {"reduce": ["mean", "max"]}}, "every": 1}
    found = cli("show", "small", "--key", "metrics.lenght", "--config-dir", ".")
    assert (found.code, "did you mean `metrics.length`?" in found.err) == (2, True)


def test_inactive_entries_are_marked(small: Path, cli: Cli) -> None:
    """Where they stand, and in a list of their own."""
    shown = lines(cli("show", "small", "constants.beta=0", "--yaml", "--config-dir", ".").out)
    assert shown["kl:"] == "inactive: enabled: beta != 0, with beta = 0"
    listed = cli("show", "small", "constants.beta=0", "--inactive", "--config-dir", ".").out
    assert listed.splitlines()[0] == "signals.kl         enabled: beta != 0, with beta = 0"
    assert cli("show", "small", "--inactive", "--config-dir", ".").out == "nothing is inactive\n"


def test_the_plan(small: Path, cli: Cli) -> None:
    """``explain`` of what the runtime would execute."""
    assert cli("show", "small", "--plan", "--config-dir", ".").out == explain(
        declog.plan(declog.compose("small", config_dir="."))
    )


def test_names(small: Path, cli: Cli) -> None:
    """Every name with what it is, and the ids of what else there is; for programs with who shows it."""
    shown = squeezed(cli("show", "small", "--config-dir", ".").out)
    assert "penalised  mean of penalised, over the completions of each step" in shown
    assert "completions/max_length  max of length, over the completions of each step" in shown
    assert shown[-2:] == ["tables: samples", "sinks: jsonl (full)"]
    shown = squeezed(cli("show", "small", "constants.beta=0", "--config-dir", ".").out)
    assert "inactive (--inactive says why): signals.kl, signals.penalised, metrics.penalised" in shown
    names = json.loads(cli("show", "small", "--format", "json", "--config-dir", ".").out)["names"]
    assert {each["name"]: each["words"] for each in names} == output_words(
        declog.plan(declog.compose("small", config_dir="."))
    )


def test_own_names_stand_together(cli: Cli) -> None:
    """Behind those of the preset, and in one list where there is no preset."""
    shown = squeezed(cli("show", "grpo", "metrics.mine=p95(reward)").out)
    at = shown.index("of your own:")
    assert shown[at + 1] == "mine  p95 of reward, over the completions of each step"
    assert shown[0].startswith("reward  mean of reward") and shown[at + 2].startswith("tables:")


def test_a_name_that_not_every_sink_shows(small: Path, cli: Cli) -> None:
    """It says which do."""
    words = ["profiles.few={only: [reward]}", "sinks=[console,jsonl]", "sink_options.console.profile=few"]
    shown = squeezed(cli("show", "small", *words, "--config-dir", ".").out)
    assert "penalised  mean of penalised, over the completions of each step (to jsonl only)" in shown
    assert "reward  mean of reward, over the completions of each step" in shown


@pytest.mark.parametrize("preset", declog.presets())
def test_lists_are_within_100_columns(preset: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a terminal of that width no line of a preset's lists is broken; only a long word makes it longer."""
    monkeypatch.chdir(ROOT)
    for words in (["show", preset], *(["ls", what, preset] for what in ("metrics", "signals", "alerts", "filters"))):
        lines = cli(*words).out.splitlines()
        assert [line for line in lines if len(line) > 100 and max(map(len, line.split())) < 80] == [], words


@pytest.mark.parametrize(
    ("reduce", "of"), [("std", "sample (n-1)"), ("var", "sample (n-1)"), ("pstd", "population (n)")]
)
def test_a_deviation_is_of_a_sample_or_of_a_population(small: Path, cli: Cli, reduce: str, of: str) -> None:
    """Libraries differ in it: each name of a deviation or a variance says which it is, and no other name does."""
    out = cli("show", "small", f"metrics.spread={reduce}(reward)", "--config-dir", ".").out
    text = " ".join(out.split())
    assert f" spread {reduce} of reward, over the completions of each step; of a {of}" in text
    assert text.count("; of a ") == 1


ABOUT = (
    "{title: Reward, help: what is optimised, unit: points, good: up, healthy: [0.5, null],"
    " runbook: Look at the samples.}"
)


def test_what_a_metric_means(small: Path, cli: Cli) -> None:
    """Its title and help, its unit, what is healthy, and what to do where it is not."""
    words = ["small", "metrics.penalised.tags=core", f"about.penalised={ABOUT}", "--config-dir", "."]
    shown = json.loads(cli("show", *words, "--format", "json").out)["names"]
    (found,) = (each for each in shown if each["name"] == "penalised")
    assert {key: found[key] for key in ("unit", "good", "healthy", "tags")} == {
        "unit": "points",
        "good": "up",
        "healthy": [0.5, None],
        "tags": ["core"],
    }
    lines = ["Reward: what is optimised", "in points; higher is better; healthy: at least 0.5"]
    lines.append("what to do: Look at the samples.")
    out = cli("show", *words, "--why", "penalised").out
    assert [line.strip() for line in out.splitlines() if line.strip() in lines] == lines


def test_for_programs(small: Path, cli: Cli) -> None:
    """The profile, the place of each value, and what is inactive."""
    found = json.loads(cli("show", "team", "constants.beta=0", "--yaml", "--format", "json", "--config-dir", ".").out)
    assert found["config"]["metrics"]["reward"] == {"expr": "reward", "reduce": "p95"}
    assert found["origins"]["metrics.reward.reduce"] == "declog/team.yaml:6:3"
    assert found["inactive"]["signals.kl"] == "enabled: beta != 0, with beta = 0"


# ---- why --------------------------------------------------------------------------------------------


def test_the_layers_of_a_key(small: Path, cli: Cli) -> None:
    """In the order in which they were read; the last one wins."""
    found = cli("show", "team", "metrics.reward=max(reward)", "--config-dir", ".", "--why", "metrics.reward")
    assert [line.split("  ") for line in squeezed(found.out)] == [
        ["metrics.reward"],
        ["", "declog/small.yaml:18:3", "mean(reward)"],
        ["", "declog/team.yaml:6:3", "p95(reward)"],
        ["", "override 'declog.metrics.reward=\"max(reward)\"'", '"max(reward)"', "<- wins"],
        ["", ".expr", "reward", "override 'declog.metrics.reward=\"max(reward)\"'"],
        ["", ".reduce", "max", "override 'declog.metrics.reward=\"max(reward)\"'"],
        ["", "reward: max of reward, over the completions of each step"],
    ]


@pytest.mark.parametrize("key", ["completions/mean_length", "metrics.length", "length.max", "declog.metrics.length"])
def test_a_metric_by_any_of_its_names(small: Path, cli: Cli, key: str) -> None:
    """What trackers see, the key, or the key of one of its reductions."""
    out = cli("show", "small", "--config-dir", ".", "--why", key).out
    assert out.startswith("metrics.length\n  declog/small.yaml:19:3\n")
    assert "  .reduce  [mean, max]                  declog/small.yaml:19:26\n" in out
    assert "completions/max_length: max of length, over the completions of each step" in out


def test_a_name_that_a_template_gives(cli: Cli) -> None:
    """A member's name leads to the metric of the family."""
    assert cli("show", "--why", "rewards/correct/mean").out.startswith("metrics.rewards\n")


def test_a_name_with_a_modes_prefix(cli: Cli) -> None:
    """Evaluation's values are those of the same metrics."""
    assert cli("show", "trl_grpo", "--why", "eval_rewards/correct/std").out.startswith("metrics.rewards\n")


def test_an_id_of_several_things(small: Path, cli: Cli) -> None:
    """A signal and a metric of one id are both told, the signal with who reads it."""
    out = cli("show", "small", "--config-dir", ".", "--why", "penalised").out
    assert out.startswith("derived.penalised\n  declog/small.yaml:15:3  ")
    assert "\n\nmetrics.penalised\n" in out
    assert "  read by metrics.penalised\n" in out
    assert (
        "  read by signals.any.kl, derived.penalised\n"
        in cli("show", "small", "--config-dir", ".", "--why", "beta").out
    )
    assert "  read by tables.samples\n" in cli("show", "small", "--config-dir", ".", "--why", "long").out
    assert (
        "observed as length in the phase default, int per completion"
        in cli("show", "small", "--config-dir", ".", "--why", "signals.any.length").out
    )


def test_a_deleted_entry(small: Path, cli: Cli) -> None:
    """Who deleted it, by ``null`` or by ``~``."""
    out = cli("show", "team", "--config-dir", ".", "--why", "metrics.penalised").out
    assert out == "metrics.penalised = null\n  declog/small.yaml:20:3\n  declog/team.yaml:7:3    null  <- wins\n"
    out = cli("show", "small", "~metrics.reward", "--config-dir", ".", "--why", "metrics.reward").out
    assert squeezed(out) == [
        "metrics.reward = null",
        "  declog/small.yaml:18:3  mean(reward)",
        "  override '~declog.metrics.reward'  deleted  <- wins",
    ]


def test_a_default_of_the_language(small: Path, cli: Cli) -> None:
    """A key that nobody set, with what it is for."""
    assert cli("show", "small", "--config-dir", ".", "--why", "metrics.penalised.over").out == (
        "metrics.penalised.over = null\n  nobody set it: that is the default\n"
        "  The span of one value: the window by default; each step, batch or rank of it;\n"
        "  the run; each step of the run.\n"
    )


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("metrics.rewrad", "did you mean `metrics.reward`?"),
        ("penalized", "did you mean `penalised`?"),
        ("completions/mean_lenght", "did you mean `completions/mean_length`?"),
        ("filters.long.topp", "did you mean `filters.long.top`?"),
    ],
)
def test_unknown_keys(small: Path, cli: Cli, key: str, fix: str) -> None:
    """The nearest key, id or name."""
    found = cli("show", "small", "--config-dir", ".", "--why", key)
    assert (found.code, found.err) == (2, f"declog: nothing is called `{key}` in this config\n  fix: {fix}\n")


def test_a_profile_that_does_not_compile_has_layers(small: Path, cli: Cli) -> None:
    """They are what one asks for then."""
    found = cli("show", "small", "metrics.reward=mean(rewrad)", "--config-dir", ".", "--why", "metrics.reward")
    assert found.code == 0
    assert [line.split()[0] for line in found.out.splitlines()] == [
        "metrics.reward", "declog/small.yaml:18:3", "override", ".expr", ".reduce",
    ]  # fmt: skip


def test_a_file_of_ones_own_between(small: Path, write_preset: WritePreset, cli: Cli) -> None:
    """Three files deep, each with its line."""
    write_preset("mine", "defaults: [team, _self_]\n\nmetrics:\n  length:\n    name: mine/{reduce}\n")
    layers = json.loads(
        cli("show", "mine", "--config-dir", ".", "--format", "json", "--why", "metrics.length.name").out
    )
    assert [(each["place"], each["value"]) for each in layers[0]["layers"]] == [
        ("declog/small.yaml:19:47", '"completions/{reduce}_length"'),
        ("declog/mine.yaml:5:5", "mine/{reduce}"),
    ]
