"""A rank's share of a log event: its frames, and of those what rank 0 needs, as a message.

Imports the window, evaluation and the plan; torch only through the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from declog.engine.frame import Frame
from declog.errors import told
from declog.language.functions import DEFAULT, Functions
from declog.plans.ops import Plan
from declog.runtime.failures import Failures
from declog.runtime.local_tables import Apart
from declog.runtime.message import encode
from declog.runtime.projection import slim, with_locals
from declog.runtime.window_item import Handoff


class Sender:
    """Makes the frames and the messages of one rank."""

    def __init__(
        self, plan: Plan, rank: int, failures: Failures, functions: Functions = DEFAULT, apart: Apart | None = None
    ) -> None:
        self._plan = plan
        self._rank = rank
        self._failures = failures
        self._functions = functions
        self._apart = apart  # writes this rank's own tables

    def frames(self, handoff: Handoff) -> tuple[dict[str, Frame], str | None]:
        """This rank's frames with its local columns, and why they lack some of those."""
        frames = handoff.window.frames(self._plan.phases, self._rank, self._plan.grouping, self._failures.report)
        try:
            for name, phase in self._plan.phases.items():
                if name in frames and phase.locals:
                    frames[name] = with_locals(frames[name], phase, self._functions)
        except BaseException as error:  # noqa: BLE001  (a user's function may raise anything; rank 0 reports it)
            return frames, f"rank {self._rank}: {told(error)}"
        if self._apart is not None:
            self._apart.write(handoff.step, handoff.mode, frames, self._failures.report)
        return frames, None

    def message(self, handoff: Handoff, figures: Mapping[str, float]) -> bytes:
        """What rank 0 needs of this rank. Whatever fails here, the rank sends: else the others would wait for it."""
        meta: dict[str, Any] = {
            "event": handoff.event, "mode": handoff.mode, "step": handoff.step, "count": handoff.count,
            "tail": handoff.tail, "part": handoff.part, "last": handoff.last, "sent": dict(handoff.sent),
            "error": None, "whole": handoff.window.whole, "figures": dict(figures),
        }  # fmt: skip
        try:
            frames, meta["error"] = self.frames(handoff)
            slim_ones = {name: slim(self._plan, frame, self._functions) for name, frame in frames.items()}
            return encode(slim_ones, meta)
        except BaseException as error:  # noqa: BLE001  (reported here, and told to rank 0)
            self._failures.report(error)
            return encode({}, {**meta, "error": f"rank {self._rank} sent no rows: {told(error)}", "whole": False})
