"""What sinks cost beside code written by hand for the same backend, at the same durability: ratios, of one run.

    python -m tests.benchmarks.bench_sinks

Each contestant writes the same log events: 40 scalars and, every tenth, a table of 8 samples of 2,000 characters, which
come from a queue on a thread of its own, as a sink's do. Wall-clock time from the first log event until everything is
closed and on disk as the backend leaves it, each in a process of its own; the median of ratios of rounds in turn.
Nothing is asserted.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from declog.records import Column, DType, Records, RunInfo, Scalar, Table
from declog.sinks import make_sink
from declog.sinks.runner import SinkRunner
from tests.benchmarks.measure import section

METRICS, ROWS, CHARS, EVENTS = 40, 8, 2000, 500
COLUMNS = (Column("prompt", DType.TEXT), Column("completion", DType.TEXT), Column("reward", DType.FLOAT))
Write = Callable[[int, dict[str, float], dict[str, list[Any]] | None], None]


def events(count: int) -> list[tuple[int, Records]]:
    """The log events, as sinks get them."""
    found = []
    for step in range(count):
        scalars = tuple(Scalar(f"metric/{place}", step * 0.1 + place, f"metric_{place}") for place in range(METRICS))
        data: dict[str, list[Any]] = {
            "prompt": [f"What is {step} + {row}?" for row in range(ROWS)],
            "completion": [f"{step} {row} thinks. " * (CHARS // 14) for row in range(ROWS)],
            "reward": [float(row) for row in range(ROWS)],
        }
        tables = (Table("samples", "samples", COLUMNS, data, ROWS),) if step % 10 == 0 else ()
        found.append((step, Records(time=1.7e9 + step, scalars=scalars, tables=tables)))
    return found


def sink(kind: str, folder: Path, made: list[tuple[int, Records]]) -> float:
    """Seconds that a sink of declog's takes."""
    runner = SinkRunner("bench", make_sink(kind, {}))
    runner.open(RunInfo("bench", folder.name, folder, ""))
    began = time.perf_counter()
    for step, records in made:
        runner.submit(step, records)
    report = runner.close(600)
    if report.failed or not report.finished:
        raise RuntimeError(report)
    return time.perf_counter() - began


def by_hand(write: Write, close: Callable[[], None], made: list[tuple[int, Records]]) -> float:
    """Seconds that code by hand takes, on a thread with a queue: training does not wait for it either."""
    waiting: queue.Queue[tuple[int, Records] | None] = queue.Queue()

    def work() -> None:
        while (item := waiting.get()) is not None:
            step, records = item
            tables: list[dict[str, list[Any]]] = [
                {name: list(values) for name, values in table.data.items()} for table in records.tables
            ]
            write(step, {one.name: float(one.value) for one in records.scalars}, tables[0] if tables else None)
        close()

    thread = threading.Thread(target=work)
    thread.start()
    began = time.perf_counter()
    for item in made:
        waiting.put(item)
    waiting.put(None)
    thread.join()
    return time.perf_counter() - began


def jsonl(folder: Path) -> tuple[Write, Callable[[], None]]:
    """A line per log event and row, flushed."""
    scalars = open(folder / "scalars.jsonl", "w", encoding="utf-8")  # noqa: SIM115  (closed at the end)
    samples = open(folder / "samples.jsonl", "w", encoding="utf-8")  # noqa: SIM115  (closed at the end)

    def close() -> None:
        scalars.close()
        samples.close()

    def write(step: int, values: dict[str, float], table: dict[str, list[Any]] | None) -> None:
        scalars.write(json.dumps({"step": step, "time": time.time(), **values}, ensure_ascii=False) + "\n")
        scalars.flush()
        if table is not None:
            for row in zip(*table.values(), strict=True):
                samples.write(
                    json.dumps({"step": step, **dict(zip(table, row, strict=True))}, ensure_ascii=False) + "\n"
                )
            samples.flush()

    return write, close


def parquet(folder: Path) -> tuple[Write, Callable[[], None]]:
    """A file per log event and table, synced, in place by a rename: whole files at every moment, and after a crash."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def put(name: str, step: int, columns: dict[str, Any]) -> None:
        (folder / name).mkdir(exist_ok=True)
        part = folder / name / f"{step:06d}.part"
        pq.write_table(pa.table(columns), part, compression="zstd")
        descriptor = os.open(part, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        part.rename(part.with_suffix(".parquet"))
        place = os.open(folder / name, os.O_RDONLY)
        os.fsync(place)
        os.close(place)

    def write(step: int, values: dict[str, float], table: dict[str, list[Any]] | None) -> None:
        put("scalars", step, {"step": [step] * len(values), "name": list(values), "value": list(values.values())})
        if table is not None:
            put("samples", step, {"step": [step] * ROWS, **table})

    return write, lambda: None


def tensorboard(folder: Path) -> tuple[Write, Callable[[], None]]:
    """torch's own SummaryWriter."""
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter(str(folder))

    def write(step: int, values: dict[str, float], table: dict[str, list[Any]] | None) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        if table is not None:
            rows = ["| " + " | ".join(str(cell) for cell in row) + " |" for row in zip(*table.values(), strict=True)]
            writer.add_text("samples", "\n".join(["| " + " | ".join(table) + " |", "| --- | --- | --- |", *rows]), step)

    return write, writer.close


def wandb(folder: Path) -> tuple[Write, Callable[[], None]]:
    """``log`` per event, tables in wandb's incremental mode."""
    import wandb as package

    run = package.init(project="bench", dir=str(folder), reinit="create_new")
    tables = [package.Table(columns=[column.name for column in COLUMNS], log_mode="INCREMENTAL")]

    def write(step: int, values: dict[str, float], table: dict[str, list[Any]] | None) -> None:
        found: dict[str, Any] = dict(values)
        if table is not None:
            for row in zip(*table.values(), strict=True):
                tables[0].add_data(*row)
            found["samples"] = tables[0]
        run.log(found, step=step)

    return write, run.finish


def trackio(folder: Path) -> tuple[Write, Callable[[], None]]:
    """``log`` per event, a table of the rows and a trace of each."""
    package: Any = importlib.import_module("trackio")

    run = package.init(project="bench-by-hand", name=folder.name, embed=False)

    def write(step: int, values: dict[str, float], table: dict[str, list[Any]] | None) -> None:
        found: dict[str, Any] = dict(values)
        if table is not None:
            rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
            found["samples"] = package.Table(data=rows)
            found["samples/traces"] = [
                package.Trace(
                    [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["completion"]}],
                    metadata={"reward": row["reward"]},
                )
                for row in rows
            ]
        run.log(found, step=step)

    return write, run.finish


HANDS = {"jsonl": jsonl, "parquet": parquet, "tensorboard": tensorboard, "wandb": wandb, "trackio": trackio}


def seconds(kind: str, who: str) -> float:
    """How long one contestant takes, in a process that nobody else has warmed."""
    home = Path(tempfile.mkdtemp(prefix="bench-sinks-"))
    quiet = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "WANDB__DISABLE_STATS": "true"}
    os.environ |= {**quiet, "WANDB_DIR": str(home), "TRACKIO_DIR": str(home / "trackio")}
    (home / who).mkdir()
    made = events(EVENTS)
    taken = sink(kind, home / who, made) if who == "declog" else by_hand(*HANDS[kind](home / who), made)
    shutil.rmtree(home, ignore_errors=True)
    return taken


def measured(kind: str, who: str) -> float:
    """The same in a process of its own: trackers keep something of an earlier run, and import when first used."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_sinks", "--one", kind, who]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return next(float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("seconds "))


def main() -> None:
    """The table; ``--rounds`` trades time for steadiness."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=tuple(HANDS))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)  # this process is one contestant
    chosen = parser.parse_args()
    if chosen.one:
        print("seconds", seconds(*chosen.one))
        return
    rows = []
    for kind in [chosen.only] if chosen.only else HANDS:
        ratios = []
        for place in range(chosen.rounds):
            order = ("declog", "hand") if place % 2 else ("hand", "declog")
            taken = {who: measured(kind, who) for who in order}
            ratios.append(taken["declog"] / taken["hand"])
        shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        rows.append((f"`{kind}`", f"{statistics.median(ratios):.2f}", shown))
    section(
        "Beside code by hand", ("sink", "beside code by hand", "rounds"), rows,
        f"{EVENTS} log events of {METRICS} scalars with {EVENTS // 10} tables of {ROWS} samples of {CHARS:,} "
        "characters, on a thread behind a queue, beside code by hand that leaves the same on disk: a synced file per "
        "log event for `parquet`, torch's `SummaryWriter`, wandb offline, trackio with traces. Wall-clock time until "
        "all is closed.",
    )  # fmt: skip


if __name__ == "__main__":
    main()
