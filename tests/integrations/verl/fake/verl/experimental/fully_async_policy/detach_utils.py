"""As in verl, for one of the names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class MetricsAggregator:
    def __init__(self) -> None:
        self.kept: list[Mapping[str, Any]] = []

    def add_step_metrics(self, metrics: Mapping[str, Any], sample_count: int, timestamp: float | None = None) -> None:
        self.kept.append(metrics)
