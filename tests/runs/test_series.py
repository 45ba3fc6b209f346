"""What people want of a run that was read: one scalar, all beside each other, its prompts."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml

import declog
from declog.errors import UsageError
from declog.records import Records, Scalar
from declog.runs.series import logged_names, name_of, series_by_name
from declog.sinks.jsonl import JsonlSink
from tests.running import pairs, profile
from tests.sinks.samples import run_info


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven steps: a value of each, one of every second, NaN, and two evaluations."""
    folder = tmp_path_factory.mktemp("series") / "run"
    config = profile(
        {"x": {"axis": "step"}},
        {"x": "mean(x)", "slow": {"expr": "x", "reduce": "max", "every": 2},},
        modes={"train": {}, "eval": {"prefix": "eval/", "every": "end"}},
        sinks=["parquet", "jsonl"],
    )  # fmt: skip
    with declog.start(config, output_dir=folder) as log:
        for step in range(7):
            with log.step(step):
                log.observe(x=math.nan if step == 3 else step / 4)
            if step in (2, 5):
                with log.mode("eval"):
                    log.observe(x=float(10 * step))
    return folder


def test_a_scalar_is_its_steps_and_values(recorded: Path) -> None:
    """NaN as it is."""
    run = declog.read(recorded)
    x = run["x"]
    assert (x.name, x.mode, x.steps.tolist(), len(x)) == ("x", "train", list(range(7)), 7)
    np.testing.assert_array_equal(x.values, [0, 0.25, 0.5, math.nan, 1, 1.25, 1.5])
    assert pairs(run["slow"]) == [(1, 0.25), (3, 0.5), (5, 1.25), (6, 1.5)]
    assert (run["eval/x"].mode, pairs(run["eval/x"])) == ("eval", [(2, 20.0), (5, 50.0)])
    assert repr(run["eval/x"]) == "<eval/x: 2 values, steps 2 to 5, last 50>"
    series = run["x"].pandas()
    assert (series.name, series.index.name, series[6]) == ("x", "step", 1.5)


def test_an_index_counts_values(recorded: Path) -> None:
    """As of a list: from the end, too, and of slices and masks; numpy's functions take the values."""
    slow = declog.read(recorded)["slow"]
    assert (slow[0], slow[-1], slow[1:3].tolist(), slow[slow.steps > 4].tolist()) == (
        0.25,
        1.5,
        [0.5, 1.25],
        [1.25, 1.5],
    )
    assert (float(np.mean(slow)), np.asarray(slow, np.float32).dtype.name) == (0.875, "float32")
    with pytest.raises(IndexError):
        slow[4]


def test_an_iteration_is_over_values(recorded: Path) -> None:
    """Class: Python's own functions take pairs of a step and a value, and answer with the last step's."""
    slow = declog.read(recorded)["slow"]
    values = [0.25, 0.5, 1.25, 1.5]
    assert (list(slow), list(reversed(slow)), min(slow), max(slow), sum(slow)) == (values, values[::-1], 0.25, 1.5, 3.5)
    assert 1.25 in slow and 3 not in slow
    with pytest.raises(TypeError, match="unpack"):
        for _step, _value in slow:  # type: ignore[misc]
            pass


def test_a_name_that_was_never_logged_is_answered_with_the_nearest(recorded: Path) -> None:
    """As a mapping does, with a `KeyError`."""
    with pytest.raises(KeyError, match=r"slo; did you mean `slow`\?"):
        declog.read(recorded)["slo"]
    with pytest.raises(KeyError, match=r"loss/total; one of the scalars of this run: .*eval/x.*, slow, x"):
        declog.read(recorded)["loss/total"]


@pytest.mark.parametrize("mode", [None, "train", "eval"])
def test_all_scalars_stand_beside_each_other(mode: str | None, recorded: Path) -> None:
    """What pandas pivots of the long rows."""
    run = declog.read(recorded)
    wide = run.wide(mode)
    rows = run.scalars.pandas()
    rows = rows[~(rows["mode"] == "test")] if mode is None else rows[rows["mode"] == mode]
    expected = rows.pivot_table(index="step", columns="name", values="value", dropna=False, aggfunc="last")
    found = wide.pandas().set_index("step")
    assert wide.columns[0] == "step"
    names = [name for name in run.names() if name in expected.columns or name == "x"]
    assert [name for name in wide.columns[1:] if name in names] == [name for name in names if name in wide.columns]
    assert set(found.columns) == set(expected.columns)
    pd.testing.assert_frame_equal(
        found[sorted(found)].astype(float), expected[sorted(expected)].astype(float),
        check_names=False, check_index_type=False,
    )  # fmt: skip


def test_gaps_of_the_wide_table(recorded: Path) -> None:
    """A value that is NaN is none."""
    table = declog.read(recorded).wide().arrow()
    assert table["slow"].null_count == 7 - len(declog.read(recorded)["slow"])
    assert table["x"].null_count == 0
    assert math.isnan(table["x"].to_pylist()[3])


def test_no_pandas_is_needed(recorded: Path) -> None:
    """Series are numpy's, tables Arrow's; pandas is named where it is asked for."""
    code = f"""
import sys
class Without:
    def find_spec(self, name, *others):
        if name.partition(".")[0] == "pandas":
            raise ImportError(name)
sys.meta_path.insert(0, Without())
import declog.errors
run = declog.read({str(recorded)!r})
print(run["x"].values[1], run.wide()[1]["slow"])
try:
    run["x"].pandas()
except declog.errors.UsageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "0.25 0.25"
    assert "`pandas` is not installed" in done.stdout


def test_a_run_without_scalars_has_none(tmp_path: Path) -> None:
    """No rows and no names, and the error says so."""
    with declog.start(profile({"x": {"axis": "step"}}, {}, sinks=["jsonl"]), output_dir=tmp_path):
        pass
    run = declog.read(tmp_path)
    assert (len(run.wide()), run.wide().columns) == (0, ["step"])
    with pytest.raises(KeyError, match="there are no scalars of this run here"):
        run["x"]


def test_a_name_of_several_modes_is_that_of_training(tmp_path: Path) -> None:
    """Or else of the mode that came first; each mode has its own wide table."""
    sink = JsonlSink()
    sink.open(run_info(tmp_path))
    logged = (0, "test", "a", 1.0), (0, "train", "a", 2.0), (1, "test", "b", 3.0), (1, "eval", "b", 4.0)
    for step, mode, name, value in logged:
        sink.write(step, Records(mode, scalars=(Scalar(name, value, name),)))
    sink.close()
    run = declog.read(tmp_path)
    assert [(run[name].mode, pairs(run[name])) for name in "ab"] == [("train", [(0, 2.0)]), ("test", [(1, 3.0)])]
    assert list(run.wide()) == [{"step": 0, "a": 2.0, "b": None}, {"step": 1, "a": None, "b": 3.0}]
    assert list(run.wide("test")) == [{"step": 0, "a": 1.0, "b": None}, {"step": 1, "a": None, "b": 3.0}]
    assert list(run.wide("eval")) == [{"step": 1, "b": 4.0}]


def test_the_last_value_of_a_step_counts(tmp_path: Path) -> None:
    """Where one was logged twice, of any number of names and chunks."""
    sink = JsonlSink()
    sink.open(run_info(tmp_path))
    for step, value in ((0, 1.0), (1, 2.0), (1, 3.0), (2, 4)):
        sink.write(step, Records(scalars=(Scalar("a", value, "a"), Scalar("b", 2**60 + step, "b"))[: 2 - step // 2]))
    sink.close()
    run = declog.read(tmp_path)
    assert pairs(run["a"]) == [(0, 1.0), (1, 3.0), (2, 4.0)]
    assert pairs(run["b"]) == [(0, 2**60), (1, 2**60 + 1)]  # exactly
    assert run.wide().arrow()["b"].to_pylist() == [2**60, 2**60 + 1, None]
    table = run.scalars.arrow()
    pieces = pa.concat_tables([table.slice(place, 1) for place in range(len(table))])
    assert [pairs(one) for one in series_by_name(pieces).values()] == [pairs(run["a"]), pairs(run["b"])]


def samples(folder: Path) -> Path:
    """A run of two prompts, as conversations, over four steps; one is solved at step 2."""
    signals = {"prompt": {"axis": "completion", "type": "object"}, "reward": {"axis": "completion"}}
    config = profile(
        signals, {}, schemas={"s": {"prompt": "object", "reward": {}}, "n": {"prompt": "object"}},
        tables={"a": {"schema": "n"}, "t": {"schema": "s"}}, sinks=["parquet"],
    )  # fmt: skip
    with declog.start(config, output_dir=folder) as log:
        for step in range(4):
            with log.step(step):
                asked = [
                    [{"role": "system", "content": "be brief"}, {"role": "user", "content": text}] for text in "pq"
                ]
                log.observe(prompt=asked, reward=[float(step >= 2), math.nan if step == 0 else step / 8])
    return folder


def test_prompts_say_how_they_went(tmp_path: Path) -> None:
    """By what the user said; attempts without a score count, and are not solved. The never solved first."""
    run = declog.read(samples(tmp_path / "run"))
    assert list(run.prompts()) == [
        {
            "prompt": "q", "attempts": 4, "mean": pytest.approx(0.25), "best": 0.375, "solved": 0.0,
            "first_solved": None, "trend": pytest.approx(0.3125 - 0.125), "first_step": 0, "last_step": 3,
        },
        {
            "prompt": "p", "attempts": 4, "mean": 0.5, "best": 1.0, "solved": 0.5, "first_solved": 2,
            "trend": 1.0, "first_step": 0, "last_step": 3,
        },
    ]  # fmt: skip
    assert [row["solved"] for row in run.prompts("t", solved=0.25)] == [0.5, 0.5]
    assert run.prompts("t", by="row", solved=1)[0]["solved"] == 0
    assert str(run.prompts().arrow().schema.field("first_solved").type) == "int64"
    with pytest.raises(UsageError, match="the table `a` lacks a column of prompts"):
        run.prompts("a")
    with pytest.raises(UsageError, match="no table of the run has a column of prompts and one of scores"):
        run.prompts(by="rewrd")


def test_words_of_a_data_frame(recorded: Path) -> None:
    """Rows are a sequence of dicts; asked as a frame of pandas or polars, they say what gives one."""
    wide: Any = declog.read(recorded).wide()
    asked: dict[str, tuple[type[Exception], Callable[[], object]]] = {
        r"FRAME\.pandas\(\)\['x'\]": (TypeError, lambda: wide["x"]),
        r"FRAME\.pandas\(\)\['slow'\]": (AttributeError, lambda: wide.slow),
        r"FRAME\.pandas\(\) is a pandas\.DataFrame": (AttributeError, lambda: wide.head()),
        r"it is FRAME\.pandas\(\)": (AttributeError, lambda: wide.to_pandas()),
    }
    for fix, (error, ask) in asked.items():
        with pytest.raises(error, match=f"fix: {fix}"):
            ask()
    rows = list(wide)
    assert repr([wide[0], wide[-1]]) == repr([rows[0], rows[-1]])  # they hold NaN
    assert repr([wide[1:], wide[::-1]]) == repr([rows[1:], rows[::-1]])
    assert wide[5:2] == [] and rows[0] in wide
    with pytest.raises(IndexError):
        wide[len(rows)]
    assert not hasattr(wide, "__array__") and len(copy.copy(wide)) == len(wide)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([("train", "a", "x"), ("train", "a", "x")], "x"),
        ([("train", "a", "x"), ("train", "a", "y")], None),
        ([("eval", "a", "e/x"), ("train", "a", "x"), ("eval", "a", "e/y")], "x"),
        ([("eval", "a", "e/x"), ("test", "a", "t/x"), ("test", "a", "t/y")], "e/x"),
        ([("train", "b", "x"), ("train", None, "a")], None),
        ([], None),
    ],
)
def test_the_name_of_an_id(rows: list[tuple[str, str | None, str]], expected: str | None) -> None:
    """In training, or else in the mode that came first; None if it has no name there, or several."""
    columns = zip(*rows, strict=True) if rows else ([], [], [])
    table = pa.table({
        key: pa.array(list(column), pa.string())
        for key, column in zip(("mode", "metric", "name"), columns, strict=True)
    })  # fmt: skip
    assert name_of(logged_names(table), "a") == expected
    assert name_of(logged_names(table), 3) is None


def test_a_config_that_is_read_is_plain_data(recorded: Path) -> None:
    """YAML, JSON and the next start take it."""
    config = declog.read(recorded).declog
    assert [type(config), yaml.safe_load(yaml.safe_dump(config)), json.loads(json.dumps(config))] == [
        dict,
        config,
        config,
    ]
    assert declog.plan(config).outputs
