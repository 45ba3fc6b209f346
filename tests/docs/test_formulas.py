"""docs/metrics.md: three metrics of each preset, written in numpy from the page alone, equal what declog logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import declog
from declog.testing import MemorySink
from tests.docs.catalogue import presets

RNG = np.random.default_rng(24)
ROWS, GROUP = 8, 4
PADDING = 99.0
Values = dict[str, Any]
# a call of observe for each batch of a step; what numpy gives for the window of all steps
Case = tuple[Sequence[Sequence[Values]], Mapping[str, Any]]


def batch(rows: int, width: int, *names: str) -> Values:
    """Per-token signals of a batch; what the mask leaves out is no value that a formula could use by mistake."""
    lengths = RNG.integers(1, width + 1, rows)
    lengths[0] = width
    mask = np.arange(width) < lengths[:, None]
    values = {name: np.where(mask, RNG.normal(-1, 0.3, (rows, width)), PADDING) for name in names}
    return {"completion_mask": mask, **values}


def tokens(batches: Sequence[Values], name: str) -> np.ndarray:
    """The values of all tokens that exist, of several batches."""
    return np.concatenate([each[name][each["completion_mask"]] for each in batches])


def per_token(batch: Values, name: str) -> np.ndarray:
    """A value per completion at each of its tokens that exist."""
    return np.broadcast_to(np.asarray(batch[name])[:, None], batch["completion_mask"].shape)[batch["completion_mask"]]


def completions(batch: Values, values: np.ndarray, reduce: Callable[..., Any]) -> np.ndarray:
    """A reduction of the tokens of each completion."""
    return np.array([reduce(row[mask]) for row, mask in zip(values, batch["completion_mask"], strict=True)])


def updates(*names: str) -> list[Values]:
    """Two micro-batches of other widths."""
    return [{**batch(4, width, *names), "advantages": RNG.normal(0, 1, 4)} for width in (5, 7)]


def grpo() -> Case:
    reward = RNG.normal(0, 1, ROWS).round(2)
    two = updates("logprobs", "old_logprobs", "ref_logprobs")
    gap = tokens(two, "ref_logprobs") - tokens(two, "logprobs")
    least = []
    for each in two:
        ratio = np.exp(each["logprobs"] - each["old_logprobs"])
        low = (ratio < 1 - 0.2) & (each["advantages"][:, None] < 0)
        least.append(completions(each, low, np.mean).min())
    return [[{"reward": reward, "prompt_id": np.arange(ROWS) // GROUP}, *two]], {
        "kl": np.mean(np.exp(gap) - gap - 1),
        "group_reward_std": np.mean([group.std(ddof=1) for group in reward.reshape(-1, GROUP)]),
        "clip_ratio/low_min": min(least),
    }


def rloo() -> Case:
    two = updates("logprobs", "old_logprobs", "ref_logprobs")
    kl = [completions(each, each["logprobs"] - each["ref_logprobs"], np.sum) for each in two]
    ratio = [np.exp(completions(each, each["logprobs"] - each["old_logprobs"], np.sum)) for each in two]
    return [two], {
        "kl": np.mean(tokens(two, "logprobs") - tokens(two, "ref_logprobs")),
        "kl/sequence": np.mean(np.concatenate(kl)),
        "ratio/max": np.max(np.concatenate(ratio)),
    }


def ppo() -> Case:
    rollout = batch(ROWS, 6, "old_logprobs", "ref_logprobs", "old_values", "returns", "advantages")
    rollout["reward"] = RNG.normal(0, 1, ROWS)
    names = ("old_logprobs", "old_values", "returns", "advantages", "completion_mask")
    two = [{name: rollout[name][part] for name in names} for part in (slice(0, 4), slice(4, ROWS))]
    for each in two:
        each["logprobs"] = each["old_logprobs"] + RNG.normal(0, 0.3, (4, 6))
    ratio = np.exp(tokens(two, "logprobs") - tokens(two, "old_logprobs"))
    advantages = tokens(two, "advantages")
    kl = completions(rollout, -(rollout["ref_logprobs"] - rollout["old_logprobs"]), np.sum)
    returns, old_values = tokens([rollout], "returns"), tokens([rollout], "old_values")
    return [[rollout, *two]], {
        "reward_after_kl": np.mean(rollout["reward"] - 0.05 * kl),
        "policy_loss": np.mean(np.maximum(-advantages * ratio, -advantages * np.clip(ratio, 0.8, 1.2))),
        "explained_variance": 1 - np.var(returns - old_values, ddof=1) / np.var(returns, ddof=1),
    }


def maxent_grpo() -> Case:
    rollout = {
        "reward": RNG.normal(0, 1, ROWS),
        "length": RNG.integers(1, 9, ROWS),
        "prompt_id": np.arange(ROWS) // GROUP,
        "advantages": np.where(np.arange(ROWS) < GROUP, 0.0, RNG.normal(0, 1, ROWS)),
    }
    losses = [0.25, -1.5]
    return [[rollout, *({"loss": loss} for loss in losses)]], {
        "train/reward_std": np.std(rollout["reward"]),
        "train/frac_reward_zero_std": np.mean(
            [np.all(np.abs(rollout["advantages"].reshape(-1, GROUP)) < 1e-8, axis=1)]
        ),
        "train/loss_per_completion_token": np.mean(losses) / rollout["length"].sum(),
    }


def forge_grpo() -> Case:
    rollout: dict[str, Any] = {
        "rewards": {"math": RNG.normal(0, 1, ROWS)},
        "response_len": RNG.integers(1, 9, ROWS),
        "policy_age": RNG.integers(0, 5, ROWS),
    }
    return [[rollout]], {
        "reward/evaluate_response/std_math_reward": np.std(rollout["rewards"]["math"]),
        "generator/generate/avg_tokens_generated": np.mean(rollout["response_len"]),
        "buffer/sample/max_sampled_policy_age": rollout["policy_age"].max(),
    }


def minimal() -> Case:
    values = RNG.normal(0, 1, ROWS)
    return [[{"loss": 0.5, "score": values}, {"loss": 0.25}]], {
        "loss": 0.375,
        "score/mean": values.mean(),
        "score/std": values.std(ddof=1),
    }


def trainer() -> Case:
    steps = [{"loss": 0.5, "reward": 1.0, "global_step": 1}, {"loss": 1.5, "reward": 4.0, "global_step": 2}]
    return [[step] for step in steps], {"loss": 1.0, "reward": 2.5, "global_step": 2}


def tee() -> Case:
    return [[{"loss": 0.5, "lr": 1e-3, "kl": 0.1}]], {"loss": 0.5, "lr": 1e-3, "kl": 0.1}


def trl_async_grpo() -> Case:
    samples = [
        {"reward": RNG.normal(0, 1, 4), "length": RNG.integers(1, 9, 4), "staleness": RNG.integers(0, 4, 4)}
        for _ in range(2)
    ]
    reward, length, staleness = (np.concatenate([each[name] for each in samples]) for name in samples[0])
    return [[each] for each in samples], {
        "trained/reward_std": reward.std(ddof=1),
        "trained/length_max": length.max(),
        "trained/staleness_mean": staleness.mean(),
    }


def generation(rewards: np.ndarray, cut: np.ndarray) -> Values:
    """What TRL's trainers know of four completions of two prompts."""
    return {
        "row": np.arange(4), "prompt_id": np.arange(4) // 2, "length": RNG.integers(1, 9, 4), "truncated": cut,
        "completion_mask": np.ones((4, 3), bool), "rewards": {"math": rewards}, "reward_weights": {"math": 2.0},
        "num_input_tokens_seen": 40,
    }  # fmt: skip


def generations() -> list[Values]:
    """Two; all completions of the second are cut."""
    return [generation(RNG.normal(0, 1, 4), cut) for cut in (np.array([True, False, False, False]), np.ones(4, bool))]


def trl_grpo() -> Case:
    two = generations()
    batches = [
        {**batch(4, width, "logprobs", "old_logprobs", "entropy"), "advantages": RNG.normal(0, 1, 4)}
        for width in (5, 7)
    ]
    ended = [each["length"][~each["truncated"]] for each in two]
    low = []
    for each in batches:
        ratio = np.exp(each["logprobs"] - each["old_logprobs"])[each["completion_mask"]]
        low.append(np.mean((ratio < 1 - 0.2) & (per_token(each, "advantages") < 0)))
    steps = [[each, {"row": np.arange(4), **update}] for each, update in zip(two, batches, strict=True)]
    return steps, {
        "completions/mean_terminated_length": np.mean([part.mean() if part.size else 0 for part in ended]),
        "reward_std": np.mean([(2.0 * each["rewards"]["math"]).std(ddof=1) for each in two]),
        "clip_ratio/low_mean": np.mean(low),
    }


def trl_rloo() -> Case:
    two = generations()
    steps, high, equal = [], [], []
    for each in two:
        update = {**batch(4, 5, "logprobs", "old_logprobs", "entropy"), "advantages": RNG.normal(0, 1, 4)}
        each["old_logp_sum"] = completions(update, update["old_logprobs"], np.sum)
        each["rewards"]["math"][:2] = 1.0
        ratio = np.exp(completions(update, update["logprobs"], np.sum) - each["old_logp_sum"])
        high.append(np.mean((ratio > 1 + 0.2) & (update["advantages"] > 0)))
        equal.append(np.mean((2.0 * each["rewards"]["math"]).reshape(2, 2).std(axis=1, ddof=1) <= 1e-8))
        del update["old_logprobs"]
        steps.append([each, {"row": np.arange(4), **update}])
    return steps, {
        "clip_ratio/high_mean": np.mean(high),
        "frac_reward_zero_std": np.mean(equal),
        "reward": np.mean([2.0 * each["rewards"]["math"].mean() for each in two]),
    }


def trl_ppo() -> Case:
    rollout = ppo()[0][0]
    first, *two = rollout
    kl = completions(first, -(first["ref_logprobs"] - first["old_logprobs"]), np.sum)
    ratios, losses = [], []
    for each in two:
        mask, ratio = each["completion_mask"], np.exp(each["logprobs"] - each["old_logprobs"])
        ratios.append(np.where(mask, ratio, 1).mean())
        greater = np.maximum(-each["advantages"] * ratio, -each["advantages"] * np.clip(ratio, 0.8, 1.2))
        losses.append(greater[mask].mean())
    return [rollout], {"objective/kl": kl.mean(), "val/ratio": np.mean(ratios), "loss/policy_avg": np.mean(losses)}


def verl_ppo() -> Case:
    names = ("token_level_scores", "token_level_rewards", "advantages", "returns", "values")
    two = []
    for _ in range(2):
        each = batch(ROWS, 6, *names)
        each["response_length"] = each["completion_mask"].sum(axis=1)
        each["response_mask"] = each["completion_mask"]
        each["max_response_length"] = 6
        two.append(each)
    length = np.concatenate([each["response_length"] for each in two])
    returns, values = tokens(two, "returns"), tokens(two, "values")
    shown = [{name: value for name, value in each.items() if name != "completion_mask"} for each in two]
    return [[each] for each in shown], {
        "critic/advantages/min": tokens(two, "advantages").min(),
        "critic/vf_explained_var": 1 - np.var(returns - values, ddof=1) / (np.var(returns, ddof=1) + 0.00001),
        "response_length/clip_ratio": np.mean(length == 6),
    }


CASES: dict[str, Callable[[], Case]] = {
    case.__name__: case
    for case in (
        grpo, rloo, ppo, maxent_grpo, forge_grpo, minimal, trainer, tee, trl_async_grpo, trl_grpo, trl_rloo, trl_ppo,
        verl_ppo,
    )
}  # fmt: skip


def test_every_preset_has_a_case() -> None:
    """Each of them, so that a new preset says what its formulas mean."""
    assert sorted(CASES) == sorted(presets())


@pytest.mark.parametrize("preset", CASES)
def test_a_formula_of_the_page_says_what_is_logged(preset: str, tmp_path: Path) -> None:
    """A window of all steps, of batches with other widths and padding that is no number to use."""
    steps, expected = CASES[preset]()
    sink = MemorySink()
    passed_on = preset in ("trainer", "tee")
    every = "trainer" if declog.config_of(preset).get("every") == "trainer" else len(steps)
    with declog.start(preset, ["sinks=[]", f"every={every}"], sinks=[sink], output_dir=tmp_path) as log:
        for step, calls in enumerate(steps):
            with log.step(step):
                for call in calls:
                    log.scalars(call, step) if passed_on else log.observe(**call)
        log.flush()
    logged = sink.scalars[len(steps) - 1]
    assert len(expected) == 3
    assert {name: logged.get(name) for name in expected} == pytest.approx(dict(expected), rel=1e-5)
