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
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from tests.benchmarks import calls, completions, tokens
from tests.benchmarks.contestants import Declog
from tests.benchmarks.measure import PAUSE_S, Aims, section

ROOT = Path(__file__).parents[2]
EARLIER = "1f9550e"  # before steps were objects
FOLDERS = ("declog", "conf", "tests/running.py", "tests/benchmarks")
NOTHING = "nothing"
WINDOWS = 40  # of one turn
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
        """Seconds of a step of one window: of those between log events, and of all, the log event's included."""
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
        return (between - began) / (self.every - 1), (ended - began) / self.every

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
    parser.add_argument("--rounds", type=int, default=3)
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
        names = [name for name in loops() if chosen.only in name]
        rows = {name: _row(name, now, before, chosen.rounds) for name in names}
    section(
        f"Beside {chosen.against}",
        ("a step of", "instructions", "of before", *(("us", "us before", "us / us before") if chosen.rounds else ())),
        [(name, *(f"{one:.2f}" for one in row)) for name, row in rows.items()],
        f"A log event each {calls.EVERY} steps. Instructions are Python's, in declog.",
        *([f"Microseconds are CPU time of the quickest of {chosen.rounds * WINDOWS} windows."] * bool(chosen.rounds)),
    )
    aims = Aims()
    aims.most(f"Python's instructions for a step, beside {chosen.against}", 1.1, [row[1] for row in rows.values()])
    aims.print()


def _row(name: str, now: Process, before: Process, rounds: int) -> tuple[float, ...]:
    """Instructions of a step now and beside before; with rounds microseconds of both, and their ratio."""
    for process in (now, before):
        process.turn(name, WINDOWS)  # for warming up
    times: tuple[float, ...] = ()
    if rounds:
        turns: dict[Process, list[float]] = {now: [], before: []}
        for place in range(rounds):
            for process in (now, before) if place % 2 else (before, now):
                turns[process] += [whole for _, whole in process.turn(name, WINDOWS)]
        least = [1e6 * min(found) for found in turns.values()]
        times = *least, least[0] / least[1]
    counted, counted_before = now.turn(name, 0), before.turn(name, 0)  # last: what was traced is slower for a while
    for process in (now, before):
        process.turn(name, None)
    return counted, counted / counted_before, *times


if __name__ == "__main__":
    main()
