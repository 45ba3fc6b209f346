"""What declog can see of a trainer: whether its methods are those that TRL 1.16 computes its metrics in.

A method that computes metrics must be TRL's own, since another one may compute others; of a method that only returns
what they are computed from it is enough that it takes what TRL's takes. Imports neither TRL nor torch.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

TESTED = "1.16"  # the TRL whose values were compared, one by one
HOMES = {("trl.trainer.grpo_trainer", "GRPOTrainer"): "grpo", ("trl.trainer.rloo_trainer", "RLOOTrainer"): "rloo"}
OWN = {"rollouts": "_generate_and_score_completions", "updates": "_compute_loss"}
METHODS: dict[str, dict[str, tuple[str, ...]]] = {
    "rollouts": {
        "_generate_and_score_completions": ("inputs",),
        "_generate": ("prompts",),
        "_calculate_rewards": ("inputs", "prompts", "completions", "completion_ids_list"),
        "_log_metric": ("name", "value"),
        "_log_completion_extra": ("column", "values"),
    },
    "updates": {
        "_compute_loss": ("model", "inputs"),
        "_get_per_token_logps_and_entropies": ("model", "input_ids", "attention_mask", "compute_entropy"),
        "training_step": ("model", "inputs"),
    },
}
ATTRIBUTES = {
    "rollouts": (
        "_metrics", "_tokenizer", "eos_token_ids", "num_generations", "num_generations_eval", "reward_func_names",
        "reward_weights",
    ),
    "updates": ("_metrics", "beta", "epsilon_low", "epsilon_high"),
}  # fmt: skip


@dataclass(frozen=True)
class Sight:
    """What is seen: generations and micro-batches of a GRPO or RLOO trainer, and why not what is missing."""

    method: str | None = None
    rollouts: bool = False
    updates: bool = False
    missing: tuple[str, ...] = ()
    tested: bool = False  # TRL's own class, of the tested version


def sight_of(trainer: Any) -> Sight:
    """What declog sees of a trainer."""
    home = next((base for base in type(trainer).__mro__ if (base.__module__, base.__name__) in HOMES), None)
    if home is None:
        return Sight(missing=("it is neither trl.GRPOTrainer nor trl.RLOOTrainer",))
    missing = {part: _missing(trainer, home, part) for part in METHODS}
    try:
        tested = version("trl").startswith(f"{TESTED}.") and type(trainer) is home
    except PackageNotFoundError:
        tested = False
    return Sight(
        HOMES[home.__module__, home.__name__],
        rollouts=not missing["rollouts"],
        updates=not missing["updates"],
        missing=tuple(dict.fromkeys((*missing["rollouts"], *missing["updates"]))),
        tested=tested,
    )


def _missing(trainer: Any, home: type, part: str) -> list[str]:
    found = [f"it has no `{name}`" for name in ATTRIBUTES[part] if not hasattr(trainer, name)]
    for name, parameters in METHODS[part].items():
        method = getattr(type(trainer), name, None)
        if method is None:
            found.append(f"it has no `{name}`")
            continue
        known = inspect.signature(method).parameters
        found += [f"`{name}` takes no `{each}`" for each in parameters if each not in known]
        owner = next(base for base in type(trainer).__mro__ if name in vars(base))
        if name == OWN[part] and (owner is not home or name in vars(trainer)):
            found.append(f"`{name}` is not TRL's own")
    return found
