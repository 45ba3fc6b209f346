"""Random asynchronous programs, run in any order that they allow, and the numbers that they must give, by hand.

A program has a trainer, whose steps have gaps and windows of several steps, are blocks or commits, and are made again
after a rewind; and workers: tasks, threads and packets that contribute to a step as it is open or before it is,
evaluations beside it, and tasks that outlive their scope. Each of them may make calls that are refused, at once or when
their batch closes, and may raise after any call. The trainer flushes, inside steps and between them, saves checkpoints
from which other recorders go on, and goes back, while others still contribute to steps. A second program may run on a
recorder of its own inside a step of the first. Who goes on next is drawn by a controller, one call at a time: a
schedule. Rows are observed in two calls, so that rows that are mixed are seen, but for those that a flush could part.

By hand means: a list of rows, each with the number of its step, and a list of the windows that have ended (`Ledger`).
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
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.recorder import Recorder
from declog.runtime.rows.scopes import Scope
from declog.runtime.run.outlets import Outlets
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
Row = tuple[str | None, float | None]  # a prompt and its reward, which is None where code raised before it was observed
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
class Evaluation:
    """Two tasks in a block of another mode, beside the step at a place; a third one may flush."""

    place: int
    first: Work
    second: Work
    flushes: bool


@dataclass(frozen=True)
class Program:
    """Step numbers, how many a window has, and who works beside the trainer."""

    steps: tuple[int, ...]
    rewinds: Mapping[int, int]  # before the step at a place the trainer goes back to a step
    hasty: frozenset[int]  # the places of rewinds that do not wait for those who contribute to steps
    flushes: frozenset[int]  # the places of steps in which somebody flushes
    between: frozenset[int]  # the places of steps before which the trainer flushes
    saved: frozenset[int]  # the places of steps before which a checkpoint is saved
    commits: bool  # steps are committed, and are no blocks
    every: int
    trainer: tuple[Work, ...]  # by step
    jobs: tuple[Job, ...]
    evaluations: tuple[Evaluation, ...]

    def after(self, place: int) -> int:
        """The place of the last step before the one at a place that a rewind goes before; 0 where there is none."""
        return max((back for back in self.rewinds if back <= place), default=0)


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
    evaluations = tuple(
        Evaluation(place, work(), work(), chance.random() < 0.4) for place in range(count) if chance.random() < 0.3
    )
    trainer = tuple(work() for _ in steps)
    hasty, flushes, between, saved = (
        frozenset(place for place in range(count) if chance.random() < share) for share in (0.7, 0.25, 0.15, 0.25)
    )
    every = chance.randint(1, 3)
    return Program(
        tuple(steps), rewinds, hasty, flushes, between, saved, commits, every, trainer, tuple(jobs), evaluations
    )


@dataclass
class Outcome:
    """Rows of each log event, with their counts and sums as logged; and what was reported."""

    rows: dict[Where, list[Row]] = field(default_factory=lambda: defaultdict(list))
    counts: dict[Where, float] = field(default_factory=dict)
    sums: dict[Where, float] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    _events: Counter[tuple[str, int]] = field(default_factory=Counter)

    def _next(self, mode: str, step: int) -> Where:
        where = mode, step, self._events[mode, step]
        self._events[mode, step] += 1
        return where

    def add(self, mode: str, step: int, rows: list[Row]) -> None:
        """By hand: the rows of a log event."""
        if rows:
            where = self._next(mode, step)
            rewards = [reward for _, reward in rows if reward is not None]
            self.rows[where] = rows
            if rewards:
                self.counts[where], self.sums[where] = len(rewards), sum(rewards)
                self.failures[UNLUCKY] += any(map(_unlucky, rewards))

    def keep(self, step: int, records: Records) -> None:
        """As logged."""
        where = self._next(records.mode, step)
        for item in records.scalars:
            values = {"n": self.counts, "sum": self.sums}.get(item.name.removeprefix("eval/"))
            if values is not None:
                values[where] = values.get(where, 0) + item.value
        for table in records.tables:
            self.rows[where] += list(zip(table.data["prompt"], table.data["reward"], strict=True))

    @property
    def plain(self) -> tuple[Any, ...]:
        """To be compared: the order of tasks is not part of it."""
        rows = {where: sorted(logged, key=str) for where, logged in self.rows.items() if logged}
        failures = {text: count for text, count in self.failures.items() if count}
        return rows, self.counts, self.sums, failures


class Hand:
    """By hand: the batch that one task or thread has open. A value that is given again opens the next one."""

    def __init__(self, keep: Callable[[list[Row]], None]) -> None:
        self._keep = keep
        self._given: dict[str, Any] = {}

    def call(self, **values: Any) -> None:
        """A call that is recorded."""
        if self._given.keys() & values.keys():
            self.close()
        self._given |= values

    def close(self) -> None:
        """Its rows are kept, unless it has what is refused only then."""
        given, self._given = self._given, {}
        if given and "level" not in given:
            nothing = [None] * max(map(len, given.values()))
            self._keep(list(zip(given.get("prompt", nothing), given.get("reward", nothing), strict=True)))


class Ledger:
    """By hand: the rows of closed batches, each with its step's number, until a log event has it."""

    def __init__(self, every: int, outcome: Outcome) -> None:
        self.last: int | None = None  # the step that ended last
        self.next: list[Row] = []  # of the step that ends next
        self.hands: list[Hand] = []  # of those who record in the step that is open
        self._every = every
        self._outcome = outcome
        self._count = 0  # steps that ended
        self._rows: list[tuple[int, Row]] = []
        self._working: Counter[int] = Counter()  # blocks that are open and contribute to a step, by its number
        self._ends: list[int] = []  # windows that have ended, and wait for such blocks

    def keep(self, number: int, rows: list[Row]) -> None:
        """Rows of a batch that closed."""
        self._rows += [(number, row) for row in rows]

    def upto(self, number: int | None) -> list[Row]:
        """The rows of the steps up to one."""
        return [row for step, row in self._rows if number is not None and step <= number]

    def _log(self, step: int, upto: int) -> None:
        self._outcome.add("train", step, self.upto(upto))
        self._rows = [(number, row) for number, row in self._rows if number > upto]

    def finish(self) -> None:
        """Nobody is waited for any more."""
        for end in self._ends:
            self._log(end, end)
        self._ends = []

    def advance(self) -> None:
        """Windows are logged that nobody contributes to any more."""
        while self._ends and not any(count and number <= self._ends[0] for number, count in self._working.items()):
            end = self._ends.pop(0)
            self._log(end, end)

    @contextmanager
    def contributing(self, number: int) -> Iterator[Hand]:
        """A block that contributes to a step."""
        hand = Hand(lambda rows: self.keep(number, rows))
        self._working[number] += 1
        try:
            yield hand
        finally:
            hand.close()
            self._working[number] -= 1
            self.advance()

    def _close_step(self, number: int) -> None:
        for hand in self.hands:
            hand.close()
        self.keep(number, self.next)
        self.next.clear()

    def step_ended(self, number: int) -> None:
        """The trainer's step is over."""
        self._close_step(number)
        self.hands = []
        self.last = number
        self._count += 1
        if self._count % self._every == 0:
            self._ends.append(number)
            self.advance()

    def flush(self, step: int | None) -> None:
        """Inside a step, or between two."""
        if step is not None:
            self._close_step(step)
        self.finish()
        number = self.last if step is None else step
        if number is not None:
            self._log(number, number)

    def rewind(self, number: int) -> None:
        """The trainer goes back: what is open is logged in two, and the second part is taken back."""
        self.finish()
        if self.last is not None and number < self.last:
            self._log(number, number)
        self.flush(None)
        self.last, self._count = number, 0

    def close(self) -> None:
        """The run is over."""
        ahead = sorted({number for number, _ in self._rows if self.last is None or number > self.last})
        for number in ahead if len(ahead) > 1 else ():
            self.step_ended(number)
        self.finish()
        if self._rows:
            numbers = [number for number, _ in self._rows]
            self._log(max(numbers) if self.last is None else max(self.last, *numbers), max(numbers))


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

    signals = {**PROFILE["signals"]["any"], "level": {"axis": "group"}}
    metrics = {"n": "count(reward)", "sum": "sum(reward)", "picky": "picky(reward)", "level": "mean(level)"}
    profile = {
        **PROFILE,
        "axes": {"group": {"size": 1}},
        "signals": {"any": signals},
        "metrics": metrics,
        "every": every,
    }
    return declog.plan({**profile, "sinks": []}, profiles=["full"], reductions=registry)


class Schedule:
    """Lets one actor go on at a time: the next in line, or drawn by a seed."""

    def __init__(self, seed: int | None) -> None:
        self._chance = None if seed is None else random.Random(seed)
        self._waiting: list[asyncio.Future[None]] = []
        self._actors: set[asyncio.Task[Any]] = set()
        self._busy = 0  # actors whose thread makes a call

    @contextmanager
    def busy(self) -> Iterator[None]:
        """A call of an actor's thread: nobody else goes on meanwhile."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1

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
            if self._waiting and not self._busy:
                place = 0 if self._chance is None else self._chance.randrange(len(self._waiting))
                self._waiting.pop(place).set_result(None)
            else:
                await asyncio.sleep(0.0005)  # a thread is working
                idle += 1
                if idle > 20_000:
                    raise TimeoutError("nobody can go on")
        self._check()

    def _check(self) -> None:
        errors = [task.exception() for task in self._actors if task.done()]  # asyncio logs those nobody asked for
        for error in errors:
            if error is not None and not isinstance(error, Raised):
                raise error  # else the others would wait for it


class Execution:
    """One run of a program, and beside it what it must give, written down by hand call by call."""

    def __init__(self, program: Program, schedule: Schedule, second: Execution | None = None) -> None:
        self.program = program
        self.seen, self.truth = Outcome(), Outcome()
        self.restored: list[tuple[Outcome, Outcome]] = []  # of recorders that went on from checkpoints, and by hand
        self.second = second  # runs inside the first step
        self._schedule = schedule
        self._ledger = Ledger(program.every, self.truth)
        self._log = self._recorder(self.seen, commits=program.commits)
        self._tasks: list[asyncio.Task[Any]] = []
        self._addressed: list[tuple[int, asyncio.Task[Any]]] = []
        self._needed = Counter(job.place for job in program.jobs if job.kind != "next") + Counter(program.flushes)
        self._free = [asyncio.Event() for _ in program.steps]
        self._packets: list[list[tuple[Any, list[Row]]]] = [[] for _ in program.steps]
        self._again: list[list[tuple[Any, list[Row]]]] = [[] for _ in program.steps]  # taken where it is made again
        self._ended = 0  # steps
        self._rewound = {0: asyncio.Event()} | {place: asyncio.Event() for place in program.rewinds}
        self._rewound[0].set()

    def _recorder(self, outcome: Outcome, **options: Any) -> Recorder:
        route = Route(CODE, "full", 1, "", frozenset({"scalar", "table"}), outcome.keep)
        return Recorder(plan(self.program.every), Comm(), Outlets(routes=[route]), **options)

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
        self._ledger.close()
        told = self._log.failures.items()
        self.seen.failures.update({text: count for text, count in told if not text.startswith(SPOILED)})

    # -- the trainer

    @contextmanager
    def _step(self, step: int) -> Iterator[Scope | None]:
        try:
            if self.program.commits:
                try:
                    yield None
                finally:
                    self._log.commit(step)
            else:
                with self._log.step(step) as scope:
                    yield scope
        finally:
            self._ledger.step_ended(step)

    async def _train(self) -> None:
        program, turn = self.program, self._schedule.turn
        for place, step in enumerate(program.steps):
            await turn()
            if place in program.between:
                self._log.flush()
                self._ledger.flush(None)
                await turn()
            if place in program.saved:
                self._go_on_from_a_checkpoint(place)
                await turn()
            if place in program.rewinds:
                earlier = [task for number, task in self._addressed if number < place]
                if earlier and place not in program.hasty:
                    await asyncio.wait(earlier)
                    await turn()
                self._log.rewind(program.rewinds[place])
                self._ledger.rewind(program.rewinds[place])
                self._rewound[place].set()
            with suppress(Raised, declog.InputError), self._step(step) as scope:
                await self._train_on(place, scope)

    def _go_on_from_a_checkpoint(self, place: int) -> None:
        """Another recorder goes on there by one step: it has the rows of steps that ended and were not logged."""
        last, row = self._ledger.last, (f"after {place}", 1.0)
        seen, truth = Outcome(), Outcome()
        step = 0 if last is None else last + 1
        rows = self._ledger.upto(last)
        state = self._log.state_dict()
        with self._recorder(seen) as restored:
            restored.load_state_dict(state)
            with restored.step(step):
                restored.observe(prompt=[row[0]], reward=[row[1]])
        seen.failures.update(restored.failures)
        truth.add("train", step, [*rows, row])
        self.restored.append((seen, truth))

    async def _train_on(self, place: int, scope: Scope | None) -> None:
        program = self.program
        observe = self._log.observe if scope is None else declog.observe
        if place == 0 and self.second is not None:
            self._schedule.start(self.second.run())
        for number, job in enumerate(program.jobs):
            if job.place == place and job.kind in INSIDE:
                self._start(self._inside(number, job, scope))
        for evaluation in program.evaluations:
            if evaluation.place == place:
                self._start(self._evaluate(evaluation))
        if place in program.flushes:
            self._start(self._flush(place))
        error: Raised | None = None
        try:
            await self._observe(program.trainer[place], observe, self._hand(), whole=place in program.flushes)
        except Raised as raised:  # tasks of the step are waited for, whatever its own code does
            error = raised
        await self._free[place].wait()
        await self._schedule.turn()
        self._ended = place + 1
        packets = [*self._packets[place]]
        for before in range(place):
            if program.steps[before] == program.steps[place]:
                packets += self._again[before]
        for _, rows in packets:
            self._ledger.keep(program.steps[place], rows)
        try:
            if place % 2:
                observe(*[packet for packet, _ in packets])
            else:
                for packet, _ in packets:
                    with suppress(declog.InputError):
                        observe(packet)
        finally:
            if error is not None:
                raise error

    def _hand(self) -> Hand:
        """By hand: one more task or thread records in the step that is open."""
        hand = Hand(self._ledger.next.extend)
        self._ledger.hands.append(hand)
        return hand

    async def _flush(self, place: int) -> None:
        """Somebody flushes in the step at a place; of commits between two."""
        await self._schedule.turn()
        with suppress(declog.InputError):  # of a batch that is spoiled
            self._log.flush()
        self._ledger.flush(None if self.program.commits else self.program.steps[place])
        self._done(place)

    async def _observe(
        self, work: Work, observe: Callable[..., None], hand: Hand, thread: Any = None, *, whole: bool = False
    ) -> None:
        """Each batch in two calls, with a turn of others between them; or ``whole``, where a flush could part them."""
        for place, (batch, name) in enumerate((batch, name) for batch in work.batches for name in ("prompt", "reward")):
            if place == work.raises:
                raise Raised
            both = {"prompt": [name for name, _ in batch], "reward": [value for _, value in batch]}
            values = both if whole and name == "prompt" else {} if whole else {name: both[name]}
            if place in work.refused:
                for wrong in ([9.0] * (len(batch) + 1), Unreadable()):
                    mistaken = {**values, "reward": wrong}
                    if whole and name == "reward":
                        mistaken = {"prompt": both["prompt"], "reward": wrong}
                    await self._call(partial(_refused, observe, **mistaken), thread)
            call = partial(self._recorded, hand, observe, values)
            if work.spoiled is not None and place == 2 * work.spoiled:
                spoil = partial(self._recorded, hand, observe, SPOILS)
                call = partial(self._recorded, hand, partial(_refused, observe), values)  # closes it, and is recorded
                if whole:  # a flush would close it, too
                    call = partial(_one_after_another, spoil, call)
                else:
                    await self._call(spoil, thread)
            if values:
                await self._call(call, thread)
        if work.raises is None and work.spoiled == len(work.batches):  # refused when all closes
            await self._call(partial(self._recorded, hand, observe, SPOILS), thread)

    @staticmethod
    def _recorded(hand: Hand, call: Callable[..., None], values: Mapping[str, Any]) -> None:
        """A call, and the same by hand."""
        hand.call(**values)
        call(**values)

    async def _call(self, call: Callable[[], None], thread: Any) -> None:
        await self._schedule.turn()
        if thread is None:
            call()
        else:
            with self._schedule.busy():
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
            packets: list[tuple[Any, list[Row]]] = []
            for batch in job.work.batches:
                await self._schedule.turn()
                packets.append((declog.rows(prompt=[n for n, _ in batch], reward=[v for _, v in batch]), [*batch]))
            if job.kind == "wrong packet":  # those beside it are there
                packets.insert(number % len(packets), (declog.rows(prompt=["refused"], reward=[1.0, 2.0]), []))
            if job.kind == "twice":
                packets.append((packets[0][0], []))
                self.truth.failures[TWICE] += len(job.work.batches[0])
            if job.kind == "packet":
                self._again[job.place] += packets
            self._packets[job.place] += packets
            self._done(job.place)

    async def _next(self, work: Work) -> None:
        for place, batch in enumerate(work.at_once):
            await self._schedule.turn()
            if self._ended == len(self.program.steps):
                return
            if place in work.refused:
                _refused(self._log.observe, prompt=["refused"], reward=[1.0, 2.0], step="next")
            self._log.observe(prompt=[n for n, _ in batch], reward=[v for _, v in batch], step="next")
            self._ledger.next += batch

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
                with self._ledger.contributing(step) as hand:
                    self._recorded(
                        hand, partial(self._log.observe, step=step),
                        {"prompt": [n for n, _ in batch], "reward": [v for _, v in batch]},
                    )  # fmt: skip
            self._done(job.place)
            return
        with (
            ThreadPoolExecutor(1) as thread,
            suppress(Raised, declog.InputError),
            self._ledger.contributing(step) as hand,
            self._log.at(step) as scope,
        ):
            self._done(job.place)  # the step may end before this: its window waits
            if job.kind == "at":
                await self._observe(work, declog.observe, hand)
            else:
                await self._observe(work, scope.observe, hand, thread)
            await self._schedule.turn()

    async def _inside(self, number: int, job: Job, scope: Scope | None) -> None:
        """A task that the step has started: its context is the step's."""
        work, whole = job.work, job.place in self.program.flushes
        if job.kind == "outlives":
            await self._outlive(number, job)
            return
        observe = declog.observe if scope is not None else self._log.observe
        with suppress(Raised):
            if job.kind == "child":
                await self._observe(work, observe, self._hand(), whole=whole)
            elif job.kind == "cancelled":
                await self._cancelled(work, observe, whole=whole)
            elif job.kind == "batch":
                await self._explicit(work, self.program.steps[job.place])
            else:
                there = declog.bind(observe) if job.kind == "bind" else observe if scope is None else scope.observe
                with ThreadPoolExecutor(1) as thread:
                    await self._observe(work, there, self._hand(), thread, whole=whole)
        self._done(job.place)

    async def _explicit(self, work: Work, step: int) -> None:
        """Each batch is explicit, and a task's; the block raises what the task does."""
        for place in range(len(work.batches)):
            raises = None if work.raises is None else max(work.raises - 2 * place, 0)
            calls = frozenset(call - 2 * place for call in work.refused)
            with self._ledger.contributing(step) as hand, self._log.batch():
                alone = Work((work.batches[place],), raises if raises in (0, 1) else None, calls)
                await self._start(self._observe(alone, declog.observe, hand))

    async def _cancelled(self, work: Work, observe: Callable[..., None], *, whole: bool) -> None:
        """A task that is cancelled when it has observed its rows: these are there."""
        observed = asyncio.Event()

        async def doomed() -> None:
            with suppress(Raised):
                await self._observe(work, observe, self._hand(), whole=whole)
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
            self.truth.failures[ENDED] += len(batch)

    async def _going(self, batch: Batch) -> None:
        await self._schedule.turn()
        declog.observe(prompt=[n for n, _ in batch], reward=[v for _, v in batch])
        self.truth.failures[MODE_ENDED] += len(batch)

    async def _evaluate(self, evaluation: Evaluation) -> None:
        step, whole = EVALUATED + evaluation.place, evaluation.flushes
        rows: list[Row] = []
        hands = [Hand(rows.extend), Hand(rows.extend)]

        def event() -> None:
            for hand in hands:
                hand.close()
            self.truth.add("eval", step, [*rows])
            rows.clear()

        async def flush() -> None:
            await self._schedule.turn()
            with suppress(declog.InputError):  # of a batch that is spoiled
                self._log.flush()
            event()

        with suppress(Raised, declog.InputError):
            try:
                with self._log.mode("eval", step=step):
                    beside = [self._start(self._observe(evaluation.first, declog.observe, hands[0], whole=whole))]
                    if evaluation.flushes:
                        beside.append(self._start(flush()))
                    try:
                        await self._observe(evaluation.second, declog.observe, hands[1], whole=whole)
                    finally:
                        await asyncio.wait(beside)
            finally:
                event()


SPOILS: Mapping[str, Any] = {"prompt": ["spoiled"], "reward": [-1.0], "level": [1.0, 2.0]}  # one group, two values
SPOILED = "[DL50"  # what else is refused where the first of several is raised


def _one_after_another(*calls: Callable[[], None]) -> None:
    """Calls between which nobody else goes on."""
    for call in calls:
        call()


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
        f"program {seed} in schedule {schedule}, recorder {number}: {seen.plain} is not {truth.plain}"
        for run in runs
        for number, (seen, truth) in enumerate([(run.seen, run.truth), *run.restored])
        if seen.plain != truth.plain
    ]
