"""``declog diff``: compare what two configs log: outputs, tables, alerts, sinks and cost.

  declog diff grpo rloo                                    two configs; overrides at the end apply to both
  declog diff grpo metrics.reward.reduce=p95               a config without and with overrides
  declog diff grpo every=2 -- rloo every=4                 each with its own overrides
  declog diff outputs/run conf/declog/mine.yaml            what a run logged, and what the next one will log
  declog diff HEAD~3:conf/declog/mine.yaml conf/declog/mine.yaml
  declog diff --config-dir conf --config-name train -- algorithm=rloo

`-` marks entries of the first config only, `+` of the second only, `~` entries that differ. REV:FILE is a file at a
commit of git, with the other configs of its folder at that commit.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from declog.cli.arguments import DIVIDER, Parser, Wrong
from declog.cli.differences import differences, text
from declog.cli.output import answer
from declog.cli.targets import is_name

GROUP = "check"
SUMMARY = "compare what two configs log, and what it costs"


def arguments(parser: Parser) -> None:
    """Add the two configs."""
    parser.config("two configs with overrides for both; or one and overrides; or A ... -- B ...")
    parser.formats()
    parser.add("--strict", action="store_true", help="exit with 1 if they differ")


def run(args: argparse.Namespace) -> int:
    """Compare the two configs."""
    from declog.api import plan
    from declog.cli.targets import configured
    from declog.plans.words import facts

    sides = _sides(args.words, application=args.config_name is not None)
    before, after = (plan(configured(args, side, sides)) for side in sides)
    changes = differences(facts(before, after), facts(after, before))
    answer(args, {"same": not changes, "changes": changes}, [text(changes) or "they log the same"])
    return int(bool(changes) and args.strict)


def _sides(words: Sequence[str], *, application: bool) -> tuple[list[str], list[str]]:
    """The words of the first and of the second config."""
    if DIVIDER in words:
        at = words.index(DIVIDER)
        return list(words[:at]), [word for word in words[at + 1 :] if word != DIVIDER]
    names = list(filter(is_name, words))
    rest = [word for word in words if word not in names]
    if len(names) == 2 and not application:
        return [names[0], *rest], [names[1], *rest]
    if len(names) > 1 or not rest:
        raise Wrong("diff compares two configs", "declog diff grpo rloo, or declog diff grpo metrics.kl=null")
    return names, [*names, *rest]
