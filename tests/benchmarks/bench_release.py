"""What recording costs beside an earlier release: the same loops on both, in two processes that take turns.

``python -m tests.benchmarks.bench_release`` takes the release out of the clone's history (``--against`` names another
commit), and prints a Markdown table; where there is no history there is none. Nothing is asserted.
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
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks import calls, completions, tokens
from tests.benchmarks.calls import Calls
from tests.benchmarks.contestants import Declog
from tests.benchmarks.measure import PAUSE_S, Aims, section

ROOT = Path(__file__).parents[2]
RELEASE = "f40950e"  # 0.1, without a tag: it kept references to what it was given, and stacked them at the step's end
NOTHING = "nothing"
WINDOWS = 40  # of one turn
Loop = tuple[Mapping[str, Any], Calls]  # a profile, and the calls of each step


def loops() -> dict[str, Loop]:
    """The steps that are compared, by name."""
    found: dict[str, Loop] = {NOTHING: (calls.profile(1), [])}
    found |= {name: (calls.profile(count), each) for name, (count, each) in calls.ways().items()}
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


def serve() -> None:
    """One process: makes the turns that it is asked for, of the declog that it can import."""
    torch.set_num_threads(1)
    known = loops()
    made: Loops | None = None
    for line in sys.stdin:
        name, windows = json.loads(line)
        if windows:
            made = made or Loops(known[name])
            print(json.dumps(_turn(made, windows)), flush=True)
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

    def __init__(self, *path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.bench_release", "--serve"], cwd=path[-1], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONSAFEPATH": "1"},
        )  # fmt: skip

    def turn(self, name: str, windows: int) -> list[tuple[float, float]]:
        """Some windows of a loop."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps((name, windows)), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline()) if windows else []

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
    parser.add_argument("--against", default=RELEASE)
    parser.add_argument("--only", default="", help="loops whose names have this in them")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        serve()
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        packed = subprocess.run(["git", "archive", chosen.against, "declog", "conf"], cwd=ROOT, stdout=subprocess.PIPE)
        if packed.returncode:
            print("there is no such commit here: nothing is compared with it", file=sys.stderr)
            return
        subprocess.run(["tar", "x", "-C", folder], input=packed.stdout, check=True)
        now, before = stack.enter_context(Process(ROOT)), stack.enter_context(Process(folder, ROOT))
        names = [name for name in loops() if chosen.only in name]
        rows = {name: _row(name, now, before, chosen.rounds) for name in names}
    against = "0.1" if chosen.against == RELEASE else chosen.against
    section(
        f"Beside release {against}",
        ("a step of", "us, now", "us, before", "now / before", "between log events", "of rounds"),
        [
            (name, f"{us:.1f}", f"{us_before:.1f}", *(f"{one:.2f}" for one in rest))
            for name, (us, us_before, *rest) in rows.items()
        ],
        f"A log event each {calls.EVERY} steps; the quickest of {chosen.rounds * WINDOWS} windows of each, which take "
        "turns; `of rounds`: the median of the ratios of each round's medians.",
    )
    aims = Aims()
    aims.most(f"`observe`, beside release {against}", 1.1, [row[2] for name, row in rows.items() if name != NOTHING])
    aims.most(
        f"a step of nothing, beside release {against}", 1.1, [row[2] for name, row in rows.items() if name == NOTHING]
    )
    aims.print()


def _row(name: str, now: Process, before: Process, rounds: int) -> tuple[float, ...]:
    """Microseconds now and before; ratios of these, of those between log events, and of each round's medians."""
    for process in (now, before):
        process.turn(name, WINDOWS)  # for warming up
    both: list[tuple[list[tuple[float, float]], list[tuple[float, float]]]] = []
    for place in range(rounds):
        if place % 2:
            earlier, later = before.turn(name, WINDOWS), now.turn(name, WINDOWS)
        else:
            later, earlier = now.turn(name, WINDOWS), before.turn(name, WINDOWS)
        both.append((later, earlier))
    for process in (now, before):
        process.turn(name, 0)
    best = [
        [min(one[place] for turn in turns for one in turn) for place in (0, 1)] for turns in zip(*both, strict=True)
    ]
    rounds_of = [
        statistics.median(a[1] for a in later) / statistics.median(b[1] for b in earlier) for later, earlier in both
    ]
    (between, whole), (between_before, whole_before) = best
    ratios = whole / whole_before, between / between_before, statistics.median(rounds_of)
    return whole * 1e6, whole_before * 1e6, *ratios


if __name__ == "__main__":
    main()
