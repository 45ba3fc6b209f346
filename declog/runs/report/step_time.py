"""Shows where the time of a step goes: timers, the time outside of timers, the slowest rank, and stalls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.runs.report.curves import Meanings
from declog.runs.series import TRAIN, Series, series_by_name, training_times

Array = NDArray[np.float64]

COLUMNS = 300  # the most columns of the chart; each shows the mean of neighbouring log events
NAMED = re.compile(r"time/(.+?)(?:/(mean|max))?")  # names of timers that no config declares
STEP = "step"  # the timer of the complete step, such as verl's
STALL = 5.0  # a step of a stall takes more than this times the median, and STALL_S more than the median
STALL_S = 1.0  # seconds
MOST_STALLS = 8


# A timed block: its seconds per step as ``mean`` over the ranks, and as ``max``, the slowest rank; one may be absent.
Timer = dict[str, Series]


def step_time(scalars: Any, meanings: Meanings) -> dict[str, Any] | None:
    """The time of training's steps as plain data; None without two log events at different times.

    ``steps`` and ``clock``, in seconds since the first log event, are the ends of columns. ``parts`` are timers with
    the ``seconds`` per step of each column, their ``share`` of the time, and the ``slowest`` rank's seconds; ``rest``
    is the time outside of timers. ``stalls`` are pairs of log events between which a step took far longer than the
    median.
    """
    series = series_by_name(scalars, TRAIN)
    timers = _timers(series, meanings)
    times = training_times(scalars)
    steps = np.array(list(times), np.int64)
    clock = np.maximum.accumulate(np.array(list(times.values()), float))
    if len(steps) < 2 or not (np.diff(clock) > 0).any():
        return None
    columns = {name: _at(timer.get("mean") or timer.get("max"), steps) for name, timer in timers.items()}
    between = np.diff(clock) / np.diff(steps)
    measured = np.concatenate([[np.nan], between])
    total = columns.pop(STEP, measured) if len(columns) > 1 else measured
    timed = np.nansum(list(columns.values()), axis=0) if columns else np.zeros(len(steps))
    rest = np.maximum(total - timed, 0)
    seconds_of_run = float(np.nansum(timed + np.nan_to_num(rest)))
    pieces = np.array_split(np.arange(len(steps)), min(len(steps), COLUMNS))
    thin = partial(_thinned, pieces)
    share = 1 / seconds_of_run if seconds_of_run else 0.0
    parts = [
        {
            "name": name, "seconds": thin(seconds), "share": float(np.nansum(seconds)) * share,
            "mean": float(np.nanmean(seconds)), **_slowest(timers[name], steps),
        }
        for name, seconds in sorted(columns.items(), key=lambda item: -float(np.nansum(item[1])))
        if np.isfinite(seconds).any()
    ]  # fmt: skip
    last = [piece[-1] for piece in pieces]
    stalls = _stalls(steps, clock)
    return {
        "steps": steps[last].tolist(), "clock": (clock[last] - clock[0]).tolist(), "parts": parts,
        "from": [int(steps[0]), 0.0], "rest": thin(rest), "restShare": float(np.nansum(rest)) * share,
        "axis": _axis(steps, clock, last, stalls), "median": float(np.median(between)), "stalls": stalls,
    }  # fmt: skip


def _timers(series: Mapping[str, Series], meanings: Meanings) -> dict[str, Timer]:
    """The timers by name: families in seconds, and scalars whose name is ``NAMED``."""
    timers: dict[str, Timer] = {}
    for name, one in series.items():
        facts = meanings.of(name, TRAIN, None)
        called = NAMED.fullmatch(facts["base"])
        if facts["unit"] == "s" and facts["member"]:
            part, reduction = facts["member"], facts["reduction"]
        elif called is not None:
            part, reduction = called[1], called[2]
        else:
            continue
        timers.setdefault(part, {})["max" if reduction == "max" else "mean"] = one
    return timers


def _at(one: Series | None, steps: NDArray[np.int64]) -> Array:
    """The values of a series at some steps; NaN if it has none."""
    values = {} if one is None else dict(zip(one.steps.tolist(), one.values.tolist(), strict=True))
    return np.array([values.get(step, np.nan) for step in steps.tolist()], float)


def _slowest(timer: Timer, steps: NDArray[np.int64]) -> dict[str, Any]:
    """The average seconds of the slowest rank, and their ratio to the mean over the ranks."""
    slowest, mean = _at(timer.get("max"), steps), _at(timer.get("mean"), steps)
    both = np.isfinite(slowest) & np.isfinite(mean)
    if not both.any():
        return {"slowest": None, "times": None}
    usual, seconds = float(np.mean(mean[both])), float(np.mean(slowest[both]))
    return {"slowest": seconds, "times": seconds / usual if usual else None}


def _axis(
    steps: NDArray[np.int64], clock: Array, ends: Sequence[int], stalls: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The clock at some steps: at the ends of columns, and at both ends of each stall. The seconds rise strictly."""
    corners = {0, *map(int, ends)}
    for stall in stalls:
        after = int(np.searchsorted(steps, stall["after"]))
        corners |= {after, after + 1}
    indices = sorted(corners)
    seconds = clock[indices] - clock[0]
    rising = seconds + np.arange(len(indices)) * 1e-9 * (1 + seconds[-1])
    return {"steps": steps[indices].tolist(), "seconds": rising.tolist()}


def _thinned(pieces: Sequence[NDArray[np.int64]], values: Array) -> list[float | None]:
    """The mean of the finite values of each piece; None for a piece without any."""
    finite = [values[piece][np.isfinite(values[piece])] for piece in pieces]
    return [float(np.mean(one)) if len(one) else None for one in finite]


def _stalls(steps: NDArray[np.int64], clock: Array) -> list[dict[str, Any]]:
    """The pairs of log events between which a step took far longer than the median, the longest first."""
    between = np.diff(clock) / np.diff(steps)
    usual = float(np.median(between))
    stalls = np.flatnonzero((between > STALL * usual) & (between > usual + STALL_S))
    longest = sorted(stalls.tolist(), key=lambda index: -float(between[index]))[:MOST_STALLS]
    return [
        {
            "after": int(steps[index]), "step": int(steps[index + 1]), "seconds": float(np.diff(clock)[index]),
            "times": float(between[index]) / usual if usual else None, "at": float(clock[index] - clock[0]),
        }
        for index in longest
    ]  # fmt: skip
