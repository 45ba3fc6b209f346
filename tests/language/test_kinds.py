"""The rule of absence: which rows of an elementwise value are absent or missing, by its arguments."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import declog
from declog.language.absence import ABSENT, HERE, MISSING, absent, either, elementwise
from declog.language.nodes import Node
from tests.running import profile

SIGNALS = {
    **{name: {"axis": "completion"} for name in ("x", "y")}, "b": {"axis": "completion", "type": "bool"},
}  # fmt: skip
KINDS = (HERE, ABSENT, MISSING)


def node_of(expr: str) -> Node:
    """The compiled expression of a metric."""
    plan = declog.plan(profile(SIGNALS, {"m": {"expr": expr, "reduce": "mean"}}))
    return next(op.args[0] for op in plan.metrics if op.id == "m")


def worst(kinds: tuple[int, ...]) -> int:
    """Absent if any of some is, else missing if any is."""
    return ABSENT if ABSENT in kinds else MISSING if MISSING in kinds else HERE


def chosen(kinds: tuple[int, ...], truth: tuple[bool, ...]) -> int:
    """Of `x if present(x) else y` the side that it chooses; an `x` that came is missing where `y` did not come."""
    side = kinds[1] if truth[0] else MISSING if kinds[1] != ABSENT == kinds[2] else kinds[2]
    return worst((kinds[0], side))


def exchanged(kinds: tuple[int, ...], truth: tuple[bool, ...]) -> int:
    """The same of `y if not present(x) else x`."""
    return chosen((kinds[0], kinds[2], kinds[1]), (not truth[0],))


def decided(by: bool) -> Callable[[tuple[int, ...], tuple[bool, ...]], int]:
    """Of `and` and `or` the first side alone, where it is here and decides; else both."""
    return lambda kinds, truth: HERE if kinds[0] == HERE and truth[0] is by else worst(kinds)


@pytest.mark.parametrize("of_torch", [False, True])
@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("x + y", lambda kinds, truth: worst(kinds)),
        ("x if x > 1 else y", lambda kinds, truth: worst(kinds)),
        ("x if present(x) else y", chosen),
        ("y if not present(x) else x", exchanged),
        ("present(x) and b", decided(False)),
        ("present(x) or b", decided(True)),
        ("(x > 1) and b", lambda kinds, truth: worst(kinds)),
        ("present(x)", lambda kinds, truth: HERE),
    ],
)
def test_a_row_is_absent_or_missing_by_its_arguments(expr: str, expected: Any, of_torch: bool) -> None:
    """Every combination of kinds and truths, on numpy and on torch; False and True stand for a kind of all rows."""
    node = node_of(expr)
    size = len(node.args)
    rows = [
        (kinds, truth)
        for kinds in itertools.product(KINDS, repeat=size) for truth in itertools.product((False, True), repeat=size)
    ]  # fmt: skip
    array = torch.tensor if of_torch else np.array
    kinds = [array([row[0][at] for row in rows]) for at in range(size)]
    truths = [array([row[1][at] for row in rows]) for at in range(size)]
    result = elementwise(node, kinds, truths.__getitem__)
    marks = [0] * len(rows) if result is False else result.tolist()
    assert [ABSENT if mark & ABSENT else mark for mark in marks] == [expected(*row) for row in rows]
    for whole in itertools.product((False, True), repeat=size):
        result = elementwise(node, whole, truths.__getitem__)
        of_each = [expected(tuple(ABSENT if kind else HERE for kind in whole), truth) for _, truth in rows]
        marks = [int(result)] * len(rows) if isinstance(result, bool) else [int(mark) for mark in result.tolist()]
        assert marks == of_each


def test_kinds_of_several_values_add_up() -> None:
    """What is absent or missing in any of them is so in all of them; nothing that came leaves no array."""
    one, other = np.array([HERE, ABSENT, MISSING, HERE]), np.array([HERE, HERE, ABSENT, MISSING])
    assert either(one, False, other).tolist() == [HERE, ABSENT, ABSENT | MISSING, MISSING]
    assert either(one, True, other) is True and either(False, False) is False and either(False, one) is one
    assert absent(either(one, other)).tolist() == [False, True, True, False]
    assert absent(True) is True and absent(False) is False
