"""A monitor of prime-rl's for declog: episodes with their step, and all scalars. Two lines where monitors are set up:

    from prime_rl import monitors
    monitors.MONITORS.append(await DeclogMonitor.start(output_dir))

Episodes of `effective` are those that a step trains on, and are rows of that step; those of `all` are left to
prime-rl's own files. What prime-rl computes itself passes through under its names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prime_rl.configs.monitors import FileMonitorConfig
from prime_rl.monitors.base import Monitor

import declog

CONFIG: dict[str, Any] = {
    "run": {"name": "prime_rl"},
    "modes": {"train": {}, "eval": {"prefix": "eval/"}},
    "axes": {"group": {"of": "group"}},
    "signals": {
        "rollout": {
            "reward": "completion", "rewards": {"axis": "completion", "family": True},
            "measured": {"axis": "completion", "family": True}, "turns": "completion int",
            "length": "completion int", "failed": "completion bool", "env": "completion text",
            "group": "completion text",
        },
    },
    "metrics": {
        "reward": {"expr": "reward", "reduce": ["mean", "std"]},
        "by_env": {"expr": "reward", "by": "env", "name": "reward/{label}"},
        "rewards": "mean(rewards)", "measured": "mean(measured)", "length": "summary(length)", "turns": "mean(turns)",
        "failed": "mean(failed)", "equal": "mean(max(reward, over=completion) == min(reward, over=completion))",
        "logged": {"reduce": "mean", "nan": "propagate"},
    },
    "sinks": ["parquet"],
}  # fmt: skip


class DeclogMonitor(Monitor):  # type: ignore[misc]  # not typed here
    """On rank 0, as all of prime-rl's monitors."""

    log_: declog.Recorder

    @classmethod
    async def start(cls, output_dir: Path, config: Any = None, **options: Any) -> DeclogMonitor:
        """The monitor, begun; ``config`` is what ``declog.start`` takes."""
        monitor = cls(FileMonitorConfig())
        await monitor.init(output_dir=output_dir, config=CONFIG if config is None else config, **options)
        return monitor

    async def init(self, output_dir: Path, config: Any, **options: Any) -> None:
        self.log_ = declog.start(
            config, **{"rank": 0, "world_size": 1, "steps": "commit", "output_dir": output_dir / "declog", **options}
        )

    async def log_metrics(self, metrics: dict[str, Any], step: int) -> None:
        self.log_.scalars(metrics, step)

    async def log_episodes(self, episodes: Sequence[Any], step: int, kind: str, subset: str) -> None:
        if subset != "effective":
            return
        if kind == "eval":
            with self.log_.mode("eval", step=step):
                self.log_.observe(columns(episodes))
        else:
            self.log_.observe(columns(episodes), step=step)

    async def finalize(self) -> None:
        self.log_.close()


def columns(episodes: Sequence[Any]) -> dict[str, Any]:
    """Signals of verifiers' episodes: a row per trace that trains the policy, so none of a judge or a user."""
    found = [(episode, trace) for episode in episodes for trace in episode.traces if trace.agent.trainable]
    names = dict.fromkeys(name for _, trace in found for name in trace.rewards)
    measured = dict.fromkeys(name for _, trace in found for name in trace.metrics)
    return {
        "reward": [trace.reward if any(trace.rewards.values()) else None for _, trace in found],  # where it was scored
        "rewards": {name: [_score(trace.rewards.get(name)) for _, trace in found] for name in names},
        "measured": {name: [trace.metrics.get(name) for _, trace in found] for name in measured},
        "turns": [trace.num_turns for _, trace in found],
        "length": [trace.num_output_tokens for _, trace in found],
        "failed": [not trace.ok for _, trace in found],
        "env": [episode.env.name or episode.env.id for episode, _ in found],
        "group": [episode.id if episode.group is None else episode.group.id for episode, _ in found],
    }


def _score(reward: Any) -> float | None:
    return None if reward is None else reward.score
