"""What a log event costs on the worker: `python -m tests.benchmarks.bench_worker`.

Columns with missing values beside whole ones, the preset `trl_grpo` with its pools, families, `empty` and table beside
numpy that knows its numbers, and windows that are folded beside windows that are not. Prints Markdown tables. Nothing
is asserted.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

import declog
from tests.benchmarks import calls
from tests.benchmarks.contestants import CountingSink, Declog
from tests.benchmarks.measure import Aims, Batch, Contestant, Times, race, ratio, section

MOMENTS = ("mean", "std", "min", "max")
ROWS, LENGTH = 8, 64
STEPS = 10  # of a window


def main() -> None:
    """All tables; ``--rounds`` trades time for steadiness."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    aims = Aims()
    print_missing(rounds, aims)
    print_grpo(rounds, aims)
    print_folded(rounds, aims)
    aims.print()


def spread(seconds: Sequence[float], unit: float = 1e3) -> str:
    """The median, and from where to where the rounds are."""
    low, middle, high = (unit * pick(seconds) for pick in (min, statistics.median, max))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def ratios(upper: Sequence[float], lower: Sequence[float]) -> str:
    """The median of the ratios of each round, and from where to where they are."""
    return spread([a / b for a, b in zip(upper, lower, strict=True)], 1.0)


def events(times: Times, every: int = 1) -> list[float]:
    """Seconds of the worker for one log event, by round."""
    return [every * one for one in times.background]


def print_missing(rounds: int, aims: Aims) -> None:
    """Moments of columns, of which one has a value that is missing."""
    rows = []
    for columns in (10, 50, 250):
        whole = calls.columns(columns)
        name = next(iter(whole))
        gaps = {**whole, name: whole[name].clone()}
        gaps[name][0] = torch.nan
        made = {"whole": Declog(calls.profile(columns, MOMENTS, 1)), "gaps": Declog(calls.profile(columns, MOMENTS, 1))}
        for one, batch in zip(made.values(), (whole, gaps), strict=True):
            one.step(batch)
            one.settle()
        turns: dict[str, Contestant] = {"whole": Fixed(made["whole"], whole), "gaps": Fixed(made["gaps"], gaps)}
        times = race(turns, [{}], steps=20, rounds=rounds)
        for one in made.values():
            one.close()
        plain, lacking = events(times["whole"]), events(times["gaps"])
        rows.append((columns * len(MOMENTS), spread(plain), spread(lacking), ratios(lacking, plain)))
        aims.most("one missing value in a log event, worker", 1.2, [ratio(lacking, plain)])
    section(
        "Missing values", ("metrics", "ms a log event", "with one NaN", "ratio"), rows,
        f"Of each column {', '.join(MOMENTS)}, over 64 rows. Medians of {rounds} rounds, and their range.",
    )  # fmt: skip


class Fixed:
    """A contestant that logs the same values in each step."""

    def __init__(self, contestant: Contestant, batch: Batch) -> None:
        self.every = contestant.every
        self._contestant = contestant
        self._batch = batch

    def step(self, batch: Batch) -> object:
        return self._contestant.step(self._batch)

    def settle(self) -> float:
        return self._contestant.settle()


# ---- trl_grpo


def generation(seed: int) -> dict[str, Any]:
    """What TRL's trainer has of one generation of two prompts."""
    random = np.random.default_rng(seed)
    length = random.integers(LENGTH // 2, LENGTH, ROWS)
    return {
        "prompt_id": [0] * (ROWS // 2) + [1] * (ROWS // 2), "row": list(range(ROWS)),
        "rewards": {"right": torch.from_numpy(random.integers(0, 2, ROWS).astype(np.float32)),
                    "brief": torch.from_numpy(random.random(ROWS).astype(np.float32))},
        "reward_weights": {"right": 1.0, "brief": 0.5}, "advantages": torch.from_numpy(random.normal(size=ROWS)),
        "length": torch.from_numpy(length), "truncated": torch.from_numpy(length > 0.9 * LENGTH),
        "prompt": ["what is 1 + 1?"] * ROWS, "completion": ["two " * 8] * ROWS,
    }  # fmt: skip


def update(seed: int) -> dict[str, Any]:
    """What it has of the micro-batch that learns from it."""
    random = torch.Generator().manual_seed(seed)
    old = -torch.rand(ROWS, LENGTH, generator=random)
    mask = torch.arange(LENGTH) < torch.randint(LENGTH // 2, LENGTH, (ROWS, 1), generator=random)
    return {
        "completion_mask": mask, "advantages": torch.randn(ROWS, generator=random), "old_logprobs": old,
        "logprobs": old + 0.2 * torch.randn(ROWS, LENGTH, generator=random),
        "entropy": torch.rand(ROWS, LENGTH, generator=random), "loss": torch.rand((), generator=random),
    }  # fmt: skip


class Grpo:
    """The preset with a log event and its table at each step."""

    every = 1

    def __init__(self) -> None:
        self.sink = CountingSink()
        self._folder = tempfile.TemporaryDirectory()
        before = set(threading.enumerate())
        self._log = declog.start(
            "trl_grpo", ["every=1", "declog.sinks=[]"], sinks=[self.sink], output_dir=self._folder.name
        )
        (worker,) = (item for item in set(threading.enumerate()) - before if item.name == "declog-worker")
        assert worker.ident is not None
        self._clock = time.pthread_getcpuclockid(worker.ident)
        self._steps = 0
        self._settled = 0

    def step(self, batch: Batch) -> None:
        with self._log.step(self._steps):
            with self._log.batch():
                self._log.observe(**batch["generation"])
            with self._log.batch():
                self._log.observe(**batch["update"])
        self._steps += 1

    def settle(self) -> float:
        while self._settled < self._steps:
            self.sink.events.acquire()
            self._settled += 1
        time.sleep(0.0002)
        return time.clock_gettime(self._clock)

    def close(self) -> None:
        """End the run."""
        self._log.close()
        self._folder.cleanup()


def by_hand(batch: Batch) -> dict[str, float]:
    """Numbers of a generation and its update as a trainer computes them, with the preset's names."""
    made, learned = batch["generation"], batch["update"]
    length, truncated = made["length"].numpy(), made["truncated"].numpy()
    rewards = {name: value.numpy().astype(np.float64) for name, value in made["rewards"].items()}
    total = sum(made["reward_weights"][name] * value for name, value in rewards.items())
    groups = np.asarray(total).reshape(2, -1)
    mask = learned["completion_mask"].numpy()
    ratio = np.exp((learned["logprobs"] - learned["old_logprobs"]).numpy().astype(np.float64))
    positive = learned["advantages"].numpy()[:, None] > 0
    low, high = (ratio < 0.8) & ~positive & mask, (ratio > 1.2) & positive & mask
    tokens, kept = mask.sum(1), length[~truncated]
    found = {
        "reward": np.mean(total), "reward_std": np.std(total, ddof=1),
        "frac_reward_zero_std": (groups.std(1, ddof=1) <= 1e-8).mean(),
        "completions/mean_length": length.mean(), "completions/min_length": length.min(),
        "completions/max_length": length.max(), "completions/clipped_ratio": truncated.mean(),
        "completions/mean_terminated_length": kept.mean() if len(kept) else 0.0,
        "completions/min_terminated_length": kept.min() if len(kept) else 0.0,
        "completions/max_terminated_length": kept.max() if len(kept) else 0.0,
        "entropy": learned["entropy"].numpy()[mask].mean(dtype=np.float64),
        "clip_ratio/low_mean": low.sum() / mask.sum(), "clip_ratio/high_mean": high.sum() / mask.sum(),
        "clip_ratio/region_mean": (low | high).sum() / mask.sum(),
        "clip_ratio/low_min": (low.sum(1) / tokens).min(), "clip_ratio/high_max": (high.sum(1) / tokens).max(),
    }  # fmt: skip
    for name, value in rewards.items():
        found |= {f"rewards/{name}/mean": value.mean(), f"rewards/{name}/std": value.std(ddof=1)}
    return {name: float(value) for name, value in found.items()}


class ByHand:
    """The numbers of `by_hand` at each step."""

    every = 1

    def __init__(self) -> None:
        self._spent = 0.0

    def step(self, batch: Batch) -> None:
        began = time.thread_time()
        by_hand(batch)
        self._spent += time.thread_time() - began

    def settle(self) -> float:
        return self._spent


def steps(count: int = 4) -> list[Batch]:
    """Generations, each with its update."""
    return [{"generation": generation(seed), "update": update(seed)} for seed in range(count)]


def print_grpo(rounds: int, aims: Aims) -> None:
    """A log event of the preset beside the numbers by hand."""
    own = Grpo()
    contestants: Mapping[str, Contestant] = {"declog": own, "by hand": ByHand()}
    times = race(contestants, steps(), steps=20, rounds=rounds)
    count = len(own.sink.last)
    own.close()
    mine, hand = events(times["declog"]), events(times["by hand"])
    section(
        "A log event of trl_grpo", ("scalars", "worker, ms", "by hand, ms", "worker / by hand"),
        [(count, spread(mine), spread(hand), ratios(mine, hand))],
        f"One generation of {ROWS} completions and one update, with the table `completions`; by hand numpy computes "
        "the same numbers of the rewards, lengths, clipped tokens and the entropy, of tokens too, and no table.",
    )  # fmt: skip
    aims.most("a log event of `trl_grpo`, worker", 3, [1e3 * statistics.median(mine)], " ms")


# ---- windows


def print_folded(rounds: int, aims: Aims) -> None:
    """A window whose rows are folded at each step beside one that keeps them."""
    rows = []
    for columns in (10, 50):
        profile = calls.profile(columns, MOMENTS, STEPS)
        made = {"kept": Declog(profile), "folded": Declog({**profile, "run": {"window_bytes": 1}})}
        times = race({**made}, [calls.columns(columns)], steps=2 * STEPS, rounds=rounds)
        for one in made.values():
            one.close()
        kept, folded = (events(times[name], STEPS) for name in ("kept", "folded"))
        rows.append((columns * len(MOMENTS), spread(kept), spread(folded), ratios(folded, kept)))
        aims.most("a window that is folded by `window_bytes`, worker", 1.2, [ratio(folded, kept)])
    section(
        "Windows in parts", ("metrics", "kept, ms a log event", "folded, ms a log event", "folded / kept"), rows,
        f"Windows of {STEPS} steps of 64 rows; with `run: {{window_bytes: 1}}` each step is folded to its states.",
    )  # fmt: skip


if __name__ == "__main__":
    main()
