"""One label of a metric: how an expression names it, and the answer where somebody names it in another way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from declog.compiler.draft import Draft, SwitchedOff
from declog.language.dtypes import DType
from declog.language.expression import compile_expression
from declog.language.functions.text import bucket_labels
from declog.language.nodes import LABEL, Node
from declog.language.notation import is_reduction
from declog.language.scope import Scope
from declog.language.syntax import ExpressionError, refuse
from declog.plans.ops import FormulaOp, MetricOp

_METRIC = re.compile(r"'[^']*'|\"[^\"]*\"|(?<![\w.])([a-z_]\w*)([/.][a-z_]\w*)?(?=[/.\[])")  # texts are passed over
_WORD = r"[A-Za-z_][\w-]*"


class _Spot(NamedTuple):
    """A part of an expression that names a label: `by_level/1`."""

    start: int
    end: int
    metric: str
    label: str
    divides: bool = False  # it can be what it says, a quotient

    @property
    def right(self) -> str:
        return f"{LABEL}({self.metric}, '{self.label}')"


def written(op: MetricOp | FormulaOp) -> str:
    """An output as expressions name it: its key, but `label(kl, '0-16')` of tokens, which is an output by itself."""
    first, *further = (op.suffix or "").split("/") if isinstance(op, MetricOp) else [""]
    reduced, tokens = (first, further) if not first or first.isidentifier() else ("", [first, *further])
    metric = f"{op.id}.{reduced}" if reduced else op.id
    return f"{LABEL}({metric}, '{'/'.join(tokens)}')" if tokens else op.key


def _metric(op: MetricOp | FormulaOp) -> str:
    """The metric of an output as the first argument of `label`."""
    return re.sub(rf"{LABEL}\((.+), '.*'\)", r"\1", written(op))


def named_in(draft: Draft, name: str, metric: str) -> str:
    """A metric, or the label of it that a name says behind the metric's: `by_level_1`."""
    labelled = any(op.key == metric and op.labels for op in draft.outputs) and name.startswith(f"{metric}_")
    return f"{LABEL}({metric}, '{name.removeprefix(f'{metric}_')}')" if labelled else metric


def refuse_other_ways(draft: Draft, text: str, scope: Scope) -> None:
    """Refuse ``by_level.1``, ``by_level['1']`` and ``by_level/1``, which is also how trackers show it.

    A quotient by a number is what it says, if nothing else here is a label; where it may be one there is a note.
    """
    spots = [*_spots(draft, text, scope)]
    if all(spot.divides for spot in spots):
        for spot in spots:
            shown = text[spot.start : spot.end]
            draft.warn(f"`{text}`: `{shown}` divides by {spot.label}; the label of this name is `{spot.right}`")
        return
    edited = text
    for spot in reversed(spots):
        edited = edited[: spot.start] + spot.right + edited[spot.end :]
    if _compiles(draft, edited, scope):
        spot = next(spot for spot in spots if not spot.divides)
        refuse("DL302.label", text, (spot.start, spot.end), metric=spot.metric, fix=f"write `{edited.strip()}`")


def _compiles(draft: Draft, text: str, scope: Scope) -> bool:
    try:
        compile_expression(text, scope, draft.graph, draft.functions)
    except ExpressionError:
        return False
    return True


def _spots(draft: Draft, text: str, scope: Scope) -> Iterator[_Spot]:
    for match in _METRIC.finditer(text):
        ops: dict[str, list[MetricOp | FormulaOp]] = {}
        for op in draft.outputs:
            if op.id == match[1] and (op.labels or written(op) != op.key):
                ops.setdefault(_metric(op), []).append(op)
        if ops:
            reduced, mean = f"{match[1]}.{(match[2] or '')[1:]}", f"{match[1]}.mean"  # which an id of several means
            metric = next((key for key in (reduced, mean) if key in ops), next(iter(ops)))
            behind = match.end() if metric == reduced else match.end(1)
            named = _subscript(text, behind) or _behind_a_sign(text, behind, ops[metric], scope)
            if named is not None and f"{match[1]}.{named['label']}" not in ops:  # a reduction of it
                yield _Spot(match.start(), metric=metric, **named)


def _subscript(text: str, behind: int) -> dict[str, Any] | None:
    """``by_level[1]``, ``by_level['1']``."""
    match = re.compile(r"\[\s*(['\"]?)([^'\"\[\]:,]+?)\1\s*\]").match(text, behind)
    return None if match is None else {"end": match.end(), "label": match[2]}


def _behind_a_sign(
    text: str, behind: int, ops: list[MetricOp | FormulaOp], scope: Scope
) -> dict[str, Any] | None:  # fmt: skip
    """``by_level.1``, ``by_level/1``: a label of a bucket, words that nobody declared, or a number."""
    buckets = "|".join(re.escape(label) for label in sorted(_bucketed(ops), key=len, reverse=True))
    if buckets and (match := re.compile(rf"[/.]({buckets})(?![\w(])").match(text, behind)):
        return {"end": match.end(), "label": match[1]}
    parts, sign = len(ops[0].labels), text[behind]
    part = rf"(?:{_WORD}|\d+(?![\w.-]))" if sign == "/" else rf"(?:{_WORD}|\d+(?:-\d+)?(?![\w-]))"
    further = rf"(?:{re.escape(sign)}{part}){{{parts - 1}}}" if parts > 1 else rf"(?:/{_WORD})*"
    match = re.compile(rf".({part}{further})(?![\w(])").match(text, behind)
    if match is None:
        return None
    label = match[1].replace(sign, "/")
    words = [word for word in re.split(r"[/-]", label) if word.isidentifier()]
    if (sign == "/" and any(_is_value(word, scope) for word in words)) or (sign == "." and is_reduction(label, 1)):
        return None
    divides = sign == "/" and not words and label not in ("0", "1")
    of_ints = any(isinstance(op, MetricOp) and op.by is not None and op.by.type.dtype is DType.INT for op in ops)
    return {"end": match.end(), "label": label, "divides": divides} if of_ints or parts > 1 or not divides else None


def _bucketed(ops: list[MetricOp | FormulaOp]) -> Iterator[str]:
    """The labels of a metric by the buckets of a number, which the config says."""
    for op in ops:
        by: Node | None = op.by if isinstance(op, MetricOp) else None
        if (of_tokens := re.fullmatch(rf"{LABEL}\(.+, '(.+)'\)", written(op))) is not None:
            yield of_tokens[1]
        elif by is not None and by.op == "bucket":
            yield from bucket_labels(by.param("edges"))


def _is_value(name: str, scope: Scope) -> bool:
    try:
        return scope.resolve(name) is not None
    except SwitchedOff:
        return True
