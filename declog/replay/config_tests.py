"""Config tests: real recorders execute the section ``tests``, and logged values are compared with expected values.

``declog test`` and ``declog.testing.run_config_tests`` call this module. All signals that a test does not give are
absent, even required signals.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from declog.compiler import compile
from declog.config.compose import compose, imports_of
from declog.engine.publish import CODE
from declog.errors import ConfigError, DeclogError, Problem
from declog.language.spec_of_tests import Input, StepInput, TestSpec
from declog.replay.compare import Difference, compare
from declog.replay.playback import rehearse
from declog.replay.prepared import Settings, givers, is_about_deleted, prepared
from declog.runtime.run.capture import Call


@dataclass(frozen=True)
class Result:
    """The result of a test: its differences, none if it passed. ``skipped``: the config deleted the tested entries."""

    name: str
    differences: tuple[Difference, ...] = ()
    skipped: bool = False

    @property
    def passed(self) -> bool:
        """Whether there is no difference."""
        return not self.differences

    def __str__(self) -> str:
        word = "skip" if self.skipped else "ok  " if self.passed else "FAIL"
        why = ": the config deleted what it is about" if self.skipped else ""
        return "\n".join([f"{word} {self.name}{why}", *map(str, self.differences)])


@dataclass(frozen=True)
class ConfigTest:
    """One entry of ``tests:``, ready to run."""

    name: str
    spec: TestSpec
    profile: str
    plan: Any
    skipped: bool = False  # a preset's test about entries that the config deleted

    def run(self) -> Result:
        """Execute the test, and compare the logged values."""
        return Result(self.name, () if self.skipped else tuple(self._differences()), self.skipped)

    def _differences(self) -> Iterator[Difference]:
        world = max(len(step.ranks) or 1 for step in self.spec.inputs)
        scripts = {rank: partial(_calls, self.spec, rank, self.plan) for rank in range(world)}
        try:
            done = rehearse(self.plan, scripts, world, profile=self.profile)
        except DeclogError as error:
            yield Difference("", "the steps are taken", str(error))
            return
        events = done.events[CODE]
        differences = [*compare(self.spec, events, self.spec.tol, self.spec.mode or "train")]
        for index, (step, number) in enumerate(_numbered(self.spec) if self.spec.steps else ()):
            mode = step.mode or "train"
            of_step = [(at, records) for at, records in events if at == number and records.mode == mode]
            differences += [one.at(f"steps.{index}") for one in compare(step, of_step, self.spec.tol, mode)]
        excused = _excused(self.spec, self.plan)
        if differences or any(not failure.startswith(excused) for failure in done.failures):
            differences += [Difference("", "nothing fails", failure) for failure in done.failures]
        yield from differences


def config_tests(
    config: Any,
    overrides: Sequence[str] = (),
    *,
    select: str = "",
    **registries: Any,
) -> list[ConfigTest]:
    """The tests of a config whose name contains ``select`` or matches it as a pattern.

    ``config`` and ``overrides`` are as for ``declog.compose``, ``registries`` as for ``declog.start``. Raises
    ``ConfigError`` with all errors of the config, or with all names in tests that the config does not have.
    """
    composed = compose(config, overrides)
    settings = Settings(composed, partial(compile, imports=imports_of(composed), **registries))
    problems: list[Problem] = []
    tests = []
    try:
        for name, spec in composed.spec.tests.items():
            if select in name or fnmatch.fnmatch(name, select):
                profile, plan, wrong = prepared(settings, spec)
                skipped = is_about_deleted(name, spec, composed, wrong)
                problems += [problem.at("tests", name) for problem in wrong if not skipped]
                tests.append(ConfigTest(name, spec, profile, plan, skipped))
        if problems:
            raise ConfigError(problems)
    except ConfigError as error:
        raise composed.located(error) from None
    return tests


# -- the excused failures of a test, and the calls of its steps


def _excused(test: TestSpec, plan: Any) -> tuple[str, ...]:
    """The codes of failures caused only by signals that the test leaves out: ids of groups, and rows to join."""
    sources = {name for _, item in givers(test) for call in item.calls for name in call}
    observed = [op for op in plan.signals if op.source in sources]
    here, phases, codes = {op.name for op in observed}, {op.phase for op in observed}, []
    if plan.grouping is not None and plan.grouping.size is None and here.isdisjoint(plan.grouping.of):
        codes.append("[DL507]")
    if any(op.source not in phases for op in plan.joins) or (plan.ids is not None and plan.ids not in here):
        codes.append("[DL511]")
    return tuple(codes)


def _numbered(test: TestSpec) -> Iterator[tuple[StepInput, int]]:
    """The steps with their numbers. A block of another mode has the number of the step before it."""
    number = -1
    for step in test.inputs:
        if step.step is not None:
            number = step.step
        elif step.mode in (None, "train"):
            number += 1
        yield step, max(number, 0)


def _calls(test: TestSpec, rank: int, plan: Any) -> Iterator[Call]:
    """The calls of one rank. Every step takes one second."""
    for at, (step, number) in enumerate(_numbered(test)):
        inputs = step.ranks[rank] if step.ranks else step
        mode = step.mode or "train"
        stepping = mode == "train" or plan.modes[mode].every
        block, inner = (2 * at + 1 if mode != "train" else 0), 2 * at + 2
        if block:
            yield Call("enter", (mode,), float(at), scope=block, origin=1)
        if stepping:
            yield Call("begin", (number, block), float(at), scope=inner, origin=1)
        yield from _observed(inputs, at + 1.0, inner if stepping else block)
        if stepping:
            yield Call("end", (False,), at + 1.0, scope=inner, origin=1)
        if step.flush:
            yield Call("flush", (), at + 1.0, scope=block)
        if block:
            yield Call("leave", (False,), at + 1.0, scope=block, origin=1)


def _observed(inputs: Input, at: float, scope: int) -> Iterator[Call]:
    call = partial(Call, at=at, scope=scope, origin=1)
    for signals in inputs.calls:
        yield call("observe", (dict(signals),))
    for name, value in inputs.log_metric.items():
        for one in value if isinstance(value, list) else [value]:
            yield call("metric", (name, one))
    for column, values in inputs.log_extra.items():
        yield call("extra", (column, values))
