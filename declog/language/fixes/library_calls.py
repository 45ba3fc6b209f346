"""Fixes for refused expressions: calls of other libraries in the words of the language, by the table `calls.txt`.

The functions take syntax trees and return texts of fixes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Container, Mapping, Sequence
from functools import cache
from typing import Any

from declog.errors import Entry, Problem, elsewhere, in_flow
from declog.language.dtypes import AXES, Axis, DType
from declog.language.nodes import Node
from declog.language.parser import arguments, called, source_of, tree_of
from declog.language.smoothing import OF_PANDAS, Smoothing
from declog.language.tree import listed

QUANTILES = frozenset({"quantile", "percentile", "nanquantile", "nanpercentile", "histogram_quantile"})
LEVELS = elsewhere.words("levels")  # keys for the level of a quantile
AGGREGATES = frozenset({"mean", "sum", "std", "var"})
YOURS = "one of yours: "  # the beginning of the fix for a function that a user's module may register
WINDOW = 10  # `max(reward, 10)` and above: the number is a number of steps, and no bound
SPANS = elsewhere.words("spans")  # words for a number of last steps
_ESTIMATOR = re.compile("kl?[123]|low_var_kl")  # of a KL divergence, by its two logprobs
_LOGPROBS = re.compile(r"(?:logprobs?|log_probs?|logps?)\Z")


@cache
def _templates() -> Mapping[tuple[str, int], tuple[list[str], str]]:
    """The parameters and the template of each call of `calls.txt`, by its name and its number of arguments.

    A call that depends on its value's type, such as the parameter `text`, has the name ``share(text)``.
    """
    return {
        (f"{name}({behind}" if behind[:-1] in map(str, DType) else name, behind.count(",") + 1): (
            re.findall(r"\w+", behind), template.replace("<name>", name),
        )
        for call, template in elsewhere.calls().items()
        for names, _, behind in [call.partition("(")]
        for name in names.split("|")
    }  # fmt: skip


def of_library(name: str, arguments: Sequence[ast.expr], *, of_metrics: bool = False) -> str | None:
    """Rewrite a call of another library, such as ``where(c, a, b)``, in the language; None if `calls.txt` lacks it.

    ``of_metrics``: the arguments are metrics in a condition, where ``max(reward, 200)`` means the last 200 steps.
    """
    if name == "ratio" and len(arguments) == 2 and all(map(_LOGPROBS.search, map(ast.unparse, arguments))):
        return f"exp({ast.unparse(arguments[0])} - {ast.unparse(arguments[1])})"
    if name in ("bins", "bin", "cut", "buckets", "bucketize") and len(arguments) > 1:
        edges = arguments[1].elts if isinstance(arguments[1], ast.List | ast.Tuple) else arguments[1:]
        if len(arguments) > 2 or edges != arguments[1:]:
            return f"bucket({', '.join(map(ast.unparse, (arguments[0], *edges)))})"
    last = arguments[-1] if arguments else None
    steps = last.value if isinstance(last, ast.Constant) else None
    if name in AGGREGATES and len(arguments) == 2 and ast.unparse(arguments[1]) in ("0", "1", "-1"):  # an axis
        return f"{name}({ast.unparse(arguments[0])})"
    if name in _ALL_VALUES and len(arguments) == 2:
        return f"square(pstd({ast.unparse(arguments[0])}, over={ast.unparse(arguments[1])}))"
    if isinstance(steps, bool) or not isinstance(steps, int) or steps <= 1:
        steps = None
    elif name == "mean" or (of_metrics and name in ("max", "min") and steps >= WINDOW):
        name = "sma"  # `mean(reward, 100)`
    templates = _templates()
    if (call := templates.get((name, len(arguments))) or templates.get((name.lower(), len(arguments)))) is None:
        word = ast.unparse(arguments[-1]).strip("'").lower() if len(arguments) > 1 else ""  # `kl(a, b, kind=k2)`
        return of_library(word, arguments[:-1]) if _ESTIMATOR.fullmatch(word) and len(arguments) == 3 else None
    parameters, template = call
    for word, argument in zip(("<x>", "<y>"), arguments, strict=False):
        text = ast.unparse(argument)
        template = template.replace(f"by: {word}", f"by: ({text})" if text in AXES else f"by: {text}")
        template = template.replace(word, text)
    if template.startswith("write"):
        return template
    if template.startswith(YOURS):
        return of_yours(template.removeprefix(YOURS))
    template, end, words = template.partition("}: ")  # words behind a map
    template += end[:1]
    template = template.replace("rolling(50)", str(Smoothing.of_last(steps)))
    template = re.sub(r"(rolling_\w+)\(50\)", rf"\1({Smoothing.of_last(steps).number:g})", template)
    if steps is not None:  # a number of steps in place of a weight, or of draws in place of an example
        template = template.replace("ema(k)", Smoothing.weighing(steps))
        template = re.sub(r"(_at\(\w, )4\)\Z", rf"\g<1>{steps})", template)
    tree = Substitution(dict(zip(parameters, arguments, strict=True))).visit(tree_of(template))
    body = Substitution({"nan": ast.Name("missing")}).visit(tree).body
    if not isinstance(body, ast.Dict):
        return ast.unparse(body)
    keys = dict(zip(re.findall(r"(\w+):", template), map(_data, body.values), strict=True))
    return Entry(keys, behind=f"{end[1:]}{words}", bare=True)


def _data(item: ast.expr) -> Any:
    """The value of a key: the text of an expression, a constant, or a list of these."""
    if isinstance(item, ast.List):
        return [_data(part) for part in item.elts]
    return item.value if isinstance(item, ast.Constant) else ast.unparse(item)


def is_rate(fix: str | None) -> bool:
    """Whether a fix is the entry of a value per second, or of the share of each label."""
    return isinstance(fix, Entry) and "per" in fix.keys


def of_yours(what: str) -> str:
    """The fix for an unknown name: register it by ``what`` in a module that is imported before configs compile."""
    return Problem.of("DL303.yours", what=what).message


def as_reducer(name: str, reduce: ast.expr, expr: ast.expr) -> str:
    """The fix for an unknown reduction of an expression: the language's form of it, or how to register it."""
    steps = reduce.args if isinstance(reduce, ast.Call) else []
    if name in QUANTILES and not steps:
        return "reduce: p95, or pNN of another level"
    yours = of_yours(f"`@declog.reducer` above `def {name}(values): ...`")
    return of_library(name, [expr, *steps]) or of_library(name, [expr]) or yours


def as_rate(name: str, entry: Mapping[str, Any], formula: str = "{}") -> dict[str, Any]:
    """The two metrics for a value `per: second` or `per: label`: a hidden one with the value, and a formula.

    The formula divides by the time, or by the sum over the labels.
    """
    named = {key: entry[key] for key in ("name", "tags") if key in entry}
    value = {key: item for key, item in entry.items() if key not in ("per", *named)} | {"log": False}
    divisor = f"sum({name}_1, over=label)" if entry["per"] == "label" else "seconds"
    return {f"{name}_1": value, name: {"formula": formula.format(f"{name}_1 / {divisor}"), **named}}


def weight_of_past(argument: ast.keyword) -> ast.expr:
    """The weight of the past for an argument of pandas' `ewm`, such as 0.9 for ``alpha=0.1``; else its value."""
    number = argument.value.value if isinstance(argument.value, ast.Constant) else None
    weigh = OF_PANDAS.get(str(argument.arg))
    if weigh is None or not isinstance(number, int | float) or number <= 0:
        return argument.value
    return ast.Constant(round(weigh(number), 6))


def with_metric(fix: str, call: ast.Call, text: str, taken: Container[str] = ()) -> str:
    """The fix for a call in a formula or a condition that needs a metric over steps: define it, and name it here.

    ``fix`` stays as it is if it is no such metric. ``taken`` holds the names of existing metrics.
    """
    if not isinstance(fix, Entry) or "combine" not in fix.keys:
        return fix
    way = fix.keys["combine"].partition("(")[0]
    names = [node.id for node in ast.walk(call.args[0]) if isinstance(node, ast.Name)]
    name = f"{'_'.join(names) or 'value'}_{'smooth' if way in ('ema', 'rolling') else way}"
    if len(re.findall(r"\b\w+\([^()]+, *(?:\w+ *= *)?\d+\)", text)) > 1:  # a short window beside a long one
        name = f"{name}_{ast.unparse(arguments(call)[-1])}"
    name = f"{name}_of_steps" if name in taken else name
    return naming({name: fix.keys}, text.replace(source_of(text, call), name).strip())


def naming(metrics: Mapping[str, Any], here: str) -> str:
    """The fix for a text over metrics: the definitions of new ones, if any, and ``here``, which names them."""
    definitions = f"a metric and name it here: `metrics: {in_flow(metrics)}`, and " if metrics else ""
    return f"write {definitions}`{here}`"


def named_by(fix: str | None) -> tuple[str, str] | None:
    """The map of the metrics that a fix of ``naming`` defines, and the text that names them; None for another fix."""
    shown = re.fullmatch(r"write a metric(?: of that mode)? and name it here: `metrics: (.+)`, and `(.+)`", fix or "")
    return None if shown is None else (shown[1], shown[2])


_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def is_compared(call: ast.Call, text: str) -> bool:
    """Whether a value is compared with the call, and this is its quantile, as in ``length > median(length)``."""
    if not call.args or level_of(call) is None:
        return False
    sides = [ast.unparse(call.args[0]), ast.unparse(call)]
    compares = (node for node in ast.walk(tree_of(text.strip())) if isinstance(node, ast.Compare))
    ordered = (node for node in compares if isinstance(node.ops[0], _ORDERS))
    return any([ast.unparse(side) for side in (node.left, *node.comparators)] == sides for node in ordered)


def of_rows(call: ast.Call, text: str, *, groups: bool) -> str:
    """The fix for the median beside each row, as in ``length > median(length)``: of the step, or of each group.

    ``call`` is one quantile of ``text``; others of the same value get the same axis. ``groups`` says whether the config
    has groups.
    """
    text, x = text.strip(), ast.unparse(call.args[0])
    calls = [one for one in ast.walk(tree_of(text)) if isinstance(one, ast.Call) and one.args]
    of_x = [one for one in calls if ast.unparse(one.args[0]) == x and all(word.arg != "over" for word in one.keywords)]
    levels = {source_of(text, one): level for one in of_x if (level := level_of(one)) is not None}

    def here(axis: str) -> str:
        edited = text
        for written, level in levels.items():
            name = f"p{100 * level:g}".replace(".", "_")
            edited = edited.replace(written, f"{name}({x}, over={axis})")
        return f"write `{edited}`"

    of_all = f"{here('step')}, of all completions of a step"
    return f"{of_all}; of each group, which is another value: {here('completion')}" if groups else of_all


def correlation_over(text: str) -> str | None:
    """The fix for ``corr(x, y, over=completion)``: the correlation from means and deviations. None without `over`."""
    calls = (node for node in ast.walk(tree_of(text.strip())) if isinstance(node, ast.Call))
    call = next((node for node in calls if ast.unparse(node.func) == "corr" and len(node.args) == 2), None)
    axis = next((word.value for word in call.keywords if word.arg == "over"), None) if call is not None else None
    if call is None or axis is None:
        return None
    x, y = map(ast.unparse, call.args)
    both = ast.unparse(ast.BinOp(call.args[0], ast.Mult(), call.args[1]))
    over = f"over={ast.unparse(axis)}"
    shared = f"mean({both}, {over}) - mean({x}, {over}) * mean({y}, {over})"
    quotient = f"({shared}) / (pstd({x}, {over}) * pstd({y}, {over}))"
    return f"write `{text.strip().replace(source_of(text.strip(), call), quotient)}`"


def of_tokens(call: ast.Call, text: str, value: Node) -> str:
    """The fix for a token that is compared with a quantile of all tokens: a signal that the training loop computes."""
    if call.keywords:
        return of_folded(call, text, value)["fix"]
    share, of = level_of(call) or 0.0, ast.unparse(call.args[0])
    written = re.escape(source_of(text, call))
    (sign, equal) = re.search(rf"([<>])(=?)\s*{written}", text).groups()  # type: ignore[union-attr]
    name = f"{re.sub(r'[^a-z0-9]+', '_', of.lower()).strip('_')}_{'above' if sign == '>' else 'below'}_p{100 * share:g}"
    name = name.replace(".", "_")
    here = re.sub(rf"{re.escape(of)}\s*{sign}{equal}\s*{written}", name, text).strip()
    signal = f"signals: {{{_home(value)}: {{{name}: token bool}}}}"
    mask = "".join(f"[{node}]" for node in value.mask)
    observed = f"{name}={of} {sign}{equal} {of}{mask}.quantile({share:g})"
    return f"observe it, of all tokens of the step: `{signal}`, `log.observe({observed})` and `where: {here}`"


def _home(value: Node) -> str:
    """The phase under which the config declares a signal beside ``value``."""
    return "any" if value.type.phase in (None, "default") else str(value.type.phase)


def of_folded(call: ast.expr, text: str, value: Node) -> dict[str, str]:
    """The fix, as a fact of the message, for a quantile of the tokens of each completion.

    The fix is a signal that the training loop computes, or the quantile of all tokens. Empty for another reduction.
    """
    share = level_of(call)
    if share is None or not isinstance(call, ast.Call):
        return {}
    of, reduction = ast.unparse(call.args[0]), f"p{100 * share:g}"
    of_all = f"of all tokens it is a metric of its own, `{reduction}({value})`"
    name = f"{re.sub(r'[^a-z0-9]+', '_', of.lower()).strip('_')}_{reduction}".replace(".", "_")
    here = text.replace(source_of(text, call), name).strip()
    mask = " & ".join(f"{node}.bool()" for node in value.mask)
    tokens = f"({of})" if not of.isidentifier() else of
    tokens += f".where({mask}, torch.nan)" if mask else ""
    observed = f"log.observe({name}={tokens}.nanquantile({share:g}, dim=1))"
    signal = f"signals: {{{_home(value)}: {{{name}: completion}}}}"
    return {"fix": f"per completion observe it: `{signal}`, `{observed}`, and write `{here}`; {of_all}"}


def of_reduced_tokens(reduction: str, args: Sequence[Node]) -> str:
    """The fix for a reduction that cannot reduce tokens: the reduction of the completions' means."""
    texts = [f"mean({arg}, over=token)" if arg.type.axis is Axis.TOKEN else str(arg) for arg in args]
    of_rows = f"`{reduction}({', '.join(texts)})`"
    if any(arg.type.axis is not Axis.TOKEN for arg in args):
        return f"{of_rows}, of the mean of each completion"
    return f"per completion it is another number: {of_rows}"


def level_of(call: ast.expr) -> float | None:
    """The level of a call of a quantile, such as 0.8 of ``p80(x)``; None for anything else."""
    from declog.language.reductions import quantile_level  # imports numpy, which composing alone does not need

    if not isinstance(call, ast.Call) or not (name := called(call)):
        return None
    level = quantile(name, call.args[1]) if len(call.args) == 2 else elsewhere.SYNONYMS.get(name, name)
    return None if level is None else quantile_level(level)


def quantile(name: str, level: ast.expr | None) -> str | None:
    """The reduction for a quantile's name and level: `p95` for ``quantile`` with 0.95 or 95, ``percentile`` with 95.

    Returns None for another function, and for a level that is no constant number.
    """
    if name not in QUANTILES or not isinstance(level, ast.Constant) or not isinstance(level.value, int | float):
        return None
    fraction = 0 < level.value < 1 or (name.endswith("quantile") and level.value <= 1)
    return f"p{level.value * (100 if fraction else 1):g}"


def of_level_beside(name: str, key: str, value: Any) -> str | None:
    """The `reduce` for ``reduce: quantile`` beside a key with one level or a list of levels. None for another key."""
    if key not in LEVELS or (name not in QUANTILES and key.rstrip("s") not in QUANTILES):
        return None
    levels = [quantile(name if name in QUANTILES else key.rstrip("s"), ast.Constant(level)) for level in listed(value)]
    if not levels or None in levels or any(isinstance(level, bool) for level in listed(value)):
        return None
    return f"reduce: {in_flow(levels if isinstance(value, list) else levels[0])}"


def reduction(call: ast.expr) -> str | None:
    """The fix for a library's reduction: `p30` for ``quantile(0.3)``, `pstd` for ``np.std``; None for another call."""
    name = ast.unparse(call)
    if name in ("np.std", "numpy.std", "np.nanstd", "numpy.nanstd"):
        return "did you mean `pstd`?"
    if name == "variance":
        return "did you mean `var`? It divides by n-1; by n it is the square of `pstd`"
    levels = arguments(call)
    level = quantile(called(call), levels[0]) if len(levels) == 1 else None
    return None if level is None else f"did you mean `{level}`?"


def of_levels(call: ast.expr) -> str | None:
    """The fix for a list of levels: the quantiles `p10` and `p90` for ``quantile(x, [0.1, 0.9])``.

    The call may also lack a value. Returns None for anything else.
    """
    *values, last = arguments(call) or [call]
    items = last.elts if isinstance(last, ast.List | ast.Tuple) else []
    levels = [quantile(called(call), level) for level in items]
    if not levels or None in levels or len(values) > 1:
        return None
    if not values:
        return f"reduce: {in_flow(levels)}"
    return Entry({"expr": ast.unparse(values[0]), "reduce": levels})


MODULES = frozenset({"np", "numpy", "torch", "math", "jnp", "F", "tf", "pd", "re", "pl", "wandb"})
_ALL_VALUES = ("pvar", "pvariance", "popvar", "pop_var", "var_pop", "varp", "population_variance", "population_var")
DIVISORS = ("ddof", "correction", "unbiased")  # arguments that choose between n and n-1
_PRODUCT = "mean(x * y) - mean(x + 0 * y) * mean(y + 0 * x)"
_SPELT_OUT: Mapping[str, str] = {  # a template with y uses the rows of the finer value that have both values
    **dict.fromkeys(_ALL_VALUES, "square(pstd(x))"),
    **dict.fromkeys(("sem", "stderr", "stderror", "std_err", "std_error", "standard_error"), "std(x) / sqrt(count(x))"),
    **dict.fromkeys(("cov", "covariance"), f"({_PRODUCT}) * count(x * y) / (count(x * y) - 1)"),
    **dict.fromkeys(("ptp", "range", "spread"), "max(x) - min(x)"),
    "iqr": "p75(x) - p25(x)",
    "cv": "std(x) / mean(x)",
    "rms": "sqrt(mean(square(x)))",
    **dict.fromkeys(("l2", "l2_norm", "norm"), "sqrt(sum(square(x)))"),
    "corr_of_tokens": f"({_PRODUCT}) / (pstd(x + 0 * y) * pstd(y + 0 * x))",
}


_MATRICES = frozenset({"corrcoef", "cov"})  # their items beside the diagonal are the number of two values
_BESIDE = ("0 1", "1 0")
_TESTS = frozenset({"pearsonr", "spearmanr", "kendalltau"})  # their first result is the number


def of_matrix(node: ast.expr) -> ast.Call | None:
    """The call ``cov(x, y)`` in ``np.cov(x, y)[0, 1]``, whose value is that number here. None for others."""
    chosen, call = _chosen(node)
    if call is None or len(call.args) != 2 or call.keywords or any(isinstance(arg, ast.List) for arg in call.args):
        return None
    name = ast.unparse(call.func).rpartition(".")[2]
    number = chosen in _BESIDE if name in _MATRICES else name in _TESTS and chosen in ("0", "statistic", "correlation")
    return ast.Call(ast.Name(name), call.args, []) if number else None


def is_of_matrix(node: ast.expr) -> bool:
    """Whether a node is an item of a result that has several numbers, such as ``np.cov(x, y)[0, 0]``."""
    chosen, call = _chosen(node)
    return bool(chosen) and call is not None and ast.unparse(call.func).rpartition(".")[2] in _MATRICES | _TESTS


def _chosen(node: ast.expr) -> tuple[str, ast.Call | None]:
    """The subscripts and attributes of a call, as in ``0 1`` of ``f(x)[0, 1]``, and the call."""
    chosen: list[str] = []
    while isinstance(node, ast.Subscript | ast.Attribute):
        part = node.attr if isinstance(node, ast.Attribute) else ast.unparse(node.slice)
        chosen[:0] = re.findall(r"\w+", part)
        node = node.value
    return " ".join(chosen), node if isinstance(node, ast.Call) else None


def is_of_module(func: ast.expr) -> bool:
    """Whether ``func`` is a function of a library, such as ``np.mean``, and no method of a value."""
    return isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id in MODULES


def divides_by_n(call: ast.Call) -> bool:
    """Whether a deviation or a variance divides by n: it has ``ddof=0`` or the like, or is numpy's without a choice."""
    said = {item.arg: ast.unparse(item.value) for item in call.keywords}
    chosen = next((said[word] for word in DIVISORS if word in said), None)
    return ast.unparse(call.func).partition(".")[0] in ("np", "numpy") if chosen is None else chosen in ("0", "False")


def _along(call: ast.Call) -> bool:
    """Whether a call has keyword arguments besides the choice of its divisor."""
    return any(item.arg not in DIVISORS for item in call.keywords)


def is_spelt_out(body: ast.expr, registered: Collection[str]) -> bool:
    """Whether ``spelt_out`` changes an expression."""
    return ast.unparse(spelt_out(body, registered)) != ast.unparse(body)


def spelt_out(body: ast.expr, registered: Collection[str]) -> ast.expr:
    """Replace calls such as ``sem(x)`` by the reductions that compute them: ``std(x) / sqrt(count(x))``.

    A call of a ``registered`` function or reduction stays.
    """
    return _SpeltOut(registered).visit(tree_of(ast.unparse(body))).body  # type: ignore[no-any-return]


class _SpeltOut(ast.NodeTransformer):
    """Replaces calls of ``_SPELT_OUT`` by their templates."""

    def __init__(self, registered: Collection[str]) -> None:
        self._registered = registered

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """The filled template for a call, or the call with its arguments visited."""
        name = ast.unparse(node.func)
        if name.rpartition(".")[2] in ("var", "nanvar", "variance") and divides_by_n(node) and not _along(node):
            of = [node.func.value] if isinstance(node.func, ast.Attribute) and not is_of_module(node.func) else []
            name, node = "pvar", ast.Call(ast.Name("pvar"), [*of, *node.args], [])
        template = "" if name in self._registered else _SPELT_OUT.get(name, "")
        if not template or len(node.args) != 1 + ("y" in template) or node.keywords:
            return self.generic_visit(node)  # type: ignore[return-value]
        values = dict(zip("xy", node.args, strict=False))
        return Substitution(values).visit(tree_of(template).body)  # type: ignore[no-any-return]

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """The filled template for an item of a covariance matrix, or the subscript with its parts visited."""
        call = of_matrix(node)
        return self.generic_visit(node) if call is None else self.visit_Call(call)  # type: ignore[return-value]


class Substitution(ast.NodeTransformer):
    """Replaces names in a tree by expressions."""

    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """The value of a name, or the name."""
        return self._values.get(node.id, node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """The value of the last part of a dotted name: ``np.nan`` becomes the value of ``nan``."""
        return self._values.get(node.attr, node)
