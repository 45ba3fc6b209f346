"""Runs of ``examples/ppo_arithmetic.py``, and what numpy makes of the tensors that it saves."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests import forks
from tests.oracle import ppo

EXAMPLE = forks.ROOT / "examples" / "ppo_arithmetic.py"
SECONDS = "+declog.metrics.seconds={expr: elapsed + 0 * episode, reduce: last}"
PENALTY, BETA, RATE, FINAL = 1.0, 0.02, 2e-3, 0.1
REWARDS = {"correct": 1.0, "close": 1.0, "format": 0.5, "length": 0.5}
EOS = 12
OLDER = "++declog.constants.entropy_of_padding=true"


@dataclass(frozen=True)
class Run:
    """What a run logged, by step, and what it saved: of each step the rollout and its updates."""

    logged: list[dict[str, float]]
    saved: list[tuple[dict[str, torch.Tensor], list[tuple[torch.Tensor, ...]]]]
    settings: ppo.Settings
    folder: Path
    output: str

    def rollout(self, step: int) -> tuple[ppo.Rollout, list[ppo.Update]]:
        """A step's tensors, in float64; scores are computed from the texts."""
        kept, updates = self.saved[step]
        arrays = {name: value.numpy() for name, value in kept.items()}
        tokens = arrays["tokens"][:, -4:]
        mask, scores = texts(arrays["tokens"])
        rollout = ppo.Rollout(
            scores, mask, arrays["logprobs"].astype(float), arrays["ref_logprobs"].astype(float),
            arrays["values"].astype(float), (tokens == EOS) & mask,
        )  # fmt: skip
        return rollout, [
            ppo.Update(rows.numpy(), *(each.numpy().astype(float) for each in others)) for rows, *others in updates
        ]


def texts(tokens: Any) -> tuple[Any, Any]:
    """Masks and scores of sums: written here again, from what the task says of itself."""
    characters = "0123456789+=;"
    masks, scores = [], []
    for row in tokens.tolist():
        text = "".join(characters[token] for token in row)
        answer, completion = int(text[0]) + int(text[2]), text[4:]
        ended = ";" in completion
        given = completion[: completion.index(";") + 1] if ended else completion
        masks.append([place < len(given) for place in range(len(completion))])
        number = given[:-1] if ended and given[:-1].isdigit() else None
        parts = {
            "correct": given == f"{answer};",
            "close": 0.0 if number is None else 0.5 ** abs(int(number) - answer),
            "format": number is not None and str(int(number)) == number,
            "length": 0.5 ** abs(len(given) - len(f"{answer};")),
        }
        scores.append(sum(REWARDS[name] * float(value) for name, value in parts.items()) - PENALTY * (not ended))
    return np.array(masks), np.array(scores)


def run(folder: Path, steps: int, *overrides: str) -> Run:
    """Run the example, with the tensors saved."""
    command: list[str | Path] = [
        EXAMPLE, f"steps={steps}", "save_tensors=tensors.pt", "declog.sinks=[jsonl]", SECONDS,
        *overrides,
    ]  # fmt: skip
    done = forks.run(command, cwd=folder, env=forks.environment({"HOME": str(folder)}))
    assert done.returncode == 0, done.stderr[-6000:]
    (scalars,) = folder.rglob("scalars.jsonl")
    logged = [json.loads(line)["scalars"] for line in scalars.read_text().splitlines()]
    settings = ppo.Settings(
        BETA, 1.0, 0.95, 0.2, 0.2, whiten_rewards="whiten_rewards=true" in overrides,
        entropy_of_padding=OLDER in overrides,
    )  # fmt: skip
    saved = torch.load(folder / "tensors.pt", weights_only=True)
    return Run(logged, saved, settings, scalars.parent.parent, done.stdout)


def expected(run: Run, step: int) -> dict[str, float]:
    """All 17 values of a step."""
    steps, (rollout, updates) = len(run.saved), run.rollout(step)
    episode = (step + 1) * len(rollout.scores)
    return {
        **ppo.trl([(rollout, updates)], run.settings),
        "eps": math.floor(episode / run.logged[step]["seconds"]),
        "episode": episode,
        "lr": RATE * (1 + (FINAL - 1) * step / steps),
    }


def differences(
    expected: Mapping[str, float], found: Mapping[str, float], *, rel: float = 1e-5, abs: float = 1e-6
) -> Sequence[str]:
    """Names whose values differ, or are missing."""
    return [
        f"{name}: {value} and {found.get(name)}"
        for name, value in expected.items()
        if name not in found or not math.isclose(value, found[name], rel_tol=rel, abs_tol=abs)
    ]
