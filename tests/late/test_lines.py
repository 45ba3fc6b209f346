"""What is wrong with a line is shown in the line: as it was typed, of one or several lines, or in its YAML file."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import declog
from declog.cli import main

FILE = """\
metrics:
  fine: max(level)
  wrong:
    expr: rewrd
    by: level
  odd: {expr: reward, byy: level}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a run that is over."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    signals = {"any": {"reward": "completion", "level": "completion int", "source": "completion text"}}
    data = {"run": {"name": "lines"}, "signals": signals, "metrics": {"reward": "mean"}, "sinks": ["jsonl"]}
    with declog.start(data, output_dir=folder) as log:
        for step in range(2):
            with log.step(step):
                log.observe(reward=[1.0, 2.0], level=[0, step], source=["a", "b"])
    yield folder


ONE_LINE = {
    "x: mean(rewrd)": ("DL302", "x: mean(rewrd)", "        ^^^^^"),
    "x: {expr: reward, where: levl > 1}": ("DL302", "x: {expr: reward, where: levl > 1}", 25 * " " + "^^^^"),
    "x: {expr: reward, wher: level}": ("DL201", "x: {expr: reward, wher: level}", 18 * " " + "^^^^"),
    "x:  mean(reward": ("DL301", "x: mean(reward", "       ^"),
    "x: last(source)": ("DL312", "x: last(source)", "   ^"),
    "x: {expr: reward, by: source}": ("DL612", "x: {expr: reward, by: source}", "   ^"),
    "x: {expr: reward, where: level > 9}": ("DL612", "x: {expr: reward, where: level > 9}", "   ^"),
    "reward: mean(level)": ("DL612", "reward: mean(level)", "        ^"),
}


@pytest.mark.parametrize(("line", "shown"), ONE_LINE.items(), ids=[*ONE_LINE])
def test_a_line_as_it_was_typed(
    line: str, shown: tuple[str, str, str], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors of composing, compiling and of the rows: the line, and the caret below what is wrong in it."""
    code, text, carets = shown
    assert main(["add", str(run), line]) == 2
    said = capsys.readouterr().err
    head, *lines = said.splitlines()
    place = lines.index(f"    {text}")
    assert head.startswith(f"error[{code}] the line `{line.partition(':')[0]}`") and "override" not in said
    assert lines[place + 1].startswith(f"    {carets}") and lines[place + 1].strip(" ^") == ""


def test_a_metric_of_several_lines(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is YAML: it is taken, its mistakes have the number of their line, and so has one that is no YAML."""
    assert main(["add", str(run), "x:\n  expr: level\n  reduce: max", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("x ")
    assert main(["add", str(run), "x:\n  expr: reward\n  where: levl > 1"]) == 2
    assert "    3 |   where: levl > 1\n      |          ^^^^\n" in capsys.readouterr().err
    assert main(["add", str(run), "x:\n  expr: reward\n   where: level > 1"]) == 3
    assert "    3 |    where: level > 1\n" in capsys.readouterr().err
    assert main(["add", str(run), "x:\n  expr: level\n  reduce: max\ny: min(level)", "--dry-run"]) == 0
    assert [line[:2] for line in capsys.readouterr().out.splitlines()] == ["x ", "y "]
    assert main(["add", str(run), "x: max(level)\ny: min(levl)"]) == 2
    assert "    y: min(levl)\n           ^^^^\n" in capsys.readouterr().err


def test_a_yaml_file(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """File, line and column, for entries that are wrong, and for a file that is no YAML or none at all."""
    file = tmp_path / "more.yaml"
    file.write_text(FILE)
    assert main(["add", str(run), str(file)]) == 2
    said = capsys.readouterr().err
    assert f"error[DL201] {file}:6:23 in metrics.odd.byy\n" in said
    assert "    6 |   odd: {expr: reward, byy: level}\n      |                       ^^^\n" in said
    file.write_text(FILE.replace("byy", "by"))
    assert main(["add", str(run), str(file)]) == 2
    assert f"error[DL302] {file}:4:11 in metrics.wrong.expr\n" in capsys.readouterr().err
    file.write_text("metrics:\n  x: {expr: reward\n")
    assert main(["add", str(run), str(file)]) == 3
    assert f"error[DL101] {file}:2:" in capsys.readouterr().err
    file.unlink()
    assert main(["add", str(run), str(file)]) == 2
    assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["RUN", "x=max(reward) where level > 0"], "'x: {expr: reward, reduce: max, where: \"level > 0\"}'"),
        (["RUN", "max(reward) where level > 0"], "'my_id: {expr: reward, reduce: max, where: \"level > 0\"}'"),
        (["x: max(reward)", "RUN"], "declog add RUN 'x: max(reward)'"),
    ],
)
def test_a_line_in_another_form(run: Path, words: list[str], fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The fix is what the shell takes."""
    assert main(["add", *(word.replace("RUN", str(run)) for word in words)]) == 2
    assert fix.replace("RUN", str(run)) in " ".join(capsys.readouterr().err.split())


SEVERAL = {  # lines whose fix has more than one metric, and the values of the fix at the two steps
    "x: {formula: reward - previous(reward)}": {"x": [0.0]},
    "x: {formula: max(level) - min(level)}": {"level_max": [0.0, 1.0], "level_min": [0.0, 0.0], "x": [0.0, 1.0]},
    "x: sum(level) / sum(reward)": {"x": [0.0, 1 / 3]},
    "x: {expr: level, combine: diff}": {"x": [0.5]},
    "x: {expr: reward if level == 1 else 0, combine: diff}": {"x": [1.0]},
    "++declog.metrics.x='max(level)'": {"x": [0.0, 1.0]},
}


@pytest.mark.parametrize(("line", "values"), SEVERAL.items(), ids=[*SEVERAL])
def test_a_fix_of_several_metrics_is_pasted(
    line: str, values: dict[str, list[float]], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Class: fixes with helper metrics. On the shell each metric is a quoted word; in a file the fix is `metrics`."""
    assert main(["add", str(run), line]) == 2
    fix = capsys.readouterr().err.split("fix: ")[1].removesuffix(", or a YAML file with `metrics`\n")
    assert main(["add", str(run), *shlex.split(fix), "--dry-run", "--format", "json"]) == 0
    series = json.loads(capsys.readouterr().out)["series"]
    assert series.keys() == values.keys()
    for name, points in series.items():
        assert [value for _, value in points] == pytest.approx(values[name])
    if line.startswith("x"):
        file = tmp_path / "more.yaml"
        file.write_text(f"metrics:\n  {line}\n")
        assert main(["add", str(run), str(file)]) == 2
        said = capsys.readouterr().err.split("fix: ")[1]
        assert said.startswith("metrics: {")
        file.write_text(said)
        assert main(["add", str(run), str(file), "--dry-run", "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["series"] == series


def test_a_hidden_metric_that_nothing_reads(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Class: `log: false` on a metric that nothing else reads: it is off, and the fix is about that key."""
    assert main(["add", str(run), "x: {expr: max(level), log: false}"]) == 2
    assert "fix: drop its `log`" in capsys.readouterr().err
