"""Random asynchronous programs, run in any order that they allow, and the numbers that they must give, by hand.

A program has a trainer, whose steps have gaps and windows of several steps, are blocks or commits, and are made again
after a rewind; and workers: tasks, threads and packets that contribute to a step as it is open or before it is,
evaluations beside it, and tasks that outlive their scope. Each of them may make calls that are refused, at once or when
their batch closes, and may raise after any call. A second program may run on a recorder of its own inside a step of
the first. Who goes on next is drawn by a controller, one call at a time: a schedule. Every row is observed in two
calls, so that rows that are mixed are seen.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Literal

import declog
from declog.engine.publish import CODE, Route
from declog.language import reductions
from declog.plans.ops import Plan
from declog.records import Records
from declog.runtime.comm import LocalComm
from declog.runtime.recorder import Recorder
from declog.runtime.scopes import Scope
from tests.runtime.scopes.running import ENDED, MODE_ENDED, PROFILE, TWICE

Kind = Literal["at", "at thread", "step=", "child", "handle", "bind", "packet", "wrong packet", "twice", "next",
    "batch", "outlives", "cancelled",
]  # fmt: skip
KINDS: tuple[Kind, ...] = (
    "at", "at thread", "step=", "child", "handle", "bind", "packet", "wrong packet", "twice", "next", "batch",
    "outlives", "cancelled",
)  # fmt: skip
INSIDE = {"child", "handle", "bind", "batch", "outlives", "cancelled"}  # what the step itself starts
IN_BLOCKS = {"bind", "batch", "outlives"}  # what there is only where a step is a block
ADDRESSED = {"at", "at thread", "step="}  # what says the number of its step
EVALUATED, GOING = 1000, 2000  # steps of evaluations, and of blocks that a task outlives
UNLUCKY = "[DL605] the metric `picky` could not be evaluated: Raised: an unlucky value"
Row = tuple[str, float | None]  # a prompt and its reward, which is None where code raised before it was observed
Batch = tuple[tuple[str, float], ...]
Where = tuple[str, int, int]  # a mode, a step, and how many log events of that step there were before


class Raised(Exception):
    """What training code raises, anywhere."""


class Unreadable:
    """A value that raises where it is read."""

    def __len__(self) -> int:
        raise Raised

    def __array__(self, *args: Any, **options: Any) -> Any:
        raise Raised


@dataclass(frozen=True)
class Work:
    """Batches that one task observes, each in two calls, and what goes wrong meanwhile."""

    batches: tuple[Batch, ...]
    raises: int | None = None  # its code raises after so many calls
    refused: frozenset[int] = frozenset()  # the calls that a wrong one is made before
    spoiled: int | None = None  # the batch that stands behind one which is refused when it closes

    @property
    def rows(self) -> list[Row]:
        """By hand: those of the calls that were made. A row whose second call was not has no reward."""
        whole, half = divmod(2 * len(self.batches) if self.raises is None else self.raises, 2)
        rows: list[Row] = [row for batch in self.batches[:whole] for row in batch]
        return rows + [(name, None) for name, _ in self.batches[whole]] if half else rows

    @property
    def at_once(self) -> tuple[Batch, ...]:
        """By hand: the batches that are there where each is one call."""
        return self.batches if self.raises is None else self.batches[: self.raises // 2]


@dataclass(frozen=True)
class Job:
    """Who works for the step at a place among the steps."""

    kind: Kind
    place: int
    work: Work


@dataclass(frozen=True)
class Program:
    """Step numbers, how many a window has, and who works beside the trainer."""

    steps: tuple[int, ...]
    rewinds: Mapping[int, int]  # before the step at a place the trainer goes back to a step
    commits: bool  # steps are committed, and are no blocks
    every: int
    trainer: tuple[Work, ...]  # by step
    jobs: tuple[Job, ...]
    evaluations: tuple[tuple[int, Work, Work], ...]  # the place of the step that each begins at; two tasks

    def after(self, place: int) -> int:
        """The place of the last step before the one at a place that a rewind goes before; 0 where there is none."""
        return max((back for back in self.rewinds if back <= place), default=0)

    def window(self, place: int) -> int:
        """The place of the step that ends the window of the step at a place."""
        ends = range(place, len(self.steps))
        return next(end for end in ends if self._ends(end))

    def _ends(self, place: int) -> bool:
        count = place + 1
        return count % self.every == 0 or count in self.rewinds or count == len(self.steps)


def generated(seed: int, kinds: tuple[Kind, ...] = KINDS) -> Program:
    """A program, whose workers are of these kinds."""
    chance = random.Random(seed)
    names = (f"row {number}" for number in range(10**6))
    commits = chance.random() < 0.25
    kinds = tuple(kind for kind in kinds if not (commits and kind in IN_BLOCKS))

    def work(kind: Kind | None = None) -> Work:
        batches = tuple(
            tuple((next(names), float(chance.randrange(100))) for _ in range(chance.randint(1, 3)))
            for _ in range(chance.randint(1, 3))
        )
        calls = range(2 * len(batches))
        raises = chance.choice(calls) if chance.random() < 0.2 else None
        refused = frozenset(call for call in calls if chance.random() < 0.1)
        spoiled = chance.randint(0, len(batches)) if kind != "batch" and chance.random() < 0.15 else None
        return Work(batches, raises, refused, spoiled)

    count = chance.randint(1, 5)
    steps, rewinds = [chance.randrange(-3, 20)], {}
    for place in range(1, count):
        before = steps[-1]
        if chance.random() < 0.2:
            before = rewinds[place] = steps[-1] - chance.randrange(8)
        again = [step for step in steps if step > before]
        steps.append(chance.choice(again) if again and chance.random() < 0.6 else before + chance.randint(1, 6))
    jobs = []
    for _ in range(chance.randint(0, 9)):
        kind = chance.choice(kinds)
        jobs.append(Job(kind, chance.randrange(count), work(kind)))
    evaluations = tuple((place, work(), work()) for place in range(count) if chance.random() < 0.3)
    trainer = tuple(work() for _ in steps)
    return Program(tuple(steps), rewinds, commits, chance.randint(1, 3), trainer, tuple(jobs), evaluations)


@dataclass
class Outcome:
    """Rows of each log event, with their counts and sums as logged; and what was reported."""

    rows: dict[Where, list[Row]] = field(default_factory=lambda: defaultdict(list))
    counts: dict[Where, float] = field(default_factory=dict)
    sums: dict[Where, float] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)

    def add(self, where: Where, rows: list[Row]) -> None:
        """By hand: the rows of a log event."""
        rewards = [reward for _, reward in rows if reward is not None]
        self.rows[where] = rows
        if rewards:
            self.counts[where], self.sums[where] = len(rewards), sum(rewards)
            self.failures[UNLUCKY] += any(map(_unlucky, rewards))

    @property
    def plain(self) -> tuple[Any, ...]:
        """To be compared: the order of tasks is not part of it."""
        rows = {where: sorted(found, key=str) for where, found in self.rows.items() if found}
        failures = {text: count for text, count in self.failures.items() if count}
        return rows, self.counts, self.sums, failures


def _unlucky(reward: float) -> bool:
    return reward % 25 == 13


@cache
def plan(every: int) -> Plan:
    """The profile's plan, with windows of so many steps, and a metric whose function raises for some values."""
    registry = reductions.Reductions(reductions.BUILTIN)

    @reductions.reducer(registry=registry)
    def picky(values: Any) -> float:
        if any(map(_unlucky, values)):
            raise Raised("an unlucky value")
        return 0.0

    signals = {**PROFILE["signals"], "level": {"axis": "group", "optional": True}}
    metrics = {"n": "count(reward)", "sum": "sum(reward)", "picky": "picky(reward)", "level": "mean(level)"}
    profile = {**PROFILE, "axes": {"group": {"size": 1}}, "signals": signals, "metrics": metrics, "every": every}
    return declog.plan({**profile, "sinks": {}}, profiles=["full"], reductions=registry)


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
        """Until all are done; raises what one of them raised, where the program does not say that it does."""
        idle = 0
        while any(not task.done() for task in self._actors):
            self._check()
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
        self._check()

    def _check(self) -> None:
        for task in self._actors:
            error = task.exception() if task.done() else None
            if error is not None and not isinstance(error, Raised):
                raise error  # else the others would wait for it


class Execution:
    """One run of a program. What it must give is written down by hand while it runs: by then is known which step ends
    next."""

    def __init__(self, program: Program, schedule: Schedule, second: Execution | None = None) -> None:
        self.program = program
        self.seen = Outcome()
        self.second = second  # runs inside the first step
        self._schedule = schedule
        self._windows: dict[int, list[Row]] = defaultdict(list)  # by the place of the step that ends each
        self._evaluated: dict[int, list[Row]] = {}
        self._reported: Counter[str] = Counter()
        route = Route(CODE, "full", 1, "", frozenset({"scalar", "table"}), self._keep)
        self._log = Recorder(plan(program.every), LocalComm(), {}, [route], None, commits=program.commits)
        self._events: Counter[tuple[str, int]] = Counter()
        self._tasks: list[asyncio.Task[Any]] = []
        self._addressed: list[tuple[int, asyncio.Task[Any]]] = []
        self._needed = Counter(job.place for job in program.jobs if job.kind != "next")
        self._free = [asyncio.Event() for _ in program.steps]
        self._packets: list[list[Any]] = [[] for _ in program.steps]
        self._again: list[list[Any]] = [[] for _ in program.steps]  # taken again, where it is made again
        self._consumed: list[list[Row]] = [[] for _ in program.steps]  # and their rows
        self._ended = 0  # steps
        self._rewound = {0: asyncio.Event()} | {place: asyncio.Event() for place in program.rewinds}
        self._rewound[0].set()

    @property
    def truth(self) -> Outcome:
        """What it must give, by hand."""
        truth, events = Outcome(failures=Counter(self._reported)), Counter[int]()
        for place, rows in sorted(self._windows.items()):
            if rows:
                step = self.program.steps[place]
                truth.add(("train", step, events[step]), rows)
                events[step] += 1
        for step, rows in self._evaluated.items():
            truth.add(("eval", step, 0), rows)
        return truth

    def _keep(self, step: int, records: Records) -> None:
        where = records.mode, step, self._events[records.mode, step]
        self._events[records.mode, step] += 1
        for item in records.scalars:
            found = {"n": self.seen.counts, "sum": self.seen.sums}.get(item.name.removeprefix("eval/"))
            if found is not None:
                found[where] = found.get(where, 0) + item.value
        for table in records.tables:
            self.seen.rows[where] += list(zip(table.data["prompt"], table.data["reward"], strict=True))

    def _start(self, actor: Any) -> asyncio.Task[Any]:
        task = self._schedule.start(actor)
        self._tasks.append(task)
        return task

    async def run(self) -> None:
        """Run the program, and close."""
        for place, needed in enumerate(self._free):
            if not self._needed[place]:
                needed.set()
        with self._log:
            self._start(self._train())
            for number, job in enumerate(self.program.jobs):
                if job.kind not in INSIDE:
                    task = self._start(self._ahead(number, job))
                    if job.kind in ADDRESSED:
                        self._addressed.append((job.place, task))
            while not all(task.done() for task in self._tasks):
                await asyncio.wait(self._tasks)
        told = self._log.failures.items()
        self.seen.failures.update({text: count for text, count in told if not text.startswith(SPOILED)})

    # -- the trainer

    @contextmanager
    def _step(self, step: int) -> Iterator[Scope | None]:
        if not self.program.commits:
            with self._log.step(step) as scope:
                yield scope
            return
        try:
            yield None
        finally:
            self._log.commit(step)

    async def _train(self) -> None:
        program, turn = self.program, self._schedule.turn
        for place, step in enumerate(program.steps):
            await turn()
            if place in program.rewinds:
                if earlier := [task for number, task in self._addressed if number < place]:
                    await asyncio.wait(earlier)
                await turn()
                self._log.rewind(program.rewinds[place])
                self._rewound[place].set()
            with suppress(Raised, declog.InputError), self._step(step) as scope:
                await self._train_on(place, scope)

    async def _train_on(self, place: int, scope: Scope | None) -> None:
        program = self.program
        observe = self._log.observe if scope is None else declog.observe
        if place == 0 and self.second is not None:
            self._schedule.start(self.second.run())
        for number, job in enumerate(program.jobs):
            if job.place == place and job.kind in INSIDE:
                self._start(self._inside(number, job, scope))
        for where, first, second in program.evaluations:
            if where == place:
                self._start(self._evaluate(EVALUATED + place, first, second))
        error: Raised | None = None
        try:
            await self._observe(program.trainer[place], observe)
        except Raised as raised:  # tasks of the step are waited for, whatever its own code does
            error = raised
        self._given(place, program.trainer[place].rows)
        await self._free[place].wait()
        await self._schedule.turn()
        self._ended = place + 1
        packets = [*self._packets[place]]
        for before in range(place):
            if program.steps[before] == program.steps[place]:
                packets += self._again[before]
                self._given(place, self._consumed[before])
        try:
            if place % 2:
                observe(*packets)
            else:
                for packet in packets:
                    with suppress(declog.InputError):
                        observe(packet)
        finally:
            if error is not None:
                raise error

    def _given(self, place: int, rows: Any) -> None:
        """By hand: rows of the step at a place."""
        self._windows[self.program.window(place)] += rows

    async def _observe(self, work: Work, observe: Callable[..., None], thread: Any = None) -> None:
        """Each batch in two calls, with a turn of others between them."""
        for place, (batch, name) in enumerate((batch, name) for batch in work.batches for name in ("prompt", "reward")):
            if place == work.raises:
                raise Raised
            names, rewards = [name for name, _ in batch], [value for _, value in batch]
            if place in work.refused:
                for wrong in ([9.0] * (len(batch) + 1), Unreadable()):
                    values = {"prompt": names, "reward": wrong} if name == "prompt" else {"reward": wrong}
                    await self._call(partial(_refused, observe, **values), thread)
            call = partial(observe, **({"prompt": names} if name == "prompt" else {"reward": rewards}))
            if work.spoiled is not None and place == 2 * work.spoiled:
                await self._call(partial(observe, **SPOILS), thread)
                call = partial(_refused, call)  # it closes the batch before, and is recorded
            await self._call(call, thread)
        if work.raises is None and work.spoiled == len(work.batches):  # refused when all closes
            await self._call(partial(observe, **SPOILS), thread)

    async def _call(self, call: Callable[[], None], thread: Any) -> None:
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

    async def _ahead(self, number: int, job: Job) -> None:
        await self._schedule.turn()
        if job.kind == "next":
            await self._next(job.work)
        elif job.kind in ADDRESSED:
            await self._address(job)
        else:
            packets = []
            for batch in job.work.batches:
                await self._schedule.turn()
                packets.append(declog.rows(prompt=[n for n, _ in batch], reward=[v for _, v in batch]))
            if job.kind == "wrong packet":  # those beside it are there
                packets.insert(number % len(packets), declog.rows(prompt=["refused"], reward=[1.0, 2.0]))
            if job.kind == "twice":
                packets.append(packets[0])
                self._reported[TWICE] += len(job.work.batches[0])
            rows = [row for batch in job.work.batches for row in batch]
            if job.kind == "packet":
                self._again[job.place] += packets
                self._consumed[job.place] += rows
            self._packets[job.place] += packets
            self._given(job.place, rows)
            self._done(job.place)

    async def _next(self, work: Work) -> None:
        for place, batch in enumerate(work.at_once):
            await self._schedule.turn()
            if self._ended == len(self.program.steps):
                return
            if place in work.refused:
                _refused(self._log.observe, prompt=["refused"], reward=[1.0, 2.0], step="next")
            self._log.observe(prompt=[n for n, _ in batch], reward=[v for _, v in batch], step="next")
            self._given(self._ended, batch)

    async def _address(self, job: Job) -> None:
        """Contribute to a step by its number: where there was one of it already, when the trainer has gone back."""
        steps, work, back = self.program.steps, job.work, self.program.after(job.place)
        step = steps[job.place]
        if step <= max(steps[:back], default=step - 1):
            await self._rewound[back].wait()
            await self._schedule.turn()
        if job.kind == "step=":
            for place, batch in enumerate(work.at_once):
                await self._schedule.turn()
                if place in work.refused:
                    _refused(self._log.observe, prompt=["refused"], reward=[1.0, 2.0], step=step)
                if place == work.spoiled:
                    _refused(self._log.observe, **SPOILS, step=step)
                self._log.observe(prompt=[n for n, _ in batch], reward=[v for _, v in batch], step=step)
            self._given(job.place, [row for batch in work.at_once for row in batch])
            self._done(job.place)
            return
        self._given(job.place, work.rows)
        with ThreadPoolExecutor(1) as thread, suppress(Raised, declog.InputError), self._log.at(step) as scope:
            self._done(job.place)  # the step may end before this: its window waits
            if job.kind == "at":
                await self._observe(work, declog.observe)
            else:
                await self._observe(work, scope.observe, thread)
            await self._schedule.turn()

    async def _inside(self, number: int, job: Job, scope: Scope | None) -> None:
        """A task that the step has started: its context is the step's."""
        work = job.work
        if job.kind == "outlives":
            await self._outlive(number, job)
            return
        observe = declog.observe if scope is not None else self._log.observe
        with suppress(Raised):
            if job.kind == "child":
                await self._observe(work, observe)
            elif job.kind == "cancelled":
                await self._cancelled(work, observe)
            elif job.kind == "batch":
                await self._explicit(work)
            else:
                there = declog.bind(observe) if job.kind == "bind" else observe if scope is None else scope.observe
                with ThreadPoolExecutor(1) as thread:
                    await self._observe(work, there, thread)
        self._given(job.place, work.rows)
        self._done(job.place)

    async def _explicit(self, work: Work) -> None:
        """Each batch is explicit, and a task's; the block raises what the task does."""
        for place in range(len(work.batches)):
            raises = None if work.raises is None else max(work.raises - 2 * place, 0)
            calls = frozenset(call - 2 * place for call in work.refused)
            with self._log.batch():
                alone = Work((work.batches[place],), raises if raises in (0, 1) else None, calls)
                await self._start(self._observe(alone, declog.observe))

    async def _cancelled(self, work: Work, observe: Callable[..., None]) -> None:
        """A task that is cancelled when it has observed its rows: these are there."""
        observed = asyncio.Event()

        async def doomed() -> None:
            with suppress(Raised):
                await self._observe(work, observe)
            observed.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(doomed())
        await asyncio.wait([task, asyncio.create_task(observed.wait())], return_when=asyncio.FIRST_COMPLETED)
        if not task.cancel():
            task.result()

    async def _outlive(self, number: int, job: Job) -> None:
        """It goes on when its step is over, and has started one in a block of a mode that goes on in the step."""
        first, *others = job.work.batches
        with self._log.mode("eval", step=GOING + number):
            going = self._start(self._going(first))
        await going
        self._done(job.place)
        while self._ended <= job.place or self._log._session.step is not None:
            await self._schedule.turn()
        for batch in others:
            declog.observe(prompt=[n for n, _ in batch], reward=[v for _, v in batch])
            self._reported[ENDED] += len(batch)

    async def _going(self, batch: Batch) -> None:
        await self._schedule.turn()
        declog.observe(prompt=[n for n, _ in batch], reward=[v for _, v in batch])
        self._reported[MODE_ENDED] += len(batch)

    async def _evaluate(self, step: int, first: Work, second: Work) -> None:
        with suppress(Raised, declog.InputError), self._log.mode("eval", step=step):
            one = self._start(self._observe(first, declog.observe))
            try:
                await self._observe(second, declog.observe)
            finally:
                await asyncio.wait([one])
        self._evaluated[step] = first.rows + second.rows


SPOILS: Mapping[str, Any] = {"prompt": ["spoiled"], "reward": [-1.0], "level": [1.0, 2.0]}  # one group, two values
SPOILED = "[DL50"  # what else is refused where the first of several is raised


def _refused(observe: Callable[..., None], **values: Any) -> None:
    """A call that raises."""
    try:
        observe(**values)
    except (declog.InputError, Raised):
        return
    raise AssertionError(f"{values} were not refused")


def executed(program: Program, seed: int | None, second: Program | None = None) -> list[Execution]:
    """A program, or one with another inside, in a schedule; without a seed in the order in which parts are ready."""

    async def main() -> list[Execution]:
        schedule = Schedule(seed)
        inner = None if second is None else Execution(second, schedule)
        outer = Execution(program, schedule, inner)
        schedule.start(outer.run())
        await schedule.run()
        return [outer] if inner is None else [outer, inner]

    return asyncio.run(main())


def differences(seed: int, schedule: int | None, kinds: tuple[Kind, ...] = KINDS) -> list[str]:
    """What is logged of the program of a seed, alone or with a second one inside, and is not what it must give."""
    second = generated(seed + 10**9, kinds) if seed % 4 == 3 else None
    runs = executed(generated(seed, kinds), schedule, second)
    return [
        f"program {seed} in schedule {schedule}, recorder {number}: {run.seen.plain} is not {run.truth.plain}"
        for number, run in enumerate(runs)
        if run.seen.plain != run.truth.plain
    ]
