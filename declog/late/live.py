"""Late metrics in a running job: its rank 0 computes them beside the run's metrics, from the next log event on.

``declog add`` computes the history and writes it to `late/NAME/`, with the state of the metrics after it and the number
of its log events. The job's worker looks there, checks the lines again, computes the log events since then from the
rows that it kept, and answers in that folder. A resumed run continues the metrics that it had accepted before. A branch
continues the metrics of its parent.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from declog.engine.log_event import undone
from declog.engine.publish import Route
from declog.errors import DeclogError, error_text
from declog.late import ASKED, PROFILE, SHOWN, Answer, Columns, Late, info_of
from declog.late.lines import Line
from declog.plans.ops import Plan
from declog.records import Records, ResumePoint, RunInfo
from declog.runtime.ranks.message import decode
from declog.runtime.run.failures import Failures
from declog.runtime.worker.row_files import RowEvent, picked
from declog.sinks import traits
from declog.sinks._files import replace_text
from declog.sinks.parquet import ParquetSink
from declog.sinks.run_folder import LATE, PLAN, run_of
from declog.sinks.runner import SinkRunner
from declog.sinks.waiting import until

REQUEST, STATE, ANSWER = "ask.json", "state.bin", "answer.json"
LOOK_S = 0.2  # the shortest time between two looks for requests
SINK_S = 30.0  # the time limit for opening and closing the files of a metric
BEFORE_ALL = -(2**62)  # a step before all others


def hand_over(folder: Path, late: Late, wait_s: float) -> dict[str, Any] | None:
    """Ask the job that writes to a folder to continue metrics. Returns its answer, or None after ``wait_s``."""
    folder = folder / LATE / late.names[0]
    (folder / STATE).write_bytes(late.state)
    step = late.events[-1][0] if late.events else BEFORE_ALL
    replace_text(folder / REQUEST, json.dumps({"lines": dict(late.lines), "through": late.through, "step": step}))
    answer = folder / ANSWER
    return _read(answer) if until(answer.exists, wait_s) else None


@dataclass
class Live:
    """The late metrics of a job, on its worker thread. ``told`` is called with the lines of all continued metrics."""

    plan: Plan
    run: Callable[[], RunInfo | None]
    routes: Sequence[Route]
    failures: Failures
    told: Callable[[Mapping[str, str]], None]
    _seen: set[Path] = field(default_factory=set)
    _metrics: list[_Metrics] = field(default_factory=list)
    _next_look: float = 0.0

    def take(self, event: RowEvent) -> None:
        """Take a log event of all ranks, and look for new questions."""
        run = self.run()
        if run is not None and time.monotonic() >= self._next_look:
            if not self._next_look:
                _inherit(run.output_dir)
            self._next_look = time.monotonic() + LOOK_S
            for request in sorted((run.output_dir / LATE).glob(f"*/{REQUEST}")):
                if request not in self._seen or not (request.parent / ANSWER).exists():
                    self._seen.add(request)
                    self._take_up(run, request.parent, event)
        for metrics in [*self._metrics]:
            try:
                metrics.take(event)
            except Exception as error:  # noqa: BLE001  (the run's own metrics were logged)
                self.failures.report(error, f"{', '.join(metrics.lines)} ended")
                self._metrics.remove(metrics)
                metrics.close()

    def _take_up(self, run: RunInfo, folder: Path, event: RowEvent) -> None:
        answer = folder / ANSWER
        if answer.exists() and "taken" not in _read(answer):
            return  # the job refused the request before it was resumed
        try:
            metrics = _Metrics(self.plan, run, folder, self.routes, event)
        except Exception as error:  # noqa: BLE001  (a request of another version may raise anything)
            if not isinstance(error, DeclogError):
                self.failures.report(error, f"the request in {folder} cannot be answered")
            replace_text(answer, json.dumps({"refused": error_text(error)}))
            return
        self._metrics.append(metrics)
        replace_text(answer, json.dumps({"taken": event.facts.number, "step": event.facts.step}))
        self.told({name: line for metrics in self._metrics for name, line in metrics.lines.items()})

    @property
    def folders(self) -> set[Path]:
        """The folders of the continued metrics."""
        return {metrics.folder for metrics in self._metrics}

    def close(self) -> None:
        """Close the files: no more log events will come."""
        for metrics in self._metrics:
            metrics.close()


class _Metrics:
    """The metrics of one request, logged to files beside the history and to the run's trackers."""

    def __init__(self, plan: Plan, run: RunInfo, folder: Path, routes: Sequence[Route], event: RowEvent) -> None:
        request = _read(folder / REQUEST)
        self.folder = folder
        self.lines: Mapping[str, str] = request["lines"]
        self._catches_up = True
        in_folder = {op.id for op in plan.sinks if traits(op.kind).in_folder}
        trackers = [
            replace(route, profile=PROFILE, accepts=route.accepts & SHOWN, submit=self._when_live(route.submit))
            for route in routes if route.id not in in_folder
        ]  # fmt: skip
        self._files = SinkRunner(PROFILE, ParquetSink(dir="parquet"))
        files = Route(PROFILE, PROFILE, 1, "", SHOWN, self._files.submit)
        lines = [Line(name, text) for name, text in self.lines.items()]
        self._answer = Answer(run.output_dir, lines, (), [files, *trackers])
        number, through = event.facts.number, request["through"]
        if through is not None and (through > number or any(low < through for low, _ in self._answer.kept[-1].cuts)):
            through = None
        if through is not None:
            self._answer.evaluation.load(*decode((folder / STATE).read_bytes(), self._answer.plan.grouping))
        self._files.open(info_of(run.output_dir, folder, self._answer.plan, self.lines), SINK_S)
        try:
            self._files.rewind(ResumePoint(BEFORE_ALL if through is None else request["step"]), SINK_S)
            with np.errstate(all="ignore"):
                for earlier, reader in self._answer.history(through, number):
                    self._take(earlier, reader)
        except BaseException:
            self.close()
            raise
        self._catches_up = False

    def take(self, event: RowEvent) -> None:
        """Evaluate the next log event."""
        reader = self._answer.columns[-1]
        self._take(RowEvent(event.facts, picked(event.frames, reader.read)), reader)

    def _take(self, event: RowEvent, reader: Columns) -> None:
        self._answer.take(event, reader)
        if (back := undone(event.facts.back)) is not None:
            self._files.go_back(ResumePoint(back))

    def close(self) -> None:
        """Write the remaining values, and close the files."""
        self._files.close(SINK_S)

    def _when_live(self, submit: Callable[[int, Records], None]) -> Callable[[int, Records], None]:
        """A ``submit`` that skips log events of the history: the steps of trackers must rise."""
        return lambda step, records: None if self._catches_up else submit(step, records)


def _inherit(folder: Path) -> None:
    """In a branch, request the metrics that the parent's job continued, from the parent's first step on."""
    parent = (run_of(folder) or {}).get("parent")
    if parent is None or parent["output_dir"] is None or (folder / LATE).exists():
        return
    for answer in (Path(parent["output_dir"]) / LATE).glob(f"*/{ANSWER}"):
        if "taken" in _read(answer):
            target = folder / LATE / answer.parent.name
            target.mkdir(parents=True)
            for name in (ASKED, PLAN):
                shutil.copyfile(answer.with_name(name), target / name)
            request = {"lines": _read(answer.with_name(REQUEST))["lines"], "through": None}
            (target / REQUEST).write_text(json.dumps(request), encoding="utf-8")


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
