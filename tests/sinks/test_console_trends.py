"""What the console says of where values go: core first, changes, sparklines, marks, speed, JSON, on any width."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from tqdm import tqdm

from declog.records import Alert, Column, DType, Places, Records, RunInfo, Scalar, Table
from declog.sinks._scalar_lines import POINTS, Course, Trends, number, scalar_lines, sparkline
from declog.sinks.console import ConsoleSink, _beside_bars, table_cards

CONFIG: Mapping[str, Any] = {
    "metrics": {"reward": {"tags": ["core"]}, "kl": {"tags": "core, policy"}, "n": "mean"},
    "about": {"reward": {"good": "up"}, "kl": {"good": "down"}, "gone": None},
}


def scalars(values: Mapping[str, float]) -> list[Scalar]:
    return [Scalar(name, value, name.partition("/")[0]) for name, value in values.items()]


def lines(pieces: Sequence[tuple[str, str]]) -> list[str]:
    return "".join(text for text, _ in pieces).splitlines()


def test_core_metrics_are_first_and_never_left_out() -> None:
    """By their tag; and the loss, the learning rate and the gradient norm under any head."""
    names = [f"other/{place}" for place in range(30)]
    names += ["reward", "train/loss", "optim/learning_rate", "kl", "grad_norm"]
    shown = lines(scalar_lines(scalars(dict.fromkeys(names, 1.0)), 8, 40, Trends.of(CONFIG)))
    assert [line.split()[0] for line in shown] == [
        "reward", "train/loss", "optim/learning_rate", "kl", "grad_norm", "other", "0", "2", "and",
    ]  # fmt: skip
    assert shown[-1] == "  and 27 more"


def test_values_say_where_they_come_from() -> None:
    """The change since the last log event of their mode and a bar for each; others have an arrow; at first nothing."""
    trends = Trends.of(CONFIG)
    first, second = scalars({"reward": 0.5, "kl": 0.25, "n": 2.0}), scalars({"reward": 0.75, "kl": 0.25, "n": 1.0})
    assert lines(scalar_lines(first, 24, 50, trends)) == ["  reward        0.5   kl           0.25", "  n          2"]
    trends.add("train", first)
    assert lines(scalar_lines(second, 24, 50, trends)) == [
        "  reward       0.75    +0.25  ▁█",
        "  kl           0.25        =  ▄▄",
        "  n          1 ▼",
    ]
    assert lines(scalar_lines(second, 24, 50, trends, "eval")) == [
        "  reward       0.75   kl           0.25", "  n          1",
    ]  # fmt: skip
    trends.shown = False
    assert lines(scalar_lines(second, 24, 50, trends))[0] == "  reward       0.75   kl           0.25"


def test_a_change_for_the_better_is_green() -> None:
    """Where it is known which way is better."""
    trends = Trends.of(CONFIG)
    trends.add("train", scalars({"reward": 0.5, "kl": 0.5, "loss": 1.0}))
    pieces = scalar_lines(scalars({"reward": 1.0, "kl": 1.0, "loss": 0.5}), 24, 80, trends)
    assert [style for text, style in pieces if text.strip()[:1] in "+-" and text.strip()] == ["green", "red", "dim"]


def test_a_sparkline_goes_from_the_least_to_the_greatest() -> None:
    """Equal values are a line; so are those that no scale holds."""
    assert sparkline([0, 1, 2, 3.5, 7]) == "▁▂▃▅█"
    assert sparkline([2.0, 2.0]) == "▄▄"
    assert sparkline([-1.7e308, 1.7e308]) == "▄▄"
    assert sparkline([0, math.nan, 7]) == "▁ █"
    assert sparkline([math.nan]) == " "


@pytest.mark.parametrize("count", [1, 15, 16, 17, 32, 33, 1000, 4097])
def test_a_sparkline_is_of_the_whole_run(count: int) -> None:
    """Parts of as many log events each, which pandas would mean alike; their number is bounded."""
    values = [math.sin(place / 50) if place % 7 else math.nan for place in range(count)]
    course = Course()
    for value in values:
        course = course.and_then(value)
    size = 2 ** max(0, math.ceil(math.log2(count / POINTS)))
    parts = [[value for value in values[at : at + size] if value == value] for at in range(0, count, size)]
    assert course.means() == pytest.approx([sum(part) / len(part) if part else math.nan for part in parts], nan_ok=True)
    assert len(course.means()) <= POINTS
    assert math.isnan(course.last) if count == 1 else course.last == next(v for v in reversed(values) if v == v)


def test_a_value_that_is_not_finite_has_no_change_and_leaves_a_gap() -> None:
    """The change after it is from the last finite value."""
    trends = Trends.of(CONFIG)
    for value in (0.0, 1.0, math.inf):
        trends.add("train", scalars({"reward": value}))
    assert lines(scalar_lines(scalars({"reward": math.nan}), 24, 80, trends)) == ["  reward        nan           ▁█  "]
    assert lines(scalar_lines(scalars({"reward": 3.0}), 24, 80, trends)) == ["  reward          3       +2  ▁▃ █"]


@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize("count", [8, 40, 200])
def test_no_value_is_broken_on_any_width(width: int, count: int) -> None:
    """However long a name is, its end and the whole value are on one line."""
    values = {f"a/{'very/' * (place % 17)}long/name_{place}": -1.2345e-300 * 10.0**place for place in range(count - 1)}
    values["loss"] = math.nan
    trends = Trends.of(CONFIG)
    trends.add("train", scalars(dict.fromkeys(values, 1.0)))
    shown = lines(scalar_lines(scalars(values), count, width, trends))
    assert max(map(cell_len, shown)) <= width
    words = {word for line in shown for word in line.split()}
    assert {number(value) for value in values.values()} <= words


def samples(*why: str) -> Table:
    """Rows that filters took; the first column's name is long."""
    count = len(why)
    columns = Column("a_long_name/of_a_column", DType.FLOAT), Column("reward", DType.FLOAT)
    data = {"a_long_name/of_a_column": [0.5] * count, "reward": [1.0] * count}
    return Table("t", "t", columns, data, count, places=Places([3] * count, list(range(count)), None, why))


def test_the_best_and_worst_rows_are_marked() -> None:
    """By what their filter said, in a colour of their own; a row's numbers break between two of them only."""
    pieces = list(table_cards(samples("e:top", "some, e:bottom", "some"), 4, 400, 40, 3))
    assert lines(pieces)[1:] == [
        "    1 ▲ a_long_name/of_a_column 0.5",
        "      reward 1",
        "    2 ▼ a_long_name/of_a_column 0.5",
        "      reward 1",
        "    3 a_long_name/of_a_column 0.5",
        "      reward 1",
    ]
    assert [style for text, style in pieces if text.startswith("    ")] == ["bold green", "bold red", "bold"]


def test_both_ends_are_shown() -> None:
    """However few rows there is room for: in turns of what their filters said, in the table's order."""
    table = samples("e:top", "e:top", "e:top", "e:bottom", "e:bottom", "e:bottom", "e:top, every")
    shown = [
        [line.split()[1] for line in lines(list(table_cards(table, most, 400, 100, 3)))[1:]] for most in (1, 2, 3, 5)
    ]
    assert shown == [["▲"], ["▲", "▼"], ["▲", "▼", "▲"], ["▲", "▲", "▼", "▼", "▲"]]


def written(events: Sequence[tuple[int, Records]], *, terminal: bool = False, **options: Any) -> list[str]:
    """What the sink prints of log events, after the line that names the run."""
    sink = ConsoleSink(width=80, **options)
    sink.open(RunInfo("grpo", "run-7", Path("outputs"), "f", declog=CONFIG))
    sink._console.file = stream = io.StringIO()
    sink._console._force_terminal = terminal
    sink._trends.shown = terminal
    for step, records in events:
        sink.write(step, records)
    return stream.getvalue().splitlines()


def test_json_is_an_object_for_each_log_event_and_sample() -> None:
    """One on a line, strictly valid, with where each sample is from."""
    alert = Alert("kl", "warn", "\x1b!")
    event = Records("eval", 7.5, tuple(scalars({"kl": math.nan})), tables=(samples("e:top"),), alerts=(alert,))
    assert [json.loads(line) for line in written([(3, event), (4, Records())], format="json")] == [
        {
            "step": 3, "mode": "eval", "time": 7.5, "scalars": {"kl": "NaN"},
            "alerts": [{"name": "kl", "level": "warn", "text": "\x1b!"}],
        },
        {
            "step": 3, "mode": "eval", "table": "t", "row": 0, "why": "e:top", "a_long_name/of_a_column": 0.5,
            "reward": 1.0,
        },
    ]  # fmt: skip


def test_a_terminal_is_told_how_fast_and_how_long() -> None:
    """From the second log event of training on; a log file has the step alone."""
    events = [(step, Records("train", 100.0 + step * 2, tuple(scalars({"n": 1.0})))) for step in (0, 10, 20)]
    assert [line for line in written(events, steps=1821) if "step" in line] == [
        f"step {step} · train" for step in (0, 10, 20)
    ]
    told = [line for line in written(events, terminal=True, steps=1821) if "step" in line]
    assert ["step 10 · train · 0.5 steps/s · 1 h 00 min left" in line for line in told] == [False, True, False]


def test_bars_of_tqdm_are_drawn_again_below(capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed stands in lines of its own; a log file is left alone."""
    with tqdm(total=4, file=sys.stdout, ncols=20, bar_format="{n} of {total}") as bar:
        shown = []
        for terminal in (True, False):
            capsys.readouterr()
            with _beside_bars(terminal=terminal):
                print("block")
            shown.append(capsys.readouterr().out.split("\r"))
        bar.clear()
    assert [[part.strip() for part in parts if part.strip()] for parts in shown] == [["block", "0 of 4"], ["block"]]
