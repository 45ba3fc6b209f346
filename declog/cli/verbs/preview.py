"""``declog preview``: execute a config over a captured run, without training, sinks or files.

The default is the run's own config. Exit codes: 0 all is well, 2 the config is wrong or the capture lacks a required
signal, 3 Hydra could not compose the config.

  declog preview outputs/run                       what the run logged
  declog preview outputs/run every=2               what it would have logged with this override
  declog preview outputs/run grpo 'metrics.spread=std(reward)' --steps 10:20
  declog preview outputs/run --diff conf/declog/mine.yaml
"""

from __future__ import annotations

import argparse
import logging
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from declog.cli.arguments import Parser, Wrong
from declog.cli.output import BOLD, DIM, answer, counted, paint, warning
from declog.cli.recorded import as_data, as_text, differences, side_by_side, size
from declog.errors import did_you_mean
from declog.errors.visible import visible, visible_lines

if TYPE_CHECKING:
    from declog.config.composed import Composed
    from declog.plans.ops import Plan
    from declog.replay.capture_reader import Capture
    from declog.replay.playback import Events, Rehearsal

Steps = Callable[[int], bool]

GROUP = "check"
SUMMARY = "show what a config would have logged in a captured run"


def arguments(parser: Parser) -> None:
    """Add the capture, and one config or two."""
    parser.add("capture", metavar="CAPTURE", help="a capture's folder, or the folder of the run that has one")
    parser.config()
    parser.formats()
    parser.add("--diff", metavar="OTHER", help="another config to compare with; quote it together with its overrides")
    parser.add("--steps", metavar="STEPS", default="", help="such as 3, 10:20 or 0,5:; by default the first and last")
    parser.add("--sink", metavar="ID", help="only what this sink would have got")


@dataclass(frozen=True)
class Executed:
    """A config that was executed over a capture; ``sinks`` holds the records of each sink."""

    plan: Plan
    title: str
    rehearsal: Rehearsal
    sinks: dict[str, Events]


def run(args: argparse.Namespace) -> int:
    """Execute one config or two, and print the records that each sink would have got."""
    from declog.replay.capture_reader import load

    logging.getLogger("declog").addHandler(logging.NullHandler())  # failures are printed once, below
    steps = _steps(args.steps)
    capture = load(args.capture)
    one = _executed(capture, *_config(capture, args, args.words), args.sink, steps)
    if args.diff is None:
        data = {**_data(capture, one), "sinks": {key: as_data(events) for key, events in one.sinks.items()}}
        answer(args, data, _lines(capture, one, everything=bool(args.steps)))
        return 0
    if args.config_name is not None:  # OTHER is not an application's config
        args.config_name = args.config_dir = None
    other = _executed(capture, *_config(capture, args, shlex.split(args.diff)), args.sink, steps)
    sinks = {
        "removed": [key for key in one.sinks if key not in other.sinks],
        "added": [key for key in other.sinks if key not in one.sinks],
        "changed": {key: differences(one.sinks[key], other.sinks[key]) for key in one.sinks if key in other.sinks},
    }
    data = {"one": _data(capture, one), "other": _data(capture, other), "sinks": sinks}
    answer(args, data, _compared(capture, one, other, sinks))
    return 0


def _config(capture: Capture, args: argparse.Namespace, words: Sequence[str]) -> tuple[Composed, str]:
    """The config that the words name, and its title; the run's own config if the words are only overrides."""
    from declog.cli.targets import configured, names_and_overrides, written
    from declog.replay.capture_reader import config_of, text_of

    if args.config_name is not None or names_and_overrides(words)[0]:
        return configured(args, words), " ".join(words) or args.config_name
    title = " ".join(["as captured", *words])
    if not words:
        return config_of(capture), title
    # drop the problems: values from the environment may be missing here, as in the run's own config
    return replace(configured(args, [written(text_of(capture)), *words]), problems=()), title


def _executed(capture: Capture, config: Composed, title: str, sink: str | None, chosen: Steps) -> Executed:
    from declog.replay.capture_reader import execute, plan_for

    plan = plan_for(capture, config)
    rehearsal = execute(capture, plan, config)
    if sink is not None and sink not in rehearsal.events:
        raise Wrong(f"the config has no sink `{sink}`", did_you_mean(sink, rehearsal.events, what="sinks"))
    sinks = {
        name: [(step, records) for step, records in events if chosen(step)]
        for name, events in rehearsal.events.items()
        if sink in (None, name)
    }
    return Executed(plan, title, rehearsal, sinks)


def _steps(text: str) -> Steps:
    """A test for the steps of ``3``, ``10:20`` (without 20, as in Python) or ``0,5:``; of all steps if it is empty."""
    ranges = []
    for part in filter(None, text.split(",")):
        first, colon, last = part.partition(":")
        try:
            low = int(first) if first else -math.inf
            high = int(first) + 1 if not colon else int(last) if last else math.inf
        except ValueError:
            raise Wrong(f"--steps {text}: `{part}` is no range of steps", "--steps 3, 10:20 or 0,5:") from None
        ranges.append((low, high))
    return lambda step: not ranges or any(low <= step < high for low, high in ranges)


# -- for people


def _lines(capture: Capture, one: Executed, *, everything: bool) -> Iterator[str]:
    yield from _head(capture)
    yield from _report(one)
    profiles = {op.id: op.profile for op in one.plan.sinks}
    for sink, events in one.sinks.items():
        scalars = sum(len(records.scalars) for _, records in events)
        total = sum(size(step, records) for step, records in events)
        facts = [
            f"profile {profiles[sink]}" if sink in profiles else "the default profile",
            counted(len(events), "log event"), counted(scalars, "scalar"), f"{total:,} bytes as JSON",
        ]  # fmt: skip
        yield f"\n{paint(sink, BOLD)}  {paint(', '.join(facts), DIM)}"
        yield from as_text(events, everything)


def _compared(capture: Capture, one: Executed, other: Executed, sinks: Mapping[str, Any]) -> Iterator[str]:
    yield from _head(capture)
    yield from _report(one)
    yield from _report(other)
    for sign, key in (("-", "removed"), ("+", "added")):
        yield from (f"\n{sign} {paint(sink, BOLD)}" for sink in sinks[key])
    for sink, difference in sinks["changed"].items():
        yield f"\n{paint(sink, BOLD)}"
        yield from side_by_side(difference)


def _head(capture: Capture) -> Iterator[str]:
    yield f"{visible(str(capture.folder))}: {capture.steps} steps of {counted(capture.world_size, 'rank')}"
    if capture.missing:
        shown = ", ".join(map(str, capture.missing))
        yield warning(f"the files of ranks {shown} are not here: values are partial")
    if capture.gaps:
        yield warning(f"{capture.gaps} steps were left out while the run was captured")
    if capture.run["every"] != 1 or capture.run["mode"] is not None:
        part = f"each {capture.run['every']}. log event" + (f" of {capture.run['mode']}" * bool(capture.run["mode"]))
        yield f"note: {part} was captured: what spans several log events differs from the run's"


def _report(one: Executed) -> Iterator[str]:
    yield f"{paint(one.plan.name, BOLD)} ({visible(one.title)})"
    for name, what in one.rehearsal.unknown.items():
        yield warning(f"the run has the {what} `{visible(name)}`, which this config does not know (DL501)")
    for failure, times in one.rehearsal.failures.items():
        yield warning(visible_lines(failure) + (f" (x{times})" if times > 1 else ""))


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
