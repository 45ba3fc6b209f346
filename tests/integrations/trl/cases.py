"""Runs of TRL's trainers with declog attached: what TRL itself logged, and what reached declog's sinks."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import declog
from declog.config.composed import Composed
from declog.integrations.trl.support import trl_version
from declog.testing import MemorySink

STRICT = ("declog.sinks=[]", "+declog.run.strict=true")
MASKED = {  # about half of the completions are cut off, and have no token then
    "num_iterations": 2, "learning_rate": 0.05, "beta": 0.0, "mask_truncated_completions": True,
    "max_completion_length": 16,
}  # fmt: skip
SEQUENCE = {"importance_sampling_level": "sequence"}
CUT, WEIGHT = ("completions/clipped_ratio",), "sampling/importance_sampling_ratio/mean"
CLIPPING = {"num_iterations": 2, "learning_rate": 0.2, "beta": 0.0}


@dataclass(frozen=True)
class Case:
    """A trainer's arguments, over the defaults of ``arguments``; ``rewards`` names a set of reward functions."""

    method: str = "grpo"
    args: Mapping[str, Any] = field(default_factory=dict)
    rewards: str = "plain"
    ranks: tuple[int, ...] = (1, 2)  # with how many it is run: two where ranks share what is computed in another way
    over: tuple[str, ...] = ()  # values that must be above 0 somewhere, or the case would show nothing
    served: str = ""  # how importance weights correct what a server sampled


CASES = {
    "grpo_default": Case(ranks=(1,), args={"beta": 0.0}),
    "grpo_kl": Case(args={"beta": 0.05, "learning_rate": 0.1}, over=("kl",)),
    "grpo_clipping": Case(args=CLIPPING, over=("clip_ratio/low_mean", "clip_ratio/high_max")),
    "grpo_sequence": Case(args={**CLIPPING, "importance_sampling_level": "sequence"}, over=("clip_ratio/region_mean",)),
    "grpo_delta": Case(ranks=(1,), args={**CLIPPING, "delta": 1.1}),
    "grpo_batch": Case(args={"scale_rewards": "batch"}),
    "grpo_none": Case(ranks=(1,), args={"scale_rewards": "none"}),
    "grpo_missing": Case(rewards="missing", args={"beta": 0.05}),
    "grpo_few": Case(rewards="few", args={"num_generations_eval": 1}),
    "grpo_few_none": Case(ranks=(1,), rewards="few", args={"scale_rewards": "none", "beta": 0.05}),
    "grpo_weights": Case(rewards="two", args={"reward_weights": [1.0, 0.3]}),
    "grpo_off_policy": Case(
        rewards="two", args={"beta": 0.05, "num_iterations": 2, "steps_per_generation": 4, "logging_steps": 3,
                             "learning_rate": 0.1, "max_steps": 9, "reward_weights": [0.5, 2.0]},
    ),
    "grpo_many": Case(ranks=(1,), args={"gradient_accumulation_steps": 4, "steps_per_generation": 1, "beta": 0.05}),
    "grpo_cispo": Case(args={**CLIPPING, "loss_type": "cispo", "epsilon_high": 0.3}, over=("cispo_clip_ratio",)),
    "grpo_vespo": Case(ranks=(1,), args={**CLIPPING, "loss_type": "vespo"}, over=("vespo/phi_seq_mean",)),
    "grpo_bias": Case(ranks=(1,), args={**CLIPPING, "beta": 0.05, "use_bias_correction_kl": True}, over=("kl",)),
    "grpo_luspo": Case(ranks=(1,), args={**CLIPPING, "loss_type": "luspo", "importance_sampling_level": "sequence"}),
    "grpo_sapo": Case(ranks=(1,), args={**CLIPPING, "loss_type": "sapo"}),
    "grpo_bnpo": Case(ranks=(1,), args={**CLIPPING, "loss_type": "bnpo"}),
    "grpo_dr": Case(ranks=(1,), args={**CLIPPING, "loss_type": "dr_grpo", "scale_rewards": "none"}),
    "grpo_equal": Case(rewards="equal", over=("frac_reward_zero_std",)),
    "grpo_normalized": Case(
        ranks=(1,),
        rewards="two", args={"multi_objective_aggregation": "normalize_then_sum", "mask_truncated_completions": True},
    ),
    "grpo_entropy": Case(
        ranks=(1,), args={"entropy_coef": 0.01, "use_adaptive_entropy": True, "top_entropy_quantile": 0.5},
    ),
    "grpo_split": Case(args={"per_device_train_batch_size": 2, "steps_per_generation": 1}, ranks=(2,)),
    **{f"masked_{name}": Case(args={**MASKED, **args}, ranks=ranks, over=CUT) for name, args, ranks in (
        ("grpo", {"loss_type": "grpo"}, (1,)), ("bnpo", {"loss_type": "bnpo"}, (1,)),
        ("sapo", {"loss_type": "sapo"}, (1,)), ("dr_grpo", {"loss_type": "dr_grpo"}, (1,)),
        ("dapo", {"loss_type": "dapo"}, (1, 2)),
        ("luspo", {**SEQUENCE, "loss_type": "luspo"}, (1,)),
        ("cispo", {"loss_type": "cispo", "epsilon_high": 0.9}, (1,)), ("vespo", {"loss_type": "vespo"}, (1,)),
        ("sequence", {**SEQUENCE, "loss_type": "grpo"}, (1,)),
        ("sequence_kl", {**SEQUENCE, "beta": 0.05, "use_bias_correction_kl": True}, (1,)),
        ("sequence_dapo", {**SEQUENCE, "loss_type": "dapo", "epsilon": 0.001}, (1,)),
        ("sequence_cispo", {**SEQUENCE, "loss_type": "cispo", "epsilon_high": 0.9}, (1, 2)),
    )},
    "masked_rloo": Case("rloo", {**MASKED, "beta": 0.05}, over=CUT),
    "masked_rloo_beta0": Case("rloo", MASKED, ranks=(1,), over=CUT),
    **{f"served_{name}": Case(args={**MASKED, **args}, served=mode, ranks=ranks, over=(*CUT, WEIGHT))
       for name, mode, args, ranks in (
        ("sequence_mask", "sequence_mask", {}, (1, 2)), ("sequence_truncate", "sequence_truncate", {}, (1,)),
        ("token_mask", "token_mask", {}, (1,)), ("token_truncate", "token_truncate", {}, (1,)),
        ("masked", "token_mask", {"max_completion_length": 6}, (2,)),  # all that one of the ranks generated
        ("vespo", "token_truncate", {"loss_type": "vespo"}, (1, 2)),
        ("vespo_clipped", "token_mask", {"loss_type": "vespo", "vllm_importance_sampling_clip_max": 0.9}, (1,)),
    )},
    "rloo_default": Case("rloo", {"beta": 0.05, "learning_rate": 0.1}, ranks=(1,)),
    "rloo_clipping": Case("rloo", {**CLIPPING, "beta": 0.05}, over=("clip_ratio/low_mean", "clip_ratio/high_max")),
    "rloo_missing": Case("rloo", {"beta": 0.05}, rewards="missing"),
    "rloo_few": Case("rloo", {"beta": 0.05, "num_generations_eval": 1}, ranks=(1,), rewards="few"),
    "rloo_beta0": Case("rloo", {"beta": 0.0, "reward_clip_range": [2.0, 6.0], "normalize_advantages": True}),
}  # fmt: skip

# What another case of two ranks shows, too, is run on two by `make soak`.
SOAKED = (
    "grpo_kl",
    "grpo_few",
    "grpo_weights",
    "grpo_sequence",
    "grpo_cispo",
    "grpo_equal",
    "masked_rloo",
    "rloo_beta0",
)
ON_TWO_RANKS = [name for name, case in CASES.items() if 2 in case.ranks and name not in SOAKED]
LIGER = Case(
    args={"use_liger_kernel": True, "beta": 0.05, "num_iterations": 2, "learning_rate": 0.2}, over=("clip_ratio",)
)


def length(completions: Sequence[Any], log_metric: Any = None, log_extra: Any = None, **columns: Any) -> list[float]:
    """A reward that logs a metric and a column besides, where TRL has that (from 1.0)."""
    sizes = [len(_text(completion)) for completion in completions]
    if log_metric is None:
        return [float(size) for size in sizes]
    log_metric("characters", sum(sizes) / len(sizes))
    for size in sizes:
        if size > 6:
            log_metric("long", float(size))  # as often as there are long ones: another number on each rank
    log_extra("size", sizes)
    return [float(size) for size in sizes]


def variety(completions: Sequence[Any], **columns: Any) -> list[float]:
    return [len(set(_text(completion))) / 7 for completion in completions]


def sometimes(completions: Sequence[Any], trainer_state: Any, **columns: Any) -> list[float | None]:
    """Missing for some completions, and in one step of three for all."""
    none = trainer_state.global_step % 3 == 1
    return [None if none or place % 3 == 0 else float(len(_text(each))) for place, each in enumerate(completions)]


def few(completions: Sequence[Any], **columns: Any) -> list[float | None]:
    """One completion in four has a value, so that a group has one or none."""
    return [None if place % 4 else float(len(_text(each))) for place, each in enumerate(completions)]


def equal(completions: Sequence[Any], **columns: Any) -> list[float]:
    return [1.0] * len(completions)


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[0]["content"])


REWARDS: dict[str, list[Callable[..., Any]]] = {
    "plain": [length], "two": [length, variety], "missing": [sometimes], "few": [few],
    "equal": [equal],
}  # fmt: skip


def served() -> type[Any]:
    """A GRPO trainer whose completions come with log-probabilities of another policy, as from vLLM; one has none."""
    import torch
    from trl import GRPOTrainer

    class Served(GRPOTrainer):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.use_vllm = True

        def _generate(self, prompts: Any) -> Any:
            self.use_vllm = False
            found = list(super()._generate(prompts))
            self.use_vllm = True
            made = torch.Generator().manual_seed(self.state.global_step * 10 + self.accelerator.process_index)
            logprobs = [(torch.rand(len(ids), generator=made) - 4.2).tolist() for ids in found[1]]
            if trl_version() >= (1, 12):
                logprobs[0][0] = None
            found[next(place for place in range(3, 7) if found[place] is None)] = logprobs  # before 1.6 it came later
            return tuple(found)

    return Served


def trainer_of(case: Case, model: Any, folder: Path, **options: Any) -> Any:
    """A trainer, for a run of a second: four steps of two micro-batches, logged each second, with evaluations."""
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

    from tests.integrations.trl import ppo, tiny

    if case.method == "ppo":
        return ppo.trainer_of(case, model, folder, **options)
    made, config = (GRPOTrainer, GRPOConfig) if case.method == "grpo" else (RLOOTrainer, RLOOConfig)
    arguments = {
        "output_dir": str(folder), "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4,
        "num_generations": 4, "max_completion_length": 10, "gradient_accumulation_steps": 2, "max_steps": 4,
        "logging_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "no", "report_to": "none",
        "use_cpu": True, "bf16": False, "learning_rate": 0.01, "disable_tqdm": True, "seed": 7, **case.args,
        **options.pop("args", {}),
    }  # fmt: skip
    ranks = int(os.environ.get("WORLD_SIZE", "1"))  # each evaluates two batches
    data = {"train_dataset": tiny.prompts(), "eval_dataset": tiny.prompts(2 * ranks), **options.pop("data", {})}
    rewards = options.pop("rewards", REWARDS[case.rewards])
    cls = options.pop("cls", served() if case.served else made)
    if case.served:
        arguments["vllm_importance_sampling_mode"] = case.served
    trainer = cls(
        str(model) if isinstance(model, Path) else model, list(rewards), args=config(**arguments), **data, **options
    )
    if (
        trainer.args.use_liger_kernel
    ):  # what transformers makes of it wants a GPU, and compiling takes longer than training
        trainer.args.use_liger_kernel = trainer.liger_loss.compiled = False
    return trainer


@dataclass
class Outcome:
    """What TRL logged, and declog's log events: (step, mode, values)."""

    history: list[dict[str, Any]]
    events: list[tuple[int, str, dict[str, Any]]]
    sink: MemorySink | None = None


@cache
def composed(preset: str, *overrides: str) -> Composed:
    """A preset with overrides, composed once for all runs."""
    return declog.compose(preset, overrides)


def run(
    case: Case, model: Any, folder: Path, *, merge: str | None = None, overrides: Sequence[str] = (), **options: Any
) -> Outcome:
    """Train with declog attached; with ``merge=None`` the history is TRL's own."""
    trainer = trainer_of(case, model, folder, **options)
    sink = MemorySink()
    main = trainer.args.process_index == 0
    config = composed(f"trl_{case.method}", *STRICT, *overrides)
    with declog.attach(trainer, config, merge=merge, sinks=[sink] if main else []):
        trainer.train()
    return Outcome(trainer.state.log_history, events(sink), sink)


def events(sink: MemorySink) -> list[tuple[int, str, dict[str, Any]]]:
    """A sink's log events that have values."""
    found = [(step, each.mode, {item.name: item.value for item in each.scalars}) for step, each in sink.events]
    return [event for event in found if event[2]]


def expected(history: Sequence[Mapping[str, Any]]) -> list[tuple[int, str, dict[str, Any]]]:
    """The log events that TRL's own history asks for; NaN, which TRL mostly logs as None, is absent in declog."""
    found = []
    for entry in history:
        mode = "eval" if "eval_loss" in entry else "train"
        left_out = {"step", "epoch"} if mode == "eval" else {"step"}
        there = {name: value for name, value in entry.items() if value is not None and value == value}
        values = {name: value for name, value in there.items() if name not in left_out}
        found.append((entry["step"], mode, values))
    return found


STOP = "+declog.alerts.too_good={when: reward > -1, for: 3, do: [stop]}"

# ---- checkpoints --------------------------------------------------------------------------------------

SURPRISE = "+declog.metrics.surprise={expr: entropy, reduce: max, name: surprise}"
BEST = Case(
    args={
        "save_strategy": "best", "metric_for_best_model": "surprise", "greater_is_better": False, "beta": 0.05,
        "load_best_model_at_end": True, "learning_rate": 0.1, "max_steps": 8, "logging_steps": 2, "eval_steps": 2,
    },
)  # fmt: skip
RESUMABLE = Case(
    args={
        "save_strategy": "steps", "save_steps": 2, "max_steps": 8, "logging_steps": 4, "eval_steps": 4, "beta": 0.05,
        "learning_rate": 0.1,
    },
)  # fmt: skip


def resumable(
    model: Path, folder: Path, *, until: int | None = None, resume: bool | str = False, ended: str = "closed"
) -> list[dict[str, Any]]:
    """A run whose windows are longer than the way to a checkpoint; what its files hold at the end, on rank 0.

    ``ended`` says how: closed; by nobody, when training has returned or raised, also in a thread that is at its end;
    or trained again by the same trainer, from its last checkpoint.
    """
    from transformers import TrainerCallback

    class Stop(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == until:
                control.should_training_stop = True
                if ended == "raised":
                    raise KeyboardInterrupt

    from tests.integrations.trl import tiny

    data = {"train_dataset": tiny.prompts(32)}  # one epoch: TRL's sampler shuffles a second one in another way, resumed
    trainer = trainer_of(RESUMABLE, model, folder, callbacks=[Stop()], data=data)
    overrides = ["declog.sinks=[jsonl]", "+declog.run.strict=true", "+declog.metrics.reward_p95='p95(reward)'"]
    overrides += ["+declog.metrics.so_far={expr: sum(length), over: run_step, combine: sum}"]
    log = declog.attach(trainer, "trl_grpo", overrides)
    if ended == "in a thread":
        thread = threading.Thread(target=trainer.train)
        thread.start()
        thread.join()
    else:
        with suppress(KeyboardInterrupt):
            trainer.train(resume_from_checkpoint=resume)
    if ended == "trained again":
        until = None
        trainer.train(resume_from_checkpoint=True)
        declog.detach(trainer)
    elif ended == "closed":
        log.close()
    if log.output_dir is None:
        return []
    files = sorted(log.output_dir.rglob("*.jsonl"))
    return [{"file": file.name, **json.loads(line)} for file in files for line in file.read_text().splitlines()]
