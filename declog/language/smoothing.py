"""Curves of the values of earlier steps: `combine: ema(0.9)`, `rolling(50)`, `rolling_max(50)` and `lag(1)`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

MOST = 10_000  # values of `rolling` and `lag`: each member and label keeps that many, and checkpoints have them

_WEIGHT = re.compile(r"ema\(\s*(0?\.\d*[1-9]\d*)\s*\)\Z")
_COUNT = re.compile(r"(rolling|lag)(?:(?<=g)_(min|max))?\(\s*([1-9]\d*)\s*\)\Z")
_MEANT = re.compile(r"(?:rolling|moving|sliding|window|sma|(?:mean|avg|average|running|last)(?=\D*\d))\D*(\d+)?")


@dataclass(frozen=True)
class Smoothing:
    """A moving average of values, the mean or an extreme of the last few, or the one that came so many before.

    ``number`` is the weight of the past for ``ema``, how many values count for ``rolling``, and how many came after it
    for ``lag``. ``extreme`` is empty for a mean.
    """

    way: Literal["ema", "rolling", "lag"]
    number: float
    extreme: Literal["", "min", "max"] = ""

    @classmethod
    def of(cls, combine: str) -> Smoothing | None:
        """What `combine` says; None for another way to combine, and for a weight or a count that is out of bounds."""
        if (weight := _WEIGHT.match(combine)) is not None:
            return cls("ema", float(weight[1]))
        count = _COUNT.match(combine)
        if count is None or int(count[3]) > MOST:
            return None
        if count[1] == "lag":
            return cls("lag", int(count[3]))
        return cls("rolling", int(count[3]), _extreme(count[2] or ""))

    @classmethod
    def of_last(cls, steps: object) -> Smoothing:
        """The mean of so many last values, as far as it can have them, or the average of a weight; else of 50."""
        if isinstance(steps, float) and 0 < steps < 1:
            return cls("ema", steps)
        count = steps if isinstance(steps, int) and not isinstance(steps, bool) and steps > 0 else 50
        return cls("rolling", min(count, MOST))

    @classmethod
    def meant(cls, combine: str) -> Smoothing | None:
        """The mean or extreme of the last values that another text means, such as ``sma(50)`` and ``rolling(0)``."""
        said = None if re.search("med|std|var|sum|p\\d", combine) else _MEANT.match(combine)
        return None if said is None else replace(cls.of_last(int(said[1] or 0)), extreme=_extreme(combine))

    @classmethod
    def other(cls, combine: str) -> int | None:
        """Of how many last values a text speaks that means another reduction of them, such as ``rolling(20, max)``."""
        return None if (said := _MEANT.match(combine)) is None or said[1] is None else int(said[1])

    @property
    def most(self) -> int:
        """How many values it needs at most."""
        return 1 if self.way == "ema" else int(self.number) + (self.way == "lag")

    @property
    def least(self) -> int:
        """How many values it needs at least."""
        return self.most if self.way == "lag" else 1

    def following(self, before: float | None, value: float) -> float:
        """What is kept of a value behind the one that was kept before, if there is one."""
        if self.way != "ema" or before is None:
            return value
        return self.number * before + (1 - self.number) * value

    def of_kept(self, values: Sequence[float]) -> float:
        """The curve's value, of at least ``least`` values that were kept."""
        last = values[-self.most :]
        if self.way == "lag":
            return last[0]
        if not self.extreme:
            return sum(last) / len(last)
        if any(value != value for value in last):
            return math.nan
        return max(last) if self.extreme == "max" else min(last)

    @property
    def words(self) -> str:
        """What it takes of the last values, such as "mean"."""
        return self.extreme or "mean"

    def __str__(self) -> str:
        return f"{self.way}{f'_{self.extreme}' * bool(self.extreme)}({self.number:g})"


def _extreme(text: str) -> Literal["", "min", "max"]:
    """The extreme that a text speaks of; empty where it speaks of none."""
    text = text.replace("min_periods", "")
    return "max" if "max" in text else "min" if "min" in text else ""


def spread_of_last(name: str, combine: str) -> tuple[dict[str, Any], str] | None:
    """``rolling_std(4)`` of the metric `<name>_value`, as the metric `name` and those that it reads, and what it is.

    None for another reduction.
    """
    spread, count = re.search("(p?)(std|dev|var)", combine), Smoothing.other(combine) or 0
    if spread is None or count < 2:
        return None
    value, mean, squares = (f"{name}_{part}" for part in ("value", "mean", "squares"))
    curve = {"combine": str(Smoothing.of_last(count)), "log": False}
    variance = f"maximum({squares} - {mean} * {mean}, 0)" + ("" if spread[1] else f" * {count} / {count - 1}")
    formula = variance if spread[2] == "var" else f"sqrt({variance})"
    entries = {mean: {"formula": value, **curve}, squares: {"formula": f"{value} * {value}", **curve}}
    said = "" if spread[1] else f": by n - 1, as pandas, which has no value for the first {count - 1}"
    return {**entries, name: {"formula": formula}}, said
