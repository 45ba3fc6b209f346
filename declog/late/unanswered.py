"""Errors for late metrics without a value in a run's rows: the reason, and the change that would give a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from declog.errors import Coded, ConfigError, Problem

UNMATCHED = "DL511"  # the code for rows of two phases that cannot be matched
CONDITIONS = ("where", "when", "by", "weight")  # keys of a metric that may exclude rows or log events


def refuse_empty(
    metrics: Mapping[str, Mapping[str, Any]], inactive: Mapping[str, str], failure: BaseException | None, *,
    has_logged: bool, goes_on: bool,
) -> None:  # fmt: skip
    """Raise ``ConfigError`` for metrics without a single value. While the job goes on, only inactive metrics count.

    ``metrics`` holds the keys of these metrics by id, ``inactive`` the reasons for inactive entries. ``failure`` is the
    first failure of the evaluation, if any. ``has_logged`` says whether the run kept the rows of a log event.
    """
    problems = []
    for name, keys in metrics.items():
        why = inactive.get(f"metrics.{name}") or inactive.get(name)
        if why is not None or not goes_on:
            problems.append(_problem(name, keys, why, failure, has_logged=has_logged))
    if problems:
        raise ConfigError(problems)


def _problem(
    name: str, keys: Mapping[str, Any], why: str | None, failure: BaseException | None, *, has_logged: bool
) -> Problem:
    """The problem of a metric without a value: the reason, and the change that would give a value."""
    path = ("metrics", name)
    if why is not None and ("enabled" in keys or keys.get("log") is False):
        return Problem.of("DL612.off", path, name=name, why=why, key="enabled" if "enabled" in keys else "log")
    if why is not None:
        return Problem.of("DL612.empty", path, name=name, why=why)
    if isinstance(failure, Coded) and failure.code == UNMATCHED:
        fix = failure.fix or "observe both phases of the same rows"
        return Problem.of("DL612.unmatched", path, name=name, why=failure.message, fix=fix)
    if isinstance(failure, Coded) and f"`{name}`" in failure.message:
        return Problem.of("DL612.failed", path, name=name, why=failure.message, fix=failure.fix or "correct it")
    if not has_logged:
        return Problem.of("DL612.no_events", path, name=name)
    conditions = [key for key in CONDITIONS if keys.get(key) is not None]
    if not conditions:
        return Problem.of("DL612.uncounted", path, name=name)
    stated = ", ".join(f"`{key}: {_shown(keys[key])}`" for key in conditions)
    other = " or another ".join(f"`{key}`" for key in conditions)
    return Problem.of("DL612.conditions", path, name=name, conditions=stated, other=other)


def _shown(value: Any) -> str:
    return (
        f"[{', '.join(map(str, value))}]" if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
    )
