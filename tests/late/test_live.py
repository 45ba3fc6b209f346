"""A job that goes on takes up metrics that it is asked for: their curves are those of metrics declared before."""

from __future__ import annotations

import importlib
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import declog
from declog.cli import main
from declog.late import ask, write
from declog.late import live as live_module
from declog.late.live import ANSWER, REQUEST, hand_over
from declog.runtime.ranks.comm import Comm
from declog.runtime.ranks.fake_comm import run_ranks
from declog.testing import MemorySink
from tests import forks
from tests.late.test_late import BASE, as_text, config, lines, train

RUN = {"late": True}


@pytest.fixture(autouse=True)
def looks_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker looks for requests at each log event."""
    monkeypatch.setattr(live_module, "LOOK_S", 0.0)


def curves(folder: Path, prefix: str) -> dict[str, list[tuple[Any, ...]]]:
    """The points of the run's series whose names have a prefix, without it, as text."""
    run = declog.read(folder)
    points: dict[str, list[tuple[Any, ...]]] = {}
    for name in run.names():
        if name.removeprefix("eval/").startswith(prefix):
            series = run[name]
            steps = series.steps.tolist()
            assert len(steps) == len(set(steps)), name  # each step once
            points[name.replace(prefix, "", 1)] = [*zip(steps, map(repr, series.values.tolist()), strict=True)]
    return points


def asked(run: Path, text: dict[str, str]) -> dict[str, Any]:
    """What the command does: the history, and then the job, whose answer it returns."""
    late = ask(run, text)
    write(run, late)
    answer = hand_over(run, late, 60.0)
    assert answer is not None
    return answer


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_running_job_goes_on_with_it(ranks: int, tmp_path: Path) -> None:
    """In the middle of windows, on rank 0 alone: one curve from step 0 to the end, as if it had been declared."""
    run = tmp_path / "run"
    answers: list[dict[str, Any]] = []
    barrier = threading.Barrier(ranks)

    def job(comm: Comm) -> dict[str, int]:
        shown = config(BASE, sinks=["parquet"], run=RUN)
        with declog.start(shown, output_dir=run, comm=comm) as log:
            train(log, comm.rank, range(23))
            barrier.wait(60)
            if comm.rank == 0:
                log.written()
                asking = threading.Thread(target=lambda: answers.append(asked(run, as_text(lines("l_")))))
                asking.start()
                while not (run / "late").exists() or not [*(run / "late").glob(f"*/{REQUEST}")]:
                    time.sleep(0.05)
            barrier.wait(60)
            train(log, comm.rank, range(23, 43))
            if comm.rank == 0:
                asking.join(60)
        return dict(log.failures)

    assert run_ranks(ranks, job) == [{}] * ranks
    assert answers[0].keys() == {"taken", "step"} and answers[0]["step"] >= 23

    def early(comm: Comm) -> None:
        declared = config({**BASE, **lines("e_")}, sinks=["parquet"])
        with declog.start(declared, output_dir=tmp_path / "early", comm=comm) as log:
            train(log, comm.rank, range(43))

    run_ranks(ranks, early)
    found, expected = curves(run, "l_"), curves(tmp_path / "early", "e_")
    assert found == expected and len(found) > 25
    assert json.loads((run / "run.json").read_text())["late"].keys() == lines("l_").keys()


def test_trackers_get_it_from_then_on(tmp_path: Path) -> None:
    """Sinks that are no files of the run's get the values of the steps to come, at their own pace and prefix."""
    run, sink = tmp_path / "run", MemorySink()
    shown = config(BASE, every=1, run=RUN)
    log = declog.start(shown, output_dir=run, sinks=[sink])
    train(log, 0, range(4))
    log.written()
    late = ask(run, {"most": "max(length)"})
    write(run, late)
    answer: list[Any] = []
    asking = threading.Thread(target=lambda: answer.append(hand_over(run, late, 60.0)))
    asking.start()
    while not (run / "late/most" / REQUEST).exists():
        time.sleep(0.05)
    train(log, 0, range(4, 7))
    asking.join(60)
    log.close()
    assert answer[0]["taken"] == late.through
    values = [(step, item.value) for step, records in sink.events for item in records.scalars if item.name == "most"]
    again = ask(run, {"again": "max(length)"}).events
    assert values == [
        (step, item.value)
        for step, records in again if step > 3 and records.mode == "train"
        for item in records.scalars
    ]  # fmt: skip
    assert [step for step, _ in curves(run, "most")[""]] == list(range(7))


def test_a_line_that_the_job_refuses(tmp_path: Path) -> None:
    """The job checks by itself, and answers with the place in the line; it goes on as before."""
    run = tmp_path / "run"
    with declog.start(config(BASE, every=1, sinks=["jsonl"], run=RUN), output_dir=run) as log:
        train(log, 0, range(4))
        log.written()
        for name, text in (("wrong", "mean(rewrd)"), ("broken", None)):
            folder = run / "late" / name
            folder.mkdir(parents=True)
            request = {"lines": {name: text}, "through": 3, "step": 3} if text else ["nothing"]
            (folder / REQUEST).write_text(json.dumps(request))
        train(log, 0, range(4, 6))
    refused = json.loads((run / "late/wrong" / ANSWER).read_text())["refused"]
    assert "unknown signal `rewrd`" in refused and "rewrd" in refused.splitlines()[2] and "     ^^^^^" in refused
    assert "refused" in json.loads((run / "late/broken" / ANSWER).read_text())
    assert not any("b_length" in name for name in log.failures)
    assert [len(run_.values) for run_ in [declog.read(run)["b_length"]]] == [6]


def test_a_line_that_is_mended_after_the_job_refused_it(tmp_path: Path) -> None:
    """A request that comes again under its name is looked at again, as often as it comes."""
    run = tmp_path / "run"
    answers = []
    with declog.start(config(BASE, every=1, sinks=["jsonl"], run=RUN), output_dir=run) as log:
        train(log, 0, range(4))
        log.written()
        late = ask(run, {"most": "max(length)"})
        for step, text in enumerate(("mean(rewrd)", "mean(lenght)", "max(length)"), 4):
            folder = write(run, late)
            request = {"lines": {"most": text}, "through": 10**6, "step": 0}  # no state: from the first row on
            (folder / REQUEST).write_text(json.dumps(request))
            train(log, 0, range(step, step + 1))
            log.written()
            answers.append(json.loads((folder / ANSWER).read_text()))
    assert ["refused" in answer for answer in answers] == [True, True, False]
    assert [step for step, _ in curves(run, "most")[""]] == list(range(7))


def test_a_job_that_takes_none_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without `run.late` the command writes the history, and asks nobody."""
    run = tmp_path / "run"
    with declog.start(config(BASE, every=1, sinks=["jsonl"]), output_dir=run) as log:
        train(log, 0, range(4))
        log.written()
        assert main(["add", str(run), "most: max(length)"]) == 0
        train(log, 0, range(4, 6))
    assert "the job" not in capsys.readouterr().out
    assert not (run / "late/most" / REQUEST).exists()


@pytest.mark.parametrize("beside", [True, False], ids=["beside another", "alone"])
def test_a_filter_that_holds_for_no_row_yet(
    beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job that goes on takes the metric up, and logs it from the first row on for which its filter holds."""
    monkeypatch.setattr(importlib.import_module("declog.cli.verbs.add"), "WAIT_S", 0.0)  # the next log event answers
    run = tmp_path / "run"
    profile = {"signals": {"any": {"a": "completion"}}, "metrics": {"a": "mean(a)"}, "sinks": ["parquet"], "run": RUN}
    with declog.start(profile, output_dir=run) as log:
        for step in range(6):
            with log.step(step):
                log.observe(a=[float(step)])
            if step == 2:
                log.written()
                words = ["high: {expr: a, where: a > 3}", *(["most: max(a)"] if beside else [])]
                assert main(["add", str(run), *words]) == 0
                printed = capsys.readouterr().out
                assert "high" in printed and "no value yet" in printed and "goes on with it at its next" in printed
    assert curves(run, "high")[""] == [(4, "4.0"), (5, "5.0")]
    assert [step for step, _ in curves(run, "most").get("", ())] == (list(range(6)) if beside else [])
    assert main(["add", str(run), "never: {expr: a, where: a > 9}"]) == 2
    assert "none of them counts for `never` under `where: a > 9`" in capsys.readouterr().err


def test_a_branch_goes_on_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From its parent's first step on, and without being asked; `show --why` knows the line, and where it came from."""

    def ran(folder: str, steps: range, state: Any = None, save: int | None = None, ask_at: int | None = None) -> Any:
        saved = None
        shown = config(BASE, sinks=["parquet"], run=RUN)
        with declog.start(shown, output_dir=tmp_path / folder, resume=state) as log:
            for step in steps:
                train(log, 0, range(step, step + 1))
                if step == save:
                    saved = log.state_dict()
                if step == ask_at:
                    log.written()
                    late = ask(tmp_path / folder, as_text(lines("l_")))
                    write(tmp_path / folder, late)
                    assert hand_over(tmp_path / folder, late, 0.0) is None  # the next log event answers
        return saved

    state = ran("parent", range(23), save=17, ask_at=12)
    second = ran("branch", range(18, 26), state, save=21)
    ran("leaf", range(22, 31), second)
    with declog.start(config({**BASE, **lines("e_")}, sinks=["parquet"]), output_dir=tmp_path / "straight") as log:
        train(log, 0, range(31))
    assert curves(tmp_path / "leaf", "l_") == curves(tmp_path / "straight", "e_")
    assert json.loads((tmp_path / "leaf/run.json").read_text())["late"].keys() == lines("l_").keys()
    capsys.readouterr()
    for key in ("l_by_source", "metrics.l_by_source", "l_by_source/math"):
        assert main(["show", str(tmp_path / "leaf"), "--why", key]) == 0
        out = capsys.readouterr().out
        assert out.startswith("metrics.l_by_source\n") and "late.yaml" in out and "{by: source, expr: reward}" in out
        assert "asked late; the job goes on with it" in out and "mean of reward by source" in out
    assert main(["show", str(tmp_path / "leaf"), "--why", "b_source"]) == 0
    assert "asked late" not in capsys.readouterr().out


JOB = """
import os, sys, threading, time
from pathlib import Path
import torch, yaml
import declog
from declog.late import live
from tests import forks
from tests.late.test_late import train

live.LOOK_S = 0.0
folder, phase = Path(sys.argv[1]), sys.argv[2]
config = yaml.safe_load((folder / "config.yaml").read_text())
resume = None if phase == "first" else torch.load(folder / "state.pt")
log = declog.start(config, output_dir=folder / "run", resume=resume)
train(log, 0, range(12) if phase == "first" else range(23, 36))
if phase == "first":
    log.written()
    (folder / "ready").touch()
    while not [*(folder / "run/late").glob("*/ask.json")]:
        time.sleep(0.05)
    train(log, 0, range(12, 23))
    torch.save(log.state_dict(), folder / "state.pt")
    train(log, 0, range(23, 33))
    log.flush()
    log.written()
    os._exit(9)
log.close()
"""


def test_a_job_that_is_killed_and_resumed_goes_on_with_it(tmp_path: Path) -> None:
    """What it had logged of steps that come again is there once; the curve is that of a run without a break."""
    metrics = {**BASE, **lines("e_")}
    text = yaml.safe_dump(config(metrics, sinks=["parquet"], run=RUN))
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    with forks.start(["-c", JOB, tmp_path, "first"], output=tmp_path / "first.txt") as job:
        end = time.monotonic() + 120
        while not (tmp_path / "ready").exists() and time.monotonic() < end:
            time.sleep(0.1)
        answer = asked(tmp_path / "run", as_text(lines("l_")))
        assert "taken" in answer and job.wait() == 9
    assert forks.run(["-c", JOB, tmp_path, "second"]).returncode == 0
    with declog.start(config(metrics, sinks=["parquet"]), output_dir=tmp_path / "straight") as log:
        train(log, 0, range(36))
    assert curves(tmp_path / "run", "l_") == curves(tmp_path / "straight", "e_")
