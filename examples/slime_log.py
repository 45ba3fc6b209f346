"""Logs slime's rollouts and evaluations with declog. Set two options of slime:

    --custom-rollout-log-function-path examples.slime_log.rollout
    --custom-eval-rollout-log-function-path examples.slime_log.evaluation

The functions run in slime's RolloutManager, a single process that gives them every sample. The numbers that slime has
computed (`extra`) pass through under their names; declog computes the other metrics from the samples. Both functions
return False, so that slime's own logging goes on; True would turn it off. The config is `grpo` with slime's groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import declog

CONFIG = "grpo"
OVERRIDES = (
    "sinks=[parquet]",
    "axes.group={size: null, of: group}",
    "signals.any.group={axis: completion, type: int}",
    "signals.rollout.data_source={axis: completion, type: text}",
    "signals.rollout.aborted={axis: completion, type: bool}",
    "signals.rollout.rollout_seconds={axis: step}",
    "metrics.aborted=mean(aborted)",
    "metrics.rollout_seconds=mean(rollout_seconds)",
    "metrics.by_source={expr: reward, by: data_source, name: 'reward/{label}'}",
)


@cache
def recorder() -> declog.Recorder:
    """The recorder of the run, started by the first call; the end of the process closes it."""
    return declog.start(CONFIG, OVERRIDES, rank=0, world_size=1)


def rollout(
    rollout_id: int, args: Any, samples: Sequence[Any], extra: Mapping[str, Any] | None, seconds: float
) -> bool:
    """Log one step: its samples, and slime's numbers."""
    log = recorder()
    if log.last_step is not None and rollout_id <= log.last_step:  # slime goes back to a checkpoint
        log.rewind(rollout_id - 1)
    with log.step(rollout_id):
        log.observe(columns(args, samples), rollout_seconds=seconds)
        log.scalars(extra or {})
    return False


def evaluation(rollout_id: int, args: Any, data: Mapping[str, Mapping[str, Any]], extra: Any) -> bool:
    """Log all data sets of one evaluation."""
    log = recorder()
    with log.mode("eval", step=rollout_id):
        for name, found in data.items():
            rewards = found["rewards"]
            samples = found.get("samples")
            rows = columns(args, samples) if samples else {"group": [*range(len(rewards))]}
            log.observe({**rows, "reward": rewards, "data_source": [name] * len(rewards)})
        log.scalars(extra or {})
    return False


def columns(args: Any, samples: Sequence[Any]) -> dict[str, Any]:
    """The signals of slime's samples, one row for each sample."""
    return {
        "prompt": [sample.prompt if isinstance(sample.prompt, str) else str(sample.prompt) for sample in samples],
        "completion": [sample.response for sample in samples],
        "reward": [sample.get_reward_value(args) for sample in samples],
        "length": [sample.effective_response_length for sample in samples],
        "truncated": [sample.status.name == "TRUNCATED" for sample in samples],
        "aborted": [sample.status.name == "ABORTED" for sample in samples],
        "group": [place if sample.group_index is None else sample.group_index for place, sample in enumerate(samples)],
    }
