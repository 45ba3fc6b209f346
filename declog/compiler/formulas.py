"""What is computed from metrics' values: formulas, and the conditions of metrics and profiles."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from declog.compiler.draft import Draft
from declog.compiler.metrics import names_of, of_every_output
from declog.compiler.scopes import MetricScope
from declog.language.dtypes import DType
from declog.language.expression import compile_expression
from declog.language.nodes import Node, walk
from declog.language.spec import MetricSpec
from declog.language.syntax import parse, refuse
from declog.plans.needs import needs, ordered, read
from declog.plans.ops import FormulaOp, MetricOp


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
    node = over_metrics(draft, text)
    used = read(node)
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
    _comparable(draft, [ops[key] for key in used], text)
    if node.type.dtype in (DType.TEXT, DType.OBJECT):
        refuse("DL305", f"a formula gives a number, and this is {node.type.dtype}", text, "`1 if ... else 0`")
    if any(isinstance(op := ops[key], MetricOp) and op.by is not None for key in used):
        refuse("DL205", "a formula over a metric with `by` is not executed yet", text, "a metric without `by`")
    first = ops[used[0]]
    family = node.type.family
    names = names_of(draft, name, spec, None, family=family, by=False)
    draft.formulas.append(
        FormulaOp(
            id=name,
            key=name,
            expr=node,
            every=first.every,
            pool=first.pool,
            combine=first.combine,
            family=family,
            names=names,
            **of_every_output(draft, name, spec),
        )
    )


def over_metrics(draft: Draft, text: str, *, optional: bool = False) -> Node:
    """The typed tree of an expression over metrics, which have no rows."""
    node = compile_expression(text, MetricScope(draft, optional=optional), draft.pool, draft.functions)
    for item in walk(node):
        function = draft.functions.get(item.op)
        if function is not None and function.stage == "rows" and item.op != "column":
            refuse("DL310", f"`{item.op}` is of rows, and metrics have none", text, "an `expr` over signals, reduced")
    return node


def _comparable(draft: Draft, ops: Sequence[MetricOp | FormulaOp], text: str) -> None:
    """Values of pieces meet by (step, batch, rank), and are combined alike; else it is refused."""
    pool = ops[0].pool
    phases = set().union(*(_phases(draft, op) for op in ops))
    if pool in ("batch", "rank_batch") and len(phases) > 1:
        shown = " and ".join(f"`{phase}`" for phase in sorted(phases))
        message = (
            f"a batch of one phase is none of another, and the formula reads metrics of {shown} with `pool: {pool}`"
        )
        refuse("DL310", message, text, f"give them `pool: {'step' if pool == 'batch' else 'rank'}`, or `pool: window`")
    combines = sorted({op.combine for op in ops})
    if len(combines) > 1:
        message = f"the values of its pieces are combined once, and its metrics say {' and '.join(combines)}"
        refuse("DL310", message, text, "give them the same `combine`")


def _phases(draft: Draft, op: MetricOp | FormulaOp) -> set[str]:
    """The phases whose rows a metric is made of."""
    if isinstance(op, MetricOp):
        return {op.phase}
    ops = {other.key: other for other in draft.outputs}
    return set().union(*(_phases(draft, ops[key]) for key in read(op.expr)))


def conditions(draft: Draft) -> None:
    """`when` of metrics: checked at each log event, over the values of that event."""
    for name, spec in draft.spec.metrics.items():
        if spec.when is None or f"metrics.{name}" in draft.inactive:
            continue
        node = condition(draft, spec.when, ("metrics", name, "when"), off=f"metrics.{name}")
        if node is not None:
            _timely(draft, name, node)
            draft.metrics = [replace(op, when=node) if op.id == name else op for op in draft.metrics]
            draft.formulas = [replace(op, when=node) if op.id == name else op for op in draft.formulas]
    circle = ordered(needs(draft.outputs))[1]
    if circle:
        message = (
            f"what `when` hides is hidden from what reads it, and here in a circle: {' -> '.join([*circle, circle[0]])}"
        )
        key = "when" if draft.spec.metrics[circle[0]].when is not None else "formula"
        draft.report("DL309", message, "metrics", circle[0], key, fix="break the circle")


def _timely(draft: Draft, name: str, condition: Node) -> None:
    """A condition reads metrics that are known at each log event of the metric."""
    ops = {op.key: op for op in draft.outputs}
    every = next((op.every for op in ops.values() if op.id == name), 0)
    for key in read(condition):
        if ops[key].every and every % ops[key].every:
            message = f"`{key}` is known each {ops[key].every} steps, and `{name}` is logged each {every}"
            fix = f"every: {ops[key].every}"
            draft.report("DL310", message, "metrics", name, "when", fix=fix)


def condition(draft: Draft, text: str, path: tuple[str, ...], *, off: str | None = None) -> Node | None:
    """A bool over metrics' values."""
    with draft.at(*path, off=off):
        node = over_metrics(draft, text)
        if node.type.dtype is DType.BOOL:
            return node
        fix = f"compare it, such as `{node} > 0`"
        draft.report("DL305", f"a condition is a bool, and `{node}` is {node.type.dtype}", *path, fix=fix)
    return None
