"""What random profiles found, by hand: families and batches without anything, totals, last batches, filters."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.testing import FakeComm, MemorySink, run_ranks
from tests.language.runs import record, values

ROWS: dict[str, Any] = {"axis": "completion"}
FAMILY: dict[str, Any] = {"axis": "completion", "family": True}
Steps = list[list[dict[str, Any]]]


def logged(metric: dict[str, Any], steps: Steps, **signals: Any) -> dict[int, dict[str, float]]:
    """A metric `m` of some steps, by step; the signals are of any phase."""
    return record({"signals": {"any": signals}, "metrics": {"m": metric}}, steps).scalars


@pytest.mark.parametrize("name", ["first", "last", "max", "mean", "count"])
def test_a_family_in_a_batch_without_rows(name: str) -> None:
    """Nothing counts, and nothing fails."""
    steps: Steps = [[{"f": {"a": [], "b": []}}], [{"f": {"a": [3.0], "b": [3.0]}}]]
    expected = {1: {"m": 2.0 if name == "count" else 3.0}}
    assert logged({"expr": f"{name}(f, over=member)"}, steps, f=FAMILY) == expected


@pytest.mark.parametrize("early", [[], [1.0]])
def test_a_member_that_only_rows_of_an_earlier_step_had(early: list[float]) -> None:
    """Where a later phase looks up a family's rows, members that none of these rows have are no members."""
    signals = {"rollout": {"f": FAMILY}, "update": {"x": ROWS}}
    steps: Steps = [
        [{"f": {"a": early, "gone": early}}, {"x": early}],
        [{"f": {"a": [1.0, 2.0]}}, {"x": [3.0, 4.0]}],
    ]
    found = record({"signals": signals, "metrics": {"m": {"expr": "f * x", "reduce": "count"}}}, steps).scalars
    assert found[1] == {"m/a": 2}


@pytest.mark.parametrize("nan", ["skip", "propagate"])
@pytest.mark.parametrize("absent", [{"axis": "step"}, ROWS, {"axis": "token", "mask": "all"}])
def test_a_token_whose_side_of_an_if_is_absent_does_not_count(absent: dict[str, Any], nan: str) -> None:
    """Whatever the axis of what is absent: such a token is not missing, and neither breaks a value nor is counted."""
    signals = {
        "w": {"axis": "token", "mask": "all"}, "u": {"axis": "token", "mask": "all"}, "o": absent,
    }  # fmt: skip
    gone = float("nan")
    steps: Steps = [[{"w": [[1.0, gone], [gone, 1.0]], "u": [[3.0, 4.0], [5.0, 6.0]]}], [{"w": [[1.0]], "u": [[3.0]]}]]
    metric = {"expr": "o if present(w) else u", "reduce": ["max", "count"], "nan": nan}
    assert logged(metric, steps, **signals) == {0: {"m/max": 5.0, "m/count": 2}}


def test_a_column_of_a_family_with_something_absent() -> None:
    """Each member is null in each row."""
    profile = {
        "signals": {"any": {"f": FAMILY, "o": ROWS}},
        "schemas": {"s": {"c": {"type": "float", "expr": "f - o", "name": "c/{member}"}}},
        "tables": {"t": {"schema": "s"}},
    }
    ((_, table),) = record(profile, [[{"f": {"a": [1.0, 2.0], "b": [3.0, 4.0]}}]]).tables("t")
    assert table.data == {"c/a": [None, None], "c/b": [None, None]}


def test_what_does_not_count_adds_nothing_to_a_total() -> None:
    """Neither what `empty` says, which is for a total of nothing, nor a window of nothing but missing values."""
    steps: Steps = [[{"x": []}], [{"x": [2.0]}], [{"x": []}], [{"x": [float("nan")]}], [{"x": [1.0]}]]
    metric = {"expr": "x", "reduce": "sum", "over": "run", "empty": -1}
    found = {step: shown["m"] for step, shown in logged(metric, steps, x=ROWS).items()}
    assert found == {0: -1.0, 1: 2.0, 2: 2.0, 3: 2.0, 4: 3.0}


@pytest.mark.parametrize(
    ("reduce", "where"), [("histogram", {}), *product(["std", "var"], [{}, {"by": "t"}, {"over": "batch"}])]
)
def test_one_value_beside_missing_ones_is_not_broken(reduce: str, where: dict[str, str]) -> None:
    """Of one value a deviation is absent: NaN is for nothing but missing values."""
    profile = {
        "signals": {"any": {"x": ROWS, "t": {**ROWS, "type": "text"}}},
        "metrics": {"m": {"expr": "x", "reduce": reduce, **where}},
    }
    assert values(profile, [[{"x": [1.0, None, None], "t": ["a", "a", "a"]}]]) == {}


def test_the_last_batch_of_a_group_that_began_before() -> None:
    """Only rows of the last batch are shown; what is computed of their groups is of the whole groups."""
    profile = {
        "axes": {"group": {"size": 2, "split": "batches"}},
        "signals": {"any": {"x": ROWS}},
        "schemas": {"s": {"x": {"type": "float"}, "sum": {"type": "float", "expr": "sum(x, over=completion)"}}},
        "filters": {"top": {"key": "sum(x, over=completion)", "top": 2}},
        "tables": {
            "all": {"schema": "s", "keep": "last_batch"},
            "top": {"schema": "s", "keep": "last_batch", "filter": "top"},
        },
    }
    sink = record(profile, [[{"x": [1.0, 2.0, 4.0]}, {"x": [8.0, 16.0, 32.0]}]])
    assert [table.data for _, table in sink.tables("all")] == [{"x": [8.0, 16.0, 32.0], "sum": [12.0, 48.0, 48.0]}]
    assert [table.data for _, table in sink.tables("top")] == [{"x": [16.0, 32.0], "sum": [48.0, 48.0]}]


@pytest.mark.parametrize("kind", [{"random": 3}, {"fraction": 0.5}])
def test_rows_of_steps_are_picked_by_step_batch_and_rank(kind: dict[str, Any], tmp_path: Path) -> None:
    """The same ones whatever else is in the window: each rank sends those that rank 0 picks."""

    def picked(every: int) -> list[float]:
        profile = {
            "every": every,
            "signals": {"any": {"s": {"axis": "step"}, "t": {**ROWS, "type": "text"}}},
            "filters": {"some": {**kind, "within": "step"}},
            "schemas": {"r": {"s": {"type": "float"}}},
            "tables": {"t": {"rows": "step", "schema": "r", "filter": "some"}},
        }

        def rank(comm: FakeComm) -> MemorySink:
            sink = MemorySink()
            with declog.start(profile, sinks=[sink], comm=comm, output_dir=tmp_path / str(every)) as log:
                for step in range(6):
                    with log.step(step):
                        for batch in range(3):
                            log.observe(s=100.0 * step + 10.0 * batch + comm.rank)
            return sink

        return [value for _, table in run_ranks(2, rank)[0].tables("t") for value in table.data["s"]]

    assert picked(1) == picked(2) == picked(6) != []


@pytest.mark.parametrize(
    ("side", "tokens", "expected"),
    [
        ("o > 2 or any(present(u), over=token)", [1.0], {"m": 1}),
        ("o > 2 or any(present(u), over=token)", [float("nan")], {}),
        ("o > 2 and all(present(u), over=token)", [float("nan")], {"m": 1}),
        ("o > 2 and all(present(u), over=token)", [], {}),
        ("o > 2 and (present(o) or x > 0)", [1.0], {}),
        ("1 if o > 2 and not (present(x) and x > 0) else 1", [1.0], {}),
    ],
)
def test_a_side_that_asks_present_decides_alone_by_what_is_not_missing(
    side: str, tokens: list[float], expected: dict[str, float]
) -> None:
    """Also where it asks for each token; of a missing value, or of no tokens, it is neither true nor false."""
    signals = {"x": ROWS, "o": ROWS, "u": {"axis": "token", "mask": "all"}}
    metrics = {"m": {"expr": side, "reduce": "count"}, "all": {"expr": "x", "reduce": "count", "log": False}}
    assert values({"signals": {"any": signals}, "metrics": metrics}, [[{"x": [None], "u": [tokens]}]]) == expected


def test_an_empty_label_in_a_formula() -> None:
    """It is a label like others: one of the two metrics has no rows of it."""
    metrics = {
        "a": {"expr": "x", "reduce": "count", "by": "t", "where": "x > 1", "log": False},
        "b": {"expr": "x", "reduce": "count", "by": "t", "log": False},
        "m": {"formula": "minimum(a, b)"},
    }
    profile = {"signals": {"any": {"x": ROWS, "t": {**ROWS, "type": "text"}}}, "metrics": metrics}
    assert values(profile, [[{"x": [1.0, 2.0], "t": ["", "a"]}]]) == {"m/a": 1}


@pytest.mark.parametrize("reduce", ["count", "sum", "max"])
def test_empty_goes_on_over_steps_without_the_rows_of_its_phase(reduce: str) -> None:
    """Members of which no row has counted yet are that again."""
    signals = {"rollout": {"f": FAMILY}, "update": {"x": ROWS}}
    steps: Steps = [[{"f": {"a": [], "b": []}}, {"x": []}], [{"x": [1.0]}]]
    metrics = {
        "m": {"expr": "f", "reduce": reduce, "over": "run", "empty": -1},
        "x": {"expr": "x", "reduce": "count"},
    }
    nothing = {"m/a": -1, "m/b": -1}
    expected = {0: nothing, 1: {"x": 1, **nothing}}
    assert record({"signals": signals, "metrics": metrics}, steps).scalars == expected


@pytest.mark.parametrize("others", [{}, {"u": "mean(u)"}])
@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("present(uo)", {}),
        ("sum(present(uo), over=token)", {}),
        ("not (present(uo) and uo > 0)", {}),
        ("present(uo) or u > 2", {"m": 0.5}),
        ("sum(present(uo) or u > 2, over=token)", {"m": 1.0}),
    ],
)
def test_tokens_of_mask_all_are_those_of_what_an_expression_reads(
    metric: str, expected: dict[str, float], others: dict[str, str]
) -> None:
    """Whatever else a profile has metrics of: where nothing of it came, nobody knows which tokens there are."""
    signals = {"x": ROWS, "u": {"axis": "token"}, "uo": {"axis": "token"}}
    metrics = {"m": f"mean({metric})", "x": "mean(x)", **others}
    profile = {"axes": {"token": {"mask": "all"}}, "signals": {"any": signals}, "metrics": metrics}
    found = values(profile, [[{"x": [1.0], "u": [[1.0, 3.0]]}]])
    assert {name: value for name, value in found.items() if name == "m"} == expected


def test_no_tokens_of_a_value_are_no_tokens_of_a_mask() -> None:
    """Their sum is missing, where a length would be 0."""
    signals = {"lens": {**ROWS, "type": "int"}, "k": {"axis": "token", "type": "bool"}}
    metrics = {"m": "max(sum(k, over=token))"}
    profile = {"axes": {"token": {"lengths": "lens"}}, "signals": {"any": signals}, "metrics": metrics}
    assert values(profile, [[{"lens": [0, 1], "k": [[], [False]]}]]) == {"m": 0}
    shown = values(profile, [[{"lens": [0], "k": [[]]}]])
    assert (str(shown["m"]), shown["nonfinite/m"]) == ("nan", 1)


@pytest.mark.parametrize("place", ["left", "right"])
def test_members_are_not_those_of_what_one_value_is_made_of(place: str) -> None:
    """A family and one value of another family's members."""
    expr = "f + sum(h, over=member)" if place == "left" else "sum(h, over=member) + f"
    signals = {"f": FAMILY, "h": {"axis": "step", "family": True}}
    steps: Steps = [[{"f": {"a": [1.0]}, "h": {"a": 1.0, "b": 2.0}}]]
    assert logged({"expr": expr}, steps, **signals) == {0: {"m/a": 4.0}}


@pytest.mark.parametrize("read", [{}, {"early": "mean(v + x)"}])
def test_a_value_of_a_step_that_names_a_phase_is_not_of_another(read: dict[str, str]) -> None:
    """Observed with the rollout, it is no batch of the update, also where only the update needs it."""
    signals = {"rollout": {"x": ROWS, "v": "step"}, "update": {"y": ROWS, "v": "step"}}
    metrics = {"m": "sum(v * y)", "n": {"expr": "y", "reduce": "count"}, "x": "mean(x)", **read}
    steps: Steps = [[{"x": [1.0], "v": 5.0}, {"y": [1.0, 2.0], "v": 2.0}]]
    found = record({"signals": signals, "metrics": metrics}, steps).scalars[0]
    assert found == {"m": 6.0, "n": 2, "x": 1.0, **({"early": 6.0} if read else {})}


def test_a_member_counts_in_the_windows_in_which_it_comes() -> None:
    """An average of counts begins with it, and does not fall where it is not."""
    steps: Steps = [[{"f": {"a": [1.0]}}], [{"f": {"a": [1.0], "b": [1.0]}}], [{"f": {"a": [1.0]}}]]
    found = logged({"expr": "f", "reduce": "count", "combine": "ema(0.5)"}, steps, f=FAMILY)
    assert found == {0: {"m/a": 1.0}, 1: {"m/a": 1.0, "m/b": 1.0}, 2: {"m/a": 1.0, "m/b": 1.0}}


MISSING = float("nan")


@pytest.mark.parametrize(
    ("by", "label"),
    [
        ("w > 1", "true"),
        (["w > 1", "w > 1"], "true/true"),
        (["w > 1", "t"], "true/b"),
        (["i", "w <= 1"], f"{2**60 + 1}/true"),
    ],
)
@pytest.mark.parametrize("axis", ["completion", "step"])
@pytest.mark.parametrize("every", [1, 2])
def test_a_comparison_that_cannot_be_made_is_no_label_in_a_later_phase(
    by: str | list[str], label: str, axis: str, every: int
) -> None:
    """A value of an earlier phase is there what it is in its own: undecided, or an int with all its bits."""
    low = by[0] == "i"  # the one that can be compared, beside the number that is there
    early: list[dict[str, Any]] = [
        {"w": 0.0 if low else MISSING, "i": 2**60 + 1, "t": "a"},
        {"w": MISSING if low else 2.0, "i": None, "t": "b"},
    ]
    signals = {"rollout": {"w": axis, "i": f"{axis} int", "t": f"{axis} text"}, "update": {"x": ROWS}}
    steps: Steps = [[one, {"x": [1.0], "row": [0]}] for one in early]
    if axis == "completion":
        columns = {name: [one[name] for one in early] for name in early[0]}
        steps = [[{**columns, "row": [7, 8]}, {"x": [1.0, 1.0], "row": [8, 7]}]] * 2
    profile = {
        "every": every, "axes": {"completion": {"ids": "row"}},
        "signals": {**signals, "any": {"row": {**ROWS, "type": "int"}}},
        "metrics": {"m": {"expr": "x", "reduce": "count", "by": by}},
    }  # fmt: skip
    counts = [shown for shown in record(profile, steps).scalars.values() if shown]
    assert {name for shown in counts for name in shown} == {f"m/{label}"}
    assert sum(shown[f"m/{label}"] for shown in counts) == len(steps) - (axis == "step")


def test_a_signal_of_two_phases_is_undecided_where_its_comparison_is_made() -> None:
    """It is missing with the rollout: what the update has of it decides nothing there."""
    signals = {"rollout": {"b": "completion bool", "v": ROWS}, "update": {"x": ROWS, "v": ROWS}}
    steps: Steps = [[{"b": [True, False], "v": [MISSING, 2.0]}, {"x": [1.0, 2.0], "v": [2.0, MISSING]}]]
    metrics = {"m": {"expr": "x", "by": "(v == 2) and not b"}, "n": {"expr": "x", "by": "v == 2"}}
    assert record({"signals": signals, "metrics": metrics}, steps).scalars[0] == {"m/true": 2.0, "n/true": 1.0}
