"""Columns of ``log_extra``: checked in the call, so that a wrong column is an error on the caller's line.

They are kept as plain data: numbers, texts, None, and lists and mappings of these. They are copied, so that later
training code cannot change them.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import json
import logging
import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from declog.errors import InputError
from declog.plans.ops import Plan
from declog.runtime.values import media
from declog.runtime.values.tensors import FLOATS, HALF, INTEGERS, is_scalar, readable

log = logging.getLogger("declog")
_PLAIN = frozenset({str, int, float, bool, type(None)})
DATA = "data:"  # the beginning of a URL that contains its data
_CONTAINERS = frozenset({dict, list, tuple})
_KEPT = INTEGERS | FLOATS
_KINDS = {True: "texts", False: "numbers"}


class Undeclared:
    """Decides whether a plan's tables keep, drop or refuse columns that no schema names."""

    def __init__(self, plan: Plan) -> None:
        columns = [(table.id, column) for table in plan.tables for column in table.columns]
        self._refusing = [table for table, column in columns if column.undeclared == "error"]
        self._kept = any(column.keeps for _, column in columns)
        self._reported: set[str] = set()
        self._signals = {source: f"{(*ops[0].homes, 'any')[0]}.{ops[0].name}" for source, ops in plan.sources.items()}

    def takes(self, column: Any) -> bool:
        """Whether a table keeps the column; raises ``InputError`` if a table refuses it. Logs a dropped column once."""
        if not isinstance(column, str) or not column:
            raise InputError.of("DL509.name", column=column)
        if self._refusing:
            raise InputError.of("DL509.refused", table=self._refusing[0], column=column)
        if not self._kept and column not in self._reported:
            self._reported.add(column)
            name = self._signals.get(column)
            edit = "" if name is None else f"; `signals.{name}.from_log_extra: true` observes it as the signal"
            log.warning("the column `%s` is dropped: no active table keeps undeclared columns%s", column, edit)
        return self._kept


def plain_column(column: str, values: Any) -> list[Any] | torch.Tensor:
    """Return a column as a list of plain data, one per completion; raises ``InputError`` DL509 if it is no column.

    A tensor, or a list of tensors without dimensions, becomes a copy on its device, because reading its values would
    wait for the device. Other values become a ``plain_value`` each.
    """
    if isinstance(values, list | tuple) and values and all(is_scalar(item) and item.dtype in _KEPT for item in values):
        values = _stacked(values)
    if isinstance(values, torch.Tensor) and values.dtype is not torch.uint64:
        try:
            values = readable(values)
        except ValueError as error:
            raise InputError.of("DL509.tensor", column=column, error=error) from error
        if values.ndim and values.dtype in _KEPT:
            kept: torch.Tensor = values.clone()
            return kept.float() if kept.dtype in HALF else kept
    if isinstance(values, torch.Tensor | np.ndarray):
        values = plain_value(values)
    elif hasattr(values, "tolist"):
        values = values.tolist()  # columns of pandas and the like
    if isinstance(values, str | bytes | Mapping) or not (hasattr(values, "__len__") and hasattr(values, "__iter__")):
        raise InputError.of("DL509.scalar", column=column, type=type(values).__name__)
    return plain_values(values)


def plain_values(items: Iterable[Any]) -> list[Any]:
    """Return the ``plain_value`` of each item; most items are texts or numbers, which stay as they are."""
    return [
        item
        if (kind := type(item)) is float
        or (kind is str and item[:5] != DATA)
        or (kind is int and item.bit_length() < 64)
        else plain_value(item)
        for item in items
    ]


def kept_column(name: str, values: Any, texts: dict[str, bool]) -> torch.Tensor | list[Any] | None:
    """Copy a column of `log.keep`: as a tensor of numbers if possible, else a list of texts; None if all are missing.

    ``texts`` has, by name, whether a column had texts. Raises ``InputError`` for other values, and for texts where the
    column had numbers before, or the reverse.
    """
    column = _kept(name, values)
    is_text = not isinstance(column, torch.Tensor)
    if is_text and all(value is None for value in column):
        return None
    if texts.setdefault(name, is_text) != is_text:
        raise InputError.of("DL509.kept_type", column=name, before=_KINDS[not is_text], now=_KINDS[is_text])
    return column


def _kept(name: str, values: Any) -> torch.Tensor | list[Any]:
    plain = plain_column(name, values)
    if isinstance(plain, torch.Tensor):
        if plain.ndim != 1:
            raise InputError.of("DL509.kept", column=name, type=f"a tensor of the shape {list(plain.shape)}")
        return plain
    kinds = {type(value) for value in plain} - {type(None)}
    if kinds <= {str}:
        return plain
    if None not in plain and (kinds == {bool} or kinds == {int}):
        return torch.tensor(plain, device="cpu")
    if kinds <= {bool, int, float}:
        floats = [float("nan") if value is None else float(value) for value in plain]
        return torch.tensor(floats, dtype=torch.float64, device="cpu")
    kind = kinds.pop().__name__ if len(kinds) == 1 else "mixed"
    raise InputError.of("DL509.kept", column=name, type=f"{kind} values")


def _stacked(values: Sequence[torch.Tensor]) -> Any:
    """Stack tensors of one class, dtype and device; return other values as they are."""
    alike = len({(type(value), value.dtype, value.device) for value in values}) == 1
    return torch.stack([value.detach() for value in values]) if alike and not values[0].is_meta else values


# ---- values

DEPTH = 32  # the deepest nesting of lists and mappings; deeper values, and those that contain themselves, become text
SHOWN = 200  # the most characters of a value's `repr`


def plain_value(item: Any, above: tuple[int, ...] = ()) -> Any:
    """Return a copy of a value as JSON can hold it, readable for types that JSON does not have. Never fails.

    Tensors and arrays become lists, data classes mappings, sets sorted lists. Dates and times become ISO 8601, bytes
    UTF-8 or hexadecimal, enums their values if plain, else their names. An image becomes a ``records.Image``; long
    binary data becomes a description. Any other value becomes its shortened `repr`.
    """
    try:
        return _copied(item, above)
    except Exception:  # noqa: BLE001  (an object of a user's class may raise anything)
        return _shown(item)


def _copied(item: Any, above: tuple[int, ...]) -> Any:
    kind = type(item)
    if kind not in _CONTAINERS and (kind not in _PLAIN or (kind is str and item[:5] == DATA)):
        image = media.picture(item)
        if image is not None:
            return image
        item = media.described(item)
        kind = type(item)
    if kind in _PLAIN:
        # Python refuses to print longer integers
        return item if kind is not int or item.bit_length() < 10_000 else hex(item)
    if len(above) > DEPTH or id(item) in above:
        return _shown(item)
    if isinstance(item, enum.Enum):
        return item.value if type(item.value) in _PLAIN else item.name
    if isinstance(item, str):
        return str.__str__(item)
    if isinstance(item, torch.Tensor):
        dense = item.detach().to_dense() if item.layout is not torch.strided else item.detach()
        dense = dense.dequantize() if dense.is_quantized else dense
        dense = dense.float() if dense.is_floating_point() and dense.dtype not in _KEPT else dense
        return plain_value(dense.tolist(), above)
    if isinstance(item, np.ndarray | np.generic):
        values: Any = item
        if item.dtype.kind == "M":
            values = np.datetime_as_string(values)
        elif item.dtype.kind == "m":
            values = values.astype(str)
        return plain_value(values.tolist(), above)
    if isinstance(item, bool | int | float):  # of a subclass
        return _copied(next(base for base in (bool, int, float) if isinstance(item, base))(item), above)
    if isinstance(item, datetime.date | datetime.time):
        return item.isoformat()
    if isinstance(item, decimal.Decimal | fractions.Fraction | complex | datetime.timedelta | PurePath | uuid.UUID):
        return str(item)
    if isinstance(item, bytes | bytearray | memoryview):
        return _text(bytes(item))
    inside = (*above, id(item))
    if isinstance(item, Mapping):
        if "type" not in item and "data" not in item and "array" not in item:
            return {_key(key): plain_value(value, inside) for key, value in item.items()}
        plain = media.without_data(item)
        return media.image_part({_key(key): plain_value(value, inside) for key, value in plain.items()})
    if isinstance(item, set | frozenset):
        return sorted((plain_value(value, inside) for value in item), key=lambda value: (str(type(value)), str(value)))
    if isinstance(item, list | tuple | deque | range):
        return [plain_value(value, inside) for value in item]
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return {field.name: plain_value(getattr(item, field.name), inside) for field in dataclasses.fields(item)}
    return _shown(item)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return str.__str__(key)
    plain = plain_value(key)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"


def _shown(item: Any) -> str:
    try:
        text = repr(item)
        return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
    except Exception:  # noqa: BLE001  (code of a user's class)
        return f"<{type(item).__name__}, whose repr fails>"
