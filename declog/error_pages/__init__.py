"""The page of every error code: its cause, its cure, and an example that gives it.

One Markdown file for each code, in the wheel too: ``declog explain DL310`` prints it, and docs/errors.md is generated
from all of them. Imports the table of codes and the standard library.
"""

from __future__ import annotations

from importlib import resources

from declog.errors import CODES


def page(code: str) -> str:
    """The page of a code, in Markdown; ``KeyError`` for what is no code."""
    if code not in CODES:
        raise KeyError(code)
    return resources.files(__name__).joinpath(f"{code}.md").read_text(encoding="utf-8")
