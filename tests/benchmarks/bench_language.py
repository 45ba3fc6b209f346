"""What declog costs, as ratios against code that logs the same numbers: `python -m tests.benchmarks.bench_language`.

Prints Markdown tables; `docs/design.md` shows them and says what they mean. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
import yaml

import declog
from declog.plans.ops import Plan
from tests.benchmarks import calls, completions, presets, tokens
from tests.benchmarks.contestants import Declog
from tests.benchmarks.measure import Aims, Batch, Contestant, Times, micros, peak_bytes, race, ratio, section

AIMED: Mapping[str, float] = {"completions": 0.5, "tokens, all moments": 1.0, "tokens, means only": 1.5}  # of fused
HEAD = (
    "signals", "metrics", "shape", "every", "training us", "worker us/event",
    "training / fused", "both / fused", "per metric / training", "torchmetrics / training",
)  # fmt: skip
BUFFER = 64 * 4096 * 4  # bytes
LEAST = 8 * 4096  # bytes: buffers of eight rows of bools are counted, columns of 64 values are not


def main() -> None:
    """All tables; ``--rounds`` trades time for steadiness."""
    parts: Mapping[str, Callable[[int, Aims], None]] = {
        "compile": print_compile,
        "calls": print_calls,
        "worker": print_worker,
        "presets": print_presets,
        "completions": print_completions,
        "tokens": print_tokens,
        "memory": print_memory,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=(*parts,))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    aims = Aims()
    for name, part in parts.items():
        if chosen.only in (None, name):
            part(chosen.rounds, aims)
    aims.print()


class Reading:
    """Reading a profile's YAML: what compiling it is compared to."""

    every = 1

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run

    def step(self, batch: Batch) -> object:
        return self._run()

    def settle(self) -> float:
        return 0.0


def print_compile(rounds: int, aims: Aims) -> None:
    """From a profile's mapping to a plan; each time another one, since a process plans what is equal once."""
    rows, number = [], itertools.count()

    def compiled(profile: Mapping[str, Any]) -> Plan:
        return declog.plan({**profile, "run": {"name": f"profile_{next(number)}"}})

    for metrics in completions.SIGNALS:
        profile = completions.profile(metrics, 1)
        text = yaml.safe_dump(profile)
        readers: dict[str, Contestant] = {
            "compile": Reading(partial(compiled, profile)),
            "yaml": Reading(partial(yaml.safe_load, text)),
        }
        times = race(readers, [{}], steps=1, rounds=max(3, rounds // 3))
        seconds = micros(times["compile"].training) / 1e6
        rows.append((metrics, f"{ratio(times['compile'].training, times['yaml'].training):.1f}", f"{seconds:.3f}"))
    aims.most(f"compiling {metrics} metrics", 1, [seconds], " s")
    section("Compile", ("metrics", "compile / yaml.safe_load", "seconds"), rows)


def print_calls(rounds: int, aims: Aims) -> None:
    """Ways to call ``observe``, against copies that are appended to a list."""
    rows = []
    for name in calls.ways():
        times = _race(calls.recorders(name), [{}], rounds, 40)
        own, copies = times["declog"], times["copies"]
        shown = f"{ratio(own.training, copies.training):.1f}"
        rows.append((name, f"{micros(own.training):.1f}", f"{micros(copies.training):.1f}", shown))
    count, given = calls.ways()[name]
    aims.most(f"a micro-batch of {count} columns", 50, [micros(own.training) / len(given)], " us")
    section(
        "Ways to call", ("a step of", "training us", "copies us", "training / copies"), rows,
        "Columns of 64 values, a log event each 10 steps; `copies`: a clone of each value, in a list.",
    )  # fmt: skip


def print_worker(rounds: int, aims: Aims) -> None:
    """Many metrics of one window, quantiles and last values among them, against numpy that knows them."""
    rows = []
    for columns in (4, 20, 100):
        made: dict[str, Contestant] = {
            "declog": Declog(calls.profile(columns, calls.MIXED, 1)), "numpy": calls.Numpy(calls.by_hand),
        }  # fmt: skip
        times = _race(made, [calls.columns(columns)], rounds, 10)
        own, by_hand = times["declog"].background, times["numpy"].background
        count = columns * len(calls.MIXED)
        rows.append((count, f"{micros(own) / 1e3:.1f}", f"{micros(own) / count:.0f}", f"{ratio(own, by_hand):.1f}"))
    aims.most(f"worker, {count:,} metrics with quantiles", 15, [micros(own) / 1e3], " ms")
    section(
        "Worker", ("metrics", "ms a log event", "us a metric", "worker / numpy"), rows,
        f"Of each column {', '.join(calls.MIXED)}, over 64 rows; `numpy`: one matrix, each reduction once.",
    )  # fmt: skip


def print_presets(rounds: int, aims: Aims) -> None:
    """Metrics as presets have them, of tokens, rows and texts together."""
    rows = []
    for every in (1, 10):
        times = _race(presets.contestants(every), presets.batches(), rounds, 20)
        own, by_hand = times["declog"], times["by hand"].training
        training = ratio(own.training, by_hand)
        rows.append((
            every, f"{micros(own.training):.0f}", f"{micros(own.background) * every:.0f}", f"{micros(by_hand):.0f}",
            f"{training:.2f}", f"{ratio(own.whole, by_hand):.2f}",
        ))  # fmt: skip
    aims.most("training thread / by hand, what presets have, every 10", 0.5, [training])
    section(
        "What presets have",
        ("every", "training us", "worker us/event", "by hand us", "training / by hand", "both / by hand"), rows,
        f"{len(presets.NAMES)} metrics of {presets.ROWS} completions and their {presets.LENGTH} tokens: clipped "
        f"fractions, KL, quantiles, a last value, a mean of batches; a table of each step's {presets.BEST} best texts.",
    )  # fmt: skip


def print_completions(rounds: int, aims: Aims) -> None:
    """Values per completion."""
    found: dict[tuple[int, int, int], Ratios] = {}
    rows = []
    for metrics, signals in completions.SIGNALS.items():
        for size in (64, 1024):
            for every in (1, 10):
                made = completions.contestants(metrics, every)
                times = _race(made, completions.batches(metrics, size), rounds, 20)
                found[metrics, size, every] = ratios = Ratios.of(times)
                rows.append((signals, metrics, size, every, *_cells(times, every, ratios)))
    section("Completions", HEAD, rows)
    _aim_alike(aims, "completions", found)
    aims.most("training thread / fused, 200 metrics of 64 completions, every 10", 0.4, [found[200, 64, 10].training])
    forty = [found[40, size, 1].both for size in (64, 1024)]
    aims.most("both threads / fused, 40 metrics, a log event each step", 2, forty)
    many = [one for (metrics, *_), one in found.items() if metrics >= 40]
    aims.least("code per metric / training thread, 40 metrics and more", 5, [one.per_metric for one in many])
    aims.least("torchmetrics / training thread, 40 metrics and more", 20, [one.torchmetrics for one in many])


def print_tokens(rounds: int, aims: Aims) -> None:
    """Values per token."""
    for title, reductions in (("tokens, all moments", tokens.ALL), ("tokens, means only", tokens.MEANS)):
        found: dict[tuple[int, int, int], Ratios] = {}
        rows = []
        for signals in (2, 8):
            for length in (512, 4096):
                for every in (1, 10):
                    made = tokens.contestants(signals, reductions, every)
                    times = _race(made, tokens.batches(signals, 64, length, 2), rounds, 10)
                    found[signals, length, every] = ratios = Ratios.of(times)
                    metrics = signals * len(reductions)
                    rows.append((signals, metrics, f"64 x {length}", every, *_cells(times, every, ratios)))
        section(title.capitalize(), HEAD, rows)
        _aim_alike(aims, title, found)
    small = [one.training for (_, length, _), one in found.items() if length == 512]
    aims.most("training thread / fused, tokens, means only, 64 x 512", 1.3, small)


def _race(made: Mapping[str, Contestant], batches: Sequence[Batch], rounds: int, steps: int) -> dict[str, Times]:
    times = race(made, batches, steps=steps, rounds=rounds)
    cast(Declog, made["declog"]).close()
    return times


class Ratios(NamedTuple):
    """declog beside hand-fused code, and other code beside declog's training thread."""

    training: float
    both: float
    per_metric: float
    torchmetrics: float

    @classmethod
    def of(cls, times: Mapping[str, Times]) -> Ratios:
        """Medians of the rounds' ratios."""
        own, fused = times["declog"], times["hand-fused"].training
        others = (ratio(times[name].training, own.training) for name in ("per metric", "torchmetrics"))
        return cls(ratio(own.training, fused), ratio(own.whole, fused), *others)


def _cells(times: Mapping[str, Times], every: int, ratios: Ratios) -> list[str]:
    own = times["declog"]
    return [
        f"{micros(own.training):.0f}", f"{micros(own.background) * every:.0f}", f"{ratios.training:.2f}",
        f"{ratios.both:.2f}", f"{ratios.per_metric:.1f}", f"{ratios.torchmetrics:.1f}",
    ]  # fmt: skip


def _aim_alike(aims: Aims, title: str, found: Mapping[tuple[int, int, int], Ratios]) -> None:
    """What is aimed at for all shapes."""
    for every, when in ((1, "a log event each step"), (10, "every 10")):
        some = [one for key, one in found.items() if key[-1] == every]
        aims.most(f"training thread / fused, {title}, {when}", AIMED[title], [one.training for one in some])
        aims.most(f"both threads / fused, {title}, {when}", 1.3, [one.both for one in some])


def print_memory(rounds: int, aims: Aims) -> None:
    """Live tensors of one step, in buffers of [rows, length] float32."""
    rows: list[list[object]] = []
    most: list[float] = []
    cases = [
        (f"{', '.join(reductions)} of {signals} signals", tokens.profile(signals, reductions, 1), signals, reductions)
        for signals, reductions in ((2, tokens.MEANS), (2, tokens.ALL), (8, tokens.ALL))
    ]
    for name, profile, signals, reductions in [*cases, ("all moments of 8 expressions", tokens.derived(), 4, ())]:
        batch = tokens.batches(signals, 64, 4096, 1)[0]
        own = _memory(profile, batch)
        by_hand = peak_bytes(partial(tokens.fused(signals, reductions, 1).step, batch), LEAST) if reductions else None
        shown = "" if by_hand is None else f"{by_hand / BUFFER:.1f}"
        rows.append([name, len(reductions) * signals or 32, *(f"{one:.1f}" for one in own), shown])
        most += own
    aims.most("extra memory, in buffers of [rows, length]", 3, most)
    section(
        "Extra memory", ("metrics of one mask", "metrics", "declog", "NaN in the padding", "hand-fused"), rows,
        "In buffers of [rows, length] float32, at the peak.",
    )  # fmt: skip


def _memory(profile: Mapping[str, Any], batch: Batch) -> list[float]:
    mask = batch["mask"]
    broken = {
        name: value if name == "mask" else value.masked_fill(~mask, float("nan")) for name, value in batch.items()
    }
    found = []
    for values in (batch, broken):
        own = Declog(profile)
        found.append(round(peak_bytes(partial(own.step, values), LEAST) / BUFFER, 1))
        own.settle()
        own.close()
    return found


if __name__ == "__main__":
    main()
