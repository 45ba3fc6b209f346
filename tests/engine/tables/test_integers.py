"""Integers keep every bit, whatever else of their column is missing: in batches, on ranks, over windows, in joins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import declog
from declog.engine.blocks import Block, batches_of
from declog.engine.frame import Frame
from declog.errors import InputError
from declog.language.dtypes import Axis
from declog.runtime.ranks.comm import Comm
from declog.runtime.ranks.message import decode, encode
from declog.testing import MemorySink, run_ranks
from tests.running import profile, scores, tables_of

BIG = 2**62 + 1  # as a float it is 2**62
SCHEMA = {"number": {"type": "int"}, "score": {"type": "float"}}
SIGNALS = {"number": {"axis": "completion", "type": "int"}}


def numbers(table: Any) -> list[Any]:
    return list(table.data["number"])


def test_beside_missing_values_in_a_list(tmp_path: Path) -> None:
    """A list with None in it loses nothing of its integers."""
    values = [{"score": [0.0] * 4, "number": [BIG, None, -BIG, 2**63 - 1]}]
    [(_, table)] = tables_of(scores(None, schema=SCHEMA, signals=SIGNALS), [values], tmp_path)
    assert numbers(table) == [BIG, None, -BIG, 2**63 - 1]


def test_a_number_beyond_64_bits_is_refused_where_it_is_given(tmp_path: Path) -> None:
    """Also beside None."""
    with pytest.raises(InputError, match="`number` holds a number that does not fit 64 bits"):
        tables_of(scores(None, schema=SCHEMA, signals=SIGNALS), [[{"score": [0.0] * 2, "number": [2**63, None]}]],
                  tmp_path)  # fmt: skip


def test_in_batches_of_which_some_lack_the_column(tmp_path: Path) -> None:
    """An optional signal that comes now and then."""
    steps: Sequence[Any] = [
        [{"score": [0.0], "number": [BIG]}, {"score": [1.0, 2.0]}],
        [{"score": [3.0], "number": np.array([7])}, {"score": [4.0], "number": [None]}],
    ]
    found = tables_of(scores(None, schema=SCHEMA, signals=SIGNALS, every=2), steps, tmp_path)
    assert [numbers(table) for _, table in found] == [[BIG, None, None, 7, None]]


@pytest.mark.parametrize(
    "expr",
    ["first(number, over=completion)", "first(number, over=step)", "first(first(number, over=completion), over=group)"],
)
def test_the_first_of_a_coarser_axis(expr: str, tmp_path: Path) -> None:
    """Class: of a group, of a step, and of a step's groups; each beside its rows, one of them without a value."""
    schema = {"number": {"type": "int", "expr": expr}}
    made = {**scores(None, schema=schema, signals=SIGNALS), "axes": {"group": {"size": 2}}}
    values = [{"score": [0.0] * 2, "number": [BIG, None]}]
    [(_, table)] = tables_of(made, [values], tmp_path)
    assert numbers(table) == [BIG, BIG]


@pytest.mark.parametrize("size", [1, 10**6], ids=["folded", "whole"])
def test_in_a_window_that_lets_go_of_other_columns(size: int, tmp_path: Path) -> None:
    """A window of several log events holds what it will read, each value with what says that it is there."""
    made = scores(None, schema={"number": SCHEMA["number"]}, signals=SIGNALS, run={"window_bytes": size})
    made["tables"]["t"]["every"] = 3
    made["metrics"] = {"score": "mean(score)"}
    steps: Sequence[Any] = [[{"score": [0.0, 1.0], "number": [None, BIG + step]}] for step in range(3)]
    [(_, table)] = tables_of(made, steps, tmp_path)
    assert numbers(table) == [None, BIG, None, BIG + 1, None, BIG + 2]


def test_on_ranks_of_which_some_lack_the_column(tmp_path: Path) -> None:
    """A rank that never gives the column makes nulls, and costs the others no bit; filters see the same."""
    filters = {"unique": "number", "within": "window"}
    made = scores(None, schema=SCHEMA, signals=SIGNALS)
    made["filters"] = {"distinct": filters}
    made["tables"]["distinct"] = {"schema": "s", "filter": "distinct"}
    made["metrics"] = {"number": {"reduce": "count"}}

    def rank(comm: Comm) -> MemorySink:
        sink = MemorySink()
        with declog.start(made, sinks=[sink], output_dir=tmp_path, comm=comm) as log, log.step(0):
            given: list[dict[str, Any]] = [{"number": [BIG, BIG + 1]}, {}, {"number": [None, BIG]}]
            log.observe(score=[0.0, 1.0], **given[comm.rank])
        return sink

    sink = run_ranks(3, rank)[0]
    assert [numbers(table) for _, table in sink.tables("t")] == [[BIG, BIG + 1, None, None, None, BIG]]
    assert [numbers(table) for _, table in sink.tables("distinct")] == [[BIG, BIG + 1]]
    assert sink.scalars[0]["number"] == 3


def test_the_first_of_a_group(tmp_path: Path) -> None:
    """`first` and `last` give an integer as it is, and a group without any gives a null."""
    schema = {
        "first": {"type": "int", "expr": "first(number, over=completion)"},
        "last": {"type": "int", "expr": "last(number, over=completion)"},
    }
    values = {"score": [0.0] * 6, "number": [None, BIG, None, None, BIG + 1, BIG + 2]}
    made = scores(None, schema=schema, signals=SIGNALS, axes={"group": {"size": 2}})
    [(_, table)] = tables_of(made, [[values]], tmp_path)
    assert table.data["first"] == [BIG, BIG, None, None, BIG + 1, BIG + 1]
    assert table.data["last"] == [BIG, BIG, None, None, BIG + 2, BIG + 2]


def test_ids_that_differ_in_their_last_bit_join_and_group_apart(tmp_path: Path) -> None:
    """Rows are found by ids, and grouped by ids, where another batch of the window lacks an id."""
    made = profile(
        {"row": {"axis": "completion", "type": "int"}},
        {"joined": "sum(kl * reward)", "groups": {"expr": "sum(reward, over=completion)", "reduce": "count"}},
        signals={"rollout": {"reward": "completion"}, "update": {"kl": "completion"}},
        axes={"completion": {"ids": "row"}, "group": {"of": "row"}}, every=2,
    )  # fmt: skip
    sink = MemorySink()
    with declog.start(made, sinks=[sink], output_dir=tmp_path) as log:
        with log.step(0):
            log.observe(reward=[1.0, 10.0], row=[BIG, BIG + 1])
            log.observe(kl=[1.0, 2.0], row=[BIG + 1, BIG])
        with log.step(1):
            log.observe(reward=[1.0, 10.0], row=[BIG, None])
            log.observe(kl=[3.0], row=[BIG])
    assert sink.scalars[1] == {"joined": 10.0 + 2.0 + 3.0, "groups": 4}


COLUMN = st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=5)


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), COLUMN), min_size=1, max_size=4))
def test_any_frames_merged_and_sent(parts: list[list[int | None] | None]) -> None:
    """Frames with and without the column, merged, sent and read: every value is what it was."""
    frames: list[Frame] = []
    expected: list[int | None] = []
    for step, values in enumerate(parts):
        rows = 2 if values is None else len(values)
        batches = batches_of([(step, 0, 0, rows, 0.0, step)])
        objects = np.array(values, object) if values is not None else None
        blocks = [] if objects is None else [Block.of_integers(Axis.COMPLETION, (("n", None),), objects)]
        frames.append(Frame("e", batches, blocks))
        expected += [None] * rows if values is None else values
    merged = Frame.merge(frames)
    read = decode(encode({"e": merged}, {}), None)[0]["e"]
    for frame in (merged, read, read.take(np.arange(len(read.batches)))):
        column = frame.column("n", exact=True)
        assert (column is None and all(item is None for item in expected)) or column.tolist() == expected  # type: ignore[union-attr]
        rounded = frame.column("n")
        assert rounded is None or [None if x != x else int(x) for x in rounded.astype(float)] == [
            None if item is None else int(float(item)) for item in expected
        ]
