"""Absence: what is computed of an optional signal that did not come is absent too, unless it asks `present`.

A value must not depend on how a window is cut. So a window of a batch without the signal and one with it has the value
of the second alone, whatever is computed, and a window of the first alone has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import declog
from declog.language.functions import BUILTIN, Functions
from declog.language.functions.user import function
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink, run_ranks
from tests.running import logged, profile, rows, run

ROWS = {"axis": "completion"}
SIGNALS: dict[str, Any] = {
    "reward": ROWS, "m": {"axis": "token", "type": "bool"},
    "s": ROWS, "n": {**ROWS, "type": "int"},
    "b": {**ROWS, "type": "bool"}, "text": {**ROWS, "type": "text"},
    "t": {"axis": "token"}, "lr": {"axis": "step"},
    "f": {**ROWS, "family": True}, "g": {"axis": "group"},
}  # fmt: skip
HERE = {"reward": [1.0, 2.0, 3.0, 5.0], "m": torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1]], dtype=torch.bool)}
LATE = {
    "s": [0.2, 0.9, 0.6, 0.7], "n": [1, 2, 3, 1], "b": [True, False, True, True], "text": ["a b", "a", "b", "a b c"],
    "t": torch.tensor([[0.1, 0.9], [0.7, 0.0], [0.2, 0.3], [0.8, 0.9]]), "lr": 0.1,
    "f": {"x": [0.1, 0.6, 0.7, 0.8], "y": [0.9, 0.2, 0.1, 0.6]}, "g": [0.3, 0.8],
}  # fmt: skip
CONFIG = {"axes": {"group": {"size": 2}, "token": {"mask": "m"}}}
OWN = Functions(BUILTIN)
function(lambda x: x / (1 + abs(x)), name="squash", registry=OWN)
function(lambda x, y: x > y, name="above", returns="bool", registry=OWN)

DERIVED = [
    # comparisons and logic
    "s > 0.5", "s <= 0.5", "not s > 0.5", "s == 0.9", "s != 0.9", "s in (0.9, 0.6)", "s not in (0.9, 0.6)", "not b",
    "b and reward > 1", "b or reward > 1", "reward > 1 and s > 0.5", "not (reward > 2 or b)", "0.1 < s < 0.8",
    # choices
    "1 if s > 0.5 else 0", "s if reward > 2 else 7", "reward if b else 0", "1 if isnan(s) else 0", "isfinite(s)",
    # functions, a user's too
    "abs(s)", "isclose(s, 0.9)", "clip(n, 1, 2)", "squash(s)", "above(s, reward)", "squash(lr)", "lr > 0.05",
    # axes
    "any(s > 0.5, over=completion)", "all(s > 0.5, over=completion)", "count(s, over=completion)",
    "sum(1 if b else 0, over=completion)", "first(s, over=completion) > 0.5", "rank(s, within=group)",
    "max(sum(n, over=completion), over=group)", "pass_at(b, 1)", "s > mean(s, over=completion)", "g > 0.5",
    "sum(f, over=member) > 0.7", "any(f > 0.5, over=member)", "member(f, 'x') > 0.5",
    # tokens, folded where they are
    "t > 0.5", "not t > 0.5", "t > 0.5 and m", "1 if t > 0.5 else 0", "m or t > 0.5", "reward > 1 or t > 0.5",
    "squash(t)", "mean(t > 0.5, over=token)", "any(t > 0.5, over=token)", "all(t > 0.5, over=token)",
    "count(t, over=token)", "not any(t > 0.5, over=token)", "first(t, over=token) > 0.5", "s > 0.5 and m",
    # texts
    "len(text)", "words(text) > 1", "contains(text, 'a')", "not startswith(text, 'a')", "text == 'a'", "text != 'a'",
    "text in ('a', 'b')", "not matches(text, 'b$')", "distinct_n(text, 1)", "distinct_n(text, 1, over=completion) > 0",
    "jaccard(text, over=completion)", "majority(text) == 'a'", "majority(text) != 'a'", "bucket(s, 0.5) == '0-0.5'",
    "prev(lr, 0) + reward",
]  # fmt: skip


def values(expr: str, batches: Sequence[Mapping[str, Any]], folder: Path, **metric: Any) -> dict[str, float]:
    """What a metric logs of some batches in one window."""
    config = profile(SIGNALS, {"r": "sum(reward)", "value": {"expr": expr, **metric}}, **CONFIG)

    def body(log: Recorder) -> None:
        with log.step(0):
            for batch in batches:
                log.observe(**batch)

    found = run(config, body, folder, functions=OWN).scalars[0]
    del found["r"]
    return found


@pytest.mark.parametrize("expr", DERIVED)
def test_what_is_computed_of_an_absent_signal_is_absent(expr: str, tmp_path: Path) -> None:
    """In a whole window, and in a batch beside one that has it: only there it counts."""
    reduce = ["mean", "count", "p50"]
    alone = values(expr, [{**HERE, **LATE}], tmp_path / "alone", reduce=reduce)
    assert {name.rpartition("/")[2] for name in alone} == set(reduce)
    assert values(expr, [HERE], tmp_path / "never", reduce=reduce) == {}
    both = [values(expr, order, tmp_path / str(place), reduce=reduce)
            for place, order in enumerate([[HERE, {**HERE, **LATE}], [{**HERE, **LATE}, HERE]])]  # fmt: skip
    if "prev" not in expr:  # a second batch has one before it
        assert both == [pytest.approx(alone)] * 2


@pytest.mark.parametrize("expr", ["s > 0.5", "not b", "text != 'a'", "not any(t > 0.5, over=token)", "f > 0.5", "-n"])
def test_a_rank_without_the_signal_adds_nothing(expr: str, tmp_path: Path) -> None:
    """Each rank may have its own reward functions."""
    alone = values(expr, [{**HERE, **LATE}], tmp_path / "alone")
    config = profile(SIGNALS, {"value": expr}, **CONFIG)
    for has in (0, 1):
        sink = MemorySink()

        def body(comm: Comm, has: int = has, sink: MemorySink = sink) -> None:
            sinks = [] if comm.rank else [sink]
            with declog.start(config, sinks=sinks, comm=comm, output_dir=tmp_path / str(has)) as log, log.step(0):
                log.observe(**HERE, **(LATE if comm.rank == has else {}))

        run_ranks(2, body)
        assert sink.scalars == {0: pytest.approx(alone)}


PRESENT = [
    ("present(s)", 0.5), ("not present(s)", 0.5), ("present(text)", 0.5), ("present(t)", 0.5), ("present(f)", 0.5),
    ("present(s) and s > 0.5", 3 / 8), ("not present(s) or s > 0.5", 7 / 8), ("s > 0.5 and present(s)", 3 / 8),
    ("present(t) and t > 0.5", 4 / 14), ("s if present(s) else reward", (2.4 + 11) / 8),
    ("s if step > 3 else reward", 22 / 8), ("present(s > 0.5)", 0.5),
    ("1 if present(lr) and lr > 0 else 0", 0.5), ("present(first(s, over=completion))", 0.5),
]  # fmt: skip


@pytest.mark.parametrize(("expr", "expected"), PRESENT)
def test_present_answers_for_what_is_absent(expr: str, expected: float, tmp_path: Path) -> None:
    """It is the one that does; a side of `and`, `or` and `if` that asks it decides alone."""
    found = values(expr, [HERE, {**HERE, **LATE}], tmp_path)
    assert found == pytest.approx(dict.fromkeys(found, expected)) and found


def test_a_missing_value_is_not_an_absent_signal(tmp_path: Path) -> None:
    """Where the signal came without a value in a row, a comparison is missing there, and false where it chooses."""
    signals, nan = {"s": ROWS, "n": ROWS}, float("nan")
    rest = {"expr": "n", "reduce": "sum", "where": "not s > 0.5"}
    config = profile(signals, {"high": "mean(s > 0.5)", "rest": rest})
    whole, cut = [{"s": [nan, 0.9], "n": [1.0, 2.0]}], [{"s": [nan], "n": [1.0]}, {"s": [0.9], "n": [2.0]}]
    for batches in (whole, cut):  # no cut of the rows changes that
        assert logged(config, batches, tmp_path / str(len(batches))) == {"high": 1.0, "rest": 1.0}


@pytest.mark.parametrize("clause", ["where", "by", "weight"])
def test_rows_do_not_count_by_what_is_absent(clause: str, tmp_path: Path) -> None:
    """A row of which it is not known whether, where or how much it counts does not."""
    text = {"where": "not s > 0.5", "by": "b", "weight": "n"}[clause]
    metric = {clause: text, **({"name": "value/{label}"} if clause == "by" else {})}
    alone = values("reward", [{**HERE, **LATE}], tmp_path / "alone", **metric)
    assert values("reward", [HERE, {**HERE, **LATE}], tmp_path / "both", **metric) == pytest.approx(alone)
    assert values("reward", [HERE], tmp_path / "never", **metric) == {} != alone


@pytest.mark.parametrize("nan", ["skip", "propagate", "raise"])
def test_of_what_is_absent_nothing_is_missing(nan: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither warned of, nor NaN, nor a failure."""
    found = values("s * reward", [HERE, {**HERE, **LATE}], tmp_path, nan=nan)
    assert found == {"value": pytest.approx((0.2 + 1.8 + 1.8 + 3.5) / 4)}
    assert "missing values" not in caplog.text


@pytest.mark.parametrize("axis", ["step", "completion"])
def test_a_metric_says_what_it_is_where_its_signal_never_comes(axis: str, tmp_path: Path) -> None:
    """By `empty`, whatever the signal is per, and beside metrics of signals that come; else it is absent."""
    signals = {"a": {"axis": "completion"}, "b": {"axis": axis}}
    metrics = {name: {"expr": "b", "reduce": "mean", **more} for name, more in {"zero": {"empty": 0}, "no": {}}.items()}
    found = logged(profile(signals, {"m": {"expr": "a", "reduce": "mean"}, **metrics}), [{"a": [1.0, 2.0]}], tmp_path)
    assert found == {"m": 1.5, "zero": 0.0}


def test_columns_and_filters_read_what_is_absent_as_missing(tmp_path: Path) -> None:
    """A column that is computed of it is null, and a filter takes no row by it."""
    schema = {"high": {"type": "bool", "expr": "not s > 0.5"}, "reward": {"type": "float"}}
    filters = {"low": {"where": "not s > 0.5"}, "top": {"key": "-s", "top": 9}}
    tables = {name: {"schema": "s", **filter} for name, filter in
              {"all": {}, "low": {"filter": "low"}, "top": {"filter": "top"}}.items()}  # fmt: skip
    config = profile(SIGNALS, **CONFIG, schemas={"s": schema}, filters=filters, tables=tables)

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(**HERE)
            log.observe(**{**HERE, **LATE})

    sink = run(config, body, tmp_path)
    found = {name: [(row["high"], row["reward"]) for _, table in sink.tables(name) for row in rows(table)]
             for name in tables}  # fmt: skip
    late = [(True, 1.0), (False, 2.0), (False, 3.0), (False, 5.0)]
    assert found == {"all": [(None, reward) for _, reward in late] + late, "low": [(True, 1.0)], "top": late}


def test_absence_comes_through_a_join(tmp_path: Path) -> None:
    """A value of an earlier phase that did not come there is absent in the rows of the later one."""
    row = {"row": {**ROWS, "type": "int"}}
    signals = {"rollout": {"s": ROWS, "a": ROWS}, "update": {"loss": ROWS}}
    metrics = {"low": "mean(1 if not s > 0.5 and loss > 0 else 0)", "loss": "mean(loss)"}
    config = profile(row, metrics, signals=signals, axes={"completion": {"ids": "row"}})

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(row=[0, 1], a=[0.0, 0.0])
            log.observe(row=[2, 3], a=[0.0, 0.0], s=[0.1, 0.9])
            log.observe(row=[3, 1, 2, 0], loss=[1.0, 1.0, 1.0, 1.0])

    assert run(config, body, tmp_path).scalars == {0: {"low": 0.5, "loss": 1.0}}


def test_groups_that_nothing_names_are_absent(tmp_path: Path) -> None:
    """Where the optional signal that names groups did not come, whatever reads groups."""
    signals = {"reward": ROWS, "pid": {**ROWS, "type": "int"}, "text": {**ROWS, "type": "text"}}
    metrics = {"reward": "sum(reward)", "std": "mean(std(reward, over=completion))", "size": "mean(size(completion))",
               "place": "mean(index(completion))", "jaccard": "mean(jaccard(text, over=completion))",
               "groups": "mean(size(group))", "rank": "mean(rank(reward, within=group))"}  # fmt: skip
    config = profile(signals, metrics, axes={"group": {"of": "pid"}})
    named = {"reward": [1.0, 3.0, 5.0], "text": ["a", "a", "b"], "pid": [7, 7, 8]}
    bare = {"reward": [9.0, 9.0], "text": ["c", "d"]}
    assert logged(config, [bare], tmp_path / "never") == {"reward": 18.0}
    alone = logged(config, [named], tmp_path / "alone")
    assert len(alone) == len(metrics)
    both = {**alone, "reward": 27.0, "groups": 2 * alone["groups"]}  # a row that nothing names is alone
    assert logged(config, [bare, named], tmp_path / "both") == both


# ---- metrics that are absent


METRICS = {"reward": "mean(reward)", "s": "mean(s)", "f": "mean(f)"}
OF_METRICS = ["s > 0.5", "not s > 0.5", "s * reward", "1 if s > 0.5 else 0", "reward if s > 0.5 else 0",
              "s > 0.5 or reward > 0", "reward > 0 and s > 0.5", "max(f, over=member)", "member(f, 'x') > 0",
              "any(f > 0, over=member)", "abs(s)", "squash(s)"]  # fmt: skip


@pytest.mark.parametrize("formula", OF_METRICS)
def test_what_is_computed_of_an_absent_metric_is_absent(formula: str, tmp_path: Path) -> None:
    """Formulas, and formulas of those; conditions of metrics, profiles and alerts do not hold, negated or not."""
    test = f"({formula}) > 0" if formula in ("s * reward", "abs(s)", "squash(s)") or " else " in formula else formula
    test = test if ">" in test else f"{test} > 0"
    metrics = {**METRICS, "r": {"formula": formula}, "rr": {"formula": "1 if r > 0 else 2"},
               "when": {"expr": "reward", "when": test}, "unless": {"expr": "reward", "when": f"not ({test})"},
               "seen": "mean(reward)", "hidden": "mean(reward)"}  # fmt: skip
    alerts = {"yes": {"when": test}, "no": {"when": f"not ({test})"}}
    profiles = {"p": {"only": ["*", {"select": "seen", "when": f"not ({test})"}],
                      "hide": [{"select": "hidden", "when": f"not ({test})"}]}}  # fmt: skip
    config = profile(SIGNALS, metrics, **CONFIG, alerts=alerts, profiles=profiles, profile="p")
    sink = run(config, lambda log: _once(log, HERE), tmp_path / "never", functions=OWN)
    assert (set(sink.scalars[0]), [alert.name for _, alert in sink.alerts]) == ({"reward", "hidden"}, [])
    there = run(config, lambda log: _once(log, {**HERE, **LATE}), tmp_path / "there", functions=OWN)
    assert {"r", "rr"} <= there.scalars[0].keys() and len({"when", "unless"} & there.scalars[0].keys()) == 1
    assert len(there.alerts) == 1


def _once(log: Recorder, batch: Mapping[str, Any]) -> None:
    with log.step(0):
        log.observe(**batch)


def test_present_answers_for_metrics(tmp_path: Path) -> None:
    """In formulas, `when` and alerts."""
    metrics = {
        **METRICS,
        "known": {"formula": "s if present(s) else reward"},
        "there": {"formula": "present(s)"},
        "lacks": {"expr": "reward", "when": "not present(s)"},
        "few": {"expr": "reward", "when": "members(f) < 1"},
    }
    alerts = {"gone": {"when": "not present(s)"}}
    config = profile(SIGNALS, metrics, **CONFIG, alerts=alerts)
    sink = run(config, lambda log: _once(log, HERE), tmp_path)
    assert sink.scalars == {0: {"reward": 2.75, "known": 2.75, "there": 0.0, "lacks": 2.75, "few": 2.75}}
    assert [alert.name for _, alert in sink.alerts] == ["gone"]


def test_a_condition_on_what_is_off_never_holds(tmp_path: Path) -> None:
    """Of a metric, which has no value then, nor what is computed of it; and of a selector that shows or hides."""
    config = profile(
        {"kl": ROWS, "drift": {**ROWS, "enabled": False}},
        {
            "drift": "mean(drift)", "kl": "kl", "late": {"expr": "max(kl)", "when": "drift > 1"},
            "twice": {"formula": "2 * late"}, "low": "min(kl)",
        },
        profiles={
            "slim": {
                "only": [{"select": "kl", "when": "drift > 1"}, "late", "twice", "low"],
                "hide": [{"select": "low", "when": "drift > 1"}],
            }
        },
        profile="slim",
    )  # fmt: skip
    assert logged(config, [{"kl": [1.0, 2.0]}], tmp_path) == {"low": 1.0}


@pytest.mark.parametrize("nan", ["skip", "propagate"])
def test_what_came_and_is_missing_is_not_absent_where_its_stand_in_never_came(
    nan: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A reward of the presets is `given if present(given) else` the sum of a family: NaN rewards vanished silently.

    The class: `x if present(x) else y` where `x` is missing and `y` never came, of all types and axes.
    """
    signals = {**SIGNALS, "y": ROWS, "u": {"axis": "token"}, "k": {**ROWS, "type": "int"}}
    exprs = {
        "a": "s if present(s) else y", "b": "s if present(s) else sum(f, over=member)", "c": "n if present(n) else k",
        "d": "mean(t, over=token) if present(mean(t, over=token)) else y", "e": "t if present(t) else u",
        "g": "y if not present(s) else s", "h": "u if not present(t) else t",
    }  # fmt: skip
    metrics = {id: {"expr": expr, "reduce": "mean", "nan": nan} for id, expr in exprs.items()}
    tokens = torch.tensor([[1.0, 3.0], [torch.nan] * 2, [1.0, 3.0], [1.0, 3.0]])
    values = {"s": [1.0, float("nan"), 3.0, 5.0], "n": [1, None, 3, 5], "t": tokens}
    scalars = logged(profile(signals, metrics, **CONFIG), [HERE | values | {"f": {}}], tmp_path)
    skipped = {"a": 3.0, "b": 3.0, "c": 3.0, "d": 2.0, "e": 2.0, "g": 3.0, "h": 2.0}
    shown = {id: value for id, value in scalars.items() if id in exprs}
    expected = skipped if nan == "skip" else dict.fromkeys(exprs, pytest.approx(float("nan"), nan_ok=True))
    assert shown == expected
    told = [text for text in caplog.messages if text.startswith("missing values are left out of")]
    assert len(told) == (nan == "skip") and all(f"`{id}` (" in text for text in told for id in exprs)


@pytest.mark.parametrize("expr", ["s if present(s) else y", "y if not present(s) else s"])
@pytest.mark.parametrize("ids", [True, False])
def test_presence_is_asked_where_the_value_is_read(expr: str, ids: bool, tmp_path: Path) -> None:
    """The class: a value of an earlier phase beside a signal of this one, found by ids or by position."""
    signals = {"any": {"id": "completion int"}, "rollout": {"s": "completion"}, "update": {"x": ROWS, "y": ROWS}}
    of_rows = {"completion": {"ids": "id"}} if ids else {}
    metrics = {"m": {"expr": expr, "reduce": "mean", "nan": "propagate"}, "x": "mean(x)"}
    config = profile({}, metrics, signals=signals, axes=of_rows, run={"strict": False})
    order = [2, 0, 1] if ids else [0, 1, 2]
    batches = [{"s": [1.0, float("nan"), 3.0]}, {"x": [4.0] * 3}]
    named = [{"id": [0, 1, 2]}, {"id": order}] if ids else [{}, {}]
    scalars = logged(config, [batch | name for batch, name in zip(batches, named, strict=True)], tmp_path)
    assert scalars == {"m": pytest.approx(float("nan"), nan_ok=True), "nonfinite/m": 1, "x": 4.0}
