"""Command lines in process, what they print and how they exit; and two small presets to run them on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from declog.cli import main
from tests.conftest import WritePreset
from tests.docs.markdown import ROOT

SMALL = """\
# A small profile. For tests.
run: {name: small}
sinks: [jsonl]
every: 1

constants:
  beta: {default: 0.1, help: weight of the penalty}

signals:
  any:
    reward: {axis: completion}
    length: {axis: completion, type: int, help: in tokens}
    kl: {axis: completion, enabled: "beta != 0"}
derived:
  penalised: "reward - beta * kl"

metrics:
  reward: mean(reward)
  length: {expr: length, reduce: [mean, max], name: "completions/{reduce}_length"}
  penalised: {expr: penalised}

filters:
  long: {key: length, top: 2}

schemas:
  rows: {reward: float, length: int}

tables:
  samples: {schema: rows, filter: long}
"""

TEAM = """\
defaults: [small, _self_]

run: {name: team}

metrics:
  reward: p95(reward)
  penalised: null
"""


@dataclass(frozen=True)
class Outcome:
    """How a command line ended."""

    code: int
    out: str
    err: str


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command line; paths of the repository are shown relative to it, wherever the test stands."""

    def run(*words: str) -> Outcome:
        code = main(words)
        printed = capsys.readouterr()
        return Outcome(code, printed.out.replace(f"{ROOT}/", ""), printed.err.replace(f"{ROOT}/", ""))

    return run


@pytest.fixture
def small(write_preset: WritePreset) -> Path:
    """The presets `small` and `team`, in ./declog."""
    write_preset("team", TEAM)
    return write_preset("small", SMALL)
