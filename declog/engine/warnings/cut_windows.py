"""Tells that a run goes back into the middle of a window, whose value was logged behind that step and is dropped.

The window's steps up to there are made no second time, so their rows are in no later window either.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping

from declog.engine.window_state import WindowState
from declog.errors.messages import listed
from declog.language.nodes import LOGGED
from declog.plans.ops import Plan

log = logging.getLogger("declog")
WINDOWS = 64  # the latest windows of each length that are remembered


class CutWindows:
    """Remembers the first and the last step of training's latest windows of several steps."""

    def __init__(self, plan: Plan) -> None:
        self._names: dict[int, list[str]] = {}
        metrics = (op for op in plan.outputs if op.shown and op.id != LOGGED)
        for op in (*metrics, *plan.tables):
            self._names.setdefault(op.every, []).append(op.id)
        self._steps: dict[int, deque[tuple[int, int]]] = {
            period: deque(maxlen=WINDOWS) for period in plan.periods if period != 1
        }

    def note(self, step: int, windows: Mapping[int, WindowState]) -> None:
        """Remember the windows, by their lengths, that ended after a step."""
        for period in windows.keys() & self._steps.keys():
            if (first := windows[period].first) is not None:
                self._steps[period].append((first, step))

    def rewind(self, step: int, *, restart: bool) -> None:
        """Forget the windows that ended behind ``step``, and warn of those that began before."""
        lost: dict[int, list[str]] = {}
        for period, steps in self._steps.items():
            for first, _ in [(first, end) for first, end in steps if first <= step < end]:
                lost.setdefault(first - 1, []).extend(self._names.get(period, []))
            self._steps[period] = deque(((first, end) for first, end in steps if end <= step), WINDOWS)
        for before, names in sorted(lost.items()):
            if names and not restart:
                log.warning(
                    "the run goes back to the end of step %d, into the middle of a window: %s were logged behind that"
                    " step, and lose the steps up to it. Go back to where the window began, `log.rewind(%d)`",
                    step, listed(list(dict.fromkeys(names)), 4), before,
                )  # fmt: skip
