"""Which rows are taken: by their ids on any number of ranks, through chains, without a key, exactly with a limit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import declog
from declog.errors import ConfigError
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink, run_ranks
from tests.conftest import examples
from tests.running import run, scores, tables_of

SCHEMA = {"text": {"type": "text"}, "score": {"type": "float"}}
Row = tuple[Any, float | None]  # an id, and a score


def on_ranks(made: dict[str, Any], ranks: Sequence[Sequence[Row]], folder: Path, *, steps: int = 1) -> list[list[str]]:
    """The texts of the table of one job, by step; a row's text is its id."""

    def rank(comm: Comm) -> MemorySink:
        sink = MemorySink()
        mine = ranks[comm.rank]
        with declog.start(made, sinks=[sink], output_dir=folder, comm=comm) as log:
            for step in range(steps):
                with log.step(step):
                    values = {"score": [score for _, score in mine], "text": [str(name) for name, _ in mine]}
                    log.observe(row=[name for name, _ in mine], **values)
        return sink

    return [list(table.data["text"]) for _, table in run_ranks(len(ranks), rank)[0].tables("t")]


def by_ids(filter: dict[str, Any], type: str, **others: Any) -> dict[str, Any]:
    return scores(filter, schema=SCHEMA, signals={"row": {"axis": "completion", "type": type}},
                  axes={"completion": {"ids": "row"}}, **others)  # fmt: skip


KINDS: list[dict[str, Any]] = [
    {"random": 2}, {"fraction": 0.4}, {"random": 3, "within": "window"},
    {"key": "score", "top": 2, "bottom": 2},
    {"random": 2, "where": "score >= 0"},
]  # fmt: skip


@examples(25, HealthCheck.function_scoped_fixture)
@given(
    table=st.lists(st.sampled_from([0.0, 1.0, -1.0]), min_size=1, max_size=10),
    splits=st.lists(st.integers(0, 2), min_size=10, max_size=10), shuffle=st.randoms(use_true_random=False),
    filter=st.sampled_from(KINDS), type=st.sampled_from(["int", "text"]),
)  # fmt: skip
def test_rows_with_ids_are_the_same_on_any_number_of_ranks_and_in_any_order(
    table: list[float], splits: list[int], shuffle: Any, filter: dict[str, Any], type: str, tmp_path: Path
) -> None:
    """`random`, `fraction` and ties go by the id."""
    rows: list[Row] = [(2**60 + place if type == "int" else f"é{place}", score) for place, score in enumerate(table)]
    made = by_ids(filter, type)
    alone = on_ranks(made, [rows], tmp_path, steps=2)
    shuffle.shuffle(rows)
    ranks: list[list[Row]] = [[], [], []]
    for row, rank in zip(rows, splits, strict=False):
        ranks[rank].append(row)
    spread = on_ranks(made, ranks, tmp_path, steps=2)
    assert [sorted(texts) for texts in spread] == [sorted(texts) for texts in alone]


def test_ties_break_by_id_and_without_ids_by_row(tmp_path: Path) -> None:
    """The ids are 3, 1, 2 and all scores are equal."""
    best = {"key": "score", "top": 1}
    rows: list[Row] = [(3, 0.5), (1, 0.5), (2, 0.5)]
    assert on_ranks(by_ids(best, "int"), [rows], tmp_path) == [["1"]]
    plain = scores(best, schema=SCHEMA, signals={"row": {"axis": "completion", "type": "int"}})
    assert on_ranks(plain, [rows], tmp_path) == [["3"]]


def test_ids_that_do_not_come_are_not_missed(tmp_path: Path) -> None:
    """Declared for joins and not observed with these rows: rows go by their place, and no step fails."""
    made = by_ids({"random": 2}, "int")
    values = [[{"score": [0.0, 1.0, 2.0], "text": list("abc")}]]
    plain = scores({"random": 2}, schema=SCHEMA)
    [(_, table)] = tables_of(made, values, tmp_path)
    [(_, expected)] = tables_of(plain, values, tmp_path)
    assert table.data == expected.data


def test_integer_keys_are_ordered_by_every_bit(tmp_path: Path) -> None:
    """As floats these three are equal; the smallest of all has no positive counterpart."""
    signals = {"number": {"axis": "completion", "type": "int"}}
    filter = {"key": "number", "top": 1, "bottom": 1}
    made = scores(filter, schema={"number": {"type": "int"}}, signals=signals)
    numbers = [2**62, None, 2**62 + 2, 2**62 + 1, -(2**63), -(2**63) + 1]
    [(_, table)] = tables_of(made, [[{"score": [0.0] * 6, "number": numbers}]], tmp_path)
    assert table.data == {"number": [2**62 + 2, -(2**63)]}


# ---- without a key


@pytest.mark.parametrize("kind", ["top_bottom", "unique", "unique text"])
def test_rows_without_a_key_are_counted_and_reported_once(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On ranks too, where a text that is the key stays on its rank."""
    filters: dict[str, dict[str, Any]] = {
        "top_bottom": {"key": "score", "top": 10},
        "unique": {"unique": "score"},
        "unique text": {"unique": "text"},
    }
    filter = filters[kind]  # fmt: skip
    made = scores(filter | {"where": "group == 1"}, schema={"score": {"type": "float"}})
    made["schemas"]["s"]["text"] = {"type": "text"}

    def rank(comm: Comm) -> MemorySink:
        sink = MemorySink()
        with declog.start(made, sinks=[sink], output_dir=tmp_path, comm=comm) as log:
            for step in range(2):
                with log.step(step):
                    present = [f"a{comm.rank}", "same", "same", None, None]
                    numbers = [comm.rank + 1.0, 0.0, 0.0, None, float("nan")]
                    log.observe(score=numbers, text=present, group=[1, 1, 1, 1, comm.rank])
        return sink

    with caplog.at_level(logging.WARNING, logger="declog"):
        tables = run_ranks(2, rank)[0].tables("t")
    counts = {"top_bottom": 6, "unique": 3, "unique text": 3}
    assert [table.rows for _, table in tables] == [counts[kind]] * 2
    ordered = filter.get("key") or filter["unique"]
    reported = [record.getMessage() for record in caplog.records]
    assert reported == [
        f"the table `t`: the filter `picked` leaves out rows without `{ordered}`, 3 of them here (reported once)"
    ]


# ---- chains and limits

CHAINS: dict[str, Any] = {
    "good": {"where": "score >= 0"},
    "few": {"key": "score", "top": 3, "within": "step", "from": "good", "where": "score < 9"},
    "one": {"unique": "text", "from": "few", "where": "len(text) > 0"},
}
SCORED = st.lists(
    st.tuples(st.sampled_from(["", "a", "b", "c"]), st.sampled_from([None, -1.0, 0.0, 1.0, 2.0, 9.0])), max_size=6
)


@examples(30, HealthCheck.function_scoped_fixture)
@given(ranks=st.lists(SCORED, min_size=1, max_size=3), limit=st.integers(1, 4))
def test_chains_on_any_ranks(ranks: list[list[Row]], limit: int, tmp_path: Path) -> None:
    """Each filter has a `where` of its own; what the last one takes is what a loop over the rows takes."""
    made = scores({"first": 9, "from": "one", "limit": limit}, schema=SCHEMA, filters=CHAINS,
                  signals={"row": {"axis": "completion", "type": "text"}}, run={"strict": False})  # fmt: skip
    every = [row for one in ranks for row in one]
    good = [(text, score) for text, score in every if score is not None and score >= 0]
    under = [row for row in good if row[1] < 9]
    best = sorted(range(len(under)), key=lambda place: (-under[place][1], place))[:3]
    named = [under[place][0] for place in sorted(best) if under[place][0]]
    expected = list(dict.fromkeys(named))[:limit]
    assert on_ranks(made, ranks, tmp_path) == ([expected] if expected else [])


def test_a_limit_is_total(tmp_path: Path) -> None:
    """Over all ranks, groups and steps of a window, the first in row order."""
    best = {"key": "score", "top": 1, "within": "group", "limit": 3}
    signals = {"row": {"axis": "completion", "type": "int"}}
    made = scores(best, schema=SCHEMA, signals=signals, axes={"group": {"of": "row"}}, every=2)
    rows: list[Row] = [(1, 0.0), (1, 1.0), (2, 2.0)]
    assert on_ranks(made, [rows, rows], tmp_path, steps=2) == [["1", "2", "1"]]


def test_what_another_phase_says_picks_on_every_rank(tmp_path: Path) -> None:
    """A condition of an earlier phase is known on rank 0 only: every row of a rank is a candidate."""
    made = scores(
        {"key": "kl", "top": 1, "where": "reward > 0"},
        schema={"answer": {"type": "text"}},
    )
    made["signals"] |= {
        "rollout": {"reward": "completion"},
        "update": {"kl": "completion", "answer": "completion text"},
    }

    def rank(comm: Comm) -> MemorySink:
        sink = MemorySink()
        with declog.start(made, sinks=[sink], output_dir=tmp_path, comm=comm) as log, log.step(0):
            log.observe(reward=[1.0, -1.0])
            log.observe(kl=[float(comm.rank), 9.0], answer=[f"{comm.rank}.0", f"{comm.rank}.1"])
        return sink

    [(_, table)] = run_ranks(2, rank)[0].tables("t")
    assert table.data == {"answer": ["1.0"]}


@pytest.mark.parametrize(
    ("filter", "message"),
    [({"first": 3, "fraction": 0.5}, "a filter chooses rows in one way, and this one has `first` and `fraction`"),
     ({"random": 3, "key": "score"}, "`key` is what `top` and `bottom` order by, and the filter has `random`"),
     ({"unique": "text", "top": 3}, "a filter chooses rows in one way, and this one has `top` and `unique`")],
    ids=str,
)  # fmt: skip
def test_a_filter_chooses_in_one_way(filter: dict[str, Any], message: str) -> None:
    """What is accepted is obeyed."""
    with pytest.raises(ConfigError) as caught:
        declog.plan(scores(filter))
    [problem] = caught.value.problems
    assert (problem.code, problem.message) == ("DL202", message)


def test_elementwise_columns_are_computed_for_picked_rows_only(tmp_path: Path) -> None:
    """A user's function of tensors sees one row of five."""
    import torch

    from declog.language.functions import DEFAULT, Functions

    functions = Functions(DEFAULT)
    seen: list[int] = []

    @declog.function(registry=functions)
    def doubled(x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "cpu":
            seen.append(len(x))
        return 2 * x

    schema = {"twice": {"type": "float", "expr": "doubled(score) + 1"}}
    made = scores({"key": "score", "top": 1}, schema=schema)

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(score=[0.0, 4.0, 3.0, 2.0, 1.0])

    [(_, table)] = run(made, body, tmp_path, functions=functions).tables("t")
    assert (table.data, seen) == ({"twice": [9.0]}, [1])
