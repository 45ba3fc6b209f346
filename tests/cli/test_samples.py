"""``declog samples``: which rows, in which order and marks, whole texts, tokens, and what is said of others."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import declog
from declog.testing import run_ranks
from tests.cli.conftest import Cli, Outcome

LONG = "first\n" + "word " * 100 + "\n#### 42"
PROFILE: dict[str, Any] = {
    "run": {"name": "read"}, "axes": {"group": {"size": 2}, "token": {"mask": "mask"}},
    "signals": {
        "any": {
            "reward": {"axis": "completion"}, "completion": {"axis": "completion", "type": "text"},
            "chat": {"axis": "completion", "type": "object"}, "mask": {"axis": "token", "type": "bool"},
            "ids": {"axis": "token", "type": "int"}, "logprobs": {"axis": "token"},
        },
    },
    "filters": {"ends": {"key": "reward", "top": 1, "bottom": 1}},
    "schemas": {
        "numbers": {"reward": "float"},
        "texts": {"reward": "float", "completion": "text", "chat": "object"},
        "tokens": {"reward": "float", "tokens": {"type": "tokens", "expr": "ids", "values": {"logprob": "logprobs"}}},
    },
    "tables": {
        "numbers": {"schema": "numbers"}, "texts": {"schema": "texts"}, "ends": {"schema": "tokens", "filter": "ends"},
    },
    "sinks": ["parquet"], "modes": {"train": {}, "eval": {"every": "end", "prefix": "eval/"}},
}  # fmt: skip


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Two steps of four completions, and an evaluation."""
    folder = tmp_path / "run"

    def observe(log: declog.Recorder, shift: float) -> None:
        log.observe(
            reward=[0.5 + shift, 1.0, -1.0, 0.0], completion=[LONG, "b\x1b[2J", "c", "d"],
            chat=[[{"role": "user", "content": f"say {place}"}] for place in range(4)],
            mask=torch.ones(4, 2) > 0, ids=torch.arange(8).reshape(4, 2), logprobs=torch.tensor([[-0.01, -3.0]] * 4),
        )  # fmt: skip

    with declog.start(PROFILE, output_dir=folder, tokenizer=lambda ids: [f"<{id}>" for id in ids]) as log:
        for step in range(2):
            with log.step(step):
                observe(log, 0.1 * step)
        with log.mode("eval"):
            observe(log, 7.0)
    return folder


def texts(outcome: Outcome) -> list[str]:
    """The cards' first lines."""
    assert (outcome.code, outcome.err) == (0, "")
    return [line for line in outcome.out.splitlines() if line and line[0] in "▲▼●"]


def test_the_last_step_of_the_first_table_with_texts_is_shown(recorded: Path, cli: Cli) -> None:
    """In the order of its rows, the best and the worst marked."""
    shown = cli("samples", str(recorded))
    assert shown.out.splitlines()[0] == "read · texts · train · step 1 · 4 of 4 rows"
    assert texts(shown) == [
        "● group 0 · row 0 · reward 0.6",
        "▲ best · group 0 · row 1 · reward 1",
        "▼ worst · group 1 · row 2 · reward -1",
        "● group 1 · row 3 · reward 0",
    ]


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        (["--worst", "2"], [3, 2]), (["--best", "1"], [1]), (["--best", "1", "--worst", "9"], [1, 0, 3, 2]),
        (["--group", "1"], [3, 2]), (["--group", "0", "--worst", "1"], [0]), (["--step", "0", "--best", "2"], [1, 0]),
        (["--limit", "3"], [0, 1, 2]), (["--mode", "eval", "--best", "1"], [0]), (["--table", "ends"], [1, 2]),
        (["--table", "numbers", "--by", "reward", "--worst", "1"], [2]),
    ],
    ids=lambda words: " ".join(map(str, words)) if isinstance(words, list) else "said",
)  # fmt: skip
def test_rows_are_chosen(words: list[str], rows: list[int], recorded: Path, cli: Cli) -> None:
    """Of a step, the best first; `--json` has them as they were written."""
    shown = cli("samples", str(recorded), *words, "--json")
    assert [row["row"] for row in json.loads(shown.out)] == rows


def test_groups_of_ranks_that_wrote_their_own_rows_are_kept_apart(tmp_path: Path, cli: Cli) -> None:
    """Each counts its own groups: which one is asked for, and said of each row."""
    profile = {**PROFILE, "tables": {"texts": {"schema": "numbers"}}}

    def train(comm: Any) -> None:
        with declog.start(profile, output_dir=tmp_path, comm=comm) as log, log.step(0):
            log.observe(reward=[comm.rank + place / 8 for place in range(4)])

    run_ranks(2, train)
    shown = cli("samples", str(tmp_path), "--group", "1")
    assert (shown.code, shown.err) == (2, "declog: ranks 0, 1 each have a group 1\n  fix: --group 1 --rank 0\n")
    assert texts(cli("samples", str(tmp_path), "--group", "1", "--rank", "1")) == [
        "▲ best · rank 1 · group 1 · row 3 · reward 1.375",
        "● rank 1 · group 1 · row 2 · reward 1.25",
    ]
    assert len(texts(cli("samples", str(tmp_path), "--limit", "0"))) == 8
    shown = cli("samples", str(tmp_path), "--rank", "2")
    assert (shown.code, shown.err) == (2, "declog: rank 2 wrote no rows of this step\n  fix: ranks here: 0, 1\n")


def test_a_table_with_a_column_step_of_its_own(tmp_path: Path, cli: Cli) -> None:
    """Class: a column of texts is read as the number of a step. The step of the log event chooses the rows."""
    config = {
        "signals": {"any": {"stage": {"axis": "completion", "type": "text"}, "reward": {"axis": "completion"}}},
        "schemas": {"s": {"reward": {}, "step": {"type": "text", "expr": "stage"}}},
        "tables": {"t": {"schema": "s"}}, "sinks": ["jsonl"],
    }  # fmt: skip
    with declog.start(config, output_dir=tmp_path / "run") as log:
        for step in (3, 4):
            with log.step(step):
                log.observe(reward=[0.5 * step], stage=["plan"])
    found = cli("samples", str(tmp_path / "run"), "--step", "3")
    assert (found.code, found.err) == (0, "")
    assert " · t · train · step 3 · 1 of 1 rows\n" in found.out and "reward 1.5" in found.out


def test_texts_are_whole_and_move_no_cursor(recorded: Path, cli: Cli) -> None:
    """Each line as it is, unwrapped where it is no terminal; conversations by who speaks."""
    lines = cli("samples", str(recorded)).out.splitlines()
    assert [f"    {line}" for line in LONG.split("\n")] == lines[4:7]
    assert lines[7:10] == ["  chat", "    user", "      say 0"]
    assert "    b␛[2J" in lines


def test_tokens_are_text_and_say_what_colours_them(recorded: Path, cli: Cli) -> None:
    """Without colours the text alone, with the range of its values."""
    lines = cli("samples", str(recorded), "--table", "ends", "--best", "1").out.splitlines()
    assert lines[2:] == [
        "▲ best · group 0 · row 1 · ends:top · reward 1",
        "  tokens",
        "    <2><3>",
        "    coloured by logprob: -3 to -0.01, mean -1.505",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--step", "5"], "the table has no rows of step 5\n  fix: steps that have some: 0, 1, ..."),
        (
            ["--mode", "evaluation"],
            "the table has no rows of the mode `evaluation`\n  fix: one of the modes: eval, train",
        ),
        (["--table", "text"], "the run has no table `text`\n  fix: did you mean `texts`?"),
        (["--group", "4"], "there is no group 4\n  fix: groups here: 0, 1"),
        (["--by", "rewards"], "`rewards` is no column of numbers here\n  fix: did you mean `reward`?"),
    ],
    ids=lambda words: " ".join(map(str, words)) if isinstance(words, list) else "said",
)  # fmt: skip
def test_what_is_not_there_is_answered_with_what_is(words: list[str], said: str, recorded: Path, cli: Cli) -> None:
    """In a line, and how to go on."""
    shown = cli("samples", str(recorded), *words)
    assert (shown.code, shown.out, shown.err) == (2, "", f"declog: {said}\n")


def test_a_terminal_has_colours_and_no_line_that_is_too_long(recorded: Path) -> None:
    """In a terminal of 60 columns; the unlikely token is coloured, the likely one is not."""
    master, slave = pty.openpty()
    code = "import fcntl, struct, termios, sys; fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 60, 0, 0))"
    code += "; from declog.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "samples", str(recorded), "--table", "ends"]
    environment = {"PATH": "", "TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen(command, stdout=slave, stderr=slave, env=environment) as child:
        os.close(slave)
        shown = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the child has closed its side
                break
            if not part:
                break
            shown += part
        assert child.wait() == 0
    os.close(master)
    text = shown.decode()
    assert "<2>\x1b[37;48;2;" in text
    assert "\x1b[1;32m" in text
    assert "\x1b[1;31m" in text


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three prompts over four steps: solved from the start, from step 2 on, and never."""
    folder = tmp_path_factory.mktemp("tried") / "run"
    schema = {"prompt": "text", "completion": "text", "length": "int", "reward": "float"}
    profile = {
        "run": {"name": "tried"}, "schemas": {"s": schema}, "tables": {"t": {"schema": "s"}}, "sinks": ["jsonl"],
        "signals": {"any": {
            name: {"axis": "completion", **({} if type_ == "float" else {"type": type_})}
            for name, type_ in schema.items()
        }},
    }  # fmt: skip
    with declog.start(profile, output_dir=folder) as log:
        for step in range(4):
            with log.step(step):
                log.observe(
                    prompt=["What is 2 + 2?", "What is 漢字?", "What is\nsix * 7?"],
                    completion=["4", f"{step}", "41"], length=[10 - step, step, 5],
                    reward=[1.0, step / 3, step / 4 - 1],
                )  # fmt: skip
    return folder


def test_a_condition_asks_the_whole_run(tried: Path, cli: Cli) -> None:
    """Without a step it is of all, and the rows say theirs; `--sort` orders them."""
    shown = cli("samples", str(tried), "--where", "reward < 0.5 and step > 0", "--sort", "length", "--descending")
    assert shown.out.splitlines()[0] == "tried · t · train · steps 1 to 3 · 4 of 4 rows"
    assert texts(shown) == [
        "▼ worst · step 1 · row 2 · reward -0.75 · length 5",
        "● step 2 · row 2 · reward -0.5 · length 5",
        "● step 3 · row 2 · reward -0.25 · length 5",
        "▲ best · step 1 · row 1 · reward 0.3333 · length 1",
    ]
    shown = cli("samples", str(tried), "--where", "reward == 1", "--step", "3", "--json")
    assert [(row["step"], row["row"]) for row in json.loads(shown.out)] == [(3, 0), (3, 1)]
    shown = cli("samples", str(tried), "--prompt", "WHAT IS\nSIX", "--worst", "1", "--json")
    assert [(row["step"], row["row"]) for row in json.loads(shown.out)] == [(0, 2)]
    assert cli("samples", str(tried), "--where", "reward > 5").out == "tried · t · train · no steps · 0 of 0 rows\n"


def test_prompts_are_listed_with_how_they_went(tried: Path, cli: Cli) -> None:
    """The never solved ones first; numbers as they would be worked out by hand."""
    assert cli("samples", str(tried), "--by-prompt").out.splitlines() == [
        "tried · t · train · steps 0 to 3 · 3 of 3 prompts, 1 never solved, by reward",
        "",
        "attempts    mean   best  solved  first solved   trend  first step  last step  prompt",
        "       4  -0.625  -0.25     0 %         never    +0.5           0          3  What is six * 7?",
        "       4     0.5      1    25 %             3  +0.667           0          3  What is 漢字?",
        "       4       1      1   100 %             0      +0           0          3  What is 2 + 2?",
    ]


@pytest.mark.parametrize(
    ("words", "prompts"),
    [
        ([], "six 漢字 2"), (["--sort", "trend", "--descending"], "漢字 six 2"),
        (["--sort", "first_solved"], "2 漢字 six"), (["--worst", "1"], "six"),
        (["--best", "2"], "2 漢字"), (["--limit", "2"], "six 漢字"),
        (["--solved", "-0.5", "--sort", "solved"], "six 漢字 2"), (["--where", "step < 2 and length > 4"], "six 2"),
        (["--prompt", "2 + 2"], "2"), (["--by", "length"], "漢字 six 2"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "said",
)  # fmt: skip
def test_prompts_are_sorted_and_chosen(words: list[str], prompts: str, tried: Path, cli: Cli) -> None:
    """By any of their numbers, of the rows that are asked for."""
    shown = json.loads(cli("samples", str(tried), "--by-prompt", "--json", *words).out)
    assert [one["prompt"].split()[2].rstrip("?") for one in shown] == prompts.split()
    if "--solved" in words:
        assert [one["solved"] for one in shown] == [0.5, 1, 1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prompt", "7 x"], "no prompt has the text `7 x`\n  fix: declog samples RUN --by-prompt lists the prompts"),
        (["--sort", "lenght"], "there is no column `lenght` to sort by\n  fix: did you mean `length`?"),
        (["--by-prompt", "--sort", "means"], "there is no column `means` to sort by\n  fix: did you mean `mean`?"),
        (["--solved", "1"], "`--solved` says of prompts when they are solved\n  fix: --by-prompt --solved 1.0"),
        (["--descending"], "`--descending` has no column\n  fix: --sort COLUMN --descending"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "said",
)  # fmt: skip
def test_what_no_row_answers_is_answered(words: list[str], said: str, tried: Path, cli: Cli) -> None:
    """With what there is; an option that would do nothing is refused."""
    shown = cli("samples", str(tried), *words)
    assert (shown.code, shown.out, shown.err) == (2, "", f"declog: {said}\n")


def test_an_unknown_column_of_a_condition_is_an_error_that_names_them(tried: Path, cli: Cli) -> None:
    """With a caret below it."""
    shown = cli("samples", str(tried), "--where", "reward < 1 and lenght > 2")
    assert (shown.code, shown.out) == (2, "")
    assert "    reward < 1 and lenght > 2\n                   ^^^^^^\n" in shown.err
    assert "did you mean `length`?  columns: completion, length, mode, prompt," in shown.err
