"""The live line: on a real terminal, beside prints, unfinished rows and bars; nowhere else."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import ClassVar

import pytest
from tqdm import tqdm

import declog
from declog.records import Records, RunInfo
from declog.sinks._live_line import LiveLine
from declog.sinks.console import ConsoleSink
from declog.sinks.runner import SinkRunner
from tests.forks import PATIENCE_S
from tests.running import profile
from tests.sinks.samples import event, run_info
from tests.sinks.terminal import Terminal


@contextmanager
def at_terminal() -> Iterator[Terminal]:
    """This process's stdout and stderr are a terminal, 80 columns wide."""
    with Terminal() as made, redirect_stdout(made.stream), redirect_stderr(made.stream):
        yield made


@contextmanager
def drawn() -> Iterator[tuple[Terminal, LiveLine]]:
    """A terminal and a line on it."""
    with at_terminal() as made:
        line = LiveLine()
        line.begin()
        yield made, line
        line.end()


def test_it_is_gone_before_anybody_prints() -> None:
    """On stdout and stderr; what is printed stands in whole rows, and the line below them."""
    with drawn() as (terminal, line):
        line.draw("step 1")
        assert terminal.rows == ["step 1"]
        print("a")
        assert terminal.rows == ["a"]
        line.draw("step 2 of 9 · slow")
        print("longer than the line that stood here", file=sys.stderr)
        line.draw("step 3")
        line.draw("step 4")
        assert terminal.rows == ["a", "longer than the line that stood here", "step 4"]
        line.end()
        assert terminal.rows == ["a", "longer than the line that stood here"]


def test_a_row_without_its_end_is_left_alone() -> None:
    """Dots, and bars that go back to the start of their row; the line comes back below them."""
    with drawn() as (terminal, line):
        for text, free in (
            (".", False), ("", False), (".", False), ("\n", True), ("bar 1\r", False), ("bar 2", False),
            ("\rbar 3", False), ("\r     \r", True), ("", True), ("\x1b[2mgrey\x1b[m\n", True),
        ):  # fmt: skip
            sys.stdout.write(text)
            line.draw("LINE")
            assert ("LINE" in terminal.rows, line.free) == (free, free), text
        assert terminal.rows == ["..", "grey", "LINE"]


def test_bars_of_tqdm_stay_whole() -> None:
    """While one is drawn the line is not; of nested ones neither is lost."""
    with drawn() as (terminal, line):
        line.draw("step 0")
        with tqdm(total=2, ncols=30, bar_format="outer {n}", mininterval=0) as outer:
            for _ in range(2):
                with tqdm(total=2, ncols=30, bar_format="inner {n}", mininterval=0, leave=False) as inner:
                    inner.update()
                    line.draw("LINE")
                    assert terminal.rows == [f"outer {outer.n}", "inner 1"]
                outer.update()
                line.draw("LINE")
                assert terminal.rows == [f"outer {outer.n}"]
        line.draw("LINE")
        assert terminal.rows == ["outer 2", "LINE"]


def test_it_is_as_wide_as_the_terminal_is_now() -> None:
    """Wide, narrow, and wide again."""
    with drawn() as (terminal, line):
        shown = []
        for columns in (80, 12, 40):
            terminal.resize(columns)
            line.draw("step 120 · 1.8 steps/s")
            shown.append(terminal.rows)
        assert shown == [["step 120 · 1.8 steps/s"], ["step 120 ·"], ["step 120 · 1.8 steps/s"]]
        print("a whole row")
        assert terminal.rows == ["a whole row"]


def test_streams_are_as_they_were() -> None:
    """Two lines that begin and end in any order leave nobody listening; nothing is drawn any more."""
    with at_terminal() as terminal:
        before = sys.stdout.write
        one, other = LiveLine(), LiveLine()
        for made in (one, other):
            made.begin()
        other.end()
        one.end()
        assert sys.stdout.write == before
        one.draw("LINE")
        assert terminal.rows == []


def test_no_terminal_no_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A log file has plain lines, and its stdout is as it was."""
    before = sys.stdout.write
    sink = ConsoleSink()
    sink.open(run_info(tmp_path))
    assert (sink.live, sys.stdout.write == before) == (False, True)
    sink.progress(3, 9)
    sink.close()
    assert re.findall(r"step|\x1b|\r", capsys.readouterr().out) == []


def test_a_run_says_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step, of how many, speed, what is left; blocks are whole, below an unfinished row too."""
    monkeypatch.setenv("TERM", "xterm-256color")
    with at_terminal() as terminal:
        made = profile({"reward": {"axis": "completion"}}, {"n": {"expr": "mean(reward)", "tags": ["core"]}}, every=6)
        with declog.start(made, sinks=[ConsoleSink()], output_dir=tmp_path) as log:
            log.total_steps = 40
            seen = []
            for step in range(8):
                with log.step(step):
                    log.observe(reward=[1.0, 2.0])
                if step in (2, 4, 7):
                    pattern = rf"step {step} of 40( · \S+ (steps/s|s/step) · \S+ (s|min) left)?"
                    terminal.wait_for(lambda: bool(re.fullmatch(pattern, "".join(terminal.now[-1:]))))  # noqa: B023
                    seen.append("left" in terminal.now[-1])
                if step == 4:
                    print("...", end="", flush=True)
        rows = terminal.rows
        first = rows.index("...")
    assert (seen, rows[first + 1 : first + 3]) == ([False, True, True], ["step 5 · train", "  n        1.5"])
    assert re.fullmatch(r"step 7 · train · \S+ (steps/s|s/step) · .+ left", rows[first + 3])
    assert rows[first + 4 :] == ["  n        1.5        =  ▄▄"]


class Watching:
    """A sink that is live, and remembers where training was."""

    accepts: ClassVar[frozenset[str]] = frozenset({"scalar"})
    live = True

    def __init__(self, *, breaks: bool = False) -> None:
        self.breaks = breaks
        self.seen: list[tuple[int, int | None]] = []
        self.told = threading.Event()

    def open(self, run: RunInfo) -> None: ...

    def write(self, step: int, records: Records) -> None: ...

    def close(self) -> None: ...

    def progress(self, step: int, steps: int | None) -> None:
        self.seen.append((step, steps))
        self.told.set()
        if self.breaks:
            raise ValueError("no")


def test_a_sink_is_told_of_a_step_once(tmp_path: Path) -> None:
    """Nothing before the first step; then each that is the last at that moment."""
    sink, where = Watching(), iter([(None, None), (3, 9), (3, 9), (3, 9)])
    asked = threading.Event()

    def now() -> tuple[int | None, int | None]:
        found = next(where, None)
        if found is None:
            asked.set()
        return found or (5, 9)

    runner = SinkRunner("watching", sink)
    runner.open(run_info(tmp_path))
    runner.watch(now)
    assert asked.wait(PATIENCE_S)
    runner.submit(4, event(4))
    report = runner.close(10)
    assert (sink.seen, report.failed) == ([(3, 9), (5, 9)], 0)


def test_a_sink_that_cannot_show_it_is_told_no_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its failure is reported, and it still writes."""
    sink = Watching(breaks=True)
    runner = SinkRunner("watching", sink)
    runner.open(run_info(tmp_path))
    steps = iter(range(10**6))
    runner.watch(lambda: (next(steps), None))
    assert sink.told.wait(PATIENCE_S)
    for step in range(3):
        runner.submit(step, event(step))
    report = runner.close(10)
    assert (len(sink.seen), report.failed, str(report.first_error)) == (1, 1, "no")
    assert ["could not show the progress" in record.message for record in caplog.records] == [True, False]
