"""``declog report``: write a run as one HTML file, or a folder of runs as a table with a page for each. Works offline.

RUN is the folder of a run with a parquet or a jsonl sink. The run may go on, or have been killed. If RUN is a folder of
several runs, each run gets a page, and a table links to the pages.

  declog report outputs/grpo/2026-11-21_10-00-00
  declog report outputs
  declog report runs/a --watch 30
  declog report runs/a --compare runs/b runs/c
  declog report runs/a --no-samples --output a.html
"""

from __future__ import annotations

import argparse
import os
import shlex
import time
from pathlib import Path

from declog.cli.arguments import Parser, Wrong
from declog.cli.output import answer

GROUP = "runs"
SUMMARY = "write a run, or a folder of runs, as HTML files to look at"
FILE = "report.html"
MOST = 2  # the most runs to compare with
SECONDS = 10.0  # between two looks at a watched run


def arguments(parser: Parser) -> None:
    """Add the run, the runs to compare it with, and the output file."""
    parser.add("run", metavar="RUN", help="the run's folder, or one with several runs below it")
    parser.add("--compare", metavar="RUN2", nargs="+", default=[], help=f"compare it with other runs, {MOST} at most")
    parser.add("--no-samples", action="store_true", help="leave out the rows of tables")
    parser.add(
        "--run-id", metavar="ID", help="one of several runs that were appended to the folder; the last by default"
    )
    parser.add("--output", metavar="FILE", help=f"where it goes, or a folder for {FILE}; the run's folder by default")
    parser.add(
        "--watch", metavar="SECONDS", nargs="?", const=str(SECONDS),
        help="write it again as the run grows, until it ends or Ctrl-C; a page that is open follows. "
        f"Looks every {SECONDS:.0f} seconds, or as often as you say",
    )  # fmt: skip
    parser.formats()


def run(args: argparse.Namespace) -> int:
    """Write the page and print its path; with ``--watch``, write it again until the run has ended."""
    from declog.config.source_map import shown_path
    from declog.runs.report.many import RunsReport
    from declog.runs.report.page import goes_on, is_current, write
    from declog.runs.run import read, runs_in

    seconds = _seconds(args.watch)
    if len(args.compare) > MOST:
        raise Wrong(f"--compare: {len(args.compare)} runs", f"name {MOST} at most")
    folder = Path(os.path.realpath(args.run))
    samples = not args.no_samples
    several = len(runs_in(folder))
    if several > 1:
        for option, value in (("--compare", args.compare), ("--run-id", args.run_id)):
            if value:
                raise Wrong(f"{option} is for one run, and {args.run} holds {several}", "name the folder of one")
        path = _file(Path(args.output or folder))
        report = RunsReport(folder, path, samples=samples)
        words = f"a table of {several} runs, with a page of each"
    else:
        path = _file(Path(args.output or read(args.run, run_id=args.run_id).path))
        words = "open it in a browser, or send it to somebody"

    def written(seconds: float | None) -> bool:
        """Write the pages whose runs have grown; return whether a run goes on. Pages reload each ``seconds``."""
        if several > 1:
            return report.write(runs_in(folder), seconds)
        runs = [read(args.run, run_id=args.run_id), *map(read, args.compare)]
        live = any(map(goes_on, runs))
        every = seconds if live else None
        if seconds is None or not is_current(path, runs, samples=samples, every=every):
            write(path, runs[0], runs[1:], samples=samples, every=every)
        return live

    try:
        try:
            live = written(seconds)
            size = path.stat().st_size
            line = f"report     {shown_path(path.resolve())} ({size / 1e6:.1f} MB): {words}"
            answer(args, {"file": str(path), "bytes": size}, [line])
            while live and seconds is not None:
                time.sleep(seconds)
                live = written(seconds)
        except KeyboardInterrupt:
            if seconds is None:
                raise
            written(None)  # without --watch the pages never reload
    except OSError as error:
        why = f"{error.filename or path} cannot be written: {error.strerror or error}"
        raise Wrong(why, "--output FILE, in a folder that can be written to") from error
    return 0


def _seconds(text: str | None) -> float | None:
    """The seconds between two looks; None without ``--watch``."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        raise Wrong(f"--watch: `{text}` is no number of seconds", f"declog report {text} --watch") from None
    if not 0.1 <= seconds <= 86400:
        raise Wrong(f"--watch: {text} seconds", "between 0.1 and 86400")
    return seconds


def _file(path: Path) -> Path:
    """The output file of a report; in a folder it has the usual name."""
    file = path / FILE if path.is_dir() else path
    if not file.parent.is_dir():
        raise Wrong(f"--output: there is no folder `{file.parent}`", f"mkdir -p {shlex.quote(str(file.parent))}")
    return file
