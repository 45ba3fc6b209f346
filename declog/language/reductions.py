"""Reductions: a column of rows to one value per cell.

Most are finished from ``Moments``, a mergeable state (n, total, M2, min, max): ``Moments.empty``,
``Moments.of``, ``merge`` and a reduction's ``run``. The rest need the values themselves. ``Moments`` is
also what a per-token expression is folded to for each completion. Imports numpy, axes and kernels only.

To add one: a ``@_moments`` or ``@_values`` function below, and a test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from declog.language import sketch
from declog.language.dtypes import Kind
from declog.registry import REQUIRED, Registry

Array = NDArray[Any]
Stat = Literal["n", "total", "m2", "min", "max"]
STATS: tuple[Stat, ...] = ("n", "total", "m2", "min", "max")


@dataclass(frozen=True)
class Moments:
    """Mergeable statistics of values that are not missing; every array has one shape, float64.

    ``total`` is the sum, ``m2`` the sum of squared distances from the mean. Empty is n = 0, total = 0,
    m2 = 0, min = inf, max = -inf: the identity of ``merge``.
    """

    n: Array
    total: Array
    m2: Array
    min: Array
    max: Array

    @classmethod
    def empty(cls, shape: tuple[int, ...] = ()) -> Moments:
        """The statistics of no values."""
        zero = np.zeros(shape)
        return cls(zero, zero, zero, np.full(shape, np.inf), np.full(shape, -np.inf))

    @classmethod
    def of(cls, values: Array, stats: frozenset[Stat] = frozenset(STATS)) -> Moments:
        """The statistics of ``values[..., rows]`` over the rows; NaN is missing. Only ``stats`` are computed."""
        values = np.asarray(values)
        if values.dtype != np.float64:
            values = values.astype(np.float64)
        if not values.shape[-1]:
            return cls.empty(values.shape[:-1])
        with np.errstate(invalid="ignore"):  # inf - inf
            total = values.sum(-1)
        if np.isfinite(total).all():
            n = np.full(values.shape[:-1], float(values.shape[-1]))
            lower = upper = values
        else:  # something is missing or infinite
            ok = values == values
            n = ok.sum(-1).astype(np.float64)
            with np.errstate(invalid="ignore"):
                total = np.where(ok, values, 0.0).sum(-1)
            lower, upper = np.where(ok, values, np.inf), np.where(ok, values, -np.inf)
        m2 = low = high = n
        if "m2" in stats:
            mean = total / np.maximum(n, 1.0)
            with np.errstate(invalid="ignore"):
                distance = values - mean[..., None]
            if lower is not values:
                distance = np.where(values == values, distance, 0.0)
            m2 = np.einsum("...i,...i->...", distance, distance)
        if "min" in stats:
            low = lower.min(-1)
        if "max" in stats:
            high = upper.max(-1)
        return cls(n, total, m2, low, high)

    def merge(self, other: Moments) -> Moments:
        """The statistics of both sets of values together (Chan et al. 1979)."""
        n = self.n + other.n
        with np.errstate(invalid="ignore", divide="ignore"):
            gap = other.total / np.maximum(other.n, 1.0) - self.total / np.maximum(self.n, 1.0)
            between = np.where((self.n > 0) & (other.n > 0), gap * gap * self.n * other.n / np.maximum(n, 1.0), 0.0)
        return Moments(
            n,
            self.total + other.total,
            self.m2 + other.m2 + between,
            np.minimum(self.min, other.min),
            np.maximum(self.max, other.max),
        )

    def pooled(self) -> Moments:
        """The statistics of all rows together: arrays ``[..., rows]`` to ``[...]``."""
        if not self.n.shape[-1]:
            return Moments.empty(self.n.shape[:-1])
        n, total = self.n.sum(-1), self.total.sum(-1)
        with np.errstate(invalid="ignore", divide="ignore"):
            gap = self.total / np.maximum(self.n, 1.0) - (total / np.maximum(n, 1.0))[..., None]
            m2 = self.m2.sum(-1) + np.where(self.n > 0, self.n * gap * gap, 0.0).sum(-1)
        return Moments(n, total, m2, self.min.min(-1), self.max.max(-1))

    def take(self, index: Any) -> Moments:
        """Some of the entries, by an index of the last axis."""
        return Moments(*(array[..., index] for array in (self.n, self.total, self.m2, self.min, self.max)))


@dataclass(frozen=True)
class Reduction:
    """A registered reduction.

    ``stats`` names what it is finished from: with it, ``run(moments)`` gives one value per entry, NaN for
    none. Without, ``run(*columns, **params)`` gets the values that count, in row order, none missing in any
    column, and returns a number or a ``(counts, edges)`` histogram.
    """

    name: str
    run: Callable[..., Any]
    stats: frozenset[Stat] = frozenset()
    arity: int = 1
    params: Mapping[str, Any] | None = None
    accepts: frozenset[Kind] = frozenset({Kind.NUMBER, Kind.INT, Kind.BOOL})
    keeps_kind: bool = False  # an int stays an int
    weighted: bool = False
    ordered: bool = False  # it depends on which row is the latest
    histogram: bool = False
    sketch: Callable[..., Any] | None = None  # over tokens: from a Sketch and the params
    help: str = ""

    @property
    def foldable(self) -> bool:
        """Whether it has a mergeable state."""
        return bool(self.stats)


class Reductions(Registry[Reduction]):
    """The reductions that a profile can name; ``pNN`` is any quantile."""

    noun = "reduction"
    group = "declog.reducers"

    def adopt(self, name: str, run: Callable[..., Any]) -> Reduction:
        """Register a plain function of arrays under a name, as an installed package's entry point provides it."""
        reducer(run, name=name, registry=self)
        return self._own[name]

    def get(self, name: str) -> Reduction | None:
        """The reduction of this name, quantiles included, or None."""
        level = quantile_level(name)
        return super().get(name) if level is None else _quantile(name, level)


BUILTIN = Reductions()

_QUANTILE = re.compile(r"p(\d{1,3}(?:[._]\d+)?)\Z")  # p99_9 is p99.9 where a dot is none


def quantile_level(name: str) -> float | None:
    """The level of ``pNN`` in [0, 1], or None."""
    found = _QUANTILE.match(name)
    level = float(found.group(1).replace("_", ".")) / 100 if found else None
    return level if level is not None and level <= 1 else None


def _quantile(name: str, level: float) -> Reduction:
    def run(values: Array) -> float:
        return float(np.quantile(values, level))

    help = f"the {level:g} quantile, interpolated linearly: exact over rows, within {sketch.ERROR:.0%} over tokens"
    return Reduction(name, run, sketch=lambda counts: counts.quantile(level), help=help)


def _moments(
    name: str, *stats: Stat, help: str, keeps_kind: bool = False, weighted: bool = False
) -> Callable[[Callable[[Moments], Array]], None]:
    def register(run: Callable[[Moments], Array]) -> None:
        BUILTIN.add(Reduction(name, run, frozenset(stats), keeps_kind=keeps_kind, weighted=weighted, help=help))

    return register


def _where(keep: Array, values: Array) -> Array:
    return np.where(keep, values, np.nan)


@_moments("mean", "n", "total", weighted=True, help="the mean over all rows; of bools the fraction that is true")
def _mean(m: Moments) -> Array:
    return _where(m.n > 0, m.total / np.where(m.n > 0, m.n, 1.0))


@_moments("sum", "n", "total", keeps_kind=True, weighted=True, help="the sum; of bools how many are true")
def _sum(m: Moments) -> Array:
    return _where(m.n > 0, m.total)


@_moments("min", "n", "min", keeps_kind=True, help="the smallest value")
def _min(m: Moments) -> Array:
    return _where(m.n > 0, m.min)


@_moments("max", "n", "max", keeps_kind=True, help="the greatest value")
def _max(m: Moments) -> Array:
    return _where(m.n > 0, m.max)


@_moments("var", "n", "total", "m2", help="the sample variance (n-1); of one value absent")
def _var(m: Moments) -> Array:
    return _where(m.n > 1, m.m2 / np.maximum(m.n - 1, 1.0))


@_moments("std", "n", "total", "m2", help="the sample standard deviation (n-1), as torch; of one value absent")
def _std(m: Moments) -> Array:
    return _where(m.n > 1, np.sqrt(m.m2 / np.maximum(m.n - 1, 1.0)))


@_moments("pstd", "n", "total", "m2", help="the population standard deviation, numpy's default; of one value 0")
def _pstd(m: Moments) -> Array:
    return _where(m.n > 0, np.sqrt(m.m2 / np.maximum(m.n, 1.0)))


@_moments("count", "n", keeps_kind=True, help="how many values are not missing")
def _count(m: Moments) -> Array:
    return _where(m.n > 0, m.n)


def _values(
    name: str,
    *,
    help: str,
    arity: int = 1,
    params: Mapping[str, Any] | None = None,
    keeps_kind: bool = False,
    ordered: bool = False,
    histogram: bool = False,
    sketch: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], None]:
    def register(run: Callable[..., Any]) -> None:
        BUILTIN.add(
            Reduction(
                name,
                run,
                arity=arity,
                params=params,
                keeps_kind=keeps_kind,
                ordered=ordered,
                histogram=histogram,
                sketch=sketch,
                help=help,
            )
        )

    return register


@_values("last", keeps_kind=True, ordered=True, help="the latest value: of the last step and batch, of the lowest rank")
def _last(values: Array) -> Any:
    return values[-1].item()


@_values(
    "histogram",
    params={"bins": 32},
    histogram=True,
    sketch=lambda counts, bins: counts.histogram(bins),
    help="counts in equal bins from the smallest to the greatest value",
)
def _histogram(values: Array, bins: int) -> tuple[Array, Array] | float:
    finite = values[np.isfinite(values)]
    return np.histogram(finite, bins=bins) if len(finite) else float("nan")


@_values(
    "ece",
    arity=2,
    params={"bins": 10},
    help="expected calibration error of (confidence, correct), equal bins (lo, hi] (Guo et al. 2017)",
)
def _ece(confidence: Array, correct: Array, bins: int) -> float:
    place = np.searchsorted(np.arange(1, bins) / bins, confidence)  # an edge belongs to the bin below it
    gap = np.bincount(place, weights=correct - confidence, minlength=bins)
    return float(np.abs(gap).sum() / len(confidence))


@_values("corr", arity=2, help="Pearson's correlation of two values; absent where one does not vary")
def _corr(x: Array, y: Array) -> float:
    if (x == x[0]).all() or (y == y[0]).all():  # a rounded mean would leave something to divide by
        return float("nan")
    dx, dy = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((dx @ dx) * (dy @ dy)))
    return float(np.clip((dx @ dy) / scale, -1.0, 1.0)) if scale > 0 else float("nan")


DEFAULT = Reductions(BUILTIN)


def reducer(run: Callable[..., Any] | None = None, *, name: str | None = None, registry: Reductions = DEFAULT) -> Any:
    """Register a reduction for YAML to use by name.

    The function gets one float64 numpy array ``[rows]`` per positional parameter, without missing values,
    and returns a float; NaN means absent. Keyword-only parameters are constants: ``name(x, bins=20)``.

    >>> @declog.reducer                     # doctest: +SKIP
    ... def gini(values):
    ...     return float(np.abs(values[:, None] - values).mean() / (2 * values.mean()))
    """

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        import inspect

        items = inspect.signature(fn).parameters.values()
        arity = sum(item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD) for item in items)
        params = {
            item.name: REQUIRED if item.default is item.empty else item.default
            for item in items
            if item.kind is item.KEYWORD_ONLY
        }
        help = (fn.__doc__ or "").strip().split("\n")[0]
        registry.add(Reduction(name or fn.__name__, fn, arity=arity, params=params, help=help))
        return fn

    return register if run is None else register(run)


def finish(reduction: Reduction, columns: Sequence[Array], params: Mapping[str, Any]) -> Any:
    """A reduction that needs its values, of columns without missing ones; NaN where there are no rows."""
    return reduction.run(*columns, **params) if len(columns[0]) else float("nan")
