"""`make bench`: what declog costs, as ratios against code that logs the same numbers.

Prints Markdown tables; `docs/performance.md` shows them and says what they mean. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, cast

import numpy as np
import torch
import torchmetrics
import yaml

import declog
from tests.benchmarks import calls, completions, presets, tokens
from tests.benchmarks.contestants import Declog
from tests.benchmarks.measure import Batch, Contestant, Times, micros, peak_bytes, race, ratio, table

TRAINING: Mapping[str, float] = {"completions": 0.5, "tokens, all moments": 1.0, "tokens, means only": 1.5}
BOTH, EACH, COLLECTION = 1.3, 5.0, 20.0  # the last two for values per completion, of 40 metrics and more
WORKER = 15_000.0  # us of a log event of 1,000 metrics
HEAD = (
    "signals", "metrics", "shape", "every", "training us", "worker us/event",
    "training / fused", "both / fused", "per metric / training", "torchmetrics / training",
)  # fmt: skip


LEAST = 8 * 4096  # bytes: buffers of eight rows of bools are counted, columns of 64 values are not


def main() -> None:
    """All tables; ``--rounds`` trades time for steadiness."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("compile", "calls", "worker", "presets", "completions", "tokens", "memory"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"declog {version('declog')}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"numpy {np.__version__}, torchmetrics {torchmetrics.__version__}; {os.cpu_count()} cores of {_processor()}; "
        f"torch.set_num_threads(1); {chosen.rounds} rounds"
    )
    parts: Mapping[str, Callable[[int], None]] = {
        "compile": print_compile,
        "calls": print_calls,
        "worker": print_worker,
        "presets": print_presets,
        "completions": print_completions,
        "tokens": print_tokens,
        "memory": print_memory,
    }
    for name, part in parts.items():
        if chosen.only in (None, name):
            part(chosen.rounds)


def _processor() -> str:
    with open("/proc/cpuinfo") as file:
        return next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "?")


class Reading:
    """Reading a profile's YAML: what compiling it is compared to."""

    every = 1

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run

    def step(self, batch: Batch) -> object:
        return self._run()

    def settle(self) -> float:
        return 0.0


def print_compile(rounds: int) -> None:
    """From a profile's mapping to a plan."""
    rows = []
    for metrics in completions.SIGNALS:
        profile = completions.profile(metrics, 1)
        text = yaml.safe_dump(profile)
        readers: dict[str, Contestant] = {
            "compile": Reading(partial(declog.plan, profile)),
            "yaml": Reading(partial(yaml.safe_load, text)),
        }
        times = race(readers, [{}], steps=1, rounds=max(3, rounds // 3))
        seconds = micros(times["compile"].training) / 1e6
        of_yaml = ratio(times["compile"].training, times["yaml"].training)
        rows.append((metrics, f"{of_yaml:.1f}", f"{seconds:.3f}" + ("" if seconds < 1 else " *")))
    print("\n### Compile\n")
    print(table(("metrics", "compile / yaml.safe_load", "seconds (target: 1)"), rows))


def print_calls(rounds: int) -> None:
    """Ways to call ``observe``, against copies that are appended to a list."""
    rows = []
    for name in calls.ways():
        made = calls.recorders(name)
        times = _race(made, [{}], rounds, 40)
        own, copies = times["declog"], times["copies"]
        shown = f"{ratio(own.training, copies.training):.1f}"
        rows.append((name, f"{micros(own.training):.1f}", f"{micros(copies.training):.1f}", shown))
    print("\n### Ways to call\n")
    print(table(("a step of", "training us", "copies us", "training / copies"), rows))
    print("\nColumns of 64 values, a log event each 10 steps; `copies`: a clone of each value, in a list.")


def print_worker(rounds: int) -> None:
    """Many metrics of one window, quantiles and last values among them, against numpy that knows them."""
    rows = []
    for columns in (4, 20, 100):
        made: dict[str, Contestant] = {
            "declog": Declog(calls.profile(columns, calls.MIXED, 1)), "numpy": calls.Numpy(calls.by_hand),
        }  # fmt: skip
        times = _race(made, [calls.columns(columns)], rounds, 10)
        own, by_hand = times["declog"].background, times["numpy"].background
        count = columns * len(calls.MIXED)
        milliseconds = f"{micros(own) / 1e3:.1f}" + (" *" if count >= 1000 and micros(own) > WORKER else "")
        rows.append((count, milliseconds, f"{micros(own) / count:.0f}", f"{ratio(own, by_hand):.1f}"))
    print("\n### Worker\n")
    print(table(("metrics", "ms a log event", "us a metric", "worker / numpy"), rows))
    print(f"\nOf each column {', '.join(calls.MIXED)}, over 64 rows; `numpy`: one matrix, each reduction once.")
    print(f"Target: at most {WORKER / 1e3:g} ms for 1,000 metrics. * misses it.")


def print_presets(rounds: int) -> None:
    """Metrics as presets have them, of tokens, rows and texts together."""
    rows = []
    for every in (1, 10):
        times = _race(presets.contestants(every), presets.batches(), rounds, 20)
        own, by_hand = times["declog"], times["by hand"]
        rows.append(
            [
                every, f"{micros(own.training):.0f}", f"{micros(own.background) * every:.0f}",
                f"{micros(by_hand.training):.0f}", f"{ratio(own.training, by_hand.training):.2f}",
                f"{ratio(own.whole, by_hand.training):.2f}",
            ]
        )  # fmt: skip
    print("\n### What presets have\n")
    head = ("every", "training us", "worker us/event", "by hand us", "training / by hand", "both / by hand")
    print(table(head, rows))
    print(
        f"\n{len(presets.NAMES)} metrics of {presets.ROWS} completions and their {presets.LENGTH} tokens: clipped "
        f"fractions, KL, quantiles, a last value, a mean of batches; a table of each step's {presets.BEST} best texts."
    )


def print_completions(rounds: int) -> None:
    """Values per completion."""
    rows = []
    for metrics, signals in completions.SIGNALS.items():
        for size in (64, 1024):
            for every in (1, 10):
                made = completions.contestants(metrics, every)
                times = _race(made, completions.batches(metrics, size), rounds, 20)
                rows.append(_row("completions", signals, metrics, f"{size}", every, times))
    print("\n### Completions\n")
    print(table(HEAD, rows))
    print(_legend("completions"))


def print_tokens(rounds: int) -> None:
    """Values per token."""
    for title, reductions in (("tokens, all moments", tokens.ALL), ("tokens, means only", tokens.MEANS)):
        rows = []
        for signals in (2, 8):
            for length in (512, 4096):
                for every in (1, 10):
                    made = tokens.contestants(signals, reductions, every)
                    times = _race(made, tokens.batches(signals, 64, length, 2), rounds, 10)
                    metrics = signals * len(reductions)
                    rows.append(_row(title, signals, metrics, f"64 x {length}", every, times))
        print(f"\n### {title.capitalize()}\n")
        print(table(HEAD, rows))
        print(_legend(title))


def _race(made: Mapping[str, Contestant], batches: Sequence[Batch], rounds: int, steps: int) -> dict[str, Times]:
    times = race(made, batches, steps=steps, rounds=rounds)
    cast(Declog, made["declog"]).close()
    return times


def _row(title: str, signals: int, metrics: int, shape: str, every: int, times: Mapping[str, Times]) -> list[object]:
    own, fused = times["declog"], times["hand-fused"].training
    many = title == "completions" and metrics >= 40
    return [
        signals, metrics, shape, every, f"{micros(own.training):.0f}", f"{micros(own.background) * every:.0f}",
        _most(ratio(own.training, fused), TRAINING[title]),
        _most(ratio(own.whole, fused), BOTH),
        _least(ratio(times["per metric"].training, own.training), EACH if many else 0.0),
        _least(ratio(times["torchmetrics"].training, own.training), COLLECTION if many else 0.0),
    ]  # fmt: skip


def _most(value: float, target: float) -> str:
    return f"{value:.2f}" + (" *" if value > target else "")


def _least(value: float, target: float) -> str:
    return f"{value:.1f}" + (" *" if value < target else "")


def _legend(title: str) -> str:
    others = f"; per metric / training at least {EACH:g} and torchmetrics / training at least {COLLECTION:g}, of 40 metrics and more"  # fmt: skip  # noqa: E501
    return (
        f"\nTargets: training / fused at most {TRAINING[title]}, both / fused at most {BOTH}"
        f"{others if title == 'completions' else ''}. * misses its target."
    )


def print_memory(rounds: int) -> None:
    """Live tensors of one step, in buffers of [rows, length] float32."""
    rows: list[list[object]] = []
    for signals, reductions in ((2, tokens.MEANS), (2, tokens.ALL), (8, tokens.ALL)):
        batch = tokens.batches(signals, 64, 4096, 1)[0]
        own = _memory(tokens.profile(signals, reductions, 1), batch)
        by_hand = peak_bytes(partial(tokens.fused(signals, reductions, 1).step, batch), LEAST)
        rows.append(
            [f"{', '.join(reductions)} of {signals} signals", signals * len(reductions), *own, _buffers(by_hand)]
        )
    own = _memory(tokens.derived(), tokens.batches(4, 64, 4096, 1)[0])
    rows.append(["all moments of 8 expressions", 32, *own, ""])
    print("\n### Extra memory\n")
    print(table(("metrics of one mask", "metrics", "declog", "NaN in the padding", "hand-fused"), rows))
    print("\nIn buffers of [rows, length] float32, at the peak; target: at most 3; * misses its target.")


def _memory(profile: Mapping[str, Any], batch: Batch) -> list[str]:
    mask = batch["mask"]
    broken = {
        name: value if name == "mask" else value.masked_fill(~mask, float("nan")) for name, value in batch.items()
    }
    found = []
    for values in (batch, broken):
        own = Declog(profile)
        found.append(_buffers(peak_bytes(partial(own.step, values), LEAST), target=3.0))
        own.settle()
        own.close()
    return found


def _buffers(size: int, target: float = math.inf) -> str:
    return _most(size / (64 * 4096 * 4), target)


if __name__ == "__main__":
    main()
