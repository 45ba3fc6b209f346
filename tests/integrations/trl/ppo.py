"""Runs of TRL's PPO trainer, which TRL had until 1.12: a policy, a value and a reward model of two layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.integrations.trl.cases import Case

LARGE = {"learning_rate": 0.02, "stop_token": "eos"}

CASES = {
    "ppo_default": Case("ppo", ranks=(1,)),
    "ppo_eos": Case("ppo", {**LARGE, "missing_eos_penalty": 1.0}, over=("policy/clipfrac_avg", "val/clipfrac_avg")),
    "ppo_mini_batches": Case("ppo", {**LARGE, "num_mini_batches": 2, "gradient_accumulation_steps": 4}),
    "ppo_small": Case("ppo", {**LARGE, "num_mini_batches": 4, "gradient_accumulation_steps": 1}, ranks=(1,)),
    "ppo_k3": Case("ppo", {**LARGE, "kl_estimator": "k3", "kl_coef": 0.3, "gamma": 0.9}, over=("objective/kl",)),
    "ppo_once": Case("ppo", {**LARGE, "num_ppo_epochs": 1, "gradient_accumulation_steps": 1}, ranks=(1,)),
    "ppo_whitened": Case(
        "ppo", {**LARGE, "whiten_rewards": True, "gradient_accumulation_steps": 2, "cliprange": 0.01}, ranks=(1,)
    ),
}


def trainer_of(case: Case, model: Path, folder: Path, **options: Any) -> Any:
    """A trainer of four updates, each of a rollout of 8 completions on every rank."""
    import numpy as np
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Qwen2ForCausalLM
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    from tests.integrations.trl import tiny

    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    data = tiny.prompts(32).map(lambda row: tokenizer(row["prompt"]), remove_columns=["prompt", "source"])
    arguments = {
        "output_dir": str(folder), "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
        "num_ppo_epochs": 2, "response_length": 10, "num_sample_generations": 0, "total_episodes": 32,
        "logging_steps": 1, "save_strategy": "no", "report_to": "none", "use_cpu": True, "bf16": False,
        "gradient_checkpointing": False, "learning_rate": 1e-3, "disable_tqdm": True, "seed": 7, "temperature": 1.0,
        "local_rollout_forward_batch_size": 3, **case.args, **options.pop("args", {}),
    }  # fmt: skip
    if case.args.get("whiten_rewards"):
        arguments["per_device_train_batch_size"] = 8
    torch.manual_seed(0)  # the heads are new
    np.random.seed(0)  # TRL shuffles with numpy's own
    heads = [AutoModelForSequenceClassification.from_pretrained(model, num_labels=1) for _ in range(2)]
    cls = options.pop("cls", PPOTrainer)
    return cls(
        args=PPOConfig(**arguments), processing_class=tokenizer, model=Qwen2ForCausalLM.from_pretrained(model),
        ref_model=Qwen2ForCausalLM.from_pretrained(model), reward_model=heads[0], value_model=heads[1],
        train_dataset=data, **options,
    )  # fmt: skip
