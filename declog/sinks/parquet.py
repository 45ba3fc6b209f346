"""The parquet sink: the primary record of a run, typed, for pandas, polars, pyarrow and DuckDB.

    <dir>/scalars/       step, mode, name, metric, value, int_value, partial, time, run_id: one row per scalar
    <dir>/histograms/    step, mode, name, metric, counts, edges, time, run_id
    <dir>/alerts/        step, mode, name, level, text, time, run_id
    <dir>/tables/<id>/   the table's own columns, and step, mode, group, row, why and run_id where it has no such
                         column; if a row's step is not the log event's, or the table has its own `step` or `run_id`,
                         `declog_step` and `declog_run_id` are the log event's, which a resumed run needs

Each folder is one dataset: ``pandas.read_parquet(folder)`` and ``polars.read_parquet(folder)`` read it while the
run goes on, and after a ``kill -9`` (``_parts`` says how, and what its files are). ``<dir>`` is
``<output_dir>/<sink id>`` unless the option ``dir`` says otherwise.

``value`` is float64 with NaN for NaN; ``int_value`` holds integers exactly and is null for everything else.
``time`` is in seconds since 1970. Columns of a table are int64, float64, bool or string by its schema; one of objects
is a string of JSON, and says so in its metadata (`declog.type`). The plan's fingerprint, the run's id and declog's
version are in the metadata of each file.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from declog.errors import SinkError
from declog.records import Alert, Column, DType, Histogram, Records, RunInfo, Scalar, Table
from declog.sinks import ALERT, HISTOGRAM, SCALAR, TABLE, BaseSink
from declog.sinks._parts import PartDataset, recover
from declog.sinks._shared import (
    EVENT_RUN,
    EVENT_STEP,
    SinkFolder,
    as_float,
    clean_text,
    json_text,
    origins,
    require,
    run_column,
)

INT64 = range(-(2**63), 2**63)

OBJECT = {"declog.type": "object"}  # in the metadata of a column whose texts are JSON

# A column's name, Arrow type or field, and values.
Columns = dict[str, tuple[Any, Sequence[Any]]]
Events = Sequence[tuple[int, Records]]


class ParquetSink(BaseSink):
    """Writes growing parquet datasets: one file per log event; every ``compact_every`` files are merged.

    If the disk is slow, waiting log events become one file.
    """

    kind = "parquet"
    package = "pyarrow"
    in_folder = True
    per_rank = True
    unfiltered_bytes = None
    accepts: ClassVar[frozenset[str]] = frozenset({SCALAR, HISTOGRAM, TABLE, ALERT})

    def __init__(
        self,
        *,
        dir: str | None = None,
        compression: Literal["zstd", "snappy", "gzip", "none"] = "zstd",
        compact_every: int = 256,
    ) -> None:
        self._pa = require("pyarrow", kind="parquet")
        self._pq = require("pyarrow.parquet", kind="parquet")
        self._compute = require("pyarrow.compute", kind="parquet")
        self._dir = dir
        self._compression = compression
        self._compact_every = max(1, compact_every)
        self._place: SinkFolder | None = None
        self._run_id = ""
        self._folder = self._scratch = Path()
        self._metadata: dict[str, str] = {}
        self._datasets: dict[str, PartDataset] = {}

    def open(self, run: RunInfo) -> None:
        """Create the folders, or continue the datasets that are in them."""
        self._place = SinkFolder(run, self._dir, "parquet")
        self._folder, self._run_id = self._place.path, run.run_id
        # Not inside a dataset: polars reads every file of a folder, a crash's leftovers too.
        self._scratch = self._folder / ".scratch"
        recover(self._folder, self._scratch)
        self._scratch.mkdir(parents=True)
        self._metadata = {
            "declog.fingerprint": run.fingerprint,
            "declog.run_id": run.run_id,
            "declog.version": run.version,
        }
        for part in (*self._folder.glob("*/*/part-*.parquet"), *self._folder.glob("tables/*/*/part-*.parquet")):
            self._dataset(str(part.parent.parent.relative_to(self._folder)))

    def move(self, run: RunInfo) -> None:
        """Open the datasets of the run that goes on."""
        self.close()
        self._datasets.clear()
        self.open(run)

    def rewind(self, step: int) -> None:
        """Drop this run's rows after ``step``, part by part; a kill leaves complete files."""
        for dataset in self._datasets.values():
            dataset.keep(lambda rows: self._logged_until(rows, step))

    def _logged_until(self, rows: Any, step: int) -> Any:
        """A mask of the rows to keep: those up to ``step``, and those of other runs."""
        compute = self._compute
        names = [name for name in (EVENT_RUN, "run_id") if name in rows.column_names]
        until = self._steps_until(rows, step)
        if not names:  # a file without ids of runs
            return until
        runs = compute.coalesce(*(rows.column(name) for name in names))
        return compute.or_(until, compute.fill_null(compute.not_equal(runs, self._run_id), False))

    def _steps_until(self, rows: Any, step: int) -> Any:
        steps = rows.column("step")
        if EVENT_STEP in rows.column_names:  # null where the table had no step of its own yet
            own = rows.column(EVENT_STEP)
            steps = self._compute.coalesce(own, steps) if own.null_count else own
        return self._compute.less_equal(steps, step)

    def write(self, step: int, records: Records) -> None:
        """Add one log event to each dataset. Rows that a full disk refused wait for the next one."""
        for error in self.write_many([(step, records)]).values():
            raise error

    def write_many(self, events: Events) -> dict[int, Exception]:
        """Add log events to each dataset as one part; a broken dataset or event does not affect the others."""
        tables: dict[str, list[tuple[Sequence[int], Any]]] = {}
        reasons: dict[int, list[tuple[str, Exception]]] = {}
        for name, places, make in self._frames(events):
            try:
                tables.setdefault(name, []).append((places, make()))
            except (SinkError, self._pa.ArrowException, ValueError, TypeError) as error:
                if len(places) > 1:  # one of them is broken: each is written by itself
                    return {at: error for at, event in enumerate(events) for error in self.write_many([event]).values()}
                reasons.setdefault(places[0], []).append((name, error))
        for name, parts in tables.items():
            for (places, _), failed in zip(parts, self._append(name, [table for _, table in parts]), strict=True):
                if failed is not None:
                    for place in places:
                        reasons.setdefault(place, []).append((name, failed))
        return {place: _joined(failures) for place, failures in reasons.items()}

    def _append(self, name: str, tables: Sequence[Any]) -> Sequence[Exception | None]:
        try:
            return self._dataset(name).append(*tables) if tables else []
        except (SinkError, OSError, self._pa.ArrowException) as error:  # its folder could not be made
            return [error] * len(tables)

    def close(self) -> None:
        """Write the rows that a full disk refused, and merge many files into few."""
        if self._place is None:  # never opened: no folder is its own
            return
        try:
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
        finally:
            self._place.release()
            self._place = None

    def _dataset(self, name: str) -> PartDataset:
        if name not in self._datasets:
            self._datasets[name] = PartDataset(
                self._pa,
                self._pq,
                self._folder / name,
                self._scratch / name,
                metadata=self._metadata,
                compression=self._compression,
                compact_every=self._compact_every,
            )
        return self._datasets[name]

    def _frames(self, events: Events) -> Iterator[tuple[str, Sequence[int], Callable[[], Any]]]:
        """The datasets of some log events, each with the indices of its events and a maker of an Arrow table."""
        for kind in ("scalars", "histograms", "alerts"):
            places = [place for place, (_, records) in enumerate(events) if getattr(records, kind)]
            if places:
                yield kind, places, partial(self._events, kind, [events[place] for place in places])
        for place, (step, records) in enumerate(events):
            for table in records.tables:
                if table.rows:
                    yield f"tables/{table.table}", [place], partial(self._table, step, records.mode, table)

    def _events(self, kind: str, events: Events) -> Any:
        """The scalars, histograms or alerts of log events, a row for each."""
        pa = self._pa
        rows = [(step, records, item) for step, records in events for item in getattr(records, kind)]
        columns: Columns = {
            "step": (pa.int64(), [step for step, _, _ in rows]),
            "mode": (pa.string(), [records.mode for _, records, _ in rows]),
            "name": (pa.string(), [item.name for _, _, item in rows]),
        }
        columns |= getattr(self, f"_{kind}")([item for _, _, item in rows])
        columns["time"] = pa.float64(), [records.time for _, records, _ in rows]
        return self._frame({**columns, "run_id": (pa.string(), [self._run_id] * len(rows))})

    def _scalars(self, scalars: Sequence[Scalar]) -> Columns:
        pa, values = self._pa, [scalar.value for scalar in scalars]
        return {
            "metric": (pa.string(), [scalar.metric for scalar in scalars]),
            "value": (pa.float64(), [as_float(value) for value in values]),
            "int_value": (pa.int64(), [int(v) if isinstance(v, int) and v in INT64 else None for v in values]),
            "partial": (pa.bool_(), [scalar.partial for scalar in scalars]),
        }

    def _histograms(self, histograms: Sequence[Histogram]) -> Columns:
        pa = self._pa
        return {
            "metric": (pa.string(), [histogram.metric for histogram in histograms]),
            "counts": (pa.list_(pa.int64()), [list(histogram.counts) for histogram in histograms]),
            "edges": (pa.list_(pa.float64()), [[float(e) for e in histogram.edges] for histogram in histograms]),
        }

    def _alerts(self, alerts: Sequence[Alert]) -> Columns:
        text = self._pa.string()
        return {"level": (text, [alert.level for alert in alerts]), "text": (text, [alert.text for alert in alerts])}

    def _table(self, step: int, mode: str, table: Table) -> Any:
        pa = self._pa
        known = {
            name: (pa.string() if name == "why" else pa.int64(), values)
            for name, values in origins(table, step).items()
        }
        columns: Columns = {"step": known.pop("step"), "mode": (pa.string(), [mode] * table.rows), **known}
        for column in table.columns:
            columns[column.name] = self._column(column, table.data[column.name])
        columns[run_column(table)] = (pa.string(), [self._run_id] * table.rows)
        return self._frame(columns)

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
        for name, (given, values) in columns.items():
            field = given if isinstance(given, self._pa.Field) else self._pa.field(name, given)
            type_ = field.type
            fields.append(field)
            try:
                arrays[name] = self._pa.array(values, type_)
            except UnicodeEncodeError:
                arrays[name] = self._pa.array([None if text is None else clean_text(text) for text in values], type_)
            except (self._pa.ArrowException, OverflowError, TypeError) as cause:
                raise SinkError.of("DL602.parquet_column", name=name, type=type_, cause=cause) from cause
        return self._pa.table(arrays, schema=self._pa.schema(fields))


def _cell(value: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """A cell of tokens with valid UTF-8 texts."""
    pieces, *values = value
    found = {pieces: [clean_text(piece) for piece in value[pieces]]}
    return found | {name: [None if item is None else as_float(item) for item in value[name]] for name in values}


def _joined(reasons: Sequence[tuple[str, Exception]]) -> SinkError:
    """The failures of several datasets as one error."""
    error = SinkError.of("DL602.parts", reasons="; ".join(f"{name}: {reason}" for name, reason in reasons))
    error.__cause__ = reasons[0][1]
    return error
