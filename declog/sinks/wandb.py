"""The wandb sink: one log call per log event, with its scalars, histograms and tables together.

In a run that declog opens, that call has the optimizer step as wandb's own step. In a run that was open before
(``run: auto`` joins it), the program owns wandb's step: declog's values go into the open row, and their x axis is the
step metric ``declog/step``. declog commits a row only if it would otherwise overwrite its own values. It does the same
in its own run if the program logs there and gets ahead, since wandb drops records of a past step. In a joined run a
table's key begins with ``declog/``.

A table is a ``wandb.Table`` in incremental mode: each log event adds one increment with its rows. wandb shows the last
100 increments, and each row of history names all of them. So a new table object follows after 100 increments, and when
a new column comes; the table's artifact keeps every row. For a metric that is ``good: up`` or ``down``, wandb's summary
has the greatest or smallest value beside the last one. Images in a column ``prompt`` are in a column ``prompt_images``
beside it.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import AbstractContextManager
from contextvars import ContextVar
from operator import attrgetter
from typing import Any, ClassVar, Literal, Self

from declog.errors import SinkError
from declog.errors.visible import visible, visible_lines
from declog.records import DType, Histogram, Image, Number, Records, RunInfo, Table, json_text
from declog.sinks import ALERT, HISTOGRAM, SCALAR, TABLE, BaseSink, _images
from declog.sinks._rows import with_why
from declog.sinks._shared import bound, clean_text, digest, opened_runs, require, tracker_config

OURS = "declog/"  # begins a table's key in a joined run: the program may have a table of that name
STEP = f"{OURS}step"
LOCAL_STEP = "_local_step"  # a run's attribute: its step, as this process counts it
INCREMENTS = 100
WAITING = 8  # most log events that wait for a row
MAX_BINS = 512
TITLE_CHARS = 63
KEY_BYTES = 90  # wandb adds a step and two digests to make a file's name
TYPES = {DType.INT: int, DType.FLOAT: float, DType.BOOL: bool, DType.TEXT: str, DType.OBJECT: str}


_teed: ContextVar[Any] = ContextVar("_teed", default=None)  # the run for sinks of this context


def open_run(run: Any) -> AbstractContextManager[None]:
    """A block in which sinks log to this run. No other code logs numbers there, and the program finishes the run."""
    return bound(_teed, run)


class WandbSink(BaseSink):
    """Logs to a wandb run: to the run that is open, or to a new one.

    ``run``: ``auto`` joins the run that is open, else starts one; ``join`` fails without an open run; ``new`` always
    starts one. The sink never joins a run that another recorder opened and will finish.

    By default ``project`` and ``name`` are wandb's environment variables, else `run.project` and `run.name`.
    ``id`` continues that run of wandb's. ``mode: null`` leaves the choice to wandb and ``WANDB_MODE``.
    """

    kind = "wandb"
    package = "wandb"
    extra = "wandb"
    accepts: ClassVar[frozenset[str]] = frozenset({SCALAR, HISTOGRAM, TABLE, ALERT})

    def __init__(
        self,
        *,
        run: Literal["auto", "join", "new"] = "auto",
        project: str | None = None,
        entity: str | None = None,
        name: str | None = None,
        id: str | None = None,
        group: str | None = None,
        job_type: str | None = None,
        tags: list[str] | None = None,
        notes: str | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
    ) -> None:
        self._wandb = require("wandb", kind="wandb", extra="wandb")
        self._choice = run
        self._options = {
            "entity": entity, "id": id, "group": group, "job_type": job_type, "tags": tags, "notes": notes,
            "mode": mode,
        }  # fmt: skip
        self._project, self._name = project, name
        self._run: Any = None
        self._finishes = False  # the sink started the run
        self._numbers_rows = False  # wandb's step is declog's step
        self._waiting: deque[tuple[int, Records]] = deque()  # log events, until a row is free for the first of them
        self._prefix = OURS  # of the keys of tables
        self._joined: Any = None
        if (teed := _teed.get()) is not None:
            self._join(teed, alone=True)
        self._open_row: tuple[int, int, frozenset[str]] = (-1, -1, frozenset())
        self._defined: set[str] = set()
        self._summarized: set[str] = set()
        self._pictured: dict[str, dict[str, str]] = {}
        self._tables: dict[str, tuple[Any, dict[str, type], int]] = {}
        self._good: dict[str, str] = {}  # the better direction of metrics that have one

    @classmethod
    def on(cls, run: Any, *, alone: bool) -> Self:
        """A sink on a run that the program opened, and will finish; ``alone``: nobody else logs into it."""
        sink = cls()
        sink._join(run, alone=alone)
        return sink

    def _join(self, run: Any, *, alone: bool) -> None:
        self._joined = run
        if alone:
            self._numbers_rows, self._prefix = True, ""
            opened_runs.add(run)

    def open(self, run: RunInfo) -> None:
        """Join or start the run, and send the run config once."""
        joined = self._joined
        if joined is None and self._choice != "new" and self._wandb.run not in opened_runs:
            joined = self._wandb.run
        if joined is None and self._choice == "join":
            raise SinkError.of("DL601.wandb")
        config = tracker_config(run)
        about = (run.declog.get("about") or {}).items()
        self._good = {name: one["good"] for name, one in about if one and one.get("good")}
        if joined is not None:
            self._run = joined
            present = set(joined.config.keys())  # the program's settings stay as they are
            joined.config.update({key: value for key, value in config.items() if key not in present})
            return
        self._run = self._wandb.init(
            project=self._project or os.environ.get("WANDB_PROJECT") or run.project,
            name=self._name or os.environ.get("WANDB_NAME") or run.shown_name,
            config=config,
            reinit="create_new" if self._choice == "new" or self._wandb.run is not None else None,
            resume="allow" if self._options["id"] else None,
            **self._options,
        )
        opened_runs.add(self._run)
        self._finishes = self._numbers_rows = True
        self._prefix = ""

    def write(self, step: int, records: Records) -> None:
        """Log one event in one call, then its alerts.

        wandb drops a row whose number is below that of the open row, and the program may number rows by its steps. So
        in its run declog begins no row beyond the step of training: up to ``WAITING`` log events wait until the
        program has begun one.
        """
        self._waiting.append((step, records))
        while self._waiting and (len(self._waiting) > WAITING or self._free(self._waiting[0][0], step)):
            self._write(*self._waiting.popleft())

    def _free(self, step: int, now: int) -> bool:
        """Whether an event can be logged while training is at step ``now``."""
        if self._numbers_rows:
            return True
        row, last, _ = self._open_row
        current = self._row()
        return current != row or last == step or current < now

    def _write(self, step: int, records: Records) -> None:
        values: dict[str, Any] = {clean_text(scalar.name): _number(scalar.value) for scalar in records.scalars}
        for histogram in records.histograms:
            values[clean_text(histogram.name)] = self._wandb.Histogram(np_histogram=_bins(histogram))
        self._summarize(records)
        try:
            for table in filter(attrgetter("rows"), records.tables):
                values[file_key(f"{self._prefix}{table.name}")] = self._table(table)
            if values:
                self._log(step, values)
            for alert in records.alerts:
                title = visible(alert.name)[:TITLE_CHARS]
                self._run.alert(title=title, text=visible_lines(alert.text), level=alert.level.upper())
        except OSError as cause:
            # A second try would add the rows to the table twice. They are sent with the next increment.
            raise SinkError.of("DL602.wandb", step=step, cause=cause) from cause
        except self._wandb.errors.UsageError as cause:
            if self._finishes:
                raise
            raise SinkError.of("DL602.wandb_joined", cause=cause) from cause

    def close(self) -> None:
        """Log the waiting events, and finish the run if the sink opened it."""
        try:
            while self._waiting:
                self._write(*self._waiting.popleft())
        finally:
            if self._run is not None and self._finishes:
                self._run.finish()

    def _log(self, step: int, values: dict[str, Any]) -> None:
        current = self._row()
        if self._numbers_rows and current <= step:
            self._run.log(values, step=step)
            return
        self._numbers_rows = False
        self._define(values)
        row, last, names = self._open_row
        if current == row and (last != step or names & values.keys()):
            # The row is still open: without a commit the earlier values would be overwritten.
            self._run.log({}, commit=True)
            current = self._row()
        self._run.log({STEP: step, **values}, commit=False)
        earlier = names if (current, step) == (row, last) else frozenset()
        # Read again: if the program has committed meanwhile, the values may be in the next row.
        self._open_row = (self._row(), step, earlier | values.keys())

    def _row(self) -> int:
        """wandb's step: the number of the open row; 0 for a disabled run."""
        if self._prefix:  # the program's run
            self._run.log({}, commit=False)  # raises if the program has finished it: `step` would hang for long
        if self._run.disabled:
            return 0
        # `step` asks wandb's service, and waits. A run of this process alone also has a local count.
        counted = not self._prefix and hasattr(self._run, LOCAL_STEP)
        return int(getattr(self._run, LOCAL_STEP) if counted else self._run.step)

    def _summarize(self, records: Records) -> None:
        """Let wandb keep the best value of a metric, beside its last."""
        for scalar in records.scalars:
            good = self._good.get(scalar.metric.partition(".")[0])
            if good is not None and scalar.name not in self._summarized:
                best = "max" if good == "up" else "min"
                self._run.define_metric(clean_text(scalar.name), summary=f"last,{best}")
                self._summarized.add(scalar.name)

    def _define(self, values: dict[str, Any]) -> None:
        if not self._defined:
            self._run.define_metric(STEP, hidden=True)
        for name in values.keys() - self._defined:
            self._run.define_metric(name, step_metric=STEP, step_sync=False)
            self._defined.add(name)

    def _table(self, table: Table) -> Any:
        table = with_why(table)
        images = _images.shown(table)
        pictured = self._pictured.setdefault(table.name, {})  # a column of images stays in later log events
        pictured |= {name: _images.column_name(name, table) for name in images}
        beside = {name: shown for name, shown in pictured.items() if name in table.data}
        types = {column.name: TYPES[column.type] for column in table.columns} | dict.fromkeys(beside.values(), list)
        value, all_types, increments = self._tables.get(table.name, (None, {}, 0))
        if value is None or increments >= INCREMENTS or not types.items() <= all_types.items():
            all_types = all_types | types  # a column stays in later log events
            value = self._wandb.Table(
                columns=list(all_types), dtype=list(all_types.values()), optional=True, log_mode="INCREMENTAL"
            )
            increments = 0
        columns = [
            [None if item is None else json_text(item) for item in table.data[column.name]]
            if column.type is DType.OBJECT
            else table.data[column.name]
            for column in table.columns
        ]
        columns += [self._shown(images.get(name, [[]] * table.rows)) for name in beside]
        data = dict(zip(types, columns, strict=True))
        nulls = [None] * table.rows
        for row in zip(*(data.get(name, nulls) for name in all_types), strict=True):
            value.add_data(*row)
        self._tables[table.name] = (value, all_types, increments + 1)
        return value

    def _shown(self, rows: list[list[Image]]) -> list[Any]:
        return [[self._wandb.Image(_images.opened(image)) for image in row] or None for row in rows]


def file_key(name: str) -> str:
    """A table's name as a key from which wandb makes a file name. The file stays inside wandb's folder.

    A long name is cut.
    """
    parts = [part.replace(".", "%2E") if part in ("", ".", "..") else part for part in visible(name).split("/")]
    key = "/".join(part for part in parts if part).replace("\\", "%5C")
    if len(key.encode()) <= KEY_BYTES:
        return key
    return f"{key.encode()[: KEY_BYTES - 13].decode(errors='ignore')}-{digest(name)}"


def _bins(histogram: Histogram) -> tuple[list[int], list[float]]:
    """Counts and edges; neighbouring bins are joined if there are more than wandb takes."""
    join = -(-len(histogram.counts) // MAX_BINS) or 1
    counts = [sum(histogram.counts[start : start + join]) for start in range(0, len(histogram.counts), join)]
    return counts, [*histogram.edges[:-1:join], histogram.edges[-1]]


def _number(value: Number) -> Number:
    # wandb draws numbers, not truth values.
    return int(value) if isinstance(value, bool) else value
