"""Missing-aware reductions of numpy arrays over segments of rows.

A float's NaN is missing and skipped; an all-missing segment gives NaN. Rows are the last axis, so that a
family ``[columns, rows]`` reduces like a plain column ``[rows]``. Imports numpy only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
NOTHING: Array = np.asarray(None, object)  # None among objects, as an array


class Segments:
    """A partition of rows into ``count`` segments; ``index[row]`` is the row's segment.

    Rows of a segment keep their order. Reductions want every segment to hold a row: see ``aggregate``.
    """

    def __init__(self, index: NDArray[np.int64], count: int, size: int | None = None) -> None:
        self.index = index
        self.count = count
        self.size = size  # rows per segment where all are equal and contiguous

    @classmethod
    def whole(cls, rows: int) -> Segments:
        """All rows as one segment (none where there are no rows)."""
        return cls(np.zeros(rows, np.int64), min(rows, 1), rows or None)

    @classmethod
    def of_keys(cls, *keys: Array) -> Segments:
        """Rows with equal keys together, segments in the order in which they first appear."""
        index = np.zeros(len(keys[0]), np.int64)
        for key in keys:
            _, inverse = np.unique(key, return_inverse=True)
            pair = index * (int(inverse.max(initial=0)) + 1) + inverse
            _, index = np.unique(pair, return_inverse=True)
        _, first, inverse = np.unique(index, return_index=True, return_inverse=True)
        rank = np.empty(len(first), np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        return cls(rank[inverse], len(first))

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Rows per segment, ``[count]``."""
        return np.bincount(self.index, minlength=self.count)

    @cached_property
    def order(self) -> NDArray[np.int64] | None:
        """Rows sorted by segment, or None where they are already."""
        if self.size is not None or bool(np.all(self.index[1:] >= self.index[:-1])):
            return None
        return np.argsort(self.index, kind="stable")

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """The first sorted row of each segment, ``[count]``."""
        return (
            np.concatenate(([0], np.cumsum(self.counts)[:-1])).astype(np.int64) if self.count else np.zeros(0, np.int64)
        )

    @cached_property
    def position(self) -> NDArray[np.int64]:
        """Each row's place in its segment, ``[rows]``."""
        place = np.arange(len(self.index)) - np.repeat(self.offsets, self.counts)
        if self.order is None:
            return place
        unsorted = np.empty_like(place)
        unsorted[self.order] = place
        return unsorted

    def sorted(self, values: Array) -> Array:
        """``values[..., rows]`` with the rows of each segment together."""
        return values if self.order is None else values[..., self.order]

    def apply(self, ufunc: np.ufunc, values: Array) -> Array:
        """``ufunc`` reduced over each segment: ``[..., rows]`` to ``[..., count]``."""
        if self.size is not None:
            return np.asarray(ufunc.reduce(values.reshape(*values.shape[:-1], self.count, self.size), axis=-1))
        if not self.count:
            return values[..., :0]
        return np.asarray(ufunc.reduceat(self.sorted(values), self.offsets, axis=-1))

    def spread(self, values: Array) -> Array:
        """``[..., count]`` repeated to ``[..., rows]``."""
        return values[..., self.index]


def present(values: Array) -> Array:
    """Which entries are not missing."""
    if values.dtype.kind == "f":
        there: Array = values == values
        return there
    if values.dtype.kind == "O":
        return np.asarray(np.not_equal(values, NOTHING))
    return np.ones(values.shape, bool)


def count(values: Array, segments: Segments) -> Array:
    """The number of values that are not missing."""
    return segments.apply(np.add, present(values).astype(np.int64))


def total(values: Array, segments: Segments) -> Array:
    """The sum; missing where all are."""
    if values.dtype.kind == "b":
        values = values.astype(np.int64)
    if values.dtype.kind != "f":
        return segments.apply(np.add, values)
    ok = present(values)
    if ok.all():
        return segments.apply(np.add, values)
    return _blank(segments.apply(np.add, np.where(ok, values, 0.0)), count(values, segments) > 0)


def mean(values: Array, segments: Segments) -> Array:
    """The mean."""
    values = _floats(values)
    with np.errstate(invalid="ignore"):
        return total(values, segments) / np.maximum(count(values, segments), 1)


def spread_squares(values: Array, segments: Segments) -> Array:
    """The sum of squared distances from the mean, in two passes; 0 where all are missing."""
    values = _floats(values)
    with np.errstate(invalid="ignore"):
        squares = np.square(values - segments.spread(mean(values, segments)))
    return segments.apply(np.add, np.where(present(values), squares, 0.0))  # of infinite values it is NaN


def var(values: Array, segments: Segments) -> Array:
    """The sample variance (n-1); missing for fewer than two values."""
    n = count(values, segments)
    return _blank(spread_squares(values, segments) / np.maximum(n - 1, 1), n > 1)


def std(values: Array, segments: Segments) -> Array:
    """The sample standard deviation (n-1)."""
    return np.sqrt(var(values, segments))


def pstd(values: Array, segments: Segments) -> Array:
    """The population standard deviation; 0 for one value."""
    n = count(values, segments)
    return np.sqrt(_blank(spread_squares(values, segments) / np.maximum(n, 1), n > 0))


def minimum(values: Array, segments: Segments) -> Array:
    """The smallest value."""
    return _extreme(values, segments, np.minimum, np.inf)


def maximum(values: Array, segments: Segments) -> Array:
    """The greatest value."""
    return _extreme(values, segments, np.maximum, -np.inf)


def any_of(values: Array, segments: Segments) -> Array:
    """Whether any value is true; a missing one is not."""
    return segments.apply(np.logical_or, truth(values))


def all_of(values: Array, segments: Segments) -> Array:
    """Whether every value that is not missing is true."""
    return segments.apply(np.logical_and, truth(values) | ~present(values))


def first(values: Array, segments: Segments) -> Array:
    """The first value that is not missing, in row order."""
    return _edge(values, segments, last=False)


def last(values: Array, segments: Segments) -> Array:
    """The last value that is not missing, in row order."""
    return _edge(values, segments, last=True)


def aggregate(run: Callable[[Array, Segments], Array], values: Array, segments: Segments) -> Array:
    """A reduction over segments of which some may hold no row: those have no value."""
    used = np.flatnonzero(segments.counts)
    if len(used) == segments.count:
        return run(values, segments)
    place = np.zeros(segments.count, np.int64)
    place[used] = np.arange(len(used))
    reduced = run(values, Segments(place[segments.index], len(used)))
    nothing, dtype = (None, object) if reduced.dtype.kind == "O" else (np.nan, np.float64)
    whole = np.full((*reduced.shape[:-1], segments.count), nothing, dtype)
    whole[..., used] = reduced
    return whole


def truth(values: Array) -> Array:
    """A bool array; missing is false."""
    return values if values.dtype.kind == "b" else (values != 0) & present(values)


def rank(values: Array, segments: Segments) -> Array:
    """The 1-based place of each value in its segment, ascending, ties by row; a missing value has none."""
    values = _floats(values)

    def one(row: Array) -> Array:
        order = np.lexsort((np.arange(len(row)), row, segments.index))  # NaN sorts last
        place = np.empty(len(row), np.float64)
        place[order] = np.arange(len(row)) - np.repeat(segments.offsets, segments.counts) + 1
        place[row != row] = np.nan
        return place

    return one(values) if values.ndim == 1 else np.array([one(row) for row in values]).reshape(values.shape)


def _floats(values: Array) -> Array:
    return values if values.dtype == np.float64 else values.astype(np.float64)


def _blank(values: Array, keep: Array) -> Array:
    return values if keep.all() else np.where(keep, values, np.nan)


def _extreme(values: Array, segments: Segments, ufunc: np.ufunc, neutral: float) -> Array:
    if values.dtype.kind != "f":
        return segments.apply(ufunc, values)
    ok = present(values)
    if ok.all():
        return segments.apply(ufunc, values)
    return _blank(segments.apply(ufunc, np.where(ok, values, neutral)), count(values, segments) > 0)


def _edge(values: Array, segments: Segments, *, last: bool) -> Array:
    if values.ndim > 1:
        found = np.empty((len(values), segments.count), values.dtype)  # there may be no row at all
        for place, row in enumerate(values):
            found[place] = _edge(row, segments, last=last)
        return found
    ok = present(values)
    rows = np.arange(len(values))
    if last:
        pick = segments.apply(np.maximum, np.where(ok, rows, -1))
    else:
        pick = segments.apply(np.minimum, np.where(ok, rows, len(values)))
    found = (pick >= 0) & (pick < len(values))
    if not len(values):
        return values[:0]
    picked = values[np.where(found, pick, 0)]
    if found.all():
        return np.asarray(picked)
    if values.dtype.kind == "O":
        return np.where(found, picked, NOTHING)
    return np.where(found, picked.astype(np.float64), np.nan)


AGGREGATES: dict[str, Callable[[Array, Segments], Array]] = {
    "count": count, "sum": total, "mean": mean, "var": var, "std": std, "pstd": pstd, "min": minimum, "max": maximum,
    "any": any_of, "all": all_of, "first": first, "last": last,
}  # fmt: skip
