"""Ranks: as threads of this process, any split of the rows logs what one process logs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import declog
from declog.language.functions import DEFAULT, Functions
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.recorder import Recorder
from declog.testing import FakeComm, MemorySink, run_ranks
from tests.conftest import examples
from tests.forks import PATIENCE_S
from tests.runtime.ranks import work


def equal(found: Any, expected: Any) -> None:
    """Numbers agree to 1e-12, relatively; everything else is the same."""
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            equal(found[key], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            equal(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-15, nan_ok=True)
    else:
        assert (type(found), found) == (type(expected), expected)


def job(world_size: int, config: Any, train: Callable[[Recorder, Sequence[int]], None], folder: Path) -> dict[str, Any]:
    """What rank 0 logs of a job whose ranks train on threads."""

    def rank(comm: Comm) -> MemorySink:
        sink = MemorySink()
        train(declog.start(config, sinks=[sink], output_dir=folder, comm=comm), [comm.rank])
        return sink

    sinks = run_ranks(world_size, rank)
    assert [sink.events for sink in sinks[1:]] == [[]] * (world_size - 1)
    return work.found(sinks[0])


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_uneven_ranks_log_what_one_process_logs(ranks: int, tmp_path: Path) -> None:
    """Every metric of the preset and more, and the same rows in the same order in every table."""
    expected = work.alone(ranks, tmp_path / "alone")
    assert (len(expected["scalars"]["1"]), len(expected["tables"])) == (60 + ranks, 8)
    equal(job(ranks, work.profile(), work.train, tmp_path / "job"), expected)


@pytest.mark.parametrize("ranks", [2, 3])
def test_groups_may_be_spread_over_ranks(ranks: int, tmp_path: Path) -> None:
    """With `split: ranks` a group's statistics, ranks and selections are those of all its rows."""
    expected = work.split_alone(ranks, tmp_path / "alone")
    assert expected["scalars"]["0"]["groups"] == 4
    equal(job(ranks, work.split_profile(), work.train_split, tmp_path / "job"), expected)


# ---- any split of any rows

REDUCTIONS = ["mean", "std", "pstd", "min", "max", "sum", "count", "p25", "p99.9"]
ANY: dict[str, Any] = {
    "run": {"name": "any", "strict": True}, "every": 2,
    "axes": {"group": {"of": "id", "split": "ranks"}, "token": {"mask": "all"}},
    "signals": {
        "any": {
            "score": {"axis": "completion"}, "id": {"axis": "completion", "type": "int"},
            "source": {"axis": "completion", "type": "text"}, "kl": {"axis": "token"},
        },
    },
            "derived": {"group_mean": "mean(score, over=completion)", "batch_mean": "mean(group_mean, over=group)"},
    "metrics": {
        "score": {"reduce": REDUCTIONS}, "good": {"expr": "score", "where": "score > 0", "reduce": ["mean", "count"]},
        "by": {"expr": "score", "by": "source", "reduce": ["mean", "max", "p50"], "max_labels": 2},
        "group": {"expr": "max(score, over=completion)", "reduce": ["mean", "std"]},
        "batches": {"expr": "score", "over": "batch", "combine": "mean"},
        "steps": {"expr": "score", "over": "step", "combine": "max"},
        "kl": {"reduce": ["mean", "std", "min", "max", "sum"]},
        "row_kl": {"expr": "sum(kl, over=token)", "reduce": ["max", "p50"]},
    },
    "filters": {
        "best": {"key": "score", "top": 2, "bottom": 1, "within": "step"},
        "few": {"key": "score", "top": 2, "bottom": 1, "within": "step", "limit": 2},
        "window": {"key": "score", "top": 1, "within": "window"},
        "grouped": {"key": "score - group_mean", "top": 1, "within": "group"},
        "batch": {"key": "abs(score - batch_mean)", "top": 1, "within": "window"},
        "chain": {"first": 2, "within": "window", "where": "score >= 0", "from": "best"},
    },
    "schemas": {"s": {
        "score": {"type": "float"}, "source": {"type": "text"},
        "id": {"type": "int"},
    }},
    "tables": {
        "best": {"schema": "s", "filter": "best"}, "grouped": {"schema": "s", "filter": "grouped"},
        "batch": {"schema": "s", "filter": "batch"}, "chain": {"schema": "s", "filter": "chain"},
        "few": {"schema": "s", "filter": "few"}, "last": {"schema": "s", "keep": "last_batch"},
        "best_of_last": {"schema": "s", "keep": "last_batch", "filter": "window"},
        "slow": {"schema": "s", "filter": "best", "every": 4},
    },
}  # fmt: skip

SCORES = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e3, 1e3, allow_subnormal=False), st.just(math.nan))
ROWS = st.lists(st.tuples(SCORES, st.integers(0, 3), st.sampled_from(["a", "b", "c", None])), max_size=12)
KL = (0.5, 2.0, -1.0)


def observed(rows: Sequence[tuple[float, int, str | None]], first: int) -> dict[str, Any]:
    """Rows as they are observed; `first` is the place of the first one among all rows of the step."""
    return {
        "score": [row[0] for row in rows], "id": [row[1] for row in rows], "source": [row[2] for row in rows],
        "kl": [[(first + place) * value for value in KL] for place in range(len(rows))],
    }  # fmt: skip


@examples(8, HealthCheck.function_scoped_fixture)
@given(data=st.data(), ranks=st.integers(2, 4), steps=st.lists(ROWS, min_size=1, max_size=5))
def test_any_split_logs_what_one_process_logs(
    data: st.DataObject, ranks: int, steps: list[list[tuple[float, int, str | None]]], tmp_path: Path
) -> None:
    """However rows are dealt to ranks in row order, nothing of what is logged changes."""
    cuts = [
        sorted(data.draw(st.lists(st.integers(0, len(rows)), min_size=ranks - 1, max_size=ranks - 1))) for rows in steps
    ]

    def train(log: Recorder, mine: Sequence[int]) -> None:
        with log:
            for step, rows in enumerate(steps):
                edges = [0, *cuts[step], len(rows)]
                first, last = (edges[mine[0]], edges[mine[0] + 1]) if len(mine) == 1 else (0, len(rows))
                with log.step(step):
                    if rows:
                        log.observe(**observed(rows[first:last], first))

    sink = MemorySink()
    train(declog.start(ANY, sinks=[sink], output_dir=tmp_path), range(ranks))
    equal(job(ranks, ANY, train, tmp_path), work.found(sink))


CHOICES: dict[str, tuple[dict[str, Any], list[list[float]], str]] = {
    "far from the mean of all ranks": (
        {"key": "abs(score - middle)", "top": 1},
        [[0.0, 0.0, 14.0], [5.0, 9.0, 12.0], [0.0, 13.0, 19.0]], "i",
    ),
    "fourth among all ranks": (
        {"where": "rank(-score, within=step) == 4"},
        [[0.0, 0.0, 14.0], [5.0, 9.0, 12.0], [0.0, 13.0, 19.0]], "f",
    ),
    "the first two of what all ranks pick": (
        {"key": "score", "top": 2, "bottom": 1, "limit": 2},
        [[1.0, 1.0, 1.0], [0.0, 3.0, 4.0], [-5.0, 2.0, 2.0]], "ef",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("filter", "scores", "picked"), CHOICES.values(), ids=CHOICES.keys())
def test_a_selection_sees_all_ranks(
    filter: dict[str, Any], scores: list[list[float]], picked: str, tmp_path: Path
) -> None:
    """Rows that their own rank alone would not have picked come with their texts."""
    config = {
        "run": {"name": "choice", "strict": True}, "axes": {"group": {"size": 3}},
        "signals": {"any": {"score": {"axis": "completion"}, "text": {"axis": "completion", "type": "text"}}},
            "derived": {"middle": "mean(mean(score, over=completion), over=group)"},
        "filters": {"f": filter}, "schemas": {"s": {"text": {"type": "text"}}},
        "tables": {"t": {"schema": "s", "filter": "f"}},
    }  # fmt: skip

    def train(log: Recorder, ranks: Sequence[int]) -> None:
        with log, log.step(0):
            log.observe(score=scores[ranks[0]], text=list(("abc", "def", "ghi")[ranks[0]]))

    assert job(len(scores), config, train, tmp_path)["tables"] == [[0, "t", {"text": list(picked)}]]


# ---- what may go wrong on one rank


def test_different_plans_are_the_same_error_on_every_rank(tmp_path: Path) -> None:
    """The error names the first difference and each rank's side of it; no rank waits."""
    configs = [work.split_profile() for _ in range(3)]
    configs[2]["metrics"]["groups"] = "sum(size(completion))"

    def rank(comm: Comm) -> str:
        with pytest.raises(declog.PlanMismatchError) as error:
            declog.start(configs[comm.rank], sinks=[MemorySink()], output_dir=tmp_path, comm=comm)
        return str(error.value)

    texts = run_ranks(3, rank)
    assert texts[0].splitlines()[0] == "error[DL604]"
    assert (
        "  ranks compiled different plans: metrics.groups.reduce is count on ranks 0, 1 and sum on rank 2" in texts[0]
    )
    assert texts == [texts[0]] * 3


def test_a_sink_that_cannot_open_stops_every_rank(tmp_path: Path) -> None:
    """Rank 0 raises its own error, and the others one that repeats it."""
    (tmp_path / "file").write_text("in the way")

    def rank(comm: Comm) -> str:
        with pytest.raises(declog.SinkError) as error:
            declog.start(work.split_profile(), sinks=[MemorySink()], output_dir=tmp_path / "file", comm=comm)
        return str(error.value)

    reason = f"the run's folder cannot be made: [Errno 17] File exists: '{tmp_path / 'file'}'\n  fix: set `output_dir`"
    assert run_ranks(2, rank) == [f"[DL601] {reason}", f"[DL601] rank 0 could not start: {reason}"]


def test_a_rank_that_leaves_is_not_waited_for(tmp_path: Path) -> None:
    """Its rows are in the log until it fails; then the others go on, and their values are marked as partial."""
    sink = MemorySink()
    config = {**work.split_profile(), "run": {"strict": False}, "tables": {}}

    def rank(comm: Comm) -> None:
        with declog.start(
            config, sinks=[sink] if comm.rank == 0 else [], output_dir=tmp_path, comm=comm, wait_s=60.0
        ) as log:
            for step in range(6):
                with log.step(step):
                    log.observe(reward=[1.0, 2.0], prompt_id=[1, 1 + comm.rank], text=["", ""])
                    if comm.rank == 1 and step == 2:
                        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run_ranks(2, rank, timeout_s=PATIENCE_S)
    assert {step: values["best/count"] for step, values in sink.scalars.items()} == {0: 2, 1: 2, 2: 2, 3: 1, 4: 1, 5: 1}
    assert {step: values.get("declog/ranks") for step, values in sink.scalars.items()} == {
        0: None, 1: None, 2: None, 3: 1, 4: 1, 5: 1,
    }  # fmt: skip
    marked = [(step, item.name) for step, records in sink.events for item in records.scalars if item.partial]
    assert marked == [
        (step, item.name)
        for step, records in sink.events
        for item in records.scalars
        if step > 2 and item.name != "declog/ranks"
    ]


def test_a_rank_that_never_starts_is_reported(tmp_path: Path) -> None:
    """The others do not wait for ever."""
    comm = FakeComm.job(2)[0]
    with pytest.raises(declog.CommError) as error:
        comm.agree("plan", "mine", 0.05)
    assert str(error.value).splitlines() == [
        "[DL603] ranks [1] did not start declog within 0.05 s",
        "  fix: call declog.start, and enter the block of each step, `with log.step(k):`, on every rank",
    ]  # fmt: skip


def test_a_filter_that_fails_on_a_rank_costs_its_table(tmp_path: Path) -> None:
    """The rank's rows are sent all the same: no metric is without them."""
    sink = MemorySink()
    config = {
        "run": {"name": "bad"}, "signals": {
            "any": {"x": {"axis": "completion"}, "text": {"axis": "completion", "type": "text"}},
        },
        "metrics": {"x": "sum(x)"}, "schemas": {"s": {"text": {"type": "text"}}},
        "filters": {"f": {"key": "picky(x)", "top": 1}},
        "tables": {"t": {"schema": "s", "filter": "f"}},
    }  # fmt: skip
    functions = Functions(DEFAULT)

    @declog.function(registry=functions)
    def picky(x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "cpu" and x.max() > 1:
            raise ValueError("too great")
        return x

    def rank(comm: Comm) -> list[str]:
        sinks = [sink] if comm.rank == 0 else []
        log = declog.start(config, sinks=sinks, output_dir=tmp_path, comm=comm, wait_s=60.0, functions=functions)
        with log, log.step(0):
            log.observe(x=[1.0 + comm.rank], text=["a"])
        return list(log._failures.counts)

    reported = run_ranks(2, rank, timeout_s=PATIENCE_S)
    assert reported == [["[DL605] the table `t` could not be evaluated: ValueError: too great"], []]
    assert sink.scalars == {0: {"x": 3.0}}


def test_what_fails_on_a_rank_is_reported_on_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank whose rows cannot be prepared sends that it cannot, at once."""
    sink = MemorySink()
    config = {"run": {"name": "bad"}, "signals": {"any": {"x": {"axis": "completion"}}}, "metrics": {"x": "sum(x)"}}

    def refuse(*_: object) -> None:
        raise ValueError("too great")

    monkeypatch.setattr("declog.runtime.ranks.sender.projected", refuse)

    def rank(comm: Comm) -> list[str]:
        sinks = [sink] if comm.rank == 0 else []
        log = declog.start(config, sinks=sinks, output_dir=tmp_path, comm=comm, wait_s=60.0)
        with log, log.step(0):
            log.observe(x=[1.0 + comm.rank])
        return list(log._failures.counts)

    cause = "ValueError: too great"
    reported = run_ranks(2, rank, timeout_s=PATIENCE_S)
    assert reported == [[f"[DL605] rank 1 sent no rows: {cause}"], [cause]]
    assert sink.scalars == {0: {"x": 1.0, "declog/ranks": 1}}


def test_a_flush_that_fails_is_a_log_event_all_the_same(tmp_path: Path) -> None:
    """Its error is the caller's; the ranks stay at one count, and the next log events are whole."""
    schema = {"x": {"type": "float"}, "extra": {"undeclared": "keep"}}
    config = {
        "every": "trainer", "signals": {"any": {"x": {"axis": "completion"}}}, "metrics": {"x": "sum(x)"},
        "schemas": {"s": schema}, "tables": {"t": {"schema": "s"}},
    }  # fmt: skip
    sink = MemorySink()

    def rank(comm: Comm) -> None:
        sinks = [sink] if comm.rank == 0 else []
        with declog.start(config, sinks=sinks, output_dir=tmp_path / str(comm.rank), comm=comm) as log:
            for step in range(3):
                with log.step(step):
                    log.observe(x=[1.0, 2.0])
                if step == 1 and comm.rank == 1:
                    log.log_extra("late", [1])
                    with pytest.raises(declog.InputError, match="has no rows"):
                        log.flush()
                else:
                    log.flush()
            assert log.failures == {}

    run_ranks(2, rank)
    assert sink.scalars == {0: {"x": 6.0}, 1: {"x": 6.0}, 2: {"x": 6.0}}
