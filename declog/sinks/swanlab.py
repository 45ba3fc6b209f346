"""The swanlab sink: scalars, complete samples as texts, and alerts as texts.

swanlab has one run per process: the sink joins the open run (``run: auto``), or starts a run, which is then open for
the program, too. A table is a list of ``swanlab.Text`` under its name: a text in Markdown per row, whose caption has
the reason why the row was picked. swanlab has no histograms of counts. It cannot delete values: a resumed run starts
another swanlab run, unless the option ``id`` names one.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, ClassVar, Literal

from declog.errors import SinkError
from declog.errors.visible import visible, visible_lines
from declog.records import Records, RunInfo, strict
from declog.sinks import ALERT, SCALAR, TABLE, BaseSink
from declog.sinks._folder import below
from declog.sinks._shared import as_float, clean_text, require, tracker_config
from declog.sinks._texts import caption, row_as_text

KEY_CHARS = 250


class SwanlabSink(BaseSink):
    """Logs to swanlab: to the run that is open, or to a new one.

    ``run``: ``auto`` joins the run that is open, else starts one; ``join`` fails without an open run, ``new`` fails
    with one. ``mode: null`` leaves the choice to swanlab. ``dir`` is the folder of swanlab's files, below the run's
    folder if relative; null: a folder there with the sink's id. ``system_metrics`` turns on swanlab's monitor.
    """

    kind = "swanlab"
    package = "swanlab"
    extra = "swanlab"
    accepts: ClassVar[frozenset[str]] = frozenset({SCALAR, TABLE, ALERT})

    def __init__(
        self,
        *,
        run: Literal["auto", "join", "new"] = "auto",
        project: str | None = None,
        workspace: str | None = None,
        name: str | None = None,
        id: str | None = None,
        group: str | None = None,
        mode: Literal["online", "local", "offline", "disabled"] | None = None,
        dir: str | None = None,
        system_metrics: bool = False,
    ) -> None:
        self._swanlab = require("swanlab", kind="swanlab", extra="swanlab")
        self._choice = run
        self._project, self._name, self._dir = project, name, dir
        self._options = {"workspace": workspace, "id": id, "group": group, "mode": mode}
        self._system_metrics = system_metrics
        self._run: Any = None
        self._finishes = False

    def open(self, run: RunInfo) -> None:
        """Join the run, or start one with the run config."""
        is_open = self._swanlab.has_run()
        if self._choice == "join" and not is_open:
            raise SinkError.of("DL601.swanlab")
        if self._choice == "new" and is_open:
            raise SinkError.of("DL601.swanlab_open")
        if is_open:
            self._run = self._swanlab.get_run()
            return
        folder = below(run.output_dir, self._dir or run.sink or "swanlab")
        folder.mkdir(parents=True, exist_ok=True)
        settings = self._swanlab.Settings
        self._run = self._swanlab.init(
            project=self._project or run.project,
            name=self._name or run.shown_name,
            log_dir=str(folder),
            config=strict(tracker_config(run)),
            resume="allow" if self._options["id"] else None,
            settings=settings(
                terminal=settings.Terminal(proxy_type="none"),  # do not send the program's prints to swanlab
                probe=settings.Probe(monitor=self._system_metrics),
            ),
            **self._options,
        )
        self._finishes = True

    def write(self, step: int, records: Records) -> None:
        """Log one event in one call."""
        values: dict[str, Any] = {_key(scalar.name): as_float(scalar.value) for scalar in records.scalars}
        for table in filter(attrgetter("rows"), records.tables):
            texts = ((row_as_text(table, row), caption(table, row)) for row in range(table.rows))
            values[_key(table.name)] = [self._swanlab.Text(text, caption=title) for text, title in texts]
        for alert in records.alerts:
            text = clean_text(visible_lines(alert.text))
            values[_key(f"alerts/{alert.name}")] = self._swanlab.Text(text, caption=alert.level)
        if values:
            self._run.log(values, step=step)

    def close(self) -> None:
        """Finish the run if the sink opened it."""
        if self._finishes:
            self._finishes = False
            self._run.finish()


def _key(name: str) -> str:
    return clean_text(visible(name)).strip("/. ")[:KEY_CHARS] or "_"
