"""The text functions of the language, and labels. They run on the rank that has the texts.

Texts are object arrays with None for a missing text. For a missing text, a number is missing and a bool is false.
n-grams consist of whitespace-separated words, and never cross from one completion to the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.errors import RuntimeFailure
from declog.language.dtypes import NUMERIC, Axis, DType, Type, per
from declog.language.functions.base import BUILTIN, OVER, PATTERN, Param, View
from declog.language.functions.rules import Call, Rule, need, readable_pattern, typed
from declog.language.nodes import COMBINED, SAID, WRITTEN, Node
from declog.language.patterns import pattern
from declog.language.segmented import NOTHING, of_constant, present
from declog.records import said

Array = NDArray[Any]


def _of_text(dtype: DType, fix: str | None = None) -> Rule:
    def rule(call: Call) -> Type:
        need(call, DType.TEXT, fix=fix)
        return call.args[0].type.with_dtype(dtype)

    return rule


def _counted(texts: Array, measure: Callable[[str], int]) -> Array:
    counts = [np.nan if item is None else measure(item) for item in texts.ravel()]
    return np.array(counts, None if counts else np.int64).reshape(texts.shape)


def _tested(texts: Array, test: Callable[[str], bool]) -> Array:
    return np.array([item is not None and test(item) for item in texts.ravel()], bool).reshape(texts.shape)


_COUNT = "how many there are is `count({node})`"  # for `len` in the sense of other languages
BUILTIN.rows("len", "text", rule=_of_text(DType.INT, _COUNT), help="how many characters a text has")(
    lambda view, node, texts: _counted(texts, len)
)
BUILTIN.rows("words", "text", rule=_of_text(DType.INT), help="how many whitespace-separated words a text has")(
    lambda view, node, texts: _counted(texts, lambda item: len(item.split()))
)


BUILTIN.rows("contains", "text", PATTERN, rule=_of_text(DType.BOOL), help="whether a text holds another")(
    lambda view, node, texts: _tested(texts, lambda item: node.param("pattern") in item)
)
BUILTIN.rows("startswith", "text", PATTERN, rule=_of_text(DType.BOOL), help="whether a text begins with another")(
    lambda view, node, texts: _tested(texts, lambda item: item.startswith(node.param("pattern")))
)


def _matching(call: Call) -> Type:
    readable_pattern(call)
    return _of_text(DType.BOOL)(call)


BUILTIN.rows("matches", "text", PATTERN, rule=_matching, help="whether a regular expression is found in a text")(
    lambda view, node, texts: _tested(texts, pattern(node.param("pattern")).matches)
)


def _of_group(dtype: DType) -> Rule:
    """A rule: the argument is a text; the value is per group with ``over=completion``, else per text."""

    def rule(call: Call) -> Type:
        need(call, DType.TEXT)
        type = call.args[0].type
        over = call.params.get("over")
        if over is None:
            return type.with_dtype(dtype)
        if over is not Axis.COMPLETION or type.axis is not Axis.COMPLETION or not call.groups:
            call.fail("DL306.texts", function=call.name, text=call.args[0], axis=per(type.axis))
        return type.with_axis(Axis.GROUP).with_dtype(dtype)

    return rule


def _ngrams(text: str, n: int) -> list[tuple[str, ...]]:
    words = text.split()
    return list(zip(*(words[start:] for start in range(n)), strict=False))


def _distinct_share(texts: Iterable[str], n: int) -> float:
    grams = [gram for text in texts for gram in _ngrams(text, n)]
    return len(set(grams)) / len(grams) if grams else float("nan")


def _share_rule(call: Call) -> Type:
    if call.params["n"] < 1:
        call.fail("DL304.at_least", name="n")
    return _of_group(DType.FLOAT)(call)


@BUILTIN.rows(
    "distinct_n", "text", Param("n", "constant", types=(int,)), OVER, rule=_share_rule,
    help="distinct n-grams by all n-grams, of a text or of a group's texts together (Li et al. 2016)",
)  # fmt: skip
def _distinct_n(view: View, node: Node, texts: Array) -> Array:
    share = partial(_distinct_share, n=node.param("n"))
    if node.over is None:
        return np.array([np.nan if item is None else share([item]) for item in texts], np.float64)
    return view.segments(Axis.COMPLETION, Axis.GROUP).per_segment(texts, share)


def _distinct_rule(call: Call) -> Type:
    need(call, *NUMERIC, DType.BOOL, DType.TEXT)
    type = call.args[0].type
    if call.params.get("over") is not Axis.COMPLETION or type.axis is not Axis.COMPLETION or not call.groups:
        call.fail("DL306.distinct", node=call.args[0], axis=per(type.axis))
    return type.with_axis(Axis.GROUP).with_dtype(DType.INT)


@BUILTIN.rows("distinct", "x", OVER, rule=_distinct_rule, help="how many different values a group has")
def _distinct(view: View, node: Node, x: Array) -> Array:
    groups = view.segments(Axis.COMPLETION, Axis.GROUP)
    return groups.per_segment(x, lambda values: len({*values.tolist()}), np.int64)


def _jaccard_rule(call: Call) -> Type:
    if call.params.get("over") is not Axis.COMPLETION:
        call.fail("DL306.jaccard")
    return _of_group(DType.FLOAT)(call)


@BUILTIN.rows(
    "jaccard", "text", OVER, rule=_jaccard_rule, least=2,
    help="the mean Jaccard distance of the word sets of a group's pairs of texts; absent for fewer than two",
)  # fmt: skip
def _jaccard(view: View, node: Node, texts: Array) -> Array:
    return view.segments(Axis.COMPLETION, Axis.GROUP).per_segment(texts, _mean_distance)


def _mean_distance(texts: Iterable[str]) -> float:
    sets = [set(text.split()) for text in texts]
    distances = [1.0 - len(a & b) / len(a | b) if a | b else 0.0 for a, b in combinations(sets, 2)]
    return sum(distances) / len(distances) if distances else float("nan")


_VOTE = (
    "whether most completions of a group are right is `mean({right}, over=completion) > 0.5`; a vote of their "
    "answers, which are texts, is `majority_at(answer, {right})`"
)


def _majority_rule(call: Call) -> Type:
    right = "{node}" if call.args[0].type.dtype is DType.BOOL else "{node} > 0.5"
    need(call, DType.TEXT, fix=_VOTE.replace("{right}", right))
    type = call.args[0].type
    if type.axis is not Axis.COMPLETION or not call.groups:
        call.fail("DL306.majority", axis=per(type.axis))
    return type.with_axis(Axis.GROUP)


@BUILTIN.rows(
    "majority", "text", rule=_majority_rule, help="the most frequent text of a group; of equal ones the first"
)
def _majority(view: View, node: Node, texts: Array) -> Array:
    def most_frequent(group: Array) -> Any:
        return Counter(group).most_common(1)[0][0] if len(group) else None

    return view.segments(Axis.COMPLETION, Axis.GROUP).per_segment(texts, most_frequent, object)


def _bucket_rule(call: Call) -> Type:
    need(call, *NUMERIC)
    edges = call.params["edges"]
    if any(low >= high for low, high in pairwise(edges)):
        call.fail("DL304.edges")
    if call.args[0].type.axis is Axis.TOKEN:
        call.fail("DL310.bucket")
    return call.args[0].type.with_dtype(DType.TEXT)


@BUILTIN.rows(
    "bucket", "x", Param("edges", "constant", variadic=True), rule=_bucket_rule,
    help="a label by upper edges, each belonging to the bucket below it: `0-32`, `33-64`, `65+`, which counts things, "
    "or `0-0.5`, `0.5-1`, `>1` where an edge is no whole number; `<0` is what is negative where no edge is",
)  # fmt: skip
def _bucket(view: View, node: Node, x: Array) -> Array:
    edges = node.param("edges")
    values = np.asarray(x, np.float64)
    for edge in edges:
        values = of_constant(values, edge)
    labels = np.array(bucket_labels(edges), object)[np.searchsorted(np.array(edges, np.float64), values, side="left")]
    if edges[0] >= 0:
        labels = np.where(values < 0, "<0", labels)
    return np.where(np.isnan(values), NOTHING, labels)


def bucket_labels(edges: Sequence[float]) -> list[str]:
    """The labels of the buckets between some edges, from the lowest to the highest."""
    integers = all(float(edge).is_integer() for edge in edges)  # edges count things, also for floats such as lengths
    text = [label_text(edge) for edge in edges]
    starts = [label_text(edge + 1 if integers else edge) for edge in edges]
    first = "0" if edges[0] >= 0 else "-inf"
    last = f"{starts[-1]}+" if integers else f">{text[-1]}"  # the edge itself belongs to the bucket below it
    return [*(f"{low}-{high}" for low, high in zip([first, *starts[:-1]], text, strict=True)), last]


# ---- labels of several values, and of lists: `by` makes them, and no expression can name them

OTHER = "_other"  # the label of the rows beyond max_labels; it gets more underscores if a real label has this name
BETWEEN = "\x1f"  # separates the parts of one label; shown as a slash


def label_text(value: Any, *, truth: bool = False) -> str:
    """A value as a label."""
    if isinstance(value, str):
        return value
    if truth or isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    return str(int(value)) if float(value).is_integer() else str(float(value))


def tags(value: Any) -> list[str]:
    """The labels of a row: the distinct items of a list, or its single value. A missing value gives no label."""
    items = value if isinstance(value, list | tuple | set | frozenset) else [value]
    wrong = next((item for item in items if not isinstance(item, str | bool | int | float | np.generic | None)), None)
    if wrong is not None:
        raise RuntimeFailure.of("DL605.tags", value=wrong, type=type(wrong).__name__)
    return list(dict.fromkeys(label_text(item) for item in items if item is not None and item == item))


def _as_text(values: Any, *, truth: bool) -> Array:
    items = np.asarray(values)
    there = present(items)
    labels = np.full(items.shape, None, object)
    labels[there] = [label_text(item, truth=truth) for item in items[there].tolist()]
    return labels


BUILTIN.rows(SAID, "x", rule=typed(DType.TEXT), help="an object as a text")(
    lambda view, node, x: np.array([item if item is None else said(item) for item in x], object)
)
BUILTIN.elementwise(WRITTEN[DType.INT], "x", rule=typed(DType.TEXT), help="an int as a label")(
    lambda xp, x: _as_text(x, truth=False)
)
BUILTIN.elementwise(WRITTEN[DType.BOOL], "x", rule=typed(DType.TEXT), help="a bool as a label")(
    lambda xp, x: _as_text(x, truth=True)
)


@BUILTIN.elementwise(COMBINED, Param("x", variadic=True), rule=typed(DType.TEXT), help="one label of several values")
def _combined(xp: Any, *values: Any) -> Array:
    """Combine several values into one label. With lists of tags among them, return one label per choice of tags."""
    parts = np.broadcast_arrays(*(np.asarray(part, object) for part in values))
    labels = np.full(parts[0].shape, None, object)
    for index in np.ndindex(labels.shape):
        row: list[Any] = [part[index] for part in parts]
        if all(isinstance(item, str) for item in row):
            labels[index] = BETWEEN.join(row)
        elif not any(item is None for item in row):
            labels[index] = [BETWEEN.join(choice) for choice in product(*map(tags, row))]
    return labels
