"""Axes and types of values.

Axes nest: token in completion in group in step. A coarser value repeats over the finer axis. The members of a family
are a separate axis.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum

from declog.records import DType

__all__ = ["ABOVE", "AXES", "MEMBER", "NUMERIC", "Axis", "DType", "Type", "any_of", "finest", "per"]


class Axis(IntEnum):
    """The row axes, from the coarsest to the finest: a greater number is a finer axis.

    On ``STEP`` a signal has one value per rank and batch of its phase. On ``ALL`` an aggregate over groups has one
    value per step, over all batches and ranks.
    """

    ALL = 0
    STEP = 1
    GROUP = 2
    COMPLETION = 3
    TOKEN = 4

    __hash__ = int.__hash__  # the hash of an enum is slower Python code, and each batch has keys with axes

    def __bool__(self) -> bool:
        """Always True, so that ``if axis`` tests for None only: the number of the coarsest axis is 0."""
        return True

    @property
    def label(self) -> str:
        """The name in YAML and in messages."""
        return "step" if self is Axis.ALL else self.name.lower()

    @property
    def row(self) -> str:
        """The noun for one row of the axis: ``batch`` for ``STEP``, which has one value per step and batch."""
        return "batch" if self is Axis.STEP else self.label


AXES: dict[str, Axis] = {axis.label: axis for axis in Axis if axis is not Axis.ALL}  # by name in YAML
ABOVE = {Axis.TOKEN: Axis.COMPLETION, Axis.COMPLETION: Axis.GROUP, Axis.GROUP: Axis.ALL}  # the axis of an aggregate
MEMBER = "member"  # the name of a family's axis in `over=member`


@dataclass(frozen=True)
class Type:
    """The dtype of a value, its finest axis (None: a constant), whether it is a family, and its phase.

    ``phase`` is None for constants and for values that every phase has, such as ``step``.
    """

    dtype: DType
    axis: Axis | None = None
    family: bool = False
    phase: str | None = None

    @property
    def text(self) -> bool:
        """Whether the values are texts or objects, which stay on the rank that observed them until they are needed."""
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
    """The finest of some axes. None stands for a constant, and is the result if all are constants."""
    present = [axis for axis in axes if axis is not None]
    return max(present) if present else None


def per(axis: Axis | None) -> str:
    """``per token`` and so on, for messages."""
    return "a constant" if axis is None else f"per {axis.label}"


NUMERIC = (DType.FLOAT, DType.INT)


def any_of(dtypes: Iterable[DType]) -> str:
    """The names of some dtypes for messages, such as ``number or text``. ``number`` covers floats and ints."""
    some = list(dtypes)
    numbers = NUMERIC if DType.FLOAT in some else ()
    return " or ".join(dict.fromkeys("number" if dtype in numbers else dtype.value for dtype in some))
