"""Each function of the language by a hand-worked example, missing values included."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from declog.language.expression import OPERATORS
from declog.language.functions import BUILTIN
from declog.language.nodes import COMBINED, LABEL, WRITTEN
from tests.language.runs import one_step, record

NAN = math.nan
ROWS = {"axis": "completion"}
SIGNALS: dict[str, Any] = {
    "x": ROWS, "y": ROWS, "n": {**ROWS, "type": "int"}, "b": {**ROWS, "type": "bool"}, "t": {**ROWS, "type": "text"},
    "g": {"axis": "group"}, "s": {"axis": "step"}, "f": {**ROWS, "family": True},
    "m": {"axis": "token", "type": "bool"}, "u": {"axis": "token"},
}  # fmt: skip
OBSERVED: dict[str, Any] = {
    "x": [1.0, NAN, -3.0, 4.0],
    "y": [2.0, 2.0, 2.0, NAN],
    "n": [3, None, 0, -2],
    "b": [True, None, False, True],
    "t": ["a b a", None, "", "cat sat on cat sat"],
    "g": [0.5, NAN],
    "s": 10.0,
    "f": {"p": [1.0, 2.0, NAN, NAN], "q": [3.0, NAN, 5.0, NAN]},
    "m": torch.tensor([[True, True, False], [True, True, True], [False, False, False], [False, True, False]]),
    "u": torch.tensor(
        [[1.0, 3.0, 99.0], [NAN, 2.0, 4.0], [NAN, math.inf, 99.0], [99.0, 7.0, NAN]], dtype=torch.float64
    ),
}
M = None  # missing

EXAMPLES: dict[str, list[Any]] = {
    "abs": [("abs(x)", [1, M, 3, 4]), ("abs(n)", [3, M, 0, 2])],
    "exp": [("exp(x)", [math.e, M, math.exp(-3), math.exp(4)])],
    "log": [("log(x)", [0, M, M, math.log(4)])],
    "sqrt": [("sqrt(x)", [1, M, M, 2])],
    "floor": [("floor(x / 2)", [0, M, -2, 2]), ("floor(n)", [3, M, 0, -2])],
    "square": [("square(x)", [1, M, 9, 16])],
    "clip": [("clip(x, 0, y)", [1, M, 0, M])],
    "minimum": [("minimum(x, y)", [1, M, -3, M])],
    "maximum": [("maximum(x, y)", [2, M, 2, M])],
    "isnan": [("isnan(x)", [0, 1, 0, 0])],
    "isfinite": [("isfinite(x / 0)", [0, 0, 0, 0]), ("isfinite(x)", [1, 0, 1, 1])],
    "isclose": [("isclose(x, 1.000001)", [1, 0, 0, 0]), ("isclose(x, x)", [1, 0, 1, 1])],
    "present": [("present(x)", [1, 0, 1, 1]), ("present(t)", [1, 0, 1, 1]), ("present(n)", [1, 0, 1, 1])],
    "mean": [
        ("mean(x, over=completion)", [1, 1, 0.5, 0.5]),
        ("mean(u, over=token)", [2, 3, M, 7]),
        ("mean(f, over=member)", [2, 2, 5, M]),
        ("mean(g, over=group)", [0.5] * 4),
        ("mean(b, over=completion)", [1, 1, 0.5, 0.5]),
    ],
    "sum": [
        ("sum(x, over=completion)", [1, 1, 1, 1]),
        ("sum(u, over=token)", [4, 6, M, 7]),
        ("sum(f, over=member)", [4, 2, 5, M]),
    ],
    "min": [
        ("min(x, over=completion)", [1, 1, -3, -3]),
        ("min(u, over=token)", [1, 2, M, 7]),
        ("min(b, over=completion)", [1, 1, 0, 0]),
        ("min(u > 2, over=token)", [0, 0, M, 1]),
    ],
    "max": [
        ("max(x, over=completion)", [1, 1, 4, 4]),
        ("max(u, over=token)", [3, 4, M, 7]),
        ("max(b, over=completion)", [1, 1, 1, 1]),
        ("max(u > 3, over=token) + 1", [1, 2, M, 2]),
    ],
    "std": [
        ("std(x, over=completion)", [M, M, 7 / math.sqrt(2), 7 / math.sqrt(2)]),
        ("std(u, over=token)", [math.sqrt(2), math.sqrt(2), M, M]),
    ],
    "pstd": [("pstd(x, over=completion)", [0, 0, 3.5, 3.5]), ("pstd(u, over=token)", [1, 1, M, 0])],
    "var": [("var(x, over=completion)", [M, M, 24.5, 24.5]), ("var(u, over=token)", [2, 2, M, M])],
    "count": [
        ("count(x, over=completion)", [1, 1, 2, 2]),
        ("count(u, over=token)", [2, 2, 0, 1]),
        ("count(t, over=completion)", [1, 1, 2, 2]),
    ],
    "any": [("any(x > 2, over=completion)", [0, 0, 1, 1]), ("any(u > 3, over=token)", [0, 1, None, 1])],
    "all": [
        ("all(x > 0, over=completion)", [1, 1, 0, 0]),
        ("all(b, over=completion)", [1, 1, 0, 0]),
        ("all(u > 1, over=token)", [0, 1, None, 1]),
    ],
    "first": [("first(x, over=completion)", [1, 1, -3, -3]), ("first(u, over=token)", [1, 2, M, 7])],
    "last": [("last(x, over=completion)", [1, 1, 4, 4]), ("last(u, over=token)", [3, 4, M, 7])],
    "rank": [
        ("rank(x, within=group)", [1, M, 1, 2]),
        ("rank(-x, within=step)", [2, M, 3, 1]),
        ("rank(y, within=step)", [1, 2, 3, M]),
    ],
    "smaller": [
        ("smaller(x, within=group)", [0, M, 0, 1]),
        ("smaller(-x, within=step)", [1, M, 2, 0]),
        ("smaller(y, within=step)", [0, 0, 0, M]),
        ("smaller(minimum(x, 2), within=step)", [1, M, 0, 2]),
    ],
    "index": [
        ("index(completion)", [0, 1, 0, 1]),
        ("index(group)", [0, 0, 1, 1]),
        ("max(index(token), over=token)", [1, 2, M, 0]),
        ("sum(index(token) < 2, over=token)", [2, 2, M, 1]),
    ],
    "size": [("size(token)", [2, 3, 0, 1]), ("size(completion)", [2] * 4), ("size(group)", [2] * 4)],
    "member": [("member(f, 'p')", [1, 2, M, M]), ("member(f, 'none')", [M] * 4)],
    "members": [("members(f)", [2] * 4)],
    "only": [("only(f, '^p$')", {"p": [1, 2, M, M]})],
    "without": [("without(f, '^p$')", {"q": [3, M, 5, M]})],
    "pass_at": [
        ("pass_at(x > 0, 1)", [1, 1, 0.5, 0.5]),  # the second cannot be judged: it is none of the k
        ("pass_at(x > 0, 2)", [M, M, 1, 1]),  # of one completion nobody can say whether it is correct
        ("pass_at(x > 5, 2)", [M, M, 0, 0]),
        ("pass_at(b, 2)", [M, M, 1, 1]),
    ],
    "pass_all": [
        ("pass_all(x > 0, 1)", [1, 1, 0.5, 0.5]),
        ("pass_all(x > 0, 2)", [M, M, 0, 0]),
        ("pass_all(b, 2)", [M, M, 0, 0]),
    ],
    "best_at": [("best_at(x, 1)", [1, 1, 0.5, 0.5]), ("best_at(x, 2)", [M, M, 4, 4])],
    "majority_at": [
        ("majority_at(t, x > 0)", [1, 1, 0.5, 0.5]),
        ("majority_at(t, x > 0, 1)", [1, 1, 0.5, 0.5]),
        ("majority_at(n, b, 2)", [M, M, 0.5, 0.5]),
    ],
    "prev": [("prev(s, 3)", [3] * 4), ("prev(s, s)", [10] * 4)],
    "len": [("len(t)", [5, M, 0, 18])],
    "words": [("words(t)", [3, M, 0, 5])],
    "contains": [("contains(t, 'at')", [0, 0, 0, 1])],
    "startswith": [("startswith(t, 'a')", [1, 0, 0, 0])],
    "matches": [("matches(t, '^$')", [0, 0, 1, 0]), (r"matches(t, '\bsat\b')", [0, 0, 0, 1])],
    "distinct_n": [
        ("distinct_n(t, 1)", [2 / 3, M, M, 3 / 5]),
        ("distinct_n(t, 2)", [1, M, M, 3 / 4]),
        ("distinct_n(t, 1, over=completion)", [2 / 3, 2 / 3, 3 / 5, 3 / 5]),
    ],
    "distinct": [("distinct(t, over=completion)", [1, 1, 2, 2]), ("distinct(n, over=completion)", [1, 1, 2, 2])],
    "jaccard": [("jaccard(t, over=completion)", [M, M, 1, 1])],
    "majority": [("majority(t) == 'a b a'", [1, 1, 0, 0]), ("len(majority(t))", [5, 5, 0, 0])],
    "bucket": [
        ("bucket(n, 0, 2) == '0-0'", [0, 0, 1, 0]),
        ("bucket(n, 0, 2) == '<0'", [0, 0, 0, 1]),
        ("bucket(n, 0, 2) == '3+'", [1, 0, 0, 0]),
    ],
}
EXAMPLES["operators"] = [
    ("x + y", [3, M, -1, M]),
    ("x - 1", [0, M, -4, 3]),
    ("n * n", [9, M, 0, 4]),
    ("x / y", [0.5, M, -1.5, M]),
    ("x // 2", [0, M, -2, 2]),
    ("x % 2.5", [1, M, 2, 1.5]),
    ("n // n", [1, M, M, 1]),
    ("n % (x - 4)", [0, M, 0, M]),
    ("7 // n", [2, M, M, -4]),
    ("-7 % n", [2, M, M, -1]),
    ("sum(u % 2, over=token)", [2, 0, M, 1]),
    ("sum(u // (u - 3), over=token)", [-1, 2, M, 1]),
    ("x ** 2", [1, M, 9, 16]),
    ("-n", [-3, M, 0, 2]),
    ("x < 2", [1, 0, 1, 0]),
    ("x <= 1", [1, 0, 1, 0]),
    ("x > 0", [1, 0, 0, 1]),
    ("x >= 1", [1, 0, 0, 1]),
    ("x == x", [1, 0, 1, 1]),
    ("x != 1", [0, 0, 1, 1]),
    ("t == 'cat sat on cat sat'", [0, 0, 0, 1]),
    ("t != ''", [1, 0, 0, 1]),
    ("not (x > 0)", [0, 1, 1, 0]),
    ("not b", [0, 0, 1, 0]),
    ("b and x > 0", [1, 0, 0, 1]),
    ("b or x < 0", [1, 0, 1, 1]),
    ("x if b else y", [1, 2, 2, 4]),
    ("b == b", [1, 0, 1, 1]),
    ("b != (x > 0)", [0, 0, 0, 0]),
    ("s + x", [11, M, 7, 14]),
    ("g + x", [1.5, M, M, M]),
    ("f + x", {"p": [2, M, M, M], "q": [4, M, 2, M]}),
    ("x in (1, 4)", [1, 0, 0, 1]),
    ("t not in ('', 'b')", [1, 0, 0, 1]),
    ("7 / 2 + 0 * s", [3.5] * 4),
]


def shown(expr: str) -> dict[str, list[Any]]:
    """An expression's value in every row, by member where it is a family."""
    profile = {
        "axes": {"group": {"size": 2}, "token": {"mask": "m"}},
        "signals": {"any": SIGNALS},
        "schemas": {"row": {"x": {"type": "float"}, "value": {"expr": expr}}},
        "tables": {"rows": {"schema": "row"}},
    }
    ((_, table),) = record(profile, [[OBSERVED]]).tables("rows")
    return {name: list(values) for name, values in table.data.items() if name != "x"}


@pytest.mark.parametrize(
    ("expr", "expected"),
    [pytest.param(expr, expected, id=expr) for examples in EXAMPLES.values() for expr, expected in examples],
)
def test_a_function(expr: str, expected: Any) -> None:
    """Worked by hand: NaN and None are missing, what is not in the mask does not exist."""
    right = {f"value/{name}": items for name, items in expected.items()} if isinstance(expected, dict) else expected
    actual = shown(expr)

    assert (right if isinstance(right, dict) else {"value": right}) == {
        name: [item if item is None else pytest.approx(float(item)) for item in items] for name, items in actual.items()
    }


@pytest.mark.parametrize("judged", ["x > 0", "not (x <= 0)", "x > 0 and y", "x > 0 or y", "member(f > 0, 'p')", "z"])
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("drawn", ["pass_at({}, {})", "pass_all({}, {})", "majority_at(t, {}, {})"])
def test_a_completion_that_cannot_be_judged_is_none_of_the_k(drawn: str, k: int, judged: str) -> None:
    """However it is asked and whatever k is: a group has the value that it has without such completions."""
    bools = {**ROWS, "type": "bool"}
    rows: dict[str, list[Any]] = {
        "x": [1.0, NAN, -1.0, NAN, 2.0], "z": [True, None, False, None, True], "t": ["a", "b", "b", "b", "c"],
        "y": [judged != "x > 0 or y"] * 5, "id": [0] * 5,
    }  # fmt: skip
    kept = {name: [column[row] for row in (0, 2, 4)] for name, column in rows.items()}
    profile = {
        "axes": {"group": {"of": "id"}},
        "signals": {"any": {
            "x": ROWS, "y": bools, "z": bools, "t": {**ROWS, "type": "text"}, "id": {**ROWS, "type": "int"},
            "f": {**ROWS, "family": True},
        }},
        "metrics": {"m": {"expr": drawn.format(judged, k), "reduce": "mean"}, "rows": {"expr": "y", "reduce": "count"}},
    }  # fmt: skip
    expected = {"pass_at": [2 / 3, 1, 1], "pass_all": [2 / 3, 1 / 3, 0], "majority_at": [2 / 3] * 3}
    for some in (kept, rows):
        found = one_step(profile, {**some, "f": {"p": some["x"]}})
        assert found["m"] == pytest.approx(expected[drawn.split("(")[0]][k - 1])
        assert found["rows"] == len(some["x"])


@pytest.mark.parametrize("picked", ["member({}, 'p')", "only({}, 'p')", "without({}, 'q')"])
def test_a_member_of_comparisons_is_the_comparison_of_a_member(picked: str) -> None:
    """Where its value is missing it is neither true nor false: a mean leaves it out, and `where` does not take it."""
    signals = {"x": ROWS, "f": {**ROWS, "family": True}}
    observed = {"x": [1.0, 2.0, 4.0], "f": {"p": [1.0, NAN, -1.0], "q": [1.0, 1.0, 1.0]}}
    late, early = picked.format("f > 0"), f"{picked.format('f')} > 0"
    for expr in (late, early):
        assert [*one_step({"signals": {"any": signals}, "metrics": {"m": f"mean({expr})"}}, observed).values()] == [0.5]
    if not picked.startswith("member"):
        late, early = f"any({late}, over=member)", f"any({early}, over=member)"
    for where in (late, early):
        metric = {"expr": "x", "reduce": "mean", "where": where}
        assert one_step({"signals": {"any": signals}, "metrics": {"m": metric}}, observed) == {"m": 1.0}


@pytest.mark.parametrize("op", ["%", "//"])
def test_whole_divisions_are_those_of_python(op: str) -> None:
    """Class: any two numbers, ints with all their digits, in numpy and in torch; by zero there is no value."""
    ints, floats = [0, 7, -7, 3, -3, 2**62 + 1], [0.0, 5.5, -5.5, 0.25, -0.25, math.inf, -math.inf, NAN]
    function = BUILTIN.get({"%": "mod", "//": "floordiv"}[op])
    assert function is not None
    for a, b in [*product(ints, ints), *product(floats, floats), *product(ints[:5], floats)]:
        right, of_floats = ((x % b if op == "%" else x // b) if b else NAN for x in (a, float(a)))
        pairs = [(np.array([a]), np.array([b])), (np.array([a]), b), (a, np.array([b]))]
        with np.errstate(invalid="ignore"):
            of_numpy = [function.run(np, *pair)[0] for pair in pairs]
        one, other = (torch.tensor([float(item)], dtype=torch.float64) for item in (a, b))
        of_torch = [function.run(torch, *pair).item() for pair in ((one, other), (one, b), (a, other))]
        if b and isinstance(right, int):
            assert (of_numpy, {item.dtype.kind for item in of_numpy}) == ([right] * 3, {"i"})
        assert [*of_numpy, *of_torch] == pytest.approx([*[right] * 3, *[of_floats] * 3], nan_ok=True), (a, op, b)


TEXTS = {COMBINED, *WRITTEN.values()}  # functions that make texts, which tokens do not have
ARRAYS = [item.name for item in BUILTIN if item.stage == "elementwise" and item.name not in TEXTS]


@pytest.mark.parametrize("name", ARRAYS)
def test_a_constant_may_stand_anywhere(name: str) -> None:
    """Class: values of tokens beside constants, in any place of a call: torch gives what numpy gives.

    The compiler folds a call of constants alone, and a condition that is a constant.
    """
    function = BUILTIN.get(name)
    assert function is not None
    numbers, bools = [1.5, -2.0, 0.0], [True, False, True]
    for constants in product([False, True], repeat=len(function.params)):
        if all(constants) or (name == "if" and constants[0]):
            continue
        logical = [name in ("and", "or", "not") or (name == "if" and place == 0) for place in range(len(constants))]
        of_numpy = [
            (of_bools or 2.0) if constant else np.array(bools if of_bools else numbers)
            for constant, of_bools in zip(constants, logical, strict=True)
        ]
        of_torch = [torch.from_numpy(item) if isinstance(item, np.ndarray) else item for item in of_numpy]
        with np.errstate(all="ignore"):
            right = np.asarray(function.run(np, *of_numpy), float)
        came = function.run(torch, *of_torch)
        assert np.broadcast_to(np.asarray(came, float), right.shape) == pytest.approx(right, nan_ok=True), constants


def test_every_function_has_an_example() -> None:
    """A function that is added brings its example; those of `label`, which is of metrics, have a test of their own."""
    names = {entry.name for entry in BUILTIN} - {*OPERATORS, LABEL}
    assert sorted(names) == sorted({*EXAMPLES} - {"operators"})


def test_every_function_says_what_it_does() -> None:
    """The reference and `declog ls` show a line for each."""
    assert [entry.name for entry in BUILTIN if not entry.help] == []


@pytest.mark.parametrize(
    ("edges", "labels"),
    [
        ("32, 64", ["<0", "0-32", "0-32", "33-64", "65+", None]),
        ("0", ["<0", "0-0", "1+", "1+", "1+", None]),
        ("0.5, 32.5", ["<0", "0-0.5", "0.5-32.5", ">32.5", ">32.5", None]),
        ("-1, 33", ["0-33", "0-33", "0-33", "0-33", "34+", None]),
        ("1234567, 1234568", ["<0", "0-1234567", "0-1234567", "0-1234567", "1234569+", None]),
    ],
)
def test_labels_of_buckets(edges: str, labels: list[str | None]) -> None:
    """An edge belongs to the bucket below it; a missing value has no label, and what is below 0 one of its own."""
    profile = {
        "signals": {"any": {"x": ROWS}},
        "schemas": {"row": {"label": {"type": "text", "expr": f"bucket(x, {edges})"}}},
        "tables": {"rows": {"schema": "row"}},
    }
    ((_, table),) = record(profile, [[{"x": [-0.5, 0.0, 32.0, 33.0, 1e9, NAN]}]]).tables("rows")

    assert labels == list(table.data["label"])


def test_labels_of_buckets_of_ints() -> None:
    """Between two edges is what is above the one: whole numbers begin with the next."""
    profile = {
        "signals": {"any": {"x": {**ROWS, "type": "int"}}},
        "metrics": {"n": {"expr": "x", "reduce": "count", "by": "bucket(x, 0, 32, 64)"}},
    }

    assert one_step(profile, {"x": [-3, 0, 1, 32, 33, 64, 65]}) == {
        "n/<0": 1, "n/0-0": 1, "n/1-32": 2, "n/33-64": 2, "n/65+": 1,
    }  # fmt: skip


def test_whole_numbers_are_labels_and_conditions() -> None:
    """`length // 100` counts hundreds, as ints are shown; a missing or a zero divisor makes no label."""
    profile = {
        "signals": {"any": {"x": ROWS, "n": {**ROWS, "type": "int"}, "d": {**ROWS, "type": "int"}}},
        "metrics": {
            "by": {"expr": "x", "by": "n // 100"}, "cycle": {"expr": "x", "reduce": "count", "by": "n % d"},
            "odd": {"expr": "x", "where": "n % 2 == 1"}, "now": {"expr": "x", "where": "step % 4 == 0"},
            "never": {"expr": "x", "where": "step % 4 == 1"},
            "large": {"expr": "x", "reduce": "count", "by": "big // 1", "where": "n == 99"},
        },
        "derived": {"big": "n * 0 + 9007199254740993"},
    }  # fmt: skip
    assert one_step(profile, {"x": [1.0, 2.0, 3.0, 4.0], "n": [99, 100, -1, 250], "d": [2, 0, 2, 7]}) == {
        "by/-1": 3.0, "by/0": 1.0, "by/1": 2.0, "by/2": 4.0, "cycle/1": 2, "cycle/5": 1, "odd": 2.0, "now": 2.5,
        "large/9007199254740993": 1,
    }  # fmt: skip


def test_built_in_names() -> None:
    """`step`, `rank` and `inf` are there without a signal."""
    profile = {"signals": {"any": {"x": ROWS}}, "metrics": {"m": "last(step)", "r": "max(rank)", "i": "mean(x < inf)"}}

    assert one_step(profile, {"x": [1.0, 2.0]}) == {"m": 0, "r": 0, "i": 1.0}
