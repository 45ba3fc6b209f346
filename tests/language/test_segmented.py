"""Reductions over segments of rows, against pandas' groupby: ragged, unsorted, with missing values, of any dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from declog.language import segmented
from declog.language.moments import AGGREGATES
from declog.language.segmented import Segments

Array = NDArray[Any]

# What pandas calls each kernel. Its any and all of floats take NaN for true: those are given to it as bools.
PANDAS: dict[str, Callable[[Any], Any]] = {
    "count": lambda grouped: grouped.count(),
    "sum": lambda grouped: grouped.sum(min_count=1),
    "mean": lambda grouped: grouped.mean(),
    "var": lambda grouped: grouped.var(),
    "std": lambda grouped: grouped.std(),
    "pstd": lambda grouped: grouped.std(ddof=0),
    "min": lambda grouped: grouped.min(),
    "max": lambda grouped: grouped.max(),
    "first": lambda grouped: grouped.first(),
    "last": lambda grouped: grouped.last(),
}


@st.composite
def partitions(draw: st.DrawFn) -> Segments:
    """Rows in segments, in any order, each segment with a row; or segments of one size, one after the other."""
    if draw(st.booleans()):
        size, count = draw(st.integers(1, 4)), draw(st.integers(1, 5))
        return Segments(np.repeat(np.arange(count), size), count, size)
    keys = draw(st.lists(st.integers(0, 4), min_size=1, max_size=20))
    if draw(st.booleans()):
        keys.sort()
    return Segments.of_keys(np.array(keys))


def floats(rows: int) -> st.SearchStrategy[Array]:
    """A float64 column, some of it missing."""
    return npst.arrays(np.float64, rows, elements=st.floats(-1e3, 1e3) | st.just(np.nan))


def integers(rows: int) -> st.SearchStrategy[Array]:
    """An int64 column, beyond what float64 holds."""
    return npst.arrays(np.int64, rows, elements=st.integers(-(2**58), 2**58))


def bools(rows: int) -> st.SearchStrategy[Array]:
    """A bool column."""
    return npst.arrays(np.bool_, rows)


COLUMNS = {"float": floats, "int": integers, "bool": bools}


@pytest.mark.parametrize("name", sorted(PANDAS))
@given(data=st.data(), segments=partitions())
def test_floats_reduce_as_in_pandas(name: str, data: st.DataObject, segments: Segments) -> None:
    """NaN is skipped, and a segment without values is NaN (its count is 0)."""
    values = data.draw(floats(len(segments.index)))
    expected = PANDAS[name](pd.Series(values).groupby(segments.index)).to_numpy()
    actual = AGGREGATES[name](values, segments)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-5 if name in ("std", "pstd") else 1e-9)


@pytest.mark.parametrize("name", ["count", "sum", "min", "max", "first", "last"])
@given(data=st.data(), segments=partitions())
def test_integers_stay_exact(name: str, data: st.DataObject, segments: Segments) -> None:
    """Sums and extrema of int64 do not go through floats."""
    values = data.draw(integers(len(segments.index)))
    expected = PANDAS[name](pd.Series(values).groupby(segments.index)).to_numpy()
    actual = AGGREGATES[name](values, segments)
    assert actual.dtype == np.int64 and actual.tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["mean", "var", "std", "pstd"])
@pytest.mark.parametrize("column", ["int", "bool"])
@given(data=st.data(), segments=partitions())
def test_means_of_integers_and_bools_are_floats(
    name: str, column: str, data: st.DataObject, segments: Segments
) -> None:
    """They reduce as the same numbers given as float64 do."""
    values = data.draw(COLUMNS[column](len(segments.index)))
    expected = PANDAS[name](pd.Series(values.astype(np.float64)).groupby(segments.index)).to_numpy()
    actual = AGGREGATES[name](values, segments)
    scale = 1.0 if column == "bool" else 2.0**58
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9 * (scale**2 if name == "var" else scale))


@given(data=st.data(), segments=partitions())
def test_a_sum_of_bools_counts(data: st.DataObject, segments: Segments) -> None:
    """True is 1, whatever numpy adds bools to."""
    values = data.draw(bools(len(segments.index)))
    expected = pd.Series(values.astype(np.int64)).groupby(segments.index).sum().to_numpy()
    assert AGGREGATES["sum"](values, segments).tolist() == expected.tolist()


@pytest.mark.parametrize("column", sorted(COLUMNS))
@given(data=st.data(), segments=partitions())
def test_any_and_all_skip_missing_values(column: str, data: st.DataObject, segments: Segments) -> None:
    """A missing value does not count; where all are missing, so is the answer."""
    values = data.draw(COLUMNS[column](len(segments.index)))
    rows = [values[segments.index == place].astype(np.float64) for place in range(segments.count)]
    held = [row[~np.isnan(row)] != 0 for row in rows]
    for answer, run in ((AGGREGATES["any"], np.any), (AGGREGATES["all"], np.all)):
        found = [None if item != item else bool(item) for item in answer(values, segments).tolist()]
        assert found == [bool(run(row)) if len(row) else None for row in held]


@given(data=st.data(), segments=partitions())
def test_the_first_and_last_text_of_a_segment(data: st.DataObject, segments: Segments) -> None:
    """Objects are picked in row order; None is missing, and is what a segment without a text has."""
    rows = len(segments.index)
    values = np.array(data.draw(st.lists(st.sampled_from([None, "a", "b"]), min_size=rows, max_size=rows)), object)
    held = [[item for item in values[segments.index == place] if item is not None] for place in range(segments.count)]
    assert AGGREGATES["first"](values, segments).tolist() == [row[0] if row else None for row in held]
    assert AGGREGATES["last"](values, segments).tolist() == [row[-1] if row else None for row in held]
    assert AGGREGATES["count"](values, segments).tolist() == [len(row) for row in held]


@given(data=st.data(), segments=partitions())
def test_ranks_as_in_pandas(data: st.DataObject, segments: Segments) -> None:
    """1-based, ascending, ties by row; a missing value has no rank."""
    values = data.draw(npst.arrays(np.float64, len(segments.index), elements=st.sampled_from([0, 1, 2, 3, np.nan])))
    expected = pd.Series(values).groupby(segments.index).rank(method="first").to_numpy()
    np.testing.assert_array_equal(segmented.rank(values, segments), expected)


@pytest.mark.parametrize("name", [*sorted(AGGREGATES), "rank"])
@given(data=st.data(), segments=partitions())
def test_a_family_reduces_row_by_row(name: str, data: st.DataObject, segments: Segments) -> None:
    """``[members, rows]`` gives for each member what it would give alone, in the same dtype."""
    kernel = {**AGGREGATES, "rank": segmented.rank}[name]
    rows = len(segments.index)
    family = np.stack(data.draw(st.lists(floats(rows), min_size=1, max_size=3)))
    np.testing.assert_array_equal(kernel(family, segments), np.stack([kernel(row, segments) for row in family]))


@pytest.mark.parametrize("name", sorted(AGGREGATES))
@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_no_rows_give_no_values(name: str, shape: tuple[int, ...]) -> None:
    """A window without rows has no segments, so reductions of it are empty instead of an error."""
    for segments in (Segments.single(0), Segments.of_keys(np.zeros(0, np.int64))):
        assert AGGREGATES[name](np.zeros(shape), segments).shape == shape


@pytest.mark.parametrize("name", sorted(AGGREGATES))
@given(data=st.data())
def test_a_segment_without_rows_has_no_value(name: str, data: st.DataObject) -> None:
    """A batch that held nothing is missing, wherever it stands, and changes nothing for the others."""
    keys = np.array(data.draw(st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=8)))
    values = data.draw(floats(len(keys)))
    whole = segmented.aggregate(AGGREGATES[name], values, Segments(keys, 6))
    held = [AGGREGATES[name](values[keys == key], Segments.single(int(sum(keys == key)))) for key in range(6)]
    expected = [float(value[0]) if len(value) else np.nan for value in held]
    np.testing.assert_allclose(whole.astype(np.float64), expected, rtol=1e-12)


def test_infinite_values_are_values() -> None:
    """An infinity is no missing value: it is the sum, the mean and the extremum, and has no variance."""
    segments = Segments.of_keys(np.array([0, 0, 1]))
    values = np.array([np.inf, 1.0, -np.inf])
    found = {name: AGGREGATES[name](values, segments).tolist() for name in ("count", "sum", "mean", "min")}
    assert found == {"count": [2, 1], "sum": [np.inf, -np.inf], "mean": [np.inf, -np.inf], "min": [1.0, -np.inf]}
    assert np.isnan(AGGREGATES["var"](values, segments)).all() and np.isnan(AGGREGATES["pstd"](values, segments)).all()


# ---- segments


@given(st.lists(st.tuples(st.integers(-3, 3), st.sampled_from(["a", "b", "c"])), min_size=1, max_size=20))
def test_rows_with_equal_keys_are_together(rows: list[tuple[int, str]]) -> None:
    """Segments are numbered in the order in which their keys first appear, as pandas' ``ngroup`` without sorting."""
    table = pd.DataFrame(rows, columns=["step", "prompt"])
    segments = Segments.of_keys(table["step"].to_numpy(), table["prompt"].to_numpy(str))
    expected = table.groupby(["step", "prompt"], sort=False).ngroup().to_numpy()
    assert segments.index.tolist() == expected.tolist() and segments.count == expected.max() + 1


@given(partitions())
def test_places_and_counts_of_segments(segments: Segments) -> None:
    """``position`` counts a segment's rows in row order; ``counts`` and ``offsets`` describe the sorted rows."""
    grouped = pd.Series(segments.index).groupby(segments.index)
    assert segments.position.tolist() == grouped.cumcount().tolist()
    assert segments.counts.tolist() == grouped.size().tolist()
    assert segments.sorted(segments.index)[segments.offsets].tolist() == list(range(segments.count))
    assert segments.sorted(segments.index).tolist() == sorted(segments.index.tolist())


@given(data=st.data(), segments=partitions())
def test_what_is_spread_reduces_to_itself(data: st.DataObject, segments: Segments) -> None:
    """A value per segment, repeated to the rows, has itself as minimum and maximum of every segment."""
    values = data.draw(npst.arrays(np.float64, segments.count, elements=st.floats(-1e3, 1e3)))
    rows = np.broadcast_to(segments.spread(values), segments.index.shape)
    assert AGGREGATES["min"](rows, segments).tolist() == AGGREGATES["max"](rows, segments).tolist() == values.tolist()


def test_the_whole_is_one_segment() -> None:
    """All rows are one segment, whose value numpy spreads over all of them, and no rows are none."""
    assert Segments.single(3).spread(np.array([1.5])).tolist() == [1.5]
    assert AGGREGATES["sum"](np.array([1.0, 2.0, 3.0]), Segments.single(3)).tolist() == [6.0]
    assert Segments.single(0).count == 0
