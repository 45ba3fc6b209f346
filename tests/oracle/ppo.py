"""TRL's PPO in numpy: the 17 values of trl.experimental.ppo.PPOTrainer, and those of the preset `ppo`, from tensors.

Written after ``PPOTrainer.train`` of TRL 1.12, step by step, padding included. Imports nothing of declog, and takes
only what a policy gave: token ids, log-probabilities, values, entropies and scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
INVALID_LOGPROB = 1.0


@dataclass(frozen=True)
class Rollout:
    """One rank's: scores [n], the rest [n, tokens]; ``mask`` is true where a token of the completion exists."""

    scores: Array
    mask: NDArray[np.bool_]
    logprobs: Array
    ref_logprobs: Array
    values: Array
    ends: NDArray[np.bool_]  # where the token is the one that ends a completion


@dataclass(frozen=True)
class Update:
    """A micro-batch: which rows of the rollout, and what the policy made of them, [rows, tokens] each."""

    rows: NDArray[np.int64]
    logprobs: Array
    entropy: Array
    values: Array


@dataclass(frozen=True)
class Settings:
    """What the values depend on; ``slots`` is how many micro-batches TRL averages over, where there are fewer."""

    beta: float
    gamma: float
    lam: float
    epsilon: float
    value_clip: float
    whiten_rewards: bool = False
    kl_estimator: str = "k1"
    slots: int | None = None
    entropy_of_padding: bool = False  # TRL before 1.10


def prepared(rollout: Rollout, settings: Settings) -> dict[str, Array]:
    """KL, rewards, advantages, returns and padded inputs, as TRL has them before its first gradient step."""
    there = rollout.mask
    count, width = there.shape
    last = there.sum(1) - 1
    further = np.arange(width) <= last[:, None] + 1
    logprobs = np.where(there, rollout.logprobs, INVALID_LOGPROB)
    ref_logprobs = np.where(there, rollout.ref_logprobs, INVALID_LOGPROB)
    values = np.where(further, rollout.values, 0.0)
    gap = ref_logprobs - logprobs
    kl = -gap if settings.kl_estimator == "k1" else np.exp(gap) - 1 - gap
    rewards = -settings.beta * kl
    rewards[np.arange(count), np.where(last + 1 < width, last + 1, last)] += rollout.scores
    if settings.whiten_rewards:
        mean, var = rewards[further].mean(), rewards[further].var(ddof=1)
        rewards = np.where(further, (rewards - mean) / np.sqrt(var + 1e-8) + mean, 0.0)
    raw, after = np.zeros_like(rewards), np.zeros(count)
    for place in range(width - 1, -1, -1):
        ahead = values[:, place + 1] if place < width - 1 else 0.0
        after = rewards[:, place] + settings.gamma * ahead - values[:, place] + settings.gamma * settings.lam * after
        raw[:, place] = after
    mean, var = raw[there].mean(), raw[there].var(ddof=1)
    advantages = np.where(there, (raw - mean) / np.sqrt(var + 1e-8), 0.0)
    return {
        "logprobs": logprobs, "kl": kl, "values": values, "returns": raw + values, "advantages": advantages,
        "further": further,
    }  # fmt: skip


def trl(ranks: Sequence[tuple[Rollout, Sequence[Update]]], settings: Settings) -> dict[str, float]:
    """One update's values by TRL's names, but for `eps`, `lr` and `episode`: ranks have equally many completions."""
    rows: dict[str, list[float]] = {}
    stats: dict[str, list[float]] = {}
    for rollout, updates in ranks:
        made = prepared(rollout, settings)
        counted = True if settings.entropy_of_padding else rollout.mask
        penalty = (-settings.beta * made["kl"]).sum(1).mean()
        for name, value in {
            "objective/kl": made["kl"].sum(1).mean(),
            "objective/entropy": np.where(counted, -made["logprobs"], 0.0).sum(1).mean(),
            "objective/non_score_reward": penalty,
            "objective/rlhf_reward": penalty + rollout.scores.mean(),
            "objective/scores": rollout.scores.mean(),
        }.items():
            rows.setdefault(name, []).append(float(value))
        for update in updates:
            for name, value in micro_batch(rollout, made, update, settings).items():
                stats.setdefault(name, []).append(value)
        for values in stats.values():
            values += [0.0] * ((settings.slots or len(updates)) - len(updates))
    found = {name: float(np.mean(values)) for name, values in [*rows.items(), *stats.items()]}
    found["val/ratio_var"] = float(np.var(stats["val/ratio"], ddof=1))
    found["val/num_eos_tokens"] = float(ranks[0][0].ends.sum())
    return found


def micro_batch(rollout: Rollout, made: Mapping[str, Any], update: Update, settings: Settings) -> dict[str, float]:
    """What TRL keeps of one micro-batch."""
    there, further = rollout.mask[update.rows], made["further"][update.rows]
    advantages, returns, old_values = (made[name][update.rows] for name in ("advantages", "returns", "values"))
    gap = np.where(there, update.logprobs, INVALID_LOGPROB) - made["logprobs"][update.rows]
    ratio = np.exp(gap)
    values = np.where(further, update.values, 0.0)
    near = np.clip(values, old_values - settings.value_clip, old_values + settings.value_clip)
    value_losses = (values - returns) ** 2, (near - returns) ** 2
    losses = -advantages * ratio, -advantages * np.clip(ratio, 1 - settings.epsilon, 1 + settings.epsilon)
    return {
        "policy/approxkl_avg": float(0.5 * (gap**2).mean()),
        "policy/clipfrac_avg": float((losses[1] > losses[0])[there].mean()),
        "loss/policy_avg": float(np.maximum(*losses)[there].mean()),
        "loss/value_avg": float(0.5 * np.maximum(*value_losses)[further].mean()),
        "val/clipfrac_avg": float((value_losses[1] > value_losses[0])[further].mean()),
        "policy/entropy_avg": float(update.entropy.mean()),
        "val/ratio": float(ratio.mean()),
    }


def pooled(rollout: Rollout, updates: Sequence[Update], settings: Settings) -> dict[str, float]:
    """Values of the preset `ppo`: each completion, and each token that exists, counts once."""
    made, there = prepared(rollout, settings), rollout.mask
    returns, values = made["returns"][there], made["values"][there]
    found = {
        "reward": rollout.scores.mean(),
        "reward_std": rollout.scores.std(ddof=1),
        "reward_after_kl": (rollout.scores - settings.beta * made["kl"].sum(1)).mean(),
        "kl": made["kl"][there].mean(),
        "kl/sequence": made["kl"].sum(1).mean(),
        "advantages/mean": made["advantages"][there].mean(),
        "advantages/std": made["advantages"][there].std(ddof=1),
        "values/mean": values.mean(),
        "values/std": values.std(ddof=1),
        "returns/mean": returns.mean(),
        "returns/std": returns.std(ddof=1),
        "explained_variance": 1 - (returns - values).var() / returns.var(),
        "completions/mean_length": there.sum(1).mean(),
    }
    columns: dict[str, list[Array]] = {}
    for update in updates:
        mask = there[update.rows]
        advantages = made["advantages"][update.rows][mask]
        gap = (update.logprobs - rollout.logprobs[update.rows])[mask]
        ratio = np.exp(gap)
        low, high = 1 - settings.epsilon, 1 + settings.epsilon
        old_values, targets = made["values"][update.rows], made["returns"][update.rows]
        new, old, target = (each[mask] for each in (update.values, old_values, targets))
        near = np.clip(new, old - settings.value_clip, old + settings.value_clip)
        for name, column in {
            "entropy": update.entropy[mask],
            "approx_kl": ratio - 1 - gap,
            "ratio/mean": ratio,
            "clip_ratio/low_mean": (ratio < low) & (advantages < 0),
            "clip_ratio/high_mean": (ratio > high) & (advantages > 0),
            "clip_ratio/region_mean": ((ratio < low) & (advantages < 0)) | ((ratio > high) & (advantages > 0)),
            "policy_loss": np.maximum(-advantages * ratio, -advantages * np.clip(ratio, low, high)),
            "value_loss": 0.5 * np.maximum((new - target) ** 2, (near - target) ** 2),
            "clip_ratio/value_mean": (near - target) ** 2 > (new - target) ** 2,
        }.items():
            columns.setdefault(name, []).append(np.asarray(column, np.float64))
    found |= {name: np.concatenate(parts).mean() for name, parts in columns.items()}
    ratios = np.concatenate(columns["ratio/mean"])
    found |= {"ratio/min": ratios.min(), "ratio/max": ratios.max()}
    return {name: float(value) for name, value in found.items()}
