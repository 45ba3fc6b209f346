"""`python -m tests.benchmarks.bench_runtime`: a log event on several ranks, against code without declog.

Prints Markdown tables; `docs/design.md` shows them and says what they mean. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import declog
from declog.records import Records
from declog.runtime.ranks.comm import Event
from declog.testing import FakeComm, MemorySink, run_ranks
from tests.benchmarks import collectives, completions
from tests.benchmarks.contestants import Collections, CountingSink
from tests.benchmarks.measure import Aims, Batch, section
from tests.faults.jobs import LOOPBACK, free_port

METRICS, ROWS = 40, 64
EVERY = 10
WAYS = ("blocking", "per metric", "torchmetrics", "object gather", "two all_reduces", "one all_gather")
Seconds = list[float]


def main() -> None:
    """All tables; ``--rounds`` trades time for steadiness."""
    parts: Mapping[str, Callable[[int, Aims], None]] = {
        "ranks": print_ranks, "sink": print_sink, "busy": print_busy, "messages": print_messages,
    }  # fmt: skip
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=(*parts,))
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)  # this process is a rank, and writes what it measured
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.rank_of:
        one_rank(Path(chosen.rank_of), chosen.rounds)
        return
    aims = Aims()
    for name, part in parts.items():
        if chosen.only in (None, name):
            part(chosen.rounds, aims)
    aims.print()


# ---- on several ranks


class Run:
    """declog on this rank: ``step`` is what the training loop calls, ``settle`` waits for the background."""

    def __init__(self, profile: Mapping[str, Any], folder: str) -> None:
        self.every = int(profile["every"])
        self._sink = CountingSink()
        self._folder = folder
        sinks = [self._sink] if dist.get_rank() == 0 else []
        self.log = declog.start(profile, sinks=sinks, output_dir=folder)
        self._steps = self._settled = 0

    def step(self, batch: Batch) -> None:
        with self.log.step(self._steps):
            self.log.observe(**batch)
        self._steps += 1

    def settle(self) -> None:
        while dist.get_rank() == 0 and self._settled < self._steps // self.every:
            self._sink.events.acquire()
            self._settled += 1


class Way:
    """Code that logs each step, as a contestant."""

    every = 1

    def __init__(self, step: Callable[[Batch], object]) -> None:
        self.step = step

    def settle(self) -> None:
        return None


def one_rank(folder: Path, rounds: int) -> None:
    """Every contestant in turn on this rank; seconds of each step, where all ranks begin it together."""
    dist.init_process_group("gloo")
    profile = completions.profile(METRICS, 1)
    with tempfile.TemporaryDirectory() as files:
        runs = {
            "declog": Run(profile, f"{files}/each"),
            "every": Run({**profile, "every": EVERY}, f"{files}/every"),
            "blocking": Run({**profile, "run": {"blocking": True}}, f"{files}/blocking"),
        }
        collections = Collections(completions.columns, completions._reductions(METRICS), 1)
        made: dict[str, Run | Way] = {**runs, "torchmetrics": Way(collections.step)}
        made |= {name: Way(step) for name, step in collectives.ways(METRICS).items()}
        names = list(made)
        batches = completions.batches(METRICS, ROWS, 4 * dist.get_world_size())[4 * dist.get_rank() :][:4]
        seconds: dict[str, list[Seconds]] = {name: [] for name in names}
        for turn in range(-1, rounds):  # the first is for warming up
            for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
                found = _turn(made[name], batches, 10 if name == "torchmetrics" else 50)
                if turn >= 0:
                    seconds[name].append(found)
        for run in runs.values():
            run.log.close()
    if dist.get_rank() == 0:
        (folder / "seconds.json").write_text(json.dumps(seconds))
    dist.barrier()
    dist.destroy_process_group()


def _turn(contestant: Run | Way, batches: Sequence[Batch], steps: int) -> Seconds:
    found = []
    for place in range(steps):
        dist.barrier()
        time.sleep(0.0005)  # a training step comes between: caches are cold
        start = time.perf_counter()
        contestant.step(batches[place % len(batches)])
        found.append(time.perf_counter() - start)
        contestant.settle()
    return found


def print_ranks(rounds: int, aims: Aims) -> None:
    """What logging costs the training thread of rank 0 at 1, 2 and 4 ranks."""
    rows = []
    most: dict[str, float] = {}  # at 2 ranks
    for ranks in (1, 2, 4):
        seconds = _measured(ranks, rounds)
        each = [statistics.median(part) for part in seconds["declog"]]
        events = [statistics.median(part[EVERY - 1 :: EVERY]) for part in seconds["every"]]
        plain = [statistics.median(np.delete(part, slice(EVERY - 1, None, EVERY))) for part in seconds["every"]]
        added = max(statistics.median(events) - statistics.median(plain), 1e-7)
        cells: list[object] = [ranks, f"{statistics.median(plain) * 1e6:.0f}", f"{statistics.median(each) * 1e6:.0f}"]
        cells.append(f"{_ratio(events, plain):.2f}")
        for name in WAYS:
            other = [statistics.median(part) for part in seconds[name]]
            of_event = statistics.median(other) / added
            cells.append(f"{_ratio(other, each):.1f}, {of_event:.0f}")
            most |= {name: of_event} if ranks == 2 else {}
        if ranks == 2:
            aims.most("a step with a log event / without, 2 ranks", 1.5, [_ratio(events, plain)])
        rows.append(cells)
    aims.least("one gather per metric / what a log event adds, 2 ranks", 100, [most["per metric"]])
    packed = [most["two all_reduces"], most["one all_gather"]]
    aims.least("packed collectives / what a log event adds, 2 ranks", 10, packed)
    section(
        f"{METRICS} metrics of {ROWS} completions a rank", ("ranks", "step us", "with event us", "event / step", *WAYS),
        rows,
        "Of the others two ratios: to declog's whole step with a log event, recording included; and to what the log "
        f"event adds to a step. Medians of 50 steps, {rounds} rounds.",
    )  # fmt: skip


def _measured(ranks: int, rounds: int) -> dict[str, list[Seconds]]:
    """What rank 0 of a job of this script measured."""
    with tempfile.TemporaryDirectory() as folder:
        job = {**os.environ, **LOOPBACK, "WORLD_SIZE": str(ranks), "MASTER_PORT": str(free_port())}
        command = [sys.executable, "-m", "tests.benchmarks.bench_runtime", "--rank-of", folder, "--rounds", str(rounds)]
        running = [subprocess.Popen(command, env={**job, "RANK": str(rank)}) for rank in range(ranks)]
        codes = [one.wait() for one in running]
        if any(codes):
            raise RuntimeError(f"the ranks ended with {codes}")
        found: dict[str, list[Seconds]] = json.loads((Path(folder) / "seconds.json").read_text())
        return found


def _ratio(upper: Sequence[float], lower: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(upper, lower, strict=True))


# ---- a slow sink


class Sleeping(MemorySink):
    """A backend that takes 10 s over each log event."""

    def __init__(self) -> None:
        super().__init__()
        self.wake = threading.Event()

    def write(self, step: int, records: Records) -> None:
        self.wake.wait(10.0)


def print_sink(rounds: int, aims: Aims) -> None:
    """The same run with a sink that sleeps and with one that does nothing."""
    batches = completions.batches(METRICS, ROWS)
    with tempfile.TemporaryDirectory() as folder:
        slow = Sleeping()
        runs = {
            name: declog.start(completions.profile(METRICS, 1), sinks=[sink], output_dir=f"{folder}/{name}")
            for name, sink in (("slow", slow), ("none", CountingSink()))
        }
        seconds: dict[str, list[Seconds]] = {name: [] for name in runs}
        for turn in range(-1, rounds):
            found: dict[str, Seconds] = {name: [] for name in runs}
            for step in range(200):  # one step of one, one step of the other: what else runs here hits both alike
                for name in sorted(runs, reverse=bool(step % 2)):
                    start = time.perf_counter()
                    with runs[name].step(turn * 200 + step):
                        runs[name].observe(**batches[step % 4])
                    found[name].append(time.perf_counter() - start)
                time.sleep(0.002)
            if turn >= 0:
                for name in runs:
                    seconds[name].append(found[name])
        slow.wake.set()
        for log in runs.values():
            log.close()
    halves = {name: [np.percentile(part, (50, 99)) for part in parts] for name, parts in seconds.items()}
    ratios = [_ratio([one[at] for one in halves["slow"]], [one[at] for one in halves["none"]]) for at in (0, 1)]
    rows = [(name, f"{one:.2f}") for name, one in zip(("median", "99th percentile"), ratios, strict=True)]
    aims.most("a step beside a sink that sleeps, the median", 1.05, ratios[:1])
    section(
        "A sink that sleeps 10 s over each log event, against one that does nothing", ("step time", "slow / none"), rows
    )


# ---- the worker is busy


def busy_profile(every: int) -> dict[str, Any]:
    """200 metrics, and tables with texts."""
    made = completions.profile(200, every)
    made["signals"]["any"] |= {name: {"axis": "completion", "type": "text"} for name in ("prompt", "text")}
    made["filters"] = {"worst": {"key": "x0", "bottom": 8, "within": "step"}}
    made["schemas"] = {"s": {"prompt": {"type": "text"}, "text": {"type": "text"}, "x0": {"type": "float"}}}
    made["tables"] = {"worst": {"schema": "s", "filter": "worst"}}
    made["sinks"] = ["jsonl", "parquet"]
    return made


def print_busy(rounds: int, aims: Aims) -> None:
    """Steps of some 20 ms of training, with 200 metrics and tables at each, at each tenth, and without declog."""
    texts = {name: [f"{name} {row} " * 40 for row in range(ROWS)] for name in ("prompt", "text")}
    batches = [{**batch, **texts} for batch in completions.batches(200, ROWS)]
    weights = torch.randn(256, 256)
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            f"every {every}": declog.start(busy_profile(every), output_dir=f"{folder}/{every}") for every in (1, EVERY)
        }
        names = [*runs, "none"]
        seconds: dict[str, Seconds] = {name: [] for name in names}
        for turn in range(-1, 3 * rounds):
            for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
                for step in range(30):
                    start = time.perf_counter()
                    weights = _train(weights)
                    if name in runs:
                        with runs[name].step(turn * 30 + step):
                            runs[name].observe(**batches[step % 4])
                    if turn >= 0:
                        seconds[name].append(time.perf_counter() - start)
                time.sleep(0.2)  # the worker is done
        for log in runs.values():
            log.close()
    base = np.percentile(seconds["none"], (50, 99))
    rows = []
    for name in runs:
        found = np.percentile(seconds[name], (50, 99))
        rows.append([name, *(f"{a / b:.3f}" for a, b in zip(found, base, strict=True)), *(f"{1e3 * (a - b):.2f}" for a, b in zip(found, base, strict=True))])  # fmt: skip  # noqa: E501
    section(
        "200 metrics and a table of texts, jsonl and parquet",
        ("log event", "median / without", "p99 / without", "median, ms more", "p99, ms more"), rows,
        f"Beside steps of {base[0] * 1e3:.0f} ms.",
    )  # fmt: skip


def _train(weights: torch.Tensor) -> torch.Tensor:
    """A training step: products of matrices, which release the interpreter's lock, and Python, which does not."""
    for _ in range(20):
        weights = torch.tanh(weights @ weights)
    sum(place * place for place in range(20_000))
    return weights


# ---- messages


def print_messages(rounds: int, aims: Aims) -> None:
    """Bytes of a message, and rank 0's worker, against rows and ranks; many ranks in one process."""
    cells = []
    for rows in (ROWS, 1024):
        alone = 0.0
        for ranks in (1, 4, 16, 64):
            size, seconds = _exchanged(ranks, rows, rounds + 2)
            alone = alone or seconds
            raw = rows * (4 * (completions.SIGNALS[METRICS] - 2) + 8 + 1)
            cells.append([rows, ranks, size or "", f"{size / raw:.2f}" if size else "", f"{seconds * 1e3:.1f}",
                          f"{seconds / alone:.1f}", f"{seconds / alone / ranks:.2f}"])  # fmt: skip
    section(
        f"Messages of {METRICS} metrics, and rank 0's worker",
        ("rows a rank", "ranks", "bytes a message", "bytes / columns", "rank 0 ms", "/ 1 rank", "/ 1 rank, per rank"),
        cells,
        "Many ranks in one process; milliseconds are processor time of rank 0's worker per log event, and `bytes / "
        "columns` is the message over the columns that it carries.",
    )  # fmt: skip


def _exchanged(ranks: int, rows: int, events: int) -> tuple[int, float]:
    """The median size of a message, and the median seconds of processor time of rank 0's worker per log event."""
    profile = {**completions.profile(METRICS, 1), "profiles": {"full": {"self_metrics": True}}}
    batches = completions.batches(METRICS, rows, 4 + ranks)  # each rank has its own
    sink = MemorySink()
    sizes: list[int] = []

    def body(comm: FakeComm) -> None:
        send = comm.send

        def weighed(event: Event, data: bytes) -> None:
            sizes.append(len(data))
            send(event, data)

        comm.send = weighed  # type: ignore[method-assign]
        with tempfile.TemporaryDirectory() as folder:
            log = declog.start(profile, sinks=[] if comm.rank else [sink], output_dir=folder, comm=comm)
            for step in range(events):
                with log.step(step):
                    log.observe(**batches[step % 4 + comm.rank])
                time.sleep(0.05)
            log.close()

    run_ranks(ranks, body, timeout_s=300.0)
    spent = [values["declog/worker_ms"] / 1e3 for step, values in sink.scalars.items() if step > 1]
    return int(statistics.median(sizes)) if sizes else 0, statistics.median(spent)


if __name__ == "__main__":
    main()
