"""Columns that no schema names: kept with a stable type, dropped or refused; never stale, shifted or misplaced."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import declog
from declog.errors import InputError
from declog.records import Table
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink, run_ranks
from tests.forks import PATIENCE_S
from tests.running import rows, run, scores

KEEP: dict[str, Any] = {"score": {"type": "float"}, "extra": {"undeclared": "keep"}}


def of_ranks(made: Mapping[str, Any], bodies: Sequence[Callable[[Recorder], object]], folder: Path) -> MemorySink:
    """What rank 0 logs of one body per rank."""

    def rank(comm: Comm) -> MemorySink:
        sink = MemorySink()
        with declog.start(made, sinks=[sink], output_dir=folder, comm=comm) as log:
            bodies[comm.rank](log)
        return sink

    return run_ranks(len(bodies), rank, timeout_s=PATIENCE_S)[0]


def steps(log: Recorder, extras: Sequence[Mapping[str, Any]], rows: int = 1) -> None:
    """One step per mapping of columns."""
    for step, columns in enumerate(extras):
        with log.step(step):
            log.observe(score=[float(step)] * rows)
            for name, values in columns.items():
                log.log_extra(name, values)


# ---- on some ranks, in some batches


def test_columns_of_some_ranks_and_some_steps_are_null_elsewhere(tmp_path: Path) -> None:
    """Every value stays with its row; where nobody logged the column there is a null, and never the last value."""
    mine: list[list[dict[str, Any]]] = [
        [{"a": ["0.0"], "b": [10]}, {}, {"a": ["0.2"]}],
        [{"a": ["1.0"]}, {"b": [11]}, {}],
        [{}, {}, {}],
    ]  # fmt: skip
    sink = of_ranks(scores(None, schema=KEEP), [partial(steps, extras=one) for one in mine], tmp_path)
    assert [table.data for _, table in sink.tables("t")] == [
        {"score": [0.0] * 3, "a": ["0.0", "1.0", None], "b": [10, None, None]},
        {"score": [1.0] * 3, "a": [None] * 3, "b": [None, 11, None]},
        {"score": [2.0] * 3, "a": ["0.2", None, None], "b": [None] * 3},
    ]
    assert {tuple(column.name for column in table.columns) for _, table in sink.tables("t")} == {("score", "a", "b")}


def test_metrics_of_some_ranks(tmp_path: Path) -> None:
    """`log_metric` on every rank, on some, or conditionally: the mean of what was logged."""

    def body(rank: int) -> Callable[[Recorder], None]:
        def train(log: Recorder) -> None:
            for step in range(3):
                with log.step(step):
                    log.observe(score=[0.0])
                    log.log_metric("all", rank)
                    if rank == 1:
                        log.log_metric("some", 5.0)
                    if step == rank:
                        log.log_metric("now", 7.0)
                        log.log_metric("now", 9.0)

        return train

    sink = of_ranks(scores(None), [body(0), body(1), body(2)], tmp_path)
    assert sink.scalars == {
        step: {"all": 1.0, "now": 8.0, "some": 5.0} for step in range(3)
    }  # fmt: skip


def test_columns_travel_for_candidates_only(tmp_path: Path) -> None:
    """A filter's rows bring their run-time columns from whichever rank has them."""
    made = scores({"key": "score", "top": 1, "bottom": 1}, schema=KEEP)

    def body(rank: int) -> Callable[[Recorder], None]:
        def train(log: Recorder) -> None:
            with log.step(0):
                log.observe(score=[float(rank), float(-rank), 0.5])
                log.log_extra("where", [f"{rank}.{row}" for row in range(3)])

        return train

    [(_, table)] = of_ranks(made, [body(rank) for rank in range(4)], tmp_path).tables("t")
    assert rows(table) == [{"score": 3.0, "where": "3.0"}, {"score": -3.0, "where": "3.1"}]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_wrong_column_raises_on_its_rank_and_hangs_nobody(rank: int, tmp_path: Path) -> None:
    """The other ranks' rows are logged, and the column's error is raised where it was given."""
    wrong: list[InputError] = []

    def body(mine: int) -> Callable[[Recorder], None]:
        def train(log: Recorder) -> None:
            for step in range(2):
                with log.step(step):
                    log.observe(score=[1.0, 2.0])
                    try:
                        log.log_extra("a", [step] * (3 if mine == rank and step == 0 else 2))
                    except InputError as error:
                        wrong.append(error)

        return train

    sink = of_ranks(scores(None, schema=KEEP), [body(0), body(1)], tmp_path)
    [error] = wrong
    assert "the column `a` has 3 values, and the batch has 2 rows (`score`)" in str(error)
    nulls: list[Any] = [None, None]
    assert [list(table.data["a"]) for _, table in sink.tables("t")] == [
        [*nulls, 0, 0] if rank == 0 else [0, 0, *nulls], [1] * 4,
    ]  # fmt: skip


# ---- what is wrong where it is given


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("a", [1], "the column `a` has 1 values, and the batch has 2 rows"),
        ("a", "xy", "the column `a` needs one value per completion, and str came"),
        ("a", 3, "the column `a` needs one value per completion, and int came"),
        ("a", np.array(1.0), "the column `a` needs one value per completion, and"),
        ("a", {1: 2}, "the column `a` needs one value per completion, and dict came"),
        ("", [1, 2], "a column is named by text, and '' came"),
        (3, [1, 2], "a column is named by text, and 3 came"),
    ],
    ids=["length", "a text", "a number", "no rows", "a map", "no name", "a number as name"],
)
def test_what_is_no_column_is_refused_where_it_is_given(column: Any, values: Any, message: str, tmp_path: Path) -> None:
    """DL509, at `log_extra` itself."""

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(score=[1.0, 2.0])
            with pytest.raises(InputError) as caught:
                log.log_extra(column, values)
            assert caught.value.code == "DL509"
            assert message in str(caught.value)

    [(_, table)] = run(scores(None, schema=KEEP), body, tmp_path).tables("t")
    assert table.data == {"score": [1.0, 2.0]}


def test_a_column_given_twice_for_one_batch(tmp_path: Path) -> None:
    """The second opens the next batch, as every signal does; each that gets no rows is refused where its batch ends."""
    refused = "the column `a` was given for a batch of phase `default` that has no rows"

    def body(log: Recorder) -> None:
        with pytest.raises(InputError, match=refused), log.step(0):
            log.log_extra("a", [1, 2])
            with pytest.raises(InputError, match=refused):
                log.log_extra("a", [3, 4])
        with log.step(1):
            log.observe(score=[1.0])
            log.log_extra("a", ["first"])
            log.observe(score=[2.0])
            log.log_extra("a", ["second"])

    sink = run(scores(None, schema=KEEP), body, tmp_path)
    assert [rows(table) for _, table in sink.tables("t")] == [
        [{"score": 1.0, "a": "first"}, {"score": 2.0, "a": "second"}]
    ]


def test_what_the_training_code_does_with_a_value_later_changes_nothing(tmp_path: Path) -> None:
    """Lists are copied where they are given: a buffer that is used again shows no later step."""
    signals = {"messages": {"axis": "completion", "type": "object"}}
    buffer: list[Any] = []

    def body(log: Recorder) -> None:
        for step in range(3):
            buffer.append({"turn": step})
            with log.step(step):
                log.observe(score=[0.0], messages=[buffer])
                log.log_extra("extra", [buffer])

    made = scores(None, schema=KEEP | {"messages": {"type": "object"}}, signals=signals, every=3)
    [(_, table)] = run(made, body, tmp_path).tables("t")
    expected = [[{"turn": turn} for turn in range(step + 1)] for step in range(3)]
    assert (table.data["messages"], table.data["extra"]) == (expected, expected)


def test_a_table_that_refuses_columns_says_so_where_one_is_given(tmp_path: Path) -> None:
    """`undeclared: error`."""
    schema = {"score": {"type": "float"}, "extra": {"undeclared": "error"}}

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(score=[1.0])
            with pytest.raises(InputError, match="the table `t` refuses undeclared columns, and `more` came") as caught:
                log.log_extra("more", [1])
            assert (caught.value.code, caught.value.fix) == (
                "DL509",
                "declare it as a signal and in the schema, or `undeclared: keep`",
            )

    [(_, table)] = run(scores(None, schema=schema), body, tmp_path).tables("t")
    assert table.data == {"score": [1.0]}


# ---- types over the run


@pytest.mark.parametrize(
    ("given", "type", "expected"),
    [
        ([1, 2.0, 2.5, "x", True], "int", [1, 2, None, None, None]),
        ([0.5, 3, 2**53 + 1, "x"], "float", [0.5, 3.0, None, None]),
        ([True, 1, "x", False], "bool", [True, None, None, False]),
        (["é", 1, ["x"], "y"], "text", ["é", None, None, "y"]),
        ([[1], "x", 2, {"k": 1.5}], "object", [[1], "x", 2, {"k": 1.5}]),
        ([None, 2**70, 1], "object", [None, 2**70, 1]),
        ([None, None, 2**62 + 1, None], "int", [None, None, 2**62 + 1, None]),
    ],
    ids=["int", "float", "bool", "text", "object", "great", "late"],
)
def test_the_first_values_say_what_a_column_is(
    given: list[Any], type: str, expected: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What does not fit later is null, and that is reported once; a column without any value yet is not there."""
    with caplog.at_level(logging.WARNING, logger="declog"):
        sink = run(scores(None, schema=KEEP), lambda log: steps(log, [{"a": [item]} for item in given]), tmp_path)
    tables = [table for _, table in sink.tables("t")]
    first = next(place for place, item in enumerate(given) if item is not None)
    assert [list(table.data["a"]) for table in tables[first:]] == [[item] for item in expected[first:]]
    assert all("a" not in table.data for table in tables[:first])
    assert {column.type for table in tables for column in table.columns if column.name == "a"} == {type}
    fits = [item for item in given if item is not None] == [item for item in expected if item is not None]
    reported = [record.getMessage() for record in caplog.records]
    assert len(reported) == (0 if fits or type == "object" else 1)
    assert all(f"the column `a` of log_extra was {type} at first" in text for text in reported)


def test_a_file_dataset_stays_whole(tmp_path: Path) -> None:
    """Columns that come, go and change their minds, read back with pandas from parquet."""
    made = scores(None, schema=KEEP, sinks=["files"], sink_options={"files": {"kind": "parquet"}})
    given: list[dict[str, Any]] = [{}, {"a": [2**62 + 1]}, {"a": ["text"], "b": ["é"]}, {"b": [1]}, {"a": [5]}]
    run(made, lambda log: steps(log, given), tmp_path)
    frame = pd.read_parquet(tmp_path / "files" / "tables" / "t", dtype_backend="numpy_nullable")
    assert frame["a"].astype(object).where(frame["a"].notna(), None).tolist() == [None, 2**62 + 1, None, None, 5]
    assert frame["b"].astype(object).where(frame["b"].notna(), None).tolist() == [None, None, "é", None, None]


# ---- names


def test_a_run_time_name_never_takes_a_declared_ones_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Columns of log_extra and members of families yield, wherever they stand in the schema, reported once."""
    schema = {
        "extra": {"undeclared": "keep"}, "rewards": {"type": "float", "name": "{member}"},
        "double": {"type": "float", "expr": "2 * score"}, "named": {"type": "text", "expr": "text", "name": "shown"},
    }  # fmt: skip
    made = scores(
        None,
        schema=schema,
        signals={"rewards": {"axis": "completion", "family": True}},
        run={"strict": False},
    )

    def body(log: Recorder) -> None:
        for step in range(2):
            with log.step(step):
                log.observe(score=[1.0], text=["t"], rewards={"double": [7.0], "kept": [0.5], "more": [0.25]})
                for name in ("double", "shown", "step", "mode", "more"):
                    log.log_extra(name, [9])

    with caplog.at_level(logging.ERROR, logger="declog"):
        tables = run(made, body, tmp_path).tables("t")
    assert [rows(table) for _, table in tables] == [[{"more": 9, "kept": 0.5, "double": 2.0, "shown": "t"}]] * 2
    reported = [record.getMessage().split("`")[3] for record in caplog.records]
    assert sorted(reported) == ["double", "mode", "more", "shown", "step"]
    assert all(
        "[DL508] the table `t` leaves out the run-time column" in record.getMessage() for record in caplog.records
    )


def test_a_member_that_comes_later_stays(tmp_path: Path) -> None:
    """A family keeps a column for every member so far; one that is required has those that came."""
    signals = {"rewards": {"axis": "completion", "family": True}}
    given: list[dict[str, list[Any]]] = [{"a": [1.0]}, {"a": [2.0], "b": [3.0]}, {"b": [4.0]}]

    def tables(required: bool) -> list[Table]:
        schema = {"rewards": {"type": "float", "name": "reward/{member}", "required": required}}

        def body(log: Recorder) -> None:
            for step, rewards in enumerate(given):
                with log.step(step):
                    log.observe(score=[0.0], rewards=rewards)

        sink = run(scores(None, schema=schema, signals=signals), body, tmp_path / str(required))
        return [table for _, table in sink.tables("t")]

    assert [table.data for table in tables(required=False)] == [
        {"reward/a": [1.0]}, {"reward/a": [2.0], "reward/b": [3.0]}, {"reward/a": [None], "reward/b": [4.0]},
    ]  # fmt: skip
    assert [table.data for table in tables(required=True)] == [
        {"reward/a": [1.0]}, {"reward/a": [2.0], "reward/b": [3.0]}, {"reward/b": [4.0]},
    ]  # fmt: skip


def test_a_tensor_is_copied_where_it_is(tmp_path: Path) -> None:
    """Its values are read by the worker; what the training code does with it later changes nothing."""
    kept = torch.tensor([1.5, float("nan"), 3.0], dtype=torch.bfloat16)

    def body(log: declog.Recorder) -> None:
        with log.step(0):
            log.observe(score=[1.0, 2.0, 3.0])
            log.log_extra("half", kept)
            log.log_extra("pairs", torch.tensor([[1, 2], [3, 4], [5, 6]]))
            kept.zero_()

    ((_, table),) = run(
        scores(None, schema={"score": "float", "extra": {"undeclared": "keep"}}), body, tmp_path
    ).tables("t")
    assert table.data["half"] == [1.5, None, 3.0]
    assert table.data["pairs"] == [[1, 2], [3, 4], [5, 6]]
