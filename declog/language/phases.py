"""Expressions over several phases: they have the rows of the latest phase, and look up values of earlier phases."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from declog.errors import Problem
from declog.language.absence import PRESENT, asks
from declog.language.dtypes import AXES, Axis, DType, Type, finest
from declog.language.nodes import COMBINED, JOIN, WRITTEN, Graph, Node
from declog.language.parser import names_in
from declog.language.syntax import ExpressionError


def labels(graph: Graph, nodes: Sequence[Node], order: Callable[[str], int]) -> Node:
    """Combine several values into one label: texts, ints, bools, or tags. Values of earlier phases are looked up."""
    phases = {node.type.phase for node in nodes if node.type.phase is not None}
    phase = latest(phases, order) if phases else None
    parts = []
    for node in nodes:
        part = join(graph, node, phase, order)
        if part.type.dtype in WRITTEN:
            part = graph.make(WRITTEN[part.type.dtype], [part], type=part.type.with_dtype(DType.TEXT))
        parts.append(part)
    dtype = DType.OBJECT if any(part.type.dtype is DType.OBJECT for part in parts) else DType.TEXT
    type = Type(dtype, finest(*(part.type.axis for part in parts)), False, phase)
    return graph.make(COMBINED, parts, type=type)


def latest(phases: Iterable[str], order: Callable[[str], int]) -> str:
    """The last of several phases, whose rows a value over all of them has.

    Raises ``ExpressionError`` if the last two phases have no order.
    """
    *_, before, last = sorted({*phases, ""}, key=lambda phase: (order(phase) if phase else -2, phase))
    if before and order(before) == order(last) >= 0:
        raise ExpressionError(Problem.of("DL313.order", first=before, second=last))
    return last


def join(graph: Graph, node: Node, phase: str | None, order: Callable[[str], int]) -> Node:
    """A value for the rows of a phase. A value of another phase is looked up per completion.

    A value of a phase without rows is looked up per batch.
    """
    if phase is None or node.type.phase in (None, phase):
        return node
    assert node.type.phase is not None
    # `present` goes outside of the lookup: it is false for a row that the lookup does not find
    if node.op in (PRESENT, "not") and not node.args[0].type.text and asks(node):
        (arg,) = (join(graph, arg, phase, order) for arg in node.args)
        return graph.make(node.op, [arg], type=replace(arg.type, dtype=node.type.dtype))
    axis = Axis.STEP if order(node.type.phase) < 0 else Axis.COMPLETION
    return graph.make(JOIN, [node], type=replace(node.type, axis=axis, phase=phase), phase=phase)


def in_one_phase(text: str, part: ast.expr, value: Node, phase: str | None, declared: Callable[[str], str]) -> str:
    """The fix for a value of another phase than the tokens beside it. ``part`` is the syntax node of the value.

    A signal named as a length becomes `size(token)`. ``declared`` returns the declaration of a signal, and `...` for a
    derived name.
    """
    names = sorted({*names_in(part)} - AXES.keys())
    if len(names) == 1 and _LENGTH.fullmatch(names[0]):
        written = re.sub(rf"\b{names[0]}\b", "size(token)", text)
        return f"write `{written}`"
    if len(names) == 1 and (declaration := declared(names[0])) != "...":
        return f"observe it in `{phase}` too, and declare it there: signals: {{{phase}: {{{names[0]}: {declaration}}}}}"
    name = "_".join([*names[:2], "of", str(phase)])
    kind = "" if value.type.dtype is DType.FLOAT else f" {value.type.dtype.value}"
    axis = "step" if value.type.axis is None else value.type.axis.label
    signal = f"signals: {{{phase}: {{{name}: {axis}{kind}}}}}"
    return f"observe it in `{phase}` too, by a name of its own, {signal}, with `{name}` in place of `{value}`"


_LENGTH = re.compile(
    r"(?:(?:completion|response|output|answer|given|seq|sequence|gen\w*)_)?len(?:gth)?s?|(?:n|num)_tokens"
)
