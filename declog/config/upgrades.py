"""The changes of a package's upgrade for a project that builds on its presets: renamed names, and removed entries.

`renamed` and `deprecated` of metrics and signals say which names changed; this code finds the uses of the old names. An
upgrade may also remove a table; the project that sets its `every` is then left with an entry that means nothing.
`declog.lock`, if the project has one, says which version had the entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from declog.config.compose import working_directory
from declog.config.composed import Composed
from declog.config.files import YamlLoader
from declog.config.overrides import parsed, setting
from declog.config.search_path import package_of, provider_of
from declog.config.uses import Use, declared, old_names, uses
from declog.errors import Path, Problem, in_flow, nearest, nested
from declog.language.fixes.tracker_names import id_of
from declog.language.keys import NAMED, SECTIONS, entries, entry_path, is_entry, sections_with
from declog.language.notation import SIGNS
from declog.language.tree import at, map_at

LOCK = "declog.lock"
ENTRIES = "entries"  # the key of the lock that holds the ids of a config's entries
KINDS = tuple(section for section in SECTIONS if section != "tests")
RENAMED = [section for section in sections_with("renamed") if section != "derived"]  # derived values count as signals
_INCOMPLETE = ("DL201", "DL202", "DL203", "DL302", "DL402", "DL403")  # codes for an entry that lacks its base
_UNKNOWN = re.compile(r"(?:unknown|there is no) (\w+) `(\w+)`(?: here)?")


# -- names that changed


def renamed(config: Composed) -> Iterator[Problem]:
    """DL408 for every use of an old name of a metric or a signal, unless its package has a new entry of this name."""
    for section in RENAMED:
        for old, new in old_names(config.data, section).items():
            paths = [path for path, _ in declared(config.data, section)]
            home = next((config.home((*path, "renamed")) for path in paths if path[-1] == new), None)
            if home is not None and any(path[-1] == old and config.home(path) == home for path in paths):
                continue  # the package has a new entry of the old name
            by = f" ({home})" if home is not None else ""
            for use in uses(config.data, section, old):
                yield Problem.of(
                    "DL408.renamed", use.path, source=use.source, span=use.span, replacement=(old, new),
                    name=old, new=new, by=by,
                )  # fmt: skip


def deprecated(config: Composed) -> Iterator[str]:
    """A warning for every use of a deprecated entry, in a user's own file or in an override."""
    notes = [
        (section, str(path[-1]), entry["deprecated"])
        for section in RENAMED
        for path, entry in declared(config.data, section)
        if isinstance(entry, Mapping) and entry.get("deprecated")
    ]
    for section, name, why in notes:
        for use in uses(config.data, section, name):
            if (location := _own_place(config, use)) is not None:
                yield f"{location}: `{name}` is deprecated: {why}"


def _own_place(config: Composed, use: Use) -> str | None:
    """The place of a use outside of installed packages; None if it is in one."""
    paths = [use.path]
    if use.source is None:  # an entry: any key of it
        paths = [path for path in config.layers if path[: len(use.path)] == use.path]
    for path in paths:
        for layer in config.layers.get(path, config.deciding(path)[-1:]):
            if layer.file is None:
                return ".".join(map(str, use.path))
            if provider_of(layer.file) is None:
                return str(layer.location.where)
    return None


# -- removed entries


def ids(data: Mapping[str, Any]) -> dict[str, str]:
    """The ids of a config's entries by section, as the lock holds them."""
    names_of = {section: [str(path[-1]) for path, entry in entries(data, section) if entry is not None]
             for section in KINDS}  # fmt: skip
    return {section: " ".join(names) for section, names in names_of.items() if names}


def explained(config: Composed, problems: Iterable[Problem]) -> list[Problem]:
    """The problems, with an explanation for entries that no preset has any more.

    If a user's own file empties a section, the problems that this causes in presets are left out.
    """
    empty = [section for section in (*NAMED, "derived") if config.data.get(section, {}) is None]
    if not config.layers or not empty:
        return [_explained(config, problem) for problem in problems]
    rest = [problem for problem in problems if _in_no_package(config, entry_path(problem.path))]
    if any(problem.code == "DL201" and len(problem.path) == 1 for problem in rest):  # entries without indentation
        return rest
    return [*(Problem.of("DL407.section", section, section=section) for section in empty), *rest]


def _alike(config: Composed, *paths: Path) -> bool:
    """Whether signals at some paths have the same axis and type."""
    said = [at(config.data, path) for path in paths]
    return len({(one.get("axis"), one.get("type", "float")) for one in said if isinstance(one, Mapping)}) == 1


def _observed_in(config: Composed, path: Path) -> str | None:
    """The phase in which code observes a derived signal, `from` its name; None for a signal that it cannot observe."""
    signals = declared(config.data, "signals") if path[0] == "derived" else ()
    homes = (str(one[1]) for one, entry in signals if isinstance(entry, Mapping) and entry.get("from") == path[-1])
    return next(homes, None)


def _for_each_config(config: Composed, both: Sequence[Path]) -> str | None:
    """The override that declares a signal at the path where a file does: it fits configs with and without that file."""
    for one, other in (both, both[::-1]):
        key = re.compile(rf"\+*({re.escape('.'.join(map(str, (*config.prefix, *one))))})=(.*)")
        said = next(filter(None, map(key.fullmatch, config.overrides)), None)
        if said is not None and one[0] == other[0] == "signals" and (override := parsed(said[0])) is not None:
            edit = setting(f"++{'.'.join(map(str, (*config.prefix, *other)))}", override.value())
            return f"{edit} in its place, which declares it in any config"
    return None


def _explained(config: Composed, problem: Problem) -> Problem:
    if problem.code == "DL203" and problem.path[-1:] == ("filter",) and config.merged is not None:
        return _of_filter(config, problem)
    if problem.message_key == "DL402.places":
        both = sorted((problem.path, *problem.related), key=lambda path: not _in_no_package(config, path))
        here, there = at(config.data, both[0]), ".".join(map(str, both[1]))
        named = re.search(rf"\b{both[1][-1]}\b", str((config.data.get("axes") or {}).get("group")))
        is_id = named and not (isinstance(here, Mapping) and here.get("axis") == "completion")
        if not is_id and isinstance(here, Mapping) and (fix := _for_each_config(config, both)) is not None:
            return replace(problem, fix=fix)
        if _in_no_package(config, both[1]):
            return problem
        fix = f"delete the other: {in_flow(nested(both[1], None))[1:-1]}"
        if is_id:
            fix = f"drop it: `{there}` is per completion, as ids of groups are"
        elif not isinstance(here, Mapping):
            fix = f"drop it: `{there}` declares `{both[1][-1]}`"
        elif both[1][1] == "any" and _alike(config, *both):
            fix = f"drop it: `{there}` is of every phase"
        elif (home := _observed_in(config, both[1])) is not None:
            fix = f"drop it: `{both[1][1]}` is there already, as it is observed with `{home}`"
            name = f"{both[1][1]}_of_{both[0][1]}"
            declared_as = in_flow(nested(("signals", both[0][1], name), here))[1:-1]
            if both[0][1] not in (home, "any"):
                fix += f"; another value in `{both[0][1]}` has another name: {declared_as}"
        return replace(problem, path=both[0], related=(both[1],), fix=fix)
    match = _UNKNOWN.fullmatch(problem.message)
    if match is not None and not is_entry(problem.path):
        section, name = f"{match[1]}s", match[2]
        before = _versions(section, name)
        said = f"{section[:-1]} of {before}: what the presets have now is another" if before else None
        return problem if said is None else replace(problem, fix=f"{problem.fix}; {LOCK} has the {said}")
    if problem.code not in _INCOMPLETE or not is_entry(problem.path) or problem.path[0] not in KINDS:
        return problem
    section, name = str(problem.path[0]), str(problem.path[-1])
    if not _in_no_package(config, problem.path) or problem.message_key == "DL201.key":  # a word that is no entry
        return problem
    if section == "metrics" and id_of(name, config.data["metrics"]) is not None:  # a name, which another metric logs
        return problem
    homes = sorted({home for home in map(package_of, config.provenance.texts) if home is not None})
    if not homes:
        return problem
    what, shipped = section[:-1], " and ".join(homes)
    paths = [path for path, _ in entries(config.data, section)]
    names = [str(path[-1]) for path in paths if not _in_no_package(config, path)]
    close = nearest(name, names)
    near = f", or did you mean `{close}`?" if close is not None else f", only `{names[0]}`" if len(names) == 1 else ""
    if (before := _versions(section, name)) is not None:
        return replace(Problem.of("DL407.removed", problem.path, what=what, name=name, homes=shipped, before=before,
                                  near=near), replacement=None)  # fmt: skip
    says = f"{', and `' * (section != 'metrics')}{name}: " in str(problem.fix)  # a fix that defines it
    if not _completes(config, problem.path) or says or str(problem.fix).startswith(f"{name}: "):
        return problem
    deletion = f"or delete it: {shipped} {'has' if len(homes) == 1 else 'have'} no {what} `{name}` to change{near}"
    return replace(problem, fix=f"{problem.fix}; {deletion}" if problem.fix else deletion)


# Keys that say what an entry is; an entry with none of them completes another layer's.
_BASES: Mapping[str, frozenset[str]] = {
    "tables": frozenset({"schema", "columns"}),
    "filters": frozenset({"key", "where", "first", "random", "fraction", "unique"}),
    "alerts": frozenset({"when"}),
    "metrics": frozenset({"expr", "formula", "observe"}),
    "signals": frozenset({"axis"}),
    "derived": frozenset({"expr"}),
}


def _completes(config: Composed, path: Path) -> bool:
    """Whether an entry has none of the keys that say what it is, so that it can only complete another layer's."""
    bases, entry = _BASES.get(str(path[0])), at(config.data, path)
    if bases is not None and path[0] == "alerts" and path[1] in map_at(config.data, "metrics"):
        bases |= SIGNS.keys()  # bounds are of the metric with the alert's name
    return bases is not None and isinstance(entry, Mapping) and bases.isdisjoint(entry)


def _in_no_package(config: Composed, path: Path) -> bool:
    """Whether no file of an installed package sets anything of an entry."""
    below = [layer for at, layers in config.layers.items() if at[: len(path)] == path for layer in layers]
    return not any(provider_of(layer.file) is not None for layer in below)


def _of_filter(config: Composed, problem: Problem) -> Problem:
    """The problem of a filter that chooses no rows, in place of one that does; the fix has the keys of both."""
    nodes = [layer.at((*config.prefix, *problem.path)) for layer in config.merged.layers] if config.merged else []
    *before, now = [node.plain for node in nodes if node is not None] or [None]
    filters = [config.data["filters"].get(one, one) if isinstance(one, str) else one for one in before]
    taken = next((one for one in reversed(filters) if isinstance(one, dict)), None)
    if taken is None or not isinstance(now, dict):
        return problem
    return replace(problem, fix=in_flow({"filter": {**taken, **now}})[1:-1])


def _versions(section: str, name: str) -> str | None:
    """The packages whose presets had an entry when the project's lock was written; None if it has no such entry."""
    packages = dict(
        item
        for locked in _locked()
        if name in str(map_at(locked, ENTRIES).get(section, "")).split()
        for item in map_at(locked, "packages").items()
    )
    return " and ".join(f"{package} {version}" for package, version in sorted(packages.items())) or None


def _locked() -> Iterator[Mapping[str, Any]]:
    """The configs of the project's lock; none if there is no lock, or it cannot be read."""
    file = working_directory() / LOCK
    try:
        lock = yaml.load(file.read_text(encoding="utf-8"), YamlLoader) if file.is_file() else None
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return  # reported by the check against the lock
    configs = map_at(lock, "configs") if isinstance(lock, Mapping) else {}
    yield from (config for config in configs.values() if isinstance(config, Mapping))
