"""What a row is: a completion, a group, or a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import declog
from declog.errors import ConfigError
from declog.records import Table
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink, run_ranks
from tests.conftest import examples
from tests.running import profile, rows, run

SIGNALS: dict[str, Any] = {
    "reward": {"axis": "completion"}, "prompt": {"axis": "completion", "type": "text"},
    "id": {"axis": "completion", "type": "int"}, "loss": {"axis": "step"},
    "note": {"axis": "step", "type": "text"},
    "hint": {"axis": "group", "type": "text"},
}  # fmt: skip
GROUPS: dict[str, Any] = {
    "step": {"type": "int", "expr": "step"},
    "prompt": {"type": "text", "expr": "first(prompt, over=completion)"},
    "last": {"type": "text", "expr": "last(prompt, over=completion)"},
    "mean": {"type": "float", "expr": "mean(reward, over=completion)"},
    "size": {"type": "int", "expr": "size(completion)"},
    "step_mean": {"type": "float", "expr": "mean(mean(reward, over=completion), over=group)"},
}
BEST = {"key": "mean(reward, over=completion)", "top": 1, "within": "step"}


def groups(filter: dict[str, Any] | None = None, split: str = "none", **others: Any) -> dict[str, Any]:
    chosen = {} if filter is None else {"filter": "picked"}
    filters = {} if filter is None else {"picked": filter}
    return profile(
        SIGNALS, axes={"group": {"of": "id", "split": split}}, filters=filters, schemas={"s": GROUPS},
        tables={"t": {"rows": "group", "schema": "s", **chosen}}, **others,
    )  # fmt: skip


def test_one_row_per_group(tmp_path: Path) -> None:
    """Columns per group or coarser, text through the first or last of its completions."""

    def body(log: Recorder) -> None:
        with log.step(4):
            log.observe(reward=[1.0, 5.0, 3.0, 7.0], prompt=["a", "b", "c", "d"], id=[7, 9, 7, 9])
            log.observe(reward=[0.0], prompt=["e"], id=[7])

    [(_, table)] = run(groups(), body, tmp_path).tables("t")
    assert rows(table) == [
        {"step": 4, "prompt": "a", "last": "c", "mean": 2.0, "size": 2, "step_mean": 8 / 3},
        {"step": 4, "prompt": "b", "last": "d", "mean": 6.0, "size": 2, "step_mean": 8 / 3},
        {"step": 4, "prompt": "e", "last": "e", "mean": 0.0, "size": 1, "step_mean": 8 / 3},
    ]


def test_a_group_without_a_text_has_a_null(tmp_path: Path) -> None:
    """As every column that is not required."""
    made = groups()
    made["schemas"]["s"] = {"prompt": GROUPS["prompt"]}

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(reward=[1.0, 5.0, 3.0], prompt=[None, "b", None], id=[7, 9, 9])

    [(_, table)] = run(made, body, tmp_path).tables("t")
    assert table.data == {"prompt": [None, "b"]}


def test_one_row_per_batch(tmp_path: Path) -> None:
    """`rows: step`: what a signal per step has values of, one per batch and rank; filters pick among those."""
    schema = {
        "step": {"type": "int", "expr": "step"}, "rank": {"type": "int", "expr": "rank"}, "loss": {"type": "float"},
        "note": {"type": "text"},
        "best": {"type": "float", "expr": "max(max(reward, over=completion), over=group)"},
    }  # fmt: skip
    made = profile(
        SIGNALS, axes={"group": {"of": "id"}}, schemas={"s": schema},
        filters={"high": {"key": "loss", "top": 2, "within": "window"}},
        tables={"t": {"rows": "step", "schema": "s"}, "high": {"rows": "step", "schema": "s", "filter": "high"}},
        every=2,
    )  # fmt: skip

    def rank(comm: Comm) -> MemorySink:
        sink = MemorySink()
        with declog.start(made, sinks=[sink], output_dir=tmp_path, comm=comm) as log:
            for step in range(2):
                with log.step(step):
                    for batch in range(2):
                        loss = 100.0 * step + 10.0 * batch + comm.rank
                        note = {"note": f"{loss}"} if comm.rank else {}
                        log.observe(reward=[loss, -loss], prompt=["p", "q"], id=[0, 1], loss=loss, **note)
        return sink

    sink = run_ranks(2, rank)[0]
    [(_, table)] = sink.tables("t")
    assert [(row["step"], row["rank"], row["loss"], row["note"], row["best"]) for row in rows(table)] == [
        (step, rank, 100.0 * step + 10 * batch + rank, f"{100.0 * step + 10 * batch + rank}" if rank else None,
         100.0 * step + 11)  # of the step's rows on all ranks
        for step in range(2) for batch in range(2) for rank in range(2)
    ]  # fmt: skip
    assert [row["loss"] for _, table in sink.tables("high") for row in rows(table)] == [110.0, 111.0]


@pytest.mark.parametrize("split", ["none", "ranks"])
def test_texts_of_groups_come_from_the_rank_that_has_them(split: str, tmp_path: Path) -> None:
    """Also of groups that are spread over ranks, where the first completion is the lowest rank's."""
    made = groups(BEST | {"bottom": 1}, split)

    def rank(comm: Comm) -> MemorySink:
        sink = MemorySink()
        with declog.start(made, sinks=[sink], output_dir=tmp_path, comm=comm) as log, log.step(0):
            ids = [0, 1, 2] if split == "ranks" else [3 * comm.rank + row for row in range(3)]
            rewards = [comm.rank - 1.0, comm.rank + 10.0, 3.0]
            log.observe(reward=rewards, prompt=[f"{comm.rank}.{row}" for row in range(3)], id=ids)
        return sink

    [(_, table)] = run_ranks(2, rank)[0].tables("t")
    expected = {"none": ["0.0", "1.1"], "ranks": ["0.0", "0.1"]}[split]
    assert table.data["prompt"] == expected


ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.one_of(st.integers(-2, 2).map(float), st.none())), min_size=1, max_size=8
)


@examples(30, HealthCheck.function_scoped_fixture)
@given(given_rows=st.lists(ROWS, min_size=1, max_size=3), side=st.sampled_from(["top", "bottom"]), n=st.integers(1, 2))
def test_the_best_groups_on_any_ranks_agree_with_pandas(
    given_rows: list[list[tuple[int, float | None]]], side: str, n: int, tmp_path: Path
) -> None:
    """By the mean of a group's rewards, ties by row; a group without any reward is never picked."""
    made = groups({**BEST, "top": 0, side: n}, run={"strict": False})
    made["schemas"]["s"] = {"prompt": GROUPS["prompt"]}

    def rank(comm: Comm) -> MemorySink:
        sink = MemorySink()
        mine = given_rows[comm.rank]
        with declog.start(made, sinks=[sink], output_dir=tmp_path, comm=comm) as log, log.step(0):
            log.observe(
                reward=[reward for _, reward in mine], id=[10 * comm.rank + group for group, _ in mine],
                prompt=[f"{comm.rank}.{row}" for row in range(len(mine))],
            )  # fmt: skip
        return sink

    frame = pd.DataFrame(
        [(10 * r + group, reward, f"{r}.{row}") for r, one in enumerate(given_rows)
         for row, (group, reward) in enumerate(one)], columns=["id", "reward", "prompt"],
    )  # fmt: skip
    means = frame.groupby("id", sort=False).agg(mean=("reward", "mean"), prompt=("prompt", "first"))
    means = means[means["mean"].notna()].reset_index(drop=True)
    order = means.sort_values("mean", ascending=side == "bottom", kind="stable").index[:n]
    expected = means.prompt[sorted(order)].tolist()
    found = [table.data["prompt"] for _, table in run_ranks(len(given_rows), rank)[0].tables("t")]
    assert found == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("change", "code", "message", "fix"),
    [
        ({"schemas": {"s": {"reward": {"type": "float"}}}}, "DL310",
         "the column `reward` is per completion; a row is a group", 'reward: {expr: "mean(reward, over=completion)"}'),
        ({"schemas": {"s": {"prompt": {"type": "text"}}}}, "DL310",
         "the column `prompt` is per completion; a row is a group", 'prompt: {expr: "first(prompt, over=completion)"}'),
        ({"filters": {"picked": {"where": "reward > 0"}}}, "DL310",
         "filters.picked.where is per completion, and a row of the table `t` is a group",
         'a filter with `where: "any(reward > 0, over=completion)"`'),
        ({"filters": {"picked": BEST | {"within": "group"}}}, "DL310",
         "filters.picked chooses within a group, and a row of the table `t` is a group",
         "a filter with `within: step`"),
        ({"schemas": {"s": {"size": GROUPS["size"], "extra": {"undeclared": "keep"}}}}, "DL310",
         "columns of log_extra are per completion; a row is a group", "undeclared: drop, or a schema of its own"),
        ({"axes": {}, "schemas": {"s": {"step": GROUPS["step"]}}, "filters": {"picked": {"first": 1000000}}}, "DL306",
         "`rows: group`, and this config does not say what a group is",
         "set `axes.group: {size: N}` or `{of: SIGNAL}`"),
        ({"tables": {"t": {"rows": "step", "schema": "s"}}, "schemas": {"s": {"mean": GROUPS["mean"]}}}, "DL310",
         "the column `mean` is per group; a row is a batch",
         'expr: "mean(mean(reward, over=completion), over=group)"'),
    ],
    ids=["column", "text", "filter", "within", "extra", "no groups", "step"],
)  # fmt: skip
def test_what_is_finer_than_a_row_is_refused(change: dict[str, Any], code: str, message: str, fix: str) -> None:
    """At the column or the filter, with what to write."""
    with pytest.raises(ConfigError) as caught:
        declog.plan({**groups(BEST), **change})
    [found] = caught.value.problems
    assert (found.code, found.message, found.fix) == (code, message, fix)


def test_a_filter_of_groups_may_pick_completions(tmp_path: Path) -> None:
    """A coarser value repeats over the rows: every completion of the best group."""
    made = groups({"where": "mean(reward, over=completion) > 3"})
    made["schemas"]["s"] = {"reward": {"type": "float"}, "first": GROUPS["prompt"], "prompt": {"type": "text"}}
    made["tables"]["t"]["rows"] = "completion"

    def rank(comm: Comm) -> list[tuple[int, Table]]:
        sink = MemorySink()
        with declog.start(made, sinks=[sink], output_dir=tmp_path, comm=comm) as log, log.step(0):
            log.observe(reward=[1.0, 5.0 * comm.rank, 3.0], prompt=["a", "b", "c"], id=[7, 9, 9])
        return sink.tables("t")

    [(_, table)] = run_ranks(2, rank)[0]
    assert table.data == {"reward": [5.0, 3.0], "first": ["b", "b"], "prompt": ["b", "c"]}
