"""``declog.lock``: a record of what configs log, which shows whether an upgrade changes that.

Each config has an entry, named by its words and options on the command line. An entry has the packages with their
versions, and every output, table, profile, alert and signal in words, with a digest of everything that decides its
values.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from declog import distribution
from declog.cli.arguments import Parser, Wrong, options
from declog.cli.differences import differences, text
from declog.cli.output import BOLD, paint
from declog.config.upgrades import ENTRIES, LOCK, ids

if TYPE_CHECKING:
    from declog.config.composed import Composed
    from declog.plans.ops import Plan

NAME = LOCK
FORMAT = 1
WRITE = "declog check CONFIG --lock"
SECTIONS = ("outputs", "tables", "profiles", "alerts", "signals")
Locked = Mapping[str, Mapping[str, Any]]
Targets = Mapping[str, tuple[argparse.Namespace, Sequence[str]]]  # by the name of the entry


def read() -> Locked:
    """The configs of the lock in the working directory; empty if there is no lock."""
    import yaml

    file = Path(NAME)
    if not file.is_file():
        return {}
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Wrong(f"{NAME} cannot be read: {str(error).splitlines()[0]}", f"write it anew: {WRITE}") from None
    if not isinstance(content, dict) or content.get("lock") != FORMAT or not isinstance(content.get("configs"), dict):
        raise Wrong(f"{NAME} is none of this version of declog", f"delete it, and write it anew: {WRITE}")
    return dict(content["configs"])


def write(locked: Locked) -> None:
    """Write the lock."""
    import yaml

    text = yaml.safe_dump({"lock": FORMAT, "configs": dict(locked)}, sort_keys=False, allow_unicode=True, width=10**6)
    head = "# What these configs log: `declog check --lock` writes it, `declog check --locked` compares.\n"
    Path(NAME).write_text(head + text, encoding="utf-8")


def key(args: argparse.Namespace, words: Sequence[str]) -> str:
    """The name of a config in the lock: its words on the command line, behind the options that choose it."""
    return shlex.join([*options(args), *words]) or "grpo"


def targets(args: argparse.Namespace, locked: Locked, requested: Targets) -> Targets:
    """The configs to compare: the requested ones, or all; each must be in the lock."""
    chosen = requested if args.words or args.config_name is not None else {}
    for _, words in chosen.values():
        if words and words[0].endswith(".lock"):
            reason = f"`{words[0]}` is no config: the lock is {NAME}, which `declog check --lock` writes"
            raise Wrong(reason, "leave it out")
    missing = [name for name in chosen if name not in locked]
    if not locked:
        raise Wrong(f"there is no {NAME} here", f"declog check {missing[0] if missing else 'CONFIG'} --lock")
    if missing:
        raise Wrong(f"`{missing[0]}` is not in {NAME}", f"declog check {missing[0]} --lock")
    return chosen or {line: _of_line(args, line) for line in locked}


def _of_line(args: argparse.Namespace, line: str) -> tuple[argparse.Namespace, list[str]]:
    """The arguments and the words of an entry, with the options of this command line that the entry leaves open."""
    parser = Parser("check", "an entry", "")
    parser.config()
    entry = parser.parse_intermixed_args(shlex.split(line))
    modules = [*(args.modules or ()), *(entry.modules or ())]
    said = {name: value for name, value in vars(entry).items() if value}
    return argparse.Namespace(**{**vars(args), **said, "modules": modules}), entry.words


def entry(plan: Plan, config: Composed) -> dict[str, Any]:
    """The entry of one config."""
    from declog.plans.words import facts

    sections = facts(plan, plan)
    written = {
        "packages": packages(plan, config),
        ENTRIES: ids(config.data),
        **{title: {name: _short(parts) for name, parts in sections[title].items()} for title in SECTIONS},
    }
    masked: dict[str, Any] = config.masked_data(written)
    return masked


def _short(parts: tuple[str, ...]) -> list[str]:
    """An entry in words, its definition if it has one, and a digest of everything else that decides its values."""
    words, *details = map(str, parts)
    return [words, *details[:-1], *(hashlib.sha256(detail.encode()).hexdigest()[:12] for detail in details[-1:])]


def packages(plan: Plan, config: Composed) -> dict[str, str]:
    """The packages that decide what is logged, with their versions."""
    from declog.language import functions, reductions, row_functions
    from declog.sinks import home_of

    homes = [home_of(sink.kind) for sink in plan.sinks]
    registries = (functions.DEFAULT, reductions.DEFAULT, row_functions.DEFAULT)
    homes += [registry.home(name) for registry in registries for name in plan.functions if name in registry]
    named = {name: made_version for home in homes for name, _, made_version in [home.partition(" ")] if made_version}
    named[distribution.NAME] = distribution.VERSION
    for name in config.packages():
        try:
            named[name] = version(name)
        except PackageNotFoundError:
            named[name] = "unknown"
    return dict(sorted(named.items()))


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The differences from the entry of the lock, in words; empty if there are none."""
    old, new = ({title: _facts(side.get(title)) for title in SECTIONS} for side in (before, now))
    if not (changed := differences(old, new, renamed=True)):
        return ""
    was, current = before.get("packages") or {}, now["packages"]
    moved = [
        f"  {name} {was.get(name, '(none)')} -> {current.get(name, '(none)')}"
        for name in sorted({*was, *current})
        if was.get(name) != current.get(name)
    ]
    versions = "\n".join([paint("packages", BOLD), *moved, "", ""]) if moved else ""
    return versions + text(changed)


def _facts(section: Any) -> dict[str, tuple[str, ...]]:
    return {str(name): tuple(map(str, parts)) for name, parts in (section or {}).items()}
