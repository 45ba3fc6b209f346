"""Signals that nobody read, of which some steps, micro-batches or ranks lack a part: asked late as if declared.

The class: what never came is absent, and not a missing value, also in columns that were only kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import declog
from declog.late import ask, write
from declog.records import Records
from declog.runtime.ranks.comm import Comm
from declog.testing import MemorySink, run_ranks

ASKED = {
    "of_steps": "{expr: s, over: step}", "shown": "{expr: s, nan: propagate}", "there": "mean(present(s))",
    "least": "{expr: s, over: step, reduce: count, combine: min}", "latest": "last(s)",
    "counted": "{expr: s, reduce: count, empty: 0, over: step}", "rolled": "{expr: s, combine: rolling_max(3)}",
    "batches": "{expr: s, over: batch, reduce: sum, combine: mean}", "whole": "{expr: i, over: step, reduce: count}",
    "truth": "{expr: b, over: step, reduce: count, combine: min}", "family": "{expr: f, nan: propagate}",
    "members": "mean(members(f))", "most": "mean(max(f, over=member))", "of_b": "mean(present(member(f, 'b')))",
}  # fmt: skip
SIGNALS = {
    "z": "completion", "s": "completion", "i": "completion int", "b": "completion bool",
    "f": {"axis": "completion", "family": True},
}  # fmt: skip


def run(folder: Path, metrics: Mapping[str, str], lacks: str, ranks: int) -> list[tuple[int, Records]]:
    """The log events of a run; ``lacks`` says what the signals do not come in: a step, a micro-batch, a rank."""
    sink = MemorySink()
    lines = {name: yaml.safe_load(text) for name, text in metrics.items()}
    config = {"every": 2, "signals": {"any": SIGNALS}, "metrics": {"z": "mean(z)", **lines}, "run": {"strict": True}}

    def main(comm: Comm) -> None:
        with declog.start(config, sinks=[] if comm.rank else [sink], comm=comm, output_dir=folder) as log:
            for step in range(4):
                with log.step(step):
                    for batch in range(2):
                        comes = {"steps": step, "batches": batch, "ranks": comm.rank}[lacks] % 2
                        more: dict[str, Any] = {"s": [1.0, 3.0], "i": [1, 2], "b": [True, False]} if comes else {}
                        log.observe(z=[0.0, 0.0], f={"a": [1.0, 1.0], **({"b": [1.0, 3.0]} if comes else {})}, **more)

    run_ranks(ranks, main)
    return list(sink.events)


def values(events: list[tuple[int, Records]]) -> dict[tuple[int, str], str]:
    """What was logged, as text, less the metric that every run has."""
    return {(step, one.name): repr(one.value) for step, each in events for one in each.scalars if one.name != "z"}


@pytest.mark.parametrize(("lacks", "ranks"), [("steps", 1), ("batches", 1), ("ranks", 2), ("steps", 2)])
def test_an_absent_part_is_absent_late(lacks: str, ranks: int, tmp_path: Path) -> None:
    """Every value, and nothing else."""
    declared = run(tmp_path / "declared", ASKED, lacks, ranks)
    run(tmp_path / "kept", {}, lacks, ranks)
    assert values(ask(tmp_path / "kept", ASKED).events) == values(declared)


@pytest.mark.parametrize("members_first", [True, False])
def test_members_that_come_one_by_one_late(members_first: bool, tmp_path: Path) -> None:
    """A family that nobody read is of the rows of its batch, though each member came in a call of its own."""
    lines, events = {"f": "{expr: f, reduce: sum}", "most": "mean(z * max(f, over=member))"}, []
    for name, asked in (("declared", lines), ("kept", {})):
        sink = MemorySink()
        metrics = {"z": "mean(z)", **{id: yaml.safe_load(text) for id, text in asked.items()}}
        config = {"signals": {"any": SIGNALS}, "metrics": metrics, "run": {"strict": True}}
        with declog.start(config, sinks=[sink], output_dir=tmp_path / name) as log, log.step(0):
            for batch in range(2):
                rows: dict[str, Any] = {"z": [1.0 + batch, 5.0]}
                members: list[dict[str, Any]] = [{"f": {"a": [1.0, 2.0]}}, {"f": {"b": [3.0 + batch, 0.0]}}]
                for call in [*members, rows] if members_first else [rows, *members]:
                    log.observe(**call)
        events.append(list(sink.events))
    assert values(ask(tmp_path / "kept", lines).events) == values(events[0]) != {}


@pytest.mark.parametrize("damaged", [False, True])
def test_late_values_of_steps_that_a_run_takes_back(
    damaged: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are dropped with the run's own where it goes on behind an earlier step; what cannot be dropped is told."""
    config = {"signals": {"any": {"x": "completion"}}, "metrics": {"x": "mean(x)"}, "sinks": ["jsonl"]}
    state = None
    with declog.start(config, output_dir=tmp_path / "run") as log:
        for step in range(6):
            with log.step(step):
                log.observe(x=[float(step)])
            state = log.state_dict() if step == 2 else state
    write(str(tmp_path / "run"), ask(tmp_path / "run", {"most": "max(x)"}))
    if damaged:
        (tmp_path / "run/late/other").mkdir()
        (tmp_path / "run/late/other/parquet").write_text("no folder")
    with declog.start(config, output_dir=tmp_path / "run", resume=state) as log, log.step(3):
        log.observe(x=[100.0])
    assert ("late/other/parquet has values behind step 2 that the run has no more" in caplog.text) is damaged
    found = declog.read(tmp_path / "run")
    assert found["x"].values.tolist() == [0.0, 1.0, 2.0, 100.0]
    assert found["most"].values.tolist() == [0.0, 1.0, 2.0]
