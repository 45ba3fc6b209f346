"""Preparation of config tests: the plan of each test, and its unknown names. Loads no torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from declog.config.composed import Composed
from declog.errors import Path, Problem, did_you_mean
from declog.language.nodes import LOGGED
from declog.language.shorthand import long
from declog.language.spec import ConstantSpec, LogSpec, SignalSpec
from declog.language.spec_of_tests import Input, StepInput, TestSpec
from declog.language.tree import over, tree_of
from declog.language.validation import validate
from declog.records import names_of

OF_DELETED = ("DL403", "DL501")  # codes for names in a test that the config does not have


def faults(config: Composed, make: Callable[..., Any]) -> tuple[list[Problem], list[str]]:
    """The errors of a config's tests, and the names of the author's own tests that expect a deleted metric."""
    spec = config.spec
    settings = Settings(config, make)
    problems: list[Problem] = []
    stale: list[str] = []
    for name, test in spec.tests.items():
        inherited = config.home(("tests", name)) is not None
        # no name depends on a test's constants, and the author of the package has tried these
        tried = test.model_copy(update={"constants": {}, "profile": None}) if inherited else test
        errors = [problem.at("tests", name) for problem in wrong_names(test, *settings.of(tried))]
        problems += [problem for problem in errors if not (inherited and problem.code in OF_DELETED)]
        stale += [name] * (not inherited and _expects_deleted(test, spec))
    return problems, stale


def is_about_deleted(name: str, test: TestSpec, config: Composed, wrong: Sequence[Problem]) -> bool:
    """Whether an inherited test names entries that the config deleted. ``wrong`` are the problems of the test."""
    about = any(problem.code in OF_DELETED for problem in wrong) or _expects_deleted(test, config.spec)
    return about and config.home(("tests", name)) is not None


class Settings:
    """The configs and plans for a config's tests, shared by tests with equal settings. ``make`` compiles a plan."""

    def __init__(self, config: Composed, make: Callable[..., Any]) -> None:
        self._config = config
        self._make = make
        self._plans: dict[str, tuple[LogSpec, Any]] = {}

    def of(self, test: TestSpec) -> tuple[LogSpec, Any]:
        """The config with the changes of the test's ``with``, and its plan for the test's profile and constants."""
        key = repr((test.with_, test.constants, test.profile))
        if key not in self._plans:
            spec = self._config.spec
            if test.with_:
                data = {key: value for key, value in self._config.data.items() if key != "tests"}
                spec = validate(over(tree_of(data), long(tree_of(test.with_))[0]).plain)
            pinned = {name: ConstantSpec(value=value) for name, value in test.constants.items()}
            changed = spec.model_copy(update={"constants": {**spec.constants, **pinned}})
            profiles = [spec.profile, test.profile or spec.profile]
            self._plans[key] = spec, self._make(changed, profiles=profiles)
        return self._plans[key]


def _expects_deleted(test: TestSpec, config: LogSpec) -> bool:
    deleted = {entry.removeprefix("metrics.") for entry in config.deleted if entry.startswith("metrics.")}
    expected = [(name, value) for item in test.expectations for name, value in item.expect.items()]
    prefixes = {"", *(mode.prefix for mode in config.modes.values())}
    ids = {
        name.removeprefix(prefix).split(".")[0] for name, value in expected if value is not None for prefix in prefixes
    }
    return not ids.isdisjoint(deleted)


def prepared(settings: Settings, test: TestSpec) -> tuple[str, Any, list[Problem]]:
    """The profile whose output is compared, the plan, and the problems of the test.

    The plan has the test's constants, no required signals, no sinks, and only tables that the test names.
    """
    spec, plan = settings.of(test)
    phases = {
        name: replace(phase, signals=tuple(replace(signal, required=False) for signal in phase.signals))
        for name, phase in plan.phases.items()
    }
    requested = {name for item in test.expectations for name in item.tables}
    tables = tuple(op for op in plan.tables if {op.id, op.name} & requested)
    about = replace(plan, phases=phases, tables=tables, sinks=(), strict=False)
    return test.profile or spec.profile, about, list(wrong_names(test, spec, plan))


# -- the names in a test


def wrong_names(test: TestSpec, config: LogSpec, plan: Any) -> Iterator[Problem]:
    """A problem for each name in the test that the config does not have."""
    for name in test.constants:
        if name not in config.constants:
            yield Problem.of("DL403.none", ("constants", name), noun="constant", name=name, known=config.constants)
    # a family with `any` takes undeclared names
    open_ = any(spec.any for signals in config.signals.values() for spec in signals.values())
    worlds = {len(step.ranks) for step in test.inputs if step.ranks}
    for path, step in _steps(test):
        if step.mode is not None and step.mode not in plan.modes:
            yield Problem.of("DL403.none", (*path, "mode"), noun="mode", name=step.mode, known=plan.modes)
        if worlds and len(step.ranks) != max(worlds):
            yield Problem.of("DL202.test_ranks", path, ranks=len(step.ranks) or 1, others=max(worlds))
    for where, item in givers(test):
        for signal in dict.fromkeys(name for call in item.calls for name in call):
            if signal not in plan.signal_names and not open_:
                yield _unknown_signal(signal, where, config, plan)
    metrics = _names_of_metrics(config, plan, {name for _, item in givers(test) for name in item.log_metric})
    for index, expected in enumerate(test.expectations):
        yield from _unexpected(expected, () if not index else ("steps", index - 1), config, plan, metrics)


def givers(test: TestSpec) -> Iterator[tuple[Path, Input]]:
    """The inputs of a test with their paths: one input for each step, or for each rank of a step."""
    for path, step in _steps(test):
        if step.ranks:
            yield from (((*path, "ranks", rank), item) for rank, item in enumerate(step.ranks))
        else:
            yield path, step


def _steps(test: TestSpec) -> Iterator[tuple[Path, StepInput]]:
    """The steps with their paths; the test itself if it has no `steps`."""
    for index, step in enumerate(test.inputs):
        yield (() if step is test else ("steps", index)), step


def _unknown_signal(name: str, path: Path, config: LogSpec, plan: Any) -> Problem:
    """The problem of a signal in a test that the plan does not observe."""
    fix = did_you_mean(name, plan.signal_names, what="signals")
    spec = next((spec for path, spec in config.declared if path[-1] == name), None)
    if spec is not None:
        fix = f"give `{spec.from_}`" if isinstance(spec, SignalSpec) else "it is derived: give what it is computed from"
    return Problem.of("DL501.observed", (*path, "observe", name), name=name, fix=fix)


def _unexpected(item: Any, path: Path, config: LogSpec, plan: Any, metrics: re.Pattern[str]) -> Iterator[Problem]:
    """The problems of expected values, tables and alerts that the config does not have and so can never log.

    The name of a value is a metric's name, with or without the prefix of a mode.
    """
    tables = {*config.tables, *(spec.name for spec in config.tables.values() if spec.name)}
    for section, names in (("tables", tables), ("alerts", set(config.alerts))):
        for index, name in enumerate(getattr(item, section) or ()):
            if name not in names:
                at = index if isinstance(item.alerts, list) and section == "alerts" else name
                yield Problem.of("DL403.none", (*path, section, at), noun=section[:-1], name=name, known=names)
    prefixes = ("", *(mode.prefix for mode in plan.modes.values()))
    for name in item.expect:
        if not any(metrics.fullmatch(name.removeprefix(prefix)) for prefix in prefixes):
            ids = {*plan.names(), *config.metrics}
            yield Problem.of("DL403.metric", (*path, "expect", name), name=name, known=ids)


def _names_of_metrics(config: LogSpec, plan: Any, logged_names: Collection[str]) -> re.Pattern[str]:
    """A pattern for the ids and names of all metrics, active or not. The test logs ``logged_names`` by `log_metric`."""
    templates = {"declog/{member}", *(entry.removeprefix("metrics.") for entry in config.deleted)}
    for op in plan.outputs:
        # without a metric `logged` in the config, only the names that the test logs can occur
        open_ = op.id == LOGGED and LOGGED not in config.metrics
        members = logged_names if open_ else ("{member}",)
        names = {item.template.replace("{member}", member) for item in op.names for member in members}
        templates |= {op.id, op.key, *names}
    for name, spec in config.metrics.items():
        templates |= {name, spec.name or name, f"{name}.{{reduce}}", f"{name}/{{reduce}}"}
    return re.compile("|".join(map(names_of, sorted(templates))))  # equal for most tests of a config: `re` caches it
