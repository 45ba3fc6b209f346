"""Profile tests: what ``tests:`` says is executed by real recorders, and compared with what was to be logged.

``declog test`` and ``declog.testing.run_profile_tests`` are this module's two fronts. A test gives the signals that it
is about: what it does not give is absent, also where the profile requires it. Sees the models and the compiler.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, zip_longest
from typing import Any

from declog.compiler import compile
from declog.config.compose import compose, working_directory
from declog.config.project import load_imports
from declog.engine.publish import CODE
from declog.errors import ConfigError, DeclogError, Problem
from declog.language.functions import DEFAULT as FUNCTIONS
from declog.language.functions import Functions
from declog.language.reductions import DEFAULT as REDUCTIONS
from declog.language.reductions import Reductions
from declog.language.row_functions import DEFAULT as COLUMNS
from declog.language.row_functions import RowFunctions
from declog.language.spec_of_tests import Expectations, Input, StepInput, TestSpec
from declog.language.validation import validate
from declog.replay import compare
from declog.replay.compare import Difference, Seen
from declog.replay.playback import rehearse
from declog.replay.prepared import Settings, givers, prepared
from declog.runtime.capture import Call


@dataclass(frozen=True)
class Result:
    """What came of a test: nothing is different where it passed."""

    name: str
    differences: tuple[Difference, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether everything was as expected."""
        return not self.differences

    def __str__(self) -> str:
        return "\n".join([f"{'ok  ' if self.passed else 'FAIL'} {self.name}", *map(str, self.differences)])


@dataclass(frozen=True)
class ProfileTest:
    """One entry of ``tests:``, ready to run."""

    name: str
    spec: TestSpec
    profile: str
    plan: Any
    functions: Functions

    def run(self) -> Result:
        """Execute it, and compare; tasks in several orders, up to the first that shows a difference.

        In which order rows of several tasks stand in a table is the order in which they came: it is the first one's.
        """
        orders = list(ORDERS) if self.spec.tasked else [next(iter(ORDERS))]
        for place, order in enumerate(orders):
            found = self._run(order)
            if place:
                found = [
                    replace(each, where=f"{each.where} ({order})")
                    for each in found
                    if ".tables" not in f".{each.where}"
                ]
            if found:
                return Result(self.name, tuple(found))
        return Result(self.name)

    def _run(self, order: str) -> list[Difference]:
        world = max(len(step.ranks) or 1 for step in self.spec.given)
        scripts = {rank: partial(_calls, self.spec, rank, self.plan, ORDERS[order]) for rank in range(world)}
        try:
            done = rehearse(self.plan, scripts, world, profile=self.profile, functions=self.functions)
        except DeclogError as error:
            return [Difference("", "the steps are taken", str(error))]
        seen = [Seen(step, records) for step, records in done.events[CODE]]
        found = [*compare.compare(self.spec, seen, self.spec.tol, self.spec.mode or "train")]
        for expected, where, mode, number in self._expected():
            mine = [one for one in seen if one.step == number and one.records.mode == mode]
            found += [one.at(where) for one in compare.compare(expected, mine, self.spec.tol, mode)]
        excused = _excused(self.spec, self.plan)
        if found or any(not failure.startswith(excused) for failure in done.failures):
            found += [Difference("", "nothing fails", failure) for failure in done.failures]
        return found

    def _expected(self) -> Iterator[tuple[Expectations, str, str, int]]:
        """What steps and tasks expect, with their place, and the mode and step that it is of."""
        numbers = [number for _, number in _numbered(self.spec)]
        for place, step in enumerate(self.spec.steps):
            yield step, f"steps.{place}", step.mode or "train", numbers[place]
        for place, path, task in self.spec.tasked:
            if task.mode is not None:
                where = ".".join(map(str, (*(("steps", place) if self.spec.steps else ()), *path)))
                yield task, where, task.mode, numbers[place] if task.step is None else task.step


def profile_tests(
    config: Any,
    overrides: Sequence[str] = (),
    *,
    select: str = "",
    functions: Functions = FUNCTIONS,
    reductions: Reductions = REDUCTIONS,
    columns: RowFunctions = COLUMNS,
) -> list[ProfileTest]:
    """The tests of a profile, those whose name contains ``select`` or matches it as a pattern.

    ``config`` is what ``declog.compose`` takes, with ``overrides``. Raises ``ConfigError`` with
    everything that is wrong with the profile, or with all that tests name and the profile does not have.
    """
    composed = compose(config, overrides)
    data = composed.resolved()
    settings = Settings(data, partial(
        compile, functions=functions, reductions=reductions, columns=columns,
        imports={*load_imports(working_directory()), *composed.imports},
    ))  # fmt: skip
    problems: list[Problem] = []
    tests = []
    try:
        for name, spec in validate(data).tests.items():
            if select in name or fnmatch.fnmatch(name, select):
                profile, plan, wrong = prepared(settings, spec)
                problems += [problem.at("tests", name) for problem in wrong]
                tests.append(ProfileTest(name, spec, profile, plan, functions))
        if problems:
            raise ConfigError(problems)
    except ConfigError as error:
        raise composed.located(error) from None
    return tests


# -- what is excused, and what its steps do


def _excused(test: TestSpec, plan: Any) -> tuple[str, ...]:
    """The codes of failures that only say what the test does not give: what names groups, and rows to be joined."""
    given = {name for _, item in givers(test) for call in item.calls for name in call}
    here = {op.name for phase in plan.phases.values() for op in phase.signals if op.source in given}
    phases = {name for name, phase in plan.phases.items() if any(op.source in given for op in phase.signals)}
    codes = []
    if plan.grouping is not None and plan.grouping.size is None and here.isdisjoint(plan.grouping.of):
        codes.append("[DL507]")
    if any(op.source not in phases for op in plan.joins) or (plan.ids is not None and plan.ids not in here):
        codes.append("[DL511]")
    return tuple(codes)


def _numbered(test: TestSpec) -> Iterator[tuple[StepInput, int]]:
    """The steps with their numbers; a block of another mode has that of the step before."""
    number = -1
    for step in test.given:
        if step.step is not None:
            number = step.step
        elif step.mode in (None, "train"):
            number += 1
        yield step, max(number, 0)


Order = Callable[[list[list[Call]]], Iterable[Call]]
ORDERS: Mapping[str, Order] = {
    "one after the other": lambda lists: chain.from_iterable(lists),
    "in turns": lambda lists: (call for turn in zip_longest(*lists) for call in turn if call is not None),
    "the last first": lambda lists: chain.from_iterable(reversed(lists)),
}
"""Ways in which what a step and its tasks give may come."""


def _calls(test: TestSpec, rank: int, plan: Any, order: Order) -> Iterator[Call]:
    """The calls of one rank; every step takes a second."""
    tasks = _Tasks(test, rank)
    for at, (step, number) in enumerate(_numbered(test)):
        given = step.ranks[rank] if step.ranks else step
        mode = step.mode or "train"
        stepping = mode == "train" or plan.modes[mode].every
        block, inner = (2 * at + 1 if mode != "train" else 0), 2 * at + 2
        if block:
            yield Call("enter", (mode,), float(at), scope=block, origin=1)
        if stepping:
            yield Call("begin", (number, block), float(at), scope=inner, origin=1)
        scope = inner if stepping else block
        yield from tasks.begun(at, number)
        yield from order([list(_observed(given, at + 1.0, scope)), *tasks.given(at, scope)])
        yield from tasks.ended(at)
        if stepping:
            yield Call("end", (False,), at + 1.0, scope=inner, origin=1)
        if step.flush:
            yield Call("flush", (), at + 1.0, scope=block)
        if block:
            yield Call("leave", (False,), at + 1.0, scope=block, origin=1)


class _Tasks:
    """The tasks of a rank: those with a scope of their own go on until the last step that names them."""

    def __init__(self, test: TestSpec, rank: int) -> None:
        self._steps = [(step.ranks[rank] if step.ranks else step).tasks for step in test.given]
        self._scopes: dict[str, tuple[int, str]] = {}  # of the open ones: the scope, and the call that ends it
        self._origins: dict[str, int] = {}
        self._next = 2 * len(self._steps) + 1  # scopes below are of steps and blocks

    def begun(self, at: int, number: int) -> Iterator[Call]:
        """Scopes of the tasks that begin in a step."""
        for name, task in self._steps[at].items():
            if name in self._scopes:
                continue
            self._origins[name] = self._next + 1
            if task.at is not None:
                yield from self._open(name, "at", (task.at,), "unat", float(at))
            elif task.mode is not None:
                step = number if task.step is None else task.step
                yield from self._open(name, "enter", (task.mode, step), "leave", float(at))
            self._next += 1

    def _open(self, name: str, call: str, what: tuple[Any, ...], end: str, at: float) -> Iterator[Call]:
        self._scopes[name] = self._next, end
        yield Call(call, what, at, scope=self._next, origin=self._origins[name])

    def given(self, at: int, step: int) -> Iterator[list[Call]]:
        """What each task gives in a step; ``step`` is the scope of those that have none of their own."""
        for name, task in self._steps[at].items():
            scope, _ = self._scopes.get(name, (step, ""))
            yield list(_observed(task, at + 1.0, scope, self._origins[name]))

    def ended(self, at: int) -> Iterator[Call]:
        """The ends of those that no later step names."""
        later = {name for tasks in self._steps[at + 1 :] for name in tasks}
        for name in [name for name in self._scopes if name not in later]:
            scope, end = self._scopes.pop(name)
            yield Call(end, (False,), at + 1.0, scope=scope, origin=self._origins[name])


def _observed(given: Input, at: float, scope: int, origin: int = 1) -> Iterator[Call]:
    call = partial(Call, at=at, scope=scope, origin=origin)
    for signals in given.calls:
        yield call("observe", (dict(signals),))
    for name, value in given.log_metric.items():
        for one in value if isinstance(value, list) else [value]:
            yield call("metric", (name, one))
    for column, values in given.log_extra.items():
        yield call("extra", (column, values))
