"""A small transformer with a value head learns to add with PPO, from scratch on a CPU, logged under TRL's names.

    python examples/ppo_arithmetic.py                       the preset `trl_ppo`, about a minute
    python examples/ppo_arithmetic.py declog=ppo            the preset `ppo`: clean names, exact over tokens
    python examples/ppo_arithmetic.py '+declog.metrics.kl_p95="p95(kl_sequence)"'

`conf/ppo_arithmetic.yaml` declares what is logged. This file observes raw tensors and computes no metric.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import hydra
import torch
from arithmetic.model import ActorCritic, sample, token_statistics
from arithmetic.ppo import PPO, value_mask
from arithmetic.report import report
from arithmetic.tasks import PROMPT_LENGTH, VOCABULARY, draw_sums, encode, scored
from omegaconf import DictConfig
from torch import Tensor

import declog


@dataclass(frozen=True)
class Rollout:
    """Completions: token ids [n, prompt + completion], scores [n], all others [n, completion]."""

    tokens: Tensor
    scores: Tensor
    mask: Tensor
    logprobs: Tensor
    ref_logprobs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor


@hydra.main(version_base="1.3", config_path="conf", config_name="ppo_arithmetic")
def main(cfg: DictConfig) -> None:
    """Train, then print where the log is."""
    torch.manual_seed(cfg.seed)
    torch.set_num_threads(cfg.threads)
    policy = ActorCritic(len(VOCABULARY), PROMPT_LENGTH + cfg.completion_length, **cfg.model)
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizer = torch.optim.Adam(policy.parameters(), lr=cfg.learning_rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, cfg.final_lr, total_iters=cfg.steps)
    algorithm = PPO(
        cfg.beta, cfg.gamma, cfg.lam, cfg.epsilon, cfg.value_clip, cfg.value_weight, cfg.whiten_rewards
    )  # fmt: skip
    kept: list[tuple[Rollout, list[tuple[Tensor, ...]]]] = []

    log = declog.start(cfg)
    with log:
        for step in range(cfg.steps):
            with log.step(step):
                rollout = generate(cfg, policy, reference, algorithm)
                declog.observe(episode=(step + 1) * len(rollout.tokens), learning_rate=schedule.get_last_lr()[0])
                updates = update(cfg, policy, optimizer, algorithm, rollout)
                if cfg.save_tensors is not None:
                    kept.append((rollout, updates))
                schedule.step()
    if cfg.save_tensors is not None:
        torch.save([(vars(rollout), updates) for rollout, updates in kept], Path(cfg.save_tensors))
    assert log.output_dir is not None  # a single process is rank 0, which has the files
    report(log.output_dir, project=cfg.declog.run.project, reward=cfg.plotted)


@torch.no_grad()
def generate(cfg: DictConfig, policy: ActorCritic, reference: ActorCritic, algorithm: PPO) -> Rollout:
    """Sample a completion for each prompt, score it, and compute the advantage of each token."""
    drawn = draw_sums(cfg.prompts, cfg.largest_operand)
    tokens = sample(policy, encode([prompt for prompt, _ in drawn]), cfg.completion_length)
    found = scored(drawn, tokens, cfg.reward_weights)
    mask = found.mask
    scores = torch.stack([weight * found.rewards[name] for name, weight in cfg.reward_weights.items()]).sum(0)
    scores = scores - cfg.missing_eos_penalty * found.truncated

    logprobs, _, values = statistics(policy, tokens)
    ref_logprobs, _, _ = statistics(reference, tokens)
    values = values * value_mask(mask)
    shaped = algorithm.rewards(scores, logprobs, ref_logprobs, mask)
    advantages, returns = algorithm.advantages(shaped, values, mask)
    declog.observe(
        prompt=found.prompts,
        completion=found.completions,
        rewards=found.rewards,
        reward=scores,
        length=found.length,
        truncated=found.truncated,
        tokens=tokens[:, PROMPT_LENGTH:].masked_fill(~mask, -1),
        completion_mask=mask,
        value_mask=value_mask(mask),
        old_logprobs=logprobs,
        ref_logprobs=ref_logprobs,
        old_values=values,
        advantages=advantages,
        returns=returns,
    )
    return Rollout(tokens, scores, mask, logprobs, ref_logprobs, values, advantages, returns)


def update(
    cfg: DictConfig, policy: ActorCritic, optimizer: torch.optim.Optimizer, algorithm: PPO, rollout: Rollout
) -> list[tuple[Tensor, ...]]:
    """Take epochs of gradient steps on one rollout; return each minibatch's rows and the policy's statistics."""
    seen: list[tuple[Tensor, ...]] = []
    for _ in range(cfg.epochs):
        for rows in torch.randperm(len(rollout.tokens)).split(cfg.minibatch):
            mask, advantages, returns = rollout.mask[rows], rollout.advantages[rows], rollout.returns[rows]
            old_logprobs, old_values = rollout.logprobs[rows], rollout.values[rows]
            logprobs, entropy, values = statistics(policy, rollout.tokens[rows])
            loss = algorithm.loss(advantages, returns, mask, logprobs, old_logprobs, values, old_values)
            optimizer.zero_grad()
            loss.backward()
            grad_norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), cfg.max_grad_norm)
            optimizer.step()
            declog.observe(
                completion_mask=mask,
                value_mask=value_mask(mask),
                advantages=advantages,
                returns=returns,
                logprobs=logprobs,
                old_logprobs=old_logprobs,
                values=values,
                old_values=old_values,
                entropy=entropy,
                loss=loss,
                grad_norm=grad_norm,
            )
            seen.append((rows, logprobs.detach(), entropy.detach(), values.detach()))
    return seen


def statistics(policy: ActorCritic, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The log-probability of each completion token, the entropy of its distribution, and its value."""
    logits, values = policy.both(tokens[:, :-1])
    return *token_statistics(logits, tokens, PROMPT_LENGTH), values[:, PROMPT_LENGTH - 1 :]


if __name__ == "__main__":
    main()
