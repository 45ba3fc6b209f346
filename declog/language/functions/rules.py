"""Typing rules: they compute the type of a call from the types of its arguments, or refuse the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Protocol

from declog.language.dtypes import NUMERIC, Axis, DType, Type, any_of, finest
from declog.language.nodes import BUILTIN, CONST, RANKS, SIGNAL, Node, show, symbol, walk
from declog.language.patterns import PatternError, pattern

Stage = Literal["elementwise", "aggregate", "rows"]


class Functions(Protocol):
    """The part of the registry of functions that typing rules use."""

    def stage(self, name: str) -> Stage | None:
        """The stage of the function with a name; None for an unknown name."""

    def as_text(self, name: str) -> str | None:
        """The first line of a user's function of rows, annotated to return a text; None for another function."""


@dataclass
class Call:
    """A call as a typing rule sees it: the arguments' nodes and the compile-time parameters."""

    name: str
    args: list[Node]
    params: dict[str, Any]
    groups: bool  # whether the config defines groups
    token_mask: frozenset[Node]  # the mask of the token axis; empty if the config declares none
    functions: Functions
    said: Callable[[Node], Node]  # turns an object into a text
    fail: Callable[..., NoReturn]  # refuses the call: `fail(key, arg=0, **facts)`; `arg` points at one argument


Rule = Callable[[Call], Type]


def broadcast(call: Call) -> Type:
    """The shape of arguments that are combined by axis name. The rule sets the dtype."""
    nodes = call.args
    phases = {node.type.phase for node in nodes if node.type.phase is not None}
    if len(phases) > 1:
        shown = ", ".join(f"`{node}` ({node.type.phase})" for node in nodes if node.type.phase)
        call.fail("DL313.phases", signals=shown)
    axis = finest(*(node.type.axis for node in nodes))
    family = any(node.type.family for node in nodes)
    if axis is Axis.TOKEN:
        for index, node in enumerate(nodes):
            _on_device(call, index, node)
    return Type(DType.FLOAT, axis, family, phases.pop() if phases else None)


def _on_device(call: Call, index: int, node: Node) -> None:
    """Refuse an argument of a per-token expression that the token fold on the device cannot compute."""
    fix = "reduce the tokens first, with over=token"
    if node.type.family:
        call.fail("DL205.fold", arg=index, item="a family", fix=fix)
    for item in walk(node):
        of_token = item.op == "index" and item.type.axis is Axis.TOKEN
        if item.type.axis in (Axis.GROUP, Axis.ALL) or (item.op in (*RANKS, "index") and not of_token):
            call.fail("DL310.fold", arg=index, fix=fix)
        on_tokens = item.over is Axis.TOKEN or item.op == "size" or of_token
        on_host = call.functions.stage(item.op) not in (None, "elementwise") and not on_tokens
        if item.type.text or item.op == BUILTIN or on_host:
            call.fail("DL205.fold", arg=index, item=f"`{item}`", fix=fix)


def need(call: Call, *dtypes: DType, args: Sequence[int] | None = None, fix: str | None = None) -> None:
    """Refuse arguments of other dtypes. ``fix`` contains `{node}` for the argument. An object may serve as a text."""
    for index in range(len(call.args)) if args is None else args:
        node = call.args[index]
        if node.type.dtype is DType.OBJECT and DType.TEXT in dtypes and DType.OBJECT not in dtypes:
            call.args[index] = call.said(node)
            continue
        if node.type.dtype not in dtypes:
            name, answer = symbol(call.name), of_type(node, dtypes) if fix is None else fix.format(node=node)
            answer = of_text(node, dtypes, call.functions) or answer
            if node.type.dtype is DType.TEXT and name in ("<", "<=", ">", ">="):
                answer = f"compare it, `{node} == ...`, or its characters, `len({node})`"
            call.fail(
                "DL305.needs", arg=index, name=name, needed=any_of(dtypes), node=node, dtype=node.type.dtype,
                fix=answer,
            )  # fmt: skip


def of_text(node: Node, dtypes: Sequence[DType], functions: Functions) -> str | None:
    """The fix for a user's function that is used as a text but declares no text as its result; None for any other."""
    if DType.TEXT not in dtypes or (written := functions.as_text(node.op)) is None:
        return None
    return f"say that it gives a text: `{written}: ...`"


def of_type(node: Node, dtypes: Sequence[DType]) -> str | None:
    """The fix for an expression whose type its place does not accept."""
    if list(dtypes) == [DType.BOOL]:
        if node.op in _OF_BOOLS and node.over is not None and node.args[0].type.dtype is DType.BOOL:
            return f"{_OF_BOOLS[node.op]}{str(node).removeprefix(node.op)}"
        return f"compare it, such as `{node} > 0`"
    if node.type.dtype is DType.BOOL:
        return f"write `1 if {node} else 0`" if DType.FLOAT in dtypes else None
    if node.type.dtype is DType.TEXT and DType.FLOAT in dtypes:
        return f"count it, `len({node})`, or compare it, `(1 if {node} == ... else 0)`"
    if node.type.dtype is not DType.FLOAT or DType.INT not in dtypes:
        return None
    ranges = f'ranges with edges of yours: "bucket({node}, LOW, HIGH)"'
    axis = node.type.axis if node.op == SIGNAL else None
    return ranges if axis is None else f"`{node}: {axis.label} int` where it is declared, or {ranges}"


_OF_BOOLS = {"max": "any", "min": "all"}


def of_quotient(node: Node, dtypes: Sequence[DType]) -> str | None:
    """The fix for ``floor(x / 10)`` and ``x // 10`` as labels; None for another expression."""
    inner = node.args[0] if node.op == "floor" and node.args[0].op == "div" else node
    if inner is not node and DType.INT in dtypes and all(arg.type.dtype is DType.INT for arg in inner.args):
        quotient = " // ".join(show(arg, nested=True) for arg in inner.args)
        parts = [arg.param("value") for arg in inner.args[0].args if arg.op == CONST and inner.args[0].op == "mul"]
        if inner.type.axis is not Axis.TOKEN:
            return f"write `{quotient}`"
        if parts and 1 < parts[0] <= 20:  # tokens can only have ranges as labels: one range for each part
            return f"write `bucket({quotient}, {', '.join(map(str, range(parts[0] - 1)))})`"
    divisor = inner.args[1].param("value") if inner.op in ("div", "floordiv") and inner.args[1].op == CONST else None
    if not isinstance(divisor, int) or divisor < 2 or DType.TEXT not in dtypes or node.op == "div":
        return None
    value = inner.args[0]
    if value.type.dtype is DType.INT:
        return f"write `{value} // {divisor}`"
    return f"write `bucket({value}, {divisor}, {2 * divisor}, {3 * divisor})`"


def readable_pattern(call: Call) -> None:
    """Refuse a regular expression that cannot be read, or cannot be searched in linear time."""
    try:
        pattern(call.params["pattern"])
    except PatternError as error:
        call.fail("DL304.regex", error=error, fix=error.fix)


def typed(dtype: DType, *accepts: DType) -> Rule:
    """A rule: arguments have one of the dtypes ``accepts`` (default: any); the value is a ``dtype`` of their shape."""

    def rule(call: Call) -> Type:
        need(call, *(accepts or DType))
        return broadcast(call).with_dtype(dtype)

    return rule


number = typed(DType.FLOAT, *NUMERIC)
predicate = typed(DType.BOOL, *NUMERIC)
logic = typed(DType.BOOL, DType.BOOL)


def same(call: Call) -> Type:
    """Arguments are numbers; the value is an int if all arguments are ints, else a float."""
    need(call, *NUMERIC)
    dtype = DType.INT if all(node.type.dtype is DType.INT for node in call.args) else DType.FLOAT
    return broadcast(call).with_dtype(dtype)


def product(call: Call) -> Type:
    """Arguments are numbers, and bools beside at least one number: a mask is a factor."""
    numbers = [index for index, node in enumerate(call.args) if node.type.dtype is not DType.BOOL]
    need(call, *NUMERIC, args=numbers or None)
    integer = all(node.type.dtype in (DType.INT, DType.BOOL) for node in call.args)
    return broadcast(call).with_dtype(DType.INT if integer else DType.FLOAT)


def _alike(call: Call) -> str:
    """The fix for ``done == 1``, and for any other comparison of unlike types."""
    truths = [node for node in call.args if node.type.dtype is DType.BOOL]
    numbers = [node.param("value") for node in call.args if node.op == CONST]
    dtypes = [node.type.dtype for node in call.args]
    texts = (of_text(node, dtypes, call.functions) for node in call.args if node.type.dtype is not DType.TEXT)
    if (fix := next(filter(None, texts), None)) is not None:
        return fix
    if len(truths) == 1 and numbers in ([0], [1]):
        return f"write `{truths[0]}`" if numbers == [int(call.name == "eq")] else f"write `not {truths[0]}`"
    if len(truths) == 1 and not numbers and {*dtypes} <= {DType.BOOL, *NUMERIC}:
        sides = [f"({node})" if node in truths else f"({node} > 0)" for node in call.args]
        return f"write `{sides[0]} {'==' if call.name == 'eq' else '!='} {sides[1]}`"
    return "compare numbers with numbers, texts with texts: `len(x) > 3`, `x == '3'`; a word stands in quotes"


def equality(call: Call) -> Type:
    """Compare numbers with numbers, texts with texts, bools with bools."""
    if any(node.type.dtype is DType.TEXT for node in call.args):
        call.args[:] = [call.said(node) if node.type.dtype is DType.OBJECT else node for node in call.args]
    dtypes = {_broad(node.type.dtype) for node in call.args}
    if len(dtypes) > 1 or DType.OBJECT in dtypes:
        shown = " and ".join(f"`{node}` ({node.type.dtype})" for node in call.args)
        call.fail("DL305.comparison", shown=shown, fix=_alike(call))
    return broadcast(call).with_dtype(DType.BOOL)


def _broad(dtype: DType) -> DType:
    return DType.FLOAT if dtype is DType.INT else dtype


def choice(call: Call) -> Type:
    """The rule of ``if``: the arguments are a bool and two values of one dtype."""
    need(call, DType.BOOL, args=[0])
    dtypes = {_broad(node.type.dtype) for node in call.args[1:]}
    if len(dtypes) > 1:
        shown = " and ".join(node.type.dtype for node in call.args[1:])
        call.fail("DL305.branches", shown=shown)
    exact = {node.type.dtype for node in call.args[1:]}
    return broadcast(call).with_dtype(exact.pop() if len(exact) == 1 else DType.FLOAT)
