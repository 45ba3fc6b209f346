"""Typing rules: from the types of a call's arguments to the type of its value, or a refusal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from declog.language.dtypes import Axis, Kind, Type, finest
from declog.language.functions.base import BUILTIN, Call
from declog.language.nodes import BUILTIN as BUILTIN_NAME
from declog.language.nodes import symbol, walk

if TYPE_CHECKING:
    from declog.language.nodes import Node


def broadcast(call: Call, args: Sequence[Node] | None = None) -> Type:
    """The shape of values combined by axis name; their kind is left to the rule."""
    nodes = call.args if args is None else args
    phases = {node.type.phase for node in nodes if node.type.phase is not None}
    if len(phases) > 1:
        shown = ", ".join(f"`{node}` ({node.type.phase})" for node in nodes if node.type.phase)
        call.fail(f"values of different phases in one expression: {shown}", "observe them in one phase", code="DL313")
    axis = finest(*(node.type.axis for node in nodes))
    family = any(node.type.family for node in nodes)
    if axis is Axis.TOKEN:
        for place, node in enumerate(nodes):
            _on_device(call, place, node)
    return Type(Kind.NUMBER, axis, family, phases.pop() if phases else None)


def _on_device(call: Call, place: int, node: Node) -> None:
    """Refuse an argument of a per-token expression that cannot be computed where the tokens are folded."""
    fix = "reduce the tokens first, with over=token"
    if node.type.family:
        call.fail("a family in a per-token expression is not executed yet", fix, arg=place, code="DL205")
    for item in walk(node):
        function = BUILTIN.get(item.op)
        grouped = item.type.axis in (Axis.GROUP, Axis.BATCH) or item.op in ("rank", "index")
        if grouped:
            message = "a per-token expression cannot use a value that depends on groups or batches"
            call.fail(message, fix, arg=place, code="DL310")
        on_tokens = item.over is Axis.TOKEN or item.op == "size"
        if (
            item.type.kind in (Kind.TEXT, Kind.OBJECT)
            or item.op == BUILTIN_NAME
            or (function is not None and function.stage != "elementwise" and not on_tokens)
        ):
            call.fail(f"`{item}` in a per-token expression is not executed yet", fix, arg=place, code="DL205")


def need(call: Call, *kinds: Kind, args: Sequence[int] | None = None) -> None:
    """Refuse arguments of other kinds."""
    for place in range(len(call.args)) if args is None else args:
        node = call.args[place]
        if node.type.kind not in kinds:
            wanted = " or ".join(
                dict.fromkeys(kind.value for kind in kinds if kind is not Kind.INT or Kind.NUMBER not in kinds)
            )
            fix = None
            if node.type.kind is Kind.BOOL:
                fix = f"write `(1 if {node} else 0)`" if Kind.NUMBER in kinds else None
            elif kinds == (Kind.BOOL,):
                fix = f"compare it first, such as `{node} > 0`"
            elif node.type.kind is Kind.TEXT and Kind.NUMBER in kinds:
                fix = f"count it, `len({node})`, or compare it, `(1 if {node} == '...' else 0)`"
            call.fail(
                f"`{symbol(call.name)}` needs {wanted}, and `{node}` is {node.type.kind.value}",
                fix,
                arg=place,
                code="DL305",
            )


NUMERIC = (Kind.NUMBER, Kind.INT)


def number(call: Call) -> Type:
    """Numbers in, a number out."""
    need(call, *NUMERIC)
    return broadcast(call)


def same(call: Call) -> Type:
    """Numbers in; an int out where all are ints."""
    need(call, *NUMERIC)
    kind = Kind.INT if all(node.type.kind is Kind.INT for node in call.args) else Kind.NUMBER
    return broadcast(call).with_kind(kind)


def predicate(call: Call) -> Type:
    """Numbers in, a bool out."""
    need(call, *NUMERIC)
    return broadcast(call).with_kind(Kind.BOOL)


def logic(call: Call) -> Type:
    """Bools in, a bool out."""
    need(call, Kind.BOOL)
    return broadcast(call).with_kind(Kind.BOOL)


def equality(call: Call) -> Type:
    """Numbers with numbers, texts with texts, bools with bools."""
    kinds = {_family_of_kinds(node.type.kind) for node in call.args}
    if len(kinds) > 1 or Kind.OBJECT in kinds:
        shown = " and ".join(f"`{node}` ({node.type.kind.value})" for node in call.args)
        fix = "compare numbers with numbers, texts with texts: `len(x) > 3`, `x == '3'`"
        call.fail(f"these cannot be compared: {shown}", fix, code="DL305")
    return broadcast(call).with_kind(Kind.BOOL)


def _family_of_kinds(kind: Kind) -> Kind:
    return Kind.NUMBER if kind is Kind.INT else kind


def choice(call: Call) -> Type:
    """``if``: a bool, and two values of one kind."""
    need(call, Kind.BOOL, args=[0])
    kinds = {_family_of_kinds(node.type.kind) for node in call.args[1:]}
    if len(kinds) > 1:
        shown = " and ".join(node.type.kind.value for node in call.args[1:])
        call.fail(f"the two sides of `if` differ: {shown}", "give both the same kind", code="DL305")
    exact = {node.type.kind for node in call.args[1:]}
    return broadcast(call).with_kind(exact.pop() if len(exact) == 1 else Kind.NUMBER)
