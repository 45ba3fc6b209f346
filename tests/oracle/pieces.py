"""Values of pieces of a window, and what is combined of them: in the window, and over the run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.oracle.cases import Case, Point
from tests.oracle.interpreter import World
from tests.oracle.reductions import Between
from tests.oracle.trees import Tree
from tests.oracle.values import aggregate, there

Piece = tuple[Any, ...]
Cells = dict[str, dict[Piece, Any]]  # by member or label: by piece of a pool: a value
GAP = float("nan")  # this very one is of missing values; another NaN is of infinities

POOLS: dict[str, Any] = {
    "window": lambda at: (),
    "step": lambda at: (at.block,),
    "batch": lambda at: (at.block, at.batch),
    "rank": lambda at: (-at.rank,),
    "rank_batch": lambda at: (at.block, at.batch, -at.rank),  # so that the last one is of the lowest rank
}


def all_there(row: tuple[Point, tuple[Any, ...], Any]) -> bool:
    """Whether a row's values are neither missing nor absent."""
    return all(there(value) for value in row[1])


def pool_of(spec: Mapping[str, Any]) -> str:
    """What is reduced at once: the window, or each step, batch or rank."""
    default = "step" if smooth(spec) else "window"
    return str(spec.get("over", default)).removeprefix("run").removeprefix("_") or "window"


def smooth(spec: Mapping[str, Any]) -> str:
    """How a smooth curve is made, `ema(0.9)` or `rolling(3)`; empty for another metric."""
    combine = str(spec.get("combine", ""))
    return combine if "(" in combine else ""


def carried(spec: Mapping[str, Any]) -> bool:
    """Whether pieces over the run become one value."""
    return bool(smooth(spec)) or spec.get("over", "").startswith("run_")


def goes_on(spec: Mapping[str, Any]) -> bool:
    """Whether a metric is over the run."""
    return bool(smooth(spec)) or spec.get("over", "").startswith("run")


def over_run(spec: Mapping[str, Any], pieces: dict[Piece, Any], window: list[int], came: bool) -> dict[Piece, Any]:
    """The one value of what goes on over the run; ``window``: the steps that came last; ``came``: any ever did."""
    values = [value for _, value in sorted(pieces.items()) if value is not GAP]
    gone = any(value is GAP and piece[0] in window for piece, value in pieces.items())
    if gone and (not came or spec.get("nan") == "propagate"):
        return {(): math.nan}
    if not values:
        return {(): spec["empty"]} if "empty" in spec else {}
    way, _, number = smooth(spec).removesuffix(")").partition("(")
    if way == "ema":
        found, past = values[0], float(number)
        for value in values[1:]:
            found = past * found + (1 - past) * value
        return {(): found}
    if way.startswith("rolling"):
        how = way.removeprefix("rolling").removeprefix("_").replace("median", "p50")
        found = together(how or "mean", values[-int(number) :])
    else:
        found = together(spec.get("combine", "mean"), values)
    found = spec.get("empty") if found is None else found
    return {} if found is None else {(): found}


def bounded(low: float, high: float) -> Any:
    """What lies between two bounds; infinities and NaN are what they are."""
    return Between(low, high) if math.isfinite(low) and math.isfinite(high) else low + high


def together(how: str, values: Sequence[Any]) -> Any:
    """One value of several, of which NaN and infinities are some."""
    if any(isinstance(value, Between) for value in values):
        low, high = ([getattr(value, side) if isinstance(value, Between) else value for value in values]
                     for side in ("low", "high"))  # fmt: skip
        return bounded(together(how, low), together(how, high))
    if how in ("first", "last"):
        return values[0 if how == "first" else -1]
    if how in ("var", "std") and len(values) == 1:
        return None
    if any(isinstance(value, float) and math.isnan(value) for value in values):
        return math.nan
    found = aggregate(how, values)
    return math.nan if found is None else found  # of infinities


def is_odd(value: Any) -> bool:
    """Whether a value is a NaN, or infinite."""
    return isinstance(value, float) and not math.isfinite(value)


def narrow(tree: Tree, case: Case, world: World) -> list[str]:
    """The signals of a per-token part that hold less than 64 bits."""
    return [
        name
        for name in dict.fromkeys(_token_parts(tree, world, False))
        if case.dtypes.get(name) in ("float32", "float16", "bfloat16")
    ]


def _token_parts(tree: Tree, world: World, inside: bool) -> Iterator[str]:
    if tree[0] == "signal":
        if inside or world.signals[tree[1]]["axis"] == "token":
            yield tree[1]
        return
    inside = inside or any(item[0] == "signal" and world.signals[item[1]]["axis"] == "token" for item in _flat(tree))
    for item in tree[1:]:
        if isinstance(item, tuple):
            yield from _token_parts(item, world, inside)


def _flat(tree: Tree) -> Iterator[Tree]:
    yield tree
    for item in tree[1:]:
        if isinstance(item, tuple):
            yield from _flat(item)


def frequent(labels: list[Any], most: int, known: Mapping[Any, str]) -> dict[Any, str]:
    """The name of each label: what is known, then the most frequent, of equal ones the first; the rest is pooled."""
    counts = Counter(label for label in labels if label not in known)
    order = sorted(counts, key=lambda label: (-counts[label], label.split("/") if isinstance(label, str) else label))
    return {
        **known,
        **{label: shown(label) if place < most else "_other" for place, label in enumerate(order, len(known))},
    }


def shown(label: Any) -> str:
    """A label as text."""
    return str(label).lower() if isinstance(label, bool) else str(label)


def combine(spec: Mapping[str, Any], pieces: dict[Piece, Any]) -> Any:
    """One value of the values of a window's pieces."""
    if pool_of(spec) == "window" or goes_on(spec):
        return next(iter(pieces.values()), None)
    values = [value for _, value in sorted(pieces.items())]
    if not values:
        return None
    return together(spec.get("combine", "mean"), values)
