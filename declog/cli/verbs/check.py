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
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from declog.cli.arguments import DIFFERENT, INVALID, OK, UNCOMPOSED, Parser, Wrong
from declog.cli.output import DIM, GREEN, RED, YELLOW, as_github, counted, paint, wrapped, write_error, write_json
from declog.cli.targets import DEFAULT
from declog.distribution import NAME, install, namesake
from declog.errors import CompositionError, ConfigError, Problem, RuntimeFailure
from declog.errors.visible import visible, visible_lines

if TYPE_CHECKING:
    from declog.config.composed import Composed
    from declog.plans.ops import Plan

GROUP = "check"
SUMMARY = "compile configs and report all their errors"


@dataclass
class Checked:
    """The result for one config, with the name of its entry in a lock. ``changes`` are the differences, in words."""

    key: str
    words: Sequence[str]
    config: Composed | None = None
    plan: Plan | None = None
    error: ConfigError | None = None
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    not_installed: dict[str, str] = field(default_factory=dict)  # kinds of sinks, each with its pip extra
    timings: dict[str, float] = field(default_factory=dict)
    changes: str = ""

    def code(self, *, strict: bool) -> int:
        """The exit code."""
        if self.error is not None:
            return UNCOMPOSED if isinstance(self.error, CompositionError) else INVALID
        return DIFFERENT if self.changes or (strict and self.warnings) else OK


def arguments(parser: Parser) -> None:
    """Add the configs, and the options for reports and locks."""
    parser.config("presets, YAML files, folders or pkg://MODULE, then overrides for all of them")
    parser.formats("github")
    parser.add("-m", "--multirun", action="store_true", help="check each job of a sweep: every=1,10")
    parser.add("--strict", action="store_true", help="exit with 1 if there are warnings")
    parser.add("--fix", action="store_true", help="write fixes that keep the meaning into your files: renamed names")
    parser.add("--lock", action="store_true", help="write declog.lock: what each config logs")
    parser.add("--locked", action="store_true", help="exit with 1 if a config logs something else than in declog.lock")
    parser.add("--timings", action="store_true", help="print how long imports, Hydra and declog took")


def run(args: argparse.Namespace) -> int:
    """Compile the configs, and print or write the results."""
    from declog.cli import locks
    from declog.cli.targets import targets

    if args.lock and args.locked:
        raise Wrong("--lock writes the lock, and --locked compares with it", "one of them")
    locked = locks.read() if args.lock or args.locked else {}
    configs: locks.Targets = {
        locks.key(args, words): (args, words) for words in targets(args.words, sweep=args.multirun)
    }
    if args.locked or (args.lock and not args.words and args.config_name is None):
        configs = locks.targets(args, locked, configs)
    results = [_checked(key, *config) for key, config in configs.items()]
    if args.fix and _fixed(results, quiet=args.format != "text"):
        results = [_checked(key, *config) for key, config in configs.items()]
    if args.lock or args.locked:
        entries = {
            result.key: locks.entry(result.plan, result.config)
            for result in results
            if result.plan is not None and result.config is not None
        }
        if args.locked:
            for result in results:
                now = entries.get(result.key)
                result.changes = "" if now is None else locks.changes(locked[result.key], now)
        elif all(result.error is None for result in results):
            locks.write({**locked, **entries})
    if (version := namesake()) is not None:
        print(f"warning: {RuntimeFailure.of('DL610.two_versions', version=version, package=NAME)}", file=sys.stderr)
    if args.format == "json":
        listed = [_as_dict(result, timings=args.timings) for result in results]
        write_json(listed[0] if len(listed) == 1 else listed)
    else:
        _print(results, args)
        if args.lock and all(result.error is None for result in results):
            print(f"wrote ./{locks.NAME}")
    return max(result.code(strict=args.strict) for result in results)


def _checked(key: str, args: argparse.Namespace, words: Sequence[str]) -> Checked:
    clock = [time.perf_counter()]
    from functools import partial

    from declog.api import plan
    from declog.cli.targets import configured
    from declog.compiler import compile
    from declog.config.compose import imports_of
    from declog.notes import counted_again, matched, notes, of_several, unread
    from declog.plans.ops import NO_SINK
    from declog.replay.prepared import faults

    clock.append(time.perf_counter())
    done = Checked(key, words)
    try:
        done.config = config = configured(args, words)
        clock.append(time.perf_counter())
        compiled = plan(config)
        done.warnings = list(map(str, compiled.warnings))
        done.warnings += [] if compiled.sinks or compiled.capture else [NO_SINK]
        problems, stale = faults(config, partial(compile, imports=imports_of(config)))
        if problems:
            raise config.located(ConfigError(problems))
    except ConfigError as error:
        done.error = error
    else:
        done.plan = compiled
        done.not_installed = _not_installed(compiled)
        rules = (notes, matched, counted_again, of_several, unread)
        done.notes = [note for rule in rules for note in rule(config, compiled)]
        if stale:
            dropped = f"`tests: {{{', '.join(f'{name}: null' for name in stale)}}}`"
            dropped = " ".join(f"'~tests.{name}'" for name in stale) if config.overrides else dropped
            done.notes.append(f"tests expect what this config has no more; drop them: {dropped}")
    clock.append(time.perf_counter())
    spans = zip(("imports", "hydra", "declog"), clock, clock[1:], strict=False)
    done.timings = {name: round(end - start, 4) for name, start, end in spans}
    return done


def _not_installed(plan: Plan) -> dict[str, str]:
    """The kinds of enabled sinks whose package is not installed, each with its pip extra."""
    from declog.sinks import traits

    kinds = {op.kind: traits(op.kind) for op in plan.sinks}
    return {
        kind: kind_traits.extra
        for kind, kind_traits in sorted(kinds.items())
        if kind_traits.extra and not list(metadata.Distribution.discover(name=kind_traits.package))
    }


def _fixed(results: Sequence[Checked], *, quiet: bool) -> bool:
    """Apply the fixes, and return whether a file was written."""
    lines = _fix(problem for result in results for problem in _problems(result))
    for line in lines if not quiet else ():
        print(f"{paint('fixed', GREEN)} {visible(line)}")
    return bool(lines)


def _fix(problems: Iterable[Problem]) -> list[str]:
    """Write fixes that keep the meaning into the user's own files; return a line for each: its place, old and new text.

    A problem's ``replacement`` replaces the text that its excerpt marks. Files of installed packages stay unchanged.
    """
    from declog.config.search_path import provider_of
    from declog.config.source_map import LINE_BREAK

    edits: dict[tuple[str, int, int, int], tuple[str, str]] = {}
    for problem in problems:
        where = problem.where
        if where is None or where.excerpt is None or where.file is None or where.line is None:
            continue
        excerpt = where.excerpt
        marked = excerpt.text[excerpt.start : excerpt.end]
        users_own = provider_of(str(Path(where.file).absolute())) is None
        if problem.replacement and marked == problem.replacement[0] and users_own:
            edits[where.file, where.line, excerpt.start, excerpt.end] = problem.replacement
    for (file, line, start, end), (_, new) in sorted(edits.items(), reverse=True):  # from the end: columns stay valid
        path = Path(file)
        pieces = re.split(f"({LINE_BREAK.pattern})", path.read_bytes().decode("utf-8"))
        at = 2 * (line - 1)  # the line breaks are pieces, too
        pieces[at] = pieces[at][:start] + new + pieces[at][end:]
        path.write_bytes("".join(pieces).encode("utf-8"))
    return [f"{file}:{line}:{start + 1} `{old}` -> `{new}`" for (file, line, start, _), (old, new) in edits.items()]


def _problems(result: Checked) -> Sequence[Problem]:
    return () if result.error is None else result.error.problems


# -- printing


def _print(results: Sequence[Checked], args: argparse.Namespace) -> None:
    if args.format == "github":
        annotations = (line for result in results for line in as_github(_problems(result), result.warnings))
        for line in dict.fromkeys(annotations):
            print(line)
    several = len(results) > 1
    reported: set[str] = set()
    for result in results:
        if result.plan is not None:
            for line in _lines(result, result.plan, args, several=several):
                print(line)
            continue
        if several:
            print(paint(f"not ok {visible(' '.join(result.words) or DEFAULT)}", RED), flush=True)
        new = [problem for problem in _problems(result) if problem.text() not in reported]  # configs may share a base
        reported |= {problem.text() for problem in new}
        if new and args.format == "text":
            write_error(ConfigError(new))


def _lines(result: Checked, plan: Plan, args: argparse.Namespace, *, several: bool) -> Iterator[str]:
    """The lines for a config that compiles."""
    from declog.cli.targets import is_name
    from declog.language.nodes import LOGGED

    if args.format == "text":  # with `github` they are annotations
        for text in result.warnings:
            yield wrapped(visible_lines(text), f"{paint('warning:', YELLOW)} ", len("warning: "))
        yield from (wrapped(note, "note: ", len("note: ")) for note in result.notes)
    for kind, extra in result.not_installed.items():
        yield f"note: the sink {kind} is not installed here: {install(extra)}"
    if plan.inactive and not several:
        config, names = result.config, [what for what, _ in plan.inactive]
        if config is not None:  # the user's own entries first
            names.sort(key=lambda what: config.home(tuple(what.split("."))) is not None)
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        yield paint(f"inactive: {shown}:\n  `declog show --inactive` says why", DIM)
    parts = [
        counted(sum(len(op.names) for op in plan.outputs if op.shown and op.id != LOGGED), "output"),
        counted(len(plan.tables), "table"),
        counted(len(plan.alerts), "alert"),
        f"{counted(len(plan.sinks), 'sink')} ({', '.join(op.id for op in plan.sinks)})" if plan.sinks else "no sink",
    ]
    typed = result.words if several else [word for word in result.words[:1] if is_name(word)]
    label = f"{' '.join(typed) or plan.name}: {', '.join(parts)}"
    if result.changes:
        yield f"{result.changes}\n"
        yield wrapped(visible(label), f"{paint('changed', YELLOW)} ", 3)
        yield f"  fix: declog check {result.key} --lock, where that is wanted"
    else:
        yield wrapped(visible(label), f"{paint('ok', GREEN)} ", 3)
    for name, seconds in result.timings.items() if args.timings else ():
        yield f"  {name:<8} {seconds:.3f} s"


def _as_dict(result: Checked, *, timings: bool) -> dict[str, Any]:
    from declog.config.problems.diagnostics import as_dict

    plan = result.plan
    data: dict[str, Any] = {"ok": plan is not None, "words": list(result.words)}
    data |= {} if plan is None else {"name": plan.name, "fingerprint": plan.fingerprint}
    data |= {"problems": list(map(as_dict, _problems(result))), "warnings": result.warnings}
    data |= {"notes": result.notes} if result.notes else {}
    data |= {} if plan is None else {"inactive": dict(plan.inactive), "not_installed": list(result.not_installed)}
    data |= {"changes": result.changes} if result.changes else {}
    return {**data, "timings": result.timings} if timings else data
