"""The call log: every call of a recorder passes it, in order. This one keeps nothing, and says what time it is.

``capture.py`` has one that writes the calls to a file, ``replay/playback.py`` one that stands still at a written time.
Imports nothing of declog.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from declog.runtime.batches import Holder
    from declog.runtime.scopes import Scope

_NOTHING = nullcontext()


class CallLog:
    """Keeps nothing: a recorder that is not captured."""

    keeps = False

    def __init__(self) -> None:
        self._started = time.perf_counter()

    def call(self, name: str, *what: Any, at: Scope | Holder | None = None) -> AbstractContextManager[None]:
        """A call that changes what will be logged, entered before it is executed; in which scope, and by which task."""
        return _NOTHING

    def elapsed(self) -> float:
        """Seconds since the recorder's start, as ``elapsed`` in expressions."""
        return time.perf_counter() - self._started

    def resume(self, elapsed: float) -> None:
        """The run had taken so many seconds when it was interrupted."""
        self._started -= elapsed

    def logged(self, mode: str) -> None:
        """A log event of a mode was handed to the worker, inside a call."""

    def in_child(self) -> None:
        """This process is a fork of the run's: what is kept here is not written."""

    def close(self) -> None:
        """The run is over."""
