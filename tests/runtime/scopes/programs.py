"""Random asynchronous programs, run in any order that they allow, and the numbers that they must give, by hand.

A program has a trainer, whose steps have gaps and windows of several steps, and workers: tasks, threads and packets
that contribute to a step as it is open or before it is, evaluations beside it, and tasks that outlive their scope. Who
goes on next is drawn by a controller, one call at a time: a schedule. Every row is observed in two calls, so that rows
that are mixed are seen.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Literal

import declog
from declog.engine.publish import CODE, Route
from declog.plans.ops import Plan
from declog.records import Records
from declog.runtime.comm import LocalComm
from declog.runtime.recorder import Recorder
from declog.runtime.scopes import Scope
from tests.runtime.scopes.running import ENDED, MODE_ENDED, PROFILE, TWICE

Kind = Literal["at", "at thread", "step=", "child", "handle", "bind", "packet", "twice", "next", "batch", "outlives",
    "refused", "cancelled",
]  # fmt: skip
KINDS: tuple[Kind, ...] = (
    "at", "at thread", "step=", "child", "handle", "bind", "packet", "twice", "next", "batch", "outlives",
    "refused", "cancelled",
)  # fmt: skip
INSIDE = {"child", "handle", "bind", "batch", "outlives", "refused", "cancelled"}  # what the step itself starts
Row = tuple[str, float]
Where = tuple[str, int]


@dataclass(frozen=True)
class Job:
    """Who observes some batches of rows for the step at a place among the steps."""

    kind: Kind
    place: int
    batches: tuple[tuple[Row, ...], ...]


@dataclass(frozen=True)
class Program:
    """Step numbers, how many a window has, and who works beside the trainer."""

    steps: tuple[int, ...]
    every: int
    own: tuple[tuple[tuple[Row, ...], ...], ...]  # the batches of the trainer itself, by step
    jobs: tuple[Job, ...]
    evaluations: tuple[tuple[int, tuple[tuple[Row, ...], ...]], ...]  # the place of the step that each begins at


def generated(seed: int, kinds: tuple[Kind, ...] = KINDS) -> Program:
    """A program, whose workers are of these kinds."""
    chance = random.Random(seed)
    names = (f"row {number}" for number in range(10**6))

    def batches() -> tuple[tuple[Row, ...], ...]:
        return tuple(
            tuple((next(names), float(chance.randrange(100))) for _ in range(chance.randint(1, 3)))
            for _ in range(chance.randint(1, 3))
        )

    count = chance.randint(1, 5)
    steps = tuple(sorted(chance.sample(range(-3, 40), count)))
    jobs = tuple(Job(chance.choice(kinds), chance.randrange(count), batches()) for _ in range(chance.randint(0, 9)))
    evaluations = tuple((place, batches()) for place in range(count) if chance.random() < 0.3)
    return Program(steps, chance.randint(1, 3), tuple(batches() for _ in steps), jobs, evaluations)


@dataclass
class Outcome:
    """Rows by mode and step of their log event, with their counts and sums as logged; and what was reported."""

    rows: dict[Where, list[Row]] = field(default_factory=lambda: defaultdict(list))
    counts: dict[Where, float] = field(default_factory=dict)
    sums: dict[Where, float] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)

    def add(self, where: Where, rows: Any) -> None:
        """By hand: rows that belong to a log event."""
        self.rows[where] += rows
        self.counts[where] = self.counts.get(where, 0) + len(rows)
        self.sums[where] = self.sums.get(where, 0.0) + sum(value for _, value in rows)

    @property
    def plain(self) -> tuple[Any, ...]:
        """To be compared: the order of tasks is not part of it."""
        rows = {where: sorted(found, key=str) for where, found in self.rows.items() if found}
        return rows, self.counts, self.sums, dict(self.failures)


@cache
def plan(every: int) -> Plan:
    """The profile's plan, with windows of so many steps."""
    metrics = {"n": "count(reward)", "sum": "sum(reward)"}
    return declog.plan({**PROFILE, "metrics": metrics, "every": every, "sinks": {}}, profiles=["full"])


class Schedule:
    """Lets one actor go on at a time: the next in line, or drawn by a seed."""

    def __init__(self, seed: int | None) -> None:
        self._chance = None if seed is None else random.Random(seed)
        self._waiting: list[asyncio.Future[None]] = []
        self._actors: set[asyncio.Task[Any]] = set()

    def start(self, actor: Any) -> asyncio.Task[Any]:
        """One more actor, in the context of here."""
        task = asyncio.create_task(actor)
        self._actors.add(task)
        return task

    async def turn(self) -> None:
        """Wait until it is this actor's turn."""
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(gate)
        await gate

    async def run(self) -> None:
        """Until all are done; raises what one of them raised."""
        idle = 0
        while any(not task.done() for task in self._actors):
            for task in self._actors:
                if task.done() and (error := task.exception()) is not None:
                    raise error  # else the others would wait for it
            for _ in range(6):  # whoever can is at a gate
                await asyncio.sleep(0)
            if self._waiting:
                place = 0 if self._chance is None else self._chance.randrange(len(self._waiting))
                self._waiting.pop(place).set_result(None)
            else:
                await asyncio.sleep(0.0005)  # a thread is working
                idle += 1
                if idle > 20_000:
                    raise TimeoutError("nobody can go on")
        for task in self._actors:
            task.result()


class Execution:
    """One run of a program. ``truth`` is filled by hand while it runs: by then is known which step ends next."""

    def __init__(self, program: Program, seed: int | None) -> None:
        self.program = program
        self.seen = Outcome()
        self.truth = Outcome()
        self._schedule = Schedule(seed)
        route = Route(CODE, "full", 1, "", frozenset({"scalar", "table"}), self._keep)
        self._log = Recorder(plan(program.every), LocalComm(), {}, [route], None)
        self._needed = Counter(job.place for job in program.jobs if job.kind != "next")
        self._free = [asyncio.Event() for _ in program.steps]
        self._packets: list[list[Any]] = [[] for _ in program.steps]
        self._ended = 0  # steps

    def _keep(self, step: int, records: Records) -> None:
        where = records.mode, step
        for item in records.scalars:
            found = {"n": self.seen.counts, "sum": self.seen.sums}.get(item.name.removeprefix("eval/"))
            if found is not None:
                found[where] = found.get(where, 0) + item.value
        for table in records.tables:
            self.seen.rows[where] += list(zip(table.data["prompt"], table.data["reward"], strict=True))

    def window(self, place: int) -> Where:
        """Where the rows of the step at a place are logged."""
        steps, every = self.program.steps, self.program.every
        return "train", steps[min((place // every + 1) * every, len(steps)) - 1]

    async def run(self) -> None:
        """Run the program, and close."""
        for place, needed in enumerate(self._free):
            if not self._needed[place]:
                needed.set()
        with self._log:
            self._schedule.start(self._train())
            for job in self.program.jobs:
                if job.kind not in INSIDE:
                    self._schedule.start(self._ahead(job))
            await self._schedule.run()
        self.seen.failures.update(self._log.failures)

    # -- the trainer

    async def _train(self) -> None:
        turn = self._schedule.turn
        for place, step in enumerate(self.program.steps):
            await turn()
            with self._log.step(step) as scope:
                for job in self.program.jobs:
                    if job.place == place and job.kind in INSIDE:
                        self._schedule.start(self._inside(job, scope))
                for where, batches in self.program.evaluations:
                    if where == place:
                        self._schedule.start(self._evaluate(step, batches))
                await self._observe(self.program.own[place], declog.observe)
                self.truth.add(self.window(place), _flat(self.program.own[place]))
                await self._free[place].wait()
                await turn()
                for packet in self._packets[place]:
                    declog.observe(packet)
                self._ended = place + 1

    async def _observe(self, batches: Any, observe: Callable[..., None], thread: Any = None) -> None:
        """Each batch in two calls, with a turn of others between them."""
        for rows in batches:
            for call in (partial(observe, prompt=[name for name, _ in rows]),
                         partial(observe, reward=[value for _, value in rows])):  # fmt: skip
                await self._schedule.turn()
                if thread is None:
                    call()
                else:
                    await asyncio.get_running_loop().run_in_executor(thread, call)

    def _done(self, place: int) -> None:
        self._needed[place] -= 1
        if not self._needed[place]:
            self._free[place].set()

    # -- who contributes

    async def _ahead(self, job: Job) -> None:
        step, rows = self.program.steps[job.place], _flat(job.batches)
        await self._schedule.turn()
        if job.kind == "next":
            for batch in job.batches:
                await self._schedule.turn()
                if self._ended == len(self.program.steps):
                    return
                self._log.observe(prompt=[n for n, _ in batch], reward=[v for _, v in batch], step="next")
                self.truth.add(self.window(self._ended), batch)
            return
        self.truth.add(self.window(job.place), rows)
        if job.kind == "step=":
            for batch in job.batches:
                await self._schedule.turn()
                self._log.observe(prompt=[n for n, _ in batch], reward=[v for _, v in batch], step=step)
            self._done(job.place)
        elif job.kind == "at":
            with self._log.at(step):
                self._done(job.place)  # the step may end before this: its window waits
                await self._observe(job.batches, declog.observe)
                await self._schedule.turn()
        elif job.kind == "at thread":
            with ThreadPoolExecutor(1) as thread, self._log.at(step) as scope:
                self._done(job.place)
                await self._observe(job.batches, scope.observe, thread)
        else:
            made = []
            for batch in job.batches:
                await self._schedule.turn()
                made.append(declog.rows(prompt=[n for n, _ in batch], reward=[v for _, v in batch]))
            self._packets[job.place] += made
            if job.kind == "twice":
                self._packets[job.place].append(made[0])
                self.truth.failures[TWICE] += len(job.batches[0])
            self._done(job.place)

    async def _inside(self, job: Job, scope: Scope) -> None:
        """A task that the step has started: its context is the step's."""
        rows = _flat(job.batches)
        if job.kind == "outlives":
            await self._outlive(job)
            return
        if job.kind == "child":
            await self._observe(job.batches, declog.observe)
        elif job.kind == "refused":  # a call with wrong rows, and nothing of it is anywhere
            with suppress(declog.InputError):
                declog.observe(prompt=["refused"], reward=[1.0, 2.0])
            await self._observe(job.batches, declog.observe)
        elif job.kind == "cancelled":
            rows = [*job.batches[0]]
            await self._cancelled(job.batches[:1])
        elif job.kind == "batch":
            for batch in job.batches:
                with self._log.batch():
                    await self._schedule.start(self._observe([batch], declog.observe))
        else:
            observe = scope.observe if job.kind == "handle" else declog.bind(declog.observe)
            with ThreadPoolExecutor(1) as thread:
                await self._observe(job.batches, observe, thread)
        self.truth.add(self.window(job.place), rows)
        self._done(job.place)

    async def _cancelled(self, batches: Any) -> None:
        """A task that is cancelled when it has observed some rows: these are there."""
        observed = asyncio.Event()

        async def doomed() -> None:
            await self._observe(batches, declog.observe)
            observed.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(doomed())
        await observed.wait()
        task.cancel()

    async def _outlive(self, job: Job) -> None:
        """It goes on when its step is over, and has started one in a block of a mode that goes on in the step."""
        first, *others = job.batches
        with self._log.mode("eval", step=1000 + id(job) % 1000):
            going = self._schedule.start(self._going(first))
        await going
        self._done(job.place)
        while self._ended <= job.place or self._log._session.step is not None:
            await self._schedule.turn()
        for batch in others:
            declog.observe(prompt=[n for n, _ in batch], reward=[v for _, v in batch])
            self.truth.failures[ENDED] += len(batch)

    async def _going(self, batch: tuple[Row, ...]) -> None:
        await self._schedule.turn()
        declog.observe(prompt=[n for n, _ in batch], reward=[v for _, v in batch])
        self.truth.failures[MODE_ENDED] += len(batch)

    async def _evaluate(self, step: int, batches: Any) -> None:
        with self._log.mode("eval", step=step):
            half = len(batches) // 2
            one = self._schedule.start(self._observe(batches[:half], declog.observe))
            await self._observe(batches[half:], declog.observe)
            await one
        self.truth.add(("eval", step), _flat(batches))


def _flat(batches: Any) -> list[Row]:
    return [row for batch in batches for row in batch]


def executed(program: Program, seed: int | None) -> Execution:
    """The program in a schedule; without a seed in the order in which its parts are ready."""

    async def main() -> Execution:
        execution = Execution(program, seed)
        await execution.run()
        return execution

    return asyncio.run(main())
