"""The steps at which the signals of a phase came, as ranks report them to rank 0."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

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


Arrivals = Mapping[str, Mapping[str, Span]]  # by phase and signal


def spans(data: Any) -> Arrivals:
    """The spans of signals from a decoded message; malformed data raises ``ValueError``, ``TypeError`` or the like."""
    return {
        str(phase): {str(name): Span(*map(int, span)) for name, span in names.items()} for phase, names in data.items()
    }
