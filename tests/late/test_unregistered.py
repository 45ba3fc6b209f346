"""Lines for a run whose program registered functions, reductions and columns: here they are registered, or are not."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.cli import main
from declog.errors import ConfigError
from declog.language import functions, reductions, row_functions
from declog.late import Late, ask, write

MODULE = """\
import declog

@declog.function
def late_clipped(x):
    return x.clamp(0, 1)

@declog.reducer
def late_spread(values):
    return values.max() - values.min()

@declog.column
def late_words(text):
    return len(text.split())
"""
METRICS = {
    "reward": "mean(reward)",
    "clipped": "mean(late_clipped(reward))",
    "range": {"expr": "reward", "reduce": "late_spread"},
    "doubled": {"formula": "clipped * 2"},
    "part": "max(late_part)",
}
CONFIG: dict[str, Any] = {
    "signals": {"any": {"reward": "completion", "text": "completion text"}},
    "metrics": METRICS,
    "derived": {"late_part": "late_clipped(reward)"},
    "about": {"clipped": {"help": "between 0 and 1"}},
    "schemas": {"rows": {"text": "text", "words": {"type": "int", "call": "late_words"}}},
    "tables": {"rows": {"schema": "rows"}},
    "sinks": ["jsonl"],
}


def forget() -> None:
    """Take the functions out, as in a program that has not imported their module."""
    sys.modules.pop("late_team", None)
    for registry in (functions.DEFAULT, reductions.DEFAULT, row_functions.DEFAULT):
        for name in ("late_clipped", "late_spread", "late_words"):
            registry.discard(name)


def train(folder: Path, config: dict[str, Any]) -> Path:
    """A run of three steps."""
    with declog.start(config, output_dir=folder) as log:
        for step in range(3):
            with log.step(step):
                log.observe(reward=[0.5, 1.5 + step], text=["a b", "c"])
    return folder


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with the module of functions; they are registered."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("late_team.py").write_text(MODULE, encoding="utf-8")
    importlib.import_module("late_team")
    yield tmp_path
    forget()


def values(late: Late) -> list[Any]:
    """Each value, with its step."""
    return [(step, scalar.value) for step, records in late.events for scalar in records.scalars]


def test_lines_that_need_none_of_them(registered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Metrics of the run that cannot be compiled here are left out; the values are as if they could be."""
    run = train(registered / "run", CONFIG)
    lines = {"high": "max(reward)", "twice": "{formula: reward * 2}"}
    expected = values(ask(run, lines))
    forget()
    assert values(ask(run, lines)) == expected and len(expected) == 6
    assert main(["add", str(run), "high: max(reward)"]) == 0
    assert "3 values, steps 0 to 2" in capsys.readouterr().out
    assert declog.read(run)["high"].values.tolist() == [1.5, 2.5, 3.5]


@pytest.mark.parametrize(
    ("line", "place", "name"),
    [
        ("max(late_clipped(reward))", "the line `x`", "late_clipped"),
        ("late_spread(reward)", "the line `x`", "late_spread"),
        ("{expr: reward, reduce: late_spread}", "the line `x`", "late_spread"),
        ("{formula: clipped + 1}", "in metrics.clipped.expr", "late_clipped"),
        ("{formula: doubled + 1}", "in metrics.clipped.expr", "late_clipped"),
        ("min(late_part)", "in derived.late_part.expr", "late_clipped"),
    ],
)
def test_a_line_that_needs_one(
    line: str, place: str, name: str, registered: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answer says how it comes here; in the program that registers it, and with that edit, the line is answered."""
    run = train(registered / "run", CONFIG)
    expected = values(ask(run, {"x": line}))
    forget()
    assert main(["add", str(run), f"x: {line}"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("error[") == 1 and place in said
    assert f"`{name}` is registered by the run's program, and not here" in said
    assert 'fix: [tool.declog] imports = ["MODULE"] in your pyproject.toml' in said
    Path("pyproject.toml").write_text('[tool.declog]\nimports = ["late_team"]\n', encoding="utf-8")
    late = ask(run, {"x": line})
    assert values(late) == expected
    write(run, late)
    assert declog.read(run)["x"].steps.tolist() == [0, 1, 2]


def test_a_mistake_of_the_line_stays_one(registered: Path) -> None:
    """Only names that the run's config uses are its program's."""
    run = train(registered / "run", CONFIG)
    forget()
    for line, said in {"max(lgo(reward))": "unknown function `lgo`", "max(rewrd)": "unknown signal `rewrd`"}.items():
        with pytest.raises(ConfigError, match=said) as error:
            ask(run, {"x": line})
        assert len(error.value.problems) == 1
