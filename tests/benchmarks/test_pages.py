"""What `make bench` prints has a place in the documentation, and goes there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import ROOT, sections, written
from tests.benchmarks.measure import Aims, section


def test_sections_go_where_their_headings_are(capsys: pytest.CaptureFixture[str]) -> None:
    """All else of a page stays as it is, to the letter."""
    section("Compile", ("a", "b"), [(1, 2)], "A note.", "Another.")
    section("Elsewhere", ("a",), [(1,)])
    found = sections(capsys.readouterr().out)
    assert list(found) == ["Compile", "Elsewhere"]
    page = "# P\n\n### Compiled\n\nold\n\n### Compile\n\nold\n\nold\n\n## Next\n\n### Worker\n\nold\n"
    assert written(page, found) == page.replace("### Compile\n\nold\n\nold\n", f"### Compile\n\n{found['Compile']}")
    assert "Another." in written(page, found)


def test_aims_count_what_meets_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Of several values the range, and how many are as they should be."""
    aims = Aims()
    aims.most("all", 1, [0.5, 0.75])
    aims.most("some", 1, [0.5, 20], " ms")
    aims.least("none", 5, [1])
    aims.print()
    lines = capsys.readouterr().out.splitlines()[5:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells == [
        ["all", "at most 1", "0.50 to 0.75", "yes"], ["some", "at most 1 ms", "0.50 to 20 ms", "1 of 2"],
        ["none", "at least 5", "1.00", "no"],
    ]  # fmt: skip


def test_every_table_of_numbers_is_of_a_benchmark() -> None:
    """As far as a heading is written in its code: else nobody could measure it again."""
    (cost,) = re.findall(r"^## Cost$(.*?)^## ", (ROOT / "docs/design.md").read_text(encoding="utf-8"), re.M | re.S)
    titles = re.findall(r"^### (.*)$", cost, re.M)
    code = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*.py"))
    texts = [text for text in re.findall(r'"([\w{][^"\n]*)"', code) if len(re.sub(r"{.*?}", "", text)) > 5]
    patterns = [re.sub(r"\\{.*?\\}", r"[\\w, ]+", re.escape(text)) for text in texts]
    assert len(titles) > 5
    assert [title for title in titles if not any(re.fullmatch(pattern, title, re.I) for pattern in patterns)] == []
