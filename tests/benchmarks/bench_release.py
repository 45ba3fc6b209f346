"""What recording costs beside an earlier declog: the same loops on both, in two processes that take turns.

``python -m tests.benchmarks.bench_release`` takes a commit out of the clone's history (``--against`` names another),
with its benchmarks, which write the configs in its words. It prints a Markdown table; where there is no history there
is none. Instructions of Python are counted, so that other programs on the machine change nothing; ``--rounds=0`` prints
these alone. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from tests.benchmarks import calls, completions, tokens
from tests.benchmarks.contestants import Declog
from tests.benchmarks.measure import PAUSE_S, Aims, section

ROOT = Path(__file__).parents[2]
EARLIER = "1f9550e"  # before steps were objects
FOLDERS = ("declog", "conf", "tests/running.py", "tests/benchmarks")
NOTHING = "nothing"
WINDOWS = 10  # of one turn
KINDS = "between log events", "with a log event", "all"  # of steps; the last is the mean of a window's
Calls = Sequence[Mapping[str, Any]]
Loop = tuple[Mapping[str, Any], Calls]  # a profile, and the calls of each step


def loops() -> dict[str, Loop]:
    """The steps that are compared, by name."""
    eight = calls.columns(8)
    number = json.loads(json.dumps(calls.profile(1)).replace('"completion"', '"step"'))
    found: dict[str, Loop] = {
        NOTHING: (calls.profile(1), []),
        "1 number": (number, [{"x0": torch.tensor(0.5)}]),
        "1 call of 1 column": (calls.profile(1), [calls.columns(1)]),
        "1 call of 8 columns": (calls.profile(8), [eight]),
        "8 calls of 1 column": (calls.profile(8), [{name: value} for name, value in eight.items()]),
        "1 call of 8 lists": (calls.profile(8), [{name: value.tolist() for name, value in eight.items()}]),
        "8 micro-batches of 4 columns": (calls.profile(4), [calls.columns(4)] * 8),
    }
    for metrics in (40, 200):
        batch = completions.batches(metrics, 64)[0]
        found[f"{metrics} metrics of 64 completions"] = completions.profile(metrics, calls.EVERY), [batch]
    for signals in (2, 8):
        batch = tokens.batches(signals, 64, 512, 1)[0]
        found[f"token means of {signals} signals, 64 x 512"] = (
            tokens.profile(signals, tokens.MEANS, calls.EVERY), [batch],
        )  # fmt: skip
    return found


class Loops(Declog):
    """A training loop, measured by the window."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop[0])
        self._calls = loop[1]

    def settle(self) -> float:
        if self._calls:
            return super().settle()
        time.sleep(4 * PAUSE_S)  # of nothing no sink is told
        return 0.0

    def window(self) -> tuple[float, float]:
        """Seconds of a step between log events, and of the step with the log event, both of one window."""
        log, calls, first = self.log, self._calls, self._steps
        began = time.thread_time()
        for step in range(first, first + self.every - 1):
            with log.step(step):
                for call in calls:
                    log.observe(**call)
        between = time.thread_time()
        with log.step(first + self.every - 1):
            for call in calls:
                log.observe(**call)
        ended = time.thread_time()
        self._steps += self.every
        return (between - began) / (self.every - 1), ended - between

    def instructions(self) -> float:
        """Python's instructions for a step, the log event's included; those inside libraries are not among them."""
        count = 0

        def trace(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal count
            frame.f_trace_opcodes = True
            count += event == "opcode" and "declog" in frame.f_code.co_filename
            return trace

        sys.settrace(trace)
        self.window()
        sys.settrace(None)
        return count / self.every


def serve() -> None:
    """One process: makes the turns that it is asked for, of the declog that it can import."""
    torch.set_num_threads(1)
    known = loops()
    made: Loops | None = None
    for line in sys.stdin:
        name, windows = json.loads(line)
        if windows is not None:
            made = made or Loops(known[name])
            print(json.dumps(_turn(made, windows) if windows else made.instructions()), flush=True)
        elif made is not None:
            made.close()
            made = None


def _turn(loop: Loops, windows: int) -> list[tuple[float, float]]:
    gc.collect()
    found = []
    for _ in range(windows):
        found.append(loop.window())
        loop.settle()
        time.sleep(PAUSE_S)
    return found


class Process:
    """A process with a declog of its own."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"], cwd=path, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(path), "PYTHONSAFEPATH": "1"},
        )  # fmt: skip

    def turn(self, name: str, windows: int | None) -> Any:
        """Some windows of a loop; of none its instructions; None: the loop ends."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps((name, windows)), file=self._process.stdin, flush=True)
        return None if windows is None else json.loads(self._process.stdout.readline())

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    """The table; ``--rounds`` trades time for steadiness."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--against", default=EARLIER)
    parser.add_argument("--only", default="", help="loops whose names have this in them")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        serve()
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        packed = subprocess.run(["git", "archive", chosen.against, *FOLDERS], cwd=ROOT, stdout=subprocess.PIPE)
        if packed.returncode:
            print("there is no such commit here: nothing is compared with it", file=sys.stderr)
            return
        subprocess.run(["tar", "x", "-C", folder], input=packed.stdout, check=True)
        now, before = stack.enter_context(Process(ROOT)), stack.enter_context(Process(folder))
        rows = [_row(name, now, before, chosen.rounds) for name in loops() if chosen.only in name]
    times = [f"{kind}{what}" for kind in KINDS for what in (": us", ", before", ", ratio")] if chosen.rounds else []
    section(
        f"Beside {chosen.against}",
        ("a step of", "instructions", "of before", *times),
        [row.cells for row in rows],
        f"A log event each {calls.EVERY} steps. Instructions are Python's, in declog.",
        *([f"Microseconds are CPU time of the training thread: the least (the median) of {chosen.rounds * WINDOWS} "
           "windows, and the ratio of the least."] * bool(chosen.rounds)),
    )  # fmt: skip
    aims = Aims()
    aims.most(f"Python's instructions for a step, beside {chosen.against}", 1.1, [row.instructions for row in rows])
    if chosen.rounds:
        aims.most(f"CPU time of a step, beside {chosen.against}", 1.1, [row.all_steps for row in rows])
    aims.print()


class Row(NamedTuple):
    """A line of the table, and its two ratios that are aimed at."""

    cells: Sequence[str]
    instructions: float
    all_steps: float


def _row(name: str, now: Process, before: Process, rounds: int) -> Row:
    """Instructions of a step now and beside before; with rounds microseconds of each kind of step, and their ratio."""
    turns: dict[Process, list[tuple[float, float]]] = {now: [], before: []}
    for process in turns:
        process.turn(name, 4 * WINDOWS)  # for warming up
    for number in range(rounds):
        for process in (now, before) if number % 2 else (before, now):
            turns[process] += process.turn(name, WINDOWS)
    cells, ratio = list[str](), 1.0
    for kind in range(len(KINDS)) if rounds else ():
        ours, theirs = ([1e6 * _of_kind(kind, window) for window in turns[process]] for process in (now, before))
        ratio = min(ours) / min(theirs)
        cells += [f"{min(times):.1f} ({statistics.median(times):.1f})" for times in (ours, theirs)] + [f"{ratio:.2f}"]
    counted, counted_before = now.turn(name, 0), before.turn(name, 0)  # last: what was traced is slower for a while
    for process in (now, before):
        process.turn(name, None)
    instructions = counted / counted_before
    return Row((name, f"{counted:.0f}", f"{instructions:.2f}", *cells), instructions, ratio)


def _of_kind(kind: int, window: tuple[float, float]) -> float:
    """Seconds of one of ``KINDS`` of steps in a window."""
    between, logging = window
    return (between, logging, (between * (calls.EVERY - 1) + logging) / calls.EVERY)[kind]


if __name__ == "__main__":
    main()
