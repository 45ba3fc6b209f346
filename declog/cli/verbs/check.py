"""``declog check``: a profile compiled without training, with its sinks' options.

All that is wrong is reported at once, each at its place. Exit codes: 0 all is well, 1 warnings under --strict,
2 the profile is wrong, 3 Hydra could not compose it.

  declog check grpo metrics.reward.reduce=p95 'metrics.spread=std(reward)' sinks=[jsonl]
  declog check conf/declog/mine.yaml --strict
  declog check --config-dir conf --config-name train algorithm=rloo
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from typing import TYPE_CHECKING, Any

from declog.cli.arguments import Parser
from declog.cli.output import DIM, GREEN, YELLOW, paint, write_json
from declog.messages.visible import visible, visible_lines

if TYPE_CHECKING:
    from declog.plans.ops import Plan

SUMMARY = "compile a profile and say everything that is wrong with it"


def arguments(parser: Parser) -> None:
    """A profile, and what to make of warnings."""
    parser.profile()
    parser.formats()
    parser.add("--strict", action="store_true", help="exit with 1 where there are warnings")
    parser.add("--timings", action="store_true", help="say how long imports, Hydra and declog took")


def run(given: argparse.Namespace) -> int:
    """Compile it."""
    clock = [time.perf_counter()]
    from declog.api import plan
    from declog.cli.profiles import chosen

    clock.append(time.perf_counter())
    config = chosen(given)
    clock.append(time.perf_counter())
    made = plan(config)
    warnings = list(map(str, made.warnings))
    clock.append(time.perf_counter())
    timings = {
        name: round(end - start, 4)
        for name, start, end in zip(("imports", "hydra", "declog"), clock, clock[1:], strict=False)
    }
    if given.format == "json":
        write_json(_as_dict(made, warnings, timings if given.timings else None))
    else:
        _report(made, warnings, timings if given.timings else {})
    return int(bool(warnings) and given.strict)


def _report(made: Plan, warnings: list[str], timings: dict[str, float]) -> None:
    from declog.compiler.draft import LOGGED

    for warning in warnings:
        print(f"{paint('warning:', YELLOW)} {visible_lines(str(warning))}")
    for kind, extra in _missing(made).items():
        print(f"note: the sink {kind} is not installed here: pip install 'declog[{extra}]'")
    if made.inactive:
        shown = ", ".join(what for what, _ in made.inactive[:4]) + (", ..." if len(made.inactive) > 4 else "")
        print(paint(f"inactive: {shown}: `declog show --inactive` says why", DIM))
    parts = [
        _count(sum(len(op.names) for op in made.outputs if op.shown and op.id != LOGGED), "output"),
        _count(len(made.tables), "table"),
        _count(len(made.alerts), "alert"),
        f"{_count(len(made.sinks), 'sink')} ({', '.join(op.id for op in made.sinks)})" if made.sinks else "no sink",
    ]
    print(f"{paint('ok', GREEN)} {visible(made.name)}: {', '.join(parts)}")
    for name, seconds in timings.items():
        print(f"  {name:<8} {seconds:.3f} s")


def _missing(made: Plan) -> dict[str, str]:
    """The kinds of the enabled sinks whose package is not installed, each with the pip extra that brings it."""
    from declog.sinks import traits

    kinds = {op.kind: traits(op.kind) for op in made.sinks}
    return {
        kind: found.extra
        for kind, found in sorted(kinds.items())
        if found.extra and importlib.util.find_spec(found.package) is None
    }


def _as_dict(made: Plan, warnings: list[str], timings: dict[str, float] | None) -> dict[str, Any]:
    found = {
        "ok": True,
        "name": made.name,
        "fingerprint": made.fingerprint,
        "problems": [],
        "warnings": warnings,
        "inactive": dict(made.inactive),
        "not_installed": list(_missing(made)),
    }
    return found if timings is None else {**found, "timings": timings}


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
