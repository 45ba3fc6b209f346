"""The parquet sink: the primary record of a run, typed, for pandas, polars, pyarrow and DuckDB.

    <dir>/scalars/       step, mode, name, metric, value, int_value, partial, time, run_id: one row per scalar
    <dir>/histograms/    step, mode, name, metric, counts, edges, time, run_id
    <dir>/alerts/        step, mode, name, level, text, time, run_id
    <dir>/tables/<id>/   the table's own columns, and step, mode, group, row, why and run_id if it has no such
                         column; if a row's step is not the log event's, or the table has its own `step` or `run_id`,
                         `declog_step` and `declog_run_id` are the log event's, which a resumed run needs

Each folder is one dataset: ``pandas.read_parquet(folder)`` and ``polars.read_parquet(folder)`` read it while the
run goes on, and after a ``kill -9``. ``_parts`` explains its files. ``<dir>`` is ``<output_dir>/<sink id>``, or the
option ``dir``.

``value`` is float64; ``int_value`` holds integers exactly and is null for other values. ``time`` is in seconds since
1970. Columns of a table are int64, float64, bool or string by its schema; a column of objects has strings of JSON, and
the mark `declog.type` in its metadata. The plan's fingerprint, the run's id and declog's version are in the metadata of
each file.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from declog.errors import SinkError
from declog.records import Column, DType, Records, ResumePoint, RunInfo, Table, json_text
from declog.sinks._folder import FolderSink
from declog.sinks._parts import PartDataset, recover
from declog.sinks._rows import COLUMNS, EVENT_RUN, event_rows, event_steps, origins, run_column, schema
from declog.sinks._shared import as_float, clean_text, require

OBJECT = {"declog.type": "object"}  # in the metadata of a column whose texts are JSON

# A column's name, Arrow type or field, and values.
Columns = Mapping[str, tuple[Any, Sequence[Any]]]
Events = Sequence[tuple[int, Records]]


class ParquetSink(FolderSink):
    """Writes growing parquet datasets: one file per log event; every ``compact_every`` files are merged.

    If the disk is slow, waiting log events become one file.
    """

    kind = "parquet"
    package = "pyarrow"
    per_rank = True
    unfiltered_bytes = None

    def __init__(self, *, dir: str | None = None, compact_every: int = 256) -> None:
        super().__init__(dir)
        self._pa = require("pyarrow", kind="parquet")
        self._compute = require("pyarrow.compute", kind="parquet")
        self._compact_every = max(1, compact_every)
        self._scratch = Path()
        self._metadata: dict[str, str] = {}
        self._datasets: dict[str, PartDataset] = {}

    def begin(self, run: RunInfo) -> None:
        """Create the folders, or continue the datasets that are in them."""
        # Outside of all datasets: polars reads every file of a folder, also files that a crash left.
        self._scratch = self.folder / ".scratch"
        recover(self.folder, self._scratch)
        self._scratch.mkdir(parents=True)
        self._metadata = {
            "declog.fingerprint": run.fingerprint,
            "declog.run_id": run.run_id,
            "declog.version": run.version,
        }
        self._datasets.clear()
        for part in (*self.folder.glob("*/*/part-*.parquet"), *self.folder.glob("tables/*/*/part-*.parquet")):
            self._dataset(str(part.parent.parent.relative_to(self.folder)))

    def rewind(self, point: ResumePoint) -> None:
        """Drop the rows that this run logs again, part by part; a kill leaves complete files."""
        for name, dataset in self._datasets.items():
            dataset.keep(partial(self._kept, point, name), until=point.step - 1)

    def _kept(self, point: ResumePoint, dataset: str, rows: Any) -> Any:
        """A mask of the rows to keep: those that ``point`` keeps, and those of other runs."""
        compute = self._compute
        steps = event_steps(rows)
        until = compute.less_equal(steps, point.step)
        if point.open and compute.any(compute.equal(steps, point.step)).as_py():
            until = compute.and_(until, self._pa.array(_kept_events(point, dataset, rows, steps.to_pylist())))
        runs = [rows.column(name) for name in (EVENT_RUN, "run_id") if name in rows.column_names]
        if not runs:  # a file without ids of runs
            return until
        return compute.or_(until, compute.fill_null(compute.not_equal(compute.coalesce(*runs), self.run_id), False))

    def write(self, step: int, records: Records) -> None:
        """Add one log event to each dataset. Rows that a full disk refused wait for the next one."""
        for error in self.write_many([(step, records)]).values():
            raise error

    def write_many(self, events: Events) -> dict[int, Exception]:
        """Add log events to each dataset as one part; a broken dataset or event does not affect the others."""
        tables: dict[str, list[tuple[Sequence[int], Any]]] = {}
        reasons: dict[int, list[tuple[str, Exception]]] = {}
        for name, indices, make in self._frames(events):
            try:
                tables.setdefault(name, []).append((indices, make()))
            except (SinkError, self._pa.ArrowException, ValueError, TypeError) as error:
                if len(indices) > 1:  # one of the events is broken: write each by itself
                    return {at: error for at, event in enumerate(events) for error in self.write_many([event]).values()}
                reasons.setdefault(indices[0], []).append((name, error))
        for name, parts in tables.items():
            for (indices, _), failed in zip(parts, self._append(name, [table for _, table in parts]), strict=True):
                if failed is not None:
                    for index in indices:
                        reasons.setdefault(index, []).append((name, failed))
        return {index: _joined(failures) for index, failures in reasons.items()}

    def _append(self, name: str, tables: Sequence[Any]) -> Sequence[Exception | None]:
        try:
            return self._dataset(name).append(*tables)
        except (SinkError, OSError, self._pa.ArrowException) as error:  # the dataset could not be opened
            return [error] * len(tables)

    def end(self) -> None:
        """Write the rows that a full disk refused, and merge many files into few."""
        reasons = []
        for name, dataset in self._datasets.items():  # a broken dataset does not affect the others
            try:
                dataset.flush()
                dataset.finish()
            except (SinkError, OSError, self._pa.ArrowException, ValueError, TypeError) as error:
                reasons.append((name, error))
        if reasons:
            raise _joined(reasons)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _dataset(self, name: str) -> PartDataset:
        if name not in self._datasets:
            self._datasets[name] = PartDataset(
                self.folder / name,
                self._scratch / name,
                metadata=self._metadata,
                compact_every=self._compact_every,
            )
        return self._datasets[name]

    def _frames(self, events: Events) -> Iterator[tuple[str, Sequence[int], Callable[[], Any]]]:
        """The datasets of some log events, each with the indices of its events and a maker of an Arrow table."""
        for kind in COLUMNS:
            indices = [index for index, (_, records) in enumerate(events) if getattr(records, kind)]
            if indices:
                yield kind, indices, partial(self._events, kind, [events[index] for index in indices])
        for index, (step, records) in enumerate(events):
            for table in records.tables:
                if table.rows:
                    yield f"tables/{table.table}", [index], partial(self._table, step, records.mode, table)

    def _events(self, kind: str, events: Events) -> Any:
        """The scalars, histograms or alerts of log events, a row for each."""
        rows = event_rows(kind, events, self.run_id)
        return self._frame({field.name: (field, [row[field.name] for row in rows]) for field in schema(kind)})

    def _table(self, step: int, mode: str, table: Table) -> Any:
        pa = self._pa
        places = origins(table, step)
        columns: dict[str, tuple[Any, Sequence[Any]]] = {
            "step": (pa.int64(), places.pop("step")),
            "mode": (pa.string(), [mode] * table.rows),
        }
        columns |= {name: (pa.string() if name == "why" else pa.int64(), values) for name, values in places.items()}
        columns |= {column.name: self._column(column, table.data[column.name]) for column in table.columns}
        return self._frame({**columns, run_column(table): (pa.string(), [self.run_id] * table.rows)})

    def _column(self, column: Column, values: Sequence[Any]) -> tuple[Any, list[Any]]:
        pa = self._pa
        if column.type is DType.FLOAT:
            # pyarrow refuses integers beyond 2**53 in a float column.
            return pa.float64(), [None if value is None else as_float(value) for value in values]
        if column.tokens is not None:
            cells = [None if value is None else _cell(value) for value in values]
            items = {"tokens": pa.list_(pa.string()), **dict.fromkeys(column.tokens, pa.list_(pa.float64()))}
            return pa.struct(items), cells
        if column.type is DType.OBJECT:
            objects = pa.field(column.name, pa.string(), metadata=OBJECT)
            return objects, [None if value is None else json_text(value) for value in values]
        return {DType.INT: pa.int64(), DType.BOOL: pa.bool_(), DType.TEXT: pa.string()}[column.type], list(values)

    def _frame(self, columns: Columns) -> Any:
        arrays, fields = {}, []
        for name, (field_or_type, values) in columns.items():
            field = field_or_type if isinstance(field_or_type, self._pa.Field) else self._pa.field(name, field_or_type)
            type_ = field.type
            fields.append(field)
            try:
                arrays[name] = self._pa.array(values, type_)
            except UnicodeEncodeError:
                arrays[name] = self._pa.array([None if text is None else clean_text(text) for text in values], type_)
            except (self._pa.ArrowException, OverflowError, TypeError) as cause:
                raise SinkError.of("DL602.parquet_column", name=name, type=type_, cause=cause) from cause
        return self._pa.table(arrays, schema=self._pa.schema(fields))


def _kept_events(point: ResumePoint, dataset: str, rows: Any, steps: Sequence[int]) -> list[bool]:
    """Whether ``point`` keeps the log event of each row; the rows of a log event stay or go together.

    ``steps`` has the step of each row's log event.
    """
    section, _, table = dataset.partition("/")
    of_key, column = {"tables": ("tables", None), "alerts": ("alerts", "name")}.get(section, ("metrics", "metric"))
    names = [table] * len(rows) if column is None else rows[column].to_pylist()
    times = [None] * len(rows) if column is None else rows["time"].to_pylist()
    events = list(zip(steps, rows["mode"].to_pylist(), times, strict=True))
    lost = {
        event for event, name in zip(events, names, strict=True) if not point.keeps(*event[:2], [f"{of_key}.{name}"])
    }
    return [event not in lost for event in events]


def _cell(value: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """A cell of tokens with valid UTF-8 texts."""
    pieces, *values = value
    numbers = {name: [None if item is None else as_float(item) for item in value[name]] for name in values}
    return {pieces: [clean_text(piece) for piece in value[pieces]], **numbers}


def _joined(reasons: Sequence[tuple[str, Exception]]) -> SinkError:
    """The failures of several datasets as one error."""
    error = SinkError.of("DL602.parts", reasons="; ".join(f"{name}: {reason}" for name, reason in reasons))
    error.__cause__ = reasons[0][1]
    return error
