"""What goes wrong behind the training thread's back: counted, and the first of a kind told at once.

Imports errors only.
"""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass, field

from declog.errors import RuntimeFailure

log = logging.getLogger("declog")


@dataclass
class Failures:
    """Counts by message; ``first`` is the first of all."""

    counts: dict[str, int] = field(default_factory=dict)
    first: BaseException | None = None

    def report(self, error: BaseException) -> None:
        """Note an error; its traceback is logged the first time."""
        name = str(error) if isinstance(error, RuntimeFailure) else f"{type(error).__name__}: {error}"
        known = self.counts.get(name, 0)
        self.counts[name] = known + 1
        self.first = self.first or error
        if not known:
            cause = error.__cause__ if isinstance(error, RuntimeFailure) else error
            detail = "" if cause is None else "\n" + "".join(traceback.format_exception(cause))
            log.error("a log event could not be finished: %s%s", name, detail)
