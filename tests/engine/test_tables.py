"""Tables: which rows filters take, against recorded cases and pandas."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import declog
from declog.runtime.ranks.comm import Comm
from declog.testing import MemorySink, run_ranks
from tests.running import rows, scores, tables_of

CASES = json.loads((Path(__file__).parents[1] / "data" / "samples.json").read_text(encoding="utf-8"))
# ---- recorded cases


def case_filter(case: Mapping[str, Any]) -> dict[str, Any]:
    """The filter of a recorded case."""
    kind = case.get("filter", "top_bottom")
    if kind == "top_bottom":
        return {"key": "score", "top": case["top"], "bottom": case["bottom"], "within": case["within"]}
    return {"where": case["where"]} if kind == "where" else {"first": 1000000}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_recorded_selections(case: dict[str, Any], tmp_path: Path) -> None:
    """What other systems pick from scores on one or more ranks."""
    given = [[math.nan if value == "nan" else value for value in one] for one in case["scores"]]
    made = scores(case_filter(case), axes={"group": {"of": "group"}})
    folders = [tmp_path / str(rank) for rank in range(len(given))]

    def rank(comm: Comm) -> MemorySink:
        values = {"score": given[comm.rank], "text": [f"{comm.rank}.{row}" for row in range(len(given[comm.rank]))]}
        if "groups" in case:
            values["group"] = case["groups"][comm.rank]
        sink = MemorySink()
        with declog.start(made, sinks=[sink], output_dir=folders[comm.rank], comm=comm) as log, log.step(0):
            log.observe(**values)
        return sink

    [(_, table)] = run_ranks(len(given), rank)[0].tables("t")
    texts = {f"{r}.{row}": value for r, one in enumerate(given) for row, value in enumerate(one)}
    assert table.rows == case.get("expect_rows", len(case.get("expect_scores", [])))
    assert [texts[text] for text in table.data["text"]] == list(table.data["score"])
    assert len(set(table.data["text"])) == table.rows
    if "expect_scores" in case:
        assert sorted(table.data["score"]) == case["expect_scores"]


# ---- kinds and scopes, against pandas

GENERATOR = np.random.default_rng(7)
STEPS = [
    [
        {"score": GENERATOR.normal(size=n), "group": GENERATOR.integers(0, 3, n),
         "text": [f"{s}.{b}.{i}" for i in range(n)]}
        for b, n in enumerate(sizes)
    ]
    for s, sizes in enumerate([(6, 4), (5, 7), (8, 3)])
]  # fmt: skip
FRAME = pd.DataFrame(
    [
        {"step": step, "batch": batch, "row": row, "score": score, "group": group, "text": text}
        for step, parts in enumerate(STEPS)
        for batch, part in enumerate(parts)
        for row, (score, group, text) in enumerate(zip(part["score"], part["group"], part["text"], strict=True))  # type: ignore[call-overload]
    ]
)
FRAME["window"] = FRAME.step // 2  # of two steps, and a tail
SCOPES = {
    "group": ["step", "batch", "group"], "batch": ["step", "batch"], "step": ["step"], "window": ["window"],
}  # fmt: skip


def by_pandas(filter: Mapping[str, Any]) -> list[list[str]]:
    """The texts of the rows that a filter takes, window by window."""
    frame = FRAME.query("score > -0.5") if "where" in filter else FRAME
    picked = []
    for _, part in frame.groupby(SCOPES[filter["within"]], sort=False):
        if "first" in filter:
            picked.append(part.head(filter["first"]))
        else:
            top = part.nlargest(filter.get("top", 0), "score")
            picked += [top, part.drop(top.index).nsmallest(filter.get("bottom", 0), "score")]
    chosen = pd.concat(picked).sort_index()
    if "limit" in filter:
        chosen = chosen.groupby("window").head(filter["limit"])
    return [part.text.tolist() for _, part in chosen.groupby("window")]


@pytest.mark.parametrize("within", ["group", "batch", "step", "window"])
@pytest.mark.parametrize("where", [{}, {"where": "score > -0.5"}], ids=["all", "where"])
@pytest.mark.parametrize("limit", [{}, {"limit": 3}], ids=["unlimited", "limit"])
@pytest.mark.parametrize(
    "choice",
    [{"key": "score", "top": 2, "bottom": 1}, {"key": "score", "bottom": 2},
     {"first": 2}],
    ids=["top and bottom", "bottom", "first"],
)  # fmt: skip
def test_selections_agree_with_pandas(
    choice: dict[str, Any], limit: dict[str, Any], where: dict[str, Any], within: str, tmp_path: Path
) -> None:
    """Rows come out in row order, from each scope of each window of two steps."""
    filter = choice | limit | where | {"within": within}
    found = tables_of(scores(filter, every=2, axes={"group": {"of": "group"}}), STEPS, tmp_path)
    assert [step for step, _ in found] == [1, 2]
    assert [list(table.data["text"]) for _, table in found] == by_pandas(filter)


def test_a_filter_filters_what_another_picked(tmp_path: Path) -> None:
    """`from:` runs the filter on the other's rows: the best of the first four of each step."""
    first = {"first": {"first": 4}}
    found = tables_of(scores({"key": "score", "top": 1, "from": "first"}, filters=first), STEPS, tmp_path)
    heads = [part.head(4) for _, part in FRAME.groupby("step")]
    assert [list(table.data["text"]) for _, table in found] == [[head.loc[head.score.idxmax()].text] for head in heads]


def test_random_rows_are_uniform_and_the_same_again(tmp_path: Path) -> None:
    """`random` takes n different rows of each scope, the same in each run, each row about as often."""
    values = [[{"score": np.arange(10.0), "text": [str(row) for row in range(10)]}] for _ in range(300)]
    picks = {}
    for name in ("once", "again"):
        found = tables_of(scores({"random": 3}), values, tmp_path / name)
        picks[name] = [tuple(table.data["text"]) for _, table in found]
    assert picks["once"] == picks["again"]
    assert {len(set(pick)) for pick in picks["once"]} == {3}
    counts = pd.Series([text for pick in picks["once"] for text in pick]).value_counts()
    assert len(counts) == 10
    assert float(((counts - 90) ** 2 / 90).sum()) < 35  # chi-squared of 9 degrees of freedom: p < 1e-4


def test_a_fraction_of_the_rows(tmp_path: Path) -> None:
    """`fraction` takes each row with its probability, none with 0 and all with 1."""
    values = [[{"score": np.arange(1000.0)}]]
    counts = {}
    for fraction in (0.0, 0.2, 1.0):
        found = tables_of(scores({"fraction": fraction}), values, tmp_path / str(fraction))
        counts[fraction] = found[0][1].rows if found else 0
    assert (counts[0.0], counts[1.0]) == (0, 1000)
    assert abs(counts[0.2] - 200) < 5 * math.sqrt(1000 * 0.2 * 0.8)


def test_rows_without_a_key_are_never_picked(tmp_path: Path) -> None:
    """A table that nothing is picked for is not written."""
    found = tables_of(scores({"key": "score", "top": 2}), [[{"score": [None, math.nan]}]], tmp_path)
    assert found == []


def test_a_selection_may_read_its_groups(tmp_path: Path) -> None:
    """Keys and conditions are expressions of the language, with aggregates over groups."""
    filter = {"where": "score == max(score, over=completion)"}
    made = scores(filter, axes={"group": {"size": 2}})
    [(_, table)] = tables_of(made, [[{"score": [1.0, 2.0, 5.0, 3.0], "text": list("abcd")}]], tmp_path)
    assert rows(table) == [{"score": 2.0, "text": "b"}, {"score": 5.0, "text": "c"}]


# ---- windows of tables


def test_a_table_has_a_window_of_its_own(tmp_path: Path) -> None:
    """`every` of a table collects rows over steps; the tail brings the rest."""
    found = tables_of(scores({"key": "score", "top": 1, "within": "window"}, every=1) | {
        "tables": {"t": {"schema": "s", "filter": "picked", "every": 2}}}, STEPS, tmp_path)  # fmt: skip
    best = [part.loc[part.score.idxmax()].text for _, part in FRAME.groupby("window")]
    assert [(step, list(table.data["text"])) for step, table in found] == [(1, [best[0]]), (2, [best[1]])]


def test_a_table_may_keep_the_last_batch_only(tmp_path: Path) -> None:
    """`keep: last_batch` is the last batch of the last step of the window."""
    found = tables_of(scores(None, keep="last_batch", every=2), STEPS, tmp_path)
    assert [list(table.data["text"]) for _, table in found] == [STEPS[1][1]["text"], STEPS[2][1]["text"]]
