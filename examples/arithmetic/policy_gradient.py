"""GRPO and RLOO: advantages from groups of completions, and the clipped loss. Imports only torch.

Shapes: rewards and advantages [n], one per completion, groups consecutive; log-probabilities and mask [n, tokens].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class GRPO:
    """Rewards are standardised within a group, each token's ratio is clipped, the KL is part of the loss.

    arXiv:2402.03300; the KL is estimated by its k3 form, exp(d) - d - 1 with d = log(reference / policy).
    """

    group_size: int
    beta: float
    epsilon_low: float
    epsilon_high: float

    def advantages(self, rewards: Tensor, mask: Tensor, logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
        """The reward of each completion minus its group's mean, in the group's standard deviations."""
        groups = rewards.view(-1, self.group_size)
        centred = groups - groups.mean(1, keepdim=True)
        return (centred / (groups.std(1, keepdim=True) + 1e-4)).flatten()

    def loss(
        self, advantages: Tensor, mask: Tensor, logprobs: Tensor, old_logprobs: Tensor, ref_logprobs: Tensor
    ) -> Tensor:
        """The loss to minimise, a mean over tokens."""
        gain = self.clipped((logprobs - old_logprobs).exp(), advantages.unsqueeze(1))
        gap = ref_logprobs - logprobs
        return (self.beta * (gap.exp() - gap - 1) - gain)[mask].mean()

    def clipped(self, ratio: Tensor, advantages: Tensor) -> Tensor:
        """PPO's pessimistic objective: the smaller of the plain and the clipped objective."""
        return torch.minimum(ratio * advantages, ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high) * advantages)


@dataclass(frozen=True)
class RLOO(GRPO):
    """The baseline is the mean of the group's other completions; ratios are by completion; the reward includes the KL.

    arXiv:2402.14740, with several updates per rollout as in TRL's RLOOTrainer.
    """

    def advantages(self, rewards: Tensor, mask: Tensor, logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
        """The reward of each completion minus the mean of its group's others, all after the KL penalty."""
        shaped = rewards - self.beta * ((logprobs - ref_logprobs) * mask).sum(1)
        groups = shaped.view(-1, self.group_size)
        others = (groups.sum(1, keepdim=True) - groups) / (self.group_size - 1)
        return (groups - others).flatten()

    def loss(
        self, advantages: Tensor, mask: Tensor, logprobs: Tensor, old_logprobs: Tensor, ref_logprobs: Tensor
    ) -> Tensor:
        """The loss to minimise, a mean over completions."""
        return -self.clipped(((logprobs - old_logprobs) * mask).sum(1).exp(), advantages).mean()


ALGORITHMS: dict[str, type[GRPO]] = {"grpo": GRPO, "rloo": RLOO}
