"""The jsonl sink, read back with the standard library and pandas."""

from __future__ import annotations

import json
import math
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from declog.errors import SinkError
from declog.records import Column, DType, Records, ResumePoint, Scalar, Table
from declog.sinks.jsonl import JsonlSink, LineFile, repair
from tests.sinks.samples import EXACT, HUGE, SURROGATE, event, run_info


def lines(path: Path) -> list[Any]:
    """Every line of a file, parsed by the letter of the JSON standard."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text("utf-8").splitlines()]


def written(folder: Path, *events: tuple[int, Records], **options: Any) -> Path:
    """The folder of a sink named `log` after it wrote some log events."""
    sink = JsonlSink(**options)
    sink.open(run_info(folder, sink="log"))
    for step, records in events:
        sink.write(step, records)
    sink.close()
    return folder / "log"


def test_scalars_are_one_line_per_log_event(tmp_path: Path) -> None:
    """Integers keep every digit, NaN and infinities are strings that float() reads, names stay as they are."""
    folder = written(tmp_path, (7, event(7)))
    assert lines(folder / "scalars.jsonl") == [
        {
            "step": 7,
            "mode": "train",
            "time": 1007.0,
            "run_id": "run-7",
            "scalars": {
                "reward": 3.5,
                "loss/größe": "NaN",
                "loss/inf": "-Infinity",
                "tokens": EXACT + 7,
                "huge": HUGE,
                "done": True,
            },
            "partial": ["done"],
        }
    ]
    assert float("-Infinity") == -math.inf


def test_text_is_not_escaped(tmp_path: Path) -> None:
    """A person who greps for a word finds it."""
    folder = written(tmp_path, (0, event(0)))
    assert "größer 漢字" in (folder / "tables" / "completions.jsonl").read_text("utf-8")


def test_tables_are_one_line_per_row(tmp_path: Path) -> None:
    """Each row is an object of its columns with the step, the mode and the run."""
    folder = written(tmp_path, (1, event(1)), (2, event(2, mode="eval")))
    rows = lines(folder / "tables" / "completions.jsonl")
    assert rows[0] == {
        "step": 1,
        "mode": "train",
        "run_id": "run-7",
        "id": EXACT + 10,
        "reward": 1.5,
        "ok": True,
        "prompt": "größer 漢字\nzwei",
        "extra": {"a": [1, "Infinity"]},
    }
    assert [(row["step"], row["mode"], row["id"]) for row in rows] == [
        (step, mode, EXACT + 10 * step + row) for step, mode in ((1, "train"), (2, "eval")) for row in range(3)
    ]
    assert (rows[1]["reward"], rows[1]["ok"], rows[2]["reward"]) == ("NaN", None, None)


def test_a_tables_own_step_column_is_kept(tmp_path: Path) -> None:
    """Where a schema has a step column, that is the one; the log event's step has a name of its own."""
    own = Table("t", "t", (Column("step", DType.INT),), {"step": [41, 42]}, 2)
    folder = written(tmp_path, (50, Records(tables=(own,))))
    assert lines(folder / "tables" / "t.jsonl") == [
        {"step": step, "mode": "train", "run_id": "run-7", "declog_step": 50} for step in (41, 42)
    ]


def test_a_tables_own_run_column_is_kept(tmp_path: Path) -> None:
    """Where a schema has a column run_id, that is the one; the run's id has a name of its own, and is what rewinds."""
    own = Table("t", "t", (Column("run_id", DType.TEXT),), {"run_id": ["mine"]}, 1)
    folder = written(tmp_path, (3, Records(tables=(own,))), (5, Records(tables=(own,))))
    row = {"mode": "train", "run_id": "mine", "declog_run_id": "run-7"}
    assert lines(folder / "tables" / "t.jsonl") == [{"step": step, **row} for step in (3, 5)]
    sink = JsonlSink()
    sink.open(run_info(tmp_path, sink="log"))
    sink.rewind(ResumePoint(3))
    sink.close()
    assert lines(folder / "tables" / "t.jsonl") == [{"step": 3, **row}]


def test_histograms_and_alerts_have_files_of_their_own(tmp_path: Path) -> None:
    """One line each, with the step."""
    folder = written(tmp_path, (3, event(3)))
    stamp = {"step": 3, "mode": "train", "time": 1003.0, "run_id": "run-7"}
    assert lines(folder / "histograms.jsonl") == [
        {**stamp, "name": "lengths", "counts": [0, 2, 3], "edges": [0.0, 1.0, 2.0, 4.0]}
    ]
    assert lines(folder / "alerts.jsonl") == [
        {**stamp, "name": "kl_runaway", "level": "warn", "text": "KL 3 — zu groß"}
    ]


def test_pandas_reads_the_files(tmp_path: Path) -> None:
    """The table is a data frame in one call."""
    folder = written(tmp_path, *((step, event(step)) for step in range(4)))
    frame = pd.read_json(folder / "tables" / "completions.jsonl", lines=True)
    assert frame["step"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_a_lone_surrogate_comes_back_as_it_was(tmp_path: Path) -> None:
    """Text that UTF-8 cannot hold is written as the escape that JSON has for it."""
    own = Table("t", "t", (Column("x", DType.TEXT),), {"x": [SURROGATE]}, 1)
    folder = written(tmp_path, (0, Records(tables=(own,))))
    assert lines(folder / "tables" / "t.jsonl")[0]["x"] == SURROGATE


def test_a_resumed_run_appends(tmp_path: Path) -> None:
    """The second run continues the first one's files."""
    written(tmp_path, (0, event(0)), (1, event(1)))
    folder = written(tmp_path, (2, event(2)))
    assert [line["step"] for line in lines(folder / "scalars.jsonl")] == [0, 1, 2]


def test_other_ranks_have_a_folder_of_their_own(tmp_path: Path) -> None:
    """No file has two writers."""
    sink = JsonlSink(dir="logs")
    sink.open(run_info(tmp_path, rank=3))
    sink.write(0, event(0))
    sink.close()
    assert len(lines(tmp_path / "logs" / "rank3" / "scalars.jsonl")) == 1


def test_a_torn_last_line_is_cut_off_wherever_it_was_torn(tmp_path: Path) -> None:
    """For every length that a crash could have left, the whole lines stay and the rest goes."""
    path = tmp_path / "x.jsonl"
    whole = b'{"a":1}\n{"b":"\xc3\xbc"}\n{"c":3}\n'
    ends = [8, 19, 27]
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        # A line that lacks only its newline is whole, and gets one.
        expected = max((end for end in (0, *ends) if end <= length + 1), default=0)
        assert repair(path) == expected
        assert path.read_bytes() == whole[:expected]


def test_a_torn_line_longer_than_a_block_is_cut_off(tmp_path: Path) -> None:
    """The search for the last newline goes back as far as it must."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a":1}\n' + b'{"b":"' + b"x" * 200_000)
    assert (repair(path), path.read_bytes()) == (8, b'{"a":1}\n')


def test_opening_repairs_every_file(tmp_path: Path) -> None:
    """After a crash in the middle of a line the next run's lines are whole."""
    folder = written(tmp_path, (0, event(0)))
    for path in (folder / "scalars.jsonl", folder / "tables" / "completions.jsonl"):
        with open(path, "ab") as file:
            file.write(b'{"step":1,"torn')
    written(tmp_path, (2, event(2)))
    assert [line["step"] for line in lines(folder / "scalars.jsonl")] == [0, 2]
    assert [line["step"] for line in lines(folder / "tables" / "completions.jsonl")] == [0, 0, 0, 2, 2, 2]


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file of this process may grow beyond ``size``: a disk that is full in the middle of a write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_no_half_line_and_loses_nothing(tmp_path: Path) -> None:
    """The write that failed half way is undone, said, and repeated before the next log event's lines."""
    sink = JsonlSink()
    sink.open(run_info(tmp_path, sink="log"))
    sink.write(0, event(0))
    path = tmp_path / "log" / "scalars.jsonl"
    before = path.read_bytes()
    with file_size_limit(len(before) + 50), pytest.raises(SinkError, match="File too large"):
        sink.write(1, event(1))
    assert path.read_bytes() == before
    sink.write(2, event(2))
    sink.close()
    assert [line["step"] for line in lines(path)] == [0, 1, 2]
    assert [line["step"] for line in lines(tmp_path / "log" / "alerts.jsonl")] == [0, 1, 2]


def test_close_writes_what_a_full_disk_refused(tmp_path: Path) -> None:
    """There may be no further log event."""
    file = LineFile(tmp_path / "x.jsonl", fsync=True)
    with file_size_limit(3), pytest.raises(OSError, match="File too large"):
        file.append('{"a":1}\n')
    file.close()
    assert lines(tmp_path / "x.jsonl") == [{"a": 1}]


def test_fsync_writes_the_same(tmp_path: Path) -> None:
    """The option changes when the disk has the line, not what is in it."""
    one = Records(scalars=(Scalar("a", 1, "a"),))
    plain, synced = written(tmp_path / "a", (0, one)), written(tmp_path / "b", (0, one), fsync=True)
    assert (plain / "scalars.jsonl").read_bytes() == (synced / "scalars.jsonl").read_bytes()
