"""The phase whose rows a metric reduces; values per token of another phase are refused."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from declog.compiler.draft import Draft
from declog.compiler.scopes import SignalScope
from declog.errors import Problem
from declog.language.dtypes import Axis
from declog.language.nodes import SIGNAL, Node, walk
from declog.language.phases import in_one_phase
from declog.language.spec import MetricSpec
from declog.language.syntax import parse


def phase_of(draft: Draft, id: str, spec: MetricSpec, args: Sequence[Node], clauses: Mapping[str, Node | None]) -> str:
    """The latest phase that a metric reads; values of earlier phases are looked up.

    If none of its values has one phase, it is the first phase that all its signals share, else the default phase.
    """
    nodes = [node for node in (*args, *clauses.values()) if node is not None]
    phases = {node.type.phase for node in nodes if node.type.phase is not None}
    if not phases:
        named = [draft.signals[item.param("name")].homes for item in walk(*args) if item.op == SIGNAL]
        named = [phases for phases in named if phases]
        shared = [phase for phase in (named or [()])[0] if all(phase in phases for phases in named)]
        return (shared or [draft.default_phase])[0]
    target = draft.latest(phases, ("metrics", id, "expr"))
    for key, node in (*(("expr", arg) for arg in args), *clauses.items()):
        if node is not None and node.type.axis is Axis.TOKEN and node.type.phase not in (None, target):
            _refuse(draft, id, spec, key, node, target)
            break
    return target


def _refuse(draft: Draft, id: str, spec: MetricSpec, key: str, node: Node, target: str) -> None:
    """Report a value per token of another phase: at the name in a clause that is of another phase, else at `expr`."""
    text, scope = getattr(spec, key), SignalScope(draft)
    if key != "expr" and isinstance(text, str):
        for part in ast.walk(parse(text).body):
            value = scope.resolve(part.id) if isinstance(part, ast.Name) else None
            if isinstance(part, ast.Name) and isinstance(value, Node) and value.type.phase not in (None, target):
                fix = in_one_phase(text, part, value, target, scope)
                draft.report(
                    "DL313.condition", ("metrics", id, key), name=part.id, phase=target, metric=id,
                    other=value.type.phase, fix=fix,
                )  # fmt: skip
                return
    draft.report("DL313.metric", ("metrics", id, "expr"), name=node, phase=node.type.phase, metric=id, other=target)


def far_condition(draft: Draft, spec: MetricSpec, reduction: str, tokens: Node, where: Node) -> Problem:
    """The problem of a condition of another phase than the tokens whose reduction reads it with each of them."""
    text, phase = str(spec.where), str(tokens.type.phase)
    far = [node for node in walk(where) if node.type.phase not in (None, phase)][-1]
    fix = in_one_phase(text, parse(text).body, where, phase, SignalScope(draft))
    return Problem.of(
        "DL313.sketch", reduction=reduction, tokens=tokens, name=far, phase=phase, other=far.type.phase, fix=fix
    )
