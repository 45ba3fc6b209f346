"""``declog lock``: what profiles log, written into declog.lock: names, meanings and the versions of packages.

`declog check --locked` says when that has changed, after an upgrade of a package, and `declog diff --locked` shows it.

  declog lock conf/declog/mine.yaml        adds or renews one, several, or those of a folder
  declog lock mine profile=slim
  declog lock                              renews all that are in it
"""

from __future__ import annotations

import argparse

from declog.cli.arguments import Parser, Wrong
from declog.cli.output import GREEN, paint
from declog.errors.visible import visible

SUMMARY = "write down what profiles log, to notice what an upgrade changes"


def arguments(parser: Parser) -> None:
    """Profiles."""
    parser.profile("presets, YAML files, folders or pkg://MODULE, then overrides; by default all that are locked")
    parser.add("-m", "--multirun", action="store_true", help="lock each job of a sweep: profile=slim,full")


def run(given: argparse.Namespace) -> int:
    """Compile them, and write."""
    from declog.api import plan
    from declog.cli import locks
    from declog.cli.targets import configured, targets

    locked = locks.read()
    if not given.words and not locked:
        raise Wrong(f"there is no {locks.NAME} yet: say which profiles to lock", "declog lock conf/declog/mine.yaml")
    found = targets(given.words, sweep=given.multirun) if given.words else locks.targets(locked, None)
    made = dict(locked)
    for words in found:
        config = configured(given, words)
        made[locks.key(words)] = locks.entry(plan(config), config)
    locks.write(made)
    for words in found:
        outputs = len(made[locks.key(words)]["outputs"])
        print(f"{paint('locked', GREEN)} {visible(locks.key(words))}: {outputs} outputs")
    return 0
