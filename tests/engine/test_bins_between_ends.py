"""Histograms between two ends that stay: numpy's counts of clipped values, and the same edges at each log event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import declog
from tests.language.runs import record

RANDOM = np.random.default_rng(5)
STEPS = [RANDOM.normal(0.4, scale, 60) for scale in (0.1, 1.0, 5.0, 0.01)]
STEPS[1][:4] = 0.0, 1.0, np.inf, -np.inf
SIGNALS: dict[str, Any] = {
    "x": "completion", "t": "token", "source": "completion text",
    "f": {"axis": "completion", "family": True},
}  # fmt: skip
CALL = "histogram(bins=5, low=0, high=1)"
METRICS: dict[str, Any] = {
    "short": "histogram(x, bins=5, low=0, high=1)",
    "rows": {"expr": "x", "reduce": CALL},
    "pair": {"expr": "x", "reduce": CALL, "every": 2},
    "labels": {"expr": "x", "reduce": CALL, "by": "source"},
    "members": {"expr": "f", "reduce": CALL},
    "tokens": {"expr": "t", "reduce": CALL},
    "below": {"expr": "x", "reduce": "histogram(bins=5, high=1)"},
    "above": {"expr": "x", "reduce": "histogram(bins=5, low=0)"},
    "beyond": {"expr": "x", "reduce": "histogram(bins=5, low=100)"},
    "least": {"expr": "x", "reduce": "histogram(bins=5, high=-100)"},
}


def observed(values: np.ndarray) -> dict[str, Any]:
    tokens = torch.from_numpy(values.reshape(-1, 2))
    labels = ["a" if row % 3 else "b" for row in range(len(values))]
    return {
        "x": values, "t": tokens.repeat_interleave(2, 0), "source": labels, "f": {"m": values, "n": values * 2},
    }  # fmt: skip


def expected(values: np.ndarray, low: float | None, high: float | None) -> list[int]:
    """numpy's counts, in which infinities are nowhere and what is beyond an end is at it."""
    finite = values[np.isfinite(values)]
    ends = float(finite.min()) if low is None else low, float(finite.max()) if high is None else high
    if low is not None and high is None:
        ends = low, max(ends[1], low + (ends[1] <= low))
    if high is not None and low is None:
        ends = min(ends[0], high - (ends[0] >= high)), high
    return [int(count) for count in np.histogram(np.clip(finite, *ends), 5, range=ends)[0]]


@pytest.mark.parametrize("ranks", [1, 2])
def test_bins_between_ends(ranks: int) -> None:
    """Class: rows, windows, labels, families, tokens and ranks; the edges of an end that is said do not move."""
    of_ranks = [[[observed(part)] for part in (step[rank::ranks] for step in STEPS)] for rank in range(ranks)]
    config = {"signals": {"any": SIGNALS}, "metrics": METRICS, "axes": {"token": {"mask": "all"}}}
    sink = record(config, *of_ranks)
    counts: dict[tuple[int, str], list[int]] = {}
    edges: dict[str, set[tuple[float, ...]]] = {}
    for number, records in sink.events:
        for item in records.histograms:
            counts[number, item.name] = list(item.counts)
            edges.setdefault(item.name, set()).add(tuple(item.edges))
    fixed = tuple(np.linspace(0, 1, 6).tolist())
    for name in ("short", "rows", "pair", "labels/a", "labels/b", "members/m", "members/n", "tokens"):
        assert edges[name] == {fixed}, name
    assert {each[0] for each in edges["above"]} == {0.0} and {each[-1] for each in edges["below"]} == {1.0}
    assert edges["beyond"] == {tuple(np.linspace(100, 101, 6))} and edges["least"] == {
        tuple(np.linspace(-101, -100, 6))
    }
    for number, values in enumerate(STEPS):
        of_label = np.concatenate([np.arange(len(values[rank::ranks])) for rank in range(ranks)]) % 3 > 0
        ordered = np.concatenate([values[rank::ranks] for rank in range(ranks)])
        right = {
            "short": (values, 0, 1), "rows": (values, 0, 1), "labels/a": (ordered[of_label], 0, 1),
            "labels/b": (ordered[~of_label], 0, 1), "members/m": (values, 0, 1), "members/n": (values * 2, 0, 1),
            "below": (values, None, 1), "above": (values, 0, None), "beyond": (values, 100, None),
            "least": (values, None, -100),
        }  # fmt: skip
        for name, (part, low, high) in right.items():
            assert counts[number, name] == expected(part, low, high), (number, name)
        assert sum(counts[number, "tokens"]) == 2 * np.isfinite(values).sum()
    for last in (1, 3):
        assert counts[last, "pair"] == expected(np.concatenate(STEPS[last - 1 : last + 1]), 0, 1)


def test_files_have_the_same_bins(tmp_path: Path) -> None:
    """What ``run.histograms`` reads back."""
    config = {
        "run": {"name": "files"}, "signals": {"any": {"x": "completion"}}, "metrics": {"rows": METRICS["rows"]},
    }  # fmt: skip
    for sink in ("jsonl", "parquet"):
        with declog.start(config, overrides=[f"sinks=[{sink}]"], output_dir=tmp_path / sink) as log:
            for number, values in enumerate(STEPS):
                with log.step(number):
                    log.observe(x=values)
        assert log.output_dir is not None
        run = declog.read(log.output_dir)
        rows = run.histograms.pandas().to_dict("records")
        assert [list(row["counts"]) for row in rows] == [expected(values, 0, 1) for values in STEPS]
        assert all(list(row["edges"]) == np.linspace(0, 1, 6).tolist() for row in rows)


def test_over_the_run_and_combined_there_is_none() -> None:
    """Ends that stay make no mergeable state of it: the answers are those of any histogram."""
    for keys, code in (({"over": "run"}, "DL312"), ({"over": "step", "combine": "max"}, "DL312")):
        with pytest.raises(declog.ConfigError, match=code):
            declog.plan({
                "run": {"name": "x"}, "signals": {"any": SIGNALS}, "metrics": {"m": {**METRICS["rows"], **keys}},
            })  # fmt: skip


def test_no_ends_are_the_histogram_of_before() -> None:
    """A metric's meaning does not change by constants that it does not say: a run goes on with it."""
    config = {"run": {"name": "x"}, "signals": {"any": {"x": "completion"}}}
    plans = [
        declog.plan({**config, "metrics": {"m": f"histogram(x, bins=5{ends})"}})
        for ends in ("", ", low=None, high=None")
    ]
    assert [plan.metrics[0].params for plan in plans] == [(("bins", 5),)] * 2
