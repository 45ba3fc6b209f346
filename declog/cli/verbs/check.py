"""``declog check``: compile configs without training, with the options of their sinks and the names in their tests.

It reports all errors at once, each with its position. Exit codes: 0 all is well, 1 warnings under --strict or a lock
that differs, 2 a config is wrong, 3 Hydra could not compose one.

  declog check grpo metrics.reward.reduce=p95 'metrics.spread=std(reward)' sinks=[jsonl]
  declog check conf/declog/mine.yaml conf/declog/other.yaml --strict
  declog check conf                                        every config in a folder
  declog check pkg://acme_logging.conf                     every preset of a package
  declog check -m mine every=1,10 profile=slim,full        every job of a sweep
  declog check --config-dir conf --config-name train algorithm=rloo
  declog check mine --lock                                 write declog.lock: what the config logs
  declog check --locked                                    compare with declog.lock, after an upgrade
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any

from declog.cli.arguments import Parser, Wrong
from declog.cli.output import DIM, GREEN, RED, YELLOW, as_github, counted, paint, wrapped, write_error, write_json
from declog.distribution import NAME, install, namesake
from declog.errors import CompositionError, ConfigError, Problem, RuntimeFailure
from declog.errors.visible import visible, visible_lines

if TYPE_CHECKING:
    from declog.config.composed import Composed
    from declog.plans.ops import Plan

GROUP = "check"
SUMMARY = "compile configs and say everything that is wrong with them"
OK, DIFFERENT, INVALID, UNCOMPOSED = 0, 1, 2, 3


@dataclass
class Checked:
    """The result for one config. ``changes`` are the differences from its lock, in words."""

    words: Sequence[str]
    config: Composed | None = None
    plan: Plan | None = None
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: Sequence[Problem] = ()
    code: int = OK
    timings: dict[str, float] = field(default_factory=dict)
    changes: str = ""

    @property
    def label(self) -> str:
        """Its name on a command line."""
        return " ".join(self.words) or (self.plan.name if self.plan is not None else "grpo")


def arguments(parser: Parser) -> None:
    """Add the configs, and the options for reports and locks."""
    parser.config("presets, YAML files, folders or pkg://MODULE, then overrides for all of them")
    parser.formats("github")
    parser.add("-m", "--multirun", action="store_true", help="check each job of a sweep: every=1,10")
    parser.add("--strict", action="store_true", help="exit with 1 where there are warnings")
    parser.add("--fix", action="store_true", help="write what keeps the meaning into files: names that were changed")
    parser.add("--lock", action="store_true", help="write what is logged into declog.lock, to notice what changes it")
    parser.add("--locked", action="store_true", help="exit with 1 where anything else is logged than --lock wrote")
    parser.add("--timings", action="store_true", help="say how long imports, Hydra and declog took")


def run(args: argparse.Namespace) -> int:
    """Compile them."""
    from declog.cli import locks
    from declog.cli.targets import targets

    if args.lock and args.locked:
        raise Wrong("--lock writes the lock, and --locked compares with it", "one of them")
    locked = locks.read() if args.lock or args.locked else {}
    configs = targets(args.words, sweep=args.multirun)
    if args.locked or (args.lock and not args.words):
        configs = locks.targets(locked, configs if args.words else None)
    results = [_checked(args, words) for words in configs]
    if args.fix and _fixed(results, quiet=args.format != "text"):
        results = [_checked(args, words) for words in configs]
    entries = {}
    if args.lock or args.locked:
        entries = {
            locks.key(result.words): locks.entry(result.plan, result.config)
            for result in results
            if result.plan is not None and result.config is not None
        }
    if args.lock and not any(result.code for result in results):
        locks.write({**locked, **entries})
    elif args.locked:
        for result in results:
            if (now := entries.get(locks.key(result.words))) is not None:
                result.changes = locks.changes(locked, result.words, now)
                result.code = result.code or (DIFFERENT if result.changes else OK)
    if (version := namesake()) is not None:
        print(f"warning: {RuntimeFailure.of('DL610.two_versions', version=version, package=NAME)}", file=sys.stderr)
    _shown(results, args)
    codes = [result.code or int(args.strict and bool(result.warnings)) for result in results]
    return max(codes)


def _checked(args: argparse.Namespace, words: Sequence[str]) -> Checked:
    clock = [time.perf_counter()]
    from functools import partial

    from declog.api import plan
    from declog.cli.targets import configured
    from declog.compiler import compile
    from declog.plans.ops import NO_SINK
    from declog.replay.prepared import faults

    clock.append(time.perf_counter())
    done = Checked(words)
    try:
        done.config = config = configured(args, words)
        clock.append(time.perf_counter())
        done.plan = plan(config)
        done.warnings = list(map(str, done.plan.warnings))
        done.warnings += [] if done.plan.sinks or done.plan.capture else [NO_SINK]
        make = partial(compile, imports=frozenset(config.imports))
        problems, stale = faults(config, make)
        if problems:
            raise config.located(ConfigError(problems))
        done.notes += [*_unseen(config, done.plan), *_unopened(config)]
        if stale:
            dropped = ", ".join(f"{name}: null" for name in stale)
            done.notes.append(f"tests expect what this config has no more; drop them: `tests: {{{dropped}}}`")
    except ConfigError as error:
        done.plan, done.problems = None, error.problems
        done.code = UNCOMPOSED if isinstance(error, CompositionError) else INVALID
    clock.append(time.perf_counter())
    spans = zip(("imports", "hydra", "declog"), clock, clock[1:], strict=False)
    done.timings = {name: round(end - start, 4) for name, start, end in spans}
    return done


def _unseen(config: Composed, plan: Plan) -> list[str]:
    """A note on the user's own metrics that no sink shows; a preset leaves out its own on purpose."""
    names = [name for name in plan.unseen if config.home(("metrics", name)) is None]
    if not names:
        return []
    profile = min(sink.profile for sink in plan.sinks)
    edit = f"profiles: {{{profile}: {{show: [{', '.join(names)}]}}}}"
    return [f"no sink shows {', '.join(f'`{name}`' for name in names)}: {edit}"]


def _unopened(config: Composed) -> list[str]:
    """A note on the user's own options for sinks that `sinks` does not list."""
    from declog.language.validation import validate

    opened = validate(config.data).sinks
    names = [name for name in config.data.get("sink_options") or () if name not in opened]
    unlisted = [name for name in names if config.home(("sink_options", name)) is None]
    return [
        f"`sink_options.{name}` has no effect: no `sinks` names it; sinks: [{', '.join([*opened, name])}]"
        for name in unlisted
    ]


def _fixed(results: Sequence[Checked], *, quiet: bool) -> bool:
    """Apply the fixes; whether a file was written."""
    from declog.cli.fixes import apply

    lines = apply([problem for result in results for problem in result.problems])
    for line in lines if not quiet else ():
        print(f"{paint('fixed', GREEN)} {visible(line)}")
    return bool(lines)


# -- what is printed


def _shown(results: Sequence[Checked], args: argparse.Namespace) -> None:
    if args.format == "json":
        listed = [_as_dict(result, timings=args.timings) for result in results]
        write_json(listed[0] if len(listed) == 1 else listed)
        return
    if args.format == "github":
        for line in dict.fromkeys(line for result in results for line in as_github(result.problems, result.warnings)):
            print(line)
    reported: set[str] = set()
    several = len(results) > 1
    for result in results:
        if result.plan is not None:
            _report(result, args, several=several)
            continue
        if several:
            sys.stdout.flush()
            print(paint(f"not ok {visible(result.label)}", RED))
        if args.format == "text":
            new = [problem for problem in result.problems if problem.text() not in reported]  # configs may share a base
            reported |= {problem.text() for problem in new}
            if new:
                write_error(ConfigError(new))


def _report(result: Checked, args: argparse.Namespace, *, several: bool) -> None:
    from declog.cli import locks
    from declog.language.nodes import LOGGED

    plan = result.plan
    assert plan is not None
    for warning in result.warnings if args.format == "text" else ():
        print(wrapped(visible_lines(str(warning)), f"{paint('warning:', YELLOW)} ", len("warning: ")))
    for note in result.notes if args.format == "text" else ():
        print(wrapped(note, "note: ", len("note: ")))
    for kind, extra in _missing(plan).items():
        print(f"note: the sink {kind} is not installed here: {install(extra)}")
    if plan.inactive and not several:
        shown = ", ".join(what for what, _ in plan.inactive[:3]) + (", ..." if len(plan.inactive) > 3 else "")
        print(paint(f"inactive: {shown}:\n  `declog show --inactive` says why", DIM))
    if result.changes:
        print(f"{result.changes}\n")
    parts = [
        counted(sum(len(op.names) for op in plan.outputs if op.shown and op.id != LOGGED), "output"),
        counted(len(plan.tables), "table"),
        counted(len(plan.alerts), "alert"),
        f"{counted(len(plan.sinks), 'sink')} ({', '.join(op.id for op in plan.sinks)})" if plan.sinks else "no sink",
    ]
    mark = paint("ok", GREEN) if not result.changes else paint("changed", YELLOW)
    label = result.label if several else plan.name
    print(wrapped(f"{visible(label)}: {', '.join(parts)}", f"{mark} ", 3))
    if result.changes:
        print(f"  fix: declog check {locks.key(result.words)} --lock, where that is wanted")
    for name, seconds in result.timings.items() if args.timings else ():
        print(f"  {name:<8} {seconds:.3f} s")


def _missing(plan: Plan) -> dict[str, str]:
    """The kinds of enabled sinks whose package is not installed, each with its pip extra."""
    from declog.sinks import traits

    kinds = {op.kind: traits(op.kind) for op in plan.sinks}
    return {
        kind: kind_traits.extra
        for kind, kind_traits in sorted(kinds.items())
        if kind_traits.extra and not list(metadata.Distribution.discover(name=kind_traits.package))
    }


def _as_dict(result: Checked, *, timings: bool) -> dict[str, Any]:
    from declog.config.diagnostics import as_dict

    data: dict[str, Any] = {"ok": result.plan is not None, "words": list(result.words)}
    plan = result.plan
    if plan is not None:
        data |= {"name": plan.name, "fingerprint": plan.fingerprint}
    data |= {"problems": [as_dict(problem) for problem in result.problems], "warnings": result.warnings}
    data |= {"notes": result.notes} if result.notes else {}
    if plan is not None:
        data |= {"inactive": dict(plan.inactive), "not_installed": list(_missing(plan))}
    if result.changes:
        data["changes"] = result.changes
    return {**data, "timings": result.timings} if timings else data
