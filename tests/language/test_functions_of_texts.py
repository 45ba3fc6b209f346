"""Functions of users with a parameter that is annotated `str`: called once per row, with plain values."""

from __future__ import annotations

import functools
import math
import pickle
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import declog
from declog.errors import ConfigError, RuntimeFailure, UsageError
from declog.language.functions import BUILTIN, DEFAULT, Functions
from declog.testing import MemorySink
from tests.language.runs import problems, record

if TYPE_CHECKING:
    from collections.abc import Iterator

FUNCTIONS = Functions(BUILTIN)
THREADS: set[int] = set()


@declog.function(registry=FUNCTIONS)
def repetition(completion: str) -> float:
    """The share of words that came before."""
    THREADS.add(threading.get_ident())
    words = completion.split()
    return 1 - len(set(words)) / max(len(words), 1)


@declog.function(registry=FUNCTIONS)
def opening(completion: str, length: int) -> str:
    """The first word, and whether the row is long."""
    assert type(length) is int
    return f"{completion.split()[0]} {'long' if length > 2 else 'short'}"


@declog.function(registry=FUNCTIONS)
def is_question(completion: str) -> bool | None:
    """Whether it asks; a text of one letter may be anything."""
    return None if len(completion) < 2 else completion.endswith("?")


@declog.function(registry=FUNCTIONS)
def vowels(completion: str) -> int:
    """How many."""
    return sum(letter in "aeiou" for letter in completion)


@declog.function(registry=FUNCTIONS)
def given(completion: str | None, weight: float) -> float:
    """1 for a text, and the weight where none came."""
    return weight if completion is None else 1


SIGNALS = {
    "completion": "completion text", "reward": "completion", "length": "completion int", "good": "completion bool",
    "tau": "step",
}  # fmt: skip
METRICS: dict[str, Any] = {
    "repetition": "mean(repetition(completion))",
    "of_repetitive": {"expr": "reward", "where": "repetition(completion) > 0.4"},
    "weighted": {"expr": "reward", "weight": "repetition(completion)"},
    "by": {"expr": "reward", "by": "opening(completion, length)"},
    "both": {"expr": "reward", "reduce": "count", "by": ["opening(completion, length)", "good"]},
    "asked": {"expr": "reward", "where": "is_question(completion)"},
    "questions": "mean(is_question(completion))",
    "vowels": "max(vowels(completion))",
    "odd_vowels": {"expr": "vowels(completion) + tau", "reduce": "sum", "where": "good"},
    "long": "mean(opening(completion, length) == 'a long')",
    "worst": "mean(max(repetition(completion), over=completion))",
    "given": "sum(given(completion, tau))",
    "ratio": {"formula": "worst / repetition"},
}
CONFIG: dict[str, Any] = {
    "signals": {"any": SIGNALS},
    "axes": {"group": {"size": 2}},
    "metrics": METRICS,
    "schemas": {"s": {"rep": {"expr": "repetition(completion)"}, "opening": {"expr": "opening(completion, length)"}}},
    "tables": {
        "top": {"schema": "s", "filter": {"key": "repetition(completion)", "top": 2, "bottom": 0}},
        "kinds": {"schema": "s", "filter": {"unique": "opening(completion, length)"}},
        "asked": {"schema": "s", "filter": "is_question(completion)"},
    },
}
ROWS: list[dict[str, Any]] = [
    {"completion": ["a a a a", "b c"], "reward": [1.0, 2.0], "length": [4, 2], "good": [True, False], "tau": 0.5},
    {"completion": ["a b?", None], "reward": [4.0, 8.0], "length": [3, 0], "good": [True, True], "tau": 0.5},
]
EXPECTED = {
    "repetition": 0.25, "of_repetitive": 1.0, "weighted": 1.0, "by/a long": 2.5, "by/b short": 2.0,
    "both/a long/true": 2, "both/b short/false": 1, "asked": 4.0, "questions": 1 / 3, "vowels": 4, "odd_vowels": 6.0,
    "long": 2 / 3, "worst": 0.375, "given": 3.5, "ratio": 1.5,
}  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2])
def test_wherever_an_expression_stands(ranks: int) -> None:
    """On any number of ranks, and never on the thread that trains; missing texts are missing in all of it."""
    THREADS.clear()
    batches = [[list(ROWS)]] if ranks == 1 else [[[row]] for row in ROWS]
    sink = record(CONFIG, *batches, functions=FUNCTIONS)
    assert sink.scalars[0] == pytest.approx(EXPECTED)
    rows = {name: table.data for name in ("top", "kinds", "asked") for _, table in sink.tables(name)}
    assert rows == {
        "top": {"rep": [0.75, 0.0], "opening": ["a long", "b short"]},
        "kinds": {"rep": [0.75, 0.0], "opening": ["a long", "b short"]},
        "asked": {"rep": [0.0], "opening": ["a long"]},
    }
    assert THREADS - {threading.get_ident()}  # which is where it was tried


def test_it_runs_on_the_worker(tmp_path: Path) -> None:
    """Not where `observe` is called, also if that waits."""
    for blocking in (False, True):
        config = {**CONFIG, "run": {"blocking": blocking}}
        with declog.start(config, sinks=[MemorySink()], output_dir=tmp_path, functions=FUNCTIONS) as log:
            THREADS.clear()
            with log.step(0):
                log.observe(**ROWS[0])
        assert THREADS and threading.get_ident() not in THREADS


def test_labels_travel_and_their_texts_do_not() -> None:
    """A label is computed where its text is."""
    config = {"signals": {"any": SIGNALS}, "metrics": {"by": {"expr": "reward", "by": "opening(completion, length)"}}}
    (phase,) = [one for one in declog.plan(config, functions=FUNCTIONS).phases.values() if one.locals]
    assert phase.sent == {op.name for op in phase.locals} and len(phase.locals) == 1


def test_a_run_that_goes_on_has_the_values_of_one(tmp_path: Path) -> None:
    """Rows of an open window, with what was computed of their texts, are in the checkpoint."""
    config = {**CONFIG, "every": 2}

    def steps(log: declog.Recorder, numbers: list[int]) -> None:
        for number in numbers:
            with log.step(number):
                log.observe(**ROWS[number])

    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=tmp_path / "one", functions=FUNCTIONS) as log:
        steps(log, [0])
        state = log.state_dict()
    later = MemorySink()
    with declog.start(config, sinks=[later], output_dir=tmp_path / "other", functions=FUNCTIONS, resume=state) as log:
        steps(log, [1])
    assert later.scalars[1] == pytest.approx({**EXPECTED, "ratio": 1.5})


def test_a_plan_has_it(tmp_path: Path) -> None:
    """So a spawned process, which did not register it, calls it, and ranks compare where it comes from."""
    plan = declog.plan(CONFIG, functions=FUNCTIONS)
    copy = pickle.loads(pickle.dumps(plan))
    assert copy.fingerprint == plan.fingerprint and copy.function("vowels").run is plan.functions["vowels"].run
    assert sorted(plan.functions) == ["given", "is_question", "opening", "repetition", "vowels"]
    assert plan.canonical["functions.repetition"].startswith(f"{__name__}:repetition (")


# ---- what it may be


def one(function: Any, expr: str, observed: Any = ("a b", None), **options: Any) -> dict[str, float]:
    """The metric `m` of one step with texts; ``function`` is registered as `f`."""
    functions = Functions(BUILTIN)
    declog.function(function, name="f", registry=functions, **options)
    config = {"signals": {"any": {"t": "completion text", "x": "completion"}}, "metrics": {"m": expr}}
    sink = record(config, [[{"t": list(observed), "x": [1.0] * len(observed)}]], functions=functions)
    return sink.scalars.get(0, {})


class Counter:
    """A function with a parameter of its own."""

    def __init__(self, word: str) -> None:
        self.word = word

    def __call__(self, text: str) -> int:
        return text.count(self.word)


def of_checkers_only(text: str, other: str | None) -> Iterator[str]:
    """An annotation that only type checkers can read."""
    return len(text) + len(other or "")  # type: ignore[return-value]


def many(text: str, *, times: int) -> float:
    """A parameter that a partial gives."""
    return len(text) * times


def unsaid(text: str):  # type: ignore[no-untyped-def]
    """A result without an annotation is a float."""
    return len(text)


@pytest.mark.parametrize(
    ("function", "expr", "expected"),
    [
        (Counter("a"), "max(f(t))", 1), (functools.partial(many, times=10), "max(f(t))", 30),
        (of_checkers_only, "max(f(t, t))", 6), (unsaid, "max(f(t))", 3.0), (lambda x: x * 2, "max(f(x))", 2.0),
        (unsaid, "max(f('abcd') * x)", 4.0),
    ],
)  # fmt: skip
def test_what_is_called(function: Any, expr: str, expected: float) -> None:
    """Instances, partials, annotations of any sort, and constants as arguments."""
    assert one(function, expr) == {"m": expected}


def test_returns_says_the_type() -> None:
    """In place of an annotation, and against it."""
    assert one(lambda x: x > 0, "mean(f(x))", returns="bool") == {"m": 1.0}
    assert one(unsaid, "max(f(t))", returns="int") == {"m": 3}
    with pytest.raises(ConfigError, match=r"`f` returned int for a row, and is registered to return text"):
        one(unsaid, "max(len(f(t)))", returns="text")
    with pytest.raises(UsageError, match=r"DL314.*`returns='str'`") as error:
        declog.function(unsaid, returns="str", registry=Functions(BUILTIN))  # type: ignore[arg-type]
    assert error.value.fix == "one of float, int, bool, text"


def test_a_text_without_a_value() -> None:
    """Missing is a row of which nothing came, and one for which it returns nothing: numbers, bools and texts."""

    def number(t: str) -> float | None:
        return None if t == "none" else 2.0 * len(t)

    def label(t: str) -> str | None:
        return None if t == "none" else t

    def truth(t: str) -> bool | None:
        return None if t == "none" else t == "yes"

    texts = ["yes", "none", None, "no"]
    assert one(number, "mean(f(t))", texts) == {"m": 5.0}
    assert one(number, "count(f(t))", texts) == {"m": 2}
    assert one(label, "count(present(f(t)))", texts) == {"m": 4}
    assert one(label, "mean(present(f(t)))", texts) == {"m": 0.5}
    assert one(truth, "mean(f(t))", texts) == {"m": 0.5}
    assert one(truth, "mean(1 if f(t) else 0)", texts) == {"m": 0.25}
    assert math.isnan(one(number, "mean(f(t))", [None])["m"])


# ---- refusals


def answer(function: Any, expr: str) -> tuple[str, str, str | None]:
    """The code, message and fix of a metric of `f`."""
    functions = Functions(BUILTIN)
    declog.function(function, name="f", registry=functions)
    config = {"signals": {"any": {"t": "completion text", "x": "completion"}}, "metrics": {"m": expr}}
    with pytest.raises(ConfigError) as error:
        declog.plan(config, functions=functions)
    (problem,) = error.value.problems
    return problem.code, problem.message, problem.fix


def of_lists(texts: list[str]) -> float:
    """What a reducer is."""
    return float(len(texts))


def of_text_and_number(text: str, other: float = 0.0, *, third: int) -> int:
    """A text and numbers."""
    return len(text)


@pytest.mark.parametrize(
    ("function", "expr", "parameter", "fix"),
    [
        (lambda completion: completion, "mean(f(t))", "completion", "def f(completion: str) -> float"),
        (lambda a, b: a, "mean(f(x, t))", "b", "def f(a, b: str) -> float"),
        (of_text_and_number, "mean(f(t, third=t))", "third",
         "def f(text: str, other: float = 0.0, *, third: str) -> int"),
    ],
)  # fmt: skip
def test_a_text_where_numbers_go(function: Any, expr: str, parameter: str, fix: str) -> None:
    """The fix is the line of its `def`."""
    assert answer(function, expr) == (
        "DL305", f"`f` takes a number as `{parameter}`, and `t` is text", f"`{fix}`, which is called once per text"
    )  # fmt: skip


def test_a_text_where_a_list_of_texts_goes() -> None:
    """As TRL's rewards and reducers are written: a function is called once per text."""
    said = "`f` is called once per text, and takes a list as `texts`"
    assert answer(of_lists, "mean(f(t))") == ("DL305", said, "`def f(texts: str) -> float`")


def of_all(completions, **kwargs):  # type: ignore[no-untyped-def]
    """As TRL's rewards are written."""
    return [float("boxed" in text) for text in completions]


def of_all_pairs(texts: str, others: str) -> float:
    """The same, annotated."""
    return [float(a == b) for a, b in zip(texts, others, strict=True)]  # type: ignore[return-value]


def of_words(texts: str) -> float:
    """A list of what one text has."""
    return [float(len(word)) for word in texts.split()]  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("function", "expr", "fix"),
    [
        (of_all, "mean(f(t))", "`def f(completions: str, **kwargs) -> float: return float('boxed' in completions)`, "
         "which is called once per text"),
        (of_all_pairs, "mean(f(t, t))", "`return float(texts == others)`: it is called once per row"),
        (of_words, "mean(f(t))",
         "convert the value, or say its type in the line of `def`: `-> float`, int, bool or str"),
    ],
)  # fmt: skip
def test_a_function_that_lists_values_of_all_texts(function: Any, expr: str, fix: str) -> None:
    """The fix is what it returns for one, where the list says it."""
    assert answer(function, expr)[2] == fix


def test_a_number_where_texts_go() -> None:
    """It has no text."""
    assert answer(unsaid, "mean(f(x))")[:2] == ("DL305", "`f` needs text, and `x` is float")


def test_texts_and_tokens_do_not_meet() -> None:
    """Per token, values are computed on the device, where there are no texts."""
    config = {
        "axes": {"token": {"mask": "all"}},
        "signals": {"any": {"completion": "completion text", "k": "token"}},
        "metrics": {"m": "mean(k * repetition(completion))"},
    }
    assert problems(lambda: declog.plan(config, functions=FUNCTIONS)) == [("DL205", "metrics.m")]


def test_what_cannot_be_called_later_is_refused() -> None:
    """`async` makes no value."""

    async def later(text: str) -> float:
        return 1.0

    with pytest.raises(UsageError, match="the function `later` is asynchronous"):
        declog.function(later, registry=Functions(BUILTIN))


def test_it_is_tried_before_step_0() -> None:
    """Another type, or a name that is not there, can never be right; a text may be one that never comes."""

    def lists(text: str) -> float:
        return text.split()  # type: ignore[return-value]

    def truths(text: str) -> float:
        return "a" in text

    def lost(text: str) -> float:
        return len(txt)  # type: ignore[name-defined]  # noqa: F821

    def strict(text: str) -> float:
        return float(text.split("####")[1])

    assert answer(lists, "mean(f(t))")[:2] == (
        "DL314",
        "`f` returned list for a row, and is registered to return float",
    )
    code, message, fix = answer(truths, "mean(f(t))")
    assert (code, "returned bool" in message, "`-> float`, int, bool or str" in str(fix)) == ("DL314", True, True)
    assert answer(lost, "mean(f(t))")[1] == "the function `f` failed: NameError: name 'txt' is not defined"

    functions = Functions(BUILTIN)
    declog.function(strict, registry=functions)
    config = {"signals": {"any": {"t": "completion text"}}, "metrics": {"m": "mean(strict(t))"}}
    (warning,) = declog.plan(config, functions=functions).warnings
    assert warning.startswith("metrics.m.expr: `strict` failed for a row: IndexError: list index out of range (")


# ---- failures in a run


@declog.function(registry=FUNCTIONS)
def fragile(completion: str) -> float:
    """It does not take every text."""
    return len(completion) / completion.count("a") if completion != "text" else 0.0


@declog.function(registry=FUNCTIONS)
def sometimes(completion: str) -> int:
    """Another type for some texts."""
    return 1.5 if completion == "bad" else 1  # type: ignore[return-value]


FRAGILE: dict[str, Any] = {
    "signals": {"any": {"completion": "completion text", "reward": "completion"}},
    "metrics": {
        "reward": "mean(reward)",
        "fragile": "mean(fragile(completion))",
        "greatest": "max(fragile(completion))",
        "part": {"expr": "reward", "where": "fragile(completion) > 1"},
        "typed": "mean(sometimes(completion))",
    },
    "schemas": {"s": {"reward": "float"}},
    "tables": {
        "top": {"schema": "s", "filter": {"key": "fragile(completion)", "top": 1, "bottom": 0}},
        "all": {"schema": "s"},
    },
}


@pytest.mark.parametrize("ranks", [1, 2])
def test_one_that_raises(ranks: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What reads it has no value in that log event, whichever rank has the text; told once, with names and place."""
    sink = MemorySink()
    failures: dict[str, int] = {}

    def train(comm: Any) -> None:
        of_rank = 0 if comm is None else comm.rank
        sinks = [] if of_rank else [sink]
        with declog.start(FRAGILE, sinks=sinks, output_dir=tmp_path, comm=comm, functions=FUNCTIONS) as log:
            for step in range(6):
                bad = step % 2 and of_rank == ranks - 1
                with log.step(step):
                    log.observe(completion=["a", "bad" if bad else "aa", "bcd" if bad else "a"], reward=[1.0, 2.0, 3.0])
        if not of_rank:
            failures.update(log.failures)

    if ranks == 1:
        train(None)
    else:
        declog.testing.run_ranks(2, train)
    assert [sorted(values) for _, values in sorted(sink.scalars.items())] == [
        ["fragile", "greatest", "reward", "typed"], ["reward"]
    ] * 3  # fmt: skip
    assert {name: len(sink.tables(name)) for name in ("top", "all")} == {"top": 3, "all": 6}
    line = fragile.__code__.co_firstlineno + 3
    why = f"`fragile` failed for a row: ZeroDivisionError: division by zero ({Path(__file__).name}:{line})"
    names = ["the metric `fragile`", "the metric `greatest`", "the metric `part`", "the table `top`"]
    told = {message.splitlines()[0]: count for message, count in failures.items()}
    assert told == {
        **{f"[DL605] {name}: {why}": 3 for name in names},
        "[DL314] the metric `typed`: `sometimes` returned float for a row, and is registered to return int": 3,
    }
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2  # one for each cause


def test_strict_raises_it(tmp_path: Path) -> None:
    """For tests."""
    with pytest.raises(RuntimeFailure, match="`fragile` failed for a row") as error:
        record(FRAGILE, [[{"completion": ["bcd"], "reward": [1.0]}]], functions=FUNCTIONS)
    assert error.value.fix == "return None for a row that has no value: it is missing then"


# ---- packages, and questions that come later


PACKAGE = """
def team_words(text: str) -> int:
    return len(text.split())

def team_fragile(text: str) -> float:
    return 1.0 if text == "text" else 1 / text.count("a")
"""
ENTRY_POINTS = """
[declog.functions]
team_words = team_of_texts:team_words
team_fragile = team_of_texts:team_fragile
"""


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package with an entry point."""
    (tmp_path / "team_of_texts.py").write_text(PACKAGE, encoding="utf-8")
    info = tmp_path / "team_of_texts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: team-of-texts\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("team_of_texts", None)
    for name in ("team_words", "team_fragile"):
        DEFAULT.discard(name)


def test_one_of_an_installed_package(team: Path) -> None:
    """By its annotations, too."""
    config = {"signals": {"any": {"t": "completion text"}}, "metrics": {"m": "sum(team_words(t))"}}
    assert record(config, [[{"t": ["a b c", "d"]}]]).scalars[0] == {"m": 4}


def test_a_question_that_comes_later(team: Path) -> None:
    """Of labels, which a run keeps, and of what it computed, without the text."""
    from declog.late import ask

    config = {
        "signals": {"any": {"t": "completion text", "env": "completion text", "x": "completion"}},
        "metrics": {"by": {"expr": "x", "by": "env"}, "words": "mean(team_words(t))"},
        "sinks": ["jsonl"],
    }
    with declog.start(config, output_dir=team / "run") as log:
        for step in range(2):
            with log.step(step):
                log.observe(t=["a b", "c"], env=["u v w", "x"], x=[1.0, 2.0])

    def values(line: str) -> list[Any]:
        late = ask(team / "run", {"m": line})
        return [scalar.value for _, records in late.events for scalar in records.scalars]

    assert values("max(team_words(t))") == [2, 2]
    assert values("max(team_words(env))") == [3, 3]
    assert values("{expr: x, where: team_words(t) > 1}") == [1.0, 1.0]


def test_a_question_about_a_value_that_failed(team: Path) -> None:
    """No value of the other rank's rows alone: what failed in the run fails in the answer."""
    from declog.late import ask

    config = {
        "signals": {"any": {"t": "completion text"}}, "metrics": {"m": "mean(team_fragile(t))"}, "sinks": ["jsonl"],
    }  # fmt: skip

    def train(comm: Any) -> None:
        with declog.start(config, output_dir=team / "run", comm=comm) as log:
            for step in range(3):
                with log.step(step):
                    log.observe(t=["aa", "b" if step == comm.rank == 1 else "a"])

    declog.testing.run_ranks(2, train)
    late = ask(team / "run", {"high": "max(team_fragile(t))"})
    steps = [(step, scalar.value) for step, records in late.events for scalar in records.scalars]
    assert steps == [(0, 1.0), (2, 1.0)]
    assert "`team_fragile` failed for a row" in str(late.failures)
