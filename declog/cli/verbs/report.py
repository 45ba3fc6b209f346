"""``declog report``: a run as one HTML file, to be opened offline and sent round.

Works while the run goes on, and after it was killed. RUN is the run's folder, with a parquet or a jsonl sink, or the
folder above it, where there is no other run.

  declog report outputs/grpo/2026-11-21_10-00-00
  declog report runs/a --compare runs/b runs/c
  declog report runs/a --no-samples --output a.html
"""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

from declog.cli.arguments import Parser, Wrong
from declog.cli.output import write_json

SUMMARY = "write a run as one HTML file to look at"
FILE = "report.html"
MOST = 2  # runs beside it


def arguments(parser: Parser) -> None:
    """A run, one to compare it with, and where the file goes."""
    parser.add("run", metavar="RUN", help="the run's folder")
    parser.add("--compare", metavar="RUN2", nargs="+", default=[], help=f"compare it with other runs, {MOST} at most")
    parser.add("--no-samples", action="store_true", help="leave out the rows of tables")
    parser.add(
        "--run-id", metavar="ID", help="one of several runs that were appended to the folder; the last by default"
    )
    parser.add("--output", metavar="FILE", help=f"where it goes, or a folder for {FILE}; the run's folder by default")
    parser.formats()


def run(given: argparse.Namespace) -> int:
    """Write it, and say where it is."""
    from declog.runs.report.page import write
    from declog.runs.run import read

    if len(given.compare) > MOST:
        raise Wrong(f"--compare: {len(given.compare)} runs", f"name {MOST} at most")
    one = read(given.run, run_id=given.run_id)
    others = [read(path) for path in given.compare]
    path = Path(given.output or one.path)
    if path.is_dir():
        path /= FILE
    if not path.parent.is_dir():
        raise Wrong(f"--output: there is no folder `{path.parent}`", f"mkdir -p {shlex.quote(str(path.parent))}")
    try:
        write(path, one, others, samples=not given.no_samples)
    except OSError as error:
        why = f"{path} cannot be written: {error.strerror or error}"
        raise Wrong(why, "--output FILE, in a folder that can be written to") from error
    size = path.stat().st_size
    if given.format == "json":
        write_json({"file": str(path), "bytes": size})
    else:
        shown = path.resolve()
        cwd = Path(os.getcwd()).resolve()
        place = shown.relative_to(cwd) if shown.is_relative_to(cwd) else shown
        print(f"report     {place} ({size / 1e6:.1f} MB): open it in a browser, or send it to somebody")
    return 0
