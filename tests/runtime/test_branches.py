"""A state that goes on in another folder begins a branch; rows of a folder that the caller did not name stay.

The folder is named by `output_dir`, the profile, or a trainer's base; the state comes by `resume=` or
`load_state_dict`, on one rank or on several.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import declog
from declog.errors import SinkError
from declog.runtime.ranks.comm import Comm
from declog.testing import MemorySink, run_ranks
from tests import forks

PROFILE: dict[str, Any] = {
    "run": {"project": "branched"}, "every": 2, "signals": {"any": {"x": {"axis": "completion"}}},
    "metrics": {"x": {"expr": "x", "reduce": "sum"}, "all": {"expr": "x", "reduce": "count", "over": "run"}},
    "schemas": {"s": {"x": "float"}}, "tables": {"t": {"schema": "s"}},
    "sinks": ["jsonl", "parquet", "tensorboard", "trackio"], "sink_options": {"trackio": {"dir": "tracked"}},
}  # fmt: skip
FILES: dict[str, Any] = {**PROFILE, "sinks": ["jsonl", "parquet", "tensorboard"]}
TAGGED = {"expr": "x", "reduce": "sum", "tags": ["core"]}
ON = range(3, 8)  # the steps after the state


def train(log: declog.Recorder, steps: range, save_after: int | None = None) -> dict[str, Any]:
    """Steps with one row each; the state after one of them, as it comes back from a file."""
    file = io.BytesIO()
    for step in steps:
        with log.step(step):
            log.observe(x=[float(step)])
        if step == save_after:
            torch.save(log.state_dict(), file)
    file.seek(0)
    state: dict[str, Any] = torch.load(file, weights_only=True) if save_after is not None else {}
    return state


def content(folder: Path) -> dict[str, str]:
    """What is in each file of a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def logged(folder: Path | None, sink: str = "jsonl") -> list[tuple[int, str, float]]:
    assert folder is not None
    rows = list(declog.read(folder, sink=sink).scalars)
    return [(row["step"], row["name"], row["value"]) for row in rows]


def facts(folder: Path | None) -> dict[str, Any]:
    assert folder is not None
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


WAYS: dict[str, Callable[[Path], tuple[Mapping[str, Any], Mapping[str, Any]]]] = {
    "output_dir": lambda path: ({}, {"output_dir": path}),
    "profile": lambda path: ({"output_dir": str(path)}, {}),
    "base_dir": lambda path: ({}, {"base_dir": path}),
    "append": lambda path: ({"run": {"append": True}}, {"output_dir": path}),
}  # fmt: skip


@pytest.mark.parametrize("how", ["resume", "load"])
@pytest.mark.parametrize("way", WAYS)
def test_another_folder_is_a_branch(way: str, how: str, tmp_path: Path) -> None:
    """It has the state and an id of its own, and says whose branch it is; not a byte of the parent's files changes."""
    with declog.start(FILES, output_dir=tmp_path / "a") as first:
        state = train(first, range(7), save_after=2)
    before = content(tmp_path / "a")
    assert len(before) > 6
    more, options = WAYS[way](tmp_path / "b")
    with declog.start({**FILES, **more}, **options, resume=state if how == "resume" else None) as second:
        if how == "load":
            second.load_state_dict(state)
        train(second, ON)
    assert content(tmp_path / "a") == before
    assert second.output_dir == tmp_path / "b" and second.run_id != first.run_id
    whole = [(3, "x", 5.0), (3, "all", 4.0), (5, "x", 9.0), (5, "all", 6.0), (7, "x", 13.0), (7, "all", 8.0)]
    assert logged(tmp_path / "b") == logged(tmp_path / "b", "parquet") == whole  # the window that was open is in it
    parent = {"run_id": first.run_id, "output_dir": str(tmp_path / "a"), "step": 2}
    assert facts(tmp_path / "b")["parent"] == parent == declog.read(tmp_path / "b").info["parent"]
    assert "parent" not in facts(tmp_path / "a")


@pytest.mark.parametrize("how", ["resume", "load"])
@pytest.mark.parametrize("way", ["output_dir", "base_dir", "append", "none"])
def test_the_run_s_own_folder_goes_on(way: str, how: str, tmp_path: Path) -> None:
    """Named again, among a trainer's numbered ones, or not named at all: the run has its id, and each step once."""
    base = tmp_path / "a"
    if way == "base_dir":
        with declog.start(FILES, base_dir=base):
            pass  # so that the run has `a/2`
    more, options = WAYS[way](base) if way != "none" else ({}, {})
    with declog.start({**FILES, **more}, **(options or {"output_dir": base})) as first:
        state = train(first, range(7), save_after=2)
    if way == "output_dir" and how == "load":
        with pytest.raises(SinkError, match="DL609"):
            declog.start(FILES, output_dir=base)
        return
    with declog.start({**FILES, **more}, **options, resume=state if how == "resume" else None) as second:
        if how == "load":
            second.load_state_dict(state)
        train(second, ON)
    assert (second.output_dir, second.run_id) == (first.output_dir, first.run_id)
    steps = [step for step, name, _ in logged(second.output_dir) if name == "x"]
    assert steps == [1, 3, 5, 7] and "parent" not in facts(second.output_dir)


def test_a_branch_is_taken_up_again(tmp_path: Path) -> None:
    """By a state of its own, which names no other; and by the same start once more, as a scheduler repeats it."""
    with declog.start(FILES, output_dir=tmp_path / "a") as first:
        state = train(first, range(7), save_after=2)
    with declog.start(FILES, output_dir=tmp_path / "b", resume=state) as second:
        train(second, range(3, 5))
    with declog.start(FILES, output_dir=tmp_path / "b", resume=state) as third:
        later = train(third, ON, save_after=5)
    assert third.run_id == second.run_id
    with declog.start(FILES, output_dir=tmp_path / "b", resume=later) as fourth:
        train(fourth, range(6, 10))
    assert fourth.run_id == second.run_id
    assert [step for step, name, _ in logged(tmp_path / "b") if name == "x"] == [3, 5, 7, 9]
    parent = {"run_id": first.run_id, "output_dir": str(tmp_path / "a"), "step": 2}
    assert [one["parent"] for one in declog.read(tmp_path / "b").segments] == [parent] * 3
    with declog.start(FILES, output_dir=tmp_path / "c", resume=later) as fifth:
        train(fifth, range(6, 8))
    assert facts(tmp_path / "c")["parent"]["run_id"] == second.run_id


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    """Rows of a third run are neither deleted nor mixed with, unless the profile adds to the folder."""
    with declog.start(FILES, output_dir=tmp_path / "a") as first:
        state = train(first, range(7), save_after=2)
    with declog.start(FILES, output_dir=tmp_path / "other") as other:
        train(other, range(7))
    before = content(tmp_path / "other")
    with pytest.raises(SinkError, match=rf"holds the run {other.run_id}"):
        declog.start(FILES, output_dir=tmp_path / "other", resume=state)
    assert content(tmp_path / "other") == before
    with declog.start({**FILES, "run": {"append": True}}, output_dir=tmp_path / "other", resume=state) as added:
        train(added, ON)
    read = declog.read(tmp_path / "other", run_id=other.run_id)
    assert [row["step"] for row in read.scalars if row["name"] == "x"] == [1, 3, 5, 6]


def test_a_folder_that_was_moved_or_lost(tmp_path: Path) -> None:
    """Moved and named, it is the run's own by what it says; lost, the run goes on under its id where it would be."""
    with declog.start(FILES, output_dir=tmp_path / "a") as first:
        state = train(first, range(7), save_after=2)
    shutil.move(tmp_path / "a", tmp_path / "moved")
    with declog.start(FILES, output_dir=tmp_path / "moved", resume=state) as second:
        train(second, ON)
    assert second.run_id == first.run_id
    assert [step for step, name, _ in logged(tmp_path / "moved") if name == "x"] == [1, 3, 5, 7]
    with declog.start(FILES, output_dir=tmp_path / "a", resume=state) as third:
        train(third, ON)
    assert third.run_id == first.run_id and "parent" not in facts(tmp_path / "a")


def test_a_tracker_keeps_the_parent_s_steps(tmp_path: Path) -> None:
    """A name of one's own, which is continued, is not cut off for a branch, and is for the run itself."""
    places = {"HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf"), "TRACKIO_DIR": ""}
    code = f"from tests.runtime import test_branches; test_branches.branched_in_trackio({str(tmp_path)!r})"
    forks.python(code, env=places)  # trackio keeps the place that it was imported with


def branched_in_trackio(folder: str) -> None:
    """What the test before says, in a process of its own."""
    tmp_path = Path(folder)
    profile = {
        **PROFILE,
        "sinks": ["trackio"],
        "sink_options": {"trackio": {"dir": str(tmp_path / "tracked"), "name": "mine", "resume": "allow"}},
    }
    with declog.start(profile, output_dir=tmp_path / "a") as first:
        state = train(first, range(7), save_after=2)

    def steps() -> list[int]:
        from trackio.sqlite_storage import SQLiteStorage

        return [row["step"] for row in SQLiteStorage.get_logs("branched", "mine") if "x" in row]

    assert steps() == [1, 3, 5, 6]
    with declog.start(profile, output_dir=tmp_path / "b", resume=state) as second:
        train(second, range(3, 5))
    assert sorted(steps()) == [1, 3, 3, 4, 5, 6]
    with declog.start(profile, output_dir=tmp_path / "a", resume=state) as third:
        train(third, range(3, 5))
    assert sorted(steps()) == [1, 3, 4]


def ranks(path: Path, how: str, state: Mapping[int, Any], steps: range, save_after: int | None = None) -> list[Any]:
    def rank(comm: Comm) -> Any:
        resume = state.get(comm.rank)
        more: dict[str, Any] = {"base_dir": path} if how == "base" else {"output_dir": path}
        with declog.start(FILES, comm=comm, resume=resume if how == "resume" else None, **more) as log:
            if how == "base" and resume is not None:
                log.load_state_dict(resume)
            return train(log, steps, save_after), log.output_dir, log.run_id

    return run_ranks(2, rank)


@pytest.mark.parametrize("how", ["resume", "base"])
def test_ranks_branch_and_go_on_together(how: str, tmp_path: Path) -> None:
    """Also where each rank writes rows of a table itself: all of them stay, or all go on."""
    first = ranks(tmp_path / "a", how, {}, range(7), save_after=2)
    state = {rank: result[0] for rank, result in enumerate(first)}
    before = content(tmp_path / "a")
    assert "jsonl/rank1/tables/t.jsonl" in before
    second = ranks(tmp_path / "b", how, state, ON)
    assert content(tmp_path / "a") == before
    assert {(folder, run_id) for _, folder, run_id in second} == {(tmp_path / "b", second[0][2])}
    assert second[0][2] != first[0][2]
    third = ranks(tmp_path / "a", how, state, range(3, 6))
    assert {(folder, run_id) for _, folder, run_id in third} == {(tmp_path / "a", first[0][2])}
    for folder, last in (("a", 5), ("b", 7)):
        for rank in (0, 1):
            frame = list(declog.read(tmp_path / folder).tables["t"])
            steps = sorted(row["step"] for row in frame if row["declog_rank"] == rank)
            assert steps == list(range(0 if folder == "a" else 2, last + 1)), (folder, rank)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({}, {"sinks": [MemorySink()]}),
        ({"sinks": [MemorySink()]}, {}),
        ({}, {"config": {"sinks": ["parquet"]}}),
        ({}, {"config": {"sinks": []}}),
        ({}, {"config": {"alerts": {"high": {"when": "x > 1", "text": "high"}}}}),
        ({}, {"config": {"metrics": {**PROFILE["metrics"], "x": TAGGED}, "about": {"x": {"title": "X"}}}}),
        ({}, {"config": {"tables": {"t": {"schema": "s", "to": {"jsonl": True}, "max_bytes": 1000}}}}),
        ({}, {"config": {"metrics": {**PROFILE["metrics"], "twice": {"formula": "x * 2"}}}}),
        ({}, {"config": {"signals": {
            "any": {"x": {"axis": "completion"}, "y": {"axis": "completion"}},
        }}}),
    ],
)  # fmt: skip
def test_what_shows_values_is_no_other_profile(
    first: dict[str, Any], then: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Sinks in code or in YAML, alerts, words, formulas, what nothing reads: the open window goes on."""
    config = {**FILES, "sinks": ["jsonl"]}
    with declog.start(config, output_dir=tmp_path / "a", **first) as log:
        state = train(log, range(7), save_after=2)
    sink = MemorySink()
    options = {key: value for key, value in then.items() if key != "config"}
    with declog.start(
        {**config, **then.get("config", {})}, output_dir=tmp_path / "b", resume=state,
        sinks=[sink, *options.pop("sinks", [])], **options,
    ) as log:  # fmt: skip
        train(log, range(3, 4))
    assert sink.scalars[3]["x"] == 5.0 and sink.scalars[3]["all"] == 4.0
    assert "another profile" not in caplog.text


def test_the_fingerprint_is_not_of_sinks_in_code(tmp_path: Path) -> None:
    """A plan is one plan, whoever listens."""
    prints = set()
    for number, sinks in enumerate(([], [MemorySink()], [MemorySink(), MemorySink()])):
        with declog.start(FILES, output_dir=tmp_path / str(number), sinks=sinks) as log:
            prints.add(log.plan.fingerprint)
    assert len(prints) == 1
