"""How training code logs 40 numbers on several ranks without declog: one gather per metric, of objects, packed by hand.

All compute the numbers of ``completions.profile`` over the rows of all ranks, each step anew; ``names`` says in which
order. Those that average what ranks computed (per metric, objects) do as trainers do, and are no exact deviations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

from tests.benchmarks import completions
from tests.benchmarks.completions import GROUP, Wanted
from tests.benchmarks.measure import Batch

Tensor = torch.Tensor
Way = Callable[[Batch], list[float]]


def names(metrics: int) -> list[str]:
    """The numbers' names, in the order in which the packed ways give them."""
    return [f"{column}/{reduction}" for column, reduction in _ordered(completions.expected(metrics))]


def ways(metrics: int) -> Mapping[str, Way]:
    """Every way but torchmetrics, whose collections bring their own synchronisation."""
    return {
        "per metric": per_metric(metrics), "object gather": objects(metrics),
        "two all_reduces": two_all_reduces(metrics), "one all_gather": one_all_gather(metrics),
    }  # fmt: skip


def per_metric(metrics: int) -> Way:
    """``metrics[name].append(accelerator.gather(value.mean()).nanmean().item())``, line by line."""
    keys = [(name, completions._CALLS[reduction]) for name, reduction in _ordered(completions.expected(metrics))]

    def step(batch: Batch) -> list[float]:
        return [gathered(call(completions.column(batch, name))).nanmean().item() for name, call in keys]

    return step


def gathered(value: Tensor) -> Tensor:
    """A value of each rank, as accelerate's `gather` brings them together."""
    found = [torch.empty(1, dtype=value.dtype) for _ in range(dist.get_world_size())]
    dist.all_gather(found, value.view(1))
    return torch.cat(found)


def objects(metrics: int) -> Way:
    """Each rank's numbers as a dictionary, pickled to all."""
    fused = completions.fused(metrics, 1)
    keys = completions.fused_names(metrics)

    def step(batch: Batch) -> list[float]:
        found: list[dict[str, float]] = [{}] * dist.get_world_size()
        dist.all_gather_object(found, dict(zip(keys, fused.step(batch), strict=True)))
        return [sum(one[key] for one in found) / len(found) for key in keys]

    return step


def two_all_reduces(metrics: int) -> Way:
    """Counts, sums and squares in one, extremes in another, one ``tolist``."""
    finish = _finish(metrics)

    def step(batch: Batch) -> list[float]:
        sums, tops = _states(batch)
        dist.all_reduce(sums)
        dist.all_reduce(tops, dist.ReduceOp.MAX)
        return finish(sums, tops)

    return step


def one_all_gather(metrics: int) -> Way:
    """All states of a rank in one tensor, merged where they arrive."""
    finish = _finish(metrics)

    def step(batch: Batch) -> list[float]:
        sums, tops = _states(batch)
        own = torch.cat([sums, tops])
        found = torch.empty(dist.get_world_size(), len(own), dtype=own.dtype)
        dist.all_gather(list(found), own)
        return finish(found[:, : len(sums)].sum(0), found[:, len(sums) :].amax(0))

    return step


def _columns(floats: int) -> list[str]:
    """All columns of the profile, rows first, then those of groups, then the one of some rows."""
    plain = [f"x{place}" for place in range(floats)] + ["length", "truncated"]
    return [*plain, *(f"gap{place}" for place in range(floats - 1)), "group_std", "zero_std", "terminated"]


def _states(batch: Batch) -> tuple[Tensor, Tensor]:
    """Counts, sums and squares of every column, flat; and greatest values of all per row, and of their negatives.

    In float64, as sums of squares need it.
    """
    floats = sum(name[0] == "x" for name in batch)
    x = torch.stack([*(batch[f"x{place}"] for place in range(floats)), batch["length"].float(), batch["truncated"].float()])  # fmt: skip  # noqa: E501
    x = torch.cat([x, x[: floats - 1] - x[1:floats]]).double()
    groups = x[0].view(-1, GROUP)
    whole = torch.stack([groups.std(1), (groups.amax(1) == groups.amin(1)).double()])
    finished = 1 - x[floats + 1]
    sums = torch.cat([
        torch.full((len(x),), float(x.shape[1])), torch.full((2,), float(whole.shape[1])), finished.sum().view(1),
        x.sum(1), whole.sum(1), (x[floats] * finished).sum().view(1), x.square().sum(1),
    ])  # fmt: skip
    return sums, torch.cat([x.amax(1), -x.amin(1)])


def _ordered(expected: Wanted) -> Wanted:
    """One reduction after the other, so that packed code picks whole ranges."""
    return sorted(expected, key=lambda item: ("mean", "std", "min", "max").index(item[1]))


def _finish(metrics: int) -> Callable[[Tensor, Tensor], list[float]]:
    """From the states of all ranks to the numbers, by one ``tolist``."""
    floats = completions.SIGNALS[metrics] - 2
    columns = _columns(floats)
    place = {name: at for at, name in enumerate(columns)}
    rows = len(columns) - 3  # those that have deviations and extremes
    by: dict[str, list[int]] = {"mean": [], "std": [], "min": [], "max": []}
    for column, reduction in _ordered(completions.expected(metrics)):
        by[reduction].append(place[column])
    picks = {reduction: torch.tensor(places, dtype=torch.long) for reduction, places in by.items()}

    def finish(sums: Tensor, tops: Tensor) -> list[float]:
        n, total, squares = sums[: len(columns)], sums[len(columns) : 2 * len(columns)], sums[2 * len(columns) :]
        mean = total / n
        std = ((squares - total[:rows] * mean[:rows]) / (n[:rows] - 1)).sqrt()
        parts = [mean[picks["mean"]], std[picks["std"]], -tops[rows:][picks["min"]], tops[:rows][picks["max"]]]
        values: list[float] = torch.cat(parts).tolist()
        return values

    return finish
