"""Runs jobs of several ranks against a deadline; one that hangs is ended, and says where each thread was."""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import signal
import socket
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests import forks

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
# below those that the kernel gives to connections, so that only another job could be faster
_ports = itertools.cycle(random.sample(range(20_000, 32_000), 12_000))
_claims: deque[int] = deque()  # locked files: no other test run on this machine takes the same ports


def free_port() -> int:
    """A port of this machine that nobody listens on, nor will for a while."""
    for port in _ports:
        with socket.socket() as probe, suppress(OSError):
            claim = os.open(Path(tempfile.gettempdir(), f"declog-tests-port-{port}.lock"), os.O_CREAT | os.O_WRONLY)
            _claims.append(claim)
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if len(_claims) > 100:
                os.close(_claims.popleft())
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


def run(
    folder: Path,
    ranks: int,
    command: forks.Command,
    *,
    env: Mapping[str, str] | None = None,
    imports: tuple[str, ...] = forks.BASE,
    whole: bool = False,
    limit_s: float = forks.PATIENCE_S,
) -> Ended:
    """Run one job: every rank with the environment that torchrun would give it, in a folder of the job's own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text('[tool.declog]\nimports = ["tests.faults.sinks"]\n')
    outputs = [folder / f"output_{rank}.txt" for rank in range(ranks)]
    job = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_PORT": str(free_port())}
    places = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    started = [
        forks.start(
            command, cwd=folder, output=output, imports=imports, whole=whole,
            env=forks.environment({**LOOPBACK, **(env or {}), **job, **place}),
        )
        for output, place in zip(outputs, places, strict=True)
    ]  # fmt: skip
    deadline = time.monotonic() + limit_s
    hung = tuple(rank for rank, one in enumerate(started) if one.poll(deadline - time.monotonic()) is None)
    for rank in hung:
        started[rank].end()
    codes = tuple(one.wait() for one in started)
    for one in started:
        _gone(one.pid)
    texts = tuple(output.read_text(errors="replace") for output in outputs)
    return Ended(folder, codes, texts, hung)


def _gone(group: int, limit_s: float = forks.PATIENCE_S) -> None:
    """Wait until none is left of a process and its children."""
    deadline = time.monotonic() + limit_s
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.02)
        os.killpg(group, signal.SIGKILL)
        raise AssertionError(f"the children of process {group} outlive it")
