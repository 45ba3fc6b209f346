"""Expressions over several phases: they have the rows of the latest phase, and look up values of earlier phases."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from declog.errors import Problem, in_flow
from declog.language.absence import PRESENT, asks
from declog.language.dtypes import AXES, Axis, DType, Type, finest
from declog.language.nodes import COMBINED, JOIN, SIGNAL, WRITTEN, Graph, Node, walk
from declog.language.notation import part_of
from declog.language.parser import names_in
from declog.language.syntax import ExpressionError


def labels(graph: Graph, nodes: Sequence[Node], order: Callable[[str], int]) -> Node:
    """Combine several values into one label: texts, ints, bools, or tags. Values of earlier phases are looked up."""
    phases = {node.type.phase for node in nodes if node.type.phase is not None}
    phase = latest(phases, order, nodes) if phases else None
    parts = []
    for node in nodes:
        part = join(graph, node, phase, order)
        if part.type.dtype in WRITTEN:
            part = graph.make(WRITTEN[part.type.dtype], [part], type=part.type.with_dtype(DType.TEXT))
        parts.append(part)
    dtype = DType.OBJECT if any(part.type.dtype is DType.OBJECT for part in parts) else DType.TEXT
    type = Type(dtype, finest(*(part.type.axis for part in parts)), False, phase)
    return graph.make(COMBINED, parts, type=type)


def latest(phases: Iterable[str], order: Callable[[str], int], nodes: Iterable[Node]) -> str:
    """The last of several phases, whose rows a value over all of them has; ``nodes`` are the values that it reads.

    Raises ``ExpressionError`` if the last two phases have no order, or if a row of the last one has several in another.
    """
    *_, before, last = sorted({*phases, ""}, key=lambda phase: (order(phase) if phase else -2, phase))
    if before and order(before) == order(last) >= 0:
        raise ExpressionError(Problem.of("DL313.order", first=before, second=last))
    _refuse_parts([*nodes], last)
    return last


def _refuse_parts(nodes: Sequence[Node], phase: str) -> None:
    """Refuse a value of each turn, or of another part of a completion, beside rows of a later ``phase``.

    A completion has several such rows, and none of them is the row that the later phase would look up.
    """
    for node in nodes:
        source = node.type.phase
        part = None if source in (None, phase) else part_of(str(source))
        if part is not None and node.type.axis is Axis.COMPLETION and node.op != PRESENT:
            later = {
                str(leaf.param("name")): f"completion {leaf.type.dtype}" for leaf in walk(*nodes)
                if leaf.op == SIGNAL and leaf.type.phase == phase
            }  # fmt: skip
            new = {f"{part}_{name}": words for name, words in later.items()}
            names = [f"`{part}_{name}` in place of `{name}`" for name in later]
            raise ExpressionError(
                Problem.of(
                    "DL313.parts", name=node, phase=source, target=phase, part=part.replace("_", " "),
                    signals=in_flow({source: new}), names=", ".join(names),
                )
            )  # fmt: skip


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
