"""Fixes for a number of different values, ``nunique(x)``: a metric of the rows of each value, and a formula over it."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

from declog.compiler.draft import Draft
from declog.compiler.fixes.reduced_parts import in_metrics
from declog.compiler.scopes import FACTS
from declog.errors import Problem, in_flow
from declog.language.fixes import library_calls
from declog.language.parser import arguments, body_of, names_in, tree_of
from declog.language.spec import MetricSpec

_MOST = {"max_labels": 1000}  # a key of the metric that the fix in `calls.txt` defines
_COUNTS = frozenset({"count", "len", "size"})
_OVER_LABELS = ("count", "sum")  # of the rows of each value: the number of values, and of all rows


def of_metric(draft: Draft, id: str, spec: MetricSpec, problem: Problem) -> Problem:
    """The problem of different values, whose fix has the keys and the name of the metric; others unchanged.

    ``count(unique(x)) / count(x)`` is a formula of the number of values and of a metric for each further reduction.
    """
    fix = problem.fix or ""
    if problem.path[:2] != ("metrics", id) or (most := in_flow(_MOST)[1:-1]) not in fix:
        return problem
    rows: dict[str, Any] = {key: getattr(spec, key) for key in ("where", "every") if key in spec.model_fields_set}
    rows |= {"over": "run"} if (spec.over or "").startswith("run") else {}
    of_each, body = f"{id}_rows", body_of(problem.source or "")
    fix = fix.replace(most, in_flow({**_MOST, **rows})[1:-1]).replace("rows_of_each", of_each)
    rest = ast.Name("count") if body is None else _Counted(problem.marked).visit(body)
    if isinstance(rest, ast.Name):
        return replace(problem, fix=fix.replace("different: ", f"{id}: "))
    further, formula = in_metrics(draft, id, rest, {*FACTS, *_OVER_LABELS}, rows) or ({}, rest)
    if not names_in(formula) <= {*FACTS, *_OVER_LABELS, *draft.constants, *further}:
        fix = f"{fix.replace('different: ', f'{id}_different: ')}, and a `formula:` reads it"
        return replace(problem, fix=fix)
    over = {word: tree_of(f"{word}({of_each}, over=label)").body for word in _OVER_LABELS}
    text = ast.unparse(library_calls.Substitution(over).visit(formula))
    entry = fix.partition(f"metrics: {{{of_each}: ")[2].partition(", different: {")[0]
    named = spec.model_dump(include={"name", "tags"} & spec.model_fields_set)
    entries = in_flow({**further, id: {"formula": text, **named}})[1:-1]
    return replace(problem, fix=f"metrics: {{{of_each}: {entry}, {entries}}}")


class _Counted(ast.NodeTransformer):
    """Replaces a call and a count of it by the name `count`, and a count of its argument's rows by `sum`."""

    def __init__(self, call: str) -> None:
        self._call = tree_of(call).body

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """The name of the reduction over labels, or the call with its arguments visited."""
        text, counts = ast.unparse(self._call), ast.unparse(node.func) in _COUNTS
        inner = ast.unparse(node.args[0]) if len(node.args) == 1 and counts else ""
        if text in (ast.unparse(node), inner):
            return ast.Name("count")
        if inner in map(ast.unparse, arguments(self._call)):
            return ast.Name("sum")
        return self.generic_visit(node)  # type: ignore[return-value]
