"""The jsonl sink: append-only files of one JSON object per line, for a shell, jq and pandas.

    <dir>/scalars.jsonl        {"step", "mode", "time", "run_id", "scalars": {name: value}}, one line per log event;
                               "partial": [names] where ranks were missing
    <dir>/histograms.jsonl     {"step", "mode", "time", "run_id", "name", "counts", "edges"}
    <dir>/alerts.jsonl         {"step", "mode", "time", "run_id", "name", "level", "text"}
    <dir>/metrics.jsonl        {"step", "mode", "time", "run_id", "name", "metric"}: one line per name, of which metric
                               of the config it is
    <dir>/tables/<id>.jsonl    one line per row: its columns, and step, mode, group, row, why and run_id where it has
                               no such column

``<dir>`` is ``<output_dir>/<sink id>`` unless the option ``dir`` says otherwise. Every line is strictly
valid JSON: NaN and infinities are the strings "NaN", "Infinity" and "-Infinity". Lines are written in one piece and
flushed; a torn last line after a crash is removed when the file is opened again. ``step`` is the row's own step. If
that is not the log event's, or the table has its own column ``step`` or ``run_id``, the log event's step and run are in
``declog_step`` and ``declog_run_id``. A resumed run uses them to drop the steps that it logs again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from declog.errors import SinkError
from declog.records import Records, RunInfo, Table
from declog.sinks import ALERT, HISTOGRAM, SCALAR, TABLE, BaseSink
from declog.sinks._files import fsync, put
from declog.sinks._shared import EVENT_RUN, EVENT_STEP, SinkFolder, json_text, origins, run_column

METRICS = "metrics.jsonl"
MAX_PENDING_BYTES = 8 * 2**20


class JsonlSink(BaseSink):
    """Writes JSON lines; ``fsync: true`` also asks the disk to keep each log event before the next one."""

    kind = "jsonl"
    in_folder = True
    per_rank = True
    unfiltered_bytes = None
    accepts: ClassVar[frozenset[str]] = frozenset({SCALAR, HISTOGRAM, TABLE, ALERT})

    def __init__(self, *, dir: str | None = None, fsync: bool = False) -> None:
        self._dir = dir
        self._fsync = fsync
        self._files: dict[str, LineFile] = {}
        self._named: set[str] = set()  # the names in metrics.jsonl
        self._run_id = ""
        self._place: SinkFolder | None = None
        self._folder = Path()

    def open(self, run: RunInfo) -> None:
        """Create the folder, or continue the files that are in it."""
        self._place = SinkFolder(run, self._dir, "jsonl")
        self._folder, self._run_id = self._place.path, run.run_id
        for path in (*self._folder.glob("*.jsonl"), *self._folder.glob("tables/*.jsonl")):
            self._file(str(path.relative_to(self._folder)))
        self._read_names()

    def move(self, run: RunInfo) -> None:
        """Open the files of the run that goes on."""
        self.close()
        self.open(run)

    def rewind(self, step: int) -> None:
        """Write each file anew without this run's lines of steps after ``step``, each in one atomic rename."""
        for file in self._files.values():
            file.keep(lambda line: logged_by(line) not in (None, self._run_id) or logged_step(line) <= step)
        self._read_names()

    def write(self, step: int, records: Records) -> None:
        """Append one log event. Lines that a file refused wait for the next write."""
        for error in self.write_many([(step, records)]).values():
            raise error

    def write_many(self, events: Sequence[tuple[int, Records]]) -> dict[int, Exception]:
        """Append log events, in one write per file; lines that a file refused wait for the next write."""
        texts: dict[str, list[str]] = {}
        reasons: dict[int, list[Exception]] = {}
        places: dict[str, list[int]] = {}
        for place, (step, records) in enumerate(events):
            for name, lines in _lines(step, records, self._run_id, self._new_names(records)):
                texts.setdefault(name, []).extend(f"{line}\n" for line in lines)
                places.setdefault(name, []).append(place)
        for name, found in texts.items():
            try:
                self._file(name).append("".join(found))
            except OSError as error:
                for place in places[name]:
                    reasons.setdefault(place, []).append(error)
        return {place: _failed(found) for place, found in reasons.items()}

    def _new_names(self, records: Records) -> dict[str, str]:
        """Lines with the metric of each new name."""
        named = {item.name: item.metric for item in records.scalars}
        named |= {item.name: item.metric for item in records.histograms}
        new = {name: metric for name, metric in named.items() if name not in self._named}
        self._named |= new.keys()
        return new

    def close(self) -> None:
        """Write what is still pending and close the files."""
        failures: list[Exception] = []
        for file in self._files.values():
            try:
                file.close()
            except OSError as error:
                failures.append(error)
        self._files.clear()
        if self._place is not None:
            self._place.release()
        if failures:
            raise _failed(failures)

    def _read_names(self) -> None:
        file = self._folder / METRICS
        lines = file.read_bytes().splitlines() if file.exists() else []
        self._named = {json.loads(line)["name"] for line in lines}

    def _file(self, name: str) -> LineFile:
        if name not in self._files:
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._files[name] = LineFile(path, fsync=self._fsync)
        return self._files[name]


class LineFile:
    """A file of complete lines. A failed write leaves no half line; its text goes before the next one."""

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self._path = path
        self._fsync = fsync
        self._pending = b""
        self._new = path.with_suffix(".rewound")
        self._new.unlink(missing_ok=True)  # what a kill left
        self._file: BinaryIO = open(path, "ab", buffering=0)  # noqa: SIM115  (closed by close)
        self._end = repair(path)

    def append(self, text: str) -> None:
        """Write complete lines. An ``OSError`` leaves them pending, up to a bound; beyond it they are refused."""
        # A lone surrogate is written as its JSON escape, which is what it is inside a string.
        data = text.encode(errors="backslashreplace")
        if len(self._pending) + len(data) > MAX_PENDING_BYTES:
            self._write()
        self._pending += data
        self._write()

    def keep(self, keeps: Callable[[dict[str, Any]], bool]) -> None:
        """Keep only the lines for which ``keeps`` is true, unchanged."""
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
        length = end = file.seek(0, os.SEEK_END)
        tail = b""
        while end > 0 and b"\n" not in tail:
            start = max(0, end - 65536)
            file.seek(start)
            tail = file.read(end - start) + tail
            end = start
        _, _, last = tail.rpartition(b"\n")
        if not last:
            return length
        try:
            json.loads(last)
        except ValueError:
            file.truncate(length - len(last))
            return length - len(last)
        file.seek(0, os.SEEK_END)
        file.write(b"\n")
        return length + 1


def logged_step(line: dict[str, Any]) -> int:
    """The step of the log event that wrote a line."""
    return int(line.get(EVENT_STEP, line.get("step", 0)))


def logged_by(line: dict[str, Any]) -> Any:
    """The id of the run that wrote a line; None if the line has none."""
    return line.get(EVENT_RUN, line.get("run_id"))


def _lines(step: int, records: Records, run_id: str, new: Mapping[str, str]) -> Iterator[tuple[str, Iterator[str]]]:
    stamp: dict[str, Any] = {"step": step, "mode": records.mode, "time": records.time, "run_id": run_id}
    if new:
        yield METRICS, (json_text({**stamp, "name": name, "metric": metric}) for name, metric in new.items())
    if records.scalars:
        event = {**stamp, "scalars": {scalar.name: scalar.value for scalar in records.scalars}}
        partial = [scalar.name for scalar in records.scalars if scalar.partial]
        yield "scalars.jsonl", iter([json_text({**event, "partial": partial} if partial else event)])
    if records.histograms:
        rows = (
            {**stamp, "name": histogram.name, "counts": list(histogram.counts), "edges": list(histogram.edges)}
            for histogram in records.histograms
        )
        yield "histograms.jsonl", map(json_text, rows)
    if records.alerts:
        alerts = ({**stamp, "name": alert.name, "level": alert.level, "text": alert.text} for alert in records.alerts)
        yield "alerts.jsonl", map(json_text, alerts)
    for table in records.tables:
        yield f"tables/{table.table}.jsonl", map(json_text, _rows(step, records.mode, run_id, table))


def _rows(step: int, mode: str, run_id: str, table: Table) -> Iterator[dict[str, Any]]:
    names = [column.name for column in table.columns]
    stamp = {"step": step, "mode": mode, run_column(table): run_id}
    known = origins(table, step)
    keys = (*known, *names)
    for values in zip(*known.values(), *(table.data[name] for name in names), strict=True):
        yield {**stamp, **dict(zip(keys, values, strict=True))}


def _failed(failures: Sequence[Exception]) -> SinkError:
    error = SinkError.of("DL602.lines", reasons="; ".join(dict.fromkeys(map(str, failures))))
    error.__cause__ = failures[0]
    return error
