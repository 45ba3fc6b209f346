"""Axes and types: a value's dtype, and the rows that it has a value for.

Axes nest: token in completion in group in step; a coarser value repeats over the finer axis. The members of a family
are an axis beside these. Imports records only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum

from declog.records import DType

__all__ = ["ABOVE", "AXES", "MEMBER", "NUMERIC", "Axis", "DType", "Type", "any_of", "finest", "per"]


class Axis(IntEnum):
    """The row axes, from the coarsest to the finest; a greater axis is finer.

    On ``STEP`` a signal has one value per rank and batch of its phase. On ``BATCH`` an aggregate over groups has one
    value per batch, over all ranks.
    """

    BATCH = 0
    STEP = 1
    GROUP = 2
    COMPLETION = 3
    TOKEN = 4

    __hash__ = int.__hash__  # an enum's own is Python code, and axes are in keys of each batch

    def __bool__(self) -> bool:
        """True: an axis is there, the coarsest too, whose number is 0."""
        return True

    @property
    def label(self) -> str:
        """The name in YAML and in messages."""
        return self.name.lower()

    @property
    def row(self) -> str:
        """The noun for one of its rows: there is one value per step and batch."""
        return "batch" if self is Axis.STEP else self.label


AXES: dict[str, Axis] = {axis.label: axis for axis in Axis if axis is not Axis.BATCH}  # by their names in YAML
ABOVE = {Axis.TOKEN: Axis.COMPLETION, Axis.COMPLETION: Axis.GROUP, Axis.GROUP: Axis.BATCH}  # the axis of an aggregate
MEMBER = "member"  # the axis of a family, by name in `over=member`


@dataclass(frozen=True)
class Type:
    """A value's dtype, its finest axis (None: a constant), whether it is a family, and its phase.

    ``phase`` is None for constants and for values that every phase has, such as ``step``.
    """

    dtype: DType
    axis: Axis | None = None
    family: bool = False
    phase: str | None = None

    @property
    def text(self) -> bool:
        """Whether its values are texts or objects: they stay where they were observed until they are needed."""
        return self.dtype in (DType.TEXT, DType.OBJECT)

    def with_dtype(self, dtype: DType) -> Type:
        """The same shape with another dtype."""
        return replace(self, dtype=dtype)

    def with_axis(self, axis: Axis | None) -> Type:
        """The same dtype on another axis."""
        return replace(self, axis=axis)

    def __str__(self) -> str:
        noun = f"{self.dtype} family" if self.family else str(self.dtype)
        return f"constant {noun}" if self.axis is None else f"{noun} per {self.axis.label}"


def finest(*axes: Axis | None) -> Axis | None:
    """The finest of some axes; None where all are constants."""
    present = [axis for axis in axes if axis is not None]
    return max(present) if present else None


def per(axis: Axis | None) -> str:
    """``per token`` and so on, for messages."""
    return "a constant" if axis is None else f"per {axis.label}"


NUMERIC = (DType.FLOAT, DType.INT)


def any_of(dtypes: Iterable[DType]) -> str:
    """Some dtypes in words, for messages: ``number or text``; an int is a number, too."""
    some = list(dtypes)
    numbers = NUMERIC if DType.FLOAT in some else ()
    return " or ".join(dict.fromkeys("number" if dtype in numbers else dtype.value for dtype in some))
