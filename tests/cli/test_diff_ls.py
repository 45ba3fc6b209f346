"""``declog diff``, ``declog ls`` and ``declog explain``."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import declog
from declog.cli.verbs.ls import OF_A_CONFIG, OF_DECLOG
from declog.compiler.filters import KINDS
from declog.engine.filters import KINDS as CHOOSERS
from declog.errors.pages import CODES
from declog.language.functions import BUILTIN
from declog.language.row_functions import DEFAULT
from declog.language.spec_of_tables import FilterSpec
from tests.cli.conftest import Cli
from tests.docs.markdown import ROOT

DIFFERENT = """\
outputs
  ~ reward
      - mean of reward, over the completions of each step
      + p95 of reward, over the completions of each step
  - penalised: mean of penalised, over the completions of each step

signals
  - kl of default: float per completion

cost
  ~ operations: 10 -> 8
  ~ bytes per completion of default: 16 -> 12
"""


def test_two_profiles(small: Path, cli: Cli) -> None:
    """What one of them lacks, what differs, and what it costs."""
    found = cli("diff", "small", "team", "--config-dir", ".")
    assert (found.code, found.out) == (0, DIFFERENT)
    assert cli("diff", "small", "team", "--config-dir", ".", "--strict").code == 1


@pytest.mark.parametrize(
    "words",
    [
        ["small", "metrics.reward=p95(reward)", "metrics.penalised=null"],
        ["small", "--", "small", "metrics.reward=p95(reward)", "~metrics.penalised"],
        ["small", "run.name=x", "--", "team", "run.name=y"],
        ["small", "team", "tables.samples.keep=window"],
    ],
    ids=" ".join,
)
def test_ways_to_say_which(small: Path, cli: Cli, words: list[str]) -> None:
    """Overrides for the second, for each, or for both."""
    assert cli("diff", *words, "--config-dir", ".").out == DIFFERENT


def test_the_same_profile(small: Path, cli: Cli) -> None:
    """Says so; what is written otherwise and means the same is no difference."""
    words = ["diff", "small", "metrics.reward={expr: reward, reduce: mean}", "--config-dir", ".", "--strict"]
    assert (cli(*words).code, cli(*words).out) == (0, "they log the same\n")


def test_equal_words_with_another_meaning(small: Path, cli: Cli) -> None:
    """A derived signal that is computed otherwise changes the metrics of it."""
    out = cli("diff", "small", "derived.penalised=reward - 2 * beta * kl", "--config-dir", ".").out
    assert out == "outputs\n  ~ penalised: reward - (0.1 * kl) -> reward - (0.2 * kl)\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["schemas.rows.kl=float"], "  + samples.kl: float"),
        (["schemas.rows.length=null"], "  - samples.length: int"),
        (["tables.samples.every=10"], "      + top_bottom by length top 2 within window; every 10 steps; the window"),
        (
            ["filters.long.bottom=1"],
            "      + top_bottom by length top 2 bottom 1 within window; every step; the window",
        ),
        (
            ["tables.samples.max_bytes=1000"],
            "      + top_bottom by length top 2 within window; at most 1000 bytes; every step; the window",
        ),
        (["tables.samples=null"], "  - samples: top_bottom by length top 2 within window; every step; the window"),
        (["sinks=[console]"], "  + console: console, profile full"),
        (["alerts.low={when: reward < 0}"], "  + low: warn if reward < 0"),
        (["every=2"], "  ~ a log event: every step -> every 2 steps"),
    ],
)  # fmt: skip
def test_other_differences(small: Path, cli: Cli, words: list[str], line: str) -> None:
    """Columns, rows, tables, sinks, alerts, windows."""
    assert line in cli("diff", "small", *words, "--config-dir", ".").out.splitlines()


def test_what_a_profile_shows(small: Path, cli: Cli) -> None:
    """Of outputs that both have."""
    words = ["diff", "small", "profile=few", "profiles.few={only: [reward]}", "--config-dir", "."]
    out = cli(*words, "--format", "json").out
    assert {"name": "few shows reward", "before": None, "after": ""} in json.loads(out)["changes"]["profiles"]


def test_an_applications_two_runs(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    """Each with its own overrides."""
    monkeypatch.chdir(ROOT / "examples")
    found = cli("diff", "--config-dir", "conf", "--config-name", "grpo_arithmetic", "--", "algorithm=rloo")
    assert "  + kl/sequence: " in found.out


def test_a_runs_folder_and_a_commit(small: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run logged, and what a file said in a commit with the files beside it, stand for configs."""
    with declog.start("declog/small.yaml", ["every=2"], output_dir=tmp_path / "run"):
        pass
    of_run = cli("diff", str(tmp_path / "run"), "declog/small.yaml").out
    assert "      - mean of reward, over the completions of 2 steps\n" in of_run
    shutil.copytree(tmp_path / "run", small / "grpo")  # a preset's name is the preset, whatever lies here
    assert cli("show", "grpo", "--plan").out != cli("show", "./grpo", "--plan").out
    assert cli("diff", "grpo", "--", "grpo").code == 0
    assert "  ~ a log event: every 2 steps -> every step\n" in of_run
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"]):
        subprocess.run(["git", *words], cwd=small, check=True)
    for name in ("small", "team"):  # the base changes with it
        file = small / "declog" / f"{name}.yaml"
        file.write_text(file.read_text().replace("p95(reward)", "p90(reward)"))
    assert cli("diff", "HEAD:declog/team.yaml", "declog/team.yaml").out.splitlines()[1:] == [
        "  ~ reward", "      - p95 of reward, over the completions of each step",
        "      + p90 of reward, over the completions of each step",
    ]  # fmt: skip
    found = cli("diff", "HEAD~7:declog/team.yaml", "declog/team.yaml")
    assert found.code == 2 and found.err.startswith("declog: git has no `HEAD~7:declog/team.yaml`: ")


def test_one_profile_is_not_two(small: Path, cli: Cli) -> None:
    """The message shows both ways."""
    found = cli("diff", "small", "--config-dir", ".")
    assert (found.code, found.err.splitlines()[0]) == (2, "declog: diff compares two configs")


# ---- ls ---------------------------------------------------------------------------------------------


def test_every_list_is_described() -> None:
    """None is without a line of help, and none is described that is not there."""
    assert all(text for _, text in (*OF_DECLOG.values(), *OF_A_CONFIG.values()))
    assert {*CHOOSERS} == {"all", *KINDS} and all(choose.__doc__ for choose in CHOOSERS.values())
    assert {key for keys in KINDS.values() for key in keys} < {*FilterSpec.model_fields}


def test_each_list(cli: Cli) -> None:
    """It has as many entries as its count says."""
    counts = dict(line.split()[:2] for line in cli("ls").out.splitlines())
    assert list(counts) == [*OF_DECLOG, *OF_A_CONFIG]
    for what, count in counts.items():
        out = cli("ls", what).out
        names = [line for line in out.splitlines() if line[0] != " "]  # not what is left of a long text
        assert len(names) == int(count) or (count, out) == ("0", f"this config has no {what}\n")


def test_lists_for_programs(cli: Cli) -> None:
    """Names, and what else is known of them."""
    rows = json.loads(cli("ls", "presets", "--format", "json").out)
    assert {"grpo", "rloo", "packs/rewards"} < {row["name"] for row in rows}
    assert all(row["what"][0].startswith("declog-rl 0.") for row in rows)
    assert set(json.loads(cli("ls", "--format", "json").out)) == {*OF_DECLOG, *OF_A_CONFIG}


def test_signals_are_listed_by_the_names_that_are_observed(cli: Cli) -> None:
    """What a config calls them stands beside."""
    rows = json.loads(cli("ls", "signals", "grpo", "--format", "json").out)
    names = {row["name"] for row in rows}
    assert names >= {*declog.plan("grpo").sources, "prompt", "completion"} - {"logged"}
    assert not [name for name in names if name.startswith("given_")]
    (kl,) = [row["what"][0] for row in rows if row["name"] == "kl"]
    assert kl == "step, phase update, read as given_kl"


def test_functions_and_reductions(cli: Cli) -> None:
    """All of the language, with their signatures."""
    out = cli("ls", "functions").out
    assert "mean(x, over=axis)" in out
    assert len(out.splitlines()) >= len([name for name in BUILTIN.names() if name.isidentifier()]) - 20
    assert "histogram(bins=32, low=None, high=None)" in cli("ls", "reductions").out
    assert "pNN " in cli("ls", "reductions").out


def test_functions_of_rows(small: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    """What a column may call: what packages and imported modules register."""
    name = "columns_of_a_command_line"
    text = 'import declog\n\n@declog.column\ndef of_ours(text: str) -> str:\n    """In capitals."""\n    return text\n'
    (small / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(small))
    try:
        assert cli("ls", "calls", "--import", name).out.split() == ["of_ours(text)", "In", "capitals.", name]
    finally:
        DEFAULT.discard("of_ours")
        sys.modules.pop(name, None)


def test_of_a_config(small: Path, cli: Cli) -> None:
    """Its entries and what they are; deleted ones are not there."""
    out = cli("ls", "metrics", "team", "--config-dir", ".").out
    assert [line.split("  ")[0] for line in out.splitlines()] == ["reward", "length"]
    assert out.splitlines()[0] == "reward  reward, reduce p95"
    assert "length  completion, int  in tokens\n" in cli("ls", "signals", "small", "--config-dir", ".").out
    assert cli("ls", "alerts", "small", "--config-dir", ".").out == "this config has no alerts\n"


def test_tags(cli: Cli) -> None:
    """With the metrics that bear them."""
    (core,) = [line for line in cli("ls", "tags").out.splitlines() if line.startswith("core  ")]
    assert "reward, reward_std, zero_std" in core


def test_an_unknown_list(cli: Cli) -> None:
    """The nearest."""
    found = cli("ls", "metrcs")
    assert (found.code, found.err.splitlines()[1]) == (2, "  fix: did you mean `metrics`?")


# ---- explain ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_its_page(code: str, cli: Cli) -> None:
    """Under the code, its number, or as it stands in a message."""
    shown = cli("explain", code)
    assert shown.out.startswith(f"# {code}: {CODES[code]}\n")
    assert (
        cli("explain", code.lower()).out == cli("explain", code[2:]).out == cli("explain", f"[{code}]").out == shown.out
    )


def test_all_codes(cli: Cli) -> None:
    """Without one, each in a line."""
    assert [line[:5] for line in cli("explain").out.splitlines()] == list(CODES)
    assert json.loads(cli("explain", "--format", "json").out) == CODES
    assert json.loads(cli("explain", "DL310", "--format", "json").out)["meaning"] == CODES["DL310"]


def test_an_unknown_code(cli: Cli) -> None:
    """A line with the nearest, and exit code 2."""
    found = cli("explain", "DL3100")
    assert (found.code, found.err) == (
        2,
        "declog: there is no error code `DL3100`\n  fix: did you mean `DL310`?\n",
    )


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["small.yaml", "reward"], ["show", "small.yaml", "--why", "reward"]),
        (["grpo", "kl"], ["show", "grpo", "--why", "kl"]),
        (["grpo"], ["show", "grpo"]),
        (["DL505", "DL201"], ["explain", "DL505"]),
    ],
)
def test_what_is_no_code_is_answered_with_the_command_that_shows_it(
    words: list[str], command: list[str], small: Path, cli: Cli
) -> None:
    """An entry of a config, a config, and a second code; the command works."""
    (small / "small.yaml").write_text("metrics: {reward: {observe: completion}}\n", encoding="utf-8")
    refused = cli("explain", *words)
    assert (refused.code, refused.err.partition("declog ")[2].split("declog ")[-1]) == (2, " ".join(command) + "\n")
    assert cli(*command).code == 0
