"""The accelerate sink on trackers that are named: tensorboard's, and one that a project registers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from accelerate import PartialState, tracking
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from declog.errors import SinkError
from declog.records import Alert, Column, DType, Records, Scalar, Table
from declog.runtime.values.extras import plain_value
from declog.sinks.accelerate import AccelerateSink, open_trackers
from tests.sinks.samples import event, run_info
from tests.sinks.test_images import drawn


class Own(tracking.GeneralTracker):  # type: ignore[misc]  # accelerate is not typed here
    """A tracker as accelerate's documentation shows one: it has `log` and no more."""

    name = "own"
    requires_logging_directory = True
    made: ClassVar[list[Own]] = []

    def __init__(self, run_name: str, logging_dir: str, **settings: Any) -> None:
        super().__init__()
        self.place = (run_name, logging_dir, settings)
        self.logged: list[Any] = []
        Own.made.append(self)

    @property
    def tracker(self) -> Any:
        return self.logged

    def store_init_configuration(self, values: dict[str, Any]) -> None: ...

    @tracking.on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        if "bad" in values:
            raise ValueError("it takes no such value")
        self.logged.append((step, values))

    @tracking.on_main_process
    def finish(self) -> None:
        self.logged.append("finished")


class Whole(Own):
    """One that shows tables and images, too."""

    name = "whole"

    def log_table(self, table_name: str, columns: Any, data: Any, step: int | None = None, **kwargs: Any) -> None:
        self.logged.append((step, table_name, columns, data))

    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.logged.append((step, {name: [image.shape for image in images] for name, images in values.items()}))


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """accelerate knows the two, and has its state, for this test."""
    PartialState(cpu=True)
    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "own", Own)
    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "whole", Whole)
    yield
    Own.made.clear()
    PartialState._reset_state()


PICTURES = Table("t", "t", (Column("a", DType.OBJECT), Column("b", DType.INT)), {
    "a": [plain_value(drawn()), {"x": 1}], "b": [1, None]}, 2)  # fmt: skip
RECORDS = Records(scalars=(Scalar("loss", 0.5, "loss"),), tables=(PICTURES,), alerts=(Alert("high", "warn", "too"),))


def written(folder: Path, records: Records = RECORDS, **options: Any) -> None:
    sink = AccelerateSink(**options)
    sink.open(run_info(folder))
    try:
        sink.write(3, records)
    finally:
        sink.close()


def test_trackers_that_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each is made as an Accelerator makes it, gets what it has a method for, and is finished."""
    with caplog.at_level(logging.WARNING):
        written(tmp_path, trackers=["own", "whole"], project="mine", settings={"own": {"x": 1}})
    own, whole = Own.made
    assert own.place == ("mine", str(tmp_path / "accelerate"), {"x": 1})
    assert own.logged == [(3, {"loss": 0.5}), "finished"]
    rows = [['{"type":"image","width":20,"height":10}', 1], ['{"x":1}', None]]
    assert whole.logged == [
        (3, {"loss": 0.5}),
        (3, "t", ["a", "b"], rows),
        (3, {"t/a": [(10, 20, 3)]}),
        "finished",
    ]
    assert [record.getMessage() for record in caplog.records if record.name == "declog"] == [
        "the tracker `own` shows no tables: `t` is not there",
        "the tracker `own` shows no images: `t/a` is not there",
    ]


def test_tensorboard(tmp_path: Path) -> None:
    """Scalars, tables and alerts as texts, images; where another tracker fails it has all of them."""
    bad = Records(scalars=(Scalar("bad", 1.5, "bad"),), tables=RECORDS.tables, alerts=RECORDS.alerts)
    with pytest.raises(ValueError, match="no such value"):
        written(tmp_path, bad, trackers=["own", "tensorboard"], dir="board")
    found = EventAccumulator(str(tmp_path / "board" / "grpo"))
    found.Reload()
    assert [(each.step, each.value) for each in found.Scalars("bad")] == [(3, 1.5)]
    assert found.Tags()["tensors"] == ["t/text_summary", "alerts/high/text_summary"]
    assert [(each.step, each.width, each.height) for each in found.Images("t/a/0")] == [(3, 20, 10)]


def test_every_kind_of_record(tmp_path: Path) -> None:
    """NaN, infinities, integers beyond 64 bits and text that is not ASCII end nothing."""
    written(tmp_path, event(0), trackers=["tensorboard", "whole"])
    assert Own.made[0].logged[0][1]["tokens"] == 2.0**53


def test_trackers_that_an_accelerator_has_open(tmp_path: Path) -> None:
    """They are taken where the sink is made, and left open; declog's own is not among them."""
    open_one = Own("p", "q")
    open_one.main_process_only = False
    declogs = Own("p", "q")
    declogs.name = "declog"
    with open_trackers([open_one, declogs]):
        sink = AccelerateSink()
    sink.open(run_info(tmp_path))
    sink.write(1, RECORDS)
    sink.close()
    assert (open_one.logged, declogs.logged) == ([(1, {"loss": 0.5})], [])


def test_what_is_refused(tmp_path: Path) -> None:
    """A name that accelerate does not know, settings of a tracker that is not named, and no trackers at all."""
    with pytest.raises(SinkError, match="accelerate knows no tracker `tensorbord`") as caught:
        AccelerateSink(trackers=["tensorbord"])
    assert caught.value.fix == "did you mean `tensorboard`?"
    with pytest.raises(SinkError, match="`settings` has `wandb`, which `trackers` does not name"):
        AccelerateSink(trackers=["own"], settings={"wandb": {}})
    with pytest.raises(SinkError, match="no Accelerator has given its trackers"):
        AccelerateSink().open(run_info(tmp_path))
    PartialState._reset_state()
    with pytest.raises(SinkError, match="accelerate's trackers need its state"):
        AccelerateSink(trackers=["own"])
