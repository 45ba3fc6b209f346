"""``Plan.explain``: the plan in words, the same text for the same plan."""

from __future__ import annotations

from declog.axes import Axis
from declog.plan import FormulaOp, MetricOp, Plan
from declog.tree import definition


def explain(plan: Plan) -> str:
    """Signals and what is recorded of them, folds, metrics, tables, profiles, sinks and what is inactive."""
    lines = [f"plan {plan.name} ({plan.fingerprint}): {plan.ops} operations, a log event each {_steps(plan.every)}"]
    for event in plan.events.values():
        lines.append(f"event {event.name}")
        for signal in event.signals:
            use = " and ".join(word for word, on in (("recorded", signal.recorded), ("folded", signal.folded)) if on)
            source = f", observed as {signal.source}" if signal.source != signal.name else ""
            family = " family" if signal.family else ""
            optional = ", optional" if signal.optional else ""
            lines.append(
                f"  signal {signal.name}: {signal.kind.value}{family} per {signal.axis.label}, {use}{source}{optional}"
            )
        for fold in event.folds:
            mask = " and ".join(sorted(str(node) for node in fold.mask)) or "every token"
            what = (
                "tokens"
                if fold.expr is None
                else f"{fold.expr}" + (f" = {definition(fold.expr)}" if fold.expr.names else "")
            )
            lines.append(f"  {fold.name}: {', '.join(fold.stats)} of {what}  [{mask}]")
        for local in event.locals:
            lines.append(f"  {local.name}: {local.expr}, where its text is")
    if plan.outputs:
        lines.append("metrics")
    for op in plan.outputs:
        names = ", ".join(item.template for item in op.names) if op.shown else "not shown"
        lines.append(f"  {op.key}: {_metric(op, plan)} -> {names}")
    for table in plan.tables:
        chosen = (
            " of ".join(f"{one.kind} within {one.within}" for one in reversed(table.filter.chain))
            if table.filter
            else "every row"
        )
        columns = ", ".join(column.id for column in table.columns)
        takers = ", ".join(table.sinks) or "sinks given in code"
        lines.append(f"table {table.id}: {columns}; {chosen}; each {_steps(table.every)}; to {takers}")
    for profile in plan.profiles.values():
        lines.append(f"profile {profile.name}: {len(profile.outputs)} outputs, {len(profile.tables)} tables")
    for sink in plan.sinks:
        lines.append(
            f"sink {sink.id}: {sink.kind}, profile {sink.profile}"
            + (f", each {sink.every} log events" if sink.every > 1 else "")
        )
    if plan.warnings:
        lines.append("warnings")
        lines += [f"  {warning}" for warning in plan.warnings]
    if plan.inactive:
        lines.append("inactive")
        lines += [f"  {what}: {why}" for what, why in plan.inactive]
    return "\n".join(lines) + "\n"


def _steps(n: int) -> str:
    return "step" if n == 1 else f"{n} steps"


def _metric(op: MetricOp | FormulaOp, plan: Plan) -> str:
    """A metric in words: "mean of reward over 10 steps"."""
    if isinstance(op, FormulaOp):
        return f"formula {op.expr}"
    what = ", ".join(str(arg) for arg in op.args) if op.fold is None else f"{plan.folds[op.fold].expr} over tokens"
    params = f"({', '.join(f'{name}={value}' for name, value in op.params)})" if op.params else ""
    text = f"{op.reduction.name}{params} of {what}"
    for word, node in (("where", op.where), ("weighted by", op.weight), ("by", op.by)):
        text += f" {word} {node}" if node is not None else ""
    if op.pool != "window":
        text = (
            f"{op.combine} over {op.pool}es of the {text}"
            if op.pool.endswith("batch")
            else f"{op.combine} over {op.pool}s of the {text}"
        )
    axis = {
        Axis.TOKEN: "tokens",
        Axis.COMPLETION: "completions",
        Axis.GROUP: "groups",
        Axis.STEP: "batches",
        Axis.BATCH: "batches",
    }[op.axis]
    return f"{text}, pooled over {axis} of {_steps(op.every)}"
