"""The PPO example: what it logs under TRL's names, and under those of `ppo`, is what numpy makes of its tensors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations import ppo_runs
from tests.integrations.ppo_runs import Run, differences
from tests.oracle import ppo

SMALL = ("prompts=48", "minibatch=20", "epochs=2", "learning_rate=2e-3")  # the last minibatch has 8
NAMES = {
    "eps", "objective/kl", "objective/entropy", "objective/non_score_reward", "objective/rlhf_reward",
    "objective/scores", "policy/approxkl_avg", "policy/clipfrac_avg", "loss/policy_avg", "loss/value_avg",
    "val/clipfrac_avg", "policy/entropy_avg", "val/ratio", "val/ratio_var", "val/num_eos_tokens", "lr", "episode",
}  # fmt: skip


@pytest.mark.parametrize("overrides", [(), (ppo_runs.OLDER, "whiten_rewards=true")])
def test_the_17_values_are_those_of_numpy(overrides: tuple[str, ...], tmp_path: Path) -> None:
    """Each value of each step, and no other name but the one that the test adds."""
    run = ppo_runs.run(tmp_path, 4, *SMALL, *overrides)
    assert [set(values) for values in run.logged] == [NAMES | {"seconds"}] * 4
    wrong = {step: differences(ppo_runs.expected(run, step), values) for step, values in enumerate(run.logged)}
    assert wrong == {step: [] for step in range(4)}
    assert all(values["eps"] > 0 for values in run.logged)
    assert max(values["policy/clipfrac_avg"] for values in run.logged) > 0
    assert max(values["val/clipfrac_avg"] for values in run.logged) > 0
    assert run.logged[0]["objective/kl"] == pytest.approx(0, abs=1e-6) != run.logged[3]["objective/kl"]


def test_the_clean_names_are_exact_over_tokens(tmp_path: Path) -> None:
    """`declog=ppo`: the same code, and values that padding and the sizes of micro-batches do not touch."""
    run = ppo_runs.run(tmp_path, 3, *SMALL, "declog=ppo")
    for step, values in enumerate(run.logged):
        right = ppo.pooled(*run.rollout(step), run.settings)
        assert differences(right, values) == []
        assert len(right) == 24
        assert {"loss", "grad_norm", "learning_rate", "episodes", "rewards/correct/mean"} <= set(values)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Long enough to learn."""
    return ppo_runs.run(tmp_path_factory.mktemp("ppo"), 12, "prompts=128", "epochs=3")


def test_the_policy_learns(short: Run) -> None:
    """The score rises, and ever more completions end."""
    scores = [values["objective/scores"] for values in short.logged]
    assert sum(scores[-3:]) > 3 * abs(sum(scores[:3]))
    assert short.logged[-1]["val/num_eos_tokens"] > short.logged[0]["val/num_eos_tokens"]
    assert "reward by step" in short.output
