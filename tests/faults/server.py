"""Starts ranks as forks of one process that has imported torch and declog, so that a rank costs its work only.

A rank is a process like any other: what it does, how it is killed and how its interpreter ends are its own. Requests
are JSON lines on stdin; answers are the rank's pid, and later its exit code.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pandas  # noqa: F401  (these imports are what is shared)
import pyarrow.fs
import pyarrow.parquet  # noqa: F401

import declog.api
import declog.sinks.jsonl
import declog.sinks.parquet  # noqa: F401
from tests.faults import resuming, soaking, starting, training

Request = dict[str, Any]
PROGRAMS: Mapping[str, Callable[..., None]] = {
    "training": training.main, "resuming": resuming.main, "soaking": soaking.main,
    "starting": starting.main,
}  # fmt: skip


def serve() -> Request | None:
    """Answer until stdin ends; in a fork, return what it was asked to run."""
    living: dict[int, str] = {}
    text = b""
    while True:
        if select.select([0], [], [], 0.02 if living else None)[0]:
            data = os.read(0, 2**16)
            if not data:
                return None
            *lines, text = (text + data).split(b"\n")
            for line in lines:
                request: Request = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    return request
                living[pid] = request["id"]
                tell(id=request["id"], pid=pid)
        while living and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            tell(id=living.pop(ended[0]), code=os.waitstatus_to_exitcode(ended[1]))


def tell(**answer: object) -> None:
    """One line to who started the server."""
    os.write(1, json.dumps(answer).encode() + b"\n")


def become(request: Request) -> None:
    """This fork is the rank now: its own session, folder, environment and output."""
    os.setsid()
    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    nothing, output = (
        os.open(os.devnull, os.O_RDONLY),
        os.open(request["output"], os.O_CREAT | os.O_WRONLY | os.O_TRUNC),
    )
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # who waits too long asks where it hangs


if __name__ == "__main__":
    gc.freeze()  # what was imported is not looked through again at the end of each rank
    asked = serve()
    if asked is not None:
        become(asked)
        program, *arguments = asked["arguments"]
        sys.argv = [program, *arguments]
        PROGRAMS[program](*arguments)
