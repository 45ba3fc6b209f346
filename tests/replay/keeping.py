"""Runs that are captured, and what they logged, to be compared with what their captures give."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import declog
from declog.records import SELF, Records, RunInfo, Scalar
from declog.replay.playback import Events
from declog.runtime.recording.recorder import Recorder
from declog.testing import FakeComm, MemorySink, run_ranks

Body = Callable[[Recorder, int], object]


class KeptSink(MemorySink):
    """Leaves what it got in a file of the run's folder, for a run in another process."""

    def open(self, run: RunInfo) -> None:
        super().open(run)
        self._file = run.output_dir / "kept.pickle"

    def close(self) -> None:
        super().close()
        self._file.write_bytes(pickle.dumps(self.events))


def timeless(events: Events | Sequence[tuple[int, Records]]) -> list[tuple[int, str]]:
    """Log events without wall times and declog's own cost, as text: NaN is then equal to NaN."""
    return [(step, repr(replace(records, time=0.0, scalars=_signals(records)))) for step, records in events]


def _signals(records: Records) -> tuple[Scalar, ...]:
    return tuple(item for item in records.scalars if not item.metric.startswith(SELF))


def captured(config: Mapping[str, Any], body: Body, folder: Path, *, world_size: int = 1, **options: Any) -> MemorySink:
    """Run ``body(log, rank)`` on every rank with its capture in ``folder``; what was logged."""
    sink = MemorySink()
    options = {"capture": True, **options}

    def main(comm: FakeComm) -> None:
        first = comm.rank == 0  # other ranks learn the folder from it
        where = folder if first else None
        with declog.start(config, comm=comm, output_dir=where, sinks=[sink] if first else [], **options) as log:
            body(log, comm.rank)

    run_ranks(world_size, main)
    return sink
