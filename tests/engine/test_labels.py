"""Metrics by labels: several at once, lists of tags, and formulas over them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import declog
from declog.testing import FakeComm, MemorySink, run_ranks
from tests.running import logged, profile

NAN = float("nan")
ROWS, TEXT = {"axis": "completion"}, {"axis": "completion", "type": "text"}
SIGNALS: dict[str, Any] = {
    "x": ROWS, "env": TEXT, "agent": TEXT, "n": {**ROWS, "type": "int"}, "b": {**ROWS, "type": "bool"},
    "tags": {**ROWS, "type": "object"},
}  # fmt: skip
ONE = [{"x": [1.0, 2.0, 3.0, 6.0], "env": ["u", "v", "u", None], "agent": ["p", "q", "p", "p"], "n": [1, 2, 1, 3],
        "b": [True, False, True, True], "tags": [["a", "h", "a"], ["b"], [], ["h"]]}]  # fmt: skip


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ({"by": ["env", "agent"]}, {"m/u/p": 2.0, "m/v/q": 2.0}),
        ({"by": ["env", "n", "b"], "reduce": "sum"}, {"m/u/1/true": 4.0, "m/v/2/false": 2.0}),
        ({"by": ["env", "agent"], "name": "{agent}-{env}"}, {"p-u": 2.0, "q-v": 2.0}),
        ({"by": "agent", "name": "r/{agent}/mean"}, {"r/p/mean": 10 / 3, "r/q/mean": 2.0}),
        ({"by": "tags", "reduce": "sum"}, {"m/a": 1.0, "m/b": 2.0, "m/h": 7.0}),
        ({"by": "tags", "reduce": "p50"}, {"m/a": 1.0, "m/b": 2.0, "m/h": 3.5}),
        ({"by": ["tags", "agent"], "reduce": "count"}, {"m/a/p": 1, "m/b/q": 1, "m/h/p": 2}),
        ({"by": ["env", "rank"]}, {"m/u/0": 2.0, "m/v/0": 2.0}),
        ({"by": ["env", "bucket(x, 2)"], "reduce": "max"}, {"m/u/0-2": 1.0, "m/u/3+": 3.0, "m/v/0-2": 2.0}),
        ({"by": ["agent", "tags"], "max_labels": 1, "reduce": "sum"}, {"m/p/h": 7.0, "m/_other": 3.0}),
        ({"by": ["agent", "n"], "max_labels": 1, "name": "{agent}/{n}"}, {"p/1": 2.0, "_other/_other": 4.0}),
    ],
)
def test_a_value_for_each_combination(metric: dict[str, Any], expected: dict[str, float], tmp_path: Path) -> None:
    """A row counts for each of its tags once; where any of its labels is missing, it counts for none."""
    assert logged(profile(SIGNALS, {"m": {"expr": "x", **metric}}), ONE, tmp_path) == expected


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("x > 2", {"m/false": 1, "m/true": 4}),
        ("b", {"m/false": 2, "m/true": 1}),
        ("not b", {"m/false": 1, "m/true": 2}),
        ("x > 2 and b", {"m/false": 1}),
        ("contains(t, 'a')", {"m/false": 2, "m/true": 1}),
        ("t == 'a'", {"m/false": 2, "m/true": 1}),
        ("present(x)", {"m/false": 10, "m/true": 5}),
        (["x > 2", "b"], {"m/false/true": 1}),
        (["n", "not b"], {"m/1/false": 1, "m/1/true": 2}),
        (["tags", "contains(t, 'a')"], {"m/h/true": 1, "m/h/false": 2}),
    ],
)
def test_what_compares_nothing_is_no_label(by: Any, expected: dict[str, float], tmp_path: Path) -> None:
    """A comparison of a missing value, and what is made of a missing bool or text, is neither true nor false."""
    signals = {**SIGNALS, "r": {"axis": "completion"}, "t": {"axis": "completion", "type": "text"}}
    batch = {"r": [1.0, 2.0, 4.0, 8.0], "x": [1.0, NAN, 3.0, NAN], "b": [True, False, None, None],
             "t": ["a", "b", None, None], "n": [1, 1, 1, 1], "tags": [["h"], ["h"], ["h"], []]}  # fmt: skip
    config = profile(signals, {"m": {"expr": "r", "reduce": "sum", "by": by}})
    found = logged(config, [batch], tmp_path)
    assert found == expected


@pytest.mark.parametrize("by", ["n", ["n", "b"]])
@pytest.mark.parametrize("reduce", ["sum", "p50"])
def test_an_int_is_a_label_with_every_bit(by: Any, reduce: str, tmp_path: Path) -> None:
    """Neighbours beyond 2**53 stay apart, also beside a missing one, and beside a batch without the signal."""
    great = 2**53
    signals = {**SIGNALS, "n": {**SIGNALS["n"]}}
    batches = [
        {"x": [1.0, 2.0, 4.0, 8.0], "n": [great + 1, great, None, 5], "b": [True] * 4},
        {"x": [16.0], "b": [True]},
    ]
    found = logged(profile(signals, {"m": {"expr": "x", "reduce": reduce, "by": by}}), batches, tmp_path)
    end = "" if by == "n" else "/true"
    assert found == {f"m/5{end}": 8.0, f"m/{great}{end}": 2.0, f"m/{great + 1}{end}": 1.0}


def test_labels_whose_parts_hold_a_slash_stay_apart(tmp_path: Path) -> None:
    """`a/b` and `c` are not `a` and `b/c`: two values of one name are reported, and none is their mean."""
    config = profile(SIGNALS, {"m": {"expr": "x", "by": ["env", "agent"]}}) | {"run": {"strict": False}}
    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(x=[1.0, 5.0], env=["a/b", "a"], agent=["c", "b/c"])
    assert (sink.scalars[0], len(log.failures)) == ({"m/a/b/c": 5.0}, 1)
    apart = profile(SIGNALS, {"m": {"expr": "x", "by": ["env", "agent"], "name": "m/{env} {agent}"}})
    rows = [{"x": [1.0, 5.0], "env": ["a/b", "a"], "agent": ["c", "b/c"]}]
    assert logged(apart, rows, tmp_path / "apart") == {"m/a b/c": 5.0, "m/a/b c": 1.0}


def test_tags_travel_to_rank_0_and_to_a_later_phase(tmp_path: Path) -> None:
    """Two ranks; the tags are of the generation, and the losses of the update, in another order."""
    config = profile(
        {"row": {**ROWS, "type": "int"}},
        {"m": {"expr": "loss", "by": "tags"}, "e": {"expr": "loss", "by": ["tags", "env"], "reduce": "count"}},
        signals={"rollout": {"tags": SIGNALS["tags"], "env": TEXT}, "update": {"loss": ROWS}},
        axes={"completion": {"ids": "row"}},
    )  # fmt: skip
    sink = MemorySink()

    def body(comm: FakeComm) -> None:
        with (
            declog.start(config, sinks=[] if comm.rank else [sink], output_dir=tmp_path, comm=comm) as log,
            log.step(0),
        ):
            log.observe(row=[0, 1], tags=[["a", "h"], ["b"]], env=["u", "v"])
            log.observe(row=[1, 0], loss=[2.0 + comm.rank, 4.0 + comm.rank])

    run_ranks(2, body)
    assert sink.scalars[0] == {"m/a": 4.5, "m/b": 2.5, "m/h": 4.5, "e/a/u": 2, "e/b/v": 2, "e/h/u": 2}


def test_a_share_per_label(tmp_path: Path) -> None:
    """A formula has a value for each label of its metrics; one without labels is the same for all."""
    metrics = {
        "rows": "count(x)",
        "n": {"expr": "x", "reduce": "count", "by": "agent"},
        "good": {"expr": "x", "reduce": "count", "by": "agent", "where": "x > 2"},
        "share": {"formula": "n / rows", "name": "share/{agent}"},
        "odds": {"formula": "good / n if n > 1 else 0"},
        "nowhere": {"formula": "gone / rows", "empty": 0},
        "gone": {"expr": "x", "by": "env", "where": "x > 9"},
    }
    found = logged(profile(SIGNALS, metrics), ONE, tmp_path)
    formulas = {name: value for name, value in found.items() if name.startswith(("share", "odds", "nowhere"))}
    assert formulas == {"share/p": 0.75, "share/q": 0.25, "odds/p": 2 / 3, "odds/q": 0.0}


def test_pooled_labels_of_other_rows_are_no_share(tmp_path: Path) -> None:
    """What `_other` pools in two metrics is not the same where their labels differ: it has no value then."""
    few = {"expr": "x", "reduce": "sum", "by": "tags", "max_labels": 1}
    metrics = {
        "all": few, "most": {**few, "where": "x < 3"}, "part": {"formula": "most / all"},
        "same": {**few, "reduce": "count"}, "mean": {"formula": "all / same"},
    }  # fmt: skip
    found = logged(profile(SIGNALS, metrics), ONE, tmp_path)
    assert {name: value for name, value in found.items() if name.startswith(("all", "most"))} == {
        "all/h": 7.0, "all/_other": 3.0, "most/a": 1.0, "most/_other": 3.0,
    }  # fmt: skip
    assert {name: value for name, value in found.items() if name.startswith(("part", "mean"))} == {
        "mean/h": 3.5, "mean/_other": 1.5,
    }  # fmt: skip


def test_a_label_that_is_none_is_reported(tmp_path: Path) -> None:
    """A map among the tags: the metric is not logged, the others are."""
    config = profile(SIGNALS, {"m": {"expr": "x", "by": "tags"}, "x": "mean(x)"}) | {"run": {"strict": False}}
    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(x=[1.0], tags=[{"a": 1}])
    assert (sink.scalars[0], list(log.failures)) == (
        {"x": 1.0},
        ["[DL605] the metric `m`: `by` takes a text, a number or a list of those, and a dict came: {'a': 1}\n"
         "  fix: declare a signal of the labels"],
    )  # fmt: skip


def test_an_alert_over_labels(tmp_path: Path) -> None:
    """A condition over a formula with labels holds where it holds for one of them; its text is of that one."""
    metrics = {"n": {"expr": "x", "reduce": "count", "by": ["agent", "env"]}, "rows": "count(x)",
               "share": {"formula": "n / rows"}}  # fmt: skip
    alerts = {"rare": {"when": "share < 0.3", "text": "{share:.2f}"}}
    sink = MemorySink()
    with declog.start(profile(SIGNALS, metrics, alerts=alerts), sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(**ONE[0])
    assert [alert.text for _, alert in sink.alerts] == ["0.25"]


@pytest.mark.parametrize("other", ["mean(x)", {"expr": "x / 0"}, {"expr": "x", "reduce": "std", "where": "x > 5"}])
@pytest.mark.parametrize("formula", ["m / p", "p - m", "m * 2 + p"])
def test_a_formula_of_labels_of_which_none_came_is_absent(formula: str, other: Any, tmp_path: Path) -> None:
    """Class: a metric with labels and no row beside one with a value, an infinite one or none; nothing is reported."""
    metrics = {"m": {"expr": "x", "by": "env", "where": "x > 9"}, "p": other, "f": {"formula": formula}}
    sink = MemorySink()
    with declog.start(profile(SIGNALS, metrics), output_dir=tmp_path, sinks=[sink]) as log, log.step(0):
        log.observe(**ONE[0])
    assert log.failures == {}
    assert not any(scalar.name.startswith("f") for _, records in sink.events if records for scalar in records.scalars)


def test_labels_of_numbers_are_logged_in_their_order() -> None:
    """Class: names in the order of texts, `10` before `2`: of buckets, of integers and others, and of two labels."""
    config = {
        "run": {"name": "order"},
        "signals": {"any": {"n": "completion int", "x": "completion", "t": "completion text"}},
        "metrics": {
            "n": {"by": "bucket(n, 7, 15, 100)"}, "x": {"by": "bucket(x, -1, 0.25, 10, 100)"},
            "i": {"expr": "x", "by": "n"}, "two": {"expr": "x", "by": ["t", "n"]}, "t": {"expr": "x", "by": "t"},
        },
    }  # fmt: skip
    sink = MemorySink()
    with declog.start(config, sinks=[sink]) as log, log.step(0):
        log.observe(n=[200, 8, 20, 1], x=[1000.0, -5.0, 50.0, -0.5], t=["b", "a", "b", "a"])
    names = [name for name in sink.scalars[0] if "/" in name]
    assert names == [
        "n/0-7", "n/8-15", "n/16-100", "n/101+", "x/-inf--1", "x/-1-0.25", "x/10-100", "x/>100",
        "i/1", "i/8", "i/20", "i/200", "two/a/1", "two/a/8", "two/b/20", "two/b/200", "t/a", "t/b",
    ]  # fmt: skip
