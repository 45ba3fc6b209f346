"""A run's folder is its own: no other run gets it, whoever starts when; what is in it says whose it is."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

import declog
from declog.errors import ConfigError, SinkError
from declog.runtime.run import manifest
from declog.sinks import built_in, option_names, run_folder
from declog.sinks.locks import Held, Lock
from declog.testing import FakeComm, MemorySink, run_ranks
from tests import forks

PROFILE: dict[str, Any] = {
    "run": {"name": "own"}, "signals": {"any": {"reward": {"axis": "completion"}}},
    "metrics": {"reward": "mean(reward)"}, "sinks": ["jsonl", "parquet"],
}  # fmt: skip


def train(steps: range, reward: float, config: Mapping[str, Any] = PROFILE, **options: Any) -> declog.Recorder:
    """A whole run, each step with one reward."""
    with declog.start(config, **options) as log:
        for step in steps:
            with log.step(step):
                log.observe(reward=[reward])
    return log


def rewards(folder: Path | None, kind: str = "jsonl") -> list[tuple[str, int, float]]:
    """(run id, step, reward) of every row in a folder."""
    assert folder is not None
    if kind == "parquet":
        frame = pd.read_parquet(folder / "parquet" / "scalars")
        return [(row.run_id, int(row.step), float(row.value)) for row in frame.itertuples()]
    lines = map(json.loads, (folder / "jsonl" / "scalars.jsonl").read_text().splitlines())
    return [(line["run_id"], line["step"], line["scalars"]["reward"]) for line in lines]


def written(folder: Path | None) -> dict[str, Any]:
    """What `run.json` says."""
    assert folder is not None
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


# ---- a new folder for each run -----------------------------------------------------------------------


def test_runs_of_one_process_in_one_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other and at once: each run has a folder, and nothing but its own rows in it."""
    monkeypatch.chdir(tmp_path)
    logs = [train(range(2), float(number)) for number in range(3)]
    with ThreadPoolExecutor(4) as pool:
        logs += pool.map(lambda number: train(range(2), float(number)), range(3, 7))
    assert len({log.output_dir for log in logs}) == len({log.run_id for log in logs}) == 7
    for kind in ("jsonl", "parquet"):
        found = [sorted(rewards(log.output_dir, kind)) for log in logs]
        assert found == [[(log.run_id, step, float(number)) for step in range(2)] for number, log in enumerate(logs)]


TWIN = """
import sys
import declog
from tests.runtime.test_run_folders import PROFILE, train
declog.plan(PROFILE)
print("ready", flush=True)
sys.stdin.readline()
print(train(range(3), float(sys.argv[1])).output_dir)
"""


def together(processes: list[forks.Fork]) -> list[str]:
    """What processes say that begin at one moment."""
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.wait() for process in processes] == [0] * len(processes)
    reported = []
    for process in processes:
        with process:
            assert process.stdout is not None
            reported.append(process.stdout.read().strip())
    return reported


def test_processes_that_start_in_one_second(tmp_path: Path) -> None:
    """Four of them in one folder: four whole runs, none of which lost or got a row."""
    reported = together([forks.start(["-c", TWIN, str(number)], cwd=tmp_path, talks=True) for number in range(4)])
    assert len(set(reported)) == 4
    for number, folder in enumerate(reported):
        for kind in ("jsonl", "parquet"):
            found = [(step, value) for _, step, value in rewards(Path(folder), kind)]
            assert found == [(step, float(number)) for step in range(3)]


def test_a_second_run_of_one_hydra_job_has_a_folder_inside(tmp_path: Path) -> None:
    """The folder that nobody named is new each time, also where Hydra made it: `.../2`, `.../3`."""
    found = [train(range(1), float(number), base_dir=tmp_path / "job").output_dir for number in range(3)]
    assert found == [tmp_path / "job", tmp_path / "job" / "2", tmp_path / "job" / "3"]
    assert [rewards(folder)[0][2] for folder in found] == [0.0, 1.0, 2.0]


# ---- a folder that is named --------------------------------------------------------------------------


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    """By a second run of the process and by another process; the first one is not disturbed."""
    with declog.start(PROFILE, output_dir=tmp_path) as log:
        holder = f"process {os.getpid()} on {socket.gethostname()}, since "
        mine = r"\[DL609\].* is in use by a run of this process that is still open \("
        for config, state in ({**PROFILE, "run": {"append": True}}, None), (PROFILE, log.state_dict()):
            with pytest.raises(SinkError, match=f"{mine}{holder}.*\n  fix: close that run first: `log.close"):
                declog.start(config, output_dir=tmp_path, resume=state)
        code = "from tests.runtime.test_run_folders import *\ntrain(range(1), 9.0, output_dir='.')"
        said = forks.run(["-c", code], cwd=tmp_path).stderr
        assert f"is in use by {holder}" in said and "fix: give this run another `output_dir`" in said
        with log.step(0):
            log.observe(reward=[1.0])
    assert rewards(tmp_path) == rewards(tmp_path, "parquet") == [(log.run_id, 0, 1.0)]


APPENDED = {**PROFILE, "run": {"append": True}}
WAYS: dict[str, Callable[[declog.Recorder], declog.Recorder]] = {  # in which another run asks for a run's folder
    "named": lambda log: declog.start(APPENDED, output_dir=log.output_dir),
    "resumed": lambda log: declog.start(PROFILE, resume=log.state_dict()),
    "resumed below": lambda log: declog.start(PROFILE, resume=log.state_dict(), base_dir=log.output_dir),
    "resumed by name": lambda log: declog.start(PROFILE, resume=log.state_dict(), output_dir=log.output_dir),
    "loaded": lambda log: loaded(declog.start(PROFILE, base_dir=log.output_dir), log.state_dict()),
    "loaded from elsewhere": lambda log: loaded(declog.start(PROFILE), log.state_dict()),
}


def loaded(log: declog.Recorder, state: Mapping[str, Any]) -> declog.Recorder:
    """A recorder that goes on."""
    try:
        log.load_state_dict(state)
    except BaseException:
        log.close()
        raise
    return log


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_nobody_closed_gives_its_folder_up_when_its_loop_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, threaded: bool
) -> None:
    """To whatever asks for it, also where the loop raised, and was in a thread: all its rows are there."""
    monkeypatch.chdir(tmp_path)
    first = declog.start({**PROFILE, "every": 2}, output_dir=tmp_path / "run")

    def loop() -> None:
        with suppress(KeyboardInterrupt):
            for step in range(4):
                with first.step(step):
                    first.observe(reward=[1.0])
                    if step == 3:
                        raise KeyboardInterrupt

    if threaded:
        thread = threading.Thread(target=loop)
        thread.start()
        thread.join()
    else:
        loop()
    with WAYS[way](first) as second:
        assert first.closed and second.output_dir == first.output_dir
        with second.step(4):
            second.observe(reward=[2.0])
    expected = [(1, 1.0), (3, 1.0), (4, 2.0)]
    assert [row[1:] for row in rewards(second.output_dir)] == expected
    assert sorted(row[1:] for row in rewards(second.output_dir, "parquet")) == expected


@pytest.mark.parametrize("kept", ["with", "step", "thread", "before its first step"])
@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_goes_on_keeps_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, kept: str
) -> None:
    """In its block or its step, in a thread that lives, and before it begins: whatever asks for it is refused."""
    monkeypatch.chdir(tmp_path)
    first = declog.start(PROFILE, output_dir=tmp_path / "run")
    state = first.state_dict()
    monkeypatch.setattr(first, "state_dict", lambda: state)

    def step() -> None:
        with first.step(0):
            first.observe(reward=[1.0])

    with ThreadPoolExecutor(1) as pool, ExitStack() as block:
        if kept == "thread":
            pool.submit(step).result()
        elif kept != "before its first step":
            step()
        if kept == "with":
            block.enter_context(first)
        if kept == "step":
            block.enter_context(first.step(1))
        with pytest.raises(SinkError, match=r"DL609.* still open"):
            WAYS[way](first)
        assert not first.closed
    first.close()


def test_ranks_give_a_folder_up_together(tmp_path: Path) -> None:
    """Each closes its part of a run that has ended, so that no rank waits for another's rows."""
    again = FakeComm.job(2)

    def body(comm: FakeComm) -> None:
        logs: list[declog.Recorder] = []
        for channel in (comm, again[comm.rank]):
            state = logs[-1].state_dict() if logs else None
            logs.append(declog.start(PROFILE, output_dir=tmp_path, comm=channel, resume=state))
            with logs[-1].step(len(logs)):
                logs[-1].observe(reward=[float(comm.rank)])
        logs[-1].close()
        assert logs[0].closed and not logs[0].failures and not logs[1].failures

    run_ranks(2, body, timeout_s=20.0)
    assert [row[1:] for row in rewards(tmp_path)] == [(1, 0.5), (2, 0.5)]


def test_a_folder_that_holds_a_run_is_refused_unless_it_is_added_to(tmp_path: Path) -> None:
    """`append: true` adds a run, and each row says whose it is; resuming one of them leaves the other's rows alone."""
    first = train(range(3), 1.0, output_dir=tmp_path)
    with pytest.raises(SinkError, match=rf"\[DL609\].* holds the run {first.run_id} \(finished\): jsonl, parquet"):
        declog.start(PROFILE, output_dir=tmp_path)
    added = {**PROFILE, "run": {"append": True}}
    with declog.start(added, output_dir=tmp_path) as second:
        for step in range(3):
            with second.step(step):
                second.observe(reward=[2.0])
            if step == 0:
                state = second.state_dict()
    again = train(range(1, 3), 3.0, added, output_dir=tmp_path, resume=state)
    assert again.run_id == second.run_id != first.run_id
    expected = [(first.run_id, step, 1.0) for step in range(3)]
    expected += [(second.run_id, 0, 2.0), (second.run_id, 1, 3.0), (second.run_id, 2, 3.0)]
    assert rewards(tmp_path) == sorted(rewards(tmp_path, "parquet"), key=expected.index) == expected
    assert [each["run_id"] for each in written(tmp_path)["earlier"]] == [first.run_id, second.run_id]


def test_a_start_that_failed_takes_no_folder(tmp_path: Path) -> None:
    """A sink that cannot open leaves the folder free for the next try."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "parquet").write_text("a file is in the way")
    with pytest.raises(SinkError, match="DL601"):
        declog.start(PROFILE, output_dir=tmp_path / "run")
    (tmp_path / "run" / "parquet").unlink()
    assert rewards(train(range(1), 1.0, output_dir=tmp_path / "run").output_dir)[0][1:] == (0, 1.0)


def test_a_file_of_somebody_else_is_not_written_over(tmp_path: Path) -> None:
    """A `run.json` that is not declog's refuses the folder; a `config.yaml` keeps its place beside declog's."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "run.json").write_text('{"mine": 1}')
    with pytest.raises(SinkError, match="not written by declog"):
        declog.start(PROFILE, output_dir=tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.yaml").write_text("mine: 1\n")
    train(range(1), 1.0, output_dir=tmp_path / "b")
    assert (tmp_path / "b" / "config.yaml").read_text() == "mine: 1\n"
    assert written(tmp_path / "b")["config"] == "config-2.yaml"


KILLED = """
import sys
from tests.runtime.test_run_folders import *
log = declog.start(PROFILE, output_dir=".")
with log.step(0):
    log.observe(reward=[1.0])
log.state_dict()
print("ready", flush=True)
sys.stdin.readline()
"""


def test_a_killed_run_leaves_its_folder_to_those_who_ask_for_it(tmp_path: Path) -> None:
    """The lock ends with the process, its forks do not hold it; what it logged is still not another run's."""
    with forks.start(["-c", KILLED], cwd=tmp_path, talks=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.kill()
    assert written(tmp_path)["state"] == "running"
    with pytest.raises(SinkError, match=r"holds the run .* \(running\)"):
        declog.start(PROFILE, output_dir=tmp_path)
    log = train(range(1), 2.0, {**PROFILE, "run": {"append": True}}, output_dir=tmp_path)
    assert [value for _, _, value in rewards(tmp_path)] == [1.0, 2.0]
    assert written(tmp_path)["run_id"] == log.run_id


def test_a_run_that_goes_on_returns_to_its_folder(tmp_path: Path) -> None:
    """`load_state_dict` in a run whose folder nobody named: it takes folder and id of the run that it continues."""
    with declog.start(PROFILE, base_dir=tmp_path) as first:
        for step in range(4):
            with first.step(step):
                first.observe(reward=[1.0])
            if step == 1:
                state = first.state_dict()
    with declog.start(PROFILE, base_dir=tmp_path) as second:
        assert second.output_dir == tmp_path / "2"
        second.load_state_dict(state)
        assert (second.output_dir, second.run_id) == (tmp_path, first.run_id)
        with second.step(2):
            second.observe(reward=[2.0])
    expected = [(first.run_id, 0, 1.0), (first.run_id, 1, 1.0), (first.run_id, 2, 2.0)]
    assert rewards(tmp_path) == rewards(tmp_path, "parquet") == expected
    assert not (tmp_path / "2").exists()
    assert written(tmp_path)["state"] == "finished"


def test_ranks_share_the_folder_of_rank_0(tmp_path: Path) -> None:
    """Rank 0 chooses for all, and each rank's rows of a table are in a folder of its own."""
    config = {
        **PROFILE, "schemas": {"s": {"reward": {"type": "float"}}}, "tables": {"t": {"schema": "s"}},
        "sinks": ["jsonl"],
    }  # fmt: skip

    def rank(comm: Any) -> Any:
        with declog.start(config, base_dir=tmp_path / "job", comm=comm) as log, log.step(0):
            log.observe(reward=[float(comm.rank)])
        return log.output_dir, log.run_id

    first, second = run_ranks(3, rank), run_ranks(3, rank)
    assert {folder for folder, _ in first} == {tmp_path / "job"}
    assert {folder for folder, _ in second} == {tmp_path / "job" / "2"}
    for found in (first, second):
        assert len({run_id for _, run_id in found}) == 1
        for number, (folder, run_id) in enumerate(found):
            file = folder / "jsonl" / (f"rank{number}" if number else "") / "tables" / "t.jsonl"
            rows = [json.loads(line) for line in file.read_text().splitlines()]
            assert [(row["reward"], row["run_id"]) for row in rows] == [(float(number), run_id)]


# ---- locks -------------------------------------------------------------------------------------------


def test_one_of_many_has_the_lock(tmp_path: Path) -> None:
    """Of threads that ask at once one has it; when it is released the next one may."""
    file = tmp_path / "lock"

    def ask(_: int) -> Lock | None:
        try:
            return Lock(file)
        except Held:
            return None

    for _ in range(5):
        with ThreadPoolExecutor(8) as pool:
            (found,) = [lock for lock in pool.map(ask, range(8)) if lock is not None]
        found.release()
        assert list(tmp_path.iterdir()) == []


def test_what_another_machine_holds_is_taken_over_by_those_who_say_so(tmp_path: Path) -> None:
    """From here nobody sees whether it lives: only a run that is resumed takes its folder."""
    file = tmp_path / "lock"
    file.write_text(json.dumps({"host": "elsewhere", "pid": 1, "since": 0.0}))
    with pytest.raises(Held, match="process 1 on elsewhere"):
        Lock(file)
    Lock(file, takeover=True).release()
    assert not file.exists()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_holds_nothing(tmp_path: Path) -> None:
    """A worker that outlives the run does not keep its folder in use."""
    lock = Lock(tmp_path / "lock")
    ready, until = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b"x")
        os.read(until[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    os.close(lock._descriptor or -1)  # as the kernel does when the holder is killed
    lock._descriptor = None
    Lock(tmp_path / "lock").release()
    os.write(until[1], b"x")
    os.waitpid(child, 0)


# ---- what the folder says ----------------------------------------------------------------------------


def test_run_json_and_the_profile_in_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions, fingerprint, commit, overrides, how it ended; a secret of the environment is in no file."""
    monkeypatch.setenv("SECRET_TOKEN", "hush-hush-4711")
    overrides = ["declog.sinks=[jsonl,parquet]", "declog.every=2", "+declog.run.config.key=${oc.env:SECRET_TOKEN}"]
    with declog.start("grpo", overrides, output_dir=tmp_path) as log:
        found = written(tmp_path)
        assert (found["state"], found["ended"]) == ("running", None)
    found = written(tmp_path)
    assert {key: found[key] for key in ("run_id", "name", "fingerprint", "overrides", "world_size", "state")} == {
        "run_id": log.run_id, "name": "grpo", "fingerprint": log.plan.fingerprint, "overrides": overrides,
        "world_size": 1, "state": "finished",
    }  # fmt: skip
    assert (found["declog"], found["torch"]) == (declog.__version__, manifest.version_of("torch"))
    assert found["packages"]["pyarrow"] == manifest.version_of("pyarrow")
    effective = yaml.safe_load((tmp_path / found["config"]).read_text())
    assert declog.plan(effective).fingerprint == log.plan.fingerprint
    texts = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert [text for text in texts if b"hush-hush" in text] == []


def test_run_json_says_that_a_run_failed(tmp_path: Path) -> None:
    """Training that raised is distinguished from a run that was finished."""
    with pytest.raises(RuntimeError), declog.start(PROFILE, output_dir=tmp_path):
        raise RuntimeError("out of memory")
    assert written(tmp_path)["state"] == "failed"


def test_the_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    """Of the repository that the run is started in; nothing where there is none."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    assert manifest.commit(str(tmp_path / "..")) is None
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "file").write_text("1")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    manifest.commit.cache_clear()
    assert manifest.commit(str(tmp_path)) == {"commit": head, "dirty": False}
    (tmp_path / "file").write_text("2")
    manifest.commit.cache_clear()
    assert manifest.commit(str(tmp_path)) == {"commit": head, "dirty": True}


# ---- folders of sinks --------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["..", "../x", "a/../../x", "a/../b", "x\0y"])
@pytest.mark.parametrize("kind", [kind for kind in built_in() if "dir" in option_names(kind)])
def test_a_relative_folder_that_leaves_the_runs_is_refused(folder: str, kind: str) -> None:
    """Before step 0, at its key."""
    with pytest.raises(ConfigError) as caught:
        declog.plan({**PROFILE, "sinks": ["s"], "sink_options": {"s": {"kind": kind, "dir": folder}}})
    assert [(problem.code, problem.key) for problem in caught.value.problems] == [("DL202", "sink_options.s.dir")]


def test_a_link_that_leaves_the_runs_folder_is_refused(tmp_path: Path) -> None:
    """What text does not show is found when the sink opens; an absolute folder is where it says."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to(tmp_path)
    with pytest.raises(SinkError, match="leaves the run's"):
        declog.start(
            {**PROFILE, "sinks": ["jsonl"], "sink_options": {"jsonl": {"dir": "link/x"}}}, output_dir=tmp_path / "run"
        )
    with pytest.raises(SinkError, match="File name too long"):
        declog.start(
            {**PROFILE, "sinks": ["jsonl"], "sink_options": {"jsonl": {"dir": "x" * 300}}}, output_dir=tmp_path / "run"
        )
    train(
        range(1),
        1.0,
        {**PROFILE, "sinks": ["jsonl"], "sink_options": {"jsonl": {"dir": str(tmp_path / "far")}}},
        output_dir=tmp_path / "run",
    )
    assert (tmp_path / "far" / "scalars.jsonl").exists()


@pytest.mark.parametrize(
    ("one", "other"),
    [("x", "x"), ("x", "x/"), ("x", "./x"), ("x", "X"), ("x", "x/tables"), ("x/rank1", "x"), (".", "scalars")],
)
def test_two_sinks_never_share_a_folder(one: str, other: str, tmp_path: Path) -> None:
    """Neither do folders inside one another where their files would meet; whatever the kinds."""
    for kinds in (("jsonl", "jsonl"), ("parquet", "jsonl"), ("parquet", "parquet")):
        sinks = {f"s{place}": {"kind": kind, "dir": (one, other)[place]} for place, kind in enumerate(kinds)}
        with pytest.raises(ConfigError, match="would write to one folder"):
            declog.start({**PROFILE, "sinks": [*sinks], "sink_options": sinks}, output_dir=tmp_path)


def test_two_runs_that_name_one_absolute_folder(tmp_path: Path) -> None:
    """At once the second is refused; one after the other both are there, and rows say whose they are."""
    config = {**PROFILE, "sinks": ["jsonl"], "sink_options": {"jsonl": {"dir": str(tmp_path / "all" / "jsonl")}}}
    with declog.start(config, output_dir=tmp_path / "a") as log:
        with pytest.raises(SinkError, match=r"\[DL60[19]\].* in use"):
            declog.start(config, output_dir=tmp_path / "b")
        with log.step(0):
            log.observe(reward=[1.0])
    other = train(range(1), 2.0, config, output_dir=tmp_path / "b")
    assert rewards(tmp_path / "all") == [(log.run_id, 0, 1.0), (other.run_id, 0, 2.0)]


def test_a_run_that_writes_no_file_leaves_the_folder_free(tmp_path: Path) -> None:
    """What is refused is mixing records: where none are, nothing is."""
    config = {**PROFILE, "sinks": []}
    for _ in range(2):
        sink = MemorySink()
        train(range(1), 1.0, config, sinks=[sink], output_dir=tmp_path)
        assert sink.scalars == {0: {"reward": 1.0}}
    assert len(written(tmp_path)["earlier"]) == 1
    assert run_folder.run_of(tmp_path) == written(tmp_path)
