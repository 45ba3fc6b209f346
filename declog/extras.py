"""Columns of ``log_extra``: checked where they are given, so that a wrong one is an error on its own line.

Plain data only: numbers, texts, None, and lists and maps of those. Imports errors and numpy.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from declog.errors import InputError

_PLAIN = frozenset({str, int, float, bool, type(None)})


def plain_column(column: str, values: Any) -> list[Any]:
    """The column as a list of plain data, one per completion; raises ``InputError`` DL509 for anything else."""
    if isinstance(values, str | bytes) or not (hasattr(values, "__len__") and hasattr(values, "__iter__")):
        raise InputError(
            "DL509",
            f"the column `{column}` needs one value per completion, and {type(values).__name__} came",
            "give a list",
        )
    plain = values.tolist() if hasattr(values, "tolist") else list(values)
    if not isinstance(plain, list):
        raise InputError("DL509", f"the column `{column}` needs one value per completion, and one value came", "a list")
    for place, item in enumerate(plain):
        if type(item) not in _PLAIN:
            plain[place] = _plain_value(column, place, item)
    return plain


def _plain_value(column: str, place: int, item: Any) -> Any:
    if isinstance(item, np.generic):
        return item.item()
    try:
        json.dumps(item)
    except (TypeError, ValueError) as error:
        raise InputError(
            "DL509",
            f"the column `{column}` holds {type(item).__name__} at {place}, which no sink can write: {error}",
            "give numbers, texts, or lists and maps of those",
        ) from error
    return item
