"""Random well-typed expressions, run through declog, equal a naive interpreter of the same trees."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.conftest import examples
from tests.language.interpreter import World, aggregate
from tests.language.runs import record
from tests.language.trees import MEMBERS, SIGNALS, Tree, boolean, is_bool, number, text

EIGHTHS = st.integers(-24, 24).map(lambda k: k / 8)
MAYBE = st.one_of(EIGHTHS, EIGHTHS, EIGHTHS, st.just(math.nan))


@st.composite
def worlds(draw: Any) -> World:
    """One or two batches on one or two ranks, groups of two, a few tokens; missing values and junk in the padding."""
    ranks = draw(st.integers(1, 2))
    return World([[draw(_batch()) for _ in range(ranks)] for _ in range(draw(st.integers(1, 2)))], 2)


@st.composite
def _batch(draw: Any) -> dict[str, Any]:
    groups = draw(st.integers(1, 2))
    rows, tokens = 2 * groups, draw(st.integers(1, 3))

    def many(values: st.SearchStrategy[Any], count: int) -> list[Any]:
        return draw(st.lists(values, min_size=count, max_size=count))  # type: ignore[no-any-return]

    def grid(values: st.SearchStrategy[Any]) -> list[list[Any]]:
        return [many(values, tokens) for _ in range(rows)]

    small = st.integers(-3, 3)
    members = draw(st.permutations(MEMBERS))
    return {
        "x": many(MAYBE, rows),
        "y": many(EIGHTHS, rows),
        "n": many(st.one_of(small, small, st.none()), rows),
        "b": many(st.sampled_from((True, False, True, False, None)), rows),
        "t": many(st.sampled_from(("a", "b c", "", None)), rows),
        "g": many(MAYBE, groups),
        "s": draw(EIGHTHS),
        "f": {name: many(MAYBE, rows) for name in members},
        "h": {name: draw(EIGHTHS) for name in members},
        "m": grid(st.booleans()),
        "m2": grid(st.booleans()),
        "u": grid(MAYBE),
        "q": grid(small),
        "k": grid(st.booleans()),
        "w": grid(EIGHTHS),
    }


def observed(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch as a training loop gives it: float64 tensors for tokens, lists for the rest."""
    made = dict(batch)
    for name, spec in SIGNALS.items():
        if spec["axis"] == "token":
            dtype = {"bool": torch.bool, "int": torch.int64}.get(spec.get("type", ""), torch.float64)
            made[name] = torch.tensor(batch[name], dtype=dtype)
    return made


def steps_of(world: World) -> list[list[list[dict[str, Any]]]]:
    """Per rank, one step with the world's batches."""
    return [[[observed(ranks[rank]) for ranks in world.batches]] for rank in range(len(world.batches[0]))]


def profile_of(trees: list[Tree], *, words: bool) -> dict[str, Any]:
    """A table with one column per tree, each second one a derived signal."""
    derived = {f"d{place}": text(tree, words) for place, tree in enumerate(trees) if place % 2}
    columns = {
        f"c{place}": {
            "type": "bool" if is_bool(tree) else "float",
            "nullable": True,
            "expr": f"d{place}" if place % 2 else text(tree, words),
        }
        for place, tree in enumerate(trees)
    }
    return {
        "axes": {"group": {"size": 2}, "token": {"mask": "m"}},
        "signals": {**SIGNALS, **derived},
        "schemas": {"row": {"x": {"type": "float", "nullable": True}, **columns}},  # x: rows are there always
        "tables": {"rows": {"schema": "row"}},
    }


@examples(30, *HealthCheck)
@given(
    worlds(),
    st.lists(
        st.one_of(
            number("completion", 3), number("completion", 4), boolean("completion", 3), number("group", 3),
            number("batch", 2), boolean("batch", 3),
        ),
        min_size=4, max_size=6,
    ),
    st.booleans(),
)  # fmt: skip
def test_an_expression_equals_its_interpreter(world: World, trees: list[Tree], words: bool) -> None:
    """Operators, aggregates over every axis, masks, families, missing values, groups over ranks and batches."""
    sink = record(profile_of(trees, words=words), *steps_of(world))
    ((_, table),) = sink.tables("rows")

    for place, tree in enumerate(trees):
        expected = [world.value(tree, point) for point in world.points()]
        actual = table.data[f"c{place}"]
        shown = [None if item is None or item != item else item for item in expected]
        assert [item is None for item in shown] == [item is None for item in actual], text(tree)
        for wanted, given_ in zip(shown, actual, strict=True):
            assert wanted is None or wanted == pytest.approx(given_, **tolerance(tree)), text(tree)


def tolerance(tree: Tree) -> dict[str, Any]:
    """Tokens are folded in float64 where all that is read is; integers and plain numbers are float32 there."""
    exact = not any(f"'{name}'" in repr(tree) for name in ("q", "s"))
    return {"rel": 1e-9, "abs": 1e-10} if exact else {"rel": 1e-5, "abs": 1e-6}


REDUCTIONS = ("mean", "sum", "min", "max", "std", "pstd", "var", "count")


@examples(25, *HealthCheck)
@given(worlds(), number("token", 3), boolean("token", 2), st.one_of(boolean("token", 2), boolean("completion", 2)))
def test_a_reduction_over_tokens_pools_the_tokens_that_count(world: World, tree: Tree, flag: Tree, where: Tree) -> None:
    """Mask and `where` say which tokens; the moments are pooled over rows, batches and ranks."""
    profile = {
        "axes": {"group": {"size": 2}, "token": {"mask": "m"}},
        "signals": SIGNALS,
        "metrics": {
            "v": {"expr": text(tree), "reduce": list(REDUCTIONS)},
            "some": {"expr": text(tree), "reduce": list(REDUCTIONS), "where": text(where)},
            "flag": {"expr": text(flag), "reduce": ["mean", "sum", "count"]},
        },
    }
    sink = record(profile, *steps_of(world))
    logged = next(iter(sink.scalars.values()), {})

    def tokens(tree: Tree, *others: Tree) -> list[Any]:
        both = ("both", tree, *others)
        return [
            (world.reduced("mean", "token", tree, at), at) for row in world.points() for at in world.tokens(both, row)
        ]

    pools = {
        "v": [value for value, _ in tokens(tree)],
        "some": [value for value, at in tokens(tree, where) if world.value(where, at)],
        "flag": [value for value, _ in tokens(flag)],
    }
    expected: dict[str, float] = {}
    for name, pool in pools.items():
        shown = REDUCTIONS if name != "flag" else ("mean", "sum", "count")
        if pool and all(value is None or value != value for value in pool):  # shown as missing, and counted
            expected |= {
                f"nonfinite/{name}": len(pool),
                **dict.fromkeys((f"{name}/{each}" for each in shown), math.nan),
            }
            continue
        for reduction in shown:
            value = aggregate(reduction, pool)
            if value == value and not (reduction == "count" and value == 0):  # empty is absent
                expected[f"{name}/{reduction}"] = value
    assert sorted(expected) == sorted(logged), (text(tree), text(where), text(flag))
    assert expected == pytest.approx(logged, nan_ok=True, **tolerance(tree)), (text(tree), text(where), text(flag))


def test_the_interpreter_is_right_about_a_hand_worked_tree() -> None:
    """The oracle itself, on numbers that were worked by hand."""
    batch = {
        "x": [1.0, math.nan, 3.0, 5.0],
        "u": [[1.0, 2.0], [3.0, math.nan], [5.0, 6.0], [7.0, 8.0]],
        "m": [[True, False], [True, True], [False, False], [True, True]],
    }
    world = World([[batch]], 2)
    mean = ("aggregate", "mean", "token", ("signal", "u"))
    over_groups = ("aggregate", "sum", "completion", ("signal", "x"))

    assert [
        None if math.isnan(value) else value for value in (world.value(mean, point) for point in world.points())
    ] == [1.0, 3.0, None, 7.5]
    assert [world.value(over_groups, point) for point in world.points()] == [1.0, 1.0, 8.0, 8.0]
    assert np.std([1.0, 2.0, 4.0], ddof=1) == pytest.approx(aggregate("std", [1.0, math.nan, 2.0, 4.0]))
