"""A small decoder-only transformer, sampling from it, and statistics of tokens. Imports only torch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each behind a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform [rows, positions, width] to the same shape."""
        rows, positions, width = x.shape
        projected = self.query_key_value(self.attention_norm(x)).view(rows, positions, 3, self.heads, -1)
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(mixed.transpose(1, 2).reshape(rows, positions, width))
        added: torch.Tensor = self.feed_forward(self.forward_norm(x))
        return x + added


class Policy(nn.Module):
    """Next-token logits [rows, positions, vocabulary] of token ids [rows, positions]."""

    def __init__(self, vocabulary: int, positions: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)
        nn.init.normal_(self.head.weight, std=0.02)  # near uniform at first, so that all tokens are tried
        nn.init.zeros_(self.head.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits for the token after each position."""
        logits: torch.Tensor = self.head(self.states(tokens))
        return logits

    def states(self, tokens: torch.Tensor) -> torch.Tensor:
        """The states [rows, positions, width] that the heads read."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        states: torch.Tensor = self.norm(self.blocks(self.token(tokens) + self.position(positions)))
        return states


class ActorCritic(Policy):
    """A policy with a value head, which predicts the return of the rest of the completion at each position."""

    def __init__(self, vocabulary: int, positions: int, width: int, heads: int, layers: int) -> None:
        super().__init__(vocabulary, positions, width, heads, layers)
        self.value = nn.Linear(width, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def both(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [rows, positions, vocabulary] and values [rows, positions]."""
        states = self.states(tokens)
        return self.head(states), self.value(states).squeeze(-1)


@torch.no_grad()
def sample(policy: Policy, prompts: torch.Tensor, length: int) -> torch.Tensor:
    """Continue prompts [rows, p] by ``length`` sampled tokens each: [rows, p + length].

    Sequences are so short here that recomputing them is as fast as a cache of keys and values.
    """
    tokens = prompts
    for _ in range(length):
        probabilities = policy(tokens)[:, -1].softmax(-1)
        tokens = torch.cat([tokens, torch.multinomial(probabilities, 1)], dim=1)
    return tokens


def token_statistics(logits: torch.Tensor, tokens: torch.Tensor, prompt: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-probability of each token after a prompt of ``prompt`` tokens, and the entropy of its distribution.

    ``logits`` [rows, positions - 1, vocabulary] are those of ``tokens[:, :-1]``.
    """
    distribution = logits[:, prompt - 1 :].log_softmax(-1)
    logprobs = distribution.gather(-1, tokens[:, prompt:].unsqueeze(-1)).squeeze(-1)
    return logprobs, -(distribution.exp() * distribution).sum(-1)
