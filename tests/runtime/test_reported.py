"""Numbers that a loop logs by name: ``log.scalars``, a metric's ``from``, and NaN of a single name."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import declog
from declog.testing import FakeComm, MemorySink, run_ranks

PROFILE: dict[str, Any] = {
    "modes": {"train": {}, "eval": {"prefix": "eval/"}},
    "signals": {"any": {"reward": "completion"}},
    "metrics": {"reward": "mean(reward)", "kl": {"observe": {"from": "actor/kl_loss"}, "reduce": "last"}},
    "alerts": {"kl": "> 0.2"},
}
Loop = Callable[[declog.Recorder], object]


def run(loop: Loop, folder: Path, **options: Any) -> tuple[MemorySink, dict[str, int]]:
    """What the sink got, and what failed."""
    profile, sink = PROFILE | options.pop("profile", {}), MemorySink()
    with declog.start(profile, sinks=[sink], output_dir=folder, **options) as log:
        loop(log)
    return sink, dict(log.failures)


def test_calls_of_one_step_are_one_step(tmp_path: Path) -> None:
    """Each has what was observed before its first call, and the last of what was logged twice by a declared name."""

    def loop(log: declog.Recorder) -> None:
        for step in (3, 4, 7):
            log.observe(reward=[float(step), step + 1.0])
            log.scalars({"actor/kl_loss": 0.5, "loss": step}, step)
            log.scalars({"actor/kl_loss": step / 20}, step)
            log.scalars({"time": {"step": 2, "parts": {"load": 1}}}, step)

    sink, failures = run(loop, tmp_path, steps="commit")
    assert sink.scalars == {
        step: {
            "reward": step + 0.5, "loss": step, "actor/kl_loss": step / 20, "time/step": 2, "time/parts/load": 1
        } for step in (3, 4, 7)
    }  # fmt: skip
    assert [(step, alert.text) for step, alert in sink.alerts] == [(7, "kl is 0.35: kl > 0.2")]
    assert failures == {}


def test_what_is_a_number(tmp_path: Path) -> None:
    """Of Python, numpy and torch, one by one; all else comes back as it was given, in the mappings that it was in."""
    image, array = object(), np.zeros(3)
    numbers = {
        "int": 3, "bool": True, "fraction": Fraction(1, 4), "float32": np.float32(0.5), "array": np.array([[2]]),
        "zero_dim": np.array(7), "tensor": torch.tensor(1.5, requires_grad=True), "one": torch.tensor([2]),
        "half": torch.tensor(0.25, dtype=torch.bfloat16), "inf": math.inf,
    }  # fmt: skip
    others = {"text": "a", "none": None, "image": image, "array_of_3": array, "list": [1.0], "complex": 1j, "empty": {}}
    given = {**numbers, **others, "inside": {"loss": 1, "image": image}}
    taken: list[dict[str, Any]] = []
    sink, failures = run(lambda log: taken.append(log.scalars(given, 0)), tmp_path)
    expected = {
        "int": 3, "bool": 1, "fraction": 0.25, "float32": 0.5, "array": 2, "zero_dim": 7, "tensor": 1.5, "one": 2,
        "half": 0.25, "inf": math.inf, "inside/loss": 1, "nonfinite/logged": 1,
    }  # fmt: skip
    assert sink.scalars == {0: expected}
    assert taken == [{**others, "inside": {"image": image}}]
    assert failures == {}


def test_values_that_are_no_numbers_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rows come with their mean and a signal of their own, texts with the places for them; None is no value."""

    def loop(log: declog.Recorder) -> None:
        for step in range(2):
            log.scalars({"adv": torch.ones(8), "in": {"lens": [1, 2]}, f"text_{step}": "x", "none": None}, step)
            log.scalars({"note": "x", "empty": [], "ok": 1.0}, step)

    sink, failures = run(loop, tmp_path)
    assert (sink.scalars, failures) == ({0: {"ok": 1.0}, 1: {"ok": 1.0}}, {})
    heads, rows, texts = (
        "is left out of `log.scalars`:",
        "or observe all values: log.observe",
        "  fix: drop it; a fact of",
    )
    said = [record.message for record in caplog.records if heads in record.message]
    assert [line.split(f" {heads} ") for line in "\n".join(said).splitlines() if heads in line] == [
        ["[DL503] `adv`", "a tensor of float32 with shape (8,) is not one number"],
        ["[DL503] `in/lens`", "a list of 2 is not one number"],
        ["[DL504] `text_0`", "str 'x' is a text"],
        ["[DL504] `note`", "str 'x' is a text"],
        ["[DL504] `empty`", "a list of 0 is no number"],
    ]
    assert said[0].splitlines()[1:] == [
        f"  fix: log.scalars({{'adv': adv.mean()}}); {rows}(adv=adv)",
        "       one of your own, in the config: signals: {any: {adv: completion}}, metrics: {adv: mean(adv)}",
        "       or as overrides: ['signals.any.adv=completion', 'metrics.adv=mean(adv)']",
    ]
    assert f"{{'in/lens': sum(lens) / len(lens)}}); {rows}(lens=lens)" in said[1]
    assert said[2].splitlines()[1].startswith(f"{texts} the run is log.config({{'text_0': text_0}})")


def test_a_nan_of_one_name_is_logged(tmp_path: Path) -> None:
    """Under its own name, whatever other names came, also where a name came in some calls of a window only."""

    def loop(log: declog.Recorder) -> None:
        log.scalars({"a": 1.0, "b": 2.0}, 0)
        log.scalars({"a": 3.0, "loss": math.nan}, 0)
        log.scalars({"b": 4.0}, 1)

    metric = {"reduce": "last", "over": "step"}
    for number, options in enumerate([{}, {"nan": "propagate"}, {"reduce": "last", "nan": "propagate"}, metric]):
        metrics = {"logged": {"reduce": "mean", **options}}
        sink, _ = run(loop, tmp_path / str(number), profile={"metrics": metrics, "alerts": {}, "every": 2})
        (values,) = sink.scalars.values()
        a, b = [(2.0, 3.0), (2.0, 3.0), (3.0, 4.0), (3.0, 3.0)][number]
        assert values.pop("loss") != values.get("loss")
        assert values == {"a": a, "b": b, "nonfinite/logged": 1}, options


@pytest.mark.parametrize("every", [1, 3])
def test_where_numbers_belong(every: int, tmp_path: Path) -> None:
    """In a block of the loop's own it is that; a later step is ahead; an earlier one is late, which is counted."""

    def loop(log: declog.Recorder) -> None:
        for step in range(3):
            with log.step(step):
                log.observe(reward=[1.0])
                log.scalars({"here": step}, step)
                log.scalars({"nowhere": step})
                log.scalars({"ahead": step}, step + 1)
            with log.mode("eval", step=step):
                log.scalars({"loss": step}, step)
        log.scalars({"fell": 1}, 1)

    sink, failures = run(loop, tmp_path, profile={"every": every})
    if every == 1:
        steps: dict[int, dict[str, float]] = {
            step: {"reward": 1, "here": step, "nowhere": step, "ahead": step - 1, "eval/loss": step}
            for step in range(3)
        }
        del steps[0]["ahead"]
        steps[3] = {"ahead": 2, "declog/late": 1}
    else:
        steps = {step: {"eval/loss": step} for step in range(2)}
        steps[2] = {"reward": 1, "here": 1, "nowhere": 1, "ahead": 0.5, "eval/loss": 2}
        steps[3] = {"ahead": 2, "declog/late": 1}
    assert sink.scalars == steps
    assert failures == {"[DL513] rows came for a step whose window is closed": 1}


def test_a_step_that_is_committed_is_logged_at_once(tmp_path: Path) -> None:
    """Without waiting for the next call; `every: trainer` logs each step that is complete."""
    seen: list[list[int]] = []

    def loop(log: declog.Recorder) -> None:
        for step in range(3):
            log.scalars({"loss": step}, step)
            log.scalars({"kl": step}, step, commit=True)
            log.state_dict()
            seen.append([step for step, _ in sink.events])

    sink = MemorySink()
    with declog.start({"every": "trainer", "run": {"blocking": True}}, sinks=[sink], output_dir=tmp_path) as log:
        loop(log)
    assert seen == [[0], [0, 1], [0, 1, 2]]
    assert sink.scalars == {step: {"loss": step, "kl": step} for step in range(3)}


def test_a_declared_signal_of_rows_is_that(tmp_path: Path) -> None:
    """A list under the name of a signal per completion is observed; one number under it has that name for itself."""
    sink, failures = run(lambda log: [log.scalars({"reward": [1.0, 2.0]}, 0), log.scalars({"reward": 5}, 1)], tmp_path)
    assert sink.scalars[0] == {"reward": 1.5}
    assert [name for name in failures if "DL508" not in name] == []


def test_from_the_module(tmp_path: Path) -> None:
    """``declog.scalars`` reaches the run that is open; where none is, it takes nothing."""
    assert declog.scalars({"loss": 1.0, "note": "x"}) == {"loss": 1.0, "note": "x"}
    rest: list[Any] = []
    sink, _ = run(lambda log: rest.append(declog.scalars({"loss": 1.0, "note": "x"}, 5)), tmp_path)
    assert (rest, sink.scalars) == ([{"note": "x"}], {5: {"loss": 1.0}})


def test_a_step_may_take_longer_than_a_window_is_waited_for(tmp_path: Path) -> None:
    """What runs ahead meanwhile neither closes its window nor makes anything late."""

    def loop(log: declog.Recorder) -> None:
        for step in range(3):
            log.scalars({"loss": step}, step)
            with log.at(step + 1):
                log.observe(reward=[1.0])
            log.scalars({"seconds": step}, step)

    sink, failures = run(loop, tmp_path, steps="commit", wait_s=0.0)
    assert sink.scalars == {
        0: {"loss": 0, "seconds": 0}, 1: {"reward": 1, "loss": 1, "seconds": 1},
        2: {"reward": 1, "loss": 2, "seconds": 2}, 3: {"reward": 1},
    }  # fmt: skip
    assert failures == {}


def test_numbers_of_ranks(tmp_path: Path) -> None:
    """Where all ranks log, a name has the mean of what they logged, or by `last` rank 0's; where rank 0 does, that."""
    sink = MemorySink()

    def body(comm: FakeComm) -> None:
        sinks = [sink] if comm.rank == 0 else []
        with declog.start(PROFILE, sinks=sinks, comm=comm, output_dir=tmp_path, steps="commit") as log:
            for step in range(3):
                log.observe(reward=[float(comm.rank)])
                log.scalars({"actor/kl_loss": comm.rank, "loss": 2 * comm.rank}, step)
                log.scalars({"main": step} if comm.rank == 0 else {}, step)

    run_ranks(2, body)
    expected = {"reward": 0.5, "loss": 1.0}
    assert {step: values.pop("actor/kl_loss") for step, values in sink.scalars.items()} == dict.fromkeys(range(3), 0.0)
    kept = {step: {name: values[name] for name in ("reward", "loss", "main")} for step, values in sink.scalars.items()}
    assert kept == {step: {**expected, "main": step} for step in range(3)}
