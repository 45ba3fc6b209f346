"""`python -m tests.benchmarks.bench_wall`: what 40 metrics add to a step by the clock, the interpreter's lock included.

A step is training on the CPU: products of matrices, which release the lock, and Python, which does not. declog is
compared with the best code by hand for the same numbers, and what such code gives them to: a line of JSON, TensorBoard,
wandb offline. Prints a Markdown table; `docs/design.md` shows one. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import declog
from tests.benchmarks import completions
from tests.benchmarks.measure import Aims, Batch, section

METRICS, ROWS, STEPS = 40, 64, 40
MILLISECONDS = (2, 5, 10)
Log = Callable[[int, Batch], None]


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    os.environ["WANDB_MODE"], os.environ["WANDB_SILENT"] = "offline", "true"
    torch.set_num_threads(1)
    logging.getLogger("declog").setLevel(logging.ERROR)
    batches = completions.batches(METRICS, ROWS)
    aims = Aims()
    with tempfile.TemporaryDirectory() as folder:
        loggers, close = _loggers(Path(folder))
        rows = []
        for milliseconds in MILLISECONDS:
            work = _work(milliseconds / 1e3)
            seconds = _race(loggers, batches, work, rounds)
            base = seconds.pop("nothing")
            more = {
                name: statistics.median(a - b for a, b in zip(of, base, strict=True)) for name, of in seconds.items()
            }
            rows.append([f"{statistics.median(base) * 1e3:.1f}", *(f"{value * 1e3:+.2f}" for value in more.values())])
            for every in (1, 10) if milliseconds == MILLISECONDS[0] else ():
                what = f"by the clock, more of a step of {milliseconds} ms, 40 metrics, every {every}"
                aims.most(what, 0.8, [more[f"declog, jsonl, every {every}"] * 1e3], " ms")
        for one in close:
            one()
    section(
        "By the clock", ("step ms", *(name for name in loggers if name != "nothing")), rows,
        f"{METRICS} metrics of {ROWS} completions beside a step on the CPU, milliseconds more by the clock: medians of "
        f"{rounds} rounds of {STEPS} steps.",
    )  # fmt: skip
    aims.print()


def _race(
    loggers: dict[str, Log], batches: list[Batch], work: Callable[[], None], rounds: int
) -> dict[str, list[float]]:
    """Seconds of a step, of each in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in loggers}
    names, count = list(loggers), 0
    for turn in range(-1, rounds):  # the first is for warming up
        for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
            log = loggers[name]
            start = time.perf_counter()
            for place in range(STEPS):
                work()
                log(count + place, batches[place % len(batches)])
            if turn >= 0:
                seconds[name].append((time.perf_counter() - start) / STEPS)
            time.sleep(0.2)  # what runs behind is done
        count += STEPS
    return seconds


def _work(seconds: float) -> Callable[[], None]:
    """Training that takes about so long where nothing else runs."""
    weights = torch.randn(128, 128)

    def once(count: int) -> None:
        made = weights
        for _ in range(count):
            made = torch.tanh(made @ weights)
            sum(place * place for place in range(500))

    once(50)
    taken = []
    for _ in range(20):
        start = time.perf_counter()
        once(10)
        taken.append(time.perf_counter() - start)
    count = max(1, round(10 * seconds / min(taken)))
    return lambda: once(count)


def _loggers(folder: Path) -> tuple[dict[str, Log], list[Callable[[], Any]]]:
    """Everybody by name, and what ends them. declog's steps go on from one length of a step to the next."""
    import wandb
    from torch.utils.tensorboard import SummaryWriter

    names, numbers = completions.fused_names(METRICS), completions.fused(METRICS, 1)
    run = wandb.init(project="bench", dir=str(folder))
    writer = SummaryWriter(str(folder / "tensorboard"))
    lines = (folder / "by_hand.jsonl").open("w")

    def values(batch: Batch) -> dict[str, float]:
        return dict(zip(names, numbers.step(batch), strict=True))

    def jsonl(step: int, batch: Batch) -> None:
        lines.write(json.dumps({"step": step, **values(batch)}) + "\n")

    def tensorboard(step: int, batch: Batch) -> None:
        for name, value in values(batch).items():
            writer.add_scalar(name, value, step)

    loggers: dict[str, Log] = {
        "nothing": lambda step, batch: None,
        "jsonl by hand": jsonl,
        "tensorboard by hand": tensorboard,
        "wandb by hand": lambda step, batch: run.log(values(batch)),
    }
    close: list[Callable[[], Any]] = [lines.close, writer.close, run.finish]
    for every, sink in ((1, "jsonl"), (10, "jsonl"), (1, "tensorboard")):
        profile = completions.profile(METRICS, every) | {"sinks": [sink], "sink_options": {sink: {"kind": sink}}}
        log = declog.start(profile, output_dir=str(folder / f"declog_{every}_{sink}"))
        loggers[f"declog, {sink}, every {every}"] = _Steps(log)
        close.append(log.close)
    return loggers, close


class _Steps:
    """declog, whose steps are numbered by itself."""

    def __init__(self, log: declog.Recorder) -> None:
        self._log = log
        self._steps = 0

    def __call__(self, step: int, batch: Batch) -> None:
        with self._log.step(self._steps):
            self._log.observe(**batch)
        self._steps += 1


if __name__ == "__main__":
    main()
