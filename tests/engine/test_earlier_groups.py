"""The rows of a later phase have the groups that they have in the rollout, however they come.

The class: micro-batches in any order, ids of rows or one batch in the same order, groups by size or by ids that only
the rollout has, groups that micro-batches split, ranks, windows, a resume; and conditions, labels and weights of the
rollout's groups for the later phase's. A group that goes on where `axes.group.split` says none does is told once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import declog
from declog.engine.row_ids import RowsById
from declog.runtime.ranks.comm import Comm
from declog.testing import MemorySink, run_ranks

PROMPTS = ["a", "a", "b", "b", "c", "c"]
REWARD = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0]
ADVANTAGES = np.array([1.0, -1.0, 4.0, 5.0, -7.0, 2.0])
CONFIG: dict[str, Any] = {
    "run": {"name": "groups", "strict": True}, "axes": {"completion": {"ids": "row"}},
    "signals": {
        "any": {"row": "completion int"}, "rollout": {"reward": "completion", "prompt": "completion text"},
        "update": {"advantages": "completion"},
    },
    "metrics": {"best": "mean(max(advantages, over=completion))", "spread": "mean(std(advantages, over=completion))"},
    "tables": {"all": {"columns": ["advantages"]}},
}  # fmt: skip
ORDERS: Mapping[str, Sequence[Sequence[int]]] = {
    "as they are": [range(6)], "shuffled": [[5, 0, 2, 1, 4, 3]], "micro-batches": [[0, 1, 2], [3, 4, 5]],
    "shuffled micro-batches": [[4, 0, 3], [1, 5, 2]], "one by one": [[row] for row in [3, 1, 5, 0, 2, 4]],
    "of several sizes": [[2], [0, 4, 1, 5], [3]],
}  # fmt: skip


def observe(log: Any, batches: Sequence[Sequence[int]], *, ids: bool = True, offset: float = 0.0) -> None:
    """One step's calls: the rollout's in one batch, the update's in these."""

    def rows(batch: Sequence[int]) -> dict[str, Any]:
        return {"row": [*batch]} if ids else {}

    log.observe(reward=REWARD, prompt=PROMPTS, **rows(range(6)))
    for batch in batches:
        log.observe(advantages=(ADVANTAGES + offset)[list(batch)], **rows(batch))


def expected(values: Any) -> dict[str, float]:
    """The metrics of ``CONFIG``, by hand: each pair of rows is a group."""
    pairs = np.reshape(values, (-1, 2))
    return {"best": pairs.max(1).mean(), "spread": pairs.std(1, ddof=1).mean()}


@pytest.mark.parametrize("group", [{"size": 2}, {"of": "prompt"}, {"size": 2, "of": "prompt"}])
@pytest.mark.parametrize("order", ORDERS)
def test_rows_have_the_groups_of_the_rollout(order: str, group: dict[str, Any], tmp_path: Path) -> None:
    """Also where these groups are spread over micro-batches, if the config says so; a table says which group it is."""
    config = {**CONFIG, "axes": {**CONFIG["axes"], "group": {**group, "split": "batches"}}}
    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log:
        for step in range(2):
            with log.step(step):
                observe(log, ORDERS[order], offset=step)
    for step in range(2):
        assert sink.scalars[step] == pytest.approx(expected(ADVANTAGES + step))
    ((_, table), _) = sink.tables("all")
    assert table.places is not None and table.places.group is not None
    values = dict(zip(table.data["advantages"], table.places.group, strict=True))
    groups = [values[value] for value in ADVANTAGES]
    assert groups[::2] == groups[1::2] and len({*groups}) == 3


def test_without_ids_one_batch_is_matched_by_position(tmp_path: Path) -> None:
    """As all values of the rollout are."""
    config = {**CONFIG, "axes": {**CONFIG["axes"], "group": {"of": "prompt"}}}
    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        observe(log, [range(6)], ids=False)
    assert sink.scalars[0] == pytest.approx(expected(ADVANTAGES))


def test_rows_that_no_id_matches_have_groups_of_the_size(tmp_path: Path) -> None:
    """Micro-batches of whole groups need no ids, also beside steps that have them, in one window."""
    config = {**CONFIG, "every": 2, "axes": {**CONFIG["axes"], "group": {"size": 2}}}
    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log:
        for step, (batches, ids) in enumerate([([[0, 1], [2, 3, 4, 5]], False), ([[5, 0, 2, 1, 4, 3]], True)]):
            with log.step(step):
                observe(log, batches, ids=ids)
    assert sink.scalars[1] == pytest.approx(expected(ADVANTAGES))


@pytest.mark.parametrize("resumed", [False, True])
def test_on_ranks_in_windows_and_after_a_resume(resumed: bool, tmp_path: Path) -> None:
    """A window of three steps, which a checkpoint cuts; each rank has its own rows with the same ids."""
    config = {**CONFIG, "every": 3, "axes": {**CONFIG["axes"], "group": {"size": 2, "split": "batches"}}}
    sinks, states = [MemorySink(), MemorySink()], {}

    def part(steps: Sequence[int], sink: MemorySink, resume: Mapping[int, Any] | None, folder: Path) -> None:
        def body(comm: Comm) -> None:
            state = None if resume is None else resume[comm.rank]
            own = sink if comm.rank == 0 else MemorySink()
            with declog.start(config, comm=comm, sinks=[own], output_dir=folder, resume=state) as log:
                for step in steps:
                    with log.step(step):
                        observe(log, ORDERS["shuffled micro-batches"], offset=10 * step + 100 * comm.rank)
                states[comm.rank] = log.state_dict()

        run_ranks(2, body)

    part(range(2 if resumed else 3), sinks[0], None, tmp_path / "first")
    if resumed:
        part([2], sinks[1], {**states}, tmp_path / "second")
    values = [ADVANTAGES + 10 * step + 100 * rank for step in range(3) for rank in range(2)]
    assert sinks[resumed].scalars[2] == pytest.approx(expected(np.concatenate(values)))


CLAUSES: Mapping[str, tuple[str, dict[str, float]]] = {
    "where": ("mean(reward, over=completion) < 1", {"best": (1 + 5) / 2}),
    "by": ("mean(reward, over=completion) < 1", {"best/true": (1 + 5) / 2, "best/false": 2.0}),
    "weight": ("mean(reward, over=completion)", {"best": (1 * 0.5 + 2 * 1) / 1.5}),
}


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("clause", CLAUSES)
def test_a_clause_of_the_rollouts_groups(clause: str, ids: bool, tmp_path: Path) -> None:
    """A value per group of the rollout is one for each group of a later phase, too."""
    text, values = CLAUSES[clause]
    best = {"expr": "max(advantages, over=completion)", clause: text}
    config = {
        **CONFIG, "metrics": {"best": best}, "axes": {**CONFIG["axes"], "group": {"size": 2}},
    }  # fmt: skip
    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        observe(log, [range(6)], ids=ids)
    assert sink.scalars[0] == pytest.approx(values)


SPLIT: Mapping[str, tuple[str, Sequence[Sequence[Any]], bool]] = {
    "goes on": ("none", [["a", "a", "b"], ["b", "c", "c"]], True),
    "goes on, and is said": ("batches", [["a", "a", "b"], ["b", "c", "c"]], False),
    "whole groups": ("none", [["a", "a"], ["b", "b", "c", "c"]], False),
    "numbers within a batch": ("none", [[0, 0, 1, 1], [0, 0, 1, 1]], False),
    "one group a batch, numbered": ("none", [[0, 0], [0, 0]], False),
    "one group in two batches": ("none", [["a", "a"], ["a", "a"], ["b", "b"], ["b", "b"]], True),
}


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("case", SPLIT)
def test_a_group_that_goes_on_is_told_once(
    case: str, mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It counts as two, and nothing else says so; numbers that begin anew in each batch are no such ids."""
    split, batches, told = SPLIT[case]
    config = {
        "run": {"name": "split"}, "modes": {"eval": {"prefix": "eval/"}},
        "axes": {"group": {"of": "id", "split": split}},
        "signals": {"any": {"reward": "completion", "id": f"completion {'text' if 'a' in batches[0] else 'int'}"}},
        "metrics": {"solved": "mean(max(reward, over=completion))"},
    }  # fmt: skip
    with (
        caplog.at_level(logging.WARNING, logger="declog"),
        declog.start(config, sinks=[MemorySink()], output_dir=tmp_path) as log,
    ):
        for step in range(2):
            with log.step(step), log.mode(mode):
                for ids in batches:
                    log.observe(reward=[1.0] * len(ids), id=ids)
    lines = [line for record in caplog.records if "go on" in (line := record.getMessage())]
    assert lines == told * [
        "solved: group ids go on in the next batch of the step, where they count as further groups: say "
        "`axes.group.split: batches` if those rows are of one group"
    ]


def test_a_group_that_goes_on_on_the_next_rank_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a sampler may deal the completions of a prompt to two ranks."""
    config = {
        "run": {"name": "split"}, "axes": {"group": {"of": "id"}},
        "signals": {"any": {"reward": "completion", "id": "completion text"}},
        "metrics": {"solved": "mean(max(reward, over=completion))"},
    }  # fmt: skip

    def body(comm: Comm) -> None:
        with declog.start(config, comm=comm, sinks=[MemorySink()], output_dir=tmp_path) as log, log.step(0):
            log.observe(reward=[1.0] * 3, id=[["a", "a", "b"], ["b", "c", "c"]][comm.rank])

    with caplog.at_level(logging.WARNING, logger="declog"):
        run_ranks(2, body)
    (line,) = [line for record in caplog.records if "go on" in (line := record.getMessage())]
    assert "on the next rank" in line and "`axes.group.split: ranks`" in line


@pytest.mark.parametrize("ids_of_groups", [False, True])
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("order", ORDERS)
def test_rows_with_ids_need_no_split(order: str, epochs: int, ids_of_groups: bool, tmp_path: Path) -> None:
    """Row ids say the group however micro-batches divide it, also beside ids of groups; each epoch has its own."""
    config = {**CONFIG, "axes": {**CONFIG["axes"], "group": {"of": "prompt"}}, "tables": {}}
    config["signals"] = {**CONFIG["signals"], "any": {"row": "completion int", "prompt": "completion text"}}
    config["signals"]["rollout"] = {"reward": "completion"}
    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(reward=REWARD, prompt=PROMPTS, row=[*range(6)])
        for epoch in range(epochs):
            for batch in ORDERS[order]:
                rows = list(batch)
                of_group = {"prompt": [PROMPTS[row] for row in rows]} if ids_of_groups else {}
                log.observe(advantages=(ADVANTAGES + 7 * epoch)[rows], row=rows, **of_group)
    values = np.concatenate([ADVANTAGES + 7 * epoch for epoch in range(epochs)])
    assert sink.scalars[0] == pytest.approx(expected(values))


@pytest.mark.parametrize("order", ORDERS)
def test_groups_that_micro_batches_divide_are_told_without_row_ids(
    order: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ids of groups alone do not say whether rows of two batches are of one group: the rollout's groups have more."""
    signals = {"any": {"prompt": "completion text"}, "rollout": {"reward": "completion"},
               "update": {"advantages": "completion"}}  # fmt: skip
    config = {**CONFIG, "signals": signals, "axes": {"group": {"of": "prompt"}}, "tables": {}}
    with (
        caplog.at_level(logging.WARNING, logger="declog"),
        declog.start({**config, "run": {"name": "groups"}}, sinks=[MemorySink()], output_dir=tmp_path) as log,
    ):
        for step in range(2):
            with log.step(step):
                log.observe(reward=REWARD, prompt=PROMPTS)
                for rows in map(list, ORDERS[order]):
                    log.observe(advantages=ADVANTAGES[rows], prompt=[PROMPTS[row] for row in rows])
    lines = [line for record in caplog.records if "`axes.group.split: batches`" in (line := record.getMessage())]
    divided = any(len(rows) % 2 or {row ^ 1 for row in rows} != {*rows} for rows in map(list, ORDERS[order]))
    assert len(lines) == divided


@pytest.mark.parametrize("split", ["none", "batches"])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [1, 0, 3, 2], [0, 2, 1, 3], [3, 1, 2, 0]])
def test_rows_in_another_order_than_their_numbers_are_told_where_groups_have_one_size(
    order: Sequence[int], split: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As generations come that end at different times; what is said, pasted, gives the groups of their numbers."""
    reward = [1.0, 1.0, 0.0, 0.0]

    def best(overrides: Sequence[str], **ids: Any) -> float:
        sink = MemorySink()
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        lines = ["metrics.best=max(reward, over=completion)", *overrides]
        with declog.start("grpo", lines, sinks=[sink], output_dir=folder) as log:
            for step in range(2):
                with log.step(step):
                    for rows in [[row] for row in order] if split == "batches" else [order]:
                        of_rows = {name: [values[row] for row in rows] for name, values in ids.items()}
                        log.observe(reward=[reward[row] for row in rows], row_id=list(rows), **of_rows)
        return sink.scalars[1]["best"]

    with caplog.at_level(logging.WARNING, logger="declog"):
        value = best(["axes.group.size=2", f"axes.group.split={split}"])
    lines = [line for record in caplog.records if "numbers them in another" in (line := record.getMessage())]
    assert (len(lines), value) == ((0, 0.5) if {*order[:2]} in ({0, 1}, {2, 3}) else (1, 1.0))
    assert all("`prompt_id=row_id // 2`, with `axes: {group: {size: null, split: batches}}`" in line for line in lines)
    assert best(["axes.group.size=null", "axes.group.split=batches"], prompt_id=[row // 2 for row in range(4)]) == 0.5


def test_micro_batches_look_up_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of the rollout are read once for a join, however many micro-batches ask for them."""
    count, epochs, asked = 60, 3, list[int]()
    init = RowsById.__init__

    def counted(rows: RowsById, ids: Any, of: Any) -> None:
        asked.append(len(ids))
        init(rows, ids, of)

    monkeypatch.setattr(RowsById, "__init__", counted)
    config = {
        **CONFIG, "tables": {}, "axes": {**CONFIG["axes"], "group": {"size": 2}},
        "metrics": {"good": {"expr": "advantages", "where": "reward > 0"}, "best": CONFIG["metrics"]["best"]},
    }  # fmt: skip
    random, sink = np.random.default_rng(0), MemorySink()
    reward, advantages = random.normal(size=2 * count), random.normal(size=(epochs, 2 * count))
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(reward=reward, prompt=["a"] * 2 * count, row=np.arange(2 * count))
        for epoch in range(epochs):
            for rows in random.permutation(2 * count).reshape(count, 2):
                log.observe(advantages=advantages[epoch, rows], row=rows)
    assert sink.scalars[0]["good"] == pytest.approx(advantages[:, reward > 0].mean())
    assert sink.scalars[0]["best"] == pytest.approx(advantages.reshape(epochs, count, 2).max(2).mean())
    assert asked and sum(asked) <= 6 * 2 * count


@pytest.mark.parametrize("row_ids", [False, True])
def test_a_later_phases_group_that_goes_on_on_the_next_rank_is_told(
    row_ids: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a sampler deals rows of an update; row ids join micro-batches of a rank, and no ranks."""
    config = {**CONFIG, "axes": {"completion": {"ids": "row"}, "group": {"of": "prompt"}}, "tables": {}}
    config["signals"] = {**CONFIG["signals"], "any": {"row": "completion int", "prompt": "completion text"}}
    config["signals"]["rollout"] = {"reward": "completion"}
    config["run"] = {"name": "groups"}

    def body(comm: Comm) -> None:
        rows = [[0, 1, 2], [3, 4, 5]][comm.rank]
        prompts = [["a", "a", "b"], ["b", "c", "c"]][comm.rank]
        with declog.start(config, comm=comm, sinks=[MemorySink()], output_dir=tmp_path) as log, log.step(0):
            ids = {"row": rows} if row_ids else {}
            log.observe(reward=[1.0] * 3, prompt=prompts, **ids)
            log.observe(advantages=ADVANTAGES[rows], prompt=prompts, **ids)

    with caplog.at_level(logging.WARNING, logger="declog"):
        run_ranks(2, body)
    lines = [line for record in caplog.records if "group ids go on" in (line := record.getMessage())]
    assert [
        line for line in lines if line.startswith("best, spread: ") and "`axes.group.split: ranks`" in line
    ] == lines
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        ([[0, 1, 2]] * 2, True),  # one completion of each prompt in a call
        ([["a", "b", "c"]] * 2, True),
        ([[70, 70, 40, 40], [70, 70, 40, 40]], True),  # two of each
        ([[0, 0, 1, 1], [0, 0, 1, 1]], False),  # they count the groups of a call
        ([[1, 1, 2, 2], [1, 1, 2, 2]], False),
        ([[70, 70, 40, 40], [80, 80, 90, 90]], False),
        ([[0, 0, 2, 2], [0, 0, 2, 2]], False),  # they counted, and groups were left out
        ([[0, 1, 2], [3, 4, 5]], False),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_groups_whose_rows_come_in_several_calls_are_told(
    calls: list[list[Any]], told: bool, ranks: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The class: calls of a step that generate for the same prompts, of one rank or of several, in any order."""
    config = {**CONFIG, "axes": {"group": {"of": "prompt"}}, "tables": {}, "run": {"name": "groups"}}
    config["metrics"] = {"best": "max(reward, over=completion)", "spread": "mean(std(advantages, over=completion))"}
    kind = "text" if isinstance(calls[0][0], str) else "int"
    config["signals"] = {**CONFIG["signals"], "any": {"prompt": f"completion {kind}"}}
    config["signals"]["rollout"] = {"reward": "completion"}
    random = np.random.default_rng(0)

    def body(comm: Comm) -> None:
        with declog.start(config, comm=comm, sinks=[MemorySink()], output_dir=tmp_path) as log:
            for step in range(3):
                with log.step(step):
                    for ids in calls[comm.rank :: ranks]:
                        log.observe(reward=random.random(len(ids)), prompt=ids)
                    ids = calls[comm.rank]
                    log.observe(advantages=random.random(len(ids)), prompt=ids)

    with caplog.at_level(logging.WARNING, logger="declog"):
        run_ranks(ranks, body)
    lines = [line for record in caplog.records if "the ids of groups come again" in (line := record.getMessage())]
    split = {1: "`axes.group.split: batches`", 2: "`axes.group.split: ranks`"}[ranks]
    assert any(line.startswith("best: ") for line in lines) == told and all(split in line for line in lines)


@pytest.mark.parametrize("ids", ["other rows", "the same rows", "the same rows, one without id"])
def test_equal_values_of_rows_with_other_ids(ids: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The class: rewards of 0 and 1 that come alike in two calls; row ids tell further rows from repeated ones."""
    config = {**CONFIG, "axes": {"group": {"of": "prompt"}, "completion": {"ids": "row_id"}}, "tables": {}}
    config |= {"run": {"name": "rows"}, "metrics": {"best": "max(reward, over=completion)"}}
    config["signals"] = {
        "any": {"prompt": "completion text", "row_id": "completion int"},
        "rollout": {"reward": "completion"},
    }
    config["signals"] |= {"update": {"advantages": "completion"}}
    config["metrics"]["spread"] = "mean(std(advantages, over=completion))"
    with declog.start(config, sinks=[MemorySink()], output_dir=tmp_path) as log, log.step(0):
        for call in range(2):
            rows: list[int | None] = [*range(4 * call, 4 * call + 4)] if ids == "other rows" else [0, 1, 2, 3]
            rows[-1] = None if "without" in ids else rows[-1]
            log.observe(reward=[0.0, 1.0, 0.0, 1.0], prompt=["a", "a", "b", "b"], row_id=rows)
    assert ("the ids of groups come again" in caplog.text) is (ids == "other rows")


TURNS = {0: [1.0, 2.0], 1: [8.0], 2: [3.0, 4.0, 5.0], 3: [0.0], 4: [6.0], 5: [2.0, 1.0]}  # of each completion


@pytest.mark.parametrize("group", [{"size": 2}, {"of": "prompt"}])
@pytest.mark.parametrize("order", ["as they are", "shuffled", "micro-batches"])
def test_parts_of_a_completion_are_of_its_group(order: str, group: dict[str, Any], tmp_path: Path) -> None:
    """Class: turns and calls of tools, rows of a phase of their own whose row ids come several times in a step."""
    config = {
        **CONFIG, "axes": {**CONFIG["axes"], "group": group}, "tables": {},
        "signals": {**CONFIG["signals"], "turns": {"bonus": "completion"}},
        "metrics": {"best": "mean(max(bonus, over=completion))", "most": "mean(count(bonus, over=completion))"},
    }  # fmt: skip
    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(reward=REWARD, prompt=PROMPTS, row=[*range(6)])
        pairs = [(row, bonus) for batch in ORDERS[order] for row in batch for bonus in TURNS[row]]
        for calls in [pairs[:4], pairs[4:]] if order == "micro-batches" else [pairs]:  # a completion's may be in both
            log.observe(bonus=[bonus for _, bonus in calls], row=[row for row, _ in calls])
    groups = [[*TURNS[row], *TURNS[row + 1]] for row in (0, 2, 4)]
    assert sink.scalars[0] == {
        "best": np.mean([max(values) for values in groups]),
        "most": np.mean([*map(len, groups)]),
    }


@pytest.mark.parametrize("split", ["none", "batches", "ranks"])
def test_a_step_that_cannot_be_grouped_takes_no_other_steps_values(split: str, tmp_path: Path) -> None:
    """Class: rows of one step that form no groups, and the next steps' rows of a later phase.

    They read a group's value of the rollout: in a condition, in an expression, in groups of their own, in a table.
    """
    config = {
        **CONFIG,
        "run": {"name": "groups"},
        "axes": {"completion": {"ids": "row"}, "group": {"size": 2, "split": split}},
        "metrics": {
            "of_best": {"expr": "advantages", "where": "reward == max(reward, over=completion)"},
            "centred": "mean(advantages * (reward - mean(reward, over=completion)))",
            **CONFIG["metrics"],
        },
        "tables": {"best": {"columns": ["advantages"], "filter": {"where": "reward == max(reward, over=completion)"}}},
    }
    rows, sink = [6, 6, 5, 6, 6], MemorySink()  # of five rows, one is in no group
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log:
        for step, count in enumerate(rows):
            with log.step(step):
                log.observe(reward=REWARD[:count], row=[*range(count)])
                log.observe(advantages=ADVANTAGES[:count], row=[*range(count)])
    complete = [0, 1, 3, 4]
    assert {step: sorted(values) for step, values in sink.scalars.items() if values} == {
        step: sorted(config["metrics"]) for step in complete
    }
    assert [(step, table.rows) for step, table in sink.tables("best")] == [(step, 5) for step in complete]  # both of b
