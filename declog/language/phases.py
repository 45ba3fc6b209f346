"""Expressions over several phases: they have the rows of the latest phase, and look up values of earlier phases."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from declog.errors import Problem
from declog.language.absence import PRESENT, asks
from declog.language.dtypes import AXES, Axis, DType, Type, finest
from declog.language.nodes import COMBINED, JOIN, WRITTEN, Graph, Node
from declog.language.parser import names_in
from declog.language.scope import Scope
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


def in_one_phase(text: str, part: ast.expr, value: Node, phase: str, scope: Scope) -> str:
    """The fix for a value of another phase than the tokens beside it. ``part`` is the syntax node of the value.

    A signal named as a length becomes `size(token)`. Any other signal is observed in both phases, a derived one by a
    name of its own. A value that reads groups or texts is observed in place of them, for tokens cannot read these.
    """
    words = sorted({*names_in(part)} - AXES.keys())
    nodes = {word: node for word in words if isinstance(node := scope.resolve(word), Node)}
    types = {word: node.type for word, node in nodes.items() if node.type.phase not in (None, phase)}
    if len(types) == 1 and _LENGTH.fullmatch(word := next(iter(types))):
        return f"write `{_renamed(text, {word: 'size(token)'})}`"
    names, here = {word: f"{word}_of_{phase}" for word in types}, ast.unparse(part)
    if any(type.family or type.text for type in types.values()) or "over=" in here or "within=" in here or not types:
        names, types = {here: "_".join([*(words[:2] or ["value"]), "of", phase])}, {here: value.type}
    elif len(types) == 1 and (declared := scope.declaration(word := next(iter(types)))) != "...":
        return f"observe it in `{phase}` too, and declare it there: signals: {{{phase}: {{{word}: {declared}}}}}"
    declarations = ", ".join(f"{names[word]}: {_declaration(type)}" for word, type in types.items())
    signals, written = f"signals: {{{phase}: {{{declarations}}}}}", names.get(here) or _renamed(here, names)
    observed = f"observe `{'`, `'.join(names)}` in `{phase}` too, by a name of its own, {signals}"
    return f"{observed}, with `{written}` in place of `{here}`"


def _declaration(type: Type) -> str:
    """The declaration of a value that stands beside tokens: a group's stands with each of its completions."""
    axis = (Axis.COMPLETION if type.axis is Axis.GROUP else type.axis or Axis.STEP).label
    return axis if type.dtype is DType.FLOAT else f"{axis} {type.dtype.value}"


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """A text with other words for some names."""
    return re.sub(r"\b[A-Za-z_]\w*", lambda match: names.get(match[0], match[0]), text)


_LENGTH = re.compile(
    r"(?:(?:completion|response|output|answer|given|seq|sequence|gen\w*)_)?len(?:gth)?s?|(?:n|num)_tokens"
)
