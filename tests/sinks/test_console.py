"""The console sink: what a person sees."""

from __future__ import annotations

import io
import json
import math
import os
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

import declog
from declog.errors import SinkError
from declog.records import Alert, Column, DType, Number, Records, RunInfo, Scalar, Table, spoken
from declog.sinks._scalar_lines import number, scalar_lines
from declog.sinks.console import ConsoleSink, alert_line, sample, table_cards
from tests.running import profile
from tests.sinks.samples import event, python, run_info
from tests.sinks.terminal import Terminal

COLUMNS = (
    Column("reward", DType.FLOAT),
    Column("ok", DType.BOOL),
    Column("prompt", DType.TEXT),
    Column("extra", DType.OBJECT),
)


def shown(records: Records, capsys: pytest.CaptureFixture[str], **options: Any) -> list[str]:
    """The lines of one block on a stdout that is no terminal."""
    sink = ConsoleSink(**options)
    sink.open(run_info(Path("outputs")))
    capsys.readouterr()
    sink.write(120, records)
    sink.close()
    return capsys.readouterr().out.splitlines()


def rows(prompts: list[str | None]) -> Table:
    """A table with one row per prompt."""
    count = len(prompts)
    data: dict[str, list[Any]] = {
        "reward": [0.5] * count,
        "ok": [True] * count,
        "prompt": prompts,
        "extra": [{"a": math.nan}] * count,
    }
    return Table("completions", "c", COLUMNS, data, count)


def test_a_block_says_it_all_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    """Step and mode, lone metrics, groups by the first part of their names, sample rows, alerts."""
    scalars = (
        Scalar("reward", 0.51234, "reward"),
        Scalar("rewards/correct/mean", 0.5, "rewards"),
        Scalar("loss/policy", math.nan, "loss"),
        Scalar("rewards/format/mean", 12345.6, "rewards", partial=True),
        Scalar("num_tokens", 1234567, "num_tokens"),
    )
    records = Records(scalars=scalars, tables=(rows(["What is 2 + 2?"]),), alerts=(Alert("kl", "warn", "KL 0.7"),))
    assert shown(records, capsys) == [
        "step 120 · train",
        "  reward          0.5123   loss/policy        nan   num_tokens   1,234,567",
        "  rewards",
        "    correct/mean        0.5   format/mean     12,346*",
        "  * some ranks are missing from this value",
        "  completions: 1 of 1 rows",
        "    1 reward 0.5 · ok true",
        "      prompt  What is 2 + 2?",
        '      extra   {"a":"NaN"}',
        "  ! warn kl: KL 0.7",
        "alerts of the run",
        "  ! warn kl, step 120: KL 0.7",
    ]


def test_the_run_is_named_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever reads the log knows where the files are."""
    ConsoleSink().open(run_info(Path("outputs/x")))
    assert capsys.readouterr().out == "run run-7 · grpo · outputs/x\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1234567, "1,234,567"),
        (2**60, "1.153e+18"),
        (2**2000, "inf"),
        (True, "true"),
        (0.0, "0"),
        (-0.00012346, "-0.0001235"),
        (1e-6, "1e-06"),
        (245.125, "245.1"),
        (12345.6, "12,346"),
        (-1e12, "-1e+12"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_numbers_are_for_people(value: Number, text: str) -> None:
    """Four significant digits, thousands separated, what is not finite as such."""
    assert number(value) == text


def test_many_scalars_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Beyond max_scalars the block says how many more there are."""
    scalars = tuple(Scalar(f"m{place}", place, f"m{place}") for place in range(30))
    lines = shown(Records(scalars=scalars), capsys)
    assert lines[-1] == "  and 6 more"
    assert "m23" in lines[-2]
    assert "m24" not in " ".join(lines)


def own_and_preset(count: int) -> tuple[RunInfo, tuple[Scalar, ...]]:
    """A run of many metrics of a preset and two of the user, and a log event's scalars as they come."""
    preset = [f"clip/{place}" for place in range(count)]
    metrics = {**{f"clip_{place}": "mean" for place in range(count)}, "mine": "mean", "by_source": "mean"}
    scalars = [Scalar(name, 1, name.replace("/", "_")) for name in preset]
    scalars += [Scalar("mine", 2, "mine.max"), Scalar("by_source/a", 3, "by_source")]
    scalars += [Scalar("my/own", 4, "logged"), Scalar("declog/late", 9, "declog/late")]
    run = replace(run_info(Path("outputs")), declog={"metrics": metrics}, user_metrics=frozenset({"mine", "by_source"}))
    return run, (Scalar("eval_nonfinite/clip_0", 1, "clip_0"), *scalars)


def test_what_the_user_declares_is_not_what_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """A preset's metrics are, behind warnings and what code logs, and before them what declog itself costs."""

    def cut(count: int) -> list[str]:
        run, scalars = own_and_preset(count)
        sink = ConsoleSink(max_scalars=6)
        sink.open(run)
        capsys.readouterr()
        sink.write(0, Records(scalars=scalars))
        return capsys.readouterr().out.split("\n", 1)[1].splitlines()

    assert cut(8) == [
        "  eval_nonfinite/clip_0          1   mine                           2",
        "  by_source/a                    3   my/own                         4",
        "  clip",
        "    0          1   1          1",
        "  and 7 more",
    ]
    assert "declog/late" in " ".join(cut(1)) and "declog/late" not in " ".join(cut(2))


def test_costs_of_declog_that_are_zero_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """A run in which nothing is lost and nothing waits says so by silence; a user's metric of 0 is shown."""
    scalars = (Scalar("declog/late", 0, "declog/late"), Scalar("declog/backlog", 2, "declog/backlog"))
    lines = shown(Records(scalars=(*scalars, Scalar("mine", 0.0, "mine"))), capsys)
    assert [line.split() for line in lines[1:]] == [["declog/backlog", "2", "mine", "0"]]


def test_a_mode_has_one_heading(capsys: pytest.CaptureFixture[str]) -> None:
    """Core metrics stand before the others below the heading that their names share."""
    run = replace(run_info(Path("outputs")), declog={"metrics": {"reward": {"tags": "core"}}})
    sink = ConsoleSink()
    sink.open(run)
    capsys.readouterr()
    names = {"eval/length": "length", "eval/reward": "reward"}
    sink.write(0, Records("eval", scalars=tuple(Scalar(name, 1, id) for name, id in names.items())))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:]] == [["eval"], ["reward", "1", "length", "1"]]


def test_a_metric_beside_a_preset_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is room for core metrics and one more, it is the one that an override declares."""
    settings = ["metrics.mine=max(reward)", "sinks=[console]", "sink_options.console.max_scalars=5"]
    with declog.start("grpo", ["axes.group.size=2", *settings], output_dir=tmp_path) as log, log.step(0):
        log.observe(reward=[0.0, 1.0], truncated=[False, True])
    lines = capsys.readouterr().out.splitlines()
    assert any("mine  " in line for line in lines) and any(line.startswith("  and ") for line in lines)


def test_samples_are_bounded_and_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    """At most max_rows rows, each text by its head and tail of max_chars together, wrapped to the width."""
    text = "What? " + "word " * 60 + "So it is 42."
    lines = shown(Records(tables=(rows([text] * 5),)), capsys, max_rows=2, max_chars=100, width=60)
    assert "  completions: 2 of 5 rows" in lines
    first = lines.index("    1 reward 0.5 · ok true")
    assert lines[first + 1 : first + 4] == [
        "      prompt  What? word word word word word word word word",
        "              word … 218 characters … rd word word word word",
        "              word word word So it is 42.",
    ]
    assert max(map(len, lines)) <= 60


def test_wide_characters_are_wrapped_by_what_they_take() -> None:
    """A Chinese text fits the width in cells, and all of it is there."""
    pieces = "".join(text for text, _ in table_cards(rows(["漢字" * 60]), 4, 400, 60))
    assert max(cell_len(line) for line in pieces.splitlines()) <= 60
    assert pieces.count("漢") == 60


def test_a_missing_text_is_none_and_an_empty_one_is_empty() -> None:
    """Null and the empty string look different."""
    lines = "".join(text for text, _ in table_cards(rows([None, ""]), 4, 400, 60)).splitlines()
    assert [line.strip() for line in lines if "prompt" in line] == ["prompt  none", "prompt"]


def test_a_column_without_a_value_is_left_out() -> None:
    """Of texts and of numbers, where no row of the table has one; a table of nothing else has no cards."""
    columns = [Column("prompt", DType.TEXT), Column("chat", DType.OBJECT), Column("length", DType.INT)]
    empty: dict[str, list[Any]] = {"prompt": [None] * 2, "chat": [None] * 2, "length": [None] * 2}
    reward = [Column("reward", DType.FLOAT)]
    some = Table("t", "t", (*columns, *reward), {**empty, "reward": [0.5, None]}, 2)
    lines = "".join(text for text, _ in table_cards(some, 4, 400, 60)).splitlines()
    assert lines == ["  t: 2 of 2 rows", "    1 reward 0.5", "    2 reward none"]
    assert list(table_cards(Table("t", "t", tuple(columns), empty, 2), 4, 400, 60)) == []


def test_what_a_model_writes_cannot_move_the_cursor() -> None:
    """Escape sequences become visible, line ends become an arrow."""
    assert sample("a\x1b[2Jb\nc\r\nd\te\x9b", 400) == "a␛[2Jb ⏎ c ⏎ d e\\x9b"


def test_markup_in_a_text_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Brackets are not rich's markup, colons not its emoji."""
    lines = shown(Records(tables=(rows(["[bold]x[/bold] :smile:"]),)), capsys)
    assert "      prompt  [bold]x[/bold] :smile:" in lines


def test_a_terminal_gets_colours() -> None:
    """What is not finite, and an alert by its level."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system="standard", width=80, legacy_windows=False)
    pieces = [*scalar_lines([Scalar("kl", math.nan, "kl")], 24, 80), alert_line(Alert("kl", "error", "gone"))]
    console.print(Text.assemble(*pieces), end="")
    assert "\x1b[1;31m      nan\x1b[0m" in stream.getvalue()
    assert "\x1b[1;31m  ! error kl: gone\x1b[0m" in stream.getvalue()


def test_a_stdout_that_is_not_utf8_loses_characters_only(tmp_path: Path) -> None:
    """An ASCII log file gets question marks, not an exception, and no colours."""
    code = """
import sys
from pathlib import Path
from declog.sinks.console import ConsoleSink
from tests.sinks.samples import event, run_info
sink = ConsoleSink()
sink.open(run_info(Path("x")))
sink.write(0, event(0))
"""
    out = python(code, env={"PYTHONIOENCODING": "ascii"})
    assert "  ! warn kl_runaway: KL 0 ? zu gro?\n" in out
    assert "\x1b" not in out


def test_everything_at_once_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The event with one of everything, surrogates aside, prints without a word about histograms."""
    lines = shown(event(3), capsys)
    assert lines[0] == "step 120 · train"
    assert any("größer 漢字 ⏎ zwei" in line for line in lines)


CHAT = [
    {"role": "user", "content": "What is 2 + 2? " * 8},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": {"größe": 2}}}]},
    {"role": "tool", "content": "4\n\x1b[2J"},
    {
        "role": "assistant",
        "content": [{"type": "text", "text": "It is"}, {"type": "image"}, {"type": "text", "text": "4."}],
    },
]


def chat(*conversations: Any, cut: int = 0) -> Table:
    """A table of conversations."""
    data: dict[str, list[Any]] = {"reward": [0.5] * len(conversations), "chat": list(conversations)}
    columns = (Column("reward", DType.FLOAT), Column("chat", DType.OBJECT))
    return Table("t", "t", columns, data, len(conversations), as_trace=True, cut=cut)


def test_a_conversation_is_lines_of_role_and_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Wrapped below the role; calls of tools are shown, controls are not obeyed, parts that are no text have a name."""
    assert shown(Records(tables=(chat(CHAT, cut=3),)), capsys, width=60)[1:] == [
        "  t: 1 of 4 rows",
        "    1 reward 0.5",
        "      chat",
        "        user      What is 2 + 2? What is 2 + 2? What is 2 +",
        "                  2? What is 2 + 2? What is 2 + 2? What is 2",
        "                  + 2? What is 2 + 2? What is 2 + 2?",
        '        assistant → add({"größe":2})',
        "        tool      4 ⏎ ␛[2J",
        "        assistant It is [image] 4.",
    ]


def test_a_long_conversation_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """`max_chars` is for all messages of a row: the first question and the last answers; the others are counted."""
    turns = [{"role": role, "content": f"{role} {turn}"} for turn in range(500) for role in ("user", "assistant")]
    long = [{"role": "system", "content": "rules " * 100}, *turns]
    assert shown(Records(tables=(chat(long),)), capsys, max_chars=32)[3:] == [
        "      chat",
        "        … 1 more message …",
        "        user      user 0",
        "        … 997 more messages …",
        "        user      user 499",
        "        assistant assistant 499",
    ]
    answer = {"role": "assistant", "content": "I add. " * 100 + "#### 42"}
    lines = shown(Records(tables=(chat([{"role": "user", "content": "2 + 40?"}, answer]),)), capsys, max_chars=60)
    assert lines[4:] == [
        "        user      2 + 40?",
        "        assistant I add. I add. I add. I add. … 654 characters … add. I add. I add. #### 42",
    ]


@pytest.mark.parametrize("value", [[], [{"content": "no role"}], [{"role": 1}], {"role": "user"}, ["user"]])
def test_other_lists_are_json(value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Only messages with a role are a conversation."""
    (line,) = shown(Records(tables=(chat(value),)), capsys)[3:]
    assert line == f"      chat  {json.dumps(value, separators=(',', ':'))}"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ({"name": "f", "arguments": '{"a": 1}'}, '→ f({"a": 1})'),
        ({"id": "1", "type": "function", "function": {"name": "f"}}, "→ f({})"),
        ({"function": "f"}, '{"function":"f"}'),
        ("f()", '"f()"'),
    ],
)
def test_calls_of_tools_in_every_spelling(call: Any, text: str) -> None:
    """What has no name is shown as it is."""
    assert spoken({"role": "assistant", "content": "I call", "tool_calls": [call]}) == f"I call\n{text}"


def printed(
    steps: int, folder: Path, capsys: pytest.CaptureFixture[str], *, every: int = 3, fails: bool = False, **others: Any
) -> list[str]:
    """What the console shows of a run whose `x` is the step, without the line that names the run."""
    sinks = {"console": {"every": every}, "jsonl": {"every": every}}
    config = profile({"x": {"axis": "step"}}, {"x": "mean(x)", "slow": {"expr": "x", "reduce": "max", "every": 4}},
                     sinks=[*sinks], sink_options=sinks, **others)  # fmt: skip
    try:
        with declog.start(config, output_dir=folder) as log:
            for step in range(steps):
                with log.step(step):
                    log.observe(x=float(step))
            assert not fails
    except AssertionError:
        assert fails
    return capsys.readouterr().out.splitlines()[1:]


def block(step: int, **values: int) -> list[str]:
    """The lines of a block of a few lone scalars."""
    wide = max(map(len, values))
    return [f"step {step} · train", "  " + "   ".join(f"{name:<{wide}}  {value:>9}" for name, value in values.items())]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (1, block(0, x=0, slow=0)),
        (2, [*block(1, slow=1), *block(1, x=1)]),  # the turn is that of the slower window
        (3, [*block(2, x=2), *block(2, slow=2)]),
        (4, [*block(2, x=2), *block(3, x=3, slow=3)]),
        (8, [*block(2, x=2), *block(5, x=5), *block(7, x=7, slow=7)]),
    ],
)
def test_a_run_that_ends_between_turns_shows_its_last_values(
    steps: int, expected: list[str], fails: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one block with the windows that end with the run, also where it fails; nothing is shown twice."""
    assert printed(steps, tmp_path, capsys, fails=fails) == expected


def test_the_last_turn_is_not_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the run ends with the sink's turn, and at every log event, there is nothing left to show."""
    assert printed(12, tmp_path, capsys, every=4)[-2:] == block(11, x=11, slow=11)
    assert [line for line in printed(3, tmp_path / "each", capsys, every=1) if "x " in line] == [
        line for step in range(3) for line in block(step, x=step) if "x " in line
    ]


def test_an_alert_is_shown_at_once_and_counted_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It waited for no turn; the values of its log event follow, and the alerts of the whole run end it."""
    lines = printed(2, tmp_path / "short", capsys, alerts={"high": {"when": "x > 0.5"}})
    assert lines == [
        "step 1 · train", "  ! warn high: x is 1: x > 0.5", *block(1, slow=1), *block(1, x=1),
        "alerts of the run", "  ! warn high, step 1: x is 1: x > 0.5",
    ]  # fmt: skip


@pytest.mark.parametrize("fails", [False, True])
def test_the_end_says_how_often_each_alert_fired(
    fails: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the step at which it first did, with its latest text, also of a run that fails."""
    alerts = {"late": {"when": "x > 6.5", "level": "error"}, "odd": {"when": "parity > 0.5"}}
    config = profile(
        {"x": {"axis": "step"}, "parity": {"axis": "step"}}, {"x": "mean(x)", "parity": "mean(parity)"},
        alerts=alerts, sinks=["console"],
    )  # fmt: skip
    with suppress(ZeroDivisionError), declog.start(config, output_dir=tmp_path) as log:
        for step in range(8):
            with log.step(step):
                log.observe(x=float(step), parity=step % 2 * (1 + step / 8))
        assert not (fails and 1 / 0)
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "alerts of the run",
        "  ! warn odd, 4 times, steps 1 to 7: parity is 1.875: parity > 0.5",
        "  ! error late, step 7: x is 7: x > 6.5",
    ]


def test_what_a_profile_does_not_show_is_not_the_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The values before it are; a run of which nothing is shown ends without a block."""
    hidden = {"hidden": {"only": ["slow"]}}
    assert printed(6, tmp_path, capsys, profiles=hidden, profile="hidden") == block(5, slow=5)
    nothing = {"nothing": {"hide": ["*"]}}
    assert printed(2, tmp_path / "none", capsys, profiles=nothing, profile="nothing") == []


def test_other_sinks_take_their_turns_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`every` is what a file holds, whenever the run ends."""
    printed(8, tmp_path, capsys)
    lines = (tmp_path / "jsonl" / "scalars.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 5]


@pytest.mark.parametrize("mode", [{"prefix": "eval_", "every": "end"}, {"prefix": "eval_", "every": 1}], ids=str)
def test_evaluations_of_a_block_wait_for_no_turn(mode: dict[str, Any], tmp_path: Path) -> None:
    """A mode that logs once per block has few log events; one that logs steps is thinned as training is."""
    config = profile(
        {"x": {"axis": "step"}}, {"x": "mean(x)"}, sinks=["jsonl"], sink_options={"jsonl": {"every": 3}},
        modes={"eval": mode},
    )  # fmt: skip
    with declog.start(config, output_dir=tmp_path) as log:
        for step in range(4):
            with log.step(step):
                log.observe(x=float(step))
            with log.mode("eval"), log.step(step) if mode["every"] == 1 else log.batch():
                log.observe(x=step + 7.0)
    rows = [(row["step"], row["name"], row["value"]) for row in declog.read(tmp_path).scalars]
    evaluated = [2] if mode["every"] == 1 else range(4)
    assert sorted(rows) == sorted([(2, "x", 2.0), *((step, "eval_x", step + 7.0) for step in evaluated)])


def test_each_mode_ends_on_its_last_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of their steps."""
    config = profile(
        {"x": {"axis": "step"}}, {"x": "mean(x)"}, sinks=["console"], sink_options={"console": {"every": 5}},
        modes={"eval": {"prefix": "eval_", "every": "end"}},
    )  # fmt: skip
    with declog.start(config, output_dir=tmp_path) as log:
        for step in range(3):
            with log.step(step):
                log.observe(x=float(step))
            if step == 1:
                with log.mode("eval"), log.batch():
                    log.observe(x=7.0)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [lines[0].endswith("· eval"), *lines[1:]] == [True, "  eval_x          7", *block(2, x=2)]


PICKED: dict[str, Any] = {
    "signals": {"any": {"reward": {"axis": "completion"}, "prompt": {"axis": "completion", "type": "text"}}},
    "schemas": {"s": {"prompt": "text", "reward": "float"}},
}


def picked(filter: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str], /, **table: Any) -> list[str]:
    """The rows that the console shows of five steps of eight completions, the worst ones in the third."""
    filters = table.pop("filters", {"f": {"key": "reward", **filter}})
    spec = {"schema": "s", "filter": "f", "every": 5, **table}
    config = profile(
        PICKED["signals"]["any"], {}, filters=filters,
        schemas=PICKED["schemas"], tables={"t": spec}, sinks=["console"],
    )  # fmt: skip
    with declog.start(config, output_dir=folder) as log:
        for step in range(5):
            with log.step(step):
                log.observe(
                    reward=[step % 2 + place / 8 - 9 * (step == 2) for place in range(8)],
                    prompt=[f"prompt {step}.{place}" for place in range(8)],
                )
    shown = capsys.readouterr().out.splitlines()[2:]
    return [
        f"{card.strip()} · {text.split(maxsplit=1)[1]}" for card, text in zip(shown[1::2], shown[2::2], strict=True)
    ]


def test_a_table_over_a_window_shows_the_newest_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a filter chose in each; rows say their step, also where there are fewer than the console has room for."""
    assert picked({"bottom": 4, "within": "step"}, tmp_path / "many", capsys) == [
        f"{place + 1} ▼ step 4 · reward {place / 8:g} · prompt 4.{place}" for place in range(4)
    ]
    assert picked({"top": 1, "bottom": 1, "within": "step"}, tmp_path / "few", capsys) == [
        "1 ▲ step 4 · reward 0.875 · prompt 4.7", "2 ▼ step 4 · reward 0 · prompt 4.0",
    ]  # fmt: skip


def test_what_was_chosen_from_a_window_is_of_all_its_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The worst of the window are the worst that the console shows, with the step of each."""
    assert picked({"bottom": 3, "top": 1}, tmp_path / "window", capsys) == [
        "1 ▲ step 1 · reward 1.875 · prompt 1.7", "2 ▼ step 2 · reward -9 · prompt 2.0",
        "3 ▼ step 2 · reward -8.875 · prompt 2.1", "4 ▼ step 2 · reward -8.75 · prompt 2.2",
    ]  # fmt: skip


WORST = [f"{place + 1} ▼ step 2 · reward {place / 8 - 9:g} · prompt 2.{place}" for place in range(3)]


def test_a_choice_from_a_window_is_shown_however_it_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a filter in the table, and by any filter of a chain; rows of earlier steps are there, too."""
    inside = {"key": "reward", "bottom": 3}
    assert picked({"top": 1}, tmp_path / "inside", capsys, filter=inside) == WORST
    chain = {"f": inside, "long": {"from": "f", "where": "reward < 0"}}
    assert picked({}, tmp_path / "chain", capsys, filter="long", filters=chain) == WORST
    few = picked({"bottom": 10}, tmp_path / "over", capsys)
    assert (few[:3], len(few)) == (WORST, 4)


def test_the_worst_rows_are_shown_before_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a filter chose more than there is room for: in the order of its choice, not of the rows."""
    assert picked({"key": "-reward", "bottom": 6, "within": "step"}, tmp_path, capsys) == [
        f"{8 - place} ▼ step 4 · reward {place / 8:g} · prompt 4.{place}" for place in (7, 6, 5, 4)
    ]


def test_a_step_that_the_block_says_is_not_said_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where each log event has the rows of its own step."""
    assert "▼ reward 0" in picked({"bottom": 1}, tmp_path, capsys, every=1)[0]


@pytest.mark.parametrize("columns", [80, 200])
def test_a_terminal_of_any_width_shows_it_all(columns: int) -> None:
    """No row runs over, and the answer at a text's end, wide characters and the alerts at the end are there."""
    table = rows(["漢字" * 300 + " so it is 42."])
    values = tuple(Scalar(f"rewards/{'报酬' * place}/mean", place / 7, "rewards") for place in range(1, 9))
    with Terminal(columns, 200) as terminal, redirect_stdout(terminal.stream):
        sink = ConsoleSink()
        sink.open(run_info(Path("outputs")))
        for step in range(40):
            scalars = (Scalar("loss", math.nan if 20 <= step < 30 else 1 / (step + 1), "loss"), *values)
            sink.write(
                step, Records(scalars=scalars, tables=(table,), alerts=(Alert("kl", "warn", "KL"),) * (step > 37))
            )
        sink.close()
        shown = terminal.rows
    shown = shown[max(place for place, row in enumerate(shown) if row.startswith("step 39 · train")) :]
    assert shown[1].split()[:3] == ["loss", "0.025", "-0.00064"]
    bars = shown[1].partition("-0.00064  ")[2]
    assert bars == "█▃▂▂▁  ▁▁▁"  # four log events each
    assert max(map(cell_len, shown)) <= columns
    assert any("characters …" in row for row in shown)
    assert any(row.endswith("so it is 42.") for row in shown)
    assert shown[-2:] == ["alerts of the run", "  ! warn kl, 2 times, steps 38 to 39: KL"]


@pytest.mark.parametrize("options", [{}, {"format": "json"}], ids=["text", "json"])
def test_a_reader_that_has_gone_ends_nothing(options: dict[str, Any], tmp_path: Path) -> None:
    """Class: `python train.py | head` closes the pipe. rich would end the process; the sink says what happened."""
    reads, writes = os.pipe()
    os.close(reads)
    sink = ConsoleSink(**options)
    sink.open(run_info(tmp_path))
    closed = os.fdopen(writes, "w", buffering=1)
    with redirect_stdout(closed), pytest.raises(SinkError, match="nobody reads"):
        sink.write(1, event(1))
    with suppress(BrokenPipeError):  # what it still held
        closed.close()
