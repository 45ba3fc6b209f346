"""A histogram of token values beside numpy's of the same edges: each token is in its bin, or hardly beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from declog.language.quantile_sketch import ERROR
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink
from tests.running import profile, run

GENERATOR = np.random.default_rng(7)
VALUES = {
    "ratios": np.exp(GENERATOR.normal(0, 0.15, (40, 25))), "entropies": GENERATOR.gamma(2, 0.5, (40, 25)),
    "gaps": GENERATOR.normal(0, 3, (40, 25)), "integers": GENERATOR.integers(-9, 31, (40, 25)),
    "bools": GENERATOR.integers(0, 2, (40, 25)).astype(bool),
}  # fmt: skip


@pytest.mark.parametrize("bins", [8, 20])
@pytest.mark.parametrize("name", VALUES)
def test_tokens_are_in_their_bins(name: str, bins: int, tmp_path: Path) -> None:
    """Class: values close to one, near zero, of both signs, whole ones and bools; bins as narrow as the sketch's."""
    values = VALUES[name].astype(np.float32) if VALUES[name].dtype == np.float64 else VALUES[name]
    kind = {"f": "float", "i": "int", "b": "bool"}[values.dtype.kind]
    signals = {"x": {"axis": "token", "type": kind}}
    config = profile(
        signals, {"h": {"expr": "x", "reduce": f"histogram(bins={bins})"}}, every=2, axes={"token": {"mask": "all"}}
    )

    def body(log: Recorder) -> None:
        for step, rows in enumerate(np.split(values, 2)):
            with log.step(step):
                log.observe(x=torch.from_numpy(rows))

    sink: MemorySink = run(config, body, tmp_path)
    ((_, records),) = [event for event in sink.events if event[1].histograms]
    (histogram,) = records.histograms
    expected, _ = np.histogram(values * 1, bins=histogram.edges)
    moved = np.abs(np.array(histogram.counts) - expected).sum() // 2
    assert sum(histogram.counts) == values.size
    assert moved <= (0.03 * values.size if kind == "float" else 0)


EDGE = 1 + 2 * ERROR + 1e-6  # as far as values are from an edge that are counted beyond it; float32 beside it
SIZES = {
    "random": GENERATOR.lognormal(0, 3, 4000) * GENERATOR.choice([-1, 1], 4000),
    "repeated": GENERATOR.choice([0.5, 1.0, 0.25, 0.99, 1.01, 3.0, -0.5, -2.0], 4000),
    "one": np.full(4000, 0.3), "whole": GENERATOR.integers(-900, 900, 4000).astype(float),
}  # fmt: skip


@pytest.mark.parametrize("ends", ["", ", low=-1, high=1", ", low=0, high=0.6", ", low=-50"])
@pytest.mark.parametrize("name", SIZES)
def test_what_is_counted_below_an_edge_lies_below_it_or_near(name: str, ends: str, tmp_path: Path) -> None:
    """Class: how far a value is from an edge that is counted on its other side: 2 %, and not 1 % as a quantile."""
    values = SIZES[name].astype(np.float32).reshape(40, 100)
    metrics = {"h": {"expr": "x", "reduce": f"histogram(bins=40{ends})"}}
    config = profile({"x": {"axis": "token"}}, metrics, axes={"token": {"mask": "all"}})

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(x=torch.from_numpy(values))

    sink: MemorySink = run(config, body, tmp_path)
    ((_, records),) = sink.events
    (histogram,) = records.histograms
    assert sum(histogram.counts) == values.size
    for edge, below in zip(histogram.edges[1:-1], np.cumsum(histogram.counts), strict=False):
        least, most = sorted((edge / EDGE, edge * EDGE))
        assert np.count_nonzero(values < least) <= below <= np.count_nonzero(values < most), edge
