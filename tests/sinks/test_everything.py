"""Every scalar of every step and every row of every table, read back from each sink that keeps them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import polars as pl
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.forks import python
from tests.sinks.everything import best, chat, completions, scalars, windows
from tests.sinks.wandb_reader import read_runs

Rows = list[dict[str, Any]]
TABLES = {"samples": "train/samples", "best": "best", "chats": "chats"}


class Run(NamedTuple):
    """The run's folder, and what trackio said of it."""

    folder: Path
    trackio: Mapping[str, Any]
    printed: list[str]


class Read(NamedTuple):
    """What a sink has: scalars by step, rows by table."""

    scalars: dict[int, dict[str, float]]
    tables: dict[str, Rows]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run into all sinks, in a process of its own."""
    home = tmp_path_factory.mktemp("everything")
    environment = {"HOME": str(home), "HF_HOME": str(home / "hf"), "TRACKIO_DIR": "", "WANDB_SILENT": "true"}
    environment |= {"WANDB_CONSOLE": "off", "WANDB__DISABLE_STATS": "true"}
    for name in ("WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        environment[name] = str(home)
    code = "import sys; from pathlib import Path; from tests.sinks.everything import main; main(Path(sys.argv[1]))"
    *printed, found = python(code, str(home / "run"), env=environment).splitlines()
    return Run(home, json.loads(found), printed)


def parquet(rows: Callable[[Path], Rows]) -> Callable[[Run], Read]:
    """What a reader of parquet datasets finds."""

    def read(run: Run) -> Read:
        folder = run.folder / "run" / "parquet"
        found: dict[int, dict[str, float]] = {}
        for row in rows(folder / "scalars"):
            found.setdefault(row["step"], {})[row["name"]] = row["value"]
        return Read(found, {name: parsed(rows(folder / "tables" / name)) for name in TABLES})

    return read


def by_pandas(folder: Path) -> Rows:
    """Nullable types, as pandas has them for integers with nulls."""
    frame = pd.read_parquet(folder, dtype_backend="numpy_nullable").astype(object)
    rows: Rows = frame.where(frame.notna(), None).to_dict("records")
    return rows


def by_polars(folder: Path) -> Rows:
    return pl.read_parquet(folder).rows(named=True)


def jsonl(run: Run) -> Read:
    """What the standard library finds."""

    def lines(name: str) -> Rows:
        return [json.loads(line) for line in (run.folder / "run" / "jsonl" / name).read_text("utf-8").splitlines()]

    found = {line["step"]: line["scalars"] for line in lines("scalars.jsonl")}
    return Read(found, {name: lines(f"tables/{name}.jsonl") for name in TABLES})


def wandb(run: Run) -> Read:
    """A table whose columns grow goes on under further names."""
    (found,) = read_runs(run.folder)
    values = {
        row["_step"]: {key: value for key, value in row.items() if isinstance(value, float | int) and key[0] != "_"}
        for row in found.rows
    }
    tables = {
        name: parsed(found.table(shown) + found.table(f"{shown}_2") + found.table(f"{shown}_3"))
        for name, shown in TABLES.items()
    }
    assert len(found.rows) == len(windows())  # one call, so one row of history, for each log event
    return Read(values, tables)


def trackio(run: Run) -> Read:
    """Conversations are traces: their messages, and the other columns as metadata."""
    values = {
        log["step"]: {key: value for key, value in log.items() if isinstance(value, float | int) and key != "step"}
        for log in run.trackio["logs"]
    }
    tables = {
        name: [row for log in run.trackio["logs"] for row in log[TABLES[name]]["_value"]]
        for name in ("samples", "best")
    }
    traces = sorted(run.trackio["traces"], key=lambda trace: (trace["step"], trace["index"]))
    tables["chats"] = [{"chat": trace["messages"], **trace["metadata"]} for trace in traces]
    return Read(values, tables)


def parsed(rows: Rows) -> Rows:
    """Columns of JSON as what they say."""
    return [{**row, "chat": json.loads(row["chat"])} if "chat" in row else row for row in rows]


READERS = {
    "parquet, pandas": parquet(by_pandas), "parquet, polars": parquet(by_polars), "jsonl": jsonl, "wandb": wandb,
    "trackio": trackio,
}  # fmt: skip


def without(names: Iterable[str], rows: Rows) -> Rows:
    """Rows without what a sink adds, and without nulls: a column may be missing where it had not come yet."""
    return [{key: value for key, value in row.items() if key not in names and value is not None} for row in rows]


@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
def test_nothing_is_lost_doubled_or_changed(read: Callable[[Run], Read], run: Run) -> None:
    """Two tables and conversations in each log event lose no scalar; integers and texts are what they were."""
    found = read(run)
    assert found.scalars == {steps[-1]: scalars(steps) for steps in windows()}
    rows = [completions(step) for steps in windows() for step in steps]
    stamps = ("mode", "declog_step", "run_id", "group", "row", "why")
    assert without(stamps, found.tables["samples"]) == without((), [row for step in rows for row in step])
    assert without(stamps, found.tables["best"]) == without((), [row for step in rows for row in best(step)])
    assert without((*stamps, "step"), found.tables["chats"]) == [
        {"chat": chat(row["step"], place), "id": row["id"]} for step in rows for place, row in enumerate(step)
    ]


@pytest.mark.parametrize("rows", [by_pandas, by_polars])
def test_a_parquet_dataset_has_one_typed_schema(rows: Callable[[Path], Rows], run: Run) -> None:
    """A column that came later is there in the older rows too, as null."""
    folder = run.folder / "run" / "parquet" / "tables" / "samples"
    assert {name: str(type) for name, type in pl.read_parquet_schema(next(folder.rglob("*.parquet"))).items()} == {
        "step": "Int64", "mode": "String", "declog_step": "Int64", "row": "Int64", "id": "Int64", "score": "Float64",
        "ok": "Boolean", "text": "String", "reward/correct": "Float64", "reward/stil größe": "Float64", "late": "Int64",
        "run_id": "String",
    }  # fmt: skip
    found = rows(folder)
    assert [row["late"] for row in found] == [row["late"] for step in range(6) for row in completions(step)]
    assert all(list(row) == list(found[0]) for row in found)
    assert [row["declog_step"] for row in found] == [1] * 6 + [3] * 6 + [5] * 6


def test_tensorboard_has_every_scalar_and_every_row(run: Run) -> None:
    """Scalars as float32; tables are texts for reading, each row there with what identifies it."""
    found = EventAccumulator(str(run.folder / "run" / "tensorboard"), {"scalars": 0, "tensors": 0})
    found.Reload()
    values: dict[int, dict[str, float]] = {}
    for tag in found.Tags()["scalars"]:
        for item in found.Scalars(tag):
            values.setdefault(item.step, {})[tag] = item.value
    assert values == {steps[-1]: scalars(steps) for steps in windows()}
    for item, steps in zip(found.Tensors("train/samples"), windows(), strict=True):
        _, _, *lines = item.tensor_proto.string_val[0].decode().splitlines()
        ids = [row["id"] for step in steps for row in completions(step)]
        assert [int(line.split("|")[2]) for line in lines] == ids


def test_the_console_shows_a_card_for_each_table(run: Run) -> None:
    """At most as many rows as asked for, of the newest step, and how many there are."""
    assert [line for line in run.printed if line.endswith("rows")] == [
        line
        for _ in windows()
        for line in ("  train/samples: 1 of 6 rows", "  best: 1 of 4 rows", "  chats: 1 of 6 rows")
    ]
    assert [line for line in run.printed if line.startswith("        user")] == [
        f"        user      Frage {steps[-1]} 漢字" for steps in windows()
    ]
