"""Columns of values of any kind: each is readable in every table sink, a copy, and takes no other column with it."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import json
import pathlib
import sys
import uuid
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

import declog
from declog.language.dtypes import Axis
from declog.runtime.recording.recorder import Recorder
from declog.runtime.rows.batch import Batch
from declog.runtime.rows.window import Window
from declog.runtime.values.extras import plain_value
from declog.runtime.values.packs import Pack
from declog.testing import MemorySink
from tests.running import closed_batch, profile, rows, run


@dataclasses.dataclass
class Verdict:
    """What a judge may return."""

    right: bool
    why: list[str]


class Grade(enum.Enum):
    """An enum whose values are no plain data."""

    GOOD = (1, 2)


class Level(enum.IntEnum):
    """One whose values are."""

    HIGH = 3


class Silent:
    """Its repr raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")


class Score(float):
    """A number of a class of its own."""


Pair = namedtuple("Pair", "a b")
circle: list[Any] = [1]
circle += [circle, circle]
HUGE = 10**40

VALUES: Mapping[str, tuple[Any, Any]] = {
    "none": (None, None), "text": ("größer", "größer"), "int": (3, 3), "huge": (HUGE, HUGE), "bool": (True, True),
    "numbers of numpy": ([np.float32(1.5), np.int64(3), np.bool_(True), np.float16(0.5)], [1.5, 3, True, 0.5]),
    "array": (np.arange(3), [0, 1, 2]), "array of objects": (np.array([{1}, None], object), [[1], None]),
    "array of texts": (np.array(["a", "b"]), ["a", "b"]), "numpy's time": (np.datetime64("2026-01-02"), "2026-01-02"),
    "tensor": (torch.tensor([[1, 2]]), [[1, 2]]), "bfloat16": (torch.tensor([1.5], dtype=torch.bfloat16), [1.5]),
    "with a gradient": (torch.tensor(2.5, requires_grad=True), 2.5),
    "sparse": (torch.eye(2).to_sparse(), [[1, 0], [0, 1]]),
    "float8": (torch.tensor([0.5]).to(torch.float8_e4m3fn), [0.5]), "complex": (1 + 2j, "(1+2j)"),
    "date": (datetime.date(2026, 1, 2), "2026-01-02"), "time": (datetime.time(3, 4), "03:04:00"),
    "datetime": (datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), "2026-01-02T00:00:00+00:00"),
    "duration": (datetime.timedelta(seconds=90), "0:01:30"), "decimal": (decimal.Decimal("1.50"), "1.50"),
    "fraction": (fractions.Fraction(1, 3), "1/3"), "path": (pathlib.PurePosixPath("/a"), "/a"),
    "uuid": (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"), "bytes": (b"gr\xc3\xb6", "grö"),
    "no text": (b"\xff\x00", "0xff00"), "enum": (Grade.GOOD, "GOOD"), "int enum": (Level.HIGH, 3),
    "set": ({"b", "a"}, ["a", "b"]), "mixed set": ({1, "a"}, [1, "a"]), "tuple": ((1, (2,)), [1, [2]]),
    "named tuple": (Pair(1, torch.tensor(2)), [1, 2]),
    "map": ({"a": np.float64(0.5), 1: {2: b"x"}}, {"a": 0.5, "1": {"2": "x"}}),
    "ordered": (OrderedDict(a=1), {"a": 1}), "keys": ({(1, 2): 0, None: 1}, {"[1, 2]": 0, "null": 1}),
    "data class": (Verdict(True, ["short"]), {"right": True, "why": ["short"]}), "subclass": (Score(0.5), 0.5),
    "no repr": (Silent(), "<Silent, whose repr fails>"), "inside": ([Silent(), 1], ["<Silent, whose repr fails>", 1]),
    "itself": (circle, [1, "[1, [...], [...]]", "[1, [...], [...]]"]), "type": (int, "<class 'int'>"),
}  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), VALUES.values(), ids=VALUES.keys())
def test_a_value_is_readable(value: Any, expected: Any) -> None:
    """As JSON holds it; what JSON does not know by a form of its own, or as text. It never fails."""
    found = plain_value(value)
    assert (found, type(found)) == (expected, type(expected))
    assert json.loads(json.dumps(found)) == expected


def test_what_is_missing_stays_missing() -> None:
    """NaN and infinities are numbers; a long repr is shortened, a number of a million digits is no error."""
    assert np.isnan(plain_value(np.float32("nan"))) and plain_value(float("inf")) == float("inf")
    assert len(plain_value(type("Long", (), {"__repr__": lambda self: "x" * 999})())) == 200
    assert plain_value(1 << 40_000) == hex(1 << 40_000)
    assert plain_value(torch.empty(2, device="meta")).startswith("tensor(")


COLUMNS: Mapping[str, tuple[Any, list[Any]]] = {
    "tensor": (torch.tensor([1.5, 2.0], requires_grad=True), [1.5, 2.0]),
    "half": (torch.tensor([1.5, 2.0], dtype=torch.bfloat16), [1.5, 2.0]),
    "ints": (torch.tensor([1, 2**62]), [1, 2**62]), "float8": (torch.ones(2).to(torch.float8_e5m2), [1.0, 1.0]),
    "tensors": ([torch.tensor(1.5), torch.tensor(2.5)], [1.5, 2.5]),
    "of two kinds": ([torch.tensor(1), torch.tensor(0.5)], [1.0, 0.5]),
    "rows": (torch.ones(2, 3), [[1.0] * 3] * 2), "ragged": ([torch.arange(2), torch.arange(1)], [[0, 1], [0]]),
    "array": (np.array([1.5, np.nan]), [1.5, None]), "tuple": ((1, 2), [1, 2]), "series": (pd.Series([1, 2]), [1, 2]),
    **{name: ([value, None], [expected, None]) for name, (value, expected) in VALUES.items()},
}  # fmt: skip


def test_columns_of_any_kind_in_one_batch(tmp_path: Path) -> None:
    """Every column is there, beside its rows, and a change afterwards changes nothing."""
    changed = {"a": [1]}

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(length=[1, 2])
            for name, (values, _) in COLUMNS.items():
                log.log_extra(name, values)
            log.log_extra("changed", [changed, None])
            changed["a"].append(2)

    ((_, table),) = run(KEEPING, body, tmp_path).tables("t")
    found = rows(table)
    for name, (_, expected) in {**COLUMNS, "changed": ([], [{"a": [1]}, None])}.items():
        if any(value is not None for value in expected):
            assert [row.get(name) for row in found] == expected, name


KEEPING = profile(
    {"length": {"axis": "completion", "type": "int"}}, {},
    schemas={"s": {"length": {"type": "int"}, "extra": {"undeclared": "keep"}}}, tables={"t": {"schema": "s"}},
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")  # of wandb's artifacts
@pytest.mark.usefixtures("wandb_folder")
def test_every_table_sink_writes_them(tmp_path: Path) -> None:
    """Parquet, JSONL, wandb, trackio and the console take a table with a column of each kind, and none fails."""
    tracked = {"project": "values", **({} if "trackio" in sys.modules else {"dir": str(tmp_path / "trackio")})}
    sinks = ["parquet", "jsonl", "console", "wandb", "trackio"]
    with declog.start(
        {**KEEPING, "sinks": sinks, "sink_options": {"trackio": tracked}}, output_dir=tmp_path / "run"
    ) as log:
        with log.step(0):
            log.observe(length=[1, 2])
            for name, (values, _) in COLUMNS.items():
                log.log_extra(name, values)
        log.flush()
    assert log.failures == {}
    found = pq.read_table(tmp_path / "run" / "parquet" / "tables" / "t").to_pydict()
    assert [json.loads(value) if value else None for value in found["data class"]] == [VALUES["data class"][1], None]
    assert found["date"] == ["2026-01-02", None]
    lines = (tmp_path / "run" / "jsonl" / "tables" / "t.jsonl").read_text(encoding="utf-8").splitlines()
    written = [json.loads(line) for line in lines]
    assert [row.get("no repr") for row in written if "length" in row] == ["<Silent, whose repr fails>", None]


def test_an_object_signal_takes_them_too(tmp_path: Path) -> None:
    """What is observed as an object is made readable in the same way."""
    made = profile(
        {"note": {"axis": "completion", "type": "object"}}, {},
        schemas={"s": {"note": {"type": "object"}}}, tables={"t": {"schema": "s"}},
    )  # fmt: skip
    sink = MemorySink()
    with declog.start(made, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(note=[value for value, _ in VALUES.values()])
    ((_, table),) = sink.tables("t")
    assert list(table.data["note"]) == [expected for _, expected in VALUES.values()]


UNREADABLE: Mapping[str, tuple[Callable[[], Any], str]] = {
    "meta": (lambda: torch.empty(2, device="meta"), "is on the meta device and has no values"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "is a nested tensor"),
}  # fmt: skip


@pytest.mark.parametrize(("values", "message"), UNREADABLE.values(), ids=UNREADABLE.keys())
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_tensor_without_values_is_refused_where_it_is_given(values: Any, message: str, tmp_path: Path) -> None:
    """Not on the worker, where it would take the batch with it."""

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(length=[1, 2])
            with pytest.raises(declog.InputError, match=message):
                log.log_extra("x", values())
            log.log_extra("fine", [1, 2])

    ((_, table),) = run(KEEPING, body, tmp_path).tables("t")
    assert (table.data["fine"], "x" in table.data) == ([1, 2], False)


def test_a_lazy_view_is_read(tmp_path: Path) -> None:
    """A part of a conjugate is negated when it is read."""
    values = torch.tensor([1 + 2j, 3 + 4j]).conj().imag

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(length=[1, 2])
            log.log_extra("x", values)

    assert values.is_neg()
    ((_, table),) = run(KEEPING, body, tmp_path).tables("t")
    assert table.data["x"] == [-2.0, -4.0]


def test_what_cannot_be_read_later_takes_its_own_batch_only() -> None:
    """A tensor whose device fails after it was given: calls stay whole, and the batches beside it are logged."""
    made = declog.plan({"signals": {"any": {"a": {"axis": "completion"}, "b": {"axis": "completion"}}},
                        "metrics": {"a": "mean(a)", "b": "mean(b)"}})  # fmt: skip

    def batch(number: int, device: str) -> Batch:
        packs = [
            Pack(Axis.COMPLETION, [("a", None)], [torch.ones(2)]),
            Pack(Axis.COMPLETION, [("b", None)], [torch.ones(2, device=device)]),
        ]
        return closed_batch(2, step=0, number=number, order=number + 1, packs=packs)

    reported: list[BaseException] = []
    window = Window([{"default": [batch(0, "cpu"), batch(1, "meta"), batch(2, "cpu")]}])
    frame = window.frames(made, 0, reported.append)["default"]
    assert frame.batches.batch.tolist() == [0, 2]
    columns = [frame.column(name) for name in "ab"]
    assert [frame.count(Axis.COMPLETION), *(None if one is None else len(one) for one in columns)] == [4, 4, 4]
    text = "a batch of step 0 in phase `default` could not be read, and is left out"
    assert [text in str(error) for error in reported] == [True]
    assert Window([{"default": [batch(0, "meta")]}]).frames(made, 0, reported.append) == {}
