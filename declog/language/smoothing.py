"""Curves over the values of earlier steps: `combine: ema(0.9)`, `rolling(50)`, `rolling_std(50)` and `lag(1)`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

MOST = 10_000  # the most values of `rolling` and `lag`: kept for each member and label, also in checkpoints
Reduction = Literal["", "min", "max", "std", "var", "median"]

_WEIGHT = re.compile(r"ema\(\s*(0?\.\d*[1-9]\d*)\s*\)\Z")
_COUNT = re.compile(r"(?:(lag)|rolling(?:_(min|max|std|var|median))?)\(\s*([1-9]\d*)\s*\)\Z")
_MEANT = re.compile(
    r"(?:rolling|moving|mov(?=std|var|med)|sliding|window|sma|"
    r"(?:mean|avg|average|running|last|p?std|stdev|stddev|p?var|variance|med|median|min|max)(?=\D*\d))"
    r"(?:.*?\(\D*?(?=\d)|\D*)(\d+)?"
)
OF_PANDAS: Mapping[str, Callable[[float], float]] = {  # the weight of the past, by the names of its forms in pandas
    "alpha": lambda new: 1 - new,
    "com": lambda mass: mass / (1 + mass),
    "span": lambda steps: (steps - 1) / (steps + 1),
    "halflife": lambda steps: 0.5 ** (1 / steps),
}
_WORDS: Mapping[str, Reduction] = {
    "max": "max",
    "min(?!_periods)": "min",
    "med": "median",
    "std|dev": "std",
    "var": "var",
}


@dataclass(frozen=True)
class Smoothing:
    """A moving average of values (``ema``), a reduction of the last values (``rolling``), or an earlier one (``lag``).

    ``number`` is the weight of the past for ``ema``, the number of values for ``rolling``, and the number of values
    back for ``lag``. ``reduction`` is empty for a mean.
    """

    way: Literal["ema", "rolling", "lag"]
    number: float
    reduction: Reduction = ""

    @classmethod
    def of(cls, combine: str) -> Smoothing | None:
        """The curve that `combine` names. None for any other text, and for a weight or a count out of bounds."""
        if (weight := _WEIGHT.match(combine)) is not None:
            return cls("ema", float(weight[1]))
        count = _COUNT.match(combine)
        if count is None or int(count[3]) > MOST:
            return None
        curve = cls("lag" if count[1] else "rolling", int(count[3]), _reduction(count[2] or ""))
        return curve if curve.least <= curve.most else None

    @classmethod
    def of_last(cls, steps: object) -> Smoothing:
        """The mean of the last ``steps`` values, at most ``MOST``. A weight gives ``ema``, anything else 50 values."""
        if isinstance(steps, float) and 0 < steps < 1:
            return cls("ema", steps)
        count = steps if isinstance(steps, int) and not isinstance(steps, bool) and steps > 0 else 50
        return cls("rolling", min(count, MOST))

    @classmethod
    def weighing(cls, number: object, word: str = "") -> str:
        """The `ema` for a weight of the past between 0 and 1, or for a number of steps; `ema(0.9)` for anything else.

        ``word`` may be a name of pandas, whose `alpha` is the weight of the new value.
        """
        if isinstance(number, Mapping) and len(number) == 1:
            [(word, number)] = number.items()
        if isinstance(number, bool) or not isinstance(number, int | float) or number <= 0:
            return "ema(0.9)"
        of_count = round(min(1 - 1 / number, 0.999), 3)
        past = OF_PANDAS[word](number) if word in OF_PANDAS else number if number < 1 else of_count
        weighed = f"ema({past:g})"
        return weighed if cls.of(weighed) is not None else "ema(0.9)"

    @classmethod
    def weighed(cls, combine: str) -> str:
        """The `ema` for the number in ``ewm(alpha=0.1)``, ``ewm(span=10)`` or ``ema(20)``; else `ema(0.9)`."""
        said = re.search(r"(?:(\w+)\s*=\s*|\()(\d+(?:\.\d*)?|\.\d+)", combine)
        return cls.weighing(None if said is None else float(said[2]), said[1] or "" if said else "")

    @classmethod
    def meant(cls, combine: str) -> Smoothing | None:
        """The reduction of the last values that a foreign text means: ``sma(50)``, ``rolling(10, std)``. Else None."""
        said = None if re.search("sum|p\\d", combine) else _MEANT.match(combine)
        if said is None:
            return None
        curve = replace(cls.of_last(int(said[1] or 0)), reduction=_reduction(combine))
        return replace(curve, number=max(curve.number, curve.least))

    @classmethod
    def other(cls, combine: str) -> int | None:
        """The number of last values in a text that may mean another reduction of them: 20 of ``rolling(20, p90)``."""
        return None if (said := _MEANT.match(combine)) is None or said[1] is None else int(said[1])

    @property
    def most(self) -> int:
        """The most values that the curve needs."""
        return 1 if self.way == "ema" else int(self.number) + (self.way == "lag")

    @property
    def least(self) -> int:
        """The fewest values from which the curve has a value."""
        return self.most if self.way == "lag" else 2 if self.reduction in ("std", "var") else 1

    def following(self, before: float | None, value: float) -> float:
        """The number to keep for a new value: the new average for ``ema``, else the value itself.

        ``before`` is the number kept last, None at the beginning.
        """
        if self.way != "ema" or before is None:
            return value
        return self.number * before + (1 - self.number) * value

    def of_kept(self, values: Sequence[float]) -> float:
        """The curve's value, computed from at least ``least`` kept values."""
        last = values[-self.most :]
        if self.way == "lag":
            return last[0]
        if not self.reduction:
            return sum(last) / len(last)
        return math.nan if any(value != value for value in last) else _REDUCTIONS[self.reduction](last)

    @property
    def words(self) -> str:
        """The reduction of the last values in words, such as "mean"."""
        return self.reduction or "mean"

    def __str__(self) -> str:
        return f"{self.way}{f'_{self.reduction}' * bool(self.reduction)}({self.number:g})"


def _reduction(text: str) -> Reduction:
    """The reduction that a text names; empty if it names none."""
    return next((reduction for word, reduction in _WORDS.items() if re.search(word, text)), "")


def _variance(values: Sequence[float]) -> float:
    """The variance, divided by n - 1; exactly 0 for equal values."""
    shifted = [value - values[-1] for value in values]
    mean = sum(shifted) / len(shifted)
    return sum((value - mean) * (value - mean) for value in shifted) / (len(shifted) - 1)


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] / 2 + ordered[len(ordered) // 2] / 2


_REDUCTIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "min": min, "max": max, "median": _median, "var": _variance, "std": lambda values: math.sqrt(_variance(values)),
}  # fmt: skip
