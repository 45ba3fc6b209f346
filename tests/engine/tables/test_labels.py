"""Filters that choose in each value of a label: `within: topic`, against plain Python over the rows of all ranks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.plans.words import described
from declog.runtime.ranks.comm import Comm
from declog.testing import MemorySink, run_ranks
from tests.running import scores

SIGNALS = {"topic": "completion text", "level": "completion int", "solved": "completion bool", "step_name": "step text"}
SCHEMA = {"text": {"type": "text"}}
# of two ranks; scores tie, and of some rows a label or the score is missing
RANKS: list[list[dict[str, Any]]] = [
    [
        {"score": 1.0, "topic": "math", "level": 1, "solved": True},
        {"score": 0.0, "topic": "größe", "level": 2, "solved": None},
        {"score": 0.0, "topic": "math", "level": None, "solved": False},
        {"score": 5.0, "topic": None, "level": 1, "solved": True},
        {"score": 2.0, "topic": "größe", "level": 2, "solved": False},
        {"score": None, "topic": "code", "level": 3, "solved": None},
    ],
    [
        {"score": 0.0, "topic": "math", "level": 2, "solved": True},
        {"score": -1.0, "topic": "math", "level": 1, "solved": True},
        {"score": 2.0, "topic": "größe", "level": 1, "solved": False},
        {"score": 3.0, "topic": "", "level": None, "solved": None},
    ],
]
ROWS = [
    {**row, "text": f"{rank}.{place}", "rank": rank, "group": 10 * rank + place // 2}
    for rank, rows in enumerate(RANKS)
    for place, row in enumerate(rows)
]


def chosen(filter: dict[str, Any], folder: Path, ranks: int = 2, **others: Any) -> list[str]:
    """The texts of the rows of the table, in a job of the rows on so many ranks: on one, those of all."""
    made = scores(filter, schema=SCHEMA, signals=SIGNALS, axes={"group": {"of": "group"}}, **others)

    def rank(comm: Comm) -> MemorySink:
        sink, rows = MemorySink(), [row for row in ROWS if ranks == 1 or row["rank"] == comm.rank]
        with declog.start(made, sinks=[sink], output_dir=folder, comm=comm) as log, log.step(0):
            columns = {name: [row[name] for row in rows] for name in ("score", "topic", "level", "solved", "group")}
            log.observe(**columns, text=[row["text"] for row in rows], step_name="a")
        return sink

    [(_, table)] = run_ranks(ranks, rank)[0].tables("t")
    return list(table.data["text"])


def by_python(filter: dict[str, Any], labels: Sequence[str], rows: Sequence[dict[str, Any]] = ROWS) -> list[str]:
    """The texts of the rows that a filter takes in each combination of labels."""
    rows = [row for row in rows if all(row[label] is not None for label in labels)]
    rows = [row for row in rows if "key" not in filter or row["score"] is not None]
    taken: set[str] = set()

    def key(row: dict[str, Any]) -> list[Any]:
        return [row[label] for label in labels]

    for _, inside in groupby(sorted(rows, key=key), key):
        part = list(inside)
        if "first" in filter:
            taken |= {row["text"] for row in part[: filter["first"]]}
        if "unique" in filter:
            taken |= {
                next(row for row in part if row["solved"] is value)["text"] for value in {r["solved"] for r in part}
            }
        top = sorted(part, key=lambda row: -row["score"])[: filter["top"]] if "top" in filter else []
        rest = sorted((row for row in part if row not in top), key=lambda row: row["score"] or 0)
        taken |= {row["text"] for row in [*top, *rest[: filter.get("bottom", 0)]]}
    return [row["text"] for row in ROWS if row["text"] in taken]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "choice", [{"key": "score", "bottom": 2}, {"key": "score", "top": 1, "bottom": 1}, {"first": 1}], ids=str
)
@pytest.mark.parametrize(
    ("within", "labels"),
    [
        ("topic", ["topic"]), ("level", ["level"]), ("solved", ["solved"]), (["topic", "level"], ["topic", "level"]),
        (["step", "topic"], ["topic"]), (["level", "group"], ["level", "group"]), (["solved", "window"], ["solved"]),
        ("step_name", []),
    ],
    ids=str,
)  # fmt: skip
def test_rows_of_each_label(
    within: str | list[str], labels: list[str], choice: dict[str, Any], ranks: int, tmp_path: Path
) -> None:
    """The class: each label, or combination of labels and words, is a choice of its own over the rows of all ranks."""
    assert chosen({**choice, "within": within}, tmp_path, ranks=ranks) == by_python(choice, labels)


def test_ranges_of_a_number_are_labels(tmp_path: Path) -> None:
    """An expression: two ranges, of which rows without a number have none."""
    expected = by_python({"first": 1}, ["high"], [{**row, "high": row["level"] and row["level"] > 2} for row in ROWS])
    assert chosen({"first": 1, "within": "bucket(level, 2)"}, tmp_path) == expected == ["0.0", "0.5"]


def test_distinct_rows_of_each_label(tmp_path: Path) -> None:
    """`unique` takes a value once in each label."""
    rows = [row for row in ROWS if row["solved"] is not None]
    expected = by_python({"unique": "solved"}, ["topic"], rows)
    assert chosen({"unique": "solved", "within": "topic"}, tmp_path) == expected == ["0.0", "0.2", "0.4"]


def test_random_rows_of_each_label(tmp_path: Path) -> None:
    """One row of each, whatever the ranks."""
    texts = chosen({"random": 1, "within": "topic"}, tmp_path)
    topics = [next(row["topic"] for row in ROWS if row["text"] == text) for text in texts]
    assert sorted(topics) == ["", "code", "größe", "math"]


def test_labels_in_a_chain_and_a_limit(tmp_path: Path) -> None:
    """The best of each topic, of these the worst of each level, and one of all."""
    filters = {"best": {"key": "score", "top": 1, "within": "topic"}}
    last = {"key": "score", "bottom": 1, "within": "level", "from": "best"}
    best = [row for row in ROWS if row["text"] in by_python(filters["best"], ["topic"])]
    assert chosen(last, tmp_path / "a", filters=filters) == by_python(last, ["level"], best) == ["0.0", "0.4"]
    assert chosen({**last, "limit": 1}, tmp_path / "b", filters=filters) == ["0.0"]


def test_groups_of_each_label(tmp_path: Path) -> None:
    """`take: group` takes a label per group, with all completions of the groups that are chosen."""
    best = {"take": "group", "key": "max(score, over=completion)", "top": 1, "within": "first(topic, over=completion)"}
    assert chosen(best, tmp_path) == ["0.2", "0.3", "1.2", "1.3"]


def test_a_signal_with_the_name_of_a_word_means_the_word(tmp_path: Path) -> None:
    """`group` is a signal here, too, of ints: those of two ranks are two groups though they are equal."""
    assert len(chosen({"first": 1, "within": "group"}, tmp_path)) == len({(row["rank"], row["group"]) for row in ROWS})


def test_rows_without_a_label_are_counted_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Over all ranks, also where the label is a text that stays on its rank; a row without two values counts once."""
    with caplog.at_level(logging.WARNING, logger="declog"):
        chosen({"key": "score", "top": 1, "within": ["topic", "level"]}, tmp_path)
    assert [record.getMessage() for record in caplog.records] == [
        "the table `t`: the filter `picked` leaves out rows without `score` or `topic and level`, 4 of them here "
        "(reported once)"
    ]


def test_only_candidates_of_each_label_send_their_texts() -> None:
    """Neither the column's text nor the label's is among those that a plan sends of all rows; and its words."""
    filter = {"first": 1, "within": ["step", "topic", "level"]}
    plan = declog.plan(scores(filter, schema=SCHEMA, signals=SIGNALS, sinks=["jsonl"]))
    assert not {name for phase in plan.phases.values() for name in phase.sent} & {"topic", "text"}
    [table] = described(plan)["tables"]
    assert table["words"].startswith("first n 1 within step and topic and level;")
