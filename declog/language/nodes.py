"""The typed tree of an expression: the compiler makes it, and every evaluator walks it.

Nodes are interned in a ``Graph``: two equal subexpressions are one object. So common subexpressions are computed once,
and the identity of a node is its key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import Any

from declog.language.dtypes import Axis, DType, Type

CONST, SIGNAL, BUILTIN, METRIC, FOLD, TEXTVALUE = "const", "signal", "builtin", "metric", "fold", "local"
ALONE = "alone"  # the parameter of a family whose members are observed one by one
LOGGED = "logged"  # the family that `log_metric` feeds, and the metric that shows it
TIMERS = "timers"  # the family that `log.timer` feeds
CARRIED = "carried"  # a column that rank 0 adds from other rows: a join, or a previous value
JOIN = "join"  # a value of an earlier phase, for the rows of a later one
COMBINED = "combined"  # one label made of several values
WRITTEN = {DType.INT: "int_text", DType.BOOL: "bool_text"}  # operations that turn values into labels
SAID = "said"  # an object as a text: the text of a conversation's messages
COMPUTED = frozenset({FOLD, TEXTVALUE, CARRIED})  # columns that hold the values of an expression
LEAVES = frozenset({CONST, SIGNAL, BUILTIN, METRIC, FOLD, TEXTVALUE, CARRIED})
PLAIN = frozenset({CONST, BUILTIN})  # values that every process has
RANKS = ("rank", "smaller")  # functions that compare each row with the other rows of its group or step
DRAWN = ("pass_at", "pass_all", "best_at", "majority_at")  # functions of draws of k rows of a group
MODE = "mode"  # the built-in name whose values are names of modes
LABEL = "label"  # the function that picks one label of a metric, its parameter, and the axis of `over=label`
LABELLED = "labelled"  # the parameter of a metric with one value per label


@dataclass(frozen=True, eq=False, repr=False)
class Node:
    """One operation of an expression: a leaf, or a registered function applied to other nodes.

    ``params`` are compile-time arguments (``over``, ``bins``, a constant's ``value``, a signal's
    ``name``). ``mask`` holds the token masks that mark the tokens that exist (empty: all tokens).
    """

    op: str
    args: tuple[Node, ...]
    params: tuple[tuple[str, Any], ...]
    type: Type
    mask: frozenset[Node]
    index: int
    names: list[str] = field(default_factory=list)  # the config's derived signals with this value

    def param(self, name: str) -> Any:
        """The value of a compile-time argument."""
        for key, value in self.params:
            if key == name:
                return value
        raise KeyError(name)

    @cached_property
    def leaf(self) -> Any:
        """The value of a constant, or the name of another leaf."""
        return self.param("value" if self.op == CONST else "name")

    @cached_property
    def over(self) -> Axis | str | None:
        """The axis that this node removes, or None."""
        return dict(self.params).get("over")

    def __repr__(self) -> str:
        return f"<{self} : {self.type}>"

    def __str__(self) -> str:
        return show(self)


_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**", "floordiv": "//", "mod": "%",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and": "and", "or": "or",
}  # fmt: skip


def definition(node: Node) -> str:
    """The expression with its derived signals written out. Equal nodes of two compilations have equal definitions."""
    return show(node, in_full=True)


def show(node: Node, *, nested: bool = False, in_full: bool = False) -> str:
    """The expression of a node as a user could write it in YAML, with derived signals by their names."""
    if node.names and (not in_full or node.op in COMPUTED):
        return min(node.names)  # does not depend on the order of the config
    if node.op == CONST:
        return _constant(node.param("value"))
    if node.op in LEAVES:
        function, _, name = str(node.param("name")).rpartition(":")
        if (label := label_of(node)) is not None:
            return f"{LABEL}({name}, {_constant(label)})"
        return f"{function}({name})" if function else name
    part = partial(show, in_full=in_full)
    if (node.op == JOIN and not in_full) or node.op in (SAID, *WRITTEN.values()):
        return part(node.args[0], nested=nested)
    inner = [part(arg, nested=True) for arg in node.args]
    if node.op in _INFIX:
        text = f" {_INFIX[node.op]} ".join(inner)
    elif node.op == "not":
        text = f"not {inner[0]}"
    elif node.op == "if":
        condition, yes, no = inner
        text = f"{yes} if {condition} else {no}"
    elif node.op == "neg":
        return f"-{inner[0]}"
    elif node.op == COMBINED:
        return " and ".join(inner)
    else:
        arguments = [*map(part, node.args), *(_parameter(key, value) for key, value in node.params)]
        return f"{node.op}({', '.join(arguments)})"
    return f"({text})" if nested else text


def _constant(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value != value:
        return "missing"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, str):  # texts have no escapes
        return f'"{value}"' if "'" in value else f"'{value}'"
    return repr(value)


def _parameter(key: str, value: Any) -> str:
    """The text of a compile-time argument; only ``over`` and ``within`` are written with their names."""
    if key in ("over", "within"):
        return f"{key}={value.label if isinstance(value, Axis) else value}"
    if isinstance(value, tuple):
        return ", ".join(_constant(item) for item in value)
    return value.label if isinstance(value, Axis) else _constant(value)


def symbol(op: str) -> str:
    """The notation of an operation: ``+`` for ``add``."""
    return _INFIX.get(op, op)


_CONSTANTS = {bool: DType.BOOL, int: DType.INT, float: DType.FLOAT, str: DType.TEXT}


class Graph:
    """Makes nodes; equal nodes are the same object. One graph serves one compilation."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[Any, ...], Node] = {}
        # values that are never finite: the expression, the part at fault, and the value (None for x / 0)
        self.not_finite: list[tuple[str, str, float | None]] = []

    def make(
        self, op: str, args: Iterable[Node] = (), *, type: Type, mask: Iterable[Node] | None = None, **params: Any
    ) -> Node:
        """The node of an operation. ``mask`` defaults to the union of the token arguments' masks."""
        nodes = tuple(args)
        if mask is None:
            inherited = [arg.mask for arg in nodes if arg.type.axis is type.axis is Axis.TOKEN]
            mask = frozenset().union(*inherited)
        masks = frozenset(mask)
        items = tuple(params.items())
        # 1, 1.0 and True are equal in Python, but different constants here
        tags = tuple((key, value.__class__.__name__, repr(value)) for key, value in items)
        key = (op, tuple(id(node) for node in nodes), tags, type, frozenset(id(node) for node in masks))
        if key not in self._nodes:
            self._nodes[key] = Node(op, nodes, items, type, masks, len(self._nodes))
        return self._nodes[key]

    def constant(self, value: float | int | bool | str) -> Node:
        """The node of a constant."""
        return self.make(CONST, type=Type(_CONSTANTS[value.__class__]), value=value)

    def said(self, node: Node) -> Node:
        """The node of an object as a text."""
        return self.make(SAID, [node], type=node.type.with_dtype(DType.TEXT))


def label_of(node: Node) -> str | None:
    """The one label of a metric that a leaf reads. None if the metric has no labels, or the leaf reads all labels."""
    return dict(node.params).get(LABEL) if node.op == METRIC else None


@lru_cache(maxsize=4096)  # each log event asks this for all formulas, conditions and alerts
def aligned(node: Node) -> tuple[Node, ...]:
    """The metrics whose labels an expression aligns, and the parts that it reduces over labels.

    A part that is reduced over labels has no labels itself.
    """
    if node.op == METRIC or node.over == LABEL:
        return (node,)
    return tuple(dict.fromkeys(leaf for arg in node.args for leaf in aligned(arg)))


def members_of(*nodes: Node) -> tuple[str, ...] | None:
    """The members that the families in expressions declare. None without a family, or if one may have other members."""
    leaves = [node for node in walk(*nodes) if node.op in LEAVES and node.type.family]
    declared = [dict(node.params).get("members") for node in leaves]
    if not declared or any(one is None for one in declared):
        return None
    return tuple(dict.fromkeys(member for one in declared if one is not None for member in one))


def reads_other_ranks(node: Node, split: bool) -> bool:
    """Whether a value depends on rows of other ranks.

    Such rows belong to the same step, to an earlier phase or step, or to a group that is spread over ranks.
    ``index(group)`` counts the groups of a step over all ranks. ``split`` says that groups are spread over ranks.
    """
    for item in walk(node):
        within = item.param("within") if item.op in RANKS else item.type.axis
        of_all_ranks = {**dict.fromkeys(RANKS, Axis.STEP), "index": Axis.GROUP}.get(item.op, Axis.ALL)
        if item.op in (CARRIED, JOIN, "prev") or within in (Axis.ALL, of_all_ranks):
            return True
        if split and (within is Axis.GROUP or item.op in (*RANKS, "index")):
            return True
    return False


def reads_groups(node: Node) -> bool:
    """Whether an operation itself, apart from its arguments, depends on the rows of a group."""
    if node.op in RANKS:
        return node.param("within") is Axis.GROUP
    if node.op in ("index", "size", "majority", *DRAWN):
        return True
    return node.over in (Axis.COMPLETION, Axis.GROUP) or (node.op in LEAVES and node.type.axis is Axis.GROUP)


def walk(*roots: Node) -> Iterator[Node]:
    """Every node of the trees once, roots included; arguments precede their users. Masks are not entered."""
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((arg, False) for arg in reversed(node.args))
