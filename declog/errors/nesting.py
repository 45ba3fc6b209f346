"""The limits of data: how many values it may hold, and how deep its maps and lists may be nested."""

from __future__ import annotations

from collections.abc import Mapping

from declog.errors import Path, Problem

MAX_DEPTH = 48  # how deep a config's maps and lists may be nested
MAX_VALUES = 200_000  # how many values they may hold, those of YAML's aliases counted each time


def nesting(data: object) -> Problem | None:
    """The problem of data that holds too many values, is nested too deeply or holds itself, found without recursion."""
    stack: list[tuple[object, Path]] = [(data, ())]
    count = 0
    while stack:
        count += 1
        if count > MAX_VALUES:
            return Problem.of("DL202.too_many", limit=MAX_VALUES)
        value, path = stack.pop()
        if isinstance(value, Mapping):
            inside: list[tuple[object, object]] = list(value.items())
        elif isinstance(value, list | tuple):
            inside = list(enumerate(value))
        else:
            continue
        if len(path) >= MAX_DEPTH:
            return Problem.of("DL202.too_deep", path[:4], limit=MAX_DEPTH)
        stack += [(item, (*path, str(key))) for key, item in inside]
    return None
