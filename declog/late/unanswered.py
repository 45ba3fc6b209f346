"""Metrics that the rows of a run give no value of: why, and what the next run has to observe for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from declog.errors import Coded, ConfigError, Problem

UNMATCHED = "DL511"  # rows of two phases, of which nobody said which belong together


def refuse_empty(
    names: Sequence[str], inactive: Mapping[str, str], failure: BaseException | None, goes_on: bool
) -> None:
    """Raise for metrics without a single value, with the reason; of a job that goes on, for those that are inactive.

    ``inactive`` has the reasons of entries, and ``failure`` is what was wrong with the rows, if anything was.
    """
    problems = []
    for name in names:
        why = inactive.get(f"metrics.{name}") or inactive.get(name)
        if why is None and goes_on:
            continue
        if why is None and isinstance(failure, Coded) and failure.code == UNMATCHED:
            fix = failure.fix or "observe both phases of the same rows"
            problems.append(Problem.of("DL612.unmatched", ("metrics", name), name=name, why=failure.message, fix=fix))
        else:
            reason = why or "no log event has a value of it"
            problems.append(Problem.of("DL612.empty", ("metrics", name), name=name, why=reason))
    if problems:
        raise ConfigError(problems)
