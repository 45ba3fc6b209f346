"""The facts of a log event: step, mode, counts and times."""

from __future__ import annotations

from dataclasses import dataclass

RESTART = -(2**62)  # as ``back``: the run begins again, and everything that it has logged stays


def undone(back: int | None) -> int | None:
    """The step after which logged values are dropped when a run goes back; None: nothing is dropped."""
    return None if back == RESTART else back


@dataclass(frozen=True, slots=True)
class EventFacts:
    """The position of a log event in the run, and its times.

    ``event`` counts the log events of its mode, and ``count`` the mode's steps so far. A ``part`` only delivers rows:
    no window ends with it. At the ``tail`` all windows of the mode end. ``back`` is the step after which a rewound run
    continues. ``seconds`` is the time that its steps took, ``elapsed`` the time since the recorder started. ``partial``
    is the number of ranks that delivered rows, if some are missing. ``number`` counts the log events whose rows are in
    the run's folder, across all processes that wrote there.
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
