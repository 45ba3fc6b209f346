"""Rows read from a run: one Arrow table, converted for pandas, polars or plain Python."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from declog.errors import UsageError
from declog.errors.habits import meant, no_attribute
from declog.runs.guarded import parsed

OBJECT = b"declog.type"  # in the metadata of a column whose texts are JSON
SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class Frame:
    """Rows in the order in which they were logged; ``len`` counts them.

    A column of objects is decoded: into structs and lists if all its values have one shape (a missing key is null),
    else into texts of JSON. ``rows`` has the values unchanged.
    """

    def __init__(self, table: Any) -> None:
        self._table = table
        self._decoded: Any = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            columns = () if name.startswith("_") else self.columns
            fix = f"\n  fix: FRAME.pandas()[{name!r}]" if name in columns else meant(name, (), "FRAME", "frame")
            raise no_attribute(f"'Frame' object has no attribute {name!r}{fix}")

        def __getitem__(self, key: Any) -> NoReturn:
            fix = f"FRAME.pandas()[{key!r}]" if isinstance(key, str) else "FRAME.rows()[0], or FRAME.pandas()"
            raise TypeError(f"'Frame' object is not subscriptable\n  fix: {fix}")

        def __iter__(self) -> NoReturn:
            raise TypeError("'Frame' object is not iterable\n  fix: for row in FRAME.rows()")

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __repr__(self) -> str:
        return f"<{len(self)} rows of {', '.join(self.columns)}>"

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return list(self._table.column_names)

    def arrow(self) -> Any:
        """The rows as a ``pyarrow.Table``."""
        if self._decoded is None:
            import pyarrow as pa

            columns = {name: self._column(pa, name) for name in self.columns}
            self._decoded = pa.table(columns) if columns else self._table
        return self._decoded

    def pandas(self) -> Any:
        """The rows as a ``pandas.DataFrame``; ``UsageError`` DL607 where pandas is not installed."""
        required("pandas")
        return self.arrow().to_pandas()

    def polars(self) -> Any:
        """The rows as a ``polars.DataFrame``; ``UsageError`` DL607 where polars is not installed."""
        return required("polars").from_arrow(self.arrow())

    def rows(self) -> list[dict[str, Any]]:
        """The rows as maps of plain Python values."""
        columns = {
            name: _values(self._table.column(name)) if self._is_object(name) else self._table.column(name).to_pylist()
            for name in self.columns
        }
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _is_object(self, name: str) -> bool:
        return OBJECT in (self._table.schema.field(name).metadata or {})

    def _column(self, pa: Any, name: str) -> Any:
        column = self._table.column(name)
        if not self._is_object(name):
            return column
        try:
            return pa.array(_values(column))
        except (pa.ArrowException, OverflowError, RecursionError):  # of several shapes
            return column


def _values(column: Any) -> list[Any]:
    return [None if text is None else _decoded(text) for text in column.to_pylist()]


def _decoded(text: str) -> Any:
    """The value of a text of JSON; the text itself if it is not JSON."""
    try:
        return revived(parsed(text))
    except (ValueError, RecursionError):
        return text


def revived(value: Any, *, numbers: bool = False) -> Any:
    """A value of JSON with NaN and infinities as numbers, in lists of numbers; ``numbers``: this list is one."""
    if isinstance(value, list):
        if not (numbers or any(isinstance(item, float | int) for item in value)):
            return [revived(item) for item in value]
        return [SPECIAL.get(item, item) if isinstance(item, str) else revived(item) for item in value]
    if isinstance(value, Mapping):
        tokens = "tokens" in value  # beside the texts of tokens are a number or a null for each
        return {key: revived(item, numbers=tokens and key != "tokens") for key, item in value.items()}
    return value


def required(package: str) -> Any:
    """An optional package; ``UsageError`` DL607 if it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError as cause:
        raise UsageError.of("DL607.package", package=package) from cause
