"""Runs of one process, one after the other and at once, in each real backend: each has its own record, all of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.forks import python
from tests.sinks.wandb_reader import read_runs

CODE = """
import json, sys
from pathlib import Path
import declog

kind, options = sys.argv[2], json.loads(sys.argv[3])
profile = {
    "run": {"project": "twice"}, "signals": {"any": {"x": {"axis": "step"}}}, "metrics": {"x": "mean(x)"},
    "sinks": [kind], "sink_options": {kind: options},
}
base = Path(sys.argv[1]) / "runs"

def step(log, number, x):
    with log.step(number):
        log.observe(x=x)

first = declog.start(profile, base_dir=base)  # two at once, of which one ends before the other
second = declog.start(profile, base_dir=base)
step(first, 0, 1.0); step(second, 0, 2.0); step(first, 1, 1.0)
first.close()
step(second, 1, 2.0)
second.close()
third = declog.start(profile, base_dir=base)  # and one after them, in parts
step(third, 0, 3.0)
state = third.state_dict()
third.close()
with declog.start(profile, resume=state) as again:
    step(again, 1, 3.0)
logs = [first, second, again]
assert [log.failures for log in logs] == [{}, {}, {}]
assert third.run_id == again.run_id and third.output_dir == again.output_dir
found = None
if kind == "trackio":
    from trackio.sqlite_storage import SQLiteStorage
    names = SQLiteStorage.get_runs("twice")
    found = {str(name): [(row["step"], row["x"]) for row in SQLiteStorage.get_logs("twice", name)] for name in names}
folders = [str(log.output_dir) for log in logs]
print(json.dumps({"folders": folders, "ids": [log.run_id for log in logs], "found": found}))
"""
EXPECTED = [[(0, 1.0), (1, 1.0)], [(0, 2.0), (1, 2.0)], [(0, 3.0), (1, 3.0)]]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "tensorboard", "trackio", "wandb"])
def test_each_run_has_its_own_record(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read back with the backend's own reader: every step of every run once, and none in another's record."""
    monkeypatch.setenv("TRACKIO_DIR", "")
    options = {"trackio": {"dir": str(tmp_path / "board")}, "wandb": {"mode": "offline"}}.get(kind, {})
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    made = json.loads(python(CODE, str(tmp_path), kind, json.dumps(options)).splitlines()[-1])
    folders = [Path(folder) for folder in made["folders"]]
    assert folders == [tmp_path / "runs", tmp_path / "runs" / "2", tmp_path / "runs" / "3"]
    if kind == "jsonl":
        files = [(folder / "jsonl" / "scalars.jsonl").read_text().splitlines() for folder in folders]
        lines = [list(map(json.loads, file)) for file in files]
        assert [[(line["step"], line["scalars"]["x"]) for line in each] for each in lines] == EXPECTED
    elif kind == "parquet":
        import polars as pl

        frames = [pl.read_parquet(folder / "parquet" / "scalars").sort("step") for folder in folders]
        assert [frame.select("step", "value").rows() for frame in frames] == EXPECTED
        assert [set(frame["run_id"]) for frame in frames] == [{run_id} for run_id in made["ids"]]
    elif kind == "tensorboard":
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        read = [EventAccumulator(str(folder / "tensorboard")).Reload().Scalars("x") for folder in folders]
        assert [[(event.step, event.value) for event in events] for events in read] == EXPECTED
    elif kind == "trackio":
        assert sorted(map(repr, made["found"].values())) == sorted(
            repr([list(row) for row in rows]) for rows in EXPECTED
        )
    else:  # a resumed process starts another run of wandb's
        rows = Counter(tuple((row["_step"], row["x"]) for row in run.rows) for run in read_runs(tmp_path))
        assert rows == Counter([*map(tuple, EXPECTED[:2]), ((0, 3.0),), ((1, 3.0),)])
