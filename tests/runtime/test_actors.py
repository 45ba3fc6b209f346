"""Actors that export their windows as bytes, and a driver that merges them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import declog
from declog.errors import CommError, PlanMismatchError, UsageError
from declog.runtime.recording.recorder import Recorder
from declog.testing import FakeComm, MemorySink, run_ranks
from tests.running import profile

CONFIG = profile(
    {"reward": {"axis": "completion"}, "text": {"axis": "completion", "type": "text"}},
    {"reward": "mean(reward)", "p05": "p05(reward)", "slow": {"expr": "reward", "reduce": "max", "every": 4}},
    every=2,
    filters={"best": {"key": "reward", "top": 1, "bottom": 1, "within": "step"}},
    schemas={"s": {"text": {"type": "text"}, "reward": {"type": "float"}}},
    tables={"best": {"schema": "s", "filter": "best"}},
)
LENIENT = {**CONFIG, "run": {"strict": False}}  # of jobs in which an actor is missing
ACTORS = 4


def reward(number: int, rank: int) -> torch.Tensor:
    """What one actor observes in a step."""
    return torch.randn(3, generator=torch.Generator().manual_seed(100 * number + rank))


def step(log: Recorder, number: int, rank: int) -> None:
    """A step of one actor."""
    with log.step(number):
        log.observe(reward=reward(number, rank), text=[f"{number}.{rank}.{row}" for row in range(3)])


def expected(folder: Path, steps: int = 7) -> list[Any]:
    """What the same work logs on as many ranks."""
    sink = MemorySink()

    def body(comm: FakeComm) -> None:
        with declog.start(CONFIG, sinks=[sink] if comm.rank == 0 else [], output_dir=folder, comm=comm) as log:
            for number in range(steps):
                step(log, number, comm.rank)

    run_ranks(ACTORS, body)
    return plain(sink)


def plain(sink: MemorySink) -> list[Any]:
    """Records without their wall time."""
    return [(at, {item.name: item.value for item in records.scalars}, records.tables) for at, records in sink.events]


STARTED: list[Recorder] = []


def actors() -> list[Recorder]:
    """All actors; they are closed with the test, also those that it leaves behind."""
    made = [declog.start(CONFIG, role="actor", rank=rank, world_size=ACTORS) for rank in range(ACTORS)]
    STARTED.extend(made)
    return made


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """An actor that is left open would be the one that other tests' values reach."""
    yield
    while STARTED:
        STARTED.pop().close()


def step_all(logs: list[Recorder], number: int) -> None:
    """One step of each actor, in the order of their ranks."""
    for rank, log in enumerate(logs):
        step(log, number, rank)


def driving(sink: MemorySink, folder: Path, config: Any = CONFIG) -> Recorder:
    """The driver of all actors."""
    return declog.start(config, sinks=[sink], output_dir=folder, role="driver", world_size=ACTORS)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("every", [1, 2, 3, 6])
def test_merged_exports_log_what_ranks_log(every: int, together: bool, tmp_path: Path) -> None:
    """However often they are exported and merged, and in whatever order; the tail comes with the last export."""
    sink = MemorySink()
    logs = actors()
    with driving(sink, tmp_path):
        for number in range(7):
            step_all(logs, number)
            if number % every == every - 1:
                for part in [logs] if together else [[log] for log in reversed(logs)]:
                    declog.merge([log.export() for log in part])
        for log in logs:
            log.close()
        declog.merge([log.export() for log in logs])
    assert plain(sink) == expected(tmp_path)


def test_an_actor_that_exports_late_is_waited_for(tmp_path: Path) -> None:
    """All is logged in order, and complete."""
    sink = MemorySink()
    logs = actors()
    with driving(sink, tmp_path) as driver:
        for number in range(6):
            step_all(logs, number)
            driver.merge([log.export() for log in logs[:3]])
            if number % 2:
                driver.merge([logs[3].export()])
        for log in logs:
            log.close()
        driver.merge([log.export() for log in logs])
    assert plain(sink) == expected(tmp_path, steps=6)


def values(sink: MemorySink, name: str) -> dict[int, float]:
    """What was logged under a name, by step."""
    return {step: found[name] for step, found in sink.scalars.items() if name in found}


def done(driver: Recorder) -> None:
    """Wait until what was merged so far is logged."""
    driver._background._worker.call(lambda: None, 30.0).check()
    assert all(runner.flush(30.0) for runner in driver._background._runners.values())


def until(true: Callable[[], bool]) -> None:
    """Wait for something that another thread does."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_actor_that_dies_is_missed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its rows are missing, which is said and marked; those of the others are logged, and delayed once only.

    Also where nobody merges meanwhile.
    """
    sink = MemorySink()
    logs = actors()
    logged = []
    with driving(sink, tmp_path, LENIENT) as driver:
        for number in range(8):
            living = logs if number < 2 else logs[:3]
            step_all(living, number)
            driver.merge([log.export() for log in living], 3.0)
            if number == 3:
                done(driver)
                logged.append(list(sink.scalars))
                until(lambda: 3 in sink.scalars)
            done(driver)
            logged.append(list(sink.scalars))
    assert logged == [[], [1], [1], [1], [1, 3], [1, 3], [1, 3, 5], [1, 3, 5], [1, 3, 5, 7]]
    assert values(sink, "declog/ranks") == {3: 3, 5: 3, 7: 3}
    assert [[item.partial for item in records.scalars if item.name == "reward"] for _, records in sink.events] == [
        [False], [True], [True], [True]
    ]  # fmt: skip
    assert values(sink, "reward") == pytest.approx(means(range(8), {0: ACTORS, 2: 3}), rel=1e-12)
    assert "actors [3] exported no window" in caplog.text
    for log in logs:
        log.close()


def test_an_actor_that_evaluates_alone_is_waited_for_as_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As where rank 0 does: what others miss of a mode that they never enter says nothing of their training windows."""
    config = profile({"x": "completion"}, {"x": "mean(x)"}, modes={"eval": {"prefix": "eval/", "every": "end"}})
    sink = MemorySink()
    logs = [declog.start(config, role="actor", rank=rank, world_size=2) for rank in range(2)]
    with declog.start(config, role="driver", world_size=2, sinks=[sink], output_dir=tmp_path, wait_s=60) as driver:
        for number in range(4):
            for rank, log in enumerate(logs):
                with log.step(number):
                    log.observe(x=[10.0 * rank])
            for log in logs:
                driver.merge([log.export()], 60.0)
            if number == 1:
                with logs[0].mode("eval"):
                    logs[0].observe(x=[100.0])
                driver.merge([logs[0].export()], 0.2)
                until(lambda: any(records.mode == "eval" for _, records in sink.events))
        for log in logs:
            log.close()
        driver.merge([log.export() for log in logs])
    events = [(records.mode, {item.name: item.value for item in records.scalars}) for _, records in sink.events]
    assert [values for mode, values in events if mode == "train"] == [{"x": 5.0}] * 4
    assert [values for mode, values in events if mode == "eval"] == [{"eval/x": 100.0, "declog/ranks": 1}]
    assert not driver.failures
    assert sum("`eval` is of 1 of 2 ranks: rank 1 has not entered it" in text for text in caplog.messages) == 1


def means(steps: range, living: dict[int, int]) -> dict[int, float]:
    """The means of windows of two steps; ``living`` is how many actors there are, from which step on."""
    rows: list[torch.Tensor] = []
    found = {}
    for number in steps:
        count = next(count for since, count in reversed(living.items()) if since <= number)
        rows += [reward(number, rank) for rank in range(count)]
        if number % 2:
            found[number] = float(torch.cat(rows).double().mean())
            rows = []
    return found


def test_an_actor_that_comes_back_is_waited_for_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What comes after its log event was finished is reported and left out; what comes in time counts."""
    sink = MemorySink()
    logs = actors()
    with driving(sink, tmp_path, LENIENT) as driver:
        for number in range(12):
            step_all(logs, number)
            driver.merge([log.export() for log in (logs[:3] if number < 6 else logs)], 0.0 if number < 6 else 60.0)
    # of 4 to 7 is the window of `slow`
    assert values(sink, "declog/ranks") == {1: 3, 3: 3, 5: 3, 7: 3}
    assert {item.name for step, records in sink.events for item in records.scalars if step > 5 and item.partial} == {
        "slow"
    }
    assert values(sink, "reward") == pytest.approx(means(range(12), {0: 3, 6: ACTORS}), rel=1e-12)
    assert "actor 3 exported a log event that was finished without it" in caplog.text
    assert "(x3)" in caplog.text


@pytest.mark.parametrize("ahead", [1, 3, 7])
def test_actors_may_be_apart_in_exports(ahead: int, tmp_path: Path) -> None:
    """However many exports one is ahead of the others, a driver waits in seconds."""
    sink = MemorySink()
    logs = actors()
    exports: list[list[bytes]] = [[] for _ in logs]
    for number in range(8):
        step_all(logs, number)
        for log, made in zip(logs, exports, strict=True):
            made.append(log.export())
    for log, made in zip(logs, exports, strict=True):
        log.close()
        made.append(log.export())
    with driving(sink, tmp_path) as driver:
        for place in range(9 + ahead):
            for rank, made in enumerate(exports):
                behind = place - (ahead if rank else 0)
                if 0 <= behind < 9:
                    driver.merge([made[behind]])
    assert plain(sink) == expected(tmp_path, steps=8)


@pytest.mark.parametrize("room", ["little", "much"])
def test_a_driver_holds_so_many_bytes(room: str, tmp_path: Path) -> None:
    """Where what waits for an actor is over `backlog_bytes`, log events go without it."""
    sink = MemorySink()
    logs = actors()
    config = {**LENIENT, "run": {"backlog_bytes": 10_000 if room == "little" else 10_000_000}}
    with driving(sink, tmp_path, config) as driver:
        for number in range(8):
            step_all(logs, number)
            driver.merge([log.export() for log in logs[:3]], 60.0)
        done(driver)
        held = 4 - len(sink.scalars)
        driver.merge([logs[3].export()], 60.0)
    partial = [step for step, found in sink.scalars.items() if "declog/ranks" in found]
    assert (held, partial) == ((0, [1, 3, 5, 7]) if room == "little" else (4, []))
    for log in logs:
        log.close()


def test_a_driver_that_ends_before_its_actors_logs_the_open_windows(tmp_path: Path) -> None:
    """Whole, of all actors: nothing of what was merged is lost, and nothing is marked as partial."""
    sink = MemorySink()
    logs = actors()
    with driving(sink, tmp_path) as driver:
        for number in range(6):
            step_all(logs, number)
        driver.merge([log.export() for log in logs])
    assert list(sink.scalars) == [1, 3, 5]
    rows = torch.cat([reward(number, rank) for number in (4, 5) for rank in range(ACTORS)])
    assert values(sink, "slow")[5] == float(rows.max())
    assert not any(item.partial for _, records in sink.events for item in records.scalars)
    for log in logs:
        log.close()


def test_a_window_that_lacks_an_actor_in_its_middle_is_partial(tmp_path: Path) -> None:
    """Of 20 steps, the first 16 came as a part of their own; slower windows are marked, and those within are not."""
    sink = MemorySink()
    config = {
        **LENIENT, "every": 20, "filters": {}, "tables": {},
        "metrics": {"reward": "mean(reward)", "slow": {"expr": "reward", "every": 40}},
    }  # fmt: skip
    logs = [declog.start(config, role="actor", rank=rank, world_size=2) for rank in range(2)]
    with declog.start(config, sinks=[sink], output_dir=tmp_path, role="driver", world_size=2) as driver:
        for number in range(40):
            step_all(logs, number)
            if number in (15, 19, 39):
                exports = [log.export() for log in logs]
                driver.merge(exports[:1] if number == 15 else exports, 0.0)
    marked = [{item.name: item.partial for item in records.scalars} for _, records in sink.events]
    assert marked == [{"reward": True, "declog/ranks": False}, {"reward": False, "slow": True, "declog/ranks": False}]
    assert values(sink, "declog/ranks") == {19: 1, 39: 1}
    for log in logs:
        log.close()


def test_an_export_that_comes_twice_counts_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As where two actors were given one rank: it is reported."""
    sink = MemorySink()
    logs = actors()
    with driving(sink, tmp_path, LENIENT) as driver:
        for number in range(2):
            step_all(logs, number)
        exports = [log.export() for log in logs]
        driver.merge([exports[0], exports[0]])
        driver.merge(exports[1:])
    assert values(sink, "reward") == pytest.approx(means(range(2), {0: ACTORS}), rel=1e-12)
    assert "actor 0 exported a log event twice" in caplog.text
    for log in logs:
        log.close()


def test_a_checkpoint_of_driver_and_actors_is_continued(tmp_path: Path) -> None:
    """In the middle of a window: what was merged before and what comes after give what one run gives."""
    before, after = MemorySink(), MemorySink()
    logs = actors()
    with declog.start(CONFIG, sinks=[before], output_dir=tmp_path, role="driver", world_size=ACTORS) as driver:
        for number in range(3):
            step_all(logs, number)
        driver.merge([log.export() for log in logs])
        states = [log.state_dict() for log in logs]
        whole = driver.state_dict()
        kept = plain(before)
    again = [
        declog.start(CONFIG, role="actor", rank=rank, world_size=ACTORS, resume=state)
        for rank, state in enumerate(states)
    ]
    with declog.start(
        CONFIG, sinks=[after], output_dir=tmp_path, role="driver", world_size=ACTORS, resume=whole
    ) as driver:
        for number in range(3, 7):
            step_all(again, number)
        for log in again:
            log.close()
        driver.merge([log.export() for log in again])
    for log in logs:
        log.close()
    assert kept + plain(after) == expected(tmp_path)


@pytest.mark.parametrize("at", [2, 3, 4])
def test_a_resumed_driver_keeps_what_it_has_logged(at: int, tmp_path: Path) -> None:
    """Class: the place of a process that makes no steps. Its sink has each step once, wherever all were closed."""
    sink = MemorySink()
    logs = actors()
    with declog.start(CONFIG, sinks=[sink], output_dir=tmp_path, role="driver", world_size=ACTORS) as driver:
        for number in range(at):
            step_all(logs, number)
        driver.merge([log.export() for log in logs])
        states = [log.state_dict() for log in logs]
        whole = driver.state_dict()
        for log in logs:
            log.close()
        driver.merge([log.export() for log in logs])
    again = [
        declog.start(CONFIG, role="actor", rank=rank, world_size=ACTORS, resume=state)
        for rank, state in enumerate(states)
    ]
    with declog.start(
        CONFIG, sinks=[sink], output_dir=tmp_path, role="driver", world_size=ACTORS, resume=whole
    ) as driver:
        for number in range(at, 7):
            step_all(again, number)
        for log in again:
            log.close()
        driver.merge([log.export() for log in again])
    assert plain(sink) == expected(tmp_path)


@pytest.mark.parametrize("again", [4, 6])
def test_an_actor_is_started_again(again: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """From its state: the steps since then, taken again, are what was missing; what it leaves out is reported."""
    sink = MemorySink()
    logs = actors()
    state: dict[str, Any] = {}
    with driving(sink, tmp_path, LENIENT) as driver:
        for number in range(10):
            if number == 6:
                logs[3] = declog.start(CONFIG, role="actor", rank=3, world_size=ACTORS, resume=state)
                for missed in range(again, 6):
                    step(logs[3], missed, 3)
            living = logs[:3] if number in (4, 5) else logs
            step_all(living, number)
            driver.merge([log.export() for log in living], 60.0)
            if number == 3:  # it died in step 4
                state = logs[3].state_dict()
                logs[3].close()
    if again == 4:
        assert values(sink, "reward") == pytest.approx(means(range(10), {0: ACTORS}), rel=1e-12)
    assert ("actor 3 sent another log event than this one (step 7" in caplog.text) == (again == 6)
    for log in logs:
        log.close()


def test_an_actor_that_nobody_exports_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once; what it keeps is kept."""
    monkeypatch.setattr("declog.runtime.ranks.actors.KEPT_BYTES", 2000)
    with declog.start(CONFIG, role="actor", rank=1, world_size=2) as log:
        for number in range(6):
            step(log, number, 1)
        export = log.export()
    assert len(export) > 2000
    assert caplog.text.count("bytes of log events that nobody exports") == 1


def test_a_driver_records_nothing(tmp_path: Path) -> None:
    """Whatever would record something says so, before it is lost."""
    with declog.start(CONFIG, sinks=[MemorySink()], output_dir=tmp_path, role="driver", world_size=1) as driver:
        for call in (
            lambda: declog.log_metric("loss", 1.0),
            lambda: declog.log_extra("text", ["x"]),
            lambda: declog.timer("learn").__enter__(),
            lambda: driver.mode("train").__enter__(),
            driver.flush,
        ):
            with pytest.raises(UsageError, match="a driver records nothing"):
                call()


def test_one_export_that_is_none_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    """It raises, and the others of the call are logged."""
    sink = MemorySink()
    logs = actors()
    with driving(sink, tmp_path) as driver:
        for number in range(2):
            step_all(logs, number)
        exports = [log.export() for log in logs]
        with pytest.raises(CommError, match="no export of a recorder"):
            driver.merge([b"", *exports])
    assert values(sink, "reward") == pytest.approx(means(range(2), {0: ACTORS}), rel=1e-12)
    assert not any(item.partial for _, records in sink.events for item in records.scalars)
    for log in logs:
        log.close()


def test_exports_are_checked(tmp_path: Path) -> None:
    """Bytes that are no export, and exports of another plan, are refused where they are merged."""
    other = {**CONFIG, "metrics": {"reward": "max(reward)"}}
    with declog.start(CONFIG, sinks=[MemorySink()], output_dir=tmp_path, role="driver", world_size=2) as driver:
        with pytest.raises(CommError, match="no export of a recorder"):
            driver.merge([b"something"])
        with declog.start(other, role="actor", rank=1, world_size=2) as actor:
            data = actor.export()
        with pytest.raises(PlanMismatchError, match="actor 1 runs another plan"):
            driver.merge([data])
        with pytest.raises(CommError, match="no export of a recorder"):
            driver.merge([data[:-1] if len(data) > 60 else data + b"x"])
        with pytest.raises(UsageError, match="a driver records nothing"), driver.step(0):
            driver.observe(reward=[1.0])
        with pytest.raises(UsageError, match="`export` is for actors"):
            driver.export()
    with pytest.raises(UsageError, match="`role: actor` needs `rank` and `world_size`"):
        declog.start(CONFIG, role="actor")


@pytest.mark.parametrize("differ", ["ends", "begins"])
def test_blocks_of_modes_that_overlap(differ: str, tmp_path: Path) -> None:
    """They may end in another order on each actor; where they begin in another one that is reported."""
    config = profile(
        {"x": {"axis": "completion"}},
        {"x": "mean(x)"},
        modes={"train": {"prefix": "t/"}, "eval": {}},
        run={"strict": False},
    )
    sink = MemorySink()
    ranks = [declog.start(config, role="actor", rank=rank, world_size=2) for rank in range(2)]
    with declog.start(config, sinks=[sink], role="driver", world_size=2, output_dir=tmp_path) as log:
        for rank, actor in enumerate(ranks):
            turned = (rank == 1, False) if differ == "ends" else (False, rank == 1)
            blocks = [actor.mode("eval", step=number) for number in ((1, 0) if turned[1] else (0, 1))]
            for block in blocks:
                block.__enter__()
            for block in blocks[::-1] if turned[0] else blocks:
                block.observe(x=[10.0 * (block.number or 0) + rank])
                block.__exit__(None, None, None)
            actor.close()
        log.merge([actor.export() for actor in ranks])
    values = [(at, {item.name: item.value for item in records.scalars}) for at, records in sink.events]
    if differ == "ends":
        assert (values, log.failures) == ([(0, {"x": 0.5}), (1, {"x": 10.5})], {})
    else:
        assert values == [(0, {"x": 0.0, "declog/ranks": 1}), (1, {"x": 10.0, "declog/ranks": 1})]
        assert ["DL603" in each and "actor 1 sent another log event" in each for each in log.failures] == [True, True]


def test_actors_that_go_back(tmp_path: Path) -> None:
    """The driver's sinks drop what all of them take back, as those of ranks do."""
    sink, ranks = MemorySink(), MemorySink()

    def steps(log: Recorder, rank: int) -> None:
        for number in (0, 1, 2, 3, 4, -1, 2, 3):
            log.rewind(1) if number < 0 else step(log, number, rank)

    def body(comm: FakeComm) -> None:
        sinks = [ranks] if comm.rank == 0 else []
        with declog.start(CONFIG, sinks=sinks, output_dir=tmp_path / "ranks", comm=comm) as log:
            steps(log, comm.rank)

    run_ranks(ACTORS, body)
    with declog.start(CONFIG, role="driver", world_size=ACTORS, sinks=[sink], output_dir=tmp_path / "driver") as driver:
        logs = actors()
        for rank, log in enumerate(logs):
            steps(log, rank)
            log.close()
        driver.merge(log.export() for log in logs)
    assert plain(sink) == plain(ranks) and {*sink.scalars} == {1, 3}
