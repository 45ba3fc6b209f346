"""GRPO on sums with the smallest possible policy: a table of logits for each sum. Observes raw tensors.

The functions do not know about processes: their results depend on the arguments only, and they observe with the open
recorder.
"""

from __future__ import annotations

import torch
from omegaconf import DictConfig
from torch import Tensor

import declog
from arithmetic.policy_gradient import GRPO
from arithmetic.tasks import END, REWARDS, VOCABULARY, decode


def initial_weights(cfg: DictConfig) -> Tensor:
    """The logits [prompts, completion, vocabulary] of a uniform policy, so that all tokens are tried."""
    sums = (cfg.largest_operand + 1) ** 2
    return torch.zeros(sums, cfg.completion_length, len(VOCABULARY), dtype=torch.float64)


def mean(weights: list[Tensor]) -> Tensor:
    """The mean of the actors' weights (local SGD, arXiv:1805.09767)."""
    return torch.stack(weights).mean(0)


def improve(cfg: DictConfig, weights: Tensor, number: int, rank: int) -> Tensor:
    """The weights after some gradient steps on a rollout whose seed depends on the step ``number`` and the ``rank``."""
    chance = torch.Generator().manual_seed(cfg.seed + 1000 * number + rank)  # each actor draws another rollout
    algorithm = GRPO(cfg.group_size, cfg.beta, cfg.epsilon_low, cfg.epsilon_high)
    drawn = torch.randint(len(weights), (cfg.prompts,), generator=chance).repeat_interleave(cfg.group_size)
    sampler = weights[drawn].softmax(-1)
    tokens = torch.multinomial(sampler.flatten(0, 1), 1, generator=chance).view(len(drawn), -1)
    rewards, mask = observed_rewards(cfg, drawn, tokens)
    reward = torch.stack([cfg.reward_weights[name] * values for name, values in rewards.items()]).sum(0)
    old_logprobs = logprobs_of(sampler.log(), tokens)
    ref_logprobs = torch.full_like(old_logprobs, -float(torch.tensor(len(VOCABULARY)).log()))  # of the initial weights
    advantages = algorithm.advantages(reward, mask, old_logprobs, ref_logprobs)
    policy = weights.clone().requires_grad_()
    for _ in range(cfg.epochs):
        distribution = policy[drawn].log_softmax(-1)
        logprobs = logprobs_of(distribution, tokens)
        loss = algorithm.loss(advantages, mask, logprobs, old_logprobs, ref_logprobs)
        (gradient,) = torch.autograd.grad(loss, policy)
        with torch.no_grad():
            policy -= cfg.learning_rate * gradient
        declog.observe(
            completion_mask=mask,
            advantages=advantages,
            logprobs=logprobs,
            old_logprobs=old_logprobs,
            ref_logprobs=ref_logprobs,
            entropy=-(distribution.exp() * distribution).sum(-1),
            loss=loss,
            grad_norm=gradient.norm(),
            learning_rate=cfg.learning_rate,
        )
    return policy.detach()


def observed_rewards(cfg: DictConfig, drawn: Tensor, tokens: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Observe completions; return their rewards by name, and the mask of their tokens."""
    operands = [divmod(place, cfg.largest_operand + 1) for place in drawn.tolist()]
    prompts, answers = [f"{a}+{b}=" for a, b in operands], [a + b for a, b in operands]
    completions = decode(tokens)
    length = torch.tensor([len(text) for text in completions])
    rewards = {
        name: torch.tensor(REWARDS[name](prompts, completions, answers), dtype=torch.float64)
        for name in cfg.reward_weights
    }
    declog.observe(
        prompt=prompts,
        completion=completions,
        rewards=rewards,
        reward_weights=dict(cfg.reward_weights),
        length=length,
        truncated=torch.tensor([not text.endswith(END) for text in completions]),
    )
    return rewards, torch.arange(tokens.shape[1]) < length.unsqueeze(1)


def logprobs_of(distribution: Tensor, tokens: Tensor) -> Tensor:
    """The log-probability of each token."""
    return distribution.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
