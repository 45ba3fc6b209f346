"""``declog adopt``: a short profile that logs the names of a run that was logged without declog.

What came as several statistics of one thing is computed from its values; what came as one number passes through. Where
a preset has most of the names, the profile extends it.

  declog adopt wandb/offline-run-20261121_212253-k3v2/ -o conf/declog/mine.yaml
  declog adopt outputs/checkpoint-500/trainer_state.json
  declog adopt metrics.jsonl
"""

from __future__ import annotations

import argparse
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from declog.cli.arguments import Parser, Wrong
from declog.cli.output import GREEN, paint, write_file
from declog.errors.visible import visible, visible_lines

if TYPE_CHECKING:
    from declog.plans.ops import Plan

SUMMARY = "write a profile that logs the same names as a run without declog"


def arguments(parser: Parser) -> None:
    """What was logged, and where the profile goes."""
    parser.add(
        "run", metavar="RUN", help="a wandb run, a .jsonl log, a trainer_state.json, a .txt of names, or a folder"
    )
    parser.add("-o", "--output", metavar="FILE", help="write it there instead of printing it")


def run(given: argparse.Namespace) -> int:
    """Write it."""
    from declog.cli.adoption import read, verified

    found = verified(read(Path(given.run)), _templates(tuple(sys.path)), _plan)
    name = "adopted" if given.output is None else Path(given.output).stem
    text = found.text(name)
    if given.output is None:
        print(visible_lines(text), end="")
        return 0
    file = Path(given.output)
    if file.exists():
        raise Wrong(f"{file} is there already", "name another file with -o")
    write_file(file, text, folders=True)
    signals = ["mask"] if any(each.axis == "token" for each in found.distributions) else []
    signals += [each.signal for each in found.distributions]
    print(f"{paint(str(file), GREEN)}: {found.computed} names computed, {len(found.passed)} passed through")
    if signals:
        print(f"  log.observe({', '.join(f'{signal}=...' for signal in signals)})")
    if found.passed:
        print(f"  log.log_metric({visible(found.passed[0])!r}, value)  # and the others that the file lists")
    return 0


def _plan(text: str) -> Plan:
    """What a profile compiles to, as it will be written."""
    from declog.api import plan
    from declog.config.compose import compose

    with TemporaryDirectory() as folder:
        file = Path(folder) / "adopted.yaml"
        file.write_text(text, encoding="utf-8")
        return plan(compose(file))


@cache  # composing all presets takes seconds
def _templates(path: tuple[str, ...]) -> dict[str, list[str]]:
    """The names that each preset may log, whatever is switched on; run-time names alone say nothing."""
    from declog.api import plan
    from declog.config.compose import compose, presets

    found: dict[str, list[str]] = {}
    for preset in presets():
        composed = compose(preset)
        metrics: Any = composed.data.get("metrics") or {}
        names = {str(entry.get("name") or key) for key, entry in metrics.items() if isinstance(entry, dict)}
        names |= {*plan(composed).names()}
        found[preset] = sorted(name for name in names if name[:1] != "{")
    return found
