"""A small transformer learns to add with GRPO, from scratch on a CPU, and declog logs the metrics of a YAML file.

    python examples/grpo_arithmetic.py                      GRPO, about a minute
    python examples/grpo_arithmetic.py algorithm=rloo       RLOO, with the preset of that name
    python examples/grpo_arithmetic.py '+declog.metrics.reward_p90="p90(reward)"'

`conf/grpo_arithmetic.yaml` declares what is logged. This file observes raw tensors and computes no metric.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import hydra
import torch
from arithmetic.model import Policy, sample, token_statistics
from arithmetic.policy_gradient import ALGORITHMS, GRPO
from arithmetic.report import report
from arithmetic.tasks import PROMPT_LENGTH, VOCABULARY, draw_sums, encode, scored
from omegaconf import DictConfig
from torch import Tensor

import declog


@dataclass(frozen=True)
class Rollout:
    """Completions in groups of equal prompts: token ids [n, prompt + completion], advantages [n], others by token."""

    tokens: Tensor
    mask: Tensor
    logprobs: Tensor
    ref_logprobs: Tensor
    advantages: Tensor


@hydra.main(version_base="1.3", config_path="conf", config_name="grpo_arithmetic")
def main(cfg: DictConfig) -> None:
    """Train, then print where the log is."""
    torch.manual_seed(cfg.seed)
    torch.set_num_threads(cfg.threads)
    policy = Policy(len(VOCABULARY), PROMPT_LENGTH + cfg.completion_length, **cfg.model)
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizer = torch.optim.Adam(policy.parameters(), lr=cfg.learning_rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, cfg.final_lr, total_iters=cfg.steps)
    algorithm = ALGORITHMS[cfg.algorithm](cfg.group_size, cfg.beta, cfg.epsilon_low, cfg.epsilon_high)

    shown = cfg.declog.sink_options.console.every
    print(f"{cfg.steps} steps take about a minute on an idle CPU; the console shows one of {shown}", flush=True)
    log = declog.start(cfg)
    with log:
        for step in range(cfg.steps):
            with log.step(step):
                with log.timer("generate"):
                    rollout = generate(cfg, policy, reference, algorithm)
                with log.timer("update"):
                    update(cfg, policy, optimizer, algorithm, rollout)
                schedule.step()
    assert log.output_dir is not None  # a single process is rank 0, which has the files
    report(log.output_dir, project=cfg.declog.run.project)


@torch.no_grad()
def generate(cfg: DictConfig, policy: Policy, reference: Policy, algorithm: GRPO) -> Rollout:
    """Sample a group of completions for each prompt and score them."""
    drawn = [each for each in draw_sums(cfg.prompts, cfg.largest_operand) for _ in range(cfg.group_size)]
    tokens = sample(policy, encode([prompt for prompt, _ in drawn]), cfg.completion_length)
    weights = dict(cfg.reward_weights)
    found = scored(drawn, tokens, weights)
    declog.observe(
        prompt=found.prompts,
        completion=found.completions,
        rewards=found.rewards,
        reward_weights=weights,
        length=found.length,
        truncated=found.truncated,
    )

    logprobs, _ = token_statistics(policy(tokens[:, :-1]), tokens, PROMPT_LENGTH)
    ref_logprobs, _ = token_statistics(reference(tokens[:, :-1]), tokens, PROMPT_LENGTH)
    reward = torch.stack([weights[name] * found.rewards[name] for name in weights]).sum(0)
    advantages = algorithm.advantages(reward, found.mask, logprobs, ref_logprobs)
    return Rollout(tokens, found.mask, logprobs, ref_logprobs, advantages)


def update(
    cfg: DictConfig, policy: Policy, optimizer: torch.optim.Optimizer, algorithm: GRPO, rollout: Rollout
) -> None:
    """Take several gradient steps on one rollout: the policy moves away from the sampling one, and ratios from 1."""
    starts = range(0, len(rollout.tokens), cfg.minibatch)
    for rows in [slice(start, start + cfg.minibatch) for start in starts] * cfg.epochs:
        mask, advantages = rollout.mask[rows], rollout.advantages[rows]
        old_logprobs, ref_logprobs = rollout.logprobs[rows], rollout.ref_logprobs[rows]
        tokens = rollout.tokens[rows]
        logprobs, entropy = token_statistics(policy(tokens[:, :-1]), tokens, PROMPT_LENGTH)
        loss = algorithm.loss(advantages, mask, logprobs, old_logprobs, ref_logprobs)
        optimizer.zero_grad()
        loss.backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), cfg.max_grad_norm)
        optimizer.step()
        declog.observe(
            completion_mask=mask,
            advantages=advantages,
            logprobs=logprobs,
            old_logprobs=old_logprobs,
            ref_logprobs=ref_logprobs,
            entropy=entropy,
            loss=loss,
            grad_norm=grad_norm,
            learning_rate=optimizer.param_groups[0]["lr"],
        )


if __name__ == "__main__":
    main()
