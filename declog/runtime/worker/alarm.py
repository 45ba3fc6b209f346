"""An alarm that calls back at a deadline without any other call; it has a thread only while it is set."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Alarm:
    """Calls ``ring`` at the set time, on a separate thread; to ring again, the alarm must be set again."""

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._due = 0.0
        self._timer: threading.Timer | None = None

    def set(self, seconds: float) -> None:
        """Ring in ``seconds``, or earlier if an earlier time is already set."""
        due, timer = time.monotonic() + seconds, self._timer
        if timer is not None and timer.is_alive():
            if self._due <= due:
                return
            timer.cancel()
        self._due = due
        self._timer = threading.Timer(seconds, self._call)
        self._timer.daemon = True
        self._timer.start()

    def _call(self) -> None:
        self._timer = None
        self._ring()

    def cancel(self) -> None:
        """Cancel the alarm."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
