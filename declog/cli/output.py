"""What the command line prints: plain text, with colours on a terminal only. Standard library only."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any, TextIO

from declog.errors import DeclogError

RED, YELLOW, GREEN, BLUE, DIM, BOLD = "31", "33", "32", "34", "2", "1"

# What stands out in a rendered problem: its head, the caret, the fix.
_PAINTED = (
    (re.compile(r"^error\[DL\d+\]", re.MULTILINE), f"{BOLD};{RED}"),
    (re.compile(r"^warning(?:\[DL\d+\])?", re.MULTILINE), f"{BOLD};{YELLOW}"),
    (re.compile(r"(?<= )\^+$", re.MULTILINE), RED),
    (re.compile(r"^  fix:", re.MULTILINE), GREEN),
)


def coloured(stream: TextIO) -> bool:
    """Whether a stream is a terminal that wants colours (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str, stream: TextIO | None = None) -> str:
    """The text in a colour, where it goes to a terminal."""
    return f"\x1b[{colour}m{text}\x1b[0m" if coloured(stream or sys.stdout) else text


def write(text: str, stream: TextIO | None = None) -> None:
    """Print problems, warnings or anything else."""
    stream = stream or sys.stdout
    if coloured(stream):
        for pattern, colour in _PAINTED:
            text = pattern.sub(lambda found, colour=colour: f"\x1b[{colour}m{found[0]}\x1b[0m", text)  # type: ignore[misc]
    print(text, file=stream)


def write_error(text: str) -> None:
    """Print problems where they do not get into a pipe."""
    sys.stdout.flush()
    write(text, sys.stderr)


def write_json(data: Any) -> None:
    """Print data for programs."""
    print(json.dumps(data, indent=2, ensure_ascii=False, default=str))


def error_text(error: DeclogError) -> str:
    """An error as people read it."""
    text = str(error)
    return text if text.startswith("error[") else f"error{text}" if text.startswith("[DL") else f"error: {text}"
