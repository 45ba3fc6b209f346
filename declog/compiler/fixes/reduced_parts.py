"""Fixes for expressions that compute with reduced values: a metric for each reduction, and a formula over them.

Most functions take a syntax tree and return the text of a fix.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from functools import partial, reduce
from typing import Any

from declog.compiler.draft import Draft
from declog.compiler.scopes import tried
from declog.errors import Problem, in_flow, misspelt
from declog.errors.elsewhere import SYNONYMS
from declog.language.dtypes import Axis, DType
from declog.language.fixes import earlier_steps, library_calls, step_time, wrong_calls
from declog.language.fixes.tracker_names import in_formula, reductions_of
from declog.language.nodes import Node
from declog.language.notation import SEVERAL, both, is_reduction
from declog.language.parser import called, names_in, tree_of
from declog.language.reductions import quantile_level
from declog.language.spec import MetricSpec
from declog.language.tree import listed

_PLAIN = frozenset({"name", "tags", "log"})  # keys that a formula has, too
_QUOTIENTS = frozenset({"ratio", "quotient", "rate", "fraction", "share", "proportion"})
OF_ROWS = frozenset({"where", "by", "weight", "nan", "every"})  # keys of the metrics that the formula reads


def as_formula(draft: Draft, id: str, spec: MetricSpec, body: ast.expr, metrics: Collection[str]) -> str | None:
    """The fix for ``mean(a) / mean(b)``: a metric for each reduction, and a formula. None for anything else.

    The formula may also read ``metrics``. A signal with one value per step becomes a metric, too: its mean.
    """
    of_rows = {*OF_ROWS, "over", "combine"}
    further = spec.model_fields_set - of_rows - {"expr"}
    rows = {key: getattr(spec, key) for key in MetricSpec.model_fields if key in of_rows & spec.model_fields_set}
    if (share := of_share(draft, body) or _scaled(draft, body)) is not None:
        said = spec.model_dump(include=rows.keys() | further, by_alias=True)
        return f"metrics: {in_flow({id: {'expr': share, **said}})}"
    reduced = in_metrics(draft, id, body, metrics, rows)
    if reduced is None:
        return None
    entries, rest = reduced
    pieces = spec.over not in (None, "run") or spec.combine is not None  # several values are combined
    same = not pieces or (_LINEAR.match(str(spec.combine)) is not None and is_linear(rest, {*entries}))
    if any(isinstance(node, ast.keyword) for node in ast.walk(rest)) or not further <= _PLAIN or not same:
        return "a metric for each reduction, with the same keys as this one, and a `formula:` of those metrics"
    said = spec.model_dump(include=further, by_alias=True)
    return f"metrics: {in_flow({**entries, id: {'formula': ast.unparse(rest), **said}})}"


def of_share(draft: Draft, body: ast.expr) -> str | None:
    """The mean for ``count(length > 4) / len(length)``, or for a sum of the condition; None for anything else.

    A count of another signal's rows may be another number.
    """
    match body:
        case ast.BinOp(
            ast.Call(ast.Name("count" | "sum" as over), [condition], []),
            ast.Div(),
            ast.Call(ast.Name("count" | "len" | "size"), [] | [_] as rows, []),
        ):
            counted, text = [*map(ast.unparse, rows)], ast.unparse(condition)
            same = counted in ([], sorted(names_in(condition))) or (over == "sum" and counted == [text])
            return f"mean({text})" if same and _is(draft, text, DType.BOOL) else None
    return None


def _scaled(draft: Draft, body: ast.expr) -> str | None:
    """The mean for ``mean(x) * 100`` or ``100 * mean(x)``, or the sum, of scaled values; None for anything else."""
    match body:
        case ast.BinOp(ast.Call(ast.Name(), [value], []) as call, ast.Mult() | ast.Div(), ast.Constant(factor)):
            scaled = ast.BinOp(value, body.op, body.right)
        case ast.BinOp(ast.Constant(factor), ast.Mult(), ast.Call(ast.Name(), [value], []) as call):
            scaled = ast.BinOp(body.left, body.op, value)
        case _:
            return None
    number = isinstance(factor, int | float) and not isinstance(factor, bool)
    same = number and called(call) in ("mean", "sum") and tried(draft, ast.unparse(scaled)) is not None
    return f"{called(call)}({ast.unparse(scaled)})" if same else None


_LINEAR = re.compile(r"(sum|mean)$|(ema|rolling)\(")  # ways to combine that keep a sum the sum of its parts


def is_linear(node: ast.expr, parts: Collection[str], *, affine: bool = False) -> bool:
    """Whether an expression is a sum of multiples of ``parts``, and of constants if ``affine``."""
    is_sum = partial(is_linear, parts=parts, affine=affine)
    match node:
        case ast.Constant():
            return affine
        case ast.Name(id=name):
            return name in parts
        case ast.UnaryOp(op=ast.USub(), operand=value) | ast.BinOp(value, ast.Mult() | ast.Div(), ast.Constant()):
            return is_sum(value)
        case ast.BinOp(ast.Constant(), ast.Mult(), value):
            return is_sum(value)
        case ast.BinOp(one, ast.Add() | ast.Sub(), other):
            return is_sum(one) and is_sum(other)
    return False


def of_spelt_out(draft: Draft, id: str, spec: MetricSpec, word: str, values: Sequence[object] = ()) -> str | None:
    """The fix for ``reduce: sem``, a formula of a deviation and a count; None for another word.

    ``values`` are the expressions to reduce, by default the metric's. Beside other reductions, the formula becomes a
    metric of its own.
    """
    exprs = values or listed(spec.expr or id)
    body = ast.Call(ast.Name(word), [tree_of(str(value)).body for value in exprs], [])
    if not library_calls.is_spelt_out(body, draft.registered):
        return None
    several = isinstance(spec.reduce, list)
    rows = spec.model_fields_set & OF_ROWS if several else spec.model_fields_set - {"reduce"}
    alone = MetricSpec(**spec.model_dump(include=rows, by_alias=True))
    fix = as_formula(draft, f"{id}_{word}" if several else id, alone, body, ())
    return f"drop it, and define it: {fix}" if several else fix


def of_type(draft: Draft, id: str, spec: MetricSpec, word: str) -> str | None:
    """The fix for ``reduce: value_counts`` of texts, such as the counts of their labels; None for another word."""
    node = tried(draft, expr := str(spec.expr or id))
    return None if node is None else library_calls.of_library(f"{word}({node.type.dtype})", [tree_of(expr).body])


def of_quotient(draft: Draft, id: str, spec: MetricSpec, word: str) -> str | None:
    """The fix for ``reduce: ratio``: one sum divided by another, of two expressions or of one and the weight.

    None for another word, and for a single condition, whose rate is a mean. Without a second value, the fix asks for
    the divisor.
    """
    exprs = [*map(str, listed(spec.expr or id))]
    values = [*exprs, *([] if spec.weight is None else [str(spec.weight)])]
    if word not in _QUOTIENTS or (len(values) == 1 and _is(draft, exprs[0], DType.BOOL)):
        return None
    several = isinstance(spec.reduce, list)
    divided = MetricSpec(**spec.model_dump(include=spec.model_fields_set - {"reduce", "weight", "expr"}, by_alias=True))

    def by(value: str) -> str | None:
        body = tree_of(f"sum({exprs[0]}) / sum({value})").body
        return as_formula(draft, f"{id}_{word}" if several else id, divided, body, ())

    if len(values) == 2:
        fix = by(values[1])
        return f"drop it, and define it: {fix}" if several and fix else fix
    beside = [name for name, one in draft.observed.items() if one.type in ("int", "float") and one.axis == "completion"]
    alike = [name for name in beside if name != exprs[0] and name.split("_")[0] == exprs[0].split("_")[0]]
    other = next((name for name in [*alike, "length"] if name in beside and name != exprs[0]), None)
    division = by(other) if len(values) == 1 and other is not None else None
    by_rows = f"`{word}` of what? By the number of rows: reduce: mean"
    return f"{by_rows}; by `{other}`: {division}" if division else f"{by_rows}; by another signal, divide their sums"


def _is(draft: Draft, expr: str, dtype: DType) -> bool:
    """Whether an expression compiles to a type."""
    node = tried(draft, expr)
    return node is not None and node.type.dtype is dtype


def of_tokens(draft: Draft, id: str, spec: MetricSpec, reduction: str, values: Sequence[Node]) -> str:
    """The fix for a reduction that tokens do not have: a formula of other reductions, or means per completion.

    Values of another phase than the tokens have means alone: an expression of tokens cannot read them.
    """
    means = library_calls.of_reduced_tokens(reduction, values)
    if len({value.type.phase for value in values} - {None}) > 1:
        return means
    fix = of_spelt_out(draft, id, spec, f"{reduction}_of_tokens", values)
    return fix or beside_others(draft, id, spec, values) or means


def beside_others(
    draft: Draft,
    id: str,
    spec: MetricSpec,
    values: Sequence[Node],
    where: Node | None = None,
    *,
    sketched: bool = False,
) -> str | None:
    """The fix for a list of reductions, some of them not for tokens: these move to a metric of means per completion.

    With ``sketched``, the reductions that need a sketch move, too. ``where`` is the metric's condition. None for a
    metric with one reduction.
    """
    if not isinstance(spec.reduce, list):
        return None

    def is_refused(item: str | dict[str, str]) -> bool:
        text = item if isinstance(item, str) else next(iter(item.values()))
        reductions = [draft.reductions.get(part.partition("(")[0].strip()) for part in SEVERAL.get(text, (text,))]
        return any(one and not one.foldable and (sketched or one.sketch is None) for one in reductions)

    stay, apart = ([item for item in spec.reduce if is_refused(item) is refused] for refused in (False, True))
    rest = spec.model_dump(include=spec.model_fields_set - {"expr", "reduce"}, by_alias=True)
    exprs, written = list(map(str, values)), {key: value for key, value in rest.items() if key != "alias"}
    if where is not None and where.type.axis is Axis.TOKEN:
        condition = written.pop("where")
        exprs = [f"{expr} if {condition} else missing" for expr in exprs]
    means = [f"mean({expr}, over=token)" for expr in exprs]
    new = {"expr": means[0] if len(means) == 1 else means, "reduce": apart, **written}
    if not stay:
        return f"metrics: {in_flow({id: new})}: per completion, which is another number"
    first = next(item if isinstance(item, str) else next(iter(item)) for item in apart)
    name = f"{id}_{first.partition('(')[0].replace('.', '_')}"
    same = {"expr": spec.expr or id, "reduce": stay, **rest}
    return f"metrics: {in_flow({id: same, name: new})}: per completion, which is another number"


def in_metrics(
    draft: Draft, id: str, body: ast.expr, metrics: Collection[str], rows: Mapping[str, Any]
) -> tuple[dict[str, Any], ast.expr] | None:
    """A hidden metric for each reduction of an expression, by id, and the expression that reads these and ``metrics``.

    ``rows`` are the keys of the new metrics. None if the expression reduces nothing, or reads anything else.
    """
    reductions, constants, taken = draft.reductions, {*draft.constants, *metrics}, {*draft.spec.metrics, *draft.signals}
    steps = {name for name, observed in draft.observed.items() if observed.axis == "step"} - {*metrics}
    several = {name for name, metric in draft.spec.metrics.items() if isinstance(metric.reduce, list)}  # timers, maybe
    body = step_time.with_seconds(library_calls.spelt_out(body, draft.registered), {*taken, *draft.constants} - several)
    parts: dict[str, str] = {}  # the names of the new metrics, by their expressions
    chosen: dict[str, tuple[str, str]] = {}  # of calls with `where=`: the call without it, and the condition

    def once(value: ast.expr) -> ast.expr:
        """The argument of a reduction, without a second reduction around all of it, as in ``mean(mean(x))``."""
        twice = isinstance(value, ast.Call) and value.args and not value.keywords and reductions.get(called(value))
        return value.args[0] if twice else value  # type: ignore[attr-defined]

    def part(call: ast.Call, name: str) -> str | None:
        """The name of the metric that a call of a reduction without an axis becomes."""
        over = any(keyword.arg in ("over", "within") for keyword in call.keywords)
        entry = reductions.get(name)
        if entry is None and name not in draft.functions and (name in library_calls.QUANTILES or name in SYNONYMS):
            meant = reduction(call, reductions.names(), draft.functions.names())
            beside = "" if ast.unparse(call) == ast.unparse(body) else SYNONYMS.get(name, "")  # alone it is no formula
            call = ast.Call(ast.Name(beside or name), call.args, call.keywords) if meant is None else _call_of(meant)
            entry = reductions.get(ast.unparse(call.func))
        if over or entry is None:
            return None
        call = wrong_calls.by_name(entry, call, entry.arity)
        if len(call.args) > entry.arity:
            return None
        count = len(parts) + 1
        while f"{id}_{count}" in (*taken, *parts.values()):
            count += 1
        options = [item for item in call.keywords if item.arg != "where"]
        call = ast.Call(call.func, list(map(once, call.args)), call.keywords)
        if name == "count" and not call.args and names_in(body):  # of all rows
            call = ast.Call(call.func, [ast.Name(min(names_in(body)))], call.keywords)
        elif name == "count" and call.args and _is(draft, ast.unparse(call.args[0]), DType.BOOL):  # `count` counts both
            call = ast.Call(ast.Name("sum"), call.args, call.keywords)
        text = ast.unparse(call)
        if len(options) < len(call.keywords):
            (condition,) = (ast.unparse(item.value) for item in call.keywords if item.arg == "where")
            chosen[text] = ast.unparse(ast.Call(call.func, call.args, options)), condition
        return parts.setdefault(text, f"{id}_{count}")

    of_steps: set[str] = set()  # the new metrics of signals per step
    rest = _Calls(part).visit(tree_of(ast.unparse(body)).body)
    if parts:
        means = {name: ast.Call(ast.Name("mean"), [ast.Name(name)], []) for name in sorted(names_in(rest) & steps)}
        named = {name: ast.Name(str(part(mean, "mean"))) for name, mean in means.items()}
        of_steps = {name.id for name in named.values()}
        rest = library_calls.Substitution(named).visit(rest)
    if not parts or any(name not in parts.values() and name not in constants for name in names_in(rest)):
        return None
    of_step = {key: value for key, value in rows.items() if key == "every"}  # there are no rows to choose
    entries: dict[str, Any] = {}
    for text, name in parts.items():
        beside = of_step if name in of_steps else rows
        expr, condition = chosen.get(text, (text, None))
        expr = _of_finer_rows(draft, expr, [chosen.get(other, (other,))[0] for other in parts])
        conditions = [str(one) for one in (beside.get("where"), condition) if one is not None]
        where = {"where": reduce(both, conditions)} if conditions else {}
        entries[name] = {"expr": expr, **beside, **where, "log": False}
    return entries, rest


_MOMENTS = re.compile(r"(mean|var|std|pstd)\((.+)\)")


def _of_finer_rows(draft: Draft, text: str, beside: Collection[str]) -> str:
    """``var(advantages)`` made to cover the tokens of ``mean(advantages * logprobs)`` beside it; other texts unchanged.

    Likewise a signal of several phases gets the phase of the text beside it: ``var(returns)`` beside
    ``var(returns - values)``.
    """

    def rows(text: str) -> tuple[Axis, str | None]:
        node = tried(draft, text)
        return (Axis.ALL, None) if node is None else (node.type.axis or Axis.ALL, node.type.phase)

    moment = _MOMENTS.fullmatch(text)
    for other in map(_MOMENTS.fullmatch, beside):
        read = moment is not None and other is not None and names_in(tree_of(moment[2])) < names_in(tree_of(other[2]))
        if moment is None or other is None or not read:
            continue
        (axis, phase), (finer, later) = rows(moment[2]), rows(other[2])
        if axis < finer or (axis == finer and phase != later):
            return f"{moment[1]}({moment[2]} + 0 * ({other[2]}))"
    return text


def chooses_rows(body: ast.expr) -> bool:
    """Whether a call in an expression chooses its rows: ``mean(length, where=reward > 0)``."""
    return any(isinstance(node, ast.keyword) and node.arg == "where" for node in ast.walk(body))


def _call_of(text: str) -> ast.Call:
    """The syntax tree of a text that is a call."""
    call = tree_of(text).body
    assert isinstance(call, ast.Call)
    return call


def of_earlier_steps(draft: Draft, id: str, body: ast.expr, problem: Problem) -> Problem | None:
    """The problem of ``reward - prev(reward)``, with a formula over metrics as the fix.

    None if the expression reads no earlier step, for signals per step, which `prev` takes as they are, and for the last
    token, ``logprobs[-1]``.
    """
    asked = [node for node in ast.walk(body) if isinstance(node, ast.expr) and earlier_steps.reads_earlier(node)]
    if all(isinstance(node, ast.Subscript) and _is_of_tokens(draft, node, body) for node in asked):
        return None
    spec = draft.spec.metrics[id]
    rows = {key: getattr(spec, key) for key in MetricSpec.model_fields if key in OF_ROWS & spec.model_fields_set}
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


def _is_of_tokens(draft: Draft, node: ast.Subscript, body: ast.expr) -> bool:
    """Whether a subscript is a place among tokens, and not of an earlier step, as in ``entropy - entropy[-1]``."""
    value = tried(draft, ast.unparse(node.value))
    subscripted = [id(part.value) for part in ast.walk(body) if isinstance(part, ast.Subscript)]
    again = (part for part in ast.walk(body) if ast.unparse(part) == ast.unparse(node.value))
    return value is not None and value.type.axis is Axis.TOKEN and all(id(part) in subscripted for part in again)


def of_metrics(
    body: ast.expr, metrics: Mapping[str, MetricSpec], constants: Container[str], reduce: object
) -> str | None:
    """The formula for ``100 * mean(kl)`` of a metric `kl`, which is reduced already; ``reduce`` is the key beside it.

    None if the expression reads signals, or reduces a metric in another way than this metric does.
    """
    entries = {id: {"reduce": spec.reduce} for id, spec in metrics.items()}
    further: list[str] = []  # reductions other than the metrics' own

    def reduced(call: ast.Call, name: str) -> str | None:
        inner = call.args[0] if call.args else call
        while isinstance(inner, ast.Call) and is_reduction(called(inner), len(inner.args)) and not inner.keywords:
            inner = inner.args[0]
        reduces, earlier = is_reduction(name, len(call.args)), earlier_steps.reads_earlier(call)
        if earlier or not isinstance(inner, ast.Name) or inner.id not in metrics or not reduces or call.keywords:
            further.extend([name] * (earlier or reduces))
            return None
        as_logged = ("mean", metrics[inner.id].reduce, *reductions_of(entries[inner.id]).values())
        further.extend([name] * (name not in as_logged))
        return in_formula(inner.id, entries[inner.id], name)

    rest = _Calls(reduced).visit(tree_of(ast.unparse(body)).body)
    plain = all(name.partition(".")[0] in metrics or name in constants for name in names_in(rest))
    keys = {name: ast.Name(in_formula(name, entries[name], str(reduce))) for name in names_in(rest) & metrics.keys()}
    rest = library_calls.Substitution(keys).visit(rest)
    return ast.unparse(rest) if plain and not further else None


class _Calls(ast.NodeTransformer):
    """Replaces calls by names; ``named`` gives the name for a call of a function, or None to keep the call."""

    def __init__(self, named: Callable[[ast.Call, str], str | None]) -> None:
        self._named = named

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Replace a call by its name, or replace the calls in its arguments."""
        name = self._named(node, called(node))
        return self.generic_visit(node) if name is None else ast.Name(name)  # type: ignore[return-value]


def reduction(call: ast.Call, reductions: Collection[str], functions: Collection[str]) -> str | None:
    """The call of the reduction that another library's call means: ``median(x)`` is ``p50(x)``; None if unknown.

    Words inside a name count, too: ``MeanMetric(x)`` is ``mean(x)``. ``reductions`` and ``functions`` are all the
    registered names.
    """
    name = called(call)
    argument = ast.unparse(call.args[0]) if call.args else None
    if argument is None or library_calls.is_spelt_out(call, {*functions, *reductions}):
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
