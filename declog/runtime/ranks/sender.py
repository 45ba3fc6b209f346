"""One rank's share of a log event: its frames, and a message with the part that rank 0 needs."""

from __future__ import annotations

from declog.engine.frame import Frame, of_mode, parted
from declog.engine.local_columns import with_locals
from declog.errors import error_text
from declog.plans.ops import Plan
from declog.runtime.ranks.log_event import LogEvent
from declog.runtime.ranks.message import encode
from declog.runtime.ranks.projection import projected
from declog.runtime.rows.arrivals import arrivals
from declog.runtime.rows.packets import fates
from declog.runtime.rows.paired_rows import PairedRows
from declog.runtime.run.failures import Failures
from declog.runtime.worker.local_tables import LocalTables


class Sender:
    """Builds the frames and the messages of one rank."""

    def __init__(self, plan: Plan, rank: int, failures: Failures, tables: LocalTables | None) -> None:
        self._plan = plan
        self._rank = rank
        self._failures = failures
        self._paired = PairedRows(plan)
        self._local = tables  # writes this rank's own tables

    def with_arrivals(self, event: LogEvent) -> LogEvent:
        """Return the event with the facts about its rows: whether they are intact, and which signals arrived."""
        return event._replace(intact=event.window.intact, arrivals=arrivals(event.window, self._plan.phases))

    def frames(self, event: LogEvent) -> dict[str, Frame]:
        """Return this rank's frames with its local columns; also write this rank's own tables."""
        frames = event.window.frames(self._plan, self._rank, self._failures.report, self._paired)
        frames = with_locals(of_mode(frames, event.mode), self._plan)
        if self._local is not None:
            if event.back is None or event.back >= event.step:
                self._local.write(event.step, event.mode, frames)
            else:  # two writes, because sinks keep only the rows up to `back`: the rewind takes back the others
                for step, rows in zip((event.back, event.step), parted(frames, event.back), strict=True):
                    self._local.write(step, event.mode, rows)
        return frames

    def message(self, event: LogEvent) -> bytes:
        """Build the message for rank 0. If this rank's rows fail, the message has the error: rank 0 waits for it."""
        consumed, unused = fates.told(last=event.last)
        event = event._replace(consumed=consumed, unused=unused)
        try:
            needed = {name: projected(self._plan, frame) for name, frame in self.frames(event).items()}
            return encode(needed, event.meta())
        except BaseException as error:  # noqa: BLE001  (reported here, and by rank 0)
            self._failures.report(error)
            problem = f"rank {self._rank} sent no rows: {error_text(error)}"
            return encode({}, event._replace(error=problem, intact=False).meta())
