"""Resumed runs: what was written after the resumed step is dropped once, nothing doubled, nothing before touched."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from declog.errors import SinkError
from declog.records import Column, DType, Records, ResumePoint, RunInfo, Scalar, Table
from declog.sinks import Rewindable, Sink, built_in, sink_class
from declog.sinks.jsonl import JsonlSink
from declog.sinks.parquet import ParquetSink
from declog.sinks.runner import SinkRunner
from declog.sinks.tensorboard import TensorboardSink
from declog.testing import MemorySink
from tests import forks
from tests.sinks.samples import ROOT, event, parts, run_info

DATASETS = ("scalars", "histograms", "alerts", "tables/completions")


def windowed(step: int) -> Records:
    """A log event of a table whose rows have steps of their own: those of the window that ends here."""
    steps = [step - 1, step]
    return Records(
        tables=(Table("w", "w", (Column("step", DType.INT), Column("x", DType.INT)), {"step": steps, "x": steps}, 2),)
    )


def run(make: Callable[[], Sink], folder: Path, *events: tuple[int, Records], rewind: int | None = None) -> None:
    """One process's part of a run: open, perhaps rewind, write, close, each on the sink's own thread."""
    runner = SinkRunner("log", make())
    runner.open(run_info(folder))
    if rewind is not None:
        assert runner.rewind(ResumePoint(rewind), 30)
    for step, records in events:
        runner.submit(step, records)
        assert runner.flush(30)  # as training that is slower than its disk: each log event has a part of its own
    report = runner.close(30)
    assert (report.failed, report.dropped, report.finished) == (0, 0, True), report


def jsonl_rows(folder: Path) -> dict[str, list[Any]]:
    """Every line of every file."""
    return {
        str(path.relative_to(folder)): [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        for path in sorted(folder.rglob("*.jsonl"))
    }


def parquet_rows(folder: Path) -> dict[str, list[Any]]:
    """Every row of every dataset, by polars; pandas finds the same steps."""
    found = {}
    for name in (*DATASETS, "tables/w"):
        if parts(folder / name):
            frame = pl.read_parquet(folder / name)
            assert list(pd.read_parquet(folder / name)["step"]) == frame["step"].to_list()
            found[name] = frame.rows(named=True)
    return found


FILES: list[tuple[Callable[[], Sink], Callable[[Path], dict[str, list[Any]]]]] = [
    (JsonlSink, jsonl_rows),
    (lambda: ParquetSink(compact_every=3), parquet_rows),
]


@pytest.mark.parametrize(("make", "rows"), FILES)
@pytest.mark.parametrize("last", [-1, 0, 4, 6, 100])
def test_a_resumed_run_is_as_if_it_had_never_stopped(
    tmp_path: Path, make: Callable[[], Sink], rows: Callable[[Path], dict[str, list[Any]]], last: int
) -> None:
    """Wherever the checkpoint was: the steps after it are logged again, and the files are those of a straight run."""
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    events = [(step, event(step)) for step in range(0, 10, 2)]
    run(make, straight, *events)
    run(make, resumed, *events[:4])
    run(make, resumed, *(item for item in events if item[0] > min(last, 6)), rewind=last)
    assert repr(rows(resumed / "log")) == repr(rows(straight / "log"))


@pytest.mark.parametrize(("make", "rows"), FILES)
def test_rows_with_steps_of_their_own_go_with_their_log_event(
    tmp_path: Path, make: Callable[[], Sink], rows: Callable[[Path], dict[str, list[Any]]]
) -> None:
    """A checkpoint inside a window: all of the window's rows are logged again, those before the checkpoint too."""
    run(make, tmp_path, (2, windowed(2)), (4, windowed(4)))
    run(make, tmp_path, (4, windowed(4)), rewind=3)
    (table,) = rows(tmp_path / "log").values()
    assert [(row["step"], row["declog_step"]) for row in table] == [(1, 2), (2, 2), (3, 4), (4, 4)]


@pytest.mark.parametrize(("make", "rows"), FILES)
def test_a_second_rewind_changes_nothing(
    tmp_path: Path, make: Callable[[], Sink], rows: Callable[[Path], dict[str, list[Any]]]
) -> None:
    """It is idempotent; and every mode's rows go, since all of them are logged again."""
    run(make, tmp_path, *((step, event(step, mode=mode)) for step in range(4) for mode in ("train", "eval")))
    run(make, tmp_path, rewind=1)
    once = repr(rows(tmp_path / "log"))
    run(make, tmp_path, rewind=1)
    assert repr(rows(tmp_path / "log")) == once
    assert {(row["step"], row["mode"]) for row in rows(tmp_path / "log").popitem()[1]} == {
        (step, mode) for step in (0, 1) for mode in ("train", "eval")
    }


def test_jsonl_keeps_earlier_lines_byte_by_byte(tmp_path: Path) -> None:
    """Also lines that somebody else wrote, in another spelling; a torn last line goes."""
    folder = tmp_path / "log"
    folder.mkdir()
    mine = b'{ "step": 1, "note": "gr\\u00f6\\u00dfer" }\n'
    (folder / "scalars.jsonl").write_bytes(mine + b'{"step": 2}\n{"step": 1, "x": 1}\n{"step": 2, "to')
    run(JsonlSink, tmp_path, rewind=1)
    assert (folder / "scalars.jsonl").read_bytes() == mine + b'{"step": 1, "x": 1}\n'
    assert sorted(path.name for path in folder.rglob("*")) == ["scalars.jsonl"]


@pytest.mark.parametrize("line", [b"not json\n", b"[1]\n"])
def test_jsonl_does_not_guess_at_a_line_that_it_cannot_read(tmp_path: Path, line: bytes) -> None:
    """The run does not start: the error has the file and the line, and the file is as it was."""
    path = tmp_path / "log" / "scalars.jsonl"
    path.parent.mkdir()
    content = b'{"step": 5}\n' + line + b'{"step": 1}\n'
    path.write_bytes(content)
    runner = SinkRunner("log", JsonlSink())
    runner.open(run_info(tmp_path))
    with pytest.raises(SinkError, match=r"rewound to step 1: .*scalars\.jsonl:2 is no"):
        runner.rewind(ResumePoint(1), 30)
    runner.close(30)
    assert path.read_bytes() == content


def test_parquet_keeps_its_metadata_and_a_dataset_without_rows_takes_other_types(tmp_path: Path) -> None:
    """The parts that are cut keep what the file says of its run; a table that is gone is no contract any more."""

    def one(step: int, kind: Any, value: Any) -> tuple[int, Records]:
        return step, Records(tables=(Table("t", "t", (Column("x", kind),), {"x": [value]}, 1),))

    run(ParquetSink, tmp_path, (0, event(0)), (1, event(1)), one(1, "int", 7))
    run(ParquetSink, tmp_path, one(1, "text", "seven"), rewind=0)
    (part,) = parts(tmp_path / "log" / "scalars")
    assert pq.read_metadata(tmp_path / "log" / "scalars" / part).metadata[b"declog.run_id"] == b"run-7"
    assert pl.read_parquet(tmp_path / "log" / "tables" / "t")["x"].to_list() == ["seven"]


REWINDING = """
import os, signal, sys
from pathlib import Path
from declog.records import ResumePoint
from declog.sinks import make_sink
from tests import forks
from tests.sinks.samples import run_info
sink = make_sink(sys.argv[3], {"compact_every": 3} if sys.argv[3] == "parquet" else {})
sink.open(run_info(Path(sys.argv[1]), sink="log"))
changes = 0
def count(name, arguments):
    global changes
    if name in ("os.rename", "os.remove", "os.rmdir"):
        changes += 1
        if changes == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
sink.rewind(ResumePoint(4))
print(changes)
"""


@pytest.mark.parametrize(
    ("kind", "place", "changes"),
    [
        ("jsonl", 0, 3),  # each of two files
        ("parquet", 1, 6),  # in each of two datasets one part is cut, one removed, and its folder
    ],
)
def test_a_kill_in_the_middle_of_a_rewind_is_finished_by_the_next(
    kind: str, place: int, changes: int, tmp_path: Path
) -> None:
    """Killed before each change to the disk: every file reads, has all rows to keep, and a rewind completes it."""
    make, rows = FILES[place]
    events = [(step, replace(event(step), histograms=(), alerts=())) for step in range(9)]
    run(make, tmp_path / "expected", *events[:5])
    whole = repr(rows(tmp_path / "expected" / "log"))
    killed = 0
    while True:
        folder = tmp_path / str(killed)
        run(make, folder, *events)
        done = forks.run(["-c", REWINDING, folder, str(killed + 1), kind])
        for name, found in rows(folder / "log").items():
            steps = [row["step"] for row in found]
            expected = {0} if name == "metrics.jsonl" else set(range(5))  # which has a line for each name
            assert set(steps) >= expected, (killed, name)
            per_event = len(steps) // len(set(steps))
            assert steps == [step for step in sorted(set(steps)) for _ in range(per_event)], (killed, name)
        run(make, folder, rewind=4)
        assert repr(rows(folder / "log")) == whole, killed
        assert {path.suffix for path in (folder / "log").rglob("*")} <= {"", ".jsonl", ".parquet"}
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        killed += 1
    assert killed == int(done.stdout) == changes


def test_tensorboard_shows_a_resumed_run_as_a_straight_one(tmp_path: Path) -> None:
    """Scalars, histograms, tables and alerts of later steps are gone from the earlier event files, a torn end too."""
    run(TensorboardSink, tmp_path, *((step, event(step)) for step in range(6)))
    (earlier,) = (tmp_path / "log").iterdir()
    with open(earlier, "ab") as file:
        file.write(b"\x07\x00\x00\x00\x00\x00\x00\x00torn")
    (tmp_path / "log" / "rewound").write_text("what a kill left")
    run(TensorboardSink, tmp_path, (4, event(4)), rewind=3)
    found = EventAccumulator(str(tmp_path / "log"), {"scalars": 0, "histograms": 0, "tensors": 0})
    found.Reload()
    assert [(item.step, item.value) for item in found.Scalars("reward")] == [(step, 0.5 * step) for step in range(5)]
    assert [item.step for item in found.Histograms("lengths")] == list(range(5))
    assert [item.step for item in found.Tensors("completions")] == list(range(5))
    assert [item.step for item in found.Tensors("alerts/kl_runaway")] == list(range(5))
    assert sum(1 for path in (tmp_path / "log").iterdir()) == 2


class Stubborn:
    """A sink that cannot rewind, in a way that a test chooses."""

    accepts: ClassVar[frozenset[str]] = frozenset({"scalar"})

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act
        self.steps: list[int] = []

    def open(self, run: RunInfo) -> None: ...

    def rewind(self, point: ResumePoint) -> None:
        self.act()

    def write(self, step: int, records: Records) -> None:
        self.steps.append(step)

    def close(self) -> None: ...


def refuse() -> None:
    raise RuntimeError("the tape is torn")


def test_a_rewind_that_fails_is_an_error_at_start_and_the_sink_goes_on(tmp_path: Path) -> None:
    """It says which sink, which step and why; whoever starts the run decides."""
    runner = SinkRunner("tape", sink := Stubborn(refuse))
    runner.open(run_info(tmp_path))
    with pytest.raises(SinkError) as caught:
        runner.rewind(ResumePoint(3), 30)
    assert (caught.value.code, caught.value.message) == (
        "DL601",
        "sink `tape` could not be rewound to step 3: RuntimeError: the tape is torn",
    )
    runner.submit(4, Records(scalars=(Scalar("a", 1, "a"),)))
    assert (runner.close(30).failed, sink.steps) == (0, [4])


def test_a_rewind_that_hangs_is_an_error_after_its_time(tmp_path: Path) -> None:
    """Nobody waits for it longer than that."""
    gate = threading.Event()
    runner = SinkRunner("tape", Stubborn(lambda: (gate.wait(30), None)[1]))
    runner.open(run_info(tmp_path))
    with pytest.raises(SinkError, match=r"TimeoutError: it was not done in 0\.05 s"):
        runner.rewind(ResumePoint(3), 0.05)
    gate.set()
    assert runner.close(30).finished


def test_sinks_that_cannot_rewind_are_left_as_they_are(tmp_path: Path) -> None:
    """Which of the built-in ones can is part of their contract, and of the table in docs/sinks.md."""
    rows = re.findall(r"^\| (`.*?) \| is there once", (ROOT / "docs" / "sinks.md").read_text("utf-8"), re.MULTILINE)
    promised = {kind for row in rows for kind in re.findall(r"`(\w+)`", row)}
    assert promised == {kind for kind in built_in() if issubclass(sink_class(kind), Rewindable)}
    runner = SinkRunner("screen", sink_class("console")())
    runner.open(run_info(tmp_path))
    assert runner.rewind(ResumePoint(3), 30) is False
    runner.close(30)


def test_the_sink_for_tests_rewinds_like_a_file(tmp_path: Path) -> None:
    """One that is given to the resumed run again has every step once."""
    sink = MemorySink()
    run(lambda: sink, tmp_path, *((step, event(step)) for step in range(4)))
    run(lambda: sink, tmp_path, *((step, event(step)) for step in (2, 3)), rewind=1)
    assert [step for step, _ in sink.events] == [0, 1, 2, 3]


def test_a_run_goes_back_in_the_order_of_the_queue(tmp_path: Path) -> None:
    """What was submitted before is dropped, and what comes behind stays, however many log events wait together."""
    gate = threading.Event()

    class Slow(JsonlSink):
        def write_many(self, events: Any) -> dict[int, Exception]:
            gate.wait(30)
            return super().write_many(events)

    runner = SinkRunner("log", Slow())
    runner.open(run_info(tmp_path))
    for back in (None, 1, 0):
        if back is not None:
            runner.go_back(ResumePoint(back))
        for step in range(0 if back is None else back + 1, 4):
            runner.submit(step, Records(scalars=(Scalar("back", -1 if back is None else back, "back"),)))
    gate.set()
    assert runner.flush(30)
    lines = jsonl_rows(tmp_path / "log")["scalars.jsonl"]
    assert [(line["step"], line["scalars"]["back"]) for line in lines] == [(0, -1), (1, 0), (2, 0), (3, 0)]
    assert (report := runner.close(30)).finished and not report.failed


def test_a_sink_that_cannot_go_back_gets_what_follows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where it fails, that is reported; a full queue drops log events, and no point to which the run went back."""
    runner = SinkRunner("tape", sink := Stubborn(refuse), max_bytes=1)
    runner.open(run_info(tmp_path))
    runner.release()
    records = Records(scalars=(Scalar("a", 1, "a"),))
    runner.submit(0, records)
    runner.go_back(ResumePoint(-1))
    assert runner.flush(30)
    runner.submit(1, records)
    report = runner.close(30)
    assert (sink.steps, report.failed, report.dropped) == ([0, 1], 1, 0)
    assert "sink `tape` could not go back to step -1" in caplog.text
    console = SinkRunner("screen", sink_class("console")())
    console.open(run_info(tmp_path))
    console.go_back(ResumePoint(3))  # it is no `Rewindable`
    assert console.close(30).failed == 0


def test_parts_that_are_kept_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that goes back by a few steps reads the rows of these: of the others it knows the last step."""
    sink = ParquetSink()
    sink.open(run_info(tmp_path, sink="log"))
    for step in range(9):
        sink.write(step, replace(event(step), histograms=(), alerts=(), tables=()))
        sink.write(step, windowed(step))
    read: list[str] = []
    real = pq.ParquetFile

    def opened(part: Any, **how: Any) -> Any:
        read.append(Path(part).name)
        return real(part, **how)

    monkeypatch.setattr(pq, "ParquetFile", opened)
    sink.rewind(ResumePoint(6))
    assert sorted(set(read)) == [f"part-{number:06d}.parquet" for number in (6, 7, 8)]
    sink.close()
    monkeypatch.undo()
    for name, steps in (("scalars", "step"), ("tables/w", "declog_step")):
        assert sorted({*pl.read_parquet(tmp_path / "log" / name)[steps]}) == [*range(7)]
