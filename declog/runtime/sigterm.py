"""SIGTERM skips what Python does at exit: an opt-in handler closes the recorder first. Standard library only."""

from __future__ import annotations

import os
import signal
from typing import Any, Protocol


class Closable(Protocol):
    """A recorder."""

    def close(self, *, failed: bool = False) -> None:
        """Finish in bounded time."""


def close_on_sigterm(recorder: Closable) -> None:
    """Close a recorder when the process gets SIGTERM; the process then ends as it would have, by the same signal.

    A handler that was there before is called afterwards. For the main thread only, as all handlers of signals.
    """

    def handle(number: int, frame: Any) -> None:
        recorder.close(failed=True)
        signal.signal(number, signal.SIG_DFL if before is None else before)
        if callable(before):
            before(number, frame)
        else:
            os.kill(os.getpid(), number)

    before = signal.signal(signal.SIGTERM, handle)
