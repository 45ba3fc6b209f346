"""Runs jobs of several ranks against a deadline; one that hangs is ended, and says where each thread was."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
# below those that the kernel gives to connections, so that only another job could be faster
_ports = itertools.cycle(range(random.randrange(20_000, 31_000), 32_000))


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    for port in _ports:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


@dataclass(frozen=True)
class Ended:
    """How a job ended, by rank."""

    folder: Path
    codes: tuple[int, ...]
    outputs: tuple[str, ...]
    hung: tuple[int, ...]  # ranks that had to be ended; their output ends with where each thread was


class Server:
    """Starts ranks as forks of a process with the imports done, and knows which have ended."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.server"],
            cwd=ROOT, env={**os.environ, **LOOPBACK, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._pids: dict[str, int] = {}
        self._codes: dict[str, int] = {}
        self._changed = threading.Condition()
        self._ids = itertools.count()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            for line in answers:
                answer = json.loads(line)
                with self._changed:
                    known = self._pids if "pid" in answer else self._codes
                    known[answer["id"]] = answer.get("pid", answer.get("code"))
                    self._changed.notify_all()

    def start(self, arguments: list[str], folder: Path, output: Path, environment: Mapping[str, str]) -> str:
        """Start one rank; what it is called here."""
        with self._changed:
            rank = str(next(self._ids))
            request = {"id": rank, "arguments": arguments, "folder": str(folder), "output": str(output),
                       "environment": dict(environment)}  # fmt: skip
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return rank

    def pid(self, rank: str) -> int:
        """The rank's process."""
        with self._changed:
            self._changed.wait_for(lambda: rank in self._pids, 60.0)
            return self._pids[rank]

    def wait(self, rank: str, deadline: float) -> int | None:
        """The exit code; None where it has not ended by then."""
        with self._changed:
            self._changed.wait_for(lambda: rank in self._codes, max(0.0, deadline - time.monotonic()))
            return self._codes.get(rank)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30.0)
        self._listener.join(30.0)


@contextmanager
def server() -> Iterator[Server]:
    """A server for as long as a block."""
    made = Server()
    try:
        yield made
    finally:
        made.close()


def run(made: Server, folder: Path, ranks: int, arguments: list[str], *, limit_s: float) -> Ended:
    """Run one job: every rank with the environment that torchrun would give it, in a folder of the job's own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text('[tool.declog]\nimports = ["tests.faults.sinks"]\n')
    outputs = [folder / f"output_{rank}.txt" for rank in range(ranks)]
    job = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_PORT": str(free_port())}
    started = [
        made.start(arguments, folder, outputs[rank], {**job, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(ranks)
    ]
    deadline = time.monotonic() + limit_s
    codes = [made.wait(one, deadline) for one in started]
    hung = tuple(rank for rank, code in enumerate(codes) if code is None)
    for rank in hung:
        _end(made.pid(started[rank]))
    ended = [made.wait(one, time.monotonic() + 10.0) for one in started]
    for one in started:
        _gone(made.pid(one))
    texts = tuple(output.read_text(errors="replace") if output.exists() else "" for output in outputs)
    return Ended(folder, tuple(-1000 if code is None else code for code in ended), texts, hung)


def _gone(group: int, limit_s: float = 10.0) -> None:
    """Wait until none is left of a process and its children."""
    deadline = time.monotonic() + limit_s
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.02)
        os.killpg(group, signal.SIGKILL)
        raise AssertionError(f"the children of process {group} outlive it")


def _end(pid: int) -> None:
    """Ask a process where its threads are, and end it with its children."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGUSR1)
        time.sleep(1.0)
        os.killpg(pid, signal.SIGKILL)
