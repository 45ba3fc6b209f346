"""The mlflow sink, against a database, read back by MLflow's own client: `make integrations` has what it needs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from declog.records import Places, RunInfo
from declog.sinks.runner import SinkRunner
from declog.testing import check_sink
from tests.sinks.samples import EXACT, event, run_info

mlflow = pytest.importorskip("mlflow", reason="`make integrations` has mlflow-skinny")

from declog.sinks.mlflow import MlflowSink  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader")  # of SQLAlchemy, for what MLflow itself uses


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database of its own; files beside it."""
    monkeypatch.chdir(tmp_path)
    return f"sqlite:///{tmp_path}/runs.db"


def written(store: str, folder: Path, *steps: int, later: float = 0.0) -> Any:
    """The run that a sink writes, as MLflow's client has it."""
    runner = SinkRunner("mlflow", MlflowSink(uri=store))
    runner.open(run_info(folder), 120)
    for step in steps:
        made = event(step)
        places = Places([step] * 3, [0, 1, 2], None, ["best", "worst", "worst"])
        runner.submit(step, replace(made, time=made.time + later, tables=(replace(made.tables[0], places=places),)))
    report = runner.close(120)
    assert (report.failed, report.finished) == (0, True), report
    client = mlflow.MlflowClient(tracking_uri=store)
    place = client.get_experiment_by_name("grpo").experiment_id
    (found,) = client.search_runs([place])
    return client, found


def test_a_run_is_read_back(store: str, tmp_path: Path) -> None:
    """Metrics at their steps, parameters, tables and whole texts as files, alerts as tags and in the note."""
    client, run = written(store, tmp_path, 0, 5)
    id = run.info.run_id
    assert (run.info.run_name, run.info.status, run.data.params) == (
        "run-7",
        "FINISHED",
        {"method": "grpo", "größe": "7"},
    )
    points = [(one.step, one.value, one.timestamp) for one in client.get_metric_history(id, "reward")]
    assert points == [(0, 0.0, 1000000), (5, 2.5, 1005000)]
    assert math.isnan(client.get_metric_history(id, "loss/größe")[0].value)
    assert client.get_metric_history(id, "tokens")[0].value == float(EXACT)
    assert client.get_metric_history(id, "loss/inf")[0].value < -1e308
    files = Path(client.download_artifacts(id, ""))
    shown = json.loads((files / "tables/completions/00000005.json").read_text("utf-8"))
    assert shown["columns"] == ["id", "reward", "ok", "prompt", "extra"]
    assert shown["data"][1] == [EXACT + 51, "NaN", None, "", None]
    text = (files / "tables/completions/00000005.md").read_text("utf-8")
    assert "## best, step 5, row 0, id 9007199254741043, reward 1.5, ok True" in text and "größer 漢字\nzwei" in text
    assert json.loads((files / "histograms/00000000.json").read_text())["lengths"]["counts"] == [0, 2, 3]
    assert json.loads((files / "declog/config.json").read_text())["declog"]["fingerprint"] == "f00d"
    assert run.data.tags["declog.alert.kl_runaway"] == "step 5: warn: KL 5 — zu groß"
    assert run.data.tags["mlflow.note.content"].splitlines() == [
        f"- kl_runaway, step {step}: warn: KL {step} — zu groß" for step in (0, 5)
    ]
    assert [one["path"] for one in json.loads(run.data.tags["mlflow.loggedArtifacts"])] == [
        f"tables/completions/{step:08d}.json" for step in (0, 5)
    ]


def test_a_resumed_run_goes_on(store: str, tmp_path: Path) -> None:
    """In the run of the same id; what it logs again is there twice, the later one last."""
    written(store, tmp_path, 0, 1)
    client, run = written(store, tmp_path, 1, 2, later=60)
    assert [one.step for one in client.get_metric_history(run.info.run_id, "reward")] == [0, 1, 1, 2]
    assert len(run.data.tags["mlflow.note.content"].splitlines()) == 4 and run.info.status == "FINISHED"


def test_the_contract(store: str) -> None:
    """What declog asks of every sink."""
    client = mlflow.MlflowClient(tracking_uri=store)

    def read(run: RunInfo) -> Iterable[tuple[int, str, float]]:
        place = client.get_experiment_by_name("contract").experiment_id
        (found,) = client.search_runs([place], f"tags.`declog.run_id` = '{run.run_id}'")
        for name in found.data.metrics:
            yield from ((one.step, name, one.value) for one in client.get_metric_history(found.info.run_id, name))

    assert len(check_sink(lambda: MlflowSink(uri=store), read=read)) == 10
