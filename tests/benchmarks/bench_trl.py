"""`python -m tests.benchmarks.bench_trl`: what declog costs a TRL trainer, against the same trainer without it.

Two ranks of one model of two layers. Collectives and `.item()` calls of an optimizer step are counted by torch's
profiler, on rank 0's training thread; steps are timed in runs that take turns, by the clock and in CPU time of the
process, which other processes are not in. Prints a Markdown table, which `docs/trainers.md` shows. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import collections
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import declog
from tests.benchmarks.measure import section

ROOT = Path(__file__).parents[2]
WAYS: Mapping[str, str | None] = {"without declog": "", "declog, merge=None": None, "declog, merge=replace": "replace"}
STEPS, WARM = 12, 3  # of a run, and how many of its first ones are left out


def main() -> None:
    """Start two ranks of this file, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    if "RANK" in os.environ:
        rank(chosen.rounds)
        return
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", __spec__.name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, f"--rounds={chosen.rounds}"], env=environment, capture_output=True, text=True)
    sys.exit(done.stderr[-4000:]) if done.returncode else print(done.stdout[done.stdout.index("\n### ") :])


def rank(rounds: int) -> None:
    """One rank: count, then time in turns."""
    from tests.integrations.trl import tiny

    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp())
    model = tiny.build(folder / "model")
    counted = {name: count(model, folder / "count", merge) for name, merge in WAYS.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    names = list(WAYS)
    for turn in range(rounds):
        for name in names[turn % 3 :] + names[: turn % 3]:
            gc.collect()
            wall, cpu = zip(*train(model, folder / "time", WAYS[name]).seconds[WARM:], strict=True)
            times[name].append((statistics.median(wall), statistics.median(cpu)))
    if os.environ["RANK"] == "0":
        show(counted, times)


def show(counted: Mapping[str, collections.Counter[str]], times: Mapping[str, list[tuple[float, float]]]) -> None:
    """The table: per optimizer step of two micro-batches, medians of the rounds, and the range of ratios."""
    plain = times["without declog"]
    rows = []
    for name, found in times.items():
        calls = sum(n for key, n in counted[name].items() if key.startswith("c10d::")) / STEPS
        items = counted[name]["aten::_local_scalar_dense"] / STEPS
        cells = [f"{calls:.1f}", f"{items:.1f}"]
        for mine, own in zip(zip(*found, strict=True), zip(*plain, strict=True), strict=True):
            ratios = [one / other for one, other in zip(mine, own, strict=True)]
            span = "" if name == "without declog" else f" ({min(ratios):.2f} to {max(ratios):.2f})"
            cells += [f"{1e3 * statistics.median(mine):.1f}", f"{statistics.median(ratios):.2f}{span}"]
        rows.append((name, *cells))
    section(
        "An optimizer step of TRL's",
        ("run", "collectives", "`.item()` and the like", "ms by the clock", "ratio", "ms of CPU time", "ratio"), rows,
        "An optimizer step of two micro-batches on two ranks, with a log event and the table `completions` at each "
        "step; a model of two layers and 16 channels, so that nearly all of a step is overhead of somebody's. Medians "
        f"and ranges of {len(plain)} rounds in turns.",
    )  # fmt: skip


class Clock:
    """How long each optimizer step of a run took, from its begin to the next one's."""

    def __init__(self) -> None:
        self.seconds: list[tuple[float, float]] = []
        self._last: tuple[float, float] | None = None

    def tick(self) -> None:
        """A step begins."""
        now = time.perf_counter(), time.process_time()
        if self._last is not None:
            self.seconds.append((now[0] - self._last[0], now[1] - self._last[1]))
        self._last = now


def train(model: Path, folder: Path, merge: str | None) -> Clock:
    """One run, with a log event at each step."""
    from transformers import TrainerCallback

    from tests.integrations.trl import cases

    clock = Clock()

    class Ticks(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            clock.tick()

    args = {
        "max_steps": STEPS, "logging_steps": 1, "eval_strategy": "no", "per_device_train_batch_size": 8,
        "max_completion_length": 16, "beta": 0.05,
    }  # fmt: skip
    trainer = cases.trainer_of(cases.Case(rewards="two", args=args), model, folder, callbacks=[Ticks()])
    log = None if merge == "" else declog.attach(trainer, "trl_grpo", ["declog.sinks=[jsonl]"], merge=merge)
    trainer.train()
    if log is not None:
        log.close()
    return clock


def count(model: Path, folder: Path, merge: str | None) -> collections.Counter[str]:
    """The operations of a run on the training thread."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        train(model, folder, merge)
    found = list(profile.events())
    return collections.Counter(event.name for event in found if event.thread == found[0].thread)


if __name__ == "__main__":
    main()
