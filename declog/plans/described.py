"""A plan as plain data for those who read a run later: what each output is, in words and as a formula.

Kept in the run's folder, so that a report needs neither the profile's files nor the compiler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from declog.language.nodes import LEAVES, METRIC, Node, definition, walk
from declog.plans.ops import AboutOp, FormulaOp, MetricOp, Plan, TableOp


def described(plan: Plan, places: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Outputs, alerts, tables and modes. ``places`` says by metric, `metrics.kl`, who declared it, file and line."""
    places = places or {}
    words = plan.names()
    outputs = [
        {
            "name": name.template, "alias": name.alias, "metric": op.id, "key": op.key, "words": words[name.template],
            "formula": "\n".join(_formula(op, plan)), "reduction": _reduction(op), "of": _of(op, plan),
            "tags": list(op.tags), "place": places.get(f"metrics.{op.id}", ""), **_about(op.about),
        }
        for op in plan.outputs if op.shown
        for name in op.names
    ]  # fmt: skip
    return {
        "name": plan.name,
        "fingerprint": plan.fingerprint,
        "modes": {mode.name: mode.prefix for mode in plan.modes.values()},
        "prefixes": sorted({sink.prefix for sink in plan.sinks} - {""}),
        "outputs": outputs,
        "alerts": [
            {"id": op.id, "level": op.level, "when": str(op.when), "reads": sorted(_metrics(op.when))}
            for op in plan.alerts
        ],
        "tables": [_table(op) for op in plan.tables],
        "inactive": [list(each) for each in plan.inactive],
        "warnings": list(plan.warnings),
    }


def _about(about: AboutOp) -> dict[str, Any]:
    bounds = about.healthy and [end if isfinite(end) else None for end in about.healthy]
    return {
        "title": about.title, "help": about.help, "unit": about.unit, "good": about.good, "healthy": bounds,
        "runbook": about.runbook, "chart": about.chart, "log": about.log,
    }  # fmt: skip


def _reduction(op: MetricOp | FormulaOp) -> str:
    return op.reduction.name if isinstance(op, MetricOp) else ""


def _values(op: MetricOp, plan: Plan) -> tuple[Node, ...]:
    """What is reduced."""
    fold = None if op.fold is None else plan.folds[op.fold].expr
    return op.args if fold is None else (fold,)


def _of(op: MetricOp | FormulaOp, plan: Plan) -> str:
    """What is reduced, of which rows: equal for two reductions of the same."""
    if isinstance(op, FormulaOp):
        return ""
    text = ", ".join(map(definition, _values(op, plan)))
    text += "".join(f" {_WORDS.get(key, key)} {definition(node)}" for key, node in op.clauses.items())
    return f"{text} every {op.every} over {op.pool} of {op.phase}"


_WORDS = {"weight": "weighted by"}


def _formula(op: MetricOp | FormulaOp, plan: Plan) -> Iterator[str]:
    """The formula as one would write it, then what its derived signals are."""
    if isinstance(op, FormulaOp):
        yield str(op.expr)
        return
    values = _values(op, plan)
    params = [str(value) for _, value in op.params]
    text = f"{op.reduction.name}({', '.join([*map(str, values), *params])})"
    yield text + "".join(f" {_WORDS.get(key, key)} {node}" for key, node in op.clauses.items())
    named = [node for node in walk(*values, *op.clauses.values()) if node.names and node.op not in LEAVES]
    yield from (f"{node} = {definition(node)}" for node in dict.fromkeys(named))


def _metrics(node: Node) -> set[str]:
    """The metrics that a condition reads."""
    return {str(each.param("name")) for each in walk(node) if each.op == METRIC}


def _table(op: TableOp) -> dict[str, Any]:
    keys = [one.key for one in op.filter.chain if one.key is not None] if op.filter is not None else []
    return {
        "id": op.id, "name": op.name, "filter": [one.kind for one in op.filter.chain] if op.filter is not None else [],
        "key": str(keys[-1]) if keys else None,
        "columns": [
            {"name": column.template, "type": str(column.type), "expr": "" if column.expr is None else str(column.expr),
             "role": column.role, "redact": [label for label, _ in column.redact]}
            for column in op.columns
        ],
    }  # fmt: skip
