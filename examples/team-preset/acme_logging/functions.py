"""Functions that acme's configs use."""

from __future__ import annotations

import torch

import declog


@declog.function
def acme_margin(reward: torch.Tensor) -> torch.Tensor:
    """How far a reward is from the line between solved and not, 0.5; negative below it."""
    return reward - 0.5
