"""Evaluations of several ranks that end, or begin, at different times, or that some ranks leave out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import declog
from declog.runtime.recording.recorder import Recorder
from declog.testing import FakeComm, MemorySink, run_ranks
from tests.running import profile

STEPS = 60


def config(every: Any = "end", strict: bool = True) -> dict[str, Any]:
    """Two rows of each rank in each training step, and one in each evaluation."""
    modes = {"train": {}, "eval": {"prefix": "eval/", "every": every}}
    return profile({"x": "completion"}, {"n": "count(x)"}, modes=modes, run={"name": "t", "strict": strict})


def counts(sink: MemorySink, mode: str) -> dict[int, dict[str, Any]]:
    """The values of a mode by step."""
    return {
        step: {item.name: item.value for item in records.scalars}
        for step, records in sink.events
        if records.mode == mode
    }


class Span(NamedTuple):
    """The training steps behind which something begins and ends on a rank."""

    begins: int
    ends: int


def together(
    ranks: int,
    folder: Path,
    spans: Callable[[int], list[Span]],
    task: Callable[[Recorder, asyncio.Event], Any],
    every: Any = "end",
) -> tuple[MemorySink, dict[int, dict[str, int]]]:
    """Training steps of ranks with a collective in each, and a task beside them for each span; what is logged."""
    sink, failures, collective = MemorySink(), {}, threading.Barrier(ranks)

    async def train(log: Recorder, rank: int) -> None:
        tasks, ends = [], [asyncio.Event() for _ in spans(rank)]
        for step in range(STEPS):
            with log.step(step):
                log.observe(x=[1.0, 2.0])
            for span, end in zip(spans(rank), ends, strict=True):
                if step == span.begins:
                    tasks.append(asyncio.create_task(task(log, end)))
                if step == span.ends:
                    end.set()
            for _ in range(3):
                await asyncio.sleep(0)
            collective.wait(60)
        await asyncio.gather(*tasks)

    def body(comm: FakeComm) -> None:
        sinks = [] if comm.rank else [sink]
        with declog.start(config(every, False), sinks=sinks, comm=comm, output_dir=folder, wait_s=30) as log:
            asyncio.run(train(log, comm.rank))
        failures[comm.rank] = dict(log.failures)

    run_ranks(ranks, body)
    return sink, failures


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("every", ["end", 1])
@pytest.mark.parametrize(
    "spans",
    [(Span(1, 2), Span(1, 5)), (Span(1, 2), Span(1, 45)), (Span(1, 45), Span(1, 2)), (Span(9, 20), Span(1, 2))],
    ids=["ends later", "ends much later", "ends much earlier", "begins and ends earlier"],
)
def test_an_evaluation_in_flight_takes_its_time_on_each_rank(
    spans: tuple[Span, Span], every: Any, ranks: int, tmp_path: Path
) -> None:
    """Class: the last rank is at another training step than the others when its evaluation ends. All rows count."""

    async def evaluate(log: Recorder, end: asyncio.Event) -> None:
        with log.mode("eval", step=0):
            if every == "end":
                log.observe(x=[1.0])
                await end.wait()
                return
            with log.step(0):
                log.observe(x=[1.0])
            with log.step(1):
                await end.wait()

    sink, failures = together(ranks, tmp_path, lambda rank: [spans[rank == ranks - 1]], evaluate, every)
    assert failures == {key: {} for key in range(ranks)}
    assert counts(sink, "train") == {key: {"n": 2 * ranks} for key in range(STEPS)}
    assert counts(sink, "eval") == {0: {"eval/n": ranks}}


def test_a_training_window_that_is_held_open_on_one_rank(tmp_path: Path) -> None:
    """It is handed over later than evaluations that began behind it: as in flight as they are."""

    async def work(log: Recorder, end: asyncio.Event) -> None:
        if end.is_set():
            with log.mode("eval"):
                log.observe(x=[1.0])
            return
        with log.at(4):
            await end.wait()

    def spans(rank: int) -> list[Span]:
        return [Span(3, 30 if rank else 4), *(Span(step, step) for step in range(5, 29))]

    sink, failures = together(2, tmp_path, spans, work)
    assert failures == {0: {}, 1: {}}
    assert counts(sink, "train") == {key: {"n": 4} for key in range(STEPS)}
    assert counts(sink, "eval") == {key: {"eval/n": 2} for key in range(5, 29)}


@pytest.mark.parametrize("every", ["end", 1])
def test_what_a_rank_evaluates_alone_is_not_kept(every: Any, tmp_path: Path) -> None:
    """However often between two steps: it is reported while the run goes on, and rank 0 holds a bounded number."""
    held: list[int] = []
    collective, sink, failures = threading.Barrier(2), MemorySink(), {}

    def body(comm: FakeComm) -> None:
        sinks = [] if comm.rank else [sink]
        with declog.start(config(every, False), sinks=sinks, comm=comm, output_dir=tmp_path, wait_s=30) as log:
            for step in range(STEPS):
                with log.step(step):
                    log.observe(x=[1.0, 2.0])
                for number in range(3 * comm.rank):
                    with log.mode("eval"), log.step(3 * step + number):
                        log.observe(x=[1.0])
                log._background.settle()
                collective.wait(60)
            held.append(sum(key.startswith("w/eval/") for key in comm._store._values))
            failures[comm.rank] = {text[:55]: count for text, count in log.failures.items()}

    run_ranks(2, body)
    assert max(held) <= 3 * 18
    assert set(failures[0]) == {"[DL603] rank 1 makes log events of the mode `eval` that"[:55]}
    assert counts(sink, "train") == {key: {"n": 4} for key in range(STEPS)}
    assert counts(sink, "eval") == {}


@pytest.mark.parametrize(
    "evaluates",
    [
        {0: {-1, 2, 3, 4}, 1: {2, 3, 4}}, {0: {-1}, 1: {3, 4}}, {0: {-1}, 1: {4}}, {0: {4}, 1: {2, 4}},
        {0: {2, 4}, 1: {4}}, {0: {-1, 50}, 1: {50}}, {0: {50}, 1: {-1, 50}},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("every", ["end", 1])
def test_ranks_that_do_not_make_the_same_evaluations(
    every: Any, evaluates: Mapping[int, set[int]], tmp_path: Path
) -> None:
    """Class: by its number, an evaluation meets another rank's of another step. That is marked; training is whole."""
    collective, sink, failures = threading.Barrier(2), MemorySink(), {}

    def body(comm: FakeComm) -> None:
        def evaluate(step: int) -> None:
            if step in evaluates[comm.rank]:
                with log.mode("eval", step=max(step, 0)), log.step(max(step, 0)) if every == 1 else nullcontext():
                    log.observe(x=[1.0])

        sinks = [] if comm.rank else [sink]
        with declog.start(config(every, False), sinks=sinks, comm=comm, output_dir=tmp_path, wait_s=2) as log:
            evaluate(-1)
            for step in range(max(map(max, evaluates.values())) + 1):
                with log.step(step):
                    log.observe(x=[1.0, 2.0])
                evaluate(step)
                collective.wait(60)
        failures[comm.rank] = {text[:7] for text in log.failures}

    run_ranks(2, body)
    training, evaluations = counts(sink, "train"), counts(sink, "eval")
    assert training == {key: {"n": 4} for key in range(len(training))} and len(training) > 4
    assert evaluations and failures == {0: {"[DL603]"}, 1: set()}
    for values in evaluations.values():
        assert values == ({"eval/n": 2} if values["eval/n"] == 2 else {"eval/n": 1, "declog/ranks": 1})


@pytest.mark.parametrize("again", [(), (0,), (1,), (0, 1)], ids=str)
def test_actors_go_on_of_which_one_evaluated_alone(again: tuple[int, ...], tmp_path: Path) -> None:
    """As ranks do: nothing failed, and one that enters the mode after the others counts as they do, in each life."""
    states: list[Any] = [None, None, None]
    for life, evaluating in enumerate([(0,), again, again]):
        sink = MemorySink()
        actors = [
            declog.start(config(), role="actor", rank=rank, world_size=2, resume=states[rank]) for rank in range(2)
        ]
        driver = {"role": "driver", "world_size": 2, "resume": states[2], "wait_s": 60}
        with declog.start(config(), sinks=[sink], output_dir=tmp_path, **driver) as log:
            for step in range(2 * life, 2 * life + 2):
                for rank, actor in enumerate(actors):
                    with actor.step(step):
                        actor.observe(x=[1.0, 2.0])
                    if step % 2 == 0 and rank in evaluating:
                        with actor.mode("eval", step=step):
                            actor.observe(x=[1.0])
                log.merge([actor.export() for actor in actors])
            states = [each.state_dict() for each in (*actors, log)]
            for actor in actors:
                actor.close()
            log.merge([actor.export() for actor in actors])
        assert log.failures == {}
        assert counts(sink, "train") == {key: {"n": 4} for key in range(2 * life, 2 * life + 2)}
        marked = {} if len(evaluating) == 2 else {"declog/ranks": 1}
        assert counts(sink, "eval") == ({2 * life: {"eval/n": len(evaluating)} | marked} if evaluating else {})
