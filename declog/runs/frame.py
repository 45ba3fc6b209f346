"""Rows read from a run: one Arrow table, converted for pandas, polars or plain Python.

Also joins the rows of several files: of the ranks of a sink, and of several sinks that wrote the same rows.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, overload

from declog.errors import UsageError, did_you_mean
from declog.errors.habits import meant, no_attribute
from declog.runs.guarded import parsed
from declog.sinks._rows import event_steps

OBJECT = b"declog.type"  # the metadata key of a column whose texts are JSON
SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class Frame(Sequence[dict[str, Any]]):
    """Rows in the order in which they were logged: a sequence of dicts of plain Python values.

    For pandas, polars and Arrow, a column of objects becomes structs and lists if all its values have one shape (a
    missing key is null), else texts of JSON. A dict has the decoded values. ``called`` is the Python expression that
    gives this frame, for messages.
    """

    def __init__(self, table: Any, called: str = "FRAME") -> None:
        self._table = table
        self._called = called
        self._decoded: Any = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            columns = () if name.startswith("_") else self.columns
            fix = f"\n  fix: FRAME.pandas()[{name!r}]" if name in columns else meant(name, (), "FRAME", "frame")
            raise no_attribute(f"'Frame' object has no attribute {name!r}{fix}")

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return _rows(self._table)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, str):
            raise TypeError(f"a frame is a sequence of rows\n  fix: {self._with(index)}")
        if isinstance(index, int) and not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of a frame with {len(self)} rows")
        rows = range(len(self))[index]
        if isinstance(rows, int):
            return next(_rows(self._table.slice(rows, 1)))
        import pyarrow as pa

        return list(_rows(self._table.take(pa.array(rows, pa.int64()))))

    def with_name(self, name: str) -> str:
        """The Python expression that gives the rows of a name, for messages."""
        return f'[row for row in {self._called} if row["name"] == {json.dumps(name, ensure_ascii=False)}]'

    def _with(self, name: str) -> str:
        """The Python expression for a column, or for the rows of a name; for any other text, the nearest column."""
        if name not in self.columns and "name" in self.columns and name in self._table["name"].to_pylist():
            return self.with_name(name)
        if name in self.columns:
            return f"{self._called}.pandas()[{name!r}]"
        return f"{self._called}.pandas() is a table; {did_you_mean(name, self.columns, what='columns')}"

    def __repr__(self) -> str:
        return f"<{len(self)} rows of {', '.join(self.columns)}>"

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._table.column_names)

    def arrow(self) -> Any:
        """The rows as a ``pyarrow.Table``."""
        if self._decoded is None:
            import pyarrow as pa

            columns = {name: _column(pa, self._table, name) for name in self.columns}
            self._decoded = pa.table(columns) if columns else self._table
        return self._decoded

    def pandas(self) -> Any:
        """The rows as a ``pandas.DataFrame``. Raises ``UsageError`` DL607 if pandas is not installed."""
        required("pandas")
        return self.arrow().to_pandas()

    def polars(self) -> Any:
        """The rows as a ``polars.DataFrame``. Raises ``UsageError`` DL607 if polars is not installed."""
        return required("polars").from_arrow(self.arrow())


def _rows(table: Any) -> Iterator[dict[str, Any]]:
    names = table.column_names
    columns = [_values(table, name) if _is_object(table, name) else table.column(name).to_pylist() for name in names]
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def _is_object(table: Any, name: str) -> bool:
    return OBJECT in (table.schema.field(name).metadata or {})


def _column(pa: Any, table: Any, name: str) -> Any:
    if not _is_object(table, name):
        return table.column(name)
    try:
        return pa.array(_values(table, name))
    except (pa.ArrowException, OverflowError, RecursionError):  # the values have several shapes
        return table.column(name)


def _values(table: Any, name: str) -> list[Any]:
    return [None if text is None else _decoded(text) for text in table.column(name).to_pylist()]


def _decoded(text: str) -> Any:
    """The value of a JSON text; the text itself if it is no JSON."""
    try:
        return revived(parsed(text))
    except (ValueError, RecursionError):
        return text


def revived(value: Any, *, numbers: bool = False) -> Any:
    """Turn texts of NaN and infinities in lists of numbers into numbers; ``numbers``: the value is such a list."""
    if isinstance(value, list):
        if not (numbers or any(isinstance(item, float | int) for item in value)):
            return [revived(item) for item in value]
        return [SPECIAL.get(item, item) if isinstance(item, str) else revived(item) for item in value]
    if isinstance(value, Mapping):
        tokens = "tokens" in value  # the other lists have a number or a null for each token
        return {key: revived(item, numbers=tokens and key != "tokens") for key, item in value.items()}
    return value


def required(package: str) -> Any:
    """Import an optional package. Raises ``UsageError`` DL607 if it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError as cause:
        raise UsageError.of("DL607.package", package=package) from cause


# -- rows of several files


def joint(tables: Sequence[Any]) -> Any:
    """Concatenate the rows of all tables; a column that a table lacks is null in its rows."""
    import pyarrow as pa

    return pa.concat_tables(tables, promote_options="permissive")


def by_step(table: Any) -> Any:
    """Sort the rows by the step of their log event; rows of one log event keep their order."""
    import pyarrow.compute as compute

    steps = event_steps(table)
    return table.take(compute.sort_indices(steps)) if steps is not None else table


def merged(tables: Sequence[Any], key: Sequence[str]) -> Any:
    """Merge the rows of several sinks by ``key``; rows of a key that an earlier sink has are left out."""
    rows = tables[0]
    for table in tables[1:]:
        present = set(_keys(rows, key))
        more = [index for index, one in enumerate(_keys(table, key)) if one not in present]
        if more:
            rows = by_step(joint([rows, table.take(more)]))
    return rows


def _keys(table: Any, key: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    columns = [(event_steps(table) if name == "step" else table[name]).to_pylist() for name in key]
    return zip(*columns, strict=True)
