"""Captures carry scopes: what tasks and threads did is played again in the order that was, with the same values."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.replay import capture_reader
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink
from tests.running import Tracker

PROFILE: dict[str, Any] = {
    "run": {"name": "captured"},
    "every": 2,
    "modes": {"train": {}, "eval": {"prefix": "eval/"}},
    "signals": {
        "any": {
            "prompt": {"axis": "completion", "type": "text"},
            "reward": {"axis": "completion"},
        }
    },
    "metrics": {"n": "count(reward)", "reward": "mean(reward)"},
    "schemas": {
        "pairs": {
            "prompt": {"type": "text"},
            "reward": {"type": "float"},
            "extra": {"undeclared": "keep"},
        }
    },
    "tables": {"pairs": {"schema": "pairs"}},
    "sinks": [],
    "profile": "full",
}


async def train(log: Recorder) -> None:
    """One of each: prefetch, evaluations in flight, packets, a thread with a handle, what is next, batches, columns."""

    async def row(name: str, step: int | None = None) -> None:
        with log.at(step) if step is not None else log.batch():
            declog.observe(prompt=[name])
            await asyncio.sleep(0)
            declog.observe(reward=[float(len(name))])

    async def evaluate(step: int) -> None:
        with log.mode("eval", step=step):
            await asyncio.sleep(0.002)
            declog.observe(prompt=["e"], reward=[100.0])

    ahead = asyncio.create_task(row("p" * 10, 0))
    tasks = []
    for step in range(4):
        if step:
            log.log_extra("early", [f"before {step}"])
        with log.step(step) as scope:
            await ahead
            ahead = asyncio.create_task(row("p" * (step + 11), step + 1))
            tasks.append(
                asyncio.create_task(evaluate(step)) if step % 2 == 0 else asyncio.create_task(asyncio.sleep(0))
            )
            declog.observe(prompt=["own"], reward=[1.0])
            log.log_extra("note", [f"note {step}"])
            await asyncio.gather(row("a"), row("bb"))
            packet = declog.rows(prompt=["packet"], reward=[50.0])
            declog.observe(packet)
            thread = threading.Thread(target=lambda s=scope: s.observe(prompt=["t"], reward=[7.0]))
            thread.start()
            thread.join()
            declog.observe(prompt=["next"], reward=[3.0], step="next")
            log.log_metric("mine", float(step))
    await asyncio.gather(ahead, *tasks)
    log.rewind(1)
    with log.step(2):
        declog.observe(prompt=["again"], reward=[9.0])


def plain(events: Any) -> list[Any]:
    """What is logged, to be compared: values, and rows of tables."""
    found = []
    for step, records in events:
        scalars = sorted((item.name, item.value) for item in records.scalars)
        rows = [sorted(zip(*map(list, table.data.values()), strict=True), key=str) for table in records.tables]
        found.append((records.mode, step, scalars, rows))
    return found


def test_a_capture_of_tasks_and_threads_is_played_again(tmp_path: Path) -> None:
    """Event by event the same values and rows, and nothing fails."""
    sink = Tracker()
    with declog.start(PROFILE, sinks=[sink], output_dir=tmp_path, capture=True) as log:
        asyncio.run(train(log))
        failures = dict(log.failures)
    assert failures == {}
    assert plain(capture_reader.replay(tmp_path)["<code>"]) == plain(sink.events)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("capture", [{"every": 2}, {"every": 3}, {"mode": "train"}], ids=str)
@pytest.mark.parametrize("how", ["a task", "a handle"])
def test_what_is_captured_of_rows_that_come_ahead(
    how: str, capture: dict[str, Any], every: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With parts left out a log event would lack rows that came in one of them: all are kept, which is reported."""

    async def body(log: Recorder) -> None:
        async def generate(step: int) -> None:
            with log.at(step):
                declog.observe(prompt=["ahead"] * 2, reward=[float(step)] * 2)
                await asyncio.sleep(0)

        ahead = asyncio.create_task(generate(0))
        for step in range(6):
            with log.step(step):
                await ahead
                if how == "a handle":
                    log.at(step + 1).observe(prompt=["handle"], reward=[100.0 + step])
                else:
                    ahead = asyncio.create_task(generate(step + 1))
                    await asyncio.sleep(0)
                declog.observe(prompt=["own"], reward=[10.0])
        await ahead

    sink = MemorySink()
    with (
        caplog.at_level("WARNING", "declog"),
        declog.start({**PROFILE, "every": every}, sinks=[sink], output_dir=tmp_path, capture=capture) as log,
    ):
        asyncio.run(body(log))
    assert plain(capture_reader.replay(tmp_path)["<code>"]) == plain(sink.events)
    reported = [record.getMessage() for record in caplog.records if "capture" in record.getMessage()]
    assert [text.split(":")[0] for text in reported] == ["the capture keeps all log events"]


def test_a_capture_ends_where_rows_come_ahead_in_a_part_that_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was kept until then is exact, and what follows would lack rows; rows of the open step are none of those."""
    sink = MemorySink()
    with (
        caplog.at_level("WARNING", "declog"),
        declog.start({**PROFILE, "every": 1}, sinks=[sink], output_dir=tmp_path, capture={"every": 2}) as log,
    ):
        for step in range(8):
            with log.step(step):
                declog.observe(prompt=["own"], reward=[10.0 + step])
                with log.at(step):
                    declog.observe(prompt=["at"], reward=[20.0 + step])
                if step == 3:
                    log.at(step + 1).observe(prompt=["ahead"], reward=[100.0])
    events = plain(sink.events)
    assert plain(capture_reader.replay(tmp_path)["<code>"]) == [events[0], events[2]]
    (reported,) = [record.getMessage() for record in caplog.records if "capture" in record.getMessage()]
    assert reported.startswith("the capture ends here: rows come ahead of their steps, with log.at(4)")


def nested(log: Recorder) -> None:
    """Evaluations in a step."""
    for step in range(8):
        with log.step(step):
            declog.observe(prompt=["train"], reward=[float(step)])
            if step % 3 == 1:
                with log.mode("eval"):
                    declog.observe(prompt=["eval"], reward=[100.0 + step])
                    with log.batch():
                        declog.observe(prompt=["batch"], reward=[200.0 + step])
            declog.observe(prompt=["train"], reward=[-float(step)])


async def in_flight(log: Recorder) -> None:
    """Evaluations that are begun in a step, go on in others, and overlap."""

    async def evaluate(step: int) -> None:
        with log.mode("eval", step=step):
            for at in range(5):
                declog.observe(prompt=["eval"], reward=[100.0 * step + at])
                await asyncio.sleep(0)

    tasks = []
    for step in range(8):
        with log.step(step):
            if step % 2 == 0:
                tasks.append(asyncio.create_task(evaluate(step)))
            await asyncio.sleep(0)
            declog.observe(prompt=["train"], reward=[float(step)])
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("how", [nested, in_flight], ids=lambda how: how.__name__)
@pytest.mark.parametrize(
    "capture", [{"mode": "eval"}, {"mode": "train"}, {"every": 2}, {"every": 3, "mode": "eval"}], ids=str
)
def test_what_is_captured_of_evaluations_in_steps(capture: dict[str, Any], how: Any, tmp_path: Path) -> None:
    """Each mode is kept or left out by itself, wherever its blocks begin."""
    sink = MemorySink()
    with declog.start({**PROFILE, "every": 1}, sinks=[sink], output_dir=tmp_path, capture=capture) as log:
        if how is nested:
            nested(log)
        else:
            asyncio.run(in_flight(log))
    events = plain(sink.events)
    kept = [
        event
        for place, event in enumerate(events)
        if event[0] == capture.get("mode", event[0])
        and sum(each[0] == event[0] for each in events[:place]) % capture.get("every", 1) == 0
    ]
    assert plain(capture_reader.replay(tmp_path)["<code>"]) == kept
    assert {event[0] for event in kept} == ({capture["mode"]} if "mode" in capture else {"train", "eval"})
