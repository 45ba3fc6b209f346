"""The parquet sink, read back with pyarrow, pandas and polars, also after a kill -9."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from declog.errors import SinkError
from declog.records import Column, DType, Records, Scalar, Table
from declog.sinks.parquet import ParquetSink
from tests.sinks.samples import EXACT, SURROGATE, event, parts, run_info


def opened(folder: Path, **options: Any) -> ParquetSink:
    """A sink named `files` that writes below ``folder``."""
    sink = ParquetSink(**options)
    sink.open(run_info(folder, sink="files"))
    return sink


def written(folder: Path, *events: tuple[int, Records], **options: Any) -> Path:
    """The folder of a sink after it wrote some log events."""
    sink = opened(folder, **options)
    for step, records in events:
        sink.write(step, records)
    sink.close()
    return folder / "files"


def one_column(type_: DType, values: list[Any], name: str = "x") -> Records:
    """A log event with a table of one column."""
    return Records(tables=(Table("t", "t", (Column(name, type_),), {name: values}, len(values)),))


def test_scalars_in_pandas(tmp_path: Path) -> None:
    """One row per scalar, NaN as NaN, integers exact in a column of their own."""
    frame = pd.read_parquet(written(tmp_path, (7, event(7))) / "scalars")
    assert list(frame.columns) == ["step", "mode", "name", "metric", "value", "int_value", "partial", "time", "run_id"]
    assert frame["name"].tolist() == ["reward", "loss/größe", "loss/inf", "tokens", "huge", "done"]
    assert frame["metric"].tolist() == ["reward", "loss", "loss_inf", "tokens", "huge", "done"]
    assert frame["value"].tolist()[2:] == [-math.inf, float(EXACT + 7), math.inf, 1.0]
    assert (frame["value"][0], math.isnan(frame["value"][1])) == (3.5, True)
    assert frame["partial"].tolist() == [False] * 5 + [True]
    assert (frame["step"].unique().tolist(), frame["time"].unique().tolist()) == ([7], [1007.0])


def test_scalars_in_polars(tmp_path: Path) -> None:
    """Types are as documented; an integer that int64 cannot hold is null there and infinite as a float."""
    frame = pl.read_parquet(written(tmp_path, (7, event(7))) / "scalars")
    assert frame.schema["value"] == pl.Float64
    assert frame["int_value"].to_list() == [None, None, None, EXACT + 7, None, 1]


def test_tables_are_typed(tmp_path: Path) -> None:
    """Columns have the schema's types, nulls are nulls and NaN is NaN, text is text, json is a string of JSON."""
    table = pq.read_table(written(tmp_path, (1, event(1))) / "tables" / "completions")
    types = [pa.int64(), pa.string(), pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.string(), pa.string()]
    assert (table.column_names, table.schema.types) == (
        ["step", "mode", "id", "reward", "ok", "prompt", "extra", "run_id"],
        types,
    )
    data = table.to_pydict()
    assert data["id"] == [EXACT + 10, EXACT + 11, EXACT + 12]
    assert (data["reward"][0], math.isnan(data["reward"][1]), data["reward"][2]) == (1.5, True, None)
    assert data["ok"] == [True, None, False]
    assert data["prompt"] == ["größer 漢字\nzwei", "", None]
    assert data["extra"] == ['{"a":[1,"Infinity"]}', None, '"x"']


def test_histograms_and_alerts(tmp_path: Path) -> None:
    """Each is a dataset of its own."""
    folder = written(tmp_path, (2, event(2)))
    assert pl.read_parquet(folder / "histograms").to_dicts() == [
        {
            "step": 2,
            "mode": "train",
            "name": "lengths",
            "metric": "lengths",
            "counts": [0, 2, 3],
            "edges": [0.0, 1.0, 2.0, 4.0],
            "time": 1002.0,
            "run_id": "run-7",
        }
    ]
    assert pl.read_parquet(folder / "alerts").select("step", "name", "level", "text").to_dicts() == [
        {"step": 2, "name": "kl_runaway", "level": "warn", "text": "KL 2 — zu groß"}
    ]


def test_the_metadata_says_where_a_part_comes_from(tmp_path: Path) -> None:
    """The plan's fingerprint, the run and declog's version travel with the data, through merging too."""
    folder = written(tmp_path, *((step, event(step)) for step in range(3)), compact_every=2)
    expected = {b"declog.fingerprint": b"f00d", b"declog.run_id": b"run-7", b"declog.version": b"0.1.0"}
    found = [
        {key: value for key, value in pq.read_schema(part).metadata.items() if key.startswith(b"declog.")}
        for part in sorted((folder / "scalars").rglob("*.parquet"))
    ]
    assert found == [expected, expected]


def test_blocks_are_merged_and_the_dataset_stays_whole(tmp_path: Path) -> None:
    """Ten log events in blocks of four: two merged files, two single ones until the end, and every row once."""
    sink = opened(tmp_path, compact_every=4)
    for step in range(10):
        sink.write(step, event(step))
    folder = tmp_path / "files"
    merged = ["000000/part-000000-000003.parquet", "000001/part-000004-000007.parquet"]
    last = ["000002/part-000008.parquet", "000002/part-000009.parquet"]
    assert parts(folder / "scalars") == [*merged, *last]
    sink.close()
    assert parts(folder / "scalars") == [*merged, "000002/part-000008-000009.parquet"]
    assert pl.read_parquet(folder / "scalars").filter(name="tokens")["int_value"].to_list() == [
        EXACT + step for step in range(10)
    ]
    assert pd.read_parquet(folder / "tables" / "completions")["id"].tolist() == [
        EXACT + 10 * step + row for step in range(10) for row in range(3)
    ]


def test_a_block_ends_early_when_it_is_large(tmp_path: Path) -> None:
    """What is held for merging is bounded in bytes too, and no row minds."""
    texts = [chr(97 + step) * 12_000_000 for step in range(4)]
    folder = written(tmp_path, *((i, one_column(DType.TEXT, [text])) for i, text in enumerate(texts)))
    assert parts(folder / "tables" / "t") == ["000000/part-000000-000002.parquet", "000001/part-000003.parquet"]
    assert pd.read_parquet(folder / "tables" / "t")["x"].tolist() == texts


def test_what_a_crash_left_is_merged_in_pieces(tmp_path: Path) -> None:
    """The next run merges from the files, never holding more than a bounded part of them."""
    sink = opened(tmp_path, compact_every=100)
    texts = [chr(97 + step) * 10_000_000 for step in range(3)]
    for step, text in enumerate(texts):
        sink.write(step, one_column(DType.TEXT, [text]))
        shutil.copytree(tmp_path / "files" / "tables", tmp_path / "copy" / "files" / "tables", dirs_exist_ok=True)
    later = written(tmp_path / "copy", (3, one_column(DType.TEXT, ["d"])), (4, one_column(DType.TEXT, ["e"])))
    assert parts(later / "tables" / "t") == [
        "000000/part-000000-000002.parquet",
        "000001/part-000003-000004.parquet",
    ]
    assert pl.read_parquet(later / "tables" / "t")["x"].to_list() == [*texts, "d", "e"]


def test_nothing_is_left_in_the_scratch_folder(tmp_path: Path) -> None:
    """After a clean end there are only datasets."""
    folder = written(tmp_path, *((step, event(step)) for step in range(5)), compact_every=2)
    assert sorted(path.name for path in folder.iterdir()) == ["alerts", "histograms", "scalars", "tables"]


def test_a_resumed_run_continues_the_dataset(tmp_path: Path) -> None:
    """The second run's parts follow the first one's."""
    written(tmp_path, (0, event(0)), (1, event(1)))
    folder = written(tmp_path, (2, event(2)))
    assert pl.read_parquet(folder / "scalars").filter(name="tokens")["step"].to_list() == [0, 1, 2]
    # Each run has blocks of its own, and what an earlier one left is merged.
    assert parts(folder / "scalars") == ["000000/part-000000-000001.parquet", "000001/part-000002.parquet"]


def test_other_ranks_have_datasets_of_their_own(tmp_path: Path) -> None:
    """A rank writes where no other rank does."""
    sink = ParquetSink(dir="data")
    sink.open(run_info(tmp_path, rank=2))
    sink.write(5, event(5))
    sink.close()
    assert pl.read_parquet(tmp_path / "data" / "rank2" / "tables" / "completions").height == 3


def test_a_tables_own_step_column_is_kept(tmp_path: Path) -> None:
    """Where a schema has a step column, that is the one; the log event's step has a name of its own."""
    folder = written(tmp_path, (50, one_column(DType.INT, [41, 42], name="step")))
    assert pl.read_parquet(folder / "tables" / "t").to_dict(as_series=False) == {
        "step": [41, 42],
        "mode": ["train", "train"],
        "declog_step": [50, 50],
        "run_id": ["run-7", "run-7"],
    }


def test_a_float_column_takes_integers(tmp_path: Path) -> None:
    """A reward function may return 1 or 2**53 + 1 for a float."""
    folder = written(tmp_path, (0, one_column(DType.FLOAT, [1, EXACT, None, math.nan])))
    values = pq.read_table(folder / "tables" / "t")["x"].to_pylist()
    assert values[:3] == [1.0, float(EXACT), None]
    assert math.isnan(values[3])


def test_a_lone_surrogate_is_escaped(tmp_path: Path) -> None:
    """Arrow's strings are UTF-8, so what UTF-8 cannot hold is written as its escape, also in a name."""
    records = Records(scalars=(Scalar(SURROGATE, 1.0, "x"),), tables=one_column(DType.TEXT, [SURROGATE, None]).tables)
    folder = written(tmp_path, (0, records))
    assert pl.read_parquet(folder / "tables" / "t")["x"].to_list() == ["broken \\ud800 tail", None]
    assert pl.read_parquet(folder / "scalars")["name"].to_list() == ["broken \\ud800 tail"]


def test_a_new_column_is_null_in_the_rows_before_it(tmp_path: Path) -> None:
    """A table that gains a column, and one that later lacks it, stay one dataset for pandas and polars."""
    sink = opened(tmp_path, compact_every=2)
    for step in range(3):
        sink.write(step, one_column(DType.INT, [step], name="a"))
    wide = Table("t", "t", (Column("b", DType.TEXT), Column("a", DType.INT)), {"b": ["neu"], "a": [3]}, 1)
    sink.write(3, Records(tables=(wide,)))
    sink.write(4, one_column(DType.INT, [4], name="a"))
    sink.close()
    folder = tmp_path / "files" / "tables" / "t"
    assert pl.read_parquet(folder).select("a", "b").to_dict(as_series=False) == {
        "a": [0, 1, 2, 3, 4],
        "b": [None, None, None, "neu", None],
    }
    assert pd.read_parquet(folder)["b"].isna().tolist() == [True, True, True, False, True]
    assert len({str(pq.read_schema(part).remove_metadata()) for part in folder.rglob("*.parquet")}) == 1


def test_opening_finishes_an_interrupted_new_column(tmp_path: Path) -> None:
    """A process that died between two parts left them with different columns; the next run makes them one."""
    sink = opened(tmp_path / "killed")
    for step in range(4):
        sink.write(step, one_column(DType.INT, [step], name="a"))
    folder = tmp_path / "files"
    shutil.copytree(tmp_path / "killed" / "files" / "tables", folder / "tables")
    part = folder / "tables" / "t" / "000000" / "part-000002.parquet"
    table = pq.read_table(part)
    pq.write_table(table.append_column("b", pa.array(["x"])), part)
    opened(tmp_path).close()
    frame = pl.read_parquet(folder / "tables" / "t")
    assert frame.select("a", "b").to_dict(as_series=False) == {"a": [0, 1, 2, 3], "b": [None, None, "x", None]}


def test_a_column_that_changes_its_type_is_refused_for_that_write(tmp_path: Path) -> None:
    """The error names the column and both types; the other datasets and the next write are not affected."""
    sink = opened(tmp_path)
    sink.write(0, Records(scalars=event(0).scalars, tables=one_column(DType.INT, [1]).tables))
    with pytest.raises(SinkError, match=r"tables/t: .*column `x` of `t` is string, and was int64 before"):
        sink.write(1, Records(scalars=event(1).scalars, tables=one_column(DType.TEXT, ["one"]).tables))
    sink.write(2, Records(scalars=event(2).scalars, tables=one_column(DType.INT, [3]).tables))
    sink.close()
    folder = tmp_path / "files"
    assert pl.read_parquet(folder / "tables" / "t")["x"].to_list() == [1, 3]
    assert pl.read_parquet(folder / "scalars").filter(name="reward")["step"].to_list() == [0, 1, 2]


@pytest.mark.parametrize(
    ("type_", "value"), [(DType.INT, 2**63), (DType.INT, "seven"), (DType.BOOL, 3.5), (DType.TEXT, 7)]
)
def test_a_value_that_does_not_fit_is_an_error_with_its_column(tmp_path: Path, type_: DType, value: Any) -> None:
    """A broken contract costs that table's rows only, and says which column."""
    sink = opened(tmp_path)
    with pytest.raises(SinkError, match="column `x` does not fit"):
        sink.write(0, one_column(type_, [value]))
    sink.write(1, event(1))
    sink.close()
    assert pl.read_parquet(tmp_path / "files" / "scalars").height == 6


def test_rows_that_the_disk_refused_are_written_with_the_next_event(tmp_path: Path) -> None:
    """Nothing is lost or doubled by a disk that could not be written for a while, up to a block of log events."""
    sink = opened(tmp_path, compact_every=2)
    sink.write(0, event(0))
    scratch = tmp_path / "files" / ".scratch"
    scratch.rename(tmp_path / "away")
    for step in (1, 2, 3):
        with pytest.raises(SinkError, match=r"scalars: .*No such file"):
            sink.write(step, event(step))
    assert pl.read_parquet(tmp_path / "files" / "scalars").filter(name="reward")["step"].to_list() == [0]
    (tmp_path / "away").rename(scratch)
    sink.write(4, event(4))
    sink.close()
    # Two log events waited in memory; the third found no room, and its error said so.
    assert pl.read_parquet(tmp_path / "files" / "scalars").filter(name="reward")["step"].to_list() == [0, 1, 2, 4]


def test_close_writes_what_the_disk_refused(tmp_path: Path) -> None:
    """There may be no further log event."""
    sink = opened(tmp_path)
    sink.write(0, event(0))
    scratch = tmp_path / "files" / ".scratch"
    scratch.rename(tmp_path / "away")
    with pytest.raises(SinkError):
        sink.write(1, event(1))
    (tmp_path / "away").rename(scratch)
    sink.close()
    assert pl.read_parquet(tmp_path / "files" / "tables" / "completions").height == 6


def test_a_broken_part_is_named(tmp_path: Path) -> None:
    """A file that is no parquet file refuses the run with its path, before step 0."""
    folder = written(tmp_path, (0, event(0)))
    part = folder / "alerts" / "000000" / "part-000000.parquet"
    part.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(SinkError, match=r"alerts/000000/part-000000.parquet cannot be read") as caught:
        opened(tmp_path)
    assert (caught.value.code, caught.value.fix) == ("DL601", "move it out of the folder")
