"""Reductions of what is computed of rows, ``sum(reward * length)``, where metrics are read: they are metrics, too."""

from __future__ import annotations

import ast

from declog.compiler.draft import Draft
from declog.compiler.reduced_parts import in_metrics
from declog.compiler.scopes import FACTS, tried
from declog.errors import in_flow
from declog.language import earlier_steps, library_calls
from declog.language.expression import Compiler
from declog.language.parser import called, names_in
from declog.language.spec import MetricSpec
from declog.language.syntax import parse
from declog.language.tracker_names import in_formula, reductions_of


def refuse_rows(draft: Draft, compiler: Compiler, id: str, spec: MetricSpec | None = None) -> None:
    """Refuse ``sum(reward * length) / sum(length)`` over metrics: a reduction of what is computed of rows.

    The fix defines metrics of those rows, for the formula ``spec`` whose name ``id`` is, or for a condition.
    """
    body = parse(compiler.text).body
    call = next((node for node in ast.walk(body) if isinstance(node, ast.Call) and _reduces_rows(draft, node)), None)
    if call is None:
        return
    entries = {name: {"reduce": metric.reduce} for name, metric in draft.spec.metrics.items()}
    several = {name: parse(in_formula(name, entry)).body for name, entry in entries.items() if reductions_of(entry)}
    parts = in_metrics(draft, id, body, {*entries, *FACTS}, {})
    fix = None
    if spec is not None and call is body and not library_calls.is_spelt_out(body):  # nothing is computed with it
        said = spec.model_dump(exclude_unset=True, exclude={"formula"}, by_alias=True)
        fix = f"{id}: {in_flow({'expr': compiler.text, **said})}"
    elif parts is not None:
        written = ast.unparse(library_calls.Substitution(several).visit(parts[1]))
        said = {} if spec is None else spec.model_dump(exclude_unset=True, exclude={"formula"}, by_alias=True)
        fix = f"metrics: {in_flow({**parts[0], id: {'formula': written, **said}})}"
        if spec is None:
            fix = f"write a metric and name it here: `metrics: {in_flow(parts[0])}`, and `{written}`"
    if fix is not None:
        compiler.fail(call, "DL303.of_a_metric", name=ast.unparse(call.func), fix=fix)


def _reduces_rows(draft: Draft, call: ast.Call) -> bool:
    """Whether it is a reduction without an axis of an expression over signals, or of several of them."""
    if library_calls.is_spelt_out(call):
        calls = ast.walk(library_calls.spelt_out(call))
        return any(isinstance(inner, ast.Call) and _reduces_rows(draft, inner) for inner in calls)
    reduction = draft.reductions.get(called(call))
    if reduction is None or len(call.args) != reduction.arity or call.keywords:
        return False
    parts = [part for argument in call.args for part in ast.walk(argument) if isinstance(part, ast.expr)]
    computed = reduction.arity > 1 or not isinstance(call.args[0], ast.Name | ast.Attribute | ast.Constant)
    plain = not any(isinstance(part, ast.Attribute) or earlier_steps.reads_earlier(part) for part in parts)
    read = set().union(*map(names_in, call.args))
    if not computed or not plain or read.isdisjoint(draft.signals) or not read <= {*draft.signals, *draft.constants}:
        return False
    return all(tried(draft, ast.unparse(argument)) is not None for argument in call.args)
