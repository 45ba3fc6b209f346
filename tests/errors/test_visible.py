"""Texts that a model or a stranger wrote, wherever a terminal shows them: none of their characters acts on it."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.cli import main
from declog.errors import ConfigError, DeclogError, Problem, UsageError
from declog.errors.visible import visible, visible_json, visible_lines
from declog.sinks.console import ConsoleSink
from declog.testing import MemorySink
from tests.sinks.samples import run_info

CODES = (*range(0x20), *range(0x7F, 0xA0), *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070))
EVIL = "".join(map(chr, (*CODES, 0x61C, 0xAD, 0xFEFF, 0xE0041)))
TEXT = f"\x1b[2J\x1b]0;title\x07\x9b31m a\u202eb\u2066c\u200bd {EVIL} größe 漢字 \U0001f600"


def acting(text: str) -> set[str]:
    """The characters of a text that a terminal might obey; line ends and tabs are the printer's own."""
    return {char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - set("\n\t")


def test_every_character_without_a_shape_is_shown_and_no_other_is_changed() -> None:
    """Over all of Unicode; what is shown is plain, and what is plain stays as it is."""
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        category = unicodedata.category(char)
        shown = visible(char)
        if category in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            assert shown != char and acting(shown) == set() and not set(shown) & set("\n\t"), hex(code)
        else:
            assert (shown, visible_lines(char), visible_json(char)) == (char, char, char)
    assert visible("a\x1bb\x9bc\u202ed\U000e0041") == "a␛b\\x9bc\\u202ed\\U000e0041"
    assert (visible("\n\t"), visible_lines("a\n\tb\r")) == ("␊␉", "a\n\tb␍")


def test_joiners_stay_where_they_join() -> None:
    """Between emoji, and between letters of scripts that need them; elsewhere they hide something."""
    joined = "👨‍👩‍👧 👩🏽‍💻 🏳️‍🌈 می‌خواهم क्‍ष"
    assert [each(joined) for each in (visible, visible_lines, visible_json)] == [joined] * 3
    assert visible("a\u200db é\u200c \u200d😀\u200d 😀\u200d\u202e😀") == (
        "a\\u200db é\\u200c \\u200d😀\\u200d 😀\\u200d\\u202e😀"
    )


def test_json_means_the_same() -> None:
    """Its escapes are JSON's own, beyond 16 bits too."""
    text = visible_json(json.dumps({TEXT: TEXT}, ensure_ascii=False))
    assert (json.loads(text), acting(text)) == ({TEXT: TEXT}, set())


PROFILE: dict[str, Any] = {
    "run": {"name": f"run {TEXT}"},
    "signals": {
        "any": {
            "reward": {"axis": "completion"}, "text": {"axis": "completion", "type": "text"},
            "parts": {"axis": "completion", "family": True}, "task": {"axis": "completion", "type": "text"},
        },
    },
    "metrics": {
        "reward": {"expr": "mean(reward)", "name": f"name {TEXT}"}, "parts": "mean(parts)",
        "by_task": {"expr": "reward", "reduce": "mean", "by": "task", "max_labels": 4},
    },
    "schemas": {"s": {"text": {"type": "text", "name": f"column {TEXT}"}}},
    "tables": {"t": {"schema": "s", "name": f"table {TEXT}"}},
    "alerts": {"high": {"when": "reward > 0.0", "text": f"alert {TEXT}"}},
}  # fmt: skip


def log_it(log: declog.Recorder) -> None:
    with log.step(0):
        log.observe(reward=[1.0, 2.0], text=[TEXT, TEXT], parts={f"part {TEXT}": [1.0, 2.0]}, task=[TEXT, "plain"])


def test_the_console_shows_all_and_obeys_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names, members, labels, columns, texts, alerts, and the run's own name."""
    with declog.start(PROFILE, sinks=[ConsoleSink(max_chars=4000)], output_dir=tmp_path) as log:
        log_it(log)
    out = capsys.readouterr().out
    for word in ("run ", "column ", "table ", "alert "):
        assert f"{word}␛[2J" in out.replace("\n", " "), word
    names = [line for line in out.splitlines() if re.search(r"^ +….*größe 漢字 😀 +\d", line)]
    assert len(names) == 3  # of a metric, a member and a label: the ends of what is too long for a line
    assert acting(out) == set()


def test_preview_show_and_their_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was captured, in words and as JSON, alone and side by side; and a profile that holds such text."""
    with declog.start(PROFILE, sinks=[MemorySink()], output_dir=tmp_path, capture=True) as log:
        log_it(log)
    (tmp_path / "mine.yaml").write_text(
        json.dumps({**PROFILE, "run": {"name": "other"}, "alerts": {}}), encoding="utf-8"
    )
    seen = []
    for words in (
        ["preview", str(tmp_path)], ["preview", str(tmp_path), "--format", "json"],
        ["preview", str(tmp_path), "--diff", str(tmp_path / "mine.yaml")],
        ["show", str(tmp_path / "mine.yaml")], ["show", str(tmp_path / "mine.yaml"), "--plan"],
        ["show", str(tmp_path / "mine.yaml"), "--format", "json"], ["show", str(tmp_path / "mine.yaml"), "--yaml"],
        ["check", str(tmp_path / "mine.yaml")],
        ["explain", str(tmp_path / "mine.yaml")], ["show", str(tmp_path / "mine.yaml"), "--why", "metrics.reward"],
    ):  # fmt: skip
        main(words)
        captured = capsys.readouterr()
        seen.append(captured.out)
        assert (words, acting(captured.out), acting(captured.err)) == (words, set(), set())
    assert "␛[2J" in seen[0] and "\\u202e" in seen[1]


def test_errors_that_quote_a_text() -> None:
    """Whatever part of an error holds it; colours are declog's own."""
    problem = Problem("DL202", f"`{TEXT}`", ("a", TEXT), f"fix {TEXT}", f"source {TEXT}", (3, 5))
    reported = [str(ConfigError([problem])), str(UsageError("DL510", TEXT, TEXT))]
    reported.append(re.sub("\x1b\\[[0-9;]*m", "", ConfigError([problem]).text(colour=True)))
    assert [acting(text) for text in reported] == [set()] * 3


def test_what_is_logged(tmp_path: Path) -> None:
    """A failure of a user's code that quotes a text, and its traceback; run-time names; a sink's error."""

    class Broken(MemorySink):
        def write(self, step: int, records: object) -> None:
            raise ValueError(TEXT)

    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("declog")
    logger.addHandler(handler)
    try:
        with declog.start(PROFILE, sinks=[Broken()], output_dir=tmp_path) as log:
            log_it(log)
            with log.step(1):
                log.observe(reward=[1.0, 2.0], text=["a", "b"], parts={"p": [1.0, 2.0]}, task=["a", "b"])
                log.log_extra(f"column {TEXT}", ["x", "y"])
            with pytest.raises(DeclogError) as caught, log.step(2):
                log.observe(**{TEXT: [1.0]})
    finally:
        logger.removeHandler(handler)
    assert "␛[2J" in stream.getvalue() and "Traceback" in stream.getvalue()
    assert (acting(stream.getvalue()), acting(str(caught.value)), acting(str(log.failures))) == (set(), set(), set())


def test_alerts_that_go_to_other_peoples_screens(tmp_path: Path) -> None:
    """The text of an alert is as visible in what a tracker sends as on the console."""
    from declog.records import Alert, Records
    from declog.sinks.wandb import WandbSink

    sent: list[dict[str, Any]] = []
    sink = WandbSink(mode="offline")
    sink._wandb.setup(settings=sink._wandb.Settings(root_dir=str(tmp_path)))
    sink.open(run_info(tmp_path, sink="wandb"))
    real = sink._run.alert

    def alert(**given: Any) -> None:
        sent.append(given)
        real(**given)

    sink._run.alert = alert
    sink.write(0, Records(alerts=(Alert(f"name {TEXT}", "warn", TEXT),)))
    sink.close()
    assert [acting(str(given["title"]) + str(given["text"])) for given in sent] == [set()]
