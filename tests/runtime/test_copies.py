"""A copy of an object that holds a recorder, a sink or a lock closes nothing that is open."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.errors import UsageError
from declog.records import Records, RunInfo, Scalar
from declog.sinks.jsonl import JsonlSink
from declog.sinks.locks import Held, Lock
from declog.sinks.parquet import ParquetSink
from declog.sinks.run_folder import open_named

PROFILE: dict[str, Any] = {
    "signals": {"any": {"x": {"axis": "completion"}}}, "metrics": {"x": "mean(x)"}, "sinks": ["jsonl", "parquet"],
}  # fmt: skip
COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": pickle.dumps, "reduce": lambda value: value.__reduce_ex__(4)
}  # fmt: skip


class Trainer:
    """Somebody's object with the recorder, a block of it and a callback in its attributes."""

    def __init__(self, log: declog.Recorder) -> None:
        self.log, self.parts, self.hook = log, {"logs": [log]}, log.observe


def descriptors(folder: Path) -> set[str]:
    """The open descriptors of files in a folder; those of other tests may be closed at any time."""
    files = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            file = os.readlink(f"/proc/self/fd/{number}")
            if Path(file).is_relative_to(folder):
                files.add(f"{number} {file}")
    return files


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("what", ["recorder", "trainer", "step"])
def test_a_copy_of_what_holds_a_recorder(what: str, how: str, tmp_path: Path) -> None:
    """Copied, the run is the same run; pickled, it is refused; either way the run goes on and its files are whole."""
    log = declog.start(PROFILE, output_dir=tmp_path)
    holder = {"recorder": log, "trainer": Trainer(log), "step": log.step(0)}[what]
    before = descriptors(tmp_path)
    copied = None
    with contextlib.suppress(UsageError, TypeError):
        copied = COPIES[how](holder)
    if isinstance(copied, Trainer):
        assert copied.log is log and copied.parts["logs"] == [log]
    del copied, holder
    gc.collect()
    assert before and before <= descriptors(tmp_path)
    for step in range(3):
        with log.step(step):
            log.observe(x=[float(step)])
    log.close()
    assert log.failures == {}
    for sink in ("jsonl", "parquet"):
        rows = list(declog.read(tmp_path, sink=sink).scalars)
        assert [(row["step"], row["value"]) for row in rows] == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_a_recorder_is_not_pickled(tmp_path: Path) -> None:
    """The error says what to do in another process."""
    with declog.start(PROFILE, output_dir=tmp_path) as log, pytest.raises(UsageError, match="role="):
        pickle.dumps({"trainer": log})


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_an_open_sink_or_folder(how: str, tmp_path: Path) -> None:
    """Copying stops, or leaves two that are apart: the folder stays held, and what is written is all there."""
    run = RunInfo(name="r", run_id="r-1", output_dir=tmp_path, fingerprint="f00d")
    sinks: list[JsonlSink | ParquetSink] = [JsonlSink(), ParquetSink()]
    folder = open_named(tmp_path, resume=False, append=False)
    for sink in sinks:
        sink.open(run)
        sink.write(0, Records(scalars=(Scalar("x", 1.0, "x"),)))
    before = descriptors(tmp_path)
    for value in (folder, folder._lock, *sinks, [folder, *sinks]):
        with contextlib.suppress(TypeError):
            COPIES[how](value)
    gc.collect()
    assert before and before <= descriptors(tmp_path)
    for held in (tmp_path / "run.lock", tmp_path / "jsonl" / ".writer", tmp_path / "parquet" / ".writer"):
        with pytest.raises(Held):
            Lock(held)
    for sink in sinks:
        sink.write(1, Records(scalars=(Scalar("x", 2.0, "x"),)))
        sink.close()
    folder.abandon()
    for name in ("jsonl", "parquet"):
        assert [row["value"] for row in declog.read(tmp_path, sink=name).scalars] == [1.0, 2.0]
