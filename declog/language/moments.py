"""Counts, sums, squared distances and extrema: how they are taken, merged, and what is finished from them.

A mean, a deviation, an extremum is one formula here, on numpy and on torch alike: over a window's rows, over the rows
of a group, over the tokens of a completion. Imports numpy and segments only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Moments:
    """Mergeable statistics of values that are not missing; every array has one shape, float64.

    ``total`` is the sum, ``m2`` the sum of squared distances from the mean. What is ``NEUTRAL`` is the identity of
    ``merge``.
    """

    n: Array
    total: Array
    m2: Array
    min: Array
    max: Array

    @classmethod
    def empty(cls, shape: tuple[int, ...] = ()) -> Moments:
        """The statistics of no values."""
        return cls(*(np.full(shape, neutral) for neutral in NEUTRAL.values()))

    @classmethod
    def of(cls, values: Array, stats: frozenset[Stat] = ALL, there: Array | None = None) -> Moments:
        """The statistics of ``values[..., rows]`` over the rows. Only ``stats`` are computed.

        ``there`` says which values count, of the same shape; by default those that are not NaN.
        """
        values = floats(np.asarray(values))
        rows = values.shape[-1]
        if not rows:
            return cls.empty(values.shape[:-1])
        if there is not None:
            return cls._masked(values, stats, there)
        with np.errstate(invalid="ignore"):  # inf - inf
            total = values.sum(-1)
            gaps = ~np.isfinite(total)
            if gaps.all():
                return cls._masked(values, stats, present(values))
            n = np.full(values.shape[:-1], float(rows))
            m2 = low = high = n
            if "m2" in stats:
                distance = values - (total / rows)[..., None]
                m2 = np.einsum("...i,...i->...", distance, distance)
            if "min" in stats:
                low = values.min(-1)
            if "max" in stats:
                high = values.max(-1)
        whole = cls(n, total, m2, low, high)
        if not gaps.any():
            return whole
        some = values[gaps]  # in which something is missing or infinite
        return whole._with(gaps, cls._masked(some, stats, present(some)))

    @classmethod
    def _masked(cls, values: Array, stats: frozenset[Stat], there: Array) -> Moments:
        """The statistics of those values that are there."""
        with np.errstate(invalid="ignore"):  # inf - inf
            n = there.sum(-1).astype(np.float64)
            total = np.where(there, values, 0.0).sum(-1)
            m2 = low = high = n
            if "m2" in stats:
                distance = np.where(there, values - mean(np, n, total)[..., None], 0.0)
                m2 = np.einsum("...i,...i->...", distance, distance)
        if "min" in stats:
            low = np.where(there, values, np.inf).min(-1)
        if "max" in stats:
            high = np.where(there, values, -np.inf).max(-1)
        return cls(n, total, m2, low, high)

    def _with(self, rows: Array, other: Moments) -> Moments:
        """The same with the statistics of some rows in place of its own."""

        def patched(stat: Stat) -> Array:
            array: Array = getattr(self, stat).copy()
            array[rows] = getattr(other, stat)
            return array

        return Moments(*map(patched, STATS))

    @classmethod
    def by_segment(cls, values: Array, segments: Segments, stats: frozenset[Stat] = ALL) -> Moments:
        """The statistics of ``values[k, rows]`` over each segment, ``[k, count]``. Only ``stats`` are computed.

        A row of values with NaN or infinities is pooled from the statistics of each value.
        """
        used, parts = segments.used()
        if len(used) < segments.count:
            found = cls.by_segment(values, parts, stats)
            return found.map(lambda part, neutral: segmented.laid(part, used, segments.count, neutral))
        values = floats(values)
        if not parts.count:
            return cls.empty((len(values), 0))
        values = parts.sorted(values)
        parts = Segments(np.repeat(np.arange(parts.count), parts.counts), parts.count)
        with np.errstate(invalid="ignore"):  # inf - inf
            total = parts.apply(np.add, values)
            n = np.broadcast_to(parts.counts.astype(np.float64), total.shape)
            m2 = low = high = n
            if "m2" in stats:
                distance = values - parts.spread(total / n)
                m2 = parts.apply(np.add, distance * distance)
        if "min" in stats:
            low = parts.apply(np.minimum, values)
        if "max" in stats:
            high = parts.apply(np.maximum, values)
        whole, gaps = cls(n, total, m2, low, high), np.flatnonzero(~np.isfinite(total).all(-1))
        if not len(gaps):
            return whole
        again = cls.single(values[gaps]).pooled(parts, stats)
        return again if len(gaps) == len(values) else whole._with(gaps, again)

    @classmethod
    def single(cls, values: Array) -> Moments:
        """The statistics of each value alone, of the values' shape; of NaN none."""
        values = floats(values)
        there = present(values)
        if there.all():
            return cls(np.ones(values.shape), values, np.zeros(values.shape), values, values)
        zero, low, high = (np.where(there, values, neutral) for neutral in (0.0, np.inf, -np.inf))
        return cls(there.astype(np.float64), zero, np.zeros(values.shape), low, high)

    def merge(self, other: Moments) -> Moments:
        """The statistics of both sets of values together (Chan et al. 1979)."""
        return Moments.stacked([self, other]).pooled()

    def pooled(self, segments: Segments | None = None, stats: frozenset[Stat] = ALL) -> Moments:
        """The statistics of all rows together, ``[..., rows]`` to ``[...]``; by segments, to ``[..., count]``."""
        if segments is None:
            rows = self.n.shape[-1]
            return self.pooled(Segments.single(rows), stats).take(0) if rows else Moments.empty(self.n.shape[:-1])
        used, segments_used = segments.used()
        if len(used) < segments.count:
            found = self.pooled(segments_used, stats)
            return found.map(lambda part, neutral: segmented.laid(part, used, segments.count, neutral))
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

    @classmethod
    def joined(cls, parts: Sequence[Moments]) -> Moments:
        """Several arrays of statistics, one after the other along the first axis."""
        return cls(*(np.concatenate([getattr(part, stat) for part in parts]) for stat in STATS))

    @classmethod
    def stacked(cls, parts: Sequence[Moments]) -> Moments:
        """Several of one shape, side by side along a new last axis."""
        return cls(*(np.stack([getattr(part, stat) for part in parts], -1) for stat in STATS))

    def map(self, change: Callable[[Array, float], Array]) -> Moments:
        """``change(array, neutral)`` of every array, with what it holds for no values."""
        return Moments(*(change(getattr(self, stat), neutral) for stat, neutral in NEUTRAL.items()))

    def take(self, index: Any) -> Moments:
        """Some of the entries, by an index of the last axis."""
        return Moments(
            self.n[..., index], self.total[..., index], self.m2[..., index], self.min[..., index], self.max[..., index]
        )


def floats(values: Array) -> Array:
    """The same values as float64."""
    return values if values.dtype == np.float64 else values.astype(np.float64)


# ---- formulas: from statistics to a value, ``xp`` is numpy or torch; what has no value is NaN


class Formula:
    """A function ``run(xp, *statistics)`` of at least so many values; its parameters are named as the statistics."""

    def __init__(self, run: Callable[..., Any], least: int = 1) -> None:
        self._run = run
        self.least = least
        self.takes: tuple[str, ...] = tuple(inspect.signature(run).parameters)[1:]

    @property
    def stats(self) -> tuple[str, ...]:
        """What states must hold for it to be merged: squared distances merge by counts and sums."""
        needs = {"n", *self.takes, *(("total",) if "m2" in self.takes else ())}
        return tuple(stat for stat in (*STATS, "first", "last") if stat in needs)

    def __call__(self, xp: Any, found: Mapping[str, Any]) -> Any:
        """The value of statistics by name, arrays of one shape."""
        return self._run(xp, *(found[stat] for stat in self.takes))

    def of(self, moments: Moments, index: Any = None, rows: int = 0) -> Array:
        """The values of an array of statistics, or of some by an index of its first axis; of no values absent.

        ``rows``: it is known that each is of so many values.
        """
        found = {stat: getattr(moments, stat) for stat in {"n", *self.takes}}
        if index is not None:
            found = {stat: values[index] for stat, values in found.items()}
        n = found["n"]
        if rows < 2:
            return np.asarray(_where(np, n > 0, self(np, found)))
        made = np.asarray(
            self(np, {**found, "n": np.float64(rows)})
        )  # a number where there were an array of equal ones
        return made if made.shape == n.shape else np.full(n.shape, made)


def _share(values: Any, n: Any) -> Any:
    return values / (n + (n == 0))


def _where(xp: Any, keep: Any, values: Any) -> Any:
    if xp is np:
        return values if keep.all() else np.where(keep, values, np.nan)
    return xp.where(keep, _floating(xp, values), np.nan)


def _floating(xp: Any, values: Any) -> Any:
    return values if xp is np or values.is_floating_point() else values.double()


def count(xp: Any, n: Any) -> Any:
    """How many values there are."""
    return n


def total(xp: Any, n: Any, total: Any) -> Any:
    """The sum."""
    return _where(xp, n > 0, total)


def mean(xp: Any, n: Any, total: Any) -> Any:
    """The mean."""
    return _where(xp, n > 0, _share(_floating(xp, total), n))


def var(xp: Any, n: Any, m2: Any) -> Any:
    """The sample variance (n-1), torch's default; absent for fewer than two values."""
    return _where(xp, n > 1, _share(m2, n - 1))


def std(xp: Any, n: Any, m2: Any) -> Any:
    """The sample standard deviation (n-1)."""
    return xp.sqrt(var(xp, n, m2))


def pstd(xp: Any, n: Any, m2: Any) -> Any:
    """The population standard deviation, numpy's default; 0 for one value."""
    return xp.sqrt(_where(xp, n > 0, _share(m2, n)))


def minimum(xp: Any, n: Any, min: Any) -> Any:
    """The smallest value."""
    return _where(xp, n > 0, min)


def maximum(xp: Any, n: Any, max: Any) -> Any:
    """The greatest value."""
    return _where(xp, n > 0, max)


FORMULAS: Mapping[str, Formula] = {
    "count": Formula(count), "sum": Formula(total), "mean": Formula(mean), "var": Formula(var, 2),
    "std": Formula(std, 2), "pstd": Formula(pstd), "min": Formula(minimum), "max": Formula(maximum),
    "any": Formula(lambda xp, n, total: _where(xp, n > 0, total > 0)),
    "all": Formula(lambda xp, n, total: _where(xp, n > 0, total == n)),
    "first": Formula(lambda xp, first: first), "last": Formula(lambda xp, last: last),
}  # fmt: skip


# ---- aggregates: what `over=` does to the rows of groups, each with a row; see ``segmented.aggregate``


def _aggregate(name: str, exact: np.ufunc | None = None) -> Callable[[Array, Segments], Array]:
    formula = FORMULAS[name]
    stats = frozenset(stat for stat in STATS if stat in formula.stats)

    def run(values: Array, segments: Segments) -> Array:
        if exact is not None and values.dtype.kind != "f":  # of integers none is missing: they keep their bits
            return segments.apply(exact, values.astype(np.int64) if name == "sum" else values)
        if exact is not None and name != "sum" and not np.isnan(values).any():
            return segments.apply(exact, floats(values))
        if segments.size is not None:
            return formula.of(Moments.of(values.reshape(*values.shape[:-1], segments.count, segments.size), stats))
        return formula.of(Moments.single(values).pooled(segments, stats))

    return run


AGGREGATES: Mapping[str, Callable[[Array, Segments], Array]] = {
    "count": segmented.count, "sum": _aggregate("sum", np.add), "mean": _aggregate("mean"), "var": _aggregate("var"),
    "std": _aggregate("std"), "pstd": _aggregate("pstd"), "min": _aggregate("min", np.minimum),
    "max": _aggregate("max", np.maximum), "any": segmented.any_of, "all": segmented.all_of,
    "first": segmented.first, "last": segmented.last,
}  # fmt: skip
