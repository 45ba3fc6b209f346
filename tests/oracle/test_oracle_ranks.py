"""What a selection promises on many ranks: the same rows as on one, each once, and texts of candidates only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import declog
from declog.runtime.ranks.comm import Comm
from declog.testing import MemorySink, run_ranks
from tests.running import CountingComm, rows, scores

Row = Mapping[str, Any]
Rows = list[dict[str, Any]]


def logged(made: Mapping[str, Any], parts: Sequence[Sequence[Row]], folder: Path) -> tuple[list[Rows], int]:
    """The table's rows at each log event, where rank r has the rows ``parts[r]`` in each of two steps.

    And the bytes of the longest message.
    """

    def rank(comm: Comm) -> tuple[MemorySink, list[int]]:
        sink, counting = MemorySink(), CountingComm(comm)
        with declog.start(made, sinks=[sink], output_dir=folder, comm=counting) as log:
            for step in range(2):
                with log.step(step):
                    mine = [{**row, "text": f"{row['text']}@{step}"} for row in parts[comm.rank]]
                    log.observe(**{name: [row[name] for row in mine] for name in ("score", "id", "text")})
        return sink, counting.sent

    ranks = run_ranks(len(parts), rank)
    longest = max((size for _, sent in ranks for size in sent), default=0)
    return [rows(table) for _, table in ranks[0][0].tables("t")], longest


def table(filter: Mapping[str, Any] | None) -> dict[str, Any]:
    """A profile with one table; completions have ids."""
    ids = {"id": {"axis": "completion", "type": "int"}}
    return scores(filter, signals=ids, axes={"completion": {"ids": "id"}})


GENERATOR = np.random.default_rng(3)
EVERYONE: list[dict[str, Any]] = [
    {"score": float(score), "id": 1000 + place, "text": f"c{place}"}
    for place, score in enumerate(GENERATOR.integers(0, 6, 24))
]


def dealt(ranks: int) -> list[Sequence[Row]]:
    """The same 24 rows, dealt to ranks in turn."""
    return [EVERYONE[rank::ranks] for rank in range(ranks)]


def test_top_1_and_bottom_1_of_four_ranks_are_the_two_rows_of_all(tmp_path: Path) -> None:
    """Not two of each rank; among equals those of the smallest ids."""
    picked, _ = logged(table({"key": "score", "top": 1, "bottom": 1}), dealt(4), tmp_path)
    top = max(EVERYONE, key=lambda row: (row["score"], -row["id"]))
    bottom = min(EVERYONE, key=lambda row: (row["score"], row["id"]))
    for step in range(2):
        assert sorted(row["text"] for row in picked[step]) == sorted(f"{row['text']}@{step}" for row in (top, bottom))


@pytest.mark.parametrize(
    "filter",
    [
        {"key": "score", "top": 3, "bottom": 4},
        {"random": 5},
        {"fraction": 0.4},
        {"where": "score > 3"},
    ],
    ids=str,
)
def test_rows_with_ids_are_picked_alike_on_any_number_of_ranks(filter: dict[str, Any], tmp_path: Path) -> None:
    """Also where keys tie: 24 rows have six different scores."""
    found = {}
    for ranks in (1, 2, 3, 8):
        phases, _ = logged(table(filter), dealt(ranks), tmp_path / str(ranks))
        found[ranks] = [sorted(row["text"] for row in phase) for phase in phases]
    assert found[1] == found[2] == found[3] == found[8]
    assert all(len(phase) >= 5 for phase in found[1])


def test_one_sample_is_logged_once(tmp_path: Path) -> None:
    """Where top and bottom both ask for it, and where no other rank has one."""
    parts: list[list[Row]] = [[], [{"score": 0.5, "id": 1, "text": "only"}], []]
    filter = {"key": "score", "top": 2, "bottom": 2, "within": "step"}
    picked, _ = logged(table(filter), parts, tmp_path)
    assert picked == [[{"score": 0.5, "text": f"only@{step}"}] for step in range(2)]


def test_a_missing_key_is_never_picked_on_any_rank(tmp_path: Path) -> None:
    """Not even where nothing else is there."""
    missing: list[Row] = [
        {"score": score, "id": place, "text": "none"} for place, score in enumerate((math.nan, None, math.nan))
    ]
    parts: list[Sequence[Row]] = [missing, [*missing[:1], {"score": -math.inf, "id": 9, "text": "one"}]]
    filter = {"key": "score", "top": 5, "bottom": 5}
    picked, _ = logged(table(filter), parts, tmp_path / "a")
    assert [[row["text"] for row in phase] for phase in picked] == [["one@0"], ["one@1"]]
    assert logged(table(filter), [missing, missing], tmp_path / "b")[0] == []


def test_only_candidates_send_their_texts(tmp_path: Path) -> None:
    """The message of a rank holds the texts of the rows that may be picked, not of all."""
    long: list[list[Row]] = [[{**row, "text": "x" * 10_000} for row in part] for part in dealt(2)]
    picking = {"key": "score", "top": 1, "bottom": 1}
    _, few = logged(table(picking), long, tmp_path / "a")
    _, all_of_them = logged(table({"first": 1000000}), long, tmp_path / "b")
    assert few < 2 * 10_000 + 3_000
    assert all_of_them > 12 * 10_000
