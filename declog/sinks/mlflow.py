"""The mlflow sink: metrics, samples and alerts in a run of MLflow, through its client, without its globals.

A table is one JSON file per log event, ``tables/<name>/<step>.json``, which MLflow's pages show as a table, and a file
``<step>.md`` with the complete texts. Histograms are files, too. The latest alert of each name is a tag,
``declog.alert.<name>``, and the run's note has the last hundred alerts. MLflow cannot delete values: a resumed run
continues its MLflow run, and a repeated step has two values, the later one last. Integers become floats. In a database,
infinities become the greatest float.
"""

from __future__ import annotations

import re
import time
from operator import attrgetter
from typing import Any, ClassVar

from declog.errors.visible import visible, visible_lines
from declog.records import Records, RunInfo, Table, json_text, strict
from declog.sinks import ALERT, HISTOGRAM, SCALAR, TABLE, BaseSink
from declog.sinks._shared import as_float, clean_text, digest, require, tracker_config
from declog.sinks._texts import rows_as_text

ID = "declog.run_id"  # the tag that identifies a resumed run
NOTE = "mlflow.note.content"
SHOWN = "mlflow.loggedArtifacts"  # which files MLflow's pages show as tables
BATCH = 1000  # metrics per call, MLflow's own limit
KEY_CHARS = 250
PARAM_CHARS = 6000  # MLflow refuses longer values
TAG_CHARS = 5000
NOTES = 100  # the most alerts in the note
TABLES = 50  # the most files of tables that MLflow's pages list
NOT_IN_KEYS = re.compile(r"[^/\w.\- :]")


class MlflowSink(BaseSink):
    """Logs to MLflow. ``uri`` is its tracking store: ``sqlite:///runs.db``, a server's address; null: MLflow's choice.

    By default ``experiment`` is `run.project` of the YAML, and ``name`` is `run.name`, or the run's id.
    """

    kind = "mlflow"
    package = "mlflow-skinny"
    extra = "mlflow"
    accepts: ClassVar[frozenset[str]] = frozenset({SCALAR, HISTOGRAM, TABLE, ALERT})

    def __init__(self, *, uri: str | None = None, experiment: str | None = None, name: str | None = None) -> None:
        self._mlflow = require("mlflow", kind="mlflow", extra="mlflow")
        self._entities = require("mlflow.entities", kind="mlflow", extra="mlflow")
        self._uri, self._experiment, self._name = uri, experiment, name
        self._client: Any = None
        self._id = ""
        self._names: dict[str, str] = {}
        self._notes: list[str] = []
        self._shown: list[str] = []

    def open(self, run: RunInfo) -> None:
        """Start a run with the run config as parameters, or continue the run with the same run id of declog."""
        self._client = self._mlflow.MlflowClient(tracking_uri=self._uri)
        name = self._experiment or run.project
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        earlier = self._client.search_runs([experiment_id], f"tags.`{ID}` = '{run.run_id}'", max_results=1)
        if earlier:
            self._id = earlier[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            self._notes = earlier[0].data.tags.get(NOTE, "").splitlines()
            return
        tags = {ID: run.run_id, "declog.fingerprint": run.fingerprint, "declog.version": run.version}
        self._id = self._client.create_run(experiment_id, run_name=self._name or run.shown_name, tags=tags).info.run_id
        values = {_key(name): str(value)[:PARAM_CHARS] for name, value in run.config.items()}
        if values:
            params = [self._entities.Param(name, value) for name, value in values.items()]
            self._client.log_batch(self._id, params=params)
        self._client.log_text(self._id, clean_text(json_text(tracker_config(run))), "declog/config.json")

    def write(self, step: int, records: Records) -> None:
        """Log one event: metrics in one call, files of tables and histograms, tags of alerts."""
        at = int((records.time or time.time()) * 1000)
        metrics = [
            self._entities.Metric(self._name_of(one.name), as_float(one.value), at, step) for one in records.scalars
        ]
        for start in range(0, len(metrics), BATCH):
            self._client.log_batch(self._id, metrics=metrics[start : start + BATCH])
        if records.histograms:
            data = {one.name: {"counts": list(one.counts), "edges": list(one.edges)} for one in records.histograms}
            self._client.log_text(self._id, clean_text(json_text(data)), f"histograms/{step:08d}.json")
        for table in filter(attrgetter("rows"), records.tables):
            self._table(step, table)
        for alert in records.alerts:
            text = f"step {step}: {alert.level}: {visible_lines(alert.text)}"
            self._client.set_tag(self._id, f"declog.alert.{_key(alert.name)}"[:KEY_CHARS], text[:TAG_CHARS])
            self._notes.append(f"- {visible(alert.name)}, {' '.join(text.splitlines())}"[:TAG_CHARS])
        if records.alerts:
            self._notes = _latest(self._notes[-NOTES:])
            self._client.set_tag(self._id, NOTE, "\n".join(self._notes))

    def close(self) -> None:
        """Mark the run as ended."""
        if self._id:
            self._client.set_terminated(self._id, "FINISHED")
            self._id = ""

    def _table(self, step: int, table: Table) -> None:
        path = f"tables/{_key(table.name).replace(':', '_')}/{step:08d}"
        names = [clean_text(column.name) for column in table.columns]
        columns = [table.data[column.name] for column in table.columns]
        data = [[strict(value) for value in row] for row in zip(*columns, strict=True)]
        self._client.log_text(self._id, clean_text(json_text({"columns": names, "data": data})), f"{path}.json")
        self._client.log_text(self._id, rows_as_text(table), f"{path}.md")
        self._shown.append(json_text({"path": f"{path}.json", "type": "table"}))
        self._shown = _latest(self._shown[-TABLES:])
        self._client.set_tag(self._id, SHOWN, f"[{','.join(self._shown)}]")

    def _name_of(self, name: str) -> str:
        """A metric's key; two names never share one."""
        if name not in self._names:
            key = _key(name)
            self._names[name] = _digested(key, name) if key in self._names.values() else key
        return self._names[name]


def _latest(lines: list[str]) -> list[str]:
    """The last lines that fit a tag."""
    while len(lines) > 1 and sum(map(len, lines)) + len(lines) + 1 > TAG_CHARS:
        lines = lines[1:]
    return lines


def _key(name: str) -> str:
    """A name as a path inside the run that MLflow accepts: other characters become `_`."""
    key = NOT_IN_KEYS.sub("_", visible(name))
    parts = key.split("/")
    if len(key) <= KEY_CHARS and not {"", ".", ".."} & {*parts} and key == key.strip():
        return key
    return _digested("_".join(part for part in parts if part.strip(". ")), name)


def _digested(key: str, name: str) -> str:
    return f"{key[: KEY_CHARS - 13]}-{digest(name)}".strip()
