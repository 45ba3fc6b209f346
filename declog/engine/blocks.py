"""The parts of a frame: blocks of columns that share an axis and a dtype, and the table of its batches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from declog.language.dtypes import Axis, DType
from declog.language.moments import floats
from declog.language.segmented import NOTHING, Array

_T = TypeVar("_T")
Facts = dict[Hashable, Any]
NESTED = 2**14  # facts are cached across windows up to this number of rows
Key = tuple[str, str | None]  # the name of a signal or fold column, and the member if it is a family
Head = tuple[Axis, tuple[Key, ...], np.dtype[Any]]  # a block without its data


@dataclass(eq=False)  # never modified; creating a frozen dataclass takes three times as long
class Block:
    """Columns that share an axis and a dtype: ``data[k, rows]``, with one entry along ``k`` per key.

    ``valid`` has the same shape and is False where an integer or bool is missing; None: nothing is missing. A missing
    float is NaN.
    """

    axis: Axis
    keys: tuple[Key, ...]
    data: Array
    valid: Array | None = None

    @classmethod
    def of_integers(cls, axis: Axis, keys: tuple[Key, ...], values: Array) -> Block:
        """A block from object arrays of integers and None: ``[k, rows]``, or ``[rows]`` for a single key."""
        valid = np.asarray(np.not_equal(values, NOTHING), bool).reshape(len(keys), -1)
        data = np.where(valid, values.reshape(valid.shape), 0).astype(np.int64)
        return cls(axis, keys, data, None if valid.all() else valid)

    def column(self, row: Any, *, exact: bool = False) -> Array:
        """One or several columns in their own dtype.

        A column with missing values becomes floats with NaN. With ``exact``, an integer column with missing values
        becomes objects with None.
        """
        data: Array = self.data[row]
        if self.valid is None or self.valid[row].all():
            return data
        if exact and data.dtype.kind in "iu":
            return np.where(self.valid[row], data.astype(object), NOTHING)
        return np.where(self.valid[row], data, np.nan)

    @cached_property
    def floats(self) -> Array:
        """All columns as float64 with NaN for missing values; cached."""
        data = floats(self.data)
        return data if self.valid is None else np.where(self.valid, data, np.nan)

    def some(self, rows: Any, keys: tuple[Key, ...]) -> Block:
        """A block with a selection of the columns, under these keys."""
        return Block(self.axis, keys, self.data[rows], None if self.valid is None else self.valid[rows])

    def pick(self, rows: Array) -> Block:
        """A block with these rows, in this order."""
        return replace(self, data=self.data[:, rows], valid=None if self.valid is None else self.valid[:, rows])


@dataclass(eq=False)  # never modified; creating a frozen dataclass takes three times as long
class Batches:
    """One entry per (step, batch, rank), all ``[batches]``."""

    step: NDArray[np.int64]
    batch: NDArray[np.int64]
    rank: NDArray[np.int64]
    rows: NDArray[np.int64]
    elapsed: NDArray[np.float64]
    order: NDArray[np.int64]  # the position of the batch among all batches that its rank opened, of any phase

    def __len__(self) -> int:
        return len(self.step)

    @cached_property
    def completions(self) -> int:
        """The number of rows of all batches."""
        return int(self.rows.sum())

    @cached_property
    def facts(self) -> Facts:
        """A cache of facts about how the rows nest.

        Tables with equal batches and row counts share one cache, whatever their first step is. A table of more than
        ``NESTED`` rows has its own.
        """
        if self.completions > NESTED:
            return {}
        step = self.step - self.step[:1]
        return _facts(*[column.tobytes() for column in (step, self.batch, self.rank, self.rows)])

    def take(self, order: Array) -> Batches:
        """These batches, in this order."""
        return Batches(*(getattr(self, name)[order] for name in PARTS))

    @classmethod
    def join(cls, parts: Sequence[Batches]) -> Batches:
        """The batches of several frames, concatenated."""
        return cls(*(np.concatenate([part.__dict__[name] for part in parts]) for name in PARTS))


@lru_cache(maxsize=32)
def _facts(*columns: bytes) -> Facts:
    return {}


def shared(facts: Facts, key: Hashable, make: Callable[[], _T]) -> _T:
    """Return the fact with this key, and compute it at the first request. Several threads may ask."""
    fact: _T | None = facts.get(key)
    if fact is None:
        fact = facts[key] = make()
    return fact


PARTS = ("step", "batch", "rank", "rows", "elapsed", "order")


def typed(values: Array, dtype: DType) -> Array:
    """A recorded column as evaluators read it: in its declared dtype, or as floats if values are missing."""
    if dtype in (DType.TEXT, DType.OBJECT):
        return values
    if dtype is DType.FLOAT:
        return floats(values)
    if values.dtype.kind == "f" and (dtype is DType.INT or np.isnan(values).any()):  # some are missing
        return values if dtype is DType.INT else np.where(np.isnan(values), values, values != 0)
    return values.astype(bool if dtype is DType.BOOL else np.int64, copy=False)


def batches_of(entries: Sequence[tuple[int, int, int, int, float, int]]) -> Batches:
    """The table of batches from tuples (step, batch, rank, rows, elapsed, order)."""
    step, batch, rank, rows, order = np.array([(*one[:4], one[5]) for one in entries], np.int64).reshape(-1, 5).T
    return Batches(step, batch, rank, rows, np.array([one[4] for one in entries], np.float64), order)


def texts_of(values: Sequence[Any]) -> Array:
    """A list as an object array ``[rows]``; a nested list stays one value."""
    return np.fromiter(values, object, len(values))
