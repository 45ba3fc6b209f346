"""Small runs through the public API: a profile and what each step observes in, the logged values out."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import declog
from declog.language.functions import DEFAULT as FUNCTIONS
from declog.language.functions import Functions
from declog.language.reductions import DEFAULT as REDUCTIONS
from declog.language.reductions import Reductions
from declog.testing import FakeComm, MemorySink

Batch = Mapping[str, Any]  # what one batch of one rank observes
Step = Sequence[Batch]  # a step's batches, in order


def record(
    profile: Mapping[str, Any],
    *ranks: Sequence[Step],
    functions: Functions = FUNCTIONS,
    reductions: Reductions = REDUCTIONS,
) -> MemorySink:
    """Runs a profile: one sequence of steps per rank, each in a thread of its own where there are several."""
    sink = MemorySink()
    errors: list[BaseException] = []
    with tempfile.TemporaryDirectory() as folder:

        def one(comm: FakeComm, steps: Sequence[Step]) -> None:
            log = declog.start(
                {"run": {"strict": True}, **profile},
                sinks=[sink],
                comm=comm,
                output_dir=folder,
                functions=functions,
                reductions=reductions,
            )
            try:
                for number, batches in enumerate(steps):
                    with log.step(number):
                        for batch in batches:
                            log.observe(**batch)
            finally:
                log.close()

        def guarded(comm: FakeComm, steps: Sequence[Step]) -> None:
            try:
                one(comm, steps)
            except Exception as error:  # noqa: BLE001  it is raised again in the thread of the test
                errors.append(error)

        comms = FakeComm.job(len(ranks))
        if len(ranks) == 1:
            one(comms[0], ranks[0])
        else:
            threads = [
                threading.Thread(target=guarded, args=(comm, steps)) for comm, steps in zip(comms, ranks, strict=True)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    if errors:
        raise errors[0]
    return sink


def values(profile: Mapping[str, Any], *ranks: Sequence[Step], **registries: Any) -> dict[str, float]:
    """The scalars of a run whose log events are one, by name."""
    sink = record(profile, *ranks, **registries)
    assert len(sink.events) <= 1, f"{len(sink.events)} log events"
    return next(iter(sink.scalars.values()), {})


def one_step(profile: Mapping[str, Any], observed: Batch, **registries: Any) -> dict[str, float]:
    """The scalars of one step with one batch on one rank."""
    return values(profile, [[observed]], **registries)


def problems(make: Callable[[], Any]) -> list[tuple[str, str]]:
    """The codes and paths of what a profile is refused for."""
    try:
        make()
    except declog.ConfigError as error:
        return [(item.code, ".".join(map(str, item.path))) for item in error.problems]
    return []
