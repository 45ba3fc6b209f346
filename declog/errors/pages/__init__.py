"""The pages of the error codes, one Markdown file each: title, cause, cure and an example.

``declog explain`` prints a page, and docs/errors.md is made of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_FOLDER = Path(__file__).parent


def _title(file: Path) -> str:
    with file.open(encoding="utf-8") as lines:
        return lines.readline().partition(": ")[2].strip()


CODES: Mapping[str, str] = {file.stem: _title(file) for file in sorted(_FOLDER.glob("DL*.md"))}


def page(code: str) -> str:
    """The page of a code, in Markdown; ``KeyError`` for what is no code."""
    if code not in CODES:
        raise KeyError(code)
    return (_FOLDER / f"{code}.md").read_text(encoding="utf-8")
