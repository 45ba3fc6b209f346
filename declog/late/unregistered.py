"""Late metrics of runs whose config uses functions or reductions that only the run's own program registered.

Metrics and derived signals of the run that cannot be compiled in this process are left out if no line reads them.
Otherwise the problem says how to register the functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from declog.errors import ConfigError, Path, Problem
from declog.plans.ops import Plan

_UNREGISTERED = ("DL303.function", "DL303.column_function", "DL311.name", "DL311.level")
_UNKNOWN = re.compile(r"(?:unknown|there is no) (metric|signal) `(\w+)")
_SECTIONS = {"metric": "metrics", "signal": "derived"}


def compiled(data: Mapping[str, Any], lines: Collection[str], compile: Callable[[Mapping[str, Any]], Plan]) -> Plan:
    """Compile the run's config with some lines, both in ``data``, and leave out entries that need unknown functions.

    Raises ``ConfigError``: DL612 for functions of the run that are not registered, other problems as they are.
    """
    asked = {("metrics", line) for line in lines}
    left_out: dict[Path, list[Problem]] = {}  # by path of the entry in the run's config
    names: set[str] = set()  # the run's functions that are not registered in this process
    while True:
        try:
            return compile(data)
        except ConfigError as error:
            # problems of the profile that shows the lines follow from other problems
            problems = [problem for problem in error.problems if problem.path[:1] != ("profiles",)]
        of_run = [problem for problem in problems if problem.path[:2] not in asked]
        names |= {_function(problem) for problem in of_run} - {""}
        # the run's config was valid: its further problems follow from the entries that were left out
        foreign = [problem for problem in of_run if _function(problem) or left_out]
        entries = {problem.path[:2] for problem in foreign}
        if not entries or not all(_removable(data, entry) for entry in entries):
            raise ConfigError([_explained(part, names) for problem in problems for part in _roots(problem, left_out)])
        left_out |= {entry: [problem for problem in foreign if problem.path[:2] == entry] for entry in entries}
        sections = {
            section: {id: entry for id, entry in (data.get(section) or {}).items() if (home, id) not in entries}
            for section, home in {"metrics": "metrics", "about": "metrics", "derived": "derived"}.items()
        }
        data = {**data, **sections}


def _removable(data: Mapping[str, Any], entry: Path) -> bool:
    """Whether an entry is a metric or a derived signal that can be left out: its readers then fail to compile."""
    section, id = (*entry, "")[:2]
    value = (data.get(str(section)) or {}).get(id)
    declares = isinstance(value, Mapping) and value.get("observe") is not None  # it declares a signal that others read
    return section in _SECTIONS.values() and value is not None and not declares


def _roots(problem: Problem, left_out: Mapping[Path, list[Problem]]) -> Iterator[Problem]:
    """The problem, or the problems because of which the entry that it misses was left out."""
    match = _UNKNOWN.match(problem.message)
    causes = [] if match is None else left_out.get((_SECTIONS[match[1]], match[2]), [])
    for cause in causes:
        yield from _roots(cause, left_out)
    if not causes:
        yield problem


def _explained(problem: Problem, names: Collection[str]) -> Problem:
    """The problem at its place. If it is about an unregistered function, its text says how to register it."""
    name = _function(problem)
    return problem.saying("DL612.unregistered", name=name) if name in names else problem


def _function(problem: Problem) -> str:
    """The name of the unregistered function in a problem; empty for any other problem."""
    return str(problem.facts["name"]) if problem.message_key in _UNREGISTERED else ""
