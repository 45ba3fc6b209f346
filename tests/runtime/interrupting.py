"""Runs that are interrupted, each in a process of its own, and what is wrong with their files, as JSON.

interrupting FOLDER lines SIGNAL STRIDE FIRST   at each STRIDE-th line that declog executes in two steps, from FIRST on
interrupting FOLDER worker STRIDE FIRST         an exception at lines of the worker thread, while it does log events
interrupting FOLDER times SEED COUNT            SIGINT and SIGTERM at random moments, with more sinks
"""

from __future__ import annotations

import atexit
import dis
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pandas  # noqa: F401  (so that no child imports it)
import pyarrow.parquet  # noqa: F401
import torch
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

import declog
import declog.runtime.recording.recorder
import declog.sinks.jsonl
import declog.sinks.parquet

STEPS = 5
ROWS = 2
LIMIT_S = 300.0  # on a machine that has other things to do
PROFILE: dict[str, Any] = {
    "run": {"name": "interrupted"},
    "signals": {"any": {name: {"axis": "completion"} for name in "xab"}
    | {"t": {"axis": "completion", "type": "text"}, "loss": {"axis": "step"}}},
    "metrics": {
        "n": "count(x)", "x": "last(x)", "na": "count(a)", "nb": "count(b)", "pairs": "count(a + b)", "loss": "loss",
    },
    "tables": {"t": {"columns": ["t", "x"]}},
    "sinks": ["jsonl"],
}  # fmt: skip
MORE: dict[str, Any] = {**PROFILE, "sinks": ["jsonl", "parquet", "tensorboard"]}
WHOLE = {"n": ROWS, "na": ROWS, "nb": ROWS, "pairs": ROWS}
RAISING = ("CALL", "BINARY", "FOR_ITER", "BUILD", "BEFORE_WITH", "STORE_SUBSCR", "COMPARE", "CONTAINS")  # opcodes
Strike = Callable[[FrameType], None]


def step(log: Any, number: int) -> None:
    """Three calls: rows with texts, two columns, and a number."""
    with log.step(number):
        log.observe(x=[float(number)] * ROWS, t=["a", "b"])
        log.observe(a=[1.0] * ROWS, b=[2.0] * ROWS)
        log.observe(loss=float(number))


def train(
    folder: Path, profile: dict[str, Any], steps: int, around: Callable[[int], Any] = lambda number: None
) -> None:
    """That it has begun is noted, and each finished step: what strikes before `with` has the run is of no run yet."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with declog.start(profile, output_dir=folder / "run", on_sigterm="close") as log:
        (folder / "begun").touch()
        for number in range(steps):
            around(number)
            step(log, number)
            with (folder / "done").open("ab", buffering=0) as file:
                file.write(b".")


def _opcodes(frame: FrameType) -> list[str]:
    """Those of the line that a frame begins."""
    names = list[str]()
    for item in dis.get_instructions(frame.f_code):
        if item.offset >= frame.f_lasti:
            if names and item.starts_line is not None:
                break
            names.append(item.opname)
    return names


def may_interrupt(frame: FrameType) -> bool:
    """Whether a signal may be handled at the line that a frame begins: not where a `with` ends, also by `return`.

    Its line begins once more, with three times None for `__exit__`: Python looks for signals behind that call only. An
    exception in front of it, which is the tracer's alone, would keep the lock.
    """
    names = _opcodes(frame)
    return names[names[:1] == ["SWAP"] :][:3] != ["LOAD_CONST"] * 3


def may_raise(frame: FrameType) -> bool:
    """Whether Python itself may raise at the line that a frame begins: it calls something."""
    return may_interrupt(frame) and any(name.startswith(RAISING) for name in _opcodes(frame))


class Lines:
    """Counts the lines of declog that a thread executes, and strikes at one of them, or at the next that ``may``.

    With ``locks`` also those of ``threading``: an interrupt inside of it may keep a lock.
    """

    def __init__(
        self, at: int, strike: Strike, may: Callable[[FrameType], bool] = lambda frame: True, *, locks: bool = False
    ) -> None:
        self.count = 0
        self._at = at
        self._strike = strike
        self._may = may
        self._places = (f"{os.sep}declog{os.sep}", threading.__file__) if locks else (f"{os.sep}declog{os.sep}",)
        self._due = False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._line if any(place in frame.f_code.co_filename for place in self._places) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self.count += 1
            self._due = self._due or self.count == self._at
            if self._due and self._may(frame):
                self._due = False
                self._strike(frame)
        return self._line


def at_lines(folder: Path, number: int, at: int) -> None:
    """Strike while steps 1 and 2 are recorded, or while the last one is, and the run ends."""
    lines = Lines(at, lambda frame: os.kill(os.getpid(), number), may_interrupt, locks=True)

    def around(step: int) -> None:
        sys.settrace(lines if step in (1, 2, STEPS - 1) else None)

    train(folder, PROFILE, STEPS, around)
    sys.settrace(None)
    (folder / "lines").write_text(str(lines.count))


def in_worker(folder: Path, at: int) -> None:
    """An exception in the worker, which nothing but one log event may cost."""

    def strike(frame: FrameType) -> None:
        raise MemoryError("injected")

    lines = Lines(at, strike, may_raise)
    threading.settrace(lambda *args: lines(*args) if threading.current_thread().name == "declog-worker" else None)
    train(folder, PROFILE, STEPS)
    (folder / "lines").write_text(str(lines.count))


def child(run: Callable[[], None], delay: Callable[[int], None] | None = None) -> int | str:
    """The exit code of a fork that runs; what hangs is ended."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            logging.disable(logging.CRITICAL)
            run()
            code = 0
        except KeyboardInterrupt:
            code = 130
        finally:
            sys.settrace(None)
            atexit._run_exitfuncs()  # as where a process ends by itself
            os._exit(code)
    if delay is not None:
        delay(pid)
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "it hangs"


def lines_of(folder: Path, name: str) -> list[Any]:
    """What is in a file of jsonl, if it is there."""
    with suppress(FileNotFoundError):
        return [json.loads(line) for line in (folder / "run" / "jsonl" / name).read_text().splitlines()]
    return []


def problems(folder: Path, code: int | str, codes: set[int], lost: int = 0) -> Iterator[str]:
    """What is wrong: a finished step that is not there, or the half of a call. ``lost``: so many log events may be."""
    if code not in codes:
        yield f"it ended with {code}"
    if not (folder / "run" / "run.json").exists():
        return
    state = json.loads((folder / "run" / "run.json").read_text())
    if state["state"] == "running" and (folder / "begun").exists():
        yield "it is not closed"
    done = (folder / "done").stat().st_size - 1 if (folder / "done").exists() else -1
    found: dict[int, dict[str, float]] = {}
    texts: Counter[int] = Counter()
    for line in lines_of(folder, "scalars.jsonl"):
        found.setdefault(line["step"], {}).update(line["scalars"])
    for line in lines_of(folder, "tables/t.jsonl"):
        texts[line["step"]] += 1
    missing = [number for number in range(done + 1) if {key: found.get(number, {}).get(key) for key in WHOLE} != WHOLE]
    if len(missing) > lost or (missing and not (lost and state.get("failures"))):
        yield f"of steps to {done} {missing} are not whole: {[found.get(number) for number in missing]}"
    for number, values in found.items():
        n, pairs = values.get("n"), {values.get("na"), values.get("nb"), values.get("pairs")}
        rows = {n or 0, 0} if lost else {n or 0}  # a table that fails costs its own rows
        if n not in (None, ROWS) or texts[number] not in rows or pairs - {None, ROWS} or len(pairs) > 1:
            yield f"step {number} has the half of a call: {values}, {texts[number]} rows"
    if set(texts) - set(found):
        yield f"rows of steps {set(texts) - set(found)} stand alone"


def others(folder: Path) -> Iterator[str]:
    """The other sinks have what jsonl has: all scalars and all rows of the table."""
    if not (folder / "run" / "run.json").exists():
        return
    scalars = {
        (line["step"], name, value)
        for line in lines_of(folder, "scalars.jsonl") for name, value in line["scalars"].items()
    }  # fmt: skip
    rows = [(line["step"], line["t"], line["x"]) for line in lines_of(folder, "tables/t.jsonl")]
    if not scalars:
        return
    read = declog.read(folder / "run")
    parquet = {(row["step"], row["name"], row["value"]) for row in read.scalars}
    if parquet != scalars:
        yield f"{sorted(parquet ^ scalars)} in jsonl or parquet alone"
    if (found := [(row["step"], row["t"], row["x"]) for row in read.tables["t"]]) != rows:
        yield f"rows {rows} in jsonl, and {found} in parquet"
    events = [
        (event.step, value)
        for path in sorted((folder / "run" / "tensorboard").glob("events.out.tfevents.*"))
        for event in LegacyEventFileLoader(str(path)).Load() for value in event.summary.value
    ]  # fmt: skip
    board = {(step, value.tag, value.simple_value) for step, value in events if value.HasField("simple_value")}
    if board != scalars:
        yield f"{sorted(board ^ scalars)} in jsonl or tensorboard alone"
    tables = [step for step, value in events if value.tag == "t"]
    if tables != sorted({step for step, _, _ in rows}):
        yield f"a table of steps {tables} in tensorboard, and rows {rows} in jsonl"


def main() -> None:
    """One way, as the arguments say; a JSON list of what was struck, and what is wrong."""
    torch.set_num_threads(1)
    declog.plan(MORE)
    folder, way, *rest = Path(sys.argv[1]), *sys.argv[2:]
    struck: list[str] = []
    wrong: list[str] = []

    def check(place: Path, what: str, found: Iterator[str]) -> None:
        struck.append(what)
        wrong.extend(f"{what}: {text}" for text in found)

    if way == "times":
        chance = random.Random(int(rest[0]))
        for turn in range(int(rest[1])):
            place = folder / str(turn)
            place.mkdir()
            number = chance.choice([signal.SIGINT, signal.SIGTERM])
            seconds = chance.uniform(0.05, 1.5)

            def strike(pid: int, number: int = number, seconds: float = seconds) -> None:
                time.sleep(seconds)
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

            code = child(lambda place=place: train(place, MORE, 400), strike)  # type: ignore[misc]
            check(place, f"{number.name} after {seconds:.3f} s", problems(place, code, {0, 130, -number, 1}))
            wrong.extend(f"{number.name} after {seconds:.3f} s: {text}" for text in others(place))
        print(json.dumps({"struck": len(struck), "wrong": wrong}))
        return
    first, stride = int(rest[-1]), int(rest[-2])
    sent = signal.Signals[rest[0]] if way == "lines" else None

    def once(at: int) -> Path:
        place = folder / str(at)
        place.mkdir()
        if sent is not None:
            code = child(lambda: at_lines(place, sent, at))
            check(place, f"{sent.name} at line {at}", problems(place, code, {0, 130, -sent}))
        else:
            code = child(lambda: in_worker(place, at))
            check(place, f"an exception at line {at} of the worker", problems(place, code, {0}, lost=1))
        return place

    total = int((once(10**9) / "lines").read_text())
    for at in range(first, total + 1, stride):
        once(at)
    print(json.dumps({"struck": len(struck), "wrong": wrong}))


if __name__ == "__main__":
    main()
