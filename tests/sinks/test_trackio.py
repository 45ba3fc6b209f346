"""The trackio sink, read back through trackio's own API in the process that wrote it.

trackio decides where its data is when it is imported, so each test has an interpreter of its own.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.forks import python
from tests.sinks.samples import EXACT

WRITE = """
import json, sys
from pathlib import Path
from declog.records import Records, ResumePoint, Scalar
from declog.sinks import make_sink
from declog.sinks.runner import SinkRunner
from tests.sinks.samples import event, run_info, table

def write(events, **options):
    runner = SinkRunner("dash", make_sink("trackio", options))
    runner.open(run_info(Path(sys.argv[1])))
    for step, records in events:
        runner.submit(step, records)
    report = runner.close(30)
    assert (report.failed, report.finished) == (0, True), report
"""
READ = """
import trackio
from trackio.sqlite_storage import SQLiteStorage

def runs(project):
    return [
        {
            "name": run.name,
            "config": run.config,
            "logs": SQLiteStorage.get_logs(project, run.name, run_id=run.id),
            "alerts": run.alerts(),
            "system": SQLiteStorage.get_system_logs(project, run.name, run_id=run.id),
        }
        for run in trackio.Api().runs(project)
    ]
"""


def trackio_run(folder: Path, code: str, **env: str) -> Any:
    """What the last line that the code prints says, as JSON."""
    home = {"HOME": str(folder), "HF_HOME": str(folder / "hf"), "TRACKIO_DIR": "", **env}
    return json.loads(python(WRITE + code, str(folder / "out"), env=home).splitlines()[-1])


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What trackio holds of a run with two log events, in a database below the run's folder."""
    folder = tmp_path_factory.mktemp("trackio")
    code = 'write([(0, event(0)), (5, event(5, mode="eval"))], dir="board")\n'
    (run,) = trackio_run(folder, code + READ + 'print(json.dumps(runs("grpo")))')
    assert (folder / "out" / "board" / "grpo.db").exists()
    return run


def test_everything_arrives_at_its_step(board: Any) -> None:
    """Scalars, a histogram, a table and the alerts; NaN, infinities and large integers as they are."""
    assert board["name"] == "run-7"
    assert [log["step"] for log in board["logs"]] == [0, 5]
    log = board["logs"][1]
    assert (log["reward"], log["tokens"], log["done"]) == (2.5, EXACT + 5, True)
    assert math.isnan(log["loss/größe"])
    assert (log["loss/inf"], log["huge"]) == (-math.inf, math.inf)
    assert log["lengths"] == {"_type": "trackio.histogram", "bins": [0.0, 1.0, 2.0, 4.0], "values": [0, 2, 3]}
    assert log["completions"]["_value"] == [
        {"id": EXACT + 50, "reward": 1.5, "ok": True, "prompt": "größer 漢字\nzwei", "extra": '{"a":[1,"Infinity"]}'},
        {"id": EXACT + 51, "reward": "NaN", "ok": None, "prompt": "", "extra": None},
        {"id": EXACT + 52, "reward": None, "ok": False, "prompt": None, "extra": '"x"'},
    ]
    assert [(alert["step"], alert["title"], alert["level"], alert["text"]) for alert in board["alerts"]] == [
        (5, "kl_runaway", "warn", "KL 5 — zu groß"),
        (0, "kl_runaway", "warn", "KL 0 — zu groß"),
    ]


def test_trackios_own_monitors_are_off(board: Any) -> None:
    """Nothing is recorded that nobody asked for."""
    assert board["system"] == []


def test_the_run_config_is_the_profiles_and_declogs_own(board: Any) -> None:
    """Metadata is config, never a series; declog's part is below one key."""
    assert {key: value for key, value in board["config"].items() if not key.startswith("_")} == {
        "method": "grpo",
        "größe": 7,
        "declog": {
            "name": "grpo",
            "run_id": "run-7",
            "fingerprint": "f00d",
            "version": "0.1.0",
            "world_size": 1,
            "config": {"profile": "full", "metrics": {"reward": {"reduce": ["mean"]}}},
        },
    }


def test_project_and_name_are_options(tmp_path: Path) -> None:
    """They decide where the dashboard shows the run."""
    found = trackio_run(
        tmp_path,
        'write([(0, event(0))], dir="board", project="team", name="first", group="g")\n'
        + READ
        + 'print(json.dumps([(run["name"], run["config"]["_Group"]) for run in runs("team")]))',
    )
    assert found == [["first", "g"]]


def test_a_resumed_run_continues_its_series(tmp_path: Path) -> None:
    """The same run id is the same run; a name that somebody chose starts a run of its own each time."""
    found = trackio_run(
        tmp_path,
        """
for name in (None, "chosen"):
    for step in (0, 1):
        write([(step, event(step))], dir="board", name=name)
"""
        + READ
        + 'print(json.dumps([(r["name"], [log["step"] for log in r["logs"]]) for r in runs("grpo")]))',
    )
    assert sorted(found) == [["chosen", [0]], ["chosen", [1]], ["run-7", [0, 1]]]


def test_a_rewound_run_has_every_step_once(tmp_path: Path) -> None:
    """Metrics and alerts of the steps that come again are deleted before; other runs of the project stay."""
    found = trackio_run(
        tmp_path,
        """
write([(step, event(step)) for step in range(4)], dir="board")
write([(step, event(step)) for step in range(4)], dir="board", name="other")
for _ in range(2):
    runner = SinkRunner("dash", make_sink("trackio", {"dir": "board"}))
    runner.open(run_info(Path(sys.argv[1])))
    assert runner.rewind(ResumePoint(1), 30)
    for step in (2, 3, 4):
        runner.submit(step, event(step))
    runner.close(30)
fresh = SinkRunner("dash", make_sink("trackio", {"dir": "board", "project": "nobody"}))
fresh.open(run_info(Path(sys.argv[1])))
assert fresh.rewind(ResumePoint(1), 30)
fresh.close(30)
"""
        + READ
        + """
print(json.dumps({
    run["name"]: [[log["step"] for log in run["logs"]], sorted(alert["step"] for alert in run["alerts"])]
    for run in runs("grpo")
}))
""",
    )
    assert found == {"run-7": [[0, 1, 2, 3, 4]] * 2, "other": [[0, 1, 2, 3]] * 2}


def test_a_run_that_resumes_from_its_state_is_one_run(tmp_path: Path) -> None:
    """The run's id goes on with the state, so trackio has one run, with every step once, also amid a window."""
    found = trackio_run(
        tmp_path,
        """
import declog
from tests.running import profile
made = profile({"loss": {"axis": "step"}}, {"loss": "sum(loss)"}, sinks=["trackio"],
sink_options={"trackio": {"dir": "board"}}, every=2)

def train(log, steps):
    for step in steps:
        with log.step(step):
            log.observe(loss=float(step))

with declog.start(made, output_dir=sys.argv[1]) as log:
    train(log, range(3))
    state, first = log.state_dict(), log.run_id
    train(log, range(3, 7))
with declog.start(made, resume=state) as log:
    assert log.run_id == first
    train(log, range(3, 8))
"""
        + READ
        + """
print(json.dumps([[[log["step"], log["loss"]] for log in run["logs"]] for run in runs("small")]))
""",
    )
    assert found == [[[1, 1], [3, 5], [5, 9], [7, 13]]]


def test_it_is_quiet_on_stdout_and_leaves_stdout_to_others(tmp_path: Path) -> None:
    """trackio's own prints do not appear, those of other threads meanwhile do, and stdout is what it was."""
    found = trackio_run(
        tmp_path,
        """
import io, threading
sys.stdout = mine = io.StringIO()
stop = threading.Event()
def chatter():
    while not stop.is_set():
        print("chatter")
thread = threading.Thread(target=chatter)
thread.start()
write([(step, event(step)) for step in range(3)], dir="board")
stop.set()
thread.join()
same = sys.stdout is mine
sys.stdout = sys.__stdout__
print(json.dumps([same, sorted(set(mine.getvalue().split()))]))
""",
    )
    assert found == [True, ["chatter"]]


def test_another_import_before_with_another_place_is_an_error(tmp_path: Path) -> None:
    """trackio reads its place once; where declog comes too late it says so instead of writing elsewhere."""
    found = trackio_run(
        tmp_path,
        """
import trackio
from declog.errors import SinkError
try:
    write([], dir="board")
except SinkError as error:
    print(json.dumps([error.code, str(error)]))
""",
    )
    assert found[0] == "DL601"
    assert f"keeps its data in {tmp_path / 'hf' / 'trackio'}, not in {tmp_path / 'out' / 'board'}" in found[1]


def test_the_same_place_again_is_fine_and_the_environment_is_as_before(tmp_path: Path) -> None:
    """A second run in one process uses the same folder; TRACKIO_DIR is not left changed."""
    place = str(tmp_path / "elsewhere")
    found = trackio_run(
        tmp_path,
        f"""
import os
for step in (0, 1):
    write([(step, event(step))], dir={place!r})
"""
        + READ
        + 'print(json.dumps([len(runs("grpo")[0]["logs"]), os.environ["TRACKIO_DIR"]]))',
    )
    assert found == [2, ""]


@pytest.mark.parametrize("variable", ["TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"])
def test_it_refuses_to_log_to_somewhere_else(tmp_path: Path, variable: str) -> None:
    """The sink is local: an environment that would send data away is an error, not a surprise."""
    found = trackio_run(
        tmp_path,
        """
from declog.errors import SinkError
try:
    write([], dir="board")
except SinkError as error:
    print(json.dumps(error.fix))
""",
        **{variable: "https://example.com/space"},
    )
    assert found == f"unset {variable}"


def test_conversations_are_traces(tmp_path: Path) -> None:
    """With `as: trace`: the messages of a row in the order of its columns, its other columns as metadata, exactly."""
    found = trackio_run(
        tmp_path,
        """
from declog.records import Column, Table
columns = tuple(Column(n, t) for n, t in
    {"prompt": "object", "reward": "float", "id": "int", "completion": "object", "note": "object"}.items())
call = {"function": {"name": "add", "arguments": {"x": 2**70}}}
data = {
    "prompt": [[{"role": "user", "content": "größer 漢字?"}], None],
    "reward": [float("nan"), None],
    "id": [2**53 + 1, -(2**80)],
    "completion": [[{"role": "assistant", "content": "\\ud800", "tool_calls": [call]},
        {"role": "tool", "content": "ja"}], "x"],
    "note": [{"a": [float("inf")]}, None],
}
trace = Table("chats", "c", columns, data, 2, as_trace=True)
scalars = tuple(Scalar(f"s{n}", n, "s") for n in range(5))
write([(step, Records(scalars=scalars, tables=(trace, table()))) for step in (3, 4)], dir="board")
from trackio.sqlite_storage import SQLiteStorage
traces = SQLiteStorage.get_traces("grpo", "run-7", sort="step_asc")
"""
        + READ
        + """
logs = [[log[f"s{n}"] for n in range(5)] + [len(log["completions"]["_value"])] for log in runs("grpo")[0]["logs"]]
print(json.dumps([logs, [[t["step"], t["key"], t["messages"], t["metadata"]] for t in traces]]))
""",
    )
    assert found[0] == [[0, 1, 2, 3, 4, 3]] * 2
    call = {"function": {"name": "add", "arguments": {"x": str(2**70)}}}
    talk = [
        {"role": "user", "content": "größer 漢字?"},
        {"role": "assistant", "content": "\\ud800", "tool_calls": [call]},
        {"role": "tool", "content": "ja"},
    ]
    assert [[step, key] for step, key, _, _ in found[1]] == [[step, "chats"] for step in (3, 3, 4, 4)]
    for (_, _, messages, metadata), (_, _, none, other) in zip(found[1][::2], found[1][1::2], strict=True):
        assert (messages, none) == (talk, [])
        assert math.isnan(metadata.pop("reward"))
        assert metadata == {"status": "nan", "id": EXACT, "note": {"a": ["Infinity"]}}
        assert other == {"prompt": None, "reward": None, "id": str(-(2**80)), "completion": "x", "note": None}


def test_text_that_utf8_cannot_hold_costs_nothing_else(tmp_path: Path) -> None:
    """trackio drops a whole value that it cannot serialise; a lone surrogate is escaped before."""
    found = trackio_run(
        tmp_path,
        """
from tests.sinks.samples import SURROGATE
odd = table()
odd = type(odd)(odd.name, odd.table, odd.columns, {**odd.data, "prompt": [SURROGATE] * 3}, 3)
write([(0, Records(scalars=(Scalar("a", 1.0, "a"), Scalar(SURROGATE, 2.0, "b")), tables=(odd,)))], dir="board")
"""
        + READ
        + """
log = runs("grpo")[0]["logs"][0]
print(json.dumps([log["a"], log["broken \\\\ud800 tail"], log["completions"]["_value"][0]["prompt"]]))
""",
    )
    assert found == [1.0, 2.0, "broken \\ud800 tail"]


PICKED = """
from dataclasses import replace
from declog.records import Column, DType, Places, Table
columns = (Column("prompt", DType.TEXT), Column("completion", DType.TEXT), Column("reward", DType.FLOAT))
data = {"prompt": ["2 + 2?"] * 2, "completion": ["4" * 5000, "5"], "reward": [1.0, 0.0]}
why = ["extremes:top", "longest:top, extremes:bottom"]
made = Table("samples", "samples", columns, data, 2, places=Places([3, 3], [0, 7], None, why))
write([(3, Records(tables=(made,)))], dir="board")
write([(4, Records(tables=(made,)))], dir="board", name="without", traces=False)
from trackio.sqlite_storage import SQLiteStorage
keys = "key step messages metadata".split()
traces = [{key: each[key] for key in keys} for each in SQLiteStorage.get_traces("grpo", "run-7")]
logs = SQLiteStorage.get_logs("grpo", "run-7")
print(json.dumps([traces, logs[0]["samples"]["_value"], SQLiteStorage.get_traces("grpo", "without")]))
"""


def test_prompts_and_completions_are_traces_too(tmp_path: Path) -> None:
    """Whole texts, as a table's cells are not shown, whose status says which is the best; off with `traces: false`.

    The last filter of a chain that takes extremes is the one that says so.
    """
    traces, rows, without = trackio_run(tmp_path, PICKED)
    assert sorted(traces, key=lambda each: str(each["metadata"]["status"])) == [
        {
            "key": "samples/traces",
            "step": 3,
            "messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": completion}],
            "metadata": {"status": status, "why": why, "reward": reward},
        }
        for completion, status, why, reward in (
            ("4" * 5000, "best 1", "extremes:top", 1.0),
            ("5", "worst 0", "longest:top, extremes:bottom", 0.0),
        )
    ]
    assert [next(iter(row.items())) for row in rows] == [
        ("why", "extremes:top"), ("why", "longest:top, extremes:bottom"),
    ]  # fmt: skip
    assert without == []
