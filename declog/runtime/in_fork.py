"""A recorder in a fork of its process, such as a DataLoader's worker. Imports the recorder."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from declog.errors import UsageError
from declog.runtime.recorder import Recorder
from declog.runtime.scopes import Scope

log = logging.getLogger("declog")


class InFork(Recorder):
    """It records nothing, and says so once."""

    _warned = False

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        if not self._warned:
            self._warned = True
            log.warning("%s", UsageError.of("DL510.in_fork", process=os.getpid()))

    def _refused(self, *args: Any, **kwargs: Any) -> Any:
        raise UsageError.of("DL510.fork")

    def _pass(self, *args: Any, **kwargs: Any) -> None:
        """The ends of blocks that the fork came out of, and what asks nothing of anybody."""

    observe = _observe = _observe_in = _metrics_in = _extra_in = flush = merge = rewind = _nothing
    state_dict = load_state_dict = export = _refused
    close = in_child = _open = _end = _count_packets = _pass

    @contextmanager
    def _timer_in(self, scope: Scope | None, name: str) -> Iterator[None]:
        yield  # a fork has no device
