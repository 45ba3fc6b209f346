"""docs/samples.md: each command of its ten questions answers, of two runs that declog made."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from declog.cli import main
from tests.docs.markdown import ROOT
from tests.runs.report import runs

TEXT = (ROOT / "docs" / "samples.md").read_text(encoding="utf-8")
SECTION = TEXT.partition("## Ten questions\n")[2].partition("\n### ")[0]
COMMANDS = re.findall(r"^declog .*$", SECTION, re.MULTILINE)
# what the answer has, by the command's options
ANSWERS = {
    "--step 20 --worst 4": r"step 20 · 4 of 8 rows(.|\n)*▼ worst",
    "--sort reward": r"4 of \d+ rows\n\n▼ worst · step",
    "--group 1": r"step 20 · 4 of 8 rows\n\n(▲ best|●) .*group 1",
    "reward > 1 and": r"and \d+ more",
    "mean(reward, over=completion)": r"no steps · 0 of 0 rows",
    "--by-prompt\n": r"2 of 2 prompts, 1 never solved, by reward",
    "--solved 1": r"attempts +mean(.|\n)*% ",
    "--compare": r"both\.html",
    "report RUN\n": r"report\.html",
    "--sort step": r"steps 0 to 29 · 8 of \d+ rows",
    "--step 0": r"step 0 · \d of \d rows",
    "--color kl": r"coloured by kl: ",
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs, `a` and `b`, of other learning rates."""
    folder = tmp_path_factory.mktemp("questions")
    for seed, name in enumerate("ab"):
        runs.small(folder / name, "tables.samples.every=1", seed=seed)
    return folder


def test_there_are_ten_questions() -> None:
    """Each begins in bold with its question mark, and has a way on the page; most have a command."""
    questions = re.findall(r"^\*\*(.*\?)\*\*", SECTION, re.MULTILINE)
    assert len(questions) == 10
    assert len(COMMANDS) == len(ANSWERS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_answers(
    command: str, recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what its question asks for."""
    monkeypatch.chdir(recorded)
    words = [{"RUN": "a", "RUN2": "b"}.get(word, word) for word in shlex.split(command)[1:]]
    [expected] = [answer for option, answer in ANSWERS.items() if option in command + "\n"]
    capsys.readouterr()
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert re.search(expected, shown), shown[:2000]
