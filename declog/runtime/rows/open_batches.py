"""The open batches of one task or thread. Imports batches, steps and streams."""

from __future__ import annotations

from collections.abc import Sequence

from declog.runtime.rows.batch import Batch
from declog.runtime.rows.observation import Observation
from declog.runtime.rows.steps import Step, Stream
from declog.runtime.values.streams import Streams


class OpenBatches(dict[str, Batch]):
    """The open batches of one task or thread that works for a step, by phase.

    ``partial_step``: others observe in the step, too, so no batch needs to have all signals. ``once``: this is an
    explicit batch, which takes each signal once. ``stream`` None: the step is the one that ends next. ``scope`` and
    ``origin`` are the numbers of the block and of the task or thread, for captures. ``kept`` has columns for later
    questions that wait for the end of their batch: copies, with the CUDA streams that made them. Of several with one
    name, the first belongs to the batch that ends first.
    """

    __slots__ = ("kept", "once", "origin", "partial_step", "scope", "step", "stream")

    def __init__(self, step: Step, stream: Stream | None, scope: int, *, partial_step: bool) -> None:
        self.step = step
        self.stream = stream
        self.scope = scope
        self.origin = 0
        self.partial_step = partial_step
        self.once = False
        self.kept: Sequence[tuple[Observation, Streams]] = ()
