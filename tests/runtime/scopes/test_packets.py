"""Packets: rows that travel with the data, and are of the step that consumes them."""

from __future__ import annotations

import copy
import gc
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import declog
from declog.runtime.recording.recorder import Recorder
from tests import forks
from tests.runtime.scopes.running import TWICE, UNUSED, run


def test_what_is_done_to_the_values_later_changes_nothing(tmp_path: Path) -> None:
    """Tensors, arrays and lists are copied when the packet is made."""
    tensor, array, plain = torch.tensor([1.0, 2.0]), np.array([3.0, 5.0]), [6.0, 8.0]

    def body(log: Recorder) -> None:
        packets = [declog.rows(reward=values) for values in (tensor, array, plain)]
        tensor.zero_()
        array[:] = 0
        plain[:] = [0.0, 0.0]
        with log.step(0):
            log.observe(*packets)

    logged = run(body, tmp_path)
    assert (logged.of("reward", "n"), logged.failures) == ({("train", 0): (25 / 6, 6)}, {})


def test_rows_of_a_packet_stay_together(tmp_path: Path) -> None:
    """What is in one packet is of the same rows, whatever else the step observes."""

    def body(log: Recorder) -> None:
        packets = [declog.rows(prompt=[name], reward=[value]) for name, value in (("a", 1.0), ("b", 2.0))]
        with log.step(0):
            log.observe(prompt=["own"])
            log.observe(*packets, loss=1.0)
            log.observe(reward=[3.0])

    logged = run(body, tmp_path)
    assert sorted(logged.pairs) == [("a", 1.0), ("b", 2.0), ("own", 3.0)]
    assert logged.failures == {}


@pytest.mark.parametrize("how", ["itself", "a copy", "through a pickle"])
def test_a_packet_counts_once_in_a_step(how: str, tmp_path: Path) -> None:
    """A retry or a double read is reported; another step may consume it again, as a replay buffer does."""

    def body(log: Recorder) -> None:
        packet = declog.rows(reward=[1.0, 3.0])
        again: declog.Packet = packet
        if how == "a copy":
            again = copy.copy(packet)
        elif how == "through a pickle":
            again = pickle.loads(pickle.dumps(packet))
        with log.step(0):
            log.observe(packet)
            log.observe(again)
        with log.step(1):
            log.observe(again)
        with log.mode("eval"):
            log.observe(packet)

    logged = run(body, tmp_path)
    assert logged.of("n") == {("eval", 1): (2,), ("train", 0): (2,), ("train", 1): (2,)}
    assert logged.failures == {TWICE: 2}


@pytest.mark.parametrize("when", ["collected", "kept until the end"])
def test_packets_that_nobody_consumes_are_reported(when: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the place where they were made; what is dropped on purpose says so."""
    kept = []

    def body(log: Recorder) -> None:
        lost = declog.rows(reward=[1.0, 2.0])
        declog.rows(reward=[3.0]).discard()
        if when == "collected":
            del lost
            gc.collect()
        else:
            kept.append(lost)
        with log.step(0):
            log.observe(reward=[1.0])

    logged = run(body, tmp_path)
    assert logged.failures == {UNUSED: 2}
    (record,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert record.getMessage().splitlines()[0] == UNUSED
    assert __file__ in record.getMessage().splitlines()[1]


def test_a_packet_of_wrong_signals(tmp_path: Path) -> None:
    """It is checked when it is observed: by name before anything is recorded, by value as `observe` checks it."""

    def body(log: Recorder) -> None:
        with log.step(0):
            with pytest.raises(declog.UnknownSignalError, match="no signal `rewrad`"):
                log.observe(declog.rows(rewrad=[1.0]), reward=[9.0])
            with pytest.raises(declog.InputError, match="has 2"):
                log.observe(declog.rows(reward=[1.0], prompt=["a", "b"]))
            log.observe(reward=[1.0])

    logged = run(body, tmp_path)
    assert logged.of("reward", "n") == {("train", 0): (1.0, 1)}


def test_packets_for_the_next_step_and_for_one_that_is_named(tmp_path: Path) -> None:
    """As signals are."""

    def body(log: Recorder) -> None:
        log.observe(declog.rows(reward=[1.0]), step="next")
        log.observe(declog.rows(reward=[2.0]), step=2)
        for step in range(3):
            with log.step(step):
                pass

    logged = run(body, tmp_path)
    assert logged.of("reward") == {("train", 0): (1.0,), ("train", 2): (2.0,)}
    assert logged.failures == {}


def test_packets_without_a_run() -> None:
    """They can be made, pickled and dropped where no run is open."""
    packet = pickle.loads(pickle.dumps(declog.rows(reward=torch.ones(2), version=3)))
    assert (packet.rows, sorted(packet.signals)) == (2, ["reward", "version"])


WITHOUT_TORCH = """
import pickle, sys
import numpy as np
import declog
sys.modules["torch"] = None
packet = declog.rows(reward=np.arange(4.0), judge={"score": [1, 2, 3, 4]}, source=object())
again = pickle.loads(pickle.dumps(declog.rows(reward=np.arange(4.0), judge={"score": [1, 2, 3, 4]})))
print(packet.rows, again.signals["reward"].tolist(), again.signals["judge"])
"""


def test_a_worker_without_torch_makes_and_sends_packets() -> None:
    """The class: torch is imported to look for tensors, which nobody can have who has not imported it."""
    done = forks.run(["-c", WITHOUT_TORCH])
    assert (done.returncode, done.stdout) == (0, "4 [0.0, 1.0, 2.0, 3.0] {'score': [1, 2, 3, 4]}\n")
