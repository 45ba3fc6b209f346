"""PPO with a value head (arXiv:1707.06347), with the details of TRL's PPOTrainer. Imports only torch.

Shapes: scores [n], one per completion; all others [n, tokens]. ``mask`` is true where a token of the completion exists.
``value_mask`` is true for one more token, if there is room: TRL puts the score there, and trains the value there, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PPO:
    """The coefficients; ``beta`` weights each token's KL penalty, a k1 estimate of the KL from the reference."""

    beta: float
    gamma: float
    lam: float
    epsilon: float
    value_clip: float
    value_weight: float
    whiten_rewards: bool

    def rewards(self, scores: Tensor, logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor) -> Tensor:
        """The reward of each token: its KL penalty, and behind the last token the completion's score."""
        length = mask.sum(1)
        rewards = -self.beta * ((logprobs - ref_logprobs) * mask)
        rewards[torch.arange(len(scores)), length.clamp(max=mask.shape[1] - 1)] += scores
        if not self.whiten_rewards:
            return rewards
        there = value_mask(mask)
        return whitened(rewards, there, keep_mean=True) * there

    def advantages(self, rewards: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Whitened advantages by GAE (arXiv:1506.02438), and returns; ``values`` are 0 outside of their mask."""
        advantages = torch.zeros_like(rewards)
        after, ahead = torch.zeros(len(rewards)), torch.zeros(len(rewards))  # the next token's advantage and value
        for place in reversed(range(rewards.shape[1])):
            delta = rewards[:, place] + self.gamma * ahead - values[:, place]
            after = advantages[:, place] = delta + self.gamma * self.lam * after
            ahead = values[:, place]
        return whitened(advantages, mask) * mask, advantages + values

    def loss(
        self,
        advantages: Tensor,
        returns: Tensor,
        mask: Tensor,
        logprobs: Tensor,
        old_logprobs: Tensor,
        values: Tensor,
        old_values: Tensor,
    ) -> Tensor:
        """The loss to minimise: the pessimistic losses of the policy and of the values, as means over tokens."""
        ratio = (logprobs - old_logprobs).exp()
        policy = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - self.epsilon, 1 + self.epsilon))
        near = values.clamp(old_values - self.value_clip, old_values + self.value_clip)
        value = 0.5 * torch.maximum((values - returns) ** 2, (near - returns) ** 2)
        return policy[mask].mean() + self.value_weight * value[value_mask(mask)].mean()


def value_mask(mask: Tensor) -> Tensor:
    """The mask of completions with one more token."""
    return torch.arange(mask.shape[1]) <= mask.sum(1, keepdim=True)


def whitened(x: Tensor, mask: Tensor, *, keep_mean: bool = False) -> Tensor:
    """Scale ``x`` to variance 1 over the mask, and shift it to mean 0 unless ``keep_mean``."""
    mean, var = x[mask].mean(), x[mask].var()
    return (x - mean) * torch.rsqrt(var + 1e-8) + (mean if keep_mean else 0.0)
