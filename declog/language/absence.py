"""Absence: what an optional signal that did not come makes of what is computed from it.

A value is *absent* where something that it is computed from did not come at all; it is *missing* where that came
without a value in a row. Absence passes through every operation but ``present``, which answers; a missing value
makes a comparison false. The rules stand here once, for arrays of numpy and of torch alike. Imports axes and the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from declog.language.dtypes import Axis
from declog.language.moments import FORMULAS
from declog.language.nodes import Node, walk

Absence = Any  # False: none of it, True: all of it, or a bool array over its rows
PRESENT = "present"
COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "isclose"})
QUESTIONS = COMPARISONS | {"contains", "startswith", "matches"}  # of a missing value they are neither true nor false


def either(*parts: Absence) -> Absence:
    """Where any of some is absent."""
    found: Absence = False
    for part in parts:
        if part is True or found is True:
            return True
        found = part if found is False else found if part is False else found | part
    return found


def asks(node: Node) -> bool:
    """Whether an expression has a `present`, also where a column stands for a part of it."""
    return any(item.op == PRESENT or dict(item.params).get("asks") for item in walk(node))


def too_few(node: Node) -> bool:
    """Whether an expression is absent for completions with too few tokens: a deviation of one has no value."""
    return any(item.over is Axis.TOKEN and FORMULAS[item.op].least > 1 for item in walk(node))


def elementwise(
    node: Node, gone: Sequence[Absence], truth: Callable[[int], Any], undecided: Callable[[int], Absence]
) -> Absence:
    """Where an elementwise value is absent, by where its arguments are.

    ``truth(place)`` is an argument as a bool, ``undecided(place)`` where it is neither true nor false.

    What asks ``present`` decides alone where it can: `present(x) and x > 0` is false where x is absent, and of
    `x if present(x) else y` counts the side that is chosen. So it does where the condition is one for a whole batch;
    where it is one per row, both count: a mean over the rows that chose the other side would be of few and look whole.
    """
    if node.op == PRESENT or all(part is False for part in gone):
        return False
    if node.op == "if":
        condition, yes, no = gone
        if condition is True or yes is no is True:
            return True
        if yes is no is False:
            return condition
        if not asks(node.args[0]) and node.args[0].type.axis not in (None, Axis.STEP, Axis.BATCH):
            return either(*gone)
        chosen = truth(0)
        return either(condition, (chosen & yes) | (~chosen & no))
    found = either(*gone)
    if node.op not in ("and", "or"):
        return found
    for index, arg in enumerate(node.args):
        if gone[index] is not True and asks(arg):
            decided = truth(index) if node.op == "or" else ~truth(index)
            open_ = either(~decided, gone[index], undecided(index))
            found = open_ if found is True else found & open_
    return found
