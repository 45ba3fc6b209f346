"""The command line's frame: help, verbs, exit codes, colours, and what is imported for them."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from declog.cli import main, verb_of, verbs
from declog.cli.arguments import DIVIDER, Parser
from declog.cli.output import coloured, paragraphs
from declog.cli.targets import names_and_overrides
from tests.cli.conftest import Cli

HEAVY = ("torch", "hydra", "omegaconf", "pydantic", "numpy", "yaml", "rich", "wandb", "trackio", "tensorboard")


def test_help_loads_nothing() -> None:
    """Neither Hydra nor torch nor a tracker is imported to say what a verb takes, one after the other."""
    lines = [["--help"], *([verb, "--help"] for verb in verbs())]
    program = (
        "import json, sys; from declog.cli import main\n"
        "for words in json.loads(sys.argv[1]):\n"
        f"    print('found', words, main(words), [name for name in {HEAVY!r} if name in sys.modules])"
    )
    command = [sys.executable, "-c", program, json.dumps(lines)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = [line for line in shown.splitlines() if line.startswith("found [")]
    assert found == [f"found {words} 0 []" for words in lines]
    assert shown.count("usage: declog") == len(lines)


def test_help_names_every_verb(cli: Cli) -> None:
    """With what it does."""
    shown = cli("--help")
    assert shown.code == 0
    assert all(f"  {verb:<8} {verb_of(verb).SUMMARY}" in shown.out for verb in verbs())
    assert cli("help").out == shown.out
    assert cli().code == 2


@pytest.mark.parametrize("verb", verbs())
def test_a_verbs_examples_are_command_lines(verb: str) -> None:
    """Each line of its help that begins with it is read, and its words are a profile's name and overrides."""
    module = verb_of(verb)
    lines = re.findall(rf"^ *(declog {verb}\b.*?)(?: {{3,}}.*)?$", module.__doc__ or "", re.MULTILINE)
    for line in lines:
        parser = Parser(verb, module.SUMMARY, module.__doc__ or "")
        module.arguments(parser)
        given = parser.read(shlex.split(line)[2:])
        assert given is not None
        for words in _profiles(getattr(given, "words", [])):
            names, _ = names_and_overrides(words)
            assert len(names) < 2 or verb in ("check", "diff"), line
    assert lines


def _profiles(words: list[str]) -> list[list[str]]:
    """The words of one profile, or of the two that `--` divides."""
    at = words.index(DIVIDER) if DIVIDER in words else len(words)
    return [words[:at], words[at + 1 :]]


@pytest.mark.parametrize("verb", verbs())
def test_a_verbs_help_has_examples(verb: str, cli: Cli) -> None:
    """Each verb shows how it is typed."""
    shown = cli(verb, "--help")
    assert shown.code == 0
    assert shown.out.count(f"declog {verb}") >= 2


def test_the_program_is_installed() -> None:
    """``declog`` beside the interpreter and ``python -m declog`` are the same."""
    script = Path(sys.executable).with_name("declog")
    shown = subprocess.run([script, "explain", "DL310"], capture_output=True, text=True, check=True).stdout
    module = [sys.executable, "-m", "declog", "explain", "DL310"]
    assert subprocess.run(module, capture_output=True, text=True, check=True).stdout == shown
    assert shown.startswith("# DL310: ")


def test_the_version(cli: Cli) -> None:
    """That of the package."""
    assert cli("--version").out.startswith("declog-rl 0.")


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["chek"], "declog: there is no verb `chek`\n  fix: did you mean `check`?\n"),
        (["check", "--strct"], "declog: declog check has no option `--strct`\n  fix: did you mean `--strict`?\n"),
        (["check", "--format", "yaml"], "declog: check: argument --format: invalid choice: 'yaml'"),
        (["show", "grpo", "--plan", "--key", "sinks"], "declog: show shows one thing: --key and --plan are two\n"),
        (["check", "--lock", "--locked"], "declog: --lock writes the lock, and --locked compares with it\n"),
        (["diff", "HEAD:nowhere.yaml", "grpo"], "declog: git has no `HEAD:nowhere.yaml`: "),
        (["why", "reward"], "declog: there is no verb `why`\n  fix: did you mean `show CONFIG --why KEY`?\n"),
        (["ls", "functions", "grpo"], "declog: functions are those of every config\n  fix: declog ls functions\n"),
        (["show", "grpo", "rloo"], "declog: `rloo` is no override\n  fix: one config, then key=value"),
        (["check", "every=1", "grpo"], "declog: `grpo` is no override\n"),
        (["check", "grpo", "--", "rloo"], "declog: `--` divides the two configs of `declog diff`\n"),
        (["check", "--config-dir", "nowhere", "--config-name", "a"], "declog: there is no directory nowhere\n"),
        (["check", "--import", "nothing_like_it"], "declog: --import nothing_like_it: No module named"),
        (["report"], "declog: report: the following arguments are required: RUN"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_a_wrong_command_line_is_reported_in_a_line(words: list[str], reported: str, cli: Cli) -> None:
    """Exit code 2, on standard error, with the nearest word."""
    found = cli(*words)
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith(reported)


def test_a_reader_that_has_seen_enough() -> None:
    """``declog ls functions | head -1`` ends without a traceback."""
    command = f"{sys.executable} -m declog explain | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("DL101")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never in a pipe, and not where NO_COLOR is set."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert [coloured(Terminal()), coloured(io.StringIO())] == [True, False]
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not coloured(Terminal())


def test_errors_on_a_terminal_are_the_same_in_colour(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    """The same text but for the escapes."""
    plain = cli("check", "grpo", "metrics.p=p90(rewrad)")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(["check", "grpo", "metrics.p=p90(rewrad)"]) == 2
    shown = terminal.getvalue()
    assert "\x1b[" in shown and "\x1b[" not in plain.err
    for escape in ("\x1b[1;31m", "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[0m"):
        shown = shown.replace(escape, "")
    assert shown == plain.err


def test_pages_are_wrapped_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paragraphs, and neither code nor tables; elsewhere a page is as it was written."""
    text = "# A\n\n" + "word " * 60 + "\n\n```yaml\n" + "x" * 120 + "\n```"
    assert paragraphs(text) == text
    monkeypatch.setattr(sys, "stdout", Terminal())
    lines = paragraphs(text).split("\n")
    assert [line for line in lines if line.startswith("x")] == ["x" * 120]
    assert all(len(line) <= 100 for line in lines if not line.startswith("x"))
    assert lines[:2] == ["# A", ""] and lines.count("") == 2
