"""The facts of a log event: step, mode, counts and times."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EventFacts:
    """Where in the run a log event is. ``event`` counts those of its mode, and ``count`` the mode's steps so far.

    A ``part`` is rows only: no window ends with it; at the ``tail`` all windows of the mode end. The run goes on after
    the step ``back``, where it is rewound. ``seconds`` are what its steps took, ``elapsed`` those since the recorder's
    start. ``partial``: of how many ranks there are rows, where some are missing. ``number`` is that among the log
    events whose rows the run's folder has, whichever process wrote them.
    """

    event: int
    mode: str
    step: int
    count: int
    tail: bool
    part: bool
    back: int | None
    seconds: float
    elapsed: float
    partial: int | None
    time: float
    number: int = 0
