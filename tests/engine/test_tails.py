"""`top_mean` and `bottom_mean`: what numpy gives of the values at or beyond a quantile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import declog
from declog.language.quantile_sketch import SIZE, VALUES, Sketch
from declog.language.reductions import BUILTIN
from declog.runtime.ranks.comm import Comm
from declog.testing import MemorySink, run_ranks

Draw = Callable[[int], np.ndarray[Any, Any]]
DRAWN = np.random.default_rng(0)
NAMES = ("top_mean", "bottom_mean")


def of_numpy(name: str, values: Any, share: float) -> float:
    """The mean of a tail."""
    if name == "top_mean":
        return float(values[values >= np.quantile(values, 1 - share)].mean())
    return float(values[values <= np.quantile(values, share)].mean())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("share", [0.01, 0.2, 1 / 3, 0.5, 1.0])
@pytest.mark.parametrize("count", [1, 2, 7, 200, 5000])
@pytest.mark.parametrize("draw", [DRAWN.random, DRAWN.standard_exponential, lambda n: DRAWN.integers(-3, 4, n) / 2.0])
def test_a_tail_is_numpys(draw: Draw, count: int, share: float, name: str) -> None:
    """Of floats and of values with many ties; a sketch of distinct floats is within 1 % of it."""
    values, reduction = draw(count), BUILTIN.get(name)
    assert reduction is not None and reduction.sketch is not None
    expected = of_numpy(name, values, share)
    assert reduction.run(values, share=share) == pytest.approx(expected, rel=1e-12, abs=1e-12)
    if len(set(values)) == count > 1:
        bins = [int(np.argmin(np.abs(VALUES - value))) for value in values]
        sketch = Sketch(np.bincount(bins, minlength=SIZE), float(values.min()), float(values.max()))
        assert reduction.sketch(sketch, share=share) == pytest.approx(expected, rel=0.0101)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("values", [[1.0, np.inf, 2.0], [-np.inf, 3.0], [np.inf, -np.inf], [np.inf], []])
def test_a_tail_of_infinities(values: list[float], name: str) -> None:
    """They are what they make of the mean, over rows and over tokens alike."""
    reduction = BUILTIN.get(name)
    assert reduction is not None and reduction.sketch is not None
    bins = [int(np.argmin(np.abs(VALUES - np.clip(value, VALUES[0], VALUES[-1])))) for value in values]
    counts = np.bincount(np.array(bins, int), minlength=SIZE)
    sketch = Sketch(counts, min(values, default=np.inf), max(values, default=-np.inf))
    for share in (0.2, 0.5, 1.0):
        of_tokens = reduction.sketch(sketch, share=share)
        assert of_tokens == pytest.approx(reduction.run(np.array(values), share=share), rel=0.0101, nan_ok=True)


@pytest.mark.parametrize("ranks", [1, 2])
def test_tails_of_rows_and_tokens(ranks: int, tmp_path: Path) -> None:
    """Pooled over steps, batches and ranks, with `where`, labels, members, pieces and a part of its own."""
    tail = "top_mean(share=0.3)"
    config = {
        "axes": {"token": {"mask": "mask"}}, "every": 2, "run": {"strict": True},
        "signals": {"any": {
            "x": "completion", "b": "completion bool", "f": {"axis": "completion", "family": True}, "t": "token",
            "mask": "token bool",
        }},
        "metrics": {
            "x": {"reduce": ["top_mean", "bottom_mean", {"third": tail}]}, "short": "bottom_mean(x, share=0.5)",
            "some": {"expr": "x", "reduce": tail, "where": "b"}, "by": {"expr": "x", "reduce": tail, "by": "b"},
            "f": {"reduce": tail}, "each": {"expr": "x", "reduce": tail, "over": "step"},
            "t": {"reduce": [{"top": tail}, "bottom_mean"]}, "of": {"expr": "t", "reduce": tail, "where": "t < 1.5"},
        },
    }  # fmt: skip
    sink, seen = MemorySink(), {rank: np.random.default_rng(rank) for rank in range(ranks)}
    rows: dict[tuple[int, int], dict[str, Any]] = {}

    def body(comm: Comm) -> None:
        sinks = [sink] if comm.rank == 0 else [MemorySink()]
        with declog.start(config, comm=comm, sinks=sinks, output_dir=tmp_path) as log:
            for step in range(4):
                draw = seen[comm.rank]
                x, t, mask = draw.normal(size=40), draw.exponential(size=(40, 9)), draw.random((40, 9)) > 0.3
                rows[step, comm.rank] = {"x": x, "b": x % 1 > 0.5, "t": t[mask]}
                with log.step(step):
                    log.observe(
                        x=x, b=x % 1 > 0.5, f={"p": x, "q": -x}, t=torch.tensor(t), mask=torch.tensor(mask)
                    )  # fmt: skip

    run_ranks(ranks, body)
    for last in (1, 3):
        steps = [[rows[step, rank] for rank in range(ranks)] for step in (last - 1, last)]
        x, b, t = (np.concatenate([part[name] for step in steps for part in step]) for name in ("x", "b", "t"))
        pieces = [of_numpy("top_mean", np.concatenate([part["x"] for part in step]), 0.3) for step in steps]
        exact = {
            "x/top_mean": of_numpy("top_mean", x, 0.2), "x/bottom_mean": of_numpy("bottom_mean", x, 0.2),
            "x/third": of_numpy("top_mean", x, 0.3), "short": of_numpy("bottom_mean", x, 0.5),
            "some": of_numpy("top_mean", x[b], 0.3), "by/true": of_numpy("top_mean", x[b], 0.3),
            "by/false": of_numpy("top_mean", x[~b], 0.3), "f/p": of_numpy("top_mean", x, 0.3),
            "f/q": of_numpy("top_mean", -x, 0.3), "each": float(np.mean(pieces)),
        }  # fmt: skip
        near = {
            "t/top": of_numpy("top_mean", t, 0.3), "t/bottom_mean": of_numpy("bottom_mean", t, 0.2),
            "of": of_numpy("top_mean", t[t < 1.5], 0.3),
        }  # fmt: skip
        found = sink.scalars[last]
        assert found.keys() == exact.keys() | near.keys()
        assert {name: found[name] for name in exact} == pytest.approx(exact, rel=1e-9)
        assert {name: found[name] for name in near} == pytest.approx(near, rel=0.0101)


@pytest.mark.parametrize("share", ["0", "-0.2", "1.5", "20"])
def test_a_share_is_a_part(share: str) -> None:
    """Said when the config is compiled."""
    with pytest.raises(declog.ConfigError, match="DL304") as caught:
        declog.plan({"signals": {"any": {"x": "completion"}}, "metrics": {"x": f"top_mean(x, share={share})"}})
    assert "share=0.2" in str(caught.value)
