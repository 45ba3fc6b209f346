"""Reductions of a list of numbers, one loop each; what has no value is None."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from tests.oracle.values import moment, total

MOMENTS = ("mean", "sum", "var", "std", "pstd")


@dataclass(frozen=True)
class Between:
    """A quantile over tokens, known to a percent, or what is combined of such: its bounds."""

    low: float
    high: float

    @classmethod
    def neighbours(cls, low: float, high: float) -> Between:
        """Within 1 % of what lies between two values."""
        return cls(low - 0.0101 * abs(low) - 1e-9, high + 0.0101 * abs(high) + 1e-9)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Bins:
    """A histogram; ``loose``: over tokens, of which only the ends and the number of values are exact.

    ``outside``: there are infinities, which are in no bin; of nothing else there are no bins.
    """

    counts: tuple[int, ...] = ()
    edges: tuple[float, ...] = ()
    loose: bool = False
    outside: bool = False


def reduced(name: str, rows: Sequence[tuple[Any, ...]], *, tokens: bool = False) -> Any:
    """The value of a reduction; a row is (value, weight), or (value, other value)."""
    if not rows:
        return None
    values = [row[0] for row in rows]
    if name in ("ece", "corr") or name.startswith("ece("):
        pairs = [(float(row[0]), float(row[1])) for row in rows]
        return corr(pairs) if name == "corr" else ece(pairs, int(name.partition("=")[2].rstrip(")") or 10))
    if name == "mean":
        weights = total([row[1] for row in rows])
        return math.nan if weights == 0 else total([row[0] * row[1] for row in rows]) / weights
    if name == "sum":
        return total([row[0] * row[1] for row in rows])
    if name in MOMENTS:
        return None if len(values) == 1 and name in ("var", "std") else moment(name, values)
    if name == "count":
        return len(values)
    if name == "last":
        return values[-1]
    if name in ("min", "max"):
        return min(values) if name == "min" else max(values)
    if name.startswith("histogram"):
        said = dict(re.findall(r"(\w+)=([-\d.]+)", name))
        ends = [float(said[end]) if end in said else None for end in ("low", "high")]
        return histogram(values, int(said.get("bins", 32)), ends, loose=tokens)
    if name.startswith(("top_mean", "bottom_mean")):
        return tail([float(item) for item in values], name, tokens=tokens)
    return quantile([float(item) for item in values], float(name[1:]) / 100, tokens=tokens)


def weighted_tokens(name: str, rows: Sequence[tuple[tuple[int, ...], float, float]]) -> Any:
    """A mean or sum of (completion, value, weight): a weight is that of the sum of a completion's tokens."""
    tokens: dict[tuple[int, ...], list[float]] = {}
    for completion, value, _ in rows:
        tokens.setdefault(completion, []).append(value)
    weights = {completion: weight for completion, _, weight in rows}
    if not rows:
        return None
    summed = total([total(values) * weights[completion] for completion, values in tokens.items()])
    weighed = total([len(values) * weights[completion] for completion, values in tokens.items()])
    return summed if name == "sum" else math.nan if weighed == 0 else summed / weighed


def quantile(values: list[float], share: float, *, tokens: bool) -> Any:
    """Linear between the two neighbours of its place."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    if math.isinf(low) or math.isinf(high):
        return low if low == high or place == below else low + high  # of both infinities NaN
    if tokens:
        return Between.neighbours(ordered[max(below - 1, 0)] if place == below else low, high)
    return low + (high - low) * (place - below) if high != low else low


def tail(values: list[float], name: str, *, tokens: bool) -> Any:
    """The mean of the values at or beyond a quantile; over tokens those of its bin are not known apart."""
    share = float(name.partition("=")[2].rstrip(")") or 0.2)
    top = name.startswith("top")
    edge = quantile(values, 1 - share if top else share, tokens=False)
    if math.isnan(edge):
        return math.nan
    beyond = [value for value in values if (value >= edge if top else value <= edge)]
    exact = mean_of(beyond)
    if not tokens or not math.isfinite(exact):
        return exact
    place = (1 - share if top else share) * (len(values) - 1)
    first = sorted(values, reverse=top)[: len(values) - math.ceil(place) if top else math.floor(place) + 1]
    off = 0.0101 * max(mean_of([abs(value) for value in some]) for some in (beyond, first)) + 1e-9
    return Between(min(exact, mean_of(first)) - off, max(exact, mean_of(first)) + off)


def mean_of(values: list[float]) -> float:
    return total(values) / len(values)


def histogram(values: list[float], bins: int, ends: Sequence[float | None], *, loose: bool) -> Bins:
    """Equal bins from the smallest to the greatest, the last with both ends; about one value they are one unit wide.

    An end that is said is that of the bins, and values beyond it are in the bin beside it.
    """
    outside = not all(map(math.isfinite, values))
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return Bins(outside=True)
    low, high = (float(pick(values)) if end is None else end for pick, end in zip((min, max), ends, strict=True))
    if low >= high and ends[0] is not None:
        high = low + 1
    elif low >= high and ends[1] is not None:
        low = high - 1
    elif low == high:
        low, high = low - 0.5, high + 0.5
    width = (high - low) / bins
    counts = [0] * bins
    for value in values:
        counts[max(0, min(int((value - low) / width), bins - 1))] += 1
    return Bins(tuple(counts), tuple(low + width * place for place in range(bins + 1)), loose, outside)


def ece(pairs: list[tuple[float, float]], bins: int) -> float:
    """The gaps between mean confidence and accuracy of bins (lo, hi], weighted by their rows (Guo et al. 2017)."""
    gaps = 0.0
    for place in range(bins):
        inside = [pair for pair in pairs if place / bins < pair[0] <= (place + 1) / bins]
        if place == 0:
            inside += [pair for pair in pairs if pair[0] == 0]
        if inside:
            confidence, correct = (math.fsum(pair[side] for pair in inside) / len(inside) for side in (0, 1))
            gaps += len(inside) / len(pairs) * abs(confidence - correct)
    return gaps


def corr(pairs: list[tuple[float, float]]) -> Any:
    """Pearson's correlation."""
    if not all(map(math.isfinite, chain(*pairs))):
        return math.nan
    if any(len({pair[side] for pair in pairs}) == 1 for side in (0, 1)):
        return None  # also where a rounded mean differs from what all are
    count = len(pairs)
    means = [math.fsum(pair[side] for pair in pairs) / count for side in (0, 1)]
    square = [math.fsum((pair[side] - means[side]) ** 2 for pair in pairs) for side in (0, 1)]
    both = math.fsum((pair[0] - means[0]) * (pair[1] - means[1]) for pair in pairs)
    return both / math.sqrt(square[0] * square[1]) if min(square) > 0 else None
