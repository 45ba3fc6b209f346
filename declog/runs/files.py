"""Reads the files of a parquet or jsonl sink as Arrow tables, also files that grow or that a crash has cut off.

Unreadable parts are left out and reported. Arrow is imported at the first read.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from declog.records import json_text
from declog.runs.frame import OBJECT, SPECIAL
from declog.runs.guarded import MOVE, Report, entries, json_lines, reason, strays, unsaid
from declog.sinks._files import open_regular
from declog.sinks._rows import COLUMNS, EVENT_RUN, EVENT_STEP, INT64, schema
from declog.sinks._shared import as_float, clean_text
from declog.sinks.jsonl import METRICS

RELIST = 20  # the most listings of a dataset whose files are merged during the read
# A dataset may take this memory, and UNPACKED times the bytes of its files.
LOOSE_BYTES = 256 * 2**20
UNPACKED = 300
ROWS = 65536  # the rows that are unpacked at once
MOST_COLUMNS = 1024  # the most columns of a table
PART = re.compile(r"part-\d+(-\d+)?\.parquet")
LINES = ("scalars.jsonl", "histograms.jsonl", "alerts.jsonl")


@dataclass(frozen=True)
class Source:
    """The folder of one rank of a sink."""

    kind: str
    folder: Path
    rank: int

    def tables(self) -> list[str]:
        """The ids of the tables in the folder."""
        paths = entries(self.folder / "tables", unsaid)
        if self.kind == "parquet":
            return [path.name for path in paths if os.path.isdir(path)]
        return [path.stem for path in paths if path.suffix == ".jsonl"]

    def files(self) -> Iterator[Path]:
        """The files that the sink may have written for this rank."""
        names = [*COLUMNS, *(f"tables/{name}" for name in self.tables())]
        if self.kind == "parquet":
            for name in names:
                yield from _listed(self.folder / name)
        else:
            yield from (self.folder / f"{name}.jsonl" for name in names)
            yield self.folder / METRICS

    def read(self, name: str, report: Report) -> Any:
        """Read ``scalars``, ``histograms``, ``alerts`` or ``tables/<id>`` as an Arrow table; None without rows."""
        if self.kind == "parquet":
            return _parts(self.folder / name, name if name in COLUMNS else None, report)
        if name in COLUMNS:
            lines = list(json_lines(self.folder / f"{name}.jsonl", ACCEPTED[name], report))
            if not lines:
                return None
            metrics = self._metrics(report)
            return _scalars(lines, metrics) if name == "scalars" else _events(lines, metrics, name)
        table = _Table()
        lines = list(json_lines(self.folder / f"{name}.jsonl", table.accepts, report))
        return _rows(lines) if lines else None

    def _metrics(self, report: Report) -> dict[str, str]:
        """The key of the metric of each name."""
        lines = json_lines(self.folder / METRICS, ACCEPTED["metrics"], report)
        return {line["name"]: line["metric"] for line in lines}


def sources(folder: Path) -> list[Source]:
    """The sinks of all ranks that wrote directly into a folder; empty if there are none."""
    ranks = {0: folder}
    for path in entries(folder, unsaid):
        if path.name.startswith("rank") and path.name[4:].isdecimal() and os.path.isdir(path):
            ranks[int(path.name[4:])] = path
    kinds = {"parquet": _has_parts, "jsonl": _has_lines}
    return [
        Source(kind, path, rank)
        for kind, wrote in kinds.items()
        if any(map(wrote, ranks.values()))
        for rank, path in sorted(ranks.items())
    ]


def _has_parts(folder: Path) -> bool:
    """Whether a parquet sink wrote here."""
    datasets = [*(folder / name for name in COLUMNS), *entries(folder / "tables", unsaid)]
    return any(map(_listed, datasets))


def _has_lines(folder: Path) -> bool:
    """Whether a jsonl sink wrote here."""
    tables = (path for path in entries(folder / "tables", unsaid) if path.suffix == ".jsonl")
    return any(os.path.lexists(folder / name) for name in LINES) or any(tables)


# -- parquet


def _listed(dataset: Path) -> list[Path]:
    """The parts of a dataset, which are files in numbered folders, as they are at one moment.

    A block that is merged during a listing may look empty. It does not in the next one, which is taken if it still has
    all parts of the listing before.
    """
    parts = _seen(dataset)
    for _ in range(RELIST):
        before, parts = parts, _seen(dataset)
        if set(before) <= set(parts):
            break
    return parts


def _seen(dataset: Path) -> list[Path]:
    blocks = [block for block in entries(dataset, unsaid) if block.name.isdecimal()]
    return [path for block in blocks for path in entries(block, unsaid) if PART.fullmatch(path.name)]


def _parts(folder: Path, kind: str | None, report: Report) -> Any:
    """The rows of a dataset; ``kind`` is scalars, histograms or alerts, or None for a table."""
    import pyarrow as pa

    read: dict[Path, Any] = {}
    room = _Room(LOOSE_BYTES)
    for _ in range(RELIST):
        parts = _listed(folder)
        merged = False
        for part in parts:
            if part not in read:
                try:
                    read[part] = _conforming(_unpacked(part, room), kind)
                except FileNotFoundError:  # merged meanwhile
                    merged = True
                    break
                except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError) as error:
                    report(f"{part} is left out: {reason(error)}; {MOVE}")
                    read[part] = None
        if not merged:
            break
    else:
        report(f"{folder} changes too fast: some of its rows are left out; read it again")
        parts = [part for part in parts if part in read]
    blocks = strays(folder, str.isdecimal, report)
    for block in blocks:
        strays(block, PART.fullmatch, report)
    tables = {part: read[part] for part in parts if read[part] is not None}
    return _concatenated(tables, report) if tables else None


class _Room:
    """The memory, in bytes, that a dataset may still take."""

    def __init__(self, bytes: int) -> None:
        self.bytes = bytes

    def take(self, bytes: int) -> None:
        """Take bytes of the memory. Raises ``ValueError`` if too few are left."""
        if bytes > self.bytes:
            raise ValueError("it unpacks to more than its size allows")
        self.bytes -= bytes


def _unpacked(part: Path, room: _Room) -> Any:
    """Read a part's rows into memory. Raises ``ValueError`` if they do not fit into ``room``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open_regular(part) as file:
        room.bytes += UNPACKED * os.fstat(file.fileno()).st_size
    with pq.ParquetFile(part) as opened:
        metadata = opened.metadata
        declared = sum(metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups))
        if max(declared, metadata.num_rows * metadata.num_columns // 8) > room.bytes:
            raise ValueError("it says that it unpacks to more than its size allows")
        batches = []
        for batch in opened.iter_batches(ROWS):
            room.take(batch.nbytes)
            batches.append(batch)
        table = pa.Table.from_batches(batches, opened.schema_arrow).replace_schema_metadata(None)
    table.validate(full=True)  # texts are UTF-8
    return table


def _conforming(table: Any, kind: str | None) -> Any:
    """Cast a part's rows to the columns and types of its dataset. Raises ``ValueError`` if that is impossible."""
    import pyarrow as pa

    names = table.column_names
    if len(set(names)) < len(names):
        raise ValueError("two of its columns have one name")
    if kind is None and len(names) > MOST_COLUMNS:
        raise ValueError(f"it has more than {MOST_COLUMNS} columns")
    step, run = _stamps(names)
    required = {"mode", "step", "name"} if kind is not None else {"mode"}
    if missing := required - set(names):
        raise ValueError(f"it has no column `{min(missing)}`")
    if kind is None:
        types = {step: pa.int64(), run: pa.string()}
        return table.cast(pa.schema([field.with_type(types.get(field.name, field.type)) for field in table.schema]))
    columns = schema(kind)
    arrays = [
        table[field.name].cast(field.type) if field.name in names else pa.nulls(len(table), field.type)
        for field in columns
    ]  # another version may have written fewer columns
    return pa.Table.from_arrays(arrays, schema=columns)


def _stamps(names: Collection[str]) -> tuple[str, str]:
    """The names of a table's columns that hold the step of the log event and the run's id."""
    return EVENT_STEP if EVENT_STEP in names else "step", EVENT_RUN if EVENT_RUN in names else "run_id"


def _concatenated(tables: Mapping[Path, Any], report: Report) -> Any:
    """Concatenate all parts; leave out a part with a column of another type than in most parts."""
    import pyarrow as pa

    try:
        return pa.concat_tables(tables.values(), promote_options="permissive")
    except pa.ArrowException:
        types: dict[str, Counter[Any]] = {}
        for table in tables.values():
            for field in table.schema:
                types.setdefault(field.name, Counter())[field.type] += 1
        usual = {name: counts.most_common(1)[0][0] for name, counts in types.items()}
        kept = []
        for part, table in tables.items():
            other = [field.name for field in table.schema if field.type not in (usual[field.name], pa.null())]
            if other:
                report(f"{part} is left out: its column `{other[0]}` is of another type than in other parts")
            else:
                kept.append(table)
        return pa.concat_tables(kept, promote_options="permissive") if kept else None


# -- jsonl


def _is_event(line: Mapping[str, Any]) -> bool:
    """Whether a line has a step and a mode, and a valid time and run id if it has these."""
    time, run = line.get("time"), line.get("run_id")
    return (
        _is_step(line.get("step")) and isinstance(line.get("mode"), str)
        and (time is None or _is_number(time)) and (run is None or isinstance(run, str))
    )  # fmt: skip


def _is_step(value: Any) -> bool:
    return type(value) is int and value in INT64


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and value in SPECIAL)


def _are(values: Any, right: Callable[[Any], bool]) -> bool:
    return isinstance(values, list) and all(map(right, values))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


ACCEPTED: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "scalars": lambda line: (
        _is_event(line) and isinstance(line.get("scalars"), dict) and all(map(_is_number, line["scalars"].values()))
        and _are(line.get("partial", []), _is_text)
    ),
    "histograms": lambda line: (
        _is_event(line) and _is_text(line.get("name"))
        and _are(line.get("counts"), _is_step) and _are(line.get("edges"), _is_number)
    ),
    "alerts": lambda line: _is_event(line) and all(_is_text(line.get(key)) for key in ("name", "level", "text")),
    "metrics": lambda line: _is_text(line.get("name")) and _is_text(line.get("metric")),
}  # fmt: skip


class _Table:
    """Accepts the lines that are rows of one table: each has a step, and all together have at most ``MOST_COLUMNS``."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def accepts(self, line: Mapping[str, Any]) -> bool:
        step, run = (line.get(name) for name in _stamps(line.keys()))
        if not (_is_step(step) and "mode" in line and (run is None or _is_text(run))):
            return False
        if len(self._names | line.keys()) > MOST_COLUMNS:
            return False
        self._names |= line.keys()
        return True


def _number(value: Any) -> float | None:
    return SPECIAL[value] if isinstance(value, str) else None if value is None else as_float(value)


def _scalars(lines: Sequence[Mapping[str, Any]], metrics: Mapping[str, str]) -> Any:
    import pyarrow as pa

    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS["scalars"]}
    for line in lines:
        partial = frozenset(line.get("partial", ()))
        for name, value in line["scalars"].items():
            exact = int(value) if isinstance(value, int) and value in INT64 else None
            row = (
                line["step"], line["mode"], name, metrics.get(name), _number(value), exact, name in partial,
                _number(line.get("time")), line.get("run_id"),
            )  # fmt: skip
            for column, cell in zip(columns.values(), row, strict=True):
                column.append(cell)
    return pa.table(columns, schema=schema("scalars"))


def _events(lines: Sequence[Mapping[str, Any]], metrics: Mapping[str, str], kind: str) -> Any:
    import pyarrow as pa

    rows = [
        {
            **line, "metric": metrics.get(line["name"]), "time": _number(line.get("time")),
            "edges": list(map(_number, line.get("edges", ()))),
        }
        for line in lines
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema(kind))


def _rows(lines: Sequence[Mapping[str, Any]]) -> Any:
    import pyarrow as pa

    names = dict.fromkeys(name for line in lines for name in line)
    _, run = _stamps(names)
    if run in names:  # move it to the end, as in parquet
        names[run] = names.pop(run)
    fields, arrays = [], []
    for name in names:
        array, is_object = _inferred(pa, [line.get(name) for line in lines])
        fields.append(pa.field(name, array.type, metadata={OBJECT: b"object"} if is_object else None))
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _inferred(pa: Any, values: list[Any]) -> tuple[Any, bool]:
    """A table's column with the type that the parquet sink gives to these values, and whether it holds objects."""
    some = [value for value in values if value is not None]
    types = {type(value) for value in some}
    if types == {str} and not all(value in SPECIAL for value in some):
        return pa.array(values, pa.string()), False
    if types <= {int, float, str} and all(type(value) is not str or value in SPECIAL for value in some):
        if types == {int} and all(value in INT64 for value in some):
            return pa.array(values, pa.int64()), False
        if types:
            return pa.array(list(map(_number, values)), pa.float64()), False
    if types <= {bool}:
        return pa.array(values, pa.bool_() if types else pa.null()), False
    return pa.array([None if value is None else clean_text(json_text(value)) for value in values], pa.string()), True
