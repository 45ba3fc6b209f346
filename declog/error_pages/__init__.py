"""The page of every error code: its cause, its cure, and an example that gives it.

One Markdown file for each code, in the wheel too: ``declog explain DL310`` prints it, and docs/errors.md is generated
from all of them. Imports the table of codes and the standard library.
"""

from __future__ import annotations

from importlib import resources

from declog.errors import CODES

LAYERS = {
    "1": "Composition",
    "2": "Schema",
    "3": "Language and types",
    "4": "Plan",
    "5": "Input at run time",
    "6": "Sinks and ranks",
}


def page(code: str) -> str:
    """The page of a code, in Markdown; ``KeyError`` for what is no code."""
    if code not in CODES:
        raise KeyError(code)
    return resources.files(__name__).joinpath(f"{code}.md").read_text(encoding="utf-8")


def pages() -> str:
    """All pages under the names of their layers, as docs/errors.md has them."""
    parts = []
    for layer, title in LAYERS.items():
        parts.append(f"## {title}")
        parts += [f"##{page(code).rstrip()}" for code in CODES if code[2] == layer]
    return "\n\n".join(parts)
