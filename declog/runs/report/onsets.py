"""Finds what broke first: the step at which each curve left its own noise or its healthy range, or was not finite.

A curve is compared with its own past only. At each step, the next values are compared with a line through the values
before the step. The distance of earlier values from their lines is the curve's noise, so trends, random walks and
sparse curves count as noise. At an onset the values are farther from the line than noise explains. Imports nothing of
the page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from declog.language.segmented import of_constant

Array = NDArray[np.float64]
Cause = Literal["noise", "healthy", "finite"]

PAST = 12  # the values that give the line, by the medians of their two halves
AHEAD = (3, 8)  # the next values that are compared with the line; at an onset all of 3, or 6 of 8, are far from it
LEAST = 48  # the least values before an onset
TIMES = 11.0  # at an onset the values are off by more than this times the noise
RECORD = 2.5  # and by more than this times the farthest that the curve was off before
FLOOR = 1e-3  # the least noise, as a share of the curve's median
STAYS = 3  # the least values in a row outside the healthy range
SHORT = 40  # with so many values before an onset the noise counts twice; with more it counts less
HEAVY = 4.0  # a curve with a value above this times its median is compared on a scale that is logarithmic above it

TIMES_SIGN = "\N{MULTIPLICATION SIGN}"
# names of numbers that somebody sets, or that only count: their jumps are planned
SCHEDULE = re.compile(
    r"(^|[/_.])(lr|learning_rate|epochs?|steps?|global_step|progress|temperature|beta|\w*coef\w*|num_\w+|total_\w+|\w*_seen)$"
)


@dataclass(frozen=True)
class Onset:
    """The first step of a curve that differs from the steps before it. ``change`` is the difference in words."""

    step: float
    cause: Cause
    change: str


def onsets(
    name: str, steps: Array, values: Array, *, good: str | None = None, healthy: Sequence[float | None] | None = None
) -> list[Onset]:
    """The onsets of one curve, at most one for each cause. ``steps`` and ``values`` are [n]; steps rise.

    ``good`` is the direction of improvement, in which a change is no onset. ``healthy`` are the least and the greatest
    value of a healthy run.
    """
    finite = np.isfinite(values)
    first = []
    if not finite.all():
        bad = int(np.argmin(finite))
        first.append(Onset(float(steps[bad]), "finite", "NaN" if np.isnan(values[bad]) else "infinite"))
    if SCHEDULE.search(name) or not finite.any():
        return first
    steps, values = steps[finite], values[finite]
    if healthy is not None and (index := _unhealthy(values, healthy)) is not None:
        first.append(Onset(float(steps[index]), "healthy", f"{values[index]:.4g}, out of its healthy range"))
    if (change := _change(values, good)) is not None:
        first.append(Onset(float(steps[change[0]]), "noise", change[1]))
    return first


def onsets_by_step(curves: Sequence[Mapping[str, Any]], limit: int = 12) -> list[dict[str, Any]]:
    """The onsets of a run's curves, sorted by step, one for each family and cause.

    A curve has ``name``, ``template``, ``mode``, ``title``, ``x``, ``y``, ``good`` and ``healthy``. A curve that has
    left its noise is not reported again when it leaves its healthy range at that step or later.
    """
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for curve in curves:
        told = onsets(curve["name"], curve["x"], curve["y"], good=curve["good"], healthy=curve["healthy"])
        moved = min((onset.step for onset in told if onset.cause == "noise"), default=np.inf)
        for onset in told:
            if onset.cause == "healthy" and onset.step >= moved:
                continue
            family = (curve["template"] or curve["name"], curve["mode"], onset.cause)
            row = {"step": onset.step, "cause": onset.cause, "change": onset.change, "name": curve["name"],
                   "mode": curve["mode"], "title": curve["title"], "members": 1}  # fmt: skip
            if (earlier := rows.get(family)) is not None:
                row = {**min(earlier, row, key=lambda one: one["step"]), "members": earlier["members"] + 1}
            rows[family] = row
    return sorted(rows.values(), key=lambda row: (row["step"], row["cause"] == "healthy"))[:limit]


def _unhealthy(values: Array, healthy: Sequence[float | None]) -> int | None:
    """The index at which a curve leaves its healthy range for ``STAYS`` values in a row; None if it never does."""
    low, high = (np.nan if bound is None else float(bound) for bound in healthy)
    out = (of_constant(values, low) < low) | (of_constant(values, high) > high)
    inside = np.flatnonzero(~out)
    if not len(inside):
        return None
    stretches = np.lib.stride_tricks.sliding_window_view(np.pad(out, (0, STAYS)), STAYS)
    stays = np.flatnonzero(stretches.all(axis=1))
    return next((int(index) for index in stays if index > inside[0]), None)


def _change(values: Array, good: str | None) -> tuple[int, str] | None:
    """The index at which values leave their noise in the bad direction, and the change in words; None if none do."""
    if len(values) < LEAST + AHEAD[-1] or (np.diff(values) > 0).all() or (np.diff(values) < 0).all():
        return None
    usual = float(np.median(np.abs(values)))
    heavy = usual > 0 and float(values.max()) > HEAVY * usual and float(np.median(values)) > 0
    index = _onset(np.arcsinh(values / usual) if heavy else values, good)  # linear below, logarithmic above
    if index is None:
        return None
    before, after = float(_lines(values)[0][index]), float(np.median(values[index : index + AHEAD[-1]]))
    if before > 0 and after > 0 and (heavy or abs(after - before) > before / 4):
        return index, f"{TIMES_SIGN} {after / before:.3g}"
    return index, f"{after - before:+.3g}".replace("-", "\N{MINUS SIGN}")


def _lines(values: Array) -> tuple[Array, Array]:
    """The line through the ``PAST`` values before each value: its height at the value, and its slope; NaN at first."""
    half = PAST // 2
    windows = np.lib.stride_tricks.sliding_window_view(values, PAST)[:-1]
    older, newer = np.median(windows[:, :half], axis=1), np.median(windows[:, half:], axis=1)
    slope = (newer - older) / half
    lead = np.full(PAST, np.nan)
    return np.concatenate([lead, newer + slope * (half + 1) / 2]), np.concatenate([lead, slope])


def _onset(values: Array, good: str | None) -> int | None:
    """The first index whose next values are farther from the line than noise explains; None if there is none."""
    base, slope = _lines(values)
    onset_indices = []
    for ahead in AHEAD:
        stretches = np.lib.stride_tricks.sliding_window_view(values, ahead)
        off = stretches - (base[: len(stretches), None] + slope[: len(stretches), None] * np.arange(ahead))
        past = np.nan_to_num(np.abs(np.median(off, axis=1)))
        record = np.concatenate([np.zeros(ahead), np.maximum.accumulate(past)[:-ahead]])
        few = ahead // 4  # the number of next values that may be near the line
        size, sign = np.zeros(len(off)), np.zeros(len(off))
        for way in {"up": (-1,), "down": (1,)}.get(good or "", (-1, 1)):
            least = np.nan_to_num(np.partition(way * off, few, axis=1)[:, few])
            size, sign = np.where(least > size, least, size), np.where(least > size, way, sign)
        for index in np.flatnonzero((size > RECORD * record) & (size > 0) & (np.arange(len(off)) >= LEAST)):
            usual = past[PAST : index - ahead + 1]
            constant = FLOOR * float(np.median(np.abs(values[:index])))
            noise = max(1.4826 * float(np.median(usual)), constant) * (1 + SHORT / len(usual))
            if noise > 0 and size[index] > TIMES * noise:
                beyond = sign[index] * off[index] > TIMES * noise
                onset_indices.append(int(index) + int(np.argmax(beyond)))
                break
    return min(onset_indices, default=None)
