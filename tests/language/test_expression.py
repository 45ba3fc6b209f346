"""Syntax, columns, words and limits of the expression language; whatever text comes, only declog's own errors."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import declog
from declog.errors import ConfigError, Problem
from declog.errors.pages import CODES
from declog.plans.words import explain
from tests.conftest import examples
from tests.language.runs import one_step
from tests.oracle.generator import generated

SIGNALS = {
    "x": {"axis": "completion"},
    "t": {"axis": "completion", "type": "text"},
    "k": {"axis": "token", "mask": "all"},
}


def refused(expr: Any, key: str = "where") -> Problem:
    """The one problem of a metric whose ``key`` is an expression."""
    with pytest.raises(ConfigError) as error:
        declog.plan({"signals": {"any": SIGNALS}, "metrics": {"m": {"expr": "x", key: expr}}})
    (problem,) = error.value.problems
    assert key in problem.path
    return problem


def marked(expr: str) -> tuple[str, str]:
    """The code of what is wrong with a condition, and the piece of it that is under the caret."""
    problem = refused(expr)
    assert problem.span is not None and problem.source == expr
    return problem.code, expr[slice(*problem.span)]


@pytest.mark.parametrize(
    ("expr", "code", "piece"),
    [
        ("x > nothing", "DL302", "nothing"),
        ("x > 1 and nothing < 2", "DL302", "nothing"),
        ("contains(t, 'привет мир') and nothing > 0", "DL302", "nothing"),
        ("contains(t, '🦀🦀') and abs(t) > 0", "DL305", "t"),
        ("x lt 1 or nothing gt 2", "DL302", "nothing"),
        ("  x > nothing", "DL302", "nothing"),
        ("t == 'lt' and x lt nothing", "DL302", "nothing"),
        ("x > 1 and (t > 2 or x < 3)", "DL305", "t"),
        ("foo(x) > 1", "DL303", "foo"),
        ("mean(x, over=tokens) > 1", "DL306", "tokens"),
        ("x ** 99 > 1", "DL308", "99"),
        ("x[0] > 1", "DL307", "x[0]"),
        ("x > 1 & x < 2", "DL307", "1 & x"),
        ("x > 99999999999999999999", "DL308", "99999999999999999999"),
        ("clip(x, 0, hgh=1) > 0", "DL304", "hgh=1"),
        ("x >", "DL301", ""),
        ("x $ 2", "DL301", "$"),
        ("x > 1\x00", "DL301", "\x00"),
    ],
)
def test_the_caret_stands_under_what_is_at_fault(expr: str, code: str, piece: str) -> None:
    """Columns count characters of the text as it was written."""
    assert (code, piece) == marked(expr)


@pytest.mark.parametrize(
    ("expr", "word", "fix"),
    [
        ("t == math", "math", "t == 'math'"),
        ("math != t", "math", "'math' != t"),
        ("t eq math", "math", "t eq 'math'"),
        ("x > 1 and t == gsm8k-hard", "gsm8k-hard", "t == 'gsm8k-hard'"),
        ("t == math-500 or x > 1", "math-500", "t == 'math-500'"),
        ("t == open.r1", "open.r1", "t == 'open.r1'"),
        ("t == a/b", "a/b", "t == 'a/b'"),
        ("t == mean", "mean", "t == 'mean'"),
        ("t in (math, code)", "math", "t in ('math', 'code')"),
        ("t not in [math, 'code']", "math", "t not in ['math', 'code']"),
        ("t in math", "math", "t in ['math']"),
        ("x > 0 and contains(t, answer)", "answer", "contains(t, 'answer')"),
        ("startswith(t, The)", "The", "startswith(t, 'The')"),
        ("'слово' == t and t == привет", "привет", "t == 'привет'"),
        ("t == tt", "tt", "t == 'tt'; or did you mean `t`?"),
    ],
)
def test_a_word_that_a_text_is_compared_with_wants_quotes(expr: str, word: str, fix: str) -> None:
    """Whatever compares texts, or takes one: the fix is what was written, with its words in quotes, and compiles."""
    problem = refused(expr)
    assert (problem.code, problem.fix) == ("DL302", fix)
    assert problem.span is not None and expr[slice(*problem.span)] == word
    declog.plan({"signals": {"any": SIGNALS}, "metrics": {"m": {"expr": "x", "where": fix.partition(";")[0]}}})


@pytest.mark.parametrize(
    "expr", ["x == math", "len(t) == math", "math == code", "tt == math", "k > math", "math > 1", "t < zebra"]
)
def test_a_name_that_no_text_is_compared_with_is_a_signal(expr: str) -> None:
    """Quotes would not help: it is unknown, as ever."""
    problem = refused(expr)
    assert problem.code == "DL302" and problem.message.startswith("unknown signal `")


def test_words_are_operators_outside_strings_only() -> None:
    """`lt` in a string is text, and so is half of a longer name."""
    profile = {
        "signals": {"any": {**SIGNALS, "lt_x": {"axis": "completion"}}},
        "metrics": {
            "words": "sum(x if x ge 2 and x ne 3 and not (x eq 5) and x le 4 and x gt 0 and x lt 9 else 0)",
            "strings": "sum(x if t == 'a lt b' or t == \"x gt\" else 0)",
            "names": {"expr": "lt_x lt 2", "reduce": "sum"},
        },
    }
    logged = one_step(
        profile, {"x": [1, 2, 3, 4, 5.0], "lt_x": [1, 2, 3, 4, 5.0], "t": ["a lt b", "a < b", "x gt", "x >", None]}
    )

    assert logged == {"words": 6.0, "strings": 4.0, "names": 1.0}


def test_a_text_has_no_escapes() -> None:
    """YAML had its own: a backslash is a backslash, and the other quote encloses a quote."""
    profile = {
        "signals": {"any": {"t": {"axis": "completion", "type": "text"}}},
        "metrics": {
            "boxed": r"sum(contains(t, '\boxed'))",
            "digit": r"sum(matches(t, '^\d+\s'))",
            "quote": """sum(contains(t, "it's"))""",
            "line": r"sum(contains(t, '\n'))",
        },
    }
    logged = one_step(profile, {"t": [r"\boxed{3}", "12 a", "it's", "\\n", "a\nb"]})

    assert logged == {"boxed": 1, "digit": 1, "quote": 1, "line": 1}


def test_an_expression_may_stand_on_several_lines() -> None:
    """A line break is a blank, and errors find the line."""
    problem = refused("x > 1\n  and nothing > 2\n")

    assert problem.source is not None and problem.span is not None
    assert problem.source[slice(*problem.span)] == "nothing"
    assert one_step(
        {"signals": {"any": {"x": {"axis": "completion"}}}, "metrics": {"m": "max(\n  x\n)\n"}}, {"x": [3.0]}
    ) == {"m": 3.0}


@pytest.mark.parametrize("expr", ["foo(x ge 1)", "mean(foo(x ge 1), over=completion)", "foo(x\n)", "foo(p99.9(x))"])
def test_an_answer_reads_what_the_parser_reads(expr: str) -> None:
    """The class: answers look at a text again, and words of comparison and line ends are in it there, too."""
    problem = refused(expr)
    assert problem.message == "unknown function `foo`"
    assert problem.source is not None and problem.span is not None
    assert problem.source[slice(*problem.span)] == "foo"


@pytest.mark.parametrize("expr", ["p99.9(x)", "p99_9(x)", "  p99.9 ( x ) "])
def test_a_quantile_may_have_a_fraction(expr: str) -> None:
    """`p99.9(x)` reads like the other quantiles."""
    logged = one_step({"signals": {"any": SIGNALS}, "metrics": {"m": expr}}, {"x": [0.0, 1000.0]})

    assert pytest.approx(logged) == {"m": 999.0}


@pytest.mark.parametrize(
    ("expr", "value"),
    [
        ("2 ** 3 ** 2", 512.0), ("-2 ** 2", -4.0), ("1 < 2 < 3", 1.0), ("1 < 3 < 2", 0.0), ("7 / 2", 3.5),
        ("1 if 2 > 3 else 4", 4.0), ("not 1 > 2", 1.0), ("true and not false", 1.0), ("inf > 1e308", 1.0),
        ("'a' == 'a'", 1.0), ("'a' in ('b', 'a')", 1.0), ("3 not in (1, 2)", 1.0), ("minimum(2, 3) - +1", 1.0),
        ("false and nothing > 1", 0.0), ("5 if true else nothing", 5.0), ("1e3 + .5", 1000.5), ("clip(9, 0, 2)", 2.0),
    ],
)  # fmt: skip
def test_constants_are_folded(expr: str, value: float) -> None:
    """An expression of constants is one: what it does not read need not exist."""
    profile = {"signals": {"any": {"x": {"axis": "completion"}}}, "metrics": {"m": {"expr": expr}, "x": "x"}}

    assert value == one_step(profile, {"x": [1.0]})["m"]


HOSTILE = [
    "9**9**9**9",
    "2**64**64",
    "((((" * 500,
    "(" * 100 + "x" + ")" * 100,
    "-" * 3000 + "x",
    "x" * 4001,
    "x+" * 1999 + "x",
    "x" * 1_000_000,
    "'" + "a" * 1_000_000 + "'",
    "not " * 900 + "x",
    "x if x else " * 300 + "x",
    "[" * 1000,
    "x < " * 900 + "x",
    "\x00",
    "x\x00y",
    "\ud800",
    "contains(t, '\ud800')",
    "x\u2028y",
    "\ufeffx",
    "x\\\ny",
    "lambda: x",
    "__import__('os')",
    "x.__class__",
    "(yield)",
    "await x",
    "x for x in y",
    "{**x}",
    "f'{x}'",
    "b'x'",
    "...",
    "None",
    "x := 1",
    "print(1)",
    "import os",
    "x; y",
    "1e999",
    "0x" + "f" * 900,
    "1_000",
    "9" * 3900,
    "1j",
    "# x",
    "x # y",
    "'unclosed",
    '"""',
    "mean(*x)",
    "mean(**x)",
    "mean(x, over=over)",
    "ﬁ",
    "x \xd7 2",
    "\u0445",
    "\U0001d431",
    "member(x, '\ud800')",
    "matches(t, '" + "(a" * 500 + "')",
    "matches(t, '(?P<n>a)(?P<n>b)')",
    "bucket(x, inf, -inf)",
    "bucket(x)",
    "distinct_n(t, 99999999999)",
    "clip(x, 'a', 'b')",
    "x ** -64",
    "0 ** -1",
    "1 / 0",
    "log(0 - 1)",
    "true + 1",
    "exp(10000)",
    "inf - inf",
    "x == inf",
    "'a' * 3",
    "'a' + 'b'",
    "not 'a'",
    "1 in ()",
    "x in [x]",
    "size('completion')",
    "index(member)",
    "index(label)",
    "index(step)",
    "size(member)",
    "size(label)",
    "size(step)",
]


@pytest.mark.parametrize("expr", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("key", ["expr", "where", "by", "formula"])
def test_hostile_texts_are_refused_or_compiled(expr: str, key: str) -> None:
    """Whatever the text, it compiles or raises declog's own error, at once."""
    check(with_key(key, expr))


def with_key(key: str, expr: str) -> dict[str, Any]:
    """A profile with a text in one place of a metric."""
    metric = {key: expr} if key == "formula" else {"expr": "x", key: expr}
    return {"signals": {"any": SIGNALS}, "metrics": {"other": "x", "m": metric}}


def check(profile: Any) -> None:
    """Compile, and see that what is raised is declog's and can be shown."""
    try:
        explain(declog.plan(profile))
    except ConfigError as error:
        assert error.problems and all(problem.code in CODES for problem in error.problems)
        assert len(str(error)) < 100_000


WORDS = [
    *("x", "t", "k", "mean", "over=", "token", "(", ")", ",", "+", "**", "<", "==", "and", "not", "if", "else", "in"),
    *("'a'", "1", "9e9", "lt", "completion", "column", ".", "[", "rank", "within", "=", "p95", "ece", "\\", "é"),
]


@examples(100, *HealthCheck)
@given(
    st.one_of(
        st.text(max_size=60),
        st.text(st.characters(codec=None), max_size=30),
        st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join),
        st.lists(st.sampled_from(WORDS), max_size=14).map("".join),
    ),
    st.sampled_from(["expr", "where", "reduce", "weight", "by", "formula", "name", "enabled", "alias"]),
)
def test_random_texts_are_refused_or_compiled(expr: str, key: str) -> None:
    """Texts of any characters, and of the language's own words in any order."""
    check(with_key(key, expr))


@examples(60, *HealthCheck)
@given(st.integers(0, 999), st.data())
def test_mutations_of_expressions_are_refused_or_compiled(seed: int, data: st.DataObject) -> None:
    """An expression of a random profile with some characters deleted, doubled or replaced."""
    profile = generated(seed).profile
    exprs = {name: spec["expr"] for name, spec in profile["metrics"].items() if isinstance(spec.get("expr"), str)}
    name = data.draw(st.sampled_from(sorted(exprs)))
    expr = list(exprs[name])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(expr) - 1)) if expr else 0
        expr[place : place + 1] = data.draw(
            st.sampled_from([[], expr[place : place + 1] * 2, [data.draw(st.sampled_from(string.printable))]])
        )
    check(
        {
            "axes": profile["axes"],
            "signals": profile["signals"],
            "metrics": {name: {"expr": "".join(expr)}},
        }
    )


@pytest.mark.parametrize(
    ("expr", "fix"),
    [
        ("x > 1 && x < 2", "write `x > 1 and x < 2`"),
        ("x > 1 || x < 2", "write `x > 1 or x < 2`"),
        ("!(x > 1)", "write `not (x > 1)`"),
        ("x > ", "it ends too early: a value is missing"),
        ("x > 1 if x > 2", "which values count is a key of the metric: `{expr: x > 1, where: x > 2}`"),
    ],
)  # fmt: skip
def test_the_habits_of_other_languages_have_a_fix(expr: str, fix: str) -> None:
    """What was meant is said, not only where the parser stopped."""
    assert refused(expr).fix == fix


@pytest.mark.parametrize("expr", ["p95(x) - 1", "x + p95(x)"])
def test_a_quantile_is_no_function(expr: str) -> None:
    """It reduces a metric, and stands in no expression without an axis."""
    problem = refused(expr, "expr")
    assert (problem.code, problem.message) == ("DL303", "`p95` is a reduction, not a function")
