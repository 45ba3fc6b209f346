"""A whole trainer of rollout workers: slots cap how far they run ahead, and evaluations go on beside the steps.

Its shape is that of tinker-cookbook's asynchronous loop: a loader feeds jobs, one worker for each slot makes groups of
the newest weights, the trainer takes the oldest ones, and another task evaluates each second version. All delays are by
chance, and what each step trained on is added up by hand, in the order of the run that was.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import declog
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink

STEPS, GROUPS, ROWS, BEHIND = 20, 5, 4, 2  # BEHIND: for how many steps more there are slots
TRAINED = STEPS * GROUPS  # every job is trained on, once
SETS = (1, 2, 3)  # of evaluation

PROFILE: dict[str, Any] = {
    "run": {"name": "workers"},
    "modes": {"train": {}, "eval": {"prefix": "eval/"}},
    "signals": {
        "any": {
            "reward": {"axis": "completion"}, "group": {"axis": "completion", "type": "int"},
            "version": {"axis": "completion", "type": "int"},
        },
        "update": {"loss": {"axis": "step"}},
    },
    "metrics": {
        "n": "count(reward)", "reward": "sum(reward)", "both": "sum(reward * group)", "oldest": "min(version)",
        "loss": "mean(loss)",
    },
    "sinks": [],
}  # fmt: skip

Where = tuple[str, int]  # a mode and a step
Values = dict[str, float]
Row = tuple[float, int]  # a reward and its group


class Group(NamedTuple):
    """What a worker made: the job, the version of the weights, the rewards, and their rows."""

    number: int
    version: int
    rewards: list[float]
    packet: declog.Packet


def by_hand(rows: list[Row]) -> Values:
    return {
        "n": len(rows),
        "reward": sum(reward for reward, _ in rows),
        "both": sum(reward * group for reward, group in rows),
    }


class Trainer:
    """The loop. ``dropped`` jobs are filtered out when their rows are made, as groups of equal rewards are."""

    def __init__(self, log: Recorder, seed: int, dropped: Callable[[int], bool]) -> None:
        self.truth: dict[Where, Values] = {}
        self.overlapped = 0  # evaluations during which a step ended
        self.left = 0  # groups that were filtered out
        self._log = log
        self._chance = random.Random(seed)
        self._dropped = dropped
        self._jobs: asyncio.Queue[int | None] = asyncio.Queue(GROUPS)
        self._made: asyncio.Queue[Group | None] = asyncio.Queue()
        self._slots = asyncio.Semaphore(GROUPS * (BEHIND + 1))
        self._alive = GROUPS * (BEHIND + 1)
        self._version = 0
        self._published, self._over = asyncio.Event(), False

    async def run(self) -> None:
        workers = [asyncio.create_task(self._work()) for _ in range(self._alive)]
        await asyncio.gather(self._load(), *workers, self._train(), self._evaluate())

    async def _pass(self, most: int) -> None:
        for _ in range(self._chance.randrange(most)):
            await asyncio.sleep(0)

    def _draw(self) -> float:
        return float(self._chance.randrange(100))

    async def _load(self) -> None:
        for number in range(TRAINED):
            await self._jobs.put(number)
        for _ in range(self._alive):
            await self._jobs.put(None)

    async def _work(self) -> None:
        while (number := await self._jobs.get()) is not None:
            await self._slots.acquire()
            version, rewards = self._version, []
            for _ in range(ROWS):
                await self._pass(8)
                rewards.append(self._draw())
            packet = declog.rows(reward=rewards, group=[number] * ROWS, version=[version] * ROWS)
            if self._dropped(number):
                packet.discard()
                self.left += 1
                self._slots.release()
            else:
                self._made.put_nowait(Group(number, version, rewards, packet))
        self._alive -= 1
        if not self._alive:
            self._made.put_nowait(None)

    async def _train(self) -> None:
        waiting: list[Group] = []
        ended = False
        for step in range(STEPS):
            while not ended and (len(waiting) < GROUPS or not self._made.empty()):
                group = await self._made.get()
                if group is None:
                    ended = True
                else:
                    waiting.append(group)
            if not waiting:
                break
            waiting.sort(key=lambda group: group.version)
            batch, waiting = waiting[:GROUPS], waiting[GROUPS:]
            await self._update(step, batch)
            self._version = step + 1
            self._published.set()
            for _ in batch:
                self._slots.release()
        self._over = True
        self._published.set()

    async def _update(self, step: int, batch: list[Group]) -> None:
        with self._log.step(step):
            for group in batch:
                declog.observe(group.packet)
            await self._pass(20)
            declog.observe(loss=float(step))
            await self._pass(20)
        rows = [(reward, group.number) for group in batch for reward in group.rewards]
        oldest = min(group.version for group in batch)
        self.truth["train", step] = {**by_hand(rows), "oldest": oldest, "loss": float(step)}

    async def _evaluate(self) -> None:
        last: int | None = None
        self._published.set()  # the first weights are evaluated, too
        while True:
            await self._published.wait()
            self._published.clear()
            over, version = self._over, self._version
            if version != last and (version % 2 == 0 or over):
                last, rows = version, list[Row]()
                with self._log.mode("eval", step=version):
                    await asyncio.gather(*(self._evaluate_set(which, rows) for which in SETS))
                self.truth["eval", version] = by_hand(rows)
                self.overlapped += self._version > version
            if over:
                return

    async def _evaluate_set(self, which: int, rows: list[Row]) -> None:
        for _ in range(3):
            await self._pass(60)
            rows.append((self._draw(), which))
            declog.observe(reward=[rows[-1][0]], group=[which])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dropped", [lambda number: False, lambda number: number % 7 == 3], ids=["all", "filtered"])
def test_every_value_is_that_of_the_sequential_run(dropped: Callable[[int], bool], seed: int, tmp_path: Path) -> None:
    """Twenty steps off-policy, with evaluations over several of them: equal to what is added up by hand, none lost."""
    sink = MemorySink()
    with declog.start(PROFILE, sinks=[sink], output_dir=tmp_path) as log:
        trainer = Trainer(log, seed, dropped)
        asyncio.run(trainer.run())
    found: dict[Where, Values] = {}
    for step, records in sink.events:
        values = {item.name.removeprefix("eval/"): item.value for item in records.scalars}
        assert (records.mode, step) not in found
        found[records.mode, step] = values
    assert (found, dict(log.failures)) == (trainer.truth, {})
    steps = [step for mode, step in found if mode == "train"]
    rows = sum(found["train", step]["n"] for step in steps)
    assert (len(steps), rows) == (-(-(TRAINED - trainer.left) // GROUPS), ROWS * (TRAINED - trainer.left))
    behind = max(step - found["train", step]["oldest"] for step in steps)
    assert (behind >= BEHIND, trainer.overlapped > 0) == (True, True)  # else it would show nothing
