"""Alerts: when they fire, how often, what they say, and which sinks hear of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.errors import ConfigError
from declog.plans.needs import read
from declog.records import Alert
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink
from tests.running import profile, run


def alerted(
    alerts: dict[str, Any],
    values: Sequence[float | None],
    folder: Path,
    metrics: dict[str, Any] | None = None,
    **others: Any,
) -> MemorySink:
    """A run that observes one `kl` per step; None is a step without any."""
    config = profile(
        {"kl": {"axis": "step"}, "length": {"axis": "completion", "type": "int"}},
        metrics or {"kl": "mean(kl)", "length": {"reduce": ["mean", "max"]}}, alerts=alerts, **others,
    )  # fmt: skip

    def body(log: Recorder) -> None:
        for step, value in enumerate(values):
            with log.step(step):
                log.observe(length=[1, step])
                if value is not None:
                    log.observe(kl=value)

    return run(config, body, folder)


def test_an_alert_fires_when_its_metric_leaves_its_bounds(tmp_path: Path) -> None:
    """Once each time the condition begins to hold, at the level and in the words of the profile."""
    alerts = {
        "high": {"when": "kl > 0.5", "level": "error", "text": "KL is {kl:.2f} after {length.max} tokens"},
        "low": {"when": "kl < 0.1"},
    }
    sink = alerted(alerts, [0.2, 0.6, 0.7, 0.3, 0.05, 0.9], tmp_path)
    assert sink.alerts == [
        (1, Alert("high", "error", "KL is 0.60 after 1 tokens")),
        (4, Alert("low", "warn", "kl is 0.05: kl < 0.1")),
        (5, Alert("high", "error", "KL is 0.90 after 5 tokens")),
    ]


def test_for_counts_log_events_in_a_row(tmp_path: Path) -> None:
    """With `for: 3` the condition must hold three times in a row; a phase without a value breaks the row."""
    alerts = {"high": {"when": "kl > 0.5", "for": 3}}
    values = [1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, None, 1.0, 1.0, 1.0]
    assert [step for step, _ in alerted(alerts, values, tmp_path).alerts] == [5, 13]


def test_a_cooldown_keeps_an_alert_silent(tmp_path: Path) -> None:
    """For so many log events after it fired; one that began to hold meanwhile, and still does, fires behind them."""
    high = {"when": "kl > 0.5", "cooldown": 4}
    values = [1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0]
    assert [step for step, _ in alerted({"high": {"when": "kl > 0.5"}}, values, tmp_path / "often").alerts] == [
        0, 2, 4, 10,
    ]  # fmt: skip
    assert [step for step, _ in alerted({"high": high}, values, tmp_path / "seldom").alerts] == [0, 5, 10]


def test_a_condition_reads_several_metrics(tmp_path: Path) -> None:
    """`when` is a condition of the language over metrics and their reductions."""
    alerts = {"odd": {"when": "length.max - length.mean > 1 and not kl < 0.5", "text": "odd"}}
    assert [step for step, _ in alerted(alerts, [1.0, 1.0, 1.0, 0.0, 1.0], tmp_path).alerts] == [4]


@pytest.mark.parametrize(
    ("when", "every", "steps"),
    [
        ("step >= 4", 1, [4]), ("step % 3 == 2", 1, [2, 5]), ("step == 1", 1, [1]), ("seconds < 0", 1, []),
        ("step >= 4", 2, [5]), ("step % 3 == 2", 2, [5]), ("step == 2", 2, []),
    ],
)  # fmt: skip
def test_a_condition_on_steps_alone(when: str, every: int, steps: list[int], tmp_path: Path) -> None:
    """The class: conditions that read no metric; each log event of training judges them."""
    sink = alerted({"planned": {"when": when}}, [0.0] * 6, tmp_path, every=every, modes={"eval": {"prefix": "eval/"}})
    assert [step for step, _ in sink.alerts] == steps


def test_a_metric_with_a_longer_window_is_judged_at_its_own_phases(tmp_path: Path) -> None:
    """Events in which the metric is not logged neither break its row nor count for it."""
    metrics = {"kl": {"reduce": "max", "every": 2}}
    alerts = {"high": {"when": "kl > 0.5", "for": 2}}
    sink = alerted(alerts, [1.0, 0.0, 0.0, 1.0, 0.0, 0.0], tmp_path, metrics)
    assert [step for step, _ in sink.alerts] == [3]


def test_an_alert_needs_no_metric_that_is_shown(tmp_path: Path) -> None:
    """A metric with `log: false` can be watched."""
    sink = alerted({"high": {"when": "kl > 0.5"}}, [1.0], tmp_path, {"kl": {"reduce": "mean", "log": False}})
    assert (sink.scalars, [alert.name for _, alert in sink.alerts]) == ({0: {}}, ["high"])


def test_where_nothing_is_logged_no_condition_holds(tmp_path: Path) -> None:
    """Steps without the metric, and the empty tail of a run, are no alert even for a negated condition."""
    assert alerted({"low": {"when": "not kl > 0.5"}}, [1.0, None, 1.0], tmp_path).alerts == []


@pytest.mark.parametrize(
    "when", ["not present(kl)", "not present(kl) and not present(gap)", "not present(kl) and 1 > 0"]
)
def test_what_stopped_coming_can_be_asked_for(when: str, tmp_path: Path) -> None:
    """Also where nothing else is read: in a mode in which it had a value, and not in one that never has."""
    alerts = {"gone": {"when": when, "for": 2}}
    metrics = {"x": "mean(x)", "kl": "mean(kl)", "gap": {"formula": "kl - 1"}}
    config = profile({"kl": "step", "x": "completion"}, metrics, alerts=alerts, modes={"eval": {"prefix": "eval/"}})

    def body(log: Recorder) -> None:
        for step in range(8):
            with log.step(step):
                log.observe(x=[1.0])
                if step in (1, 2, 6):
                    log.observe(kl=0.5)
            with log.mode("eval"):
                log.observe(x=[1.0])

    assert [step for step, _ in run(config, body, tmp_path).alerts] == [4]


@pytest.mark.parametrize(
    "when", ["not present(gone)", "not present(gone) or not present(kl)", "not present(gone) and not present(kl)"]
)
def test_whatever_stopped_coming_can_be_asked_for(when: str, tmp_path: Path) -> None:
    """Also a metric with labels, a family, both, and a formula of them: in an alert, in `when` and in a formula.

    A formula of labels or members has no value before any came.
    """
    signals = {"x": "completion", "kl": "completion", "src": "completion text", "f": "completion family"}
    by = {"by": "src"}
    metrics = {
        "plain": {"expr": "kl"}, "labels": {"expr": "kl", **by}, "family": {"expr": "f"}, "both": {"expr": "f", **by},
    }  # fmt: skip
    metrics |= {f"{id}2": {"formula": f"{id} * 2"} for id in metrics}
    whens = {id: when.replace("gone", id).replace("kl", "x_gone") for id in metrics}
    asked = {f"when_{id}": {"expr": "x", "when": text} for id, text in whens.items()}
    asked |= {f"formula_{id}": {"formula": f"1 if {text} else 0"} for id, text in whens.items()}
    config = profile(
        signals, {**metrics, "x": "mean(x)", "x_gone": "mean(kl)", **asked},
        alerts={id: {"when": text} for id, text in whens.items()},
    )  # fmt: skip

    def body(log: Recorder) -> None:
        for step in range(2):
            with log.step(step):
                log.observe(x=[1.0, 1.0])
                if not step:
                    log.observe(kl=[1.0, 2.0], src=["p", "q"], f={"m": [1.0, 2.0]})

    sink = run(config, body, tmp_path)
    assert [(step, alert.name) for step, alert in sink.alerts] == [(1, id) for id in metrics]
    of_names = {f"formula_{id}{twice}" for id in ("labels", "family", "both") for twice in ("", "2")}
    assert sink.scalars[1] == dict.fromkeys({"x", *asked} - of_names, 1.0)


def test_what_stopped_coming_is_known_after_a_resume(tmp_path: Path) -> None:
    """The count goes on where the state was saved."""
    config = profile(
        {"kl": "step", "x": "completion"},
        {"x": "mean", "kl": "mean"},
        alerts={"gone": {"when": "not present(kl)", "for": 3}},
    )
    state, sink = None, MemorySink()
    for steps in (range(3), range(3, 6)):
        with declog.start(config, sinks=[sink], output_dir=tmp_path, resume=state) as log:
            for step in steps:
                with log.step(step):
                    log.observe(x=[1.0], **({"kl": 0.5} if step == 0 else {}))
            state = log.state_dict()
    assert [step for step, _ in sink.alerts] == [3]


HIDING: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a tag": (
        {"hide": ["tag:private"]},
        ["x is hidden: x > 0.0", "high is hidden: high > 0.0", "more is 3: more > 0.0"],
    ),
    "a name": ({"hide": ["x"]}, ["x is hidden: x > 0.0", "high/a is 2: high > 0.0", "more is 3: more > 0.0"]),
    "a label": ({"hide": ["high/*"]}, ["x is 2: x > 0.0", "high is hidden: high > 0.0", "more is 3: more > 0.0"]),
    "shown again": ({"hide": ["tag:private"], "show": ["x", "high"]}, []),
    "all but some": ({"only": ["more"]}, []),
    "some labels": ({"hide": ["high/b"]}, []),
}


@pytest.mark.parametrize(("hiding", "texts"), HIDING.values(), ids=HIDING)
def test_a_value_that_a_profile_hides_is_not_in_its_alerts(
    hiding: dict[str, Any], texts: list[str], tmp_path: Path
) -> None:
    """The class: each way to hide a metric or a name of it; `only` chooses curves, and hides no value of an alert."""
    metrics = {
        "x": {"expr": "x", "tags": ["private"]}, "high": {"expr": "x", "by": "level", "tags": ["private"]},
        "more": {"formula": "x + 1"},
    }  # fmt: skip
    config = profile(
        {"x": "completion", "level": "completion text"}, metrics, alerts=dict.fromkeys(metrics, "> 0"),
        profiles={"public": hiding}, sinks=["jsonl"], sink_options={"jsonl": {"profile": "public"}},
    )  # fmt: skip

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(x=[2.0], level=["a"])

    sink = run(config, body, tmp_path)
    plain = ["x is 2: x > 0.0", "high/a is 2: high > 0.0", "more is 3: more > 0.0"]
    assert [alert.text for _, alert in sink.alerts] == plain  # a sink of the profile `full`
    (path,) = tmp_path.rglob("alerts.jsonl")
    assert [json.loads(line)["text"] for line in path.read_text().splitlines()] == (texts or plain)


def test_alerts_reach_every_sink_that_takes_them(tmp_path: Path) -> None:
    """Whatever the profile of the sink, and also where its turn is another log event."""
    sinks = {"lines": {"kind": "jsonl", "every": 4, "profile": "none"}, "files": {"kind": "parquet"}}
    profiles = {"none": {"hide": ["*"]}}
    alerted(
        {"high": {"when": "kl > 0.5"}}, [0.0, 1.0, 0.0], tmp_path,
        sinks=[*sinks], sink_options=sinks, profiles=profiles,
    )  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "lines" / "alerts.jsonl").read_text().splitlines()]
    assert [(line["step"], line["name"], line["level"], line["text"]) for line in lines] == [
        (1, "high", "warn", "kl is hidden: kl > 0.5")
    ]


@pytest.mark.parametrize(
    ("when", "text"),
    [
        ("member(rewards, 'b') > 1", "2.0 of kl 0.7"),
        ("max(rewards, over=member) > 1", "2.0 of kl 0.7"),
        ("kl > 0.5 and min(rewards, over=member) < 1", "0.5 of kl 0.7"),
        ("mean(rewards, over=member) > 1", "1.2 of kl 0.7"),
        ("rewards > 1", "2.0 of kl 0.7"),
        ("rewards < 1", "0.5 of kl 0.7"),
    ],
)
def test_a_text_shows_of_a_family_what_the_condition_read(when: str, text: str, tmp_path: Path) -> None:
    """One of its members, what they come to, or the member for which it holds: never the first of them by chance."""
    signals = {"kl": {"axis": "completion"}, "rewards": {"axis": "completion", "family": True}}
    alerts = {"high": {"when": when, "text": "{rewards:.1f} of kl {kl:.1f}"}}
    config = profile(signals, {"kl": "mean(kl)", "rewards": "mean(rewards)"}, alerts=alerts)
    sink = run(config, observed, tmp_path)
    assert [alert.text for _, alert in sink.alerts] == [text]


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_text_shows_the_member_that_the_condition_is_of(order: str, tmp_path: Path) -> None:
    """Whichever member came first: a condition has them in the order of their names, a metric as they came."""

    def body(log: Recorder) -> None:
        rewards = {"a": [0.5, 0.5], "b": [1.0, 3.0]}
        with log.step(0):
            log.observe(rewards={member: rewards[member] for member in order})

    signals = {"rewards": {"axis": "completion", "family": True}}
    alerts = {"high": {"when": "rewards > 1", "text": "{rewards:.1f}"}}
    sink = run(profile(signals, {"rewards": "mean(rewards)"}, alerts=alerts), body, tmp_path)
    assert [alert.text for _, alert in sink.alerts] == ["2.0"]


def observed(log: Recorder) -> None:
    """One step with two rewards."""
    with log.step(0):
        log.observe(kl=[0.7, 0.7], rewards={"a": [0.5, 0.5], "b": [1.0, 3.0]})


def test_a_text_that_cannot_be_filled_is_shown_as_it_is(tmp_path: Path) -> None:
    """A metric that is switched off does not silence an alert that only names it."""
    metrics = {"kl": "mean(kl)", "gap": {"expr": "kl", "enabled": "beta != 0"}}
    alerts = {"high": {"when": "kl > 0.5", "text": "{gap:.1f} at {kl:.1f}"}}
    sink = alerted(alerts, [1.0], tmp_path, metrics, constants={"beta": {"value": 0}})
    assert [alert.text for _, alert in sink.alerts] == ["{gap:.1f} at {kl:.1f}"]


def test_a_text_shows_metrics_that_no_profile_shows(tmp_path: Path) -> None:
    """What a text names is computed for it; braces of its own are doubled."""
    metrics = {"kl": "mean(kl)", "length": {"reduce": ["max"]}}
    alerts = {"high": {"when": "kl > 0.5", "text": "{{KL}} {kl:.1f} after {length.max:.0f}"}}
    sink = alerted(
        alerts, [0.6], tmp_path, metrics, profiles={"slim": {"only": ["kl"]}}, profile="slim"
    )  # fmt: skip
    assert sink.alerts == [(0, Alert("high", "warn", "{KL} 0.6 after 1"))]
    assert sink.scalars == {0: {"kl": 0.6}}


@pytest.mark.parametrize(
    ("alert", "text"),
    [
        ({"when": "kl > 0.5"}, "kl is 0.7: kl > 0.5"),
        ({"when": "kl > 0.5", "text": "{kl} of {length.max}"}, "0.7 of 1"),
        ({"when": "length.max < 1"}, "length.max is 0: length.max < 1"),
        ({"when": "length.max - length.mean < 1 and kl > 0.5"},
         "length.max is 1, length.mean is 0.5, kl is 0.7: length.max - length.mean < 1 and kl > 0.5"),
        ({"when": "not isfinite(kl) or kl > 0.5"}, "kl is 0.7: not isfinite(kl) or kl > 0.5"),
        ({"when": "nan_count(kl) < 1"}, "high: nan_count(kl) < 1"),
        ({"when": "member(rewards, 'fo{o}') > 1"}, "high: member(rewards, 'fo{o}') > 1"),
        ({"when": "max(rewards, over=member) > 1"}, "high: max(rewards, over=member) > 1"),
        ({"when": "rewards > 1"}, "rewards is 2: rewards > 1"),
    ],
)  # fmt: skip
def test_the_text_of_an_alert_without_one_says_the_values(alert: dict[str, Any], text: str, tmp_path: Path) -> None:
    """Each metric that the condition reads, as it is where the condition holds; what has no single value has none."""
    config = profile(
        {
            "kl": {"axis": "step"},
            "length": {"axis": "completion", "type": "int"},
            "rewards": {"axis": "completion", "family": True},
        },
        {
            "kl": "mean(kl)",
            "length": {"reduce": ["mean", "max"]},
            "rewards": {"reduce": "mean", "name": "rewards/{member}"},
        },
        alerts={"high": alert},
    )

    def body(log: Recorder) -> None:
        with log.step(0):
            low = alert["when"] == "length.max < 1"
            log.observe(kl=0.7, length=[0, 0 if low else 1], rewards={"a": [0.0, 1.0], "fo{o}": [2.0, 2.0]})

    assert run(config, body, tmp_path).alerts == [(0, Alert("high", "warn", text))]


@pytest.mark.parametrize(
    ("text", "code", "fix"),
    [
        ("KL {klx:.3f}", "DL302", "did you mean `kl`?"),
        ("{length.min}", "DL302", "did you mean `length.mean`?"),
        ("{length.p95}", "DL302", "did you mean `length.max`?"),
        ("{beta}", "DL302", "one of the metrics: kl, length.max, length.mean"),
        ("{kl:.3q}", "DL404", "{kl:.3f}"),
        ("{kl", "DL404", "a brace of the text itself is {{ or }}"),
    ],
)
def test_a_text_that_cannot_be_filled_is_refused(text: str, code: str, fix: str, tmp_path: Path) -> None:
    """Before step 0, not when the alert fires."""
    alerts = {"high": {"when": "kl > 0.5", "text": text}}
    with pytest.raises(ConfigError) as raised:
        alerted(alerts, [0.6], tmp_path, constants={"beta": {"value": 1}})
    assert [(one.code, one.path, one.fix) for one in raised.value.problems] == [(code, ("alerts", "high", "text"), fix)]


@pytest.mark.parametrize(
    ("reduce", "fired", "reason"),
    [
        (["mean", "max"], [Alert("high", "warn", "KL 0.60, 0.600")], None),
        ([{"middle": "mean"}, {"top": "max"}], [Alert("high", "warn", "KL 0.60, 0.600")], None),
        ("max", [Alert("high", "warn", "KL 0.60, 0.600")], None),
        (["min", "max"], [], "`kl` has several reductions, and none of them is the mean"),
        (None, [], "the metric `kl` was deleted"),
    ],
)
def test_an_alert_takes_the_metric_as_it_was_changed(
    reduce: Any, fired: list[Alert], reason: str | None, tmp_path: Path
) -> None:
    """Its metric's id is the mean of several reductions; without one it is inactive, which is said and is no error."""
    metrics = {"kl": None if reduce is None else {"reduce": reduce}, "length": {"reduce": "max"}}
    alerts = {"high": {"when": "kl > 0.5", "text": "KL {kl:.2f}, {kl:.3f}"}}
    sink = alerted(alerts, [0.6], tmp_path, metrics)
    assert [alert for _, alert in sink.alerts] == fired
    plan = declog.plan(profile({"kl": {"axis": "step"}, "length": {"axis": "completion"}}, metrics, alerts=alerts))
    assert dict(plan.inactive).get("alerts.high") == reason


@pytest.mark.parametrize("metric", ["lenght", "length.p95", "kl.max"])
def test_what_an_alert_names_wrongly_is_refused(metric: str) -> None:
    """A metric or a reduction that nobody declares is a mistake, not one that was deleted."""
    config = profile(
        {"kl": {"axis": "step"}, "length": {"axis": "completion"}},
        {"length": {"reduce": ["mean", "max"]}, "kl": {}},
        alerts={"high": {"when": f"{metric} > 0.5"}},
    )
    with pytest.raises(ConfigError) as raised:
        declog.plan(config)
    assert [(one.code, one.path) for one in raised.value.problems] == [("DL302", ("alerts", "high", "when"))]


@pytest.mark.parametrize("alert", [{"kl": {"above": 0.5}}, {"high": {"when": "kl > 0.5"}}])
def test_an_alert_without_its_metric_is_off_and_listed(alert: dict[str, Any]) -> None:
    """Class: absent is never silent. A metric that was deleted takes its alerts with it, and they are listed."""
    config = profile(
        {"kl": {"axis": "step"}, "length": {"axis": "completion"}},
        {"kl": None, "length": {"reduce": "mean"}},
        alerts=alert,
    )
    (name,) = alert
    assert dict(declog.plan(config).inactive) == {f"alerts.{name}": "the metric `kl` was deleted"}


def test_an_alert_over_several_reductions_without_a_mean_says_that_it_is_off() -> None:
    """Class: absent is never silent. Which of them is meant is for whoever wrote it to say, and `check` asks."""
    config = profile(
        {"kl": {"axis": "step"}}, {"kl": {"reduce": ["min", "max"]}}, alerts={"kl": {"above": 0.5, "text": "{kl.max}"}}
    )
    assert declog.plan(config).warnings == (
        "alerts.kl: off, as `kl` has several reductions and no mean: say kl.min or kl.max",
    )


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("kl_runaway", 'name it by its metric, or: {name}: {when: "kl > 0.5"}'),
        ("k1", 'name it by its metric, or: {name}: {when: "kl > 0.5"}'),
        ("high", 'name it by its metric, or: {name}: {when: "kl > 0.5"}'),
    ],
)
def test_bounds_under_a_name_that_is_no_metric_are_refused(name: str, fix: str) -> None:
    """Bounds are of the metric that the alert is named by: the message says what to write, for the metric it means."""
    with pytest.raises(ConfigError) as raised:
        declog.plan(profile({"kl": {"axis": "step"}}, {"kl": {}}, alerts={name: {"above": 0.5}}))
    assert [(one.code, one.path, one.fix) for one in raised.value.problems] == [
        ("DL302", ("alerts", name), fix.replace("{name}", name))
    ]


@pytest.mark.parametrize(
    ("keys", "fix"),
    [
        ({"metric": "kl", "above": 0.5}, 'high: {when: "kl > 0.5"}'),
        ({"metric": "kl", "above": 0.5, "below": 0.1}, 'high: {when: "kl > 0.5 or kl < 0.1"}'),
        ({"metric": "high", "above": 0.5}, "drop it: an alert is about the metric of its name"),
        ({"when": "kl > 0.5", "patience": 3}, "did you mean `for`?"),
    ],
)
def test_a_key_that_alerts_have_not_is_answered_with_the_edit(keys: dict[str, Any], fix: str) -> None:
    """Class: a word that says what another key says is refused with what to write."""
    with pytest.raises(ConfigError) as raised:
        declog.plan(profile({"kl": {"axis": "step"}}, {"kl": {}}, alerts={"high": keys}))
    first, *others = raised.value.problems
    assert (first.code, first.fix) == ("DL201", fix)
    assert [one.code for one in others] == (["DL302"] if fix.startswith("drop it") else [])  # no metric is called so


@pytest.mark.parametrize(("above", "below", "room"), [(1, 2, False), (1, 1, False), (2, 1, True)])
def test_both_bounds_leave_room(above: float, below: float, room: bool) -> None:
    """Bounds that always fire are refused, with the two that were meant."""
    config = profile({"kl": {"axis": "step"}}, {"kl": {}}, alerts={"kl": {"above": above, "below": below}})
    if room:
        assert str(declog.plan(config).alerts[0].when) == "(kl > 2) or (kl < 1)"
        return
    with pytest.raises(ConfigError) as raised:
        declog.plan(config)
    assert [one.fix for one in raised.value.problems] == [
        f"for values outside of both: `below: {above}, above: {below}`"
    ]


@pytest.mark.parametrize("function", ["members", "nan_count"])
def test_what_is_asked_of_a_deleted_metric_is_refused(function: str) -> None:
    """The cause is that it was deleted, not that the function is unknown."""
    config = profile({"r": {"axis": "completion"}}, {"kl": None, "r": {"when": f"{function}(kl) > 0"}})
    with pytest.raises(ConfigError) as raised:
        declog.plan(config)
    assert [one.message for one in raised.value.problems] == ["the metric `kl` was deleted, and is used here"]


@pytest.mark.parametrize("preset", ["grpo", "rloo", "trl_grpo", "trl_rloo"])
def test_a_preset_alert_goes_with_its_metric(preset: str) -> None:
    """Deleted, switched off, of several reductions, of another one: never an error of what the user did not write."""
    base = declog.config_of(declog.compose(preset))
    whole = {alert.id: read(alert.when) for alert in declog.plan(base).alerts}
    named = {key.partition(".")[0] for keys in whole.values() for key in keys}
    assert len(whole) >= 6 and "reward" in named

    def left(change: Callable[[str, dict[str, Any]], Any]) -> tuple[set[str], set[str]]:
        changed = {name: change(name, base["metrics"][name]) for name in named}
        made = declog.plan({**base, "metrics": {**base["metrics"], **changed}})
        off = {key.removeprefix("alerts.") for key, _ in made.inactive if key.startswith("alerts.")}
        return {alert.id for alert in made.alerts}, off & set(whole)

    def several(name: str, entry: dict[str, Any]) -> dict[str, Any]:
        return entry if "formula" in entry else {**entry, "name": f"{name}/{{reduce}}", "reduce": ["std", "mean"]}

    assert left(lambda name, entry: None) == (set(), set(whole))
    assert left(lambda name, entry: {**entry, "enabled": False}) == (set(), set(whole))
    assert left(several) == (set(whole), set())
    assert left(lambda name, entry: entry if "formula" in entry else {**entry, "reduce": "max"}) == (set(whole), set())


def labelled(log: Recorder) -> None:
    """One step with two rewards, by one or two labels, of which some fire."""
    with log.step(0):
        log.observe(kl=[0.5, 0.9], rewards={"a": [0.5, 0.7], "b": [1.0, 3.0]}, env=["u", "v"], n=[1, 2])


@pytest.mark.parametrize(
    ("when", "named"),
    [
        ("rewards > 1", "rewards/b is 2"),
        ("member(rewards, 'b') > 1", "rewards/b is 2"),
        ("any(rewards > 1, over=member)", "rewards/b is 2"),
        ("max(rewards, over=member) > 1", "high"),
        ("by_env > 0.6", "by_env/v is 0.9"),
        ("label(by_env, 'u') < 0.6", "by_env/u is 0.5"),
        ("label(by_env, 'u') < label(by_env, 'v')", "by_env/u is 0.5, by_env/v is 0.9"),
        ("both > 0.6", "v=2 is 0.9"),
        ("label(both, 'v/2') > 0.6", "v=2 is 0.9"),
        ("one > 0", "one/u is 0.5"),
        ("formula > 1", "formula/v is 1.8"),
        ("each > 2", "each/b of v is 3"),
        ("member(each, 'b') > 2", "each/b of v is 3"),
        ("label(each, 'v') > 2", "each/b of v is 3"),
        ("member(label(each, 'v'), 'b') > 2", "each/b of v is 3"),
        ("by_env > 0.6 and kl > 0", "by_env/v is 0.9, kl is 0.7"),
        ("by_env > kl", "by_env/v is 0.9, kl is 0.7"),
        ("kl > 0.6", "kl is 0.7"),
    ],
)
def test_an_alert_names_the_value_that_fired(when: str, named: str, tmp_path: Path) -> None:
    """Class: families, labels, both at once, one of either, also where only one came: named as trackers show it."""
    rows = {"axis": "completion"}
    signals = {"kl": rows, "rewards": {**rows, "family": True}, "env": {**rows, "type": "text"},
               "n": {**rows, "type": "int"}}  # fmt: skip
    metrics = {
        "kl": "mean(kl)", "rewards": "mean(rewards)", "by_env": {"expr": "kl", "by": "env"},
        "both": {"expr": "kl", "by": ["env", "n"], "name": "{env}={n}"},
        "one": {"expr": "kl", "by": "env", "where": "n == 1", "log": False}, "formula": {"formula": "by_env * 2"},
        "each": {"expr": "rewards", "by": "env", "name": "each/{member} of {label}"},
    }  # fmt: skip
    sink = run(profile(signals, metrics, alerts={"high": {"when": when}}), labelled, tmp_path / "default")
    assert [alert.text for _, alert in sink.alerts] == [f"{named}: {when}"]
    names = set(sink.scalars[0]) | {"one/u", "high"}
    assert {part.partition(" is ")[0] for part in named.split(", ")} <= names


def test_a_text_of_ones_own_can_name_the_value(tmp_path: Path) -> None:
    """`{by_env:name}`, and one label of it by an expression; the one that the condition reads without."""
    rows = {"axis": "completion"}
    signals = {"kl": rows, "rewards": {**rows, "family": True}, "env": {**rows, "type": "text"},
               "n": {**rows, "type": "int"}}  # fmt: skip
    alerts = {
        "all": {"when": "by_env > 0.6", "text": "{by_env:name} at {by_env:.2f}, not {label(by_env, 'u'):.1f}"},
        "one": {"when": "label(by_env, 'u') > 0.4", "text": "{by_env:name} at {by_env:.2f}"},
        "none": {"when": "kl > 0.6", "text": "{label(by_env, 'z'):name}: {label(by_env, 'z'):.1f}"},
    }
    config = profile(signals, {"by_env": {"expr": "kl", "by": "env"}, "kl": "mean(kl)"}, alerts=alerts)
    sink = run(config, labelled, tmp_path)
    assert [alert.text for _, alert in sink.alerts] == [
        "by_env/v at 0.90, not 0.5",
        "by_env/u at 0.50",
        "by_env/z: absent",
    ]


def test_a_text_of_several_values_is_refused() -> None:
    """A metric of which the condition reads two labels, or members, has no one value; the fix names both."""
    rows = {"axis": "completion"}
    signals = {"kl": rows, "env": {**rows, "type": "text"}}
    when = "label(by_env, 'u') < label(by_env, 'v')"
    config = profile(signals, {"by_env": {"expr": "kl", "by": "env"}})
    with pytest.raises(ConfigError) as raised:
        declog.plan({**config, "alerts": {"a": {"when": when, "text": "{by_env:.1f}"}}})
    first, second = str(raised.value.problems[0].fix).removeprefix("write ").split(" or ")
    assert first == "{label(by_env, 'u'):.1f}"
    declog.plan({**config, "alerts": {"a": {"when": when, "text": f"{first} {second}"}}})
