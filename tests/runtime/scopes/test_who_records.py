"""Who records, as scopes ask it: a task of asyncio, one of trio, or the thread. And steps after an interrupt."""

from __future__ import annotations

import asyncio
import threading

import pytest
import trio

from declog.runtime.rows.scopes import origin
from declog.runtime.rows.steps import Step
from tests.running import closed_batch


async def _here() -> tuple[object, object]:
    return origin(), trio.lowlevel.current_task()


def test_a_loop_is_seen_wherever_it_runs() -> None:
    """Each way to run a loop: asyncio, trio, and trio as a guest of asyncio; outside of one it is the thread."""
    assert origin() is threading.current_thread()
    assert len({*trio.run(_here)}) == 1
    assert origin() is threading.current_thread()

    async def hosting() -> tuple[object, object]:
        loop = asyncio.get_running_loop()
        assert origin() is asyncio.current_task()
        done = loop.create_future()
        trio.lowlevel.start_guest_run(_here, run_sync_soon_threadsafe=loop.call_soon_threadsafe,
                                      done_callback=done.set_result)  # fmt: skip
        guest: tuple[object, object] = (await done).unwrap()
        assert origin() is asyncio.current_task()
        return guest

    who, task = asyncio.run(hosting())
    assert who is task


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_a_step_takes_batches_after_an_interrupt_at_any_of_them(moved: int) -> None:
    """What waits is absorbed batch by batch: interrupted after each, or before its phase is gone, it takes the next."""
    records = [closed_batch(1, order=order) for order in range(3)]
    pending, step = Step(), Step(7)
    for record in records[:2]:
        pending.add("default", record)
    for record in records[:moved]:  # as ``absorb`` does until it is interrupted
        step.add("default", record)
        del pending.batches["default"][0]
    pending.add("default", records[2])
    step.absorb(pending)
    assert [(record.order, record.step, record.number) for record in step.batches["default"]] == [
        (0, 7, 0), (1, 7, 1), (2, 7, 2),
    ]  # fmt: skip
