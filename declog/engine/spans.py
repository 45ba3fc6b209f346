"""The steps at which the signals of a phase came, as ranks report them to rank 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from declog.plans.needs import Need

PHASE = ""  # this name among a phase's signals stands for the phase's batches


class Span(NamedTuple):
    """The first and the last step at which a signal came, and the longest gap between two of them, in steps."""

    first: int
    last: int
    gap: int = 0

    @lru_cache(maxsize=64)  # noqa: B019  (most signals of a phase come at the same steps)
    def then(self, later: Span) -> Span:
        """One span for this span and a later one."""
        between = max(later.first - self.last, 0)
        return Span(min(self.first, later.first), max(self.last, later.last), max(self.gap, later.gap, between))


@dataclass
class ModeState:
    """One mode: when its signals came, which of them stopped, and which metrics are inactive."""

    spans: dict[Need, Span] = field(default_factory=dict)
    counts: dict[Need, int] = field(default_factory=dict)  # how many steps the mode had when each signal last came
    begun: tuple[int, int] | None = None  # the step and the count of steps at the first log event
    judged: set[str] = field(default_factory=set)  # metrics whose first window has ended
    inactive: dict[str, str] = field(default_factory=dict)  # inactive metrics, with the reason
    unfed: set[str] = field(default_factory=set)  # inactive metrics because signals had not come at their first window
    stopped: dict[Need, int] = field(default_factory=dict)  # stopped signals, with the last step at which each came
    warned: set[Need] = field(default_factory=set)
    misfits: dict[str, str] = field(default_factory=dict)  # by phase: why its rows are in no groups; "" once reported


Arrivals = Mapping[str, Mapping[str, Span]]  # by phase and signal


def spans(data: Any) -> Arrivals:
    """The spans of signals from a decoded message; malformed data raises ``ValueError``, ``TypeError`` or the like."""
    return {
        str(phase): {str(name): Span(*map(int, span)) for name, span in names.items()} for phase, names in data.items()
    }
