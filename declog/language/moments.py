"""Counts, sums, squared distances and extrema: how they are computed and merged, and the formulas over them.

Each mean, deviation or extremum has one formula, for numpy and for torch. The formula serves a window's rows, the rows
of a group, and the tokens of a completion.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from declog.language import segmented
from declog.language.segmented import Segments, present

Array = NDArray[Any]
Stat = Literal["n", "total", "m2", "min", "max"]
NEUTRAL: Mapping[Stat, float] = {"n": 0.0, "total": 0.0, "m2": 0.0, "min": np.inf, "max": -np.inf}  # of no values
STATS: tuple[Stat, ...] = tuple(NEUTRAL)
ALL = frozenset(STATS)


@dataclass(eq=False)  # never changed, but a frozen dataclass takes three times as long to make
class Moments:
    """Mergeable statistics of the values that are not missing. All arrays have the same shape and are float64.

    ``total`` is the sum, ``m2`` the sum of squared distances from the mean. The values of ``NEUTRAL`` change nothing
    in ``pooled``.
    """

    n: Array
    total: Array
    m2: Array
    min: Array
    max: Array

    @classmethod
    def empty(cls, shape: tuple[int, ...] = ()) -> Moments:
        """The statistics of no values."""
        return cls(*[np.full(shape, neutral) for neutral in NEUTRAL.values()])

    @classmethod
    def of(cls, values: Array, stats: frozenset[Stat] = ALL, there: Array | None = None) -> Moments:
        """The statistics of ``values[..., rows]`` over the rows. Only ``stats`` are computed.

        ``there`` has the same shape and marks the values that count; by default the values that are not NaN.
        """
        values = np.asarray(values)
        rows = values.shape[-1]
        if not rows:
            return cls.empty(values.shape[:-1])
        return cls.by_segment(values, Segments.single(rows), stats, there).take(0)

    @classmethod
    def by_segment(
        cls, values: Array, segments: Segments, stats: frozenset[Stat] = ALL, there: Array | None = None
    ) -> Moments:
        """The statistics of ``values[..., rows]`` over each segment, ``[..., count]``; otherwise as ``of``.

        Without ``there``, only the parts of the array that have NaN or infinities are masked: masking takes twice as
        long.
        """
        if not segments.full:
            used, parts = segments.used()
            return cls.by_segment(values, parts, stats, there)._scattered(used, segments.count)
        values, parts = floats(values), segments
        if parts.order is not None:  # sort once for all statistics
            values, there = parts.sorted(values), None if there is None else parts.sorted(there)
            parts = Segments(np.repeat(np.arange(parts.count), parts.counts), parts.count)

        def filled(array: Array, neutral: float) -> Array:
            return array if there is None else np.where(there, array, neutral)

        with np.errstate(invalid="ignore"):  # inf - inf
            total = parts.apply(np.add, filled(values, 0.0))
            finite = np.isfinite(total)
            masked = there is None and np.count_nonzero(finite) < finite.size
            partly = ~finite.all(-1) if masked else np.False_
            if masked and partly.all():
                return cls.by_segment(values, parts, stats, present(values))
            counts = parts.counts if there is None else parts.apply(np.add, there.astype(np.float64))
            m2 = low = high = n = np.empty(total.shape)
            n[...] = counts
            if "m2" in stats:
                m2 = parts.squares(filled(values - parts.spread(_share(total, n)), 0.0))
        if "min" in stats:
            low = parts.apply(np.minimum, filled(values, np.inf))
        if "max" in stats:
            high = parts.apply(np.maximum, filled(values, -np.inf))
        moments = cls(n, total, m2, low, high)
        if masked:
            again = cls.by_segment(values[partly], parts, stats, present(values[partly]))
            for stat in STATS:
                getattr(moments, stat)[partly] = getattr(again, stat)
        return moments

    @classmethod
    def single(cls, values: Array) -> Moments:
        """The statistics of each value alone, in the shape of the values. A NaN gets the neutral statistics."""
        values = floats(values)
        there = present(values)
        if there.all():
            return cls(np.ones(values.shape), values, np.zeros(values.shape), values, values)
        zero, low, high = (np.where(there, values, neutral) for neutral in (0.0, np.inf, -np.inf))
        return cls(there.astype(np.float64), zero, np.zeros(values.shape), low, high)

    def pooled(self, segments: Segments | None = None, stats: frozenset[Stat] = ALL) -> Moments:
        """Merge the statistics of all rows, ``[..., rows]`` to ``[...]``, or of each segment, to ``[..., count]``.

        Squared distances are merged as in Chan et al. 1979.
        """
        if segments is None:
            rows = self.n.shape[-1]
            return self.pooled(Segments.single(rows), stats).take(0) if rows else Moments.empty(self.n.shape[:-1])
        if not segments.full:
            used, parts = segments.used()
            return self.pooled(parts, stats)._scattered(used, segments.count)
        with np.errstate(invalid="ignore"):  # inf - inf
            n, total = segments.apply(np.add, self.n), segments.apply(np.add, self.total)
            m2 = low = high = n
            if "m2" in stats:
                gap = _share(self.total, self.n) - segments.spread(_share(total, n))
                between = np.where(self.n > 0, self.n * gap * gap, 0.0)
                m2 = segments.apply(np.add, self.m2 + between)
        if "min" in stats:
            low = segments.apply(np.minimum, self.min)
        if "max" in stats:
            high = segments.apply(np.maximum, self.max)
        return Moments(n, total, m2, low, high)

    def _scattered(self, used: Array, count: int) -> Moments:
        """The statistics of ``count`` segments, of which only the ``used`` ones have values."""
        return self.map(lambda array, neutral: segmented.scattered(array, used, count, neutral))

    @classmethod
    def joined(cls, parts: Sequence[Moments]) -> Moments:
        """Concatenate arrays of statistics along the first axis."""
        return cls(*[np.concatenate([getattr(part, stat) for part in parts]) for stat in STATS])

    @classmethod
    def stacked(cls, parts: Sequence[Moments]) -> Moments:
        """Stack arrays of statistics of one shape along a new last axis."""
        return cls(*(np.stack([getattr(part, stat) for part in parts], -1) for stat in STATS))

    def map(self, change: Callable[[Array, float], Array]) -> Moments:
        """Apply ``change(array, neutral)`` to every array and its neutral value."""
        return Moments(*[change(getattr(self, stat), neutral) for stat, neutral in NEUTRAL.items()])

    def reshape(self, *shape: int) -> Moments:
        """The same statistics in another shape."""
        return Moments(*[getattr(self, stat).reshape(shape) for stat in STATS])

    def take(self, index: Any) -> Moments:
        """The entries at an index of the last axis."""
        return Moments(*[getattr(self, stat)[..., index] for stat in STATS])


def floats(values: Array) -> Array:
    """The same values as float64."""
    return values if values.dtype == np.float64 else values.astype(np.float64)


# ---- formulas: from statistics to a value; ``xp`` is numpy or torch; NaN means no value


@dataclass(frozen=True)
class Formula:
    """A function ``run(xp, *statistics)`` of at least ``least`` values. The parameters have the statistics' names.

    ``exact`` reduces integers and bools, which are never missing, without floats.
    """

    run: Callable[..., Any]
    help: str = ""
    least: int = 1
    exact: np.ufunc | None = None

    @cached_property
    def takes(self) -> tuple[str, ...]:
        """The statistics that the formula reads."""
        return tuple(inspect.signature(self.run).parameters)[1:]

    @cached_property
    def stats(self) -> tuple[str, ...]:
        """The statistics that a mergeable state needs: ``takes``, and the counts and sums that merge ``m2``."""
        needs = {"n", *self.takes, *(("total",) if "m2" in self.takes else ())}
        return tuple(stat for stat in (*STATS, "first", "last") if stat in needs)

    @cached_property
    def mergeable(self) -> frozenset[Stat]:
        """The names in ``stats`` that ``Moments`` has."""
        return frozenset(stat for stat in STATS if stat in self.stats)

    def __call__(self, xp: Any, statistics: Mapping[str, Any]) -> Any:
        """The value for statistics by name, which are arrays of one shape."""
        return self.run(xp, *[statistics[stat] for stat in self.takes])

    def of(self, moments: Moments, index: Any = None, rows: int = 0) -> Array:
        """The values for an array of statistics, or for the entries at ``index`` of its first axis. NaN for no values.

        ``rows``: the number of values of every entry, if the caller knows it. From 2 on no entry is checked.
        """
        arrays = [getattr(moments, stat) for stat in ("n", *self.takes)]
        if index is not None:  # `take` is faster than an index of positions
            arrays = [array[index] if isinstance(index, slice) else array.take(index, 0) for array in arrays]
        n, *statistics = arrays
        if rows < 2:
            return np.asarray(_where(np, n > 0, self.run(np, *statistics)))
        statistics[0] = np.float64(rows)  # every formula over moments takes `n` first
        values = np.asarray(self.run(np, *statistics))  # a formula of `n` alone returns one number
        return values if values.shape == n.shape else np.full(n.shape, values)


def _share(values: Any, n: Any) -> Any:
    return values / (n + (n == 0))


def _where(xp: Any, keep: Any, values: Any) -> Any:
    if xp is np:
        return values if np.count_nonzero(keep) == keep.size else np.where(keep, values, np.nan)
    return xp.where(keep, _floating(xp, values), np.nan)


def _floating(xp: Any, values: Any) -> Any:
    return values if xp is np or values.is_floating_point() else values.double()


def var(xp: Any, n: Any, m2: Any) -> Any:
    """The sample variance (n-1), torch's default; absent for fewer than two values."""
    return _where(xp, n > 1, _share(m2, n - 1))


def std(xp: Any, n: Any, m2: Any) -> Any:
    """The sample standard deviation (n-1)."""
    return xp.sqrt(var(xp, n, m2))


FORMULAS: Mapping[str, Formula] = {
    "count": Formula(lambda xp, n: n, "how many are not missing"),
    "sum": Formula(
        lambda xp, n, total: _where(xp, n > 0, total), "the sum; of bools how many are true", exact=np.add),
    "mean": Formula(
        lambda xp, n, total: _where(xp, n > 0, _share(_floating(xp, total), n)),
        "the mean; of bools the fraction that is true"),
    "var": Formula(var, "the sample variance (n-1); of one value absent", 2),
    "std": Formula(std, "the sample standard deviation (n-1), as torch; of one value absent", 2),
    "pstd": Formula(
        lambda xp, n, m2: xp.sqrt(_where(xp, n > 0, _share(m2, n))),
        "the population standard deviation, numpy's default; of one value 0"),
    "min": Formula(
        lambda xp, n, min: _where(xp, n > 0, min), "the smallest; of bools 1 if all are true", exact=np.minimum),
    "max": Formula(
        lambda xp, n, max: _where(xp, n > 0, max), "the greatest; of bools 1 if any is true", exact=np.maximum),
    "any": Formula(lambda xp, n, total: _where(xp, n > 0, total > 0), "whether any that is not missing is true"),
    "all": Formula(lambda xp, n, total: _where(xp, n > 0, total == n), "whether all that are not missing are true"),
    "first": Formula(lambda xp, first: first, "the first that is not missing"),
    "last": Formula(lambda xp, last: last, "the last that is not missing"),
}  # fmt: skip


# ---- aggregates: reductions with `over=`, for groups with at least one row; see ``segmented.aggregate``


def _aggregate(formula: Formula) -> Callable[[Array, Segments], Array]:
    def run(values: Array, segments: Segments) -> Array:
        if formula.exact is not None and values.dtype.kind != "f":
            return segments.apply(formula.exact, values.astype(np.int64) if formula.exact is np.add else values)
        return formula.of(Moments.by_segment(values, segments, formula.mergeable))

    return run


AGGREGATES: Mapping[str, Callable[[Array, Segments], Array]] = {
    **{name: _aggregate(formula) for name, formula in FORMULAS.items()},
    "count": segmented.count, "any": segmented.any_of, "all": segmented.all_of,
    "first": segmented.first, "last": segmented.last,
}  # fmt: skip
