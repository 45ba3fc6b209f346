"""Calls back after a deadline although no other call comes; has a thread only while something waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Alarm:
    """Calls ``ring`` on a thread of its own at the set time; whatever still waits then must set the alarm again."""

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._due = 0.0
        self._timer: threading.Timer | None = None

    def set(self, seconds: float) -> None:
        """Ring within so many seconds."""
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
        """Cancel the alarm: nothing waits any more."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
