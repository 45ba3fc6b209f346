"""``declog check``: a profile compiled without training.

All that is wrong is told at once, each at its place. Exit codes: 0 all is well, 1 warnings under --strict,
2 the profile is wrong, 3 Hydra could not compose it.
"""

from __future__ import annotations

import argparse

from declog.cli.arguments import Parser
from declog.cli.output import write
from declog.cli.profiles import chosen


def arguments(parser: Parser) -> None:
    """A profile."""
    parser.profile()
    parser.formats()
    parser.add("--strict", action="store_true", help="exit with 1 where there are warnings")


def run(given: argparse.Namespace) -> int:
    """Compile it."""
    from declog.planning import plan

    made = plan(chosen(given))
    for warning in made.warnings:
        write(f"warning: {warning}")
    write(f"ok: {made.name}")
    return int(bool(made.warnings) and given.strict)
