"""The parts of a trainer that declog can see: the methods that compute TRL's metrics, and the attributes they use.

``METHODS`` and ``ATTRIBUTES`` are the support table: the methods and attributes that each part needs, and where
versions of TRL keep them. So a version, a fork or a subclass is supported by what it has. A method that computes
metrics must be TRL's own, or an override that calls TRL's. A method that only returns the inputs of metrics has to take
TRL's arguments. A class that copies TRL's methods instead of inheriting them, as Unsloth's do, counts as TRL's own.
Imports neither TRL nor torch.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter
from types import CodeType
from typing import Any

EQUAL = ((1, 9), (1, 16))  # first and last TRL whose values all equal declog's; others are compared during training
EQUAL_PPO = ((0, 29), (1, 12))  # 1.12 is the last TRL with PPO
CLASSES = {
    ("trl.trainer.grpo_trainer", "GRPOTrainer"): "grpo",
    ("trl.trainer.rloo_trainer", "RLOOTrainer"): "rloo",
    ("trl.experimental.async_grpo.async_grpo_trainer", "AsyncGRPOTrainer"): "async_grpo",
    ("trl.experimental.ppo.ppo_trainer", "PPOTrainer"): "ppo",
}
PARTS = {"grpo": ("rollouts", "updates"), "rloo": ("rollouts", "updates"), "async_grpo": ("samples",), "ppo": ("loop",)}
COPIES = "GRPOTrainer"  # the end of the name of a class that copies TRL's
METRIC_METHODS: dict[str, tuple[str, ...]] = {  # the method that computes metrics, and the method that calls it
    "rollouts": ("_generate_and_score_completions", "_prepare_inputs"), "updates": ("_compute_loss", "compute_loss"),
    "loop": ("train",),
}  # fmt: skip
METHODS: dict[str, dict[str, tuple[str, ...]]] = {
    "rollouts": {
        "_generate_and_score_completions": ("inputs",),
        "_generate": ("prompts",),
        "_calculate_rewards": ("inputs", "prompts", "completions", "completion_ids_list"),
    },
    "updates": {
        "_compute_loss": ("model", "inputs"),
        "_get_per_token_logps_and_entropies": ("model", "input_ids", "attention_mask", "compute_entropy"),
        "training_step": ("model", "inputs"),
    },
    "samples": {"get_train_dataloader": (), "training_step": ("model", "inputs")},
    "loop": {"train": (), "log": ("logs",)},
}
LIGER = "compute_liger_loss"
ENDS = "the ids that end a completion"
ATTRIBUTES: dict[str, dict[str, tuple[tuple[str, ...], ...]]] = {  # by its name: places, the newest version's first
    "rollouts": {
        ENDS: (
            ("eos_token_ids", "_tokenizer.pad_token_id"),  # 1.14
            ("_tokenizer.eos_token_id", "_tokenizer.pad_token_id"),  # 1.3 to 1.13
            ("eos_token_id", "pad_token_id"),  # before
        ),
        **{name: ((name,),) for name in ("_metrics", "num_generations", "reward_func_names", "reward_weights")},
    },
    "updates": {name: ((name,),) for name in ("_metrics", "beta", "epsilon_low", "epsilon_high")},
    "samples": {name: ((name,),) for name in ("_rollout_dataset", "model_version")},
    "loop": {name: ((name,),) for name in (
        "accelerator.accumulate", "processing_class.eos_token_id", "args.kl_coef", "args.kl_estimator",
        "args.cliprange", "args.cliprange_value",
    )},
}  # fmt: skip
# Local variables of PPO's `train`, which computes everything: those of a rollout, and those of a micro-batch.
ROLLOUT = (
    "queries", "responses", "logprobs", "ref_logprobs", "scores", "values", "sequence_lengths", "contain_eos_token",
    "padding_mask", "padding_mask_p1", "advantages", "returns", "ratio_stats",
)  # fmt: skip
MICRO_BATCH = (
    "micro_batch_inds", "padding_mask", "padding_mask_p1", "new_logprobs", "mb_logprobs", "mb_advantage", "mb_return",
    "mb_values", "vpred", "entropy", "loss",
)  # fmt: skip
VARIABLES = frozenset({*ROLLOUT, *MICRO_BATCH})
# The settings of a trainer that are constants of the config of the same name.
GRPO = ("beta", "epsilon_low", "epsilon_high", "loss_type", "importance_sampling_level", "scale_rewards",
        "multi_objective_aggregation", "vllm_importance_sampling_mode", "num_generations")  # fmt: skip
GRPO_ARGUMENTS = (
    "use_bias_correction_kl", "vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"
)  # fmt: skip
RLOO = ("beta", "epsilon_low", "epsilon_high", "normalize_advantages", "num_generations")
SEEN = ("sees_rollouts", "sees_updates", "sees_samples", "sees_loop")  # constants that say whether a part is seen


@dataclass(frozen=True)
class Support:
    """The parts of a trainer that declog sees, and the reasons for those ``missing``.

    The parts are generations and micro-batches of GRPO or RLOO, samples of an asynchronous trainer, the loop of PPO.
    """

    method: str | None = None
    rollouts: bool = False
    updates: bool = False
    samples: bool = False
    loop: bool = False
    missing: tuple[str, ...] = ()
    tested: bool = False  # whether it is TRL's own class, of a version whose values all equal declog's


def support_of(trainer: Any) -> Support:
    """The parts that declog sees of a trainer."""
    bases = type(trainer).__mro__
    trl_class = next((base for base in bases if (base.__module__, base.__name__) in CLASSES), None)
    trl_class = trl_class or next(filter(_is_copy, bases), None)
    if trl_class is None:
        return Support(missing=("it is neither trl.GRPOTrainer nor trl.RLOOTrainer",))
    method = CLASSES.get((trl_class.__module__, trl_class.__name__), "grpo")
    equal = EQUAL_PPO if method == "ppo" else EQUAL
    missing = {part: _missing(trainer, trl_class, part) for part in PARTS[method]}
    return Support(
        method,
        **{part: not texts for part, texts in missing.items()},
        missing=tuple(dict.fromkeys(text for texts in missing.values() for text in texts)),
        tested=type(trainer) is trl_class and equal[0] <= trl_version() <= equal[1],
    )


def _is_copy(base: type) -> bool:
    """Whether a class defines the rollout methods of GRPO itself, instead of inheriting them."""
    return base.__name__.endswith(COPIES) and METHODS["rollouts"].keys() <= vars(base).keys()


def trl_version() -> tuple[int, int]:
    """TRL's version; (0, 0) if it is unknown."""
    try:
        match = re.match(r"(\d+)\.(\d+)", version("trl"))
    except PackageNotFoundError:
        return 0, 0
    return (int(match[1]), int(match[2])) if match else (0, 0)


def ends_of(trainer: Any) -> set[int]:
    """The ids of the tokens that end a completion, from the attributes that this trainer has.

    A completion whose last token is none of these was truncated.
    """
    names = next(names for names in ATTRIBUTES["rollouts"][ENDS] if all(_has(trainer, name) for name in names))
    values = [attrgetter(name)(trainer) for name in names]
    return {end for value in values for end in (value if isinstance(value, Iterable) else [value])}


def code_of(cls: type) -> CodeType | None:
    """The code of the ``train`` that a class itself defines; None if it defines none."""
    train = vars(cls).get("train")
    return inspect.unwrap(train).__code__ if inspect.isfunction(train) else None


def _missing(trainer: Any, trl_class: type, part: str) -> list[str]:
    """The reasons why declog does not see a part of a trainer, in words; empty if it sees the part."""
    texts = [
        f"it has no `{name}`"
        for name, places in ATTRIBUTES[part].items()
        if not any(all(_has(trainer, path) for path in paths) for paths in places)
    ]
    if part == "updates" and hasattr(trainer, LIGER) and trainer.use_liger_kernel:  # before 1.14
        texts.append("its loss is Liger's")
    if part == "loop":
        code = code_of(trl_class)
        variables = () if code is None else code.co_varnames
        texts += [f"its `train` has no `{name}`" for name in sorted(VARIABLES.difference(variables))]
    for name, parameters in METHODS[part].items():
        if not hasattr(trainer, name):
            texts.append(f"it has no `{name}`")
            continue
        method = getattr(trainer, name)
        texts += [f"`{name}` takes no `{parameter}`" for parameter in parameters if not _takes(method, parameter)]
    methods = METRIC_METHODS.get(part, ())
    return texts + [f"`{name}` is not TRL's own" for name in methods if not _calls_own(trainer, trl_class, name)]


def _has(owner: Any, name: str) -> bool:
    first, _, rest = name.partition(".")
    return hasattr(owner, first) and (not rest or _has(getattr(owner, first), rest))


def _takes(method: Any, name: str) -> bool:
    """Whether a method can be called with the argument; ``**kwargs`` count, as they hand it on."""
    parameters = inspect.signature(method).parameters
    return name in parameters or any(item.kind is item.VAR_KEYWORD for item in parameters.values())


def _calls_own(trainer: Any, trl_class: type, name: str) -> bool:
    """Whether every override of TRL's method calls the next one, by ``super()`` in a subclass or a mixin."""
    if name in vars(trainer):
        return False
    callee, *callers = next(names for names in METRIC_METHODS.values() if name in names)
    if name in callers and callee not in inspect.unwrap(getattr(trl_class, name)).__code__.co_names:
        return False  # a copy whose caller computes the metrics itself
    before = type(trainer).__mro__[: type(trainer).__mro__.index(trl_class)]
    overrides = [inspect.unwrap(vars(cls)[name]) for cls in before if name in vars(cls)]
    return all(inspect.isfunction(override) and name in override.__code__.co_names for override in overrides)


# -- settings: read from the trainer, never set


def constants_of(trainer: Any, support: Support) -> dict[str, Any]:
    """The constants that are read from a trainer, by their names in the presets `trl_*`."""
    constants: dict[str, Any] = {name: getattr(support, name.removeprefix("sees_")) for name in SEEN}
    if support.method == "grpo":
        constants |= _read(trainer, GRPO) | _read(trainer.args, GRPO_ARGUMENTS)
        if hasattr(trainer.args, "delta"):
            constants["delta"] = math.inf if trainer.args.delta is None else trainer.args.delta
        bonus = _read(trainer.args, ("entropy_coef", "use_adaptive_entropy"))  # earlier versions lack them
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
    """The attributes by name that the object has; versions of TRL differ in them."""
    return {name: getattr(owner, name) for name in names if hasattr(owner, name)}
