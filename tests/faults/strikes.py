"""What befalls a rank, in the middle of a step or at its end, with and without declog alike."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch.distributed as dist
from torch.utils.data import DataLoader

import declog
from declog.runtime.ranks.comm import Event
from declog.runtime.ranks.message import decode, encode
from declog.runtime.ranks.store_comm import StoreComm
from declog.runtime.recording.recorder import Recorder

STEPS = 8
AT = 4  # the step in which it happens
ROWS = 3  # completions of a rank and step


@dataclass
class Run:
    """The rank that is struck; without a log where the same job runs without declog."""

    rank: int
    ranks: int
    folder: Path
    log: Recorder | None


def none(run: Run) -> None:
    """Nothing happens."""


def error(run: Run) -> None:
    """The step function has a bug."""
    raise ValueError("mine")


def leave(run: Run) -> None:
    """Code inside a step ends the program."""
    sys.exit(5)


def kill(run: Run) -> None:
    """The kernel, out of memory, or an operator: no code of the process runs any more."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_when_written(run: Run) -> None:
    """As `kill`, when the log event before is in the files: nothing but what came since may be lost."""
    written(run)
    kill(run)


def written(run: Run) -> None:
    """Wait until the log events before this step are in rank 0's files."""
    files = run.folder / "run" / "files"
    while run.log is not None and rows_in(files) < AT * ROWS * run.ranks:  # tables are the last that is written
        time.sleep(0.01)


def rows_in(files: Path) -> int:
    """How many rows of the table are in whole files; several log events may be one."""
    return sum(pq.read_metadata(file).num_rows for file in files.rglob("tables/t/*/*.parquet"))


def interrupt(run: Run) -> None:
    """Ctrl-C: a KeyboardInterrupt in the training code."""
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60.0)


def terminate(run: Run) -> None:
    """What a scheduler sends before it kills."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60.0)


def sleep(run: Run) -> None:
    """A slow rank: a step that takes long on one of them."""
    time.sleep(1.5)


def stop(run: Run) -> None:
    """All threads stand still for a while, as in a debugger, or on a host that swaps."""
    with subprocess.Popen(["sh", "-c", f"sleep 1.5; kill -CONT {os.getpid()}"]):
        os.kill(os.getpid(), signal.SIGSTOP)


def no_group(run: Run) -> None:
    """The job's process group goes before the recorder is closed."""
    dist.destroy_process_group()


def fill_disk(run: Run) -> None:
    """From here no file may grow: every write fails as on a full disk. What is printed goes through a pipe."""
    written(run)
    screen = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    assert screen.stdin is not None
    for descriptor in (1, 2):
        os.dup2(screen.stdin.fileno(), descriptor)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))


def free_disk(run: Run) -> None:
    """Somebody made room."""
    time.sleep(0.5)  # so that some log events met the full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def load_data(run: Run) -> None:
    """Workers of a DataLoader are forks: they see the recorder, and end without closing it."""
    rows: Any = range(6)
    assert list(DataLoader(rows, num_workers=2, collate_fn=observed)) == [[row] for row in rows]


def observed(rows: list[int]) -> list[int]:
    """Code of a worker that logs: nobody sees it, and nothing breaks."""
    declog.observe(reward=[1.0], kl=[[1.0]], text=["a worker's"])
    return rows


def strangers(run: Run) -> None:
    """Somebody found the port, and says what opens another store, nothing at all, and half of a greeting."""
    if run.log is None:
        return
    store: Any = run.log._background.comm._store  # type: ignore[attr-defined]
    for given in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(10), b"\xff" * 10_000, encode({}, {})):
        held = socket.create_connection((store.host, store.port), 5.0)
        with contextlib.suppress(OSError):
            held.sendall(given)
        KEPT.append(held)


KEPT: list[socket.socket] = []  # strangers hang up when they like


def evaluate(run: Run) -> None:
    """An evaluation that other ranks do not make."""
    if run.log is not None:
        with run.log.mode("eval"):
            run.log.observe(reward=[1e6], kl=[[1.0]], text=["an evaluation's"])


class Garbling(StoreComm):
    """A rank whose message of one log event is not what rank 0 can read."""

    garble: Any = None

    def send(self, event: Event, data: bytes) -> None:
        if event.number != AT or self.garble is None:
            return super().send(event, data)
        self._store.set(f"w/{event}/{self.rank}/0", self.garble(data))


def cut(data: bytes) -> bytes:
    """Half of a message."""
    return (1).to_bytes(4, "little") + data[: len(data) // 2]


def other_version(data: bytes) -> bytes:
    """A message of another version of declog."""
    return (1).to_bytes(4, "little") + data[:6] + (99).to_bytes(2, "little") + data[8:]


def other_mode(data: bytes) -> bytes:
    """A message for a window of another mode."""
    return with_other_facts(data, mode="eval")


def other_step(data: bytes) -> bytes:
    """A message of the step before."""
    return with_other_facts(data, step=AT - 1, steps=AT)


def with_other_facts(data: bytes, **others: Any) -> bytes:
    """A whole message that says something else of itself."""
    frames, meta = decode(data, None)
    return (1).to_bytes(4, "little") + encode(frames, meta | others)


def no_message(data: bytes) -> bytes:
    """What has nothing to do with declog; its first bytes say that there are four billion more chunks."""
    return b"\xff" * 100


def lacking(data: bytes) -> bytes:
    """A message whose other chunks never come."""
    return (3).to_bytes(4, "little") + data


def empty(data: bytes) -> bytes:
    """No byte at all."""
    return b""
