"""Histograms in the notation of other tools, as `histogram(x, bins=10, low=0, high=1)`.

The functions take syntax trees of calls, or the keys of a metric, and return calls of ``histogram``.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from declog.errors import Entry
from declog.language.parser import body_of

CALLS = frozenset({"hist", "histplot", "histc", "bincount"})  # functions of other libraries
NUMBERS = frozenset({"bins", "nbins", "num_bins", "n_bins", "histogram_bins", "buckets", "num_buckets"})
_EDGES = NUMBERS | {"edges", "bin_edges"}
_LOW = frozenset({"low", "lo", "min", "lower", "range_min", "xmin", "vmin"})
_HIGH = frozenset({"high", "hi", "max", "upper", "range_max", "xmax", "vmax"})
WORDS = _EDGES | _LOW | _HIGH | {"range"}
_ORDER = ("bins", "low", "high")  # the order of numpy, torch and matplotlib
HISTOGRAM = "histogram"


def named(call: ast.Call, values: int = 1) -> ast.Call:
    """A call of ``histogram`` with named constants, from ``hist(x, 10, 0, 1)`` or ``histogram(x, range=(0, 1))``.

    The first ``values`` arguments are values, the next ones constants. Edges of unequal bins stay ``bins=[0, 1, 5]``.
    """
    constants: dict[str, ast.expr] = {}
    options = []
    positional = call.args[values:]
    ends = len(positional) == 2 and ast.unparse(positional[0]).strip("-0.") == ""  # `histogram(x, 0, 1)`
    order = _ORDER[1:] if ends else _ORDER
    further = [ast.keyword(word, node) for word, node in zip(order, positional, strict=False)]
    for keyword in [*further, *call.keywords]:
        word, node = str(keyword.arg), keyword.value
        if word in _EDGES and (equal := _equal(node)) is not None:
            constants |= equal
        elif word in _EDGES:
            constants["bins"] = node
        elif word in WORDS and isinstance(node, ast.List | ast.Tuple) and len(node.elts) == 2:
            constants |= zip(_ORDER[1:], node.elts, strict=True)
        elif word in WORDS:
            constants["low" if word in _LOW else "high"] = node
        else:
            options.append(keyword)
    said = [ast.copy_location(ast.keyword(word, constants[word]), call) for word in _ORDER if word in constants]
    return ast.copy_location(ast.Call(ast.Name(HISTOGRAM), call.args[:values], [*said, *options]), call)


def of_library(call: ast.Call, name: str, values: list[ast.expr] | None = None) -> str | None:
    """The metric for another library's call, ``torch.histc(x, 10, 0, 1)``. None if the call is no histogram.

    ``values`` replaces the arguments of the call, for a method whose first argument stands before the dot.
    """
    arguments = call.args if values is None else values
    if name not in CALLS | {HISTOGRAM} or not arguments:
        return None
    binned = named(ast.Call(call.func, arguments, call.keywords))
    return Entry({"expr": ast.unparse(arguments[0]), "reduce": reduction(binned)})


def reduction(call: ast.Call) -> str:
    """A call of ``histogram`` without its value, as the text of a `reduce` key."""
    return ast.unparse(ast.Call(call.func, [], call.keywords)).removesuffix("()")


def of_reduce(text: str, further: Mapping[str, Any]) -> str | None:
    """The reduction for ``reduce: hist(10, 0, 1)`` and the keys beside it. None if the text is no histogram."""
    body, values = body_of(text), {word: body_of(str(item)) for word, item in further.items() if word in WORDS}
    beside = [ast.keyword(word, value) for word, value in values.items() if value is not None]
    if body is None or len(beside) < len(values):
        return None
    call = body if isinstance(body, ast.Call) else ast.Call(body, [], [])
    if ast.unparse(call.func).rpartition(".")[2] not in CALLS | {HISTOGRAM}:
        return None
    return reduction(named(ast.Call(call.func, call.args, [*call.keywords, *beside]), 0))


def of_keys(name: str, entry: Mapping[str, Any]) -> dict[str, str] | None:
    """The `expr` and `reduce` for keys of a metric such as ``reduce: histogram, bins: 10, range: [0, 1]``.

    ``bins: 10`` alone means a histogram, too. Returns None if the keys mean no histogram.
    """
    inner = entry.get(HISTOGRAM)
    further = {**entry, **inner} if isinstance(inner, Mapping) else entry
    meant = HISTOGRAM in entry or any(isinstance(entry.get(word), int) for word in NUMBERS)
    reduce = of_reduce(str(entry.get("reduce", HISTOGRAM if meant else "")), further)
    expr = inner if isinstance(inner, str) else entry.get("expr", name)
    return None if reduce is None else {"expr": expr, "reduce": reduce}


def _equal(node: ast.expr) -> dict[str, ast.expr] | None:
    """The constants of equally spaced edges, also of ``linspace(0, 1, 11)``. None for anything else."""
    if isinstance(node, ast.Call) and len(node.args) == 3 and ast.unparse(node.func).endswith("linspace"):
        low, high, count = node.args
        bins = count.value - 1 if isinstance(count, ast.Constant) and isinstance(count.value, int) else 0
        return dict(zip(_ORDER, (ast.Constant(bins), low, high), strict=True)) if bins > 0 else None
    if not isinstance(node, ast.List | ast.Tuple) or len(node.elts) < 2:
        return None
    try:
        edges = [float(ast.literal_eval(edge)) for edge in node.elts]
    except (TypeError, ValueError):
        return None
    width = (edges[-1] - edges[0]) / (len(edges) - 1)
    if not all(abs(high - low - width) < 1e-6 * width for low, high in pairwise(edges)):
        return None
    return dict(zip(_ORDER, (ast.Constant(len(edges) - 1), node.elts[0], node.elts[-1]), strict=True))
