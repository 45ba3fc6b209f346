"""Parquet datasets under a kill -9, under a reader, and on file systems that cannot swap folders."""

from __future__ import annotations

import signal
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from declog.sinks._files import Exchange, exchange
from declog.sinks._parts import MOST_FILES, PartDataset, recover
from tests import forks
from tests.sinks.samples import parts


def no_exchange(one: Path, other: Path) -> None:
    """A file system that cannot swap two folders."""
    raise OSError(22, "Invalid argument")


def dataset(folder: Path, swap: Exchange) -> PartDataset:
    """A dataset in blocks of two, in ``folder/data``, its scratch in ``folder/scratch/data``."""
    return PartDataset(
        folder / "data",
        folder / "scratch" / "data",
        metadata={},
        compact_every=2,
        exchange=swap,
    )


@pytest.mark.parametrize("swap", [exchange, no_exchange])
def test_a_block_is_merged_with_and_without_an_atomic_swap(tmp_path: Path, swap: Exchange) -> None:
    """Where the file system cannot exchange folders, two renames do it."""
    data = dataset(tmp_path, swap)
    for step in range(5):
        data.append(pa.table({"x": [step]}))
    assert pl.read_parquet(tmp_path / "data")["x"].to_list() == [0, 1, 2, 3, 4]
    assert parts(tmp_path / "data") == [
        "000000/part-000000-000001.parquet",
        "000001/part-000002-000003.parquet",
        "000002/part-000004.parquet",
    ]
    assert list((tmp_path / "scratch" / "data").iterdir()) == []


@pytest.mark.parametrize("merged_is_there", [True, False])
def test_a_crash_between_two_renames_hides_a_block_until_the_next_open(tmp_path: Path, merged_is_there: bool) -> None:
    """The block that was moved aside comes back, merged if its merged form is complete."""
    data = dataset(tmp_path, no_exchange)
    data.append(pa.table({"x": [0]}))
    data.append(pa.table({"x": [1]}))
    block, scratch = tmp_path / "data" / "000000", tmp_path / "scratch" / "data"
    if merged_is_there:
        block.rename(scratch / "new-000000")
        (scratch / "old-000000").mkdir()
    else:
        block.rename(scratch / "old-000000")
    recover(tmp_path, tmp_path / "scratch")
    assert pl.read_parquet(tmp_path / "data")["x"].to_list() == [0, 1]
    assert not (tmp_path / "scratch").exists()


def test_a_block_that_cannot_be_merged_stays_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A disk without room for the merged file costs speed, no rows, and is said."""
    data = dataset(tmp_path, exchange)
    data.append(pa.table({"x": [0]}))
    (tmp_path / "scratch" / "data" / "new-000000").write_text("in the way")
    data.append(pa.table({"x": [1]}))
    data.append(pa.table({"x": [2]}))
    assert "could not be merged and stay as they are" in caplog.text
    assert pl.read_parquet(tmp_path / "data")["x"].to_list() == [0, 1, 2]


@pytest.mark.parametrize("swap", [exchange, no_exchange])
def test_a_closed_dataset_has_few_files(tmp_path: Path, swap: Exchange) -> None:
    """Fifty at most, in their order, and it goes on from there; what was merged already is not written anew."""
    data = dataset(tmp_path, swap)
    for step in range(131):
        data.append(pa.table({"x": [step]}))
    assert len(parts(tmp_path / "data")) == 66
    data.finish()
    files = parts(tmp_path / "data")
    assert len(files) == MOST_FILES and pl.read_parquet(tmp_path / "data")["x"].to_list() == list(range(131))
    before = {name: (tmp_path / "data" / name).stat().st_ino for name in files}
    data.finish()
    assert {name: (tmp_path / "data" / name).stat().st_ino for name in parts(tmp_path / "data")} == before
    data.append(pa.table({"x": [131]}))
    data.finish()
    assert len(parts(tmp_path / "data")) == MOST_FILES
    assert pl.read_parquet(tmp_path / "data")["x"].to_list() == list(range(132))


FINISHING = """
import os, signal, sys
from pathlib import Path
from declog.sinks import _files, _parts
from declog.sinks._files import exchange
from tests.sinks.test_parquet_crash import dataset
left = int(sys.argv[2])
def counted(real):
    def run(*arguments, **options):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    return run
data = dataset(Path(sys.argv[1]), exchange)
os.replace, os.rmdir, _parts.swap_folder = map(counted, (os.replace, os.rmdir, _parts.swap_folder))
_parts.MOST_FILES = 2
data.finish()
"""


def test_a_kill_while_blocks_are_joined(tmp_path: Path) -> None:
    """Before each change to the disk: every row is there once, and the next end finishes it."""
    for killed in range(1, 40):
        folder = tmp_path / str(killed)
        data = dataset(folder, exchange)
        for step in range(9):
            data.append(pa.table({"x": [step]}))
        done = forks.run(["-c", FINISHING, folder, str(killed)])
        assert pl.read_parquet(folder / "data")["x"].to_list() == list(range(9)), killed
        again = dataset(folder, exchange)
        again.finish()
        assert pl.read_parquet(folder / "data")["x"].to_list() == list(range(9)), killed
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert killed > 6


WRITER = """
import itertools, sys
from pathlib import Path
from declog.sinks.parquet import ParquetSink
from tests import forks
from tests.sinks.samples import event, run_info
sink = ParquetSink(compact_every=int(sys.argv[3]))
sink.open(run_info(Path(sys.argv[1]), sink="files"))
for step in itertools.count(int(sys.argv[2])):
    sink.write(step, event(step))
    print(step, flush=True)
"""


def writing(folder: Path, first: int, compact_every: int) -> forks.Fork:
    """A process that writes log events as fast as it can and prints each step that is done."""
    return forks.start(["-c", WRITER, folder, str(first), str(compact_every)])


def test_a_kill_in_the_middle_of_writing_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """After each of six kill -9, read before anything is repaired, every finished log event is there once.

    Blocks of two log events merge all the time, so that a kill often comes in the middle of that.
    """
    first, unfinished = 0, []
    for kill in range(6):
        with writing(tmp_path, first, 2) as process:
            assert process.stdout is not None
            done = [int(process.stdout.readline()) for _ in range(5 + 3 * kill)]
            process.send_signal(signal.SIGKILL)
            # What the pipe still holds was done as well.
            done += [int(line) for line in process.stdout]
        first = done[-1] + 2
        # The log event that the kill interrupted may be in the first of its datasets and not in the others.
        unfinished.append(done[-1] + 1)
        for name, rows in (("scalars", 6), ("alerts", 1), ("tables/completions", 3)):
            for read in (pl.read_parquet, pd.read_parquet):
                found = list(read(tmp_path / "files" / name)["step"])
                steps = [step for step in range(first) if step not in unfinished or step in found]
                assert found == [step for step in steps for _ in range(rows)], (name, read)


def test_a_reader_finds_a_whole_dataset_while_it_grows(tmp_path: Path) -> None:
    """While a process writes, a read has each step that was written when it began, and no step twice or in part.

    Of two files that come while a folder is listed, the listing may have the later one only: that is POSIX's readdir.
    """
    seen = []
    with writing(tmp_path, 0, 10_000) as process:
        assert process.stdout is not None
        for _ in range(30):
            done = int(process.stdout.readline())
            steps = pl.read_parquet(tmp_path / "files" / "scalars").filter(name="tokens")["step"].to_list()
            frame = pd.read_parquet(tmp_path / "files" / "tables" / "completions")
            assert steps[: done + 1] == list(range(done + 1))
            assert steps == sorted(set(steps))
            whole = frame["step"].tolist()[::3]
            assert frame["step"].tolist() == [step for step in whole for _ in range(3)]
            assert whole == sorted(set(whole))
            assert whole[: done + 1] == list(range(done + 1))
            seen.append(len(steps))
        process.kill()
    assert seen == sorted(seen)
    assert seen[-1] >= 30


def test_a_reader_meets_a_merge_as_a_missing_file_or_not_at_all(tmp_path: Path) -> None:
    """With blocks that merge all the time, a read has every step exactly once or fails on a file that has gone."""
    read = 0
    with writing(tmp_path, 0, 2) as process:
        assert process.stdout is not None
        for _ in range(60):
            process.stdout.readline()
            try:
                steps = pd.read_parquet(tmp_path / "files" / "scalars").query("name == 'tokens'")["step"].tolist()
            except FileNotFoundError:
                continue
            assert steps == list(range(len(steps)))
            read += 1
        process.kill()
    assert read > 0
