"""``declog init --from CAPTURE``: a config of what training code observed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import declog
from declog.cli import main
from declog.replay.capture_reader import load, replay
from declog.replay.observed import config_text, observed
from declog.runtime.recording.recorder import Recorder
from tests.replay.keeping import captured

PROFILE: dict[str, Any] = {
    "run": {"name": "first"},
    "axes": {"token": {"mask": "mask"}},
    "signals": {
        "rollout": {
            "completion": {"axis": "completion", "type": "text"}, "reward": {"axis": "completion"},
            "length": {"axis": "completion", "type": "int"}, "rewards": {"axis": "completion", "family": True},
        },
        "update": {
            "logprobs": {"axis": "token", "from": "lp"}, "mask": {"axis": "token", "type": "bool"},
            "loss": {"axis": "step"}, "never": {"axis": "step"},
        },
    },
    "metrics": {"reward": "mean(reward)", "lp": "mean(logprobs)", "loss": "mean(loss)", "never": "mean(never)",
                "length": "mean(length)", "rewards": {"expr": "rewards", "name": "r/{member}"}},
    "schemas": {"s": {"completion": "text"}},
    "tables": {"t": {"schema": "s"}},
    "sinks": [],
}  # fmt: skip
GENERATOR = np.random.default_rng(0)
REWARD, LOGPROBS = GENERATOR.normal(size=(3, 4)), GENERATOR.normal(size=(3, 4, 5)).astype(np.float32)
MASK = GENERATOR.random((3, 4, 5)) > 0.3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A captured run of three steps."""
    folder = tmp_path_factory.mktemp("run")

    def body(log: Recorder, rank: int) -> None:
        for step in range(3):
            with log.step(step):
                texts = [f"text {step} {row}" for row in range(4)]
                rewards = {"right": REWARD[step], "short": [1, 0, 0, 1]}
                log.observe(completion=texts, reward=REWARD[step].tolist(), length=[1, 2, 3, 4], rewards=rewards)
                mask = torch.from_numpy(MASK[step])
                log.observe(lp=torch.from_numpy(LOGPROBS[step]), mask=mask, loss=float(step))

    captured(PROFILE, body, folder)
    return folder


def test_what_came_is_a_profile_that_logs_it(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Played over the same capture it gives the numbers of numpy, and a table of the texts."""
    assert main(["init", "--from", str(run)]) == 0
    text = capsys.readouterr().out
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    assert {phase: list(signals) for phase, signals in yaml.safe_load(text)["signals"].items()} == {
        "rollout": ["completion", "reward", "length", "rewards"], "update": ["logprobs", "mask", "loss"],
    }  # fmt: skip
    events = replay(run, declog.compose(tmp_path / "mine.yaml"))["jsonl"]
    logged = [{item.name: item.value for item in records.scalars} for _, records in events if records.scalars]
    expected = [
        {
            "reward/mean": REWARD[step].mean(), "reward/std": REWARD[step].std(ddof=1), "length/mean": 2.5,
            "length/std": np.std([1, 2, 3, 4], ddof=1), "rewards/right": REWARD[step].mean(), "rewards/short": 0.5,
            "logprobs": LOGPROBS[step][MASK[step]].astype(float).mean(), "loss": float(step),
        }
        for step in range(3)
    ]  # fmt: skip
    assert [pytest.approx(each) for each in expected] == logged
    (table,) = [table for _, records in events for table in records.tables][:1]
    assert [column.name for column in table.columns] == ["completion", "reward", "length"]


def test_what_nobody_declared_is_read_off_the_values(run: Path, tmp_path: Path) -> None:
    """As of a run without a YAML: a number is the step's, a vector the completions', a matrix the tokens'.

    What never came in one call is of phases of its own.
    """
    capture = load(run)
    bare = replace(capture, run={**capture.run, "profile": {}})
    found = observed(bare)
    assert {one.name: dict(one.entry) for one in found} == {
        "completion": {"axis": "completion", "type": "text"},
        "reward": {"axis": "completion"},
        "length": {"axis": "completion", "type": "int"},
        "rewards": {"axis": "completion", "family": True},
        "lp": {"axis": "token"},
        "mask": {"axis": "token", "type": "bool"},
        "loss": {"axis": "step"},
    }
    assert [one.phases for one in found] == [("rollout",)] * 4 + [("update",)] * 3
    (tmp_path / "bare.yaml").write_text(config_text(bare, observed(bare)), encoding="utf-8")
    plan = declog.plan(tmp_path / "bare.yaml")
    assert {"reward/mean", "reward/std", "lp", "loss"} <= set(plan.names())
