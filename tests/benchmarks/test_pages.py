"""What `make bench` prints has a place in the documentation, and goes there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.__main__ import PAGES, sections, written
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


def test_every_heading_of_a_benchmark_is_on_a_page() -> None:
    """As far as it is written in its code: what has none would be measured for nobody."""
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    code = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("bench_*.py"))
    titles = [line.split('"')[1] for line in code.replace("section(\n", "section(").splitlines() if "section(" in line and '"' in line]  # fmt: skip  # noqa: E501
    assert len(titles) > 12
    assert [title for title in titles if "{" not in title and f"### {title}\n" not in pages] == []
