"""What is computed from metrics' values: formulas, `when`, alerts and their texts, by one evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import declog
from declog.errors import ConfigError
from declog.runtime.recording.recorder import Recorder
from declog.testing import FakeComm, MemorySink, run_ranks
from tests.running import logged, profile, run

ROWS = {"axis": "completion"}
FAMILY = {"rewards": {**ROWS, "family": True}, "x": {**ROWS, "family": True}}
GIVEN = {
    "rewards": {"a": [1.0, 2.0], "b": [2.0, 4.0], "c": [0.0, 9.0]},
    "x": {"c": [1.0] * 2, "b": [20.0] * 2, "a": [0.5] * 2},
}


def once(log: Recorder, *batches: Mapping[str, Any]) -> None:
    """One step."""
    with log.step(0):
        for batch in batches:
            log.observe(**batch)


def problems(config: Mapping[str, Any]) -> list[tuple[str, tuple[str | int, ...]]]:
    """What is wrong with a profile."""
    with pytest.raises(ConfigError) as caught:
        declog.plan(config)
    return [(problem.code, problem.path) for problem in caught.value.problems]


# ---- pieces


TWO = {"rollout": {"a": ROWS}, "update": {"b": ROWS}}


@pytest.mark.parametrize("limit", [2**30, 1], ids=["rows", "states"])
@pytest.mark.parametrize(("reduce", "folds"), [("mean", True), ("p50", False)])
def test_steps_of_two_phases_meet_by_their_numbers(limit: int, reduce: str, folds: bool, tmp_path: Path) -> None:
    """Unequal numbers of steps and batches; of a window that is folded to states as of one that has its rows."""
    metrics = {"a": {"reduce": reduce, "over": "step"}, "b": {"over": "step"}, "r": {"formula": "a / b"},
               "more": {"formula": "r + b"}}  # fmt: skip

    def body(log: Recorder) -> None:
        for step in range(40):
            with log.step(step):
                if step % 2 == 0:
                    log.observe(a=[10.0 + step])
                for batch in range(1 + step % 3):
                    log.observe(b=[1.0 + step + batch])

    found = run(profile({}, metrics, signals=TWO, every=40, run={"window_bytes": limit}), body, tmp_path).scalars[39]
    b = {step: sum(1.0 + step + batch for batch in range(1 + step % 3)) / (1 + step % 3) for step in range(40)}
    ratios = {step: (10.0 + step) / b[step] for step in range(0, 40, 2)}
    assert found == pytest.approx({
        "a": 29.0, "b": sum(b.values()) / 40, "r": sum(ratios.values()) / 20,
        "more": sum(ratios[step] + b[step] for step in ratios) / 20,
    })  # fmt: skip


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("pool", ["step", "batch"])
def test_a_formula_of_unlike_values_reads_what_is_logged(pool: str, every: int, tmp_path: Path) -> None:
    """Class: metrics of a preset with `over: batch` beside the user's own, and beside an earlier, smooth or best value.

    Also of other combinations, and of batches of two phases. The same numbers are in an alert's text.
    """
    metrics = {
        "a": {"over": pool}, "b": {"over": pool}, "p": {"expr": "a", "reduce": "p90"},
        "most": {"expr": "a", "over": pool, "combine": "max"},
        "best": {"expr": "a", "over": "run_step", "combine": "max"},
        "smooth": {"expr": "a", "over": "step", "combine": "rolling(3)"},
        "before": {"formula": "a", "combine": "lag(1)"}, "slow": {"formula": "a / 2", "combine": "rolling(2)"},
        "change": {"formula": "a - before"}, "from_slow": {"formula": "a - slow"}, "share": {"formula": "p / a"},
        "to_best": {"formula": "best - a"}, "rough": {"formula": "a - smooth"}, "top": {"formula": "most / a"},
        "phases": {"formula": "a / b"}, "twice": {"formula": "share * b"},
    }  # fmt: skip
    text = "{a:.6f} {before:.6f}"
    config = profile({}, metrics, signals=TWO, every=every, alerts={"drop": {"when": "a < before", "text": text}})
    random = np.random.default_rng(3)
    rows = [[random.exponential(size=size) for size in (1, 3)] for _ in range(12)]

    def body(log: Recorder) -> None:
        for step, (first, second) in enumerate(rows):
            with log.step(step):
                log.observe(a=first)
                log.observe(a=second)
                log.observe(b=first + 1)

    sink = run(config, body, tmp_path)
    a, b, slow, drops = [], [], [], []
    means = [np.concatenate(step).mean() for step in rows]
    for end in range(every - 1, 12, every):
        window = rows[end - every + 1 : end + 1]
        values = (
            means[end - every + 1 : end + 1] if pool == "step" else [batch.mean() for step in window for batch in step]
        )
        a.append(np.mean(values))
        b.append(np.mean([first.mean() + 1 for first, _ in window]))
        slow.append(np.mean(a[-2:]) / 2)
        p = np.quantile(np.concatenate([np.concatenate(step) for step in window]), 0.9)
        expected = {
            "a": a[-1], "slow": slow[-1], "from_slow": a[-1] - slow[-1], "share": p / a[-1],
            "to_best": max(means[: end + 1]) - a[-1], "rough": a[-1] - np.mean(means[max(0, end - 2) : end + 1]),
            "top": max(values) / a[-1], "twice": p / a[-1] * b[-1],
        }  # fmt: skip
        expected |= {"phases": a[-1] / b[-1]} if pool == "batch" else {}
        if len(a) > 1:
            expected |= {"before": a[-2], "change": a[-1] - a[-2]}
            if a[-1] < a[-2] and not (len(a) > 2 and a[-2] < a[-3]):  # the first log event of those at which it holds
                drops.append((end, f"{a[-1]:.6f} {a[-2]:.6f}"))
        assert {name: sink.scalars[end][name] for name in expected} == pytest.approx(expected)
        assert "change" in expected or "change" not in sink.scalars[end]
    assert [(step, alert.text) for step, alert in sink.alerts] == drops != []


@pytest.mark.parametrize(
    ("metrics", "fix"),
    [
        ({"n": "sum(a)", "t": {"expr": "b", "over": "step"}, "r": {"formula": "2 * n / t"}},
         "metrics: {n: {expr: a, reduce: sum, over: step}}; a rate divides a total by `seconds`"),
        ({"n": {"expr": "a", "over": "batch"}, "took": {"formula": "seconds / 60"}, "r": {"formula": "n / took"}},
         "metrics: {n: {expr: a, over: window}}"),
        ({"n": {"expr": "a", "every": 2}, "t": "mean(b)", "r": {"formula": "n - t"}},
         "metrics: {n: {every: null, expr: a}}"),
    ],
)  # fmt: skip
def test_values_that_never_fit_are_made_to_fit_as_pasted(metrics: dict[str, Any], fix: str) -> None:
    """Class: a total of the window beside a mean of its steps, in either order, and windows with different ends."""
    with pytest.raises(ConfigError) as caught:
        declog.plan(profile({}, metrics, signals=TWO))
    assert [str(problem.fix) for problem in caught.value.problems] == [fix]
    edit = yaml.safe_load(fix.partition(";")[0])["metrics"]
    declog.plan(profile({}, {**metrics, **edit}, signals=TWO))


@pytest.mark.parametrize("formula", ["n / m / t", "n / seconds / t", "t / (n / m)", "n / steps"])
def test_ratios_of_totals_do_not_grow_with_the_window(formula: str) -> None:
    """Class: a mean of steps beside totals that cancel, and totals of steps."""
    metrics = {"n": "sum(a)", "m": "count(a)", "t": {"expr": "b", "over": "step"},
               "steps": {"expr": "b", "over": "step", "combine": "sum"}, "r": {"formula": formula}}  # fmt: skip
    declog.plan(profile({}, metrics, signals=TWO))


@pytest.mark.parametrize("pool", ["step", "batch", "rank", "rank_batch"])
@pytest.mark.parametrize("limit", [None, 1])
def test_a_formula_of_a_variance_of_pieces_reads_what_is_logged(pool: str, limit: int | None, tmp_path: Path) -> None:
    """Class: a formula of each piece, combined: its variance in place of a formula of the variance.

    Beside a variance, what is combined in another way, or has one value, is read as it is logged, too: with labels,
    members, formulas above, folded windows and the values of two ranks.
    """
    keys = {"over": pool, "combine": "std"}
    metrics = {
        "v": {"expr": "x", **keys}, "m": {"expr": "x", "over": pool}, "root": {"formula": "sqrt(v)"},
        "relative": {"formula": "v / m"}, "above": {"formula": "relative + v"}, "n": "count(x)",
        "each": {"formula": "v / n"}, "labelled": {"expr": "x", "by": "t", **keys},
        "share": {"formula": "labelled / v"}, "members": {"expr": "f", **keys},
        "total": {"formula": "sum(members, over=member)"},
    }  # fmt: skip
    signals = {"x": ROWS, "f": {**ROWS, "family": True}, "t": {**ROWS, "type": "text"}}
    config = profile(signals, metrics, every=3, run={} if limit is None else {"window_bytes": limit})

    def on_rank(comm: FakeComm) -> MemorySink:
        sink, random = MemorySink(), np.random.default_rng(comm.rank)
        with declog.start(config, sinks=[sink], output_dir=tmp_path, comm=comm) as log:
            for step in range(6):
                with log.step(step):
                    for _ in range(2):
                        rows = random.exponential(size=3)
                        log.observe(x=rows, f={"a": rows, "b": -2 * rows}, t=["low", "high", "low"])
        return sink

    logged = run_ranks(2, on_rank)[0].scalars
    for values in (logged[2], logged[5]):
        v, m, n = values["v"], values["m"], values["n"]
        expected = {"root": v**0.5, "relative": v / m, "above": v / m + v, "each": v / n,
                    "total": values["members/a"] + values["members/b"],
                    "share/low": values["labelled/low"] / v, "share/high": values["labelled/high"] / v}  # fmt: skip
        assert {name: values[name] for name in expected} == pytest.approx(expected)


# ---- members


MEMBERS = [
    ("max(rewards, over=member)", 4.5), ("mean(rewards, over=member)", 3.0), ("count(rewards, over=member)", 3),
    ("any(rewards > 4, over=member)", 1.0), ("all(rewards > 4, over=member)", 0.0), ("member(rewards, 'b') * 2", 6.0),
    ("sum(rewards * x, over=member)", 1.5 * 0.5 + 3 * 20 + 4.5), ("pstd(rewards, over=member) > 1", 1.0),
    ("max(rewards - member(rewards, 'a'), over=member)", 3.0), ("member(rewards, 'z') + 1", None),
]  # fmt: skip


@pytest.mark.parametrize(("expr", "expected"), MEMBERS)
def test_members_of_a_family_in_formulas_and_conditions(expr: str, expected: float | None, tmp_path: Path) -> None:
    """Reduced over, picked by name, aligned by name whatever their order; so in `when` and in alerts."""
    test = expr if ">" in expr else f"{expr} > -1"
    metrics = {
        "rewards": "mean(rewards)",
        "x": "mean(x)",
        "r": {"formula": expr},
        "when": {"formula": "r * 2", "when": test},
    }
    config = profile(FAMILY, metrics, alerts={"alert": {"when": test}})
    sink = run(config, lambda log: once(log, GIVEN), tmp_path)
    found = {name: value for name, value in sink.scalars[0].items() if "/" not in name}
    holds = expected is not None and (expected != 0 or ">" not in expr)
    assert found == {} if expected is None else found == pytest.approx(
        {"r": expected, **({"when": 2 * expected} if holds else {})}
    )  # fmt: skip
    assert [alert.name for _, alert in sink.alerts] == ["alert"] * holds


@pytest.mark.parametrize("where", ["formula", "when", "alert"])
@pytest.mark.parametrize("call", ["prev(x, 0)", "len('a')", "members(x * 2)"])
def test_what_is_of_rows_is_refused_over_metrics(call: str, where: str) -> None:
    """It would fail at each log event."""
    given = (
        {"formula": call} if where == "formula" else {"expr": "x", "when": f"{call} > 0"} if where == "when" else "x"
    )
    signals = {"x": FAMILY["x"] if "members" in call else ROWS}
    alerts = {"a": {"when": f"{call} > 0"}} if where == "alert" else {}
    path = ("alerts", "a", "when") if where == "alert" else ("metrics", "r", where)
    assert problems(profile(signals, {"x": "mean(x)", "r": given}, alerts=alerts)) == [("DL310", path)]


# ---- what a condition hides


@pytest.mark.parametrize(
    "formula",
    ["abs(kl) / entropy", "length.mean / log(length.max)", "kl / inf", "maximum(kl, entropy) / reward", "kl / 2 / kl",
     "max(rewards.mean, over=member) / reward", "(kl + entropy) / (reward - 1)", "seconds / elapsed"],
)  # fmt: skip
def test_what_divides_or_is_called_is_no_tracker_name(formula: str) -> None:
    """A right formula or condition stays one beside the answers for `completions/mean_length` and `max(kl)`."""
    data = declog.config_of(declog.compose("grpo", ["declog.sinks=[]"]))
    metrics = {**data["metrics"], "r": {"formula": formula}}
    declog.plan({**data, "metrics": metrics, "alerts": {**data["alerts"], "a": {"when": f"{formula} > 1"}}})


def test_signals_of_a_phase_may_be_called_as_other_libraries_call_an_axis() -> None:
    """`shape`, `dim` and `per` say what a signal is only where all keys do, and none says its axis."""
    for phase in ("rollout", "env"):
        names = {"shape": "step", "dim": "completion", "per": "completion"}
        plan = declog.plan({"signals": {phase: names}, "metrics": {"m": "mean(dim)", "s": "last(shape)"}})
        assert {"m", "s"} <= {op.id for op in plan.metrics}


def test_names_that_look_like_a_statistic_of_another_metric() -> None:
    """A signal, a label and a quotient that only look like a tracker's name of a metric are what they are."""
    signals = {"reward": "completion", "mean_reward": "completion", "kl": "completion", "task": "completion text"}
    metrics = {
        "reward": "mean",
        "mean_reward": {"by": "task"},
        "a": {"expr": "reward", "by": "task", "name": "{label}"},
    }
    declog.plan({"signals": {"any": signals}, "metrics": {**metrics, "kl": {"tags": "core"}}})
    wrong = {"signals": {"any": signals}, "metrics": {"reward": "mean", "kl": "mean", "x": {"formula": "reward / kll"}}}
    with pytest.raises(ConfigError) as caught:
        declog.plan(wrong)
    assert [problem.fix for problem in caught.value.problems] == ["did you mean `kl`?"]


def test_what_a_condition_hides_is_hidden_from_what_reads_it(tmp_path: Path) -> None:
    """Formulas, formulas of those, alerts, and conditions of other metrics, negated too; in any order."""
    metrics = {"later": {"formula": "1 + error"}, "last": {"expr": "h", "when": "not error > 9"}, "h": "mean(h)",
               "error": {"formula": "h - 0.1", "when": "on > 0"}, "on": "mean(on)", "twice": {"formula": "2 * later"},
               "known": {"formula": "error if present(error) else -1"}}  # fmt: skip
    alerts = {"high": {"when": "twice > 0"}, "low": {"when": "not twice > 99"}, "lacks": {"when": "not present(error)"}}
    signals = {"h": ROWS, "on": ROWS}

    def body(log: Recorder) -> None:
        for step in range(2):
            with log.step(step):
                log.observe(h=[0.5], on=[float(step)])

    sink = run(profile(signals, metrics, alerts=alerts), body, tmp_path)
    assert sink.scalars == {
        0: {"h": 0.5, "on": 0.0, "known": -1.0},
        1: pytest.approx({"h": 0.5, "on": 1.0, "error": 0.4, "later": 1.4, "twice": 2.8, "last": 0.5, "known": 0.4}),
    }
    assert [(step, alert.name) for step, alert in sink.alerts] == [(0, "lacks"), (1, "high"), (1, "low")]


def test_what_is_not_shown_is_hidden_alike(tmp_path: Path) -> None:
    """`log: false` with a condition, which is compiled for the formula alone."""
    metrics = {
        "a": {"expr": "x", "log": False, "when": "b > 1"},
        "b": {"expr": "x", "log": False},
        "c": {"formula": "a + 1"},
    }
    config = profile({"x": ROWS}, metrics, profiles={"p": {"only": ["c"]}}, profile="p")
    assert logged(config, [{"x": [0.5]}], tmp_path / "a") == {}
    assert logged(config, [{"x": [1.5]}], tmp_path / "b") == {"c": 2.5}


def test_a_condition_of_a_profile_hides_nothing_from_what_is_computed(tmp_path: Path) -> None:
    """It is a view: another profile shows the metric."""
    metrics = {"a": "mean(x)", "b": {"formula": "a * 2"}}
    profiles = {"p": {"hide": [{"select": "a", "when": "a > 0"}]}}
    config = profile({"x": ROWS}, metrics, profiles=profiles, profile="p", alerts={"high": {"when": "a > 0"}})
    sink = run(config, lambda log: once(log, {"x": [3.0]}), tmp_path)
    assert (sink.scalars, [alert.name for _, alert in sink.alerts]) == ({0: {"b": 6.0}}, ["high"])


def test_a_condition_may_read_its_own_metric(tmp_path: Path) -> None:
    """Of several reductions one may decide for all."""
    metrics = {"x": {"reduce": ["mean", "max"], "when": "x.max > 1"}}
    assert logged(profile({"x": ROWS}, metrics), [{"x": [0.0, 2.0]}], tmp_path / "a") == {"x/mean": 1.0, "x/max": 2.0}
    assert logged(profile({"x": ROWS}, metrics), [{"x": [0.0, 1.0]}], tmp_path / "b") == {}


CIRCLES = {
    "conditions": {"a": {"expr": "x", "when": "b > 0"}, "b": {"expr": "x", "when": "a > 0"}},
    "formula": {"a": {"expr": "x", "when": "f > 0"}, "f": {"formula": "a + 1"}},
    "three": {"a": {"expr": "x", "when": "b > 0"}, "b": {"expr": "x", "when": "f > 0"}, "f": {"formula": "a + 1"}},
}


@pytest.mark.parametrize("name", CIRCLES)
def test_a_circle_of_conditions_is_refused(name: str) -> None:
    """What each hides would decide what the other does."""
    assert [code for code, _ in problems(profile({"x": ROWS}, CIRCLES[name]))] == ["DL309"]


def test_a_condition_reads_what_is_known_at_its_log_events(tmp_path: Path) -> None:
    """A metric of a window as long, or one that fits into it; a longer one has no value most of the time."""
    metrics = {"fast": "mean(x)", "slow": {"expr": "x", "every": 4, "when": "fast > 3"}}

    def body(log: Recorder) -> None:
        for step in range(8):
            with log.step(step):
                log.observe(x=[float(step)])

    sink = run(profile({"x": ROWS}, metrics, every=2), body, tmp_path)
    assert {step: values["slow"] for step, values in sink.scalars.items() if "slow" in values} == {7: 5.5}
    metrics = {"fast": {"expr": "x", "when": "slow > 3"}, "slow": {"expr": "x", "every": 4}}
    assert problems(profile({"x": ROWS}, metrics, every=2)) == [("DL310", ("metrics", "fast", "when"))]


# ---- texts


TEXTS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "combined": ({"expr": "x", "over": "step", "combine": "max"}, "m > 5", "{m:.2f}", "10.00"),
    "var": ({"expr": "x", "over": "step", "combine": "var"}, "m > 5", "{m:.1f}", "50.0"),
    "last": ({"expr": "x", "reduce": "last"}, "m > 5", "{m:g} {other}", "10 absent"),
    "member": ({"expr": "f", "name": "m/{member}"}, "m > 3", "{m:g}", "4"),
    "label": ({"expr": "x", "by": "t", "name": "m/{label}"}, "m > 5", "{m:g}", "10"),
    "cumulative": ({"expr": "x", "reduce": "sum", "over": "run"}, "m > 5", "{m:g}", "10"),
    "empty": ({"expr": "x", "where": "x > 99", "empty": 7}, "m > 5", "{m:g}", "7"),
    "formula": ({"formula": "other_max * 2"}, "m > 5", "{m:g} {other_max:g}", "20 10"),
    "several": ({"expr": "f", "name": "m/{member}"}, "max(m, over=member) > 3", "{m:g}", "4"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_shows_the_value_that_is_logged_and_that_was_judged(name: str, tmp_path: Path) -> None:
    """For every way in which a value can be made; of members and labels what the condition read."""
    metric, when, text, expected = TEXTS[name]
    signals = {"x": ROWS, "f": {**ROWS, "family": True}, "t": {**ROWS, "type": "text"}, "o": ROWS}
    metrics = {"m": metric, "other": "mean(o)", "other_max": {"expr": "x", "over": "step", "combine": "max"}}
    config = profile(signals, metrics, every=2, alerts={"a": {"when": when, "text": text}})

    def body(log: Recorder) -> None:
        for step, value in enumerate((0.0, 10.0)):
            with log.step(step):
                log.observe(x=[value], f={"a": [2.0], "b": [4.0]}, t=["low" if step == 0 else "high"])

    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log:
        body(log)
    assert [alert.text for _, alert in sink.alerts] == [expected]
    shown = float(expected.split()[0])
    assert shown in [value for key, value in sink.scalars[1].items() if key.startswith("m")]


# ---- labels


def test_the_pooled_label_is_no_label_of_a_row(tmp_path: Path) -> None:
    """Rows labelled `other`, or as the pooled ones are called, keep their label, whether anything is pooled or not."""
    metrics = {"x": {"by": "t", "max_labels": 2}, "p": {"expr": "x", "by": "t", "max_labels": 2, "reduce": "p50"}}
    config = profile({"x": ROWS, "t": {**ROWS, "type": "text"}}, metrics)
    for place, (label, pooled) in enumerate([("other", "_other"), ("_other", "__other")]):
        found = logged(config, [{"x": [1.0, 2.0, 3.0, 40.0], "t": [label, label, "a", "b"]}], tmp_path / str(place))
        expected = {label: 1.5, "a": 3.0, pooled: 40.0}
        assert found == {f"{name}/{key}": value for name in "xp" for key, value in expected.items()}


def test_labels_take_the_room_that_they_have(tmp_path: Path) -> None:
    """One long text among many short ones: an array of texts would give each the room of the longest."""
    import tracemalloc

    rows, long = 512, "A" * 100_000
    config = profile(
        {"x": ROWS, "t": {**ROWS, "type": "text"}}, {"x": {"by": "t"}, "p": {"expr": "x", "by": "t", "reduce": "p50"}}
    )
    tracemalloc.start()
    try:
        found = logged(config, [{"x": [1.0] * rows, "t": [*(str(row % 5) for row in range(rows - 1)), long]}], tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found) == 12
    assert peak < rows * len(long)  # fixed-width texts have 4 bytes per character


@pytest.mark.parametrize(
    ("formula", "fix"),
    [
        ("cummax(m)", "metrics: {m_max: {expr: reward, over: run_step, combine: max}, x: {formula: m_max}}"),
        ("ema(a/mean)", "metrics: {a_mean_smooth: {formula: a, combine: ema(0.9)}, x: {formula: a_mean_smooth}}"),
    ],
)
def test_the_fix_of_a_call_names_its_argument_only(formula: str, fix: str) -> None:
    """A metric of one letter is no letter of `combine` or `ema`."""
    metrics = {"m": "mean(reward)", "a": "mean(reward)", "x": {"formula": formula}}
    with pytest.raises(ConfigError) as caught:
        declog.plan({"signals": {"any": {"reward": "completion"}}, "metrics": metrics, "sinks": []})
    assert str(caught.value.problems[0].fix).endswith(fix)
