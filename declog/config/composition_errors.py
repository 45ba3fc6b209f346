"""What Hydra's refusals mean: its exceptions as problems with a plain cause and a fix to paste.

Hydra stops at the first override it cannot apply and names it in prose. Here each override is tried on
its own, on top of those that are good, so that all of them are reported, each at its place. Used on
errors only; imports Hydra.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path as FilePath
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from declog.config.file_errors import file_problem, first_line
from declog.config.fold import fold
from declog.config.hydra import Loader
from declog.config.origin import Origin
from declog.config.overrides import ADDS, parsed, pasted, quoted, taken, written
from declog.config.packages import known_presets, notes
from declog.config.search_path import GROUP, HYDRA_ERRORS
from declog.config.uses import old_names
from declog.errors import CompositionError, Excerpt, Problem, Where, did_you_mean, nearest
from declog.language.keys import SECTIONS
from declog.language.tree import Node
from declog.language.validation import sinks_and_options

CURLY = ("\u2018", "\u2019", "\u201c", "\u201d")
CURLY_TO_PLAIN = str.maketrans({mark: "'" if mark < "\u201c" else '"' for mark in CURLY})


def composition_error(loader: Loader, origin: Origin, error: Exception) -> CompositionError:
    """Why ``loader`` could not compose ``origin``: every wrong override, or else what is wrong in the files."""
    problems: dict[int, Problem] = {}
    overrides: list[tuple[int, Override]] = []
    for index, line in enumerate(origin.overrides):
        override = parsed(line)
        if override is None:
            problems[index] = unreadable(line)
        else:
            overrides.append((index, override))
    problems |= _refused(loader, origin, overrides)
    return CompositionError([problems[index] for index in sorted(problems)] or [file_problem(loader, origin, error)])


def of_application(line: str) -> Problem | None:
    """What is wrong with an override whatever the application is, before its Hydra says so in other words."""
    override = parsed(line)
    if override is None:
        return unreadable(line, "++")
    key, value = override.key_or_group, None if override.is_delete() else override.value()
    if key.startswith(f"{GROUP}.sinks."):
        name = key.split(".")[2]
        at = line.find(key) + len(f"{GROUP}.sinks.")
        return _sink_problem(line, override, (at, at + len(name)), [name] * (value not in (None, False)))
    if key == f"{GROUP}.sinks":
        return _sinks_as_map(line, key, value) if isinstance(value, dict) else None
    if key.count(".") != 1 or key.partition(".")[0] != GROUP or key.partition(".")[2] not in SECTIONS:
        return None
    return _list_of_map(line, override.key_or_group) if isinstance(value, list) else None


def _list_of_map(line: str, key: str) -> Problem:
    return _problem(line, "DL101.map_as_list", behind=True, key=key, fix=f"'{key}={{entry: ...}}'")


def unreadable(line: str, sign: str = "") -> Problem:
    """An override that Hydra's grammar does not take: mostly an expression without quotes.

    ``sign`` stands before the fix of one that has none: in an application nobody may know whether the key is there.
    """
    key, equals, value = line.partition("=")
    if curly := [mark for mark in CURLY if mark in line]:
        plain = line.translate(CURLY_TO_PLAIN).replace("'", "").replace('="', "=").rstrip('"')
        return _problem(line, "DL101.curly", marks="".join(curly), fix=shlex.quote(plain))
    if key.endswith("+"):
        return _problem(line, "DL101.append", key=key.strip("+"), fix=f"{key.strip('+')}=[..., {value}]")
    if re.search(r"\[\w+\]", key):
        return _problem(
            line, "DL101.index", fix=f"{re.sub(r'[[](' + chr(92) + 'w+)[]]', '.' + chr(92) + '1', key)}={value}"
        )
    if "*" in key:
        return _problem(line, "DL101.star")
    if "/" in key and "." in key:
        return _slashed(line, key, value)
    if not equals or not key:
        if re.fullmatch(r"\+*[a-z_][\w./@]*", line):
            return _problem(line, "DL101.no_value", line=line)
        return _problem(line, "DL101.no_override")
    fixed = f"{'' if key[:1] in ('+', '~') else sign}{key}={taken(value)}"
    if parsed(fixed) is None:
        return _problem(line, "DL101.unreadable", behind=True, cause=_detail(line))
    if value[:1] in ("[", "{"):
        return _problem(line, "DL101.quotes_inside", behind=True, fix=shlex.quote(fixed))
    return _problem(line, "DL101.quotes", behind=True, value=value, fix=shlex.quote(fixed))


def unknown_preset(name: str, known: Sequence[str], directory: FilePath | None = None) -> Problem:
    """DL104. ``directory`` is where the caller's own presets were looked for."""
    fix = known_presets(name, known)
    if name in ("slim", "full"):
        fix = f"what a preset shows is its profile: grpo profile={name}"
    elif nearest(name, known) is None and (beside := sorted(FilePath().glob(f"*/{GROUP}/{name}.yaml"))):
        fix = f"did you mean the file `{beside[0]}`?"
    if directory is not None and directory.name == GROUP and (directory / f"{name}.yaml").is_file():
        return Problem.of("DL104.preset", name=name, notes=notes(), fix=f"--config-dir {directory.parent.name}")
    if directory is not None and (directory / f"{name}.yaml").is_file():
        fix = f"move {name}.yaml into a folder `{GROUP}` of that directory: presets are Hydra's group `{GROUP}`"
    elif FilePath(f"{name}.yaml").is_file():
        fix = f"did you mean the file `{name}.yaml`?"
    return Problem.of("DL104.preset", name=name, notes=notes(), fix=fix)


def nearest_key(root: Node, dotted: str) -> str | None:
    """The key nearest to one that the configuration does not have; None if it has it, or nothing is close."""
    keys = dotted.split(".")
    depth, node = root.deepest(keys)
    if depth == len(keys):
        return None
    if depth == 0 and root.at([GROUP, *keys]) is not None:
        return f"{GROUP}.{dotted}"
    close = nearest(keys[depth], _names(node))
    return ".".join([*keys[:depth], close, *keys[depth + 1 :]]) if close else None


def _refused(loader: Loader, origin: Origin, overrides: Iterable[tuple[int, Override]]) -> dict[int, Problem]:
    """The overrides that cannot be applied, each tried on top of the good ones, groups first as Hydra does."""
    problems: dict[int, Problem] = {}
    accepted = list(origin.choice)
    try:
        config = _load(loader, origin, accepted)
    except HYDRA_ERRORS:
        return {}  # The files alone do not compose.
    for index, override in sorted(overrides, key=lambda each: not loader.repository.group_exists(each[1].key_or_group)):
        line = override.input_line or ""
        try:
            config = _load(loader, origin, [*accepted, line])
        except HYDRA_ERRORS as error:
            problems[index] = _explained(loader, override, line, error, config)
        else:
            accepted.append(line)
    return problems


def _load(loader: Loader, origin: Origin, lines: list[str]) -> Node:
    return fold(*loader.defaults(origin.root, lines)).tree


def _slashed(line: str, key: str, value: str) -> Problem:
    """An id with a `/` in it, which belongs into the entry's name."""
    parts = key.split(".")
    place = next((at for at, part in enumerate(parts) if at and "/" in part), 0)
    name = parts[place]
    plain = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_")
    start = len(".".join(parts[:place])) + bool(place)
    fix = ".".join([*parts[:place], plain, *parts[place + 1 :]]) + f"={value}"
    if place == len(parts) - 1:
        call = re.fullmatch(r"(\w+)\(([\w\s.*/+-]+)\)", value.strip("'\""))
        inside = "expr: ..." if call is None else f"expr: {call[2]}, reduce: {call[1]}"
        fix = f"{'.'.join([*parts[:place], plain])}={{{inside}, name: {name}}}"
    return _problem(line, "DL101.slash", (start, start + len(name)), name=name, fix=pasted(fix))


def _detail(line: str) -> str:
    """What Hydra's parser says, without the override, the caret and the link around it."""
    noise = ("LexerNoViableAltException", "Error parsing override", "^", "See https")
    try:
        OverridesParser.create().parse_overrides([line])
    except HydraException as error:
        lines = [line.strip() for line in str(error).splitlines() if not line.strip().startswith(noise)]
        return lines[0] if lines else "its grammar has no such form"
    return "its grammar has no such form"


def _explained(loader: Loader, override: Override, line: str, error: Exception, config: Node) -> Problem:
    """Why an override that can be read cannot be applied to ``config``."""
    key, value = override.key_or_group, line.partition("=")[2]
    if override.is_sweep_override():
        text = shlex.quote(f"{key}={quoted(value)}")
        return _problem(line, "DL101.sweep", behind=True, key=key, value=value, text=text)
    if loader.repository.group_exists(key):
        return _group_problem(loader, override, line, error, config)
    if "/" in key and (keys := key.split("/"))[0] == GROUP and config.at(keys) is not None:
        return _problem(line, "DL101.no_group", (line.find(key), line.find(key) + len(key)), name=key,
                        fix=line.replace(key, ".".join(keys), 1))  # fmt: skip
    if "/" in key:
        groups = [GROUP, *(f"{GROUP}/{name}" for name in loader.list_groups(GROUP))]
        span = (line.find(key), line.find(key) + len(key))
        return _problem(line, "DL101.no_group", span, name=key, fix=did_you_mean(key, groups, what="groups"))
    return _key_problem(loader, override, line, error, config)


def _group_problem(loader: Loader, override: Override, line: str, error: Exception, config: Node) -> Problem:
    group, given = override.key_or_group, override.value()
    options = loader.get_group_options(group)
    for name in given if isinstance(given, list) else [given]:
        if isinstance(name, str) and name not in options:
            at = line.find(name, line.find("="))
            span = (at, at + len(name)) if at >= 0 else None
            if group == GROUP:
                fix = known_presets(name, options)
                return _problem(line, "DL104.preset", span, name=name, notes=notes(), fix=fix)
            fix = did_you_mean(name, options, what="options")
            return _problem(line, "DL101.default", span, group=group, name=name, fix=fix)
    if override.is_delete():
        return _problem(line, "DL101.list_group", group=group)
    if "No match in the defaults list" in str(error):
        # What lands under a key that is no part of a profile, such as a pack, belongs to the profile itself.
        known = group == GROUP or "@" in line.partition("=")[0] or group.removeprefix(f"{GROUP}/") in ADDS
        fix = f"+{line}" if known else f"+{line.replace(group, f'{group}@{GROUP}', 1)}"
        return _problem(line, "DL101.not_chosen", (0, line.find("=")), group=group, fix=fix)
    return _problem(line, "DL101.hydra", cause=first_line(error))


def _key_problem(loader: Loader, override: Override, line: str, error: Exception, config: Node) -> Problem:
    keys = override.key_or_group.split(".")
    depth, node = config.deepest(keys)
    here = ".".join(keys[:depth])
    if depth == len(keys):
        return _existing_key(loader, override, line, error, node)
    wrong, names = keys[depth], _names(node)
    at = line.find(override.key_or_group) + len(here) + bool(here)
    span = (at, at + len(wrong))
    if here == f"{GROUP}.sinks" and isinstance(node.value, list):
        return _sink_problem(line, override, span, node.plain)
    if isinstance(node.value, list) and len(keys) == depth + 1:
        return _problem(
            line, "DL101.item", span, key=here, fix=pasted(f"{here}=[{_items(node.plain, wrong, override)}]")
        )
    if not isinstance(node.value, dict | list):
        rest = "" if isinstance(node.value, bool) else "expr: ..., "  # a short form, of a metric or a signal
        entry = f"{rest}{keys[-1]}: {line.partition('=')[2]}"
        value = "null" if node.value is None else node.value
        return _problem(line, "DL101.no_map", span, key=here, value=value, entry=f"'{here}={{{entry}}}'")
    place = f"in {here}" if here else "at the top"
    if (inner := _inside(node, keys[depth:])) is not None:  # a section is left out: `group.size`
        fix = pasted(f"{line[: span[0]]}{inner}.{wrong}{line[span[1] :]}")
        return _problem(line, "DL101.no_key", span, name=wrong, place=place, fix=fix)
    if here == GROUP and (section := _section_of(wrong, node)) is not None:
        fix = pasted(f"{line[: span[0]]}{section}.{line[span[0] :]}")
        return _problem(line, "DL101.no_key", span, name=wrong, place=place, fix=fix)
    if depth == 0 and wrong in _names(config.entries[GROUP]):
        fix = pasted(line.replace(wrong, f"{GROUP}.{wrong}", 1))
        return _problem(line, "DL101.no_key", span, name=wrong, place=place, fix=fix)
    if (new := old_names({"": node.plain if node.entries else {}}, "").get(wrong)) is not None:
        fix = pasted(f"{line[: span[0]]}{new}{line[span[1] :]}")
        return _problem(line, "DL101.renamed", span, name=wrong, new=new, fix=fix)
    close = nearest(wrong, names)
    fixes = [pasted(line[: span[0]] + close + line[span[1] :])] if close else []
    if override.is_delete():
        fix = fixes[0] if fixes else did_you_mean(wrong, names, what="known keys")
        return _problem(line, "DL101.no_key", span, name=wrong, place=place, fix=fix)
    fix, added = "  or  ".join([*fixes, pasted(f"+{line}")]), "one" if close else "it"
    return _problem(line, "DL101.key_to_add", span, name=wrong, place=place, added=added, fix=fix)


def _items(items: list[Any], name: str, override: Override) -> str:
    """The items of a list, less one that an override deletes, or with one that it adds under a name."""
    texts = [str(item).replace("'", "") for item in items]
    if override.is_delete():
        return ",".join(text for text in texts if text != name)
    value = str(override.value())
    return ",".join([*texts, name if value == name else f"{{{name}: {value}}}"])


def _sinks_as_map(line: str, key: str, value: dict[Any, Any]) -> Problem:
    chosen, options = sinks_and_options(value)
    said = [pasted(f"++{GROUP}.sink_options.{name}={written(each)}") for name, each in options.items()]
    fix = " ".join([f"{key}=[{','.join(chosen)}]", *said])
    return _problem(line, "DL101.sinks_listed", behind=True, fix=fix)


def _sink_problem(line: str, override: Override, span: tuple[int, int], names: list[str]) -> Problem:
    """A key below the list of sinks: what is said of a sink stands in `sink_options`."""
    _, _, name, *rest = override.key_or_group.split(".")
    value = None if override.is_delete() else override.value()
    if value in (None, False) and not rest:
        chosen, options = [each for each in names if each != name], ""
    else:
        chosen = names if name in names else [*names, name]
        entry = ".".join(["sink_options", name, *(rest if rest or isinstance(value, dict) else ["profile"])])
        options = " " + pasted(f"++{GROUP}.{entry}={line.partition('=')[2]}")
    fix = f"{GROUP}.sinks=[{','.join(chosen)}]" * (chosen != names) + options
    return _problem(line, "DL101.sinks_listed", span, fix=fix.strip())


def _section_of(name: str, node: Node) -> str | None:
    """The section of a profile that has an entry of this name, metrics before what they read."""
    return next((key for key in ("metrics", *SECTIONS) if name in _names(node.entries.get(key, Node(None)))), None)


def _inside(node: Node, keys: list[str]) -> str | None:
    """The entry of a map that has the keys, two or more of them; None where none has, or several have."""
    found = [str(name) for name, entry in node.entries.items() if entry.at(keys) is not None]
    return found[0] if len(found) == 1 and len(keys) > 1 else None


def _existing_key(loader: Loader, override: Override, line: str, error: Exception, node: Node) -> Problem:
    key, value = override.key_or_group, override.value()
    if override.is_delete() and node.value is None:
        return _problem(line, "DL101.null_already", key=key)
    if override.is_add() and not isinstance(value, dict | list):
        return _problem(line, "DL101.there_already", key=key, fix=pasted(line.removeprefix("+")))
    if isinstance(node.value, dict) and isinstance(value, list):
        return _list_of_map(line, key)
    if isinstance(node.value, dict) and isinstance(value, dict):
        new = [name for name in value if name not in node.entries]
        lines = [shlex.quote(f"+{key}.{name}={written(value[name])}") for name in new]
        names = "`, `".join(map(str, new))
        return _problem(line, "DL101.keys_to_add", behind=True, key=key, names=names, fix=" ".join(lines))
    if isinstance(node.value, list) and isinstance(value, dict):
        if key == f"{GROUP}.sinks":
            return _sinks_as_map(line, key, value)
        return _problem(line, "DL101.list_as_map", behind=True, key=key)
    return _problem(line, "DL101.hydra", cause=first_line(error))


def _problem(
    line: str, key: str, span: tuple[int, int] | None = None, /, *, behind: bool = False, **facts: Any
) -> Problem:
    """A problem with an override; ``behind`` puts the caret under what stands behind the ``=``."""
    if span is None:
        span = (line.find("=") + 1 if behind else 0, len(line))
    where = Where(override=line, excerpt=Excerpt("", line, *span))
    return Problem.of(key, source=line, span=span, where=where, **facts)


def _names(node: Node) -> list[str]:
    return [str(key) for key in node.entries]
