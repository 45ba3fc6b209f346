"""Random well-typed expressions: a tree is a tuple, printed by ``text`` and evaluated by ``interpreter.py``.

Numbers are kept away from infinities, which are tested by hand elsewhere.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Tree = tuple[Any, ...]

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
