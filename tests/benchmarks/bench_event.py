"""`python -m tests.benchmarks.bench_event`: what the worker does for a log event of TRL's trainer.

A trainer of `tests/integrations/trl` runs with the preset `trl_grpo`. Its last log events are then given to the worker
again and again: Python calls by function, and CPU time by stage, with warm caches and after other work has filled the
caches as training does. Prints Markdown tables. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import declog
from declog.engine.evaluation import Evaluation
from declog.engine.metrics import Metrics
from declog.engine.naming import Naming
from declog.engine.publish import Dispatcher
from declog.engine.reduce import Reductions
from declog.engine.warnings.inactive import Inactive
from declog.runtime.ranks.log_event import LogEvent
from declog.runtime.ranks.sender import Sender
from declog.runtime.worker.row_keeper import RowKeeper
from declog.runtime.worker.worker import Task, Worker
from tests.benchmarks.measure import section

HOME = str(Path(declog.__file__).parent)
STEPS, LAST = 11, 6  # of the run, and how many of its log events are replayed
STAGES: dict[str, tuple[type, str]] = {
    "frames": (Sender, "frames"), "arrivals": (Sender, "described"), "rows kept": (RowKeeper, "add"),
    "evaluation": (Evaluation, "add"), "metrics": (Metrics, "of"), "states": (Reductions, "states"),
    "values of states": (Reductions, "finish"), "formulas": (Metrics, "_compute"), "names": (Naming, "add"),
    "tables": (Dispatcher, "_tables"), "alerts": (Dispatcher, "_alerts"), "shares": (Dispatcher, "_share"),
    "inactive": (Inactive, "judge"),
}  # fmt: skip


def main() -> None:
    """Train, then replay."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--functions", type=int, default=30, help="how many functions are shown")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        worker, log, events = trained(Path(folder))
        replay = Replay(worker, events)
        for _ in range(3):
            replay.round(lambda run: run())
        print_calls(replay, chosen.functions)
        print_times(replay, chosen.rounds)
        log.close()


def trained(folder: Path) -> tuple[Worker, declog.Recorder, list[LogEvent]]:
    """The worker of a run that is over, its recorder, and the last log events of its steps."""
    from tests.integrations.trl import cases, tiny

    workers: list[Worker] = []
    events: list[LogEvent] = []
    process = Worker._process

    def listening(worker: Worker, event: LogEvent) -> None:
        workers.append(worker)
        events.append(event)
        process(worker, event)

    Worker._process = listening  # type: ignore[method-assign,assignment]
    args = {
        "max_steps": STEPS, "logging_steps": 1, "eval_strategy": "no", "per_device_train_batch_size": 8,
        "max_completion_length": 16, "beta": 0.05,
    }  # fmt: skip
    case = cases.Case(rewards="two", args=args)
    trainer = cases.trainer_of(case, tiny.build(folder / "model"), folder / "run")
    log = declog.attach(trainer, "trl_grpo", ["declog.sinks=[jsonl]"], merge="replace")
    trainer.train()
    Worker._process = process  # type: ignore[method-assign]
    return workers[0], log, events[-LAST - 1 : -1]  # the very last one comes at the end of training


class Replay:
    """Gives log events to the worker's thread again, as later ones."""

    def __init__(self, worker: Worker, events: list[LogEvent]) -> None:
        self._worker = worker
        self._events = events
        self._next = events[-1].event + 100

    def round(self, around: Callable[[Callable[[], None]], object]) -> None:
        """All events once, on the worker's thread; ``around`` calls the function that it gets."""
        for event in self._events:
            number = self._next = self._next + 1
            later = event._replace(event=number, step=number, steps=number, answer=None)
            task = Task(lambda later=later: around(lambda: self._worker._process(later)))  # type: ignore[misc]
            self._worker.submit(task)
            task.done.wait(60)
            task.check()


def print_calls(replay: Replay, most: int) -> None:
    """The calls of a log event by function."""
    python: Counter[str] = Counter()
    totals: list[tuple[int, int]] = []

    def counted(run: Callable[[], None]) -> None:
        numbers = [0, 0]

        def profile(frame: Any, event: str, _: object) -> None:
            if event == "call":
                numbers[0] += 1
                code = frame.f_code
                python[f"{code.co_filename.removeprefix(HOME + '/').rpartition('-packages/')[2]} {code.co_name}"] += 1
            elif event == "c_call":
                numbers[1] += 1

        sys.setprofile(profile)
        try:
            run()
        finally:
            sys.setprofile(None)
        totals.append((numbers[0], numbers[1]))

    replay.round(counted)
    calls, built_in = (round(statistics.mean(column)) for column in zip(*totals, strict=True))
    files: Counter[str] = Counter()
    for name, count in python.items():
        files[name.partition(" ")[0]] += count
    section(
        "Calls of a log event", ("function", "calls"),
        [("all functions of Python", calls), ("all built-in functions", built_in),
         *((name, f"{count / len(totals):.1f}") for name, count in files.most_common(most)),
         *((name, f"{count / len(totals):.1f}") for name, count in python.most_common(most))],
        f"Of {len(totals)} log events of a real run with `trl_grpo`; first by file, then by function.",
    )  # fmt: skip


def print_times(replay: Replay, rounds: int) -> None:
    """The CPU time of a log event by stage."""
    warm: dict[str, list[float]] = {name: [] for name in ("all", *STAGES)}
    cold: dict[str, list[float]] = {name: [] for name in warm}
    spent: Counter[str] = Counter()
    for name, (owner, method) in STAGES.items():
        setattr(owner, method, _timed(getattr(owner, method), name, spent))
    rubbish, shuffled = np.zeros(2**23), np.random.default_rng(0).permutation(2**20)

    def measured(into: dict[str, list[float]], before: Callable[[], object]) -> Callable[[Callable[[], None]], None]:
        def around(run: Callable[[], None]) -> None:
            before()
            spent.clear()
            began = time.thread_time()
            run()
            into["all"].append(time.thread_time() - began)
            for name in STAGES:
                into[name].append(spent[name])

        return around

    def thrash() -> None:
        np.add(rubbish, 1.0, out=rubbish)
        shuffled[shuffled].sum()
        sum(hash(str(number)) & 1 for number in range(3000))

    for _ in range(rounds):
        replay.round(measured(warm, lambda: None))
        replay.round(measured(cold, thrash))
    section(
        "CPU time of a log event", ("stage", "warm, ms", "cold, ms"),
        [(name, *(f"{1e3 * statistics.median(times[name]):.2f}" for times in (warm, cold))) for name in warm],
        f"Medians of {rounds * LAST} log events; cold: other work has filled the caches before each. `metrics` has "
        "`states`, `values of states` and `formulas`; `evaluation` has all but the first three.",
    )  # fmt: skip


def _timed(function: Callable[..., Any], name: str, spent: Counter[str]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.thread_time()
        try:
            result = function(*args, **kwargs)
            return list(result) if name == "alerts" else result
        finally:
            spent[name] += time.thread_time() - began  # type: ignore[assignment]

    return timed


if __name__ == "__main__":
    main()
