"""An evaluation whose rows are no groups of `axes.group.size`: its ids say its groups, or it has none, told once.

The class: any number of rows, batches of several sizes, ranks of which one has whole groups, ids that contradict the
size, groups over ranks, all that reads groups (metrics, formulas, tables, filters), at first and later, after a resume.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import declog
from declog.runtime.ranks.comm import Comm
from declog.testing import MemorySink, run_ranks

CONFIG: dict[str, Any] = {
    "run": {"name": "groups"}, "modes": {"eval": {"prefix": "eval/"}},
    "signals": {"any": {"reward": "completion", "prompt": "completion text", "answer": "completion text"}},
    "metrics": {
        "reward": "mean", "solved": "mean(max(reward, over=completion))", "twice": {"formula": "2 * solved"},
        "spread": "mean(std(reward, over=completion))", "answers": "mean(distinct_n(answer, 1, over=completion))",
    },
    "tables": {
        "all": {"columns": ["reward"]}, "groups": {
            "columns": ["reward"], "filter": {"key": "mean(reward, over=completion)", "top": 1, "take": "group"}},
    },
}  # fmt: skip
TRAIN = {"solved": 1.0, "twice": 2.0, "spread": np.std([0, 1, 1, 1], ddof=1), "answers": 0.5}
Batches = Sequence[Sequence[int]]  # the prompts of the rows of each batch
# by case: the group axis, whether ids come, the batches of the two ranks, and the values per group
CASES: Mapping[str, tuple[dict[str, Any], bool, tuple[Batches, Batches], dict[str, float]]] = {
    "single samples": ({"size": 4}, False, ([range(5)], [range(7)]), {}),
    "one rank has whole groups": ({"size": 4}, False, ([range(8)], [range(7)]), {}),
    "the last batch is shorter": ({"size": 4}, False, ([range(8), range(3)], [range(8), range(3)]), {}),
    "single samples with ids": (
        {"size": 4, "of": "prompt"}, True, ([range(5)], [range(7)]),
        {"solved": 5 / 12, "twice": 5 / 6, "answers": 1.0}),
    "pairs": (
        {"size": 4, "of": "prompt"}, True, ([[0, 0, 1, 1]], [[2, 2, 3, 3, 4, 4]]),
        {"solved": 1.0, "twice": 2.0, "spread": 0.5**0.5, "answers": 1.0}),
    "pairs in a multiple of the size": (
        {"size": 4, "of": "prompt"}, True, ([[0, 0, 1, 1]], [[2, 2, 3, 3]]),
        {"solved": 1.0, "twice": 2.0, "spread": 0.5**0.5, "answers": 1.0}),
    "over batches": ({"size": 4, "split": "batches"}, False, ([range(2), range(3)], [range(2), range(2)]), {}),
}  # fmt: skip


def run(
    config: Any, ids: bool, batches: Sequence[Batches], folder: Path, *, steps: Sequence[int] = range(2),
    resume: Any = None,
) -> tuple[MemorySink, list[Any]]:  # fmt: skip
    """Steps of one whole group per rank, each with an evaluation; its rewards alternate between 0 and 1."""
    sink = MemorySink()
    states: list[Any] = [None] * len(batches)

    def rows(prompts: Sequence[int], rewards: Sequence[int]) -> dict[str, Any]:
        named = {"prompt": [f"p{prompt}" for prompt in prompts]} if ids else {}
        return {"reward": [float(one) for one in rewards], "answer": [f"a{one}" for one in rewards], **named}

    def body(comm: Comm) -> None:
        state = None if resume is None else resume[comm.rank]
        sinks = [sink] if comm.rank == 0 else [MemorySink()]
        with declog.start(config, comm=comm, sinks=sinks, output_dir=folder, resume=state) as log:
            for step in steps:
                with log.step(step):
                    log.observe(**rows([100 + comm.rank] * 4, [0, 1, 1, 1]))
                    with log.mode("eval"):
                        for prompts in batches[comm.rank]:
                            log.observe(**rows(prompts, [place % 2 for place in range(len(prompts))]))
            states[comm.rank] = log.state_dict()

    run_ranks(len(batches), body)
    return sink, states


@pytest.mark.parametrize("case", CASES)
def test_an_evaluation_has_the_groups_of_its_ids_or_none(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All else of its log event is there, what training has stays. Without ids one warning names what has no values.

    With ids nothing is told: groups of one have no std, which is no fault of their rows.
    """
    group, ids, batches, expected = CASES[case]
    config = {**CONFIG, "run": {**CONFIG["run"], "strict": True}, "axes": {"group": group}}
    rewards = [place % 2 for rank in batches for prompts in rank for place in range(len(prompts))]
    with caplog.at_level(logging.WARNING, logger="declog"):
        sink, states = run(config, ids, batches, tmp_path / "first")
        again, _ = run(config, ids, batches, tmp_path / "second", steps=[2, 3], resume=states)
    every = {**sink.scalars, **again.scalars}
    assert [*every] == [0, 1, 2, 3]
    for values in every.values():
        for name, value in TRAIN.items():
            assert values[name] == pytest.approx(value)
        assert values["eval/reward"] == pytest.approx(np.mean(rewards))
        found = {name: values[f"eval/{name}"] for name in TRAIN if f"eval/{name}" in values}
        assert found == pytest.approx(expected)
    absent = [name for name in TRAIN if name not in expected]
    told = [line for record in caplog.records if (line := record.getMessage()).startswith("eval: ")]
    assert len(told) == 2 * (not ids)  # once in each run
    for line in told:
        assert "rows cannot be grouped" in line and all(name in line for name in absent)


READERS: dict[str, Any] = {
    "rank": {"expr": "reward", "where": "rank(reward, within=group) >= 1"}, "index": "max(index(completion))",
    "size": "mean(size(completion))", "best": "mean(best_at(reward, 2))",
    "over": "mean(reward - mean(reward, over=completion))", "begins": "count(mean(reward, over=completion))",
}  # fmt: skip
FILTERS: dict[str, Any] = {
    "top": {"key": "reward", "top": 1, "within": "group"}, "bottom": {"key": "reward", "bottom": 1, "within": "group"},
    "random": {"random": 1, "within": "group"}, "first": {"first": 1, "within": "group"},
    "unique": {"unique": "answer", "within": "group"}, "ranked": {"where": "rank(reward, within=group) >= 1"},
    "chosen": {"first": 1, "take": "group"},
}  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("ids", [False, True])
def test_all_that_reads_groups_is_told(ids: bool, ranks: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each way to read groups: a table has no rows, a metric no value, and the warning has the number of them all."""
    tables = {name: {"columns": ["reward", "answer"], "filter": filter} for name, filter in FILTERS.items()}
    tables |= {"all": {"columns": ["reward"]}, "groups": {"rows": "group", "columns": ["mean"], "schema": "s"}}
    config = {
        **CONFIG, "tables": tables, "metrics": {"reward": "mean", **READERS},
        "schemas": {"s": {"mean": {"type": "float", "expr": "mean(reward, over=completion)"}}},
        "axes": {"group": {"size": 4, "of": "prompt"}},
    }  # fmt: skip
    batches = [[[0, 0, 0, 1, 1, 1]], [[2, 2, 2, 3, 3]]][:ranks]
    with caplog.at_level(logging.WARNING, logger="declog"):
        sink, _ = run(config, ids, batches, tmp_path)
    evaluations = [records for _, records in sink.events if records.mode == "eval"]
    assert len(evaluations) == 2
    for records in evaluations:
        names = {table.name.removeprefix("eval/") for table in records.tables}
        assert names == ({*tables} if ids else {"all"})
        scalars = {scalar.name.removeprefix("eval/") for scalar in records.scalars}
        assert scalars == ({"reward", *READERS} if ids else {"reward"})
    told = [line for record in caplog.records if (line := record.getMessage()).startswith("eval: ")]
    assert len(told) == (not ids)
    if not ids:
        assert f"rank, index, size, best and {len(READERS) - 4} more have no values" in told[0]
        assert f"the tables top, bottom, random, first and {len(tables) - 5} more can take no rows" in told[0]


@pytest.mark.parametrize("ids", [False, True])
def test_tables_of_such_an_evaluation(ids: bool, tmp_path: Path) -> None:
    """A table of rows has them all, and one of chosen groups those of ids, or none."""
    config = {**CONFIG, "axes": {"group": {"size": 4, "of": "prompt"}}}
    sink, _ = run(config, ids, [[[0, 0, 1]]], tmp_path, steps=[0])
    (evaluation,) = [records for _, records in sink.events if records.mode == "eval"]
    counts = {table.name: table.rows for table in evaluation.tables}
    assert counts["eval/all"] == 3 and counts.get("eval/groups", 0) == 2 * ids


def test_a_later_evaluation_is_told_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first has whole groups; the metrics are missing from the one that has none, and come again."""
    config = {**CONFIG, "axes": {"group": {"size": 4}}}
    with (
        caplog.at_level(logging.WARNING, logger="declog"),
        declog.start(config, sinks=[MemorySink()], output_dir=tmp_path) as log,
    ):
        missing = []
        for step, count in enumerate([8, 5, 3, 8]):
            with log.step(step):
                with log.mode("eval"):
                    log.observe(reward=[1.0] * count, answer=["a"] * count)
                log.observe(reward=[1.0] * 4, answer=["a"] * 4)
            log.flush(wait_s=60)
            missing.append(sorted(log.missing))
    names = sorted(TRAIN)
    assert missing == [[], names, names, []]
    (line,) = [line for record in caplog.records if (line := record.getMessage()).startswith("eval: ")]
    assert "has a batch of 5; observe whole groups" in line


def test_training_keeps_the_error(tmp_path: Path) -> None:
    """A batch of training that has no whole groups is a mistake, as before."""
    config = {**CONFIG, "run": {**CONFIG["run"], "strict": True}, "axes": {"group": {"size": 4}}}
    log = declog.start(config, sinks=[MemorySink()], output_dir=tmp_path)
    with log.step(0):
        log.observe(reward=[1.0] * 5, answer=["a"] * 5)
    with pytest.raises(declog.DeclogError, match="DL507"):
        log.close()


def test_training_without_ids(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where ids say what a group is and never come, a table within groups has no rows either, and is told of."""
    tables = {"all": {"columns": ["reward"]}, "first": {"columns": ["reward"], "filter": FILTERS["first"]}}
    config = {**CONFIG, "tables": tables, "metrics": {"reward": "mean"}, "axes": {"group": {"of": "prompt"}}}
    sink = MemorySink()
    with (
        caplog.at_level(logging.WARNING, logger="declog"),
        declog.start(config, sinks=[sink], output_dir=tmp_path) as log,
    ):
        for step in range(3):
            with log.step(step):
                log.observe(reward=[1.0] * 4)
    assert {table.name for _, records in sink.events for table in records.tables} == {"all"}
    (line,) = [line for record in caplog.records if "nothing says" in (line := record.getMessage())]
    assert line.startswith("the table first can take no rows: nothing says what a group is: observe prompt, or say")
