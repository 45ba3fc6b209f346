"""What came without a scope: it waits for the next step that ends, and is of that. Imports batches and windows only."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from declog.runtime.batch import OpenBatch
from declog.runtime.batches import Holder, Intake, Waiting
from declog.runtime.lanes import Lane
from declog.runtime.scopes import Origin
from declog.runtime.timing import Timed


class NextStep(dict[Origin, Waiting]):
    """The batches of each task or thread, the open ones and those that have closed.

    ``packets`` were consumed with them; ``timed`` keeps the durations of blocks in a batch.
    """

    def __init__(self, intake: Intake, timed: Callable[[Holder, Mapping[str, Timed]], None]) -> None:
        super().__init__()
        self.packets: set[str] = set()
        self._intake = intake
        self._timed = timed

    def bare(self, me: Origin) -> Mapping[str, OpenBatch]:
        """Take what of a task or thread is columns alone: they are of the rows that its step begins with."""
        early: dict[str, OpenBatch] = self.get(me, {})
        return {phase: early.pop(phase) for phase in [phase for phase, batch in early.items() if not batch.names]}

    def bind(
        self, lane: Lane, step: int, *, suppress: bool, only: str | None = None, owner: Origin | None = None
    ) -> None:
        """All is of a step that ends now; of one phase ``only``, where a window ends.

        The batches of an ``owner``, who commits the step, must have what the profile requires.
        """
        waiting = [*self.items()]
        self.clear()
        if only is None:
            lane.packets.setdefault(step, set()).update(self.packets)
            self.packets.clear()
        for me, holder in waiting:
            if me is owner:
                holder.piece = False
            if holder.timed:
                timed, holder.timed = holder.timed, {}
                self._timed(holder, timed)
            self._intake.close_all([holder], suppress=suppress, only=only)
            for phase, record in [one for one in holder.waiting if only in (None, one[0])]:
                lane.add(phase, record, step)
            holder.waiting = [one for one in holder.waiting if only not in (None, one[0])]
            if holder or holder.waiting:
                self[me] = holder

    def close_bare(self) -> None:
        """Columns that wait for rows which did not come: each is an error of whoever gave it."""
        for holder in self.values():
            for phase in [phase for phase, batch in holder.items() if not batch.names]:
                self._intake.close(holder, phase)

    @property
    def rows(self) -> int:
        """How many rows wait."""
        closed = [max(record.rows, 1) for holder in self.values() for _, record in holder.waiting]
        still = [batch.rows[0] if batch.rows else 1 for one in self.values() for batch in one.values() if batch.names]
        return sum(closed) + sum(still)
