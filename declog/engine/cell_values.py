"""The values of table cells: their conversion to the column's type, redaction, shortening and size.

Pure functions of plain Python values; None is null. Imports numpy and the plan.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.language.patterns import redacted
from declog.plans.ops import ColumnOp
from declog.records import Column, DType, Image

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


CONVERT: Mapping[DType, Callable[[Any], Any]] = {
    DType.INT: int, DType.FLOAT: float, DType.BOOL: bool, DType.TEXT: str, DType.OBJECT: _json,
}  # fmt: skip


def natural(values: Iterable[Any]) -> DType | None:
    """The type of a run-time column, inferred from its first values; None if all of them are null."""
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
    """The result of a registered function, converted to its column's type; raises ``TypeError`` if it does not fit."""
    item = _plain(item)
    if not fits(type, item):
        raise TypeError(f"it returned {item!r:.60}, and the column is {type}")
    return None if item is None else CONVERT[type](item)


# ---- texts


def shortened(column: ColumnOp, value: Any) -> Any:
    """A value whose texts are redacted and then cut, also inside lists and mappings."""
    if isinstance(value, str):
        value = redacted(value, column.redact)
        return value if column.max_chars is None else cut(value, column.max_chars)
    if isinstance(value, list | tuple):
        return [shortened(column, item) for item in value]
    if isinstance(value, Image):
        return value.with_keys({key: shortened(column, item) for key, item in value.items()})
    if isinstance(value, Mapping):
        return {key: shortened(column, item) for key, item in value.items()}
    return value


def cut(text: str, most: int | tuple[int, int]) -> str:
    """A text of at most ``most`` characters; for a pair, its head and tail with a note of how much was cut between."""
    if isinstance(most, int):
        return text if len(text) <= most else text[: most - 1] + "…"
    head, tail = most
    omission = f"… {len(text) - head - tail:,} characters …"
    if len(text) <= head + tail + len(omission):  # the note would be as long as the part that it replaces
        return text
    return text[:head] + omission + (text[-tail:] if tail else "")


# ---- sizes


def row_bytes(columns: Sequence[Column], data: Mapping[str, Sequence[Any]], rows: int) -> NDArray[np.int64]:
    """The bytes of each row: 8 for a number, 1 for a bool, 0 for a null, the UTF-8 length of texts and JSON."""
    sizes = np.zeros(rows, np.int64)
    for column in columns:
        sizes += np.array([_size(column.type, item) for item in data[column.name]], np.int64)
    return sizes


def _size(type: DType, item: Any) -> int:
    if item is None:
        return 0
    if type in (DType.TEXT, DType.OBJECT):
        text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
        return len(text.encode("utf-8", "surrogatepass"))
    return 1 if type is DType.BOOL else 8
