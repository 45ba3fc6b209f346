"""The tensorboard sink, through tensorboard's own event writer (torch's would import torch).

Scalars are float32, which is all that the format's scalars hold; ``parquet`` keeps them exactly. A histogram
keeps its own edges. A table is a Markdown table under the Text tab, the first images in it are under the Images tab, an
alert and the run config are texts too.
Files go to ``<output_dir>/<sink id>`` unless the option ``dir`` says otherwise.

A resumed run writes a new event file. What the earlier ones hold of later steps is taken out of them: the format's
own mark for that (a session log) is obeyed by tensorboard's Python readers only.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, ClassVar

from declog.records import Alert, DType, Histogram, Records, RunInfo, Table
from declog.sinks import ALERT, HISTOGRAM, SCALAR, TABLE, BaseSink, _images
from declog.sinks._files import fsync, put
from declog.sinks._shared import SinkFolder, as_float, clean_text, json_text, require, tracker_config, with_why

FLOAT32_MAX = 3.4028234663852886e38
IMAGES = 8  # most images of a column at one log event
REWOUND = "rewound"  # while it is written; tensorboard reads what has `tfevents` in its name
# An event file is a row of records: the length and its checksum, the event, and the event's checksum.
RECORD_LENGTH, LENGTH_CHECKSUM, EVENT_CHECKSUM = struct.Struct("<Q"), 4, 4


class TensorboardSink(BaseSink):
    """Writes one event file.

    ``flush_secs`` is how long a value may wait before it is on disk. A cell of a table is cut at ``max_chars``:
    tensorboard checksums what it writes byte by byte in Python, which a training loop would feel.
    """

    kind = "tensorboard"
    package = "tensorboard"
    extra = "tensorboard"
    in_folder = True
    accepts: ClassVar[frozenset[str]] = frozenset({SCALAR, HISTOGRAM, TABLE, ALERT})

    def __init__(self, *, dir: str | None = None, flush_secs: float = 10.0, max_chars: int | None = None) -> None:
        prefix = "tensorboard.compat.proto."
        self._events, self._summaries, self._tensors, self._types = (
            require(prefix + name, kind="tensorboard", extra="tensorboard")
            for name in ("event_pb2", "summary_pb2", "tensor_pb2", "types_pb2")
        )
        module = "tensorboard.summary.writer.event_file_writer"
        self._writer_class = require(module, kind="tensorboard", extra="tensorboard").EventFileWriter
        self._dir, self._flush_secs, self._max_chars = dir, flush_secs, max_chars
        self._writer: Any = None
        self._place: SinkFolder | None = None
        self._before: list[Path] = []
        self._earlier: list[Path] = []

    def open(self, run: RunInfo) -> None:
        """Start an event file with the run config in it."""
        self._place = SinkFolder(run, self._dir, "tensorboard")
        folder, mine = self._place.path, f".{run.run_id}"
        (folder / REWOUND).unlink(missing_ok=True)  # what a kill left
        self._before = sorted(folder.glob("events.out.tfevents.*"))
        self._earlier = [file for file in self._before if file.name.endswith(mine)]
        while any(file.name.startswith(f"events.out.tfevents.{int(time.time()):010d}.") for file in self._earlier):
            time.sleep(0.05)  # readers go by names: of one second the second file may be the first
        self._writer = self._writer_class(str(folder), flush_secs=self._flush_secs, filename_suffix=mine)
        config = f"```json\n{json_text(tracker_config(run))}\n```"
        self._add(0, time.time(), [self._text("declog/config", config)])

    def move(self, run: RunInfo) -> None:
        """Start an event file of the run that goes on, in its folder; the one that was started is removed."""
        self._writer.close()
        if self._place is not None:
            for file in self._place.path.glob("events.out.tfevents.*"):
                if file not in self._before:
                    file.unlink()
            self._place.release()
        self.open(run)

    def rewind(self, step: int) -> None:
        """Write this run's earlier event files anew without what is of later steps, each in one atomic rename."""
        for path in self._earlier:
            new = path.with_name(REWOUND)
            with open(path, "rb") as old, open(new, "wb") as target:
                for record, event in self._recorded(old.read()):
                    if event.step <= step or event.HasField("file_version"):
                        target.write(record)
            fsync(new)
            put(new, path)

    def _recorded(self, data: bytes) -> Iterator[tuple[bytes, Any]]:
        """The whole records of an event file, and their events; one that a crash tore is not among them."""
        place, head = 0, RECORD_LENGTH.size + LENGTH_CHECKSUM
        while place + head <= len(data):
            (length,) = RECORD_LENGTH.unpack_from(data, place)
            end = place + head + length + EVENT_CHECKSUM
            if end > len(data):
                return
            yield data[place:end], self._events.Event.FromString(data[place + head : end - EVENT_CHECKSUM])
            place = end

    def write(self, step: int, records: Records) -> None:
        """Add one event with all values of this log event."""
        values = [
            self._summaries.Summary.Value(
                tag=clean_text(scalar.name), simple_value=float32_range(as_float(scalar.value))
            )
            for scalar in records.scalars
        ]
        values += [self._histogram(histogram) for histogram in records.histograms]
        values += [self._text(table.name, markdown(table, self._max_chars)) for table in records.tables]
        values += [image for table in records.tables for image in self._images(table)]
        values += [self._text(f"alerts/{alert.name}", _alert(alert)) for alert in records.alerts]
        self._add(step, records.time, values)

    def close(self) -> None:
        """Flush and close the file."""
        if self._writer is not None:
            self._writer.close()
        if self._place is not None:
            self._place.release()

    def _add(self, step: int, wall_time: float, values: list[Any]) -> None:
        event = self._events.Event(step=step, wall_time=wall_time, summary=self._summaries.Summary(value=values))
        self._writer.add_event(event)

    def _text(self, tag: str, text: str) -> Any:
        plugin = self._summaries.SummaryMetadata.PluginData(plugin_name="text")
        tensor = self._tensors.TensorProto(dtype=self._types.DT_STRING, string_val=[clean_text(text).encode()])
        metadata = self._summaries.SummaryMetadata(plugin_data=plugin)
        return self._summaries.Summary.Value(tag=clean_text(tag), metadata=metadata, tensor=tensor)

    def _images(self, table: Table) -> Iterator[Any]:
        """The first images of a table's columns, each under a number of its own."""
        for name, rows in _images.shown(table).items():
            for place, image in enumerate(islice(chain.from_iterable(rows), IMAGES)):
                width, height = _images.opened(image).size
                data = self._summaries.Summary.Image(
                    width=width, height=height, colorspace=3, encoded_image_string=image.encoded()
                )
                tag = clean_text(f"{table.name}/{name}/{place}")
                yield self._summaries.Summary.Value(tag=tag, image=data)

    def _histogram(self, histogram: Histogram) -> Any:
        counts, edges = histogram.counts, [float(edge) for edge in histogram.edges]
        filled = [place for place, count in enumerate(counts) if count]
        middles = [(left + right) / 2 for left, right in pairwise(edges)]
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
    """A value beyond float32 as the infinity that float32 makes of it; NaN stays."""
    if value > FLOAT32_MAX:
        return float("inf")
    return float("-inf") if value < -FLOAT32_MAX else value


def markdown(table: Table, max_chars: int | None) -> str:
    """The table in Markdown, with long cells cut, and pipes and line ends in them escaped."""
    table = with_why(table)
    names = [column.name for column in table.columns]
    lines = (_line([cut(cell, max_chars) for cell in row]) for row in _rows(table))
    return "\n".join([_line(names), _line(["---"] * len(names)), *lines])


def cut(text: str, max_chars: int | None) -> str:
    """A text of at most ``max_chars`` characters, with an ellipsis where something is missing."""
    return text if max_chars is None or len(text) <= max_chars else text[:max_chars] + "…"


def _rows(table: Table) -> Iterator[list[str]]:
    columns = [
        [
            "" if value is None else value if column.type is DType.TEXT else json_text(value)
            for value in table.data[column.name]
        ]
        for column in table.columns
    ]
    for row in zip(*columns, strict=True):
        yield list(row)


def _line(cells: list[str]) -> str:
    escaped = (cell.replace("|", "\\|").replace("\r\n", "<br>").replace("\n", "<br>") for cell in cells)
    return "| " + " | ".join(escaped) + " |"


def _alert(alert: Alert) -> str:
    return f"**{alert.level}** {alert.text}"
