"""`combine: rolling(n)`, extremes and `lag(n)`: values of earlier steps as pandas has them, however a run is cut."""

from __future__ import annotations

import io
import math
import random
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import declog
from declog.engine.over_run import OverRun
from declog.language.smoothing import MOST
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink, run_ranks
from tests.running import output_words, profile, run

STEPS, SPAN, RANKS = 120, 50, 2
ROWS = {"axis": "completion"}
SIGNALS = {"x": ROWS, "who": {**ROWS, "type": "text"}, "f": {**ROWS, "family": True}, "maybe": ROWS}
ROLLING = {"combine": f"rolling({SPAN})"}
METRICS: dict[str, Any] = {
    "x": {"expr": "x", **ROLLING},
    "p95": {"expr": "x", "reduce": "p95", "where": "x > -1", **ROLLING},
    "who": {"expr": "x", "by": "who", **ROLLING},
    "f": {"expr": "f", **ROLLING},
    "maybe": {"expr": "maybe", **ROLLING},
    "batches": {"expr": "x", "reduce": "sum", "over": "batch", **ROLLING},
    "events": {"expr": "x", "over": "window", "combine": "rolling(5)"},
    "mean": {"expr": "x", "log": False},
    "most": {"expr": "x", "reduce": "max", "log": False},
    "spread": {"formula": "most - mean", "combine": "rolling(5)"},
    "highest": {"expr": "x", "combine": f"rolling_max({SPAN})"},
    "who_lowest": {"expr": "x", "by": "who", "combine": "rolling_min(4)"},
    "before": {"expr": "x", "combine": "lag(2)"},
    "who_before": {"expr": "x", "by": "who", "combine": "lag(1)"},
    "batch_before": {"expr": "x", "reduce": "sum", "over": "batch", "combine": "lag(1)"},
    "spread_before": {"formula": "most - mean", "combine": "lag(3)"},
    "deviation": {"expr": "x", "combine": f"rolling_std({SPAN})"},
    "who_deviation": {"expr": "x", "by": "who", "combine": "rolling_std(4)"},
    "batch_variance": {"expr": "x", "reduce": "sum", "over": "batch", "combine": "rolling_var(3)"},
    "maybe_median": {"expr": "maybe", "combine": "rolling_median(6)"},
    "spread_deviation": {"formula": "most - mean", "combine": "rolling_std(5)"},
}


def rows_of(step: int, mode: str) -> list[list[dict[str, Any]]]:
    """The batches of a step, each with its rows: a rare label, members and a signal that do not always come."""
    draw = random.Random(f"{step} {mode}")
    batches = []
    for _ in range(draw.randint(1, 2)):
        batch = []
        for _ in range(4):
            who = draw.choice("aaab") + ("" if step % 7 else "c")
            batch.append({"x": None if draw.random() < 0.1 else draw.gauss(0, 1), "who": who})
        batches.append(batch)
    for batch in batches:
        for row in batch:
            row |= {"f/one": draw.gauss(2, 1)} if step % 3 else {}
            row |= {"f/two": draw.gauss(3, 1), "maybe": draw.gauss(0, 9)} if step % 5 == 2 or step > 90 else {}
    return batches


def train(log: Recorder, comm: Comm, steps: range) -> None:
    """Each rank has every other row; an evaluation after each fourth step."""
    for step in steps:
        with log.step(step):
            observe(log, comm, step, "train")
        if step % 4 == 3:
            with log.mode("eval"):
                observe(log, comm, step, "eval")


def observe(log: Recorder, comm: Comm, step: int, mode: str) -> None:
    for batch in rows_of(step, mode):
        rows = batch[comm.rank :: comm.world_size]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        family = {name[2:]: columns.pop(name) for name in [*columns] if name.startswith("f/")}
        log.observe(**columns, **({"f": family} if family else {}))


def by_pandas(mode: str, every: int) -> dict[str, pd.Series]:
    """What is logged, by the name without the prefix of the mode: a series by the step of the log event."""
    steps = [step for step in range(STEPS) if mode == "train" or step % 4 == 3]
    table = pd.DataFrame(
        {"step": step, "batch": (step, number), "event": step // every if mode == "train" else step, **row}
        for step in steps for number, batch in enumerate(rows_of(step, mode)) for row in batch
    ).astype({"x": float})  # fmt: skip
    ends = table.groupby("event").step.max()

    def rolled(values: pd.Series, span: int, how: str = "mean") -> pd.Series:
        return at_ends(values.dropna().rolling(span, min_periods=1).agg(how))

    def before(values: pd.Series, count: int) -> pd.Series:
        return at_ends(values.dropna().shift(count))

    def at_ends(curve: pd.Series) -> pd.Series:
        """A curve of pieces (steps, batches) at the ends of log events."""
        at = curve.groupby([index[0] if isinstance(index, tuple) else index for index in curve.index]).last()
        return at.reindex(range(STEPS)).ffill().reindex(ends.to_numpy() if mode == "train" else steps)

    def of_event(values: pd.Series) -> pd.Series:
        return values.set_axis(ends[values.index])

    each, events = table.groupby("step"), table.groupby("event")
    labels = {f"who/{name}": rolled(part.groupby("step").x.mean(), SPAN) for name, part in table.groupby("who")}
    labels |= {f"who_before/{name}": before(part.groupby("step").x.mean(), 1) for name, part in table.groupby("who")}
    lowest = {name: rolled(part.groupby("step").x.mean(), 4, "min") for name, part in table.groupby("who")}
    labels |= {f"who_lowest/{name}": curve for name, curve in lowest.items()}
    spread = {name: rolled(part.groupby("step").x.mean(), 4, "std") for name, part in table.groupby("who")}
    labels |= {f"who_deviation/{name}": curve for name, curve in spread.items()}
    return labels | {
        "deviation": rolled(each.x.mean(), SPAN, "std"), "maybe_median": rolled(each.maybe.mean(), 6, "median"),
        "batch_variance": rolled(table.groupby("batch").x.sum(min_count=1), 3, "var"),
        "spread_deviation": rolled(of_event(events.x.max() - events.x.mean()), 5, "std"),
        "highest": rolled(each.x.mean(), SPAN, "max"),
        "before": before(each.x.mean(), 2), "batch_before": before(table.groupby("batch").x.sum(min_count=1), 1),
        "spread_before": before(of_event(events.x.max() - events.x.mean()), 3),
        "x": rolled(each.x.mean(), SPAN),
        "p95": rolled(table[table.x > -1].groupby("step").x.quantile(0.95), SPAN),
        "f/one": rolled(each["f/one"].mean(), SPAN), "f/two": rolled(each["f/two"].mean(), SPAN),
        "maybe": rolled(each.maybe.mean(), SPAN),
        "batches": rolled(table.groupby("batch").x.sum(min_count=1), SPAN),
        "events": rolled(of_event(events.x.mean()), 5), "spread": rolled(of_event(events.x.max() - events.x.mean()), 5),
    }  # fmt: skip


def loaded(state: Any) -> Any:
    """A state as it comes back from a file, read without pickled code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("cuts", [(), (63, 77)])
@pytest.mark.parametrize("ranks", [1, RANKS])
def test_it_is_the_rolling_mean_of_pandas(ranks: int, cuts: tuple[int, ...], every: int, tmp_path: Path) -> None:
    """Class: every kind of piece, labels, members and steps that do not come, modes, ranks, a run that is resumed."""
    config = profile(SIGNALS, METRICS, every=every, modes={"train": {}, "eval": {"prefix": "eval_", "every": "end"}})
    sink = MemorySink()

    def rank(comm: Comm, steps: range, states: list[Any]) -> Any:
        sinks = [] if comm.rank else [sink]
        with declog.start(config, sinks=sinks, comm=comm, output_dir=tmp_path, resume=states[comm.rank]) as log:
            train(log, comm, steps)
            return loaded(log.state_dict()) if steps.stop < STEPS else None

    states: list[Any] = [None] * ranks
    for first, end in zip((0, *cuts), (*cuts, STEPS), strict=True):
        states = run_ranks(ranks, partial(rank, steps=range(first, end), states=states))
    for mode, prefix in (("train", ""), ("eval", "eval_")):
        curves = by_pandas(mode, every)
        logged: dict[str, dict[int, float]] = {name: {} for name in curves}
        for step, records in sink.events:
            for scalar in records.scalars if records.mode == mode else ():
                logged[scalar.name.removeprefix(prefix)][step] = scalar.value
        for name, curve in curves.items():
            there = {step: value for step, value in curve.items() if not math.isnan(value)}
            assert len(there) > 5
            assert logged[name] == pytest.approx(there, rel=1e-12), f"{name} of {mode}"


def test_it_begins_with_the_values_that_there_are(tmp_path: Path) -> None:
    """The first steps are no average of one value and the past, and what is older than the span counts no more."""

    def body(log: Recorder) -> None:
        for step, value in enumerate([8.0, 2.0, 5.0, math.inf, 1.0, 1.0, 4.0]):
            with log.step(step):
                log.observe(x=[value])

    sink = run(profile({"x": ROWS}, {"m": {"expr": "x", "combine": "rolling(3)"}}), body, tmp_path)
    assert [sink.scalars[step]["m"] for step in range(7)] == [8.0, 5.0, 5.0, math.inf, math.inf, math.inf, 2.0]


@pytest.mark.parametrize("empty", [None, -1])
def test_a_spread_needs_two_values(empty: float | None, tmp_path: Path) -> None:
    """Class: one value, also after others that are missing; equal values; an infinity among the last, and behind them.

    With `empty`, a spread that is absent is that.
    """
    steps = [math.nan, 8.0, math.nan, 2.0, 0.1, 0.1, 0.1, math.inf, 3.0, 4.0, 4.0]
    metrics = {
        how: {"expr": "x", "combine": f"rolling_{how}(3)", **({} if empty is None else {"empty": empty})}
        for how in ("std", "var", "median")
    }

    def body(log: Recorder) -> None:
        for step, value in enumerate(steps):
            with log.step(step):
                log.observe(x=[value])

    sink = run(profile({"x": ROWS}, metrics), body, tmp_path)
    rolling = pd.Series(steps).replace(math.inf, math.nan).dropna().rolling(3, min_periods=1)
    for how in metrics:
        logged = {step: row[how] for step, row in sink.scalars.items() if how in row}
        assert math.isnan(logged.pop(0))  # no value ever, and one that is missing
        expected = rolling.agg(how).reindex(range(len(steps))).ffill()
        if how == "median":
            expected[[7, 8, 9]] = [0.1, 3.0, 4.0]
        else:
            assert [logged.pop(step) for step in (7, 8, 9)] == pytest.approx([math.nan] * 3, nan_ok=True)
            expected = expected.drop([7, 8, 9])
            expected[[1, 2]] = math.nan if empty is None else empty
        assert logged == pytest.approx(expected.dropna().to_dict(), abs=1e-12)
        assert how == "median" or logged[6] == 0  # of equal values, exactly


def test_what_it_keeps_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state has no more values of a cell than twice those that count, however long the run is."""
    metrics = {"m": {"expr": "x", "combine": "rolling(4)"}, "e": {"expr": "x", "combine": "ema(0.5)"}}
    saved: list[Any] = []
    plain = OverRun.plain

    def noted(over_run: OverRun) -> dict[str, Any]:
        saved.append(plain(over_run))
        return plain(over_run)

    monkeypatch.setattr(OverRun, "plain", noted)
    with declog.start(profile({"x": ROWS}, metrics), sinks=[MemorySink()], output_dir=tmp_path) as log:
        for step in range(9):
            with log.step(step):
                log.observe(x=[float(step)])
        log.state_dict()
    assert {key: cells for _, key, cells in saved[0]["values"]} == {
        "m": [["", "", *([step, float(step)] for step in range(1, 9))]], "e": [["", "", [None, 7.00390625]]],
    }  # fmt: skip


def test_a_state_of_an_earlier_version_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Class: what `ema` and the latest value keep; of a label that came without a value it was written as None."""
    metrics = {
        "smooth": {"expr": "x", "by": "who", "combine": "ema(0.5)", "empty": 7, "name": "{id}/{label}"},
        "last": {"expr": "x", "reduce": "last", "over": "run"},
    }
    config = profile({"x": ROWS, "who": {**ROWS, "type": "text"}}, metrics)
    plain = OverRun.plain

    def earlier(over_run: OverRun) -> dict[str, Any]:
        saved = plain(over_run)
        values = [
            [*key, [[member, label, kept[0][1] if kept else None] for member, label, *kept in cells]]
            for *key, cells in saved["values"]
        ]
        assert [cells for *_, cells in values] == [[["", "a", 4.0], ["", "b", None]], [["", "", 4.0]]]
        return {**saved, "values": values}

    with monkeypatch.context() as patched, declog.start(config, sinks=[MemorySink()], output_dir=tmp_path) as log:
        patched.setattr(OverRun, "plain", earlier)
        with log.step(0):
            log.observe(x=[4.0, None], who=["a", "b"])
        state = log.state_dict()
    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=tmp_path, resume=state) as log:
        for step, values in enumerate([[2.0], [0.0, 5.0]], 1):
            with log.step(step):
                log.observe(x=values, who=["a", "b"][: len(values)])
    assert sink.scalars == {
        1: {"smooth/a": 3.0, "smooth/b": 7.0, "last": 2.0}, 2: {"smooth/a": 1.5, "smooth/b": 5.0, "last": 5.0},
    }  # fmt: skip


def test_it_is_shown_in_words() -> None:
    """Class: of steps, of batches, of log events and of a formula."""
    rolling = {"expr": "x", "combine": "rolling(50)"}
    metrics = {
        "steps": rolling, "batches": {**rolling, "over": "batch", "reduce": "max"},
        "events": {**rolling, "over": "window"}, "of": {"formula": "steps - events", "combine": "rolling(3)"},
        "deviation": {"expr": "x", "combine": "rolling_std(10)"},
    }  # fmt: skip
    words = output_words(declog.plan(profile({"x": ROWS}, metrics, every=10)))
    assert {name: words[name] for name in metrics} == {
        "steps": "mean of the last 50 step means of x, over the completions of each step",
        "batches": "mean of the last 50 batch maxima of x, over the completions of each batch",
        "events": "mean of the last 50 values of mean of x, over the completions of 10 steps",
        "of": "mean of the last 3 values of the formula steps - events",
        "deviation": "std of the last 10 step means of x, over the completions of each step",
    }


P90 = "m: {expr: x, reduce: p90, every: 10}: one value for each 10 steps"


@pytest.mark.parametrize(
    ("combine", "fix"),
    [
        ("rolling(0)", "rolling(50)"), ("rolling(-3)", "rolling(3)"), ("rolling", "rolling(50)"),
        ("rolling(2.5)", "rolling(2)"), (f"rolling({MOST + 1})", f"rolling({MOST})"),
        ("rolling(window=20)", "rolling(20)"),
        ("rolling_mean(20)", "rolling(20)"), ("sma(20)", "rolling(20)"), ("moving_average", "rolling(50)"),
        ("rolling(10, std)", "rolling_std(10)"), ("rolling(10).std()", "rolling_std(10)"),
        ("rolling(window=10, min_periods=2).var()", "rolling_var(10)"), ("movstd(10)", "rolling_std(10)"),
        ("moving_stddev(10)", "rolling_std(10)"), ("std(10)", "rolling_std(10)"), ("rolling_std", "rolling_std(50)"),
        ("rolling_std(1)", "rolling_std(2)"), (f"rolling_std({MOST + 1})", f"rolling_std({MOST})"),
        ("rolling(10, median)", "rolling_median(10)"), ("median(9)", "rolling_median(9)"), ("max(4)", "rolling_max(4)"),
        ("rolling(5, min)", "rolling_min(5)"), ("rolling(10, p90)", P90),
        ("rolling_p90(10)", P90),
        ("mean(20)", "rolling(20)"), ("last 20", "rolling(20)"), ("window: 20", "rolling(20)"),
        ("ema(50)", "ema(0.98)"),
        ("avg", "did you mean `mean`?"), ("lst", "did you mean `last`?"),
    ],
)  # fmt: skip
def test_how_many_values_is_a_number_within_bounds(combine: str, fix: str) -> None:
    """Class: the word with no number, with one out of bounds, and other words for it."""
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan(profile({"x": ROWS}, {"m": {"expr": "x", "combine": combine}}))
    assert [problem.fix for problem in caught.value.problems] == [fix]
    declog.plan(profile({"x": ROWS}, {"m": {"expr": "x", "combine": f"rolling( {MOST} )"}}))


@pytest.mark.parametrize(
    ("metric", "message", "fix"),
    [
        ({"over": "rank"}, "`over: rank` has a value for each rank", "over: step"),
        ({"over": "run"}, "`rolling` goes on from step to step already", "over: step"),
    ],
)
def test_pieces_have_an_order(metric: dict[str, Any], message: str, fix: str) -> None:
    """Class: what `ema` cannot follow, the other smooth curve cannot."""
    with pytest.raises(declog.ConfigError, match=message) as caught:
        declog.plan(profile({"x": ROWS}, {"m": {"expr": "x", "combine": "rolling(50)", **metric}}))
    assert [problem.fix for problem in caught.value.problems] == [fix]
