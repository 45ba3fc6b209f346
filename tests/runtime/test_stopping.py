"""`alerts.X.do: [stop]`: training ends after the same step on every rank, however far apart the ranks are."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import declog
from declog.runtime.ranks.fake_comm import FakeComm, run_ranks
from declog.runtime.run.failures import Failures
from declog.runtime.worker import backlog
from declog.runtime.worker.backlog import AHEAD
from declog.runtime.worker.stopping import Stop
from declog.runtime.worker.worker import Task
from tests.faults import jobs

CONFIG: dict[str, Any] = {
    "run": {"name": "stops"},
    "signals": {"any": {"kl": "completion"}},
    "metrics": {"kl": {"expr": "kl", "reduce": "max"}},
    "alerts": {"kl": {"above": 0.5, "do": ["stop"]}},
    "sinks": [],
}
STEPS = 400


def trained(log: Any, fires: int, pause: Any, *, asks: bool = True) -> int:
    """Steps of a loop of one's own whose KL is too high from a step on: the step after which it ended."""
    for step in range(STEPS):
        with log.step(step):
            log.observe(kl=torch.tensor([0.0, 1.0 if step >= fires else 0.1]))
        time.sleep(pause())
        if asks and log.should_stop:
            return step
    return STEPS


def test_one_process_ends_after_the_alert(tmp_path: Path) -> None:
    """It says what fired, once, and asks a worker for nothing where no alert stops."""
    with declog.start(CONFIG, output_dir=tmp_path / "run") as log:
        last = trained(log, 5, lambda: 0.005)
        assert 5 <= last < STEPS
        [(step, alert)] = log.alerts
        assert (step, alert.name, alert.text) == (5, "kl", "kl is 1: kl > 0.5")
        assert log.should_stop and log.should_stop  # it stays true
    quiet = {**CONFIG, "alerts": {"kl": "> 0.5"}}
    with declog.start(quiet, output_dir=tmp_path / "quiet") as log:
        assert trained(log, 5, lambda: 0.0) == STEPS
        assert [step for step, _ in log.alerts] == [5]


@pytest.mark.parametrize("asks", [True, False])
def test_the_message_of_a_stop_is_true_however_the_loop_ends(
    asks: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Class: a message that says what other code will do. It says from which step on the loop is told to end."""
    with caplog.at_level(logging.WARNING, logger="declog"), declog.start(CONFIG, output_dir=tmp_path) as log:
        last = trained(log, STEPS - 2, lambda: 0.0, asks=asks)
    (text,) = [text for text in caplog.messages if "asks training to end" in text]
    told = int(text.removesuffix(" on").rpartition(" ")[2])
    assert (
        text
        == f"the alert `kl` of step {STEPS - 2} asks training to end: `log.should_stop` is true from step {told} on"
    )
    assert told <= STEPS and (last == STEPS or told <= last)


def test_a_loop_without_work_ends_soon(tmp_path: Path) -> None:
    """It makes no hundreds of steps before the worker has seen the one that fired."""
    with declog.start(CONFIG, output_dir=tmp_path) as log:
        assert 5 <= trained(log, 5, lambda: 0.0) <= 5 + AHEAD + 1


def test_a_worker_that_stands_still_costs_so_much_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training that is far ahead waits for it once, not at each step."""
    monkeypatch.setattr(backlog, "CATCH_UP_S", 0.3)
    going = threading.Event()
    with declog.start(CONFIG, output_dir=tmp_path) as log:
        log._background.submit(Task(going.wait))
        start = time.monotonic()
        last = trained(log, STEPS, lambda: 0.0)
        waited = time.monotonic() - start
        going.set()
    assert last == STEPS and 0.3 <= waited < 10


def test_a_step_that_is_not_called(tmp_path: Path) -> None:
    """Python's words for a method in place of its block have the call behind them."""
    log = declog.start("minimal", ["sinks=[]"], output_dir=tmp_path)
    with pytest.raises(TypeError) as caught, log, log.step:  # type: ignore[attr-defined]
        pass
    assert caught.value.__notes__ == ["  fix: `with log.step(step):`, a call with the step's number"]


def test_a_call_of_the_property_is_answered(tmp_path: Path) -> None:
    """Class: a property beside methods is called. Python's words have the fix beneath them; other calls have none."""
    with pytest.raises(TypeError) as caught, declog.start(CONFIG, output_dir=tmp_path / "run") as log:
        log.should_stop()  # type: ignore[operator]
    assert caught.value.__notes__ == ["  fix: `log.should_stop`, without parentheses"]
    calls: Any = lambda value: value()  # noqa: E731
    with pytest.raises(TypeError) as caught, declog.start(CONFIG, output_dir=tmp_path / "other"):
        calls(True)
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("seed", range(6))
def test_ranks_at_different_speeds_end_after_one_step(seed: int) -> None:
    """Ranks exchange nothing in training, one is up to ten times as fast as another: they end alike all the same."""

    def rank(comm: FakeComm) -> tuple[int, dict[str, int]]:
        dice = random.Random(seed * 10 + comm.rank)
        slow = dice.choice([0.001, 0.004, 0.01])
        with declog.start(CONFIG, comm=comm, base_dir=None) as log:
            # rank 0 is told of rows of all ranks, so any rank may be the one whose KL is too high
            last = trained(log, 20 if comm.rank == seed % 3 else STEPS, lambda: dice.random() * slow)
        return last, dict(log.failures)

    ended = run_ranks(3, rank)
    assert len({last for last, _ in ended}) == 1, ended
    assert 20 <= ended[0][0] < STEPS
    assert [failures for _, failures in ended] == [{}] * 3


class Notes:
    """Notes of processes that are called by hand, in one thread."""

    def __init__(self, process: str, processes: list[str], notes: dict[str, str]) -> None:
        self.process, self._processes, self.notes = process, processes, notes
        self.collects = process == "0"

    def write_note(self, key: str, text: str) -> None:
        self.notes[key] = text

    def read_note(self, key: str) -> str | None:
        return self.notes.get(key)

    def processes(self) -> list[str]:
        return self._processes


def ended_in_order(seed: int) -> dict[str, int]:
    """The steps after which four processes end when their polls and steps come in an order of dice."""
    dice, notes, failures = random.Random(seed), dict[str, str](), Failures()
    names = ["0", "1", "1.1", "2"]
    stops = {name: Stop(Notes(name, names, notes), failures, 60.0) for name in names}  # type: ignore[arg-type]
    steps, ended = dict.fromkeys(names, 0), dict[str, int]()
    asks = dice.randrange(30)
    for turn in range(3000):
        if turn == asks:
            stops["0"].ask("kl", 1)
        name = dice.choice(names)
        stop = stops[name]
        waits = stop._promised is not None and stop._step is None and steps[name] > stop._promised
        if dice.random() < 0.3:
            stop.poll()
        elif name not in ended and not waits:  # one that would wait is not asked, as its thread would stand still
            if stop.after(steps[name]):
                ended[name] = steps[name]
            steps[name] += 1
        if len(ended) == len(names):
            break
    assert failures.counts == {}
    return ended


def test_no_order_of_events_parts_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever comes first, polls or steps, of processes that share a rank too: all end after one step."""
    monkeypatch.setattr("declog.runtime.worker.stopping.POLL_S", 0.0)
    for seed in range(200):
        ended = ended_in_order(seed)
        assert len(ended) == 4 and len(set(ended.values())) == 1, (seed, ended)


def test_a_process_that_does_not_answer_is_told_and_bounded() -> None:
    """The others end alike; the one that comes back later ends as soon as it asks."""
    notes, failures = dict[str, str](), Failures()
    lead, silent = (Stop(Notes(name, ["0", "1"], notes), failures, 0.05) for name in ("0", "1"))  # type: ignore[arg-type]
    assert not lead.after(3)
    assert not silent.after(9)
    lead.ask("kl", 1)
    end = time.monotonic() + 10
    while "stop/step" not in notes and time.monotonic() < end:
        lead.poll()
        time.sleep(0.01)
    assert lead.after(4) and notes["stop/step"] == "4"
    [told] = failures.counts
    assert told.splitlines()[0] == "[DL613] an alert stops the run, and processes ['1'] did not answer within 0.05 s"
    silent.poll()
    assert silent.after(10)


def test_a_verdict_that_does_not_come_is_told_and_training_goes_on() -> None:
    """Rank 0 asked and is gone: the others wait once, say so, and train on."""
    notes, failures = {"stop": "kl"}, Failures()
    stop = Stop(Notes("1", ["0", "1"], notes), failures, 0.05)  # type: ignore[arg-type]
    assert not stop.after(3)
    stop.poll()
    assert notes["stop/1"] == "3"
    assert not stop.after(4)
    began = time.monotonic()
    assert not stop.after(5)
    assert time.monotonic() - began < 0.04  # the second time it does not wait
    assert [text.partition(": ")[0] for text in failures.counts] == [
        "[DL613] an alert stops the run, and rank 0 did not say after which step within 0.05 s"
    ]


def test_a_broken_connection_is_told_once() -> None:
    """Polls after it do nothing."""

    class Broken(Notes):
        def read_note(self, key: str) -> str | None:
            raise declog.CommError.of("DL603.lost", rank=1, cause="gone")

    failures = Failures()
    stop = Stop(Broken("1", ["0", "1"], {}), failures, 0.05)  # type: ignore[arg-type]
    stop.poll()
    time.sleep(0.11)
    stop.poll()
    assert list(failures.counts.values()) == [1]


@pytest.mark.slow
def test_two_processes_at_different_speeds(tmp_path: Path) -> None:
    """Real processes: rank 1 is twenty times slower, nothing but declog connects them, and both end after one step."""
    ended = jobs.run(tmp_path, 2, ["-m", "tests.runtime.ranks.stopping", tmp_path])
    assert ended.codes == (0, 0), "\n".join(text[-4000:] for text in ended.outputs)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first["last"] == second["last"] and 10 <= first["last"] < STEPS
    assert (first["failures"], second["failures"]) == ({}, {})
    assert [step for step, _ in first["alerts"]] == [10] and second["alerts"] == []


def test_the_notes_of_a_store() -> None:
    """Processes that share a rank have names of their own, and one that left is not waited for."""
    from declog.runtime.ranks.keystore import Client, Server
    from declog.runtime.ranks.store_comm import StoreComm

    server = Server(b"secret" * 6, ["127.0.0.1"])
    client = Client(b"secret" * 6, ["127.0.0.1"], server.port, 5.0)
    try:
        zero, one = StoreComm(server, 0, 2), StoreComm(client, 1, 2)
        replica = StoreComm(client, 1, 2, copy=1)
        assert list(zero.processes()) == ["0", "1"]
        replica.write_note(replica.process, "here")
        assert list(zero.processes()) == ["0", "1", "1.1"]
        assert one.read_note("stop") is None
        zero.write_note("stop", "é")
        assert (one.read_note("stop"), replica.read_note("stop")) == ("é", "é")
        one.close()
        assert list(zero.processes()) == ["0", "1.1"]
    finally:
        client.close()
        server.close()
