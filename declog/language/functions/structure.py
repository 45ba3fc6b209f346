"""Functions that know how axes nest: aggregates with ``over=``, ranks, sizes, members. They run on the host."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from declog.errors import RuntimeFailure, in_flow
from declog.language import segmented
from declog.language.dtypes import ABOVE, MEMBER, NUMERIC, Axis, DType, Type, per
from declog.language.functions.base import BUILTIN, OVER, PATTERN, Function, Param, View
from declog.language.functions.rules import Call, Rule, broadcast, need, readable_pattern
from declog.language.moments import AGGREGATES, FORMULAS
from declog.language.nodes import LABEL, LABELLED, METRIC, Node, aligned, members_of, walk
from declog.language.patterns import pattern


def _names(node: Node) -> str | None:
    """The name of the axis of a value's labels or members; None for a value without either."""
    labelled = any(LABELLED in dict(leaf.params) for leaf in aligned(node))
    return LABEL if labelled else MEMBER if node.type.family else None


def _without_axis(call: Call, node: Node) -> str:
    """The fix for an aggregate without `over`: reduce the finest axis, or all rows."""
    axis = node.type.axis
    if axis in (None, Axis.ALL):
        over = _names(node)
        return f"write `{call.name}({node}, over={over})`" if over else f"write `{node}`: it is one value"
    assert axis is not None
    nearest = f"write `{call.name}({node}, over={axis.label})`, of"
    if axis is Axis.COMPLETION and call.groups:
        return f"{nearest} each prompt's group; with over=step: of all rows of the step"
    if axis is Axis.COMPLETION:
        return f"write `{call.name}({node}, over=step)`, of all rows of the step"
    apart = "a metric of its own, which a `formula:` can read"
    if axis is Axis.STEP:
        reduction = {"any": "max", "all": "min"}.get(call.name, call.name)
        of_run = in_flow({"expr": str(node), "reduce": reduction, "over": "run"})
        return f"`{node}` is one number per step: of the run it is {apart}, {of_run}"
    return f"{nearest} each {ABOVE[axis].row}, which is another value: of all rows it is {apart}"


def _readings(call: Call, node: Node, axis: Axis, over: Axis) -> str:
    """The fix for an `over` that is not the finest axis: its possible meanings, from the finest axis up to ``over``."""
    inner = call.name if call.name in ("sum", "min", "max", "any", "all") else "mean"
    text, answers = str(node), list[str]()
    if over is Axis.STEP:  # of all completions, and of groups by their own axis
        rows = f"{inner}({node}, over=token), over=step" if axis is Axis.TOKEN else f"{node}, over=group"
        return f"`{call.name}({rows})`, one value per step"
    for finer in (Axis.TOKEN, Axis.COMPLETION, Axis.GROUP):
        if over <= finer <= axis:
            row = f"{'of those one' if answers else 'one value'} per {ABOVE[finer].row}"
            folded = finer is not Axis.TOKEN or call.name in AGGREGATES
            answers += [f"`{call.name}({text}, over={finer.label})`, {row}"] if folded else []
            text = f"{inner}({text}, over={finer.label})"
    return "  or  ".join(answers)


def remove_axis(call: Call, *, accept: Sequence[DType]) -> Type:
    """The argument's shape without the axis ``over``, which must be its finest axis, or its members or labels.

    ``over=step`` of values per completion reduces all rows of the step, of all groups, batches and ranks.
    """
    need(call, *accept)
    (node,) = call.args
    over = call.params.get("over")
    if over is None:
        call.fail("DL306.needs_over", function=call.name, fix=_without_axis(call, node))
    if over == MEMBER:
        if not node.type.family:
            call.fail("DL306.no_family", arg=0, node=node)
        return replace(node.type, family=False)
    if over == LABEL:
        if all(item.op != METRIC for item in walk(node)):
            call.fail("DL306.no_metric", node=node, function=call.name)
        if _names(node) != LABEL:
            call.fail("DL306.no_labels", node=node, fix=_without_axis(call, node))
        return node.type
    axis = node.type.axis
    if axis is None or axis < over or (axis is Axis.ALL):
        call.fail("DL306.no_axis", arg=0, node=node, axis=per(axis), label=over.label)
    if axis > over and (axis, over) != (Axis.COMPLETION, Axis.STEP):
        fix = _readings(call, node, axis, over)
        call.fail("DL306.order", node=node, axis=per(axis), inner=axis.label, outer=over.label, fix=fix)
    if axis is Axis.STEP:
        call.fail("DL306.window")
    if over is Axis.COMPLETION and not call.groups:
        call.fail("DL306.group")
    return node.type.with_axis(Axis.ALL if over is Axis.STEP else ABOVE[over])


_NUMBERS = (*NUMERIC, DType.BOOL)


def _aggregate(dtype: DType | None, *accept: DType) -> Rule:
    def rule(call: Call) -> Type:
        result = remove_axis(call, accept=accept)
        return result if dtype is None else result.with_dtype(dtype)

    return rule


def _counted(call: Call) -> Type:
    """Arguments are numbers or bools, which count as 0 and 1; the value is a number."""
    result = remove_axis(call, accept=_NUMBERS)
    return result.with_dtype(DType.FLOAT if result.dtype is DType.FLOAT else DType.INT)


AXIS = Param("axis", "axis")
_RULES: dict[str, Rule] = {
    **dict.fromkeys(("mean", "std", "pstd", "var"), _aggregate(DType.FLOAT, *_NUMBERS)),
    **dict.fromkeys(("sum", "min", "max"), _counted),
    "count": _aggregate(DType.INT, *_NUMBERS, DType.TEXT),
    **dict.fromkeys(("any", "all"), _aggregate(None, DType.BOOL)),
    **dict.fromkeys(("first", "last"), _aggregate(None, *_NUMBERS, DType.TEXT, DType.OBJECT)),
}
for _name, _rule in _RULES.items():
    _formula, _params = FORMULAS[_name], (Param("x"), OVER)
    BUILTIN.add(Function(_name, _params, _rule, AGGREGATES[_name], "aggregate", _formula.help, least=_formula.least))


def _ranked(call: Call) -> Type:
    need(call, *NUMERIC)
    within, node = call.params["within"], call.args[0]
    if node.type.axis is not Axis.COMPLETION or within not in (Axis.GROUP, Axis.STEP):
        inside = node if node.type.axis is not Axis.TOKEN else f"mean({node}, over=token)"
        fix = f"write `{call.name}({inside}, within={'step' if within is Axis.STEP else 'group'})`"
        fix = fix if node.type.axis in (Axis.COMPLETION, Axis.TOKEN) else "give it values per completion"
        call.fail("DL306.rank", function=call.name, node=node, axis=per(node.type.axis), fix=fix)
    if within is Axis.GROUP and not call.groups:
        call.fail("DL306.group")
    return node.type.with_dtype(DType.INT)


BUILTIN.rows(
    "rank", "x", Param("within", "axis"), rule=_ranked, help="the place of a completion: 1 is the smallest; ties by row"
)(lambda view, node, x: segmented.rank(x, view.segments(Axis.COMPLETION, node.param("within"))))
BUILTIN.rows("smaller", "x", Param("within", "axis"), rule=_ranked, help="how many completions have a smaller value")(
    lambda view, node, x: segmented.smaller(x, view.segments(Axis.COMPLETION, node.param("within")))
)


def _segments(view: View, node: Node) -> Any:
    axis = node.param("axis")
    return view.segments(axis, ABOVE[axis])


def _of_tokens(call: Call, axis: Axis) -> Type:
    """The type of `index(token)` and `size(token)`: an int in the phase of the token mask."""
    if not call.token_mask:
        call.fail("DL306.tokens")
    return Type(DType.INT, axis, phase=next(iter(call.token_mask)).type.phase)


def _indexed(call: Call) -> Type:
    axis = call.params["axis"]
    if axis is Axis.TOKEN:
        return _of_tokens(call, axis)
    if axis not in ABOVE or not call.groups:
        call.fail("DL306.index")
    return Type(DType.INT, axis)


BUILTIN.rows(
    "index",
    AXIS,
    rule=_indexed,
    help="the 0-based place of a completion in its group, a group in its step, a token among those of its completion",
)(lambda view, node: _segments(view, node).position)


def _sized(call: Call) -> Type:
    axis = call.params["axis"]
    if axis is Axis.TOKEN:
        return _of_tokens(call, Axis.COMPLETION)
    if axis in ABOVE and not call.groups:
        call.fail("DL306.group")
    if axis not in ABOVE:
        call.fail("DL306.size")
    return Type(DType.INT, ABOVE[axis])


BUILTIN.rows("size", AXIS, rule=_sized, help="how many tokens a completion, completions a group, groups a step has")(
    lambda view, node: _segments(view, node).counts
)


def _family(call: Call) -> Node:
    """The argument, which must be a family."""
    node = call.args[0]
    if not node.type.family:
        labelled = LABELLED in dict(node.params)
        name = call.params.get("member", "name")
        fix = f"label({node}, {name!r})" if labelled else f"`{node}` alone: it has one value"
        call.fail("DL306.member", arg=0, node=node, fix=fix)
    return node


def _member(call: Call) -> Type:
    node = _family(call)
    member, declared = call.params.get("member"), members_of(node)
    if member is not None and declared is not None and member not in declared:
        call.fail("DL302.member", node=node, name=member, known=declared)
    return replace(node.type, family=False)


@BUILTIN.rows(
    "member", "family", Param("member", "constant", types=(str,)), rule=_member, help="one member of a family"
)
def _pick(view: View, node: Node, family: Any) -> Any:
    members = view.members(node.args[0])
    member = node.param("member")
    if member not in members:
        return np.full(family.shape[1:], np.nan)
    return family[members.index(member)]


BUILTIN.rows(
    "members", "family", rule=lambda call: _member(call).with_dtype(DType.INT), help="how many members of a family came"
)(lambda view, node, family: np.sum(~np.broadcast_to(np.asarray(view.absent(node.args[0])), family.shape), 0))


def _of_label(call: Call) -> Type:
    (node,), label = call.args, call.params[LABEL]
    if LABELLED in dict(node.params):
        return node.type
    if node.op != METRIC:
        call.fail("DL306.label", arg=0, node=node, label=label)
    fix = f"member({node}, {label!r})" if node.type.family else f"`{node}` alone: it has one value"
    call.fail("DL306.no_labels", arg=0, node=node, fix=fix)


BUILTIN.rows(
    LABEL, "metric", Param(LABEL, "constant", types=(str,)), rule=_of_label,
    help="one label of a metric with `by`, in formulas and conditions; absent where it did not come",
)(lambda view, node, metric: metric)  # fmt: skip


SELECTIONS: dict[str, bool] = {"only": True, "without": False}  # whether the names of kept members match


def _selected(call: Call) -> Type:
    node = _family(call)
    readable_pattern(call)
    return node.type


def selected(node: Node, members: Sequence[str]) -> list[int]:
    """The indices of the members that `only` or `without` keeps."""
    match = pattern(node.param("pattern")).matches
    return [index for index, member in enumerate(members) if bool(match(member)) is SELECTIONS[node.op]]


for _name, _which in {"only": "matches", "without": "does not match"}.items():
    _help = f"the members of a family whose names a regular expression {_which}"
    BUILTIN.rows(_name, "family", PATTERN, rule=_selected, help=_help)(
        lambda view, node, family: family[selected(node, view.members(node.args[0]))]
    )


K = Param("k", "constant", types=(int,))


def _drawn(*dtypes: DType) -> Rule:
    """A rule: one argument per completion for each of ``dtypes``; the value is per group, over draws of `k`."""

    def rule(call: Call) -> Type:
        for index, dtype in enumerate(dtypes):
            need(call, *(NUMERIC if dtype is DType.FLOAT else (dtype,)), args=[index])
        for index, node in enumerate(call.args):
            if node.type.axis is not Axis.COMPLETION or not call.groups or (node.type.family and len(dtypes) > 1):
                call.fail("DL306.drawn", arg=index, function=call.name, node=node, axis=per(node.type.axis))
        if call.params.get("k", 1) < 1:
            call.fail("DL304.at_least", name="k")
        return broadcast(call).with_axis(Axis.GROUP)

    return rule


def _by_counts(one: Callable[[int, int, int], float]) -> Callable[..., Any]:
    """Wrap ``one(n, c, k)``: n values of a group are not missing, and c of these are true."""

    def run(view: View, node: Node, correct: Any) -> Any:
        segments, k = view.segments(Axis.COMPLETION, Axis.GROUP), node.param("k")
        n = segmented.count(correct, segments)
        c = segments.apply(np.add, segmented.truth(correct).astype(np.int64))
        pairs = zip(n.ravel().tolist(), c.ravel().tolist(), strict=True)
        return np.array([math.nan if n < k else one(n, c, k) for n, c in pairs], np.float64).reshape(c.shape)

    return run


BUILTIN.rows(
    "pass_at", "correct", K, rule=_drawn(DType.BOOL), least="k",
    help="the unbiased pass@k of a group, 1 - C(n-c, k) / C(n, k) (Chen et al. 2021); absent where n < k",
)(_by_counts(lambda n, c, k: 1.0 - math.comb(n - c, k) / math.comb(n, k)))  # fmt: skip
BUILTIN.rows(
    "pass_all", "correct", K, rule=_drawn(DType.BOOL), least="k",
    help="the unbiased pass^k of a group, that k completions are all correct: C(c, k) / C(n, k) (Yao et al. 2024)",
)(_by_counts(lambda n, c, k: math.comb(c, k) / math.comb(n, k)))  # fmt: skip


@BUILTIN.rows(
    "best_at", "x", K, rule=_drawn(DType.FLOAT), least="k",
    help="the unbiased best@k of a group: the mean, over all choices of k completions, of the greatest value",
)  # fmt: skip
def _best_at(view: View, node: Node, x: Any) -> Any:
    groups, k = view.segments(Axis.COMPLETION, Axis.GROUP), node.param("k")

    def one(values: Any) -> float:
        n = len(values)
        if n < k:
            return math.nan
        ways = [math.comb(rank, k - 1) / math.comb(n, k) for rank in range(k - 1, n)]  # the share of draws won
        return float(np.sort(values)[k - 1 :] @ np.array(ways))

    return groups.per_segment(np.asarray(x, np.float64), one)


def _voted(call: Call) -> Type:
    need(call, DType.TEXT, DType.INT, args=[0])
    return _drawn(call.args[0].type.dtype, DType.BOOL)(call)


@BUILTIN.rows(
    "majority_at", "answer", "correct", replace(K, default=None), rule=_voted, least="k",
    help="majority@k of a group: how often the most frequent of k answers, or of all, is correct; ties in equal parts",
)  # fmt: skip
def _majority_at(view: View, node: Node, answer: Any, correct: Any) -> Any:
    groups, k = view.segments(Axis.COMPLETION, Axis.GROUP), dict(node.params).get("k")
    absent = np.asarray(view.absent(node.args[0]), bool)  # an absent answer is no vote
    votes_here = segmented.present(correct) & ~absent
    answers, right = segmented.present(answer), segmented.truth(correct)
    shares = []
    for rows in groups.members():
        here = rows[votes_here[rows]]
        votes: dict[Any, list[float]] = {}
        for row in here[answers[here]].tolist():
            votes.setdefault(answer[row], []).append(float(right[row]))
        drawn = len(here) if k is None else k
        counts = tuple(sorted((len(marks), sum(marks) / len(marks)) for marks in votes.values()))
        shares.append(math.nan if not 0 < drawn <= len(here) else _elected(counts, len(here), drawn))
    return np.array(shares, np.float64)


@lru_cache(4096)
def _elected(counts: tuple[tuple[int, float], ...], n: int, k: int) -> float:
    """The probability that the winner of ``k`` votes drawn from ``n`` is right.

    ``counts`` holds, for each answer, its votes and the share of these that are right. For each number t of the
    winner's votes, ``ways[ties, drawn]`` counts the ways to draw ``drawn`` votes with ``ties`` answers of t votes and
    no answer with more. ``sums`` adds up the shares of the tied winners over these ways. A completion without an answer
    has no vote.
    """
    right = 0.0
    for t in range(1, max((count for count, _ in counts), default=0) + 1):
        if t > k:
            break
        strong = [item for item in counts if item[0] >= t]
        weak = n - sum(count for count, _ in strong)
        ways, sums = np.zeros((2, k // t + 1, k + 1))
        ways[0] = [float(math.comb(weak, drawn)) for drawn in range(k + 1)]
        for count, share in strong:
            before, summed, tie = ways, sums, float(math.comb(count, t))
            ways, sums = np.zeros_like(ways), np.zeros_like(sums)
            for votes in range(t):
                some = float(math.comb(count, votes))
                ways[:, votes:] += some * before[:, : k + 1 - votes]
                sums[:, votes:] += some * summed[:, : k + 1 - votes]
            ways[1:, t:] += tie * before[:-1, : k + 1 - t]
            sums[1:, t:] += tie * (summed + share * before)[:-1, : k + 1 - t]
        right += float((sums[1:, k] / np.arange(1, k // t + 1)).sum())
    return right / math.comb(n, k)


def _carried(call: Call) -> Type:
    need(call, *NUMERIC)
    for index, node in enumerate(call.args):
        if node.type.axis not in (None, Axis.STEP) or node.type.family:
            call.fail("DL306.prev", arg=index, node=node, axis=per(node.type.axis))
    return broadcast(call)


@BUILTIN.rows("prev", "x", "first", rule=_carried, help="the value of the step before; at the first step `first`")
def _prev(view: View, node: Node, x: Any, first: Any) -> Any:
    raise RuntimeFailure.of("DL605.prev")
