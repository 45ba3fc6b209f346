"""What a window holds of its log events so far, on rank 0: the rows of all ranks.

Imports frames and the plan, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from declog.frame import Frame
from declog.functions import DEFAULT, Functions
from declog.plan import Plan


class Held:
    """The rows of one window: of one mode, of the metrics and tables of one period."""

    def __init__(self, plan: Plan, period: int, functions: Functions = DEFAULT) -> None:
        self._plan = plan
        self._period = period
        self._functions = functions
        self._parts: list[Mapping[str, Frame]] = []

    def add(self, frames: Mapping[str, Frame]) -> None:
        """Rows of one log event, or of a part of one."""
        if frames:
            self._parts.append(frames)

    def end(self) -> Held:
        """The window, and an empty one in its place."""
        whole = Held(self._plan, self._period, self._functions)
        whole._parts, self._parts = self._parts, []
        return whole

    @property
    def frames(self) -> dict[str, Frame]:
        """All rows, by event."""
        names = dict.fromkeys(name for part in self._parts for name in part)
        return {name: Frame.merge([part[name] for part in self._parts if name in part]) for name in names}

    def __bool__(self) -> bool:
        return bool(self._parts)

    def state(self) -> tuple[dict[str, Frame], dict[str, Any]]:
        """For a checkpoint: the rows, and plain data."""
        return self.frames, {}

    def load(self, frames: Mapping[str, Frame], data: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        self._parts = [dict(frames)] if frames else []
