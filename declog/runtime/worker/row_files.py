"""Rows of log events as files: a journal of messages while a chunk is open, and parquet when it is whole.

    rows/000000-events.parquet              a row per log event: where in the run it is, and how many rows it has
    rows/000000-<phase>-<axis>.parquet      the columns of a phase, one log event after the other
    rows/tail-000001.bin                    the log events of the chunk that is open, as ranks send them

A chunk exists from the moment its events' file does. Numbers keep their dtype, labels are dictionaries, and a missing
integer or bool is null. Imports frames, messages and, when a chunk is written or read, pyarrow.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from declog.engine.blocks import PARTS, Batches, Block, Key
from declog.engine.frame import Frame
from declog.engine.log_event import EventFacts
from declog.language.dtypes import Axis
from declog.plans.ops import Grouping
from declog.runtime.ranks.message import encode, frames_of
from declog.runtime.ranks.wire import read
from declog.sinks._shared import clean_text

EVENTS, TAIL = "-events.parquet", "tail-{:06d}.bin"
_LAYOUTS = b"declog"  # the key of the layouts among the metadata of the events' file
_TEXT = "O"
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class RowEvent:
    """A log event of all ranks before anything is computed: its facts, and its frames by phase."""

    facts: EventFacts
    frames: Mapping[str, Frame]


class _Column(NamedTuple):
    """A column of a frame: its axis, its key, its dtype (``O``: texts), and the place of its block there."""

    axis: int
    name: str
    member: str | None
    dtype: str
    block: int

    @property
    def field(self) -> str:
        """What the column is called in the file."""
        return self.name if self.member is None else clean_text(f"{self.name}/{self.member}")


# -- the open chunk


def journal_entry(event: RowEvent) -> bytes:
    """A log event as it is added to the journal."""
    return encode(event.frames, {name: getattr(event.facts, name) for name in _FACTS})


def journal(path: Path, grouping: Grouping | None) -> tuple[list[RowEvent], int]:
    """The log events of a journal up to where it was cut, and how many bytes these are; raises ``OSError``."""
    events: list[RowEvent] = []
    end = 0
    with path.open("rb") as file:
        while (container := read(file)) is not None:
            frames, facts = frames_of(container, grouping)
            events.append(RowEvent(EventFacts(**facts), frames))
            end = file.tell()
    return events, end


def tail_of(folder: Path, chunk: int) -> Path:
    """The journal of a chunk."""
    return folder / TAIL.format(chunk)


# -- a whole chunk


def write_chunk(folder: Path, chunk: int, events: Sequence[RowEvent]) -> int:
    """Log events as parquet; how many bytes they take. Raises ``OSError``."""
    import pyarrow as pa

    table: dict[str, list[Any]] = {name: [getattr(event.facts, name) for event in events] for name in _FACTS}
    layouts: dict[str, list[tuple[_Column, ...]]] = {}
    size = 0
    for phase in dict.fromkeys(name for event in events for name in event.frames):
        frames = [event.frames.get(phase) for event in events]
        there = [frame for frame in frames if frame is not None]
        places: dict[tuple[_Column, ...], int] = {}
        table[f"{phase}.layout"] = [
            None if frame is None else places.setdefault(_layout(frame), len(places)) for frame in frames
        ]
        table[f"{phase}.batches"] = [0 if frame is None else len(frame.batches) for frame in frames]
        table[f"{phase}.groups"] = [0 if frame is None else _length(frame, Axis.GROUP) for frame in frames]
        layouts[phase] = list(places)
        for axis, columns in _by_axis(there, layouts[phase]).items():
            size += _save(folder / f"{chunk:06d}-{phase}-{axis.label}.parquet", pa.table(columns))
    events_table = pa.table({name: pa.array(values) for name, values in table.items()})
    events_table = events_table.replace_schema_metadata({_LAYOUTS: json.dumps(layouts)})
    return size + _save(folder / f"{chunk:06d}{EVENTS}", events_table)


_FACTS = tuple(item.name for item in fields(EventFacts))


def _layout(frame: Frame) -> tuple[_Column, ...]:
    numbers = [
        _Column(int(block.axis), *key, block.data.dtype.str, number)
        for number, block in enumerate(frame.blocks)
        for key in block.keys
    ]
    return (*numbers, *(_Column(int(axis), *key, _TEXT, -1) for key, (axis, _) in frame.texts.items()))


def _length(frame: Frame, axis: Axis) -> int:
    """How many entries the columns of an axis have."""
    if axis in (Axis.STEP, Axis.COMPLETION):
        return frame.count(axis)
    lengths = [block.data.shape[1] for block in frame.blocks if block.axis is axis]
    lengths += [len(values) for of, values in frame.texts.values() if of is axis]
    return lengths[0] if lengths else 0


def _by_axis(frames: Sequence[Frame], layouts: Sequence[tuple[_Column, ...]]) -> dict[Axis, dict[str, Any]]:
    """The columns of all frames, one frame after the other, as Arrow arrays; null where a frame does not have one."""
    import pyarrow as pa

    batches = Batches.join([frame.batches for frame in frames])
    arrays: dict[Axis, dict[str, Any]] = {Axis.STEP: {f"#{part}": pa.array(getattr(batches, part)) for part in PARTS}}
    keys = dict.fromkeys(
        (Axis(column.axis), column.field, (column.name, column.member)) for layout in layouts for column in layout
    )
    columns = [_columns_of(frame) for frame in frames]
    for axis, field, key in keys:
        pieces = [
            (*have.get((axis, key), (None, None)), _length(frame, axis))
            for frame, have in zip(frames, columns, strict=True)
        ]
        arrays.setdefault(axis, {})[field] = _joined(pieces)
    return arrays


def _columns_of(frame: Frame) -> dict[tuple[Axis, Key], tuple[Array, Array | None]]:
    """The columns of a frame, each with where it is missing, if it is somewhere."""
    columns: dict[tuple[Axis, Key], tuple[Array, Array | None]] = {
        (block.axis, key): (block.data[row], None if block.valid is None else ~block.valid[row])
        for block in frame.blocks
        for row, key in enumerate(block.keys)
    }
    return columns | {(axis, key): (values, None) for key, (axis, values) in frame.texts.items()}


def _joined(pieces: Sequence[tuple[Array | None, Array | None, int]]) -> Any:
    """Pieces of a column, its values and where they are missing, as one Arrow array."""
    import pyarrow as pa

    here = [values for values, _, _ in pieces if values is not None]
    if here[0].dtype.kind == "O":
        texts = [item for values, _, rows in pieces for item in ([None] * rows if values is None else values)]
        return pa.array(texts, pa.string()).dictionary_encode()
    dtype = np.result_type(*here)
    data = np.concatenate(
        [np.zeros(rows, dtype) if values is None else values.astype(dtype, copy=False) for values, _, rows in pieces]
    )
    if all(values is not None and missing is None for values, missing, _ in pieces):
        return pa.array(data)
    masks = [np.full(rows, values is None) if missing is None else missing for values, missing, rows in pieces]
    return pa.array(data, mask=np.concatenate(masks))


def _save(path: Path, table: Any) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    part = path.with_name(f"{path.name}.part")
    texts = [item.name for item in table.schema if pa.types.is_dictionary(item.type) or pa.types.is_string(item.type)]
    pq.write_table(table, part, compression="zstd", use_dictionary=texts, write_statistics=False)
    os.replace(part, path)
    return path.stat().st_size


def is_whole(folder: Path, chunk: int) -> bool:
    """Whether a chunk has its parquet files, and is no journal any more."""
    return (folder / f"{chunk:06d}{EVENTS}").exists()


def size_of(folder: Path, chunk: int) -> int:
    """How many bytes a whole chunk takes."""
    return sum(path.stat().st_size for path in folder.glob(f"{chunk:06d}-*.parquet"))


def numbers_of(folder: Path, chunk: int) -> list[int]:
    """The numbers of the log events of a whole chunk."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(folder / f"{chunk:06d}{EVENTS}") as file:
        numbers: list[int] = file.read(columns=["number"])["number"].to_pylist()
    return numbers


def remove_chunk(folder: Path, chunk: int) -> None:
    """Take a whole chunk away, its events' file first: without it the chunk is not there."""
    (folder / f"{chunk:06d}{EVENTS}").unlink()
    for path in folder.glob(f"{chunk:06d}-*.parquet"):
        path.unlink()


# -- reading


def chunks(folder: Path) -> list[int]:
    """The numbers of chunks that are in a folder, whole and open, in order."""
    ended = [path.name.removesuffix(EVENTS) for path in folder.glob(f"*{EVENTS}")]
    journals = [path.stem.rpartition("-")[2] for path in folder.glob(TAIL.format(0).replace("000000", "*"))]
    return sorted({*map(int, ended), *map(int, journals)})


def read_chunk(
    folder: Path, chunk: int, grouping: Grouping | None, names: Collection[str] | None = None
) -> Iterator[RowEvent]:
    """The log events of a chunk, in order, with some columns or all. Raises ``OSError`` where it is gone."""
    import pyarrow.parquet as pq

    if not is_whole(folder, chunk):
        events, _ = journal(tail_of(folder, chunk), grouping)
        yield from (event if names is None else RowEvent(event.facts, picked(event.frames, names)) for event in events)
        return
    with pq.ParquetFile(folder / f"{chunk:06d}{EVENTS}") as file:
        table = file.read()
    layouts = json.loads(table.schema.metadata[_LAYOUTS])
    events_table = table.to_pydict()
    phases = [
        _PhaseReader(
            folder, chunk, phase, [[_Column(*column) for column in layout] for layout in lists], grouping, names
        )
        for phase, lists in layouts.items()
    ]
    sizes = [zip(*(events_table[f"{reader.phase}.{key}"] for key in _SIZES), strict=True) for reader in phases]
    for facts in zip(*(events_table[name] for name in _FACTS), strict=True):
        frames = {reader.phase: reader.frame(*next(of_phase)) for reader, of_phase in zip(phases, sizes, strict=True)}
        yield RowEvent(EventFacts(*facts), {phase: frame for phase, frame in frames.items() if frame is not None})


_SIZES = ("layout", "batches", "groups")


def picked(frames: Mapping[str, Frame], names: Collection[str]) -> dict[str, Frame]:
    """Frames with some of their columns."""
    return {phase: frame.named(lambda name, _: name if name in names else None) for phase, frame in frames.items()}


class _PhaseReader:
    """The frames of a phase in a chunk, one after the other."""

    def __init__(
        self, folder: Path, chunk: int, phase: str, layouts: Sequence[Sequence[_Column]], grouping: Grouping | None,
        names: Collection[str] | None,
    ) -> None:  # fmt: skip
        self.phase = phase
        self._grouping = grouping
        self._starts = dict.fromkeys((Axis.STEP, Axis.GROUP, Axis.COMPLETION), 0)
        self._layouts = [[column for column in layout if names is None or column.name in names] for layout in layouts]
        wanted: dict[Axis, dict[str, None]] = {Axis.STEP: {f"#{part}": None for part in PARTS}}
        for column in (column for layout in self._layouts for column in layout):
            wanted.setdefault(Axis(column.axis), {})[column.field] = None
        self._columns = {
            axis: _arrays(folder / f"{chunk:06d}-{phase}-{axis.label}.parquet", list(fields_))
            for axis, fields_ in wanted.items()
        }
        self._blocks = [list(self._stacked(layout)) for layout in self._layouts]
        self._batches = Batches(*(self._columns[Axis.STEP][f"#{part}"][0] for part in PARTS))

    def _stacked(self, layout: Sequence[_Column]) -> Iterator[tuple[Axis, tuple[Key, ...], Array, Array | None]]:
        """The columns of a layout block by block: axis, keys, values of all log events, and where they are there."""
        blocks: dict[tuple[int, int | Key], list[_Column]] = {}
        for column in layout:
            block = (column.name, column.member) if column.dtype == _TEXT else column.block
            blocks.setdefault((column.axis, block), []).append(column)
        for (number, _), columns in blocks.items():
            axis = Axis(number)
            keys = tuple((column.name, column.member) for column in columns)
            parts = [self._columns[axis][column.field] for column in columns]
            if columns[0].dtype == _TEXT:
                yield axis, keys, parts[0][0], None
                continue
            data = np.stack([values for values, _ in parts]).astype(columns[0].dtype, copy=False)
            missing = any(valid is not None for _, valid in parts)
            valid = [np.ones(data.shape[1], bool) if part is None else part for _, part in parts] if missing else []
            yield axis, keys, data, np.stack(valid) if missing else None

    def frame(self, layout: int | None, batches: int, groups: int) -> Frame | None:
        """The next frame, of a layout and of so many batches and groups; None where the log event has none."""
        if layout is None:
            return None
        start = self._starts
        taken = Batches(
            *(getattr(self._batches, part)[start[Axis.STEP] : start[Axis.STEP] + batches] for part in PARTS)
        )
        end = {
            Axis.STEP: start[Axis.STEP] + batches, Axis.GROUP: start[Axis.GROUP] + groups,
            Axis.COMPLETION: start[Axis.COMPLETION] + int(taken.rows.sum()),
        }  # fmt: skip
        blocks: list[Block] = []
        texts: dict[Key, tuple[Axis, Array]] = {}
        for axis, keys, data, valid in self._blocks[layout]:
            cut = slice(start[axis], end[axis])
            if data.dtype.kind == _TEXT:
                texts[keys[0]] = axis, data[cut]
            else:
                some = None if valid is None or valid[:, cut].all() else valid[:, cut]
                blocks.append(Block(axis, keys, data[:, cut], some))
        self._starts = end
        return Frame(self.phase, taken, blocks, texts, self._grouping)


def _arrays(path: Path, names: Sequence[str]) -> dict[str, tuple[Array, Array | None]]:
    """Columns of a file as numpy arrays, each with where it is there, if it is not everywhere."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        table = file.read(columns=list(names))
    return {name: _numpy(table[name].combine_chunks()) for name in names}


def _numpy(array: Any) -> tuple[Array, Array | None]:
    """An Arrow array, and where it is there; ``to_numpy`` and ``fill_null`` would import pandas, for half a second."""
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
