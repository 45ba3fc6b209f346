"""Where the time of a step goes: timers, the rest of the clock, the slowest rank, and where the clock stood still."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.runs.report.curves import Meanings
from declog.runs.series import TRAIN, Series, series_by_name

Array = NDArray[np.float64]

COLUMNS = 300  # of the picture; a longer run has the means of neighbours
NAMED = re.compile(r"time/(.+?)(?:/(mean|max))?")  # how timers are called where no config says so
WHOLE = "step"  # a timer of this name has all of the step, as verl's does
STALL = 5.0  # how many times the median of the run, and how many seconds more, are a stall
STALL_S = 1.0
MOST_STALLS = 8


@dataclass
class Timer:
    """A timed block: its seconds per step, the mean of the ranks and, where it was logged, the slowest of them."""

    mean: Series | None = None
    slowest: Series | None = None


def step_time(scalars: Any, meanings: Meanings) -> dict[str, Any] | None:
    """The time of training's steps as plain data; None where nothing was timed and no two log events have a time.

    ``steps`` and ``clock``, seconds since the first log event, are the ends of columns; ``parts`` are timers with the
    ``seconds`` per step of each column, their ``share`` of all, and the ``slowest`` rank's seconds; ``rest`` is what
    no timer has. ``stalls`` are pairs of log events between which a step took far longer than the median.
    """
    series = series_by_name(scalars, TRAIN)
    timers = _timers(series, meanings)
    steps, clock = _events(scalars)
    if len(steps) < 2 or not (np.diff(clock) > 0).any():
        return None
    columns = {name: _at(timer.mean or timer.slowest, steps) for name, timer in timers.items()}
    between = np.diff(clock) / np.diff(steps)
    measured = np.concatenate([[np.nan], between])
    whole = columns.pop(WHOLE, measured) if len(columns) > 1 else measured
    timed = np.nansum(list(columns.values()), axis=0) if columns else np.zeros(len(steps))
    rest = np.maximum(whole - timed, 0)
    total = float(np.nansum(timed + np.nan_to_num(rest)))
    thin = _thinned(len(steps))
    parts = [
        {
            "name": name, "seconds": thin(seconds), "share": float(np.nansum(seconds)) / total if total else 0.0,
            "mean": float(np.nanmean(seconds)), **_slowest(timers[name], steps),
        }
        for name, seconds in sorted(columns.items(), key=lambda item: -float(np.nansum(item[1])))
        if np.isfinite(seconds).any()
    ]  # fmt: skip
    last = [one[-1] for one in np.array_split(np.arange(len(steps)), min(len(steps), COLUMNS))]
    return {
        "steps": steps[last].tolist(), "clock": (clock[last] - clock[0]).tolist(), "parts": parts,
        "from": [int(steps[0]), 0.0], "rest": thin(rest), "restShare": float(np.nansum(rest)) / total if total else 0.0,
        "axis": _axis(steps, clock, last), "median": float(np.median(between)), "stalls": _stalls(steps, clock),
    }  # fmt: skip


def _timers(series: Mapping[str, Series], meanings: Meanings) -> dict[str, Timer]:
    """The timers by name: families in seconds, and numbers that are called so."""
    timers: dict[str, Timer] = {}
    for name, one in series.items():
        facts = meanings.of(name, TRAIN, None)
        called = NAMED.fullmatch(facts["base"])
        if facts["unit"] == "s" and facts["member"]:
            part, slowest = facts["member"], facts["reduction"] == "max"
        elif called is not None:
            part, slowest = called[1], called[2] == "max"
        else:
            continue
        timer = timers.setdefault(part, Timer())
        if slowest:
            timer.slowest = one
        else:
            timer.mean = one
    return timers


def _events(scalars: Any) -> tuple[NDArray[np.int64], Array]:
    """The steps of training's log events, each once, and when they were logged, in seconds."""
    rows = zip(*(scalars[name].to_pylist() for name in ("mode", "step", "time")), strict=True)
    times: dict[int, float] = {}
    for mode, step, time in rows:
        if mode == TRAIN and time:
            times[step] = max(time, times.get(step, time))
    ordered = sorted(times.items())
    steps = np.array([step for step, _ in ordered], np.int64)
    return steps, np.maximum.accumulate(np.array([time for _, time in ordered], float)) if ordered else np.zeros(0)


def _at(one: Series | None, steps: NDArray[np.int64]) -> Array:
    """A series at some steps; NaN where it has none."""
    known = {} if one is None else dict(one)
    return np.array([known.get(step, np.nan) for step in steps.tolist()], float)


def _slowest(timer: Timer, steps: NDArray[np.int64]) -> dict[str, Any]:
    """The seconds of the slowest rank on average, and how many times the mean of the ranks they are."""
    if timer.slowest is None or timer.mean is None:
        return {"slowest": None, "times": None}
    slowest, mean = _at(timer.slowest, steps), _at(timer.mean, steps)
    there = np.isfinite(slowest) & np.isfinite(mean)
    if not there.any():
        return {"slowest": None, "times": None}
    least = float(np.mean(mean[there]))
    return {
        "slowest": float(np.mean(slowest[there])),
        "times": float(np.mean(slowest[there])) / least if least else None,
    }


def _axis(steps: NDArray[np.int64], clock: Array, ends: Sequence[int]) -> dict[str, Any]:
    """Where steps stand on the clock: at the ends of columns, and at both ends of each stall; seconds rise strictly."""
    corners = {0, *map(int, ends)}
    for stall in _stalls(steps, clock):
        after = int(np.searchsorted(steps, stall["after"]))
        corners |= {after, after + 1}
    places = sorted(corners)
    seconds = clock[places] - clock[0]
    rising = seconds + np.arange(len(places)) * 1e-9 * (1 + seconds[-1])
    return {"steps": steps[places].tolist(), "seconds": rising.tolist()}


def _thinned(count: int) -> Any:
    places = np.array_split(np.arange(count), min(count, COLUMNS))

    def thin(values: Array) -> list[float | None]:
        means = [values[place][np.isfinite(values[place])] for place in places]
        return [float(np.mean(one)) if len(one) else None for one in means]

    return thin


def _stalls(steps: NDArray[np.int64], clock: Array) -> list[dict[str, Any]]:
    """Between which log events a step took longest, where that is far from the median: the longest first."""
    between = np.diff(clock) / np.diff(steps)
    usual = float(np.median(between))
    found = np.flatnonzero((between > STALL * usual) & (between > usual + STALL_S))
    longest = sorted(found.tolist(), key=lambda place: -float(between[place]))[:MOST_STALLS]
    return [
        {
            "after": int(steps[place]), "step": int(steps[place + 1]), "seconds": float(np.diff(clock)[place]),
            "times": float(between[place]) / usual if usual else None, "at": float(clock[place] - clock[0]),
        }
        for place in longest
    ]  # fmt: skip
