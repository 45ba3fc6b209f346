"""``declog show``: every name that trackers see for a config, with its definition.

declog show grpo metrics.reward.reduce=p95
declog show grpo --why metrics.reward       the layers that set it; also for a signal, or a name in a tracker
declog show outputs/run --why kl            for a run, also why the metric had no values
declog show grpo --yaml                     the YAML in effect, each value with its file and line
declog show grpo --key tables --key sinks   some keys of it
declog show grpo --plan                     what is recorded, computed and sent
declog show trl_grpo --inactive             what is switched off, and why
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from declog.cli.arguments import Parser, Wrong
from declog.cli.output import BOLD, answer, columns, paint, wrapped
from declog.errors.visible import visible_lines

if TYPE_CHECKING:
    from declog.plans.ops import Plan

GROUP = "look"
SUMMARY = "show what a config logs, its YAML with line numbers, and the layers that set a key"


def arguments(parser: Parser) -> None:
    """Add the config, and the parts to show."""
    parser.config()
    parser.formats()
    parser.add("--why", metavar="KEY", help="the layers that set it: metrics.kl.reduce, kl, or completions/mean_length")
    parser.add("--yaml", action="store_true", help="the YAML in effect, and the place that set each value")
    parser.add("--key", action="append", metavar="KEY", help="this key of the YAML, such as metrics.reward; repeatable")
    parser.add("--plan", action="store_true", help="the plan in words")
    parser.add("--inactive", action="store_true", help="the inactive entries, each with the reason")


def run(args: argparse.Namespace) -> int:
    """Print the requested parts."""
    from declog.api import plan
    from declog.cli import layers
    from declog.cli.targets import chosen

    ways = [name for name in ("why", "yaml", "key", "plan", "inactive") if vars(args)[name]]
    if len(ways) > 1 and set(ways) != {"yaml", "key"}:
        raise Wrong(f"show shows one thing: --{ways[0]} and --{ways[1]} are two", "leave one out")
    config = chosen(args)
    if args.why is not None:
        layers.why(args, config)
    elif args.yaml or args.key:
        layers.effective(args, config)
    else:
        _of_plan(plan(config), args)
    return 0


def _of_plan(plan: Plan, args: argparse.Namespace) -> None:
    from declog.plans.words import described, explain

    inactive = dict(plan.inactive)
    if args.plan:
        answer(args, described(plan), [visible_lines(explain(plan).rstrip())])
    elif args.inactive:
        text = columns(list(inactive.items()), colour=BOLD)
        answer(args, {"inactive": inactive}, [text or "nothing is inactive"])
    else:
        outputs = described(plan)["outputs"]
        answer(args, {"names": outputs, "inactive": inactive}, _names(plan, outputs))


def _names(plan: Plan, outputs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The names with their definitions, the user's own last, and a line for each other section."""
    from declog.language.nodes import LOGGED
    from declog.language.reductions import DEVIATIONS

    scalars = [sink.id for sink in plan.sinks if sink.accepts & {"scalar", "histogram"}]
    extended = any(output["metric"] not in (LOGGED, *plan.user_metrics) for output in outputs)
    preset: list[tuple[str, str]] = []
    users: list[tuple[str, str]] = []
    for output in outputs:
        # the deviation of a sample, as in torch, or of a population, as in numpy
        kind = DEVIATIONS.get(output["reduction"])
        sinks = f"to {' and '.join(output['sinks'])} only" if output["sinks"] else "in no sink's profile"
        only = "" if output["sinks"] == scalars else f" ({sinks})"
        rows = users if extended and output["metric"] in plan.user_metrics else preset
        rows.append((output["name"], output["words"] + (f"; of a {kind}" if kind else "") + only))
    yield columns(preset, colour=BOLD) or "no metric is shown"
    if users:
        yield paint("of your own:", BOLD)
        yield columns(users, colour=BOLD)
    sections = {
        "tables": [op.id for op in plan.tables],
        "alerts": [op.id for op in plan.alerts],
        "sinks": [f"{op.id} ({op.profile})" for op in plan.sinks],
        "inactive (--inactive says why)": [name for name, _ in plan.inactive],
    }
    for title, names in sections.items():
        if names:
            yield wrapped(", ".join(names), f"{paint(f'{title}:', BOLD)} ", len(title) + 2)
