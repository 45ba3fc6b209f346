"""Absence: how the value of an expression depends on an optional signal that was not observed.

A value is *absent* where one of its signals was not observed at all. A value is *missing* where its signals were
observed, and one of them has no value in that row. A missing number is NaN. A comparison with a missing number is
false, and is marked as missing. Absence passes through every operation except ``present``: ``present(x)`` is false
where ``x`` is absent. The rules work on numpy and torch arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from declog.language.dtypes import Axis
from declog.language.moments import FORMULAS
from declog.language.nodes import Node, walk

# False: every row has its value. True: every row is absent. Otherwise an array over the rows, of these bits:
Kind = Any
HERE, ABSENT, MISSING = 0, 1, 2  # an array of bools marks absent rows only; a missing float is NaN and needs no bit
PRESENT = "present"
COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "isclose"})
# operations whose result is neither true nor false where an argument is missing
QUESTIONS = COMPARISONS | {"contains", "startswith", "matches"}


def either(*kinds: Kind) -> Kind:
    """The rows in which any of several values is absent or missing."""
    combined: Kind = False
    for kind in kinds:
        if kind is True or combined is True:
            return True
        combined = kind if combined is False else combined if kind is False else combined | kind
    return combined


def absent(kind: Kind) -> Kind:
    """The rows in which a value is absent: False (none), True (all), or an array of bools."""
    return kind if kind is False or kind is True or kind.dtype == bool else (kind & ABSENT) != HERE


@lru_cache(maxsize=4096)  # each log event asks this for all conditions
def asks(node: Node) -> bool:
    """Whether an expression contains ``present``, also inside a part that was computed before and is a column now."""
    return any(item.op == PRESENT or dict(item.params).get("asks") for item in walk(node))


def too_few(node: Node) -> bool:
    """Whether an expression is absent for a completion with too few tokens, as is the deviation of one token."""
    return any(item.over is Axis.TOKEN and FORMULAS[item.op].least > 1 for item in walk(node))


def elementwise(
    node: Node, kinds: Sequence[Kind], truth: Callable[[int], Any], unknown: Callable[[int], Kind] = lambda _: False
) -> Kind:
    """The rows in which an elementwise value is absent or missing, computed from the ``kinds`` of its arguments.

    ``truth(position)`` returns an argument as bools. ``unknown(position)`` marks the rows in which the argument is
    neither true nor false and ``kinds`` does not mark them already.

    An argument that contains ``present`` decides alone where it can: `present(x) and x > 0` is false where x is
    absent. In `x if present(x) else y` only the chosen side counts. The same holds for any condition with one value
    per batch. But where the condition chooses `y` and `y` was not observed, an `x` that was observed makes the result
    missing, not absent. This also holds for `not present(x)` with the sides exchanged. For other conditions per row
    both sides count: otherwise a mean would silently cover only the rows that chose the observed side.
    """
    if node.op == PRESENT or all(kind is False for kind in kinds):
        return False
    if node.op == "if" and (asks(node.args[0]) or node.args[0].type.axis in (None, Axis.STEP, Axis.ALL)):
        condition, yes, no = kinds
        if condition is True or yes is no:
            return either(condition, yes)
        chosen = truth(0)
        kind, question = chosen * yes | ~chosen * no, node.args[0]
        value, of_value, of_other, taken = node.args[1], yes, no, chosen
        if question.op == "not":
            question, value, of_value, of_other, taken = question.args[0], node.args[2], no, yes, ~chosen
        if question.op == PRESENT and question.args[0] == value:
            came = ~(taken | absent(of_value)) & absent(of_other)
            kind = kind * ~came | came * MISSING
        return either(condition, kind)
    result = either(*kinds)
    if node.op in ("and", "or"):
        for position, arg in enumerate(node.args):
            if kinds[position] is not True and asks(arg):
                decided = truth(position) if node.op == "or" else ~truth(position)
                result = result * (either(~decided, kinds[position], unknown(position)) != HERE)
    return result
