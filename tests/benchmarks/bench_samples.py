"""`python -m tests.benchmarks.bench_samples`: eight samples of 100,000, against gathering all rows as objects.

Two real processes with gloo. Each log event of declog is a filter of eight rows over all ranks' rows; the alternatives
send every row to rank 0 with ``torch.distributed.gather_object`` and choose there. Nothing is asserted but that all
three choose the same rows.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import os
import pickle
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

import declog
from declog.records import Table
from declog.runtime.ranks import store_comm as comm
from declog.testing import MemorySink
from tests.benchmarks.measure import micros, ratio, section
from tests.running import CountingComm

RANKS, TOP, BOTTOM, WORDS = 2, 4, 4, 40
PROFILE: Mapping[str, Any] = {
    "run": {"name": "samples", "strict": True},
    "signals": {
        "any": {
            "reward": {"axis": "completion"}, "length": {"axis": "completion", "type": "int"},
            "prompt": {"axis": "completion", "type": "text"}, "completion": {"axis": "completion", "type": "text"},
        },
    },
    "schemas": {"s": {"reward": {"type": "float"}, "length": {"type": "int"}, "prompt": {"type": "text"},
                      "completion": {"type": "text"}}},
    "filters": {"extremes": {"key": "reward", "top": TOP, "bottom": BOTTOM, "within": "window"}},
    "tables": {"extremes": {"schema": "s", "filter": "extremes"}},
}  # fmt: skip

Batch = Mapping[str, Any]
Picked = list[str]  # completions, in no order


class Way(Protocol):
    """A way to log eight samples of a step, called on every rank."""

    def step(self, batch: Batch) -> None:
        """What the training thread does."""

    def settle(self) -> tuple[Picked, int, float]:
        """On rank 0 what was picked; what this rank sent, in bytes; CPU seconds of other threads so far."""

    def close(self) -> None:
        """Let go of everything."""


class Declog:
    """declog: the loop observes, everything else happens on its worker."""

    def __init__(self) -> None:
        self._sink = MemorySink()
        self._folder = tempfile.TemporaryDirectory()
        others = set(threading.enumerate())
        self._comm = CountingComm(comm.connect(namespace="bench"))
        self._log = declog.start(PROFILE, sinks=[self._sink], output_dir=self._folder.name, comm=self._comm)
        (worker,) = (item for item in set(threading.enumerate()) - others if item.name == "declog-worker")
        assert worker.ident is not None
        self._clock = time.pthread_getcpuclockid(worker.ident)
        self._steps = 0

    def step(self, batch: Batch) -> None:
        with self._log.step(self._steps):
            self._log.observe(**batch)
        self._steps += 1

    def settle(self) -> tuple[Picked, int, float]:
        rank = dist.get_rank()
        while (len(self._comm.sent) if rank else len(self._sink.events)) < self._steps:
            time.sleep(0.001)
        tables: list[Table] = [item for _, records in self._sink.events[-1:] for item in records.tables]
        picked = list(tables[0].data["completion"]) if tables else []
        return picked, self._comm.sent[-1] if rank else 0, time.clock_gettime(self._clock)

    def close(self) -> None:
        self._log.close()
        self._folder.cleanup()


class Columns:
    """All rows as one object: a list for each column."""

    def __init__(self) -> None:
        self._picked: Picked = []
        self._given: object = None

    def objects(self, batch: Batch) -> Any:
        """What is sent."""
        return {name: values.tolist() if torch.is_tensor(values) else values for name, values in batch.items()}

    def rows(self, gathered: Sequence[Any]) -> list[tuple[float, str]]:
        """Reward and completion of all ranks' rows."""
        return [pair for part in gathered for pair in zip(part["reward"], part["completion"], strict=True)]

    def step(self, batch: Batch) -> None:
        given = self.objects(batch)
        gathered: list[Any] | None = [None] * RANKS if dist.get_rank() == 0 else None
        dist.gather_object(given, gathered)
        if gathered is not None:
            rows = self.rows(gathered)
            best = heapq.nlargest(TOP, rows), heapq.nsmallest(BOTTOM, rows)
            self._picked = [completion for part in best for _, completion in part]
        self._given = given

    def settle(self) -> tuple[Picked, int, float]:
        return self._picked, len(pickle.dumps(self._given)) if dist.get_rank() else 0, 0.0

    def close(self) -> None:
        return None


class Rows(Columns):
    """All rows as objects: a map for each row."""

    def objects(self, batch: Batch) -> Any:
        columns = super().objects(batch)
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def rows(self, gathered: Sequence[Any]) -> list[tuple[float, str]]:
        return [(row["reward"], row["completion"]) for part in gathered for row in part]


def batches(rank: int, rows: int) -> list[Batch]:
    """Two steps' rows of one rank; no two rewards are alike."""
    generator = torch.Generator().manual_seed(rank)
    words = [f"{word:x}" * 2 for word in range(1000)]
    made: list[Batch] = []
    for step in range(2):
        codes = torch.randint(0, len(words), (rows, WORDS), generator=generator).tolist()
        texts = [f"{rank} {step} {row} " + " ".join(words[code] for code in line) for row, line in enumerate(codes)]
        made.append(
            {
                "reward": torch.rand(rows, generator=generator, dtype=torch.float64),
                "length": torch.randint(1, 512, (rows,), generator=generator),
                "prompt": [text[:60] for text in texts],
                "completion": texts,
            }
        )
    return made


def work(rank: int, folder: str, rows: int, rounds: int) -> None:
    """One rank: each way in turn, as many times as there are rounds; rank 0 prints."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    ways: dict[str, Way] = {"declog": Declog(), "columns": Columns(), "rows": Rows()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    walls: dict[str, list[float]] = {name: [] for name in ways}
    background: list[float] = []
    sent = dict.fromkeys(ways, 0)
    given = batches(rank, rows // RANKS)
    names = list(ways)
    for turn in range(-1, rounds):  # the first is for warming up
        picks = []
        for name in (*names[turn % 3 :], *names[: turn % 3]):
            _, _, before = ways[name].settle() if turn >= 0 else ([], 0, 0.0)
            gc.collect()
            dist.barrier()
            start, wall = time.thread_time(), time.perf_counter()
            ways[name].step(given[turn % 2])
            spent, waited = time.thread_time() - start, time.perf_counter() - wall
            picked, sent[name], after = ways[name].settle()
            picks.append(sorted(picked))
            if turn >= 0:
                times[name].append(spent)
                walls[name].append(waited)
                background += [after - before] if name == "declog" else []
        if rank == 0:
            assert len(picks[0]) == TOP + BOTTOM and picks[0] == picks[1] == picks[2], "the ways picked different rows"
    for way in ways.values():
        way.close()
    found: list[Any] = [None] * RANKS
    dist.all_gather_object(found, (times, walls, background, sent))
    if rank == 0:
        report(found, rows, rounds)
    dist.destroy_process_group()


def report(found: Sequence[Any], rows: int, rounds: int) -> None:
    """One line for each rank and alternative."""
    lines = []
    for rank, (times, walls, background, sent) in enumerate(found):
        own = times["declog"]
        whole = [training + worker for training, worker in zip(own, background, strict=True)]
        for name in ("columns", "rows"):
            less = f"{sent[name] / sent['declog']:.0f}" if rank else "sends nothing"
            ratios = ratio(times[name], own), ratio(walls[name], walls["declog"]), ratio(times[name], whole)
            lines.append([rank, name, *(f"{value:.1f}" for value in ratios), less, f"{micros(own) / 1000:.1f}"])
    head = (
        "rank", "gathered as", "training / training", "wait / wait", "training / both", "bytes / bytes", "training ms",
    )  # fmt: skip
    section(
        f"{TOP + BOTTOM} samples of {rows:,}", head, lines,
        "What gathering costs over what declog costs: CPU time of the training thread, time that it stands still, "
        "its CPU time over declog's training thread and worker together, bytes sent. The last column is declog's own. "
        f"{RANKS} processes with gloo, texts of some {WORDS * 7} characters, {rounds} rounds.",
    )  # fmt: skip


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=100_000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        start_processes(work, (folder, chosen.rows, chosen.rounds), RANKS, start_method="fork")


if __name__ == "__main__":
    main()
