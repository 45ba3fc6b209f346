"""Sums with one-digit operands, written one character per token, and the rewards that verify an answer.

A prompt reads `3+5=`, a perfect completion `8;`. A reward function is plain Python: it takes the prompts, the
completions (text, up to and including the end token) and the true answers, and returns one float per completion.
Imports only torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

END = ";"
VOCABULARY = "0123456789+=" + END
PROMPT_LENGTH = len("3+5=")

RewardFunction = Callable[[Sequence[str], Sequence[str], Sequence[int]], list[float]]


def encode(texts: Sequence[str]) -> torch.Tensor:
    """The token ids [n, length] of texts of equal length."""
    return torch.tensor([[VOCABULARY.index(character) for character in text] for text in texts])


def decode(tokens: torch.Tensor) -> list[str]:
    """One text per row of token ids, cut after the first end token."""
    texts = ("".join(VOCABULARY[token] for token in row) for row in tokens.tolist())
    return [text[: text.index(END) + 1] if END in text else text for text in texts]


def draw_sums(count: int, largest: int) -> list[tuple[str, int]]:
    """``count`` random prompts with operands from 0 to ``largest``, each with its answer."""
    return [(f"{a}+{b}=", a + b) for a, b in torch.randint(largest + 1, (count, 2)).tolist()]


def correct(prompts: Sequence[str], completions: Sequence[str], answers: Sequence[int]) -> list[float]:
    """1 for the right number, else 0."""
    return [float(text == f"{answer}{END}") for text, answer in zip(completions, answers, strict=True)]


def well_formed(prompts: Sequence[str], completions: Sequence[str], answers: Sequence[int]) -> list[float]:
    """1 for a plain decimal number and the end token, else 0."""
    return [float(re.fullmatch(rf"(0|[1-9]\d*){END}", text) is not None) for text in completions]


def fitting_length(prompts: Sequence[str], completions: Sequence[str], answers: Sequence[int]) -> list[float]:
    """1 for a completion as long as the right one, and half as much for each character too many or too few."""
    return [0.5 ** abs(len(text) - len(f"{answer}{END}")) for text, answer in zip(completions, answers, strict=True)]


def close(prompts: Sequence[str], completions: Sequence[str], answers: Sequence[int]) -> list[float]:
    """1 for the right number, half as much for each 1 that it is off, 0 for a text that is no number."""
    numbers = [int(text[:-1]) if re.fullmatch(rf"\d+{END}", text) else None for text in completions]
    return [
        0.0 if number is None else 0.5 ** abs(number - answer) for number, answer in zip(numbers, answers, strict=True)
    ]


REWARDS: dict[str, RewardFunction] = {
    "correct": correct,
    "close": close,
    "format": well_formed,
    "length": fitting_length,
}


@dataclass(frozen=True)
class Scored:
    """Prompts and completions as text, with length, truncation and rewards [n], and the mask [n, completion]."""

    prompts: Sequence[str]
    completions: Sequence[str]
    length: torch.Tensor
    truncated: torch.Tensor
    mask: torch.Tensor
    rewards: dict[str, torch.Tensor]


def scored(drawn: Sequence[tuple[str, int]], tokens: torch.Tensor, rewards: Iterable[str]) -> Scored:
    """Score ``tokens`` [n, prompt + completion], which continue the prompts of ``drawn``, by the reward functions."""
    prompts, answers = [prompt for prompt, _ in drawn], [answer for _, answer in drawn]
    completions = decode(tokens[:, PROMPT_LENGTH:])
    length = torch.tensor([len(text) for text in completions])
    return Scored(
        prompts, completions, length,
        truncated=torch.tensor([not text.endswith(END) for text in completions]),
        mask=torch.arange(tokens.shape[1] - PROMPT_LENGTH) < length.unsqueeze(1),
        rewards={name: torch.tensor(REWARDS[name](prompts, completions, answers)) for name in rewards},
    )  # fmt: skip
