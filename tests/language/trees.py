"""Random well-typed expressions, and an interpreter of them that shares nothing with declog.

A tree is a tuple, printed by ``text`` and evaluated by ``World.value`` one point at a time: Python floats and
loops, with the rules of missing values written out. Numbers are kept away from infinities, which are tested by
hand elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

Tree = tuple[Any, ...]
NAN = math.nan

# name: (axis, kind, family); the token axis' mask is `m`, that of `w` is `m2`
SIGNALS: dict[str, dict[str, Any]] = {
    "x": {"axis": "completion"},
    "y": {"axis": "completion"},
    "n": {"axis": "completion", "type": "int"},
    "b": {"axis": "completion", "type": "bool"},
    "t": {"axis": "completion", "type": "text"},
    "g": {"axis": "group"},
    "s": {"axis": "step"},
    "f": {"axis": "completion", "family": True},
    "h": {"axis": "step", "family": True},
    "m": {"axis": "token", "type": "bool"},
    "m2": {"axis": "token", "type": "bool", "mask": "all"},
    "u": {"axis": "token"},
    "q": {"axis": "token", "type": "int"},
    "k": {"axis": "token", "type": "bool"},
    "w": {"axis": "token", "mask": "m2"},
}
MEMBERS = ("left", "right", "up")
MASK_OF = {"u": "m", "q": "m", "k": "m", "w": "m2"}
NUMBERS = {"token": ("u", "q", "w"), "completion": ("x", "y", "n"), "group": ("g",), "step": ("s",)}
COARSER = {
    "token": ("completion", "step"),
    "completion": ("group", "batch", "step"),
    "group": ("batch", "step"),
    "batch": ("step",),
    "step": (),
}
FINER = {"completion": "token", "group": "completion", "batch": "group"}
CONSTANTS = (0, 1, 2, -1.5, 0.5, 3)
AGGREGATES = ("mean", "sum", "min", "max", "std", "pstd", "var", "count", "first", "last")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
WORDS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}


# ---- random trees --------------------------------------------------------------------------------------


@st.composite
def number(draw: Any, axis: str, depth: int, device: bool = False) -> Tree:
    """A number whose finest axis is ``axis``; ``device``: one that a per-token expression may read."""
    leaves = NUMBERS.get(axis, ())
    device = device or axis == "token"
    choice = draw(st.integers(0, 9)) if depth > 0 else 0
    if axis == "step":
        family = choice > 6 and not device
        return ("aggregate", draw(aggregates()), "column", ("signal", "h")) if family else ("signal", "s")
    if choice < 2 and leaves:
        return ("signal", draw(st.sampled_from(leaves)))
    if choice < 4 and axis in FINER:
        return draw(aggregated(axis, depth - 1))  # type: ignore[no-any-return]
    if choice == 4 and axis == "completion":
        return ("size", "token") if device else draw(special(depth - 1))
    if choice == 5 and axis == "completion" and not device:
        return ("aggregate", draw(aggregates()), "column", draw(family_of_numbers(depth - 1)))
    if not leaves and depth <= 0:
        return ("aggregate", "mean", FINER[axis], draw(number(FINER[axis], 0)))
    if depth <= 0:
        return ("signal", draw(st.sampled_from(leaves)))
    if choice < 7:
        pair = [draw(number(axis, depth - 1, device)), draw(any_number(axis, depth - 1, device))]
        return (draw(st.sampled_from(("+", "-", "*", "minimum", "maximum", "/"))), *draw(st.permutations(pair)))
    if choice < 9:
        op = draw(st.sampled_from(("neg", "abs", "square", "sqrt", "exp", "log", "**", "clip")))
        return (op, draw(number(axis, depth - 1, device)))
    sides = [draw(number(axis, depth - 1, device)), draw(any_number(axis, depth - 1, device))]
    return ("if", draw(boolean(axis, depth - 1, device)), *draw(st.permutations(sides)))


@st.composite
def any_number(draw: Any, axis: str, depth: int, device: bool = False) -> Tree:
    """A number on ``axis``, coarser, or a constant."""
    choice = draw(st.integers(0, 3))
    if choice == 0 or depth < 0:
        return ("constant", draw(st.sampled_from(CONSTANTS)))
    coarser = tuple(item for item in COARSER[axis] if not device or item in ("completion", "step"))
    other = axis if choice == 1 or not coarser else draw(st.sampled_from(coarser))
    return draw(number(other, depth, device))  # type: ignore[no-any-return]


@st.composite
def boolean(draw: Any, axis: str, depth: int, device: bool = False) -> Tree:
    """A bool whose finest axis is ``axis``."""
    device = device or axis == "token"
    choice = draw(st.integers(0, 7)) if depth > 0 else draw(st.sampled_from((0, 2)))
    if choice < 2 and axis in ("token", "completion"):
        return ("signal", "k" if axis == "token" else "b")
    if choice == 5:
        return ("not", draw(boolean(axis, depth - 1, device)))
    if choice == 6:
        name = draw(st.sampled_from(("and", "or")))
        return (name, draw(boolean(axis, depth - 1, device)), draw(boolean(axis, depth - 1, device)))
    if choice == 7 and axis in FINER:
        return ("aggregate", draw(st.sampled_from(("any", "all"))), FINER[axis], draw(boolean(FINER[axis], depth - 1)))
    if choice == 7 and axis == "token":
        return ("present", draw(number(axis, depth - 1)))
    if choice == 4 and axis == "completion" and not device:
        return draw(of_text())  # type: ignore[no-any-return]
    pair = [draw(number(axis, depth - 1, device)), draw(any_number(axis, depth - 1, device))]
    return (draw(st.sampled_from(COMPARISONS)), *draw(st.permutations(pair)))


def aggregates() -> st.SearchStrategy[str]:
    return st.sampled_from(AGGREGATES)


@st.composite
def aggregated(draw: Any, axis: str, depth: int) -> Tree:
    """One value per ``axis`` of the next finer axis."""
    if draw(st.booleans()):
        return ("aggregate", draw(aggregates()), FINER[axis], draw(number(FINER[axis], depth)))
    name = draw(st.sampled_from(("mean", "sum", "count")))
    return ("aggregate", name, FINER[axis], draw(boolean(FINER[axis], depth)))


@st.composite
def special(draw: Any, depth: int) -> Tree:
    """Numbers per completion that know how axes nest, and of texts."""
    return draw(  # type: ignore[no-any-return]
        st.sampled_from(
            (
                ("rank", "group", draw(number("completion", depth))),
                ("rank", "step", draw(number("completion", depth))),
                ("index", "completion"),
                ("size", "token"),
                ("len",),
                ("column", draw(st.sampled_from(MEMBERS))),
            )
        )
    )


@st.composite
def of_text(draw: Any) -> Tree:
    return draw(  # type: ignore[no-any-return]
        st.sampled_from((("text ==", "a"), ("text !=", "b c"), ("contains", "b"), ("text in", "a", "b c"), ("has",)))
    )


@st.composite
def family_of_numbers(draw: Any, depth: int) -> Tree:
    """A family per completion."""
    choice = draw(st.integers(0, 2)) if depth > 0 else 0
    if choice == 0:
        return ("signal", "f")
    if choice == 1:
        other = draw(st.sampled_from((("signal", "h"), ("signal", "x"), ("signal", "g"), ("constant", 2))))
        return (draw(st.sampled_from(("+", "*", "-"))), draw(family_of_numbers(depth - 1)), other)
    return ("if", ("<", ("signal", "f"), draw(any_number("completion", depth - 1))), ("signal", "f"), ("signal", "x"))


# ---- texts -----------------------------------------------------------------------------------------------


def text(tree: Tree, words: bool = False) -> str:
    """The expression of a tree; ``words`` writes comparisons with words."""
    op, *args = tree
    match op:
        case "signal":
            return str(args[0])
        case "constant":
            return repr(args[0])
        case "aggregate":
            return f"{args[0]}({text(args[2], words)}, over={args[1]})"
        case "if":
            condition, yes, no = (text(item, words) for item in args)
            return f"({yes} if {condition} else {no})"
        case "rank":
            return f"rank({text(args[1], words)}, within={args[0]})"
        case "index" | "size":
            return f"{op}({args[0]})"
        case "len":
            return "len(t)"
        case "column":
            return f"column(f, '{args[0]}')"
        case "has":
            return "present(t)"
        case "text ==" | "text !=":
            return f"(t {op[-2:]} '{args[0]}')"
        case "text in":
            return f"(t in ({', '.join(repr(item) for item in args)}))"
        case "contains":
            return f"contains(t, '{args[0]}')"
        case "neg":
            return f"(-{text(args[0], words)})"
        case "not":
            return f"(not {text(args[0], words)})"
        case "**":
            return f"({text(args[0], words)} ** 2)"
        case "clip":
            return f"clip({text(args[0], words)}, -1, 2.5)"
        case "exp":
            return f"exp(clip({text(args[0], words)}, -2, 2))"
        case "log":
            return f"log(abs({text(args[0], words)}) + 1)"
        case "/":
            return f"({text(args[0], words)} / (abs({text(args[1], words)}) + 1))"
    inner = [text(item, words) for item in args]
    if op in ("minimum", "maximum", "abs", "square", "sqrt", "present"):
        return f"{op}({', '.join(inner)})"
    return f"({inner[0]} {WORDS.get(op, op) if words else op} {inner[1]})"


def is_bool(tree: Tree) -> bool:
    """Whether a tree's value is a bool."""
    op = tree[0]
    if op == "if":
        return is_bool(tree[2])
    return (
        op in (*COMPARISONS, "not", "and", "or", "present", "has", "contains", "text ==", "text !=", "text in")
        or tree in (("signal", "b"), ("signal", "k"))
        or (op == "aggregate" and tree[1] in ("any", "all"))
    )


# ---- the interpreter -------------------------------------------------------------------------------------


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
                found = [self.value(args[2], point) for point in self.below(args[1], args[2], at)]
                return aggregate(args[0], found)
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
