"""`python -m tests.benchmarks.bench_late`: what keeping rows costs, and how long a metric takes that is asked late.

Keeping is the worker's time with rows kept, less that of the same run without. Asking is `declog add` as a user runs
it, process and imports included, against pandas that groups the same rows. Nothing is asserted but equal values.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import declog
from declog.testing import MemorySink
from tests.benchmarks.measure import Aims, section

COLUMNS, LABELS = 8, ("math", "code", "chat", "web")
KEPT_ROWS, SMALL_ROWS = 1000, 64  # completions of a step
WORKED = 512  # steps
STEPS, ASKED_ROWS = 5000, 40  # of the run that is asked
MOST_S, MOST_BYTES = 3.0, 2048
NUMBERS = tuple(f"s{number}" for number in range(COLUMNS - 1))
CONFIG: Mapping[str, Any] = {
    "run": {"name": "kept"},
    "signals": {"any": {**dict.fromkeys(NUMBERS, "completion"), "source": "completion text"}},
    "metrics": {
        **dict.fromkeys(NUMBERS, "mean"), "attempts": {"expr": NUMBERS[0], "by": "source", "reduce": "count"},
    },
}  # fmt: skip
LINE = f"by_source: {{expr: {NUMBERS[0]}, by: source}}"
BY_HAND = f"""
import pathlib, sys
import pandas as pd
rows = []
columns = ["default/{NUMBERS[0]}", "default/source"]
for file in sorted(pathlib.Path(sys.argv[1], "rows").glob("*.parquet")):
    rows.append(pd.read_parquet(file, columns=["step", *columns]).explode(columns).dropna())
    rows[-1].columns = ["step", "{NUMBERS[0]}", "source"]
means = pd.concat(rows).astype({{"{NUMBERS[0]}": float}}).groupby(["step", "source"])["{NUMBERS[0]}"].mean()
means.to_csv(sys.argv[2])
"""


def batch(rows: int, generator: torch.Generator) -> dict[str, Any]:
    """A step's completions: eight columns, one of labels."""
    numbers = {name: torch.randn(rows, generator=generator) for name in NUMBERS}
    codes = torch.randint(0, len(LABELS), (rows,), generator=generator).tolist()
    return {**numbers, "source": [LABELS[code] for code in codes]}


@contextmanager
def run(folder: Path, keep_bytes: int) -> Iterator[tuple[declog.Recorder, int]]:
    """A run, and the clock of its worker."""
    others = set(threading.enumerate())
    config = {**CONFIG, "run": {"keep_bytes": keep_bytes, "strict": True}}
    with declog.start(config, sinks=[MemorySink()], output_dir=folder) as log:
        (worker,) = (item for item in set(threading.enumerate()) - others if item.name == "declog-worker")
        assert worker.ident is not None
        yield log, time.pthread_getcpuclockid(worker.ident)


def worker_ms(folder: Path, keep_bytes: int, rows: int, steps: int) -> float:
    """The worker's CPU time of a step, its share of the files that come with every 512th included."""
    generator = torch.Generator().manual_seed(0)
    with run(folder, keep_bytes) as (log, clock):
        for step in range(steps + 1):
            if step == 1:  # what is imported and made once is over
                log.written()
                began = time.clock_gettime(clock)
            with log.step(step):
                log.observe(**batch(rows, generator))
        log.written()
        return (time.clock_gettime(clock) - began) / steps * 1e3


def print_kept(rounds: int, aims: Aims) -> None:
    """What keeping costs the worker, and how many bytes it takes."""
    lines = []
    for rows in (SMALL_ROWS, KEPT_ROWS):
        kept, without, sizes = [], [], []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                kept.append(worker_ms(Path(folder, "kept"), 2 * 10**9, rows, WORKED))
                without.append(worker_ms(Path(folder, "none"), 0, rows, WORKED))
                sizes.append(sum(file.stat().st_size for file in Path(folder, "kept/rows").iterdir()) / (WORKED + 1))
        more = [upper - lower for upper, lower in zip(kept, without, strict=True)]
        lines.append((f"{rows} x {COLUMNS}", spread(without), spread(kept), spread(more), f"{min(sizes):,.0f}"))
        if rows == SMALL_ROWS:
            aims.most(f"bytes that a step of {rows} x {COLUMNS} values takes in `rows/`", MOST_BYTES, sizes)
    head = ("rows x columns", "without, ms", "kept, ms", "more, ms", "bytes of a step")
    section(
        "Rows that are kept", head, lines, "CPU time of the worker for a step; random numbers, which do not shrink."
    )


def asked(command: Sequence[str]) -> tuple[float, float]:
    """Seconds by the clock and CPU seconds of a process."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def print_asked(rounds: int, aims: Aims) -> None:
    """How long a metric by label takes, over a run that is over."""
    with tempfile.TemporaryDirectory() as folder:
        path, generator = Path(folder, "run"), torch.Generator().manual_seed(0)
        with run(path, 2 * 10**9) as (log, _):
            for step in range(STEPS):
                with log.step(step):
                    log.observe(**batch(ASKED_ROWS, generator))
                if step % 100 == 0:
                    log.written()
        ways = {
            "declog add": [sys.executable, "-m", "declog", "add", str(path), LINE],
            "pandas": [sys.executable, "-c", BY_HAND, str(path), str(Path(folder, "means.csv"))],
        }
        times = {name: [asked(command) for _ in range(rounds)] for name, command in ways.items()}
        compare(path, Path(folder, "means.csv"))
    seconds = {name: [clock for clock, _ in found] for name, found in times.items()}
    lines = [(name, spread(seconds[name]), spread([cpu for _, cpu in found])) for name, found in times.items()]
    aims.most(f"seconds of a late metric by label, {STEPS:,} steps of {ASKED_ROWS} rows", MOST_S, seconds["declog add"])
    note = f"`declog add RUN '{LINE}'` over {STEPS:,} steps of {ASKED_ROWS} rows, and pandas by hand; whole processes."
    section("A metric that is asked late", ("way", "seconds", "CPU seconds"), lines, note)


def compare(run: Path, means: Path) -> None:
    """Both have the same values."""
    logged = declog.read(run)
    for source, expected in pd.read_csv(means).groupby("source"):
        np.testing.assert_allclose(logged[f"by_source/{source}"].values, expected[NUMBERS[0]], rtol=1e-4, atol=1e-6)


def spread(values: Sequence[float]) -> str:
    """The least, and the most."""
    return f"{min(values):.2f} to {max(values):.2f}"


def main() -> None:
    """Both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    aims = Aims()
    print_kept(rounds, aims)
    print_asked(rounds, aims)
    aims.print()


if __name__ == "__main__":
    main()
