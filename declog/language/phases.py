"""Values of several phases together: the rows are those of the latest phase, and earlier values are looked up.

Imports the tree of expressions.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from declog.errors import Problem
from declog.language.dtypes import Axis, DType, Type, finest
from declog.language.nodes import COMBINED, JOIN, SIGNAL, WRITTEN, Graph, Node
from declog.language.syntax import ExpressionError


def labels(graph: Graph, nodes: Sequence[Node], order: Callable[[str], int]) -> Node:
    """One label of several values: texts, ints, bools, or tags; those of earlier phases are looked up."""
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
    """The last of several phases, whose rows a value of all has; ``ExpressionError`` where no order is known."""
    *_, before, last = sorted({*phases, ""}, key=lambda phase: (order(phase) if phase else -2, phase))
    if before and order(before) == order(last) >= 0:
        raise ExpressionError(Problem.of("DL313.order", first=before, second=last))
    return last


def join(graph: Graph, node: Node, phase: str | None, order: Callable[[str], int]) -> Node:
    """A value for the rows of a phase: one of an earlier phase is looked up, per completion or, without rows, batch."""
    if phase is None or node.type.phase in (None, phase):
        return node
    assert node.type.phase is not None
    axis = Axis.STEP if order(node.type.phase) < 0 else Axis.COMPLETION
    return graph.make(JOIN, [node], type=replace(node.type, axis=axis, phase=phase), phase=phase)


def in_one_phase(text: str, part: ast.expr, value: Node, tokens: Node) -> str:
    """The fix for a value of another phase than the tokens beside it; ``part`` is where ``text`` says it.

    A length beside a place among the tokens is how many there are.
    """
    names = [node.id for node in ast.walk(part) if isinstance(node, ast.Name)]
    if tokens.op == "index" and len(names) == 1 and "len" in names[0]:
        written = re.sub(rf"\b{names[0]}\b", "size(token)", text)
        return f"write `{written}`"
    plain = value.op == SIGNAL and value.type.axis is not None and names == [str(value)]
    dtype = "" if value.type.dtype is DType.FLOAT else f" {value.type.dtype}"
    words = f"{value.type.axis.label}{dtype}" if plain and value.type.axis is not None else "..."
    phase = tokens.type.phase
    return f"observe it in `{phase}` too, and declare it there: signals: {{{phase}: {{{value}: {words}}}}}"
