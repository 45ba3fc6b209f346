"""Labels of tokens: a metric by a `bucket` of what is per token is, for each bucket, what numpy gives of its tokens."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import declog
from declog.runtime.ranks.comm import Comm
from declog.testing import MemorySink, run_ranks
from tests.running import profile

STEPS, ROWS, LENGTH = 4, 6, 9
SIGNALS = {"x": "token", "mask": "token bool", "place": "token int", "side": "completion", "given_x": "step"}
BUCKETS = {"0-2": (0, 2), "3-5": (2, 5), "6+": (5, np.inf)}  # above the first, up to the second


def batches(rank: int) -> list[dict[str, torch.Tensor]]:
    """What a rank observes, step by step."""
    generator = torch.Generator().manual_seed(rank)
    return [
        {
            "x": torch.randn(ROWS, LENGTH, generator=generator),
            "mask": torch.rand(ROWS, LENGTH, generator=generator) > 0.3,
            "place": torch.arange(LENGTH).expand(ROWS, LENGTH) - 1,
            "side": torch.randn(ROWS, generator=generator),
        }
        for _ in range(STEPS)
    ]


def logged(metrics: dict[str, Any], folder: Path, ranks: int) -> dict[str, float]:
    """The one log event of a run on so many ranks."""
    config = {
        "axes": {"token": {"mask": "mask"}}, "signals": {"any": SIGNALS}, "metrics": metrics, "every": STEPS,
        "run": {"strict": True},
    }  # fmt: skip
    sink = MemorySink()

    def body(comm: Comm) -> None:
        sinks = [sink] if comm.rank == 0 else [MemorySink()]
        with declog.start(config, comm=comm, sinks=sinks, output_dir=folder) as log:
            for step, batch in enumerate(batches(comm.rank)):
                with log.step(step):
                    log.observe(**batch)

    run_ranks(ranks, body)
    ((_, values),) = sink.scalars.items()
    return values


@pytest.mark.parametrize("ranks", [1, 2])
def test_buckets_of_tokens(ranks: int, tmp_path: Path) -> None:
    """Any value per token may be in the bucket; `where`, `weight`, several reductions and a name go with it."""
    values = logged(
        {
            "place": {"expr": "x", "by": "bucket(place, 2, 5)", "reduce": ["mean", "std", "max", "count"]},
            "index": {"expr": "x", "by": "bucket(index(token), 2, 5)"},
            "weighed": {
                "expr": "x", "by": "bucket(place, 2, 5)", "where": "side > 0.5 or side < 0", "weight": "abs(side)",
                "name": "{label}/w",
            },
            "median": {"expr": "p50(x)", "by": "bucket(x if place > 3 else -x, 0)"},
        },
        tmp_path, ranks,
    )  # fmt: skip
    every = [batch for rank in range(ranks) for batch in batches(rank)]
    x, mask, place = (torch.cat([batch[name] for batch in every]).double().numpy() for name in ("x", "mask", "place"))
    side = np.broadcast_to(torch.cat([batch["side"] for batch in every]).double().numpy()[:, None], x.shape)
    there = mask.astype(bool)
    expected: dict[str, float] = {}
    index = np.cumsum(there, axis=1) - 1 + first_index(tmp_path)
    for label, (low, high) in {**BUCKETS, "<0": (-np.inf, -0.5)}.items():
        tokens = there & (place > low if low else place >= 0) & (place <= high)
        some = x[tokens]
        expected |= {f"place/mean/{label}": some.mean(), f"place/std/{label}": some.std(ddof=1)}
        expected |= {f"place/max/{label}": some.max(), f"place/count/{label}": len(some)}
        kept = tokens & ((side > 0.5) | (side < 0))
        expected[f"{label}/w"] = np.average(x[kept], weights=np.abs(side[kept]))
        if label != "<0":
            expected[f"index/{label}"] = x[there & (index > low if low else index >= 0) & (index <= high)].mean()
    by = np.where(place > 3, x, -x)
    medians = {"0-0": by == 0, "<0": by < 0, "1+": by > 0}
    assert {name for name in values if name.startswith("median/")} == {"median/<0", "median/1+"}
    for label in ("<0", "1+"):
        assert values.pop(f"median/{label}") == pytest.approx(np.median(x[there & medians[label]]), abs=0.06)
    assert values == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("ranks", [1, 2])
def test_whole_numbers_of_tokens(ranks: int, tmp_path: Path) -> None:
    """Of places the first `max_labels` have their own value; other numbers must lie in a range that is known."""
    values = logged(
        {
            "index": {"expr": "x", "by": "index(token) // 2", "max_labels": 3},
            "few": {"expr": "x", "by": "index(token) // 4"},
            "cycle": {"expr": "x", "by": ["side > 0", "place % 3"]},
        },
        tmp_path, ranks,
    )  # fmt: skip
    every = [batch for rank in range(ranks) for batch in batches(rank)]
    x, mask, place = (torch.cat([batch[name] for batch in every]).double().numpy() for name in ("x", "mask", "place"))
    side, there = torch.cat([batch["side"] for batch in every]).numpy()[:, None] > 0, mask.astype(bool)
    index = np.cumsum(there, axis=1) - 1
    expected = {
        f"few/{label}": x[there & (index // 4 == label)].mean() for label in (0, 1, 2) if (index // 4 == label).any()
    }
    for label, tokens in {0: index // 2 == 0, 1: index // 2 == 1, 2: index // 2 == 2, "_other": index >= 6}.items():
        expected[f"index/{label}"] = x[there & tokens].mean()
    for label, sign in product((0, 1, 2), (True, False)):
        expected[f"cycle/{str(sign).lower()}/{label}"] = x[there & (place % 3 == label) & (side == sign)].mean()
    assert values == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("ranks", [1, 2])
def test_labels_of_tokens_and_of_rows_together(ranks: int, tmp_path: Path) -> None:
    """`by` with several labels has a value for each combination, be they of tokens, of completions or of the rank."""
    bucket, positive = "bucket(place, 2, 5)", "side > 0"
    values = logged(
        {
            "behind": {"expr": "x", "by": [positive, bucket]},
            "before": {"expr": "x", "by": [bucket, positive], "reduce": ["sum"]},
            "between": {"expr": "x", "by": ["rank", bucket, positive], "weight": "abs(side)"},
            "tokens": {"expr": "x", "by": [bucket, "bucket(x, 0)"], "where": "side > 0.5"},
            "listed": {"expr": "x", "by": [bucket]},
            "text": {"expr": "x", "by": bucket},
        },
        tmp_path, ranks,
    )  # fmt: skip
    expected: dict[str, float] = {}
    every = [(rank, batch) for rank in range(ranks) for batch in batches(rank)]
    together = {name: torch.cat([batch[name] for _, batch in every]).double().numpy() for name in every[0][1]}
    x, mask, place = (together[name] for name in ("x", "mask", "place"))
    side = np.broadcast_to(together["side"][:, None], x.shape)
    of_rank = np.repeat([rank for rank, _ in every], ROWS)[:, None]
    for label, (low, high) in {**BUCKETS, "<0": (-np.inf, -0.5)}.items():
        tokens = mask.astype(bool) & (place > low if low else place >= 0) & (place <= high)
        expected |= {f"listed/{label}": x[tokens].mean(), f"text/{label}": x[tokens].mean()}
        for sign, rows in (("true", side > 0), ("false", side <= 0)):
            expected[f"behind/{sign}/{label}"] = x[tokens & rows].mean()
            expected[f"before/sum/{label}/{sign}"] = x[tokens & rows].sum()
            for rank in range(ranks):
                kept = tokens & rows & (of_rank == rank)
                expected[f"between/{rank}/{sign}/{label}"] = np.average(x[kept], weights=np.abs(side[kept]))
        for of_x, some in (("<0", x < 0), ("0-0", x == 0), ("1+", x > 0)):
            if (kept := tokens & some & (side > 0.5)).any():
                expected[f"tokens/{label}/{of_x}"] = x[kept].mean()
    assert values == pytest.approx(expected, rel=1e-5, abs=1e-6)


def first_index(folder: Path) -> float:
    """What `index(token)` is of a completion's first token."""
    return logged({"first": {"expr": "index(token)", "reduce": "min"}}, folder / "first", 1)["first"]


@pytest.mark.parametrize(
    ("metric", "code"),
    [
        ({"expr": "side", "by": "bucket(place, 2)"}, "DL310"),
        ({"expr": "x", "by": ["side > 0", "place"]}, "DL310"),
        ({"expr": "x", "by": ["bucket(place, 2)", "sde > 0"]}, "DL302"),
        ({"expr": "p50(x)", "by": ["bucket(place, 2)", "side > 0"]}, "DL312"),  # a histogram per label of rows
        ({"expr": "x", "by": "bucket(place, 5, 2)"}, "DL304"),
        ({"expr": "x", "by": "bucket(place, side)"}, "DL304"),
        ({"expr": "x", "by": "bucket(plce, 2)"}, "DL302"),
        ({"expr": "x", "by": "bucket(place, 2)", "where": "sid > 0"}, "DL302"),
        ({"expr": "x", "by": "place"}, "DL310"),
        ({"expr": "x", "by": "place // 3"}, "DL310"),  # of any number of labels, in no order
        ({"expr": "x", "by": "place % 9", "max_labels": 8}, "DL310"),
        ({"expr": "x", "by": "x // 2"}, "DL305"),
        ({"expr": "x", "by": "bucket(place, 2)", "name": "x"}, "DL404"),
    ],
)
def test_labels_that_tokens_cannot_have(metric: dict[str, Any], code: str) -> None:
    """A metric of completions has none, edges are rising constants, and each mistake is told at its place."""
    config = {"axes": {"token": {"mask": "mask"}}, "signals": {"any": SIGNALS}, "metrics": {"m": metric}}
    with pytest.raises(declog.ConfigError) as error:
        declog.plan(config)
    first = error.value.problems[0]
    assert (first.code, first.path[:2]) == (code, ("metrics", "m")), first.text()


@pytest.mark.parametrize("by", ["index(token)", "index(token) // 2", "abs(kl)", "index(token) % 4"])
def test_conditions_of_labels_get_no_notes(by: str) -> None:
    """The class: declog makes the condition of a label, so no note says that it always or never holds."""
    config = profile(
        {"kl": {"axis": "token"}, "mask": {"axis": "token", "type": "bool"}},
        {"b": {"expr": "kl", "by": f"bucket({by}, 2, 8)"}}, axes={"token": {"mask": "mask"}},
    )  # fmt: skip
    assert [*declog.plan(config).warnings] == []
