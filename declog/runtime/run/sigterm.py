"""An opt-in handler that closes the recorder on SIGTERM, because SIGTERM skips Python's own work at exit."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

AGAIN_S = 0.01  # the seconds after which a signal that interrupted declog itself is sent again
MOST_S = 5.0  # the most seconds that a signal is put off in all
_ROOT = str(Path(__file__).parents[2]) + os.sep
_AT_WORK = tuple(f"{_ROOT}{room}{os.sep}" for room in ("runtime", "sinks", "engine"))
_AROUND = ("wrapping.py", "rewards.py", "scopes.py", "context.py", "sigterm.py")  # their functions call users' code


class Closable(Protocol):
    """A recorder."""

    def close(self, *, failed: bool = False) -> None:
        """Finish in bounded time."""


def close_on_sigterm(recorder: Closable) -> None:
    """Close a recorder when the process gets SIGTERM; then the process ends by the same signal.

    A signal that interrupts declog itself is sent again later, so that declog's call is recorded completely and no lock
    is held. A handler that was installed before is called afterwards. Call this on the main thread, as Python requires
    for signal handlers.
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
    """Whether a frame belongs to declog's own work, or is called from it."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_AT_WORK) and not file.endswith(_AROUND):
            return True
        frame = frame.f_back
    return False
