"""One label of a metric: how an expression names it, and the fix if an expression names it in another way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile
from typing import Any, NamedTuple

from declog.compiler.draft import Draft, SwitchedOff
from declog.language.dtypes import DType
from declog.language.expression import Compiler
from declog.language.fixes.tracker_names import Shown
from declog.language.functions.text import bucket_labels
from declog.language.nodes import LABEL, Node, members_of, walk
from declog.language.notation import is_reduction
from declog.language.scope import Scope
from declog.language.syntax import refuse
from declog.plans.ops import FormulaOp, MetricOp

_METRIC = re.compile(r"'[^']*'|\"[^\"]*\"|(?<![\w.])([a-z_]\w*)(?=([/.][a-z_]\w*)?[/.\[])")  # quoted texts are skipped
_QUOTED = re.compile(rf"\b{LABEL}\(\s*(['\"])([a-z_][\w.]*)\1\s*,\s*(['\"])(.*?)\3\s*\)")
_WORD = r"[A-Za-z_][\w-]*"


class _Spot(NamedTuple):
    """A part of an expression that names a label: `by_level/1`."""

    start: int
    end: int
    metric: str
    label: str
    member: str | None = None
    divides: bool = False  # it may be the quotient that is written

    @property
    def right(self) -> str:
        return Shown(self.metric, member=self.member, label=self.label).expression


def written(op: MetricOp | FormulaOp) -> str:
    """An output as expressions name it: its key, or `label(kl, '0-16')` for a label of tokens, an output of its own."""
    first, *further = (op.suffix or "").split("/") if isinstance(op, MetricOp) else [""]
    reduced, tokens = (first, further) if not first or first.isidentifier() else ("", [first, *further])
    metric = f"{op.id}.{reduced}" if reduced else op.id
    return f"{LABEL}({metric}, '{'/'.join(tokens)}')" if tokens else op.key


def _metric(op: MetricOp | FormulaOp) -> str:
    """The metric of an output as the first argument of `label`."""
    return re.sub(rf"{LABEL}\((.+), '.*'\)", r"\1", written(op))


def named_in(draft: Draft, name: str, metric: str) -> str:
    """The expression for a metric, or for the label that ``name`` has behind the metric's name: `by_level_1`."""
    before = f"{metric.replace('.', '_')}_"
    op = next((op for op in draft.outputs if op.key == metric and op.labels), None)
    if op is None or not name.startswith(before):
        return metric
    member, label = _member(op, name.removeprefix(before), "_")
    return Shown(metric, member=member, label="/".join(label.rsplit("_", len(op.labels) - 1))).expression


def _member(op: MetricOp | FormulaOp, name: str, between: str) -> tuple[str | None, str]:
    """The member, or None, and the label in a name of a metric's value; trackers show the member first.

    A name with no more parts than labels is a label of all members, unless it begins with a declared member.
    """
    declared = members_of(*op.args) or () if isinstance(op, MetricOp) else ()
    member = next((member for member in declared if name.startswith(f"{member}{between}")), None)
    if member is None and op.family and name.count(between) >= len(op.labels):
        member = name.partition(between)[0]
    return member, name if member is None else name.removeprefix(f"{member}{between}")


def refuse_other_ways(draft: Draft, text: str, scope: Scope) -> None:
    """Refuse ``by_level.1``, ``by_level['1']`` and ``by_level/1``, which trackers show.

    If all that is found are quotients by a number, they stay quotients, with a warning that names the label.
    """
    spots = [*_spots(draft, text, scope)]
    if all(spot.divides for spot in spots):
        for spot in spots:
            shown = text[spot.start : spot.end]
            draft.warn(f"`{text}`: `{shown}` divides by {spot.label}; the label of this name is `{spot.right}`")
        return
    if (edited := _edited(draft, text, scope, spots)) is not None:
        spot = next(spot for spot in spots if not spot.divides)
        refuse("DL302.label", text, (spot.start, spot.end), metric=spot.metric, fix=f"write `{edited.strip()}`")


def in_words(draft: Draft, text: str, scope: Scope) -> str | None:
    """The right form of an expression that names a label in another way; None for any other expression."""
    return _edited(draft, text, scope, [*_spots(draft, text, scope)])


def _edited(draft: Draft, text: str, scope: Scope, spots: list[_Spot]) -> str | None:
    edited = text
    for spot in sorted(spots, reverse=True):  # from the right
        edited = edited[: spot.start] + spot.right + edited[spot.end :]
    compiler = Compiler(edited, scope, draft.graph, draft.functions)
    return edited if spots and isinstance(compiler.tried(edited), Node) else None


def _spots(draft: Draft, text: str, scope: Scope) -> Iterator[_Spot]:
    for match in _QUOTED.finditer(text):  # `label('by_level', '1')`
        yield _Spot(match.start(), match.end(), match[2], match[4])
    for match in _METRIC.finditer(text):
        ops: dict[str, list[MetricOp | FormulaOp]] = {}
        for op in draft.outputs:
            if op.id == match[1] and (op.labels or written(op) != op.key):
                ops.setdefault(_metric(op), []).append(op)
        if ops:
            reduced, mean = f"{match[1]}.{(match[2] or '')[1:]}", f"{match[1]}.mean"  # the id of several is the mean
            metric = next((key for key in (reduced, mean) if key in ops), next(iter(ops)))
            behind = match.end() + len(match[2]) if metric == reduced else match.end()
            named = _subscript(text, behind) or _behind_a_sign(text, behind, ops[metric], scope)
            if named is not None and f"{match[1]}.{named['label']}" not in ops:  # a reduction of it
                yield _Spot(match.start(), metric=metric, **named)


def _subscript(text: str, behind: int) -> dict[str, Any] | None:
    """Match a label in brackets: ``by_level[1]``, ``by_level['1']``."""
    match = re.compile(r"\[\s*(?:'([^']+)'|\"([^\"]+)\"|([^'\"\[\]:,]+?))\s*\]").match(text, behind)
    return None if match is None else {"end": match.end(), "label": match[1] or match[2] or match[3]}


def _behind_a_sign(
    text: str, behind: int, ops: list[MetricOp | FormulaOp], scope: Scope
) -> dict[str, Any] | None:  # fmt: skip
    """Match a label behind a sign, ``by_level.1``, ``by_level/1``: a bucket, an undeclared word, or a number."""
    buckets = "".join(f"{re.escape(label)}(?![\\w(])|" for label in sorted(_bucketed(ops), key=len, reverse=True))
    by_sign = {"/": rf"{buckets}{_WORD}|\d+(?![\w.-])", ".": rf"{buckets}{_WORD}|\d+(?:-\d+)?(?![\w-])"}
    op, end, parts = ops[0], behind, list[str]()
    many, of_buckets = max(len(op.labels), 1), False
    most = many + op.family
    while (sign := text[end : end + 1]) in by_sign:
        match = re.compile(by_sign[sign]).match(text, end + 1)
        if match is None or (len(parts) >= most and (most > 1 or of_buckets or not re.match(_WORD, match[0]))):
            break
        part = match[0]
        if not (of_buckets := part in _bucketed(ops)):
            first, *further = re.split(r"(-[A-Za-z_]\w*)", part)
            if sign == "/" and first.isidentifier() and _is_value(first, scope):
                break
            part = first + "".join(takewhile(lambda word: not _is_value(word[1:], scope), further))
        parts.append(part)
        end += 1 + len(part)
    if len(parts) < many or re.match(r"[\w(]", text[end:]) or is_reduction(parts[0], 1):
        return None
    member, label = _member(op, text[behind + 1 : end] if most == 1 else "/".join(parts), "/")
    quotient = many == 1 and text[behind] == "/" and not of_buckets and re.fullmatch(r"[^A-Za-z_]+", label)
    of_ints = any(isinstance(op, MetricOp) and op.by is not None and op.by.type.dtype is DType.INT for op in ops)
    divides = bool(quotient) and label not in ("0", "1")
    return {"end": end, "label": label, "member": member, "divides": divides} if of_ints or not divides else None


def _bucketed(ops: list[MetricOp | FormulaOp]) -> Iterator[str]:
    """The labels of a metric that the config defines: buckets of a number, and labels of tokens."""
    for op in ops:
        by: Node | None = op.by if isinstance(op, MetricOp) else None
        if (of_tokens := re.fullmatch(rf"{LABEL}\(.+, '(.+)'\)", written(op))) is not None:
            yield of_tokens[1]
        for node in () if by is None else walk(by):
            if node.op == "bucket":
                yield from bucket_labels(node.param("edges"))


def _is_value(name: str, scope: Scope) -> bool:
    try:
        return scope.resolve(name) is not None
    except SwitchedOff:
        return True
