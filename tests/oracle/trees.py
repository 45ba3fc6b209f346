"""Expressions as tuples: how they are written, and what can be said of them without any data.

A tree is ``(operation, *arguments)``, an argument a tree or plain data. Nothing of declog is imported here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Tree = tuple[Any, ...]
Signals = Mapping[str, Mapping[str, Any]]  # as a profile declares them

AXES = ("token", "completion", "group", "step", "all")  # from fine to coarse: a step signal is per batch *and rank*
REMOVED = {"token": "completion", "completion": "group", "group": "all"}
WORDS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}  # comparisons may be written as words
COMPARED = (*WORDS, *WORDS.values())
INFIX = ("+", "-", "*", "/", "**", "%", "//", "and", "or", *COMPARED)
BOOLS = (*COMPARED, "and", "or", "not", "present", "isnan", "isfinite", "isclose", "contains", "startswith", "matches",
         "in", "chain")  # fmt: skip
COUNTS = ("count", "len", "words", "rank", "index", "size", "members", "distinct")


def text(tree: Tree, names: Mapping[int, str] | None = None) -> str:
    """The expression as a profile has it; ``names``: of the parts that are signals of their own, by their identity."""
    if names and id(tree) in names:
        return names[id(tree)]

    def written(item: Any) -> str:
        return text(item, names) if isinstance(item, tuple) else repr(item)

    op, *args = tree
    match op:
        case "signal" | "name":
            return str(args[0])
        case "labels":
            return [written(item) for item in args]  # type: ignore[return-value]
        case "constant":
            return "missing" if args[0] is None else repr(args[0])
        case "aggregate":
            return f"{args[0]}({written(args[2])}, over={args[1]})"
        case "distinct_of":
            return f"distinct_n({written(args[0])}, {args[1]}, over=completion)"
        case "jaccard" | "distinct":
            return f"{op}({written(args[0])}, over=completion)"
        case "if":
            condition, yes, no = (written(item) for item in args)
            return f"({yes} if {condition} else {no})"
        case "rank":
            return f"rank({written(args[1])}, within={args[0]})"
        case "index" | "size":
            return f"{op}({args[0]})"
        case "member":
            return f"member({written(args[0])}, '{args[1]}')"
        case "neg":
            return f"(-{written(args[0])})"
        case "not":
            return f"(not {written(args[0])})"
        case "in":
            return f"({written(args[0])} in ({', '.join(repr(item) for item in args[1:])}))"
        case "chain":
            low, first, x, second, high = args
            return f"({written(low)} {first} {written(x)} {second} {written(high)})"
    inner = [written(item) for item in args]
    return f"({inner[0]} {op} {inner[1]})" if op in INFIX else f"{op}({', '.join(inner)})"


def walk(tree: Tree) -> Iterator[Tree]:
    """A tree and all in it."""
    yield tree
    for item in tree[1:]:
        if isinstance(item, tuple):
            yield from walk(item)


def signals_of(tree: Tree) -> list[str]:
    """The signals that a tree reads."""
    return [item[1] for item in walk(tree) if item[0] == "signal"]


def axis_of(tree: Tree, signals: Signals) -> str | None:
    """The finest axis of a tree's values; None: a constant."""
    op, *args = tree
    if op == "signal":
        return str(signals[args[0]]["axis"])
    if op == "aggregate" and args[1] not in ("member", "label"):
        return "all" if args[1] == "step" else REMOVED[args[1]]
    if op == "index":
        return str(args[0])
    if op == "size":
        return REMOVED[args[0]]
    if op in ("members", "constant"):
        return None
    if op == "name":
        return "step" if args[0] == "rank" else None
    if op in ("pass_at", "pass_all", "best_at", "majority", "majority_at", "distinct_of", "distinct", "jaccard"):
        return "group"
    found = [axis for item in args if isinstance(item, tuple) and (axis := axis_of(item, signals))]
    return min(found, key=AXES.index) if found else None


def family_of(tree: Tree, signals: Signals) -> bool:
    """Whether a tree has a value per member."""
    op, *args = tree
    if op == "signal":
        return bool(signals[args[0]].get("family"))
    if op in ("member", "members") or (op == "aggregate" and args[1] == "member"):
        return False
    return any(family_of(item, signals) for item in args if isinstance(item, tuple))


def kind_of(tree: Tree, signals: Signals) -> str:
    """`float`, `int`, `bool` or `text`: what a column of it is declared as."""
    op, *args = tree
    if op == "signal":
        return str(signals[args[0]].get("type", "float"))
    if op in BOOLS:
        return "bool"
    if op in COUNTS:
        return "int"
    if op in ("bucket", "majority"):
        return "text"
    if op == "aggregate":
        inner = kind_of(args[2], signals)
        if args[0] in ("any", "all"):
            return "bool"
        if args[0] == "sum":
            return "float" if inner == "float" else "int"
        return inner if args[0] in ("min", "max", "first", "last") else "float"
    if op == "member":
        return kind_of(args[0], signals)
    if op == "if":
        kinds = {kind_of(item, signals) for item in args[1:]}
        return kinds.pop() if len(kinds) == 1 else "float"
    return "float"


def masks_of(tree: Tree, signals: Signals, default: str | None) -> set[str]:
    """The masks of a per-token tree: those of the token signals that it reads without an aggregate between."""
    if tree[0] == "signal":
        declared = signals[tree[1]]
        if declared["axis"] != "token":
            return set()
        mask = declared.get("mask", default)
        return set() if mask in (None, "all") else {mask}
    if tree == ("index", "token"):
        return set() if default in (None, "all") else {default}
    if (tree[0] == "aggregate" and tree[2] != "member") or tree[0] == "size":
        return set()
    return {mask for item in tree[1:] if isinstance(item, tuple) for mask in masks_of(item, signals, default)}


def leaves_of(tree: Tree) -> list[Tree]:
    """The metrics that a formula reads, and what it reduces over their labels, each as one."""
    if tree[0] == "name" or (tree[0] == "aggregate" and tree[2] == "label"):
        return [tree]
    return [leaf for item in tree[1:] if isinstance(item, tuple) for leaf in leaves_of(item)]


def names_in(tree: Tree) -> list[str]:
    """The metrics that a formula reads."""
    if tree[0] == "name":
        return [tree[1]]
    return [name for item in tree[1:] if isinstance(item, tuple) for name in names_in(item)]
