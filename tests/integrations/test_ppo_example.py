"""The PPO example: what it logs under TRL's names, and under those of `ppo`, is what numpy makes of its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import declog
from declog.runtime.ranks.comm import Comm
from declog.testing import MemorySink, run_ranks
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


def halves(run: Run) -> list[tuple[ppo.Rollout, list[ppo.Update]]]:
    """The last step's rollout as two ranks would have it, each with its part of every micro-batch."""
    rollout, updates = run.rollout(len(run.saved) - 1)
    count, found = len(rollout.scores) // 2, []
    for rank in range(2):
        mine = slice(rank * count, (rank + 1) * count)
        part = ppo.Rollout(*(getattr(rollout, each.name)[mine] for each in fields(ppo.Rollout)))
        pieces = []
        for update in updates:
            own = (update.rows >= mine.start) & (update.rows < mine.stop)
            pieces.append(ppo.Update(update.rows[own] - mine.start, *(each[own] for each in astuple(update)[1:])))
        found.append((part, pieces))
    return found


def calls(rollout: ppo.Rollout, updates: Sequence[ppo.Update], settings: ppo.Settings) -> list[dict[str, Any]]:
    """What a step observes, prepared by the oracle: the rollout, then each micro-batch."""
    made = ppo.prepared(rollout, settings)
    both = {
        "completion_mask": rollout.mask, "value_mask": made["further"], "old_logprobs": rollout.logprobs,
        "old_values": made["values"], "advantages": made["advantages"], "returns": made["returns"],
    }  # fmt: skip
    tokens = np.where(rollout.ends, ppo_runs.EOS, 0)
    found = [{"reward": rollout.scores, "tokens": tokens, "ref_logprobs": rollout.ref_logprobs, **both}]
    for update in updates:
        rows = {name: value[update.rows] for name, value in both.items()}
        found.append({"logprobs": update.logprobs, "values": update.values, "entropy": update.entropy, **rows})
    return found


@pytest.mark.parametrize("preset", ["trl_ppo", "ppo"])
def test_two_ranks(preset: str, short: Run, tmp_path: Path) -> None:
    """TRL's names: a mean of ranks' means, as numpy has it. The clean ones: what one process has of all rows."""
    eos = [f"declog.constants.eos_token_id={ppo_runs.EOS}"] if preset == "trl_ppo" else []
    overrides = ["declog.sinks=[]", "declog.every=1", "+declog.run.strict=true", "declog.constants.beta=0.02", *eos]
    config = declog.compose(preset, overrides)
    parts, settings = halves(short), short.settings
    given = [calls(*part, settings) for part in parts]

    def logged(comm: Comm | None, observed: Sequence[dict[str, Any]], folder: Path) -> dict[str, float]:
        sink = MemorySink()
        sinks = [] if comm is not None and comm.rank else [sink]
        with declog.start(config, sinks=sinks, comm=comm, output_dir=folder) as log, log.step(0):
            for each in observed:
                log.observe(**each)
        return {name: value for name, value in sink.scalars.get(0, {}).items() if not name.startswith("declog/")}

    found, _ = run_ranks(2, lambda comm: logged(comm, given[comm.rank], tmp_path / "two"))
    if preset == "trl_ppo":
        expected = ppo.trl(parts, settings)
        assert differences(expected, found, rel=1e-6) == [] and len(expected) == 14
    else:
        (one, *own), (other, *theirs) = given
        union = {name: np.concatenate([one[name], other[name]]) for name in one}
        expected = logged(None, [union, *own, *theirs], tmp_path / "one")
        assert found == pytest.approx(expected, rel=1e-9) and len(expected) > 20
