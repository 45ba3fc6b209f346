"""A histogram of token values beside numpy's of the same edges: each token is in its bin, or hardly beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

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
