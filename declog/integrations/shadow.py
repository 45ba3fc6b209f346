"""Compares a config's metrics with the numbers of a team's own logger: which numbers are the same, and which differ.

    logger = declog.shadow(logger, "grpo")   # replaces the logger; the loop also calls `declog.observe`
    logger.log({"train/reward": 0.5}, step)  # the logger gets this call unchanged, and no numbers of declog's
    logger.close()                           # prints the comparison, which is also `logger.comparison`

A number of the loop and a metric are a pair if their names agree, such as `train/reward` and `reward`, or if their
values agree at every step.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import declog
from declog.errors import UsageError, in_flow
from declog.errors.habits import shown_at_the_call
from declog.integrations.logged import flat, numbers_in
from declog.integrations.tee import Tee, original, reject_other_shapes

__all__ = ["Comparison", "Pair", "Shadow", "shadow"]

log = logging.getLogger("declog")


@shown_at_the_call
def shadow(
    logger: Any, config: Any = "grpo", overrides: Sequence[str] = (), *, tolerance: float = 1e-4, **options: Any
) -> Any:
    """A stand-in for the logger that also computes a config's metrics and compares them; use it in the logger's place.

    The loop logs as before, and passes its rows to ``declog.observe``. Rows before a step's first number belong to that
    step. At each log event of the config, every number of the loop is compared with the metrics of that step.
    ``tolerance`` is the greatest relative difference of equal values. ``logger``, ``config``, ``overrides`` and
    ``options`` are those of ``declog.tee``; for a run of wandb, ``logger`` is the object with the method ``log``.

    Raises ``ConfigError`` for a wrong config and ``UsageError`` for a logger of another shape.
    """
    if isinstance(logger, str) and hasattr(config, "log"):
        raise UsageError.of("DL510.logger_first", config=logger)
    config = declog.compose(config, overrides)
    declog.plan(config)
    logger = original(logger)
    reject_other_shapes(logger)
    return Shadow(logger, config, comparison=Comparison(tolerance), **options)


@dataclass
class Pair:
    """A number of the loop and a metric, compared over the steps at which both have a value."""

    number: str
    metric: str
    steps: int = 0
    differences: int = 0
    first_difference: tuple[int, float, float] | None = None
    """The step at which they first differed, the loop's value and declog's."""
    greatest: float = 0.0
    """The greatest relative difference."""
    values: set[float] = field(default_factory=set, repr=False)
    """Up to two different values of the number: a number that never changes agrees with many metrics by chance."""

    ratios: list[float] = field(default_factory=list, repr=False)
    """The least and the greatest ratio of the two values."""

    def add(self, step: int, value: float, other: float, *, same: bool) -> None:
        """Add the number and the metric of one step."""
        self.steps += 1
        ratios = [*self.ratios, value / other if other else math.nan]
        self.ratios = [min(ratios), max(ratios)] if all(map(math.isfinite, ratios)) else [math.nan]
        if len(self.values) < 2:
            self.values.add(value)
        if not same:
            self.differences += 1
            self.first_difference = self.first_difference or (step, value, other)
            scale = max(abs(value), abs(other))
            self.greatest = max(self.greatest, abs(value - other) / scale if math.isfinite(scale) else math.inf)

    @property
    def same_name(self) -> bool:
        """Whether one name ends like the other: `train/reward` and `reward`, `kl` and `kl/mean`."""
        short, long = sorted((_parts(self.number), _parts(self.metric)), key=len)
        return long[-len(short) :] == short or "_".join(long) == "_".join(short)

    @property
    def reduction(self) -> str:
        """A guess at the other reduction of the same rows that the number is; empty if none explains the difference.

        The ratio of number to metric must be constant: a sum is ``rows`` times the mean, and sample and population
        variance differ by the factor ``(rows - 1) / rows``.
        """
        ratio = self.ratios[0]
        if self.steps < 2 or not math.isclose(ratio, self.ratios[-1], rel_tol=1e-4):
            return ""
        spread = re.search("std|dev|sigma|var", f"{self.number} {self.metric}")
        power = 1 if spread is None or spread[0] == "var" else 2
        less, more = ("mean", "sum") if spread is None else ("pvar", "var") if power == 1 else ("pstd", "std")
        smaller = min(ratio, 1 / ratio) ** power if ratio > 0 else math.nan
        rows = 1 / smaller if spread is None else 1 / (1 - smaller) if smaller < 1 else math.nan
        if not rows < 1e6 or round(rows) < 2 or not math.isclose(rows, round(rows), rel_tol=1e-3):
            return ""
        return f"; as `{less if ratio < 1 else more}` of {round(rows)} rows beside `{more if ratio < 1 else less}`"


class Comparison:
    """Compares the numbers of a loop with the metrics of a config, step by step."""

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self.steps = 0
        self._numbers: dict[int, dict[str, float]] = {}  # by step, until the step's log event arrives
        self._names: dict[str, None] = {}  # names of all numbers, in order of arrival
        self._pairs: dict[str, dict[str, Pair | None]] = {}  # by number and metric; None: other names, and they differ
        self._warned: set[str] = set()

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Add the numbers that the loop logs."""
        numbers = numbers_in(flat(values))
        self._names |= dict.fromkeys(numbers)
        self._numbers.setdefault(step, {}).update(numbers)

    def compare(self, step: int, metrics: Mapping[str, float]) -> None:
        """Compare declog's values at a step with the loop's numbers of that step."""
        numbers = self._numbers.pop(step, {})
        self._numbers = {later: values for later, values in self._numbers.items() if later > step}
        self.steps += bool(numbers)
        for number, value in numbers.items():
            for metric, other in metrics.items():
                self._add(step, number, value, metric, other)
            self._warn(number)

    def _add(self, step: int, number: str, value: float, metric: str, other: float) -> None:
        pairs = self._pairs.setdefault(number, {})
        pair = pairs.setdefault(metric, Pair(number, metric))
        if pair is not None:
            same = math.isclose(value, other, rel_tol=self.tolerance, abs_tol=self.tolerance / 100)
            same = same or (math.isnan(value) and math.isnan(other))
            pair.add(step, value, other, same=same)
            if not same and not pair.same_name:
                pairs[metric] = None

    def _warn(self, number: str) -> None:
        pair = self._pair(number)
        if any(other is not None and not other.differences for other in self._pairs.get(number, {}).values()):
            return  # a metric of another name agrees so far
        if number not in self._warned and pair is not None and pair.first_difference is not None:
            self._warned.add(number)
            step, value, other = pair.first_difference
            log.warning("`%s` is %.6g at step %d, and declog's `%s` is %.6g", number, value, step, pair.metric, other)

    def _pair(self, number: str) -> Pair | None:
        """The pair of a number: with a metric that agrees at every step, else with a metric of its name."""
        pairs = [pair for pair in self._pairs.get(number, {}).values() if pair is not None]
        pairs = [pair for pair in pairs if pair.same_name or len(pair.values) > 1]
        return min(pairs, key=lambda pair: (pair.differences > 0, not pair.same_name, pair.metric), default=None)

    @property
    def pairs(self) -> list[Pair]:
        """The numbers of the loop that have a metric, each with its metric."""
        return [pair for number in self._names if (pair := self._pair(number)) is not None]

    @property
    def same(self) -> list[Pair]:
        """The pairs whose values agree at every step."""
        return [pair for pair in self.pairs if not pair.differences]

    @property
    def different(self) -> list[Pair]:
        """The pairs whose names agree and whose values differ."""
        return [pair for pair in self.pairs if pair.differences]

    @property
    def alone(self) -> list[str]:
        """The numbers that no metric matches, by name or by values."""
        paired = {pair.number for pair in self.pairs}
        return [number for number in self._names if number not in paired]

    def __str__(self) -> str:
        counts = f"{len(self.same)} same, {len(self.different)} different, {len(self.alone)} not computed"
        width = max((len(pair.number) for pair in self.pairs), default=0)
        lines = [f"shadow of {self.steps} steps: {counts}"]
        lines += [f"  same       {pair.number:{width}}  {pair.metric}" for pair in self.same]
        for pair in self.different:
            assert pair.first_difference is not None
            step, value, other = pair.first_difference
            lines.append(
                f"  different  {pair.number:{width}}  {pair.metric}: {value:.6g} and {other:.6g} at step {step}, "
                f"at {pair.differences} of {pair.steps} steps, by {pair.greatest:.2%} at most{pair.reduction}"
            )
        constant = {number: metrics for number in self.alone if (metrics := self._constant(number))}
        lines += [f"  constant   {number:{width}}  {metrics}" for number, metrics in constant.items()]
        if names := [number for number in self.alone if number not in constant]:
            ids = {re.sub(r"\W+", "_", name.lower()).strip("_"): name for name in names[:2]}
            edit = in_flow({id: "..." if id == name else {"expr": "...", "name": name} for id, name in ids.items()})
            lines += [f"  not computed: {', '.join(names)}", f"    fix: metrics: {edit}"]
        return "\n".join(lines)

    def _constant(self, number: str) -> str:
        """The metrics that have the value of a number that never changes; empty for any other number."""
        pairs = [pair for pair in self._pairs.get(number, {}).values() if pair is not None and not pair.differences]
        none = {0.0, 1.0, *(value for pair in pairs for value in pair.values if abs(value) < self.tolerance / 50)}
        metrics = sorted(pair.metric for pair in pairs if pair.values.isdisjoint(none))
        return f"{' and '.join(metrics)}: {min(pairs[0].values):.6g} at every step, maybe by chance" if metrics else ""


class Shadow(Tee):
    """A tee that passes the loop's numbers to a comparison, not to the recorder; the logger gets no metrics."""

    def __init__(self, logger: Any, config: Any, *, comparison: Comparison, **options: Any) -> None:
        self.comparison = comparison
        self._printed = False
        super().__init__(logger, config, **options)

    def _numbers(self, values: Mapping[str, Any], step: int, *, commit: bool) -> Mapping[str, Any]:
        self.comparison.log(step, values)
        return super()._numbers({}, step, commit=commit)

    def _drain(self) -> None:
        while self._waiting.events:
            self.comparison.compare(*self._waiting.events.popleft())
        if self.recorder.closed and not self._printed:
            self._printed = True
            print(self.comparison)


def _parts(name: str) -> list[str]:
    """The parts of a name, without a last part ``mean``: the mean is the default reduction."""
    parts = re.split(r"[/.:]", name.lower())
    return parts[:-1] if len(parts) > 1 and parts[-1] == "mean" else parts
