"""Tables without a filter: each rank writes its own rows to its files; other sinks refuse what is too much."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest

import declog
from declog.errors import ConfigError, SinkError
from declog.runtime.ranks.comm import Comm, Event
from declog.sinks.tensorboard import TensorboardSink
from declog.testing import FakeComm, run_ranks
from tests.forks import PATIENCE_S
from tests.running import scores

SCHEMA = {"text": {"type": "text"}, "score": {"type": "float"}, "extra": {"undeclared": "keep"}}
FILES = {"lines": {"kind": "jsonl"}, "parts": {"kind": "parquet"}}


def job(made: Mapping[str, Any], folder: Path, *, ranks: int = 3, steps: int = 2) -> list[Path | None]:
    """Each rank logs two rows per step; the folders of the ranks' recorders."""

    def rank(comm: Comm) -> Path | None:
        with declog.start(made, output_dir=folder / str(comm.rank) if comm.rank else folder, comm=comm) as log:
            for step in range(steps):
                with log.step(step):
                    texts = [f"é {step}.{comm.rank}.{row}" for row in range(2)]
                    log.observe(score=[1.0 * comm.rank, 2.0], text=texts)
                    if comm.rank:
                        log.log_extra("number", [2**62 + comm.rank] * 2)
        return log.output_dir

    return run_ranks(ranks, rank)


def texts(ranks: range, steps: int = 2) -> set[str]:
    return {f"é {step}.{rank}.{row}" for step in range(steps) for rank in ranks for row in range(2)}


def test_each_rank_writes_its_own_rows(tmp_path: Path) -> None:
    """Below rank 0's folder; all of them are one table for pandas and polars."""
    made = scores(None, schema=SCHEMA, sinks=[*FILES], sink_options=FILES)
    made["metrics"] = {"score": "mean(score)"}
    assert job(made, tmp_path) == [tmp_path] * 3
    for rank in range(3):
        folder = tmp_path / "lines" / (f"rank{rank}" if rank else "")
        lines = [json.loads(line) for line in (folder / "tables" / "t.jsonl").read_text().splitlines()]
        assert {line["text"] for line in lines} == texts(range(rank, rank + 1))
        assert (folder / "scalars.jsonl").exists() == (rank == 0)  # numbers are those of all ranks
        parts = pd.read_parquet(tmp_path / "parts" / (f"rank{rank}" if rank else "") / "tables" / "t")
        assert set(parts.text) == texts(range(rank, rank + 1))
        assert (set(parts["number"]) if rank else "number" not in parts) == ({2**62 + rank} if rank else True)
    folders = [tmp_path / "parts" / name / "tables" / "t" for name in ("", "rank1", "rank2")]
    whole = pl.concat([pl.read_parquet(folder) for folder in folders], how="diagonal")
    assert (set(whole["text"]), len(whole), whole["number"].null_count()) == (texts(range(3)), 12, 4)
    files = sorted(tmp_path.glob("parts/**/tables/t/**/*.parquet"))
    frame = pd.concat(map(pd.read_parquet, files))
    assert (set(frame.text), len(frame)) == (texts(range(3)), 12)


def messages(kind: str, folder: Path) -> list[bytes]:
    """What rank 1 sends where a table without a filter goes to a sink."""
    made = scores(None, schema={"text": {"type": "text"}}, sinks=["it"], sink_options={"it": {"kind": kind}})
    sent: list[bytes] = []

    class Heard(FakeComm):
        def send(self, event: Event, data: bytes) -> None:
            sent.append(data)
            super().send(event, data)

    def rank(comm: FakeComm) -> None:
        comm.__class__ = Heard
        with declog.start(made, output_dir=folder / kind, comm=comm) as log, log.step(0):
            log.observe(score=[0.0], text=["a long text" * 100])

    run_ranks(2, rank)
    return sent


def test_nothing_of_them_travels(tmp_path: Path) -> None:
    """A message has no text of a table that each rank writes itself, and has it where a sink wants all ranks' rows."""
    sizes = {kind: sum(b"a long text" in data for data in messages(kind, tmp_path)) for kind in ("jsonl", "console")}
    assert sizes == {"jsonl": 0, "console": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"filter": "picked"},
        {"keep": "last_batch"},
        {"every": 2},
        {"ranks": "main"},
        {"column": "rank(score, within=step)"},
    ],
    ids=["filter", "last batch", "slower", "main", "other ranks"],
)
def test_what_needs_all_ranks_rows_is_written_by_rank_0(change: dict[str, Any], tmp_path: Path) -> None:
    """A filter, a window of its own, a value that depends on other ranks' rows, or `ranks: main`."""
    made = scores(None, schema={"text": {"type": "text"}}, sinks=["lines"], sink_options={"lines": {"kind": "jsonl"}})
    made["filters"] = {"picked": {"first": 1000000}}
    if "ranks" in change:
        made["sink_options"]["lines"] |= change
    elif "column" in change:
        made["schemas"]["s"]["place"] = {"type": "int", "expr": change["column"]}
    else:
        made["tables"]["t"] |= change
    job(made, tmp_path)
    lines = [json.loads(line)["text"] for line in (tmp_path / "lines" / "tables" / "t.jsonl").read_text().splitlines()]
    assert set(lines) == texts(range(3))
    assert len(lines) == 12
    assert not list((tmp_path / "lines").glob("rank*"))


def test_a_sink_that_cannot_open_on_one_rank_stops_all(tmp_path: Path) -> None:
    """Nobody hangs, and every rank says which."""
    made = scores(None, schema={"text": {"type": "text"}}, sinks=["lines"], sink_options={"lines": {"kind": "jsonl"}})
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "rank1").write_text("a file is in the way")
    reported: dict[int, str] = {}

    def rank(comm: Comm) -> None:
        with pytest.raises(SinkError) as caught:
            declog.start(made, output_dir=tmp_path, comm=comm)
        reported[comm.rank] = str(caught.value)

    run_ranks(3, rank, timeout_s=PATIENCE_S)
    assert "rank1" in reported[1]
    assert all(reported[other].startswith("[DL601] rank 1 could not start: ") for other in (0, 2))


def test_other_sinks_refuse_what_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error names the size; files have every row, and `max_bytes` is a choice that is obeyed instead."""
    monkeypatch.setattr(TensorboardSink, "unfiltered_bytes", 15)
    sinks = {"lines": {"kind": "jsonl"}, "board": {"kind": "tensorboard"}}
    made = scores(None, schema={"text": {"type": "text"}}, sinks=[*sinks], sink_options=sinks, run={"strict": False})
    with caplog.at_level(logging.ERROR, logger="declog"):
        job(made, tmp_path / "a", ranks=1)
    assert [record.getMessage() for record in caplog.records] == [
        "a log event lacks values: [DL405] the table `t` has no filter, and more than 15 bytes in one "
        "log event: the sink `board` is not given so much\n"
        "  fix: give it a filter or `max_bytes`, or send it to file sinks only"
    ]
    assert len((tmp_path / "a" / "lines" / "tables" / "t.jsonl").read_text().splitlines()) == 4
    caplog.clear()
    made["tables"]["t"]["max_bytes"] = 10**6
    job(made, tmp_path / "b", ranks=1)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_tracker_is_on_rank_0_only() -> None:
    """`ranks: each` is for file sinks."""
    with pytest.raises(ConfigError) as caught:
        declog.plan(scores(None, sinks=["board"], sink_options={"board": {"kind": "tensorboard", "ranks": "each"}}))
    [problem] = caught.value.problems
    assert (problem.code, problem.message, problem.fix) == (
        "DL405", "a sink of the kind `tensorboard` writes on rank 0 only", "of jsonl, parquet: each",
    )  # fmt: skip


def test_a_resumed_rank_writes_no_row_twice(tmp_path: Path) -> None:
    """Each rank's files lose what came after its checkpoint."""
    made = scores(
        None, schema={"text": {"type": "text"}, "extra": {"undeclared": "keep"}}, sinks=[*FILES], sink_options=FILES
    )

    def rank(comm: Comm, states: dict[int, Any], steps: range) -> None:
        log = declog.start(made, output_dir=tmp_path, comm=comm, resume=states.get(comm.rank))
        with log:
            for step in steps:
                with log.step(step):
                    log.observe(score=[0.0] * 2, text=[f"é {step}.{comm.rank}.{row}" for row in range(2)])
                    log.log_extra("note", [None, 7] if step < 2 else [None, "seven"])
                if step == 1 and comm.rank not in states:
                    states[comm.rank] = log.state_dict()

    states: dict[int, Any] = {}
    run_ranks(2, lambda comm: rank(comm, states, range(4)))
    run_ranks(2, lambda comm: rank(comm, states, range(2, 3)))
    for mine in range(2):
        folder = tmp_path / "parts" / (f"rank{mine}" if mine else "") / "tables" / "t"
        assert pd.read_parquet(folder).text.tolist() == [
            f"é {step}.{mine}.{row}" for step in range(3) for row in range(2)
        ]
        lines = (tmp_path / "lines" / (f"rank{mine}" if mine else "") / "tables" / "t.jsonl").read_text().splitlines()
        # a column is what its first values were, before the checkpoint
        assert [json.loads(line)["note"] for line in lines] == [None, 7, None, 7, None, None]
