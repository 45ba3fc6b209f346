"""Fixes for wrong expressions: pasted into the config, they give the intended number."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from typing import Any

from declog.compiler.draft import NAME, Draft, of_counted_rows
from declog.errors import Entry, Problem, in_flow, nearest
from declog.errors.elsewhere import SYNONYMS
from declog.language.dtypes import Axis, DType
from declog.language.expression import Compiler
from declog.language.fixes import idioms, library_calls, unknown_names, wrong_calls, wrong_subscripts
from declog.language.fixes.earlier_steps import reads_earlier
from declog.language.fixes.wrong_forms import of_calls, of_expressions
from declog.language.nodes import SIGNAL, Node
from declog.language.notation import both, is_reduction, reduced
from declog.language.parser import body_of, called, conjuncts, names_in, tree_of
from declog.language.reductions import Reduction, Reductions
from declog.language.smoothing import Smoothing
from declog.language.spec import MetricSpec, Observed
from declog.language.syntax import ExpressionError
from declog.language.tree import listed
from declog.plans.ops import PREFERRED, MetricOp


def of_weighted(id: str, spec: MetricSpec, reduction: str) -> str:
    """The fix for a weighted deviation or variance: two weighted means, and a formula over them."""
    if reduction not in ("std", "pstd", "var", "pvar"):
        return "drop `weight`"
    expr = str(spec.expr or id)
    written = spec.model_dump(include={"weight", "where", "by", "over"}, exclude_none=True)
    square = f"{expr} ** 2" if expr.isidentifier() else f"({expr}) ** 2"
    mean, squares = f"{id}_mean", f"{id}_squares"
    variance = f"{squares} - {mean} ** 2"
    formula = f"sqrt({variance})" if reduction.endswith("std") else variance
    entries = {mean: {"expr": expr, **written}, squares: {"expr": square, **written}, id: {"formula": formula}}
    lines = [f"{name}: {in_flow(entry)}" for name, entry in entries.items()]
    return "\n".join(["two weighted means and a formula give that of the population:", *lines])


def of_list(id: str, spec: MetricSpec) -> Problem | None:
    """The problem of a list of expressions that is empty, or has reductions, ``[p10(x), p90(x)]``; None for another.

    Ranks give no coefficient of Spearman's: `rank` orders equal values by their rows.
    """
    exprs = spec.expr if isinstance(spec.expr, list) else []
    ranked = [re.fullmatch(r"rank\(([^(),]+)\)", text) for text in exprs] if spec.reduce == "corr" else []
    if ranked and all(ranked):
        values = ", ".join(match[1] for match in ranked if match is not None)
        reducer = library_calls.of_library("spearman", [*map(ast.Name, "ab")])
        return Problem.of("DL304.ranks", (), values=values, reducer=reducer)
    calls = of_calls(exprs) if exprs and spec.reduce is None else None
    if calls is not None:
        return Problem.of("DL303.several", (), fix=in_flow({id: calls})[1:-1])
    if exprs and all(map(reduced, exprs)):
        return Problem.of("DL303.several", (), fix=of_several(id, spec))
    return None if exprs else Problem.of("DL203.expr", ())


def takes(reduction: Reduction) -> str:
    """The number of expressions that a reduction takes, in words."""
    return "one expression" if reduction.arity == 1 else f"{reduction.arity} expressions"


def of_several(id: str, spec: MetricSpec, exprs: list[str] | None = None) -> str:
    """The fix for several expressions with reductions of one: a metric for each expression."""
    written = spec.model_dump(include=spec.model_fields_set, by_alias=True)
    texts = exprs or [*map(str, spec.expr if isinstance(spec.expr, list) else [])]
    reduce = spec.reduce if isinstance(spec.reduce, list) else []
    of_all = [item for item in reduce if isinstance(item, str) and is_reduction(item, len(texts))]
    of_one = [item for item in reduce if item not in of_all]
    edit = of_expressions(id, texts, {**written, **({"reduce": of_one} if of_one else {})})
    return f"metrics: {in_flow({**edit, id: {**written, 'reduce': of_all}} if of_all else edit)}"


def reduced_already(
    problem: Problem, id: str, spec: MetricSpec, body: ast.expr, compiler: Compiler, reductions: Reductions
) -> Problem:
    """The problem of ``{expr: mean(x), reduce: mean}``, with the keys that say it once; any other one as it is.

    A preset or a file below mostly says that `reduce`. Of two reductions, as in ``mean(max(x))``, the inner one is of
    each group, or of the tokens of each completion.
    """
    name = called(body)
    if not isinstance(body, ast.Call) or body.keywords or len(body.args) != 1 or reductions.get(name) is None:
        return problem
    said, value = listed(spec.reduce), ast.unparse(body.args[0])
    several = isinstance(spec.reduce, list)
    of_rows = {"expr": value, **({} if name in said else {"reduce": [*said, name] if several else name})}
    inner = (f"{name}({value}, over={axis})" for axis in ("token", "completion"))
    inside = next((text for text in inner if isinstance(compiler.tried(text), Node)), None)
    if inside is None or several or name in said or spec.model_fields_set != {"expr", "reduce"}:
        fix = in_flow(of_rows)[1:-1]
    else:
        row = "completion" if "over=token" in inside else "group"
        entries = [f"{id}: {in_flow(keys)}" for keys in ({"expr": inside, "reduce": said[0]}, of_rows)]
        fix = f"{entries[0]}, of each {row}; of all rows {entries[1]}"
    twice = problem.saying("DL306.reduced_twice", function=name, fix=fix)
    return replace(twice, related=(("metrics", id, "reduce"),))


def arguments(reduction: Reduction, call: ast.Call, text: str, compiler: Compiler) -> str:
    """The right call of a reduction of too many or too few expressions; ``text`` is the whole expression."""
    if (number := idioms.without_thousands(text)) != text:
        return number
    if (library := unknown_names.of_library(call, reduction.name, text, compiler.scope)) is not None:
        return wrong_calls.along(call, library, compiler.tried) or library
    values = list(map(ast.unparse, call.args))
    if not values and len(call.keywords) == 1:  # `mean(reward = 1)`
        return f"{reduction.name}({call.keywords[0].arg} == {ast.unparse(call.keywords[0].value)})"
    count = reduction.arity
    inside = values[:count] if len(values) > count else [*"xyz"][:count]
    return f"{reduction.name}({', '.join(inside)})"


def by_name(spec: MetricSpec, reduction: Reduction, call: ast.Call, compiler: Compiler, arity: int = 0) -> ast.Call:
    """A reduction's call; constants without their names are refused, except edges of bins.

    ``arity`` is the number of expressions before the constants; 0 for a call in `reduce`.
    """
    named = wrong_calls.by_name(reduction, call, arity)
    if named is call or any(isinstance(keyword.value, ast.List | ast.Tuple) for keyword in named.keywords):
        return named
    fix = ast.unparse(named) if arity else of_reduce(spec, ast.unparse(named), short=not call.args)
    compiler.fail(call, "DL304.by_name", reduction=reduction.name, fix=fix)


def of_reduce(spec: MetricSpec, text: str, *, short: bool = False) -> str:
    """The fix for a reduction: an item of a list, the key `reduce`, or, with ``short``, an entry with its `expr`."""
    if isinstance(spec.reduce, list):
        return in_flow(text)
    return Entry({"expr": spec.expr, "reduce": text}) if short and spec.expr else in_flow({"reduce": text})[1:-1]


def along(reduction: Reduction, inside: str, call: ast.Call, compiler: Compiler) -> str:
    """The fix for ``max(reward, axis=1)`` as a metric: the mean of an aggregate, or a reduction of all rows."""
    said = (ast.unparse(keyword.value).strip("'\"") for keyword in call.keywords if keyword.arg in idioms.AXES)
    if not {"group", "prompt"}.isdisjoint(said):
        return f"mean({reduction.name}({inside}, over=completion)), the mean over groups"
    plain = f"{reduction.name}({inside})"
    return wrong_calls.along(call, plain, compiler.tried) or plain


def definition(draft: Draft, name: str, text: str = "") -> dict[str, Any] | None:
    """The metric that a name such as `length_p95` or `world_size` means, by this name; None for another name.

    The number of ranks is counted over rows of a signal that another metric in ``text`` reads: so both have one phase.
    """
    signals, ending = draft.signals, idioms.of_ending(name)
    if ending is not None and ending[0] in signals:
        return {name: f"{ending[1]}({ending[0]})"}
    if _RANKS.fullmatch(name) is None or draft.per_rank:
        return None
    of_rows = [op for op in _beside(draft, text) if op.axis is not Axis.TOKEN and not op.family]
    words = (word for op in of_rows for word in NAME.findall(str(draft.spec.metrics[op.id].expr or op.id)))
    signal = next((word for word in words if word in signals), None)
    expr = "rank + 1" if signal is None else f"rank + 1 if present({signal}) else missing"
    return {name: {"expr": expr, "reduce": "max"}}


def of_schema(draft: Draft, name: str) -> str:
    """The fix for an undeclared schema: the nearest one, or one of the declared ones and a declaration."""
    if (close := nearest(name, draft.spec.schemas)) is not None:
        return f"did you mean `{close}`?"
    types = {"prompt": "text", "completion": "text", "reward": "float"}
    columns = {column: type for column, type in types.items() if column in draft.signals}
    declare = f"declare it: schemas: {in_flow({name: columns})}" if columns else "declare it"
    return " or ".join([*(f"schema: {one}," for one in [*draft.spec.schemas][:3]), declare])


def of_signal(draft: Draft, name: str, text: str) -> str:
    """The metric of a signal that a text over metrics names: a sum, if metrics beside it are sums or counts."""
    beside = _beside(draft, text)
    sums = [op for op in beside if op.reduction.name in ("sum", "count")]
    entry = {"expr": name, "reduce": "sum"} if sums else {"expr": name}
    for op in (sums or beside)[:1]:
        entry |= draft.spec.metrics[op.id].model_dump(include={"over", "combine", "every"}, exclude_none=True)
    observed = draft.observed.get(name)
    if sums and "over" not in entry and observed is not None and observed.axis == "step" and _TIME.search(name):
        entry["ranks"] = "main"  # all ranks spend this time at once
    return in_flow({name: entry})


def _beside(draft: Draft, text: str) -> list[MetricOp]:
    return [op for op in draft.metrics if op.id in NAME.findall(text)]


_RANKS = re.compile(r"world_size|(?:num_|n_)?(?:gpus|ranks|devices|processes)")
_TIME = re.compile(r"(?:^|_)(?:s|secs?|seconds|ms|minutes|hours|time|duration|latency)(?:_|$)")


def of_each_step(draft: Draft, name: str) -> str:
    """The metric of a number that nothing in the config computes, as it would be defined."""
    of_trainer = any(path[-1] == "logged" for path, _ in draft.spec.declared)
    if of_trainer:
        return f"metrics: {{{name}: {{observe: step}}}}, for a number that the trainer logs"
    return f"metrics: {{{name}: {{observe: step}}}} for a number per step, or metrics: {{{name}: mean(SIGNAL)}}"


def entire(problem: Problem, id: str, spec: MetricSpec) -> Problem:
    """A problem whose fix is an entry, with the metric's other keys added to this entry; other problems unchanged."""
    fix = problem.fix
    if problem.path == ("metrics", id, "expr") and (rows := of_counted_rows(id, spec)) is not None:
        return replace(problem, fix=rows)
    if problem.path[:2] != ("metrics", id) or not isinstance(fix, Entry) or "expr" not in fix.keys:
        return problem
    beside = {"expr"} if problem.code in ("DL301", "DL307") else {"expr", "reduce"}  # the keys in the fix
    kept = spec.model_dump(include=spec.model_fields_set - {*beside, *fix.keys}, by_alias=True)
    if problem.path[-1] == "expr" and spec.where is not None and "where" in fix.keys:
        fix = Entry({**fix.keys, "where": both(spec.where, str(fix.keys["where"]))}, *fix.around, bare=True)
        problem = replace(problem, fix=fix)
    if problem.path[-1] == "where" and problem.code == "DL307":  # a whole metric in place of a condition
        return replace(problem, fix=_as_condition(problem, fix))
    if library_calls.is_rate(fix):
        start, end = problem.span or (0, 0)
        around = f"{(problem.source or '')[:start]}({{}}){(problem.source or '')[end:]}"
        formula = "{}" if problem.code == "DL301" or re.fullmatch(r"(\w+\()?\(\{\}\)\)?", around) else around
        return replace(problem, fix=f"metrics: {in_flow(library_calls.as_rate(id, {**fix.keys, **kept}, formula))}")
    before, behind = fix.around
    if not kept and problem.code == "DL311":  # the entry has no such `reduce`
        return replace(problem, fix=f"{before}metrics: {{{id}: {fix.flow}}}{behind}")
    written = f"{before}metrics: {{{id}: {fix.flow[:-1]}, {in_flow(kept)[1:]}}}{behind}"
    return replace(problem, fix=written) if kept else problem


def _as_condition(problem: Problem, fix: Entry) -> str:
    """The fix for a condition of rows in which a part is the value of a metric with the entry ``fix``."""
    if (chosen := fix.keys.get("where")) is None:
        return "it is the value of a metric of its own, and no condition of rows"
    (start, end), text = problem.span or (0, 0), problem.source or ""
    before, behind = text[:start].rstrip(), text[end:].strip()
    of_place = "index(" in str(fix.keys["expr"]) and before.endswith("==")  # `score == argmax(score)`
    if not behind and (of_place or not before):
        return f"write `{chosen}`"
    of_group = f"max(x if {chosen} else missing, over=completion)"
    return f"`{chosen}` is true in the row; a value of the row, for its group, is `{of_group}`"


def of_condition(draft: Draft, id: str, spec: MetricSpec, per_token: bool, problem: Problem) -> Problem:
    """The problem of a metric's `where`, with a fix that keeps the intended meaning if one is known."""
    if problem.code == "DL303" and (tail := _of_tail(id, spec, per_token)) is not None:
        return replace(problem, fix=tail)
    if problem.marked not in draft.spec.metrics or not draft.signals.keys().isdisjoint(NAME.findall(str(spec.where))):
        return problem
    fix = f"a condition over metrics is `when: {spec.where}`"
    return replace(problem, fix=f"{problem.fix}, of each row; {fix}" if str(problem.fix).startswith("write `") else fix)


def _of_tail(id: str, spec: MetricSpec, per_token: bool) -> str | None:
    """The fix for ``where: entropy > p80(entropy)`` of a mean of the same values: the mean of the greatest fifth.

    None if the mean is of other values, or if another condition reads them, too, as of those between two quantiles.
    """
    parts = conjuncts(body_of(str(spec.where)))
    reduced = re.sub(r"\s", "", id if spec.expr is None else str(spec.expr))
    for part in parts:
        if not isinstance(part, ast.Compare) or len(part.ops) > 1 or spec.reduce not in (None, "mean"):
            continue
        names = {*names_in(part.left)}
        if any(not names.isdisjoint(names_in(other)) for other in parts if other is not part):
            continue
        level, value = library_calls.level_of(part.comparators[0]), ast.unparse(part.left)
        call = ast.unparse(part.comparators[0])
        if level is None or not re.match(rf"\w+\({re.escape(value)}[,)]", call):
            continue
        top = isinstance(part.ops[0], ast.Gt | ast.GtE)
        share = 1 - level if top else level
        if share > 0 and reduced in (plain := re.sub(r"\s", "", value), f"mean({plain})"):
            kept = {key: getattr(spec, key) for key in sorted(spec.model_fields_set - {"expr", "reduce", "where"})}
            kept |= {"prefer": None} if "prefer" in kept else {}  # it is a mean of all values
            kept |= {"nan": "skip"} if "nan" in kept and per_token else {}  # as a sketch does
            rest = [ast.unparse(other) for other in parts if other is not part]
            kept |= {"where": reduce(both, rest)} if rest else {}
            way = f"{'top' if top else 'bottom'}_mean(share={share:.6g})"
            return f"{id}: {in_flow({'expr': value, 'reduce': way, **kept})}"
    return None


def clause(
    reduction: str, inside: str, keyword: ast.keyword, call: ast.Call, compiler: Compiler, takes: Collection[str],
    of_all: Callable[[], str | None],
) -> str | None:  # fmt: skip
    """The fix for a keyword: ``mean(x, where=c)`` as the keys of a metric, ``std(x, ddof=0)`` as `pstd(x)`.

    ``of_all`` gives the fix for ``var(x, ddof=0)``. None for an axis, and for a keyword that is nearly one that the
    reduction ``takes``.
    """
    entire = ast.unparse(ast.Call(call.func, [tree_of(inside).body], call.keywords))
    if (best := wrong_subscripts.of_best(tree_of(entire).body, entire, (0, len(entire)))) is not None:
        return best
    if keyword.arg in library_calls.DIVISORS and reduction in ("std", "var"):
        if not library_calls.divides_by_n(call):
            return f"{reduction}({inside}), which divides by n-1"
        return f"pstd({inside}), which divides by n" if reduction == "std" else of_all()
    if ast.unparse(keyword.value).strip("'\"") in ("group", "prompt"):
        return None  # an aggregate, not labels
    if keyword.arg in library_calls.SPANS and isinstance(keyword.value, ast.Constant):
        if call.args and (fix := unknown_names.of_library(call, reduction, compiler.text, compiler.scope)) is not None:
            return fix
        combine = str(Smoothing.of_last(keyword.value.value))
        reduce = {} if reduction == "mean" else {"reduce": reduction}
        return Entry({"expr": inside, **reduce, "over": "step", "combine": combine})
    values = idioms.items(tree_of(inside).body)
    expr = inside if len(values) < 2 else [*map(ast.unparse, values)]
    words = (keyword.arg, SYNONYMS.get(str(keyword.arg)))
    key = next((word for word in words if word in ("where", "by", "weight")), None)
    if key is not None:
        return Entry({"expr": expr, "reduce": reduction, key: ast.unparse(keyword.value)})
    if keyword.arg == "method" and (fix := library_calls.of_library(ast.unparse(keyword.value).strip("'\""), values)):
        return fix
    if keyword.arg is None or keyword.arg in idioms.AXES or nearest(keyword.arg, takes) is not None:
        return None
    options = wrong_calls.without(ast.Call(call.func, [], call.keywords), keyword)
    return Entry({"expr": expr, "reduce": options.removesuffix("()")})


def of_token_labels(id: str, spec: MetricSpec, label: Node) -> str:
    """The fix for `by` per token: a metric for each label, by its condition."""
    entry = spec.model_dump(exclude_unset=True, exclude={"by", "where"}, by_alias=True)
    condition = str(label) if label.type.dtype is DType.BOOL else f"{label} == 0"
    where = condition if spec.where is None else both(spec.where, condition)
    return f"a metric for each label: metrics: {in_flow({id: None, f'{id}_0': {**entry, 'where': where}})}"


MOST_EDGES = 64


def of_edges(draft: Draft, id: str, expr: str, edges: ast.expr, compiler: Compiler) -> str | None:
    """The fix for ``histogram(length, bins=[0, 8, 32])``: counts by bucket; None if the list has no edges of bins.

    A bucket includes its upper edge, and a bin of numpy its lower edge, so the edges of whole numbers are one less. The
    first and the last bucket also count the values beyond.
    """
    try:
        said = ast.literal_eval(edges)
        integers = compiler.visit(tree_of(expr).body).type.dtype is DType.INT
    except (ExpressionError, SyntaxError, ValueError):
        return None
    spec = draft.spec.metrics[id.removesuffix(PREFERRED)]
    right = isinstance(said, list | tuple) and 2 < len(said) <= MOST_EDGES and _grow(said)
    if not right or spec.by is not None or isinstance(spec.reduce, list):
        return None
    inner = [edge - 1 if integers and edge == int(edge) else edge for edge in said[1:-1]]
    by = f"bucket({expr}, {', '.join(f'{edge:.12g}' for edge in inner)})"
    kept = spec.model_dump(exclude_unset=True, exclude={"expr", "reduce", "by"}, by_alias=True)
    counts = in_flow({id: {"expr": expr, "reduce": "count", "by": by, **kept}})
    return f"metrics: {counts}: so many in each part; the first and the last have all that is beyond"


def of_ends(constants: Mapping[str, Any]) -> str:
    """The fix for ends of a histogram that are not finite, or in the wrong order."""
    ends = {name: constants[name] for name in ("low", "high")}
    for name, end in ends.items():
        if end is not None and not math.isfinite(end):
            return f"drop `{name}`, and it is that of the values"
    low, high = sorted(ends.values())
    return f"low={low}, high={high if low < high else high + 1}"


def _grow(edges: Sequence[Any]) -> bool:
    """Whether edges are finite numbers, each above the one before."""
    numbers = [edge for edge in edges if isinstance(edge, int | float) and math.isfinite(edge)]
    return len(numbers) == len(edges) and all(low < high for low, high in pairwise(numbers))


def of_no_signal(id: str, spec: MetricSpec, names: Collection[str]) -> str:
    """The fix for a metric without an expression whose id is no signal."""
    fix = "give `expr`, or declare the signal here with `observe`"
    if spec.model_fields_set == {"reduce"} and isinstance(reduce := spec.reduce, str):
        fix = f"declare the signal here: `{id}: {{observe: step, reduce: {reduce}}}`"
        if reduce in names:  # a signal with a reduction's name
            fix = f"to reduce the signal `{reduce}`: `{id}: {{expr: {reduce}}}`"
    close = nearest(id, names)
    return fix if close is None else f"did you mean `{close}`? Or {fix}"


def counted(draft: Draft, reduction: str, node: Node) -> str:
    """The fix for a reduction of values that are not numbers: count them, or take their length."""
    rows = f"`sum(1 if present({node}) else 0)`"
    if reduction == "count" and draft.grouping is not None and node.op == SIGNAL and node.leaf in draft.grouping.of:
        numbers = [name for name, spec in draft.observed.items() if _of_completions(spec)]
        value = "reward" if "reward" in draft.signals else next(iter(numbers), None)
        if value is not None:
            return f"groups: `count(mean({value}, over=completion))`; completions: {rows}"
    length = f"`{reduction}(len({node}))` for its length in characters, or " if node.type.dtype is DType.TEXT else ""
    return f"{length}count it: {rows}"


def _of_completions(spec: Observed) -> bool:
    """Whether a signal has a number per completion."""
    return spec.axis == "completion" and spec.type in (DType.FLOAT, DType.INT) and not spec.family


def earlier_metric(text: str, metrics: Collection[str]) -> str | None:
    """The metric whose value of an earlier step an expression reads, such as ``kl[-1]``; None if it reads none."""
    calls = (node for node in ast.walk(tree_of(text)) if isinstance(node, ast.expr) and reads_earlier(node))
    return next((name for node in calls for name in names_in(node) if name in metrics), None)


class NumberInstead(ast.NodeTransformer):
    """Replaces a metric by a number, together with all that is computed from it without a signal."""

    def __init__(self, id: str, signals: Collection[str]) -> None:
        self._id, self._signals = id, frozenset(signals)

    def visit(self, node: ast.AST) -> Any:
        """The number, or the node with the number in it."""
        if isinstance(node, ast.Call | ast.BinOp | ast.UnaryOp | ast.Subscript | ast.Name):
            names = names_in(node)
            if self._id in names and names.isdisjoint(self._signals):
                return ast.Constant(0.5)
        return self.generic_visit(node)
