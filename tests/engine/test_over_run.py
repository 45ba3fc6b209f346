"""What goes on from log event to log event: within a mode, in the order of steps, over what is missing."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.engine.program import Program
from declog.language.functions import DEFAULT, Functions
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink
from tests.running import profile, run

MODES = {"train": {}, "eval": {"prefix": "eval_"}}
ROWS = {"axis": "completion"}


def values(metric: dict[str, Any], steps: list[list[Any]], folder: Path, **others: Any) -> dict[int, Any]:
    """What a metric `m` of `x` is at each log event."""

    def body(log: Recorder) -> None:
        for step, rows in enumerate(steps):
            with log.step(step):
                log.observe(x=rows)

    sink = run(profile({"x": ROWS}, {"m": {"expr": "x", **metric}}, **others), body, folder)
    return {step: found["m"] for step, found in sink.scalars.items() if "m" in found}


def test_a_moving_average_is_of_steps_however_long_windows_are(tmp_path: Path) -> None:
    """Each step counts once, with its mean; a step without values changes nothing."""
    steps: list[list[Any]] = [[4.0], [2.0, 4.0], [], [1.0], [None], [5.0]]
    averages, found = [4.0], {}
    for mean in (3.0, 1.0, 5.0):
        averages.append(0.5 * averages[-1] + 0.5 * mean)
    for every in (1, 2, 3, 6):
        found[every] = values({"combine": "ema(0.5)"}, steps, tmp_path / str(every), every=every)
    after = dict(enumerate([averages[0], averages[1], averages[1], averages[2], averages[2], averages[3]]))
    assert found == {every: {step: after[step] for step in range(every - 1, 6, every)} for every in found}


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ({"reduce": "max"}, {0: 3.0, 1: 3.0, 2: 7.0, 3: 7.0}),
        ({"reduce": "mean"}, {0: 2.0, 1: 2.0, 2: 11 / 3, 3: 2.5}),
        ({"reduce": "last"}, {0: 3.0, 1: 3.0, 2: 7.0, 3: -1.0}),
        ({"over": "run_step", "combine": "max"}, {0: 2.0, 1: 2.0, 2: 7.0, 3: 7.0}),
        ({"over": "run_step", "combine": "last"}, {0: 2.0, 1: 2.0, 2: 7.0, 3: -1.0}),
        ({"over": "run_step", "combine": "first"}, {0: 2.0, 1: 2.0, 2: 2.0, 3: 2.0}),
        ({"over": "run_step", "combine": "first", "where": "x > 5"}, {2: 7.0, 3: 7.0}),
        ({"reduce": "min", "where": "x > 5", "empty": 0}, {0: 0.0, 1: 0.0, 2: 7.0, 3: 7.0}),
    ],
)
def test_all_that_came_is_reduced_together(metric: dict[str, Any], expected: dict[int, float], tmp_path: Path) -> None:
    """A step without rows leaves the value as it is."""
    steps: list[list[Any]] = [[1.0, 3.0], [], [7.0], [-1.0]]
    assert values({"over": "run", **metric}, steps, tmp_path) == expected


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ({"over": "run", "reduce": "max"}, [None, 3.0, 3.0, 7.0, 7.0]),
        ({"over": "run_step", "combine": "last"}, [None, 2.0, 2.0, 7.0, 7.0]),
        ({"over": "run_step", "combine": "first"}, [None, 2.0, 2.0, 2.0, 2.0]),
        ({"combine": "ema(0.5)"}, [None, 2.0, 2.0, 4.5, 4.5]),
    ],
)
def test_a_log_event_without_the_phase_has_the_value_so_far(
    metric: dict[str, Any], expected: list[float | None], tmp_path: Path
) -> None:
    """Nothing of a phase may come, before its first batch and between two, while others are logged."""

    def body(log: Recorder) -> None:
        for step, rows in enumerate([None, [1.0, 3.0], None, [7.0], None]):
            with log.step(step):
                log.observe(loss=1.0)
                if rows is not None:
                    log.observe(x=rows)

    config = profile({}, {"m": {"expr": "x", **metric}, "loss": "mean"})
    config["signals"] = {"rollout": {"x": ROWS}, "update": {"loss": {"axis": "step"}}}
    found = run(config, body, tmp_path).scalars
    assert [found[step].get("m") for step in range(5)] == expected


@pytest.mark.parametrize("every", [1, 2, 4])
@pytest.mark.parametrize(
    ("combine", "expected"),
    [("var", {0: None, 1: None, 2: 8.0, 3: 8.0}), ("mean", {0: 3.0, 1: 3.0, 2: 5.0, 3: 5.0})],
)
def test_what_makes_no_value_yet_is_absent_and_not_missing(
    combine: str, expected: dict[int, float | None], every: int, tmp_path: Path
) -> None:
    """The variance of one value, also where what came last is missing; however the run is cut into windows."""
    metric = {"reduce": "sum", "over": "run_step", "combine": combine, "every": every}
    steps: list[list[Any]] = [[1.0, 2.0], [None, None], [7.0], [None]]
    found = values(metric, steps, tmp_path)
    assert found == {step: value for step, value in expected.items() if value is not None and step % every == every - 1}


def test_empty_stands_for_what_came_without_a_value(tmp_path: Path) -> None:
    """The label `b` from then on, and not before; a step without rows adds nothing."""
    signals = {"x": ROWS, "bonus": ROWS, "who": {**ROWS, "type": "text"}}
    seen = {"expr": "x + bonus", "reduce": "last", "by": "who", "over": "run", "empty": 0, "name": "{label}"}

    steps: list[dict[str, Any]] = [{"bonus": [1.0], "who": ["a"]}, {"who": ["b"]}, {"bonus": [3.0], "who": ["a"]}]

    def body(log: Recorder) -> None:
        for step, given in enumerate(steps):
            with log.step(step):
                log.observe(x=[0.0], **given)

    found = run(profile(signals, {"seen": seen}), body, tmp_path).scalars
    assert found == {0: {"a": 1.0}, 1: {"a": 1.0, "b": 0.0}, 2: {"a": 3.0, "b": 0.0}}


def test_a_missing_value_shows_where_it_is_propagated_and_changes_nothing(tmp_path: Path) -> None:
    """NaN at its own log event; the values beside it count."""
    steps: list[list[Any]] = [[1.0], [3.0, None], [5.0]]
    found = values({"reduce": "max", "over": "run", "nan": "propagate"}, steps, tmp_path / "max")
    assert (found[0], str(found[1]), found[2]) == (1.0, "nan", 5.0)
    total = values({"reduce": "sum", "over": "run", "nan": "propagate"}, steps, tmp_path / "sum")
    assert (total[0], str(total[1]), total[2]) == (1.0, "nan", 9.0)


def test_each_mode_has_its_own(tmp_path: Path) -> None:
    """The best evaluation is none of training's."""
    metrics = {
        "best": {"expr": "x", "reduce": "max", "over": "run"}, "smooth": {"expr": "x", "combine": "ema(0.5)"},
        "n": {"expr": "x", "reduce": "count", "over": "run"},
    }  # fmt: skip

    def body(log: Recorder) -> None:
        for step in range(3):
            with log.step(step):
                log.observe(x=[9.0 - step])
            with log.mode("eval"):
                log.observe(x=[float(step)])

    sink = run(profile({"x": ROWS}, metrics, modes=MODES), body, tmp_path)
    assert sink.scalars[2] == {
        "best": 9.0, "smooth": 7.75, "n": 3, "eval_best": 2.0, "eval_smooth": 1.25, "eval_n": 3,
    }  # fmt: skip


def test_an_evaluation_that_ends_late_is_left_out_of_averages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two evaluations overlap, and the one of the later step ends first; what has no order counts all the same."""
    metrics = {"smooth": {"expr": "x", "combine": "ema(0.5)"}, "best": {"expr": "x", "reduce": "max", "over": "run"},
               "x": "mean(x)"}  # fmt: skip

    def body(log: Recorder) -> None:
        for step in range(3):
            with log.step(step):
                log.observe(x=[0.0])
        first, second = log.mode("eval", step=0), log.mode("eval", step=2)
        with first:
            log.observe(x=[8.0])
            with second:
                log.observe(x=[4.0])

    with caplog.at_level(logging.WARNING, "declog"):
        sink = run(profile({"x": ROWS}, metrics, modes=MODES), body, tmp_path)
    shown = {step: {name: value for name, value in found.items() if "eval" in name} for step, found in
             sink.scalars.items()}  # fmt: skip
    assert (shown[0], shown[2]) == (
        {"eval_smooth": 4.0, "eval_best": 8.0, "eval_x": 8.0}, {"eval_smooth": 4.0, "eval_best": 4.0, "eval_x": 4.0},
    )  # fmt: skip
    assert [each.getMessage() for each in caplog.records] == [
        "the metric `smooth` leaves out the window that ended at step 0, after one of step 2"
    ]


def test_a_formula_and_an_alert_read_what_goes_on(tmp_path: Path) -> None:
    """Beside metrics of the window: how far it is below the best so far."""
    metrics = {
        "x": "mean(x)", "best": {"expr": "x", "over": "run_step", "combine": "max"},
        "below": {"formula": "best - x"}, "smooth": {"formula": "best - x", "combine": "ema(0.5)"},
    }  # fmt: skip
    config = profile({"x": ROWS}, metrics, alerts={"fell": {"when": "below > 3", "text": "{below:g}"}})
    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log:
        for step, value in enumerate([5.0, 8.0, 4.0]):
            with log.step(step):
                log.observe(x=[value])
    assert [sink.scalars[step]["below"] for step in range(3)] == [0.0, 0.0, 4.0]
    assert (sink.scalars[2]["smooth"], [alert.text for _, alert in sink.alerts]) == (2.0, ["4"])


LABELS = [["a", "a", "b"], ["c", "c", "c", "b"], ["d", "c", "a"]]  # of each step; from the second on there is no place


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (
            {"reduce": "sum", "over": "run"},
            [{"a": 2, "b": 1}, {"a": 2, "b": 2, "_other": 3}, {"a": 3, "b": 2, "_other": 5}],
        ),
        (
            {"reduce": "last", "over": "run"},
            [{"a": 0, "b": 0}, {"a": 0, "b": 1, "_other": 1}, {"a": 2, "b": 1, "_other": 2}],
        ),
        (
            {"reduce": "sum", "over": "run_step", "combine": "max"},
            [{"a": 2, "b": 1}, {"a": 2, "b": 1, "_other": 3}, {"a": 2, "b": 1, "_other": 3}],
        ),
        (
            {"reduce": "sum", "combine": "ema(0.5)"},
            [{"a": 2, "b": 1}, {"a": 2, "b": 1, "_other": 3}, {"a": 1.5, "b": 1, "_other": 2.5}],
        ),
    ],
)
@pytest.mark.parametrize("stops", [False, True])
def test_labels_keep_their_names_and_the_rest_is_pooled(
    metric: dict[str, Any], expected: list[dict[str, float]], stops: bool, tmp_path: Path
) -> None:
    """As many as `max_labels`, however many come and whichever is more frequent later; after a checkpoint too."""
    value = "step" if metric["reduce"] == "last" else "x"
    seen = {"expr": f"x * 0 + {value}", "by": "who", "max_labels": 2, "name": "{label}", **metric}
    config = profile({"x": ROWS, "who": {**ROWS, "type": "text"}}, {"seen": seen})
    found: list[dict[str, float]] = []
    state = None
    for part in [[0], [1], [2]] if stops else [[0, 1, 2]]:
        sink = MemorySink()
        with declog.start(config, sinks=[sink], output_dir=tmp_path / str(part[0])) as log:
            if state is not None:
                log.load_state_dict(state)
            for step in part:
                with log.step(step):
                    log.observe(x=[1.0] * len(LABELS[step]), who=LABELS[step])
            state = log.state_dict()
        found += sink.scalars.values()
    assert found == expected


def test_an_average_of_a_formula_has_as_many_labels_as_what_it_reads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of windows that have other labels each; the others are left out, once with a warning."""
    metrics = {
        "n": {"expr": "x", "reduce": "sum", "by": "who", "max_labels": 2, "log": False},
        "m": {"formula": "n * 1", "combine": "ema(0.5)", "name": "{label}"},
    }

    def body(log: Recorder) -> None:
        for step, labels in enumerate([["a", "b"], ["b", "c"], ["c", "d"]]):
            with log.step(step):
                log.observe(x=[1.0, 2.0], who=labels)

    config = profile({"x": ROWS, "who": {**ROWS, "type": "text"}}, metrics)
    with caplog.at_level(logging.WARNING, "declog"):
        sink = run(config, body, tmp_path)
    assert sink.scalars == {0: {"a": 1, "b": 2}, 1: {"a": 1, "b": 1.5}, 2: {"a": 1, "b": 1.5}}
    assert [each.getMessage() for each in caplog.records] == ["the metric `m` leaves out labels beyond 2: c"]


def test_no_real_label_takes_the_name_of_the_rest(tmp_path: Path) -> None:
    """One that is called `_other` and comes later is among the rest; one that was there first keeps its name."""

    def body(order: list[list[str]]) -> dict[int, dict[str, float]]:
        seen = {"expr": "x", "reduce": "count", "over": "run", "by": "who", "max_labels": 1, "name": "{label}"}
        config = profile({"x": ROWS, "who": {**ROWS, "type": "text"}}, {"seen": seen})

        def steps(log: Recorder) -> None:
            for step, labels in enumerate(order):
                with log.step(step):
                    log.observe(x=[1.0] * len(labels), who=labels)

        return run(config, steps, tmp_path / "".join(order[0])).scalars

    assert body([["a", "a", "b"], ["_other"]])[1] == {"a": 2, "_other": 2}
    assert body([["_other"], ["b"]])[1] == {"_other": 1, "__other": 1}


def test_labels_that_are_numbers_show_what_is_missing_as_their_own(tmp_path: Path) -> None:
    """Their order as numbers is not that of their names."""
    seen = {"expr": "x", "reduce": "max", "over": "run", "nan": "propagate", "by": "who", "name": "{label}"}
    config = profile({"x": ROWS, "who": {**ROWS, "type": "int"}}, {"seen": seen})

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(x=[1.0, None, 3.0], who=[-9, -3, 10])

    found = run(config, body, tmp_path).scalars[0]
    assert {name: str(value) for name, value in found.items()} == {
        "-9": "1.0", "-3": "nan", "10": "3.0", "nonfinite/seen": "1",
    }  # fmt: skip


@pytest.mark.parametrize("window_bytes", [1, 2**20])
def test_each_kind_of_metric_is_planned_once_for_all_log_events(
    window_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a metric is over, and by: each event has the same columns, of a window that is folded or is not."""
    signals = {"x": ROWS, "name": {"axis": "completion", "type": "text"}}
    kinds: list[dict[str, Any]] = [{}, {"over": "run"}, {"over": "run_step", "combine": "last"}]
    metrics: dict[str, Any] = {}
    for kind, by, reduce in itertools.product(kinds, ({}, {"by": "name"}), ("mean", "p50")):
        if reduce == "mean" or kind.get("over") != "run":
            id = f"m{len(metrics)}"
            metrics[id] = {"expr": "x", "reduce": reduce, "name": f"{id}/{{label}}" if by else id, **kind, **by}
    plans: list[int] = []  # the step at which each was made
    steps: list[int] = []
    make = Program.__init__

    def noted(self: Program, *args: Any) -> None:
        plans.append(len(steps))
        make(self, *args)

    monkeypatch.setattr(Program, "__init__", noted)

    def body(log: Recorder) -> None:
        for step in range(4):
            with log.step(step):
                log.observe(x=[1.0, float(step)], name=["a", "b"])
            log.flush(wait_s=60.0)
            steps.append(step)

    sink = run(profile(signals, metrics, run={"window_bytes": window_bytes}), body, tmp_path)
    assert all(len(scalars) == len(sink.scalars[0]) > len(metrics) for scalars in sink.scalars.values())
    assert plans and set(plans) == {0}


@pytest.mark.parametrize("metric", [{"reduce": "mean"}, {"over": "run_step", "combine": "last"}, {"by": "who"}])
def test_what_fails_in_a_window_has_no_value_there(metric: dict[str, Any], tmp_path: Path) -> None:
    """A window whose rows cannot be reduced does not show the value of the rows before it, as one without rows does."""
    registry = Functions(DEFAULT)

    @declog.function(registry=registry)
    def checked(x: Any) -> Any:
        if len(x) > 3:  # not yet where the config is checked
            raise ValueError("too much")
        return x

    sink = MemorySink()
    entry = {"expr": "checked(x)", "over": "run", **metric}
    config = profile({"x": ROWS, "who": {**ROWS, "type": "text"}}, {"m": entry}, run={"strict": False})
    with declog.start(config, sinks=[sink], functions=registry, output_dir=tmp_path) as log:
        for step, count in enumerate([1, 4, 2]):
            with log.step(step):
                log.observe(x=[2.0] * count, who=["a"] * count)
        log.written()
        assert [name for name in log.failures if "too much" in name]
    assert [step for step, found in sink.scalars.items() if found] == [0, 2]


def test_members_that_did_not_come_stay_away_beside_other_metrics(tmp_path: Path) -> None:
    """`empty: 0` is for a member in the steps in which it came, however many metrics are finished together."""
    config = profile(
        {"f": {**ROWS, "family": True}, "g": {**ROWS, "family": True}},
        {name: {"expr": name, "where": f"mean({name}, over=member) > {bound}", "over": "step", "empty": 0,
                "name": f"{name}/{{member}}"} for name, bound in (("f", 0), ("g", 1))},
        every=2,
    )  # fmt: skip
    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log:
        with log.step(0):
            log.observe(f={"a": [4.0], "b": [2.0]}, g={"a": [6.0], "b": [2.0]})
        with log.step(1):
            log.observe(f={"a": [-4.0]}, g={"a": [-6.0]})
    assert sink.scalars == {1: {"f/a": 2.0, "f/b": 2.0, "g/a": 3.0, "g/b": 2.0}}
