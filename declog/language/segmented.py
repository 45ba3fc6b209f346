"""Segments of rows: partitions of numpy arrays, and the reductions over segments that have no formula in ``moments``.

NaN is a missing value and is skipped. A segment without a value gives NaN. Rows are the last axis, so a family
``[columns, rows]`` reduces like a plain column ``[rows]``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
NOTHING: Array = np.asarray(None, object)  # None as an array of objects


class Segments:
    """A partition of rows into ``count`` segments; ``index[row]`` is the row's segment.

    Rows of a segment keep their order. Reductions need at least one row in every segment: see ``aggregate``.
    """

    def __init__(self, index: NDArray[np.int64], count: int, size: int | None = None) -> None:
        self.index = index
        self.count = count
        self.size = size  # rows per segment, if all segments are contiguous and equally long

    @classmethod
    @lru_cache(maxsize=64)  # windows of one run mostly have the same number of rows
    def single(cls, rows: int) -> Segments:
        """All rows as one segment, or no segment for no rows. Callers share the object, since it never changes."""
        return cls(np.zeros(rows, np.int64), min(rows, 1), rows or None)

    @classmethod
    def of_keys(cls, *keys: Array) -> Segments:
        """Put rows with equal keys into one segment. Segments have the order of their first rows."""
        first, index = ordered(*keys)
        rank = np.empty(len(first), np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        return cls(rank[index], len(first))

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Rows per segment, ``[count]``."""
        return np.bincount(self.index, minlength=self.count)

    @cached_property
    def order(self) -> NDArray[np.int64] | None:
        """The rows sorted by segment, or None if they are sorted already."""
        if self.size is not None or bool(np.all(self.index[1:] >= self.index[:-1])):
            return None
        return np.argsort(self.index, kind="stable")

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """The first sorted row of each segment, ``[count]``."""
        return np.cumsum(self.counts) - self.counts

    @cached_property
    def position(self) -> NDArray[np.int64]:
        """The position of each row in its segment, ``[rows]``, from 0."""
        position = np.arange(len(self.index)) - np.repeat(self.offsets, self.counts)
        if self.order is None:
            return position
        unsorted = np.empty_like(position)
        unsorted[self.order] = position
        return unsorted

    def members(self) -> list[NDArray[np.int64]]:
        """The rows of each segment, in order."""
        rows = np.arange(len(self.index)) if self.order is None else self.order
        return np.split(rows, self.offsets[1:]) if self.count else []

    def per_segment(self, values: Array, one: Callable[[Array], Any], dtype: Any = np.float64) -> Array:
        """Apply ``one`` to each segment's values that are not missing, ``[..., rows]`` to ``[..., count]``."""
        results = []
        for row, here in zip(np.atleast_2d(values), np.atleast_2d(present(values)), strict=True):
            ends = np.cumsum(np.bincount(self.index[here], minlength=self.count))
            parts = np.split(self.sorted(row)[self.sorted(here)], ends[:-1])
            results.append([one(part) for part in parts[: self.count]])
        return np.array(results, dtype).reshape(*values.shape[:-1], self.count)

    def sorted(self, values: Array) -> Array:
        """``values[..., rows]`` sorted by segment."""
        return values if self.order is None else values.take(self.order, -1)

    def apply(self, ufunc: np.ufunc, values: Array) -> Array:
        """Reduce each segment with ``ufunc``: ``[..., rows]`` to ``[..., count]``."""
        if self.size is not None:
            return np.asarray(ufunc.reduce(values.reshape(*values.shape[:-1], self.count, self.size), axis=-1))
        if not self.count:
            return values[..., :0]
        return np.asarray(ufunc.reduceat(self.sorted(values), self.offsets, axis=-1))

    def squares(self, values: Array) -> Array:
        """The sum of squares over each segment, for equal sizes without an array of squares, which is slow to fill."""
        if self.size is None:
            return self.apply(np.add, values * values)
        values = values.reshape(*values.shape[:-1], self.count, self.size)
        return np.asarray(np.einsum("...i,...i->...", values, values))

    def spread(self, values: Array) -> Array:
        """Repeat ``[..., count]`` to ``[..., rows]``. Values of a single segment stay: numpy broadcasts them."""
        return values if self.count == 1 else values.take(self.index, -1)

    @cached_property
    def full(self) -> bool:
        """Whether every segment has a row."""
        return self.size is not None or bool(self.counts.all())

    def used(self) -> tuple[NDArray[np.int64], Segments]:
        """The segments that have a row, and the partition into these segments alone."""
        used = np.flatnonzero(self.counts)
        number = np.zeros(self.count, np.int64)
        number[used] = np.arange(len(used))
        return used, Segments(number[self.index], len(used))


def ordered(*keys: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first row of each distinct combination of keys, in the order of keys, and each row's index among these.

    All NaN keys are equal.
    """
    order = np.lexsort(keys[::-1])  # stable: equal keys keep the order of rows
    begins = np.ones(len(order), bool)
    begins[1:] = False
    for key in keys:
        values = key[order]
        begins[1:] |= (values[1:] != values[:-1]) & ((values[1:] == values[1:]) | (values[:-1] == values[:-1]))
    index = np.empty(len(order), np.int64)
    index[order] = np.cumsum(begins) - 1
    return order[begins], index


def present(values: Array) -> Array:
    """A bool array that marks the entries that are not missing."""
    if values.dtype.kind == "f":
        there: Array = values == values
        return there
    if values.dtype.kind == "O":
        return np.asarray(np.not_equal(values, NOTHING))
    return np.ones(values.shape, bool)


def of_constant(values: Any, constant: Any) -> Array:
    """Replace floats that equal the float32 of a constant, as 0.1 in a float32 tensor does, by the constant."""
    array: Array = np.asarray(values)
    constant = np.asarray(constant)
    if array.dtype.kind != "f" or constant.dtype.kind != "f":
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.float64(np.float32(constant))
        is_near = abs(rounded - constant) <= 1e-7 * abs(constant)  # the float32 of 1e-50 is 0
    return np.where(array == rounded, constant, array) if is_near and rounded != constant else array


def count(values: Array, segments: Segments) -> Array:
    """The number of values that are not missing."""
    return segments.apply(np.add, present(values).astype(np.int64))


def any_of(values: Array, segments: Segments) -> Array:
    """Whether any value is true; missing if all values are missing."""
    return _answered(segments.apply(np.logical_or, truth(values)), values, segments)


def all_of(values: Array, segments: Segments) -> Array:
    """Whether every value that is not missing is true; missing if all values are missing."""
    return _answered(segments.apply(np.logical_and, truth(values) | ~present(values)), values, segments)


def _answered(answer: Array, values: Array, segments: Segments) -> Array:
    some = segments.apply(np.logical_or, present(values))
    return answer if some.all() else np.where(some, answer, np.nan)


def first(values: Array, segments: Segments) -> Array:
    """The first value that is not missing, in row order."""
    return _picked(values, segments, np.minimum, values.shape[-1])


def last(values: Array, segments: Segments) -> Array:
    """The last value that is not missing, in row order."""
    return _picked(values, segments, np.maximum, -1)


def _picked(values: Array, segments: Segments, extreme: np.ufunc, none: int) -> Array:
    """The values in the first or last rows with a value. ``none`` is the row number that means no such row."""
    rows = segments.apply(extreme, np.where(present(values), np.arange(values.shape[-1]), none))
    here = rows != none
    picked = np.take_along_axis(values, np.where(here, rows, 0), -1) if values.shape[-1] else values
    if here.all():
        return picked
    return np.where(here, picked, NOTHING if values.dtype.kind == "O" else np.nan)


def aggregate(run: Callable[[Array, Segments], Array], values: Array, segments: Segments) -> Array:
    """Run a reduction over segments, some of which may have no row: these get no value."""
    if segments.full:
        return run(values, segments)
    used, some = segments.used()
    reduced = run(values, some)
    return scattered(reduced, used, segments.count, None if reduced.dtype.kind == "O" else np.nan)


def scattered(values: Array, index: Array, count: int, neutral: float | None) -> Array:
    """An array ``[..., count]`` with ``values`` at ``index`` and ``neutral`` everywhere else."""
    array = np.full((*values.shape[:-1], count), neutral, object if neutral is None else np.float64)
    array[..., index] = values
    return array


def truth(values: Array) -> Array:
    """The values as bools; a missing value is false."""
    return values if values.dtype.kind == "b" else (values != 0) & present(values)


def rank(values: Array, segments: Segments) -> Array:
    """The 1-based rank of each value in its segment, ascending, ties by row; NaN for a missing value."""
    return _in_order(values, segments, lambda places, ordered: places + 1)


def smaller(values: Array, segments: Segments) -> Array:
    """The number of smaller values in each value's segment; NaN for a missing value."""

    def first_of_equals(places: Array, ordered: Array) -> Array:
        begins = places == 0
        begins[1:] |= ordered[1:] != ordered[:-1]
        return places[np.maximum.accumulate(np.where(begins, np.arange(len(places)), 0))]

    return _in_order(values, segments, first_of_equals)


def _in_order(values: Array, segments: Segments, number: Callable[[Array, Array], Array]) -> Array:
    """Number values by ``number(places, ordered)``: the 0-based places in their segments, and the ordered values."""
    values = values.astype(np.float64)

    def one(row: Array) -> Array:
        order = np.lexsort((np.arange(len(row)), row, segments.index))  # NaN sorts last
        numbers = np.empty(len(row), np.float64)
        numbers[order] = number(np.arange(len(row)) - np.repeat(segments.offsets, segments.counts), row[order])
        numbers[row != row] = np.nan
        return numbers

    return one(values) if values.ndim == 1 else np.array([one(row) for row in values]).reshape(values.shape)
