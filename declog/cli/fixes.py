"""Fixes that keep the meaning, written into the user's own files: renamed names, other loggers' words.

A problem's ``replacement`` takes the place of what its excerpt marks. Files of installed packages are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from declog.errors import Problem


def apply(problems: Iterable[Problem]) -> list[str]:
    """Write the fixes; returns a line for each: where, what, and by what."""
    from declog.config.search_path import provider_of
    from declog.config.source_map import LINE_BREAK

    edits: dict[tuple[str, int, int, int], tuple[str, str]] = {}
    for problem in problems:
        where = problem.where
        if where is None or where.excerpt is None or where.file is None or where.line is None:
            continue
        excerpt = where.excerpt
        marked = excerpt.text[excerpt.start : excerpt.end]
        users_own = provider_of(str(Path(where.file).absolute())) is None
        if problem.replacement and marked == problem.replacement[0] and users_own:
            edits[where.file, where.line, excerpt.start, excerpt.end] = problem.replacement
    for (file, line, start, end), (_, new) in sorted(edits.items(), reverse=True):  # from the end: columns stay right
        path = Path(file)
        pieces = re.split(f"({LINE_BREAK.pattern})", path.read_bytes().decode("utf-8"))
        at = 2 * (line - 1)  # line breaks are items between the lines
        pieces[at] = pieces[at][:start] + new + pieces[at][end:]
        path.write_bytes("".join(pieces).encode("utf-8"))
    return [f"{file}:{line}:{start + 1} `{old}` -> `{new}`" for (file, line, start, _), (old, new) in edits.items()]
