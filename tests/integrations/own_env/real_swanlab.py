"""The swanlab sink, offline, read back from swanlab's own log: `make integrations` has what it needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from declog.errors import SinkError
from declog.records import Places, RunInfo
from declog.sinks.runner import SinkRunner
from declog.testing import check_sink
from tests.sinks.samples import event, run_info

swanlab = pytest.importorskip("swanlab", reason="`make integrations` has swanlab")

from swanlab.proto.swanlab.record.v1.record_pb2 import Record  # noqa: E402
from swanlab.sdk.internal.core_python.store import DataStoreReader  # noqa: E402

from declog.sinks.swanlab import SwanlabSink  # noqa: E402


def sink() -> SwanlabSink:
    """One that asks no server."""
    return SwanlabSink(mode="offline")


def records(folder: Path) -> Iterator[Any]:
    """What swanlab wrote below a folder."""
    for file in sorted(folder.rglob("*.swanlab")):
        reader = DataStoreReader()
        reader.open(file)
        for data in reader:
            made = Record()
            made.ParseFromString(data)
            yield made
        reader.close()


def scalars(run: RunInfo) -> Iterable[tuple[int, str, float]]:
    """The scalars of a run, in their order."""
    for one in records(run.output_dir):
        if one.HasField("scalar"):
            yield one.scalar.step, one.scalar.key, one.scalar.value.number


def test_a_run_is_read_back(tmp_path: Path) -> None:
    """Scalars at their steps; each row of a table is a text that is whole, under what it is; alerts are texts."""
    runner = SinkRunner("swan", sink())
    runner.open(run_info(tmp_path), 120)
    for step in (0, 5):
        made = event(step)
        places = Places([step] * 3, [0, 1, 2], None, ["best", "worst", "worst"])
        runner.submit(step, replace(made, histograms=(), tables=(replace(made.tables[0], places=places),)))
    report = runner.close(120)
    assert (report.failed, report.finished) == (0, True), report
    found = [(step, value) for step, name, value in scalars(run_info(tmp_path)) if name == "reward"]
    assert found == [(0, 0.0), (5, 2.5)]
    media = [one.media for one in records(tmp_path) if one.HasField("media")]
    assert {one.key for one in media} == {"completions", "alerts/kl_runaway"}
    texts = [path.read_text("utf-8") for path in sorted(tmp_path.rglob("media/**/*.txt"))]
    assert sum(text.startswith("## best, step 5, row 0, ") and "größer 漢字\nzwei" in text for text in texts) == 1
    assert sum(text == "KL 5 — zu groß" for text in texts) == 1 and len(texts) == 8
    assert "f00d" in next(tmp_path.rglob("config.yaml")).read_text("utf-8")


def test_a_run_that_is_open_is_joined(tmp_path: Path) -> None:
    """And goes on when the recorder has ended; without one, `join` is refused, and with one `new` is."""
    with pytest.raises(SinkError, match="no swanlab run is open"):
        SwanlabSink(run="join").open(run_info(tmp_path))
    mine = swanlab.init(mode="offline", log_dir=str(tmp_path), project="mine")
    try:
        with pytest.raises(SinkError, match="a swanlab run is open"):
            SwanlabSink(run="new").open(run_info(tmp_path))
        runner = SinkRunner("swan", sink())
        runner.open(run_info(tmp_path), 120)
        runner.submit(3, event(3))
        assert runner.close(120).failed == 0 and mine.alive
    finally:
        swanlab.finish()
    assert ("reward", 3) in {(name, step) for step, name, _ in scalars(run_info(tmp_path))}


def test_the_contract(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What declog asks of every sink, but runs at once, which swanlab has not in one process."""
    monkeypatch.chdir(tmp_path)
    assert len(check_sink(sink, read=scalars, leave_out=["runs at once are kept apart"])) == 9
