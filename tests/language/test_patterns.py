"""Regular expressions over texts of a model: in bounded time, and as Python's `re` reads them."""

from __future__ import annotations

import re
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import declog
from declog.language.patterns import PatternError, pattern, redacted
from declog.testing import MemorySink
from tests.conftest import examples

# Each needs more than any run has time for in `re`, on a text that a model may well write.
ENDLESS = {
    "alternatives": (r"^(a|aa)+$", "a" * 200_000 + "b"),
    "nested": (r"(x+x+)+y", "x" * 200_000),
    "quadratic": (r"\s+$", " " * 1_000_000 + "x"),
    "words": (r"^(\w+\s?)*\w+:$", "word " * 50_000),
    "mail": (r"([a-zA-Z0-9]+\.?)+@", "a" * 200_000),
    "many": (r"(a?){50}a{50}!", "a" * 100_000),
}

PIECES = [
    "a", "b", "ab", "é", "İ", "ß", "\\u017f", "K", "_", "1", "٣", " ", "\\n", ".", "\\w", "\\W", "\\d", "\\D", "\\s",
    "\\S",
    "^", "\\A", "\\Z", "[ab]", "[^ab]", "[[a]", "[]a]", "[^]a]", "[a-z]", "[A-z]", "[{e}]", "[[:alpha:]]", "[\\]a]",
    "[\\W_]", "[^\\W\\d]", "{", "{e}", "{e<=1}", "}", "a{2}", "b{1,2}", "a{,2}", "a?", "b*", "a+", "a*?", "(a)",
    "(?:a|b)",
    "(?P<n>a|)", "(?#{[)", "(?i:A)", "(?-i:a)", "(?s:.)", "|", "\\{", "\\[", "\\\\", "\\x41", "\\N{DIGIT ONE}",
]  # fmt: skip
FLAGS = ["", "(?i)", "(?s)", "(?m)", "(?a)", "(?x)", "(?ai)"]
TEXTS = st.lists(st.text("abAkKKéÉß\u017fİ\u0131i_1٣ \n{}[]e<=:lph#\\", max_size=10), min_size=1, max_size=5)


@examples(250)
@given(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join),
    st.sampled_from(["", "$"]), st.sampled_from(FLAGS), TEXTS,
)  # fmt: skip
def test_a_pattern_is_found_where_re_finds_it(source: str, end: str, flags: str, texts: list[str]) -> None:
    """Any pattern of what both know, over any text: the same answer, and the same replacements."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            expected = re.compile(flags + source + end)
        except re.error:
            with pytest.raises(PatternError):
                pattern(flags + source + end)
            return
    made = pattern(flags + source + end)
    for text in texts:
        assert (expected.search(text) is not None) == made.matches(text), text
        if expected.search("") is None and not any(found[0] == "" for found in expected.finditer(text)):
            assert expected.sub("[x]", text) == made.replaced(text, "[x]"), text


@examples(100)
@given(
    st.lists(st.sampled_from(["a", "\\b", "\\B", "\\w", "\\W", "."]), min_size=1, max_size=5).map("".join),
    st.text("ab_ .", max_size=8),
)
def test_words_of_ascii_end_where_those_of_re_end(source: str, text: str) -> None:
    """What `re` calls a boundary of a word, for texts of ASCII; the empty text has no inside in Python's."""
    if text:
        assert (re.search(source, text) is not None) == pattern(source).matches(text)


def test_a_newline_at_the_end_may_be_found_itself() -> None:
    """Behind what `$` found before it: both are replaced, as by `re`."""
    for source, text in [
        ("[^ab]$", "1\n"),
        ("(?s).$", "\n\n"),
        (r"\D$", "é<ia\n"),
        ("1$", "1\n"),
        (r"[\W_](a|)$", "_\n"),
    ]:
        assert pattern(source).replaced(text, "[x]") == re.sub(source, "[x]", text)


@pytest.mark.parametrize("source", [r"\p{L}", r"(?r)a", r"(?|a|b)", r"a\K", r"\X", r"(?<=a+)b", "(", "a**"])
def test_what_re_cannot_read_is_refused_in_its_words(source: str) -> None:
    """The engine's own extensions are no part of the language, and errors are those of `re`."""
    with pytest.raises(re.error) as theirs:
        re.compile(source)
    with pytest.raises(PatternError) as ours:
        pattern(source)
    assert str(theirs.value) == str(ours.value)


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("(?=a)b", "a lookahead or lookbehind"), ("(?!a)b", "a lookahead or lookbehind"),
        ("(?<=a)b", "a lookahead or lookbehind"), ("(?<!a)b", "a lookahead or lookbehind"),
        (r"(a)\1", "a reference to a group"), ("(?P<n>a)(?P=n)", "a reference to a group"),
        ("(a)?(?(1)b|c)", "a reference to a group"), ("(?>a)b", "an atomic group"), ("a++b", "a possessive repetition"),
    ],
)  # fmt: skip
def test_what_has_no_linear_time_is_refused_by_name(source: str, what: str) -> None:
    """Each construct of `re` that RE2 does not have, wherever it stands."""
    for whole in (source, f"x(?:{source})*"):
        with pytest.raises(PatternError) as caught:
            pattern(whole)
        assert str(caught.value) == f"{what} cannot be searched in linear time"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a{1001}", "it repeats something more than 1000 times"),
        (r"a$\s", "`$` stands before the end of the pattern, where it cannot be found"),
    ],
)
def test_what_would_be_read_differently_is_refused(source: str, message: str) -> None:
    """Bounds of the engine, and places where it would answer something else."""
    with pytest.raises(PatternError) as caught:
        pattern(source)
    assert str(caught.value) == message


def test_a_lookahead_in_a_profile_is_an_error_before_step_0(tmp_path: Path) -> None:
    """In a metric and in a redaction alike, at its place."""
    signals = {"t": {"axis": "completion", "type": "text"}}
    for part in (
        {"metrics": {"m": "mean(matches(t, '(?=a)b'))"}},
        {"metrics": {"m": "mean(len(t))"}, "schemas": {"s": {"t": {"type": "text", "redact": {"x": "(?=a)b"}}}},
         "tables": {"t": {"schema": "s", "filter": None}}},
    ):  # fmt: skip
        with pytest.raises(declog.ConfigError, match="a lookahead or lookbehind cannot be searched in linear time"):
            declog.start(
                {"run": {"name": "c"}, "signals": {"any": signals}, **part}, sinks=[MemorySink()], output_dir=tmp_path
            )


@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_search_ends(name: str) -> None:
    """And answers: with `re` this test would not end."""
    source, text = ENDLESS[name]
    assert pattern(source).matches(text) is False
    assert redacted(text, (("secret", source),)) == text
    assert redacted("é" + text + "\ud800", (("secret", source),)) == "é" + text + "\ufffd"


def test_other_threads_run_while_a_text_is_searched() -> None:
    """The interpreter is not held: a counter in this thread goes on while another one searches."""
    made, text = pattern("((a|b)*c|(b|a)*d)+x"), "ab" * 20_000_000
    searching = threading.Thread(target=lambda: made.matches(text))
    searching.start()
    turns = 0
    while searching.is_alive():
        turns += 1
    assert turns > 1000


def test_a_metric_over_endless_texts_is_exact(tmp_path: Path) -> None:
    """`matches` and `redact`, in one run."""
    profile: dict[str, Any] = {
        "run": {"name": "c"}, "signals": {"any": {"completion": {"axis": "completion", "type": "text"}}},
        "metrics": {"boxed": "mean(matches(completion, '(x+x+)+y'))"},
        "schemas": {"s": {"completion": {"type": "text", "redact": {"odd": "(x+x+)+y"}}}},
        "tables": {"t": {"schema": "s", "filter": None}},
    }  # fmt: skip
    sink = MemorySink()
    with declog.start(profile, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(completion=["x" * 2000, "xxy", "no", "xx"])
    assert sink.scalars == {0: {"boxed": 0.25}}
    ((_, table),) = sink.tables("t")
    assert table.data["completion"] == ["x" * 2000, "[odd]", "no", "xx"]
