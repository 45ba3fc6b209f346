"""`python -m tests.benchmarks.bench_gpu`: what the preset `grpo` adds to a step on a GPU, by the clock.

A step is products of matrices and many small operations, then values of 64 completions of 1,024 tokens are logged:
by declog, with one `.item()` for each number, or with one `tolist()` of all. Prints Markdown tables. Not a part of
`make bench`: it needs CUDA. Nothing is asserted; ``test_numbers.py`` checks that the numbers are the same.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import declog
from tests.benchmarks.contestants import Declog
from tests.benchmarks.measure import Batch, section

Tensor = torch.Tensor
GROUP = 8
EPSILON = 0.2
MATRICES, SMALL = 12, 200  # products, and small operations, of a step
SIZE = 8192
Log = Callable[[Batch], object]


def batches(device: str, rows: int = 64, length: int = 1024, count: int = 4) -> list[Batch]:
    """The values of several steps."""
    made: list[Batch] = []
    for seed in range(count):
        random = torch.Generator().manual_seed(seed)
        lengths = torch.randint(length // 4, length, (rows,), generator=random)
        old = -torch.rand(rows, length, generator=random)
        right = torch.randint(0, 2, (rows,), generator=random).float()
        right[:GROUP] = 1.0
        values = {
            "completion_mask": torch.arange(length) < lengths.unsqueeze(1), "old_logprobs": old,
            "logprobs": old + 0.2 * torch.randn(rows, length, generator=random),
            "ref_logprobs": old + 0.1 * torch.randn(rows, length, generator=random),
            "entropy": torch.rand(rows, length, generator=random), "advantages": torch.randn(rows, generator=random),
            "right": right, "loss": torch.rand((), generator=random), "grad_norm": torch.rand((), generator=random),
        }  # fmt: skip
        on_device: dict[str, Any] = {name: value.to(device) for name, value in values.items()}
        rewards = {"right": on_device.pop("right")}
        made.append({**on_device, "rewards": rewards, "learning_rate": 1e-3})
    return made


def profile(every: int) -> dict[str, Any]:
    """The preset, with groups of a known size."""
    data: dict[str, Any] = declog.config_of(
        declog.compose("grpo", ["declog.sinks=[]", f"declog.axes.group.size={GROUP}", f"declog.every={every}"])
    )
    data["profiles"]["full"]["self_metrics"] = False
    return data


def tensors(batch: Batch) -> dict[str, Tensor | float]:
    """A step's numbers by the preset's names, on their device."""
    mask, advantages = batch["completion_mask"], batch["advantages"].unsqueeze(1)
    count = mask.sum()
    lengths, reward = mask.sum(1).float(), batch["rewards"]["right"]
    groups = reward.view(-1, GROUP)
    ratio = torch.exp(batch["logprobs"] - batch["old_logprobs"])
    gap = batch["ref_logprobs"] - batch["logprobs"]
    low = ((ratio < 1 - EPSILON) & (advantages < 0) & mask).float()
    high = ((ratio > 1 + EPSILON) & (advantages > 0) & mask).float()
    return {
        "loss": batch["loss"], "grad_norm": batch["grad_norm"], "learning_rate": batch["learning_rate"],
        "reward": reward.mean(), "reward_std": reward.std(), "group_reward_std": groups.std(1).mean(),
        "frac_reward_zero_std": (groups.std(1) == 0).float().mean(),
        "completions/mean_length": lengths.mean(), "completions/min_length": lengths.min(),
        "completions/max_length": lengths.max(), "advantages/mean": advantages.mean(),
        "advantages/std": advantages.std(), "entropy": (batch["entropy"] * mask).sum() / count,
        "kl": ((torch.exp(gap) - gap - 1) * mask).sum() / count, "ratio/mean": (ratio * mask).sum() / count,
        "ratio/min": ratio.masked_fill(~mask, torch.inf).min(), "ratio/max": ratio.masked_fill(~mask, -torch.inf).max(),
        "clip_ratio/low_mean": low.sum() / count, "clip_ratio/high_mean": high.sum() / count,
        "clip_ratio/region_mean": (low + high).sum() / count, "clip_ratio/low_min": (low.sum(1) / lengths).min(),
        "clip_ratio/high_max": (high.sum(1) / lengths).max(),
    }  # fmt: skip


def items(batch: Batch) -> dict[str, float]:
    """One `.item()` for each number."""
    return {name: value.item() if isinstance(value, Tensor) else value for name, value in tensors(batch).items()}


def fused(batch: Batch) -> dict[str, float]:
    """One copy of all numbers."""
    numbers = tensors(batch)
    on_device = {name: value for name, value in numbers.items() if isinstance(value, Tensor)}
    host = dict(zip(on_device, torch.stack(list(on_device.values())).tolist(), strict=True))
    return {name: host.get(name, value) for name, value in numbers.items()}


def race(ways: Mapping[str, Log], work: Callable[[], object], steps: Sequence[Batch], rounds: int, count: int) -> Any:
    """Seconds of a step of each, by the clock, round by round."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for turn in range(-1, rounds):  # the first is for warming up
        for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for place in range(count):
                work()
                ways[name](steps[place % len(steps)])
            torch.cuda.synchronize()
            if turn >= 0:
                seconds[name].append((time.perf_counter() - start) / count)
            time.sleep(0.1)  # log events behind the last steps are done
    return seconds


def launched(log: Log, steps: Sequence[Batch]) -> dict[str, float]:
    """Kernels, copies and waits of a step, and what it adds to the peak of allocated memory."""
    for batch in steps:
        log(batch)
    time.sleep(0.2)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as trace:
        for batch in steps:
            log(batch)
        torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    names = [event.name() for event in trace.profiler.kineto_results.events()]
    calls = {"kernels": "LaunchKernel", "copies": "cudaMemcpyAsync", "waits": "cudaStreamSynchronize"}
    counts = {what: sum(call in name for name in names) / len(steps) for what, call in calls.items()}
    return {**counts, "mib": peak / 2**20}


def main() -> None:
    """The tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=40)
    chosen = parser.parse_args()
    steps = batches("cuda")
    logs = {every: Declog(profile(every)) for every in (1, 10)}
    ways: dict[str, Log] = {
        "nothing": lambda batch: None, "`.item()` by hand": items, "one `tolist` by hand": fused,
        "declog, every 1": logs[1].step, "declog, every 10": logs[10].step,
    }  # fmt: skip
    matrix = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    small = torch.zeros(1000, device="cuda")

    def work() -> None:
        for _ in range(MATRICES):
            torch.mm(matrix, matrix)
        for _ in range(SMALL):
            small.add_(1)

    seconds = race(ways, work, steps, chosen.rounds, chosen.steps)
    base = seconds["nothing"]
    counts = {name: launched(log, steps) for name, log in ways.items()}
    rows = []
    for name, found in seconds.items():
        more = statistics.median(a - b for a, b in zip(found, base, strict=True))
        relative = statistics.median(a / b for a, b in zip(found, base, strict=True))
        count = counts[name]
        rows.append(
            (name, f"{statistics.median(found) * 1e3:.2f}", f"{more * 1e3:+.2f}", f"{relative:.3f}",
             f"{count['kernels']:.1f}", f"{count['copies']:.1f}", f"{count['waits']:.1f}", f"{count['mib']:.1f}")
        )  # fmt: skip
    section(
        "On a GPU", ("way", "ms of a step", "more, ms", "ratio", "kernels", "copies", "waits", "MiB"), rows,
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}; 64 completions of 1,024 tokens, medians of "
        f"{chosen.rounds} rounds of {chosen.steps} steps, by the clock. Launched kernels, copies and waits are of a "
        "step. MiB is what logging adds to the peak of allocated memory.",
    )  # fmt: skip
    for log in logs.values():
        log.close()


if __name__ == "__main__":
    main()
