"""TRL's trainers on a GPU: each number that they log is declog's of the same step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integrations.trl import cases
from tests.integrations.trl.cases import CASES, Case

pytestmark = [pytest.mark.filterwarnings(f"ignore::{name}Warning") for name in ("Future", "User", "Deprecation")]
STEPS = 20
EACH_STEP = {"max_steps": STEPS, "logging_steps": 1, "eval_steps": 10, "use_cpu": not torch.cuda.is_available()}
NAMES = ("grpo_kl", "grpo_clipping", "grpo_weights", "rloo_clipping")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny model."""
    from tests.integrations.trl import tiny

    return tiny.build(tmp_path_factory.mktemp("model"))


def differences(outcome: cases.Outcome) -> dict[str, float]:
    """The greatest difference of each key, relative to values above 1; all of TRL's log events are declog's."""
    right = cases.expected(outcome.history)
    assert [event[:2] for event in right] == [event[:2] for event in outcome.events]
    assert len(right) >= STEPS
    greatest: dict[str, float] = {}
    for (_, mode, expected), (_, _, logged) in zip(right, outcome.events, strict=True):
        assert expected.keys() <= logged.keys()
        for name, value in expected.items():
            off = abs(logged[name] - value) / max(1.0, abs(value))
            greatest[f"{mode} {name}"] = max(greatest.get(f"{mode} {name}", 0.0), off)
    return greatest


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_each_number_of_each_step(name: str, bf16: bool, model: Path, tmp_path: Path) -> None:
    """With and without autocast."""
    case = CASES[name]
    args: dict[str, Any] = {**case.args, **EACH_STEP, "bf16": bf16}
    off = differences(cases.run(Case(case.method, args, case.rewards), model, tmp_path))
    assert len(off) >= 15
    assert max(off.values()) < 1e-6, off
