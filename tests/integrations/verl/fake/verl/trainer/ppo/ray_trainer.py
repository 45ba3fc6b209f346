"""As in verl: a loop of steps, the last of which ends it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl.utils.tracking import Tracking


class RayPPOTrainer:
    """A trainer whose batches' metrics are given."""

    def __init__(self, config: Any, metrics: list[Mapping[str, Any]]) -> None:
        self.config = config
        self.metrics = metrics
        self.total_training_steps = len(metrics)
        self.global_steps = 0
        self.logger: Any = None

    def fit(self) -> None:
        self.logger = Tracking("project", "experiment", "console", config=self.config)
        self.global_steps += 1
        for metrics in self.metrics:
            is_last_step = self.global_steps >= self.total_training_steps
            self.logger.log(data=metrics, step=self.global_steps)
            self.global_steps += 1
            if is_last_step:
                return
