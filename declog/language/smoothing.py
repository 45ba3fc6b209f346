"""Curves of the values of earlier steps: what `combine: ema(0.9)`, `rolling(50)` and `lag(1)` say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MOST = 10_000  # values of `rolling` and `lag`: each member and label keeps that many, and checkpoints have them

_WEIGHT = re.compile(r"ema\(\s*(0?\.\d*[1-9]\d*)\s*\)\Z")
_COUNT = re.compile(r"(rolling|lag)\(\s*([1-9]\d*)\s*\)\Z")
_MEANT = re.compile(r"(?:rolling|moving|sliding|window|sma|(?:mean|avg|average|running|last)(?=\D*\d))\D*(\d+)?")


@dataclass(frozen=True)
class Smoothing:
    """A moving average of values, the mean of the last few, or the one that came so many before.

    ``number`` is the weight of the past for ``ema``, how many values count for ``rolling``, and how many came after it
    for ``lag``.
    """

    way: Literal["ema", "rolling", "lag"]
    number: float

    @classmethod
    def of(cls, combine: str) -> Smoothing | None:
        """What `combine` says; None for another way to combine, and for a weight or a count that is out of bounds."""
        if (weight := _WEIGHT.match(combine)) is not None:
            return cls("ema", float(weight[1]))
        count = _COUNT.match(combine)
        if count is None or int(count[2]) > MOST:
            return None
        return cls("rolling" if count[1] == "rolling" else "lag", int(count[2]))

    @classmethod
    def of_last(cls, steps: object) -> Smoothing:
        """The mean of so many last values, as far as it can have them, or the average of a weight; else of 50."""
        if isinstance(steps, float) and 0 < steps < 1:
            return cls("ema", steps)
        count = steps if isinstance(steps, int) and not isinstance(steps, bool) and steps > 0 else 50
        return cls("rolling", min(count, MOST))

    @classmethod
    def meant(cls, combine: str) -> Smoothing | None:
        """The mean of the last values that another text speaks of, such as ``sma(50)`` and ``rolling(0)``."""
        said = None if re.search("max|min|med|std|var|sum|p\\d", combine) else _MEANT.match(combine)
        return None if said is None else cls.of_last(int(said[1] or 0))

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
        return last[0] if self.way == "lag" else sum(last) / len(last)

    def __str__(self) -> str:
        return f"{self.way}({self.number:g})"
