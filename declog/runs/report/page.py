"""One HTML file of a run: its data, our style and scripts, and a policy that lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from declog.runs.report.blobs import Blobs, plain
from declog.runs.report.facts import differences, run_facts
from declog.runs.run import Run

ASSETS = files("declog.runs.report") / "assets"
STYLES = ("vendor/uPlot.min.css", "page.css")
LIBRARY = "vendor/uPlot.iife.min.js"
SCRIPTS = ("dom.js", "data.js", "cards.js", "onsets.js", "overview.js", "compare.js", "charts.js", "curves.js",
           "changes.js", "distributions.js", "tokens.js", "conversation.js", "where.js", "finders.js", "samples.js",
           "logged.js", "main.js")  # one scope, in this order  # fmt: skip


def write(path: Path, run: Run, others: Sequence[Run] = (), *, samples: bool = True) -> None:
    """Write the report of a run to a file, in one step: a reader sees the old file or the whole new one.

    ``others`` are compared with it; ``samples``: with the rows of tables. ``OSError`` as the disk says.
    """
    draft = path.with_name(f".{path.name}.part")
    draft.write_text(document(run, others, samples=samples), encoding="utf-8")
    draft.replace(path)


def document(run: Run, others: Sequence[Run] = (), *, samples: bool = True) -> str:
    """The page. What it holds of the run is JSON and digits, which no browser takes for markup."""
    blobs = Blobs()
    runs = [run, *others]
    named = zip(runs, labels(runs), strict=True)
    facts = {
        "made": time.time(),
        "runs": [run_facts(one, blobs, label=label, samples=samples) for one, label in named],
        "differences": differences(runs),
    }
    style = "\n".join(map(_asset, STYLES))
    script = f'{_asset(LIBRARY)}\n(() => {{\n"use strict";\n' + "\n".join(map(_asset, SCRIPTS)) + "\n})();"
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
    title = html.escape(" and ".join(dict.fromkeys(one.name for one in runs)))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title} · declog report</title>
<style>{style}</style>
</head>
<body>
{_asset("page.html")}<script type="application/json" id="meta">{data}</script>
{held}
<script>{script}</script>
</body>
</html>
"""


def labels(runs: list[Run]) -> list[str]:
    """What distinguishes runs: their names, or their folders."""
    for names in ([one.name for one in runs], [one.path.name for one in runs], [one.id for one in runs]):
        if len(set(names)) == len(runs):
            return names
    return [f"{one.name} ({number})" for number, one in enumerate(runs, 1)]


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
