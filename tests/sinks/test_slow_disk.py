"""A disk that takes its time: what waits is written together, close waits for it, and what is lost is counted."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pytest

import declog
from declog.records import Column, DType, Records, RunInfo, Table
from declog.sinks import Coalescing, make_sink
from declog.sinks.runner import TOGETHER, SinkRunner
from tests.forks import PATIENCE_S
from tests.sinks.samples import event, run_info


def one_column(kind: DType, values: list[Any]) -> Records:
    """A log event with a table of one column."""
    return Records(tables=(Table("t", "t", (Column("x", kind),), {"x": values}, len(values)),))


class Gate:
    """An ``fsync`` that waits to be let through, and counts."""

    def __init__(self) -> None:
        self.open, self.inside, self.calls = threading.Event(), threading.Event(), 0
        self._real = os.fsync

    def __call__(self, descriptor: int) -> None:
        self.calls += 1
        self.inside.set()
        assert self.open.wait(PATIENCE_S)
        self._real(descriptor)


def test_what_waits_becomes_one_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk holds the first log event, 600 others come: few parts, every row once and in order."""
    gate = Gate()
    runner = SinkRunner("log", make_sink("parquet", {}))
    runner.open(run_info(tmp_path))
    monkeypatch.setattr(os, "fsync", gate)
    runner.submit(0, event(0))
    assert gate.inside.wait(PATIENCE_S)
    for step in range(1, 601):
        runner.submit(step, event(step))
    gate.open.set()
    assert (runner.close(60).pending, runner.lost) == (0, {})
    for name, rows in (("scalars", 6), ("tables/completions", 3), ("histograms", 1), ("alerts", 1)):
        frame = pl.read_parquet(tmp_path / "log" / name)
        assert frame["step"].to_list() == [step for step in range(601) for _ in range(len(frame) // 601)]
        assert len(frame) == 601 * rows
    assert gate.calls < 8 * 4 * (2 + 600 // TOGETHER)


def test_one_event_that_cannot_be_written_costs_no_other_of_its_part(tmp_path: Path) -> None:
    """Its own rows of its own table are missing; what failed is reported for the event that it is of."""
    sink = make_sink("parquet", {})
    assert isinstance(sink, Coalescing)
    sink.open(run_info(tmp_path, sink="log"))
    events = [(step, one_column(DType.INT, [step])) for step in range(5)]
    events[2] = (2, one_column(DType.TEXT, ["two"]))
    events[3] = (3, one_column(DType.INT, [2**70]))
    failed = sink.write_many(events)
    sink.close()
    assert sorted(failed) == [2, 3]
    assert "was int64 before" in str(failed[2]) and "does not fit" in str(failed[3])
    assert pl.read_parquet(tmp_path / "log" / "tables" / "t")["x"].to_list() == [0, 1, 4]


class Paced:
    """A sink that is let through one write at a time."""

    accepts: ClassVar[frozenset[str]] = frozenset({"scalar"})

    def __init__(self, pause_s: float) -> None:
        self.steps: list[int] = []
        self._pause_s = pause_s

    def open(self, run: RunInfo) -> None: ...

    def write(self, step: int, records: Records) -> None:
        time.sleep(self._pause_s)
        self.steps.append(step)

    def close(self) -> None: ...


def test_close_waits_while_there_is_progress(tmp_path: Path) -> None:
    """The deadline is for one write and not for all of them; a write that outlasts it is the end of waiting."""
    sink = Paced(0.1)
    runner = SinkRunner("log", sink)
    runner.open(run_info(tmp_path))
    for step in range(20):
        runner.submit(step, event(step))
    assert (runner.close(1.0).pending, sink.steps) == (0, list(range(20)))


def test_what_was_lost_is_in_failures(tmp_path: Path) -> None:
    """Log events that were not written in time, or that the sink refused, are counted where every failure is."""

    class Stuck(Paced):
        def write(self, step: int, records: Records) -> None:
            if step == 0:
                raise ValueError("no")
            threading.Event().wait()

    profile: dict[str, Any] = {"signals": {"any": {"x": {"axis": "step"}}}, "metrics": {"x": "mean(x)"}}
    log = declog.start(profile, sinks=[Stuck(0.0)], output_dir=tmp_path)
    log._background.close_s = 0.3
    for step in range(4):
        with log.step(step):
            log.observe(x=1.0)
    log.close()
    lost = {"could not be written": 1, "not written in time": 3}
    assert log.failures == {f"[DL602] sink `<code>0`: log events {what}": count for what, count in lost.items()}
