"""The scalars of a run by name: the steps and values of each, and a table with all of them.

Imports numpy; pyarrow and pandas only at their first use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from declog.errors.habits import meant, no_attribute
from declog.runs.frame import required

TRAIN = "train"
LoggedName = tuple[str, str | None, str]  # a name, the key of its metric, and its mode


@dataclass(frozen=True, eq=False)
class Series:
    """One scalar over a run: ``steps`` and ``values``, each ``[n]``, in the order in which they were logged.

    ``values`` are int64 if all of them are integers, else float64; NaN and infinities are included. A step that was
    logged more than once has its last value. As a sequence a series is its values: ``series[-1]`` is the last one, and
    ``max(series)`` the greatest; an index counts values, not steps. numpy converts a series to its values.
    """

    name: str
    mode: str
    steps: NDArray[np.int64]
    values: NDArray[Any]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            shown = f"run[{self.__dict__.get('name')!r}]"
            raise no_attribute(f"'Series' object has no attribute {name!r}{meant(name, (), shown, 'series')}")

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[int | float]:
        return iter(self.values.tolist())

    def __getitem__(self, index: Any) -> Any:
        """The value at an index, or the values of a slice or a mask."""
        return self.values[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.values, dtype)

    def __repr__(self) -> str:
        if not len(self):
            return f"<{self.name}: no values>"
        return f"<{self.name}: {len(self)} values, steps {self.steps[0]} to {self.steps[-1]}, last {self.values[-1]:g}>"

    def pandas(self) -> Any:
        """A ``pandas.Series`` by step. Raises ``UsageError`` DL607 if pandas is not installed."""
        pandas = required("pandas")
        return pandas.Series(self.values, index=pandas.Index(self.steps, name="step"), name=self.name)


def series_by_name(scalars: Any, mode: str | None = None) -> dict[str, Series]:
    """The scalars of an Arrow table by name, in the order in which the names were first logged.

    ``mode`` selects the scalars of one mode. Without it, a name of several modes is that of training, or else of the
    mode that logged it first.
    """
    rows_by_mode: dict[str, dict[str, NDArray[np.int64]]] = {}
    for name, of_mode, rows in rows_by_name(scalars):
        rows_by_mode.setdefault(name, {})[of_mode] = rows
    steps = scalars["step"].to_numpy()
    floats = scalars["value"].to_numpy()
    is_integer = scalars["int_value"].is_valid().to_numpy()
    integers = scalars["int_value"].fill_null(0).to_numpy()
    series = {}
    for name, modes in rows_by_mode.items():
        wanted = mode if mode is not None else TRAIN if TRAIN in modes else next(iter(modes))
        if wanted in modes:
            rows = modes[wanted]
            last = dict(zip(steps[rows].tolist(), rows.tolist(), strict=True))
            rows = np.fromiter(last.values(), np.int64, len(last))
            values = integers[rows] if is_integer[rows].all() else floats[rows]
            series[name] = Series(name, wanted, steps[rows].astype(np.int64), values)
    return series


def logged_names(scalars: Any) -> list[LoggedName]:
    """The names in an Arrow table of scalars, each with its metric's key and its mode, in the order of the first rows.

    A name of several metrics or modes is there once for each. The key is None for a number without a metric.
    """
    keys, codes = _encoded(scalars["metric"])
    groups = [(name, mode, dict.fromkeys(codes[rows].tolist())) for name, mode, rows in rows_by_name(scalars)]
    return [(name, keys[code], mode) for name, mode, distinct in groups for code in distinct]


def name_of(logged: Iterable[LoggedName], metric: object) -> str | None:
    """The name under which the metric of an id was logged; None if it has no name, or several.

    The names are those in training, or else in the mode that logged the metric first.
    """
    names: dict[str, list[str]] = {}
    for name, key, mode in logged:
        if key is not None and key == metric:
            names.setdefault(mode, []).append(name)
    of_mode = names.get(TRAIN) or next(iter(names.values()), [])
    return of_mode[0] if len(of_mode) == 1 else None


def rows_by_name(scalars: Any) -> Iterator[tuple[str, str, NDArray[np.int64]]]:
    """Yield each name and mode of an Arrow table of scalars with its row indices, in the order of the first rows."""
    names, name_codes = _encoded(scalars["name"])
    modes, mode_codes = _encoded(scalars["mode"])
    if not names:
        return
    codes = name_codes * len(modes) + mode_codes
    order = np.argsort(codes, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    for rows in sorted(groups, key=lambda rows: int(rows[0])):
        yield names[name_codes[rows[0]]], modes[mode_codes[rows[0]]], rows


def training_times(scalars: Any) -> dict[int, float]:
    """The steps of training's log events, sorted, each with the time of its latest scalar, in seconds since 1970."""
    rows = zip(*(scalars[name].to_pylist() for name in ("mode", "step", "time")), strict=True)
    times: dict[int, float] = {}
    for mode, step, time in rows:
        if mode == TRAIN and time:
            times[step] = max(time, times.get(step, time))
    return dict(sorted(times.items()))


def wide_table(series: Mapping[str, Series]) -> Any:
    """An Arrow table with a row for each step and a column for each scalar; null if it was not logged at the step."""
    import pyarrow as pa

    steps = np.unique(np.concatenate([np.zeros(0, np.int64), *(one.steps for one in series.values())]))
    columns = {"step": pa.array(steps)}
    for name, one in series.items():
        indices = np.searchsorted(steps, one.steps)
        values, absent = np.zeros(len(steps), one.values.dtype), np.ones(len(steps), bool)
        values[indices], absent[indices] = one.values, False
        columns[name] = pa.array(values, mask=absent)
    return pa.table(columns)


def _encoded(column: Any) -> tuple[list[str], NDArray[np.int64]]:
    """The distinct texts of a column in order of appearance, and the index of each row's text among them."""
    texts = column.combine_chunks().dictionary_encode(null_encoding="encode")
    return texts.dictionary.to_pylist(), texts.indices.to_numpy(zero_copy_only=False).astype(np.int64)
