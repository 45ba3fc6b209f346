"""scalars: a range of a value, found in the scalar as it was written."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from declog.config.quoting import within


@pytest.mark.parametrize(
    ("raw", "style", "source", "span", "marked"),
    [
        ("kl > 1", "plain", "kl > 1", (0, 2), "kl"),
        ("kl > 1", "plain", "kl > 1", None, "kl > 1"),
        ("'kl > 1'", "'", "kl > 1", (5, 6), "1"),
        ("'a == ''b'' + c'", "'", "a == 'b' + c", (5, 8), "''b''"),
        ("'a == ''b'' + c'", "'", "a == 'b' + c", (11, 12), "c"),
        (r'"a == \"b\" + c"', '"', 'a == "b" + c', (5, 8), r"\"b\""),
        (r'"\u00e9 + c"', '"', "é + c", (4, 5), "c"),
        (r'"\U0001F600\x41 \t c"', '"', "😀A \t c", (0, 1), r"\U0001F600"),
        (r'"\U0001F600\x41 \t c"', '"', "😀A \t c", (3, 4), r"\t"),
        # The source is a part of the scalar: p95(kl) as the expression kl.
        ("p95(kl)", "plain", "kl", (0, 2), "kl"),
        # A span may point behind the last character, at what is missing there.
        ("kl +", "plain", "kl +", (4, 4), ""),
    ],
)
def test_a_span_is_found_behind_quotes_and_escapes(
    raw: str, style: str, source: str, span: tuple[int, int] | None, marked: str
) -> None:
    """The marked range of the raw text is what was written for that part of the value."""
    found = within(raw, style, source, span)
    assert found is not None
    assert raw[found[0] : found[1]] == marked


def test_another_text_is_not_found() -> None:
    """A scalar that does not hold the expression gives nothing, rather than a wrong place."""
    assert within("'kl > 1'", "'", "reward", (0, 1)) is None


@given(
    text=st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=20),
    data=st.data(),
)
def test_every_character_is_found_where_yaml_wrote_it(text: str, data: st.DataObject) -> None:
    """For any text that YAML quotes, the range of one character decodes to that character."""
    raw = yaml.safe_dump(text, default_style='"', width=10_000, allow_unicode=data.draw(st.booleans())).rstrip("\n")
    at = data.draw(st.integers(0, len(text) - 1))
    found = within(raw, '"', text, (at, at + 1))
    assert found is not None
    assert yaml.safe_load('"' + raw[found[0] : found[1]] + '"') == text[at]
