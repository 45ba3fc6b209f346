"""One line at the bottom of a terminal, erased before anything else prints.

The line is drawn only while the cursor is at the start of an empty row, not beside a progress bar or an unfinished
row. To know the position of the cursor, ``LiveLine`` watches all writes to ``sys.stdout`` and ``sys.stderr``. It does
not see the output of other processes, which may once appear to the right of the line.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

CLEARED = "\r\x1b[K"
PATIENCE_S = 0.1  # a print waits no longer for the lock: a fork may have inherited it locked


class LiveLine:
    """A line to draw. Call ``begin`` and ``end`` once, and ``draw`` from any thread.

    ``on``: there is a terminal to draw on. ``free``: the cursor is at the start of an empty row.
    """

    def __init__(self) -> None:
        self.on = False
        self.free = True
        self._descriptor, self._encoding = -1, "utf-8"
        self._shown = False
        self._lock = threading.RLock()
        self._heard: list[tuple[TextIO, Callable[[str], int], Callable[[str], int]]] = []

    def begin(self) -> None:
        """Watch from now on; draws nothing if stdout is no terminal or cannot be watched."""
        if not sys.stdout.isatty():
            return
        with suppress(AttributeError, OSError, ValueError):  # a stand-in for stdout
            self._descriptor, self._encoding = sys.stdout.fileno(), sys.stdout.encoding
            for stream in {id(stream): stream for stream in (sys.stdout, sys.stderr) if stream.isatty()}.values():
                self._hear(stream)
            self.on = True

    def draw(self, text: str) -> None:
        """Show the line in place of the last one, cut at the terminal's width."""
        with self._lock:
            if not self.on or not self.free:
                return
            room = os.get_terminal_size(self._descriptor).columns - 1
            if room > 0:
                self._put(CLEARED + text[:room])
                self._shown = True

    def end(self) -> None:
        """Erase the line, and stop watching."""
        with self._lock:
            self._clear()
            self.on = False
            for stream, write, wrapper in self._heard:
                if stream.write is wrapper:  # otherwise other code has wrapped it again
                    stream.write = write  # type: ignore[method-assign]

    def _hear(self, stream: TextIO) -> None:
        write = stream.write

        def heard(text: str) -> int:
            has = self._lock.acquire(timeout=PATIENCE_S)
            try:
                self._clear()
                written = write(text)
                self.free = self._is_free(text)
                return written
            finally:
                if has:
                    self._lock.release()

        stream.write = heard  # type: ignore[method-assign]
        self._heard.append((stream, write, heard))

    def _is_free(self, text: str) -> bool:
        """Whether the cursor is at the start of an empty row after a text was written."""
        _, ended, row = text.rpartition("\n")
        erased = row.startswith("\r") and row != "\r"  # blanks over an earlier row
        return not row.strip(" \r") and (bool(ended) or erased or self.free)

    def _clear(self) -> None:
        if self._shown:
            self._shown = False
            self._put(CLEARED)

    def _put(self, text: str) -> None:
        with suppress(OSError):  # the terminal was closed
            os.write(self._descriptor, text.encode(self._encoding, "replace"))
