"""Locks and comparisons of a config that reads its application: each answer names the same verb, with its options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

APPLICATION = "--config-dir conf --config-name train"


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("conf/declog").mkdir(parents=True)
    Path("conf/train.yaml").write_text("defaults: [{declog: base}, _self_]\nlr: 0.1\n")
    Path("conf/declog/base.yaml").write_text('defaults: [grpo, _self_]\nrun: {config: {lr: "${lr}"}}\n')
    Path("conf/declog/acme.yaml").write_text("defaults: [base, _self_]\nmetrics: {half: mean(reward >= 0.5)}\n")


def pasted(error: str) -> list[str]:
    """The words of the command in an answer."""
    found = re.search(r"fix: declog (.*)", error)
    assert found is not None, error
    return shlex.split(found[1])


@pytest.mark.parametrize("words", ["", "every=2", "every=2 --strict"])
def test_a_lock_of_one_file_is_told_and_kept(words: str, cli: Cli) -> None:
    """Class: the told command writes the lock that was asked for, and `--locked` checks it beside a plain entry."""
    told = pasted(cli("check", "conf/declog/acme.yaml", *words.split(), "--lock").err)
    assert cli(*told).out.splitlines()[-1] == "wrote ./declog.lock"
    assert cli("check", "grpo", "--lock").out.splitlines()[-1] == "wrote ./declog.lock"
    assert cli("check", "--locked").code == 0
    Path("conf/declog/acme.yaml").write_text("defaults: [base, _self_]\nmetrics: {half: max(reward >= 0.5)}\n")
    changed = cli("check", "--locked")
    assert changed.code == 1 and "~ half" in changed.out
    again = pasted(changed.out.replace(", where that is wanted", ""))
    assert cli(*again).out.splitlines()[-1] == "wrote ./declog.lock"
    assert cli("check", "--locked").code == 0


def test_an_application_without_words_is_locked(cli: Cli) -> None:
    """Class: `--config-name` chooses a config as a word does; with `--locked` it is compared alone."""
    assert (
        "is not in declog.lock"
        in cli("check", "grpo", "--lock").out + cli("check", *APPLICATION.split(), "--locked").err
    )
    assert cli("check", *APPLICATION.split(), "--lock").code == 0
    assert f"  {APPLICATION}:\n" in Path("declog.lock").read_text()
    assert len(cli("check", *APPLICATION.split(), "--locked").out.splitlines()) == 1
    assert cli("check", "--lock").out.splitlines()[-1] == "wrote ./declog.lock"


def test_files_are_compared_as_the_application_chooses_them(cli: Cli) -> None:
    """Class: the answer of `diff` compares the same two configs, with overrides for both."""
    told = pasted(cli("diff", "conf/declog/base.yaml", "conf/declog/acme.yaml", "every=2").err)
    assert told[0] == "diff"
    assert "+ half: mean of reward >= 0.5, over the completions of 2 steps" in " ".join(cli(*told).out.split())
