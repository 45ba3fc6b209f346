"""Names that mean the duration of a step, such as `step_time` or `hours`: the language calls it `seconds`."""

from __future__ import annotations

import ast
import re
from collections.abc import Container

from declog.language.fixes.library_calls import Substitution
from declog.language.syntax import parse

_TIMES = re.compile(r"(?:(?:step|iter|iteration|wall|train|elapsed)_?)?(?:time|secs|duration)(?:_s)?|dt|step_seconds")
_UNITS = {"minute": 60, "hour": 3600, "hr": 3600, "day": 86400}  # of time, in seconds


def seconds_of(name: str) -> str | None:
    """The duration of a step that a name may mean, in its unit: `seconds`, or `(seconds / 3600)`. None for others."""
    if (unit := _UNITS.get(name.removesuffix("s"))) is not None:
        return f"(seconds / {unit})"
    return "seconds" if _TIMES.fullmatch(name) else None


def with_seconds(tree: ast.expr, signals: Container[str]) -> ast.expr:
    """Replace names that mean the duration of a step, and are no signals, by `seconds`."""
    names = {part.id for part in ast.walk(tree) if isinstance(part, ast.Name) and part.id not in signals}
    times = {name: parse(seconds).body for name in names if (seconds := seconds_of(name)) is not None}
    return Substitution(times).visit(parse(ast.unparse(tree)).body) if times else tree
