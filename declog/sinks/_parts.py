"""A parquet dataset that grows one log event at a time and is a whole dataset at every moment.

The newest part holds the latest log events and is written again, whole, with each further one: to a scratch
folder beside the dataset, fsynced, then renamed over its older self. A part that is full is never touched
again. So there is nothing to compact and no moment at which a reader, or a ``kill -9``, finds a row twice or
not at all: a rename replaces a part with one that has the same rows and more. The price is bounded by
``part_events`` and ``part_bytes``: on average half a part is written per log event.

All parts of a dataset have one schema, since pandas takes the first part's and polars insists on it. A new
column is therefore added to the older parts too, as nulls, one rename each. While that runs, or if the process
dies in it, some parts lack the column (rows are never affected); the next ``open`` finishes the work.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from declog.errors import SinkError

# More chunks than this make a part slower to write than to copy together.
MAX_CHUNKS = 32


class PartDataset:
    """The parts in ``folder``, written by one process. ``pa`` and ``pq`` are pyarrow and its parquet module."""

    def __init__(
        self,
        pa: Any,
        pq: Any,
        folder: Path,
        scratch: Path,
        *,
        metadata: Mapping[str, str],
        compression: str,
        part_events: int,
        part_bytes: int,
    ) -> None:
        self._pa, self._pq = pa, pq
        self._folder, self._scratch = folder, scratch
        self._metadata = {key.encode(): value.encode() for key, value in metadata.items()}
        self._compression = compression
        self._part_events, self._part_bytes = part_events, part_bytes
        folder.mkdir(parents=True, exist_ok=True)
        self._full = sorted(folder.glob("part-*.parquet"))
        self._sequence = 1 + max((int(path.stem.partition("-")[2]) for path in self._full), default=-1)
        self._tail: list[Any] = []
        self._events = self._unsaved = 0
        schemas = [pq.read_schema(path).remove_metadata() for path in self._full]
        self._schema = pa.unify_schemas(schemas) if schemas else pa.schema([])
        self._narrow = any(schema != self._schema for schema in schemas)
        if self._narrow:
            self._widen()

    def append(self, table: Any) -> None:
        """Add one log event's rows.

        ``SinkError`` where a column's type is not what the dataset has: nothing is taken. ``OSError`` where the
        disk refused: the rows wait in memory, at most a part of them, and are written with the next log event.
        """
        schema = self._joined(table.schema)
        if self._events >= self._part_events:
            self.flush()
        if schema != self._schema:
            self._schema = schema
            self._narrow = bool(self._full)
        if len(self._tail) >= MAX_CHUNKS:
            self._tail = [self._whole().combine_chunks()]
        self._tail.append(table)
        self._events += 1
        self._unsaved += 1
        try:
            self.flush()
        except OSError:
            raise
        except Exception:
            # Rows that cannot be written at all must not stand in the way of those that follow.
            self._tail.pop()
            self._events -= 1
            self._unsaved -= 1
            raise

    def flush(self) -> None:
        """Write what is not on disk yet."""
        if self._narrow:
            self._widen()
        if not self._unsaved:
            return
        path = self._folder / f"part-{self._sequence:06d}.parquet"
        size = self._replace(path, self._whole().replace_schema_metadata(self._metadata))
        self._unsaved = 0
        if self._events >= self._part_events or size >= self._part_bytes:
            self._full.append(path)
            self._sequence += 1
            self._tail, self._events = [], 0

    def _joined(self, schema: Any) -> Any:
        known = {field.name: field.type for field in self._schema}
        for field in schema:
            if known.get(field.name, field.type) != field.type:
                now, before = field.type, known[field.name]
                raise SinkError(
                    "DL602",
                    f"column `{field.name}` of `{self._folder.name}` is {now}, and was {before} before",
                    "give the table another id, or the run another output_dir",
                )
        new = [field for field in schema if field.name not in known]
        return self._pa.schema([*self._schema, *new]) if new else self._schema

    def _whole(self) -> Any:
        return self._pa.concat_tables([self._conform(table) for table in self._tail])

    def _conform(self, table: Any) -> Any:
        if table.schema == self._schema:
            return table
        columns = [
            table.column(field.name) if field.name in table.schema.names else self._pa.nulls(len(table), field.type)
            for field in self._schema
        ]
        return self._pa.Table.from_arrays(columns, schema=self._schema)

    def _widen(self) -> None:
        for path in self._full:
            if self._pq.read_schema(path).remove_metadata() != self._schema:
                table = self._pq.read_table(path, partitioning=None)
                self._replace(path, self._conform(table).replace_schema_metadata(table.schema.metadata))
        self._narrow = False

    def _replace(self, path: Path, table: Any) -> int:
        """Put ``table`` where ``path`` is, atomically and durably; returns the part's size."""
        scratch = self._scratch / f"{self._folder.name}-{path.name}"
        with open(scratch, "wb") as file:
            self._pq.write_table(table, file, compression=self._compression)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        os.replace(scratch, path)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return size
