"""Reductions: they turn a column of rows into one value per cell.

Most are computed from ``Moments``, a mergeable state (n, total, M2, min, max). Per-token expressions are folded to the
same state for each completion. The other reductions need the values themselves.

To add a reduction, write a formula in ``moments`` or a ``@_values`` function below, and a test.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.errors import UsageError
from declog.errors.habits import shown_at_the_call
from declog.language import quantile_sketch as sketch
from declog.language.annotations import signature
from declog.language.dtypes import DType
from declog.language.moments import FORMULAS, Stat
from declog.registry import REQUIRED, Registry

Array = NDArray[Any]


@dataclass(frozen=True)
class Reduction:
    """A registered reduction.

    ``stats`` names the statistics that it is computed from. With ``stats``, ``run(moments)`` returns one value per
    entry, NaN for no value. Without, ``run(*columns, **params)`` gets the values that count, in row order. No value is
    missing in any column. It then returns a number or a ``(counts, edges)`` histogram.
    """

    name: str
    run: Callable[..., Any]
    stats: frozenset[Stat] = frozenset()
    arity: int = 1
    params: Mapping[str, Any] | None = None
    accepts: frozenset[DType] = frozenset({DType.FLOAT, DType.INT, DType.BOOL})
    texts: frozenset[int] = frozenset()  # the indices of columns that hold texts
    keeps_dtype: bool = False  # an int stays an int
    weighted: bool = False
    ordered: bool = False  # it depends on the order of rows
    histogram: bool = False
    level: float | None = None  # of a quantile
    of_missing: float | None = None  # the value if all values are missing; None: the value is missing, too
    sketch: Callable[..., Any] | None = None  # computes it over tokens, from a Sketch and the params
    help: str = ""

    @property
    def aggregates(self) -> bool:
        """Whether it accepts `over=` in an expression: it turns one column of numbers into a number."""
        return self.arity == 1 and not self.histogram and not self.texts

    @property
    def foldable(self) -> bool:
        """Whether the reduction has a mergeable state."""
        return bool(self.stats)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle a reduction of declog by its name, since its function cannot be pickled; any other by its function."""
        return (builtin, (self.name,)) if self is BUILTIN.get(self.name) else super().__reduce_ex__(protocol)


class Reductions(Registry[Reduction]):
    """The reductions that a config can name. ``pNN`` names any quantile."""

    noun = "reduction"
    group = "declog.reducers"

    def adopt(self, name: str, run: Callable[..., Any]) -> Reduction:
        """Register a plain function of arrays under a name."""
        items = signature(self.noun, name, run).parameters.values()
        arity = sum(item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD) for item in items)
        if not arity:
            raise UsageError.of("DL304.no_function", noun=self.noun, name=name, what="there is none")
        constants = [item for item in items if item.kind is item.KEYWORD_ONLY]
        params = {item.name: REQUIRED if item.default is item.empty else item.default for item in constants}
        texts = frozenset(index for index, item in enumerate(list(items)[:arity]) if "str" in str(item.annotation))
        help = (run.__doc__ or "").strip().split("\n")[0]
        return self.add(Reduction(name, run, arity=arity, params=params, texts=texts, help=help))

    def _registered(self, name: str) -> Reduction | None:
        """The reduction with a name, also a quantile's; None for an unknown name."""
        level = quantile_level(name)
        return super()._registered(name) if level is None else _quantile(name, level)


BUILTIN = Reductions()


def builtin(name: str) -> Reduction | None:
    """The reduction of declog with a name, quantiles included; None for an unknown name."""
    return BUILTIN.get(name)


_QUANTILE = re.compile(r"p(\d{1,3}(?:[._]\d+)?)\Z")  # p99_9 means p99.9 in names, which have no dots


def quantile_level(name: str) -> float | None:
    """The level of ``pNN`` in [0, 1], or None."""
    percent = _QUANTILE.match(name)
    level = float(percent[1].replace("_", ".")) / 100 if percent else 2.0
    return level if level <= 1 else None


def quantiles(values: Array, levels: Sequence[float]) -> Array:
    """The quantiles over the last axis, ``[levels, ...]``. NaN values are skipped; no other value gives NaN.

    Quantiles are interpolated linearly and rounded as in numpy. Between an infinite value and the same infinity or a
    finite value a quantile is infinite; between infinities of both signs it is NaN.
    """
    if not values.shape[-1]:
        return np.full((len(levels), *values.shape[:-1]), np.nan)
    ordered = np.sort(values, axis=-1)  # NaN comes last
    last = np.count_nonzero(ordered == ordered, axis=-1) - 1
    results = []
    for level in levels:
        position = level * last
        low = np.maximum(np.floor(position), 0).astype(np.int64)
        high = np.minimum(low + 1, np.maximum(last, 0))
        share = np.maximum(position - low, 0.0)
        a, b = (np.take_along_axis(ordered, rank[..., None], -1)[..., 0] for rank in (low, high))
        with np.errstate(invalid="ignore"):  # inf - inf
            between = np.where(share < 0.5, a + (b - a) * share, b - (b - a) * (1 - share))
            between = np.where(np.isnan(between), a + b, between)
        results.append(np.where((share == 0) | (a == b), a, between))
    return np.asarray(results)


@cache  # one object per name, also after a plan is unpickled
def _quantile(name: str, level: float) -> Reduction:
    def run(values: Array) -> float:
        return float(quantiles(values, [level])[0])

    help = f"the {level:g} quantile, interpolated linearly: exact over rows, within {sketch.ERROR:.0%} over tokens"
    return Reduction(name, run, level=level, sketch=lambda counts: counts.quantile(level), help=help)


for _name in ("mean", "sum", "min", "max", "var", "std", "pstd", "count"):
    _formula = FORMULAS[_name]
    BUILTIN.add(Reduction(
        _name, _formula.of, _formula.mergeable, keeps_dtype=_name in ("sum", "min", "max", "count"),
        weighted=_name in ("mean", "sum"), of_missing=0.0 if _name == "count" else None, help=_formula.help,
    ))  # fmt: skip

DEVIATIONS: Mapping[str, str] = {"var": "sample (n-1)", "std": "sample (n-1)", "pstd": "population (n)"}
"""The kind of estimate behind each deviation or variance, in words."""


def _values(name: str, **entry: Any) -> Callable[[Callable[..., Any]], None]:
    """Register ``run(*columns, **params)``, which gets the values themselves; ``entry`` completes its ``Reduction``."""

    def register(run: Callable[..., Any]) -> None:
        BUILTIN.add(Reduction(name, run, **entry))

    return register


@_values(
    "last", keeps_dtype=True, ordered=True, help="the latest value: of the last step and batch, of the lowest rank"
)
def _last(values: Array) -> Any:
    return values[-1].item()


@_values(
    "histogram",
    params={"bins": 32, "low": None, "high": None},
    histogram=True,
    sketch=lambda counts, bins, **ends: counts.histogram(bins, **ends),
    help="counts in equal bins from `low`, or the smallest value, to `high`, or the greatest; values beyond are in the "
    "end bins",
)
def _histogram(
    values: Array, bins: int, low: float | None = None, high: float | None = None
) -> tuple[Array, Array] | float:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return float("nan")
    edges = sketch.edges_of(float(finite.min()), float(finite.max()), bins, low, high)
    return np.histogram(np.clip(finite, edges[0], edges[-1]), edges)


def _tail(name: str, beyond: Callable[[Any, Any], Array], level: Callable[[float], float], help: str) -> None:
    """Register the mean of the values at or beyond a quantile."""

    def run(values: Array, share: float) -> float:
        chosen = values[beyond(values, quantiles(values, [level(share)])[0])]  # empty if the quantile is NaN
        with np.errstate(invalid="ignore"):  # inf - inf
            return float(chosen.mean()) if len(chosen) else float("nan")

    _values(
        name, params={"share": 0.2}, help=help,
        sketch=lambda counts, share: counts.tail(level(share), top=beyond is np.greater_equal),
    )(run)  # fmt: skip


_tail(
    "top_mean", np.greater_equal, lambda share: 1 - share, "the mean of the values at or above the 1 - share quantile"
)
_tail("bottom_mean", np.less_equal, lambda share: share, "the mean of the values at or below the share quantile")


def out_of_range(reduction: Reduction, constants: Mapping[str, Any]) -> str | None:
    """The name of a constant whose value a reduction cannot take; None if all are valid."""
    bins = constants.get("bins")
    if bins not in (None, REQUIRED) and not (isinstance(bins, int) and 1 <= bins <= 10_000):
        return "bins"
    ends = [(name, constants[name]) for name in ("low", "high") if reduction.histogram and name in constants]
    said = [(name, end) for name, end in ends if end is not None]
    if (name := next((name for name, end in said if not math.isfinite(end)), None)) is not None:
        return name
    if len(said) == 2 and said[0][1] >= said[1][1]:
        return "high"
    share = constants.get("share", 1) if builtin(reduction.name) is reduction else 1
    return None if 0 < share <= 1 else "share"


@_values(
    "ece",
    arity=2,
    params={"bins": 10},
    help="expected calibration error of (confidence, correct), equal bins (lo, hi] (Guo et al. 2017)",
)
def _ece(confidence: Array, correct: Array, bins: int) -> float:
    index = np.searchsorted(np.arange(1, bins) / bins, confidence)  # a value on an edge is in the bin below the edge
    gap = np.bincount(index, weights=correct - confidence, minlength=bins)
    return float(np.abs(gap).sum() / len(confidence))


@_values("corr", arity=2, help="Pearson's correlation of two values; absent where one does not vary")
def _corr(x: Array, y: Array) -> float:
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return float("nan")
    if (x == x[0]).all() or (y == y[0]).all():  # with a rounded mean, `scale` might not be 0
        return float("nan")
    dx, dy = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((dx @ dx) * (dy @ dy)))
    return float(np.clip((dx @ dy) / scale, -1.0, 1.0)) if scale > 0 else float("nan")


DEFAULT = Reductions(BUILTIN)


@shown_at_the_call
def reducer(run: Callable[..., Any] | None = None, *, name: str | None = None, registry: Reductions = DEFAULT) -> Any:
    """Register a reduction for YAML to use by name.

    The function gets one float64 numpy array ``[rows]`` per positional parameter, without missing values,
    and returns a float; NaN means absent. A parameter that is annotated as ``list[str]`` gets texts, as a list.
    Keyword-only parameters are constants: ``name(x, bins=20)``.

    >>> @declog.reducer                     # doctest: +SKIP
    ... def gini(values):
    ...     return float(np.abs(values[:, None] - values).mean() / (2 * values.mean()))
    """
    return registry.decorator(run, name)


def finish(reduction: Reduction, columns: Sequence[Array], params: Mapping[str, Any]) -> Any:
    """Run a reduction that needs its values on columns without missing values; NaN for no rows."""
    arguments = [column.tolist() if index in reduction.texts else column for index, column in enumerate(columns)]
    return reduction.run(*arguments, **params) if len(columns[0]) else float("nan")


_SAMPLES: Mapping[DType, Callable[[int], Any]] = {
    DType.FLOAT: lambda row: (row + 1) / 8, DType.INT: float, DType.BOOL: lambda row: float(row % 2),
    DType.TEXT: lambda row: "text",
}  # fmt: skip


def tried(reduction: Reduction, dtypes: Sequence[DType], rows: int, params: Mapping[str, Any]) -> Any:
    """Try a reduction on ``rows`` rows of sample values of some types. Raises the exceptions of the reduction."""
    columns = [np.array([_SAMPLES[dtype](row) for row in range(rows)]) for dtype in dtypes]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for example of an empty mean
        return finish(reduction, columns, params)
