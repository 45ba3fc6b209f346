"""What metrics need: other metrics, in an order in which they can be had, and the signals that they are made of.

Imports the plan and the tree only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from declog.language.dtypes import Axis
from declog.language.nodes import CARRIED, FOLD, METRIC, SIGNAL, TEXTVALUE, Node, walk
from declog.plans.fingerprint import expressions
from declog.plans.ops import FormulaOp, MetricOp, Plan

GROUP = "GROUP"  # stands for the signals of which any says what a group is; no signal can have the name


class Need(NamedTuple):
    """A signal without which a metric has no value, by its name in a phase; or ``GROUP``."""

    phase: str
    name: str


def read(*nodes: Node) -> list[str]:
    """The keys of the metrics that expressions read, also where they read a property of one."""
    names = (str(node.param("name")) for node in walk(*nodes) if node.op == METRIC)
    return list(dict.fromkeys(name.rpartition(":")[2] for name in names))


def needs(outputs: Iterable[MetricOp | FormulaOp]) -> dict[str, set[str]]:
    """By id, the other metrics whose values it is made of or shown by; a condition may read its own metric."""
    ops = list(outputs)
    ids = {op.key: op.id for op in ops}
    found: dict[str, set[str]] = {op.id: set() for op in ops}
    for op in ops:
        nodes = [node for node in (op.expr if isinstance(op, FormulaOp) else None, op.when) if node is not None]
        found[op.id] |= {ids[key] for key in read(*nodes) if key in ids} - {op.id}
    return found


def ordered(needed: Mapping[str, set[str]]) -> tuple[list[str], list[str]]:
    """Ids, each after those that it needs; and those of a circle, in its order, if there is one."""
    waiting, done = dict(needed), dict[str, None]()
    while ready := [id for id, others in waiting.items() if others <= done.keys()]:
        for id in ready:
            del waiting[id]
        done |= dict.fromkeys(ready)
    circle: list[str] = []
    at = next(iter(waiting), None)
    while at is not None and at not in circle:  # each that waits needs another that waits
        circle.append(at)
        at = min(item for item in waiting[at] if item in waiting)
    return list(done), circle if at is None else circle[circle.index(at) :]


def signals_of(plan: Plan) -> dict[str, frozenset[Need]]:
    """By id of a metric, the signals that its values are made of: also by way of folds, joins and other metrics."""
    found: dict[str, set[Need]] = {op.id: set() for op in plan.outputs}
    columns = _columns(plan)
    for op in plan.metrics:
        found[op.id] |= _signals(op, op.phase, columns)
        found[op.id] |= {need for name in (op.fold, op.tokens) if name for need in columns[name]}
        if plan.grouping is not None and plan.grouping.size is None and _of_groups(op):
            found[op.id].add(Need(op.phase, GROUP))
    ids = {op.key: op.id for op in plan.outputs}
    formulas = {op.id: op for op in plan.formulas}
    for id in ordered(needs(plan.outputs))[0]:
        if id in formulas:
            found[id] |= {need for key in read(formulas[id].expr) if key in ids for need in found[ids[key]]}
    return {id: frozenset(mine) for id, mine in found.items()}


def _columns(plan: Plan) -> dict[str, frozenset[Need]]:
    """The signals behind each column that is computed: of folds, of texts, of other phases and of the step before."""
    found: dict[str, frozenset[Need]] = {}
    for phase in plan.phases.values():
        found |= {fold.name: frozenset(Need(phase.name, name) for name in fold.reads) for fold in phase.folds}
    for phase in plan.phases.values():
        found |= {op.name: frozenset(_signals(op.expr, op.source or phase.name, found)) for op in phase.locals}
    found |= {op.name: frozenset(_signals(op.expr, op.source, found)) for op in plan.joins}
    return found | {op.name: frozenset(_signals(op.expr, op.phase, found)) for op in plan.previous}


def _signals(value: object, phase: str, columns: Mapping[str, frozenset[Need]]) -> set[Need]:
    """The signals that the expressions of a value read in a phase."""
    found: set[Need] = set()
    for node in walk(*expressions(value)):
        if node.op == SIGNAL:
            found.add(Need(phase, str(node.param("name"))))
        elif node.op in (FOLD, TEXTVALUE, CARRIED):
            found |= columns.get(str(node.param("name")), frozenset())
    return found


def _of_groups(op: MetricOp) -> bool:
    """Whether a metric has no value where nothing says what a group is."""
    nodes = walk(*expressions(op))
    return op.axis is Axis.GROUP or any(Axis.GROUP in (node.type.axis, node.over) for node in nodes)
