"""Reductions over random rows equal pandas and numpy: missing values, clauses, labels, families, pools, ranks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import declog
from declog.language.moments import Moments
from declog.language.reductions import BUILTIN
from tests.conftest import examples
from tests.language.runs import one_step, record, values

ROWS = {"axis": "completion"}
SIGNALS: dict[str, Any] = {
    "x": ROWS, "y": ROWS, "w": ROWS, "c": ROWS, "k": {**ROWS, "type": "int"}, "ok": {**ROWS, "type": "bool"},
    "cond": {**ROWS, "type": "bool"}, "label": {**ROWS, "type": "text"}, "s": {"axis": "step"},
}  # fmt: skip
EIGHTHS = st.integers(-40, 40).map(lambda k: k / 8)
MAYBE = st.one_of(EIGHTHS, EIGHTHS, st.just(math.nan))
COLUMNS: dict[str, st.SearchStrategy[Any]] = (
    {
        "x": MAYBE, "y": MAYBE, "w": st.one_of(st.integers(0, 8).map(lambda k: k / 4), st.just(math.nan)),
        "c": st.one_of(st.integers(0, 20).map(lambda k: k / 20), st.just(math.nan)), "k": st.integers(-5, 5),
        "ok": st.booleans(), "cond": st.sampled_from((True, True, False, None)),
        "label": st.sampled_from(("a", "b", "c", None)),
    }
)  # fmt: skip
ROW = st.fixed_dictionaries(COLUMNS)
FOLDED = ("mean", "sum", "min", "max", "std", "pstd", "var", "count")
VALUED = ("p05", "p50", "p99.9", "last")


@st.composite
def windows(draw: Any) -> pd.DataFrame:
    """The rows of a window of one to three steps, batches and ranks; some batches are empty."""
    ranks, steps, batches = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    rows = []
    for step in range(steps):
        for batch in range(batches):
            for rank in range(ranks):
                found = draw(st.lists(ROW, min_size=0, max_size=4))
                keys = {"step": step, "batch": batch, "rank": rank}
                rows += [{**keys, "s": float(10 * step + batch - rank), "row": n, **row} for n, row in enumerate(found)]
                rows.append({**keys, "s": float(10 * step + batch - rank), "row": -1})  # the batch itself
    return pd.DataFrame(rows, columns=["step", "batch", "rank", "s", "row", *sorted(COLUMNS)])


def run(window: pd.DataFrame, metrics: dict[str, Any]) -> dict[str, Any]:
    """What declog logs for a window; histograms by name as (counts, edges)."""
    steps, batches = window["step"].max() + 1, window["batch"].max() + 1
    ranks = []
    for rank in range(window["rank"].max() + 1):
        of_rank = []
        for step in range(steps):
            of_step = []
            for batch in range(batches):
                part = window[(window["rank"] == rank) & (window["step"] == step) & (window["batch"] == batch)]
                there = part[part["row"] >= 0]
                observed: dict[str, Any] = {"s": float(part["s"].iloc[0])}
                for name in ("x", "y", "w", "c"):
                    observed[name] = there[name].to_numpy(np.float64)
                observed["k"] = there["k"].to_numpy(np.int64)
                observed["ok"] = there["ok"].to_numpy(bool)
                observed["cond"] = [None if pd.isna(item) else bool(item) for item in there["cond"]]
                observed["label"] = [None if pd.isna(item) else item for item in there["label"]]
                of_step.append(observed)
            of_rank.append(of_step)
        ranks.append(of_rank)
    sink = record({"every": int(steps), "signals": {"any": SIGNALS}, "metrics": metrics}, *ranks)
    found: dict[str, Any] = dict(next(iter(sink.scalars.values()), {}))
    for _, records in sink.events:
        found.update({item.name: (item.counts, item.edges) for item in records.histograms})
    return found


def reduced(part: pd.DataFrame, name: str, column: str = "x") -> float | None:
    """One reduction of some rows with pandas and numpy; None where none came, NaN where all that came is missing."""
    values_ = part[column].dropna().astype(float)
    if name == "count" or not len(part):
        return float(len(values_)) if len(part) else None
    if not len(values_):
        return math.nan
    if name == "last":
        order = part.assign(low=-part["rank"]).sort_values(["step", "batch", "low", "row"])[column].dropna()
        return float(order.iloc[-1])
    if name.startswith("p") and name != "pstd":
        return float(np.quantile(values_, float(name[1:]) / 100))
    found = float(values_.std(ddof=0) if name == "pstd" else values_.agg(name))
    return None if math.isnan(found) else found  # the deviation of one value


def pieces(parts: dict[str, pd.DataFrame], name: str, column: str = "x") -> dict[str, float]:
    """A reduction of some parts of a metric's rows: NaN where no part has a value, else only of those that have one."""
    found = {key: reduced(part, name, column) for key, part in parts.items()}
    some = any(part[column].notna().any() for part in parts.values())
    return {key: value for key, value in found.items() if value is not None and not (some and math.isnan(value))}


def expect(found: dict[str, Any], expected: dict[str, float], unshown: frozenset[str] = frozenset()) -> None:
    """Empty is absent, and what came and is missing altogether NaN, which is counted; nothing else is logged.

    ``unshown``: the metrics of which pieces are NaN that make no value together.
    """
    nans = unshown | {name for name, value in expected.items() if math.isnan(value)}
    broken = {f"nonfinite/{name.partition('/')[0]}" for name in nans}
    assert broken == {name for name in found if name.startswith("nonfinite/")}
    logged = {name: value for name, value in found.items() if name not in broken and not isinstance(value, tuple)}
    assert logged == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)


@examples(8, *HealthCheck)
@given(windows())
def test_reductions_with_clauses(window: pd.DataFrame) -> None:
    """Of all rows, of those that `where` takes, by label; what is missing does not count."""
    metrics: dict[str, Any] = {}
    for name in (*FOLDED, *VALUED):
        key = name.replace(".", "_")
        metrics |= {
            f"all_{key}": {"expr": "x", "reduce": name},
            f"some_{key}": {"expr": "x", "reduce": name, "where": "cond"},
            f"by_{key}": {"expr": "x", "reduce": name, "by": "label", "where": "cond"},
            f"int_{key}": {"expr": "k", "reduce": name, "by": "ok"},
        }
    found = run(window, metrics)
    rows = window[window["row"] >= 0]
    some = rows[rows["cond"].eq(True)]  # a missing one takes no row

    expected: dict[str, float] = {}
    for name in (*FOLDED, *VALUED):
        key = name.replace(".", "_")
        expected |= pieces({f"all_{key}": rows}, name) | pieces({f"some_{key}": some}, name)
        expected |= pieces({f"by_{key}/{label}": some[some["label"] == label] for label in "abc"}, name)
        expected |= pieces({f"int_{key}/{str(ok).lower()}": rows[rows["ok"].eq(ok)] for ok in (True, False)}, name, "k")
    expect(found, expected)


@examples(20, *HealthCheck)
@given(windows())
def test_weights_pairs_and_histograms(window: pd.DataFrame) -> None:
    """A row counts where all that it needs is there."""
    found = run(
        window,
        {
            "weighted": {"expr": "x", "weight": "w"},
            "weighted_sum": {"expr": "x", "reduce": "sum", "weight": "w", "by": "label"},
            "ece": "ece(c, ok, bins=5)",
            "corr": "corr(x, y)",
            "hist": {"expr": "x", "reduce": "histogram(bins=4)"},
            "step": {"expr": "s", "reduce": ["mean", "last", "count"]},
        },
    )
    rows = window[window["row"] >= 0]
    expected: dict[str, float] = {}
    if len(rows):
        counted = rows[rows["w"] != 0]  # a row without any weight does not count, whatever it has
        pair = counted.dropna(subset=["x", "w"])
        if len(pair):
            expected["weighted"] = float((pair["x"] * pair["w"]).sum() / pair["w"].sum())
        elif len(counted):
            expected["weighted"] = math.nan
        for label in "abc":
            mine = pair[pair["label"] == label]
            if len(mine):
                expected[f"weighted_sum/{label}"] = float((mine["x"] * mine["w"]).sum())
            elif not pair["label"].notna().any() and (counted["label"] == label).any():
                expected[f"weighted_sum/{label}"] = math.nan
        sure = rows[["c", "ok"]].dropna()
        if not len(sure):
            expected["ece"] = math.nan
        if len(sure):
            bins = pd.cut(sure["c"], np.linspace(0, 1, 6), include_lowest=True)
            right = sure.assign(gap=sure["ok"].astype(float) - sure["c"]).groupby(bins, observed=True)["gap"].sum()
            expected["ece"] = float(right.abs().sum() / len(sure))
        both = rows[["x", "y"]].dropna().astype(float)
        if not len(both):
            expected["corr"] = math.nan
        elif both["x"].std(ddof=0) > 0 and both["y"].std(ddof=0) > 0:
            expected["corr"] = float(np.corrcoef(both["x"], both["y"])[0, 1])
        if not len(rows["x"].dropna()):
            expected["hist"] = math.nan
        if len(there_x := rows["x"].dropna()):
            counts, edges = np.histogram(there_x.astype(float), bins=4)
            assert (counts.tolist(), edges.tolist()) == (list(found["hist"][0]), list(found["hist"][1]))
    steps = window[window["row"] == -1].assign(low=-window["rank"]).sort_values(["step", "batch", "low"])["s"]
    expected |= {"step/mean": steps.mean(), "step/last": steps.iloc[-1], "step/count": float(len(steps))}
    expect(found, expected)


POOLS = {"step": ["step"], "batch": ["step", "batch"], "rank": ["rank"], "rank_batch": ["step", "batch", "rank"]}
COMBINES = ("mean", "min", "max", "sum", "var")


@examples(15, *HealthCheck)
@given(windows(), st.sampled_from(("mean", "max", "std", "p50")))
def test_pools_and_how_they_are_combined(window: pd.DataFrame, name: str) -> None:
    """A value per step, batch, rank or batch of a rank; those that are there become one."""
    found = run(
        window,
        {
            f"{pool}_{combine}": {"expr": "x", "reduce": name, "over": pool, "combine": combine}
            for pool in POOLS
            for combine in COMBINES
        },
    )
    rows = window[window["row"] >= 0]
    expected: dict[str, float] = {}
    unshown = set()
    for pool, keys in POOLS.items():
        parts = {str(key): part for key, part in rows.groupby(keys)} if len(rows) else {}
        there = list(pieces(parts, name).values())
        missing = bool(there) and math.isnan(there[0])  # then all are
        for combine in COMBINES:
            if there and (combine != "var" or len(there) > 1):
                expected[f"{pool}_{combine}"] = math.nan if missing else float(pd.Series(there).agg(combine))
            elif missing:
                unshown.add(f"{pool}_{combine}")
    expect(found, expected, frozenset(unshown))


@examples(60, *HealthCheck)
@given(st.lists(st.lists(MAYBE, max_size=5), min_size=3, max_size=3))
def test_states_merge_as_their_values_do(parts: list[list[float]]) -> None:
    """Merging has an identity, is associative, and equals the state of all values together."""
    first, second, third = (Moments.of(np.array([part], np.float64)) for part in parts)
    whole = Moments.of(np.array([sum(parts, [])], np.float64))  # noqa: RUF017  three short lists

    def close(a: Moments, b: Moments) -> None:
        for name in ("n", "total", "m2", "min", "max"):
            assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-9, abs=1e-9), name

    def merged(*states: Moments) -> Moments:
        return Moments.stacked(states).pooled()

    close(merged(Moments.empty((1,)), first), first)
    close(merged(first, Moments.empty((1,))), first)
    close(merged(merged(first, second), third), merged(first, merged(second, third)))
    close(merged(first, second, third), whole)
    states = Moments(*(np.stack([getattr(m, n)[0] for m in (first, second, third)])[None] for n in whole.__dict__))
    close(states.pooled(), whole)


DTYPES = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_dtype(dtype: torch.dtype) -> None:
    """Values that every dtype holds give the same numbers from all of them, and from lists."""
    rows = torch.tensor([1, 0, 1, 1]).to(dtype)
    profile = {
        "signals": {"any": {"x": ROWS}},
        "metrics": {"x": {"expr": "x", "reduce": ["mean", "sum", "pstd", "max", "p50"]}},
    }
    expected = {"x/mean": 0.75, "x/sum": 3.0, "x/pstd": math.sqrt(3) / 4, "x/max": 1.0, "x/p50": 1.0}

    assert expected == pytest.approx(one_step(profile, {"x": rows}))
    assert expected == pytest.approx(one_step(profile, {"x": rows.tolist()}))


def test_float32_rows_to_five_digits() -> None:
    """Rows of float32 are reduced in float64."""
    rows = torch.rand(4096, generator=torch.Generator().manual_seed(0)) + 1000
    profile = {
        "signals": {"any": {"x": ROWS}},
        "metrics": {"x": {"expr": "x", "reduce": ["mean", "std", "sum", "p95"]}},
    }
    exact = rows.double().numpy()
    expected = {"mean": exact.mean(), "std": exact.std(ddof=1), "sum": exact.sum(), "p95": np.quantile(exact, 0.95)}

    assert {f"x/{name}": value for name, value in expected.items()} == pytest.approx(
        one_step(profile, {"x": rows}), rel=1e-9
    )


def test_large_offsets_keep_their_spread() -> None:
    """1e8 + {0, 1, 2}: over rows, over batches that are merged, and over groups."""
    profile = {
        "every": 3,
        "signals": {"any": {"x": ROWS}},
        "metrics": {
            "x": {"expr": "x", "reduce": ["pstd", "var"]},
            "piece": {"expr": "x", "reduce": "std", "by": "x > 0"},
        },
    }
    steps = [[{"x": np.array([1e8 + k])}] for k in range(3)]

    assert {"x/pstd": math.sqrt(2 / 3), "x/var": 1.0, "piece/true": 1.0} == pytest.approx(values(profile, steps))


def test_a_column_of_missing_values_is_nan() -> None:
    """Values came and all are missing: NaN, and how many, but 0 are there; of a family where no member has any."""
    profile = {
        "signals": {"any": {"x": ROWS, "f": {**ROWS, "family": True}}},
        "metrics": {
            "x": {"expr": "x", "reduce": ["mean", "sum", "count", "last", "p50", "histogram"]},
            "f": "f",
            "zero": {"expr": "x", "empty": 0},
            "kept": {"expr": "x", "nan": "propagate"},
        },
    }
    logged = one_step(profile, {"x": [math.nan, math.nan], "f": {"a": [math.nan, math.nan], "b": [1.0, math.nan]}})

    assert logged == pytest.approx(
        {f"x/{name}": math.nan for name in ("mean", "sum", "last", "p50", "histogram")}
        | {"x/count": 0.0}
        | {"zero": math.nan, "kept": math.nan, "f/b": 1.0}
        | {f"nonfinite/{name}": 2 for name in ("x", "zero", "kept")},
        nan_ok=True,
    )


@pytest.mark.parametrize("name", sorted(entry.name for entry in BUILTIN))
def test_every_reduction_says_what_it_does(name: str) -> None:
    """The reference shows a line for each."""
    entry = BUILTIN.get(name)
    assert entry is not None and entry.help


TOKENS: dict[str, Any] = {
    "axes": {"token": {"mask": "m"}},
    "signals": {"any": {"m": {"axis": "token", "type": "bool"}, "u": {"axis": "token"}}},
}


@pytest.mark.parametrize("clause", [{}, {"by": "label"}, {"weight": "w"}, {"over": "batch"}], ids=str)
@pytest.mark.parametrize("axis", ["completion", "token"])
def test_missing_values_are_skipped_shown_or_refused(axis: str, clause: dict[str, str]) -> None:
    """`nan` says which, of rows and of tokens, under every clause."""
    signals = {**TOKENS["signals"]["any"], "x": ROWS, "w": ROWS, "label": {**ROWS, "type": "text"}}
    observed = {
        "m": torch.tensor([[True, True], [True, False], [True, True]]),
        "u": torch.tensor([[1.0, math.nan], [3.0, math.nan], [2.0, 3.0]]),
        "x": [1.0, math.nan, 3.0],
        "w": [1.0, 1.0, 2.0],
        "label": ["a", "a", "b"],
    }

    def logged(nan: str) -> dict[str, float]:
        metric = {"expr": "x" if axis == "completion" else "u", "nan": nan, **clause}
        return one_step({**TOKENS, "signals": {"any": signals}, "metrics": {"v": metric}}, observed)

    skipped, shown = logged("skip"), logged("propagate")
    assert sorted([*skipped, "nonfinite/v"]) == sorted(shown)
    assert not any(math.isnan(value) for value in skipped.values())
    assert {"v", "v/a"} & {*shown} == {name for name, value in shown.items() if math.isnan(value)}
    with pytest.raises(declog.DeclogError, match="missing values"):
        logged("raise")


def test_labels_beyond_the_limit_are_pooled() -> None:
    """The most frequent labels are kept; the rest is `_other`."""
    profile = {
        "signals": {"any": {"x": ROWS, "k": {**ROWS, "type": "int"}}},
        "metrics": {"x": {"expr": "x", "by": "k", "max_labels": 2, "reduce": "sum"}},
    }
    logged = one_step(profile, {"x": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "k": [7, 7, 8, 8, 9, 10]})

    assert logged == {"x/7": 3.0, "x/8": 7.0, "x/_other": 11.0}
