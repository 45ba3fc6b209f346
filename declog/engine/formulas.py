"""Computes with the values of metrics: formulas, conditions of `when` and of alerts, and the numbers in alert texts.

All of them share one evaluator. Metrics are aligned by the names of their members, labels and pieces, so that values of
different steps, batches or ranks are never combined. A metric without a value is absent, and so is any result computed
from it, except that of ``present`` (see ``language/absence.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np

from declog.engine.cells import WHOLE, Cells
from declog.engine.evaluator import Value, applied, reduced
from declog.engine.partials import Names, reindexed
from declog.language.absence import absent
from declog.language.functions import DEFAULT, FunctionOf
from declog.language.nodes import BUILTIN, CONST, METRIC, Node, aligned, label_of
from declog.language.segmented import Array, present, truth
from declog.plans.needs import read
from declog.plans.ops import FormulaOp

NOWHERE: Value = np.full((1, 1, 1), np.nan), True


@dataclass(frozen=True)
class CellName:
    """The member and the label of the cell in which a condition holds; None: the condition has no members or labels."""

    member: str | None = None
    label: str | None = None


class Sheet:
    """Evaluates expressions over metrics that are aligned to common axes ``[members, labels, pieces]``."""

    def __init__(
        self, cells: Mapping[str, Cells], expr: Node, functions: FunctionOf, facts: Mapping[str, float]
    ) -> None:
        self._facts = facts
        self._functions = functions
        self._leaves = aligned(expr)
        leaves = {leaf.index: self._leaf(leaf, cells) for leaf in self._leaves}
        self.cells = {index: item for index, item in leaves.items() if item is not None}
        names = frozenset([(item.members, item.labels, item.pieces, item.rest) for item in self.cells.values()])
        self._names, self.rest, self._unlike = _axes(names)
        self.members, self.labels, self.pieces = self._names
        self._memo: dict[int, Value] = {}

    def value(self, node: Node) -> Value:
        """A node's value, with NaN where it is absent, and its kind: where it is absent. Cached."""
        cached = self._memo.get(node.index)
        if cached is None:
            values, kind = self._compute(node)
            if not isinstance(kind, bool) and (nowhere := np.count_nonzero(kind)) in (0, kind.size):
                kind = nowhere == kind.size
            cached = self._memo[node.index] = values, kind
        return cached

    def computed(self, value: Value, *, family: bool, labels: bool) -> Cells:
        """A value as a metric, with the members and labels of the sheet or without."""
        values, kind = value
        names = self.members if family else (), self.labels if labels else ()
        shape = (max(len(names[0]), 1), max(len(names[1]), 1), len(self.pieces))
        result, where = np.empty(shape), np.zeros(shape, bool)
        result[...], where[...] = values, kind
        missing = where | ~present(result)
        kept = infinite = np.zeros(shape, bool)
        if missing.any() and any(item.kept is not None or np.isinf(item.values).any() for item in self.cells.values()):
            nonfinite, infinite = self._nonfinite(shape)
            kept = missing & ~where & nonfinite
        cells = Cells(result, *names, pieces=self.pieces, rest=self.rest if labels else None)
        cells.mark(kept, kept & infinite)
        return cells

    def _nonfinite(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """The cells in which a metric that the expression reads is NaN or infinite, and those due to infinities.

        A NaN in these cells is a value; the cell is not absent.
        """
        nonfinite, infinite = np.zeros(shape, bool), np.zeros(shape, bool)

        def add(total: Array, marks: Array) -> None:
            total |= marks.any(tuple(np.flatnonzero(np.array(marks.shape) > shape)), keepdims=True)

        for leaf in self._leaves:
            values, kind = self.value(leaf)
            if kind is not True:
                marks = ~np.isfinite(values) & ~np.asarray(kind)
                add(nonfinite, marks)
                cells = self.cells.get(leaf.index)
                if cells is not None:
                    add(infinite, marks & self._reindexed(cells, cells.infinities, False))
        return nonfinite, infinite

    def _compute(self, node: Node) -> Value:
        if node.op == CONST:
            return np.asarray(node.leaf), False
        if node.op == BUILTIN:
            value = self._facts.get(node.leaf)
            return NOWHERE if value is None else (np.full((1, 1, 1), value), False)
        if node in self._leaves:
            return self._metric(node)
        function = self._functions(node.op)
        assert function is not None
        args = [*map(self.value, node.args)]
        if function.stage == "elementwise":
            values, kind = applied(node, function, args)
            return values, absent(kind)  # a comparison with a metric that is NaN is false
        if node.op != "member":
            return self._reduced(node, 0)
        ((values, kind),) = args
        if kind is True or node.param("member") not in self.members:
            return NOWHERE
        at = self.members.index(node.param("member"))
        return values[at : at + 1], np.broadcast_to(kind, values.shape)[at : at + 1]

    def _reduced(self, node: Node, axis: int) -> Value:
        """A reduction over the members (axis 0) or the labels (1), of the argument's values."""
        function, (values, kind) = self._functions(node.op), self.value(node.args[0])
        assert function is not None
        shape = [*np.broadcast_shapes(values.shape, (1, 1, 1))]
        shape[axis] = max(len(self._names[axis]), 1)
        values = reduced(function.aggregate(node), np.broadcast_to(values, shape), axis)
        kind = np.broadcast_to(kind, shape).all(axis, keepdims=True)
        return np.where(kind, np.nan, np.expand_dims(values, axis)), kind

    def _leaf(self, leaf: Node, cells: Mapping[str, Cells]) -> Cells | None:
        """The cells of a metric, of one of its labels, or of a reduction over labels, which gets a sheet of its own.

        None: the metric did not come.
        """
        if leaf.op == METRIC:
            item, label = cells.get(str(leaf.leaf).rpartition(":")[2]), label_of(leaf)
            return item if item is None or label is None else item.of_label(label)
        sheet = Sheet(cells, leaf.args[0], self._functions, self._facts)
        return sheet.computed(sheet._reduced(leaf, 1), family=leaf.type.family, labels=False) if sheet.cells else None

    def _metric(self, node: Node) -> Value:
        """The value of a leaf. ``members:id`` and ``nan_count:id`` are counts and never absent."""
        cells = self.cells.get(node.index)
        function = str(node.leaf).rpartition(":")[0] if node.op == METRIC else ""
        if function:
            count = 0 if cells is None else len(cells.members) if function == "members" else cells.skipped
            return np.full((1, 1, 1), float(count)), False
        if cells is None or not cells.values.size:  # a metric with members or labels has no values if none came
            return NOWHERE
        there, values = cells.there, cells.values
        if self._unlike and cells.labels:
            there = there & np.array([label not in self._unlike for label in cells.labels])[:, None]
            values = np.where(there, values, np.nan)
        if (cells.members, cells.labels, cells.pieces) != self._names:
            there, values = self._reindexed(cells, there, False), self._reindexed(cells, values, np.nan)
        return values, False if there.size and np.count_nonzero(there) == there.size else ~there

    def _reindexed(self, cells: Cells, values: Array, nothing: float | bool) -> Array:
        """A metric's values aligned to the members, labels and pieces of the sheet."""
        axes = ((cells.members, self.members), (cells.labels, self.labels), (cells.pieces, self.pieces))
        for axis, (names, target) in enumerate(axes):
            if names != target and names:  # a metric without names on this axis is broadcast
                values = reindexed(values, axis, names, target, nothing)
        return values


@lru_cache(maxsize=512)
def _axes(metrics: frozenset[tuple[Names, Names, Names, str | None]]) -> tuple[Any, str | None, set[str]]:
    """All members, labels and pieces of several metrics, sorted, and the names under which labels are pooled.

    The first name is comparable between the metrics, or None. The set has the names that pool different labels.
    """
    members, labels, pieces = [
        tuple(sorted({*chain(*names)})) for names in list(zip(*metrics, strict=True))[:3] or ((),) * 3
    ]
    labelled = {(frozenset(names), rest) for _, names, _, rest in metrics if names}
    rests = {rest for _, rest in labelled if rest is not None}
    unlike = rests if len(labelled) > 1 else set()  # rests that pool different labels cannot be compared
    return (members, labels, pieces or WHOLE), next(iter(rests - unlike), None), unlike


def formula(
    op: FormulaOp, cells: Mapping[str, Cells], functions: FunctionOf, facts: Mapping[str, float]
) -> Cells | None:
    """A formula's values, piece by piece; None if this window has none of its metrics."""
    keys = read(op.expr)
    if keys and cells.keys().isdisjoint(keys):
        return None
    sheet = Sheet(cells, op.expr, functions, facts)
    logged = sheet.computed(sheet.value(op.expr), family=op.family, labels=True)
    if op.empty is not None and (sheet.labels or not op.labels):  # a formula by label has no cell before a label comes
        logged.values = np.where(logged.there, logged.values, op.empty)
    return logged


def first_place(
    condition: Node, cells: Mapping[str, Cells], functions: FunctionOf, facts: Mapping[str, float]
) -> CellName | None:
    """The first cell in which a condition over the logged metrics is true; None: it holds nowhere."""
    while condition.op == "any":  # over members: find the member for which the inner condition holds
        (condition,) = condition.args
    sheet = Sheet(cells, condition, functions, facts)
    true = truth(np.asarray(sheet.value(condition)[0]))
    if not np.count_nonzero(true):
        return None
    true = np.atleast_3d(true)
    member, label, _ = np.argwhere(true)[0].tolist()
    return CellName(
        sheet.members[member] if true.shape[0] == len(sheet.members) else None,
        sheet.labels[label] if true.shape[1] == len(sheet.labels) else None,
    )


def shown(fields: Mapping[str, Node], cells: Mapping[str, Cells], cell_name: CellName) -> dict[str, float | None]:
    """The numbers for an alert's text, taken from the cell in which its condition held; None for an absent value."""
    numbers: dict[str, float | None] = {}
    for name, node in fields.items():
        sheet = Sheet(cells, node, DEFAULT.get, {})
        values, kind = sheet.value(node)
        at = [
            names.index(one) if one in names and size > 1 else 0  # a single value stands for all members or labels
            for names, one, size in (
                (sheet.members, cell_name.member, values.shape[0]), (sheet.labels, cell_name.label, values.shape[1])
            )
        ]  # fmt: skip
        value = float(values[*at, 0]) if values.size else np.nan
        numbers[name] = None if np.broadcast_to(kind, values.shape)[*at, 0] else value
    return numbers
