"""A trainer's settings as the constants of a config. They are read off the trainer, never set."""

from __future__ import annotations

import math
from typing import Any

from declog.integrations.trl.support import Support, trl_version

GRPO = ("beta", "epsilon_low", "epsilon_high", "loss_type", "importance_sampling_level", "scale_rewards",
        "multi_objective_aggregation", "vllm_importance_sampling_mode", "num_generations")  # fmt: skip
GRPO_ARGUMENTS = (
    "use_bias_correction_kl", "vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"
)  # fmt: skip
RLOO = ("beta", "epsilon_low", "epsilon_high", "normalize_advantages", "num_generations")


SEEN = ("sees_rollouts", "sees_updates", "sees_samples", "sees_loop")  # what of a trainer may be seen, or not


def constants_of(trainer: Any, support: Support) -> dict[str, Any]:
    """The constants that a trainer knows, by the names of the presets `trl_grpo`, `trl_rloo` and `trl_async_grpo`."""
    constants: dict[str, Any] = {
        "sees_rollouts": support.rollouts, "sees_updates": support.updates, "sees_samples": support.samples,
        "sees_loop": support.loop,
    }  # fmt: skip
    if support.method == "grpo":
        constants |= _read(trainer, GRPO) | _read(trainer.args, GRPO_ARGUMENTS)
        if hasattr(trainer.args, "delta"):
            constants["delta"] = math.inf if trainer.args.delta is None else trainer.args.delta
        bonus = _read(trainer.args, ("entropy_coef", "use_adaptive_entropy"))  # earlier versions have none
        constants["entropy_bonus"] = any(bonus.values())
        if hasattr(trainer, "tools"):
            constants["tools"] = bool(trainer.tools)
        if hasattr(trainer, "vllm_importance_sampling_correction"):
            constants["vllm"] = bool(trainer.use_vllm and trainer.vllm_importance_sampling_correction)
    elif support.method == "rloo":
        constants |= _read(trainer, RLOO)
        clip = _read(trainer, ("reward_clip_range",))
        if clip.get("reward_clip_range"):
            constants["reward_clip_low"], constants["reward_clip_high"] = clip["reward_clip_range"]
    elif support.loop:
        constants |= _ppo(trainer)
    if support.method in ("grpo", "rloo"):
        constants["aux_loss_enabled"] = any(_read(trainer, ("aux_loss_enabled",)).values())
    return constants


def _ppo(trainer: Any) -> dict[str, Any]:
    args, end = trainer.args, trainer.processing_class.eos_token_id
    return {
        "beta": args.kl_coef, "kl_estimator": args.kl_estimator, "epsilon_low": args.cliprange,
        "epsilon_high": args.cliprange, "value_clip": args.cliprange_value, "eos_token_id": -1 if end is None else end,
        "entropy_of_padding": trl_version() < (1, 10),
    }  # fmt: skip


def _read(owner: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Those of the attributes that another version has, too."""
    return {name: getattr(owner, name) for name in names if hasattr(owner, name)}
