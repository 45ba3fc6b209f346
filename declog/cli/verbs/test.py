"""``declog test``: run the tests in a config's section `tests`.

Exit codes: 0 all passed, 2 one failed or the config is wrong, 3 Hydra could not compose it.

  declog test grpo
  declog test conf/declog/mine.yaml -k clip
  declog test --config-dir conf --config-name train
"""

from __future__ import annotations

import argparse
import logging
from dataclasses import asdict

from declog.cli.arguments import Parser, Wrong
from declog.cli.output import GREEN, RED, answer, counted, paint

GROUP = "check"
SUMMARY = "run a config's own tests"


def arguments(parser: Parser) -> None:
    """Add the config and the choice of tests."""
    parser.config()
    parser.formats()
    parser.add("-k", dest="select", metavar="NAME", default="", help="those whose name contains this, or matches it")


def run(args: argparse.Namespace) -> int:
    """Run the tests and print the differences."""
    from declog.cli.targets import chosen
    from declog.replay.config_tests import config_tests

    logging.getLogger("declog").addHandler(logging.NullHandler())  # a failure is reported as a difference
    tests = config_tests(chosen(args), select=args.select)
    if not tests:
        fix = "declog test without -k" if args.select else "tests: {NAME: {observe: {...}, expect: {...}}}"
        raise Wrong(f"the config has no test{f' like `{args.select}`' if args.select else ''}", fix)
    results = [test.run() for test in tests]
    failed = sum(not result.passed for result in results)
    skipped = sum(result.skipped for result in results)
    data = [
        {
            "name": one.name,
            "passed": one.passed,
            "skipped": one.skipped,
            "differences": list(map(asdict, one.differences)),
        }
        for one in results
    ]
    lines = [paint(str(result), GREEN if result.passed else RED) for result in results]
    outcome = f"{counted(len(results), 'test')}: {f'{failed} failed' if failed else 'all passed'}"
    outcome += f", {skipped} skipped" if skipped else ""
    answer(args, data, [*lines, outcome])
    return 2 if failed else 0
