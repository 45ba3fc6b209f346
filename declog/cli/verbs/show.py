"""``declog show``: a profile as it is in effect, each value with the file and line, or the override, that set it.

declog show grpo metrics.reward.reduce=p95
declog show grpo --key tables --key sinks   some keys only
declog show grpo --plan                     what is recorded, computed and sent
declog show grpo --names                    every name that trackers see, and what it is
declog show trl_grpo --inactive             what is switched off, and why
declog show --from outputs/run              a profile of what a captured run observed, to begin with
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from declog.cli.arguments import Parser, Wrong
from declog.cli.output import BOLD, DIM, columns, paint, write_json
from declog.errors import ConfigError, Path
from declog.errors.visible import visible, visible_lines

if TYPE_CHECKING:
    from declog.cli.layers import Layered
    from declog.config.composed import Composed
    from declog.plans.ops import FormulaOp, MetricOp, Plan

COMMENTS_AT = 64  # no comment starts further to the right, unless its line is longer

SUMMARY = "show a profile as it is in effect, and where each value came from"


def arguments(parser: Parser) -> None:
    """A profile, and what to show of it."""
    parser.profile()
    parser.formats()
    for name, text in (
        ("plan", "the plan in words"),
        ("names", "every output's name, what it is, and which profiles and sinks show it"),
        ("inactive", "what is not compiled, and why"),
    ):
        parser.add(f"--{name}", action="store_true", help=text)
    parser.add("--from", metavar="CAPTURE", dest="capture", help="the YAML of what a captured run observed")
    parser.add("--key", action="append", metavar="KEY", help="this key only, such as metrics.reward; may be repeated")


def run(given: argparse.Namespace) -> int:
    """Show it."""
    of_plan = [f"--{name}" for name in ("plan", "names", "inactive") if vars(given)[name]]
    if given.key and of_plan:
        raise Wrong(f"--key shows keys of the YAML, and {of_plan[0]} what is made of all of it", "one of them")
    if given.capture is not None:
        return _observed(given, of_plan)
    from declog.api import plan
    from declog.cli.targets import chosen

    config = chosen(given)
    if of_plan:
        _of_plan(plan(config), given)
    else:
        _profile(config, given)
    return 0


def _observed(given: argparse.Namespace, of_plan: list[str]) -> int:
    """Print a profile of what came."""
    from declog.replay.capture_reader import load
    from declog.replay.observed import observed, profile_text

    if given.words or given.config_name is not None:
        raise Wrong("--from takes a capture and no profile", f"declog preview {given.capture} {' '.join(given.words)}")
    if of_plan or given.key or given.format != "text":
        raise Wrong("--from prints a YAML file, all of it", f"declog show --from {given.capture}")
    capture = load(given.capture)
    print(f"# What {visible(str(capture.folder))} has, {capture.steps} steps of it: a profile to begin with.")
    print(visible_lines(profile_text(capture, observed(capture))), end="")
    return 0


# ---- what the plan says -----------------------------------------------------------------------------


def _of_plan(made: Plan, given: argparse.Namespace) -> None:
    outputs = _outputs(made) if given.names else []
    if given.format == "json":
        found: dict[str, Any] = {"plan": made.explain()} if given.plan else {}
        found |= {"names": outputs} if given.names else {}
        found |= {"inactive": dict(made.inactive)} if given.inactive else {}
        write_json(found)
        return
    parts = [visible_lines(made.explain().rstrip())] if given.plan else []
    if given.names:
        parts.append("\n".join(map(_output_text, outputs)))
    if given.inactive:
        parts.append(columns(list(made.inactive), colour=BOLD) or "nothing is inactive")
    print("\n\n".join(parts))


def _outputs(made: Plan) -> list[dict[str, Any]]:
    """Every name that trackers see, and who shows it."""
    from declog.language.nodes import LOGGED
    from declog.plans.words import as_data

    words = made.names()
    found = []
    for op in made.outputs:
        about = replace(op.about, help="what `log_metric` gives") if op.id == LOGGED and not op.about.help else op.about
        for item in op.names if op.shown else ():
            profiles = [each.name for each in made.profiles.values() if (op.key, item.alias) in each.outputs]
            sinks = [
                sink.id for sink in made.sinks if sink.profile in profiles and sink.accepts & {"scalar", "histogram"}
            ]
            found.append(
                {
                    "name": item.template,
                    "metric": op.key,
                    "what": words[item.template] + _deviation(op),
                    **as_data(about),
                    "tags": list(op.tags),
                    "about": about.lines,
                    "alias": item.alias,
                    "profiles": profiles,
                    "sinks": sinks,
                }
            )
    return found


def _deviation(op: MetricOp | FormulaOp) -> str:
    """Of a deviation or a variance: whether it is a sample's, as torch has it, or a population's, as numpy has it."""
    from declog.language.reductions import DEVIATIONS
    from declog.plans.ops import MetricOp

    known = DEVIATIONS.get(op.reduction.name) if isinstance(op, MetricOp) else None
    return "" if known is None else f"; of a {known}"


def _output_text(output: Mapping[str, Any]) -> str:
    shown = f"profile {', '.join(output['profiles'])}" if output["profiles"] else "no profile"
    sinks = f"; to {', '.join(output['sinks'])}" if output["sinks"] else "; to no sink"
    lines = [paint(output["name"], BOLD) + (" (alias)" if output["alias"] else ""), f"  {visible(output['what'])}"]
    lines += [f"  {visible_lines(line)}" for line in output["about"]]
    return "\n".join([*lines, paint(f"  {shown}{sinks}", DIM)])


# ---- the profile itself -----------------------------------------------------------------------------


def _profile(config: Composed, given: argparse.Namespace) -> None:
    from declog.cli.layers import layered, leaves
    from declog.cli.verbs.why import known_key
    from declog.config.interpolation import at

    found = layered(config)
    inactive, broken = _inactive(config)
    chosen = [known_key(found, key) for key in given.key or ()]
    if given.format == "json":
        data: Any = {".".join(map(str, path)): at(found.data, path) for path in chosen} if chosen else found.data
        paths = [path for path, _ in leaves(found.data) if not chosen or any(path[: len(key)] == key for key in chosen)]
        origins = {".".join(map(str, path)): found.place(path) for path in paths}
        write_json({"config": data, "origins": origins, "inactive": inactive})
        return
    for path in chosen or [()]:
        print("\n".join(_yaml(found, path, inactive)))
    if broken is not None:
        print(paint(f"# this profile does not compile ({broken}): `declog check` says what is wrong", DIM))


def _inactive(config: Composed) -> tuple[dict[str, str], str | None]:
    from declog.api import plan

    try:
        return dict(plan(config).inactive), None
    except ConfigError as error:
        return {}, ", ".join(sorted({problem.code for problem in error.problems}))


def _yaml(found: Layered, key: Path, inactive: Mapping[str, str]) -> list[str]:
    """The profile, or one key of it, as YAML with a comment behind each value."""
    from declog.config.interpolation import at

    value = at(found.data, key)
    whole: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
    rows = list(_rows(found, {name: each for name, each in whole.items() if name != "tests"}, key, 0, inactive))
    if not key and whole.get("tests"):
        rows.append(("tests: ...", f"{', '.join(whole['tests'])}; shown with --key tests"))
    if key:
        depth = len(key) - 1
        above = [("  " * level + f"{name}:", "") for level, name in enumerate(key[:-1])]
        last = f"{'  ' * depth}{key[-1]}:"
        rows = [*above, *([(last, "")] if whole else [_row(found, key, depth)])]
        rows += list(_rows(found, whole, key, depth + 1, inactive))
    column = min(max((len(line) for line, comment in rows if comment), default=0), COMMENTS_AT)
    return [f"{line:<{column}}  {paint(f'# {comment}', DIM)}" if comment else line for line, comment in rows]


def _rows(
    found: Layered, data: Mapping[str, Any], path: Path, depth: int, inactive: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    for key, value in data.items():
        here = (*path, key)
        why = inactive.get(".".join(map(str, here)))
        comment = "" if why is None else f"inactive: {why}"
        if isinstance(value, Mapping) and value:
            yield f"{'  ' * depth}{key}:", comment
            yield from _rows(found, value, here, depth + 1, inactive)
        else:
            line, place = _row(found, here, depth)
            yield line, "; ".join(part for part in (place, comment) if part)


def _row(found: Layered, path: Path, depth: int) -> tuple[str, str]:
    from declog.cli.layers import shown_value
    from declog.config.interpolation import at, has

    value = at(found.data, path)
    comment = found.place(path) or ""
    source = at(found.written, path) if has(found.written, path) else value
    if source != value and isinstance(source, str):
        comment += f"  from {source}"
    return f"{'  ' * depth}{path[-1]}: {shown_value(value)}", comment
