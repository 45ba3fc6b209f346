"""Asynchronous programs on a small profile: what was logged, where it stands, and what was reported."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import declog
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink

PROFILE: dict[str, Any] = {
    "run": {"name": "scopes"},
    "modes": {"train": {}, "eval": {"prefix": "eval/"}},
    "signals": {
        "any": {
            "prompt": {"axis": "completion", "type": "text"},
            "reward": {"axis": "completion"},
            "version": {"axis": "completion", "type": "int"},
            "arrived": {"axis": "completion"},
        },
        "update": {"loss": {"axis": "step"}},
    },
    "metrics": {
        "n": "count(reward)",
        "reward": "mean(reward)",
        "staleness": "mean(version)",
        "arrived": "count(arrived)",
        "loss": "mean(loss)",
    },
    "schemas": {
        "pairs": {"prompt": {"type": "text"}, "reward": {"type": "float"}},
    },
    "tables": {"pairs": {"schema": "pairs"}},
    "sinks": [],
}

Where = tuple[str, int]  # a mode and a step


class Logged(NamedTuple):
    """The values by mode and step, the rows of the table, and what declog counted as failures."""

    values: dict[Where, dict[str, float]]
    pairs: list[tuple[Any, Any]]
    failures: dict[str, int]
    sink: MemorySink

    def of(self, *names: str) -> dict[Where, tuple[float, ...]]:
        """Some values, where there are any, by mode and step."""
        found = {where: tuple(v[name] for name in names if name in v) for where, v in self.values.items()}
        return {where: values for where, values in sorted(found.items()) if values}

    def total(self, name: str) -> float:
        """A value, added up over all log events."""
        return sum(values.get(name, 0) for values in self.values.values())


def collected(sink: MemorySink, failures: Mapping[str, int]) -> Logged:
    """What a sink got. Two log events of one mode and step are one mistake, and raise."""
    values: dict[Where, dict[str, float]] = {}
    pairs = []
    for step, records in sink.events:
        prefix = PROFILE["modes"][records.mode].get("prefix", "")
        here = values.setdefault((records.mode, step), {})
        for item in records.scalars:
            name = item.name.removeprefix(prefix)
            assert name not in here, (records.mode, step, name)
            here[name] = item.value
        for table in records.tables:
            data = table.data
            pairs += list(zip(data["prompt"], data["reward"], strict=True))
    return Logged(values, pairs, dict(failures), sink)


def run(body: Callable[[Recorder], Any], folder: Path, *, steps: Any = "blocks", **options: Any) -> Logged:
    """Run a body, plain or ``async``, on the profile; ``options`` are of the profile."""
    sink = MemorySink()
    with declog.start({**PROFILE, **options}, sinks=[sink], output_dir=folder, steps=steps) as log:
        made = body(log)
        if isinstance(made, Awaitable):
            asyncio.run(_awaited(made))
    return collected(sink, log.failures)


async def _awaited(made: Awaitable[Any]) -> None:
    await made


OUTSIDE = "[DL513] observed outside any step"
IN_THREAD = f"{OUTSIDE} of this thread"
ENDED = "[DL513] observed in a step that has ended"
MODE_ENDED = "[DL513] observed in a block of a mode that has ended"
LATE = "[DL513] rows came for a step whose window is closed"
TWICE = "[DL513] a packet was consumed twice in one step: it counts once"
UNUSED = "[DL513] a packet of declog.rows was never observed"
UNBOUND = "[DL513] rows that wait for the next step, and no step ended after them"
