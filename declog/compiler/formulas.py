"""What is computed from metrics' values: formulas, and the conditions of metrics and profiles."""

from __future__ import annotations

import ast
from dataclasses import replace

from declog.axes import Kind
from declog.compiler.draft import Draft
from declog.compiler.metrics import empty_of, names_of
from declog.compiler.scopes import MetricScope
from declog.expr import compile_expression
from declog.plan import FormulaOp, MetricOp
from declog.spec import MetricSpec
from declog.syntax import parse, refuse
from declog.tree import METRIC, Node, walk


def formulas(draft: Draft) -> None:
    """Formulas over metrics, each after those it reads."""
    waiting = {
        name: spec
        for name, spec in draft.spec.metrics.items()
        if spec.formula is not None and f"metrics.{name}" not in draft.inactive
    }
    visiting: list[str] = []
    circular: set[str] = set()

    def visit(name: str) -> None:
        if name in visiting:
            circle = visiting[visiting.index(name) :]
            circular.update(circle)
            message = f"formulas are defined in a circle: {' -> '.join([*circle, name])}"
            draft.report("DL309", message, "metrics", name, "formula", fix="break the circle")
            return
        spec = waiting.get(name)
        if spec is None:
            return
        assert spec.formula is not None
        visiting.append(name)
        with draft.at("metrics", name, "formula", off=f"metrics.{name}"):
            for other in sorted({node.id for node in ast.walk(parse(spec.formula).body) if isinstance(node, ast.Name)}):
                if other in waiting:
                    visit(other)
            if name not in circular:
                _formula(draft, name, spec)
        waiting.pop(name, None)
        visiting.pop()

    for name in list(waiting):
        visit(name)


def _formula(draft: Draft, name: str, spec: MetricSpec) -> None:
    for key in ("expr", "reduce", "where", "by", "weight", "pool", "combine"):
        if getattr(spec, key) is not None:
            draft.report(
                "DL202",
                f"a formula has no `{key}`: it is computed from other metrics",
                "metrics",
                name,
                key,
                fix=f"drop `{key}`",
            )
    text = spec.formula or ""
    node = compile_expression(text, MetricScope(draft), draft.pool, draft.functions)
    used = [str(item.param("name")).rpartition(":")[2] for item in walk(node) if item.op == METRIC]
    ops = {op.key: op for op in draft.outputs}
    pools = {(ops[key].pool, ops[key].every) for key in used}
    if len(pools) > 1:
        refuse(
            "DL310",
            "a formula needs metrics of one window and pool",
            text,
            "give them the same `every` and `pool`",
        )
    if not used:
        refuse("DL310", "the formula reads no metric", text, "use `expr:` for signals")
    if node.type.kind in (Kind.TEXT, Kind.OBJECT):
        refuse("DL305", f"a formula gives a number, and this is {node.type.kind.value}", text, "`1 if ... else 0`")
    if any(isinstance(op := ops[key], MetricOp) and op.by is not None for key in used):
        refuse("DL205", "a formula over a metric with `by` is not executed yet", text, "a metric without `by`")
    first = ops[used[0]]
    family = any(ops[key].family for key in used)
    names = names_of(draft, name, spec, None, family=family, by=False)
    draft.formulas.append(
        FormulaOp(
            name,
            name,
            node,
            first.every,
            first.pool,
            first.combine,
            empty_of(draft, name, spec),
            family,
            names,
            tuple(spec.tags),
            spec.log,
            None,
            spec.help,
        )
    )


def conditions(draft: Draft) -> None:
    """`when` of metrics: checked at each log event, over the values of that event."""
    for name, spec in draft.spec.metrics.items():
        if spec.when is None or f"metrics.{name}" in draft.inactive:
            continue
        node = condition(draft, spec.when, ("metrics", name, "when"), off=f"metrics.{name}")
        if node is not None:
            draft.metrics = [replace(op, when=node) if op.id == name else op for op in draft.metrics]
            draft.formulas = [replace(op, when=node) if op.id == name else op for op in draft.formulas]


def condition(draft: Draft, text: str, path: tuple[str, ...], *, off: str | None = None) -> Node | None:
    """A bool over metrics' values."""
    with draft.at(*path, off=off):
        node = compile_expression(text, MetricScope(draft), draft.pool, draft.functions)
        if node.type.kind is Kind.BOOL:
            return node
        fix = f"compare it, such as `{node} > 0`"
        draft.report("DL305", f"a condition is a bool, and `{node}` is {node.type.kind.value}", *path, fix=fix)
    return None
