"""An interpreter of random trees that shares nothing with declog.

One point at a time: Python floats and loops, with the rules of missing values written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.language.trees import MASK_OF, SIGNALS, Tree

NAN = math.nan


@dataclass(frozen=True)
class Point:
    """Where a value is asked for; what is not given is repeated over."""

    batch: int
    rank: int
    group: int = 0
    row: int = 0
    token: int = 0
    member: str = ""


@dataclass
class World:
    """What was observed: ``batches[batch][rank]`` maps a signal to plain lists; groups have ``size`` rows."""

    batches: list[list[dict[str, Any]]]
    size: int

    def rows(self, batch: int, rank: int) -> int:
        """How many completions a batch has on a rank."""
        return len(self.batches[batch][rank]["x"])

    def points(self) -> list[Point]:
        """Every completion, in the order of tables."""
        return [
            Point(batch, rank, row // self.size, row)
            for batch, ranks in enumerate(self.batches)
            for rank in range(len(ranks))
            for row in range(self.rows(batch, rank))
        ]

    def tokens(self, tree: Tree, at: Point) -> list[Point]:
        """The tokens of a completion that exist for a per-token tree."""
        here = self.batches[at.batch][at.rank]
        masks = [here[name][at.row] for name in sorted(masks_of(tree))]
        return [replace(at, token=place) for place in range(len(here["m"][at.row])) if all(m[place] for m in masks)]

    def below(self, axis: str, tree: Tree, at: Point) -> list[Point]:
        """The points of ``axis`` that an aggregate at a point reads."""
        if axis == "token":
            return self.tokens(tree, at)
        if axis == "column":
            return [replace(at, member=name) for name in self.batches[0][0]["f"]]  # in the order first seen
        if axis == "completion":
            return [replace(at, row=row) for row in range(at.group * self.size, (at.group + 1) * self.size)]
        return [
            replace(at, rank=rank, group=group, row=group * self.size)
            for rank in range(len(self.batches[at.batch]))
            for group in range(self.rows(at.batch, rank) // self.size)
        ]

    def value(self, tree: Tree, at: Point) -> Any:
        """The value at a point: a float (NaN: missing), or a bool (None: missing)."""
        op, *args = tree
        here = self.batches[at.batch][at.rank]
        match op:
            case "signal":
                return self.signal(args[0], at)
            case "constant":
                return float(args[0])
            case "aggregate":
                return aggregate(
                    args[0],
                    [self.reduced(args[0], args[1], args[2], point) for point in self.below(args[1], args[2], at)],
                )
            case "rank":
                return self.rank(args[0], args[1], at)
            case "index":
                return float(at.row % self.size)
            case "size":
                return float(sum(here["m"][at.row]))
            case "len":
                return NAN if here["t"][at.row] is None else float(len(here["t"][at.row]))
            case "column":
                return self.signal("f", replace(at, member=args[0]))
            case "has":
                return here["t"][at.row] is not None
            case "text ==":
                return here["t"][at.row] == args[0]
            case "text !=":
                return here["t"][at.row] not in (None, args[0])
            case "text in":
                return here["t"][at.row] in args
            case "contains":
                return here["t"][at.row] is not None and args[0] in here["t"][at.row]
        return OPERATIONS[op](*(self.value(item, at) for item in args))

    def reduced(self, name: str, axis: str, tree: Tree, at: Point) -> Any:
        """The value that an aggregate over ``axis`` takes: an undecided bool is missing, but false to `any` and `all`.

        Over tokens it is left out of these too.
        """
        value = self.value(tree, at)
        if name in ("any", "all") and axis != "token":
            return value
        return None if self.undecided(tree, at) else value

    def undecided(self, tree: Tree, at: Point) -> bool:
        """Whether a bool is neither true nor false, since a comparison that decides it is of a missing value."""
        op, *args = tree
        if op in COMPARED:
            return any(value != value for value in (self.value(item, at) for item in args))
        if op == "not":
            return self.undecided(args[0], at)
        if op in ("and", "or"):  # either side, unless one that asks `present` decides alone
            alone = (item for item in args if asks(item) and not self.undecided(item, at))
            decided = any(bool(self.value(item, at)) == (op == "or") for item in alone)
            return not decided and any(self.undecided(item, at) for item in args)
        if op in ("text ==", "text !=", "text in"):
            return self.batches[at.batch][at.rank]["t"][at.row] is None
        return False

    def signal(self, name: str, at: Point) -> Any:
        """An observed value at a point."""
        whole, spec = self.batches[at.batch][at.rank][name], SIGNALS[name]
        one = whole[at.member] if spec.get("family") else whole
        if spec["axis"] == "token":
            one = one[at.row][at.token]
        elif spec["axis"] != "step":
            one = one[at.row if spec["axis"] == "completion" else at.group]
        return one if spec.get("type") == "bool" else NAN if one is None else float(one)

    def rank(self, within: str, tree: Tree, at: Point) -> float:
        """One more than how many come before, of those that are not missing."""
        others = [
            point
            for point in self.points()
            if point.batch == at.batch and (within == "step" or (point.rank, point.group) == (at.rank, at.group))
        ]
        mine = self.value(tree, at)
        place = others.index(replace(at, token=0, member=""))
        before = [(self.value(tree, point), index) < (mine, place) for index, point in enumerate(others)]
        return NAN if mine != mine else 1.0 + sum(before)


def masks_of(tree: Tree) -> set[str]:
    """The masks of a per-token tree: those of the token signals that it reads without an aggregate between."""
    if tree[0] == "signal":
        return {MASK_OF[tree[1]]} if tree[1] in MASK_OF else set()
    if tree[0] == "aggregate" and tree[2] != "column":
        return set()
    return {mask for item in tree[1:] if isinstance(item, tuple) for mask in masks_of(item)}


def asks(tree: Tree) -> bool:
    """Whether a tree asks `present` anywhere."""
    return tree[0] in ("present", "has") or any(asks(item) for item in tree[1:] if isinstance(item, tuple))


def aggregate(name: str, found: list[Any]) -> Any:
    """One value of many; missing ones are passed over."""
    there = [item for item in found if item is not None and item == item]
    if name == "any":
        return any(there)
    if name == "all":
        return all(there)
    values = [float(item) for item in there]
    n = len(values)
    if name == "count":
        return float(n)
    if n == 0:
        return NAN
    total = math.fsum(values)
    if name in ("std", "var", "pstd"):
        squares = math.fsum((item - total / n) ** 2 for item in values)
        if name == "pstd":
            return math.sqrt(squares / n)
        return NAN if n == 1 else squares / (n - 1) if name == "var" else math.sqrt(squares / (n - 1))
    simple = {"mean": total / n, "sum": total, "min": min(values), "max": max(values), "first": values[0]}
    return simple.get(name, values[-1])


def _either_missing(run: Callable[[float, float], float]) -> Callable[[float, float], float]:
    return lambda a, b: NAN if a != a or b != b else run(a, b)


def _compared(run: Callable[[float, float], bool]) -> Callable[[float, float], bool]:
    return lambda a, b: a == a and b == b and run(a, b)


def _clip(x: float) -> float:
    return x if x != x else min(max(x, -1.0), 2.5)


COMPARED = ("<", "<=", ">", ">=", "==", "!=")
OPERATIONS: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / (abs(b) + 1),
    "minimum": _either_missing(min),
    "maximum": _either_missing(max),
    "neg": lambda x: -x,
    "abs": abs,
    "square": lambda x: x * x,
    "sqrt": lambda x: math.sqrt(x) if x >= 0 else NAN,
    "exp": lambda x: math.exp(x if x != x else min(max(x, -2.0), 2.0)),
    "log": lambda x: math.log(abs(x) + 1),
    "**": lambda x: x * x,
    "clip": _clip,
    "if": lambda condition, yes, no: yes if condition else no,
    "<": _compared(lambda a, b: a < b),
    "<=": _compared(lambda a, b: a <= b),
    ">": _compared(lambda a, b: a > b),
    ">=": _compared(lambda a, b: a >= b),
    "==": _compared(lambda a, b: a == b),
    "!=": _compared(lambda a, b: a != b),
    "and": lambda a, b: bool(a) and bool(b),
    "or": lambda a, b: bool(a) or bool(b),
    "not": lambda x: x is not None and not x,
    "present": lambda x: x == x,
}
