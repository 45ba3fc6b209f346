"""The meaning of a metric as text. If the text is equal in two plans, the value over the run can continue.

The text contains the expressions of folds, joins and columns, not the names that one compilation gives them. Names,
conditions and windows only decide how the value is shown, so the text does not contain them.
"""

from __future__ import annotations

from collections.abc import Iterable

from declog.language.nodes import CARRIED, FOLD, METRIC, SIGNAL, TEXTVALUE, Node, label_of
from declog.plans.ops import FormulaOp, JoinOp, LocalOp, MetricOp, Plan, PreviousOp


def meanings(plan: Plan) -> dict[str, str]:
    """The meaning of each metric over the run, by key."""
    texts = Meanings(plan)
    return {op.key: texts.of(op) for op in plan.outputs if op.over_run is not None}


def pieces(op: MetricOp | FormulaOp) -> str:
    """The text of a metric's pieces of a window, and how their values are combined."""
    smoothing = (
        "ema=None" if op.smoothing is None else f"{op.smoothing.way}{op.smoothing.reduction}={op.smoothing.number}"
    )
    return f"{op.pool} {op.combine} {smoothing}"


class Meanings:
    """The meanings of one plan's metrics."""

    def __init__(self, plan: Plan) -> None:
        self._outputs = {op.key: op for op in plan.outputs}
        self._folds = plan.folds
        local = [op for phase in plan.phases.values() for op in phase.locals]
        columns: list[LocalOp | JoinOp | PreviousOp] = [*local, *plan.joins, *plan.previous]
        self._columns = {op.name: op for op in columns}

    def of(self, op: MetricOp | FormulaOp) -> str:
        """The meaning of a metric or formula: its expression, and how its pieces are combined."""
        if isinstance(op, FormulaOp):
            return f"{pieces(op)} {self.text(op.expr)}"
        read = (*op.args, op.where, op.by, op.weight)
        texts = ["none" if node is None else self.text(node) for node in read]
        fold = "" if op.fold is None else self._fold(op.fold)
        preferred = "" if op.prefer is None else self.of(self._outputs[op.prefer])
        words = (op.reduction.name, op.params, op.ranks, op.nan, op.over_run, fold, preferred)
        return " ".join((pieces(op), *map(str, words), *texts))

    def text(self, node: Node) -> str:
        """The text of an expression in terms of observed signals."""
        if node.op == FOLD:
            return f"{node.param('stat')}({self._fold(node.param('name'))})"
        if node.op == METRIC:
            function, _, key = str(node.param("name")).rpartition(":")
            label = "" if (one := label_of(node)) is None else f", {one!r}"
            return f"{function}({self.of(self._outputs[key]) if key in self._outputs else key}{label})"
        if node.op in (TEXTVALUE, CARRIED):
            op = self._columns[node.param("name")]
            return (
                f"{type(op).__name__}({self._all((op.expr, op.first) if isinstance(op, PreviousOp) else (op.expr,))})"
            )
        if node.op == SIGNAL:
            return f"{node.param('name')}:{node.type}"
        params = ", ".join(f"{key}={value}" for key, value in node.params)
        return f"{node.op}[{params}]({self._all(node.args)})"

    def _fold(self, name: str) -> str:
        fold = self._folds[name]
        expr = "" if fold.expr is None else self.text(fold.expr)
        expr += "" if fold.of is None else f" of {self.text(fold.of)}"
        return f"{expr} where {' and '.join(sorted(map(self.text, fold.mask)))}"

    def _all(self, nodes: Iterable[Node]) -> str:
        return ", ".join(map(self.text, nodes))
