"""The accelerate sink: any tracker of accelerate, built in or registered.

The sink uses the trackers that an ``Accelerator`` has open (``declog.integrations.accelerate.start`` passes them), or
starts those in ``trackers``. On wandb and trackio it uses declog's own sinks, on the tracker's run. Any other tracker
gets the records for which its class has a method: ``log`` for scalars, ``log_table`` for tables, ``log_images`` for the
images in them. The sink leaves out other records and reports that once.

A tracker that was open stays open: ``Accelerator.end_training`` closes it. Importing accelerate imports torch, so the
sink imports it when it is constructed, never on the sink's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from itertools import chain, islice
from operator import attrgetter
from typing import Any, ClassVar

from declog.errors import SinkError
from declog.errors.visible import visible_lines
from declog.records import Image, Records, RunInfo, Table, json_text
from declog.sinks import ALERT, HISTOGRAM, SCALAR, TABLE, BaseSink, Sink, _images
from declog.sinks._folder import below
from declog.sinks._shared import as_float, bound, clean_text, require
from declog.sinks.tensorboard import IMAGES, markdown
from declog.sinks.trackio import TrackioSink
from declog.sinks.wandb import WandbSink

log = logging.getLogger("declog")
TEXTS = frozenset({"tensorboard"})  # trackers whose `log` shows a text
RUN_OF_THREAD = {"mlflow": "run_id"}  # trackers whose run belongs to a thread, and the argument of `log` for the run

_open: ContextVar[Sequence[Any]] = ContextVar("_open", default=())  # the trackers of the Accelerator


def open_trackers(trackers: Sequence[Any]) -> AbstractContextManager[None]:
    """A block in which a sink without ``trackers`` uses these: ``Accelerator.trackers`` of the main process."""
    return bound(_open, tuple(trackers))


class AccelerateSink(BaseSink):
    """Logs to trackers of accelerate.

    ``trackers``: names as for ``Accelerator(log_with=...)``; ``null`` means the trackers that the Accelerator has open.
    For named trackers: ``project`` is their project, by default `run.project`; ``dir`` is the folder of their
    files, below the run's folder if relative; ``settings`` are further arguments by tracker.
    """

    kind = "accelerate"
    package = "accelerate"
    extra = "accelerate"
    accepts: ClassVar[frozenset[str]] = frozenset({SCALAR, HISTOGRAM, TABLE, ALERT})

    def __init__(
        self,
        *,
        trackers: list[str] | None = None,
        project: str | None = None,
        dir: str | None = None,
        settings: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        self._tracking = require("accelerate.tracking", kind="accelerate", extra="accelerate")
        self._trackers = () if trackers is not None else _open.get()
        self._names = trackers or []
        self._project, self._dir, self._settings = project, dir, settings or {}
        self._started: list[Any] = []
        self._sinks: list[Sink] = []
        classes = self._tracking.LOGGER_TYPE_TO_CLASS
        for name in self._names:
            if name not in classes:
                raise SinkError.of("DL601.tracker", name=name, known=sorted(classes))
        for name in self._settings.keys() - set(self._names):
            raise SinkError.of("DL601.tracker_settings", name=name, known=self._names)
        if "tensorboard" in self._names:
            require("torch.utils.tensorboard", kind="accelerate", extra="tensorboard")
        if self._names and not self._tracking.PartialState._shared_state:  # accelerate's trackers need it to log
            raise SinkError.of("DL601.no_accelerator")

    def open(self, run: RunInfo) -> None:
        """Start the named trackers, or use the open ones; wandb and trackio get the run config."""
        trackers = [tracker for tracker in self._trackers if tracker.name != "declog"]
        if not self._names and not trackers:
            raise SinkError.of("DL601.no_trackers")
        self._sinks = [self._sink(tracker, alone=False) for tracker in trackers]
        for name in self._names:
            tracker = self._start(name, run)
            self._started.append(tracker)
            self._sinks.append(self._sink(tracker, alone=True))
        for sink in self._sinks:
            sink.open(run)

    def write(self, step: int, records: Records) -> None:
        """Log one event to each tracker; a failing tracker does not affect the others."""
        failures: list[Exception] = []
        for sink in self._sinks:
            try:
                sink.write(step, records)
            except Exception as error:  # noqa: BLE001  (any error of a tracker)
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise ExceptionGroup("several trackers failed", failures)

    def close(self) -> None:
        """Close the sinks of the trackers, and finish the trackers that this sink started."""
        with ExitStack() as ends:  # closes all, also if one fails; the trackers last
            for tracker in self._started:
                ends.callback(tracker.finish)
            for sink in self._sinks:
                ends.callback(sink.close)

    def _start(self, name: str, run: RunInfo) -> Any:
        cls = self._tracking.LOGGER_TYPE_TO_CLASS[name]
        arguments = [self._project or run.project]
        if cls.requires_logging_directory:
            folder = below(run.output_dir, self._dir or run.sink or "accelerate")
            folder.mkdir(parents=True, exist_ok=True)
            arguments.append(str(folder))
        tracker = cls(*arguments, **self._settings.get(name, {}))
        # Only one process has the sink: accelerate must not set up its state, which waits for the other processes.
        tracker.main_process_only = False
        tracker.start()
        return tracker

    def _sink(self, tracker: Any, *, alone: bool) -> Sink:
        if tracker.name == "wandb":
            return WandbSink.on(tracker.tracker, alone=alone)
        if tracker.name == "trackio":
            return TrackioSink.on(tracker.tracker, alone=alone)
        return _Generic(tracker)


class _Generic:
    """Any other tracker: ``log``, and the further methods of its class."""

    accepts: ClassVar[frozenset[str]] = frozenset({SCALAR, TABLE, ALERT})

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker
        self._log_options: dict[str, Any] = {}
        self._reported: set[str] = set()

    def open(self, run: RunInfo) -> None:
        if self._tracker.name in RUN_OF_THREAD:
            self._log_options = {RUN_OF_THREAD[self._tracker.name]: self._tracker.tracker.info.run_id}

    def write(self, step: int, records: Records) -> None:
        values: dict[str, Any] = {clean_text(scalar.name): as_float(scalar.value) for scalar in records.scalars}
        if self._tracker.name in TEXTS:
            texts = {table.name: markdown(table) for table in records.tables}
            texts |= {
                f"alerts/{alert.name}": f"**{alert.level}** {visible_lines(alert.text)}" for alert in records.alerts
            }
            values |= {clean_text(name): clean_text(text) for name, text in texts.items()}
        if values:
            self._tracker.log(values, step=step, **self._log_options)
        for table in filter(attrgetter("rows"), records.tables):
            self._table(step, table)

    def close(self) -> None: ...

    def _table(self, step: int, table: Table) -> None:
        tracker = self._tracker
        if hasattr(tracker, "log_table"):
            columns = [column.name for column in table.columns]
            tracker.log_table(clean_text(table.name), columns=columns, data=_cells(table), step=step)
        elif tracker.name not in TEXTS:
            self._leave_out("tables", table.name)
        for name, rows in _images.shown(table).items():
            images = list(islice(chain.from_iterable(rows), IMAGES))
            self._images(step, clean_text(f"{table.name}/{name}"), [_pixels(image) for image in images])

    def _images(self, step: int, name: str, images: list[Any]) -> None:
        tracker = self._tracker
        if not hasattr(tracker, "log_images"):
            self._leave_out("images", name)
        elif self._tracker.name == "tensorboard":  # one array of images of one size
            for number, image in enumerate(images):
                tracker.log_images({f"{name}/{number}": image[None]}, step=step, dataformats="NHWC")
        else:
            tracker.log_images({name: images}, step=step)

    def _leave_out(self, what: str, name: str) -> None:
        if what not in self._reported:
            self._reported.add(what)
            log.warning("the tracker `%s` shows no %s: `%s` is not there", self._tracker.name, what, name)


def _pixels(image: Image) -> Any:
    """The image as an array of bytes, ``[height, width, 3]``."""
    import numpy as np

    return np.asarray(_images.opened(image).convert("RGB"))


def _cells(table: Table) -> list[list[Any]]:
    """Rows of numbers, texts and None; objects as JSON."""
    columns = [[_cell(value) for value in table.data[column.name]] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    return json_text(value) if isinstance(value, Mapping | list) else value
