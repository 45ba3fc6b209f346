"""The values of table cells: redaction, shortening and size.

Pure functions of plain Python values; None is null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.language.patterns import redacted
from declog.plans.ops import ColumnOp
from declog.records import Column, DType, Image

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
    """The text, cut to ``most`` characters. For a pair: its head, a note of how much was cut, and its tail."""
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
