"""``declog preview``: execute a config over a captured run, without training, sinks or files.

The default is the run's own config. Exit codes: 0 all is well, 2 the config is wrong or the capture lacks a required
signal, 3 Hydra could not compose the config.

  declog preview outputs/run                       what the run logged
  declog preview outputs/run grpo 'metrics.spread=std(reward)' --steps 10:20
  declog preview outputs/run --diff conf/declog/mine.yaml
"""

from __future__ import annotations

import argparse
import logging
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from declog.cli.arguments import Parser, Wrong
from declog.cli.output import BOLD, DIM, YELLOW, counted, paint, write_json
from declog.cli.recorded import as_data, as_text, differences, side_by_side, size
from declog.errors import did_you_mean
from declog.errors.visible import visible, visible_lines

if TYPE_CHECKING:
    from declog.plans.ops import Plan
    from declog.replay.capture_reader import Capture
    from declog.replay.playback import Events, Rehearsal

Steps = Callable[[int], bool]

GROUP = "check"
SUMMARY = "say what a config would have logged of a captured run"


def arguments(parser: Parser) -> None:
    """Add the capture, and one config or two."""
    parser.add("capture", metavar="CAPTURE", help="a capture's folder, or the folder of the run that has one")
    parser.config()
    parser.formats()
    parser.add("--diff", metavar="OTHER", help="another config, with its overrides in the same quotes, side by side")
    parser.add("--steps", metavar="STEPS", default="", help="steps to show, such as 3, 10:20 or 0,5:; default: some")
    parser.add("--sink", metavar="ID", help="what this sink would have got only")


@dataclass(frozen=True)
class Executed:
    """A config that was executed over a capture; ``sinks`` holds the records of each sink."""

    plan: Plan
    title: str
    rehearsal: Rehearsal
    sinks: dict[str, Events]


def run(args: argparse.Namespace) -> int:
    """Execute one config or two, and print the records that each sink would have got."""
    from declog.replay.capture_reader import config_of, load

    logging.getLogger("declog").addHandler(logging.NullHandler())  # failures are printed once, below
    _steps(args.steps)  # raises for a wrong option before anything else
    capture = load(args.capture)
    if args.words or args.config_name is not None:
        one = _executed(capture, args, *_chosen(args, args.words))
    else:
        one = _executed(capture, args, config_of(capture), "as captured")
    if args.diff is not None:
        other = argparse.Namespace(**{**vars(args), "config_name": None, "config_dir": None})
        named = other if args.config_name is not None else args
        _compare(args, capture, one, _executed(capture, args, *_chosen(named, shlex.split(args.diff))))
    elif args.format == "json":
        write_json({**_data(capture, one), "sinks": {key: as_data(events) for key, events in one.sinks.items()}})
    else:
        _head(capture)
        _report(one)
        _show(one, bool(args.steps))
    return 0


def _chosen(args: argparse.Namespace, words: Sequence[str]) -> tuple[Any, str]:
    from declog.cli.targets import configured

    return configured(args, words), " ".join(words) or str(args.config_name)


def _executed(capture: Capture, args: argparse.Namespace, config: Any, title: str) -> Executed:
    from declog.replay.capture_reader import execute, plan_for

    plan = plan_for(capture, config)
    rehearsal = execute(capture, plan, config)
    return Executed(plan, title, rehearsal, _sinks(rehearsal, args.sink, _steps(args.steps)))


def _steps(text: str) -> Steps:
    """``3``, ``10:20`` (without 20, as in Python), ``0,5:``."""
    ranges = []
    for part in filter(None, text.split(",")):
        first, colon, last = part.partition(":")
        try:
            low = int(first) if first else None
            high = (int(last) if last else None) if colon else int(first) + 1
        except ValueError:
            raise Wrong(f"--steps {text}: `{part}` is no range of steps", "--steps 3, 10:20 or 0,5:") from None
        ranges.append((low, high))
    return lambda step: (
        not ranges or any((low is None or step >= low) and (high is None or step < high) for low, high in ranges)
    )


def _sinks(rehearsal: Rehearsal, only: str | None, requested: Steps) -> dict[str, Events]:
    if only is not None and only not in rehearsal.events:
        raise Wrong(f"the config has no sink `{only}`", did_you_mean(only, rehearsal.events, what="sinks"))
    return {
        sink: [(step, records) for step, records in events if requested(step)]
        for sink, events in rehearsal.events.items()
        if only in (None, sink)
    }


# -- for people


def _head(capture: Capture) -> None:
    print(f"{visible(str(capture.folder))}: {capture.steps} steps of {counted(capture.world_size, 'rank')}")
    if capture.missing:
        shown = ", ".join(map(str, capture.missing))
        print(f"{paint('warning:', YELLOW)} the files of ranks {shown} are not here: values are partial")
    if capture.gaps:
        print(f"{paint('warning:', YELLOW)} {capture.gaps} steps were left out while the run was captured")
    if capture.run["every"] != 1 or capture.run["mode"] is not None:
        part = f"each {capture.run['every']}. log event" + (f" of {capture.run['mode']}" * bool(capture.run["mode"]))
        print(f"note: {part} was captured: what spans several log events differs from the run's")


def _report(one: Executed) -> None:
    print(f"{paint(one.plan.name, BOLD)} ({visible(one.title)})")
    for name, what in one.rehearsal.unknown.items():
        unknown = f"the run has the {what} `{visible(name)}`, which this config does not know (DL501)"
        print(f"{paint('warning:', YELLOW)} {unknown}")
    for failure, times in one.rehearsal.failures.items():
        print(f"{paint('warning:', YELLOW)} {visible_lines(failure)}" + (f" (x{times})" if times > 1 else ""))


def _show(one: Executed, everything: bool) -> None:
    profiles = {op.id: op.profile for op in one.plan.sinks}
    for sink, events in one.sinks.items():
        scalars = sum(len(records.scalars) for _, records in events)
        total = sum(size(step, records) for step, records in events)
        facts = [
            f"profile {profiles[sink]}" if sink in profiles else "the default profile",
            counted(len(events), "log event"), counted(scalars, "scalar"), f"{total:,} bytes as JSON",
        ]  # fmt: skip
        print(f"\n{paint(sink, BOLD)}  {paint(', '.join(facts), DIM)}")
        for line in as_text(events, everything):
            print(line)


def _compare(args: argparse.Namespace, capture: Capture, one: Executed, other: Executed) -> None:
    shared = {key: differences(one.sinks[key], other.sinks[key]) for key in one.sinks if key in other.sinks}
    alone = {
        "removed": [key for key in one.sinks if key not in other.sinks],
        "added": [key for key in other.sinks if key not in one.sinks],
    }
    if args.format == "json":
        configs = {"one": _data(capture, one), "other": _data(capture, other)}
        write_json({**configs, "sinks": {**alone, "changed": shared}})
        return
    _head(capture)
    _report(one)
    _report(other)
    for sign, key in (("-", "removed"), ("+", "added")):
        for sink in alone[key]:
            print(f"\n{sign} {paint(sink, BOLD)}")
    for sink, item in shared.items():
        print(f"\n{paint(sink, BOLD)}")
        for line in side_by_side(item):
            print(line)


# -- for programs


def _data(capture: Capture, one: Executed) -> dict[str, Any]:
    return {
        "capture": {
            "folder": str(capture.folder), "name": capture.run["name"], "steps": capture.steps, "bytes": capture.bytes,
            "world_size": capture.world_size, "missing_ranks": capture.missing, "left_out": capture.gaps,
        },
        "config": one.plan.name, "fingerprint": one.plan.fingerprint,
        "unknown": one.rehearsal.unknown, "failures": one.rehearsal.failures,
    }  # fmt: skip
