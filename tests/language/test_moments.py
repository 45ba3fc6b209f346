"""Reductions against numpy, pandas and loops; and the laws that let states be merged in any order."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from declog.errors import UsageError
from declog.language import moments
from declog.language.moments import STATS, Formula, Moments
from declog.language.reductions import BUILTIN, Reductions, finish, quantile_level, reducer
from declog.registry import REQUIRED

Array = NDArray[Any]

values = npst.arrays(np.float64, st.integers(0, 12), elements=st.floats(-1e3, 1e3) | st.just(np.nan))
some = npst.arrays(np.float64, st.integers(1, 40), elements=st.floats(-1e3, 1e3))


def assert_same(actual: Moments, expected: Moments) -> None:
    """Equal statistics: counts and extrema exactly, sums up to rounding."""
    np.testing.assert_array_equal(actual.n, expected.n)
    np.testing.assert_array_equal(actual.min, expected.min)
    np.testing.assert_array_equal(actual.max, expected.max)
    np.testing.assert_allclose(actual.total, expected.total, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(actual.m2, expected.m2, rtol=1e-9, atol=1e-6)


def merged(*parts: Moments) -> Moments:
    """The statistics of all values of the parts."""
    return Moments.stacked(parts).pooled()


def stacked(parts: list[Array]) -> Moments:
    """The statistics of several columns, as one array ``[parts]`` each."""
    states = [Moments.of(part) for part in parts]
    return Moments(
        *(np.array([getattr(state, stat) for state in states]) for stat in ("n", "total", "m2", "min", "max"))
    )


# ---- the state


@given(values)
def test_a_state_is_what_numpy_computes(column: Array) -> None:
    """n, sum, squared distances, minimum and maximum of the values that are not NaN."""
    held = column[~np.isnan(column)]
    state = Moments.of(column)
    extrema = [held.min(initial=np.inf), held.max(initial=-np.inf)]
    assert [float(x) for x in (state.n, state.min, state.max)] == [len(held), *extrema]
    assert state.total == pytest.approx(math.fsum(held), abs=1e-9)
    assert state.m2 == pytest.approx(held.var() * len(held) if len(held) else 0.0, abs=1e-6)


@given(values, values)
def test_merging_is_concatenating(one: Array, other: Array) -> None:
    """The state of all values is the merged state of any two parts of them."""
    assert_same(merged(Moments.of(one), Moments.of(other)), Moments.of(np.concatenate([one, other])))


@given(values)
def test_the_empty_state_changes_nothing(column: Array) -> None:
    """It is the identity, from both sides."""
    state = Moments.of(column)
    assert_same(merged(Moments.empty(), state), state)
    assert_same(merged(state, Moments.empty()), state)


@given(values, values)
def test_merging_commutes(one: Array, other: Array) -> None:
    """Which rank comes first does not matter."""
    assert_same(merged(Moments.of(one), Moments.of(other)), merged(Moments.of(other), Moments.of(one)))


@given(values, values, values)
def test_merging_is_associative(one: Array, two: Array, three: Array) -> None:
    """How ranks and steps are bracketed does not matter."""
    a, b, c = Moments.of(one), Moments.of(two), Moments.of(three)
    assert_same(merged(merged(a, b), c), merged(a, merged(b, c)))


@given(st.lists(values, max_size=5))
def test_pooling_is_concatenating(parts: list[Array]) -> None:
    """The states of completions pool to the state of all their tokens, those of empty completions included."""
    pooled = stacked(parts).pooled()
    assert_same(pooled, Moments.of(np.concatenate([np.zeros(0), *parts])))


@given(npst.arrays(np.float64, (3, 5), elements=st.floats(-1e3, 1e3) | st.just(np.nan)))
def test_a_matrix_has_the_states_of_its_rows(matrix: Array) -> None:
    """``[columns, rows]`` is reduced as each column alone, whether or not others miss something."""
    together = Moments.of(matrix)
    for place, column in enumerate(matrix):
        assert_same(together.take(place), Moments.of(column))


def test_far_values_keep_their_variance() -> None:
    """Squared distances are from the mean: a large offset does not drown the spread, merged or not."""
    column = 1e9 + np.array([0.0, 1.0, 2.0, 3.0])
    assert Moments.of(column).m2 == 5.0
    assert merged(Moments.of(column[:1]), Moments.of(column[1:])).m2 == pytest.approx(5.0, rel=1e-6)


def test_infinite_values_are_counted() -> None:
    """An infinity is a value: n, sum and extrema have it."""
    state = Moments.of(np.array([np.inf, 1.0, np.nan]))
    assert [float(x) for x in (state.n, state.total, state.min, state.max)] == [2.0, np.inf, 1.0, np.inf]
    assert math.isnan(Moments.of(np.array([np.inf, -np.inf])).total)


def test_a_formula_names_its_statistics_and_is_absent_of_no_values() -> None:
    """What states must hold follows from the parameters; numpy and torch are computed by one function."""
    spread = Formula(lambda xp, n, min, max: max - min)
    found = Moments.of(np.array([[1.0, 4.0, np.nan], [np.nan, np.nan, np.nan]]))
    assert (spread.stats, Formula(moments.std).stats) == (("n", "min", "max"), ("n", "total", "m2"))
    np.testing.assert_array_equal(spread.of(found), [3.0, np.nan])
    statistics = {str(stat): torch.from_numpy(getattr(found, stat)) for stat in STATS}
    for name in ("sum", "mean", "var", "std", "pstd", "min", "max"):
        np.testing.assert_array_equal(moments.FORMULAS[name](torch, statistics), moments.FORMULAS[name].of(found))


def test_only_the_asked_statistics_are_computed() -> None:
    """What no reduction needs costs nothing; what is asked for is right."""
    column = np.array([1.0, 4.0, np.nan])
    whole = Moments.of(column)
    for stat in STATS:
        assert getattr(Moments.of(column, frozenset({stat})), stat) == getattr(whole, stat)


# ---- reductions of states

NUMPY: dict[str, Callable[[Array], Any]] = {
    "mean": np.mean,
    "sum": np.sum,
    "min": np.min,
    "max": np.max,
    "var": lambda held: np.var(held, ddof=1) if len(held) > 1 else math.nan,
    "std": lambda held: np.std(held, ddof=1) if len(held) > 1 else math.nan,
    "pstd": np.std,
    "count": len,
}


def test_every_foldable_reduction_is_compared() -> None:
    """The comparisons below leave none out."""
    assert sorted(NUMPY) == sorted(one.name for one in BUILTIN if one.foldable)


@pytest.mark.parametrize("name", sorted(NUMPY))
@given(column=values)
def test_a_reduction_is_numpys(name: str, column: Array) -> None:
    """Of the values that are not missing; of none, every one is absent, the count and the sum too."""
    reduction = BUILTIN.get(name)
    assert reduction is not None
    held = column[~np.isnan(column)]
    expected = NUMPY[name](held) if len(held) else math.nan
    actual = reduction.run(Moments.of(column, reduction.stats))
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-5 if name in ("std", "pstd") else 1e-9)


@given(some, some)
def test_a_mean_of_bools_is_a_fraction(one: Array, other: Array) -> None:
    """Bools and integers are numbers: the mean of a comparison is the fraction that is true."""
    truths = np.concatenate([one, other]) > 0
    mean = BUILTIN.get("mean")
    assert mean is not None
    assert mean.run(Moments.of(truths)) == pytest.approx(np.count_nonzero(truths) / len(truths))


# ---- reductions of values


def run(name: str, *columns: Any, **params: Any) -> Any:
    """A built-in reduction of whole columns, with its parameters' defaults."""
    reduction = BUILTIN.get(name)
    assert reduction is not None and reduction.arity == len(columns)
    given_ = [np.asarray(column) for column in columns]
    return finish(reduction, given_, {**(reduction.params or {}), **params})


@pytest.mark.parametrize("name", ["p0", "p05", "p50", "p90", "p99.9", "p100"])
@given(column=some)
def test_a_quantile_is_interpolated_linearly(name: str, column: Array) -> None:
    """As pandas' default, at the level that the name says."""
    level = float(name[1:]) / 100
    assert run(name, column) == pytest.approx(pd.Series(column).quantile(level), rel=1e-12, abs=1e-12)


def test_the_levels_of_quantiles() -> None:
    """A name that is no level from 0 to 100 is no quantile."""
    names = ["p5", "p05", "p99.9", "p100", "p101", "p", "p-5", "p05x", "P50", "p1000"]
    assert [quantile_level(name) for name in names] == [0.05, 0.05, 0.9990000000000001, 1.0, *[None] * 6]


def test_the_last_value_keeps_its_type() -> None:
    """An integer that no float holds stays what it was."""
    assert run("last", np.array([1, 2**53 + 1])) == 2**53 + 1


@given(some, st.integers(1, 8))
def test_a_histogram_is_numpys(column: Array, bins: int) -> None:
    """Equal bins from the smallest to the greatest value; every value is counted once."""
    counts, edges = run("histogram", column, bins=bins)
    expected = np.histogram(column, bins)
    assert counts.tolist() == expected[0].tolist() and edges.tolist() == expected[1].tolist()
    assert counts.sum() == len(column)


def test_a_histogram_leaves_out_infinities() -> None:
    """They have no bin; of nothing else, there is no histogram."""
    assert run("histogram", [np.inf, 1.0, 3.0, -np.inf], bins=2)[0].tolist() == [1, 1]
    assert math.isnan(run("histogram", [np.inf]))


def calibration_error(confidence: list[float], correct: list[bool], bins: int) -> float:
    """Guo et al. 2017, equation 3, word for word: bins (lo, hi], and 0 in the first."""
    error = 0.0
    for place in range(bins):
        low, high = place / bins, (place + 1) / bins
        inside = [i for i, c in enumerate(confidence) if low < c <= high or (c == 0 and place == 0)]
        if inside:
            accuracy = sum(correct[i] for i in inside) / len(inside)
            mean = sum(confidence[i] for i in inside) / len(inside)
            error += len(inside) / len(confidence) * abs(accuracy - mean)
    return error


@given(
    st.lists(st.tuples(st.floats(0, 1) | st.integers(0, 100).map(lambda n: n / 100), st.booleans()), min_size=1),
    st.sampled_from([1, 7, 10, 15, 100]),
)
def test_the_calibration_error_is_the_papers(rows: list[tuple[float, bool]], bins: int) -> None:
    """Also for a confidence on an edge, where rounding would move it to the next bin."""
    confidence, correct = [row[0] for row in rows], [row[1] for row in rows]
    expected = calibration_error(confidence, correct, bins)
    assert run("ece", confidence, np.array(correct, np.float64), bins=bins) == pytest.approx(expected, abs=1e-12)


def test_the_calibration_error_by_hand() -> None:
    """0.9 twice, once right: 0.4 off; 0.2 once, wrong: 0.2 off; weighted by how many they are."""
    assert run("ece", [0.9, 0.9, 0.2], [1.0, 0.0, 0.0]) == pytest.approx((2 * 0.4 + 0.2) / 3)


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=2))
def test_the_correlation_is_numpys(rows: list[tuple[int, int]]) -> None:
    """Pearson's, and absent where numpy divides by zero."""
    x, y = np.array(rows, np.float64).T
    varies = len(set(x)) > 1 and len(set(y)) > 1
    assert run("corr", x, y) == pytest.approx(np.corrcoef(x, y)[0, 1] if varies else math.nan, abs=1e-9, nan_ok=True)


def test_the_correlation_of_a_constant_is_absent() -> None:
    """Three times 0.1 has a mean that is not 0.1: rounding alone is no correlation."""
    assert math.isnan(run("corr", [0.1, 0.1, 0.1], [1.0, 2.0, 4.0]))
    assert math.isnan(run("corr", [0.1, 0.1, 0.1], [0.1, 0.1, 0.1]))


@pytest.mark.parametrize("name", [*(one.name for one in BUILTIN if not one.foldable), "p50"])
def test_nothing_is_absent(name: str) -> None:
    """A reduction of no rows is missing, not 0 and not an error."""
    reduction = BUILTIN.get(name)
    assert reduction is not None
    assert math.isnan(finish(reduction, [np.zeros(0)] * reduction.arity, dict(reduction.params or {})))


# ---- reductions of users


def test_a_users_reduction_joins_a_registry_of_its_own() -> None:
    """The signature says how many expressions it takes and which constants; the built-in ones are seen as well."""
    registry = Reductions(BUILTIN)

    @reducer(registry=registry)
    def trimmed(values: Array, weights: Array, *, share: float = 0.1, least: int) -> float:
        """The weighted mean without the extremes.

        More about it.
        """
        return float((values * weights).mean() * share * least)

    made = registry.get("trimmed")
    assert made is not None and (made.name, made.arity, made.foldable) == ("trimmed", 2, False)
    assert made.params == {"share": 0.1, "least": REQUIRED} and made.help == "The weighted mean without the extremes."
    assert finish(made, [np.array([2.0, 4.0]), np.array([1.0, 1.0])], {"share": 0.5, "least": 2}) == 3.0
    assert registry.get("mean") is BUILTIN.get("mean") and BUILTIN.get("trimmed") is None


def test_a_users_reduction_may_be_named() -> None:
    """``name=`` is what YAML writes."""
    registry = Reductions(BUILTIN)
    reducer(len, name="rows", registry=registry)
    made = registry.get("rows")
    assert made is not None and finish(made, [np.array([5.0, 6.0])], {}) == 2


def test_a_name_is_taken_once() -> None:
    """A second reduction of one name is refused, a built-in's name too; the same function again is not a second one."""
    registry = Reductions(BUILTIN)

    def gini(values: Array) -> float:
        """Inequality."""
        return 0.0

    assert reducer(gini, registry=registry) is reducer(gini, registry=registry)
    with pytest.raises(UsageError, match="a reduction named `gini` is registered already"):
        reducer(lambda values: 1.0, name="gini", registry=registry)
    with pytest.raises(UsageError, match="`mean` is registered already"):
        reducer(gini, name="mean", registry=registry)


def test_a_quantiles_name_cannot_be_taken() -> None:
    """``p95`` means the quantile, whoever registers what."""
    with pytest.raises(UsageError, match="`p95` is registered already"):
        reducer(lambda values: 1.0, name="p95", registry=Reductions(BUILTIN))
