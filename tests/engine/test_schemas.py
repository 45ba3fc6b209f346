"""Schemas: what columns become, what breaks their contract, and where tables go."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from declog.records import Column, DType
from declog.runtime.recording.recorder import Recorder
from tests.running import rows, run, scores, tables_of


def test_columns_are_typed(tmp_path: Path) -> None:
    """Every declared type comes out as plain Python values under its declared column."""
    signals = {
        "length": {"axis": "completion", "type": "int"}, "done": {"axis": "completion", "type": "bool"},
        "rewards": {"axis": "completion", "family": True}, "meta": {"axis": "completion", "type": "object"},
        "loss": {"axis": "step"},
    }  # fmt: skip
    schema: dict[str, dict[str, Any]] = {
        "step": {"type": "int", "expr": "step"},
        "length": {"type": "int"},
        "as_float": {"type": "float", "expr": "length"},
        "done": {"type": "bool"},
        "rewards": {"type": "float", "name": "reward/{member}"},
        "meta": {"type": "object"},
        "double": {"type": "float", "expr": "2 * score"},
        "loss": {"type": "float"},
        "rank": {"type": "int", "expr": "rank(-score, within=step)"},
    }
    values = {
        "score": [1.5, None], "length": [3, 4], "done": [True, False], "rewards": {"a": [0.5, 1.0], "b": [0.0, 2.0]},
        "meta": [{"k": [1, None]}, "x"], "loss": 0.25,
    }  # fmt: skip
    [(_, table)] = tables_of(scores(None, schema=schema, signals=signals), [[values]], tmp_path)
    assert rows(table) == [
        {"step": 0, "length": 3, "as_float": 3.0, "done": True, "reward/a": 0.5, "reward/b": 0.0,
         "meta": {"k": [1, None]}, "double": 3.0, "loss": 0.25, "rank": 1},
        {"step": 0, "length": 4, "as_float": 4.0, "done": False, "reward/a": 1.0, "reward/b": 2.0,
         "meta": "x", "double": None, "loss": 0.25, "rank": None},
    ]  # fmt: skip
    assert [type(value) for value in rows(table)[0].values()] == [
        int,
        int,
        float,
        bool,
        float,
        float,
        dict,
        float,
        float,
        int,
    ]
    assert table.columns[:2] == (Column("step", DType.INT), Column("length", DType.INT))


@pytest.mark.parametrize(
    ("schema", "values", "message"),
    [
        ({"score": {"type": "float", "required": True}}, {"score": [1.0, None]},
         "[DL509] the column `score` of the table `t` has a missing value and is required\n"
         "  fix: drop `required: true` from the column `score`"),
        ({"reward": {"type": "float", "required": True, "expr": "rewards", "name": "{member}"},
          "a": {"type": "float", "expr": "score"}},
         {"score": [1.0, 2.0], "rewards": {"b": [0.0, None]}},
         "[DL509] the column `reward` of the table `t` has a missing value and is required\n"
         "  fix: drop `required: true` from the column `reward`"),
    ],
    ids=["required", "family"],
)  # fmt: skip
def test_a_broken_contract_is_reported_and_costs_the_table_only(
    schema: dict[str, Any], values: dict[str, Any], message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The error names the table and the column; metrics of the same log event are written."""
    made = scores(
        None,
        schema=schema,
        signals={"rewards": {"axis": "completion", "family": True}},
        run={"strict": False},
    )
    made["metrics"] = {"score": "mean(score)"}

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(**values)

    with caplog.at_level(logging.ERROR, logger="declog"):
        sink = run(made, body, tmp_path)
    assert [record.getMessage() for record in caplog.records] == [f"a log event lacks values: {message}"]
    assert sink.scalars == {0: {"score": sum(filter(None, values["score"])) / len([x for x in values["score"] if x])}}
    assert sink.tables("t") == []


def test_texts_are_redacted_then_shortened(tmp_path: Path) -> None:
    """Patterns are replaced by their labels before the text is cut; run-time columns too."""
    rules = {"max_chars": 12, "redact": {"card": r"\b\d{4}\b", "mail": r"\S+@\S+"}}
    schema = {"text": {"type": "text"} | rules, "extra": {"undeclared": "keep"} | rules}
    texts = ["pay 1234 now", "a@b.c wrote this", None, "short"]

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(score=[0.0] * 4, text=texts)
            log.log_extra("note", texts)

    [(_, table)] = run(scores(None, schema=schema), body, tmp_path).tables("t")
    shown = ["pay [card] n…", "[mail] wrot…", None, "short"]
    shown[0] = "pay [card] …"
    assert table.data == {"text": shown, "note": shown}


def test_run_time_columns_have_the_type_of_their_values(tmp_path: Path) -> None:
    """Columns of `log_extra` come by name; one without any value has no type yet, and is left out."""
    schema = {"score": {"type": "float"}, "extra": {"undeclared": "keep"}}
    columns: dict[str, Any] = {
        "ints": np.array([1, 2]), "floats": [1, 2.5], "bools": [True, None], "texts": ["a", None],
        "maps": [{"k": 1}, [2]],
        "none": [None, None], "gaps": [math.nan, 1.0], "numpy": [np.float32(0.5), np.int64(3)],
    }  # fmt: skip

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(score=[1.0, 2.0])
            for name, values in columns.items():
                log.log_extra(name, values)

    [(_, table)] = run(scores(None, schema=schema), body, tmp_path).tables("t")
    assert {column.name: column.type for column in table.columns} == {
        "score": "float", "bools": "bool", "floats": "float", "gaps": "float", "ints": "int", "maps": "object",
        "numpy": "float", "texts": "text",
    }  # fmt: skip
    assert rows(table)[0] == {
        "score": 1.0, "bools": True, "floats": 1, "gaps": None, "ints": 1, "maps": {"k": 1}, "numpy": 0.5,
        "texts": "a",
    }  # fmt: skip


def test_undeclared_columns_are_dropped_by_default_and_that_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without `undeclared: keep` a run-time column goes nowhere; each is named once."""

    def body(log: Recorder) -> None:
        for step in range(2):
            with log.step(step):
                log.observe(score=[1.0])
                log.log_extra("more", [1])

    with caplog.at_level(logging.WARNING, logger="declog"):
        sink = run(scores(None), body, tmp_path)
    assert [record.getMessage() for record in caplog.records] == [
        "the column `more` is dropped: no active table keeps undeclared columns"
    ]
    assert [sorted(table.data) for _, table in sink.tables("t")] == [["score", "text"]] * 2


def test_a_column_that_a_signal_takes_is_that_signal(tmp_path: Path) -> None:
    """What a reward function logs feeds metrics as soon as YAML says so, without a change of code."""
    signals = {"quality": {"axis": "completion", "from_log_extra": True}}
    made = scores(None, schema={"quality": {"type": "float"}}, signals=signals)
    made["metrics"] = {"quality": "mean(quality)"}

    def body(log: Recorder) -> None:
        with log.step(0):
            log.log_extra("quality", [0.5, 1.5])
            log.observe(score=[1.0, 2.0])

    sink = run(made, body, tmp_path)
    assert sink.scalars == {0: {"quality": 1.0}}
    assert [table.data for _, table in sink.tables("t")] == [{"quality": [0.5, 1.5]}]


# ---- destinations


@pytest.mark.parametrize(
    ("to", "expected"),
    [({}, ["a", "b"]), ({"a": True}, ["a"]), ({"a": False}, ["b"]), ({"a": True, "b": True}, ["a", "b"])],
    ids=str,
)
def test_a_table_goes_where_it_is_sent(to: dict[str, bool], expected: list[str], tmp_path: Path) -> None:
    """`to:` names the sinks of a table; without it, every sink that takes tables."""
    made = scores(None, sinks=["a", "b"], sink_options={"a": {"kind": "jsonl"}, "b": {"kind": "jsonl"}}, to=to)
    assert len(tables_of(made, [[{"score": [1.0, 2.0]}]], tmp_path)) == 1  # a sink given in code takes all
    assert sorted(file.parent.parent.name for file in tmp_path.glob("*/tables/t.jsonl")) == expected
    for name in expected:
        lines = (tmp_path / name / "tables" / "t.jsonl").read_text().splitlines()
        assert [json.loads(line)["score"] for line in lines] == [1.0, 2.0]
