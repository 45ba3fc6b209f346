"""A terminal for tests: a real pty, and on its other side what a person would see of it."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

import pyte

from tests.forks import PATIENCE_S

MARK = b"\0"  # which no terminal shows


class Terminal:
    """A pty of some columns. ``stream`` is a text stream to write to; ``rows`` are its rows that are not empty."""

    def __init__(self, columns: int = 80, rows: int = 50) -> None:
        self._size = rows, columns
        self._screen = pyte.Screen(columns, rows)
        self._fed = pyte.ByteStream(self._screen)
        self._reads, writes = os.openpty()
        self.stream = open(writes, "w", buffering=1, encoding="utf-8")  # noqa: SIM115
        self._lock = threading.Lock()
        self._marks = self._seen = 0
        self.resize(columns)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def resize(self, columns: int) -> None:
        """Somebody makes the window wider or narrower."""
        fcntl.ioctl(self._reads, termios.TIOCSWINSZ, struct.pack("HHHH", self._size[0], columns, 0, 0))
        with self._lock:
            self._screen.resize(self._size[0], columns)

    @property
    def rows(self) -> list[str]:
        """What it shows, when all that was written until now is read."""
        self.stream.flush()
        self._marks += 1
        os.write(self.stream.fileno(), MARK)
        self.wait_for(lambda: self._seen == self._marks)
        return self.now

    @property
    def now(self) -> list[str]:
        """What it shows at this moment."""
        with self._lock:
            return [row.rstrip() for row in self._screen.display if row.strip()]

    def wait_for(self, true: Callable[[], bool]) -> None:
        """Until something is so."""
        end = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < end, self.now
            time.sleep(0.005)

    def _read(self) -> None:
        with suppress(OSError):  # the other side is closed
            while data := os.read(self._reads, 2**16):
                with self._lock:
                    self._fed.feed(data)
                    self._seen += data.count(MARK)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stream.close()
        self._reader.join(PATIENCE_S)
        os.close(self._reads)
