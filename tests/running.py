"""Runs of small profiles for tests of the runtime: what is logged is read from a ``MemorySink``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import declog
from declog.comm import Comm
from declog.recorder import Recorder
from declog.records import Table
from declog.testing import MemorySink

Body = Callable[[Recorder], object]


def profile(signals: Mapping[str, Any], metrics: Mapping[str, Any] | None = None, **others: Any) -> dict[str, Any]:
    """A profile that raises declog's own failures when it is closed, unless ``strict=False``."""
    return {"name": "small", "strict": True, "signals": dict(signals), "metrics": dict(metrics or {}), **others}


def run(config: Mapping[str, Any], body: Body, folder: Path, *, comm: Comm | None = None, **options: Any) -> MemorySink:
    """Run ``body`` in the recorder of a profile; what was logged."""
    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=folder, comm=comm, **options) as log:
        body(log)
    return sink


def logged(config: Mapping[str, Any], batches: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, float]:
    """The scalars of one step that observes ``batches``, one after the other."""

    def body(log: Recorder) -> None:
        with log.step(0):
            for batch in batches:
                log.observe(**batch)

    return run(config, body, folder).scalars.get(0, {})


def rows(table: Table) -> list[dict[str, Any]]:
    """A table's rows as dictionaries."""
    return [{name: values[row] for name, values in table.data.items()} for row in range(table.rows)]
