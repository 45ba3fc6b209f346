"""SIGTERM skips what Python does at exit: an opt-in handler closes the recorder first. Standard library only."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

AGAIN_S = 0.01  # how long a signal that comes while declog is at work waits before it is sent again
MOST_S = 5.0  # and how long in all
_ROOT = str(Path(__file__).parents[2]) + os.sep
_AT_WORK = tuple(f"{_ROOT}{room}{os.sep}" for room in ("runtime", "sinks", "engine"))
_AROUND = ("wrapping.py", "rewards.py", "scopes.py", "context.py", "sigterm.py")  # functions that call code of others


class Closable(Protocol):
    """A recorder."""

    def close(self, *, failed: bool = False) -> None:
        """Finish in bounded time."""


def close_on_sigterm(recorder: Closable) -> None:
    """Close a recorder when the process gets SIGTERM; the process then ends by the same signal, as it would have.

    A signal that interrupts declog itself is sent again, so that a call is recorded as a whole and no lock is held. A
    handler that was installed before is called afterwards. For the main thread only, as all signal handlers are.
    """
    first: list[float] = []

    def handle(number: int, frame: FrameType | None) -> Any:
        now = time.monotonic()
        first.append(now)
        if at_work(frame) and now - first[0] < MOST_S:
            again = threading.Timer(AGAIN_S, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
        recorder.close(failed=True)
        signal.signal(number, signal.SIG_DFL if before is None else before)
        if callable(before):
            before(number, frame)
        else:
            os.kill(os.getpid(), number)

    before = signal.signal(signal.SIGTERM, handle)


def at_work(frame: FrameType | None) -> bool:
    """Whether a frame is of declog's own work, or is called by it."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_AT_WORK) and not file.endswith(_AROUND):
            return True
        frame = frame.f_back
    return False
