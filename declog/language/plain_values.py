"""Plain Python values, for users' functions of rows and for cells of tables: from arrays, and back to a type.

None means null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.records import DType

INT64 = range(-(2**63), 2**63)


def plain(values: NDArray[Any]) -> list[Any]:
    """An array as a list of plain Python values; NaN becomes None."""
    items: list[Any] = values.tolist()
    if values.dtype.kind == "f":
        return [None if item != item else item for item in items]
    if values.dtype.kind != "O":
        return items
    return [item if item is None or type(item) is str else _plain(item) for item in items]


def _plain(item: Any) -> Any:
    item = item.item() if isinstance(item, np.generic) else item
    return None if isinstance(item, float) and math.isnan(item) else item


# ---- types


def _json(item: Any) -> Any:
    if not isinstance(item, str):  # prompts and completions are mostly texts
        json.dumps(item)  # raises TypeError for a value that no sink could write
    return item


def _text(item: Any) -> str:
    """A text as it is; any other object as JSON."""
    return str(item) if isinstance(item, str) else json.dumps(item, ensure_ascii=False)


CONVERT: Mapping[DType, Callable[[Any], Any]] = {
    DType.INT: int, DType.FLOAT: float, DType.BOOL: bool, DType.TEXT: _text, DType.OBJECT: _json,
}  # fmt: skip


def natural(values: Iterable[Any]) -> DType | None:
    """The type of a run-time column, inferred from its first values. None if all these values are null."""
    items = [item for item in values if item is not None]
    types = {type(item) for item in items}
    if not types:
        return None
    if types == {int}:
        return DType.INT if all(item in INT64 for item in items) else DType.OBJECT
    if types <= {int, float}:
        return DType.FLOAT
    return DType.BOOL if types == {bool} else DType.TEXT if types == {str} else DType.OBJECT


def fits(type: DType, item: Any) -> bool:
    """Whether a column of this type can hold a value without loss."""
    if item is None or type is DType.OBJECT:
        return True
    if type is DType.INT:
        integral = isinstance(item, int) or (isinstance(item, float) and item.is_integer())
        return integral and not isinstance(item, bool) and int(item) in INT64
    if type is DType.FLOAT:
        return isinstance(item, float) or (isinstance(item, int) and not isinstance(item, bool) and _is_float(item))
    return isinstance(item, bool if type is DType.BOOL else str)


def _is_float(item: int) -> bool:
    try:
        return int(float(item)) == item
    except OverflowError:
        return False


def returned(type: DType, item: Any) -> Any:
    """Convert the result of a user's function to its declared type. Raises ``TypeError`` if the result does not fit."""
    item = _plain(item)
    if not fits(type, item):
        raise TypeError(f"it returned {item!r:.60}, which is no {type}")
    return None if item is None else CONVERT[type](item)
