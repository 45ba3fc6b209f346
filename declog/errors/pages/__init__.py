"""The pages of the error codes, one Markdown file each: title, cause, cure, an example, and the messages below.

``declog explain`` prints a page, and docs/errors.md is made of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from declog.errors.messages import PAGES, SEPARATOR


def _title(file: Path) -> str:
    with file.open(encoding="utf-8") as lines:
        return lines.readline().partition(": ")[2].strip()


CODES: Mapping[str, str] = {file.stem: _title(file) for file in sorted(PAGES.glob("DL*.md"))}


def page(code: str) -> str:
    """The page of a code, in Markdown; raises ``KeyError`` for an unknown code."""
    if code not in CODES:
        raise KeyError(code)
    return (PAGES / f"{code}.md").read_text(encoding="utf-8").partition(SEPARATOR)[0]
