"""Rows that come in parts: however the values of a batch are split into calls, the split is not seen, or it is told."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import declog
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink
from tests.conftest import examples
from tests.running import Tracker

Cell = tuple[str, str | None]  # a signal, or a member of a family
SIGNALS: dict[str, Any] = {
    "x": {"axis": "completion"},
    "y": {"axis": "completion"},
    "needed": {"axis": "completion"},
    "name": {"axis": "completion", "type": "text"},
    "rewards": {"axis": "completion", "family": True},
    "loss": {"axis": "step"},
}
PROFILE: dict[str, Any] = {
    "run": {"name": "parts"},
    "signals": {"any": SIGNALS},
    "metrics": {
        "product": "sum(x * y * needed)", "reward": "mean(sum(rewards, over=member))",
        "named": "sum(x * (name == 'a'))",
        "rows": "count(needed)", "batches": {"expr": "needed", "over": "batch"}, "loss": "sum(loss)",
    },
    "tables": {"t": {"columns": ["name", "x", "y"]}},
}  # fmt: skip
CELLS: tuple[Cell, ...] = (
    ("x", None), ("y", None), ("needed", None), ("name", None), ("rewards", "a"), ("rewards", "b"), ("rewards", "c"),
    ("loss", None),
)  # fmt: skip
Batch = Mapping[Cell, Any]


def batches(chance: random.Random, cells: Sequence[Cell]) -> list[list[Batch]]:
    """Some steps, each of some batches, all of which have the same cells."""

    def value(cell: Cell, rows: int) -> Any:
        if cell[0] == "loss":
            return float(chance.randrange(100))
        return [chance.choice("ab") if cell[0] == "name" else float(chance.randrange(1, 9)) for _ in range(rows)]

    def batch() -> Batch:
        rows = chance.randint(1, 4)
        return {cell: value(cell, rows) for cell in cells}

    return [[batch() for _ in range(chance.randint(1, 3))] for _ in range(chance.randint(1, 4))]


def call(cells: Sequence[Cell], batch: Batch) -> dict[str, Any]:
    """A call of observe with some cells of a batch."""
    found: dict[str, Any] = {}
    for name, member in cells:
        if member is None:
            found[name] = batch[name, member]
        else:
            found.setdefault(name, {})[member] = batch[name, member]
    return found


def whole(batch: Batch) -> list[dict[str, Any]]:
    """All in one call."""
    return [call([*batch], batch)]


def split(chance: random.Random) -> Callable[[Batch], list[dict[str, Any]]]:
    """The cells of a batch in several calls, in any order."""

    def calls(batch: Batch) -> list[dict[str, Any]]:
        cells = chance.sample([*batch], len(batch))
        count = chance.randint(1, len(cells))
        parts = [cells[place::count] for place in range(count)]
        return [call(part, batch) for part in parts]

    return calls


def logged(steps: list[list[Batch]], calls: Callable[[Batch], list[dict[str, Any]]], folder: Path) -> list[Any]:
    """What is logged of the steps, table rows included."""
    sink = MemorySink()
    with declog.start(PROFILE, sinks=[sink], output_dir=folder) as log:
        for number, made in enumerate(steps):
            with log.step(number):
                for batch in made:
                    for values in calls(batch):
                        log.observe(**values)
    assert dict(log.failures) == {}
    return [
        (step, {item.name: item.value for item in records.scalars}, [table.data for table in records.tables])
        for step, records in sink.events
    ]


@examples(60, HealthCheck.function_scoped_fixture)
@given(seed=st.integers(0, 10**9), picked=st.sets(st.sampled_from(CELLS)))
def test_a_split_is_not_seen(tmp_path: Path, seed: int, picked: set[Cell]) -> None:
    """Columns and members of a batch in any calls of one task, in any order: what one call for all of them gives."""
    cells = [cell for cell in CELLS if cell in picked | {("needed", None)}]
    steps = batches(random.Random(seed), cells)
    assert logged(steps, split(random.Random(seed + 1)), tmp_path) == logged(steps, whole, tmp_path)


@pytest.mark.parametrize("who", ["threads", "tasks"])
def test_a_split_of_each_task_is_not_seen(who: str, tmp_path: Path) -> None:
    """Several at once, each with batches of its own: their calls are not mixed."""
    chance = random.Random(7)
    (made,) = batches(chance, CELLS)[:1]
    made = [*made, *made, *made]
    sink, one = MemorySink(), MemorySink()
    with declog.start(PROFILE, sinks=[one], output_dir=tmp_path / "one") as log, log.step(0):
        for batch in made:
            log.observe(**call([*batch], batch))

    async def task(batch: Batch) -> None:
        for values in split(random.Random(3))(batch):
            declog.observe(**values)
            await asyncio.sleep(0)

    def thread(batch: Batch) -> None:
        for values in split(random.Random(3))(batch):
            declog.observe(**values)

    async def tasks() -> None:
        await asyncio.gather(*(task(batch) for batch in made))

    with declog.start(PROFILE, sinks=[sink], output_dir=tmp_path / "two") as log, log.step(0):
        if who == "tasks":
            asyncio.run(tasks())
        else:
            threads = [threading.Thread(target=declog.bind(thread), args=[batch]) for batch in made]
            for one_thread in threads:
                one_thread.start()
            for one_thread in threads:
                one_thread.join()
    assert sink.scalars == one.scalars and len(sink.scalars) == 1


@pytest.mark.parametrize("who", ["tasks", "threads"])
def test_members_of_several_tasks_are_told(who: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One reward function in each task: nothing says whose rows they are, and a warning says what to do."""

    def observe(member: str) -> None:
        declog.observe(rewards={member: [1.0, 0.0]})

    async def task(member: str) -> None:
        observe(member)

    async def tasks() -> None:
        await asyncio.gather(task("a"), task("b"))

    with declog.start(PROFILE, sinks=[MemorySink()], output_dir=tmp_path) as log:
        for step in range(3):
            with log.step(step):
                log.observe(needed=[1.0, 1.0])
                if who == "tasks":
                    asyncio.run(tasks())
                else:
                    for member in "ab":
                        thread = threading.Thread(target=declog.bind(observe), args=[member])
                        thread.start()
                        thread.join()
    told = [record.getMessage() for record in caplog.records if "cannot be paired" in record.getMessage()]
    assert len(told) == 1 and told[0].startswith("`rewards['a']`, `rewards['b']`: in one step some batches")


READ_TOGETHER: Mapping[str, dict[str, Any]] = {
    "a condition": {"metrics": {"m": {"expr": "reward", "where": "right > 0"}}},
    "a label": {"metrics": {"m": {"expr": "reward", "by": "bucket(right, 1)"}}},
    "a product": {"metrics": {"m": "sum(reward * right)"}},
    "a weight": {"metrics": {"m": {"expr": "reward", "weight": "right"}}},
    "columns of a table": {"tables": {"m": {"columns": ["reward", "right"]}}},
    "a filter and a column": {"tables": {"m": {"columns": ["reward"], "filter": {"key": "right", "top": 2}}}},
}


@pytest.mark.parametrize("case", READ_TOGETHER)
@pytest.mark.parametrize("between", [0, 2])
@pytest.mark.parametrize("batch", [False, True])
def test_what_is_read_together_comes_in_several_tasks(
    case: str, between: int, batch: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The class: no batch of a step has all that a value or a row reads, and two together do; others may lie between.

    It is told once, by the names that are observed, and inside of a batch it is paired.
    """
    signals = {"reward": {"axis": "completion", "from": "r"}, "right": "completion float", "z": "completion float"}
    read = {"metrics": {"z": "mean(z)", **READ_TOGETHER[case].get("metrics", {})}}
    config = {"run": {"name": "apart"}, "signals": {"rollout": signals}, **READ_TOGETHER[case], **read}
    sink = MemorySink()

    def in_a_thread(**values: Any) -> None:
        thread = threading.Thread(target=declog.bind(declog.observe), kwargs=values)
        thread.start()
        thread.join()

    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log:
        for step in range(3):
            with log.step(step), log.batch() if batch else nullcontext():
                in_a_thread(right=[1.0, 0.0])
                for _ in range(min(between, 1) if batch else between):
                    in_a_thread(z=[1.0, 2.0])
                declog.observe(r=[4.0, 2.0])
    told = [record.getMessage() for record in caplog.records if "in different batches" in record.getMessage()]
    assert [line.partition(" of phase")[0] for line in told] == ["`r`, `right`"] * (not batch)
    assert not told or told[0].endswith("inside `with log.step(k), log.batch():`")
    tables = [[*table.data.values()] for _, records in sink.events for table in records.tables]
    pairs = [[[4.0, 2.0], [1.0, 0.0]][: len(columns)] for columns in tables]
    logged = {name for row in sink.scalars.values() for name in row if name[0] == "m"}
    assert (bool(logged) or (bool(tables) and tables == pairs)) == batch


def test_what_modes_observe_is_not_read_together(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An evaluation within a step, and steps that are open at once, have batches of their own."""
    config = {
        "run": {"name": "modes"}, "modes": {"eval": {"prefix": "eval/"}},
        "signals": {"rollout": {"r": "completion float", "a": "completion float"}},
        "metrics": {"r": "mean(r)", "m": "mean(r * a)"}, "tables": {"t": {"columns": ["r", "a"]}},
    }  # fmt: skip
    with declog.start(config, sinks=[MemorySink()], output_dir=tmp_path) as log:
        with log.step(0):
            for value in (1.0, 2.0):
                log.observe(r=[value])
            with log.mode("eval"):
                for value in (1.0, 0.0):
                    log.observe(a=[value])
            log.observe(r=[3.0])
            with log.at(1):
                log.observe(a=[1.0])
        with log.step(1):
            log.observe(a=[2.0])
    assert not [record for record in caplog.records if "in different batches" in record.getMessage()]


def test_an_explicit_batch_takes_members_one_by_one(tmp_path: Path) -> None:
    """Also of several tasks; a member that comes twice is refused."""
    sink = MemorySink()
    with declog.start(PROFILE, sinks=[sink], output_dir=tmp_path) as log, log.step(0), log.batch():
        log.observe(needed=[1.0, 2.0])
        for member in "ab":
            thread = threading.Thread(target=declog.bind(log.observe), kwargs={"rewards": {member: [1.0, 3.0]}})
            thread.start()
            thread.join()
        with pytest.raises(declog.InputError, match="`rewards` was given twice"):
            log.observe(rewards={"a": [9.0, 9.0]})
    assert sink.scalars[0]["reward"] == 4.0


def test_tasks_of_trio_are_tasks(tmp_path: Path) -> None:
    """A row that one of them observes in two calls is one row, whoever observes between them."""
    trio = pytest.importorskip("trio")
    sink = MemorySink()

    async def row(value: float, seconds: float) -> None:
        declog.observe(x=[value])
        await trio.sleep(seconds)
        declog.observe(y=[value], needed=[1.0])

    async def main(log: Recorder) -> None:
        with log.step(0):
            async with trio.open_nursery() as nursery:
                for value, seconds in ((1.0, 0.05), (2.0, 0.08), (3.0, 0.01)):
                    nursery.start_soon(row, value, seconds)

    with declog.start(PROFILE, sinks=[sink], output_dir=tmp_path) as log:
        trio.run(main, log)
    assert sink.scalars[0]["product"] == 1.0 + 4.0 + 9.0


@pytest.mark.parametrize("block", ["closed", "open"])
def test_rows_above_a_rewind_are_of_their_step(block: str, tmp_path: Path) -> None:
    """What was given for a step that was not made yet is logged with it, whether its block is open or closed."""
    sink = Tracker()
    with declog.start(PROFILE, sinks=[sink], output_dir=tmp_path) as log:
        for step in (0, 1):
            with log.step(step):
                log.observe(needed=[1.0])
        ahead = log.at(3)
        with ahead:
            log.observe(needed=[1.0] * 10)
            if block == "open":
                log.rewind(0)
        if block == "closed":
            log.rewind(0)
        for step in (1, 2, 3):
            with log.step(step):
                log.observe(needed=[1.0])
    assert [(step, records.scalars[0].value) for step, records in sink.events if records.scalars] == [
        (0, 1), (1, 1), (1, 1), (2, 1), (3, 11),
    ]  # fmt: skip
    assert dict(log.failures) == {}
