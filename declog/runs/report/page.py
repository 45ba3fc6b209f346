"""Writes one HTML file of a run: its data, a style and scripts, and a policy that blocks everything else.

``report`` shows the page in a notebook's cell, in a frame that reaches neither the notebook nor the network.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from declog.distribution import VERSION
from declog.runs.report.blobs import Blobs, plain
from declog.runs.report.facts import differences, run_facts
from declog.runs.run import Run, read
from declog.sinks._files import replace_text

HEAD = 2000  # the mark is within so many characters of a file's beginning
ASSETS = files("declog.runs.report") / "assets"
STYLES = ("vendor/uPlot.min.css", "page.css")
SHARED = ("dom.js", "data.js", "again.js")
SCRIPTS = ("vendor/uPlot.iife.min.js", *SHARED, "cards.js", "onsets.js", "overview.js", "compare.js", "charts.js",
           "curves.js", "clock.js", "changes.js", "steptime.js", "distributions.js", "tokens.js", "conversation.js",
           "where.js", "finders.js", "csv.js", "samples.js", "group.js", "logged.js", "keep.js",
           "main.js")  # concatenated in this order, in one scope  # fmt: skip
HEIGHT = 800  # the height of the frame in pixels
# The page runs its own scripts and saves files; it reaches neither the notebook nor the network.
ALLOWED = "allow-scripts allow-downloads allow-popups"


def write(
    path: Path, run: Run, compared: Sequence[Run] = (), *, samples: bool = True, every: float | None = None
) -> None:  # fmt: skip
    """Write the report of a run to a file, in one step.

    ``compared`` are runs to compare it with; ``samples``: include the rows of tables. ``every``: the file will be
    written again in so many seconds, and the page reloads itself then. Raises ``OSError`` if writing fails.
    """
    replace_text(path, document(run, compared, samples=samples, every=every))


def document(
    run: Run, compared: Sequence[Run] = (), *, samples: bool = True, every: float | None = None
) -> str:  # fmt: skip
    """The page of a run, compared with others. Its data are escaped JSON and digits, never read as markup."""
    blobs = Blobs()
    runs = [run, *compared]
    mark = _mark(runs, samples=samples, every=every)  # before the runs are read: later rows need another mark
    named = zip(runs, labels(runs), strict=True)
    facts = {
        "made": time.time(), "every": every,
        "runs": [run_facts(one, blobs, label=label, samples=samples) for one, label in named],
        "differences": differences(runs),
    }  # fmt: skip
    return html_page(" and ".join(dict.fromkeys(one.name for one in runs)), "page.html", SCRIPTS, facts, blobs, mark)


def html_page(
    title: str, body: str, scripts: Sequence[str], facts: Mapping[str, Any], blobs: Blobs, mark: str = ""
) -> str:
    """A page that contains its data, and whose policy blocks everything else. ``body`` and ``scripts`` name assets.

    ``mark`` identifies the data and assets of the page, for ``is_current``.
    """
    style = "\n".join(map(_asset, STYLES))
    script = '(() => {\n"use strict";\n' + "\n".join(map(_asset, scripts)) + "\n})();"
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    data = json.dumps(plain(facts), ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":
        data = data.replace(character, f"\\u{ord(character):04x}")
    held = "\n".join(
        f'<script type="application/octet-stream" id="b{number}" data-size="{size}">{text}</script>'
        for number, (text, size) in enumerate(zip(blobs.texts, blobs.sizes, strict=True))
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="generator" content="declog {mark}">
<title>{html.escape(title)} · declog report</title>
<style>{style}</style>
</head>
<body>
{_asset(body)}<script type="application/json" id="meta">{data}</script>
{held}
<script>{script}</script>
</body>
</html>
"""


def goes_on(run: Run) -> bool:
    """Whether a run may still grow: it is running, or its end is unknown."""
    return run.state in ("running", "unknown")


def is_current(path: Path, runs: Sequence[Run], *, samples: bool, every: float | None) -> bool:
    """Whether a file is already the report of the runs as they are now, by this declog and with these options."""
    try:
        with path.open(encoding="utf-8") as file:
            head = file.read(HEAD)
    except (OSError, ValueError):
        return False
    return f'content="declog {_mark(runs, samples=samples, every=every)}"' in head


def _mark(runs: Sequence[Run], *, samples: bool, every: float | None) -> str:
    """A short text that changes when the report of the runs would change."""
    source = [VERSION, *map(_asset, (*STYLES, "page.html", *SCRIPTS))]
    facts = [*source, *(run.stamp() for run in runs), samples, every]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:24]


def labels(runs: list[Run]) -> list[str]:
    """The labels of runs: their names, or if these repeat, their folders, their ids, or their names with numbers."""
    for names in ([one.name for one in runs], [one.path.name for one in runs], [one.id for one in runs]):
        if len(set(names)) == len(runs):
            return names
    return [f"{one.name} ({number})" for number, one in enumerate(runs, 1)]


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


# -- in a notebook's cell


def report(run: Any, *compared: Any, samples: bool = True, height: int = HEIGHT) -> Page:
    """The page of a run, for a notebook's cell; ``save`` writes it to a file.

    ``run`` is a run's folder, the result of ``declog.read``, or a recorder. For an open recorder, ``report`` waits
    until its log events so far are written. ``compared`` are up to two runs to compare it with. ``samples``: include
    the rows of tables. ``height`` is the height of the frame in pixels. Raises ``UsageError`` DL607 if there is no run.
    """
    first, *rest = (one if isinstance(one, Run) else read(one) for one in (run, *compared))
    return Page(document(first, rest, samples=samples), height)


class Page:
    """The page of a report. ``str(page)`` is its HTML."""

    def __init__(self, text: str, height: int) -> None:
        self._text, self._height = text, height

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<report of {len(self._text) / 1e6:.1f} MB>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file, in one step. Raises ``OSError`` if writing fails."""
        replace_text(Path(path), self._text)

    def _repr_html_(self) -> str:
        style = f"width: 100%; height: {self._height}px; border: 0"
        return f'<iframe sandbox="{ALLOWED}" style="{style}" srcdoc="{html.escape(self._text)}"></iframe>'
