"""Labels of tokens: `by: bucket(...)` of a value per token makes a metric for each bucket, with its own condition.

`by: index(token) // 10` makes one for each whole number.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product

from declog.compiler import ranges
from declog.compiler.draft import Draft
from declog.compiler.scopes import SignalScope
from declog.language.dtypes import Axis, DType
from declog.language.expression import Compiler
from declog.language.functions.text import OTHER, bucket_labels, label_text
from declog.language.nodes import Node
from declog.language.spec import MetricSpec
from declog.language.syntax import ExpressionError, parse
from declog.plans.ops import MetricOp


def buckets(draft: Draft, spec: MetricSpec, text: str) -> dict[str, str]:
    """The labels of a `by` of values per token, each with the condition that its tokens meet; empty for any other `by`.

    The edges of a `bucket` are constants, so each label is a metric of its own, which is folded where the tokens are.
    Of whole numbers, such as `index(token) // 10` and `place % 4`, the first `max_labels` are labels.
    """
    try:
        parsed = parse(text)
        compiler = Compiler(text, SignalScope(draft), draft.graph, draft.functions)
        if parsed.call != "bucket" or not isinstance(parsed.body, ast.Call) or not parsed.body.args:
            return _numbers(compiler.visit(parsed.body), f"({ast.unparse(parsed.body)})", spec.max_labels)
        value, *edges = parsed.body.args
        node = compiler.visit(value)
        if node.type.axis is not Axis.TOKEN:
            return {}
        of_edges = ast.Call(parsed.body.func, [ast.copy_location(ast.Constant(0), value), *edges], [])
        bounds = compiler.visit(ast.copy_location(of_edges, parsed.body)).param("edges")
    except ExpressionError:
        return {}  # reported with the metric
    shown = f"({ast.unparse(value)})"
    conditions = [f"{shown} > {low} and {shown} <= {high}" for low, high in pairwise([0.0, *bounds])]
    signed = bounds[0] >= 0 and ranges.of_node(node, {})[0] < 0
    conditions[0] = f"{shown} <= {bounds[0]}" + f" and {shown} >= 0" * signed
    labelled = dict(zip(bucket_labels(bounds), [*conditions, f"{shown} > {bounds[-1]}"], strict=True))
    if signed:
        labelled["<0"] = f"{shown} < 0"
    return labelled


def _numbers(node: Node, shown: str, most: int) -> dict[str, str]:
    """The labels of a whole number per token in a known range; positions beyond the ``most`` labels share `_other`."""
    low, high = ranges.of_node(node, {})
    of_places = node.op == "index" or (node.op == "floordiv" and node.args[0].op == "index")
    if node.type.axis is not Axis.TOKEN or node.type.dtype is not DType.INT or low == -math.inf:
        return {}
    if high - low >= most and not of_places:  # it is not known which are the most frequent
        return {}
    beyond = low + min(high - low + 1, most)
    labelled = {label_text(number): f"{shown} == {number}" for number in range(int(low), int(beyond))}
    return labelled if beyond > high else {**labelled, OTHER: f"{shown} >= {int(beyond)}"}


def conditions(where: str | None, buckets: Sequence[Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Each combination of tokens' labels, with the condition of its tokens, which includes the metric's condition."""
    of_tokens = [labelled for labelled in buckets if labelled]
    of_metric = [] if where is None else [f"({where})"]
    for combination in product(*(labelled.items() for labelled in of_tokens)) if of_tokens else ():
        condition = " and ".join([*of_metric, *(condition for _, condition in combination)])
        yield "/".join(label for label, _ in combination), condition


def of_label(op: MetricOp, label: str, of_rows: tuple[str, ...], *, first: bool) -> MetricOp:
    """A metric of one label of its tokens, under the name that it would have among all labels.

    Labels of rows stay, before the tokens' label or, where `by` begins with tokens, behind it.
    """
    shown = label if not of_rows else f"{label}/{{label}}" if first else f"{{label}}/{label}"
    names = tuple(replace(item, template=item.template.replace("{label}", shown)) for item in op.names)
    suffix = label if op.suffix is None else f"{op.suffix}/{label}"
    return replace(op, key=f"{op.id}.{suffix}", suffix=suffix, names=names, labels=of_rows)
