"""Code blocks of Markdown pages, for the tests that run them. Standard library only.

A block is fenced with three backticks and a language; ``title="conf/declog/mine.yaml"`` behind the language makes
it a file of the page's folder. A ``text`` block right after another block is what that one gives. A block of a tab is
indented.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^( *)```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One code block, and the ``text`` block that directly follows it, if one does."""

    page: Path
    line: int
    language: str
    title: str | None
    text: str
    result: str | None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The code blocks of a page in their order; results are no blocks of their own."""
    text = page.read_text(encoding="utf-8")
    fences = list(_FENCE.finditer(text))
    assert text.count("```") == 2 * len(fences), f"{page}: a code block without a language"
    found: list[Block] = []
    for place, fence in enumerate(fences):
        _, language, title, body = fence.groups()
        if language == "text" and place and not text[fences[place - 1].end() : fence.start()].strip():
            continue
        after = fences[place + 1] if place + 1 < len(fences) else None
        follows = after is not None and after[2] == "text" and not text[fence.end() : after.start()].strip()
        line = text.count("\n", 0, fence.start()) + 1
        result = textwrap.dedent(after[4]) if after is not None and follows else None
        found.append(Block(page, line, language, title, textwrap.dedent(body), result))
    return found


ALL = [block for page in PAGES for block in blocks(page)]


def stands_alone(text: str) -> bool:
    """Whether YAML is a whole config: it names its presets, or itself. Any other block extends `grpo`."""
    return re.search(r"^(defaults:|run: \{project:)", text, re.MULTILINE) is not None


def lay_out(page: Path, folder: Path) -> None:
    """Write the titled blocks of a page as files."""
    for block in blocks(page):
        if block.title is not None:
            file = folder / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
