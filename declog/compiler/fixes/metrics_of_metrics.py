"""Fixes for metrics whose expression reads other metrics: pasted into the config, they give the intended number."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from contextlib import suppress
from functools import reduce
from typing import Any

from declog.compiler.draft import Draft
from declog.compiler.fixes import reduced_parts
from declog.compiler.scopes import FACTS, SignalScope
from declog.errors import in_flow
from declog.language.expression import Compiler
from declog.language.fixes.tracker_names import reductions_of
from declog.language.nodes import Node
from declog.language.notation import both, reduced
from declog.language.parser import names_in, tree_of
from declog.language.spec import MetricSpec
from declog.language.tree import listed

_OF_FORMULAS = frozenset({"name", "alias", "tags", "log", "empty", "when"})  # keys that a formula has, too
_OF_ROWS = frozenset({"where", "by", "weight", "nan", "ranks", "max_labels"})  # keys that choose or weight rows
DEEPEST = 10  # formulas of formulas


def of_metrics(draft: Draft, id: str, spec: MetricSpec, body: ast.expr) -> str | None:
    """The fix for an expression of metrics: a formula, or the metrics' own expressions with the keys beside it.

    None if neither gives the intended number.
    """
    metrics, constants = draft.spec.metrics, {*draft.constants, *FACTS}
    formula = reduced_parts.of_metrics(body, metrics, constants, spec.reduce)
    beside = _said(spec, spec.model_fields_set - {"expr", "reduce"})
    if (of_rows := _of_their_rows(draft, id, spec, body, formula)) is not None:
        return of_rows
    takes = _OF_FORMULAS | ({"combine"} if spec.smoothing is not None else set())
    if formula is not None and beside.keys() <= takes and _reduced_already(spec, body, metrics):
        return f"{id}: {in_flow({'formula': formula, **beside})}"
    several = None if again(draft, body) else reduced_parts.as_formula(draft, id, spec, body, {*metrics, *FACTS})
    if formula is None and beside.keys() <= _OF_FORMULAS and spec.reduce is None and several is not None:
        return several
    expanded = _Expanded(id, spec, draft, beside)
    try:
        rest = expanded.visit(tree_of(ast.unparse(body)).body)
    except _NotSaid:
        return _of_log_events(id, spec, formula, beside) or several or _of_one_number(id, spec, body, metrics, beside)
    if isinstance(rest, ast.Name) and rest.id in expanded.parts:
        (entry,) = expanded.parts.values()
        return f"{id}: {in_flow({**entry, **{key: value for key, value in beside.items() if key not in entry}})}"
    named = {node.id for node in ast.walk(rest) if isinstance(node, ast.Name)} - expanded.parts.keys()
    if not expanded.parts or any(name not in constants for name in named):
        return several
    # each part would be combined, and not the formula's value
    if spec.smoothing is not None or spec.cumulative or spec.combine in ("std", "var"):
        return _of_log_events(id, spec, formula, beside) or several
    shown = {key: value for key, value in beside.items() if key in _OF_FORMULAS}
    hidden = {name: {**entry, "log": False} for name, entry in expanded.parts.items()}
    return f"metrics: {in_flow({**hidden, id: {'formula': ast.unparse(rest), **shown}})}"


def again(draft: Draft, body: ast.expr) -> bool:
    """Whether an expression reduces a metric, which is reduced already; a name that is also a signal does not count."""
    calls = (node for node in ast.walk(body) if isinstance(node, ast.Call) and reduced(ast.unparse(node)) is not None)
    return any(not names_in(call).isdisjoint(draft.spec.metrics.keys() - draft.signals.keys()) for call in calls)


def _of_their_rows(draft: Draft, id: str, spec: MetricSpec, body: ast.expr, formula: str | None) -> str | None:
    """The fix for ``adv > 0`` and ``mean(abs(adv))`` of a metric `adv`: the metric's expression in place of its name.

    None for an expression of numbers, whose ``formula`` gives the same value, and for metrics that have no such rows.
    """
    numbers = any(reduced(ast.unparse(node)) is not None for node in ast.walk(body) if isinstance(node, ast.Call))
    if isinstance(body, ast.Name):
        return None
    if formula is not None and spec.reduce in (None, "mean"):
        of_step = draft.spec.metrics.keys() - draft.signals.keys()
        if numbers or reduced_parts.is_linear(tree_of(formula).body, of_step, affine=True):
            return None
    inlined = _Inlined(draft, spec, numbers)
    try:
        text = ast.unparse(inlined.visit(tree_of(ast.unparse(body)).body))
    except _NotSaid:
        return None
    entry = {"expr": text, **_said(spec, spec.model_fields_set - {"expr"}), **inlined.rows}
    entry = {key: value for key, value in entry.items() if (key, value) != ("reduce", "mean")}
    compiler = Compiler(text, SignalScope(draft), draft.graph, draft.functions)
    results = map(compiler.tried, listed((reduced(text) or entry)["expr"]))
    if all(isinstance(result, Node) or result.code == "DL313" for result in results):  # DL313 says how phases meet
        return f"{id}: {in_flow(entry)}"
    readable = {*draft.spec.metrics, *FACTS}
    return reduced_parts.as_formula(draft, id, MetricSpec(**entry), tree_of(text).body, readable) if numbers else None


def _of_one_number(
    id: str, spec: MetricSpec, body: ast.expr, metrics: Mapping[str, MetricSpec], beside: Mapping[str, Any]
) -> str | None:
    """The fix for a reduction of a metric's one number: that reduction of its rows; None if the body is no metric."""
    name = ast.unparse(body)
    call = reduced(name)
    name, way = (name, spec.reduce) if call is None else (call["expr"], call["reduce"])
    metric = metrics.get(name)
    if metric is None or not isinstance(way, str):
        return None
    one = f"{name} is one number of a log event, and one number has no {way}"
    if metric.formula is not None or not isinstance(metric.expr or name, str):
        kept = {key: value for key, value in beside.items() if key in _OF_FORMULAS}
        return f"{id}: {in_flow({'formula': name, **kept})}: which is that number; {one}"
    call = (None if metric.reduce else reduced(str(metric.expr or name))) or {"expr": metric.expr or name}
    rows = {**_said(metric, _OF_ROWS), **beside}
    return f"{id}: {in_flow({'expr': call['expr'], 'reduce': way, **rows})}: of its rows; {one}"


def _of_log_events(id: str, spec: MetricSpec, formula: str | None, beside: Mapping[str, Any]) -> str | None:
    """The fix for a formula that combines log events: it can smooth its values, and drops any other `combine`."""
    values = {key: value for key, value in beside.items() if key != "over"}
    if formula is None or not values.keys() <= _OF_FORMULAS | {"combine"}:
        return None
    if spec.smoothing is not None:
        return f"{id}: {in_flow({'formula': formula, **values})}: of its values at log events"
    if spec.combine is None:
        return None
    return f"drop it: a formula has no `combine: {spec.combine}`, and who reads the run has its values to take that of"


def _reduced_already(spec: MetricSpec, body: ast.expr, metrics: Mapping[str, MetricSpec]) -> bool:
    """Whether the `reduce` beside an expression of metrics is the mean, or how each of them is reduced already."""
    names = {node.id for node in ast.walk(body) if isinstance(node, ast.Name)} & metrics.keys()
    ways = [("mean", metrics[name].reduce, *reductions_of({"reduce": metrics[name].reduce}).values()) for name in names]
    return spec.reduce is None or all(spec.reduce in way for way in ways)


def _said(spec: MetricSpec, keys: frozenset[str] | set[str]) -> dict[str, Any]:
    """The values that an entry sets for some keys, in the order of the language."""
    written = spec.model_dump(include={*keys} & spec.model_fields_set, exclude_none=True)
    return {key: value for key, value in written.items() if value != []}


class _NotSaid(Exception):
    """There is no expression of signals that gives a metric's value."""


class _Inlined(ast.NodeTransformer):
    """Replaces the metrics in an expression by their own expressions, where the values of rows are meant.

    They are meant inside of a reduction, and in an expression without one; there, a metric with a reduction of its own
    is a number. ``rows`` are the keys of the metrics and of ``spec`` that choose rows.
    """

    def __init__(self, draft: Draft, spec: MetricSpec, numbers: bool) -> None:
        self.rows = _said(spec, _OF_ROWS)
        self._numbers, self._inside = numbers, spec.reduce is not None
        self._metrics = {id: metric for id, metric in draft.spec.metrics.items() if id not in draft.signals}

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace the metrics in the arguments."""
        before, self._inside = self._inside, self._inside or reduced(ast.unparse(node)) is not None
        node.args = list(map(self.visit if len(node.args) == 1 else self._number, node.args))
        node.keywords = list(map(self.visit, node.keywords))
        self._inside = before
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Replace the metrics in a calculation."""
        return ast.BinOp(self._number(node.left), node.op, self._number(node.right))

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Replace the metrics in a comparison."""
        return ast.Compare(self._number(node.left), node.ops, list(map(self._number, node.comparators)))

    def _number(self, written: ast.expr) -> ast.expr:
        """An operand with its metrics replaced; a metric that is a condition is 1 or 0."""
        value: ast.expr = self.visit(written)
        is_condition = value is not written and isinstance(value, ast.Compare | ast.BoolOp)
        return ast.IfExp(value, ast.Constant(1), ast.Constant(0)) if is_condition else value

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Replace a metric; keep a signal, a constant, and a metric that is a number."""
        metric = self._metrics.get(node.id)
        if metric is None:
            return node
        call = (None if metric.reduce else reduced(str(metric.expr))) or {"expr": metric.expr, "reduce": metric.reduce}
        if not self._inside and (self._numbers or call["reduce"] is not None):
            return node
        further = metric.formula or metric.prefer or metric.over or metric.combine
        if further or call["reduce"] not in (None, "mean") or not isinstance(call["expr"], str):
            raise _NotSaid
        self.rows = _with_rows(_said(metric, _OF_ROWS), self.rows)
        del self._metrics[node.id]  # no metric is inside of itself
        body: ast.AST = self.visit(tree_of(call["expr"]).body)
        self._metrics[node.id] = metric
        return body


class _Expanded(ast.NodeTransformer):
    """Replaces the metrics in an expression by new metrics of the same expressions, and formulas by what they compute.

    ``parts`` are the new metrics by name. They take the keys ``beside`` the expression that a formula cannot have.
    """

    def __init__(self, id: str, spec: MetricSpec, draft: Draft, beside: Mapping[str, Any]) -> None:
        self.parts: dict[str, dict[str, Any]] = {}
        self._id, self._spec, self._depth = id, spec, 0
        self._metrics, self._signals = draft.spec.metrics, draft.signals.keys()
        self._beside = {key: value for key, value in beside.items() if key not in _OF_FORMULAS}

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace ``mean(kl)`` and ``p95(kl)`` by a new metric; in any other call, replace the arguments."""
        call = reduced(ast.unparse(node))
        if call is None:
            node.args = [self.visit(argument) for argument in node.args]
            return node
        if call["expr"] in self._metrics:
            with suppress(*[_NotSaid] * (call["expr"] in self._signals)):  # of the signal of that name
                return self._part(call["expr"], call["reduce"])
        if not names_in(node).isdisjoint(self._metrics.keys() - self._signals):
            raise _NotSaid
        return self._named({**call, **self._beside})

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Replace ``length.max``, one of several reductions of a metric."""
        metric = self._metrics.get(ast.unparse(node.value))
        ending = None if metric is None else reductions_of({"reduce": metric.reduce}).get(node.attr)
        if ending is None:
            raise _NotSaid
        return self._part(ast.unparse(node.value), ending)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Replace a metric; keep a constant."""
        return self._part(node.id, self._spec.reduce) if node.id in self._metrics else node

    def _part(self, name: str, reduction: object) -> ast.AST:
        metric = self._metrics[name]
        if metric.formula is not None:
            self._depth += 1
            if (
                self._depth > DEEPEST
                or reduction not in (None, "mean")
                or not _said(metric, metric.model_fields_set).keys() <= {*_OF_FORMULAS, "formula"}
            ):
                raise _NotSaid
            return self.visit(tree_of(metric.formula).body)  # type: ignore[no-any-return]
        of_rows = not self._beside.keys().isdisjoint(("where", "by", "weight")) or reduction is not None
        if (metric.prefer and of_rows) or metric.over or metric.combine or isinstance(metric.expr, list):
            raise _NotSaid
        said = {"expr": name if metric.expr is None else metric.expr, "reduce": metric.reduce}
        said = (None if metric.reduce else reduced(str(said["expr"]))) or said
        several = reductions_of(said)
        if several and reduction not in several.values():
            reduction = "mean" if reduction is None and "mean" in several.values() else _refused()
        elif not several and reduction != said["reduce"]:
            reduction = said["reduce"] if reduction is None else _of_rows(said["reduce"], reduction)
        entry = {"expr": said["expr"], **({} if reduction in (None, "mean") else {"reduce": reduction})}
        rows = _said(metric, _OF_ROWS | {"prefer"})
        return self._named({**entry, **_with_rows(rows, self._beside)})

    def _named(self, entry: dict[str, Any]) -> ast.Name:
        """The name of the new metric with this entry; equal entries share a metric."""
        same = next((part for part, there in self.parts.items() if there == entry), None)
        names = (f"{self._id}_{count}" for count in range(1, 999))
        part = same or next(one for one in names if one not in self.parts and one not in self._metrics)
        self.parts[part] = entry
        return ast.Name(part)


def _with_rows(rows: Mapping[str, Any], beside: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a metric that choose its rows, with the keys ``beside`` it; raises ``_NotSaid`` if they differ."""
    if any(rows[key] != beside[key] for key in rows.keys() & beside.keys() - {"where"}):
        raise _NotSaid
    where = [str(keys["where"]) for keys in (rows, beside) if "where" in keys]
    return {**rows, **beside, **({"where": reduce(both, dict.fromkeys(where))} if where else {})}


def _of_rows(logged: object, reduction: object) -> object:
    """Another reduction of a metric's rows, if the metric logs their mean; raises ``_NotSaid`` for any other metric."""
    return reduction if logged in (None, "mean") else _refused()


def _refused() -> Any:
    raise _NotSaid
