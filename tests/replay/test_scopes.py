"""Captures carry scopes: what tasks and threads did is played again in the order that was, with the same values."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import declog
from declog.replay import capture_reader
from declog.runtime.recorder import Recorder
from declog.testing import MemorySink

PROFILE: dict[str, Any] = {
    "name": "captured",
    "every": 2,
    "modes": {"train": {}, "eval": {"prefix": "eval/"}},
    "signals": {
        "prompt": {"axis": "completion", "type": "text", "optional": True},
        "reward": {"axis": "completion", "optional": True},
    },
    "metrics": {"n": "count(reward)", "reward": "mean(reward)"},
    "schemas": {
        "pairs": {
            "prompt": {"type": "text", "nullable": True},
            "reward": {"type": "float", "nullable": True},
            "extra": {"undeclared": "keep"},
        }
    },
    "tables": {"pairs": {"schema": "pairs"}},
    "sinks": {},
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
    sink = MemorySink()
    with declog.start(PROFILE, sinks=[sink], output_dir=tmp_path, capture=True) as log:
        asyncio.run(train(log))
        failures = dict(log.failures)
    assert failures == {}
    assert plain(capture_reader.replay(tmp_path)["<code>"]) == plain(sink.events)
