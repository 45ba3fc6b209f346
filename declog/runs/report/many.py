"""Writes the report of a folder of runs: a file with a table of the runs, and a file with the page of each run."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from declog.errors import DeclogError
from declog.runs.report.blobs import Blobs
from declog.runs.report.curves import Curve, Meanings, core_names, curves_of
from declog.runs.report.facts import differences, started
from declog.runs.report.page import SHARED, goes_on, html_page, is_current, write
from declog.runs.run import Run, read
from declog.runs.series import training_times
from declog.sinks._files import replace_text

FILE = "report.html"
POINTS = 80  # the most points of a small curve
SCRIPTS = (*SHARED, "runs.js")


class RunsReport:
    """The report of the runs below ``folder``. ``file`` has the table of runs.

    The page of a run has the same path below the folder of ``file`` as the run has below ``folder``. ``samples``:
    include the rows of tables.
    """

    def __init__(self, folder: Path, file: Path, *, samples: bool = True) -> None:
        self.folder = folder
        self.file = file
        self._samples = samples
        self._rows: dict[Path, tuple[str, dict[str, Any]]] = {}  # by run: the stamp of its files, and its row
        self._table = ""  # the data that were last written to `file`

    def write(self, paths: Sequence[Path], every: float | None = None) -> bool:
        """Write the pages of runs that have grown, and the table; return whether a run goes on.

        ``every``: the files will be written again in so many seconds. Raises ``OSError`` if writing fails.
        """
        rows, runs = [], {}
        for path in paths:
            position = path.relative_to(self.folder)
            try:
                run = read(path)
                stamp = run.stamp()  # before its rows are read: later rows change the stamp
                page = self.file.parent / position / FILE
                page.parent.mkdir(parents=True, exist_ok=True)
                period = every if goes_on(run) else None
                if not is_current(page, [run], samples=self._samples, every=period):
                    write(page, run, samples=self._samples, every=period)
                row = {"folder": str(position), "page": quote((position / FILE).as_posix())}
                rows.append({**self._row(path, run, stamp), **row})
                runs[str(position)] = run
            except DeclogError as error:
                rows.append({"folder": str(position), "problem": str(error)})
        live = any(map(goes_on, runs.values()))
        every = every if live else None
        table = json.dumps([rows, every], default=str)
        if table != self._table or not self.file.exists():
            replace_text(self.file, document(self.folder.name, rows, settings(runs), every))
            self._table = table
        return live

    def _row(self, path: Path, run: Run, stamp: str) -> dict[str, Any]:
        if self._rows.get(path, ("",))[0] != stamp:
            self._rows[path] = (stamp, run_row(run))
        return self._rows[path][1]


def document(
    name: str, rows: Sequence[Mapping[str, Any]], differing: Sequence[Mapping[str, Any]], every: float | None
) -> str:
    """The page with the table of runs; ``differing`` are the settings in which they differ, with values by run."""
    facts = {"made": time.time(), "every": every, "runs": [], "name": name, "rows": rows, "settings": differing}
    return html_page(name, "runs.html", SCRIPTS, facts, Blobs())


def run_row(run: Run) -> dict[str, Any]:
    """The row of a run in the table: its state, its core metrics with small curves, its alerts."""
    scalars = run.scalars.arrow()
    curves = list(curves_of(scalars, Meanings(run.plan)))
    core = core_names(curves)
    shown = {curve.name: curve for curve in reversed(curves) if curve.name in core and curve.mode == "train"} or {
        curve.name: curve for curve in reversed(curves) if curve.name in core
    }
    times = [time for time in scalars["time"].to_pylist() if time is not None]
    levels = [row["level"] for row in run.alerts]
    return {
        "name": run.name, "id": run.id, "state": run.state, "started": min([*started(run), *times], default=None),
        "last": max(times, default=None), "step": max(scalars["step"].to_pylist(), default=None),
        "rate": steps_per_second(scalars), "alerts": len(levels), "errors": levels.count("error"),
        "failures": sum(run.failures.values()), "parent": run.info.get("parent"),
        "resumed": [one["resumed_after"] + 1 for one in run.segments if "resumed_after" in one],
        "problems": run.problems,
        "core": [small(shown[name]) for name in core if name in shown],
    }  # fmt: skip


def small(curve: Curve) -> dict[str, Any]:
    """A curve with at most ``POINTS`` points, and its last value, which is a text if it is not finite."""
    bounds = np.unique(np.linspace(0, len(curve.values), min(POINTS, len(curve.values)) + 1).astype(int))
    parts = [slice(low, high) for low, high in pairwise(bounds)]
    last = float(curve.values[-1])
    return {
        "name": curve.name, "title": curve.meaning["title"] or curve.name, "unit": curve.meaning["unit"],
        "last": last if np.isfinite(last) else json.dumps(last),
        "x": [float(curve.steps[part][0]) for part in parts],
        "y": [_mean(curve.values[part]) for part in parts],
    }  # fmt: skip


def _mean(values: Any) -> float | None:
    finite = values[np.isfinite(values)]
    return float(f"{finite.mean():.5g}") if len(finite) else None


def steps_per_second(scalars: Any) -> float | None:
    """The steps per second in the last tenth of a run's log events; None if there are too few of them."""
    times = training_times(scalars)
    steps = list(times)[-max(3, len(times) // 10) :]
    if len(steps) < 2 or (spent := times[steps[-1]] - times[steps[0]]) <= 0:
        return None
    return float((steps[-1] - steps[0]) / spent)


def settings(runs: Mapping[str, Run]) -> list[dict[str, Any]]:
    """The settings in which runs differ, each with its values by the run's path; without those that only name a run."""
    configured = {path: run for path, run in runs.items() if run.declog}
    return [
        {"key": row["key"], "values": dict(zip(configured, row["values"], strict=True))}
        for row in differences(list(configured.values()))
        if not all(map(_names, configured.values(), row["values"]))
    ]


def _names(run: Run, value: str | None) -> bool:
    return value is None or run.id in value or run.path.name in value
