"""Which metrics need which: what formulas and conditions read, and the order in which they can be had.

Imports the plan and the tree only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from declog.language.nodes import METRIC, Node, walk
from declog.plans.ops import FormulaOp, MetricOp


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
