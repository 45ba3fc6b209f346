"""``declog.read``: what the sinks wrote comes back, each thing once, of runs in every state that a disk may hold."""

from __future__ import annotations

import json
import math
import multiprocessing
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import declog
from declog.errors import SinkError, UsageError
from declog.records import Column, DType, Records, RunInfo, Scalar, Table
from declog.runs import guarded
from declog.runs.files import sources
from declog.sinks import Sink
from declog.sinks._parts import PartDataset
from declog.sinks._rows import schema
from declog.sinks.jsonl import JsonlSink
from declog.sinks.locks import alive
from declog.sinks.parquet import ParquetSink
from declog.testing import run_ranks
from tests import forks
from tests.running import profile
from tests.sinks.samples import EXACT, event, run_info, table

SINKS = ("parquet", "jsonl")
CARD = r"\d{16}"
PROFILE = profile(
    {"reward": {"axis": "completion"}, "text": {"axis": "completion", "type": "text"}},
    {"reward": "mean(reward)", "spread": {"expr": "reward", "reduce": "histogram(bins=2)"}},
    constants={"beta": 0.5, "limit": {"default": 7}},
    schemas={"s": {"reward": {"type": "float"}, "text": {"type": "text", "redact": {"card": CARD}}}},
    tables={"samples": {"schema": "s"}},
    alerts={"high": {"when": "reward > 2", "text": "reward is high", "level": "error"}},
    run={"strict": True, "config": {"lab": "größe"}},
    sinks=["parquet", "jsonl"],
)


def train(folder: Path, steps: range, reward: float, config: Any = PROFILE, **options: Any) -> Any:
    """A run of two completions a step; its recorder, closed."""
    with declog.start(config, output_dir=folder, **options) as log:
        for step in steps:
            with log.step(step):
                log.observe(reward=[reward + step, reward + step], text=[f"step {step}", "4111111111111111 größe"])
    return log


def written(folder: Path, *events: tuple[int, Records], sinks: tuple[Sink, ...], run: RunInfo | None = None) -> None:
    """Log events straight into sinks, in folders of their kinds' names."""
    for sink in sinks:
        sink.open(run or run_info(folder))
        for step, records in events:
            sink.write(step, records)
        sink.close()


def plain(rows: list[dict[str, Any]]) -> str:
    """Rows that hold NaN, to compare."""
    return json.dumps(rows, ensure_ascii=False)


# ---- what was written ----------------------------------------------------------------------------------


def test_both_sinks_are_read_alike(tmp_path: Path) -> None:
    """Every row of every kind, to the bit: NaN, infinities, integers beyond 2**53, truth values, nulls, objects."""
    written(tmp_path, *((step, event(step, mode=mode)) for step in range(2) for mode in ("train", "eval")),
            sinks=(JsonlSink(), ParquetSink()))  # fmt: skip
    one, other = (declog.read(tmp_path, sink=sink) for sink in SINKS)
    both = declog.read(tmp_path)
    for read in (one, other, both):
        assert read.problems == []
        assert [plain(list(frame)) for frame in (read.scalars, read.histograms, read.alerts)] == [
            plain(list(frame)) for frame in (one.scalars, one.histograms, one.alerts)
        ]
        assert read.scalars.arrow().schema == one.scalars.arrow().schema
        assert plain(list(read.tables["completions"])) == plain(list(one.tables["completions"]))
        assert read.modes == ["train", "eval"] and list(read.tables) == ["completions"]
    by_name = {row["name"]: row for row in one.scalars[6:12]}
    assert {row["mode"] for row in by_name.values()} == {"eval"} and by_name["tokens"]["int_value"] == EXACT
    assert math.isnan(by_name["loss/größe"]["value"]) and by_name["loss/größe"]["int_value"] is None
    assert (by_name["loss/inf"]["value"], by_name["huge"]["value"]) == (-math.inf, math.inf)
    assert (by_name["done"]["value"], by_name["done"]["int_value"], by_name["done"]["partial"]) == (1.0, 1, True)
    assert {name: row["metric"] for name, row in by_name.items()}["loss/inf"] == "loss_inf"
    assert one.histograms[0] == {
        "step": 0, "mode": "train", "name": "lengths", "metric": "lengths", "counts": [0, 2, 3],
        "edges": [0.0, 1.0, 2.0, 4.0], "time": 1000.0, "run_id": "run-7",
    }  # fmt: skip
    assert one.alerts[0]["text"] == "KL 0 — zu groß"
    rows = [{name: row[name] for name in table().data} for row in one.tables["completions"][:3]]
    made = table()
    assert plain(rows) == plain([{name: values[row] for name, values in made.data.items()} for row in range(3)])


def test_a_recorder_is_read_in_its_folder(tmp_path: Path) -> None:
    """An open one too, with its log events so far; the other ranks have no folder."""
    with declog.start(PROFILE, output_dir=tmp_path) as log:
        with log.step(0):
            log.observe(reward=[1.0, 2.0], text=["a", "b"])
        assert declog.read(log).wide().pandas()["reward"].to_list() == [1.5]
    assert declog.read(log, sink="jsonl").path == tmp_path
    elsewhere = SimpleNamespace(output_dir=None, closed=True, written=print)
    with pytest.raises(UsageError, match="read on rank 0"):
        declog.read(elsewhere)


def test_what_stands_for_a_run_is_read_as_its_recorder_is(tmp_path: Path) -> None:
    """A tee, a shadow, a writer, a callback, and a run that was read; what is none of it is answered with them."""
    options: dict[str, Any] = {"overrides": ["sinks=[jsonl]"], "output_dir": tmp_path / "tee"}
    logger, shadow = declog.tee(None, **options), declog.shadow(None, **options | {"output_dir": tmp_path / "shadow"})
    for stand_in in (logger, shadow):
        stand_in.log({"loss": 0.5}, 0)
        stand_in.close()
    assert declog.read(logger)["loss"].values == [0.5]
    assert declog.read(shadow).path == tmp_path / "shadow"
    assert declog.read(declog.read(logger)).path == tmp_path / "tee"
    callback = declog.callback()
    with pytest.raises(UsageError, match="this DeclogCallback has no recorder: its run has not begun"):
        declog.read(callback)
    callback.recorder = logger.recorder
    assert declog.read(callback).path == tmp_path / "tee"
    wrong: list[Any] = [3, None, {"sinks": []}, declog]
    for value in wrong:
        with pytest.raises(UsageError, match=f"or its recorder, and a {type(value).__name__} came\n  fix: the folder"):
            declog.read(value)


def test_a_name_without_scalars_is_answered_with_where_its_values_are(tmp_path: Path) -> None:
    """A histogram, an alert, a table, an output without a value, and a name that is nearly one."""
    metrics = {**PROFILE["metrics"], "best": {"expr": "reward", "where": "reward > 100"}}
    config = PROFILE | {"metrics": metrics, "alerts": {**PROFILE["alerts"], "low": "reward < 0"}}
    run = declog.read(train(tmp_path, range(2), 2.5, config))
    answers = {
        "spread": 'it is in `run.histograms`: [row for row in run.histograms if row["name"] == "spread"]',
        "high": 'it is in `run.alerts`: [row for row in run.alerts if row["name"] == "high"]',
        "samples": 'it is a table: run.tables["samples"].pandas()',
        "low": "it is an alert, and has not fired",
        "best": "no value of it was logged",
        "rewrad": "did you mean `reward`?",
    }
    for name, answer in answers.items():
        with pytest.raises(KeyError) as error:
            run[name]
        assert error.value.args == (f"{name}; {answer}",)
        if ": " in answer:
            assert len(eval(answer.partition(": ")[2], {"run": run}))


def test_a_table_into_which_nothing_was_written(tmp_path: Path) -> None:
    """It has its columns and no row; one that no file gets is none of the run's."""
    shown = {"schema": "s", "to": {"console": True}}
    tables = {"cheats": {"schema": "s", "filter": {"where": "reward > 100"}}, "shown": shown}
    config = PROFILE | {"tables": {**PROFILE["tables"], **tables}, "sinks": ["console", "mine"]}
    config["sink_options"] = {"mine": {"kind": "parquet"}}
    run = declog.read(train(tmp_path, range(1), 2.5, config))
    assert list(run.tables) == ["cheats", "samples"] and len(run.tables["samples"]) == 2
    assert run.tables["cheats"].columns == ["step", "mode", "reward", "text", "run_id"]
    assert run.tables["cheats"].pandas().dtypes["reward"] == "float64" and list(run.tables["cheats"]) == []
    with pytest.raises(KeyError, match="tables in files of this run: cheats, samples"):
        run.tables["shown"]


def test_arrow_pandas_and_polars(tmp_path: Path) -> None:
    """The same numbers in all three; objects of one shape are structs and lists, others texts of JSON."""
    columns = (Column("chat", DType.OBJECT), Column("tokens", DType.OBJECT), Column("mixed", DType.OBJECT))
    chat = [{"role": "user", "content": "größe"}]
    tokens = {"tokens": ["a", "NaN"], "logprob": [-0.5, math.nan], "kl": [math.inf, None]}
    data: dict[str, list[Any]] = {"chat": [chat, chat], "tokens": [tokens, tokens], "mixed": [{"a": 1}, "x"]}
    made = Records(scalars=(Scalar("a", 0.1, "a"),), tables=(Table("t", "t", columns, data, 2),))
    written(tmp_path, (3, made), sinks=(JsonlSink(), ParquetSink()))
    for sink in SINKS:
        read = declog.read(tmp_path, sink=sink)
        found = read.tables["t"].arrow()
        assert found["chat"].to_pylist() == [chat, chat] and pa.types.is_list(found.schema.field("chat").type)
        assert found.schema.field("tokens").type == pa.struct(
            {"tokens": pa.list_(pa.string()), "logprob": pa.list_(pa.float64()), "kl": pa.list_(pa.float64())}
        )
        assert (
            plain(found["tokens"].to_pylist())
            == plain([tokens, tokens])
            == plain([row["tokens"] for row in read.tables["t"]])
        )
        assert found["mixed"].to_pylist() == ['{"a":1}', '"x"']
        assert [row["mixed"] for row in read.tables["t"]] == [{"a": 1}, "x"]
        assert list(read.scalars.pandas()["value"]) == read.scalars.polars()["value"].to_list() == [0.1]
        assert read.tables["t"].polars()["tokens"].to_list()[0]["tokens"] == ["a", "NaN"]
        assert read.tables["t"].pandas()["chat"][0][0]["content"] == "größe"
        assert len(read.tables["t"]) == 2 and read.tables["t"].columns[:3] == ["step", "mode", "chat"]


def test_a_package_that_is_not_installed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pandas and polars are asked for by name, and what there is without them."""
    written(tmp_path, (0, event(0)), sinks=(JsonlSink(),))
    read = declog.read(tmp_path)
    for package in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(UsageError, match=rf"\[DL607\] `{package}` is not installed\n  fix: pip install {package}"):
            getattr(read.scalars, package)()
    assert len(read.scalars) == 6


def test_what_only_one_sink_has_is_there(tmp_path: Path) -> None:
    """Sinks of different profiles, turns and prefixes: every value once, in the order of steps."""
    slim = {
        **PROFILE,
        "sinks": ["parquet", "jsonl", "more"],
        "sink_options": {"parquet": {"every": 2}, "more": {"kind": "jsonl", "prefix": "p/"}},
    }
    train(tmp_path, range(3), 0.0, slim)
    read = declog.read(tmp_path)
    found = [(row["step"], row["value"]) for row in read.scalars if row["name"] == "reward"]
    assert found == [(0, 0.0), (1, 1.0), (2, 2.0)]
    assert [row["step"] for row in read.tables["samples"]] == [0, 0, 1, 1, 2, 2]
    assert [row["step"] for row in declog.read(tmp_path, sink="parquet").tables["samples"]] == [1, 1]
    assert "p/reward" in read.names()


def test_what_is_known_of_the_run(tmp_path: Path) -> None:
    """Its name, its profile as it ran, constants, what was redacted, how it ended, what its alerts said."""
    log = train(tmp_path / "run", range(3), 1.0)
    read = declog.read(str(tmp_path / "run"))
    assert (read.name, read.id, read.state, read.world_size) == ("small", log.run_id, "finished", 1)
    assert read.constants == {"beta": 0.5, "limit": 7} and read.config == {"lab": "größe"}
    assert read.redactions == {"s": {"text": ["card"]}} and read.failures == {} and len(read.segments) == 1
    assert {row["text"] for row in read.tables["samples"]} >= {"[card] größe", "step 0"}
    assert [(row["step"], row["level"], row["text"]) for row in read.alerts] == [(2, "error", "reward is high")]
    assert [sum(row["counts"]) for row in read.histograms] == [2, 2, 2]
    assert declog.read(tmp_path / "run" / "jsonl").id == log.run_id  # a sink's folder is of its run
    assert repr(read) == f"<run small {log.run_id} (finished) in {tmp_path / 'run'}>"


# ---- runs that go on, were cut off, or never began -------------------------------------------------------


def test_while_the_run_goes_on(tmp_path: Path) -> None:
    """What was logged so far; asked again, what came since."""
    with declog.start(PROFILE, output_dir=tmp_path) as log:
        assert list(declog.read(tmp_path).scalars) == []
        for step in range(2):
            with log.step(step):
                log.observe(reward=[1.0, 2.0], text=["a", "b"])
            log.state_dict()  # when it returns, what was logged is in the files
            read = declog.read(tmp_path)
            assert read.state == "running" and len(read.tables["samples"]) == 2 * (step + 1)
            assert {row["step"] for row in read.scalars} == set(range(step + 1))
    assert declog.read(tmp_path).state == "finished"


KILLED = """
import sys
from tests.runs.test_read import PROFILE
import declog
log = declog.start(PROFILE, output_dir=".")
with log.step(0):
    log.observe(reward=[1.0], text=["a"])
log.state_dict()
print("ready", flush=True)
sys.stdin.readline()
"""


def test_a_run_that_ends_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Class: two facts of two moments. What the folder says is read, then the run ends: it was never killed."""
    log = declog.start(PROFILE, output_dir=tmp_path)

    def ended(lock: Path) -> bool:
        log.close()
        return alive(lock)

    monkeypatch.setattr("declog.runs.folder.alive", ended)
    assert declog.read(tmp_path).state == "finished"


def test_a_killed_run_that_is_resumed_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody holds it, then somebody does: it goes on."""
    with declog.start(PROFILE, output_dir=tmp_path) as first:
        state = first.state_dict()
    facts = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(facts | {"state": "running", "ended": None}))
    assert declog.read(tmp_path).state == "killed"
    logs: list[declog.Recorder] = []

    def resumed(lock: Path) -> bool:
        held = alive(lock)
        logs.extend([] if logs else [declog.start(PROFILE, resume=state)])
        return held

    monkeypatch.setattr("declog.runs.folder.alive", resumed)
    assert declog.read(tmp_path).state == "running"
    logs[0].close()


def test_after_a_crash(tmp_path: Path) -> None:
    """A killed run says so; a line and a part that were cut off are left out and reported, and cost nothing else."""
    with forks.start(["-c", KILLED], cwd=tmp_path, talks=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert declog.read(tmp_path).state == "running"
        process.kill()
    before = declog.read(tmp_path)
    assert before.state == "killed" and before.problems == []
    lines = tmp_path / "jsonl" / "scalars.jsonl"
    with open(lines, "ab") as file:
        file.write(b'no json\n{"step": 1, "mode": "tr')
    part = tmp_path / "parquet" / "scalars" / "000000" / "part-000009.parquet"
    part.write_bytes(next(part.parent.iterdir()).read_bytes()[:-20])
    read = declog.read(tmp_path)
    assert plain(list(read.scalars)) == plain(list(before.scalars)) and len(read.scalars) > 0
    assert [problem.partition(" is left out")[0] for problem in read.problems] == [
        str(part), f"{lines}:2", f"{lines}:3",
    ]  # fmt: skip
    assert read.problems[2].endswith("it is cut off")


def test_parts_that_are_merged_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that has gone since the folder was listed is in the merged one: no row is missing, none is there twice."""
    written(tmp_path, *((step, event(step)) for step in range(5)), sinks=(ParquetSink(),))
    expected = plain(list(declog.read(tmp_path).scalars))
    real, seen = pq.ParquetFile, list[Path]()

    def merging(part: Path) -> Any:
        seen.append(part)
        if len(seen) == 3:  # what a writer does to a full block
            whole = pa.concat_tables([real(one).read() for one in sorted(part.parent.iterdir())])
            for one in part.parent.iterdir():
                one.unlink()
            pq.write_table(whole, part.parent / "part-000000-000004.parquet")
        return real(part)

    monkeypatch.setattr(pq, "ParquetFile", merging)
    read = declog.read(tmp_path)
    assert plain(list(read.scalars)) == expected and read.problems == []


def grown(folder: Path, ends: Any) -> None:
    """Write a dataset with merges; ``ends`` holds the count of its parts so far, and whether it is whole."""
    dataset = PartDataset(folder / "scalars", folder / ".scratch", metadata={}, compact_every=4)
    for step in range(60):
        row = {"step": step, "mode": "train", "name": "x", "value": float(step)}
        dataset.append(pa.Table.from_pylist([row], schema("scalars")))
        ends[0] = step + 1
    dataset.finish()
    ends[1] = 1


def test_a_run_that_grows_and_merges_while_it_is_read(tmp_path: Path) -> None:
    """Class: a listing is no snapshot. Each read has every row from before it, each once, and reports nothing."""
    context = multiprocessing.get_context("fork")
    ends = context.Array("i", 2)
    writer = context.Process(target=grown, args=(tmp_path, ends))
    writer.start()
    while not ends[1]:
        before, problems = ends[0], list[str]()
        rows = [one.read("scalars", problems.append) for one in sources(tmp_path)]
        steps = [step for table in rows if table is not None for step in table["step"].to_pylist()]
        assert steps == list(range(len(steps))) and len(steps) >= before and problems == []
    writer.join()


@pytest.mark.parametrize("hidden", ["000000", "000002"])
def test_a_block_that_is_merged_while_it_is_listed(
    hidden: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing of the old folder is empty when its parts are removed: the folder is listed again."""
    sink = ParquetSink(compact_every=2)
    written(tmp_path, *((step, event(step)) for step in range(5)), sinks=(sink,))
    read = declog.read(tmp_path)
    listed, seen = guarded.entries, list[Path]()

    def emptied(folder: Path, report: Any) -> list[Path]:
        seen.append(folder)
        return [] if folder.name == hidden and seen.count(folder) == 1 else listed(folder, report)

    monkeypatch.setattr("declog.runs.files.entries", emptied)
    assert [row["step"] for row in read.scalars if row["name"] == "tokens"] == [0, 1, 2, 3, 4]


def test_a_file_that_is_no_part_is_reported(tmp_path: Path) -> None:
    """Other files in a dataset's folders are left out, and the report says what to do with them."""
    written(tmp_path, (0, event(0)), sinks=(ParquetSink(),))
    strange = [tmp_path / "parquet" / "scalars" / name for name in ("000000/notes.txt", "copy.parquet")]
    for path in strange:
        path.write_text("")
    read = declog.read(tmp_path)
    assert len(read.scalars) > 0
    assert sorted(read.problems) == [
        f"{path} is left out: it is no part of the dataset; move it out of the dataset, of which pandas and polars read"
        " every file"
        for path in sorted(strange)
    ]


def test_an_empty_run(tmp_path: Path) -> None:
    """Frames without rows that have their columns."""
    train(tmp_path, range(0), 0.0)
    read = declog.read(tmp_path)
    assert [len(frame) for frame in (read.scalars, read.histograms, read.alerts)] == [0, 0, 0]
    assert read.scalars.pandas()["value"].dtype == "float64" and read.scalars.columns[0] == "step"
    assert read.tables["samples"].columns[2:4] == ["reward", "text"] and read.names() == read.modes == []
    (tmp_path / "plan.json").unlink()
    with pytest.raises(KeyError, match="there are no tables in files of this run here"):
        declog.read(tmp_path).tables["samples"]


def test_a_resumed_run(tmp_path: Path) -> None:
    """Steps that were logged again are there once, with what came last; both segments are known."""
    with declog.start(PROFILE, output_dir=tmp_path) as log:
        for step in range(3):
            with log.step(step):
                log.observe(reward=[1.0], text=["first"])
            if step == 0:
                state = log.state_dict()
    train(tmp_path, range(1, 4), 2.0, resume=state)
    for sink in (None, *SINKS):
        read = declog.read(tmp_path, sink=sink)
        found = [(row["step"], row["value"]) for row in read.scalars if row["name"] == "reward"]
        assert found == [(0, 1.0), (1, 3.0), (2, 4.0), (3, 5.0)]
        assert [row["text"] for row in read.tables["samples"]][:3] == ["first", "step 1", "[card] größe"]
        assert [one["state"] for one in read.segments] == ["finished", "finished"]


def test_runs_that_share_a_folder(tmp_path: Path) -> None:
    """The last one is read; another by its id; one that is not there is refused with those that are."""
    first = train(tmp_path, range(2), 1.0)
    second = train(tmp_path, range(2), 5.0, {**PROFILE, "run": {"append": True}})
    for sink in (None, *SINKS):
        for log, reward in ((first, 1.0), (second, 5.0)):
            read = declog.read(tmp_path, run_id=log.run_id, sink=sink)
            values = [row["value"] for row in read.scalars if row["name"] == "reward"]
            assert values == [reward, reward + 1] and len(read.tables["samples"]) == 4
    assert declog.read(tmp_path).id == second.run_id
    with pytest.raises(UsageError, match=rf"has no run x\n  fix: runs of this folder: {first.run_id}, {second.run_id}"):
        declog.read(tmp_path, run_id="x")


def test_ranks_that_write_tables_of_their_own(tmp_path: Path) -> None:
    """The rows of all of them, by step, each with its rank."""

    def rank(comm: Any) -> None:
        with declog.start(PROFILE, output_dir=tmp_path, comm=comm) as log:
            for step in range(2):
                with log.step(step):
                    log.observe(reward=[float(comm.rank)], text=[f"of {comm.rank}"])

    run_ranks(3, rank)
    for sink in (None, *SINKS):
        read = declog.read(tmp_path, sink=sink)
        found = [(row["step"], row["declog_rank"], row["text"]) for row in read.tables["samples"]]
        assert found == [(step, rank, f"of {rank}") for step in range(2) for rank in range(3)]
        assert read.world_size == 3 and len(read.scalars) == len(declog.read(tmp_path).scalars)


def test_a_table_that_grows_columns(tmp_path: Path) -> None:
    """They are null in the rows before; a `step` of the table's own stays its own, by the log event's."""
    columns = (Column("step", DType.INT), Column("x", DType.FLOAT))
    more = (*columns, Column("late", DType.TEXT))
    one = Table("t", "t", columns, {"step": [7, 8], "x": [1.0, math.nan]}, 2)
    two = Table("t", "t", more, {"step": [9, 10], "x": [None, math.inf], "late": ["a", None]}, 2)
    written(tmp_path, (0, Records(tables=(one,))), (1, Records(tables=(two,))), sinks=(JsonlSink(), ParquetSink()))
    expected = [
        {"step": step, "mode": "train", "declog_step": at, "x": x, "late": late, "run_id": "run-7"}
        for step, at, x, late in ((7, 0, 1.0, None), (8, 0, math.nan, None), (9, 1, None, "a"), (10, 1, math.inf, None))
    ]
    for sink in (None, *SINKS):
        assert [
            {name: row[name] for name in expected[0]} for row in declog.read(tmp_path, sink=sink).tables["t"]
        ].__repr__() == repr(expected)


# ---- what is no run -------------------------------------------------------------------------------------


def test_what_is_no_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing there, nothing in it, several runs below it, a sink that there is not, somebody else's `run.json`."""
    with pytest.raises(UsageError, match=r"\[DL607\] there is no run to read in .*/nothing"):
        declog.read(tmp_path / "nothing")
    with pytest.raises(UsageError, match="with a parquet or jsonl sink"):
        declog.read(tmp_path)
    runs = [train(tmp_path / name, range(1), 1.0).output_dir for name in ("b", "a")]
    with pytest.raises(UsageError, match=f"runs below it, the latest first: {runs[1]}, {runs[0]}"):
        declog.read(tmp_path)
    with pytest.raises(UsageError, match="sinks that wrote files: jsonl, parquet"):
        declog.read(tmp_path / "a", sink="wandb")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "run.json").write_text("{}")
    with pytest.raises(SinkError, match="DL609"):
        declog.read(tmp_path / "c")


def test_a_place_in_a_run_stands_for_it(tmp_path: Path) -> None:
    """A file of the run, a folder in it or in a sink of it, and one above it, where there is no other run."""
    home = train(tmp_path / "above" / "run", range(2), 1.0).output_dir
    assert home is not None
    (home / "notes").mkdir()
    both = {place: declog.read(place) for place in (home, home / "run.json", home / "notes", home.parent, tmp_path)}
    alone = {
        place: declog.read(place)
        for place in (home / "jsonl" / "scalars.jsonl", home / "parquet" / "scalars", home / "parquet" / "tables")
    }
    found = [*both.values(), *alone.values()]
    assert {read.path for read in found} == {home.resolve()}
    kinds = [sorted({one.kind for ranks in read._sinks for one in ranks}) for read in found]
    assert kinds == [*[["jsonl", "parquet"]] * 5, ["jsonl"], ["parquet"], ["parquet"]]
    expected = list(both[home].scalars)
    assert expected and all(len(read.scalars) == len(expected) for read in found)


def test_sinks_elsewhere_are_found(tmp_path: Path) -> None:
    """Below the run's folder, and where the profile's absolute `dir` is; files alone, without their run's folder."""
    away = {
        **PROFILE,
        "sinks": ["parquet", "jsonl"],
        "sink_options": {"parquet": {"dir": str(tmp_path / "away")}, "jsonl": {"dir": "logs/lines"}},
    }
    train(tmp_path / "run", range(2), 1.0, away)
    read = declog.read(tmp_path / "run")
    assert len(read.tables["samples"]) == 4 and read.problems == []
    assert declog.read(tmp_path / "run", sink="logs/lines").names() == read.names()
    alone = declog.read(tmp_path / "away")
    assert (alone.id, alone.name, alone.state, alone.segments) == (read.id, "away", "unknown", [])
    assert plain(list(alone.scalars)) == plain(list(read.scalars))


def test_numbers_of_lines_may_be_texts(tmp_path: Path) -> None:
    """The class: each number that JSON cannot say, also the time of a log event, is read from its text."""
    line = {"step": 0, "mode": "train", "time": "NaN", "run_id": "r"}
    lines = {
        "scalars": {**line, "scalars": {"x": "-Infinity"}},
        "histograms": {**line, "name": "h", "counts": [1], "edges": ["-Infinity", "Infinity"]},
        "alerts": {**line, "name": "a", "level": "warn", "text": "b"},
    }
    for name, one in lines.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(one) + "\n", encoding="utf-8")
    run = declog.read(tmp_path)
    assert run.scalars[0]["value"] == -math.inf
    assert run.histograms[0]["edges"] == [-math.inf, math.inf]
    times = [frame[0]["time"] for frame in (run.scalars, run.histograms, run.alerts)]
    assert all(map(math.isnan, times)) and run.problems == []


def test_a_run_is_a_collection_of_names(tmp_path: Path) -> None:
    """`in`, `list` and a wrong attribute of a run or of a series say where the values are."""
    with declog.start("minimal", ["sinks=[jsonl]"], output_dir=tmp_path / "run") as log, log.step(0):
        log.observe(reward=0.5)
    run = declog.read(log)
    name = next(name for name in run if name.startswith("reward"))
    assert name in run and "nosuch" not in run
    wrong: list[tuple[Any, str, str]] = [(run[name], "mean", "].values[-10:].mean()"), (run, "summary", "].values[-1]")]
    for value, attribute, answer in wrong:
        with pytest.raises(AttributeError, match=re.escape(answer)):
            getattr(value, attribute)


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_each_row_of_a_table_of_several_steps_has_its_log_event(kind: str, tmp_path: Path) -> None:
    """Class: log events some of which chose rows of their own step alone, beside others."""
    config = {
        "run": {"name": "steps"}, "sinks": [kind], "axes": {"group": 4}, "signals": {"any": {"reward": "completion"}},
        "schemas": {"s": {"reward": {}}},
        "tables": {"t": {"schema": "s", "filter": {"key": "reward", "top": 2}, "every": 2}},
    }  # fmt: skip
    with declog.start(config, output_dir=tmp_path / "run") as log:
        for step in range(6):
            with log.step(step):
                log.observe(reward=[row + (10.0 if step == 3 else step * 0.1) for row in range(4)])
    rows = declog.read(tmp_path / "run").tables["t"].pandas()
    assert list(zip(rows["step"], rows["declog_step"], strict=True)) == [(0, 1), (1, 1), (3, 3), (3, 3), (4, 5), (5, 5)]
    assert rows["declog_step"].dtype == "int64"
