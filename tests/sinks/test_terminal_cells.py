"""Text by the cells that it takes: what is padded, cut and wrapped on a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from declog.sinks._terminal_cells import beginning, cells, clusters, ending, padded, wrapped

FAMILY = "👩\u200d👩\u200d👧\u200d👦"
PARTS = [
    *"ab漢 ",
    "it",
    "漢字漢字漢字漢字",
    "e\u0301",
    "e\u0301" * 12,
    FAMILY,
    "👍🏽",
    "🇩🇪",
    "🇩🇪" * 9,
    "नमस्ते",
    "❤\ufe0f",
]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=40).map("".join)


@pytest.mark.parametrize("text", ["e\u0301", FAMILY, "👍🏽", "🇩🇪", "क\u094d", "❤\ufe0f"])
def test_what_is_drawn_as_one_is_one(text: str) -> None:
    """Marks, joined emoji, skin tones, flags and variants, also twice in a row."""
    assert list(clusters(f"a{text}{text}b")) == ["a", text, text, "b"]


@given(TEXTS, st.integers(8, 60))
def test_lines_fit_and_lose_only_gaps(text: str, width: int) -> None:
    """Whatever the script: no line is wider than it may be, and all that is no blank is there in its order."""
    lines = wrapped(text, width)
    assert max(map(cell_len, lines)) <= width
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert not any(line != line.rstrip(" ") for line in lines)


@given(TEXTS, st.integers(8, 60))
def test_no_line_ends_inside_a_cluster(text: str, width: int) -> None:
    """A mark stays with its letter, a joiner with its emoji."""
    whole = list(clusters(text.replace(" ", "")))
    assert [part for line in wrapped(text, width) for part in clusters(line.replace(" ", ""))] == whole


def test_words_stay_whole_where_they_fit() -> None:
    """As a typewriter would; a word wider than a line goes on behind the one before it."""
    assert wrapped("one two  three four", 9) == ["one two", "three", "four"]
    assert wrapped("it is 漢字漢字漢字", 9) == ["it is 漢", "字漢字漢", "字"]
    assert wrapped("", 9) == wrapped("   ", 9) == [""]


def test_a_label_is_padded_and_keeps_its_end() -> None:
    """By cells, so that columns are straight below each other."""
    assert [cells(padded(text, 12)) for text in ("loss", "报酬", "re\u0301ward")] == [12, 12, 12]
    assert ending("metrics/报酬", 8) == "…cs/报酬"
    assert ending("loss", 8) == "loss"


@given(TEXTS, st.integers(2, 20))
def test_an_end_of_a_text_fits(text: str, width: int) -> None:
    """It is the text, or an ellipsis and the text's end or beginning."""
    end, start = ending(text, width), beginning(text, width)
    assert max(cell_len(end), cell_len(start)) <= width
    assert end == text or (end[0] == "…" and text.endswith(end[1:]))
    assert start == text or (start[-1] == "…" and text.startswith(start[:-1]))
