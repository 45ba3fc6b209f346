"""The tensorboard sink, read back with tensorboard's own event accumulator."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from declog.records import Column, DType, Histogram, Records, Scalar, Table
from declog.sinks.tensorboard import TensorboardSink
from tests.sinks.samples import SURROGATE, event, python, run_info


def logged(folder: Path, *events: tuple[int, Records]) -> EventAccumulator:
    """What tensorboard finds after a sink wrote some log events."""
    sink = TensorboardSink()
    sink.open(run_info(folder, sink="board"))
    for step, records in events:
        sink.write(step, records)
    sink.close()
    found = EventAccumulator(str(folder / "board"))
    found.Reload()
    return found


def text(found: EventAccumulator, tag: str, place: int = -1) -> str:
    """The text of one event of a tag."""
    return str(found.Tensors(tag)[place].tensor_proto.string_val[0].decode())


def test_scalars_at_their_step_and_time(tmp_path: Path) -> None:
    """Values are float32; NaN stays NaN, what is beyond float32 is infinite."""
    found = logged(tmp_path, (0, event(0)), (5, event(5)))
    assert [(item.step, item.wall_time, item.value) for item in found.Scalars("reward")] == [
        (0, 1000.0, 0.0),
        (5, 1005.0, 2.5),
    ]
    last = {tag: found.Scalars(tag)[-1].value for tag in found.Tags()["scalars"]}
    assert math.isnan(last.pop("loss/größe"))
    assert last == {"reward": 2.5, "loss/inf": -math.inf, "tokens": 2.0**53, "huge": math.inf, "done": 1.0}


def test_a_double_beyond_float32_is_infinite(tmp_path: Path) -> None:
    """The format cannot hold it, and it must not stop the run."""
    found = logged(tmp_path, (0, Records(scalars=(Scalar("a", 1e300, "a"), Scalar("b", -1e300, "b")))))
    assert (found.Scalars("a")[0].value, found.Scalars("b")[0].value) == (math.inf, -math.inf)


def test_a_histogram_keeps_its_edges(tmp_path: Path) -> None:
    """Counts and edges are those given; min and max are the outer edges of the bins that hold something."""
    value = logged(tmp_path, (3, event(3))).Histograms("lengths")[0].histogram_value
    assert (list(value.bucket), list(value.bucket_limit)) == ([0.0, 2.0, 3.0], [1.0, 2.0, 4.0])
    assert (value.min, value.max, value.num, value.sum) == (1.0, 4.0, 5.0, 2 * 1.5 + 3 * 3.0)


def test_a_histogram_of_great_numbers_takes_nothing_with_it(tmp_path: Path) -> None:
    """The sum of their squares is infinite, and the scalars of the log event are there."""
    great = Histogram("h", [1, 1], [-1e300, 0.0, 1e300], "h")
    found = logged(tmp_path, (0, Records(scalars=(Scalar("x", 2.0, "x"),), histograms=(great,))))
    value = found.Histograms("h")[0].histogram_value
    assert (value.min, value.max, value.num, value.sum_squares) == (-1e300, 1e300, 2, math.inf)
    assert [item.value for item in found.Scalars("x")] == [2.0]


def test_an_empty_histogram_is_no_error(tmp_path: Path) -> None:
    """Nothing in any bin."""
    empty = Histogram("h", [0, 0], [0.0, 1.0, 2.0], "h")
    value = logged(tmp_path, (0, Records(histograms=(empty,)))).Histograms("h")[0].histogram_value
    assert (value.num, value.min, value.max) == (0.0, 0.0, 2.0)


def test_a_table_is_markdown(tmp_path: Path) -> None:
    """Pipes and line ends in a cell do not break the table; null is empty."""
    columns = (Column("n", DType.INT), Column("text", DType.TEXT), Column("extra", DType.OBJECT))
    data: dict[str, list[Any]] = {"n": [2**60, None], "text": ["a|b\nc", SURROGATE], "extra": [{"x": math.nan}, None]}
    found = logged(tmp_path, (0, Records(tables=(Table("t", "t", columns, data, 2),))))
    assert text(found, "t").splitlines() == [
        "| n | text | extra |",
        "| --- | --- | --- |",
        '| 1152921504606846976 | a\\|b<br>c | {"x":"NaN"} |',
        "|  | broken \\ud800 tail |  |",
    ]


def test_cells_are_complete(tmp_path: Path) -> None:
    """A long text is not cut: a schema's `max_chars` does that."""
    table = Table("t", "t", (Column("text", DType.TEXT),), {"text": ["x" * 50_001, "y" * 500]}, 2)
    found = logged(tmp_path, (0, Records(tables=(table,))))
    assert text(found, "t").splitlines()[2:] == [f"| {'x' * 50_001} |", f"| {'y' * 500} |"]


def test_alerts_and_the_config_are_texts(tmp_path: Path) -> None:
    """They are under the Text tab."""
    found = logged(tmp_path, (2, event(2)))
    assert text(found, "alerts/kl_runaway") == "**warn** KL 2 — zu groß"
    config = json.loads(text(found, "declog/config").removeprefix("```json\n").removesuffix("\n```"))
    assert (config["method"], config["declog"]["run_id"]) == ("grpo", "run-7")


@pytest.mark.parametrize("heavy", ["torch", "tensorflow"])
def test_it_does_not_import(tmp_path: Path, heavy: str) -> None:
    """The sink's thread may be left behind at exit, which a thread inside torch does not survive."""
    code = f"""
import sys
sys.modules[{heavy!r}] = None
from pathlib import Path
from declog.records import RunInfo, Records, Scalar
import importlib, types
sys.modules["declog"] = package = types.ModuleType("declog")
package.__path__ = ["declog"]
from declog.sinks.tensorboard import markdown, TensorboardSink
sink = TensorboardSink()
sink.open(RunInfo("n", "r", Path(sys.argv[1]), "f"))
sink.write(0, Records(scalars=(Scalar("a", 1.0, "a"),)))
sink.close()
print("fine")
"""
    assert python(code, str(tmp_path)) == "fine\n"
