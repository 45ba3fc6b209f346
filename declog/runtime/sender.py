"""A rank's share of a log event: its frames, and of those what rank 0 needs, as a message.

Imports the window, evaluation and the plan; torch only through the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from declog.engine.frame import Frame
from declog.engine.local_columns import with_locals
from declog.errors import error_text
from declog.language.functions import DEFAULT, Functions
from declog.plans.ops import Plan
from declog.runtime.arrivals import arrivals
from declog.runtime.failures import Failures
from declog.runtime.local_tables import LocalTables
from declog.runtime.message import encode
from declog.runtime.packets import fates
from declog.runtime.projection import projected
from declog.runtime.window_item import WindowItem


class Sender:
    """Makes the frames and the messages of one rank."""

    def __init__(
        self,
        plan: Plan,
        rank: int,
        failures: Failures,
        functions: Functions = DEFAULT,
        tables: LocalTables | None = None,
    ) -> None:
        self._plan = plan
        self._rank = rank
        self._failures = failures
        self._functions = functions
        self._local = tables  # writes this rank's own tables

    def frames(self, item: WindowItem) -> tuple[dict[str, Frame], str | None]:
        """This rank's frames with its local columns, and why they lack some of those."""
        frames = item.window.frames(self._plan.phases, self._rank, self._plan.grouping, self._failures.report)
        try:
            frames = with_locals(frames, self._plan, self._functions)
        except BaseException as error:  # noqa: BLE001  (a user's function may raise anything; rank 0 reports it)
            return frames, f"rank {self._rank}: {error_text(error)}"
        if self._local is not None:
            self._local.write(item.step, item.mode, frames, self._failures.report)
        return frames, None

    def message(self, item: WindowItem, figures: Mapping[str, float]) -> bytes:
        """What rank 0 needs of this rank. Whatever fails here, the rank sends: else the others would wait for it."""
        meta: dict[str, Any] = {
            "event": item.event, "mode": item.mode, "step": item.step, "count": item.count,
            "tail": item.tail, "part": item.part, "last": item.last, "sent": dict(item.sent),
            "error": None, "whole": item.window.whole, "figures": dict(figures),
            "arrivals": arrivals(item.window, self._plan.phases),
        }  # fmt: skip
        consumed, unused = fates.told(last=item.last)
        meta |= ({"consumed": consumed} if consumed else {}) | ({"unused": unused} if unused else {})
        try:
            frames, meta["error"] = self.frames(item)
            needed = {name: projected(self._plan, frame, self._functions) for name, frame in frames.items()}
            return encode(needed, meta)
        except BaseException as error:  # noqa: BLE001  (reported here, and by rank 0)
            self._failures.report(error)
            return encode({}, {**meta, "error": f"rank {self._rank} sent no rows: {error_text(error)}", "whole": False})
