"""The built site, looked at in a browser."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import Open
from tests.docs.markdown import ROOT

# the elements that reach beyond the window's right edge, and those that hide a part of themselves
ELSEWHERE = "nav, .md-clipboard, .headerlink, .tabbed-labels"
CUT = f"""() => [...document.querySelectorAll(".md-content *")]
    .filter((one) => one.textContent.trim() && one.getClientRects().length && !one.closest("{ELSEWHERE}"))
    .filter((one) => one.getBoundingClientRect().right > innerWidth + 1
                     || one.clientWidth && one.scrollWidth > one.clientWidth + 1
                        && getComputedStyle(one).overflowX !== "visible")
    .map((one) => `${{one.tagName}} ${{one.textContent.trim().slice(0, 60)}}`)"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env={"PATH": "", "NO_MKDOCS_2_WARNING": "1"}, check=True, timeout=300)
    return folder


def test_nothing_is_cut_on_a_phone(site: Path, opened: Open) -> None:
    """Each page at 390 pixels: text, code, tables and pictures fit the window; nobody scrolls sideways."""
    cut = {}
    for page in sorted(site.rglob("index.html")):
        shown = opened(page, ready=".md-content", viewport={"width": 390, "height": 844}).page
        assert shown.evaluate("document.documentElement.scrollWidth") == 390, page.parent.name
        cut[page.parent.name] = shown.evaluate(CUT)
    assert not any(cut.values()), {name: texts[:5] for name, texts in cut.items() if texts}
    assert len(cut) == 16


def test_a_wide_table_is_a_list_on_a_phone(site: Path, opened: Open) -> None:
    """A cell of a table with four columns or more has its column's heading before it; on a desktop it has none."""
    file = site / "trainers" / "index.html"
    for width, expected in ((390, '"you write: "'), (1280, "none")):
        shown = opened(file, ready="table[data-wide]", viewport={"width": width, "height": 900}).page
        cell = shown.locator("table[data-wide] tbody tr").first.locator("td").nth(1)
        assert cell.get_attribute("data-heading") == "you write"
        assert cell.evaluate("cell => getComputedStyle(cell, '::before').content") == expected
