"""Functions that acme's configs use."""

from __future__ import annotations

import torch

import declog


@declog.function
def acme_margin(reward: torch.Tensor) -> torch.Tensor:
    """The reward minus 0.5, the line between solved and not: negative below it."""
    return reward - 0.5
