"""TRL's own numbers and names: the presets `trl_grpo` and `trl_rloo` give what TRL 1.16 logged, from its tensors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.runtime.ranks.comm import Comm
from declog.testing import MemorySink, run_ranks
from tests.engine.windows import trl

# What a trainer reports whatever the algorithm: it is no metric of TRL's, or needs no declog to be computed.
PASS_THROUGH = {
    "loss", "grad_norm", "learning_rate", "epoch", "step_time",
    "eval_loss", "eval_runtime", "eval_samples_per_second", "eval_steps_per_second",
}  # fmt: skip

# The names in trl 1.16.0: `self._metrics[mode][...]` in trl/trainer/grpo_trainer.py, in the source's order.
# {name} is what `log_metric` was called with, and {reward_func_name} a reward function's.
GRPO = (
    "step_time", "num_tokens", "completions/mean_length", "completions/min_length", "completions/max_length",
    "completions/clipped_ratio", "completions/mean_terminated_length", "completions/min_terminated_length",
    "completions/max_terminated_length", "tools/call_frequency", "tools/failure_frequency",
    "rewards/{reward_func_name}/mean", "rewards/{reward_func_name}/std", "reward", "reward_std",
    "frac_reward_zero_std", "{name}", "sampling/sampling_logp_difference/mean",
    "sampling/sampling_logp_difference/max", "sampling/importance_sampling_ratio/min",
    "sampling/importance_sampling_ratio/mean", "sampling/importance_sampling_ratio/max", "policy_loss",
    "entropy_coef", "aux_loss", "kl", "entropy", "clip_ratio/low_mean", "clip_ratio/high_mean",
    "clip_ratio/region_mean", "clip_ratio/low_min", "clip_ratio/high_max", "cispo_clip_ratio", "vespo/phi_seq_mean",
)  # fmt: skip

# The same of trl/trainer/rloo_trainer.py.
RLOO = (
    "step_time", "num_tokens", "completions/mean_length", "completions/min_length", "completions/max_length",
    "completions/clipped_ratio", "completions/mean_terminated_length", "completions/min_terminated_length",
    "completions/max_terminated_length", "kl", "rewards/{reward_func_name}/mean", "rewards/{reward_func_name}/std",
    "reward", "reward_std", "frac_reward_zero_std", "{name}", "aux_loss", "entropy", "clip_ratio/low_mean",
    "clip_ratio/low_min", "clip_ratio/high_mean", "clip_ratio/high_max", "clip_ratio/region_mean",
)  # fmt: skip

CLIP = {name for name in GRPO if name.startswith("clip_ratio/")}
TOOLS = {name for name in GRPO if name.startswith("tools/")}
SAMPLING = {name for name in GRPO if name.startswith("sampling/")}
ONLY_GRPO = {"policy_loss", "entropy_coef"}  # with an entropy bonus: signals that are optional
ALWAYS = set(RLOO) - CLIP - {"kl"}

# Constants that say something, and the names of trl_grpo under them.
SETTINGS: list[tuple[dict[str, Any], set[str]]] = [
    ({}, ALWAYS | ONLY_GRPO | CLIP),
    ({"beta": 0.04}, ALWAYS | ONLY_GRPO | CLIP | {"kl"}),
    ({"tools": True}, ALWAYS | ONLY_GRPO | CLIP | TOOLS),
    ({"vllm": True}, ALWAYS | ONLY_GRPO | CLIP | SAMPLING),
    ({"scale_rewards": "batch"}, ALWAYS | ONLY_GRPO | CLIP),
    ({"scale_rewards": "none"}, ALWAYS | ONLY_GRPO | CLIP),
    ({"multi_objective_aggregation": "normalize_then_sum"}, ALWAYS | ONLY_GRPO | CLIP),
    ({"importance_sampling_level": "sequence"}, ALWAYS | ONLY_GRPO | CLIP),
    ({"loss_type": "cispo"}, ALWAYS | ONLY_GRPO | {"cispo_clip_ratio"}),
    ({"loss_type": "vespo"}, ALWAYS | ONLY_GRPO | {"vespo/phi_seq_mean"}),
]


def names(preset: str, **constants: Any) -> set[str]:
    """TRL's names among a preset's outputs under a trainer's settings, with its words for what only a run knows.

    ``loss`` is not TRL's but transformers', whose trainer logs the loss of every step.
    """
    made = declog.plan(declog.compose(preset, ["declog.sinks=[]"]), constants=constants).names()
    return {
        "{name}" if name == "{member}" else name.replace("{member}", "{reward_func_name}")
        for name in set(made) - {"loss"}
    }  # fmt: skip


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("case", trl.CASES)
def test_a_window_has_the_values_that_trl_logged(case: str, world_size: int, tmp_path: Path) -> None:
    """Each window, train and eval: the same names, and each value within 1e-5. What TRL logs as NaN is absent."""
    ranks = [trl.raw(case, world_size, rank) for rank in range(world_size)]
    cfg = declog.compose(f"trl_{ranks[0]['kind']}", ["declog.sinks=[]", "+declog.run.strict=true"])
    sink = MemorySink()

    def body(comm: Comm) -> None:
        data, sinks = ranks[comm.rank], [] if comm.rank else [sink]
        made = trl.constants(data)
        with declog.start(cfg, sinks=sinks, constants=made, comm=comm, output_dir=tmp_path) as log:
            trl.feed(log, data, comm.rank)

    run_ranks(world_size, body)

    logged = trl.windows(case, world_size)
    assert [(window["global_step"], window["mode"]) for window in logged] == [
        (step, records.mode) for step, records in sink.events
    ]
    for window, (_, records) in zip(logged, sink.events, strict=True):
        expected = {
            name: value
            for name, value in window["trl_logged"].items()
            if name not in PASS_THROUGH and value is not None  # null: NaN
        }
        assert len(expected) >= 6
        assert expected == pytest.approx({item.name: item.value for item in records.scalars}, abs=1e-5, rel=0)


def test_the_cases_are_all_there() -> None:
    """Six GRPO and RLOO runs and their NaN, clip, beta and eval variants, each at two world sizes."""
    assert trl.CASES == [
        "grpo_beta0", "grpo_clip", "grpo_default", "grpo_eval", "grpo_nan", "rloo_clip", "rloo_default", "rloo_nan",
    ]  # fmt: skip
    assert {mode for window in trl.windows("grpo_eval", 2) if (mode := window["mode"])} == {"train", "eval"}


@pytest.mark.parametrize(("constants", "expected"), SETTINGS, ids=[str(setting) for setting, _ in SETTINGS])
def test_grpo_names_under_a_setting(constants: dict[str, Any], expected: set[str]) -> None:
    """A setting switches on and off what it does in TRL's trainer."""
    assert expected == names("trl_grpo", **constants)


def test_all_of_grpos_names() -> None:
    """Over all settings trl_grpo has the 34 names of TRL's trainer, and no other."""
    assert len(set(GRPO)) == 34
    assert set(GRPO) == set.union(*(names("trl_grpo", **constants) for constants, _ in SETTINGS))


def test_all_of_rloos_names() -> None:
    """With a reference model trl_rloo has the 23 names of TRL's trainer, without one all but the KL."""
    assert len(set(RLOO)) == 23
    assert set(RLOO) == names("trl_rloo", beta=0.04)
    assert set(RLOO) - {"kl"} == names("trl_rloo")


def test_the_cases_log_no_name_that_the_source_does_not_have() -> None:
    """Whatever TRL logged in the cases stands in the lists above, by its pattern."""
    for case in trl.CASES:
        members = "|".join(trl.raw(case, 1, 0)["args"]["reward_func_names"])
        logged = {name for window in trl.windows(case, 1) for name in window["trl_lists"]}
        patterns = {re.sub(f"^rewards/({members})/", "rewards/{reward_func_name}/", name) for name in logged}
        users = {"mean_ids_len", "overlap_hit"}  # by log_metric, in the runs' reward function
        assert patterns - users <= set(GRPO if case.startswith("grpo") else RLOO)
