"""``declog.report``: the page of a run in a notebook's cell, or as a file."""

from __future__ import annotations

import html
import os
from pathlib import Path
from typing import Any

from declog.runs.report.page import document
from declog.runs.run import Run, read
from declog.sinks._files import replace_text

HEIGHT = 800  # of the frame, in pixels
# The page runs its own scripts and saves files; it reaches neither the notebook nor the network.
ALLOWED = "allow-scripts allow-downloads allow-popups"


def report(run: Any, *compared: Any, samples: bool = True, height: int = HEIGHT) -> Page:
    """The page of a run, for a notebook's cell; ``save`` writes it to a file.

    ``run`` is a run's folder, what ``declog.read`` returned, or a recorder, which may be open: its log events so far
    are written first. ``compared`` are up to two runs to compare it with. ``samples``: with the rows of tables.
    ``height`` is that of the frame, in pixels. Raises ``UsageError`` DL607 where there is no run.
    """
    first, *rest = (one if isinstance(one, Run) else read(one) for one in (run, *compared))
    return Page(document(first, rest, samples=samples), height)


class Page:
    """A page: ``str`` is its HTML."""

    def __init__(self, text: str, height: int) -> None:
        self._text, self._height = text, height

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<report of {len(self._text) / 1e6:.1f} MB>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, in one step. ``OSError`` as the disk says."""
        replace_text(Path(path), self._text)

    def _repr_html_(self) -> str:
        style = f"width: 100%; height: {self._height}px; border: 0"
        return f'<iframe sandbox="{ALLOWED}" style="{style}" srcdoc="{html.escape(self._text)}"></iframe>'
