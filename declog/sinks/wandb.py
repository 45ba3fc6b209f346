"""The wandb sink: one log call per log event, with its scalars, histograms and tables together.

In a run that declog opens, that call has the optimizer step as wandb's own step. In a run that was open already
(``run: auto`` joins it), wandb's step belongs to whoever opened it: declog's values go into the row that is open
and are drawn over a step metric of their own, ``declog/step``; a row is committed only where declog would
otherwise overwrite its own values. The same happens when somebody else logs into declog's run and gets ahead,
since wandb drops what comes with a step that has passed. In a joined run a table's key begins with ``declog/``.

A table is a ``wandb.Table`` in incremental mode: each log event adds one increment with its rows only. wandb
shows the last 100 increments and names all earlier ones in each row of history, so a new table object follows
after 100, and where a column comes that it did not have; every row stays in the table's artifact. A metric that is
``good: up`` or ``down`` has its greatest or smallest value in wandb's summary, beside its last.
Images in a column ``prompt`` are in a column ``prompt_images`` beside it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import weakref
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from operator import attrgetter
from typing import Any, ClassVar, Literal, Self

from declog.errors import SinkError
from declog.errors.visible import visible, visible_lines
from declog.records import DType, Histogram, Image, Number, Records, RunInfo, Table
from declog.sinks import ALERT, HISTOGRAM, SCALAR, TABLE, BaseSink, _images
from declog.sinks._shared import clean_text, json_text, require, tracker_config, with_why

OURS = "declog/"  # before a table's key in a run that was joined: whoever opened it may have one of that name
STEP = f"{OURS}step"
LOCAL_STEP = "_local_step"  # of a run: its step, as this process counts it
INCREMENTS = 100
WAITING = 8  # log events that wait for a row of theirs, at most
MAX_BINS = 512
TITLE_CHARS = 63
KEY_BYTES = 90  # wandb adds a step and two digests to make a file's name
TYPES = {DType.INT: int, DType.FLOAT: float, DType.BOOL: bool, DType.TEXT: str, DType.OBJECT: str}


_teed: ContextVar[Any] = ContextVar("_teed", default=None)  # the run that a sink of this context takes
_opened: weakref.WeakSet[Any] = weakref.WeakSet()  # runs of wandb's that sinks opened: each is its recorder's own


@contextlib.contextmanager
def open_run(run: Any) -> Iterator[None]:
    """Within it, sinks take this run, into which nobody else logs numbers; whoever opened it finishes it."""
    token = _teed.set(run)
    try:
        yield
    finally:
        _teed.reset(token)


class WandbSink(BaseSink):
    """Logs to a wandb run. ``run``: ``auto`` joins the run that is open, else starts one; ``join`` and ``new`` insist.

    A run that another recorder opened is never joined: it ends with that one.

    ``project`` and ``name`` are wandb's environment variables, else the config's name and the run's id. ``id``
    continues that run of wandb's. ``mode: null`` leaves the choice to wandb and ``WANDB_MODE``.
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
        mode: Literal["online", "offline", "disabled"] | None = None,
    ) -> None:
        self._wandb = require("wandb", kind="wandb", extra="wandb")
        self._choice = run
        self._options = {"entity": entity, "id": id, "group": group, "mode": mode}
        self._project, self._name = project, name
        self._run: Any = None
        self._owned = False
        self._own_steps = False
        self._waiting: deque[tuple[int, Records]] = deque()  # log events, until a row is free for the first of them
        self._before = OURS  # a table's name
        self._given: Any = None
        if (run := _teed.get()) is not None:
            self._take(run, own=True)
        self._open_row: tuple[int, int, frozenset[str]] = (-1, -1, frozenset())
        self._defined: set[str] = set()
        self._summarized: set[str] = set()
        self._pictured: dict[str, dict[str, str]] = {}
        self._tables: dict[str, tuple[Any, dict[str, type], int]] = {}
        self._good: dict[str, str] = {}  # the metrics that are to rise or to fall

    @classmethod
    def on(cls, run: Any, *, own: bool) -> Self:
        """A sink on a run that somebody else opened, and will finish; ``own``: nobody else logs into it."""
        sink = cls()
        sink._take(run, own=own)
        return sink

    def _take(self, run: Any, *, own: bool) -> None:
        self._given = run
        if own:
            self._own_steps, self._before = True, ""
            _opened.add(run)

    def open(self, run: RunInfo) -> None:
        """Join or start the run, and send the run config once."""
        joined = self._given
        if joined is None and self._choice != "new" and self._wandb.run not in _opened:
            joined = self._wandb.run
        if joined is None and self._choice == "join":
            raise SinkError.of("DL601.wandb")
        config = tracker_config(run)
        about = (run.config.get("about") or {}).items()
        self._good = {name: one["good"] for name, one in about if one and one.get("good")}
        if joined is not None:
            self._run = joined
            # The trainer's own settings stay as they are; everything of ours is below one key.
            held = set(joined.config.keys())
            joined.config.update({key: value for key, value in config.items() if key not in held})
            return
        self._run = self._wandb.init(
            project=self._project or os.environ.get("WANDB_PROJECT") or run.name,
            name=self._name or os.environ.get("WANDB_NAME") or run.run_id,
            config=config,
            reinit="create_new" if self._choice == "new" or self._wandb.run is not None else None,
            resume="allow" if self._options["id"] else None,
            **self._options,
        )
        _opened.add(self._run)
        self._owned = self._own_steps = True
        self._before = ""

    def write(self, step: int, records: Records) -> None:
        """Log one event in one call, then its alerts; in a run that others log to, where its row may be begun.

        wandb drops a row with a number below that of the open one, and others may number rows by steps. So no row
        is begun beyond the step of training: a few log events wait until others begin one.
        """
        self._waiting.append((step, records))
        while self._waiting and (len(self._waiting) > WAITING or self._free(self._waiting[0][0], step)):
            self._write(*self._waiting.popleft())

    def _free(self, step: int, now: int) -> bool:
        """Whether an event can be logged while training is at step ``now``."""
        if self._own_steps:
            return True
        row, last, _ = self._open_row
        at = self._row()
        return at != row or last == step or at < now

    def _write(self, step: int, records: Records) -> None:
        values: dict[str, Any] = {clean_text(scalar.name): _number(scalar.value) for scalar in records.scalars}
        for histogram in records.histograms:
            values[clean_text(histogram.name)] = self._wandb.Histogram(np_histogram=_bins(histogram))
        self._summarize(records)
        try:
            for table in filter(attrgetter("rows"), records.tables):
                values[file_key(f"{self._before}{table.name}")] = self._table(table)
            if values:
                self._log(step, values)
            for alert in records.alerts:
                title = visible(alert.name)[:TITLE_CHARS]
                self._run.alert(title=title, text=visible_lines(alert.text), level=alert.level.upper())
        except OSError as cause:
            # Not to be tried again: rows that are in a table would be in it twice. They go with the next increment.
            raise SinkError.of("DL602.wandb", step=step, cause=cause) from cause
        except self._wandb.errors.UsageError as cause:
            if self._owned:
                raise
            raise SinkError.of("DL602.wandb_joined", cause=cause) from cause

    def close(self) -> None:
        """Log what waits, and finish the run if declog opened it."""
        try:
            while self._waiting:
                self._write(*self._waiting.popleft())
        finally:
            if self._run is not None and self._owned:
                self._run.finish()

    def _log(self, step: int, values: dict[str, Any]) -> None:
        at = self._row()
        if self._own_steps and at <= step:
            self._run.log(values, step=step)
            return
        self._own_steps = False
        self._define(values)
        row, last, names = self._open_row
        if at == row and (last != step or names & values.keys()):
            # Nobody has moved on since: without a commit the earlier values would be overwritten.
            self._run.log({}, commit=True)
            at = self._row()
        self._run.log({STEP: step, **values}, commit=False)
        held = names if (at, step) == (row, last) else frozenset()
        # read again: where somebody has committed meanwhile, the values may be in the row after that
        self._open_row = (self._row(), step, held | values.keys())

    def _row(self) -> int:
        """wandb's step: the row of history that is open. A disabled run has none."""
        if self._before:  # somebody else's
            self._run.log({}, commit=False)  # raises where its owner has finished it: else its step hangs for long
        if self._run.disabled:
            return 0
        # `step` asks wandb's service, and waits: what this process alone logs into is counted here, too
        here = not self._before and hasattr(self._run, LOCAL_STEP)
        return int(getattr(self._run, LOCAL_STEP) if here else self._run.step)

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
        pictured = self._pictured.setdefault(table.name, {})  # once there, a column of images stays
        pictured |= {name: _images.column_name(name, table) for name in images}
        beside = {name: shown for name, shown in pictured.items() if name in table.data}
        types = {column.name: TYPES[column.type] for column in table.columns} | dict.fromkeys(beside.values(), list)
        value, known, increments = self._tables.get(table.name, (None, {}, 0))
        if value is None or increments >= INCREMENTS or not types.items() <= known.items():
            known = known | types  # a column that once came stays
            value = self._wandb.Table(
                columns=list(known), dtype=list(known.values()), optional=True, log_mode="INCREMENTAL"
            )
            increments = 0
        columns = [
            [None if item is None else json_text(item) for item in table.data[column.name]]
            if column.type is DType.OBJECT
            else table.data[column.name]
            for column in table.columns
        ]
        columns += [self._shown(images.get(name, [[]] * table.rows)) for name in beside]
        there = dict(zip(types, columns, strict=True))
        nothing = [None] * table.rows
        for row in zip(*(there.get(name, nothing) for name in known), strict=True):
            value.add_data(*row)
        self._tables[table.name] = (value, known, increments + 1)
        return value

    def _shown(self, rows: list[list[Image]]) -> list[Any]:
        return [[self._wandb.Image(_images.opened(image)) for image in row] or None for row in rows]


def file_key(name: str) -> str:
    """A table's name as a key that wandb can make a file's name of: it stays in wandb's folder, and is not too long."""
    parts = [part.replace(".", "%2E") if part in ("", ".", "..") else part for part in visible(name).split("/")]
    key = "/".join(part for part in parts if part).replace("\\", "%5C")
    if len(key.encode()) <= KEY_BYTES:
        return key
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:12]
    return f"{key.encode()[: KEY_BYTES - 13].decode(errors='ignore')}-{digest}"


def _bins(histogram: Histogram) -> tuple[list[int], list[float]]:
    """Counts and edges, with neighbours joined where wandb does not take so many bins."""
    join = -(-len(histogram.counts) // MAX_BINS) or 1
    counts = [sum(histogram.counts[start : start + join]) for start in range(0, len(histogram.counts), join)]
    return counts, [*histogram.edges[:-1:join], histogram.edges[-1]]


def _number(value: Number) -> Number:
    # wandb draws numbers, not truth values.
    return int(value) if isinstance(value, bool) else value
