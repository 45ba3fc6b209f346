"""The trackio sink: the local dashboard (``trackio show --project <project>``). Its data never leave this machine.

One call logs the scalars, histograms and tables of a log event at its step. A table is a ``trackio.Table`` whose
``object`` columns are text, or with ``as: trace`` one ``trackio.Trace`` per row: its messages, and its other columns as
metadata. An integer beyond 64 bits is a text in a table, and a float as a scalar. Images in a table's column ``prompt``
are in a column ``prompt_images`` beside it; in a trace they stay in the messages.

trackio reads ``TRACKIO_DIR`` once, when it is imported. So the option ``dir`` works only if declog imports trackio
first (in ``open``, which knows the run's folder), and is an error otherwise. trackio prints at its start, at alerts and
at its end: the sink suppresses these prints, on its thread only. trackio keeps both records of a step that is logged
twice, so a resumed run first deletes its later steps from the database. A run that was open before (``run: auto`` joins
it) counts its own steps: declog's records have the step of the run's latest record, and the optimizer step as
``declog/step``. trackio warns about values that it cannot store, and drops them. It raises no error, so keep a file
sink as the primary record of a run.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Literal

from declog.errors import SinkError
from declog.errors.visible import visible, visible_lines
from declog.records import DType, Image, Number, Records, ResumePoint, RunInfo, Table, json_text, strict
from declog.sinks import ALERT, HISTOGRAM, SCALAR, TABLE, BaseSink, _images
from declog.sinks._conversations import conversation, spoken_columns
from declog.sinks._folder import below
from declog.sinks._rows import INT64, end_of, with_why
from declog.sinks._shared import as_float, bound, clean_text, opened_runs, require, require_installed, tracker_config

REMOTE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
PRINTING = ("trackio", "trackio.run", "trackio.utils")
STEPPED = ("metrics", "alerts", "traces")
OURS = "declog/"
STEP = f"{OURS}step"
SCORES = ("reward", "score", "advantages", "advantage")  # the first of these columns that a row has is its score


def _open_run() -> Any:
    """The run that the code of this thread has open, unless a sink opened it."""
    if "trackio" not in sys.modules:
        return None
    run = sys.modules["trackio"].context_vars.current_run.get()
    return None if run is None or run in opened_runs else run


class TrackioSink(BaseSink):
    """Logs to a local trackio project: to the run that is open, or to a new one.

    ``run``: ``auto`` joins the run that is open, else starts one; ``join`` fails without an open run; ``new`` always
    starts one. By default ``project`` is `run.project` of the YAML, and ``name`` is `run.name` and the run's id.
    ``dir`` is the folder of trackio's databases: below ``output_dir`` if relative, trackio's default if null.
    ``resume: null`` continues a run of the same name only if that name has declog's run id. ``system_metrics`` turns on
    trackio's CPU and GPU monitor. ``traces``: the rows of a table with a prompt and a completion are also traces, as
    ``<table>/traces``. Traces show complete texts; a table's cell shows 250 characters.
    """

    kind = "trackio"
    package = "trackio"
    extra = "trackio"
    accepts: ClassVar[frozenset[str]] = frozenset({SCALAR, HISTOGRAM, TABLE, ALERT})

    def __init__(
        self,
        *,
        run: Literal["auto", "join", "new"] = "auto",
        project: str | None = None,
        name: str | None = None,
        group: str | None = None,
        dir: str | None = None,
        resume: Literal["allow", "must", "never"] | None = None,
        system_metrics: bool = False,
        traces: bool = True,
    ) -> None:
        require_installed("trackio", kind="trackio", extra="trackio")
        self._project, self._name, self._group = project, name, group
        self._dir = dir
        self._resume = resume or ("allow" if name is None else "never")
        self._system_metrics = system_metrics
        self._with_traces = traces
        self._trackio: Any = None
        self._run: Any = None
        self._start: Any = None  # opens the run
        self._written = False  # whether anything was logged since the run was opened
        self._joined = None if run == "new" else _open_run()  # here, because only the thread that opened it sees a run
        self._alone = self._joined is None  # nobody else logs into the run
        if run == "join" and self._joined is None:
            raise SinkError.of("DL601.trackio")

    @classmethod
    def on(cls, run: Any, *, alone: bool) -> TrackioSink:
        """A sink on a run that the program opened, and will finish; ``alone``: nobody else logs into it."""
        sink = cls()
        sink._joined, sink._alone = run, alone
        if alone:
            opened_runs.add(run)
        return sink

    def open(self, run: RunInfo) -> None:
        """Join the run, or start or resume one, with the run config."""
        if self._joined is not None:
            self._trackio, self._run = import_trackio(None), self._joined
            config = tracker_config(run)
            self._run.config.update({key: value for key, value in config.items() if key not in self._run.config})
            return
        for variable in REMOTE:
            if os.environ.get(variable):
                raise SinkError.of("DL601.trackio_variable", variable=variable)
        folder = None if self._dir is None else below(run.output_dir, str(Path(self._dir).expanduser()))
        self._trackio = import_trackio(folder)
        self._start = partial(
            self._trackio.init,
            project=self._project or run.project,
            name=self._name or "-".join(dict.fromkeys((run.shown_name, run.run_id))),
            group=self._group,
            config=tracker_config(run),
            embed=False,
            auto_log_cpu=self._system_metrics,
            auto_log_gpu=self._system_metrics,
        )
        self._begin(self._resume)

    def _begin(self, resume: str) -> None:
        with quiet():
            self._run = self._start(resume=resume)
        opened_runs.add(self._run)

    def rewind(self, point: ResumePoint) -> None:
        """Delete the run's records of later steps, in one transaction."""
        if self._joined is not None:  # the program decides about the steps of its run
            return
        if self._written:  # trackio stores the last records when the run is finished
            self.close()
            self._begin("allow")
            self._written = False
        storage = require("trackio.sqlite_storage", kind="trackio", extra="trackio").SQLiteStorage
        path = storage.get_project_db_path(self._run.project)
        if not path.exists():
            return
        with contextlib.closing(sqlite3.connect(path, timeout=30)) as database, database:
            for table in STEPPED:
                database.execute(f"DELETE FROM {table} WHERE run_id = ? AND step > ?", (self._run.id, point.step))

    def write(self, step: int, records: Records) -> None:
        """Log one event in one call, and its alerts."""
        self._written = True
        values: dict[str, Any] = {clean_text(scalar.name): finite_width(scalar.value) for scalar in records.scalars}
        for histogram in records.histograms:
            pair = (list(histogram.counts), list(histogram.edges))
            values[clean_text(histogram.name)] = self._trackio.Histogram(np_histogram=pair)
        for table in filter(attrgetter("rows"), records.tables):
            key = table.name if self._alone else f"{OURS}{table.name}"  # the program may have a table of that name
            values[clean_text(key)] = self._traces(table) if table.as_trace else self._table(with_why(table))
            if self._with_traces and not table.as_trace and (said := spoken_columns(table)):
                values[clean_text(f"{key}/traces")] = self._traces(said)
        at = step
        if not self._alone:  # the program counts the steps of its run, and declog must not move them
            at = max(0, self._run._next_step - 1)
            values = {STEP: step, **values} if values else values
        if values:
            self._run.log(values, step=at)
        for alert in records.alerts:
            with quiet():
                level = self._trackio.AlertLevel(alert.level)
                self._run.alert(title=visible(alert.name), text=visible_lines(alert.text), level=level, step=at)

    def _table(self, table: Table) -> Any:
        data = rows(table)
        for name, cells in _images.shown(table).items():
            key = clean_text(_images.column_name(name, table))
            for row, images in zip(data, cells, strict=True):
                row[key] = [self._image(image) for image in images] or None
        return self._trackio.Table(data=data)

    def _image(self, image: Image) -> Any:
        return self._trackio.Image(_images.opened(image))

    def _traces(self, table: Table) -> list[Any]:
        """A trace for each row: its messages, and its other columns as metadata."""
        traces = []
        for row in range(table.rows):
            messages, columns = conversation(table, row)
            columns = {**_status(table, row), **columns}
            metadata = {clean_text(name): storable(value, self._image) for name, value in columns.items()}
            stored = [storable(message, self._image) for message in messages]
            traces.append(self._trackio.Trace(stored, metadata=metadata))
        return traces

    def close(self) -> None:
        """Wait until trackio has stored everything; a joined run stays open."""
        if self._run is not None and self._joined is None:
            with quiet():
                self._run.finish()


def import_trackio(folder: Path | None) -> Any:
    """trackio, with its databases in ``folder`` unless that is None."""
    if folder is None:
        return require("trackio", kind="trackio", extra="trackio")
    requested = folder.resolve()
    before = os.environ.get("TRACKIO_DIR")
    os.environ["TRACKIO_DIR"] = str(requested)
    try:
        trackio = require("trackio", kind="trackio", extra="trackio")
    finally:
        if before is None:
            del os.environ["TRACKIO_DIR"]
        else:
            os.environ["TRACKIO_DIR"] = before
    used = Path(trackio.utils.TRACKIO_DIR).resolve()
    if used != requested:
        raise SinkError.of("DL601.trackio_folder", used=used, requested=requested)
    return trackio


def finite_width(value: Number) -> Number:
    """A number that trackio can store: trackio silently drops integers beyond 64 bits."""
    return value if isinstance(value, float) or value in INT64 else as_float(value)


def storable(value: Any, shown: Callable[[Image], Any] | None = None) -> Any:
    """A value that trackio can store, at any depth: one value that trackio cannot store makes it drop the whole record.

    ``shown`` converts an image to trackio's image.
    """
    if shown is not None and isinstance(value, Image) and value.encoded() is not None:
        return shown(value)
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, int) and value not in INT64:
        return str(value)
    if isinstance(value, dict):
        return {clean_text(str(key)): storable(item, shown) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item, shown) for item in value]
    return strict(value)


def rows(table: Table) -> list[dict[str, Any]]:
    """The rows of a table, as trackio stores them."""
    columns: list[list[Any]] = []
    for column in table.columns:
        values = list(table.data[column.name])
        if column.type is DType.OBJECT:
            values = [None if value is None else json_text(value) for value in values]
        columns.append(values if column.type is DType.FLOAT else [storable(value) for value in values])
    names = [clean_text(column.name) for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _status(table: Table, row: int) -> dict[str, str]:
    """The texts of a row in trackio's list of traces: best or worst with its score, and why it was picked."""
    why = table.why(row)
    values = {column.name: table.data[column.name][row] for column in table.columns}
    score = next((values[name] for name in SCORES if isinstance(values.get(name), int | float)), None)
    shown = [end_of(why) or why, "" if score is None else f"{as_float(score):.3g}"]
    return {key: text for key, text in (("status", " ".join(filter(None, shown))), ("why", why)) if text}


_quiet: ContextVar[bool] = ContextVar("_quiet", default=False)  # on this thread


def _print(*values: object, **options: Any) -> None:
    if not _quiet.get():
        print(*values, **options)


def quiet() -> contextlib.AbstractContextManager[None]:
    """A block in which trackio prints nothing on this thread.

    trackio's modules get another ``print``. Swapping ``sys.stdout`` would also take the trainer's output, and can
    crash the process: CPython's ``print`` holds no reference to its stream.
    """
    for name in PRINTING:
        require(name, kind="trackio", extra="trackio").print = _print
    return bound(_quiet, True)
