"""Where a table's rows come from, and why they were picked; filters that take whole groups; both ends of long texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import declog
from declog.engine.tables.cell_values import cut
from declog.records import Places, Table
from declog.runtime.ranks.comm import Comm
from declog.testing import MemorySink, run_ranks
from tests.conftest import examples

Scores = Sequence[float]
WORST: dict[str, Any] = {"take": "group", "key": "mean(score, over=completion)", "bottom": 1}


def profile(filters: dict[str, Any], **others: Any) -> dict[str, Any]:
    """A table of texts by the last of some filters; groups are of two rows unless ``others`` say otherwise."""
    return {
        "run": {"name": "places", "strict": True}, "axes": {"group": {"size": 2}},
        "signals": {"any": {"score": {"axis": "completion"}, "text": {"axis": "completion", "type": "text"}}},
        "filters": filters, "schemas": {"s": {"text": {"type": "text"}}},
        "tables": {"t": {"schema": "s", **({"filter": list(filters)[-1]} if filters else {})}}, **others,
    }  # fmt: skip


def texts(scores: Scores) -> list[str]:
    return [f"{place}:{score:g}" for place, score in enumerate(scores)]


def logged(made: dict[str, Any], steps: Sequence[Sequence[Scores]], folder: Path, ranks: int = 1) -> list[Table]:
    """The tables of a job whose ranks observe batches of scores; a row's text is its place and its score."""

    def rank(comm: Comm) -> MemorySink:
        sink = MemorySink()
        with declog.start(made, sinks=[sink], output_dir=folder, comm=comm) as log:
            for step, batches in enumerate(steps):
                with log.step(step):
                    for scores in batches[comm.rank :: ranks]:
                        log.observe(score=list(scores), text=texts(scores))
        return sink

    return [table for _, table in run_ranks(ranks, rank)[0].tables("t")]


def ordered(table: Table) -> Sequence[int] | None:
    """The order of a choice from a window."""
    assert table.places is not None and table.places.of_window
    return table.places.order


def test_rows_say_their_step_group_number_and_why(tmp_path: Path) -> None:
    """Numbers count within the row's own step, over its batches; a window has rows of several steps."""
    filters = {"some": {"where": "score != 5"},
               "ends": {"key": "score", "top": 1, "bottom": 1, "within": "step", "from": "some"}}  # fmt: skip
    steps = [[[1.0, 2.0], [5.0, 0.0]], [[3.0, 4.0, 5.0, 9.0]]]
    (table,) = logged(profile(filters, every=2), steps, tmp_path)
    assert table.data["text"] == ["1:2", "1:0", "0:3", "3:9"]
    why = [f"some, ends:{end}" for end in ("top", "bottom", "bottom", "top")]
    order = [0, 2, 3, 1]  # the best of each step, then the worst
    assert table.places == Places(step=[0, 0, 1, 1], row=[1, 3, 0, 3], group=[0, 1, 0, 1], why=why, order=order)


def test_rows_say_their_place_in_a_choice_from_a_window(tmp_path: Path) -> None:
    """The most extreme first, also where only one filter of a chain chose so; rows of their groups come last."""
    ends = {"key": "score", "top": 1, "bottom": 2}
    steps = [[[7.0, 1.0]], [[0.0, 9.0]]]
    (table,) = logged(profile({"ends": ends}, every=2), steps, tmp_path / "ends")
    assert (table.data["text"], ordered(table)) == (["1:1", "0:0", "1:9"], [2, 1, 0])
    groups = {"ends": {**ends, "bottom": 0}, "around": {"take": "group", "from": "ends"}}
    (table,) = logged(profile(groups, every=2), steps, tmp_path / "groups")
    assert (table.data["text"], ordered(table)) == (["0:0", "1:9"], [1, 0])


def test_without_groups_and_filters_rows_say_their_step_and_number(tmp_path: Path) -> None:
    """What is not there is not made up."""
    (table,) = logged(profile({}, axes={}), [[[1.0], [2.0]]], tmp_path)
    assert table.places == Places(step=[0, 0], row=[0, 1])


def test_places_end_where_max_bytes_cuts(tmp_path: Path) -> None:
    """The rows that are left have theirs."""
    made = profile({"all": {"first": 1000000}})
    made["tables"]["t"]["max_bytes"] = 7
    (table,) = logged({**made, "run": {"strict": False}}, [[[1.0, 2.0, 3.0, 4.0]]], tmp_path)
    assert (table.rows, table.cut) == (2, 2)
    assert table.places == Places(step=[0, 0], row=[0, 1], group=[0, 0], why=["all", "all"], of_window=True)


def test_files_have_where_rows_come_from_and_own_columns_stay(tmp_path: Path) -> None:
    """`group` is a column of the table itself; a row's step is its own, and the log event's stands beside it."""
    made = profile({"best": {"key": "score", "top": 1, "within": "step"}}, every=2, output_dir=str(tmp_path),
                   sinks=["jsonl"], sink_options={"jsonl": {"kind": "jsonl"}})  # fmt: skip
    made["schemas"]["s"]["group"] = {"type": "float", "expr": "score"}
    with declog.start(made) as log:
        for step in range(2):
            with log.step(step):
                log.observe(score=[1.0, 2.0], text=["a", "b"])
    lines = (tmp_path / "jsonl" / "tables" / "t.jsonl").read_text().splitlines()
    row = {"mode": "train", "run_id": log.run_id, "declog_step": 1, "row": 1, "why": "best:top", "text": "b"}
    assert [json.loads(line) for line in lines] == [{**row, "step": step, "group": 2.0} for step in range(2)]


COLUMNS = ["group: int", "group: {expr: group, type: int}", "group", "row: int", "why: text", "why", "row: float"]


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("ids", ["a signal", "no signal"])
def test_a_named_column_has_the_values_of_the_files_own(column: str, ids: str, tmp_path: Path) -> None:
    """Class: a schema or a list of columns that names a column which files have of themselves."""
    made = profile({"worst": {"key": "score", "bottom": 3, "within": "step"}}, every=2)
    if ids == "a signal":
        made["axes"]["group"]["of"] = "group"
        made["signals"]["any"]["group"] = {"axis": "completion", "type": "object"}
    name = column.partition(":")[0]
    made["schemas"]["s"].update(yaml.safe_load(f"{{{column}}}") if ":" in column else {name: {}})
    (table,) = logged(made, [[[1.0, 5.0, 2.0, 3.0]], [[1.0, 0.0], [7.0, 2.0]]], tmp_path)
    assert table.places is not None
    assert table.data[name] == {
        "group": [0, 1, 1, 0, 0, 1], "row": [0, 2, 3, 0, 1, 3], "why": ["worst:bottom"] * 6,
    }[name] == getattr(table.places, name)  # fmt: skip


def test_an_observed_group_is_the_column(tmp_path: Path) -> None:
    """Ids that came are the values of a column `group`, and one that is no int does not fit into `group: int`."""
    made = profile(
        {}, signals={"any": {"score": "completion", "text": "completion text", "group": "completion object"}}
    )
    made["axes"]["group"] = {"of": "group"}
    for type, values in ({"type": "int"}, [7, 7, 3]), ({}, ["a", "a", "b"]), ({"type": "int"}, ["a", "a", "b"]):
        made["schemas"]["s"]["group"] = type
        sink = MemorySink()
        with declog.start({**made, "run": {"strict": False}}, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
            log.observe(score=[1.0, 2.0, 3.0], text=["", "", ""], group=values)
        tables = [table for _, table in sink.tables("t")]
        if type and values[0] == "a":
            assert not tables and any("the table `t`" in failure for failure in log.failures)
        else:
            assert tables[0].data["group"] == values


# ---- whole groups


@examples(40, HealthCheck.function_scoped_fixture)
@given(
    batches=st.lists(st.lists(st.integers(-3, 3).map(float), min_size=4, max_size=4), min_size=2, max_size=6),
    bottom=st.integers(0, 2), top=st.integers(1, 2), ranks=st.sampled_from([1, 2]),
)  # fmt: skip
def test_groups_by_a_statistic_are_taken_whole_on_any_number_of_ranks(
    batches: list[list[float]], bottom: int, top: int, ranks: int, tmp_path: Path
) -> None:
    """Compared with sorted means; batches are dealt to the ranks in turn, and ties go by their order there."""
    batches = batches[: len(batches) // ranks * ranks]
    made = profile({"ends": {**WORST, "bottom": bottom, "top": top}})
    (table,) = logged(made, [batches], tmp_path, ranks)
    order = [batch for turn in range(0, len(batches), ranks) for batch in batches[turn : turn + ranks]]
    rows = [(text, score) for batch in order for text, score in zip(texts(batch), batch, strict=True)]
    groups = [rows[start : start + 2] for start in range(0, len(rows), 2)]
    means = [(left[1] + right[1]) / 2 for left, right in groups]
    best = sorted(range(len(groups)), key=lambda place: -means[place])[:top]
    worst = sorted(set(range(len(groups))) - {*best}, key=lambda place: (means[place], place))[:bottom]
    chosen = sorted({*best, *worst})
    assert table.data["text"] == [text for place in chosen for text, _ in groups[place]]
    assert table.places is not None
    assert table.places.group == [place for place in chosen for _ in range(2)]
    assert table.places.why == [f"ends:{'top' if place in best else 'bottom'}" for place in chosen for _ in range(2)]


@pytest.mark.parametrize("split", ["none", "batches", "ranks"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_group_of_what_another_filter_took(split: str, ranks: int, tmp_path: Path) -> None:
    """The worst completion and all of its group, also where that is spread over batches or ranks."""
    filters = {"worst": {"key": "score", "bottom": 1},
               "around": {"take": "group", "from": "worst"}}  # fmt: skip
    made = profile(filters, axes={"group": {"of": "prompt", "split": split}})
    made["signals"]["any"]["prompt"] = {"axis": "completion", "type": "int"}

    def rank(comm: Comm) -> MemorySink:
        sink = MemorySink()
        with declog.start(made, sinks=[sink], output_dir=tmp_path, comm=comm) as log, log.step(0):
            for batch in range(2 // ranks):
                half = batch + comm.rank
                scores = [[4.0, 1.0, 2.0], [0.0, 3.0, 5.0]][half]
                log.observe(score=scores, text=texts(scores), prompt=[[7, 8, 8], [8, 7, 8]][half])
        return sink

    [(_, table)] = run_ranks(ranks, rank)[0].tables("t")
    together = split == {1: "batches", 2: "ranks"}[ranks]
    assert table.data["text"] == (["1:1", "2:2"] if together else []) + ["0:0", "2:5"]
    assert table.places is not None
    assert table.places.why == (["around"] * 2 if together else []) + ["worst:bottom, around", "around"]


def test_rows_of_a_group_that_was_taken_are_filtered_further(tmp_path: Path) -> None:
    """The best completion of the worst group; `limit` counts groups where groups are taken."""
    filters = {
        "worst": {**WORST, "bottom": 2, "limit": 1},
        "best": {"key": "score", "top": 1, "within": "group", "from": "worst"},
    }
    (table,) = logged(profile(filters), [[[9.0, 9.0, 1.0, 2.0, 0.0, 1.0]]], tmp_path)
    assert table.data["text"] == ["3:2"]


def test_random_groups_are_the_same_by_their_ids(tmp_path: Path) -> None:
    """On one rank and on two: where rows have ids, a group's chance is its first row's."""
    axes = {"group": {"size": 2}, "completion": {"ids": "row"}}
    made = profile({"some": {"take": "group", "random": 2}}, axes=axes)
    made["signals"]["any"]["row"] = {"axis": "completion", "type": "int"}

    def found(ranks: int) -> list[str]:
        def rank(comm: Comm) -> MemorySink:
            sink = MemorySink()
            with declog.start(made, sinks=[sink], output_dir=tmp_path, comm=comm) as log, log.step(0):
                mine = list(range(16))[comm.rank * 16 // ranks : (comm.rank + 1) * 16 // ranks]
                log.observe(score=[0.0] * len(mine), text=[str(row) for row in mine], row=mine)
            return sink

        [(_, table)] = run_ranks(ranks, rank)[0].tables("t")
        return sorted(table.data["text"])

    assert len(found(1)) == 4
    assert found(1) == found(2)


# ---- both ends of a text


def test_both_ends_of_a_text_say_what_is_left_out() -> None:
    """A text that what says so would not shorten is whole."""
    text = "".join(chr(97 + place % 26) for place in range(3000))
    assert cut(text, (500, 1500)) == f"{text[:500]}… 1,000 characters …{text[1500:]}"
    assert cut(text, (0, 3)) == f"… 2,997 characters …{text[-3:]}"
    assert cut(text, (3, 0)) == f"{text[:3]}… 2,997 characters …"
    assert cut(text[:2010], (500, 1500)) == text[:2010]
    assert cut(text, 4) == "abc…"


def test_texts_are_redacted_before_they_are_cut(tmp_path: Path) -> None:
    """No end keeps half of what is to be hidden."""
    made = profile({})
    made["schemas"]["s"] = {
        "text": {"type": "text", "max_chars": {"head": 2, "tail": 12}, "redact": {"key": "sk-[a-z]+"}}
    }
    sink = MemorySink()
    with declog.start(made, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(score=[0.0, 1.0], text=["x" * 100 + "sk-" + "a" * 10, "short"])
    [(_, table)] = sink.tables("t")
    assert table.data["text"] == ["xx… 91 characters …" + "x" * 7 + "[key]", "short"]
