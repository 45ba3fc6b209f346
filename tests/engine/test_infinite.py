"""Infinite values: what is computed of them is shown, be it infinite or NaN, whatever the reduction."""

from __future__ import annotations

import numpy as np
import pytest

from tests.language.runs import record

INF = float("inf")
ROWS = {"axis": "completion"}


@pytest.mark.parametrize("missing", [[], [None]])
@pytest.mark.parametrize(
    ("reduce", "rows", "expected"),
    [
        ("p50", [INF, 1.0, 2.0], "2.0"),
        ("p50", [INF], "inf"),
        ("p50", [-INF, 1.0], "-inf"),
        ("p50", [INF, -INF], "nan"),
        ("p05", [1.0, 2.0, INF], "1.1"),
        ("p100", [1.0, INF], "inf"),
        ("p05", [-INF, 1.0, 2.0], "-inf"),
        ("pstd", [INF], "nan"),
        ("std", [INF], "None"),
        ("std", [INF, 1.0], "nan"),
        ("mean", [INF, -INF], "nan"),
        ("sum", [INF, -INF], "nan"),
    ],
)
def test_what_is_computed_of_infinite_values_is_shown(
    reduce: str, rows: list[float], missing: list[None], expected: str
) -> None:
    """Also beside missing values; of one value a sample deviation is absent."""
    profile = {"signals": {"any": {"x": ROWS}}, "metrics": {"m": {"expr": "x", "reduce": reduce}}}
    found = record(profile, [[{"x": [*rows, *missing]}]]).scalars.get(0, {})
    assert (str(found.get("m")), found.get("nonfinite/m", 0) > 0) == (expected, expected in ("inf", "-inf", "nan"))


@pytest.mark.parametrize("weight", [0.25, 0.5, 3.0])
def test_a_mean_of_infinities_of_both_signs_is_shown_whatever_they_weigh(weight: float) -> None:
    """Also where all weights together are less than one row."""
    profile = {"signals": {"any": {"x": ROWS, "w": ROWS}}, "metrics": {"m": {"expr": "x", "weight": "w"}}}
    found = record(profile, [[{"x": [INF, -INF], "w": [weight, weight]}]]).scalars[0]
    assert (str(found["m"]), found["nonfinite/m"]) == ("nan", 1)


@pytest.mark.parametrize("axis", ["completion", "token"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "std", "p50", "corr"])
def test_what_is_empty_is_no_value_for_what_infinities_make(reduce: str, axis: str) -> None:
    """`empty: 0` is for what nothing came for: a run that diverged does not log a healthy 0, nor do formulas of it."""
    if (reduce, axis) == ("corr", "token"):
        return
    rows = [1.0, INF, -INF, -INF]
    metrics = {
        "m": {"expr": ["x", "y"] if reduce == "corr" else "x", "reduce": reduce, "empty": 0},
        "of": {"formula": "m / m", "empty": 0},
        "nothing": {"expr": "x", "reduce": "sum", "where": "x == 17", "empty": 0},
        "share": {"formula": "nothing / nothing", "empty": 0},
    }
    profile = {
        "axes": {"token": {"mask": "all"}},
        "signals": {"any": {"x": {"axis": axis}, "y": ROWS}},
        "metrics": metrics,
    }
    found = record(profile, [[{"x": [rows] * 4 if axis == "token" else rows, "y": [1.0, 2.0, 3.0, 4.0]}]]).scalars[0]
    shown = "-inf" if reduce == "p50" else "nan"
    assert {name: str(value) for name, value in found.items() if not name.startswith("nonfinite/")} == {
        "m": shown, "of": "nan", "nothing": "0.0", "share": "0.0",
    }  # fmt: skip


@pytest.mark.parametrize("axis", ["completion", "token"])
def test_infinities_are_in_no_bin_and_are_reported(axis: str) -> None:
    """A histogram is of the finite values, whose bins they do not stretch; of infinities alone there is none."""
    profile = {
        "axes": {"token": {"mask": "all"}},
        "signals": {"any": {"x": {"axis": axis}}},
        "metrics": {"m": {"expr": "x", "reduce": "histogram(bins=2)"}},
    }
    rows = [[1.0, INF, 2.0, -INF], [INF, INF, INF, INF]]
    sink = record(profile, [[{"x": [row] if axis == "token" else row}] for row in rows])
    found = [item for _, records in sink.events for item in records.histograms]
    edges = [[round(float(edge), 1) for edge in item.edges] for item in found]
    assert ([item.counts for item in found], edges) == ([[1, 1]], [[1.0, 1.5, 2.0]])
    assert [values["nonfinite/m"] for values in sink.scalars.values()] == [2, 4]


@pytest.mark.parametrize("level", ["p05", "p50", "p95"])
@pytest.mark.parametrize(
    "rows", [[1.0, INF, INF, INF], [-INF, -INF, -INF, 2.0], [-INF, 1.0, INF, INF], [-INF, -INF, INF, INF]]
)
def test_quantiles_of_tokens_are_infinite_where_those_of_rows_are(level: str, rows: list[float]) -> None:
    """No number is made up for what lies between infinities."""
    profile = {
        "axes": {"token": {"mask": "all"}},
        "signals": {"any": {"x": ROWS, "t": {"axis": "token"}}},
        "metrics": {"x": f"{level}(x)", "t": f"{level}(t)"},
    }
    found = record(profile, [[{"x": rows, "t": [[row] for row in rows]}]]).scalars[0]
    assert str(found["t"]) == str(found["x"])
    assert found["nonfinite/t"] == found["nonfinite/x"]


@pytest.mark.parametrize("axis", ["completion", "token"])
@pytest.mark.parametrize(
    "rows",
    [
        [1.0, 1.0 + 2**-52], [0.3, 0.1 + 0.2], [1e17, 1e17], [1e300, 1e300 * (1 + 2**-52)], [-1e308, 1e308],
        [-1.7e308, 1.7e308], [0.0, 5e-324], [1.7e18, 1.7e18 + 256],
    ],
    ids=str,
)  # fmt: skip
def test_a_histogram_of_values_that_floats_hardly_part(rows: list[float], axis: str) -> None:
    """Of rewards that differ by rounding, of times in nanoseconds, of the greatest numbers: all are in some bin."""
    profile = {
        "axes": {"token": {"mask": "all"}},
        "signals": {"any": {"x": {"axis": axis}}},
        "metrics": {"m": {"expr": "x", "reduce": "histogram(bins=8)"}},
    }
    [(_, records)] = record(profile, [[{"x": [rows] if axis == "token" else rows}]]).events
    [found] = records.histograms
    assert sum(found.counts) == len(rows)
    assert (np.diff(found.edges) > 0).all()
    assert found.edges[0] <= rows[0] <= rows[-1] <= found.edges[-1]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("finite", [[0.75], [0.75, 0.7500001], [1e-30], [0.3, 900.0]], ids=str)
def test_a_histogram_of_tokens_beside_an_infinity(finite: list[float], sign: int) -> None:
    """The end towards the infinity is known by its bin alone, whose value may lie beyond the exact other end."""
    profile = {
        "axes": {"token": {"mask": "all"}},
        "signals": {"any": {"t": {"axis": "token"}}},
        "metrics": {"m": {"expr": "t", "reduce": "histogram(bins=4)"}},
    }
    rows = [[sign * value] for value in (*finite, INF)]
    [(_, records)] = record(profile, [[{"t": rows}]]).events
    [found] = records.histograms
    assert sum(found.counts) == len(finite)
    assert (np.diff(found.edges) > 0).all()
    assert [item.value for item in records.scalars] == [1]  # nonfinite/m
