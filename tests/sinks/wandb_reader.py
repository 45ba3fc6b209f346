"""Reads what wandb wrote offline: the ``.wandb`` transaction log and the media files beside it.

The log is LevelDB's log format (blocks of 32 KiB, records of a checksum, a length and a type) with protobuf
records in it. A reader for tests: whole files, no checksums.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import wandb
from wandb.proto import wandb_internal_pb2

# Made at run time from the protocol's descriptor, so no type checker knows it.
Record: Any = vars(wandb_internal_pb2)["Record"]

BLOCK = 32768
HEADER = struct.Struct("<IHB")
FILE_HEADER = 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


@dataclass
class OfflineRun:
    """One offline run. ``rows`` are its rows of history, ``metrics`` what ``define_metric`` said, by name."""

    folder: Path
    name: str = ""
    project: str = ""
    tags: list[str] = field(default_factory=list)
    notes: str = ""
    job_type: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, str] = field(default_factory=dict)
    summaries: dict[str, set[str]] = field(default_factory=dict)
    alerts: list[tuple[str, str, str]] = field(default_factory=list)
    finished: bool = False

    def series(self, name: str, x: str = "_step") -> list[tuple[Any, Any]]:
        """The points of one metric, as (x, value)."""
        return [(row[x], row[name]) for row in self.rows if name in row]

    def table(self, name: str) -> list[dict[str, Any]]:
        """All rows of a table, over all log events, in order."""
        rows: list[dict[str, Any]] = []
        for phase in self.rows:
            if name in phase:
                content = json.loads((self.folder / "files" / phase[name]["path"]).read_text("utf-8"))
                rows += [dict(zip(content["columns"], values, strict=True)) for values in content["data"]]
        return rows


def read_runs(folder: Path) -> list[OfflineRun]:
    """All offline runs below ``folder``, oldest first. Ends this process's wandb service, which writes late."""
    wandb.teardown()
    return [_read(path) for path in sorted(folder.rglob("*.wandb"), key=lambda path: path.stat().st_ctime)]


def _read(path: Path) -> OfflineRun:
    run = OfflineRun(path.parent)
    for data in _entries(path.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run.name, run.project = record.run.display_name, record.run.project
            run.tags, run.notes, run.job_type = [*record.run.tags], record.run.notes, record.run.job_type
            _update(run.config, record.run.config.update)
        elif kind == "config":
            _update(run.config, record.config.update)
        elif kind == "history":
            row: dict[str, Any] = {}
            _update(row, record.history.item)
            run.rows.append(row)
        elif kind == "metric":
            name = record.metric.name or record.metric.glob_name
            run.metrics[name] = record.metric.step_metric
            if kept := {field.name for field, on in record.metric.summary.ListFields() if on}:
                run.summaries[name] = kept
        elif kind == "alert":
            run.alerts.append((record.alert.title, record.alert.text, record.alert.level))
        elif kind == "exit":
            run.finished = True
    return run


def _update(target: dict[str, Any], items: Iterable[Any]) -> None:
    for item in items:
        *parents, last = list(item.nested_key) or [item.key]
        place = target
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = json.loads(item.value_json)


def _entries(data: bytes) -> Iterator[bytes]:
    if data[:4] != b":W&B":
        raise ValueError("not a wandb transaction log")
    place, entry = FILE_HEADER, b""
    while place + HEADER.size <= len(data):
        left = BLOCK - place % BLOCK
        if left < HEADER.size:
            place += left
            continue
        _, length, kind = HEADER.unpack_from(data, place)
        if kind not in (FULL, FIRST, MIDDLE, LAST):
            place += left
            continue
        place += HEADER.size
        piece = data[place : place + length]
        place += length
        entry = piece if kind in (FULL, FIRST) else entry + piece
        if kind in (FULL, LAST):
            yield entry
