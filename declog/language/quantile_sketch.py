"""A fixed-bin histogram of per-token values: quantiles with a known error, whatever the number of tokens.

Bins grow geometrically from ``SMALLEST`` to ``GREATEST`` on both sides of zero (as DDSketch, Masson et al.
2019), so that a quantile is within ``ERROR`` of the true value, relatively; smaller values count as zero, and
greater ones as the greatest, or as infinite where an infinity is among them. 1 has a bin of its own value, so that
quantiles of bools are exact. Imports numpy only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SMALLEST, GREATEST = 1e-8, 1e8
ERROR = 0.01
_TO_ONE = math.ceil(-math.log(SMALLEST) / math.log(1 + 2 * ERROR))  # bins from the smallest value to 1
GROWTH = -math.log(SMALLEST) / _TO_ONE
SIDE = math.ceil(math.log(GREATEST / SMALLEST) / GROWTH) + 1  # bins of one sign
SIZE = 2 * SIDE + 1  # negative ones from the greatest to the smallest, zero, positive ones

_MAGNITUDES = np.exp(GROWTH * (np.arange(SIDE) - _TO_ONE))
VALUES: NDArray[np.float64] = np.concatenate([-_MAGNITUDES[::-1], [0.0], _MAGNITUDES])  # what each bin stands for

Sparse = Sequence[Sequence[int]]  # [bin, count] pairs


def edges_of(
    smallest: float, greatest: float, bins: int, low: float | None = None, high: float | None = None
) -> NDArray[Any]:
    """The edges of equal bins from ``low``, or the smallest value, to ``high``, or the greatest one.

    Beside one end without values on its inner side, the bins together are one wide. Where both ends are too close for
    floats to divide, the range is made wider.
    """
    first, last = smallest if low is None else low, greatest if high is None else high
    if first >= last and low is not None:
        last = first + 1.0
    elif first >= last and high is not None:
        first = last - 1.0
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.histogram_bin_edges([], bins, range=(first, last))
    except ValueError:  # too close, or so far apart that no float is the distance
        least = 2.0 * bins * float(np.spacing(max(abs(first), abs(last))))
        if last / 2 - first / 2 < least:
            first, last = first - least, last + least
        return 2.0 * np.linspace(first / 2, last / 2, bins + 1)


@dataclass(frozen=True)
class Sketch:
    """How many values fell into each bin, ``[SIZE]``, the exact smallest and greatest, whether they are integers."""

    counts: NDArray[np.int64]
    low: float
    high: float
    integers: bool = False

    @classmethod
    def merge(cls, parts: Iterable[Sparse | None], low: float, high: float, *, integers: bool = False) -> Sketch:
        """The counts of several batches together."""
        counts = np.zeros(SIZE, np.int64)
        for part in parts:
            if part:
                pairs = np.asarray(part, np.int64)
                np.add.at(counts, pairs[:, 0], pairs[:, 1])
        return cls(counts, low, high, integers)

    def quantile(self, level: float) -> float:
        """The quantile, interpolated linearly between neighbouring values; NaN where there are none."""
        ranks = np.cumsum(self.counts)
        total = int(ranks[-1])
        if not total:
            return math.nan
        position = level * (total - 1)
        below, above = math.floor(position), math.ceil(position)
        first, second = (
            self._value(int(np.searchsorted(ranks, rank, side="right")), rank, total) for rank in (below, above)
        )
        if first == second or position == below:
            return first
        if math.isinf(first) or math.isinf(second):  # the infinity; of both signs NaN
            return first + second
        return first + (second - first) * (position - below)

    def tail(self, level: float, *, top: bool) -> float:
        """The mean of the values from a quantile on, to the greatest (``top``) or the smallest; NaN of none.

        The number of values is that of distinct ones: those that share the quantile's bin are not known apart.
        """
        edge = self.quantile(level)
        if not math.isfinite(edge):
            return edge + (self.high if top else self.low)
        values = np.clip(VALUES, self.low, self.high)
        values[self._infinite] = [self.high if bin else self.low for bin in self._infinite]
        way, total = (-1 if top else 1), int(self.counts.sum())
        count = total - math.ceil(level * (total - 1)) if top else math.floor(level * (total - 1)) + 1
        taken = np.diff(np.minimum(np.cumsum(self.counts[::way]), count), prepend=0)
        used = np.flatnonzero(taken)
        return float(taken[used] @ values[::way][used]) / count

    def _value(self, bin: int, rank: int, total: int) -> float:
        if rank == 0:
            return self.low
        if bin in self._infinite:
            return self.high if bin else self.low
        return self.high if rank == total - 1 else float(np.clip(VALUES[bin], self.low, self.high))

    @property
    def _infinite(self) -> list[int]:
        """The outermost bins that hold infinities."""
        return [bin for bin, end in ((0, self.low), (SIZE - 1, self.high)) if math.isinf(end)]

    @property
    def infinite(self) -> int:
        """How many values are infinite."""
        return int(self.counts[self._infinite].sum())

    def histogram(
        self, bins: int, low: float | None = None, high: float | None = None
    ) -> tuple[NDArray[Any], NDArray[Any]] | float:
        """Counts in equal bins, and the edges, between two ends as ``edges_of`` has them; of no finite value NaN.

        The values of one bin of the sketch are spread evenly over its width, but those of integers. So what is counted
        on the wrong side of an edge lies within ``2 * ERROR`` of it.
        """
        finite = self.counts.copy()
        finite[self._infinite] = 0
        used = np.flatnonzero(finite)
        if not len(used):
            return math.nan
        # beside an infinity only the bin of the finite end is known, and the other end may lie in the same bin
        smallest = self.low if math.isfinite(self.low) else min(float(VALUES[used[0]]), self.high)
        greatest = self.high if math.isfinite(self.high) else max(float(VALUES[used[-1]]), smallest)
        edges = edges_of(smallest, greatest, bins, low, high)
        values = VALUES[used]
        spread = values * np.exp([[-GROWTH / 2], [GROWTH / 2]])
        ends = np.tile(np.rint(values), (2, 1)) if self.integers else spread
        lower, upper = np.clip(np.sort(ends, axis=0), smallest, greatest)
        width = np.where(upper > lower, upper - lower, 1.0)
        share = np.where(upper > lower, (edges[1:-1, None] - lower) / width, edges[1:-1, None] > lower)
        below = np.rint(np.clip(share, 0.0, 1.0) @ finite[used])
        return np.diff(below, prepend=0, append=finite.sum()).astype(np.int64), edges


def sparse(counts: NDArray[Any]) -> list[list[int]]:
    """``[bin, count]`` pairs of the bins that hold anything."""
    used = np.flatnonzero(counts)
    return [[int(bin), int(count)] for bin, count in zip(used, counts[used], strict=True)]
