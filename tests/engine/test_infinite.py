"""Infinite values: what is computed of them is shown, be it infinite or NaN, whatever the reduction."""

from __future__ import annotations

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
    profile = {"signals": {"x": ROWS}, "metrics": {"m": {"expr": "x", "reduce": reduce}}}
    found = record(profile, [[{"x": [*rows, *missing]}]]).scalars.get(0, {})
    assert (str(found.get("m")), found.get("nonfinite/m", 0) > 0) == (expected, expected in ("inf", "-inf", "nan"))


@pytest.mark.parametrize("weight", [0.25, 0.5, 3.0])
def test_a_mean_of_infinities_of_both_signs_is_shown_whatever_they_weigh(weight: float) -> None:
    """Also where all weights together are less than one row."""
    profile = {"signals": {"x": ROWS, "w": ROWS}, "metrics": {"m": {"expr": "x", "weight": "w"}}}
    found = record(profile, [[{"x": [INF, -INF], "w": [weight, weight]}]]).scalars[0]
    assert (str(found["m"]), found["nonfinite/m"]) == ("nan", 1)
