"""The tensorboard sink, through tensorboard's own event writer (torch's would import torch).

Scalars are float32, since the format holds no more; ``parquet`` keeps them exactly. A histogram keeps its edges. A
table is a Markdown table on the Text tab, and its first images are on the Images tab. Alerts and the run config are
texts, too. Files are in ``<output_dir>/<sink id>``, or in the option ``dir``.

A resumed run writes a new event file, and removes later steps from the earlier ones. The format has a mark for that (a
session log), but only tensorboard's Python readers obey it.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

from declog.records import Alert, Histogram, Records, ResumePoint, RunInfo, Table, as_text, json_text
from declog.sinks import _images
from declog.sinks._files import fsync, put
from declog.sinks._folder import FolderSink
from declog.sinks._rows import with_why
from declog.sinks._shared import as_float, clean_text, require, tracker_config

FLOAT32_MAX = 3.4028234663852886e38
EVENT_FILES = "events.out.tfevents.*"
FLUSH_S = 10.0  # the longest time until a value is on disk
IMAGES = 8  # most images of a column at one log event
REWOUND = "rewound"  # a draft of an event file; tensorboard only reads files with `tfevents` in their name
# An event file is a sequence of records: the length and its checksum, the event, and the event's checksum.
RECORD_LENGTH, LENGTH_CHECKSUM, EVENT_CHECKSUM = struct.Struct("<Q"), 4, 4


class TensorboardSink(FolderSink):
    """Writes one event file."""

    kind = "tensorboard"
    package = "tensorboard"
    extra = "tensorboard"

    def __init__(self, *, dir: str | None = None) -> None:
        super().__init__(dir)
        prefix = "tensorboard.compat.proto."
        self._events, self._summaries, self._tensors, self._types = (
            require(prefix + name, kind="tensorboard", extra="tensorboard")
            for name in ("event_pb2", "summary_pb2", "tensor_pb2", "types_pb2")
        )
        module = "tensorboard.summary.writer.event_file_writer"
        self._writer_class = require(module, kind="tensorboard", extra="tensorboard").EventFileWriter
        self._writer: Any = None
        self._config: Any = None  # the run config as a text
        self._written = False  # whether this sink's own file has log events
        self._earlier: list[Path] = []  # event files that existed before

    def begin(self, run: RunInfo) -> None:
        """Start an event file with the run config in it."""
        (self.folder / REWOUND).unlink(missing_ok=True)  # left by a process that was killed
        config = f"```json\n{json_text(tracker_config(run))}\n```"
        self._config = self._text("declog/config", config)
        self._start()

    def _start(self) -> None:
        self._earlier, self._written = sorted(self.folder.glob(EVENT_FILES)), False
        # Readers sort files by name: of two files of one second, they may read the later one first.
        while any(file.match(f"*.tfevents.{int(time.time()):010d}.*") for file in self._files_of_run()):
            time.sleep(0.05)
        self._writer = self._writer_class(str(self.folder), flush_secs=FLUSH_S, filename_suffix=f".{self.run_id}")
        self._add(0, time.time(), [self._config])

    def move(self, run: RunInfo) -> None:
        """Remove the event file that was started, and start one for ``run``."""
        self._writer.close()
        for file in {*self.folder.glob(EVENT_FILES)} - {*self._earlier}:
            file.unlink()
        super().move(run)

    def rewind(self, point: ResumePoint) -> None:
        """Write this run's earlier event files again without the events of later steps, each in one atomic rename.

        A file that has log events is an earlier one from now on.
        """
        if self._written:
            self._writer.close()
            self._start()
        for path in self._files_of_run():
            new = path.with_name(REWOUND)
            with open(path, "rb") as old, open(new, "wb") as target:
                for record, event in self._recorded(old.read()):
                    if event.step <= point.step or event.HasField("file_version"):
                        target.write(record)
            fsync(new)
            put(new, path)

    def _recorded(self, data: bytes) -> Iterator[tuple[bytes, Any]]:
        """The complete records of an event file, each with its event; a crash may have torn the last one."""
        start, head = 0, RECORD_LENGTH.size + LENGTH_CHECKSUM
        while start + head <= len(data):
            (length,) = RECORD_LENGTH.unpack_from(data, start)
            end = start + head + length + EVENT_CHECKSUM
            if end > len(data):
                return
            yield data[start:end], self._events.Event.FromString(data[start + head : end - EVENT_CHECKSUM])
            start = end

    def _files_of_run(self) -> list[Path]:
        return [file for file in self._earlier if file.name.endswith(f".{self.run_id}")]

    def write(self, step: int, records: Records) -> None:
        """Add one event with all values of this log event."""
        values = [
            self._summaries.Summary.Value(
                tag=clean_text(scalar.name), simple_value=float32_range(as_float(scalar.value))
            )
            for scalar in records.scalars
        ]
        values += [self._histogram(histogram) for histogram in records.histograms]
        values += [self._text(table.name, markdown(table)) for table in records.tables]
        values += [image for table in records.tables for image in self._images(table)]
        values += [self._text(f"alerts/{alert.name}", _alert(alert)) for alert in records.alerts]
        self._add(step, records.time, values)
        self._written = True

    def end(self) -> None:
        """Flush and close the file."""
        self._writer.close()

    def _add(self, step: int, wall_time: float, values: list[Any]) -> None:
        event = self._events.Event(step=step, wall_time=wall_time, summary=self._summaries.Summary(value=values))
        self._writer.add_event(event)

    def _text(self, tag: str, text: str) -> Any:
        plugin = self._summaries.SummaryMetadata.PluginData(plugin_name="text")
        tensor = self._tensors.TensorProto(dtype=self._types.DT_STRING, string_val=[clean_text(text).encode()])
        metadata = self._summaries.SummaryMetadata(plugin_data=plugin)
        return self._summaries.Summary.Value(tag=clean_text(tag), metadata=metadata, tensor=tensor)

    def _images(self, table: Table) -> Iterator[Any]:
        """The first images of a table's columns, each with its number in its tag."""
        for name, rows in _images.shown(table).items():
            for number, image in enumerate(islice(chain.from_iterable(rows), IMAGES)):
                width, height = _images.opened(image).size
                data = self._summaries.Summary.Image(
                    width=width, height=height, colorspace=3, encoded_image_string=image.encoded()
                )
                tag = clean_text(f"{table.name}/{name}/{number}")
                yield self._summaries.Summary.Value(tag=tag, image=data)

    def _histogram(self, histogram: Histogram) -> Any:
        counts, edges = histogram.counts, [float(edge) for edge in histogram.edges]
        filled = [index for index, count in enumerate(counts) if count]
        middles = [(low + high) / 2 for low, high in pairwise(edges)]
        proto = self._summaries.HistogramProto(
            # tensorboard takes min and max as the outer edges of the first and last bins that hold something.
            min=edges[filled[0]] if filled else edges[0],
            max=edges[filled[-1] + 1] if filled else edges[-1],
            num=sum(counts),
            sum=sum(count * middle for count, middle in zip(counts, middles, strict=True)),
            sum_squares=sum(count * (middle * middle) for count, middle in zip(counts, middles, strict=True)),
            bucket_limit=edges[1:],
            bucket=[float(count) for count in counts],
        )
        return self._summaries.Summary.Value(tag=clean_text(histogram.name), histo=proto)


def float32_range(value: float) -> float:
    """The value, or an infinity if it is beyond the range of float32; NaN stays."""
    if value > FLOAT32_MAX:
        return float("inf")
    return float("-inf") if value < -FLOAT32_MAX else value


def markdown(table: Table) -> str:
    """The table in Markdown; pipes and line ends in cells are escaped."""
    table = with_why(table)
    names = [column.name for column in table.columns]
    rows = zip(*(map(_cell, table.data[name]) for name in names), strict=True)
    return "\n".join([_line(names), _line(["---"] * len(names)), *map(_line, rows)])


def _cell(value: Any) -> str:
    return "" if value is None else as_text(value)


def _line(cells: Iterable[str]) -> str:
    escaped = (cell.replace("|", "\\|").replace("\r\n", "<br>").replace("\n", "<br>") for cell in cells)
    return "| " + " | ".join(escaped) + " |"


def _alert(alert: Alert) -> str:
    return f"**{alert.level}** {alert.text}"
