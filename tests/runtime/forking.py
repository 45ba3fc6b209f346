"""A run that forks while every thread of it is at work; run as a program: ``forking FOLDER FORKS``.

Children use the recorder in every way and end as any program ends; those that do not end in time say where they hang,
and are counted.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

import declog
from declog.runtime.recording.recorder import Recorder
from tests.forks import PATIENCE_S

PROFILE: dict[str, Any] = {
    "every": 1,
    "signals": {
        "any": {
            "x": {"axis": "completion"}, "text": {"axis": "completion", "type": "text"},
            "mask": {"axis": "token", "type": "bool"}, "kl": {"axis": "token"},
        },
    },
    "axes": {"token": {"mask": "mask"}},
    "metrics": {"x": {"reduce": ["sum", "count"]}, "kl": "mean(kl)"},
    "schemas": {"s": {"text": {"type": "text"}}}, "tables": {"t": {"schema": "s", "filter": "f"}},
    "filters": {"f": {"first": 1000000}}, "modes": {"train": {}, "eval": {"prefix": "eval/", "every": "end"}},
    "run": {"name": "forking", "capture": {"every": 1}},
    "sinks": ["jsonl", "parquet", "tensorboard"],
}  # fmt: skip
STEPS = 4


def use(log: Recorder) -> None:
    """Every call that code of a worker may make."""
    declog.observe(x=[1e9], text=["a child's"])
    declog.log_metric("child", 1e9)
    declog.log_extra("child", [1e9])
    with declog.timer("child"):
        log.observe(x=[1e9])
    with log.step(99):
        log.observe(x=[1e9], text=["a child's"])
        with log.batch("default"):
            log.log_metric("child", 1e9)
    with log.mode("eval"):
        log.observe(x=[1e9], text=["a child's"])
    log.wrap(lambda: {"x": [1e9]})()
    assert log.flush(wait_s=PATIENCE_S) is None
    for refused in (log.state_dict, log.export):
        try:
            refused()
        except declog.UsageError:
            continue
        raise AssertionError("a child has a state")
    log.close()


def ended(child: int, seconds: float) -> int | None:
    """The exit code of a child; None where it hung, and was killed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        known, status = os.waitpid(child, os.WNOHANG)
        if known:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGUSR1)  # it says where its threads are
    time.sleep(1.0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def main(folder: str, forks: int) -> None:
    """Steps with forks inside; the last child leaves through the blocks that its parent opened."""
    stop, busy = threading.Event(), threading.Event()
    codes: list[int | None] = []

    def helper() -> None:
        while busy.wait() and not stop.is_set():
            log.log_metric("helper", 1.0)
            time.sleep(0.0002)

    def fork() -> int:
        busy.set()
        time.sleep(0.005)
        child = os.fork()
        if child:
            busy.clear()  # what it logs is kept in memory: not for as long as somebody hangs
        return child

    with declog.start(PROFILE, output_dir=folder) as log:
        threading.Thread(target=helper, daemon=True).start()
        for step in range(STEPS):
            with log.step(step):
                log.observe(x=[1.0, 2.0], text=[f"{step}.0", f"{step}.1"])
                for _ in range(forks):
                    child = fork()
                    if child == 0:
                        use(log)
                        sys.exit(0)  # through every block, every handler at exit and every destructor
                    codes.append(ended(child, PATIENCE_S / 2))
        with log.mode("eval"):
            log.observe(x=[5.0], text=["eval"])
            child = fork()
            if child == 0:
                sys.exit(0)
            codes.append(ended(child, PATIENCE_S / 2))
        stop.set()
        busy.set()
    print("codes", codes, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
