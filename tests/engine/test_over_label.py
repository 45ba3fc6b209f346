"""`over=label`: formulas, conditions and alerts that reduce the values of a metric with `by` over its labels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import declog
from declog.errors import ConfigError
from declog.testing import FakeComm, MemorySink, run_ranks
from tests.engine.test_one_label import BATCH, ROWS, TEXT, config, observed
from tests.running import logged, profile, run

REDUCTIONS: dict[str, Callable[[Any], float]] = {
    "mean": np.mean, "sum": np.sum, "min": np.min, "max": np.max, "count": len, "pstd": np.std,
    "std": lambda values: np.std(values, ddof=1), "var": lambda values: np.var(values, ddof=1),
    "any": np.any, "all": np.all,
}  # fmt: skip
WAYS: list[dict[str, Any]] = [
    {"by": "env"}, {"by": "n"}, {"by": "b"}, {"by": "tags"}, {"by": ["env", "n"]}, {"by": "bucket(x, 2)"},
    {"by": "n", "max_labels": 1}, {"by": "n", "where": "x < 4"}, {"by": "n", "log": False}, {"by": "n", "over": "step"},
    {"by": "n", "reduce": "sum", "over": "run"}, {"by": "n", "combine": "ema(0.5)"}, {"expr": "f", "by": "n"},
]  # fmt: skip


def values_of(metric: dict[str, Any], folder: Path) -> dict[str, float]:
    """The values of `w` by the names that trackers show."""
    found = logged(config({**metric, "log": True}), [BATCH], folder)
    return {name.removeprefix("w/"): value for name, value in found.items() if name.startswith("w/")}


@pytest.mark.parametrize("metric", WAYS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_of_all_labels(name: str, metric: dict[str, Any], tmp_path: Path) -> None:
    """Class: reductions, of labels of each type, joined, pooled, smooth, over the run: numpy's of what is shown.

    A formula has one value, a condition and an alert hold where it is true. A family has a value per member.
    """
    family, truth = metric.get("expr") == "f", name in ("any", "all")
    expression = f"{name}(w > 2.5, over=label)" if truth else f"{name}(w, over=label)"
    test = expression if truth else f"{expression} > 1.5"
    metrics = {
        "d": {"formula": expression},
        "e": {"formula": "d", "when": f"any({test}, over=member)" if family else test},
    }
    sink = run(config(metric, metrics=metrics, alerts={"a": {"when": test}}), observed, tmp_path / "run")
    shown = values_of(metric, tmp_path / "shown")
    expected = {}
    for member in ("p", "q") if family else ("",):
        values = np.array([value for label, value in shown.items() if label.startswith(member)])
        expected[f"d/{member}".rstrip("/")] = float(REDUCTIONS[name](values > 2.5 if truth else values))
    assert len(shown) > 1
    holds = any(value > (0.5 if truth else 1.5) for value in expected.values())
    expected |= {f"e{key[1:]}": value for key, value in expected.items() if holds}
    found = {key: value for key, value in sink.scalars[0].items() if key[0] in "de"}
    assert found == pytest.approx(expected)
    assert [alert.name for _, alert in sink.alerts] == ["a"] * holds


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("w - min(w, over=label)", {"d/1": 0.0, "d/2": 0.0, "d/3": 4.0}),  # u: 2, v: 2
        ("max(w - label(w, '1'), over=label)", {"d": 4.0}),
        ("max(w, over=label) - min(o, over=label)", {"d": 4.0}),  # of different `by`
        ("w - max(o, over=label)", {"d/1": 0.0, "d/2": 0.0, "d/3": 4.0}),
        ("max(w - min(w, over=label), over=label)", {"d": 4.0}),
        ("sum(w * x, over=label)", {"d": 30.0}),
        ("max(doubled, over=label)", {"d": 12.0}),  # of a formula with labels
        ("mean(w, over=label) - mean(pooled, over=label)", {"d": 10 / 3 - 3.0}),  # each with its own rest
        ("max(max(g, over=label), over=member)", {"d": 9.0}),
        ("max(max(g, over=member), over=label)", {"d": 9.0}),
        ("member(max(g, over=label), 'p')", {"d": 8.0}),
        ("min(none, over=label)", {}),
        ("count(none, over=label)", {}),
        ("std(label(w, '1') + w * 0, over=label)", {"d": 0.0}),
    ],
)
def test_what_is_reduced_has_no_labels_beside_those_of_the_rest(
    formula: str, expected: dict[str, float], tmp_path: Path
) -> None:
    """Class: reductions beside values by label, of other labels, inside each other, of families and of nothing."""
    metrics = {
        "o": {"expr": "x", "by": "env"}, "x": "mean(x)", "doubled": {"formula": "w * 2"}, "g": {"expr": "f", "by": "n"},
        "pooled": {"expr": "x", "by": "n", "max_labels": 1}, "none": {"expr": "x", "by": "env", "where": "x > 99"},
    }  # fmt: skip
    for empty in ({}, {"empty": -1}):
        made = config({"by": "n"}, metrics={**metrics, "d": {"formula": formula, **empty}})
        found = logged(made, [BATCH], tmp_path / str(len(empty)))
        shown = {name: value for name, value in found.items() if name.split("/")[0] == "d"}
        assert shown == pytest.approx(expected or dict.fromkeys(["d"] * len(empty), -1.0))


@pytest.mark.parametrize("nan", ["propagate", "skip"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_labels_that_are_not_finite(value: float, nan: str, tmp_path: Path) -> None:
    """Class: a NaN is passed over, as of members; where nothing else came it is the value. An infinity stays one."""
    metrics = {"m": {"formula": "max(w, over=label)"}, "s": {"formula": "std(w, over=label)"}}
    made = config({"by": "env", "nan": nan}, metrics=metrics)
    came = bool(np.isinf(value)) or nan == "propagate"  # else a label of missing values alone is none
    both = logged(made, [{"x": [value, 2.0, 4.0], "env": ["u", "v", "v"]}], tmp_path / "both")
    assert both["m"] == (3.0 if np.isnan(value) else value)
    assert ("s" in both) is came and np.isnan(both.get("s", np.nan))
    one = logged(made, [{"x": [value], "env": ["u"]}], tmp_path / "one")
    assert one["m"] == value or np.isnan(one["m"] - value)


@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("pool", ["window", "step", "batch", "rank", "rank_batch", "run", "run_step"])
def test_over_ranks_and_pieces_and_in_a_run_that_goes_on(pool: str, limit: int | None, tmp_path: Path) -> None:
    """Class: state of two ranks that see different labels, whole and folded windows, and a checkpoint between.

    A formula of pieces is one of each piece, combined, as over members; so a family's values say what is right.
    """
    over = {"over": pool}
    metrics = {
        "w": {"expr": "x", "by": "env", **over}, "f": {"expr": "f", **over},
        "low": {"formula": "min(w, over=label)"}, "low_f": {"formula": "min(f, over=member)"},
        "many": {"formula": "count(w > 0.5, over=label)"}, "many_f": {"formula": "count(f > 0.5, over=member)"},
        "far": {"formula": "max(w - mean(w, over=label), over=label)"},
        "far_f": {"formula": "max(f - mean(f, over=member), over=member)"},
        "smooth": {"formula": "low", "combine": "ema(0.5)"} if pool not in ("rank", "rank_batch") else "mean(x)",
    }  # fmt: skip
    alerts = {"a": {"when": "min(w, over=label) < 0.1", "for": 2, "text": "{min(w, over=label):.9g} of {low:.9g}"},
              "b": {"when": "any(w < 0.3, over=label)", "text": "{w:name} is {w:.9g}"}}  # fmt: skip
    bytes_of = {} if limit is None else {"window_bytes": limit}
    signals = {"x": ROWS, "env": TEXT, "f": {**ROWS, "family": True}}
    made = profile(signals, metrics, every=2, run=bytes_of, alerts=alerts)
    sinks = {name: MemorySink() for name in ("whole", "parts")}

    def part(name: str, numbers: range, states: list[Any]) -> list[Any]:
        def body(comm: FakeComm) -> Any:
            options = {"resume": states[comm.rank]} if states else {}
            sink = [] if comm.rank else [sinks[name]]
            with declog.start(made, sinks=sink, output_dir=tmp_path / name, comm=comm, **options) as log:
                for step in numbers:
                    with log.step(step):
                        draw = np.random.default_rng(100 * step + comm.rank)
                        for _ in range(2):
                            values = {env: draw.random() for env in ("a", "b", "cd"[comm.rank])}
                            missing = np.nan
                            log.observe(
                                x=[*values.values()], env=[*values],
                                f={env: [value if env == other else missing for other, value in values.items()]
                                   for env in ("a", "b", "c", "d")},
                            )  # fmt: skip
                return log.state_dict()

        return run_ranks(2, body)

    part("whole", range(8), [])
    part("parts", range(4, 8), part("parts", range(4), []))
    names = ("low", "many", "far", "smooth")
    of = {
        name: {step: {key: values[key] for key in names} for step, values in sink.scalars.items()}
        for name, sink in sinks.items()
    }
    assert of["whole"].keys() == {1, 3, 5, 7}
    for step, values in of["whole"].items():
        assert of["parts"][step] == pytest.approx(values)
        shown = sinks["whole"].scalars[step]
        assert [values[name] for name in names[:3]] == pytest.approx([shown[f"{name}_f"] for name in names[:3]])
        labels = [shown[f"w/{label}"] for label in "abcd"]
        if pool in ("window", "run", "run_step"):
            assert values["low"] == pytest.approx(min(labels))
    texts = {name: [(step, alert.name, alert.text) for step, alert in sink.alerts] for name, sink in sinks.items()}
    assert texts["whole"] == texts["parts"]
    firsts = [
        next((label for label in "abcd" if sinks["whole"].scalars[step][f"w/{label}"] < 0.3), None)
        for step in of["whole"]
    ]
    assert [text.split()[0] for _, name, text in texts["whole"] if name == "b"] == [f"w/{one}" for one in firsts if one]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{min(w, over=label):.3f} low", "2.000 low"),
        ("{w:.1f} is {w:name}", "6.0 is w/3"),
        ("{low} of {x:.0f}", "2 of 3"),
        (None, "high: max(w, over=label) > 5"),
    ],
)
def test_texts_of_alerts(text: str | None, shown: str, tmp_path: Path) -> None:
    """A reduction in a text, the label for which `any` holds, and a text of its own where none is said."""
    metrics = {"x": "mean(x)", "low": {"formula": "min(w, over=label)"}}
    when = "any(w > 5, over=label)" if text and "name" in text else "max(w, over=label) > 5"
    said = {} if text is None else {"text": text}
    sink = run(config({"by": "n"}, metrics=metrics, alerts={"high": {"when": when, **said}}), observed, tmp_path)
    assert [alert.text for _, alert in sink.alerts] == [shown]


@pytest.mark.parametrize("place", ["formula", "when", "alert"])
@pytest.mark.parametrize(
    ("written", "edit"),
    [
        ("min(w) > 1", "min(w, over=label) > 1"),
        ("max(w) - average( w ) > 1", "max(w, over=label) - mean(w, over=label) > 1"),
        ("abs(x) + std(s.max) > 1", "abs(x) + std(s.max, over=label) > 1"),
        ("w < 0.5 * mean(w)", "w < 0.5 * mean(w, over=label)"),
        ("max(d) > 1", "max(d, over=label) > 1"),
        ("min(w - 1) > 1", "min(w - 1, over=label) > 1"),
        ("max(x, over=label) > 1", "x > 1"),
        ("max(g, over=label) > 1", "max(g, over=member) > 1"),
        ("max(w, over=env) > 1", "label"),
    ],
)
def test_an_answer_names_the_labels(written: str, edit: str, place: str) -> None:
    """Class: reductions of a metric without an axis, and with one that it has not; a whole edit compiles."""
    metrics = {"s": {"expr": "x", "by": "n", "reduce": ["mean", "max"]}, "x": "mean(x)", "g": "mean(f)",
               "d": {"formula": "w * 2"}}  # fmt: skip

    def compiled(text: str) -> None:
        key = {"formula": f"1 if {text} else 0"} if place == "formula" else {"expr": "x", "when": text}
        alerts = {"a": {"when": text}} if place == "alert" else {}
        declog.plan(config({"by": "env"}, metrics={**metrics, **({} if alerts else {"z": key})}, alerts=alerts))

    with pytest.raises(ConfigError) as raised:
        compiled(written)
    problem = raised.value.problems[0]
    assert edit in str(problem.fix)
    assert problem.code == "DL306"
    if edit.endswith("1") or edit.startswith("w"):
        compiled(edit)


def test_rows_have_no_labels() -> None:
    """The answer is two metrics, which compile once the label is named."""
    with pytest.raises(ConfigError) as raised:
        declog.plan(config({}, metrics={"z": {"expr": "min(x + 1, over=label)"}}))
    fix = str(raised.value.problems[0].fix)
    assert 'by_label: {expr: x + 1, by: SIGNAL}, and its min: {formula: "min(by_label, over=label)"}' in fix
    metrics = {"by_label": {"expr": "x + 1", "by": "env"}, "z": {"formula": "min(by_label, over=label)"}}
    declog.plan(config({}, metrics=metrics))


@pytest.mark.parametrize(
    ("metric", "code"),
    [
        ({"formula": "max(w, over=label)", "name": "{id}/{label}"}, "DL404"),
        ({"formula": "max(w - o, over=label)"}, "DL310"),
        ({"expr": "x", "when": "max(w - o, over=label) > 1"}, "DL310"),
        ({"formula": "max(label(w, 'u'), over=label)"}, "DL306"),
        ({"formula": "max(max(w, over=label), over=label)"}, "DL306"),
    ],
)
def test_what_has_no_labels_is_refused(metric: dict[str, Any], code: str) -> None:
    """Class: a name with a label that is reduced, labels of two metrics at once, and what has none any more."""
    with pytest.raises(ConfigError) as raised:
        declog.plan(config({"by": "env"}, metrics={"o": {"expr": "x", "by": "n"}, "z": metric}))
    assert [problem.code for problem in raised.value.problems] == [code]
