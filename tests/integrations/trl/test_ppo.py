"""TRL's PPO trainer, which TRL had until 1.12: here of 1.9; `make trl-matrix` runs all versions that have it."""

from __future__ import annotations

import math
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from tests.integrations.trl import ppo
from tests.integrations.trl.ppo_jobs import asked, of_ranks

NAMES = {
    "eps", "objective/kl", "objective/entropy", "objective/non_score_reward", "objective/rlhf_reward",
    "objective/scores", "policy/approxkl_avg", "policy/clipfrac_avg", "loss/policy_avg", "loss/value_avg",
    "val/clipfrac_avg", "policy/entropy_avg", "val/ratio", "val/ratio_var", "val/num_eos_tokens", "lr", "episode",
}  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_value_is_trls(ranks: int, model: Path, tmp_path: Path) -> None:
    """Each key of each log event of each case, on one rank or on two."""
    found = asked("values", ranks, model, tmp_path)[0]
    assert list(found) == of_ranks(ranks) != []
    for name, (expected, events) in found.items():
        assert [event[:2] for event in expected] == [event[:2] for event in events], name
        for (step, _, own), (_, _, values) in zip(expected, events, strict=True):
            assert own == pytest.approx({key: values.get(key) for key in own}, abs=1e-6, rel=1e-6), (name, step)
            assert set(own) | {"val/ratio_var"} == NAMES | {"epoch"}
        for key in ppo.CASES[name].over:
            assert max(own[key] for _, _, own in expected) > 0, (name, key)


@pytest.fixture(scope="module")
def attached(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return asked("attached", 1, model, tmp_path_factory.mktemp("attached"))[0]


def test_training_is_what_it_is_without_declog(attached: dict[str, Any]) -> None:
    """Weights bitwise, and TRL's log but for the rate, which is the clock's; nothing stays hooked."""
    others = [text for text in attached["differences"] if not text.startswith(("eps", "kl_max"))]
    assert (attached["preset"], others, attached["hooks"]) == ("trl_ppo", [], [])
    assert attached["state"] == ["checkpoint-2", "checkpoint-3"]


def test_a_metric_of_ones_own_is_in_the_trainers_logs(attached: dict[str, Any]) -> None:
    """As trackers get them, and in the history; TRL's own names are there with their values."""
    assert len(attached["history"]) == 3
    for entry, logs, (step, _, values) in zip(attached["history"], attached["logs"], attached["events"], strict=False):
        assert entry == {**logs, "step": step}
        assert entry["kl_max"] == values["kl_max"] >= entry["objective/kl"]
        assert set(entry) == NAMES | {"epoch", "step", "kl_max"}


def test_what_the_loop_deletes_is_not_kept(attached: dict[str, Any]) -> None:
    """Reading variables of a running function keeps none of the logits alive."""
    assert attached["alive"][:3] == [0, 0, 0]


def test_a_table_of_rollouts(attached: dict[str, Any]) -> None:
    """The best and the worst of the last one, their texts whole, with TRL's columns."""
    table = attached["table"]
    assert list(table) == ["step", "query", "model response", "score"]
    assert table["step"] == [3] * 4
    assert [re.fullmatch(r"say ?\d+ ?now", text) is not None for text in table["query"]] == [True] * 4, table["query"]
    mean = attached["history"][2]["objective/scores"]
    assert min(table["score"]) < mean < max(table["score"])
    assert any(text.endswith("<eos>") for text in table["model response"])
    assert not any("<pad>" in text.removesuffix("<eos>") for text in table["model response"])


def test_the_clean_names_of_the_same_trainer(attached: dict[str, Any]) -> None:
    """Attached again, with the preset `ppo`: the steps of a second training, and means over tokens that exist."""
    events = attached["pooled"]
    assert [step for step, _, _ in events] == [1, 2, 3]
    for _, _, values in events:
        assert {"reward", "kl", "ratio/max", "policy_loss", "value_loss", "explained_variance", "loss"} <= set(values)
        assert values["reward"] == pytest.approx(values["reward_after_kl"] + 0.05 * values["kl/sequence"])
        assert values["advantages/std"] == pytest.approx(1, abs=1e-4)
        assert values["kl/sequence"] == pytest.approx(values["kl"] * values["completions/mean_length"])
    assert fmean(values["ratio/max"] for _, _, values in events) > 1


def test_presets_of_another_method_and_subclasses(model: Path, tmp_path: Path) -> None:
    """Refused with the right name; an override that calls TRL's is computed, and one that does not passes through."""
    found = asked("others", 1, model, tmp_path)[0]
    assert "`trl_grpo` has the metrics of trl.GRPOTrainer" in found["grpo"] and '"trl_ppo"' in found["grpo"]
    assert "`trl_ppo` has the metrics of trl.PPOTrainer" in found["ppo"] and '"trl_rloo"' in found["ppo"]
    assert "pinned to 0.7, and the trainer has 0.05" in found["pinned"]
    events, history, told = found["Mixed"]
    assert [values["mine"] for _, _, values in events] == [2.0] * 3
    assert len(told) == 1 and "`objective/kl` (" in told[0] and "the trainer 99)" in told[0]
    assert [entry["objective/kl"] for entry in history] == [99.0] * 3
    assert [values.get("trainer/objective/kl") for _, _, values in events] == [99.0] * 3
    assert all(math.isfinite(values["objective/kl"]) and values["objective/kl"] < 9 for _, _, values in events)
    events, _, told = found["Own"]
    assert [values for _, _, values in events] == [{"objective/kl": 3.0, "mine": 2.0, "epoch": 0.0}]
    assert len(told) == 1 and "`train` is not TRL's own" in told[0] and "`val/ratio`" in told[0]
