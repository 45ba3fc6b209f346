"""``declog.testing.check_sink``: what is shipped passes it, and a sink that does otherwise is caught, each by name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import declog
from declog.records import Records, ResumePoint, RunInfo
from declog.sinks import built_in, make_sink
from declog.testing import MemorySink, check_sink
from tests.forks import python
from tests.sinks.wandb_reader import read_runs

ALL = 13  # checks of a sink that coalesces and can be rewound
Points = Iterable[tuple[int, str, float]]


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a sink does to the working directory is done to an empty one."""
    monkeypatch.chdir(tmp_path)


def files(run: RunInfo) -> Points:
    """What parquet and jsonl have."""
    for row in declog.read(run.output_dir).scalars:
        yield row["step"], row["name"], row["value"]


def events(run: RunInfo) -> Points:
    """What tensorboard shows."""
    found = EventAccumulator(str(run.output_dir / "sink"), {"scalars": 0})
    found.Reload()
    for name in found.Tags()["scalars"]:
        yield from ((item.step, name, item.value) for item in found.Scalars(name))


@pytest.mark.parametrize(
    ("kind", "read", "count"),
    [("jsonl", files, ALL), ("parquet", files, ALL), ("tensorboard", events, ALL - 1), ("console", None, 8)],
)
def test_sinks_that_write_here(kind: str, read: Any, count: int) -> None:
    """Files and the console, read back by what their readers use."""
    assert len(check_sink(lambda: make_sink(kind, {}), read=read)) == count


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
def test_wandb(wandb_folder: Path) -> None:
    """Offline, each run's rows read from its transaction log."""

    def read(run: RunInfo) -> Points:
        (mine,) = [each for each in read_runs(wandb_folder) if each.name == run.run_id]
        for row in mine.rows:
            yield from ((row["_step"], name, value) for name, value in row.items() if isinstance(value, int | float))

    assert len(check_sink(lambda: make_sink("wandb", {"run": "new"}), read=read)) == ALL - 3


TRACKIO = """
from declog.sinks.trackio import TrackioSink
from declog.testing import check_sink
from trackio.sqlite_storage import SQLiteStorage

def read(run):
    for log in SQLiteStorage.get_logs("contract", run.run_id):
        for name, value in log.items():
            if isinstance(value, int | float) and name != "step":
                yield log["step"], name, value

print("checks:", len(check_sink(TrackioSink, read=read)))
"""


def test_trackio(tmp_path: Path) -> None:
    """Read from its database, in a process of its own: where that is, is decided at its import."""
    home = {"HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf"), "TRACKIO_DIR": str(tmp_path / "board")}
    assert f"checks: {ALL - 1}" in python(TRACKIO, env=home)


def test_accelerates_trackers() -> None:
    """Its tensorboard, which accelerate makes."""
    from accelerate import PartialState

    PartialState()
    assert len(check_sink(lambda: make_sink("accelerate", {"trackers": ["tensorboard"]}))) == 8


def test_every_shipped_sink_is_put_through_it() -> None:
    """Here, in its own module, or in an environment of its own."""
    here = {"accelerate", "console", "jsonl", "parquet", "tensorboard", "trackio", "wandb"}
    modules = [path for path in Path(__file__).parent.glob("test_*.py") if "check_sink(" in path.read_text("utf-8")]
    beside = {path.stem.removeprefix("test_") for path in modules}
    own = {path.stem.removeprefix("real_") for path in Path(__file__).parents[1].glob("integrations/own_env/real_*.py")}
    assert set(built_in()) <= here | beside | own


def test_a_parquet_sink_that_never_opened_closes_without_touching_a_thing(tmp_path: Path) -> None:
    """No folder is its own then, the working directory least of all."""
    (tmp_path / "mine").write_text("kept")
    make_sink("parquet", {}).close()
    assert (tmp_path / "mine").read_text() == "kept"


# ---- sinks that do otherwise ---------------------------------------------------------------------------


class Good(MemorySink):
    """Keeps runs apart by their ids, as a tracker does."""

    kept: dict[str, list[tuple[int, Records]]] = {}  # noqa: RUF012  (of all: as a server)

    def open(self, run: RunInfo) -> None:
        super().open(run)
        self.events = self.kept.setdefault(run.run_id, [])

    def rewind(self, point: ResumePoint) -> None:
        self.events[:] = [event for event in self.events if event[0] <= point.step]


def memory(run: RunInfo) -> Points:
    """What ``Good`` keeps."""
    for step, records in Good.kept.get(run.run_id, []):
        yield from ((step, item.name, item.value) for item in records.scalars)


class Chatty(Good):
    accepts = frozenset({"scalars"})


class Positional(Good):
    def __init__(self, path: str = "x") -> None:
        super().__init__()


class Picky(Good):
    def write(self, step: int, records: Records) -> None:
        assert all(item.name.encode() for item in records.scalars)
        super().write(step, records)


class Narrow(Good):
    def open(self, run: RunInfo) -> None:
        super().open(run)
        self.columns: dict[str, Any] = {}

    def write(self, step: int, records: Records) -> None:
        for table in records.tables:
            assert table.columns == self.columns.setdefault(table.name, table.columns), "columns changed"
        super().write(step, records)


class Once(Good):
    def close(self) -> None:
        assert not self.closed, "closed twice"
        super().close()


class Stuck(Good):
    dead = False

    def write(self, step: int, records: Records) -> None:
        self.dead |= any(table.name == "wrong" for table in records.tables)
        assert not self.dead, "broken for good"
        super().write(step, records)


class Meddling(Good):
    def write(self, step: int, records: Records) -> None:
        for table in records.tables:
            values = table.data[next(iter(table.data))]
            if isinstance(values, list):
                values.reverse()
        super().write(step, records)


class Moving(Good):
    def write(self, step: int, records: Records) -> None:
        super().write(step, records)
        os.chdir("/")


class Shuffled(Good):
    def write(self, step: int, records: Records) -> None:
        self.events.insert(0, (step, records))


class Modeless(Good):
    def write(self, step: int, records: Records) -> None:
        if records.mode == "train":
            super().write(step, records)


class Shared(Good):
    def open(self, run: RunInfo) -> None:
        super().open(replace(run, run_id="one"))
        Good.kept[run.run_id] = self.events


class Forgetful(Good):
    def rewind(self, point: ResumePoint) -> None:
        self.events[:] = [event for event in self.events if event[0] < point.step]


class Losing(Good):
    def write_many(self, events: Any) -> dict[int, Exception]:
        for step, records in events[: max(1, len(events) - 1)]:
            self.write(step, records)
        return {}


WRONG = {
    Chatty: "it says what it takes",
    Positional: "it says what it takes",
    Picky: "it takes numbers, names and texts of every kind",
    Narrow: "it takes tables without rows",
    Once: "it closes without a log event, and twice",
    Stuck: "a log event that it cannot write costs that one only",
    Meddling: "it leaves the records as they are",
    Moving: "it leaves the process as it is: AssertionError: the sink changed the working directory",
    Shuffled: "log events are there in their order",
    Modeless: "log events are there in their order",
    Shared: "runs at once are kept apart",
    Forgetful: "a resumed run has each step once",
    Losing: "several log events at once are those one by one",
}


@pytest.mark.parametrize("sink", WRONG, ids=lambda sink: sink.__name__)
def test_a_sink_that_does_otherwise(sink: type[Good]) -> None:
    """Each breach is found under its name."""
    Good.kept.clear()
    with pytest.raises(AssertionError) as caught:
        check_sink(sink, read=memory)
    assert WRONG[sink] in str(caught.value)


def test_a_sink_that_does_all_of_it() -> None:
    """Nothing is found, and all checks were run that fit it; without a reader those that need none."""
    Good.kept.clear()
    assert len(check_sink(Good, read=memory)) == ALL - 1
    assert len(check_sink(Good)) == 8
    assert len(check_sink(Good, leave_out=["it takes one of everything"])) == 7
    with pytest.raises(ValueError, match="no checks of this sink: \\['flies'\\]"):
        check_sink(Good, leave_out=["flies"])
