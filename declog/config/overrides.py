"""Overrides as people write them: relative to the profile, expressions without a second pair of quotes.

``metrics.p=p95(reward)`` becomes ``++declog.metrics.p="p95(reward)"``, which any Hydra application takes as well. What
is already in Hydra's words stays as it is. Imports Hydra, for its grammar, and the keys of the language.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Literal

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException

from declog.config.hydra import config_loader
from declog.config.origin import Origin
from declog.config.quoting import value_end
from declog.config.search_path import GROUP, current_hydra
from declog.errors import CompositionError, Path
from declog.language.keys import SECTIONS, entry_path, is_entry
from declog.language.spec import LogSpec
from declog.language.tree import Node

_WORD = re.compile(r"(?P<sign>\+\+|\+|~|)(?P<key>[^=]*)(?P<equals>=?)(?P<value>.*)\Z", re.DOTALL)


# What a plain ``=`` may add where nobody wrote it: whatever a key holds, whole entries of a map, or nothing new. Below
# an entry that is there, any key; below one that is not, none: it is a typo, mostly.
Adds = Literal["anything", "entries", "nothing"]
ADDS: dict[str, Adds] = {key: "entries" if key in SECTIONS else "anything" for key in LogSpec.model_fields}
ADDS |= {"constants": "nothing", "sink_options": "anything"}


def in_hydras_words(words: Sequence[str], base: Origin, load: Callable[[Origin], Node]) -> Origin:
    """``base`` with the overrides that ``words`` mean. ``load`` composes, to see what a plain ``=`` would add to."""
    if not words:
        return base
    load = cache(load)
    with current_hydra():
        groups = config_loader(base.config_dir).list_groups(GROUP)
    name, lines, plain, chosen = base.config_name, list[str](), list[int](), list[int]()
    added: set[Path] = set()
    for word in words:
        found = _WORD.match(word)
        assert found is not None
        sign, key, equals, value = map(str.strip, found.group("sign", "key", "equals", "value"))
        if key == GROUP and not sign:
            name = value
            continue
        if key.partition(".")[0] != "hydra" and re.split("[./@]", key)[0] != GROUP:
            if _is_choice(key, value, groups) and not sign:
                chosen.append(len(lines))
            here = f"@{GROUP}" if sign and key not in ADDS else ""  # a part of the profile, and no section of it
            key = f"{GROUP}/{key}{here}" if _is_choice(key, value, groups) else f"{GROUP}.{key}"
        if sign in ("+", "++") and value.startswith("{"):
            added.add(entry_path(_path(key)))
        elif equals and not sign and "/" not in key:
            plain.append(len(lines))
        lines.append(f"{sign}{key}{equals}{value if '/' in key else taken(value)}")
    base = replace(base, config_name=name)
    if chosen and _refused(lines, base, load):  # perhaps for a group of which no file chooses anything
        for place in chosen:
            key, _, value = lines[place].partition("=")
            added_to = f"+{key}{'' if key.removeprefix(f'{GROUP}/') in ADDS else f'@{GROUP}'}={value}"
            if _refused([lines[place]], base, load) and not _refused([added_to], base, load):
                lines[place] = added_to
    if plain:
        try:
            known = load(replace(base, overrides=_choices(lines)))
        except CompositionError:
            plain = []  # what is wrong is reported when all of it is composed
    for place in plain:
        path = _path(lines[place].partition("=")[0])
        is_map = lines[place].partition("=")[2].startswith("{")
        if entry_path(path) in added or _may_be_added(known, path, ADDS.get(path[0] if path else ""), is_map=is_map):
            added |= {entry_path(path)} if is_map else set()
            lines[place] = f"++{lines[place]}"
    return replace(base, overrides=tuple(lines))


def _choices(lines: Sequence[str]) -> tuple[str, ...]:
    """The overrides that choose files of groups, which come before keys are set."""
    return tuple(line for line in lines if "/" in line.partition("=")[0])


def _refused(lines: Sequence[str], base: Origin, load: Callable[[Origin], Node]) -> bool:
    try:
        load(replace(base, overrides=_choices(lines)))
    except CompositionError:
        return True
    return False


def _path(key: str) -> tuple[str, ...]:
    """The keys below the profile's node."""
    return tuple(key.split(".")[1:])


def taken(value: str) -> str:
    """A value as Hydra's grammar takes it: in quotes where it would refuse or change the text."""
    override = parsed(f"key={value}")
    if override is None:
        return _requoted(value) or _literal(value) or quoted(value)
    read = override._value
    return quoted(value) if isinstance(read, str) and not isinstance(read, QuotedString) and read != value else value


def pasted(line: str) -> str:
    """An override as one word of a shell, in quotes only where it needs them."""
    return line if re.fullmatch(r"[+\w./@=,:\[\]-]+", line) else shlex.quote(line)


def parsed(line: str) -> Override | None:
    """An override that Hydra's grammar takes; None for another."""
    try:
        (override,) = OverridesParser.create().parse_overrides([line])
    except HydraException:
        return None
    return override


def written(data: object) -> str:
    """A value in Hydra's grammar."""
    if isinstance(data, dict):
        return "{" + ", ".join(f"{key}: {written(value)}" for key, value in data.items()) + "}"
    if isinstance(data, list):
        return "[" + ", ".join(map(written, data)) + "]"
    if not isinstance(data, str):
        return json.dumps(data, default=str)
    override = parsed(f"key={data}")
    return data if override is not None and override._value == data else quoted(data)


def quoted(text: str) -> str:
    """A text in double quotes. Backslashes count double before a quote only."""
    inside = re.sub(r'(\\*)"', lambda found: f'{found[1] * 2}\\"', text)
    return f'"{inside}{chr(92) * (len(inside) - len(inside.rstrip(chr(92))))}"'


def _is_choice(key: str, value: str, groups: Collection[str]) -> bool:
    return key in groups and value not in ("", "null") and not value.startswith("{")


def _may_be_added(config: Node, path: tuple[str, ...], adds: Adds | None, *, is_map: bool) -> bool:
    """Whether nobody wrote this key, or keys of the map that it is, and there is no doubt about what it is for."""
    depth, node = config.deepest((GROUP, *path))
    depth -= 1
    if not isinstance(node.value, dict):
        return False  # a text, which has no keys
    if depth < len(path):
        return (
            adds == "anything"
            or (adds == "entries" and is_entry(path))
            or (adds is not None and depth >= len(entry_path(path)))
        )
    return is_map


def _requoted(value: str) -> str | None:
    """A list or a map, each text in it in quotes that Hydra would not read without; None where that is not enough."""

    def inside(text: str) -> str:
        if text[:1] in ("[", "{") and text[-1:] in ("]", "}"):
            return text[0] + ", ".join(inside(part.strip()) for part in _parts(text[1:-1])) + text[-1]
        name, colon, rest = text.partition(":")
        if colon and name.strip().isidentifier():
            return f"{name}: {inside(rest.strip())}"
        return text if re.fullmatch(r"[\w.+ /-]*", text) or text[:1] in ("'", '"') else quoted(text)

    line = inside(value) if value[:1] in ("[", "{") else ""
    return line if line and parsed(f"key={line}") is not None else None


def _parts(text: str) -> Iterator[str]:
    """A text cut at the commas that stand in no brackets."""
    start = 0
    while (end := value_end(text, start)) is not None:
        yield text[start:end]
        start = end + 1
    yield text[start:]


def _literal(value: str) -> str | None:
    """A list or a map that is good YAML, in Hydra's grammar."""
    if value[:1] not in ("[", "{"):
        return None
    try:
        data = yaml.safe_load(value)
    except yaml.YAMLError:
        return None
    line = written(data)
    return line if isinstance(data, dict | list) and parsed(f"key={line}") is not None else None
