"""Runs beside the run of a trainer: one around it that gets no step, and a second training in one run."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest

import declog
from tests.integrations import training

pytestmark = [pytest.mark.slow, *(pytest.mark.filterwarnings(f"ignore::{each}Warning") for each in ("Future", "User"))]
FILE = "defaults: [trainer, _self_]\nmetrics: {best: min(error)}\nsignals: {any: {error: completion}}\nsinks: [jsonl]\n"
STARTS: dict[str, tuple[tuple[Any, ...], str]] = {
    "no config": ((), "trainer"),
    "a preset": (("trainer", ["sinks=[jsonl]"]), r"trainer, 'trainer', overrides=\['sinks=\[jsonl\]'\]"),
    "a file": (("mine.yaml",), "trainer, 'mine.yaml'"),
    "the group's name": (("minimal", ["declog.sinks=[jsonl]"]), r"trainer, overrides=\['sinks=\[jsonl\]'\]"),
    "a mapping": (({"signals": {"any": {"x": "step"}}, "sinks": []},), "trainer, config"),
}


def calls(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The arguments of the calls that messages name."""
    return re.findall(r"declog\.(?:attach|callback)\((.*)\)", caplog.text)


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize("name", STARTS)
def test_a_run_around_that_of_a_trainer(
    name: str, attached: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Class: whoever starts a run around a trainer that has its own is told the call that the block's config needs."""
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(FILE)
    started, answer = STARTS[name]
    with declog.start(*started, output_dir=tmp_path / "around"):
        _, log = training.line(tmp_path / "out", [], ["declog.sinks=[]"], attached=attached)
        log.close()
    (call,) = calls(caplog)
    assert re.fullmatch(answer if attached else answer.removeprefix("trainer").removeprefix(", "), call)
    assert "the trainer that trained meanwhile has a run of its own" in caplog.text


def test_a_run_with_steps_beside_that_of_a_trainer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A run around a trainer that has steps of its own is right, and nothing is said of it."""
    with declog.start("minimal", ["sinks=[]"], output_dir=tmp_path / "around") as around:
        with around.step(0):
            around.observe(x=1.0)
        _, log = training.line(tmp_path / "out", [], ["declog.sinks=[]"], attached=True)
        log.close()
    assert "DL513" not in caplog.text


@pytest.mark.parametrize("how", ["as it is", "anew"])
def test_a_trainer_that_trains_twice(how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Class: a second training in one run: the message has the line that gives it a run of its own."""
    trainer, log = training.line(tmp_path, [], ["declog.sinks=[jsonl]"], attached=True)
    if how == "as it is":
        trainer.train()
        (call,) = calls(caplog)
        assert "before the second train(): declog.detach(trainer); log = declog.attach(" in caplog.text
        assert call.startswith("trainer, 'trainer', overrides=['+run.strict=true'")
        log.close()
        return
    declog.detach(trainer)
    again = declog.attach(trainer, "trainer", overrides=["sinks=[jsonl]"])
    with contextlib.closing(again):
        trainer.train()
    assert again.output_dir != log.output_dir and "trains again" not in caplog.text
    assert len(declog.read(log)["loss"]) == len(declog.read(again)["loss"])
