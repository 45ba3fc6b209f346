"""Runs Python programs as forks of one process that has the imports done, so that a program costs its work only.

Run by ``tests/forks.py``: ``fork_server SOCKET MODULE ...`` imports the modules and listens until its stdin ends.
Each client, a worker of a test run, has a fork that answers it. A request is a JSON object, and the program's stdin,
stdout and stderr as descriptors; answers are its pid, and later its exit code. A program is a process like any other:
its session, environment, folder, ``__main__`` and end are its own. Only what was imported for all is not taken apart
at its end, which takes longer than most programs do, unless it is asked for.
"""

from __future__ import annotations

import atexit
import builtins
import faulthandler
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import sys
import weakref
from contextlib import suppress
from types import ModuleType
from typing import IO, Any

Request = dict[str, Any]
REQUEST_BYTES = 2**18
MOST_BYTES, MOST_SECONDS = 8 * 2**30, 1800  # memory and CPU time of a program: what takes more has run away
_code: int | None = None  # of this program, which has run all but what the interpreter itself does at its end


def accepted(path: str) -> socket.socket | None:
    """Listen until stdin ends; in a fork, return the client that has come."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        asked: list[socket.socket | IO[str]] = [listener, sys.stdin]
        while ready := select.select(asked, [], [], None if len(asked) > 1 else 0)[0]:
            if listener in ready:
                client = listener.accept()[0]
                if os.fork() == 0:
                    return client
                client.close()
            elif sys.stdin in ready:  # those who came before are still taken
                os.unlink(path)
                asked.remove(sys.stdin)
    return None


def serve(client: socket.socket) -> tuple[Request, list[int]] | None:
    """Answer until the client is gone; in a fork, return what it was asked to run."""
    living: dict[int, int] = {}
    servers: set[int] = set()
    while True:
        if select.select([client], [], [], 0.01 if living else None)[0]:
            data, descriptors, _, _ = socket.recv_fds(client, REQUEST_BYTES, 3)
            if not data:
                for pid in living.keys() - servers:  # nobody would end them; servers see it by themselves
                    with suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
                return None
            request: Request = json.loads(data)
            pid = os.fork()
            if pid == 0:
                return request, descriptors
            living[pid] = request["id"]
            if request["program"][1] == os.path.abspath(__file__):
                servers.add(pid)
            answer(client, id=request["id"], pid=pid)
            for descriptor in descriptors:
                os.close(descriptor)
        while living and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            answer(client, id=living.pop(ended[0]), code=os.waitstatus_to_exitcode(ended[1]))


def answer(client: socket.socket, **written: int) -> None:
    """One message to the client, who may be gone."""
    with suppress(BrokenPipeError):
        client.send(json.dumps(written).encode())


def become(request: Request, descriptors: list[int]) -> None:
    """This fork is the program's process now: its own session, folder, environment and output."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
    for target, source in enumerate(descriptors):
        os.dup2(source, target)
        os.close(source)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[:] = [*filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep)), *PATH]
    importlib.invalidate_caches()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # who waits too long asks where it hangs


@atexit.register  # before any other, so that it is the last
def leave() -> None:
    """End a program that has ended."""
    if _code is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_code)


def to_its_end(request: Request) -> None:
    """Run a program, and note the exit code that the interpreter is about to end with."""
    global _code
    try:
        run(*request["program"])
        code: object = 0
    except SystemExit as ended:
        code = 0 if ended.code is None else ended.code if isinstance(ended.code, int) else 1
        raise
    except KeyboardInterrupt:
        code = None  # the interpreter ends by the signal
        raise
    except BaseException:
        code = 1
        raise
    finally:
        _code = code & 0xFF if isinstance(code, int) and not request["whole"] else None
        for finalizer in FINALIZERS:
            finalizer.atexit = _code is None


def run(how: str, what: str, arguments: list[str]) -> None:
    """What ``python -m what``, ``python -c what`` or ``python what`` runs."""
    if how == "-m":
        sys.argv = [what, *arguments]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if how == "-c":
        sys.argv = ["-c", *arguments]
        sys.path.insert(0, "")
        exec(compile(what, "<string>", "exec"), main.__dict__)
        return
    sys.argv = [what, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(what)))
    main.__file__ = what
    with open(what, "rb") as file:
        exec(compile(file.read(), what, "exec"), main.__dict__)


if __name__ == "__main__":
    PATH = [folder for folder in sys.path if folder not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    PATH.remove(os.path.dirname(os.path.abspath(__file__)))
    for name in sys.argv[2:]:
        importlib.import_module(name)
    FINALIZERS = list(weakref.finalize._registry)  # type: ignore[attr-defined]  # torch's, of each of its operators
    gc.collect()
    gc.freeze()  # what was imported is not looked through again at the end of each program
    connected = accepted(sys.argv[1])
    if connected is not None:
        with connected:
            requested = serve(connected)
        if requested is not None:
            become(*requested)
            to_its_end(requested[0])
