"""Fixes of wrong expressions: pasted into the config, they give the intended number."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from itertools import pairwise
from typing import Any

from declog.compiler.draft import NAME, PREFERRED, Draft
from declog.errors import Problem, in_flow, misspelt, nearest
from declog.errors.elsewhere import SYNONYMS
from declog.language import earlier_steps, idioms, library_calls, unknown_names, wrong_calls
from declog.language.dtypes import DType
from declog.language.expression import Compiler
from declog.language.nodes import SIGNAL, Node
from declog.language.notation import both
from declog.language.reductions import BUILTIN, Reduction, Reductions, quantile_level
from declog.language.scope import Scope
from declog.language.smoothing import Smoothing
from declog.language.spec import MetricSpec, Observed
from declog.language.syntax import ExpressionError, names_in, tree_of
from declog.language.tracker_names import in_formula, reductions_of
from declog.language.wrong_forms import of_calls

_PLAIN = frozenset({"expr", "name", "tags"})  # keys that a formula has, too
_OF_ROWS = frozenset({"where", "by", "weight", "nan", "every"})  # keys of the metrics that it reads


def as_formula(draft: Draft, id: str, spec: MetricSpec, body: ast.expr, metrics: Collection[str]) -> str | None:
    """``mean(a) / mean(b)`` computes with reduced values: a metric for each, and a formula. None for anything else.

    The formula may read ``metrics``, too. A signal that has one value per step is a metric as it is.
    """
    reductions, constants, taken = draft.reductions, {*draft.constants, *metrics}, {*draft.spec.metrics, *draft.signals}
    steps = {name for name, observed in draft.observed.items() if observed.axis == "step"}
    body = unknown_names.with_seconds(body, {*taken, *draft.constants})
    parts: dict[str, str] = {}  # the names of the new metrics, by their expressions
    chosen: dict[str, tuple[str, str]] = {}  # those that say which rows they are of: the expression and its condition

    def once(call: ast.Call, name: str) -> str | None:
        """The argument of a reduction inside of another one, which reduces already."""
        return None if call.keywords or not call.args or reductions.get(name) is None else ast.unparse(call.args[0])

    def part(call: ast.Call, name: str) -> str | None:
        """The name of the metric that a call of a reduction without an axis becomes."""
        over = any(keyword.arg in ("over", "within") for keyword in call.keywords)
        entry = reductions.get(name)
        if entry is None and name not in draft.functions and (name in library_calls.QUANTILES or name in SYNONYMS):
            meant = reduction(call, reductions.names(), draft.functions.names())
            call = call if meant is None else _call_of(meant)
            entry = reductions.get(ast.unparse(call.func))
        if over or entry is None:
            return None
        call = _with_constant(entry, call)
        if len(call.args) > entry.arity:
            return None
        count = len(parts) + 1
        while f"{id}_{count}" in (*taken, *parts.values()):
            count += 1
        options = [item for item in call.keywords if item.arg != "where"]
        call = ast.Call(call.func, list(map(_Calls(once).visit, call.args)), call.keywords)
        text = ast.unparse(call)
        if len(options) < len(call.keywords):
            (condition,) = (ast.unparse(item.value) for item in call.keywords if item.arg == "where")
            chosen[text] = ast.unparse(ast.Call(call.func, call.args, options)), condition
        return parts.setdefault(text, f"{id}_{count}")

    of_steps: set[str] = set()  # those of them that are signals of a step
    rest = _Calls(part).visit(tree_of(ast.unparse(body)).body)
    if parts:
        means = {name: ast.Call(ast.Name("mean"), [ast.Name(name)], []) for name in sorted(names_in(rest) & steps)}
        named = {name: ast.Name(str(part(mean, "mean"))) for name, mean in means.items()}
        of_steps = {name.id for name in named.values()}
        rest = library_calls.Substitution(named).visit(rest)
    if not parts or any(name not in parts.values() and name not in constants for name in names_in(rest)):
        return None
    if any(isinstance(node, ast.keyword) for node in ast.walk(rest)) or not spec.model_fields_set <= _PLAIN | _OF_ROWS:
        return "a metric for each reduction, with the same keys as this one, and a `formula:` of those metrics"
    rows = {key: getattr(spec, key) for key in _OF_ROWS if key in spec.model_fields_set}
    of_step = {key: value for key, value in rows.items() if key == "every"}  # of which there are no rows to choose
    beside = {text: of_step if name in of_steps else rows for text, name in parts.items()}
    entries = []
    for text, name in parts.items():
        expr, condition = chosen.get(text, (text, None))
        conditions = [str(one) for one in (beside[text].get("where"), condition) if one is not None]
        where = {"where": reduce(both, conditions)} if conditions else {}
        entries.append(f"{name}: {in_flow({'expr': expr, **beside[text], **where, 'log': False})}")
    further = [] if spec.name is None else [f"name: {in_flow(spec.name)}"]
    further += [f"tags: {in_flow(spec.tags)}"] if spec.tags else []
    inside = ", ".join([f"formula: {in_flow(ast.unparse(rest))}", *further])
    return f"metrics: {{{', '.join(entries)}, {id}: {{{inside}}}}}"


def chooses_rows(body: ast.expr) -> bool:
    """Whether a call in it says which rows it is of: ``mean(length, where=reward > 0)``."""
    return any(isinstance(node, ast.keyword) and node.arg == "where" for node in ast.walk(body))


def _with_constant(reduction: Reduction, call: ast.Call) -> ast.Call:
    """``histogram(reward, 20)`` with the name of its constant, ``bins=20``; any other call as it is."""
    params = [*(reduction.params or {})]
    if len(call.args) != reduction.arity + 1 or len(params) != 1 or not isinstance(call.args[-1], ast.Constant):
        return call
    return ast.Call(call.func, call.args[:-1], [*call.keywords, ast.keyword(params[0], call.args[-1])])


def _call_of(text: str) -> ast.Call:
    """The call that a text is."""
    call = tree_of(text).body
    assert isinstance(call, ast.Call)
    return call


def of_earlier_steps(draft: Draft, id: str, body: ast.expr, problem: Problem) -> Problem | None:
    """The problem of ``reward - prev(reward)``, a formula of metrics of the last steps; None without a step before.

    A signal per step has `prev` itself.
    """
    asked = [node for node in ast.walk(body) if isinstance(node, ast.expr) and earlier_steps.reads_earlier(node)]
    spec = draft.spec.metrics[id]
    rows = {key: getattr(spec, key) for key in _OF_ROWS if key in spec.model_fields_set}
    rows |= {"over": "run"} if spec.over == "run" else {}
    means: dict[str, Any] = {}

    def named(reduction: Any, text: str) -> str | None:
        other = draft.spec.metrics.get(text)
        if other is not None and text != id and not rows and (reduction is None or text not in draft.signals):
            return in_formula(text, {"reduce": other.reduce}, str(reduction))
        if names_in(tree_of(text)).isdisjoint(draft.signals):
            return None
        entry = {"expr": text, **rows, **({} if reduction is None else {"reduce": reduction}), "log": False}
        of = [id] * bool(rows)  # other entries may read the same signals with other keys
        name = "_".join([*of, *re.findall(r"[a-z_]\w*", text), *re.findall(r"\w+", str(reduction or "mean"))])
        names = (one for one in (name, *(f"{name}_{at}" for at in range(2, 99))) if one not in draft.spec.metrics)
        free = next(one for one in names if means.get(one, entry) == entry)
        means[free] = entry
        return free

    steps = [name for name, observed in draft.observed.items() if observed.axis == "step"]
    of_signals = [node for node in asked if isinstance(node, ast.Call) and ast.unparse(node.func) == "prev"]
    if (problem.code == "DL302" and problem.marked not in draft.spec.metrics.keys() - {id}) or (
        len(of_signals) == len(asked) and all(names_in(node) <= {*steps} for node in of_signals)
    ):
        return None
    beside = {key: getattr(spec, key) for key in ("name", "tags", "when", "empty") if getattr(spec, key) is not None}
    beside = {key: value for key, value in beside.items() if value != []}
    several = reductions_of({"reduce": spec.reduce})
    reductions: dict[str, Any] = {**several} or {"": spec.reduce}
    if any(str(one).partition("(")[0] in ("count", "histogram") for one in reductions.values()):
        return None
    formulas: dict[str, Any] = {}
    for ending, reduction in reductions.items():
        needed = earlier_steps.over_metrics(body, partial(named, reduction), lambda _: None)
        if needed is None:
            return None
        shown = {"name": "/".join([spec.name or id, ending, *["{label}"] * bool(spec.by)])} if several else {}
        formulas |= {**needed[0], f"{id}_{ending}" if several else id: {"formula": needed[1], **beside, **shown}}
    fix = f"metrics: {in_flow({**means, **formulas})}"
    spread = [str(reduction) for reduction in reductions.values() if reduction not in (None, "mean", "sum")]
    fix += f": how the {' and the '.join(spread)} changes, as rows of two steps are no pairs" if spread else ""
    return Problem.of("DL310.earlier", source=problem.source, span=problem.span, fix=fix)


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
    """The problem of a list of expressions: there are none, or they reduce one value, ``[p10(x), p90(x)]``."""
    exprs = spec.expr if isinstance(spec.expr, list) else []
    calls = of_calls(exprs) if exprs and spec.reduce is None else None
    if calls is not None:
        return Problem.of("DL303.several", (), fix=in_flow({id: calls})[1:-1])
    return None if exprs else Problem.of("DL203.expr", ())


def reduced_already(spec: MetricSpec, body: ast.expr, reductions: Reductions) -> str | None:
    """``{expr: mean(x), reduce: mean}``, whose `reduce` a preset says, mostly: the keys that say it once."""
    if not isinstance(body, ast.Call) or not isinstance(body.func, ast.Name) or not isinstance(spec.reduce, str):
        return None
    name, plain = body.func.id, not body.keywords and len(body.args) == 1
    if not plain or reductions.get(name) is None:
        return None
    reduce = {} if name == spec.reduce else {"reduce": name}
    return in_flow({"expr": ast.unparse(body.args[0]), **reduce})[1:-1]


def of_metrics(
    body: ast.expr, metrics: Mapping[str, MetricSpec], constants: Container[str], reduce: object
) -> str | None:
    """``100 * mean(kl)`` of a metric `kl`, as a formula: a metric is reduced already; ``reduce`` is said beside it.

    None where it reads signals, or reduces in another way than the metric does.
    """
    entries = {id: {"reduce": spec.reduce} for id, spec in metrics.items()}
    further: list[str] = []  # reductions that are not those of the metrics

    def reduced(call: ast.Call, name: str) -> str | None:
        inner: ast.expr = call
        while isinstance(inner, ast.Call) and len(inner.args) == 1:
            inner = inner.args[0]
        if not isinstance(inner, ast.Name) or inner.id not in metrics:
            return None
        if earlier_steps.reads_earlier(call):
            further.append(name)
        as_logged = ("mean", metrics[inner.id].reduce, *reductions_of(entries[inner.id]).values())
        further.extend([name] * (BUILTIN.get(name) is not None and name not in as_logged))
        return in_formula(inner.id, entries[inner.id], name)

    rest = _Calls(reduced).visit(tree_of(ast.unparse(body)).body)
    plain = all(name.partition(".")[0] in metrics or name in constants for name in names_in(rest))
    keys = {name: ast.Name(in_formula(name, entries[name], str(reduce))) for name in names_in(rest) & metrics.keys()}
    rest = library_calls.Substitution(keys).visit(rest)
    return in_flow({"formula": ast.unparse(rest)}) if plain and not further else None


class _Calls(ast.NodeTransformer):
    """Replaces calls by names; ``named`` gives the name for a call of a function, or None to keep the call."""

    def __init__(self, named: Callable[[ast.Call, str], str | None]) -> None:
        self._named = named

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """The name that stands for a call, or the call with its arguments replaced."""
        name = self._named(node, node.func.id if isinstance(node.func, ast.Name) else "")
        return self.generic_visit(node) if name is None else ast.Name(name)  # type: ignore[return-value]


def reduction(call: ast.Call, reductions: Collection[str], functions: Collection[str]) -> str | None:
    """The reduction that another library's word stands for, as it would be called: ``median(x)`` is ``p50(x)``.

    Words inside a name count, too: ``MeanMetric(x)`` is ``mean(x)``. ``reductions`` and ``functions`` are all names.
    """
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    argument = ast.unparse(call.args[0]) if call.args else None
    if argument is None:
        return None
    level = call.args[1] if len(call.args) == 2 else next((item.value for item in call.keywords), None)
    if name in library_calls.QUANTILES:
        if isinstance(call.args[0], ast.Constant) and level is not None:  # Prometheus writes the level first
            argument, level = ast.unparse(level), call.args[0]
        word = library_calls.quantile(name, level)
        return f"{word}({argument})" if word is not None and quantile_level(word) is not None else None
    word = name.removeprefix("nan")
    synonym = SYNONYMS.get(word) or SYNONYMS.get(misspelt(word, [*reductions, *functions]) or "")
    if synonym is not None and quantile_level(synonym) is not None and len(call.args) == 1 and not call.keywords:
        return f"{synonym}({argument})"
    if name in functions or name in reductions or synonym in reductions:
        return None
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)]
    meant = (word if word in reductions else SYNONYMS.get(word) for word in words)
    close = next((word for word in meant if word in reductions), None)
    return None if close is None else f"{close}({argument})"


def arguments(reduction: Reduction, call: ast.Call, text: str, scope: Scope) -> str:
    """A reduction of too many or too few expressions, as it would be called; ``text`` is the whole expression."""
    if (number := idioms.without_thousands(text)) != text:
        return number
    if (library := unknown_names.of_library(call, reduction.name, text, scope)) is not None:
        return library
    values = list(map(ast.unparse, call.args))
    if (named := _with_constant(reduction, call)) is not call:
        return ast.unparse(named)
    if not values and len(call.keywords) == 1:  # `mean(reward = 1)`
        return f"{reduction.name}({call.keywords[0].arg} == {ast.unparse(call.keywords[0].value)})"
    count = reduction.arity
    inside = values[:count] if len(values) > count else [*"xyz"][:count]
    return f"{reduction.name}({', '.join(inside)})"


def definition(name: str, signals: Container[str]) -> str | None:
    """The metric that a name such as `length_p95` speaks of, as it would be defined; None for another name."""
    ending = idioms.of_ending(name)
    return f"metrics: {{{name}: {ending[1]}({ending[0]})}}" if ending and ending[0] in signals else None


def entire(problem: Problem, id: str, spec: MetricSpec) -> Problem:
    """The problem of an expression whose fix is an entry: with the keys that the metric has beside it."""
    fix = problem.fix or ""
    if problem.path[:2] != ("metrics", id) or not re.fullmatch(r"\{expr: .*\}", fix):
        return problem
    bins = re.search(r", *(?:bins=)?(\d+)\)", problem.source or "")
    if bins is not None:
        fix = re.sub(r"reduce: histogram\b(?!\()", f"reduce: histogram(bins={bins[1]})", fix)
    problem = replace(problem, fix=fix)
    further = spec.model_fields_set - {"expr", "reduce", *re.findall(r", (\w+): ", fix)}
    kept = spec.model_dump(include=further, by_alias=True)
    return replace(problem, fix=f"metrics: {{{id}: {fix[:-1]}, {in_flow(kept)[1:]}}}") if kept else problem


def of_condition(draft: Draft, id: str, spec: MetricSpec, per_token: bool, problem: Problem) -> Problem:
    """The problem of a metric's `where`, with a fix that keeps the intended meaning if one is known."""
    if problem.code == "DL303" and (tail := _of_tail(id, spec, per_token)) is not None:
        return replace(problem, fix=tail)
    if problem.marked not in draft.spec.metrics or not draft.signals.keys().isdisjoint(NAME.findall(str(spec.where))):
        return problem
    fix = f"a condition over metrics is `when: {spec.where}`"
    return replace(problem, fix=f"{problem.fix}, of each row; {fix}" if str(problem.fix).startswith("write `") else fix)


def _of_tail(id: str, spec: MetricSpec, per_token: bool) -> str | None:
    """``where: entropy > p80(entropy)`` of a mean of the same values: the entry of the mean of the greatest fifth.

    None where the mean is of something else.
    """
    try:
        condition = tree_of(str(spec.where)).body
    except SyntaxError:  # `p99.9(x)`
        return None
    parts = condition.values if isinstance(condition, ast.BoolOp) and isinstance(condition.op, ast.And) else [condition]
    reduced = re.sub(r"\s", "", id if spec.expr is None else str(spec.expr))
    for part in parts:
        if not isinstance(part, ast.Compare) or len(part.ops) > 1 or spec.reduce not in (None, "mean"):
            continue
        level, value = library_calls.level_of(part.comparators[0]), ast.unparse(part.left)
        call = ast.unparse(part.comparators[0])
        if level is None or not re.match(rf"\w+\({re.escape(value)}[,)]", call):
            continue
        top = isinstance(part.ops[0], ast.Gt | ast.GtE)
        share = 1 - level if top else level
        if share > 0 and reduced in (plain := re.sub(r"\s", "", value), f"mean({plain})"):
            kept = {key: getattr(spec, key) for key in sorted(spec.model_fields_set - {"expr", "reduce", "where"})}
            kept |= {"prefer": None} if "prefer" in kept else {}  # which is a mean of all
            kept |= {"nan": "skip"} if "nan" in kept and per_token else {}  # as a sketch does
            rest = [ast.unparse(other) for other in parts if other is not part]
            kept |= {"where": reduce(both, rest)} if rest else {}
            way = f"{'top' if top else 'bottom'}_mean(share={share:.6g})"
            return f"{id}: {in_flow({'expr': value, 'reduce': way, **kept})}"
    return None


def clause(
    reduction: str, inside: str, keyword: ast.keyword, call: ast.Call, compiler: Compiler, takes: Collection[str]
) -> str | None:
    """``mean(x, where=c)`` as the keys of a metric, and ``std(x, ddof=0)`` as `pstd(x)`.

    None for an axis, and for a keyword that is nearly one of those that it ``takes``.
    """
    if keyword.arg in ("ddof", "unbiased", "correction") and reduction == "std":
        return f"pstd({inside}), which divides by n"
    if ast.unparse(keyword.value).strip("'\"") in ("group", "prompt"):
        return None  # an aggregate, not labels
    if keyword.arg in library_calls.SPANS and isinstance(keyword.value, ast.Constant):
        if call.args and (fix := unknown_names.of_library(call, reduction, compiler.text, compiler.scope)) is not None:
            return fix
        combine = str(Smoothing.of_last(keyword.value.value))
        reduce = {} if reduction == "mean" else {"reduce": reduction}
        return in_flow({"expr": inside, **reduce, "over": "step", "combine": combine})
    words = (keyword.arg, SYNONYMS.get(str(keyword.arg)))
    key = next((word for word in words if word in ("where", "by", "weight")), None)
    if key is not None:
        return in_flow({"expr": inside, "reduce": reduction, key: ast.unparse(keyword.value)})
    if keyword.arg is None or keyword.arg in idioms.AXES or nearest(keyword.arg, takes) is not None:
        return None
    options = wrong_calls.without(ast.Call(call.func, [], call.keywords), keyword)
    return in_flow({"expr": inside, "reduce": options.removesuffix("()")})


_LOW, _HIGH = ("min", "low", "lower", "start", "range_min"), ("max", "high", "upper", "stop", "end", "range_max")
MOST_EDGES = 64


def of_edges(draft: Draft, id: str, expr: str, call: ast.Call, compiler: Compiler) -> str | None:
    """``histogram(length, edges=[0, 8, 16])`` as counts by bucket; None where it does not say where its bins are.

    A bucket has its upper edge, and numpy's bins the lower one, so that those of whole numbers end one before. The
    first and the last bucket have what is beyond.
    """
    said: dict[str | None, Any] = {}
    for keyword in call.keywords:
        with suppress(ValueError):
            said[keyword.arg] = ast.literal_eval(keyword.value)
    lists = [value for value in said.values() if isinstance(value, list | tuple) and len(value) > 1 and _grow(value)]
    ends = [next((said[word] for word in words if word in said), None) for words in (_LOW, _HIGH)]
    low, high = lists[0] if lists and len(lists[0]) == 2 else ends
    edges = list(lists[0]) if lists and len(lists[0]) > 2 else []
    if not edges and low is not None and high is not None and _grow([low, high]):
        bins = said.get("bins", 10)
        count = bins if isinstance(bins, int) and 1 < bins <= MOST_EDGES else 10
        edges = [low + (high - low) * at / count for at in range(count + 1)]
    try:
        integers = compiler.visit(tree_of(expr).body).type.dtype is DType.INT
    except (ExpressionError, SyntaxError):
        return None
    inner = [edge - 1 if integers and edge == int(edge) else edge for edge in edges[1:-1]]
    spec = draft.spec.metrics[id.removesuffix(PREFERRED)]
    if not inner or len(inner) > MOST_EDGES or spec.by is not None or isinstance(spec.reduce, list):
        return None
    by = f"bucket({expr}, {', '.join(f'{edge:.12g}' for edge in inner)})"
    kept = spec.model_dump(exclude_unset=True, exclude={"expr", "reduce", "by"}, by_alias=True)
    entry = {"expr": expr, "reduce": "count", "by": by, **kept}
    return f"metrics: {in_flow({id: entry})}: so many in each part"


def _grow(edges: Sequence[Any]) -> bool:
    """Whether they are finite numbers, each above the one before."""
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
    """The fix for a reduction of values that are no numbers: how they are counted, or measured."""
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
