"""The range of a value, as far as its expression proves it: for conditions that always or never hold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from declog.language.dtypes import DType
from declog.language.functions import BUILTIN
from declog.language.nodes import CONST, METRIC, Node, walk
from declog.language.reductions import quantile_level
from declog.plans.ops import FormulaOp, MetricOp

Range = tuple[float, float]
ANY: Range = (-math.inf, math.inf)
UP: Range = (0.0, math.inf)
SHARE: Range = (0.0, 1.0)
_ORDERED = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_WITHIN = frozenset({"mean", "min", "max", "last", "first", "top_mean", "bottom_mean"})  # in the range of the values
_SIZES = frozenset({"std", "var", "pstd", "pvar", "count", "abs", "exp", "size", "index", "sqrt"})
MOST = 1000  # the most cases to try


def of_node(node: Node, metrics: Mapping[str, Range]) -> Range:
    """The least and the greatest value of an expression; ``metrics`` are the ranges of metrics that it may read."""
    if node.op == CONST:
        value = node.param("value")
        return ANY if isinstance(value, str) or value != value else (float(value), float(value))
    if node.op == METRIC:
        return metrics.get(str(node.param("name")), ANY)
    if node.type.dtype is DType.BOOL:
        return SHARE
    if node.op == "if":
        yes, no = of_node(node.args[1], metrics), of_node(node.args[2], metrics)
        return min(yes[0], no[0]), max(yes[1], no[1])
    if node.op in _WITHIN and len(node.args) == 1:
        return of_node(node.args[0], metrics)
    if node.op in ("mod", "floordiv") and (divisor := _positive(node.args[1])) is not None:
        if node.op == "floordiv":
            low, high = (
                bound // divisor if abs(bound) < math.inf else bound for bound in of_node(node.args[0], metrics)
            )
            return low, high
        return 0.0, divisor - (node.type.dtype is DType.INT)  # of a float it can be rounded to the divisor
    return UP if node.op in _SIZES else ANY


def _positive(node: Node) -> float | None:
    """The value of a finite constant above 0; None for another node."""
    value = node.param("value") if node.op == CONST else None
    return value if isinstance(value, int | float) and 0 < value < math.inf else None


def of_outputs(outputs: Sequence[MetricOp | FormulaOp]) -> dict[str, Range]:
    """The range of each metric, by key."""
    ranges: dict[str, Range] = {}
    for op in outputs:
        low, high = of_node(op.expr, ranges) if isinstance(op, FormulaOp) else _reduced(op)
        combine = op.combine if op.smoothing is None else op.smoothing.reduction
        if combine in ("sum", "std", "var"):  # of several steps, batches or ranks
            low, high = UP if low >= 0 or combine != "sum" else ANY
        ranges[op.key] = (low, high) if op.empty is None else (min(low, op.empty), max(high, op.empty))
    return ranges


def _reduced(op: MetricOp) -> Range:
    name = op.reduction.name
    if name in ("std", "var", "pstd", "count"):
        return UP
    if op.weight is not None or op.prefer is not None or op.fold is not None or len(op.args) != 1:
        return ANY
    values = of_node(op.args[0], {})
    if name in _WITHIN or quantile_level(name) is not None:
        return values
    return UP if name == "sum" and values[0] >= 0 else ANY


def verdict(condition: Node, metrics: Mapping[str, Range]) -> bool | None:
    """Whether a condition always holds (True) or never holds (False); None if it depends on the metrics.

    The condition is tried at every number that it compares a metric with, and between and beyond these numbers, where
    it does not change. None also if there are too many cases, or other comparisons.
    """
    if condition.op == CONST:
        return bool(condition.param("value"))
    names = {str(node.param("name")) for node in walk(condition) if node.op == METRIC}
    marks: dict[str, set[float]] = {name: set() for name in names}
    if not names or not _plain(condition, marks):
        return None
    points = [_points(marks[name], metrics.get(name, ANY)) for name in sorted(names)]
    if math.prod(map(len, points)) > MOST:
        return None
    cases = (dict(zip(sorted(names), case, strict=True)) for case in itertools.product(*points))
    outcomes = {bool(_value(condition, case)) for case in cases}
    return outcomes.pop() if len(outcomes) == 1 else None


def compared(node: Node) -> tuple[Node, Node, bool] | None:
    """The value and the number of a comparison that always (True) or never (False) holds; None for any other node."""
    if node.op not in _ORDERED or [arg.op == CONST for arg in node.args].count(True) != 1:
        return None
    value, number = sorted(node.args, key=lambda arg: arg.op == CONST)
    bound, span = number.param("value"), of_node(value, {})
    if isinstance(bound, str) or not math.isfinite(bound) or span == ANY:
        return None
    function = BUILTIN.get(node.op)
    assert function is not None
    points = _points({float(bound)}, span)
    pairs = ((point, bound) if value is node.args[0] else (bound, point) for point in points)
    outcomes = {bool(function.of_constants(*pair)) for pair in pairs}
    return (value, number, outcomes.pop()) if len(outcomes) == 1 else None


def _plain(node: Node, marks: dict[str, set[float]]) -> bool:
    """Whether a condition consists of comparisons of a metric with a number; ``marks`` collects the numbers."""
    if node.op in ("and", "or", "not"):
        return all(_plain(arg, marks) for arg in node.args)
    if node.op == CONST:
        return True
    if node.op not in _ORDERED or {arg.op for arg in node.args} != {METRIC, CONST}:
        return False
    metric, number = node.args if node.args[0].op == METRIC else reversed(node.args)
    value = number.param("value")
    if isinstance(value, str) or value != value or ":" in str(metric.param("name")):
        return False
    marks[str(metric.param("name"))].add(float(value))
    return True


def _points(marks: set[float], bounds: Range) -> list[float]:
    low, high = bounds
    edges = sorted({mark for mark in marks | {low, high} if math.isfinite(mark)})
    if not edges:
        return [-1.0, 1.0]
    between = [(one + other) / 2 for one, other in itertools.pairwise(edges)]
    below, beyond = edges[0] - max(1.0, abs(edges[0])), edges[-1] + max(1.0, abs(edges[-1]))  # 1e9 + 1 rounds to 1e9
    return [point for point in (below, *edges, *between, beyond) if low <= point <= high]


def _value(node: Node, values: Mapping[str, float]) -> Any:
    if node.op == CONST:
        return node.param("value")
    if node.op == METRIC:
        return values[str(node.param("name"))]
    function = BUILTIN.get(node.op)
    assert function is not None
    return function.of_constants(*(_value(arg, values) for arg in node.args))
