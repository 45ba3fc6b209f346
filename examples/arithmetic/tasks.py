"""Sums with one-digit operands, written one character per token, and the rewards that verify an answer.

A prompt reads `3+5=`, a perfect completion `8;`. A reward function is plain Python: it takes the prompts, the
completions (text, up to and including the end token) and the true answers, and returns one float per completion.
Nothing is imported but torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import torch

END = ";"
VOCABULARY = "0123456789+=" + END
PROMPT_LENGTH = len("3+5=")

RewardFunction = Callable[[Sequence[str], Sequence[str], Sequence[int]], list[float]]


def encode(texts: Sequence[str]) -> torch.Tensor:
    """Token ids [n, length] of texts of one length."""
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
    """1 for a completion as long as the right one, less by half for each character too many or too few."""
    return [0.5 ** abs(len(text) - len(f"{answer}{END}")) for text, answer in zip(completions, answers, strict=True)]


def close(prompts: Sequence[str], completions: Sequence[str], answers: Sequence[int]) -> list[float]:
    """1 for the right number, half of that for each one it is off, 0 for what is not a number."""
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
