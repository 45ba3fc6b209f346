"""Rows of log events as files: a journal of messages while a chunk is open, and parquet when it is complete.

    rows/000000.parquet       a row per log event; a cell has the values of a column, one per batch, group or completion
    rows/tail-000001.bin      the log events of the open chunk, encoded like messages between ranks

The columns are the facts of the log event, then `PHASE/NAME` or `PHASE/NAME/MEMBER`. `PHASE/#columns` has the numbers
of the columns that the log event has, in order. Numbers keep their dtype, and a missing integer or bool is null.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from declog.engine.blocks import PARTS, Batches, Block, Key
from declog.engine.frame import Frame, Projection
from declog.engine.layout import Layout
from declog.engine.log_event import EventFacts
from declog.language.dtypes import Axis
from declog.plans.ops import Grouping
from declog.runtime.ranks.message import encode, frames_of
from declog.runtime.ranks.wire import read
from declog.sinks._shared import clean_text

CHUNK, TAIL = "{}.parquet", "tail-{}.bin"  # with the six digits of the chunk's number
_COLUMNS = b"declog"  # the key of the columns in the metadata of a parquet file
_ORDER = "#columns"
_TEXT = "O"
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class RowEvent:
    """A log event of all ranks before evaluation: its facts, and its frames by phase."""

    facts: EventFacts
    frames: Mapping[str, Frame]


class _Column(NamedTuple):
    """A column of a phase: its axis, its key, and its dtype (``O``: texts). Columns of batches begin with ``#``."""

    axis: int
    name: str
    member: str | None
    dtype: str


_axis_and_dtype = attrgetter("axis", "dtype")
_FACTS = tuple(item.name for item in fields(EventFacts))


# -- the open chunk


def journal_entry(event: RowEvent) -> bytes:
    """Encode a log event for the journal."""
    return encode(event.frames, {name: getattr(event.facts, name) for name in _FACTS})


def journal(path: Path, grouping: Grouping | None) -> tuple[list[RowEvent], int]:
    """Read the log events of a journal up to where it was cut, and their size in bytes; raises ``OSError``."""
    events: list[RowEvent] = []
    end = 0
    with path.open("rb") as file:
        while (container := read(file)) is not None:
            frames, facts = frames_of(container, grouping)
            events.append(RowEvent(EventFacts(**facts), frames))
            end = file.tell()
    return events, end


def tail_of(folder: Path, chunk: int) -> Path:
    """The path of a chunk's journal."""
    return folder / TAIL.format(f"{chunk:06d}")


# -- a complete chunk


def write_chunk(folder: Path, chunk: int, events: Sequence[RowEvent]) -> int:
    """Write log events as parquet; return the size of the file in bytes. Raises ``OSError``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table: dict[str, Any] = {name: pa.array([getattr(event.facts, name) for event in events]) for name in _FACTS}
    columns: dict[str, dict[str, _Column]] = {}
    for phase in dict.fromkeys(name for event in events for name in event.frames):
        cells = [_cells(event.frames.get(phase)) for event in events]
        numbers = {column: number for number, column in enumerate(dict.fromkeys(key for of in cells for key in of))}
        order = [[numbers[column] for column in of] if phase in event.frames else None
                 for event, of in zip(events, cells, strict=True)]  # fmt: skip
        table[f"{phase}/{_ORDER}"] = pa.array(order, pa.list_(pa.int32()))
        columns[phase] = {}
        for column, number in numbers.items():
            name = clean_text("/".join(filter(None, (phase, column.name, column.member))))
            name = f"{name}#{number}" if name in table else name  # a column of this name has another axis or dtype
            columns[phase][name] = column
            table[name] = _lists([of.get(column) for of in cells])
    texts = [name for of in columns.values() for name, column in of.items() if column.dtype == _TEXT]
    path = chunk_of(folder, chunk)
    part = path.with_name(f"{path.name}.part")
    pq.write_table(
        pa.table(table).replace_schema_metadata({_COLUMNS: json.dumps(columns)}), part, compression="zstd",
        use_dictionary=[f"{name}.list.element" for name in texts], write_statistics=False,
    )  # fmt: skip
    os.replace(part, path)
    return path.stat().st_size


def _cells(frame: Frame | None) -> dict[_Column, tuple[Array, Array | None]]:
    """The columns of a frame in order, each with its values and a mask of missing values, if any."""
    if frame is None:
        return {}
    cells = [(getattr(frame.batches, part), None) for part in PARTS]
    for block in frame.blocks:
        cells += zip(block.data, itertools.repeat(None) if block.valid is None else ~block.valid, strict=False)
    cells += [(values, None) for _, values in frame.texts.values()]
    return dict(zip(_columns(frame.layout, tuple(axis for axis, _ in frame.texts.values())), cells, strict=True))


@lru_cache(maxsize=512)
def _columns(layout: Layout, axes: tuple[Axis, ...]) -> list[_Column]:
    """The columns of the batches, then those of a layout, in order; ``axes`` are the axes of its texts."""
    columns = [_Column(int(Axis.STEP), f"#{part}", None, "<f8" if part == "elapsed" else "<i8") for part in PARTS]
    columns += [_Column(int(axis), *key, dtype.str) for axis, keys, dtype in layout.heads for key in keys]
    return columns + [_Column(int(axis), *key, _TEXT) for axis, key in zip(axes, layout.texts, strict=True)]


def _lists(cells: Sequence[tuple[Array, Array | None] | None]) -> Any:
    """Return the cells of a column as one Arrow array; a log event without the column has an empty cell."""
    import pyarrow as pa

    offsets = np.cumsum([0, *(0 if cell is None else len(cell[0]) for cell in cells)]).astype(np.int32)
    came = [cell for cell in cells if cell is not None]
    values = np.concatenate([values for values, _ in came])
    if values.dtype.kind == _TEXT:
        array = pa.array(values.tolist(), pa.string())
    elif all(missing is None for _, missing in came):
        array = pa.array(values)
    else:
        masks = [np.zeros(len(values), bool) if missing is None else missing for values, missing in came]
        array = pa.array(values, mask=np.concatenate(masks))
    return pa.ListArray.from_arrays(pa.array(offsets), array)


def chunk_of(folder: Path, chunk: int) -> Path:
    """The path of a chunk's parquet file, which exists when the chunk is complete."""
    return folder / CHUNK.format(f"{chunk:06d}")


# -- reading


def chunks(folder: Path) -> list[int]:
    """The numbers of the chunks in a folder, complete and open, in order."""
    names = [path.name for name in (CHUNK, TAIL) for path in folder.glob(name.format("*"))]
    return sorted({int(name.partition(".")[0].rpartition("-")[2]) for name in names})


def read_chunk(
    folder: Path, chunk: int, grouping: Grouping | None, names: Collection[str] | None = None
) -> Iterator[RowEvent]:
    """Yield the log events of a chunk, in order, with all columns or those in ``names``.

    Raises ``OSError`` if the chunk was removed.
    """
    import pyarrow.parquet as pq

    if not chunk_of(folder, chunk).exists():
        events, _ = journal(tail_of(folder, chunk), grouping)
        yield from (event if names is None else RowEvent(event.facts, picked(event.frames, names)) for event in events)
        return
    with pq.ParquetFile(chunk_of(folder, chunk)) as file:
        phases = [
            (phase, {field: _Column(*column) for field, column in columns.items()})
            for phase, columns in json.loads(file.schema_arrow.metadata[_COLUMNS]).items()
        ]
        wanted = [
            field for _, columns in phases for field, column in columns.items()
            if names is None or column.name in names or column.name.startswith("#")
        ]  # fmt: skip
        table = file.read(columns=[*_FACTS, *(f"{phase}/{_ORDER}" for phase, _ in phases), *wanted])
    readers = [_PhaseReader(phase, columns, table, grouping) for phase, columns in phases]
    for row, facts in enumerate(zip(*(table[name].to_pylist() for name in _FACTS), strict=True)):
        frames = {reader.phase: reader.frame(row) for reader in readers}
        yield RowEvent(EventFacts(*facts), {phase: frame for phase, frame in frames.items() if frame is not None})


def picked(frames: Mapping[str, Frame], names: Collection[str]) -> dict[str, Frame]:
    """Return frames with only the columns in ``names``."""
    projection = Projection(lambda layout, name, dtype: name if name in names else None)
    return {phase: projection.of(frame) for phase, frame in frames.items()}


class _PhaseReader:
    """Reads the frames of a phase in a chunk."""

    def __init__(self, phase: str, columns: Mapping[str, _Column], table: Any, grouping: Grouping | None) -> None:
        self.phase = phase
        self._grouping = grouping
        self._orders: list[list[int] | None] = table[f"{phase}/{_ORDER}"].to_pylist()
        self._columns = list(columns.values())
        # by number of a column that is read: the offsets of its cells, the values, and where they are not missing
        self._values: dict[int, tuple[Array, Array, Array | None]] = {}
        for number, (field, column) in enumerate(columns.items()):
            if field in table.column_names:
                cells = table[field].combine_chunks()
                values, valid = _numpy(cells.values.dictionary_encode() if column.dtype == _TEXT else cells.values)
                values = values if column.dtype == _TEXT else values.astype(column.dtype, copy=False)
                self._values[number] = np.from_dlpack(cells.offsets), values, valid

    def frame(self, row: int) -> Frame | None:
        """The frame of the log event in a row of the table; None if it has no frame of the phase."""
        if (order := self._orders[row]) is None:
            return None
        blocks: list[Block] = []
        texts: dict[Key, tuple[Axis, Array]] = {}
        numbers = [number for number in order if number in self._values]
        batches = Batches(*(self._cell(number, row)[0] for number in numbers[: len(PARTS)]))
        for (number, dtype), alike in groupby(numbers[len(PARTS) :], lambda one: _axis_and_dtype(self._columns[one])):
            group = list(alike)
            axis, keys = Axis(number), tuple((self._columns[one].name, self._columns[one].member) for one in group)
            cells = [self._cell(one, row) for one in group]
            if dtype == _TEXT:
                texts |= {key: (axis, values) for key, (values, _) in zip(keys, cells, strict=True)}
                continue
            valid = None
            if any(there is not None for _, there in cells):
                valid = np.stack([np.ones(len(values), bool) if there is None else there for values, there in cells])
            blocks.append(Block(axis, keys, np.stack([values for values, _ in cells]), valid))
        return Frame(self.phase, batches, blocks, texts, self._grouping)

    def _cell(self, number: int, row: int) -> tuple[Array, Array | None]:
        """The values of a column in a log event, and a mask of those that are not missing; None if none is missing."""
        offsets, values, valid = self._values[number]
        cut = slice(offsets[row], offsets[row + 1])
        there = None if valid is None or valid[cut].all() else valid[cut]
        return values[cut], there


def _numpy(array: Any) -> tuple[Array, Array | None]:
    """Return an Arrow array as numpy values, and a mask of those that are not null; None if no value is null.

    ``to_numpy`` and ``fill_null`` would import pandas, which takes half a second.
    """
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        words = np.array([*array.dictionary.to_pylist(), None], object)
        codes, valid = _numpy(array.indices)
        return words[codes if valid is None else np.where(valid, codes, len(words) - 1)], None
    valid = None
    if array.null_count:
        valid, _ = _numpy(array.is_valid())
        array = pa.Array.from_buffers(array.type, len(array), [None, array.buffers()[1]], offset=array.offset)
    bits = pa.types.is_boolean(array.type)
    values = np.from_dlpack(array.cast(pa.uint8()) if bits else array)
    values = values.view(bool) if bits else values
    return (values if valid is None else np.where(valid, values, values.dtype.type(0))), valid
