"""Fixes for refused expressions: idioms of Python, numpy and torch in the words of the language.

The functions take syntax trees and return texts of fixes. ``unparsable`` has fixes for texts without a tree.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from declog.errors import Entry, elsewhere, in_flow, nearest
from declog.language.dtypes import Axis
from declog.language.fixes import bins
from declog.language.fixes.library_calls import (
    DIVISORS,
    MODULES,
    YOURS,
    divides_by_n,
    is_of_module,
    of_library,
    quantile,
    weight_of_past,
)
from declog.language.nodes import Node
from declog.language.notation import reduced
from declog.language.parser import body_of, names_in, source_of, tree_of
from declog.language.scope import Scope
from declog.language.smoothing import OF_PANDAS
from declog.language.tree import listed

AXES = frozenset({"axis", "dim", "dims", "keepdim", "keepdims", "by", "per", "group_by", "groupby"})
NO_VALUES = AXES | {"adjust", "center", "ignore_na", "min_periods"}  # arguments that say how, and no number
CONVERSIONS = elsewhere.words("conversions")
_NAME = re.compile(r"[a-z]\w*")
REDUCTIONS = r"mean|sum|min|max|p?std|var|count|last|p\d+"
_WORDS = r"mean|avg|average|sum|min|max|p?std|var|count|last|median|p\d+"
_STATISTIC = re.compile(rf"(?P<stem>\w+?)[_/](?P<word>{_WORDS})|(?P<first>{_WORDS})[_/](?P<rest>\w+)")
PIPE = re.compile(rf"\s*\.?([\w.]+)\s*(?:->|=>|\|>|>>|\||@|:)\s*({REDUCTIONS})\s*")  # reward | mean

_OWN = "register a function of your own with @declog.function, and call it"


def of_call(node: ast.Call) -> str:
    """Rewrite ``x.f(a)``, ``np.f(x, a)`` and ``f(a)(x)`` as a plain call, ``x.groupby(a).f()`` as keys of a metric."""
    if isinstance(node.func, ast.Call):
        inner = node.func
        return of_call(ast.Call(ast.Attribute(ast.Name("np"), ast.unparse(inner.func)), [*node.args, *inner.args], []))
    if not isinstance(node.func, ast.Attribute):
        return "f(x), not x.f()"
    if match := re.fullmatch(r"(.+)\.groupby\('?(\w+)'?\)(?:\[.*\])?\.(\w+)\(\)", ast.unparse(node)):
        if match[2] in ("group", "prompt", "group_id", "prompt_id"):
            return f"{reduction(match[3])}({match[1]}, over=completion)"
        return Entry({"expr": match[1], "reduce": match[3], "by": match[2]}, bare=True)
    module = is_of_module(node.func)
    weights = [weight_of_past(word) for word in node.keywords if word.arg in OF_PANDAS]
    arguments = list(map(_plain, [*([] if module else [node.func.value]), *node.args, *weights]))
    name = node.func.attr.lower() if module else node.func.attr
    if name in CONVERSIONS and not module:
        return f"{ast.unparse(node.func.value)}: values are converted where they are observed"
    if name == "split":
        return f"words({ast.unparse(node.func.value)}), which counts them, in place of len(...)"
    if (histogram := bins.of_library(node, name, [*arguments[:1], *node.args[module:]])) is not None:
        return histogram
    if len(arguments) == 2 and (level := quantile(name, arguments[1])) is not None:
        return f"{level}({ast.unparse(arguments[0])})"
    if len(arguments) == 1 and (inside := ast.unparse(arguments[0])).startswith("{"):  # a map is a whole metric
        of_last = name in ("max", "min", "median", "std", "sum", "var")  # `rolling` alone is the mean
        return inside.replace("rolling(", f"rolling_{name}(") if of_last else inside
    word = "pstd" if name in ("std", "nanstd") and divides_by_n(node) else reduction(name)
    call = ast.Call(ast.Name(word), arguments, [keyword for keyword in node.keywords if keyword.arg == "over"])
    return of_library(name, arguments) or ast.unparse(call)


CALLED = ("_target_", "call", "fn", "func", "function")  # keys for the function that other tools call
_LIBRARIES = MODULES | {"scipy", "statistics", "jax"}


def of_target(id: str, entry: Mapping[str, Any], keys: Collection[str]) -> str | None:
    """The metric for ``r: {_target_: numpy.percentile, q: 95, a: "${signals.reward}"}``, here `r: p95(reward)`.

    Keys that are ``keys`` of a metric stay beside the call. None for a function that is of no library.
    """
    beside = {key: item for key, item in entry.items() if key in keys and key != "expr"}
    target = next((str(entry[key]) for key in CALLED if key in entry), "")
    module, name = target.partition(".")[0], target.rpartition(".")[2]
    if module not in _LIBRARIES or "." not in target:
        return None
    arguments = {key: item for key, item in entry.items() if key not in {*CALLED, *beside, *AXES}}
    divisors = [f"{key}={arguments.pop(key)}" for key in DIVISORS if key in arguments]
    values = [part for key, item in arguments.items() for part in (listed(item) if "args" in key else [item])]
    values.sort(key=lambda value: not isinstance(value, str))  # the signals come first
    texts = [re.sub(r"[$][{][\w.]*?(\w+)[}]", r"\1", str(value)) for value in values]
    call = body_of(f"{module if module in MODULES else 'np'}.{name}({', '.join([*texts, *divisors])})")
    if not isinstance(call, ast.Call) or not texts:
        return None
    if (said := of_call(call)).startswith(YOURS):
        return said
    metric = {**(said.keys if isinstance(said, Entry) else {"expr": said}), **beside}
    return in_flow({id: metric if len(metric) > 1 else said})[1:-1]


_AT_K = re.compile(r"\b([A-Za-z]+)\s*([@^])\s*(\d+|[knKN])\s*\(((?:[^()]|\([^()]*\))*)\)")


def at_k(text: str) -> str:
    """Rewrite ``pass@4(correct)``, ``pass^4(correct)`` and ``maj@k(answer, k=4)`` as calls: `pass_at(correct, 4)`."""

    def call(match: re.Match[str]) -> str:
        word, sign, k, inside = match[1].lower(), match[2], match[3], re.sub(r",\s*[kn]\s*=\s*\d+", "", match[4])
        said = re.search(r"\bk\s*=\s*(\d+)", match[4])
        k = said[1] if said else k
        name = "pass_all" if (word, sign) == ("pass", "^") else elsewhere.SYNONYMS.get(f"{word}_at", f"{word}_at")
        if name not in ("pass_at", "pass_all", "best_at", "majority_at"):
            return f"mean({inside})" if sign == "@" and reduction(word) == "mean" else match[0]
        correct = ", correct" if name == "majority_at" and "," not in inside else ""
        return f"{name}({inside}{correct}{f', {k}' if k.isdigit() else ''})"

    return _AT_K.sub(call, text)


_OF_DRAWS = {"majority_at": "answer, reward > 0.5", "best_at": "reward"}  # functions of k draws, with their values


def _of_matmul(node: ast.BinOp, text: str) -> str:
    """The fix for ``@``, which may be that of ``maj@8(answer)``, or of ``maj@8`` alone."""
    word, _, k = (part.strip() for part in text.partition("@"))
    name = elsewhere.SYNONYMS.get(f"{word}_at", f"{word}_at")
    if k.isdigit() and name in _OF_DRAWS:
        return f"write `{name}({_OF_DRAWS[name]}, k={k})`"
    return _OWN if at_k(text) == text else f"write `{at_k(text)}`"


def with_plain_calls(tree: ast.expr) -> str | None:
    """Rewrite an expression of ``x.f()``, operators and constants with plain calls; None if it has other values."""
    match tree:
        case ast.BinOp():
            parts = with_plain_calls(tree.left), with_plain_calls(tree.right)
            named = [ast.Name(part) for part in parts if part is not None]
            return ast.unparse(ast.BinOp(named[0], tree.op, named[1])) if len(named) == 2 else None
        case ast.UnaryOp():
            part = with_plain_calls(tree.operand)
            return None if part is None else ast.unparse(ast.UnaryOp(tree.op, ast.Name(part)))
        case ast.Call(func=ast.Attribute()):
            return of_call(tree)
        case ast.Constant() | ast.Call():
            return ast.unparse(tree)
    return None


def _plain(node: ast.expr) -> ast.expr:
    """Rewrite ``x.abs()`` inside another call as `abs(x)`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return ast.Name(text) if body_of(text := of_call(node)) is not None else node
    return node


def _of_comprehension(node: ast.ListComp | ast.GeneratorExp | ast.SetComp, text: str) -> str:
    """The fix for a comprehension: an aggregate, or a metric with its condition as `where`."""
    inner = node.generators[0]
    if not inner.ifs:
        return "aggregate with over=, such as mean(x, over=token)"
    of = ast.unparse(inner.iter)
    target = ast.unparse(inner.target)
    condition = re.sub(rf"\b{re.escape(target)}\b", of, " and ".join(map(ast.unparse, inner.ifs)))
    value = re.sub(rf"\b{re.escape(target)}\b", of, ast.unparse(node.elt))
    return of_some_values({"expr": value, "where": condition})


def of_some_values(keys: Mapping[str, Any]) -> Entry:
    """The fix that chooses values by a condition: the ``keys`` of a metric.

    A count of no values is 0. The count of all rows with a condition is the sum of the condition.
    """
    if keys.get("reduce") == "count":
        if keys["expr"] in ("*", "1"):
            return Entry({"expr": keys["where"], "reduce": "sum"}, "write `", "`", bare=True)
        keys = {**keys, "empty": 0}
    return Entry(keys, "which values count is a key of the metric: `", "`", bare=True)


def of_membership(item: ast.expr, container: ast.expr) -> str | None:
    """Rewrite ``'a' in text`` as `contains(text, 'a')`; None if the item is no literal text."""
    if isinstance(item, ast.Constant) and isinstance(item.value, str) and not isinstance(container, ast.Constant):
        return f"contains({ast.unparse(container)}, {ast.unparse(item)})"
    return None


def items(node: ast.expr) -> Sequence[ast.expr]:
    """The elements of a list, tuple or set; any other expression alone."""
    return node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]


def _of_tuple(node: ast.Tuple, text: str) -> str:
    """The fix for a tuple: ``0,5`` and ``1,000`` are meant as numbers, ``reward, length`` as two metrics.

    ``max(x, over=completion), mean`` names the reduction behind its value.
    """
    parts = [ast.unparse(item).strip("'\"").removesuffix("()") for item in node.elts]
    metrics = [
        {"reduce": reduction(part)} if re.fullmatch(REDUCTIONS, reduction(part)) else reduced(part) or {"expr": part}
        for part in parts
    ]
    values = {str(metric["expr"]) for metric in metrics if "expr" in metric}
    reductions = [metric["reduce"] for metric in metrics if "reduce" in metric]
    if reductions and len(values) == 1:
        [value] = values
        return Entry({"expr": value, "reduce": reductions}) if reductions[1:] else f"write `{reductions[0]}({value})`"
    if all(isinstance(item, ast.Name) for item in node.elts):
        return f"a metric for each: metrics: {{{', '.join(f'{ast.unparse(item)}: mean' for item in node.elts)}}}"
    number = re.sub(r"(?<=\d),(?=\d)", ".", without_thousands(text))
    return f"write `{number}`" if number != text else "a metric for each"


def _of_constant(node: ast.Constant, text: str) -> str:
    """The fix for a constant such as ``None``."""
    return "write `missing`" if node.value is None else _OWN


def without_thousands(text: str) -> str:
    """Remove the commas of thousands: ``1,000`` becomes `1000`."""
    return re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)


# Constructs of Python that the language lacks, each with its name, and a fix or a function that returns the fix.
_CONSTRUCTS: Mapping[type[ast.AST], tuple[str, str | Callable[[Any, str], str]]] = {
    ast.BitAnd: ("`&`", ""), ast.BitOr: ("`|`", ""), ast.Invert: ("`~`", ""),
    ast.BitXor: ("`^`", lambda node, text: f"write `{text.replace('^', '**')}`"), ast.MatMult: ("`@`", _of_matmul),
    ast.LShift: ("`<<`", _OWN), ast.RShift: ("`>>`", _OWN), ast.NamedExpr: ("`:=`", _OWN),
    ast.Subscript: ("a subscript", _OWN), ast.Attribute: ("an attribute", _OWN),
    ast.Lambda: ("a lambda", "register a function with @declog.function"),
    ast.Tuple: ("a tuple", _of_tuple), ast.List: ("a list", _OWN),
    ast.Set: ("a set", lambda node, text: f"write `{ast.unparse(node).strip('{} ')}`"),  # `{{ reward }}`
    ast.Dict: ("a mapping", _OWN), ast.JoinedStr: ("an f-string", _OWN), ast.Constant: ("this constant", _of_constant),
    **dict.fromkeys((ast.ListComp, ast.SetComp, ast.GeneratorExp), ("a comprehension", _of_comprehension)),
    ast.DictComp: ("a comprehension", _OWN), ast.Starred: ("`*`", _OWN), ast.Await: ("`await`", _OWN),
    ast.Yield: ("`yield`", _OWN), ast.YieldFrom: ("`yield`", _OWN),
}  # fmt: skip


def of_syntax(node: ast.expr, text: str) -> tuple[str, str]:
    """The name of a Python construct that the language lacks, and the fix. ``text`` is the construct as written.

    The fix is empty for a sign in place of a word.
    """
    kind = node.op if isinstance(node, ast.BinOp | ast.UnaryOp) else node
    name, fix = _CONSTRUCTS.get(type(kind), (type(kind).__name__, _OWN))
    if isinstance(node, ast.BinOp) and (call := PIPE.fullmatch(text)) is not None:
        return name, f"write `{call[2]}({call[1]})`"
    return name, fix if isinstance(fix, str) else fix(node, text)


def names_of_word(node: ast.expr) -> list[str]:
    """The names in an expression that may be a word without quotes, such as ``gsm8k-hard``; empty for any other."""
    parts = (ast.Name, ast.Attribute, ast.BinOp, ast.Sub, ast.Div, ast.Constant, ast.Load)
    inside = list(ast.walk(node))
    plain = all(isinstance(item, parts) for item in inside)
    return [item.id for item in inside if isinstance(item, ast.Name)] if plain else []


def reduction(word: str) -> str:
    """The language's name for a reduction: the word itself, or the reduction for another library's word."""
    return word if re.fullmatch(REDUCTIONS, word) else elsewhere.SYNONYMS.get(word.lower(), word)


def of_value(name: str, names: Collection[str], resolve: Callable[[str], object]) -> str | None:
    """The value for ``logr`` and ``reward_mean``: `log(ratio)`, `mean(reward, over=step)`; None for any other name.

    ``names`` are the signals, and ``resolve`` gives their nodes.
    """
    if name.startswith("log") and (of := name[3:].lstrip("_")) in names:
        return f"log({of})"
    computed = (one for one in elsewhere.values().get(name.lower(), ()) if names_in(tree_of(one)) <= {*names})
    if (expression := next(computed, None)) is not None:
        return expression
    stem, word = of_ending(name) or ("", "")
    node = resolve(stem) if word in ("mean", "std") and stem in names else None
    is_of_rows = isinstance(node, Node) and node.type.axis is Axis.COMPLETION
    return f"{word}({stem}, over=step)" if is_of_rows else None


_OF_TOKENS = re.compile(r"(?:^|_)(?:log_?probs?|logps?|entropy|entropies|values|masks?)\Z")


def of_values(name: str, text: str, words: Collection[str], near: Iterable[str], scope: Scope) -> str | None:
    """The fix for an unknown name that has an expression, or is named as one per token beside a signal of tokens."""
    if (here := with_values(text, [*scope.names()], scope.resolve)) != text:
        return f"write `{here}`"
    types = [node.type for node in map(scope.resolve, sorted(words)) if isinstance(node, Node)]
    phase = next((type.phase or "any" for type in types if type.axis is Axis.TOKEN), None)
    if phase is None or _OF_TOKENS.search(name) is None or nearest(name, near) is not None:
        return None
    return f"declare it: signals: {{{phase}: {{{name}: token{' bool' * ('mask' in name)}}}}}"


def instead_of_name(text: str, name: str, value: str) -> str:
    """An expression with a value in all places of a name. Texts in quotes and calls of a function stay."""
    return re.sub(rf"('[^']*'|\"[^\"]*\")|\b{name}\b(?!\()", lambda match: match[1] or value, text)


def with_values(text: str, names: Collection[str], resolve: Callable[[str], object]) -> str:
    """An expression with the values of ``of_value`` in place of their names."""

    def value(name: str) -> str | None:
        return None if name in names else of_value(name, names, resolve)

    for name in sorted(names_in(body_of(text.strip()) or ast.Constant(None))):
        if (expression := value(name)) is not None:
            plain = text.strip() == name or isinstance(body_of(expression), ast.Name | ast.Call)
            text = instead_of_name(text, name, expression if plain else f"({expression})")
    return in_single_parentheses(text)


def in_single_parentheses(text: str) -> str:
    """An expression with ``f((x))`` as `f(x)`."""
    return re.sub(r"\(\(([^()]+)\)\)", r"(\1)", text)


def of_ending(name: str) -> tuple[str, str] | None:
    """Split ``length_p95``, ``length/p95`` or ``p95_length`` into the value and its reduction: `length`, `p95`.

    Returns None for any other name.
    """
    if (match := _STATISTIC.fullmatch(name)) is None:
        return None
    word = match["word"] or match["first"]
    return match["stem"] or match["rest"], reduction(word)


def of_reductions(text: str) -> str | None:
    """The fix for several reductions in one text, or for a YAML list without blanks behind its dashes; else None."""
    if re.fullmatch(r"\s*[a-z]\w*(\s*[,\s+&|/±]\s*[a-z]\w*)+\s*", text):
        return f"[{', '.join(word for word in re.findall(_NAME, text) if word != 'and')}]"
    if re.fullmatch(r"(-[a-z]\w*\s*)+", text):
        return f"a blank behind each dash, or [{', '.join(re.findall(_NAME, text))}]"
    return None


_OF_TEXTS = frozenset({"contains", "startswith", "endswith", "matches", "len", "distinct_n", "jaccard", "majority"})


def gives_text(name: str, text: str) -> bool:
    """Whether a call stands where a text is needed: in a function of texts, or in a comparison with a text."""

    def takes_texts(node: ast.AST) -> list[ast.expr]:
        if isinstance(node, ast.Call):
            return node.args[:1] if ast.unparse(node.func) in _OF_TEXTS else []
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        words = (item.value for side in sides for item in ast.walk(side) if isinstance(item, ast.Constant))
        return sides if any(isinstance(word, str) for word in words) else []

    inside = (item for node in ast.walk(tree_of(text.strip()).body) for item in takes_texts(node))
    return any(isinstance(item, ast.Call) and ast.unparse(item.func).split(".")[-1] == name for item in inside)


def along_axis(name: str, call: ast.Call, text: str) -> str | None:
    """The fix for a call with ``over=``, such as ``zscore(x, over=completion)``, if its form here has that axis.

    None for a call without ``over``, or whose form lacks the axis. A function of one's own may have any axis. A masked
    mean that is the whole ``text`` is over all tokens.
    """
    over = next((ast.unparse(word.value) for word in call.keywords if word.arg == "over"), None)
    words = [ast.unparse(argument) for argument in call.args]
    if over is None:
        alone = name in ("masked_mean", "token_mean") and len(words) == 1 and source_of(text, call) == text.strip()
        return f"mean({words[0]})" if alone else None
    if elsewhere.SYNONYMS.get(name, name) == "top" and len(words) == 2 and over in ("completion", "step"):
        value = words[0] if isinstance(call.args[0], ast.Name) else f"({words[0]})"
        order = f"rank(-{value}, within={'group' if over == 'completion' else over})"
        return Entry({"expr": words[0], "where": f"{order} <= {words[1]}"}, bare=True)
    fix = of_library(name, call.args)
    return fix if fix and (over in fix or fix.startswith(YOURS)) else None
