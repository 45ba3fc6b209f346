"""Runs of small profiles for tests of the runtime: what is logged is read from a ``MemorySink``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import declog
from declog.plans.ops import Plan
from declog.plans.words import described
from declog.records import ResumePoint, Table
from declog.runs.series import Series
from declog.runtime.ranks.comm import Comm, Event
from declog.runtime.recording.recorder import Recorder
from declog.runtime.rows.batch import Batch
from declog.runtime.values.packs import Pack
from declog.testing import MemorySink

Body = Callable[[Recorder], object]


class Tracker(MemorySink):
    """Keeps what the run takes back, too, as a tracker does that cannot delete."""

    def rewind(self, point: ResumePoint) -> None: ...


def output_words(plan: Plan) -> dict[str, str]:
    """Each output in words, by the name that trackers see: "mean of batch means of kl, ..."."""
    return {output["name"]: output["words"] for output in described(plan)["outputs"]}


def pairs(series: Series) -> list[tuple[int, float]]:
    """The steps of a scalar that was read, each with its value."""
    return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))


class _CountingComm:
    """A comm that knows how long the messages were that it sent."""

    def __init__(self, inner: Comm) -> None:
        self._inner = inner
        self.rank, self.world_size = inner.rank, inner.world_size
        self.sent: list[int] = []

    def send(self, event: Event, data: bytes) -> None:
        self.sent.append(len(data))
        self._inner.send(event, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


CountingComm: Any = _CountingComm  # it has all of a comm's methods, by the one inside


def profile(observed: Mapping[str, Any], metrics: Mapping[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    """A profile of signals that are observed in any phase; those of named phases are its section `signals`.

    It raises declog's own failures when it is closed, unless ``run={"strict": False}``.
    """
    return {
        "metrics": dict(metrics or {}),
        **sections,
        "run": {"project": "small", **sections.get("run", {"strict": True})},
        "signals": {"any": dict(observed), **sections.get("signals", {})},
    }


def run(config: Mapping[str, Any], body: Body, folder: Path, *, comm: Comm | None = None, **options: Any) -> MemorySink:
    """Run ``body`` in the recorder of a profile; what was logged, with what was taken back."""
    sink = Tracker()
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


SCORES = {
    "score": {"axis": "completion"}, "group": {"axis": "completion", "type": "int"},
    "text": {"axis": "completion", "type": "text"},
}  # fmt: skip
SCORE_SCHEMA = {"score": {"type": "float"}, "text": {"type": "text"}}


def scores(
    filter: Mapping[str, Any] | None, *, schema: Mapping[str, Any] = SCORE_SCHEMA, **table: Any
) -> dict[str, Any]:
    """A profile with one table of scores; `filter` is its filter, after those that `filters` adds."""
    filters = {**table.pop("filters", {}), **({} if filter is None else {"picked": filter})}
    outside = ("signals", "axes", "sinks", "sink_options", "every", "run")
    others = {key: table.pop(key) for key in outside if key in table}
    chosen = {} if filter is None else {"filter": "picked"}
    return profile(
        SCORES | others.pop("signals", {}), filters=filters, schemas={"s": dict(schema)},
        tables={"t": {"schema": "s", **chosen, **table}}, **others,
    )  # fmt: skip


def tables_of(
    made: Mapping[str, Any], batches: Sequence[Sequence[Mapping[str, Any]]], folder: Path
) -> list[tuple[int, Table]]:
    """The tables of a run: `batches[step]` are observed one after the other."""

    def body(log: Recorder) -> None:
        for step, parts in enumerate(batches):
            with log.step(step):
                for values in parts:
                    log.observe(**values)

    return run(made, body, folder).tables("t")


def closed_batch(rows: int, *, step: int = -1, number: int = -1, order: int = 0, packs: Sequence[Pack] = ()) -> Batch:
    """A batch of so many completions as the worker has it, with its columns."""
    closed = Batch.__new__(Batch)
    closed.rows, closed.step, closed.number = rows, step, number
    closed.order, closed.packs, closed.closed = order, packs, True
    return closed
