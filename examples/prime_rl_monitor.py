"""A prime-rl monitor that logs episodes and scalars with declog. Add two lines where prime-rl sets up its monitors:

    from prime_rl import monitors
    monitors.MONITORS.append(await DeclogMonitor.start(output_dir))

The episodes of `effective` are those that a step trains on, so they are rows of that step. The episodes of `all` are
only in prime-rl's own files. Numbers that prime-rl computes itself pass through under their names.
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
    """The monitor; it runs on rank 0, as all of prime-rl's monitors do."""

    log_: declog.Recorder

    @classmethod
    async def start(cls, output_dir: Path, config: Any = None, **options: Any) -> DeclogMonitor:
        """Construct and initialise the monitor; ``config`` and ``options`` are those of ``declog.start``."""
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
    """The signals of episodes: a row for each trace that trains the policy, so none for a judge or a user."""
    found = [(episode, trace) for episode in episodes for trace in episode.traces if trace.agent.trainable]
    names = dict.fromkeys(name for _, trace in found for name in trace.rewards)
    measured = dict.fromkeys(name for _, trace in found for name in trace.metrics)
    return {
        "reward": [trace.reward if any(trace.rewards.values()) else None for _, trace in found],  # None: no score
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
