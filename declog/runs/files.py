"""The files of a parquet or jsonl sink, as Arrow tables: whole ones, growing ones, and those that a crash cut off.

What cannot be read is left out and reported. Arrow is imported when something is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from declog.runs.frame import OBJECT, SPECIAL
from declog.sinks._shared import EVENT_RUN, as_float, json_text
from declog.sinks.jsonl import METRICS

Report = Callable[[str], None]
RELIST = 20  # how often a dataset is listed anew, where its files are merged while it is read
WRITTEN = {
    "parquet": ("*/*/part-*.parquet", "tables/*/*/part-*.parquet"),
    "jsonl": ("scalars.jsonl", "histograms.jsonl", "alerts.jsonl", "tables/*.jsonl"),
}
INT64 = range(-(2**63), 2**63)


SCALARS = ["step", "mode", "name", "metric", "value", "int_value", "partial", "time", "run_id"]
KINDS = {
    "scalars": SCALARS,
    "histograms": ["step", "mode", "name", "metric", "counts", "edges", "time", "run_id"],
    "alerts": ["step", "mode", "name", "level", "text", "time", "run_id"],
}


def schema(pa: Any, names: Sequence[str]) -> list[tuple[str, Any]]:
    """Columns with their types, as the parquet sink has them."""
    types = {
        "step": pa.int64(), "value": pa.float64(), "int_value": pa.int64(), "partial": pa.bool_(),
        "time": pa.float64(), "counts": pa.list_(pa.int64()), "edges": pa.list_(pa.float64()),
    }  # fmt: skip
    return [(name, types.get(name, pa.string())) for name in names]


@dataclass(frozen=True)
class Source:
    """One rank's folder of a sink."""

    kind: str
    folder: Path
    rank: int

    def tables(self) -> list[str]:
        """The ids of the tables that it has."""
        if self.kind == "parquet":
            return sorted(path.name for path in self.folder.glob("tables/*") if path.is_dir())
        return sorted(path.stem for path in self.folder.glob("tables/*.jsonl"))

    def read(self, name: str, report: Report) -> Any:
        """``scalars``, ``histograms``, ``alerts`` or ``tables/<id>`` as an Arrow table; None where there is none."""
        if self.kind == "parquet":
            return _parts(self.folder / name, report)
        lines = list(_lines(self.folder / f"{name}.jsonl", report))
        if not lines:
            return None
        if name == "scalars":
            return _scalars(lines, self._metrics(report))
        if name in ("histograms", "alerts"):
            return _events(lines, name, self._metrics(report))
        return _rows(lines)

    def _metrics(self, report: Report) -> dict[str, str]:
        """The metric of each name."""
        return {line["name"]: line["metric"] for line in _lines(self.folder / METRICS, report)}


def sources(folder: Path) -> list[Source]:
    """The sinks that wrote into a folder itself, each rank's; empty where none did."""
    ranks = {0: folder}
    for path in folder.glob("rank*"):
        if path.name[4:].isdecimal() and path.is_dir():
            ranks[int(path.name[4:])] = path
    return [
        Source(kind, place, rank)
        for kind, patterns in WRITTEN.items()
        if any(True for place in ranks.values() for pattern in patterns for _ in place.glob(pattern))
        for rank, place in sorted(ranks.items())
    ]


# -- parquet


def _parts(folder: Path, report: Report) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    read: dict[Path, Any] = {}
    for _ in range(RELIST):
        parts = sorted(folder.glob("*/part-*.parquet"))
        gone = False
        for part in parts:
            if part not in read:
                try:
                    read[part] = pq.ParquetFile(part).read()
                except FileNotFoundError:  # merged meanwhile
                    gone = True
                    break
                except (pa.ArrowException, OSError) as error:
                    report(f"{part} is left out: {_first_line(error)}")
                    read[part] = None
        if not gone:
            break
    else:
        report(f"{folder} changes too fast: some of its rows are left out")
        parts = [part for part in parts if part in read]
    tables = [read[part].replace_schema_metadata(None) for part in parts if read[part] is not None]
    return pa.concat_tables(tables, promote_options="permissive") if tables else None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


# -- jsonl


def _lines(path: Path, report: Report) -> Iterator[dict[str, Any]]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line:
            continue
        try:
            # a lone surrogate is its escape in the file
            found = json.loads(line)
        except ValueError:
            last = not data.endswith(b"\n") and number == data.count(b"\n") + 1
            report(f"{path}:{number} is left out: it is " + ("cut off" if last else "no JSON"))
            continue
        if isinstance(found, dict):
            yield found
        else:
            report(f"{path}:{number} is left out: it is no JSON object")


def _number(value: Any) -> float:
    return SPECIAL[value] if isinstance(value, str) else as_float(value)


def _scalars(lines: Sequence[Mapping[str, Any]], metrics: Mapping[str, str]) -> Any:
    import pyarrow as pa

    columns: dict[str, list[Any]] = {name: [] for name in SCALARS}
    for line in lines:
        partial = frozenset(line.get("partial", ()))
        for name, value in line["scalars"].items():
            whole = isinstance(value, int) and value in INT64
            row = (
                line["step"], line["mode"], name, metrics.get(name), _number(value), int(value) if whole else None,
                name in partial, line.get("time"), line.get("run_id"),
            )  # fmt: skip
            for column, cell in zip(columns.values(), row, strict=True):
                column.append(cell)
    return pa.table({name: pa.array(columns[name], type_) for name, type_ in schema(pa, SCALARS)})


def _events(lines: Sequence[Mapping[str, Any]], kind: str, metrics: Mapping[str, str]) -> Any:
    import pyarrow as pa

    columns = {}
    for name, type_ in schema(pa, KINDS[kind]):
        values = [metrics.get(line["name"]) if name == "metric" else line.get(name) for line in lines]
        if name == "edges":
            values = [list(map(_number, line["edges"])) for line in lines]
        columns[name] = pa.array(values, type_)
    return pa.table(columns)


def _rows(lines: Sequence[Mapping[str, Any]]) -> Any:
    import pyarrow as pa

    names = dict.fromkeys(name for line in lines for name in line)
    if (run := EVENT_RUN if EVENT_RUN in names else "run_id") in names:  # the last, as in parquet
        names[run] = names.pop(run)
    fields, arrays = [], []
    for name in names:
        array, is_object = _inferred(pa, [line.get(name) for line in lines])
        fields.append(pa.field(name, array.type, metadata={OBJECT: b"object"} if is_object else None))
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _inferred(pa: Any, values: list[Any]) -> tuple[Any, bool]:
    """A table's column, typed by its values as the parquet sink types it, and whether it is of objects."""
    some = [value for value in values if value is not None]
    types = {type(value) for value in some}
    if types == {str} and not all(value in SPECIAL for value in some):
        return pa.array(values, pa.string()), False
    if types <= {int, float, str} and all(type(value) is not str or value in SPECIAL for value in some):
        if types == {int} and all(value in INT64 for value in some):
            return pa.array(values, pa.int64()), False
        if types:
            return pa.array([None if value is None else _number(value) for value in values], pa.float64()), False
    if types <= {bool}:
        return pa.array(values, pa.bool_() if types else pa.null()), False
    return pa.array([None if value is None else json_text(value) for value in values], pa.string()), True
