"""Formulas over metrics' values, and the conditions of metrics and profiles."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from declog.compiler import labels
from declog.compiler.draft import Draft, SwitchedOff, has_type
from declog.compiler.fixes.reduced_parts import in_metrics, of_share
from declog.compiler.names import of_output
from declog.compiler.scopes import FACTS, MetricScope, tried
from declog.errors import Path, in_flow
from declog.language.dtypes import Axis, DType
from declog.language.expression import Compiler
from declog.language.fixes import earlier_steps, library_calls, unknown_names
from declog.language.fixes.tracker_names import in_formula, reductions_of
from declog.language.moments import FORMULAS
from declog.language.nodes import BUILTIN, LABEL, METRIC, Node, walk
from declog.language.notation import is_reduction, reduced
from declog.language.parser import called, names_in
from declog.language.scope import BUILTINS
from declog.language.shorthand import OF_ROWS
from declog.language.spec import MetricSpec
from declog.language.syntax import ExpressionError, parse, refuse
from declog.plans.modes import ModesOfMetrics
from declog.plans.needs import needs, ordered, read, read_by_label, sources
from declog.plans.ops import FormulaOp, MetricOp


def formulas(draft: Draft) -> None:
    """Compile formulas over metrics, each formula after the formulas that it reads."""
    waiting: dict[str, set[str]] = {}
    for name, spec in draft.active("metrics").items():
        if spec.formula is not None:
            with draft.at("metrics", name, "formula"):
                waiting[name] = names_in(_parsed(draft, spec.formula)) - ({name} & FACTS.keys())
    waiting = {name: read & waiting.keys() for name, read in waiting.items()}
    while circle := ordered(waiting)[1]:
        if len(circle) == 1 and (spec := draft.spec.metrics[circle[0]]):
            entry = in_flow({f"my_{circle[0]}": spec.model_dump(exclude_unset=True, exclude_none=True, by_alias=True)})
            draft.report("DL309.itself", ("metrics", circle[0], "formula"), name=circle[0], entry=entry)
        else:
            draft.report("DL309.formulas", ("metrics", circle[0], "formula"), circle=" -> ".join([*circle, circle[0]]))
        waiting = {name: read - {*circle} for name, read in waiting.items() if name not in circle}
    for name in ordered(waiting)[0]:
        with draft.at("metrics", name, "formula", off=f"metrics.{name}"):
            _formula(draft, name, draft.spec.metrics[name])


def _of_rows(draft: Draft, name: str, spec: MetricSpec, key: str) -> str | None:
    """The fix for a formula with `every`, `by`, `where` or `over: run`: one of hidden metrics with that key.

    None if a metric that it reads is a formula, or has another `by` or `where`. Over the run, None too if the formula
    combines values, or if a metric that it reads has `over` or `combine`, or has a reduction that is not a moment.
    """
    text, entries = str(spec.formula), dict[str, Any]()
    value = "run" if key == "over" else getattr(spec, key)
    rest = spec.model_dump(exclude_unset=True, exclude={"formula", key}, by_alias=True)
    words = "_".join(re.findall(r"[a-z]\w*", str(value)))
    suffix = {"every": f"every_{value}", "over": "of_run", "by": f"by_{words}"}.get(key, f"where_{words}")
    for read_here in sorted(names_in(_parsed(draft, text)) & draft.spec.metrics.keys()):
        metric = draft.spec.metrics[read_here]
        several = metric.over or metric.combine or str(metric.reduce or "mean") not in FORMULAS
        other = key in ("by", "where") and getattr(metric, key) not in (None, value)
        if metric.formula is not None or other or (key == "over" and (several or spec.combine is not None)):
            return None
        entry = {"expr": read_here, **metric.model_dump(exclude_unset=True, exclude={"name", "tags"}, by_alias=True)}
        for word in re.findall(rf"\b(\w+)\({read_here}\)", text):  # `max(reward)`, of its rows
            of_rows = None if metric.reduce else reduced(entry["expr"])
            way = {**entry, **(of_rows or {}), "reduce": word, key: value}
            if is_reduction(word, 1) and text == f"{word}({read_here})":
                return f"{name}: {in_flow({**way, **rest})}"
            if is_reduction(word, 1):
                entries[f"{read_here}_{word}_{suffix}"] = {**way, "log": False}
                text = text.replace(f"{word}({read_here})", f"{read_here}_{word}_{suffix}")
        if re.search(rf"(?<![\w.]){read_here}\b", text):
            entries[f"{read_here}_{suffix}"] = {**entry, key: value, "log": False}
            text = re.sub(rf"(?<![\w.]){read_here}\b", f"{read_here}_{suffix}", text)
    return f"metrics: {in_flow({**entries, name: {'formula': text, **rest}})}" if entries else None


def _parsed(draft: Draft, text: str) -> ast.expr:
    try:
        return parse(text).body
    except ExpressionError:
        labels.refuse_other_ways(draft, text, MetricScope(draft))  # `by_level.1`
        raise


def _formula(draft: Draft, name: str, spec: MetricSpec) -> None:
    text = spec.formula or ""
    of_run = _of_rows(draft, name, spec, "over") if spec.cumulative else None
    for key in (*OF_ROWS, "combine"):
        if getattr(spec, key) is not None and not (key == "combine" and (spec.smoothing or of_run)):
            of_rows = _of_rows(draft, name, spec, key) if key in ("by", "where") else None
            fix = of_run if of_run and key == "over" else of_rows or f"drop `{key}`"
            if key == "over" and not of_run:
                read_here = sorted(names_in(_parsed(draft, text)) & draft.spec.metrics.keys())
                over = {one: {key: spec.over} for one in read_here if draft.spec.metrics[one].over != spec.over}
                fix += f", and say it of its metrics: metrics: {in_flow(over)}" if over else ": it has its metrics'"
            draft.report("DL202.formula_key", ("metrics", name, key), key=key, fix=fix)
    try:
        node = over_metrics(draft, text, of_formula=name)
    except ExpressionError as error:
        if (named := library_calls.named_by(error.problem.fix)) is None:
            raise
        metrics, written = named
        said = spec.model_dump(exclude_unset=True, exclude={"formula"}, by_alias=True)
        fix = f"metrics: {metrics[:-1]}, {in_flow({name: {'formula': written, **said}})[1:]}"
        raise ExpressionError(replace(error.problem, fix=fix)) from None
    ops = {op.key: op for op in draft.outputs}
    used = [ops[key] for key in read(node)]
    below = [*_below(draft, used)]
    if spec.every is not None and any(op.every != spec.every for op in used):
        fix = _of_rows(draft, name, spec, "every") or f"drop it, and write it in the metrics that `{used[0].id}` reads"
        draft.report("DL202.formula_key", ("metrics", name, "every"), key="every", fix=fix)
    else:
        _refuse_other_windows(draft, text, used, below)
    facts = _facts(node)
    if not used and not facts:
        refuse("DL310.formula_empty", text)
    total = next((op.id for op in below if isinstance(op, MetricOp) and op.total), None)
    if total is not None and "seconds" in facts.union(*(_facts(op.expr) for op in below if isinstance(op, FormulaOp))):
        refuse("DL310.formula_total", text, metric=total)
    pool, combine = ("window", "mean") if spec.smoothing or "seconds" in facts else _pieces(used, below)
    if pool == "window":
        _refuse_totals(draft, node, text, below)
    if node.type.dtype in (DType.TEXT, DType.OBJECT):
        refuse("DL305.formula", text, dtype=node.type.dtype)
    modes = ModesOfMetrics(draft.outputs, draft.modes)
    of_formula = modes.of_expr(node)
    wider = [op.key for op in used if modes.of(op.key) > of_formula]
    if wider:
        alone = " and ".join(sorted(of_formula))
        both = f"has values in {alone} alone, and reads `{'`, `'.join(wider)}` of {alone}"
        draft.warn(f"metrics.{name}: {both}; a value of another mode is observed as a signal of its own")
    draft.formulas.append(FormulaOp(
        expr=node, pool=pool, combine=combine, max_labels=max((op.max_labels for op in used), default=64),
        every=used[0].every if used else draft.window(spec.every, "metrics", name, "every"),
        **of_output(draft, name, spec, None, family=node.type.family, labels=_labels(draft, node, text)),
    ))  # fmt: skip


def _below(
    draft: Draft, used: Iterable[MetricOp | FormulaOp], keys: Callable[[Node], Iterable[str]] = read
) -> Iterator[MetricOp | FormulaOp]:
    """Some outputs, and the outputs that formulas among them read, at any depth.

    ``keys`` gives the keys that an expression reads: all, or only those that it reads with all their labels.
    """
    ops = {op.key: op for op in draft.outputs}
    for op in used:
        yield op
        if isinstance(op, FormulaOp):
            yield from _below(draft, [ops[key] for key in keys(op.expr)], keys)


def _facts(node: Node) -> set[str]:
    """The facts of the log event itself that an expression reads, such as `seconds`."""
    return {str(item.param("name")) for item in walk(node) if item.op == BUILTIN}


def over_metrics(
    draft: Draft, text: str, *, of_formula: str | None = None, of_alert: str | None = None, holds: bool = False
) -> Node:
    """The typed tree of an expression over metrics, which have no rows; ``holds``: the expression is a condition.

    It is refused if it has no mode in which it can have a value or, as a condition, can hold. ``reward - eval_reward``
    is refused alike: in evaluations, where it would have values, both are the same number.
    """
    scope = MetricScope(draft, of_alert=of_alert, text=text)
    labels.refuse_other_ways(draft, text, scope)
    compiler = Compiler(text, scope, draft.graph, draft.functions)
    formula = None if of_formula is None else draft.spec.metrics[of_formula]
    _refuse_rows(draft, compiler, of_formula or of_alert or "value", formula)
    try:
        node = compiler.visit(parse(text).body)
    except SwitchedOff:
        _refuse_beside(compiler, text)
        raise
    for item in walk(node):
        function = draft.functions.get(item.op)
        if function is not None and function.stage == "rows" and item.op != "member":
            refuse("DL310.formula_rows", text, function=item.op)
        if item.over == LABEL:
            _labels(draft, item.args[0], text)
    modes = ModesOfMetrics(draft.outputs, draft.modes)
    compared = [item for item in walk(node) if item.op in ("sub", "div", "lt", "le", "gt", "ge")]
    alike = any(modes.alike(*pair) for item in compared for pair in product(*map(read, item.args)))
    if alike or not modes.of_expr(node, holds=holds):
        of_each = {source: " and ".join(sorted(of)) for source in sources(node) if (of := modes.of(*source))}
        shown = ", ".join(
            f"`{key if label is None else f'label({key}, {label!r})'}` has values in {of}"
            for (key, label), of in of_each.items()
        )
        other = frozenset().union(*(modes.of(*source) for source in of_each)) - {"train"}
        prefix = next((mode.prefix for mode in draft.modes.values() if mode.name in other), "eval/")
        refuse("DL310.formula_modes", text, modes=shown, train="reward", other=f"{prefix}reward")
    return node


def _refuse_rows(draft: Draft, compiler: Compiler, id: str, spec: MetricSpec | None = None) -> None:
    """Refuse ``sum(reward * length) / sum(length)`` over metrics: it reduces an expression over signals.

    The fix defines a metric for each reduction. ``spec`` is the formula with the id ``id``; without it the expression
    is a condition.
    """
    body = parse(compiler.text).body
    call = next((node for node in ast.walk(body) if isinstance(node, ast.Call) and _reduces_rows(draft, node)), None)
    if call is None:
        return
    entries = {name: {"reduce": metric.reduce} for name, metric in draft.spec.metrics.items()}
    several = {name: parse(in_formula(name, entry)).body for name, entry in entries.items() if reductions_of(entry)}
    parts = in_metrics(draft, id, body, {*entries, *FACTS}, {})
    fix, share = None, None if spec is None else of_share(draft, body)
    entire = call is body and not library_calls.is_spelt_out(body, draft.registered)  # a formula of one reduction
    if spec is not None and (share or entire):
        said = spec.model_dump(exclude_unset=True, exclude={"formula"}, by_alias=True)
        fix = f"{id}: {in_flow({'expr': share or compiler.text, **said})}"
    elif parts is not None:
        fix = library_calls.naming(parts[0], ast.unparse(library_calls.Substitution(several).visit(parts[1])))
    if fix is not None:
        compiler.fail(call, "DL303.of_a_metric", name=ast.unparse(call.func), fix=fix)


def _reduces_rows(draft: Draft, call: ast.Call) -> bool:
    """Whether a call reduces expressions computed from signals, without an axis; also one spelt out as such calls."""
    if library_calls.is_spelt_out(call, draft.registered):
        calls = ast.walk(library_calls.spelt_out(call, draft.registered))
        return any(isinstance(inner, ast.Call) and _reduces_rows(draft, inner) for inner in calls)
    reduction = draft.reductions.get(called(call))
    if reduction is None or len(call.args) != reduction.arity or call.keywords:
        return False
    parts = [part for argument in call.args for part in ast.walk(argument) if isinstance(part, ast.expr)]
    computed = reduction.arity > 1 or not isinstance(call.args[0], ast.Name | ast.Attribute | ast.Constant)
    plain = not any(isinstance(part, ast.Attribute) or earlier_steps.reads_earlier(part) for part in parts)
    read = set().union(*map(names_in, call.args))
    if (
        not computed
        or not plain
        or read.isdisjoint(draft.signals)
        or not read <= {*draft.signals, *draft.constants, *BUILTINS}
    ):
        return False
    return all(tried(draft, ast.unparse(argument)) is not None for argument in call.args)


def _pieces(used: Sequence[MetricOp | FormulaOp], below: Sequence[MetricOp | FormulaOp]) -> tuple[str, str]:
    """The pool of the values of which a formula is computed one by one, and how its own values are combined.

    It is computed once, of the logged values, if its metrics have no common pool and combination, if one of them has a
    single value or combines by a variance, which a single value does not have, or if its batches are of two phases.
    """
    pieces = {(op.pool, op.combine) for op in used}
    one = any(op.over_run is not None or FORMULAS[op.combine].least > 1 for op in used)
    apart = len({op.phase for op in below if isinstance(op, MetricOp)}) > 1
    if one or len(pieces) != 1 or (apart and used[0].pool in ("batch", "rank_batch")):
        return "window", "mean"
    return pieces.pop()


def _refuse_other_windows(
    draft: Draft, text: str, used: Sequence[MetricOp | FormulaOp], below: Sequence[MetricOp | FormulaOp]
) -> None:
    """Refuse a formula of metrics whose windows end at different steps."""
    if len({op.every for op in used}) > 1:
        windows = " and ".join(f"`{op.key}` with `every: {op.every or 'trainer'}`" for op in used)
        edited = {op.id: None for op in below if draft.spec.metrics[op.id].every is not None}
        refuse("DL310.formula_windows", text, windows=windows, fix=_with_key(draft, "every", edited))


def _refuse_totals(draft: Draft, node: Node, text: str, below: Sequence[MetricOp | FormulaOp]) -> None:
    """Refuse `tokens / step_time` of a total of the window and a mean of its steps: it would grow with the window."""
    metrics = [op for op in below if isinstance(op, MetricOp) and op.over_run is None]
    means = {
        op.id: op.pool for op in metrics
        if op.pool != "window" and not _is_total(op) and FORMULAS[op.combine].least == 1
    }  # fmt: skip
    totals = sorted({op.id for op in metrics if op.pool == "window" and _is_total(op)})
    if means and _growth(node, {op.key: op for op in below}):
        metric, pool = next(iter(means.items()))
        fix = _with_key(draft, "over", dict.fromkeys(totals, pool) or dict.fromkeys(means, "window"))
        fix += "; a rate divides a total by `seconds`" * bool(totals)
        sums = [op.id for op in metrics if op.pool != "window" and _is_total(op)]
        refuse("DL310.formula_whole", text, total=[*totals, *sums, "seconds"][0], metric=metric, pool=pool, fix=fix)


def _with_key(draft: Draft, key: str, values: Mapping[str, str | None]) -> str:
    """A fix with the whole entries of some metrics and a value of one key for each of them."""
    said = {id: draft.spec.metrics[id].model_dump(exclude_unset=True, by_alias=True) for id in values}
    return f"metrics: {in_flow({id: {**said[id], key: value} for id, value in values.items()})}"


def _is_total(op: MetricOp | FormulaOp) -> bool:
    """Whether a metric adds up over its window, so that it grows with the length of the window."""
    if op.pool != "window":
        return op.combine == "sum"
    return isinstance(op, MetricOp) and op.over_run is None and op.reduction.name in ("sum", "count")


def _growth(node: Node, ops: Mapping[str, MetricOp | FormulaOp]) -> int:
    """The power of the window's length with which a value grows: 1 for a total, 0 for a mean or a ratio."""
    if node.op == METRIC:
        op = ops[read(node)[0]]
        return _growth(op.expr, ops) if isinstance(op, FormulaOp) and op.pool == "window" else int(_is_total(op))
    if node.op == BUILTIN:
        return int(node.param("name") == "seconds")
    parts = [_growth(part, ops) for part in node.args]
    if node.op in ("mul", "div"):
        return parts[0] + (parts[1] if node.op == "mul" else -parts[1])
    return max(parts, default=0)


def _labels(draft: Draft, node: Node, text: str) -> tuple[str, ...]:
    """The labels of an expression over metrics: those of its metrics with labels, which must have the same `by`."""
    ops = {op.key: op for op in draft.outputs}
    below = _below(draft, [ops[key] for key in read_by_label(node)], read_by_label)
    by = {op.by: op.labels for op in below if isinstance(op, MetricOp) and op.by is not None}
    if len(by) > 1:
        refuse("DL310.formula_labels", text, labels=", ".join(f"`{node}`" for node in by))
    return next(iter(by.values()), ())


def conditions(draft: Draft) -> None:
    """Type the `when` of metrics: a condition that each log event checks over its values."""
    for name, spec in draft.active("metrics").items():
        before = len(draft.problems)
        node = None if spec.when is None else condition(draft, spec.when, ("metrics", name, "when"))
        rows = tried(draft, str(spec.when)) if len(draft.problems) > before else None
        if rows is not None and rows.type.axis in (Axis.COMPLETION, Axis.TOKEN):
            of_rows = f"where: {in_flow(spec.when)}, which chooses rows; `when` chooses log events: "
            draft.problems[before:] = [replace(one, fix=f"{of_rows}{one.fix}") for one in draft.problems[before:]]
        if node is not None:
            _timely(draft, name, node)
            draft.metrics = [replace(op, when=node) if op.id == name else op for op in draft.metrics]
            draft.formulas = [replace(op, when=node) if op.id == name else op for op in draft.formulas]
    circle = ordered(needs(draft.outputs))[1]
    if circle:
        key = "when" if draft.spec.metrics[circle[0]].when is not None else "formula"
        draft.report("DL309.hidden", ("metrics", circle[0], key), circle=" -> ".join([*circle, circle[0]]))


def _timely(draft: Draft, name: str, condition: Node) -> None:
    """Report a `when` that reads a metric which has no value at some log events of the metric ``name``."""
    ops = {op.key: op for op in draft.outputs}
    every = next((op.every for op in ops.values() if op.id == name), 0)
    for key in read(condition):
        if ops[key].every and every % ops[key].every:
            draft.report(
                "DL310.when", ("metrics", name, "when"), key=key, window=ops[key].every, name=name, logged=every
            )


def _refuse_beside(compiler: Compiler, text: str) -> None:
    """Refuse the wrong names of an expression that also reads an entry that is off.

    A wrong name is that of a metric in trackers, such as ``completions/clipped_ratio``, or one that nothing has.
    """
    tree, scope = parse(text).body, compiler.scope
    names = names_in(tree)
    off = set[str]()
    for name in names:
        try:
            scope.resolve(name)
        except SwitchedOff:
            off.add(name)
    unknown_names.refuse_tracker_names(
        text, scope, lambda name: None if name in off else scope.resolve(name), alone=True
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in names - off and scope.resolve(node.id) is None:
            compiler.visit(node)


def condition(draft: Draft, text: str, path: Path) -> Node | None:
    """The typed condition over metrics' values. If it reads what is off, it never holds; None if it has an error."""
    off = ".".join(map(str, path))
    with draft.at(*path, off=off):
        node = over_metrics(draft, text, holds=True)
        return node if has_type(draft, node, path, [DType.BOOL]) else None
    return draft.graph.constant(False) if off in draft.inactive else None
