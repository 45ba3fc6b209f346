"""Fixes for keys of a metric that name an axis of rows, ``over: group`` and ``per: group``: an aggregate."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from declog.language.fixes import idioms
from declog.language.notation import is_reduction, reduced

AXES_OF_METRICS = frozenset({"token", "completion", "group", "prompt", "tokens", "completions", "groups", "prompts"})
PER_GROUP = ("per", "within", "per_group", "groupwise")  # keys that mean each group


def of_each(name: str, entry: Mapping[str, Any], over: str) -> dict[str, Any]:
    """A metric with one value per group, completion or token, as ``over`` says; its `combine` was meant to reduce.

    It reduces the rows of each group, or the values of all groups if another reduction is of each.
    """
    axis = "token" if over.startswith("token") else "completion"  # a group's mean is over its completions
    rest = {key: item for key, item in entry.items() if key not in ("expr", "over", *PER_GROUP)}
    expr = entry.get("expr", name)
    way, combines = idioms.reduction(str(rest.get("combine"))), dict[str, Any]()
    if is_reduction(way, 1):
        combines = {"reduce": way}
        del rest["combine"]
    if over.startswith(("group", "prompt")) and isinstance(rest.get("reduce"), list | None) and not reduced(str(expr)):
        rest, combines = {**rest, **combines}, {}
    reduce = rest.pop("reduce", None)
    one = isinstance(reduce, str) and not isinstance(expr, list) and is_reduction(reduce, 1)
    if isinstance(expr, list):
        expr = f"{reduce}({', '.join(map(str, expr))})"

    def over_axis(call: re.Match[str]) -> str:
        return f"{call[1]}({call[2]}, over={axis})" if is_reduction(call[1], 1) else call[0]

    calls = re.sub(r"\b(\w+)\(([^()]+)\)", over_axis, str(expr))
    inside = calls if calls != expr else f"{reduce if one else 'mean'}({expr}, over={axis})"
    return {
        "expr": inside,
        **({} if reduce is None else {"reduce": reduce if isinstance(reduce, list) else "mean"}),
        **combines,
        **rest,
    }
