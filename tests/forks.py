"""Python programs for tests, as forks of a process that has torch, declog and pandas imported: see ``fork_server``.

``run`` is ``subprocess.run([sys.executable, ...])`` and ``start`` is ``subprocess.Popen``, without the seconds that a
fresh interpreter takes to import torch. Where the interpreter's own start is what is tested, use ``subprocess``. A
server is made when it is first needed, one for all workers of a test run, and forks of it where a trainer is imported
too.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]
PATIENCE_S = 300.0  # for what takes seconds: a busy machine is no failure
BASE = ("torch.distributed", "torch.utils.data", "pandas", "pyarrow.fs", "pyarrow.parquet", "hydra", "declog.api",
        "httpx", "declog.runtime.recording.recorder", "declog.sinks.jsonl", "declog.sinks.parquet", "torch._dynamo",
        "tests.warm")  # fmt: skip
TRAINER = (*BASE, "datasets", "transformers.trainer", "transformers.models.qwen2", "accelerate")
TRL = (*TRAINER, "trl.trainer.grpo_trainer", "trl.trainer.rloo_trainer")
TORCHRUN = ("-m", "torch.distributed.run", "--start-method=fork", "--run-path")  # its workers import nothing again
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}  # nothing is downloaded
Command = Sequence[str | Path]


class Fork:
    """A process that a server started, with the methods of ``subprocess.Popen`` that tests use."""

    def __init__(self, server: Server, id: int, pid: int, stdin: IO[str] | None, stdout: IO[str] | None) -> None:
        self._server, self._id = server, id
        self.pid = pid
        self.stdin, self.stdout = stdin, stdout

    def poll(self, timeout: float = 0.0) -> int | None:
        """The exit code; None where it has not ended by then."""
        return self._server.wait(self._id, max(0.0, timeout))

    def wait(self, timeout: float = PATIENCE_S) -> int:
        """The exit code, once it has ended."""
        code = self._server.wait(self._id, timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Signal it, if it is still there."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def end(self) -> None:
        """Ask it where its threads are, and end it with its children."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
            os.kill(self.pid, signal.SIGUSR1)
            time.sleep(1.0)
            os.killpg(self.pid, signal.SIGKILL)

    def __enter__(self) -> Fork:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None:  # nobody would tell it to end
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        for stream in (self.stdin, self.stdout):
            if stream is not None:
                stream.close()
        self.wait()


class Server:
    """A process with ``imports`` done that starts programs as its forks, and knows which have ended.

    It is a fork of one that all workers of a test run share: who needs it first starts that one, and ends it.
    """

    def __init__(self, imports: Sequence[str], base: tuple[str, ...] = ()) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._shared: tuple[subprocess.Popen[bytes] | Fork, int] | None = None
        parent = server(base) if base else None
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
        name = f"declog-forks-{run}-{zlib.crc32(' '.join(imports).encode())}"
        place = str(Path(tempfile.gettempdir(), name))
        with open(Path(tempfile.gettempdir(), f"declog-forks-{os.getuid()}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._connected(place):
                self._shared = self._listening(place, imports[len(base) :], parent)
                deadline = time.monotonic() + PATIENCE_S
                while not self._connected(place):
                    assert time.monotonic() < deadline, "the fork server does not begin"
                    time.sleep(0.02)
        self.codes: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._started = 0
        self._changed = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _connected(self, place: str) -> bool:
        with suppress(FileNotFoundError, ConnectionRefusedError):
            self._socket.connect(place)
            return True
        return False

    def _listening(
        self, place: str, imports: Sequence[str], parent: Server | None
    ) -> tuple[subprocess.Popen[bytes] | Fork, int]:
        """The process for all workers, and the descriptor whose end ends it."""
        Path(place).unlink(missing_ok=True)
        command = [str(ROOT / "tests" / "fork_server.py"), place, *imports]
        reads, writes = os.pipe()
        try:
            if parent is None:
                made = subprocess.Popen([sys.executable, *command], cwd=ROOT, env=environment(OFFLINE), stdin=reads)
                return made, writes
            id, pid = parent.start(command, ROOT, environment(OFFLINE), True, reads, 1, 2)
            return Fork(parent, id, pid, None, None), writes
        finally:
            os.close(reads)

    def _listen(self) -> None:
        while answer := self._socket.recv(2**12):
            written = json.loads(answer)
            with self._changed:
                (self._pids if "pid" in written else self.codes)[written["id"]] = written.get(
                    "pid", written.get("code")
                )
                self._changed.notify_all()

    def start(
        self, command: Command, cwd: Path, env: Mapping[str, str], whole: bool, stdin: int, stdout: int, stderr: int
    ) -> tuple[int, int]:
        """Start a program; what it is called here, and its pid."""
        first, *others = map(str, command)
        program = (first, others[0], others[1:]) if first in ("-c", "-m") else ("", first, others)
        with self._changed:
            self._started += 1
            id = self._started
            request = {"id": id, "program": program, "cwd": str(cwd), "env": dict(env), "whole": whole}
            socket.send_fds(self._socket, [json.dumps(request).encode()], [stdin, stdout, stderr])
            assert self._changed.wait_for(lambda: id in self._pids, PATIENCE_S), "the fork server does not answer"
            return id, self._pids[id]

    def wait(self, id: int, timeout: float) -> int | None:
        """The exit code; None where it has not ended by then."""
        with self._changed:
            self._changed.wait_for(lambda: id in self.codes, timeout)
            return self.codes.get(id)

    def close(self) -> None:
        """End the server, and all that still runs."""
        self._socket.shutdown(socket.SHUT_WR)
        self._listener.join(PATIENCE_S)
        self._socket.close()
        if self._shared is not None:
            process, writes = self._shared
            os.close(writes)
            process.wait(PATIENCE_S)


_servers: dict[tuple[str, ...], Server] = {}
_making = threading.RLock()


def server(imports: tuple[str, ...] = BASE) -> Server:
    """The server with these imports, made once: a fork of the one that has most of them."""
    with _making:
        if imports not in _servers:
            known = max(
                (each for each in (BASE, TRAINER) if each == imports[: len(each)] != imports), key=len, default=()
            )
            _servers[imports] = Server(imports, known)
        return _servers[imports]


def close() -> None:
    """End all servers."""
    with _making:
        while _servers:
            _servers.popitem()[1].close()


def environment(others: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, with the sources to import and one thread of torch."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(others or {})}


def start(
    command: Command,
    *,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    output: Path | None = None,
    imports: tuple[str, ...] = BASE,
    talks: bool = False,
    whole: bool = False,
) -> Fork:
    """Start ``python command`` and go on; what it prints is in the file ``output``, or stdout is a pipe to read.

    With ``talks`` its stdin is a pipe to write to; with ``whole`` its interpreter takes itself apart at the end, too,
    which is for tests of that.
    """
    made = server(imports)
    reads = writes = None
    if talks:
        stdin, writes = os.pipe()
    else:
        stdin = os.open(os.devnull, os.O_RDONLY)
    if output is None:
        reads, stdout = os.pipe()
        stderr = os.dup(2)
    else:
        stdout = stderr = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    try:
        id, pid = made.start(command, cwd, environment() if env is None else env, whole, stdin, stdout, stderr)
    finally:
        for descriptor in {stdin, stdout, stderr}:
            os.close(descriptor)
    return Fork(
        made, id, pid, None if writes is None else open(writes, "w", encoding="utf-8"),
        None if reads is None else open(reads, encoding="utf-8"),
    )  # fmt: skip


def run(
    command: Command,
    *,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    input: str = "",
    timeout: float = PATIENCE_S,
    imports: tuple[str, ...] = BASE,
    whole: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run ``python command`` to its end, as ``subprocess.run(..., capture_output=True, text=True)`` does."""
    made = server(imports)
    with _file(input) as stdin, _file() as stdout, _file() as stderr:
        id, pid = made.start(
            command, cwd, environment() if env is None else env, whole,
            stdin.fileno(), stdout.fileno(), stderr.fileno(),
        )  # fmt: skip
        code = made.wait(id, timeout)
        if code is None:
            Fork(made, id, pid, None, None).end()
            raise subprocess.TimeoutExpired(list(map(str, command)), timeout, _read(stdout), _read(stderr))
        return subprocess.CompletedProcess(list(map(str, command)), code, _read(stdout), _read(stderr))


def python(code: str, *arguments: str, env: Mapping[str, str] | None = None, imports: tuple[str, ...] = BASE) -> str:
    """What a program prints; a failure shows its stderr."""
    done = run(["-c", code, *arguments], env=environment(env), imports=imports)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _file(text: str = "") -> IO[bytes]:
    """An unnamed file that holds a text."""
    file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(text.encode())
    file.flush()
    file.seek(0)
    return file


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")
