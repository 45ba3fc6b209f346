"""A histogram of per-token values with fixed bins: it gives quantiles with a known error for any number of tokens.

Bins grow geometrically from ``SMALLEST`` to ``GREATEST`` on both sides of zero (as in DDSketch, Masson et al. 2019).
So the relative error of a quantile is at most ``ERROR``. Smaller magnitudes count as zero. Greater ones count as the
greatest value, or as infinite if an infinity is among them. One bin has exactly the value 1, so quantiles of bools are
exact.
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
SIZE = 2 * SIDE + 1  # bins in ascending order: negative values, zero, positive values

_MAGNITUDES = np.exp(GROWTH * (np.arange(SIDE) - _TO_ONE))
VALUES: NDArray[np.float64] = np.concatenate([-_MAGNITUDES[::-1], [0.0], _MAGNITUDES])  # the value of each bin

Sparse = Sequence[Sequence[int]]  # [bin, count] pairs


def edges_of(
    smallest: float, greatest: float, bins: int, low: float | None = None, high: float | None = None
) -> NDArray[Any]:
    """The edges of equal bins from ``low`` (default: the smallest value) to ``high`` (default: the greatest value).

    If no value lies beyond the one given end, all bins together are 1 wide. If both ends are too close for floats to
    divide, the range is widened.
    """
    first, last = smallest if low is None else low, greatest if high is None else high
    if first >= last and low is not None:
        last = first + 1.0
    elif first >= last and high is not None:
        first = last - 1.0
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.histogram_bin_edges([], bins, range=(first, last))
    except ValueError:  # the ends are too close, or their distance is beyond a float
        least = 2.0 * bins * float(np.spacing(max(abs(first), abs(last))))
        if last / 2 - first / 2 < least:
            first, last = first - least, last + least
        return 2.0 * np.linspace(first / 2, last / 2, bins + 1)


@dataclass(frozen=True)
class Sketch:
    """The count of values in each bin, ``[SIZE]``, the exact extremes, and whether all values are integers."""

    counts: NDArray[np.int64]
    low: float
    high: float
    integers: bool = False

    @classmethod
    def merge(cls, parts: Iterable[Sparse | None], low: float, high: float, *, integers: bool = False) -> Sketch:
        """Add up the counts of several batches."""
        counts = np.zeros(SIZE, np.int64)
        for part in parts:
            if part:
                pairs = np.asarray(part, np.int64)
                np.add.at(counts, pairs[:, 0], pairs[:, 1])
        return cls(counts, low, high, integers)

    def quantile(self, level: float) -> float:
        """The quantile at a level, interpolated linearly between neighbouring values; NaN for no values."""
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
        if math.isinf(first) or math.isinf(second):  # the sum is the infinity, or NaN for infinities of both signs
            return first + second
        return first + (second - first) * (position - below)

    def tail(self, level: float, *, top: bool) -> float:
        """The mean of the values from a quantile to the greatest value (``top``) or to the smallest; NaN for no values.

        The number of values is computed as if all were distinct: the sketch cannot tell values of one bin apart.
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
        """The number of infinite values."""
        return int(self.counts[self._infinite].sum())

    def histogram(
        self, bins: int, low: float | None = None, high: float | None = None
    ) -> tuple[NDArray[Any], NDArray[Any]] | float:
        """Counts in equal bins, and their edges from ``edges_of``; NaN if no value is finite.

        The values in one bin of the sketch are spread evenly over its width, except for integers. So a value that is
        counted on the wrong side of an edge lies within ``2 * ERROR`` of the edge.
        """
        finite = self.counts.copy()
        finite[self._infinite] = 0
        used = np.flatnonzero(finite)
        if not len(used):
            return math.nan
        # if one end is infinite, only a bin is known for the finite values' end there; both ends may share that bin
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
    """The ``[bin, count]`` pairs of the bins that are not empty."""
    used = np.flatnonzero(counts)
    return [[int(bin), int(count)] for bin, count in zip(used, counts[used], strict=True)]
