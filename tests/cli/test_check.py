"""``declog check``: what it tells of good and bad profiles, to people and to programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import declog
from declog.sinks import sink_class
from tests.cli.conftest import Cli
from tests.conftest import WritePreset


def test_a_good_profile(small: Path, cli: Cli) -> None:
    """One line."""
    found = cli("check", "small", "--config-dir", ".", "--strict")
    assert (found.code, found.out, found.err) == (0, "ok small: 4 outputs, 1 table, 0 alerts, 1 sink (jsonl)\n", "")


@pytest.mark.parametrize("name", declog.presets())
def test_shipped_presets(name: str, cli: Cli) -> None:
    """All of them, without a warning."""
    found = cli("check", name, "--strict")
    assert (found.code, found.err) == (0, "")
    assert found.out.splitlines()[-1].startswith(f"ok {name}: ")


def test_everything_that_is_wrong_is_reported(small: Path, cli: Cli) -> None:
    """At once, each at its place; exit code 2."""
    found = cli("check", "small", "metrics.a=mean(rewrad)", "metrics.b=avg(reward)", "filters.long.key=lenght",
                "--config-dir", ".")  # fmt: skip
    assert (found.code, found.out) == (2, "")
    heads = [line for line in found.err.splitlines() if line.startswith("error[")]
    assert [head.partition("]")[0] for head in heads] == ["error[DL302", "error[DL303", "error[DL302"]
    assert "override 'declog.metrics.a=\"mean(rewrad)\"'" in heads[0]


def test_a_sinks_options_are_checked(small: Path, cli: Cli) -> None:
    """They are part of the profile."""
    found = cli("check", "small", "sink_options.jsonl.fsnc=true", "--config-dir", ".")
    assert found.code == 2
    assert "the sink kind `jsonl` has no option `fsnc`" in found.err
    assert "fix: declog.sink_options.jsonl.fsync=true" in found.err


def test_warnings_are_errors_under_strict(small: Path, cli: Cli) -> None:
    """Exit code 1 then, and the profile compiles all the same."""
    words = ["check", "small", "metrics.a={expr: reward, where: not (kl > 1)}", "--config-dir", "."]
    found = cli(*words)
    assert found.code == 0
    assert found.out.startswith("warning: ")
    assert "ok small: 5 outputs" in found.out
    assert cli(*words, "--strict").code == 1


def test_what_is_inactive_is_named(small: Path, cli: Cli) -> None:
    """With the word that says why."""
    out = cli("check", "small", "constants.beta=0", "--config-dir", ".").out
    assert out.splitlines()[0].startswith("inactive: signals.kl, signals.penalised, metrics.penalised")
    assert "`declog show --inactive` says why" in out


def test_for_programs(small: Path, cli: Cli) -> None:
    """The same as JSON, on standard output, whatever the outcome."""
    good = json.loads(cli("check", "small", "constants.beta=0", "--config-dir", ".", "--format", "json").out)
    assert (good["ok"], good["name"], good["problems"], good["warnings"]) == (True, "small", [], [])
    assert good["inactive"]["signals.kl"] == "enabled: beta != 0, with beta = 0"
    assert (
        good["fingerprint"]
        == declog.plan(declog.compose("small", ["declog.constants.beta=0"], config_dir=".")).fingerprint
    )
    wrong = cli("check", "small", "metrics.a=mean(rewrad)", "--config-dir", ".", "--format", "json")
    (problem,) = json.loads(wrong.out)["problems"]
    assert (wrong.code, wrong.err) == (2, "")
    edit = "'declog.metrics.a=\"mean(reward)\"'"
    assert (problem["code"], problem["path"], problem["fix"]) == ("DL302", "metrics.a", edit)
    refused = cli("check", "smal", "--config-dir", ".", "--format", "json")
    assert (refused.code, json.loads(refused.out)["ok"]) == (3, False)


def test_timings(cli: Cli) -> None:
    """Imports, Hydra's part and declog's own."""
    lines = cli("check", "grpo", "--timings").out.splitlines()[-3:]
    assert [line.split()[0] for line in lines] == ["imports", "hydra", "declog"]
    assert all(line.endswith(" s") and float(line.split()[1]) >= 0 for line in lines)
    timings = json.loads(cli("check", "grpo", "--timings", "--format", "json").out)["timings"]
    assert sorted(timings) == ["declog", "hydra", "imports"]


def test_a_sink_that_is_not_installed_is_noted(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile is right; this machine lacks a package, which may have another name than its module."""
    assert "note:" not in cli("check", "grpo", "sinks=[trackio]").out
    monkeypatch.setattr(sink_class("trackio"), "package", "trackio-of-a-test")
    found = cli("check", "grpo", "sinks=[trackio]", "--strict")
    assert found.code == 0
    assert "note: the sink trackio is not installed here: pip install 'declog-rl[trackio]'" in found.out
    folder = tmp_path / "trackio_of_a_test-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: trackio-of-a-test\nVersion: 1.0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert "note:" not in cli("check", "grpo", "sinks=[trackio]").out


def test_check_needs_no_torch(write_preset: WritePreset) -> None:
    """An edit is checked in the time that Hydra takes."""
    program = (
        "import sys; from declog.cli import main; code = main(sys.argv[1:]); "
        "print(code, sorted({'torch', 'trackio', 'wandb', 'rich', 'pyarrow'} & set(sys.modules)))"
    )
    words = ["check", "grpo", "sinks=[console,jsonl,parquet,trackio,wandb,tensorboard]"]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_a_profile_that_wraps_its_keys(cli: Cli, tmp_path: Path) -> None:
    """A file with a node `declog` is an application's: there a preset is chosen by its group."""
    file = tmp_path / "mine.yaml"
    file.write_text("defaults: [grpo, _self_]\ndeclog:\n  metrics: {median: p50(reward)}\n")
    found = cli("check", str(file))
    assert found.code == 3
    assert "there is no configuration `grpo`" in found.err
    assert "fix: for an application, `declog: grpo`; a config has no node `declog:`" in found.err


def test_a_profile_without_a_sink_is_a_warning(small: Path, cli: Cli) -> None:
    """What it logs would be written nowhere."""
    assert "the config has no sink" in cli("check", "small", "sinks=none", "--config-dir", ".").out
    assert "the config has no sink" not in cli("check", "small", "--config-dir", ".").out


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (
            ["alerts.kl.below=0.01"],
            "`alerts.kl` has `below` beside a preset's `above`, and keeps its `text`, which speaks of `above` alone, "
            "and `for: 3`; 'declog.alerts.kl={below: 0.01, text: \"kl is {kl}\", for: 1}' has others",
        ),
        (
            ["axes.group=8"],
            "`axes.group` means {size: 8}, and drops the preset's `of: [group, prompt_id, prompt]`; "
            "declog.axes.group.size=8 keeps it",
        ),
        (["sink_options.cosole.every=10"], "no `sinks` names it; did you mean `console`?"),
        (["metrics.ratio=max(reward)"], "`ratio` is a preset's metric and computes something else now"),
        (["metrics.p=p95(rewards)"], "of `reward`, one signal: 'declog.metrics.p={expr: reward, reduce: p95}'"),
    ],
)  # fmt: skip
def test_what_works_and_is_hardly_meant_has_a_note(cli: Cli, words: list[str], note: str) -> None:
    """An edit that is allowed and says more, or less, than its writer thinks."""
    found = cli("check", "grpo", *words)
    assert found.code == 0
    assert note in " ".join(f"{found.out}{found.err}".split())


@pytest.mark.parametrize(
    "words",
    [["axes.group=prompt_id"], ["axes.group.size=8"], ["sink_options.console.every=10"], ["metrics.p=p95(reward)"]],
)
def test_what_is_meant_has_none(cli: Cli, words: list[str]) -> None:
    """The same edits, said as they are meant."""
    found = cli("check", "grpo", *words)
    assert "note:" not in f"{found.out}{found.err}"


def test_fewer_sinks_than_a_teams_preset_has_options_for(cli: Cli, tmp_path: Path) -> None:
    """Class: a later layer that lists fewer sinks leaves the options of others unused on purpose."""
    (tmp_path / "acme.yaml").write_text(
        "defaults: [grpo, _self_]\nsinks: [console, wandb]\nsink_options: {wandb: {project: acme}}\n"
    )
    mine = tmp_path / "mine.yaml"
    for lines, noted in (
        ("sinks: [console]", False),
        ("metrics: {a: mean(reward)}", False),
        ("sink_options: {jsonl: {every: 2}}", True),
        ("sinks: [console]\nsink_options: {wandb: {project: mine}}", True),
    ):
        mine.write_text(f"defaults: [acme, _self_]\n{lines}\n")
        assert ("has no effect" in cli("check", str(mine)).out) is noted, lines
    assert "has no effect" not in cli("check", str(tmp_path / "acme.yaml"), "declog.sinks=[console]").out


def test_keys_beside_the_node_have_a_note(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands beside the config's node in an application is another's."""
    monkeypatch.chdir(tmp_path)
    Path("train.yaml").write_text("defaults: [{declog: grpo}, _self_]\nsinks: [console]\n")
    said = " ".join(cli("check", "train.yaml").out.split())
    assert "`sinks` beside `declog:` is ignored, for `declog:` in the defaults is how an application names its" in said
    assert "config: in a config write `defaults: [grpo, _self_]`" in said
    Path("train.yaml").write_text("defaults: [{declog: grpo}, _self_]\nmetrics: [accuracy]\ntables: {a: {rows: 3}}\n")
    assert "is ignored" not in cli("check", "train.yaml").out
    Path("train.yaml").write_text("defaults: [{declog: grpo}, _self_]\nmetrics: {a: mean(reward)}\n")
    assert "`metrics` beside `declog:` is ignored" in cli("check", "train.yaml").out
    assert cli("check", "train.yaml", "~metrics").code == 0  # an application deletes a key of its own
