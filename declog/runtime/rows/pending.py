"""Values that were recorded outside of any scope: they wait for the step that ends next, and belong to it."""

from __future__ import annotations

from collections.abc import Callable

from declog.runtime.recording.timing import Timed
from declog.runtime.rows.batch import Batch
from declog.runtime.rows.batches import Intake
from declog.runtime.rows.scopes import Origin, Scope
from declog.runtime.rows.steps import OpenBatches, Step
from declog.runtime.run.failures import Refused


class Pending:
    """A step without a number, with the open ``batches`` of each task or thread and the durations of their blocks.

    A task or thread has an entry in ``batches`` until all its values belong to a step. ``batches_of`` returns the open
    batches of a task or thread in a scope or, without a scope, in this object.
    """

    def __init__(self, intake: Intake, batches_of: Callable[[Scope | None, Origin], OpenBatches]) -> None:
        self.step = Step()
        self.batches: dict[Origin, OpenBatches] = {}
        self.timed: dict[Origin, dict[str, Timed]] = {}
        self._intake = intake
        self._batches_of = batches_of

    @property
    def rows(self) -> int:
        """The number of waiting rows, including those of open batches."""
        closed = [max(batch.rows, 1) for batches in self.step.batches.values() for batch in batches]
        still = [batch for batches in self.batches.values() for batch in batches.values() if batch.names]
        return sum(closed) + sum(batch.completions or 1 for batch in still)

    def give_columns(self, scope: Scope, me: Origin) -> None:
        """Move columns without rows to the rows with which a task's or thread's step begins."""
        batches: dict[str, Batch] = self.batches.get(me, {})
        if columns := {phase: batch for phase, batch in batches.items() if not batch.names}:
            self._batches_of(scope, me).update(columns)
            for phase in columns:
                del batches[phase]
        if (pending := self.batches.get(me)) is not None and not pending:  # kept columns wait for the same rows
            batches_here = self._batches_of(scope, me)
            batches_here.kept, pending.kept = [*batches_here.kept, *pending.kept], ()

    def close_columns(self, refused: Refused) -> None:
        """Close columns whose rows never arrived; each is an error of the code that passed it."""
        for batches in self.batches.values():
            for phase in [phase for phase, batch in batches.items() if not batch.names]:
                self._intake.close_all(batches, refused, only=phase)

    def end(self, refused: Refused) -> None:
        """Close, at the end of the run, the columns that no step will have."""
        self.close_columns(refused)
        for batches in self.batches.values():
            self._intake.leave_kept(batches)

    def absorb(self, step: Step, refused: Refused, *, only: str | None = None, owner: Origin | None = None) -> None:
        """Move everything to a step that ends now, or with ``only`` one phase.

        The batches of ``owner``, the task that commits the step, must have all signals that the config requires.
        """
        if owner in self.batches:
            self.batches[owner].partial_step = False
        for me in [*self.timed]:
            self._intake.timed(self._batches_of(None, me), self.timed.pop(me), refused)
        for batches in self.batches.values():
            self._intake.close_all(batches, refused, only=only)
        step.absorb(self.step, only)
        if only is None:
            self.batches = {}
