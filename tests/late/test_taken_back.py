"""Questions to a run that went back (`log.rewind(k)`): their answers have the points that the run has, and no other.

Class: asked when it is over, before it went back, and of a running job; of one that is resumed beside, on every rank.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.late import ask, write
from declog.late import live as live_module
from declog.late.live import ANSWER, REQUEST, hand_over
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink, run_ranks
from tests.late.test_late import BASE, as_text, config, lines, train, values
from tests.running import pairs

# parts of a run: where each goes back to, if it does, its steps, and whether it goes on in a process of its own
Part = tuple[int | None, range, bool]
PARTS: dict[str, list[Part]] = {
    "back": [(None, range(18), False), (7, range(8, 23), False)],
    "resumed, then back": [(None, range(12), False), (None, range(12, 14), True), (8, range(9, 23), False)],
    "back at once": [(None, range(13), False), (6, range(7, 18), True)],
    "back, then resumed": [(None, range(12), False), (4, range(5, 9), False), (None, range(9, 18), True)],
    "to before its beginning": [(None, range(12), False), (-1, range(9), False)],
}


def played(parts: list[Part], declared: dict[str, Any], folder: Path, sinks: list[Any], ranks: int) -> None:
    """Play the parts; what the last process of a resumed run did behind its state is made again."""
    states: list[Any] = [None] * ranks

    def process(comm: Comm, own: list[Part], *, on: bool) -> Any:
        here = sinks if comm.rank == 0 else []
        with declog.start(declared, sinks=here, output_dir=folder, comm=comm, resume=states[comm.rank]) as log:
            for back, steps, _ in own:
                if back is not None:
                    log.rewind(back)
                train(log, comm.rank, steps)
            state = log.state_dict()
            if on:
                train(log, comm.rank, range(own[-1][1].stop, own[-1][1].stop + 3))
        return state

    processes: list[list[Part]] = []
    for part in parts:
        if part[2] or not processes:
            processes.append([])
        processes[-1].append(part)
    for number, own in enumerate(processes, 1):
        states = run_ranks(ranks, partial(process, own=own, on=number < len(processes)))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", PARTS)
def test_late_is_early(name: str, ranks: int, tmp_path: Path) -> None:
    """Every kind of metric, evaluations too."""
    sink = MemorySink()
    played(PARTS[name], config({**BASE, **lines("e_")}), tmp_path / "run", [sink], ranks)
    late = ask(tmp_path / "run", as_text(lines("l_")))
    early = values(sink.events, "e_")
    assert values(late.events, "l_") == early
    steps = [step for step, records in late.events if records.mode == "train"]
    assert steps == sorted(steps)


def series(run: Path, *names: str) -> list[list[tuple[int, float]]]:
    """The points of scalars."""
    return [pairs(declog.read(run)[name]) for name in names]


def test_an_answer_from_before(tmp_path: Path) -> None:
    """What was written below the run's folder loses the steps that the run takes back, as where it is resumed."""
    with declog.start(config(BASE, every=1, sinks=["jsonl"]), output_dir=tmp_path) as log:
        train(log, 0, range(9))
        assert log.written()
        write(tmp_path, ask(tmp_path, {"most": "max(length)"}))
        log.rewind(4)
        train(log, 0, range(5, 7))
        assert log.written()
        most, length = series(tmp_path, "most", "b_length")
        assert most == length[:5] and [step for step, _ in length] == [*range(7)]
    write(tmp_path, ask(tmp_path, {"most": "max(length)"}))
    most, length = series(tmp_path, "most", "b_length")
    assert most == length


@pytest.mark.parametrize("taken_up", ["before", "behind"])
def test_a_running_job(taken_up: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on with the metric behind the step to which it went back, also where it catches up on that."""
    monkeypatch.setattr(live_module, "LOOK_S", 0.0)
    sink = MemorySink()
    shown = config(BASE, every=1, sinks=["jsonl"], run={"late": True})
    with declog.start(shown, output_dir=tmp_path, sinks=[sink]) as log:
        train(log, 0, range(9))
        assert log.written()
        late = ask(tmp_path, {"most": "max(length)"})
        write(tmp_path, late)
        if taken_up == "behind":
            _back(log)
        asking = threading.Thread(target=partial(hand_over, tmp_path, late, 60.0))
        asking.start()
        while not (tmp_path / "late/most" / REQUEST).exists():
            time.sleep(0.05)
        train(log, 0, range(7 if taken_up == "behind" else 9, 11))
        asking.join(60)
        if taken_up == "before":
            _back(log)
        train(log, 0, range(log.last_step + 1 if log.last_step else 0, 13))
    assert (tmp_path / "late/most" / ANSWER).exists()
    most, length = series(tmp_path, "most", "b_length")
    assert most == length and [step for step, _ in length] == [*range(13)]
    tracked = {step: scalars["most"] for step, scalars in sink.scalars.items() if "most" in scalars}
    assert tracked == dict(length[-len(tracked) :])


def _back(log: Recorder) -> None:
    log.rewind(4)
    train(log, 0, range(5, 7))
