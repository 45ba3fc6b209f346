"""One HTML file of a run: its data, a style and scripts, and a policy that blocks everything else.

``report`` shows it in a notebook's cell, in a frame that reaches neither the notebook nor the network.
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

HEAD = 2000  # characters of a file in which its mark is
ASSETS = files("declog.runs.report") / "assets"
STYLES = ("vendor/uPlot.min.css", "page.css")
SHARED = ("dom.js", "data.js", "again.js")
SCRIPTS = ("vendor/uPlot.iife.min.js", *SHARED, "cards.js", "onsets.js", "overview.js", "compare.js", "charts.js",
           "curves.js", "clock.js", "changes.js", "steptime.js", "distributions.js", "tokens.js", "conversation.js",
           "where.js", "finders.js", "csv.js", "samples.js", "group.js", "logged.js", "keep.js",
           "main.js")  # one scope, in order  # fmt: skip
HEIGHT = 800  # of the frame, in pixels
# The page runs its own scripts and saves files; it reaches neither the notebook nor the network.
ALLOWED = "allow-scripts allow-downloads allow-popups"


def write(
    path: Path, run: Run, compared: Sequence[Run] = (), *, samples: bool = True, every: float | None = None
) -> None:  # fmt: skip
    """Write the report of a run to a file, in one step.

    ``compared`` are runs beside it; ``samples``: with the rows of tables. ``every``: the file is written again in so
    many seconds, and the page opens it again. ``OSError`` as the disk says.
    """
    replace_text(path, document(run, compared, samples=samples, every=every))


def document(
    run: Run, compared: Sequence[Run] = (), *, samples: bool = True, every: float | None = None
) -> str:  # fmt: skip
    """The page of a run, compared with others. Its data are JSON and digits, which no browser reads as markup."""
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
    """A page that holds its data, and lets nothing else in. ``body`` and ``scripts`` name assets.

    ``mark`` says what it was written from, for ``is_current``.
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
    """Whether a file is the report of some runs as they are now, by this declog, in this manner."""
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
    """The labels of runs: their names, or their folders if names repeat."""
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
