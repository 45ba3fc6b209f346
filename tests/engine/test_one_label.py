"""`label(metric, 'name')`: one label of a metric, in formulas, in conditions and in alerts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import declog
from declog.errors import ConfigError
from declog.plans.ops import Plan
from declog.runtime.recording.recorder import Recorder
from declog.testing import FakeComm, MemorySink, run_ranks
from tests.running import logged, profile, run

ROWS, TEXT = {"axis": "completion"}, {"axis": "completion", "type": "text"}
SIGNALS: dict[str, Any] = {
    "x": ROWS, "env": TEXT, "n": {**ROWS, "type": "int"}, "b": {**ROWS, "type": "bool"},
    "tags": {**ROWS, "type": "object"}, "f": {**ROWS, "family": True},
    "t": {"axis": "token"}, "m": {"axis": "token", "type": "bool"},
}  # fmt: skip
BATCH: dict[str, Any] = {
    "x": [1.0, 2.0, 3.0, 6.0], "env": ["u", "v", "u", None], "n": [1, 2, 1, 3], "b": [True, False, True, True],
    "tags": [["a", "h"], ["b"], [], ["h"]], "f": {"p": [1.0, 2.0, 4.0, 8.0], "q": [3.0, 5.0, 7.0, 9.0]},
    "t": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]], "m": [[True, True]] * 4,
}  # fmt: skip
WAYS: list[tuple[dict[str, Any], str, float | None]] = [
    ({"by": "env"}, "label(w, 'u')", 2.0),
    ({"by": "n"}, "label(w, '1')", 2.0),
    ({"by": "n", "reduce": ["mean", "max"]}, "label(w.max, '1')", 3.0),
    ({"by": "b"}, "label(w, 'true')", 10 / 3),
    ({"by": "tags"}, "label(w, 'h')", 3.5),
    ({"by": "bucket(x, 2)"}, "label(w, '3+')", 4.5),
    ({"by": ["env", "n"]}, "label(w, 'u/1')", 2.0),
    ({"by": ["env", "n"], "name": "{n}-{env}"}, "label(w, 'u/1')", 2.0),
    ({"by": ["env", "n"]}, "label(w, 'u')", None),
    ({"by": "n", "max_labels": 1}, "label(w, '_other')", 4.0),
    ({"by": "n", "max_labels": 1}, "label(w, '3')", None),
    ({"by": "env", "log": False}, "label(w, 'v')", 2.0),
    ({"by": "env", "over": "batch"}, "label(w, 'u')", 2.0),
    ({"by": "env"}, "label(w, 'elsewhere')", None),
    ({"by": "env", "where": "x > 9"}, "label(w, 'u')", None),
    ({"expr": "f", "by": "env"}, "member(label(w, 'u'), 'p')", 2.5),
    ({"expr": "f", "by": "env"}, "sum(label(w, 'u'), over=member)", 7.5),
    ({"expr": "t", "by": "bucket(index(token), 0)"}, "label(w, '0-0')", 4.0),
    ({"expr": "t", "by": ["env", "bucket(index(token), 0)"]}, "label(label(w, '0-0'), 'u')", 3.0),
]


def config(metric: dict[str, Any], **sections: Any) -> dict[str, Any]:
    metrics = {"w": {"expr": "x", **metric}, **sections.pop("metrics", {})}
    return profile(SIGNALS, metrics, axes={"token": {"mask": "m"}}, **sections)


@pytest.mark.parametrize(("metric", "expression", "value"), WAYS)
def test_one_label_of_any_metric(metric: dict[str, Any], expression: str, value: float | None, tmp_path: Path) -> None:
    """Class: labels of each type, joined, pooled, of families and tokens: in a formula and two conditions.

    A label that did not come is absent: no value, and no condition holds, negated or not.
    """
    over = {"over": metric["over"]} if "over" in metric else {}
    metrics = {
        "one": {"formula": expression},
        "shown": {"expr": "x", "reduce": "sum", "when": f"{expression} > 0", **over},
        "not_shown": {"expr": "x", "reduce": "max", "when": f"not {expression} > 0", **over},
    }
    alerts = {"high": {"when": f"{expression} > 0"}, "low": {"when": f"not {expression} > 0"}}
    sink = run(config(metric, metrics=metrics, alerts=alerts), observed, tmp_path)
    scalars = {name: number for name, number in sink.scalars.get(0, {}).items() if name in metrics}
    assert scalars == pytest.approx({} if value is None else {"one": value, "shown": 12.0})
    assert [alert.name for _, alert in sink.alerts] == ([] if value is None else ["high"])


def observed(log: Recorder) -> None:
    """One step."""
    with log.step(0):
        log.observe(**BATCH)


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("label(w, 'u') - label(o, '2')", {"d": 0.0}),  # labels of different `by`
        ("w - label(w, 'u')", {"d/u": 0.0, "d/v": 0.0}),
        ("w - label(o, '1')", {"d/u": 0.0, "d/v": 0.0}),  # the labels of `o` are none of the formula
        ("label(d2, 'v') * 10", {"d": 20.0}),  # of a formula with labels
        ("label(w, 'u') + x", {"d": 5.0}),
    ],
)
def test_a_formula_has_the_labels_that_it_reads_as_a_whole(
    formula: str, expected: dict[str, float], tmp_path: Path
) -> None:
    """Class: metrics of which one label is read beside those with all of theirs; also with `empty`."""
    metrics = {"o": {"expr": "x", "by": "n"}, "x": "mean(x)", "d2": {"formula": "w * 1"}}
    for empty in ({}, {"empty": -1}):
        made = config({"by": "env"}, metrics={**metrics, "d": {"formula": formula, **empty}})
        found = logged(made, [BATCH], tmp_path / str(len(empty)))
        assert {name: value for name, value in found.items() if name.split("/")[0] == "d"} == expected


def test_a_label_that_did_not_come_is_empty(tmp_path: Path) -> None:
    """`empty` stands for it once its metric came."""
    metrics = {"one": {"formula": "label(w, 'z')", "empty": 0}, "never": {"formula": "label(v, 'z')", "empty": 0},
               "v": {"expr": "f", "by": "env"}}  # fmt: skip
    found = logged(config({"by": "env"}, metrics=metrics), [{key: BATCH[key] for key in ("x", "env")}], tmp_path)
    assert {name: value for name, value in found.items() if name in metrics} == {"one": 0.0}


def test_one_label_over_ranks_and_in_a_run_that_goes_on(tmp_path: Path) -> None:
    """Class: state of two ranks. A label over the run, its average, and an alert that waits, as in one piece."""
    metrics = {"total": {"formula": "label(w, 'u')"}, "smooth": {"formula": "label(v, 'u')", "combine": "ema(0.5)"},
               "v": {"expr": "x", "by": "env"}}  # fmt: skip
    alerts = {"high": {"when": "label(v, 'u') > 2", "for": 3}}
    made = config({"by": "env", "reduce": "sum", "over": "run"}, metrics=metrics, alerts=alerts)
    sinks = {name: MemorySink() for name in ("whole", "parts")}

    def steps(log: Recorder, rank: int, numbers: range) -> None:
        for step in numbers:
            with log.step(step):
                envs = ["u", "v"] if rank == step % 2 else ["v", "w"]  # `u` comes of one rank each time
                log.observe(x=[3.0 + step, 1.0 + rank], env=envs)

    def part(name: str, numbers: range, states: list[Any]) -> list[Any]:
        def body(comm: FakeComm) -> Any:
            options = {"resume": states[comm.rank]} if states else {}
            sink = [] if comm.rank else [sinks[name]]
            with declog.start(made, sinks=sink, output_dir=tmp_path / name, comm=comm, **options) as log:
                steps(log, comm.rank, numbers)
                return log.state_dict()

        return run_ranks(2, body)

    part("whole", range(4), [])
    part("parts", range(2, 4), part("parts", range(2), []))
    named = {
        name: [[sink.scalars[step].get(key) for key in ("total", "smooth")] for step in range(4)]
        for name, sink in sinks.items()
    }
    assert named["whole"] == named["parts"] == [[3.0, 3.0], [7.0, 3.5], [12.0, 4.25], [18.0, 5.125]]
    assert [step for step, _ in sinks["whole"].alerts] == [step for step, _ in sinks["parts"].alerts] == [2]


def plan(**sections: Any) -> Plan:
    return declog.plan(config({"by": "env"}, **sections))


@pytest.mark.parametrize(
    ("written", "edit"),
    [
        ("w.u < 1", "label(w, 'u') < 1"),
        ("w['u'] < 1", "label(w, 'u') < 1"),
        ("w/u < 1", "label(w, 'u') < 1"),
        ("w/u-hard < 1", "label(w, 'u-hard') < 1"),
        ("w/a/u < 1", "label(w, 'a/u') < 1"),
        ("i.1 < 1", "label(i, '1') < 1"),
        ("i[1] < 1", "label(i, '1') < 1"),
        ("i/1 < 1 and x > 2", "label(i, '1') < 1 and x > 2"),
        ("i/1 - i/5 < 1", "label(i, '1') - label(i, '5') < 1"),
        ("d/u/1 < 1", "label(d, 'u/1') < 1"),
        ("d.u.1 < 1", "label(d, 'u/1') < 1"),
        ("l/0-32 < 1", "label(l, '0-32') < 1"),
        ("l/33+ < 1", "label(l, '33+') < 1"),
        ("s/max/1 < 1", "label(s.max, '1') < 1"),
        ("s.max['1'] < 1", "label(s.max, '1') < 1"),
        ("k/0-0 < 1", "label(k, '0-0') < 1"),
        ("shown/1 < 1", "label(i, '1') < 1"),
        ("x/u < 1 or u/2 < 1", None),
    ],
)
@pytest.mark.parametrize("place", ["alerts", "when", "formula"])
def test_the_edit_of_a_label_in_other_words_compiles(written: str, edit: str | None, place: str) -> None:
    """Class: the ways in which somebody names a label, at each place; the answer has the whole text with `label`."""
    metrics = {
        "i": {"expr": "x", "by": "n", "alias": ["shown/{label}"]}, "d": {"expr": "x", "by": ["env", "n"]},
        "l": {"expr": "x", "by": "bucket(n, 32)"}, "s": {"expr": "x", "by": "n", "reduce": ["mean", "max"]},
        "k": {"expr": "t", "by": "bucket(index(token), 0)"}, "x": "mean(x)",
    }  # fmt: skip

    def compiled(text: str) -> Plan:
        if place == "alerts":
            return plan(metrics=metrics, alerts={"a": {"when": text}})
        key = {"formula": f"1 if {text} else 0"} if place == "formula" else {"expr": "x", "when": text}
        return plan(metrics={**metrics, "z": key})

    with pytest.raises(ConfigError) as raised:
        compiled(written)
    fix = str(raised.value.problems[0].fix)
    assert ("label(" in fix) is (edit is not None)
    if edit is not None:
        assert edit in fix
        compiled(edit)


@pytest.mark.parametrize("text", ["i / 1 < 2", "i/2 < 2", "i/x < 2", "w/2 < 3", "2/i < 3", "i/four < 3", "x/1 < 3"])
def test_a_quotient_stays_one(text: str) -> None:
    """Class: divisions of a metric with labels; where the number may be a label there is a note."""
    metrics = {"i": {"expr": "x", "by": "n"}, "x": "mean(x)"}
    made = plan(metrics=metrics, alerts={"a": {"when": text}}, constants={"four": 4})
    assert any("label(i, '2')" in note for note in made.warnings) is (text == "i/2 < 2")


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("label(x, 'u') < 1", "`x` alone"),
        ("label(g, 'p') < 1", "member(g, 'p')"),
        ("member(w, 'u') < 1", "write label(w, 'u')"),
        ("label(i, 1) < 1", "label(i, '1')"),
        ("label(w, u) < 1", "label(w, 'u')"),
        ("label(i, true) < 1", "label(i, 'true')"),
        ("member(label(w, 'u'), 'p') < 1", "write `label(w, 'u')` alone"),
    ],
)
def test_what_has_no_such_label_is_refused(text: str, fix: str) -> None:
    """A metric without `by`, a family, and a label that is no text."""
    metrics = {"i": {"expr": "x", "by": "n"}, "x": "mean(x)", "g": "mean(f)"}
    with pytest.raises(ConfigError) as raised:
        plan(metrics=metrics, alerts={"a": {"when": text}})
    assert fix in str(raised.value.problems[0].fix)


def test_rows_have_no_label_of_a_metric() -> None:
    """`label` of a signal."""
    with pytest.raises(ConfigError, match="where: SIGNAL == 'u'"):
        plan(metrics={"z": {"expr": "label(x, 'u')"}})


@pytest.mark.parametrize(
    ("key", "edit"),
    [
        ("w/u", {"w_u": {"when": "label(w, 'u') < 0.5"}}),
        ("w.u", {"w_u": {"when": "label(w, 'u') < 0.5"}}),
        ("d/u/1", {"d_u_1": {"when": "label(d, 'u/1') < 0.5"}}),
        ("s/max/1", {"s_max_1": {"when": "label(s.max, '1') < 0.5"}}),
        ("acc/1/of/u", {"acc_1_of_u": {"when": "label(acc, 'u/1') < 0.5"}}),
    ],
)
def test_an_alert_by_a_labels_name_has_a_condition(key: str, edit: dict[str, Any]) -> None:
    """Class: names of labels, as trackers show them or with a dot, as an alert's key."""
    metrics = {
        "d": {"expr": "x", "by": ["env", "n"]}, "s": {"expr": "x", "by": "n", "reduce": ["mean", "max"]},
        "acc": {"expr": "x", "by": ["env", "n"], "name": "acc/{n}/of/{env}"},
    }  # fmt: skip
    with pytest.raises(ConfigError) as raised:
        plan(metrics=metrics, alerts={key: {"below": 0.5}})
    ((name, entry),) = edit.items()
    assert f'{name}: {{when: "{entry["when"]}"}}' in str(raised.value.problems[0].fix)
    plan(metrics=metrics, alerts=edit)


def test_a_label_that_its_metric_has_not_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Class: labels that nobody sees: whoever waits for one is named, at the first log event that has others."""
    metrics = {"f": {"formula": "label(w, 'z') + label(w, 'u')"}, "d": {"expr": "x", "by": ["env", "n"]}}
    alerts = {"a": {"when": "label(w, 'z') < 1"}, "b": {"when": "label(d, 'u/9') < 1"},
              "c": {"when": "label(w, '_other') < 1"}}  # fmt: skip

    def body(log: Recorder) -> None:
        for step in range(3):
            with log.step(step):
                log.observe(**({"x": BATCH["x"]} if step == 0 else BATCH))

    run(config({"by": "env"}, metrics=metrics, alerts=alerts), body, tmp_path)
    assert [record.getMessage() for record in caplog.records if "label `" in record.getMessage()] == [
        "w has no label `z` yet, which is read by the alert `a` and the metric `f`: it has u, v",
        "d has no label `u/9` yet, which is read by the alert `b`: it has u/1, v/2",
    ]


@pytest.mark.parametrize(
    "text",
    ["s.avg > 1", "s.avg-s.top > 1", "s.avg / s.top > 1", "s.top/2 > 1", "s.avg-x > 1", "m > 1 and s.top/s.avg < 3"],
)
@pytest.mark.parametrize("by", [{"by": "n"}, {}])
def test_the_key_of_a_reduction_is_no_label(text: str, by: dict[str, Any]) -> None:
    """Class: keys of several reductions with suffixes of one's own; also where each rank is a label."""
    several = {"expr": "x", **by, "reduce": [{"avg": "mean"}, {"top": "max"}]}
    axes = {"token": {"mask": "m"}, **({} if by else {"rank": "each"})}
    metrics = {"s": several, "x": "mean(x)", "m": {"expr": "x", **by}}
    declog.plan(profile(SIGNALS, metrics, alerts={"a": {"when": text}}, axes=axes))


@pytest.mark.parametrize("text", ["w/mean < 1", "w.mean < 1", "w.mean-x < 1"])
def test_a_reduction_is_no_label(text: str) -> None:
    """What names the reduction of a metric is not taken for a label of it."""
    with pytest.raises(ConfigError) as raised:
        plan(metrics={"x": "mean(x)"}, alerts={"a": {"when": text}})
    assert "label(" not in str(raised.value.problems[0].fix)
