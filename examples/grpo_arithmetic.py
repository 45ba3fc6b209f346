"""A small transformer learns to add with GRPO, from scratch on a CPU, and declog logs it as a YAML file says.

    python examples/grpo_arithmetic.py                      GRPO, about a minute
    python examples/grpo_arithmetic.py algorithm=rloo       RLOO, with the preset of that name
    python examples/grpo_arithmetic.py '+declog.metrics.reward_p90="p90(reward)"'

What is logged is said in `conf/grpo_arithmetic.yaml`. This file observes raw tensors and computes no metric.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import hydra
import torch
from arithmetic.model import Policy, sample
from arithmetic.policy_gradient import ALGORITHMS, GRPO
from arithmetic.report import report
from arithmetic.tasks import END, PROMPT_LENGTH, REWARDS, VOCABULARY, decode, draw_sums, encode
from omegaconf import DictConfig
from torch import Tensor

import declog


@dataclass(frozen=True)
class Rollout:
    """Completions of groups of equal prompts: token ids [n, prompt + completion], the rest by completion token."""

    tokens: Tensor
    mask: Tensor
    logprobs: Tensor
    ref_logprobs: Tensor
    advantages: Tensor


@hydra.main(version_base="1.3", config_path="conf", config_name="grpo_arithmetic")
def main(cfg: DictConfig) -> None:
    """Train, then say where the log is."""
    torch.manual_seed(cfg.seed)
    torch.set_num_threads(cfg.threads)
    policy = Policy(len(VOCABULARY), PROMPT_LENGTH + cfg.completion_length, **cfg.model)
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizer = torch.optim.Adam(policy.parameters(), lr=cfg.learning_rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, cfg.final_lr, total_iters=cfg.steps)
    algorithm = ALGORITHMS[cfg.algorithm](cfg.group_size, cfg.beta, cfg.epsilon_low, cfg.epsilon_high)

    log = declog.start(cfg)
    with log:
        for step in range(cfg.steps):
            with log.step(step):
                rollout = generate(cfg, policy, reference, algorithm)
                update(cfg, policy, optimizer, algorithm, rollout)
                schedule.step()
    assert log.output_dir is not None  # one process: its rank is 0, which keeps the files
    report(log.output_dir, project=cfg.declog.name)


@torch.no_grad()
def generate(cfg: DictConfig, policy: Policy, reference: Policy, algorithm: GRPO) -> Rollout:
    """Sample a group of completions for each prompt and score them."""
    drawn = [each for each in draw_sums(cfg.prompts, cfg.largest_operand) for _ in range(cfg.group_size)]
    prompts, answers = [prompt for prompt, _ in drawn], [answer for _, answer in drawn]
    tokens = sample(policy, encode(prompts), cfg.completion_length)
    completions = decode(tokens[:, PROMPT_LENGTH:])
    length = torch.tensor([len(text) for text in completions])
    mask = torch.arange(cfg.completion_length) < length.unsqueeze(1)
    weights = dict(cfg.reward_weights)
    rewards = {name: torch.tensor(REWARDS[name](prompts, completions, answers)) for name in weights}
    declog.observe(
        prompt=prompts,
        completion=completions,
        rewards=rewards,
        reward_weights=weights,
        length=length,
        truncated=torch.tensor([not text.endswith(END) for text in completions]),
    )

    logprobs, _ = token_statistics(policy, tokens)
    ref_logprobs, _ = token_statistics(reference, tokens)
    reward = torch.stack([weights[name] * rewards[name] for name in weights]).sum(0)
    return Rollout(tokens, mask, logprobs, ref_logprobs, algorithm.advantages(reward, mask, logprobs, ref_logprobs))


def update(
    cfg: DictConfig, policy: Policy, optimizer: torch.optim.Optimizer, algorithm: GRPO, rollout: Rollout
) -> None:
    """Take several gradient steps on one rollout: the policy moves off the one that sampled, and ratios off 1."""
    starts = range(0, len(rollout.tokens), cfg.minibatch)
    for rows in [slice(start, start + cfg.minibatch) for start in starts] * cfg.epochs:
        mask, advantages = rollout.mask[rows], rollout.advantages[rows]
        old_logprobs, ref_logprobs = rollout.logprobs[rows], rollout.ref_logprobs[rows]
        logprobs, entropy = token_statistics(policy, rollout.tokens[rows])
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


def token_statistics(policy: Policy, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of each completion token and entropy of the distribution it was drawn from."""
    distribution = policy(tokens[:, :-1])[:, PROMPT_LENGTH - 1 :].log_softmax(-1)
    logprobs = distribution.gather(-1, tokens[:, PROMPT_LENGTH:].unsqueeze(-1)).squeeze(-1)
    return logprobs, -(distribution.exp() * distribution).sum(-1)


if __name__ == "__main__":
    main()
