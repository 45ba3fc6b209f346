"""The completion axis: a profile in the proportions of GRPO profiles, and three ways to log the same numbers.

Rewards and advantages are floats; ``length`` is an int, ``truncated`` a bool. Derived are the group's standard
deviation, the fraction of groups without any, the length of what terminated, and differences of neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tests.benchmarks.contestants import ByHand, Collections, Declog, averaged
from tests.benchmarks.measure import Batch, Contestant

Tensor = torch.Tensor
GROUP = 8
SIGNALS = {8: 4, 40: 12, 200: 40}  # metrics: signals
Wanted = list[tuple[str, str]]  # (column, reduction)


def expected(metrics: int) -> Wanted:
    """The metrics of a profile: what everybody logs first, then means and deviations, differences, extremes."""
    floats = [f"x{place}" for place in range(SIGNALS[metrics] - 2)]
    gaps = [f"gap{place}" for place in range(len(floats) - 1)]
    first = [("x0", "mean"), ("x0", "std"), ("x1", "std"), ("group_std", "mean"), ("zero_std", "mean"),
             ("length", "mean"), ("length", "max"), ("truncated", "mean")]  # fmt: skip
    more = [
        ("terminated", "mean"),
        *((name, "mean") for name in floats[1:]),
        *((name, "std") for name in floats[2:]),
        *((name, "mean") for name in gaps),
        *((name, "std") for name in gaps),
        *((name, "min") for name in floats),
        *((name, "max") for name in floats),
    ]
    if metrics == 40:  # extremes of some, instead of the deviations of all differences
        more = [item for item in more if not (item[0].startswith("gap") and item[1] == "std")]
    return (first + more)[:metrics]


def profile(metrics: int, every: int) -> dict[str, Any]:
    """The profile, in declog's language."""
    floats = SIGNALS[metrics] - 2
    made: dict[str, Any] = {}
    for column, reduction in expected(metrics):
        entry = {"expr": column, "reduce": reduction, "name": f"{column}/{reduction}"}
        if column == "terminated":
            entry |= {"expr": "length", "where": "not truncated"}
        made[f"{column}_{reduction}"] = entry
    signals = {f"x{place}": {"axis": "completion"} for place in range(floats)}
    signals |= {"length": {"axis": "completion", "type": "int"}, "truncated": {"axis": "completion", "type": "bool"}}
    derived = {f"gap{place}": f"x{place} - x{place + 1}" for place in range(floats - 1)}
    derived |= {"group_std": "std(x0, over=completion)", "zero_std": "max(x0, over=completion) == min(x0, over=completion)"}  # fmt: skip  # noqa: E501
    return {"run": {"name": "bench"}, "every": every, "axes": {"group": {"size": GROUP}},
            "signals": {"any": signals}, "derived": derived, "metrics": made}  # fmt: skip


def batches(metrics: int, rows: int, count: int = 4) -> list[Batch]:
    """Steps' values; in one group of each batch all rewards are equal."""
    made: list[Batch] = []
    for seed in range(count):
        random = torch.Generator().manual_seed(seed)
        values = {f"x{place}": torch.rand(rows, generator=random) for place in range(SIGNALS[metrics] - 2)}
        values["x0"][:GROUP] = 0.5
        values["length"] = torch.randint(1, 512, (rows,), generator=random)
        values["truncated"] = torch.rand(rows, generator=random) < 0.2
        made.append(values)
    return made


def contestants(metrics: int, every: int) -> dict[str, Contestant]:
    """Everybody who takes part."""
    return {
        "declog": Declog(profile(metrics, every)),
        "hand-fused": fused(metrics, every),
        "per metric": ByHand(each(metrics), every, averaged),
        "torchmetrics": Collections(columns, _reductions(metrics), every),
    }


# ---- by hand, fused ------------------------------------------------------------------------------------


def fused(metrics: int, every: int) -> ByHand:
    """One stack, each reduction once over all columns that want it, one ``tolist`` per log event."""
    return ByHand(*((_fused_step(metrics), 1, _listed) if every == 1 else (_state(metrics), every, _merged(metrics))))


def _listed(window: list[Tensor]) -> list[float]:
    values: list[float] = window[0].tolist()
    return values


def _stacked(batch: Batch, floats: int) -> Tensor:
    return torch.stack([*(batch[f"x{place}"] for place in range(floats)), batch["length"].float(), batch["truncated"].float()])  # fmt: skip  # noqa: E501


def _fused_step(metrics: int) -> Callable[[Batch], Tensor]:
    floats, means, stds, lows, highs, gap_stds = _counts(metrics)

    def step(batch: Batch) -> Tensor:
        x = _stacked(batch, floats)
        groups = x[0].view(-1, GROUP)
        shared = [groups.std(1).mean().view(1), (groups.amax(1) == groups.amin(1)).float().mean().view(1)]
        length = x[floats]
        if not means:
            std, mean = torch.std_mean(x, 1)
            return torch.cat([mean[:1], std[:2], *shared, mean[floats:], length.amax().view(1)])
        finished = 1 - x[floats + 1]
        shared.append(((length * finished).sum() / finished.sum()).view(1))
        std, mean = torch.std_mean(x, 1)
        gap = x[: floats - 1] - x[1:floats]
        found = [mean, std[:stds], *shared, length.amax().view(1)]
        if gap_stds:
            gap_std, gap_mean = torch.std_mean(gap, 1)
            found += [gap_mean, gap_std]
        else:
            found.append(gap.mean(1))
        return torch.cat([*found, x[:lows].amin(1), x[:highs].amax(1)])

    return step


def _counts(metrics: int) -> tuple[int, bool, int, int, int, bool]:
    """How many floats there are, whether all have means, how many have deviations, minima, maxima, and gap_std."""
    keys = expected(metrics)
    floats = SIGNALS[metrics] - 2
    by = {reduction: sum(column[0] == "x" and one == reduction for column, one in keys) for reduction in ("std", "min", "max")}  # fmt: skip  # noqa: E501
    return floats, metrics > 8, by["std"], by["min"], by["max"], ("gap0", "std") in keys


def fused_names(metrics: int) -> list[str]:
    """The names of the numbers, in the order in which the fused code gives them."""
    floats, means, stds, lows, highs, gap_stds = _counts(metrics)
    shared = ["group_std/mean", "zero_std/mean"]
    if not means:
        return ["x0/mean", "x0/std", "x1/std", *shared, "length/mean", "truncated/mean", "length/max"]
    gaps = [f"gap{place}" for place in range(floats - 1)]
    return [
        *(f"x{place}/mean" for place in range(floats)), "length/mean", "truncated/mean",
        *(f"x{place}/std" for place in range(stds)), *shared, "terminated/mean", "length/max",
        *(f"{name}/mean" for name in gaps), *(f"{name}/std" for name in gaps if gap_stds),
        *(f"x{place}/min" for place in range(lows)), *(f"x{place}/max" for place in range(highs)),
    ]  # fmt: skip


def _state(metrics: int) -> Callable[[Batch], tuple[Tensor, Tensor, Tensor, int]]:
    """A step's part of a window: means that weigh alike, spreads, and the rest; nothing leaves the device."""
    floats, means, _, lows, highs, gap_stds = _counts(metrics)

    def step(batch: Batch) -> tuple[Tensor, Tensor, Tensor, int]:
        x = _stacked(batch, floats)
        groups = x[0].view(-1, GROUP)
        shared = [groups.std(1).mean().view(1), (groups.amax(1) == groups.amin(1)).float().mean().view(1)]
        length = x[floats]
        if not means:
            var, mean = torch.var_mean(x, 1)
            return torch.cat([mean, *shared]), var[:2], length.amax().view(1), x.shape[1]
        finished = 1 - x[floats + 1]
        shared += [(length * finished).sum().view(1), finished.sum().view(1)]
        if gap_stds:
            x = torch.cat([x, x[: floats - 1] - x[1:floats]])
            var, mean = torch.var_mean(x, 1)
        else:
            var, mean = torch.var_mean(x, 1)
            mean = torch.cat([mean, (x[: floats - 1] - x[1:floats]).mean(1)])
        extremes = torch.cat([length.amax().view(1), -x[:lows].amin(1), x[:highs].amax(1)])
        return torch.cat([mean, *shared]), var, extremes, x.shape[1]

    return step


def _merged(metrics: int) -> Callable[[list[Any]], list[float]]:
    """The numbers of a window of equally long steps from its states (Chan et al. 1979)."""
    floats, means, stds, lows, _, gap_stds = _counts(metrics)

    def finish(window: list[tuple[Tensor, Tensor, Tensor, int]]) -> list[float]:
        steps, rows = len(window), window[0][3]
        all_means = torch.stack([item[0] for item in window])
        all_vars = torch.stack([item[1] for item in window])
        high = torch.stack([item[2] for item in window]).amax(0)
        mean = all_means.mean(0)
        columns = all_vars.shape[1]
        between = (all_means[:, :columns] - mean[:columns]).square().sum(0) * rows
        std = ((all_vars.sum(0) * (rows - 1) + between) / (steps * rows - 1)).sqrt()
        if not means:
            group_std, zero_std = mean[floats + 2 : floats + 3], mean[floats + 3 :]
            found = [mean[:1], std[:2], group_std, zero_std, mean[floats : floats + 2], high]
        else:
            end = floats + 2
            gaps = mean[end : end + floats - 1]
            shared = mean[end + floats - 1 :]
            found = [mean[:end], std[:stds], shared[:2], shared[2:3] / shared[3:4], high[:1], gaps]
            found += [std[end:]] if gap_stds else []
            found += [-high[1 : 1 + lows], high[1 + lows :]]
        values: list[float] = torch.cat(found).tolist()
        return values

    return finish


# ---- one call per metric, and torchmetrics ---------------------------------------------------------------


def column(batch: Batch, name: str) -> Tensor:
    """A column of the profile, as code computes it that logs one metric after the other."""
    x0: Tensor = batch["x0"]
    if name.startswith("gap"):
        place = int(name[3:])
        gap: Tensor = batch[f"x{place}"] - batch[f"x{place + 1}"]
        return gap
    if name == "group_std":
        return x0.view(-1, GROUP).std(1)
    if name == "zero_std":
        groups = x0.view(-1, GROUP)
        return (groups.amax(1) == groups.amin(1)).float()
    if name == "terminated":
        terminated: Tensor = batch["length"][~batch["truncated"]].float()
        return terminated
    values: Tensor = batch[name]
    return values if values.is_floating_point() else values.float()


def columns(batch: Batch) -> dict[str, Tensor]:
    """All columns, each computed once."""
    floats = sum(name.startswith("x") for name in batch)
    names = [*batch, "group_std", "zero_std", *((f"gap{place}" for place in range(floats - 1)) if floats > 2 else ())]
    return {name: column(batch, name) for name in (*names, *(("terminated",) if floats > 2 else ()))}


_CALLS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "mean": Tensor.mean, "std": Tensor.std, "min": Tensor.min, "max": Tensor.max,
}  # fmt: skip


def each(metrics: int) -> Callable[[Batch], list[float]]:
    """``metrics.append(value.mean().item())``, as in most trainers."""
    keys = [(name, _CALLS[reduction]) for name, reduction in expected(metrics)]

    def step(batch: Batch) -> list[float]:
        return [call(column(batch, name)).item() for name, call in keys]

    return step


def _reductions(metrics: int) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, reduction in expected(metrics):
        found.setdefault(name, []).append(reduction)
    return found
