"""Metrics without values because signals do not come: one warning at a mode's first log event, one where one stops."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import declog
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink, run_ranks

STEP = {"axis": "step"}
ROW = {"axis": "completion"}
TOKEN = {"axis": "token"}
AB: dict[str, Any] = {
    "run": {"name": "small"}, "signals": {"any": {"a": STEP, "b": STEP}}, "metrics": {"a": "mean(a)", "b": "mean(b)"},
    "modes": {"train": {}, "eval": {"prefix": "eval_", "every": "end"}},
}  # fmt: skip


def run(
    config: Any, body: Callable[[Recorder], object], folder: Path, caplog: pytest.LogCaptureFixture, **options: Any
) -> tuple[list[str], dict[str, str]]:
    """What is warned of in a run, and what the recorder says is missing at its end."""
    caplog.clear()
    with (
        caplog.at_level(logging.WARNING, logger="declog"),
        declog.start(config, sinks=[MemorySink()], output_dir=folder, **options) as log,
    ):
        body(log)
    return [record.getMessage() for record in caplog.records if record.name == "declog"], dict(log.missing)


def steps(count: int, *values: Callable[[int], Mapping[str, Any]]) -> Callable[[Recorder], None]:
    """A loop that observes at each step what each function has for it."""

    def body(log: Recorder) -> None:
        for step in range(count):
            with log.step(step):
                for value in values:
                    log.observe(**value(step))

    return body


REASONS: Mapping[str, tuple[dict[str, Any], dict[str, Any], dict[str, str]]] = {
    "a signal": ({"a": STEP, "b": STEP}, {"a": "mean(a)", "b": "mean(b)"}, {"b": "b never came"}),
    "another name": ({"a": STEP, "b": {**STEP, "from": "x/b"}}, {"b": "mean(b)"}, {"b": "x/b never came"}),
    "two of them": ({"a": ROW, "b": ROW, "c": ROW}, {"m": "mean(a * b + c)"}, {"m": "b and c never came"}),
    "where, by and weight": (
        {"a": ROW, "b": {**ROW, "type": "bool"}, "c": {**ROW, "type": "text"}, "d": ROW},
        {"chosen": {"expr": "a", "where": "b"}, "named": {"expr": "a", "by": "c"},
         "heavy": {"expr": "a", "weight": "d"}},
        {"chosen": "b never came", "named": "its label c never came", "heavy": "d never came"},
    ),
    "a derived signal": ({"a": ROW, "b": ROW}, {"m": "max(c)"}, {"m": "b never came"}),
    "a formula": (
        {"a": STEP, "b": STEP}, {"a": "mean(a)", "b": "mean(b)", "f": {"formula": "a / b"}},
        {"b": "b never came", "f": "b never came"},
    ),
    "several reductions": (
        {"a": ROW, "b": ROW}, {"b": {"expr": "b", "reduce": [{"m": "mean"}, {"q": "p95"}]}}, {"b": "b never came"},
    ),
    "a family": ({"a": ROW, "b": {**ROW, "family": True}}, {"b": "mean(b)"}, {"b": "b never came"}),
    "text": ({"a": ROW, "b": {**ROW, "type": "text"}}, {"m": "mean(contains(b, 'x'))"}, {"m": "b never came"}),
    "a token": (
        {"a": ROW, "b": TOKEN, "m": {**TOKEN, "type": "bool"}}, {"b": "mean(b)"}, {"b": "b and m never came"},
    ),
    "another phase": (
        {"a": ROW, "late": ROW}, {"a": "mean(a)", "late": "mean(late)"},
        {"late": "no signal of update came, which `log.observe(late=...)` gives"},
    ),
    "a histogram": ({"a": ROW, "b": ROW}, {"b": {"expr": "b", "reduce": "histogram"}}, {"b": "b never came"}),
}  # fmt: skip


@pytest.mark.parametrize("case", REASONS)
def test_what_never_came_is_the_reason(case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a metric reads its signals by, it is named once with those that never came, as they are observed."""
    signals, metrics, missing = REASONS[case]
    axes = {"token": {"mask": "m"}} if "m" in signals else {}
    phases = {"rollout": {"a": ROW}, "update": {"late": ROW}} if "late" in signals else {"any": signals}
    derived = {"c": "a - b"} if case == "a derived signal" else {}
    config = {"run": {"name": "small"}, "signals": phases, "derived": derived, "metrics": metrics, "axes": axes}
    value = 1.0 if signals["a"]["axis"] == "step" else [1.0, 2.0]
    told, found = run(config, steps(4, lambda step: {"a": value}), tmp_path, caplog)
    assert found == missing
    (line,) = told
    assert line.startswith(f"{len(missing)} of {len(metrics)} metric")
    assert all(name in line and why in line for name, why in missing.items())
    assert json.loads((tmp_path / "run.json").read_text())["missing"] == missing


MASK = {**TOKEN, "type": "bool"}
TWO_PHASES: dict[str, Any] = {
    "run": {"name": "small"}, "axes": {"token": {"mask": "m"}},
    "signals": {
        "rollout": {"r": ROW, "a": TOKEN, "b": TOKEN, "x": ROW, "m": MASK},
        "update": {"lp": TOKEN, "a": TOKEN, "b": TOKEN, "x": ROW, "m": MASK},
    },
    "metrics": {"r": "mean(r)", "lp": "mean(lp)"},
}  # fmt: skip
DELETED = "or `signals: {{rollout: {{{0}}}}}`, as override `signals.rollout={{{0}}}`"
MASKED = "observe them with r in rollout"
RATIO = {"p": "var(a - lp)", "q": "var(a)"}  # of two phases as `a` is declared: `p` is of the update
STRAYS: Mapping[str, tuple[dict[str, Any], str, dict[str, str]]] = {
    "tokens": ({"a": "mean(a)"}, "a", {
        "a": f"a and m came in update, and are read in rollout: {MASKED}, {DELETED.format('a: null')}"}),
    "also read where it came": ({"a": "max(a)", "w": "mean(a * lp)"}, "a", {
        "a": f"a and m came in update, and are read in rollout: {MASKED}, {DELETED.format('a: null')}"}),
    "two signals": ({"d": "mean(a - b)"}, "a b", {"d": (
        f"a, b and m came in update, and are read in rollout: {MASKED}, {DELETED.format('a: null, b: null')}"
    )}),
    "completions": ({"x": "mean(x)"}, "x", {"x": (
        f"x came in update, and is read in rollout: observe it with r in rollout, {DELETED.format('x: null')}"
    )}),
    "the mask": ({"n": "mean(sum(m, over=token))"}, "", {"n": (
        f"m came in update, and is read in rollout: observe it with r in rollout, {DELETED.format('m: null')}"
    )}),
    "with another of its phase": ({"x": "mean(x * r)"}, "x", {
        "x": "x came in update, and is read in rollout: observe it with r in rollout"}),
    "one that came in none": ({"d": "mean(a - b)"}, "a", {"d": "b never came"}),
    "a formula with another of where it came": ({**RATIO, "mine": {"formula": "1 - p / q"}}, "a", {
        "mine": f"a and m came in update, and are read in rollout: {MASKED}, {DELETED.format('a: null')}"}),
}  # fmt: skip


def two_phases(update: str, *, rollout: str = "r", values: dict[str, list[Any]]) -> Callable[[Recorder], None]:
    """A loop that observes some signals with the rollout, and others in two micro-batches of an update."""

    def body(log: Recorder) -> None:
        generator = np.random.default_rng(0)
        for step in range(3):
            mask = generator.random((4, 5)) < 0.6
            rows = {"r": generator.random(4), "x": generator.random(4), "m": mask}
            rows |= {name: generator.random((4, 5)) for name in ("a", "b", "lp")}
            chosen = {name: row[mask] if name in ("a", "b", "lp") else row for name, row in rows.items()}
            for name, row in chosen.items():
                values.setdefault(name, []).append(row)
            with log.step(step):
                if rollout:
                    log.observe(**{name: rows[name] for name in rollout.split()})
                for part in ([2, 0], [1, 3]):
                    log.observe(**{name: rows[name][part] for name in update.split()})

    return body


@pytest.mark.parametrize("case", STRAYS)
@pytest.mark.parametrize("rollout", ["r", ""])
def test_what_came_in_another_phase_says_so(
    case: str, rollout: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It names both phases and, where a declaration alone decides, the edit; with it the metric has its value."""
    metrics, names, missing = STRAYS[case]
    config = {**TWO_PHASES, "metrics": {"lp": "mean(lp)", **({"r": "mean(r)"} if rollout else {}), **metrics}}
    body = two_phases(f"lp m {names}", rollout=rollout, values={})
    told, reasons = run(config, body, tmp_path, caplog)
    if not rollout:
        missing = {id: why.replace(" with r in", " in") for id, why in missing.items() if "never" not in why}
    if not rollout and case == "with another of its phase":  # of which nothing came
        missing = {"x": "no signal of rollout came, which `log.observe(r=...)` gives"}
    assert missing.items() <= reasons.items()
    (line,) = told
    assert all(why in line for why in missing.values())


@pytest.mark.parametrize(
    ("metric", "names", "nulls", "value"),
    [
        ("mean(a)", "a", "a", lambda values: values["a"].mean()),
        ("max(a - b)", "a b", "a b", lambda values: (values["a"] - values["b"]).max()),
        ("mean(a - b)", "a b", "a", lambda values: (values["a"] - values["b"]).mean()),
        ("std(x)", "x", "x", lambda values: values["x"].std(ddof=1)),
        ("mean(sum(m, over=token))", "", "m", lambda values: values["m"].sum(1).mean()),
        ("mean(mean(a, over=token) * x)", "a x", "a x", None),
        (
            {"formula": "1 - p / q"}, "a", "a",
            lambda values: 1 - np.var(values["a"] - values["lp"], ddof=1) / np.var(values["a"], ddof=1),
        ),
    ],
)  # fmt: skip
def test_the_edit_for_another_phase_works(
    metric: Any, names: str, nulls: str, value: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the declaration deleted the metric reads what came, and is what numpy computes of it."""
    signals = copy.deepcopy(TWO_PHASES["signals"])
    for name in nulls.split():
        signals["rollout"][name] = None
    config = {
        **TWO_PHASES,
        "signals": signals,
        "metrics": {**TWO_PHASES["metrics"], **(RATIO if isinstance(metric, dict) else {}), "mine": metric},
    }
    sink, values = MemorySink(), {}  # type: ignore[var-annotated]
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log:
        two_phases(f"lp m {names}", values=values)(log)
    assert dict(log.missing) == {}
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({**config, "signals": TWO_PHASES["signals"]}), "utf-8")
    override = f"signals.rollout={{{', '.join(f'{name}: null' for name in nulls.split())}}}"
    assert declog.plan(str(file), [override]).fingerprint == declog.plan(config).fingerprint
    logged = [row["mine"] for row in sink.scalars.values()]
    assert len(logged) == 3
    if value is not None:
        expected = [value({name: rows[step] for name, rows in values.items()}) for step in range(3)]
        np.testing.assert_allclose(logged, expected, rtol=1e-6)


def test_what_came_with_the_rollout_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The other direction; metrics that share a reason are named together, with all of their signals."""
    metrics = {"ratio": "mean(exp(lp - a))", "gap": "mean(lp - b)", "both": "mean(lp * a * b)", "a": "mean(a)"}
    config = {**TWO_PHASES, "metrics": TWO_PHASES["metrics"] | metrics}
    told, missing = run(config, two_phases("lp m", rollout="r m a b", values={}), tmp_path, caplog)
    assert missing["ratio"] == "a came in rollout, and is read in update: observe it with lp in update, too"
    shared = "a and b came in rollout, and are read in update: observe them with lp in update, too"
    assert told == [f"3 of 6 metrics are inactive: ratio, gap and both ({shared})"]


def test_a_known_signal_is_named_beside_what_came_elsewhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Class: a user's own signal of the phase comes before `reward` in the alphabet, and says nothing to the reader."""
    config = {"defaults": ["ppo"], "signals": {"rollout": {"acc": "completion bool"}}, "metrics": {"p": "p90(returns)"}}
    with declog.start(config, sinks=[MemorySink()], output_dir=tmp_path) as log, log.step(0):
        log.observe(reward=[0.0, 1.0], acc=[True, False], length=[2, 2])
        tokens = np.ones((2, 2))
        log.observe(logprobs=tokens, returns=tokens, completion_mask=tokens > 0)
    assert "with length in rollout" in caplog.text and "with acc" not in caplog.text


def test_what_nothing_reads_where_it_came_is_known_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A signal of two phases that no metric reads in the one of the call is not kept, and has come there."""
    config = {**TWO_PHASES, "metrics": TWO_PHASES["metrics"] | {"a": "mean(a)", "b": "mean(b)"}}
    told, missing = run(config, two_phases("lp m a b", values={}), tmp_path, caplog)
    assert missing["b"] == STRAYS["tokens"][2]["a"].replace("a and m", "b and m").replace("a: null", "b: null")
    assert "inactive: a and b (a, b and m came in update" in told[0] and "{a: null, b: null}" in told[0]


def test_one_of_two_sides_is_enough(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is computed from whichever came needs either; too few rows, or none that is chosen, are no reason."""
    config = {
        "run": {"name": "small"}, "signals": {"any": {"a": ROW, "b": ROW, "flag": {**STEP, "type": "bool"}}},
            "derived": {"c": "b if present(b) else a", "d": "a if flag else b"},
        "metrics": {
            "spread": {"expr": "c", "reduce": "std"}, "none": {"expr": "c", "where": "present(b) and b > 1"},
            "side": "mean(d)", "f": {"formula": "side if present(side) else spread"},
        },
    }  # fmt: skip
    given = steps(3, lambda step: {"a": [1.0], "flag": True})
    told, missing = run(config, given, tmp_path / "one", caplog)
    assert (told, missing) == ([], {})
    told, missing = run(config, steps(3, lambda step: {"flag": True}), tmp_path / "neither", caplog)
    assert missing == dict.fromkeys(("spread", "none", "side", "f"), "a or b never came")


@pytest.mark.parametrize("combine", ["lag(1)", "lag(2)"])
def test_a_formula_of_earlier_values_is_not_inactive_at_the_first(
    combine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Class: the metric that it reads has values by its `prefer`; the formula has some from a later log event on."""
    before = {"formula": "length.mean", "combine": combine, "log": False}
    config = {"defaults": ["grpo"], "metrics": {"before": before, "growth": {"formula": "length.mean / before"}}}
    with declog.start(config, sinks=[MemorySink()], output_dir=tmp_path) as log:
        for step in range(4):
            with log.step(step):
                log.observe(reward=[0.0, 1.0], length=[1, 2 + step])
            log.flush(wait_s=60)
            assert "length" not in log.missing and "growth" not in log.missing
    assert "growth" not in caplog.text


def test_what_has_values_is_not_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rows that no condition chose, one value of two, a given number and what is switched off are not inactive."""
    config = {
        "run": {"name": "small"}, "constants": {"beta": 0},
        "signals": {"any": {"a": ROW, "b": ROW, "given": STEP, "kl": {**ROW, "enabled": "beta != 0"}}},
        "metrics": {
            "none": {"expr": "a", "where": "a > 5"}, "either": "mean(b if present(b) else a)", "kl": "mean(kl)",
            "hidden": {"expr": "b", "log": False}, "b": {"expr": "b", "prefer": "given"},
        },
    }  # fmt: skip
    told, missing = run(config, steps(3, lambda step: {"a": [1.0, 2.0], "given": 3.0}), tmp_path, caplog)
    assert (told, missing) == ([], {})


def test_the_line_is_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of many metrics and many signals a few are named, and how many more there are; `missing` has all."""
    names = [f"s{n}" for n in range(100)]
    config = {"run": {"name": "small"}, "signals": {"any": {"a": STEP} | dict.fromkeys(names, STEP)},
              "metrics": {"a": "mean(a)"} | {name: f"mean({name})" for name in names}}  # fmt: skip
    told, missing = run(config, steps(2, lambda step: {"a": 1.0}), tmp_path, caplog)
    assert told == [
        "100 of 101 metrics are inactive: they read s0, s1, s2 and 97 more, "
        "which this loop does not observe (`log.missing` has each)"
    ]
    assert sorted(missing) == sorted(names)


def test_what_came_in_another_phase_is_observed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Class: what metrics read beside signals that never came, such as a mask; those alone are not observed."""
    names = [f"s{n}" for n in range(6)]
    signals = {"rollout": {**TWO_PHASES["signals"]["rollout"], **dict.fromkeys(names, TOKEN)},
               "update": TWO_PHASES["signals"]["update"]}  # fmt: skip
    config = {**TWO_PHASES, "signals": signals,
              "metrics": {**TWO_PHASES["metrics"], **{name: f"mean({name})" for name in names}}}  # fmt: skip
    told, missing = run(config, two_phases("lp m", values={}), tmp_path, caplog)
    assert told == [
        "6 of 8 metrics are inactive: they read s0, s1, s2 and 3 more, "
        "which this loop does not observe (`log.missing` has each)"
    ]
    assert missing == {name: f"{name} never came" for name in names}


def test_nothing_at_all_is_said_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Steps in which nothing is observed have a log event in which everything is inactive; a run without steps ends."""
    told, missing = run(AB, steps(3), tmp_path / "steps", caplog)
    assert told == ["2 of 2 metrics are inactive:\n  a (a never came)\n  b (b never came)"]
    assert set(missing) == {"a", "b"}
    (ended,), missing = run(AB, steps(0), tmp_path / "none", caplog)
    assert "the run ends, and no step came" in ended and missing == {}
    caplog.clear()
    with declog.start(AB, sinks=[MemorySink()], output_dir=tmp_path / "named") as log:
        log.observe(a=1.0, step=7)  # rows that name their step have one, though no block begins it
    assert "no step came" not in caplog.text
    every = {**AB, "every": 100}
    assert len(run(every, steps(3), tmp_path / "tail", caplog)[0]) == 1


def test_what_comes_later_is_missing_no_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`missing` is as of the log events so far, and so is the run's folder."""

    def body(log: Recorder) -> None:
        for step in range(6):
            with log.step(step):
                log.observe(a=1.0, **({"b": 1.0} if step > 2 else {}))
            assert dict(log.missing) == ({} if step > 2 else {"b": "b never came"})

    told, missing = run(AB, body, tmp_path, caplog)
    assert told == ["1 of 2 metrics is inactive: b (b never came)"] and missing == {}
    assert json.loads((tmp_path / "run.json").read_text())["missing"] == {}


LATE: dict[str, Any] = {
    "run": {"name": "small"}, "axes": {"completion": {"ids": "id"}},
    "signals": {"rollout": {"x": ROW, "y": ROW, "z": ROW, "id": {**ROW, "type": "int"}}},
    "metrics": {"x": "mean(x)", "both": "mean(x + y)", "filtered": {"expr": "y", "where": "x > 0"}, "z": "mean(z)"},
}  # fmt: skip


def test_a_signal_that_comes_of_other_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Class: signals that are read together come of different rows, as a judge's answer does that is a step late.

    The signal that came is not missing any more, and `log.missing` says so.
    """

    def body(log: Recorder) -> None:
        for step in range(12):
            with log.step(step):
                log.observe(x=[1.0, 2.0], id=[2 * step, 2 * step + 1])
                if step:
                    log.observe(y=[1.0, 2.0], id=[2 * step - 2, 2 * step - 1])

    told, missing = run(LATE, body, tmp_path, caplog)
    why = "x and y came, and gave no value yet: no row had all that it reads, or its condition held for none"
    assert missing == {"both": why, "filtered": why, "z": "z never came"}
    assert told[0].startswith("3 of 4 metrics are inactive:") and "(y never came)" in told[0]
    assert len(told) == 2 and told[1].startswith("`x`, `y` of phase `rollout` came in calls of one step of which")


def test_slower_metrics_are_judged_when_their_window_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What comes in time for them is no matter; what does not is said then."""
    config = {**AB, "signals": {"any": AB["signals"]["any"] | {"c": STEP}},
              "metrics": {"a": "mean(a)", "b": {"expr": "b", "every": 4}, "c": {"expr": "c", "every": 4}}}  # fmt: skip
    body = steps(8, lambda step: {"a": 1.0} | ({"b": 1.0} if step % 4 == 2 else {}))
    told, missing = run(config, body, tmp_path, caplog)
    assert told == ["1 of 2 metrics over 4 steps is inactive: c (c never came)"] and missing == {"c": "c never came"}


def test_each_mode_says_it_of_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An evaluation lacks what it lacks; phases that it does not have at all are not meant to be in it."""
    config = {**AB, "signals": {"rollout": {"a": STEP, "b": STEP}, "update": {"c": STEP}},
              "metrics": AB["metrics"] | {"c": "mean(c)"}}  # fmt: skip

    def body(log: Recorder) -> None:
        for step in range(4):
            with log.step(step):
                log.observe(a=1.0, b=2.0)
                log.observe(c=1.0)
            with log.mode("eval"):
                log.observe(a=1.0)

    told, missing = run(config, body, tmp_path, caplog)
    assert told == ["eval: 1 of 2 metrics is inactive: b (b never came)"]
    assert missing == {"b": "eval: b never came"}


@pytest.mark.parametrize("came", [True, False])
def test_a_metric_of_one_mode_is_judged_there(came: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The class: what a condition on `mode` leaves to evaluations is not looked for in training, nor by `strict`.

    It is said where they come without it; of a formula over it, too.
    """
    at_eval = {"expr": "a", "where": "mode == 'eval'", "by": "c"}
    config = {
        **AB, "run": {"name": "small", "strict": True}, "signals": {"any": {"a": ROW, "c": {**ROW, "type": "text"}}},
        "metrics": {"a": "mean(a)", "at_eval": at_eval, "twice": {"formula": "2 * max(at_eval, over=label)"},
                    "at_train": {**at_eval, "where": "mode != 'eval'", "by": None}},
    }  # fmt: skip

    def body(log: Recorder) -> None:
        for step in range(3):
            with log.step(step):
                log.observe(a=[1.0, 2.0])
            with log.mode("eval"):
                log.observe(a=[1.0, 3.0], **({"c": ["x", "y"]} if came else {}))

    told, missing = run(config, body, tmp_path, caplog)
    label, formula = "its label c never came", "c never came"
    said = f"eval: 2 of 3 metrics are inactive:\n  at_eval ({label})\n  twice ({formula})"
    assert told == ([] if came else [said])
    assert missing == ({} if came else {"at_eval": f"eval: {label}", "twice": f"eval: {formula}"})


def test_a_trainers_numbers_of_steps_are_of_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where a trainer says when, its evaluations have no learning rate, and that is no gap; what training lacks is."""
    metrics = {**AB["metrics"], "c": "mean(c)"}
    config = {**AB, "every": "trainer", "signals": {"any": {**AB["signals"]["any"], "c": STEP}}, "metrics": metrics}

    def body(log: Recorder) -> None:
        for step in range(3):
            with log.step(step):
                log.observe(a=1.0, b=2.0)
            log.flush()
            with log.mode("eval"):
                log.observe(a=1.0)

    told, missing = run(config, body, tmp_path, caplog)
    assert told == [
        "1 of 3 metrics is inactive: c (c never came)", "eval: 1 of 3 metrics is inactive: c (c never came)",
    ]  # fmt: skip
    assert missing == {"c": "c never came"}


RHYTHMS: Mapping[str, tuple[int, Callable[[int], bool], list[str]]] = {
    "each step, then none": (1, lambda step: step < 5, ["b stopped after step 4: b has no values since"]),
    "the last step only": (1, lambda step: step < 19, []),
    "each third": (1, lambda step: step % 3 == 0, []),
    "each third, then none": (1, lambda step: step % 3 == 0 and step < 8,
                              ["b stopped after step 6: b has no values since"]),
    "once": (1, lambda step: step == 0, ["b stopped after step 0: b has no values since"]),
    "at random": (1, lambda step: step * 7919 % 11 < 6, []),
    "with pauses that grow": (1, lambda step: step in (0, 1, 3, 6, 10, 15), []),
    "within windows": (5, lambda step: step % 5 == 0, []),
    "a window without": (5, lambda step: step < 10, ["b stopped after step 9: b has no values since"]),
    "it comes back": (1, lambda step: not 5 <= step < 10, ["b stopped after step 4: b has no values since"]),
    "and stops again": (1, lambda step: step not in (5, 6) and step < 10,
                        ["b stopped after step 4: b has no values since"]),
}  # fmt: skip


@pytest.mark.parametrize("case", RHYTHMS)
def test_a_signal_that_stops_is_told_once(case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It stays away for twice as long as ever before; a signal with a rhythm of its own, or gaps, has not stopped."""
    every, here, expected = RHYTHMS[case]
    config = {**AB, "every": every}
    body = steps(20, lambda step: {"a": 1.0} | ({"b": 1.0} if here(step) else {}))
    told, missing = run(config, body, tmp_path / "run", caplog)
    stopped = bool(expected) and not here(19)
    assert told == expected and bool(missing) == stopped
    if stopped:
        with pytest.raises(declog.InputError, match=r"DL502.*`b`.*not since"):
            run({**config, "run": {"strict": True}}, body, tmp_path / "strict", caplog)
    else:
        run({**config, "run": {"strict": True}}, body, tmp_path / "strict", caplog)


@pytest.mark.parametrize("stride", [1, 100])
def test_steps_may_have_any_numbers(stride: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """How long a signal stays away is counted in steps, whatever their numbers."""

    def body(log: Recorder) -> None:
        for step in range(0, 10 * stride, stride):
            with log.step(step):
                log.observe(a=1.0, **({"b": 1.0} if step < 5 * stride else {}))

    told, _ = run(AB, body, tmp_path, caplog)
    assert told == [f"b stopped after step {4 * stride}: b has no values since"]


def test_a_phase_that_rests_takes_its_signals_along(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Generations each fourth step are no alarm; of a phase that ends all signals are named together."""
    signals = {"rollout": {"r": STEP, "q": STEP}, "update": {"u": STEP}}
    config = {"run": {"name": "small"}, "signals": signals, "metrics": {name: f"mean({name})" for name in "rqu"}}

    def body(last: int) -> Callable[[Recorder], None]:
        def loop(log: Recorder) -> None:
            for step in range(40):
                with log.step(step):
                    if step % 4 == 0 and step < last:
                        log.observe(r=1.0, q=1.0)
                    log.observe(u=1.0)

        return loop

    assert run(config, body(40), tmp_path / "rests", caplog)[0] == []
    told, missing = run(config, body(16), tmp_path / "ends", caplog)
    assert told in (["q and r stopped after step 12: r and q have no values since"],
                    ["r and q stopped after step 12: r and q have no values since"])  # fmt: skip
    assert set(missing) == {"r", "q"}


def test_a_mode_of_blocks_is_counted_in_log_events(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Evaluations come when they come; a signal that two of them lack has stopped."""

    def body(log: Recorder) -> None:
        for step in range(6):
            with log.step(step):
                log.observe(a=1.0, b=1.0)
            with log.mode("eval"):
                log.observe(a=1.0, **({"b": 1.0} if step < 3 else {}))

    told, missing = run(AB, body, tmp_path, caplog)
    assert told == ["eval: b stopped after log event 3 of mode eval: b has no values since"]
    assert missing == {"b": "eval: b stopped after log event 3 of mode eval"}


@pytest.mark.parametrize("giver", [0, 1, 2])
def test_rank_0_says_it_of_all_ranks(giver: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What one rank observes has come, whichever it is; what none does is said once."""
    config = {**AB, "signals": {"any": AB["signals"]["any"] | {"c": STEP}}, "metrics": AB["metrics"] | {"c": "mean(c)"}}

    def body(comm: Comm) -> dict[str, str]:
        with declog.start(config, sinks=[MemorySink()] if not comm.rank else [], output_dir=tmp_path, comm=comm) as log:
            for step in range(8):
                with log.step(step):
                    log.observe(a=1.0, **({"b": 1.0} if comm.rank == giver and step < 4 else {}))
        return dict(log.missing)

    with caplog.at_level(logging.WARNING, logger="declog"):
        missing = run_ranks(3, body)
    assert [record.getMessage() for record in caplog.records] == [
        "1 of 3 metrics is inactive: c (c never came)", "b stopped after step 3: b has no values since",
    ]  # fmt: skip
    assert missing == [{"c": "c never came", "b": "b stopped after step 3"}, {}, {}]


def test_what_strict_raises_is_raised_once(tmp_path: Path) -> None:
    """A run whose end has raised is over: neither another close nor the interpreter's end raises again."""
    log = declog.start({**AB, "run": {"strict": True}}, sinks=[MemorySink()], output_dir=tmp_path)
    steps(9, lambda step: {"a": 1.0} | ({"b": 1.0} if step < 4 else {}))(log)
    with pytest.raises(declog.InputError, match="not since"):
        log.close()
    log.close()


def test_required_signals_that_never_came_are_raised_under_strict(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a phase never had a batch, and where tasks alone observe, so that no batch is known to be whole."""
    required = {**STEP, "required": True}
    config = {
        "run": {"name": "small", "strict": True},
        "signals": {"p": {"a": required, "b": required}, "q": {"u": STEP}},
        "metrics": {"a": "mean(a)", "b": "mean(b)", "u": "mean(u)"},
    }

    def contributed(log: Recorder) -> None:
        for step in range(3):
            with log.step(step):
                log.observe(u=1.0)
                log.at(step).observe(a=1.0)

    with pytest.raises(declog.InputError, match=r"`a`, `b` were not observed"):
        run(config, steps(3, lambda step: {"u": 1.0}), tmp_path / "phase", caplog)
    with pytest.raises(declog.InputError, match=r"`b` was not observed"):
        run(config, contributed, tmp_path / "tasks", caplog)


def test_what_an_own_line_names_is_raised_under_strict(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A metric of a file or an override whose signal never came; those of the preset are named once, and no more."""
    words = ["sinks=none", "run.strict=true", "metrics.mine=mean(truncated)"]
    given = steps(3, lambda step: {"reward": [0.0, 1.0]})
    with pytest.raises(declog.InputError, match=r"DL502.*`mine`.*: truncated never came"):
        run("grpo", given, tmp_path / "own", caplog, overrides=words)
    told, missing = run("grpo", given, tmp_path / "preset", caplog, overrides=words[:2])
    assert "truncated" in missing and any("inactive" in line for line in told)


@pytest.mark.parametrize("came", [True, False])
def test_an_own_line_on_evaluations_is_raised_under_strict(
    came: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a metric of evaluations alone it is asked there, and not in training, which has no such signal."""
    words = ["sinks=none", "run.strict=true", "modes.eval.prefix=eval/", "signals.rollout.solved=completion float",
             "metrics.mine={expr: solved, where: mode == 'eval'}"]  # fmt: skip

    def body(log: Recorder) -> None:
        for step in range(3):
            with log.step(step):
                log.observe(reward=[0.0, 1.0])
            with log.mode("eval"):
                log.observe(reward=[0.0, 1.0], **({"solved": [1.0, 0.0]} if came else {}))

    with nullcontext() if came else pytest.raises(declog.InputError, match=r"DL502.*`mine`.*: solved never came"):
        told, missing = run("grpo", body, tmp_path, caplog, overrides=words)
        assert "mine" not in missing and not any("mine" in line for line in told)


@pytest.mark.parametrize("preset", ["minimal", "trainer", "tee"])
def test_presets_of_whatever_comes_say_nothing(preset: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where nobody declared what should come nothing can be inactive."""
    config = declog.compose(preset, ["sinks=none"])

    def body(log: Recorder) -> None:
        for step in range(3):
            with log.step(step):
                log.log_metric("loss", 1.0)

    assert run(config, body, tmp_path, caplog) == ([], {})


def test_unknown_groups_are_the_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where nothing says what a group is, metrics of groups are inactive, and the line says what to write."""
    config = {
        "run": {"name": "small"}, "axes": {"group": {"of": ["group", "prompt_id"]}}, "signals": {
            "any": {
                "r": {**ROW}, "group": {**ROW, "type": "text"}, "prompt_id": {**ROW, "type": "text", "from": "id"},
            },
        },
        "metrics": {"r": "mean(r)", "best": "mean(max(r, over=completion))"},
    }  # fmt: skip
    why = "nothing says what a group is: observe group or id, or say `axes.group.size=N`"
    told, missing = run(config, steps(3, lambda step: {"r": [1.0, 2.0]}), tmp_path / "unknown", caplog)
    assert (told, missing) == ([f"1 of 2 metrics is inactive: best ({why})"], {"best": why})
    known = steps(3, lambda step: {"r": [1.0, 2.0], "id": ["a", "a"]})
    assert run(config, known, tmp_path / "known", caplog) == ([], {})


def test_timers_that_nobody_started(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A preset's metric of them is inactive until a loop times a block: the message has the line that does."""
    config = {
        "run": {"name": "small"}, "signals": {"rollout": {"a": ROW}, "timing": {"timers": {**STEP, "family": True}}},
        "metrics": {"a": "mean(a)", "time": "mean(timers)"},
    }  # fmt: skip
    told, _ = run(config, steps(4, lambda step: {"a": [1.0]}), tmp_path, caplog)
    (line,) = told
    assert line == (
        '1 of 2 metrics is inactive: time (no signal of timing came, which `with log.timer("generate"):` gives)'
    )


@pytest.mark.parametrize("first", ["kl", "loss", "mine"])
def test_the_signal_that_is_named_is_one_that_the_first_metric_reads(
    first: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a phase of which nothing came: whatever metric is named first, and rather its values than their mask."""
    signals = {"kl": {"axis": "token"}, "mask": {"axis": "token", "type": "bool"}, "loss": STEP, "mine": ROW}
    metrics = {name: f"mean({name})" for name in sorted(["kl", "loss", "mine"], key=lambda name: name != first)}
    config = {
        "run": {"name": "small"}, "axes": {"token": {"mask": "mask"}},
        "signals": {"rollout": {"a": ROW}, "update": signals}, "metrics": {"a": "mean(a)", **metrics},
    }  # fmt: skip
    (line,), missing = run(config, steps(4, lambda step: {"a": [1.0]}), tmp_path, caplog)
    calls = {name: f"no signal of update came, which `log.observe({name}=...)` gives" for name in metrics}
    assert missing == calls
    named = line.removeprefix("3 of 4 metrics are inactive: ").partition(",")[0]
    assert f"({calls[named]})" in line
