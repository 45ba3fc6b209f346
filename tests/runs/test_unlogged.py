"""A name without scalars in a run's files: the answer says why, and what to write."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.runs.run import Run
from tests.running import profile

METRICS = {
    "reward": {"expr": "reward", "tags": ["core"]},
    "reward_p95": "p95(reward)",
    "length": {"expr": "length", "reduce": ["mean", "max"], "name": "completions/{reduce}_length", "tags": ["core"]},
    "by_source": {"expr": "reward", "by": "source"},
    "off": {"expr": "reward", "enabled": False},
}


def read(folder: Path, steps: int, **sections: Any) -> Run:
    """A run of so many steps, read."""
    signals = {"reward": {"axis": "completion"}, "length": {"axis": "completion"}}
    signals["source"] = {"axis": "completion", "type": "text"}
    modes = {"train": {}, "eval": {"prefix": "eval/"}}
    config = profile(signals, METRICS, modes=modes, profiles={"slim": {"only": ["tag:core"]}}, **sections)
    with declog.start(config, output_dir=folder) as log:
        for step in range(steps):
            with log.step(step):
                log.observe(reward=[0.5, 1.0], length=[3.0, 4.0], source=["math", "code"])
    return declog.read(folder)


def answer(run: Run, name: str) -> str:
    """What a name without scalars is answered with."""
    with pytest.raises(KeyError) as error:
        run[name]
    return str(error.value.args[0]).removeprefix(f"{name}; ")


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_sink_that_takes_some_log_events_only(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A run that ends before the first of them has no file: the sink is named, and each mode counts by itself."""
    sinks = {"sinks": ["console", "mine"], "sink_options": {"mine": {"kind": kind, "every": 10}}, "every": 2}
    with caplog.at_level(logging.WARNING, "declog"):
        run = read(tmp_path / "short", 5, **sinks)
        assert list(run) == []
    which = "the sink `mine` takes one log event in 10 of each mode"
    edit = "sink_options: {mine: {every: 1}}"
    said = f"{which} (one step in 20), none if the run had fewer so far: {edit}"
    assert said in caplog.text and run.problems == [said]
    assert answer(run, "reward") == f"no value of it was logged: {which}, none if `train` had fewer so far: {edit}"
    run = read(tmp_path / "long", 20, **sinks)
    assert run["reward"].steps.tolist() == [19]
    assert answer(run, "eval/reward") == f"no value of it was logged: {which}, none if `eval` had fewer so far: {edit}"


@pytest.mark.parametrize("sinks", [["console"], []])
def test_no_sink_of_files(sinks: list[str], tmp_path: Path) -> None:
    """Then no name has a value, whatever the config says of it."""
    said = "no sink wrote files: start with sinks=[console,parquet]"
    run = read(tmp_path, 1, sinks=sinks)
    assert (answer(run, "reward"), answer(run, "rewrad")) == (said, said)


@pytest.mark.parametrize("part", ["scalars", "histograms", "alerts", "tables", "wide", "names", "modes", "report"])
@pytest.mark.parametrize("sinks", [["console"], []])
def test_what_is_empty_without_a_sink_of_files_says_why(
    part: str, sinks: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, whichever part of the run is read first, and no loop over it raises; a run with files says nothing."""
    run = read(tmp_path / "none", 1, sinks=sinks)
    with caplog.at_level(logging.WARNING, "declog"):
        for _ in range(2):
            if part == "report":
                declog.report(run.path)
                continue
            value = getattr(run, part)
            assert list(value() if callable(value) else value) == []
        assert caplog.text.count("no sink wrote files: start with sinks=[console,parquet]") == 1 + (part == "report")
        caplog.clear()
        beside = read(tmp_path / "files", 1, sinks=["jsonl"])
        assert (list(beside.histograms), list(beside.alerts), caplog.text) == ([], [], "")


def test_a_metric_that_the_profile_hides(tmp_path: Path) -> None:
    """The answer shows it, if another sink has it or none; it works."""
    sections = {"sinks": ["parquet"], "profile": "slim"}
    run = read(tmp_path / "slim", 1, **sections)
    assert answer(run, "reward_p95") == (
        "the run has the metric `reward_p95`, and the profile `slim` of the sink `parquet` hides it: "
        "profiles: {slim: {show: [reward_p95]}}"
    )
    assert answer(run, "eval/reward_p95") == answer(run, "reward_p95")
    assert answer(run, "by_source/math").endswith("hides it: profiles: {slim: {show: [by_source]}}")
    options = {"jsonl": {"profile": "slim"}}
    beside = read(tmp_path / "beside", 1, sinks=["console", "jsonl"], sink_options=options)
    assert "the profile `slim` of the sink `jsonl` hides it: profiles: {slim:" in answer(beside, "reward_p95")
    config = run.declog | {"profiles": {"slim": {"only": ["tag:core"], "show": ["reward_p95"]}}}
    with declog.start(config, output_dir=tmp_path / "shown") as log, log.step(0):
        log.observe(reward=[0.5, 1.0], length=[3.0, 4.0])
    shown = declog.read(log)
    assert len(shown["reward_p95"]) == 1
    assert answer(shown, "by_source").endswith("hides it: profiles: {slim: {show: [reward_p95, by_source]}}")


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_the_id_of_a_metric_that_has_one_name(kind: str, tmp_path: Path) -> None:
    """Whatever name it has, of whichever mode; in training, where several have it. A name comes before an id."""
    metrics = {
        "zero": {"expr": "reward == 0", "name": "frac_zero"}, "reward": {"expr": "reward", "name": "score"},
        "score": {"expr": "reward", "reduce": "max", "name": "best"},
        "of_evaluations": {"expr": "reward", "where": "mode == 'eval'"},
        "length": {"expr": "reward", "reduce": ["min", "max"], "name": "{reduce}"},
        "rewards": {"reduce": "mean", "name": "rewards/{member}"},
    }  # fmt: skip
    signals = {"reward": {"axis": "completion"}, "rewards": {"axis": "completion", "family": True}}
    modes = {"train": {}, "eval": {"prefix": "eval/"}}
    with declog.start(profile(signals, metrics, modes=modes, sinks=[kind]), output_dir=tmp_path) as log:
        for step in range(3):
            with log.step(step):
                with log.mode("eval"):
                    log.observe(reward=[5.0], rewards={"a": [1.0], "b": [1.0]})
                log.observe(reward=[0.0, 1.0], rewards={"a": [1.0, 0.0], "b": [0.0, 0.0]})
    run = declog.read(tmp_path)
    ids = {"zero": "frac_zero", "reward": "score", "of_evaluations": "eval/of_evaluations", "length.min": "min"}
    for id, name in ids.items():
        assert id in run and run[id] is run[name] and id not in list(run)
    assert run["score"].values.tolist() == [0.5] * 3 and run["of_evaluations"].values.tolist() == [5.0] * 3
    for id in ("length", "rewards", "nothing"):
        assert id not in run and answer(run, id)


def test_the_id_of_a_metric_that_has_other_names(tmp_path: Path) -> None:
    """The names that it is logged as, in any mode; another spelling of a name; and one that is switched off."""
    run = read(tmp_path, 1, sinks=["jsonl"])
    names = "it is logged as `completions/mean_length`, `completions/max_length`"
    assert (answer(run, "length"), answer(run, "reward/mean")) == (names, "it is logged as `reward`")
    assert answer(run, "by_source/aime") == "it is logged as `by_source/code`, `by_source/math`"
    assert answer(run, "off") == "the run has left out its metric `off`: enabled: false"
