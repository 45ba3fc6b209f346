"""`combine: rolling(n)` where the run goes back: steps that are undone do not count."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink, run_ranks
from tests.running import profile

ROWS = {"axis": "completion"}
SIGNALS = {"x": ROWS, "who": {**ROWS, "type": "text"}, "f": {**ROWS, "family": True}}
ROLLING = {"combine": "rolling(3)"}
METRICS: dict[str, Any] = {
    "x": {"expr": "x", **ROLLING},
    "who": {"expr": "x", "by": "who", "name": "{id}/{label}", **ROLLING},
    "f": {"expr": "f", "name": "{id}/{member}", **ROLLING},
    "batches": {"expr": "x", "over": "batch", **ROLLING},
    "events": {"expr": "x", "over": "window", **ROLLING},
    "most": {"expr": "x", "combine": "rolling_max(3)"},
    "mean": {"expr": "x", "log": False},
    "double": {"formula": "2 * mean", **ROLLING},
    "before": {"expr": "x", "combine": "lag(1)"},
    "start": {"expr": "x", "over": "run_step", "combine": "first"},
    "double_before": {"formula": "2 * mean", "combine": "lag(2)"},
}
OTHERS = {"smooth": {"expr": "x", "combine": "ema(0.5)"}, "last": {"expr": "x", "reduce": "last", "over": "run"}}


def logged(steps: list[tuple[int, float]], back: int | None, *, every: int, folder: Path, ranks: int, cut: bool) -> Any:
    """The last values of a run; ``back`` is the step to which it goes before the last of ``steps``.

    ``cut``: it is resumed just before, and again just behind that.
    """
    sink = MemorySink()
    config = profile(SIGNALS, {**METRICS, **OTHERS}, every=every)
    parts = [steps[:-1], [], steps[-1:]] if cut else [steps]

    def observed(log: Recorder, comm: Comm, number: int, value: float) -> None:
        with log.step(number):
            log.observe(x=[value - 0.5 + comm.rank], who=["late" if number > 3 else "early"], f={"one": [value]})

    def rank(comm: Comm, index: int, states: list[Any]) -> Any:
        sinks = [] if comm.rank else [sink]
        with declog.start(config, sinks=sinks, comm=comm, output_dir=folder, resume=states[comm.rank]) as log:
            for number, value in parts[index]:
                if (number, value) == steps[-1] and back is not None and not cut:
                    log.rewind(back)
                observed(log, comm, number, value)
            if cut and index == 1 and back is not None:
                log.rewind(back)
            return log.state_dict()

    states: list[Any] = [None] * ranks
    for index in range(len(parts)):
        states = run_ranks(ranks, partial(rank, index=index, states=states))
    return sink.scalars[steps[-1][0]]


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_undone_steps_do_not_count(ranks: int, cut: bool, tmp_path: Path) -> None:
    """Class: steps, batches, log events, formulas, labels and members, also of a label whose first step is undone."""
    steps = [(number, float(number)) for number in range(6)]
    again = logged([*steps, (3, 103.0)], 2, every=1, folder=tmp_path / "a", ranks=ranks, cut=cut)
    plain = logged([*steps[:3], (3, 103.0)], None, every=1, folder=tmp_path / "b", ranks=ranks, cut=False)
    rolled = {name: value for name, value in again.items() if name not in OTHERS}
    assert rolled == pytest.approx({name: value for name, value in plain.items() if name not in OTHERS})
    assert again["f/one"] == pytest.approx((1 + 2 + 103) / 3) and "who/late" not in again


@pytest.mark.parametrize("every", [1, 4])
def test_a_window_that_is_cut_by_it(every: int, tmp_path: Path) -> None:
    """Class: values of a window's steps, of which the later ones are undone."""
    steps = [(number, float(number)) for number in range(7)]
    sink, config = MemorySink(), profile(SIGNALS, METRICS, every=every)
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log:
        for number, value in [*steps, (5, 105.0), (6, 106.0), (7, 107.0), (8, 108.0)]:
            if value == 105.0:
                log.rewind(4)
            with log.step(number):
                log.observe(x=[value])
    assert sink.scalars[max(sink.scalars)]["x"] == pytest.approx(107.0)
    assert sink.scalars[5]["x"] == pytest.approx((3 + 4 + 105) / 3) if every == 1 else True


def test_further_back_there_are_fewer_values(tmp_path: Path) -> None:
    """Class: a run that goes back by more than n values, and to before its first step."""
    for back, expected in ((4, (3 + 4 + 105) / 3), (1, 102.0), (-1, 100.0)):
        steps = [(number, float(number)) for number in range(9)] + [(back + 1, 101.0 + back)]
        again = logged(steps, back, every=1, folder=tmp_path / str(back), ranks=1, cut=False)
        assert again["f/one"] == pytest.approx(expected)


def test_what_is_no_list_of_values_stays(tmp_path: Path) -> None:
    """Class: `ema` and the latest value go on from where they are."""
    steps = [(number, float(number)) for number in range(3)]
    again = logged([*steps, (1, 9.0)], 0, every=1, folder=tmp_path, ranks=1, cut=False)
    assert again["smooth"] == pytest.approx(0.5 * (0.5 * (0.5 * -0.5 + 0.5 * 0.5) + 0.5 * 1.5) + 0.5 * 8.5)
    assert again["last"] == 8.5
