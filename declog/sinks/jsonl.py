"""The jsonl sink: append-only files of one JSON object per line, for a shell, jq and pandas.

    <dir>/scalars.jsonl        {"step", "mode", "time", "run_id", "scalars": {name: value}}, one line per log event;
                               "partial": [names] where ranks were missing
    <dir>/histograms.jsonl     {"step", "mode", "time", "run_id", "name", "counts", "edges"}
    <dir>/alerts.jsonl         {"step", "mode", "time", "run_id", "name", "level", "text"}
    <dir>/metrics.jsonl        {"step", "mode", "time", "run_id", "name", "metric"}: one line per name, with its metric
                               in the config
    <dir>/tables/<id>.jsonl    one line per row: its columns, and step, mode, group, row, why and run_id if it has no
                               such column

``<dir>`` is ``<output_dir>/<sink id>``, or the option ``dir``. Every line is strictly valid JSON: NaN and infinities
are the strings "NaN", "Infinity" and "-Infinity". Each write is one piece, without a buffer. If a crash tore the last
line, opening the file again removes it. ``step`` is the row's own step. If that is not the log event's, or the table
has its own column ``step`` or ``run_id``, the log event's step and run are in ``declog_step`` and ``declog_run_id``. A
resumed run uses them to drop the steps that it logs again.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from declog.errors import SinkError
from declog.records import Histogram, Records, ResumePoint, RunInfo, Scalar, json_text
from declog.sinks._files import fsync, put
from declog.sinks._folder import FolderSink
from declog.sinks._rows import EVENT_RUN, EVENT_STEP, run_column, scalars_by_name, table_rows

METRICS = "metrics.jsonl"
MAX_PENDING_BYTES = 8 * 2**20


class JsonlSink(FolderSink):
    """Writes JSON lines; ``fsync: true`` also asks the disk to keep each log event before the next one."""

    kind = "jsonl"
    per_rank = True
    unfiltered_bytes = None

    def __init__(self, *, dir: str | None = None, fsync: bool = False) -> None:
        super().__init__(dir)
        self._fsync = fsync
        self._files: dict[str, LineFile] = {}
        self._metrics: dict[str, str] = {}  # the metrics by their names in the files

    def begin(self, run: RunInfo) -> None:
        """Continue the files in the folder."""
        for path in (*self.folder.glob("*.jsonl"), *self.folder.glob("tables/*.jsonl")):
            self._file(str(path.relative_to(self.folder)))
        self._read_metrics()

    def rewind(self, point: ResumePoint) -> None:
        """Write each file again without the lines that this run logs again, each in one atomic rename."""
        for name in sorted(self._files, key=METRICS.__eq__):  # the last file has the metrics of the names in the others
            self._files[name].keep(partial(self._keeps, point, Path(name)))
        self._read_metrics()

    def _keeps(self, point: ResumePoint, file: Path, line: dict[str, Any]) -> bool:
        """Whether a line of a file stays. Lines of other runs stay."""
        if logged_by(line) not in (None, self.run_id):
            return True
        if file.parent.name == "tables":
            keys = [f"tables.{file.stem}"]
        elif file.name == "alerts.jsonl":
            keys = [f"alerts.{line.get('name')}"]
        else:
            keys = [f"metrics.{self._metrics.get(name)}" for name in line.get("scalars", [line.get("name")])]
        return point.keeps(logged_step(line), line.get("mode", ""), keys)

    def write(self, step: int, records: Records) -> None:
        """Append one log event. Lines that a file refused wait for the next write."""
        for error in self.write_many([(step, records)]).values():
            raise error

    def write_many(self, events: Sequence[tuple[int, Records]]) -> dict[int, Exception]:
        """Append log events, in one write per file; lines that a file refused wait for the next write."""
        lines: dict[str, list[tuple[int, str]]] = {}  # by file: the index of the event, and the line
        for index, (step, records) in enumerate(events):
            for name, line in _lines(step, records, self.run_id, self._new_names(records)):
                lines.setdefault(name, []).append((index, f"{json_text(line)}\n"))
        reasons: dict[int, list[Exception]] = {}
        for name, entries in lines.items():
            try:
                self._file(name).append("".join(line for _, line in entries))
            except OSError as error:
                for index in {index for index, _ in entries}:
                    reasons.setdefault(index, []).append(error)
        return {index: _failed(errors) for index, errors in reasons.items()}

    def _new_names(self, records: Records) -> dict[str, str]:
        """Remember the names that are new in these records, and return their metrics by name."""
        items: Sequence[Scalar | Histogram] = (*records.scalars, *records.histograms)
        new = {item.name: item.metric for item in items if item.name not in self._metrics}
        self._metrics |= new
        return new

    def end(self) -> None:
        """Write pending lines and close the files."""
        failures: list[Exception] = []
        for file in self._files.values():
            try:
                file.close()
            except OSError as error:
                failures.append(error)
        self._files.clear()
        if failures:
            raise _failed(failures)

    def _read_metrics(self) -> None:
        file = self.folder / METRICS
        lines = file.read_bytes().splitlines() if file.exists() else []
        self._metrics = {line["name"]: line["metric"] for line in map(json.loads, lines)}

    def _file(self, name: str) -> LineFile:
        if name not in self._files:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._files[name] = LineFile(path, fsync=self._fsync)
        return self._files[name]


class LineFile:
    """A file of complete lines. A failed write leaves no half line, and the next write repeats its text."""

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self._path = path
        self._fsync = fsync
        self._pending = b""
        self._new = path.with_suffix(".rewound")
        self._new.unlink(missing_ok=True)  # left by a process that was killed
        self._file: BinaryIO = open(path, "ab", buffering=0)  # noqa: SIM115  (closed by close)
        self._end = repair(path)

    def append(self, text: str) -> None:
        """Write complete lines. After an ``OSError`` they wait, up to ``MAX_PENDING_BYTES``; more lines are refused."""
        # A lone surrogate becomes its escape, which means the same inside a JSON string.
        data = text.encode(errors="backslashreplace")
        if len(self._pending) + len(data) > MAX_PENDING_BYTES:
            self._write()
        self._pending += data
        self._write()

    def keep(self, keeps: Callable[[dict[str, Any]], bool]) -> None:
        """Keep only the lines for which ``keeps`` is true, unchanged."""
        self._write()
        with open(self._path, "rb") as old, open(self._new, "wb") as target:
            for number, line in enumerate(old, 1):
                if keeps(self._parsed(line, number)):
                    target.write(line)
            kept = target.tell()
        if kept == self._end:
            self._new.unlink()
            return
        fsync(self._new)
        put(self._new, self._path)
        self._file.close()
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115  (closed by close)
        self._end = kept

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            parsed = json.loads(line)
        except ValueError as cause:
            raise SinkError.of("DL601.json", path=self._path, number=number, cause=cause) from cause
        if not isinstance(parsed, dict):
            raise SinkError.of("DL601.json_object", path=self._path, number=number)
        return parsed

    def close(self) -> None:
        try:
            self._write()
        finally:
            self._file.close()

    def _write(self) -> None:
        if not self._pending:
            return
        try:
            done = 0
            while done < len(self._pending):
                done += self._file.write(self._pending[done:])
            if self._fsync:
                os.fsync(self._file.fileno())
        except OSError:
            os.truncate(self._path, self._end)
            raise
        self._end += len(self._pending)
        self._pending = b""


def repair(path: Path) -> int:
    """Remove a torn last line (or add a missing last newline); returns the file's length."""
    with open(path, "r+b") as file:
        length = file.seek(0, os.SEEK_END)
        if not length:
            return 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            start = data.rfind(b"\n") + 1
            last = data[start:]
        if not last:
            return length
        try:
            json.loads(last)
        except ValueError:
            file.truncate(start)
            return start
        file.write(b"\n")
        return length + 1


def logged_step(line: dict[str, Any]) -> int:
    """The step of the log event that wrote a line."""
    return int(line.get(EVENT_STEP, line.get("step", 0)))


def logged_by(line: dict[str, Any]) -> Any:
    """The id of the run that wrote a line; None if the line has none."""
    return line.get(EVENT_RUN, line.get("run_id"))


def _lines(
    step: int, records: Records, run_id: str, metrics: Mapping[str, str]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The lines of a log event, each with its file; ``metrics`` has the metrics of new names."""
    stamp: dict[str, Any] = {"step": step, "mode": records.mode, "time": records.time, "run_id": run_id}
    for name, metric in metrics.items():
        yield METRICS, {**stamp, "name": name, "metric": metric}
    if scalars := scalars_by_name(records):
        yield "scalars.jsonl", {**stamp, **scalars}
    for item in records.histograms:
        line = {**stamp, "name": item.name, "counts": list(item.counts), "edges": list(item.edges)}
        yield "histograms.jsonl", line
    for alert in records.alerts:
        yield "alerts.jsonl", {**stamp, **vars(alert)}
    for table in records.tables:
        for row in table_rows(table, step):
            yield (
                f"tables/{table.table}.jsonl",
                {"step": step, "mode": records.mode, run_column(table): run_id, **row},
            )


def _failed(failures: Sequence[Exception]) -> SinkError:
    error = SinkError.of("DL602.lines", reasons="; ".join(dict.fromkeys(map(str, failures))))
    error.__cause__ = failures[0]
    return error
