"""Tells that a run goes back into the middle of a window, whose value was logged behind that step and is dropped.

The window's steps up to there are made no second time, so their rows are in no later window either.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from declog.errors.messages import listed
from declog.language.nodes import LOGGED
from declog.plans.ops import Plan

log = logging.getLogger("declog")
ENDS = 64  # the latest ends of windows that are remembered


class CutWindows:
    """Remembers where training's windows ended."""

    def __init__(self, plan: Plan) -> None:
        self._names: dict[int, list[str]] = {}
        metrics = (op for op in plan.outputs if op.shown and op.id != LOGGED)
        for op in (*metrics, *plan.tables):
            self._names.setdefault(op.every, []).append(op.id)
        self._ends: dict[int, deque[int]] = {period: deque(maxlen=ENDS) for period in plan.periods}

    def note(self, step: int, periods: Iterable[int]) -> None:
        """Remember that the windows of these lengths ended after a step."""
        for period in periods:
            self._ends[period].append(step)

    def rewind(self, step: int, *, restart: bool) -> None:
        """Forget the ends behind ``step``, and warn of the windows with earlier steps that they ended."""
        lost: dict[int, list[str]] = {}
        for period, ends in self._ends.items():
            before = [end for end in ends if end <= step]
            last = before[-1] if before else -1
            if last < step and len(before) < len(ends):
                lost.setdefault(last, []).extend(self._names.get(period, []))
            self._ends[period] = deque(before, ENDS)
        for end, names in sorted(lost.items()):
            if names and not restart:
                log.warning(
                    "the run goes back to the end of step %d, into the middle of a window: %s were logged behind that"
                    " step, and lose the steps up to it. Go back to where a window ended, `log.rewind(%d)`",
                    step, listed(list(dict.fromkeys(names)), 4), end,
                )  # fmt: skip
