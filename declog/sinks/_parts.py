"""A parquet dataset that grows by one file per log event, and is complete and readable at every moment.

    <folder>/000000/part-000000-000255.parquet     a full block: one file
    <folder>/000001/part-000256.parquet            the growing block: one file per log event, or for several that
    <folder>/000001/part-000257.parquet            waited for a slow disk

A part is written to a scratch folder beside the dataset, synced, renamed into its block, and never modified again. A
full block is merged: its folder changes places, in one atomic step, with a folder that holds the same rows in one file.
So a ``kill -9`` never duplicates or loses a row, and no reader sees a half-merged block. Once per block, a reader may
list a file that is then merged: it lists the block again. At the end the last block is merged too, and
small blocks are joined: a dataset has at most fifty files. On file systems without an atomic swap (NFS), the swap is
two renames. A crash between the two hides a block until the next ``open``, which finishes the swap.

All parts have one schema, since pandas takes the first part's and polars requires it. A new column is added to older
parts as nulls, by one rename each. If the process dies in between, some parts have no such column until the next
``open``; they keep all rows.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from declog.errors import SinkError
from declog.sinks._files import Exchange, exchange, finish_swap, fsync, put, swap_folder
from declog.sinks._rows import EVENT_STEP
from declog.sinks._shared import require

logger = logging.getLogger("declog")

# A block is merged from memory, since reading it back takes the GIL some thousand times. This bounds that memory.
BLOCK_BYTES = 32 * 2**20
MOST_FILES = 50  # the most files of a dataset after `finish`
COMPRESSION = "zstd"


class PartDataset:
    """The dataset in ``folder``, written by one process."""

    def __init__(
        self,
        folder: Path,
        scratch: Path,
        *,
        metadata: Mapping[str, str],
        compact_every: int,
        exchange: Exchange = exchange,
    ) -> None:
        self._pa, self._pq = (require(name, kind="parquet") for name in ("pyarrow", "pyarrow.parquet"))
        self._folder, self._scratch = folder, scratch
        self._metadata = {key.encode(): value.encode() for key, value in metadata.items()}
        self._compact_every = compact_every
        self._exchange = exchange
        self._pending: list[Any] = []
        self._block = self._block_bytes = self._sequence = 0
        self._in_block: list[Any] = []
        self._narrow = False
        self._schema: Any = self._pa.schema([])
        scratch.mkdir(parents=True, exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        self._continue()

    def append(self, *tables: Any) -> list[Exception | None]:
        """Add the rows of log events as one part; returns for each event None, or the reason why it is not written.

        The reason is a ``SinkError`` if a column has another type than in the dataset: no row of the event is written.
        It is an ``OSError`` if the disk refused: the rows, at most a block of them, wait in memory for the next event.
        """
        errors = [self._take(table) for table in tables]
        taken = [index for index, error in enumerate(errors) if error is None]
        try:
            self.flush()
        except OSError as refusal:
            return [refusal if error is None else error for error in errors]
        except Exception as error:  # noqa: BLE001  (any refusal of arrow's)
            # Rows that can never be written must not block the others.
            del self._pending[len(self._pending) - len(taken) :]
            if len(tables) == 1:
                return [error]
            for index in taken:
                (errors[index],) = self.append(tables[index])
        return errors

    def _take(self, table: Any) -> Exception | None:
        try:
            schema = self._with_columns_of(table.schema)
            if len(self._pending) >= self._compact_every:
                self.flush()
        except (SinkError, OSError, self._pa.ArrowException) as error:
            return error
        if schema != self._schema:
            self._schema = schema
            self._narrow = self._sequence > 0
        self._pending.append(table)
        return None

    def flush(self) -> None:
        """Write the rows that are not on disk yet."""
        if self._narrow:
            self._widen()
        if not self._pending:
            return
        table = self._concatenated(self._pending)
        block = self._folder / f"{self._block:06d}"
        part = block / f"part-{self._sequence:06d}.parquet"
        block.mkdir(exist_ok=True)
        self._write(part, table)
        self._pending.clear()
        self._sequence += 1
        self._in_block.append(table)
        self._block_bytes += table.nbytes
        if len(self._in_block) >= self._compact_every or self._block_bytes >= BLOCK_BYTES:
            self._compact(block, self._in_block)
            self._block += 1
            self._in_block, self._block_bytes = [], 0

    def finish(self) -> None:
        """Leave at most ``MOST_FILES`` files: merge the growing block, then neighbours, the smallest first.

        Each move of a part and each merge of a block is one atomic step: a crash loses or duplicates no row.
        """
        blocks = sorted({part.parent for part in self._all_parts()})
        sizes = [sum(part.stat().st_size for part in block.glob("part-*.parquet")) for block in blocks]
        groups = [[block] for block in blocks]
        while len(groups) > MOST_FILES:
            at = min(range(len(groups) - 1), key=lambda index: sizes[index] + sizes[index + 1])
            groups[at] += groups.pop(at + 1)
            sizes[at] += sizes.pop(at + 1)
        for block, *neighbours in groups:
            for other in neighbours:
                for part in sorted(other.glob("part-*.parquet")):
                    put(part, block / part.name)
                other.rmdir()
            self._compact(block, None)
        self._in_block, self._block_bytes = [], 0
        self._block = 1 + max((int(block.name) for block in blocks), default=-1)

    def keep(self, keeps: Callable[[Any], Any], *, until: int) -> None:
        """Keep only the rows in ``keeps(table)``, a mask of a part's rows. All rows up to the step ``until`` stay.

        Each part is removed or replaced in one atomic step. After a crash the remaining parts are unchanged, and the
        same call finishes the work.
        """
        self.flush()
        for part in self._all_parts():
            if self._ends_by(part, until):
                continue
            table = self._pq.ParquetFile(part).read()
            kept = table.filter(keeps(table))
            if not len(kept):
                part.unlink()
                fsync(part.parent)
            elif len(kept) < len(table):
                self._write(part, kept)
        if not self._all_parts():
            self._schema = self._pa.schema([])
        for block in self._folder.iterdir():
            if not any(block.iterdir()):
                block.rmdir()
        self._in_block, self._block_bytes = [], 0  # these rows are no longer the rows of the block's files
        self._block = 1 + max((int(part.parent.name) for part in self._all_parts()), default=-1)

    def _ends_by(self, part: Path, until: int) -> bool:
        """Whether a part has no step after ``until``, by its statistics."""
        metadata = self._pq.read_metadata(part)
        names = metadata.schema.names
        name = next((name for name in (EVENT_STEP, "step") if name in names), None)
        if name is None:
            return False
        groups = [metadata.row_group(group).column(names.index(name)) for group in range(metadata.num_row_groups)]
        return all(
            group.is_stats_set and group.statistics.has_min_max and not group.statistics.null_count
            and type(group.statistics.max) is int and group.statistics.max <= until
            for group in groups
        )  # fmt: skip

    def _continue(self) -> None:
        """Continue the dataset of an earlier process: one schema, blocks of one file, and a new block for this run."""
        parts = self._all_parts()
        self._sequence = 1 + max((int(part.stem.rpartition("-")[2]) for part in parts), default=-1)
        schemas = [self._schema_of(part) for part in parts]
        self._schema = self._pa.unify_schemas(schemas) if schemas else self._pa.schema([])
        self._narrow = any(schema != self._schema for schema in schemas)
        if self._narrow:
            self._widen()
        blocks = sorted({part.parent for part in parts})
        for block in blocks:
            self._compact(block, None)
        self._block = 1 + max((int(block.name) for block in blocks), default=-1)

    def _schema_of(self, part: Path) -> Any:
        try:
            return self._pq.read_schema(part).remove_metadata()
        except self._pa.ArrowException as cause:
            raise SinkError.of("DL601.part", part=part, cause=cause) from cause

    def _all_parts(self) -> list[Path]:
        return sorted(self._folder.glob("*/part-*.parquet"))

    def _with_columns_of(self, schema: Any) -> Any:
        """The dataset's schema with the new columns of a part; ``SinkError`` DL602 if a column has another type."""
        types = {field.name: field.type for field in self._schema}
        for field in schema:
            if types.get(field.name, field.type) != field.type:
                now, before = field.type, types[field.name]
                raise SinkError.of(
                    "DL602.parts_column", column=field.name, table=self._folder.name, now=now, before=before
                )
        new = [field for field in schema if field.name not in types]
        return self._pa.schema([*self._schema, *new]) if new else self._schema

    def _concatenated(self, tables: list[Any]) -> Any:
        """The rows of parts, in the dataset's columns."""
        rows = self._pa.concat_tables([self._with_all_columns(table) for table in tables])
        return rows.replace_schema_metadata(self._metadata)

    def _with_all_columns(self, table: Any) -> Any:
        """The table with the dataset's columns in their order; a column that it lacks is null."""
        if table.schema == self._schema:
            return table
        return self._pa.concat_tables([self._schema.empty_table(), table], promote_options="default")

    def _widen(self) -> None:
        for part in self._all_parts():
            if self._schema_of(part) != self._schema:
                table = self._pq.ParquetFile(part).read()
                self._write(part, self._with_all_columns(table).replace_schema_metadata(table.schema.metadata))
        self._narrow = False

    def _write(self, part: Path, table: Any) -> None:
        scratch = self._scratch / part.name
        # Into memory first: pyarrow would take the GIL again for every piece that it writes to a Python file.
        stream = self._pa.BufferOutputStream()
        self._pq.write_table(table, stream, compression=COMPRESSION)
        scratch.write_bytes(stream.getvalue())
        fsync(scratch)
        put(scratch, part)

    def _compact(self, block: Path, tables: list[Any] | None) -> None:
        """Merge a block's parts into one, from ``tables`` or (None) from the files.

        If that fails, the block keeps its parts and is only slower to read.
        """
        parts = sorted(block.glob("part-*.parquet"))
        if len(parts) < 2:
            return
        new, spare = self._scratch / f"new-{block.name}", self._scratch / f"old-{block.name}"
        try:
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            first, last = parts[0].stem.split("-")[1], parts[-1].stem.split("-")[-1]
            target = new / f"part-{first}-{last}.parquet"
            if tables is None:
                self._merge(parts, target)
            else:
                self._write(target, self._concatenated(tables))
            fsync(new)
            swap_folder(new, block, spare, self._exchange)
        except (OSError, self._pa.ArrowException) as error:
            logger.warning("the parquet parts in %s could not be merged and stay as they are: %s", block, error)

    def _merge(self, parts: list[Path], target: Path) -> None:
        schema = self._pq.read_schema(parts[0])
        with self._pq.ParquetWriter(str(target), schema, compression=COMPRESSION) as writer:
            waiting: list[Any] = []
            for part in parts:
                waiting.append(self._pq.ParquetFile(part).read())
                if part is parts[-1] or sum(table.nbytes for table in waiting) >= BLOCK_BYTES:
                    writer.write_table(self._pa.concat_tables(waiting))
                    waiting.clear()
        fsync(target)


def recover(folder: Path, scratch: Path) -> None:
    """Finish the swaps that a crash interrupted in the datasets below ``folder``, and empty ``scratch``."""
    for spare in scratch.rglob("old-*"):
        block = spare.name.removeprefix("old-")
        finish_swap(spare.parent / f"new-{block}", folder / spare.parent.relative_to(scratch) / block, spare)
    shutil.rmtree(scratch, ignore_errors=True)
