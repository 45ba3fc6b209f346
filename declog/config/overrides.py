"""The overrides of declog's own command line: relative to the profile, expressions without a second pair of quotes.

``metrics.p=p95(reward)`` becomes ``++declog.metrics.p="p95(reward)"``, which any Hydra application takes as well. What
is already in Hydra's words stays as it is. Imports Hydra, for its grammar, and OmegaConf.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig

from declog.config.compose import composed
from declog.config.provenance import Origin
from declog.config.search_path import GROUP, config_loader, current_hydra
from declog.errors import CompositionError

_WORD = re.compile(r"(?P<sign>\+\+|\+|~|)(?P<key>[^=]*)(?P<equals>=?)(?P<value>.*)\Z", re.DOTALL)


# What a plain ``=`` may add where nobody wrote it: whatever a key holds, whole entries of a map, or nothing new. Below
# an entry that is there, any key; below one that is not, none: it is a typo, mostly.
Adds = Literal["anything", "entries", "nothing"]


def in_hydras_words(words: Sequence[str], base: Origin, adds: Mapping[str, Adds]) -> Origin:
    """``base`` with the overrides that ``words`` mean; ``adds`` says for each key of a profile what ``=`` may add."""
    with current_hydra():
        groups = config_loader(base.config_dir).list_groups(GROUP)
    name, lines, plain = base.config_name, list[str](), list[int]()
    added: set[tuple[str, ...]] = set()
    for word in words:
        found = _WORD.match(word)
        assert found is not None
        sign, key, equals, value = found.group("sign", "key", "equals", "value")
        if key == GROUP and not sign:
            name = value
            continue
        if key.partition(".")[0] != "hydra" and re.split("[./@]", key)[0] != GROUP:
            key = f"{GROUP}/{key}" if _is_choice(key, value, groups) else f"{GROUP}.{key}"
        if sign in ("+", "++") and value.startswith("{"):
            added.add(_path(key)[:2])
        elif equals and not sign and "/" not in key:
            plain.append(len(lines))
        lines.append(f"{sign}{key}{equals}{value if '/' in key else taken(value)}")
    if plain:
        choices = tuple(line for line in lines if "/" in line.partition("=")[0])
        try:
            known = composed(replace(base, config_name=name, overrides=choices))
        except CompositionError:
            plain = []  # what is wrong will be told when all of it is composed
    for place in plain:
        path = _path(lines[place].partition("=")[0])
        is_map = lines[place].partition("=")[2].startswith("{")
        if path[:2] in added or _may_be_added(known, path, adds.get(path[0] if path else ""), is_map=is_map):
            added |= {path[:2]} if is_map else set()
            lines[place] = f"++{lines[place]}"
    return replace(base, config_name=name, overrides=tuple(lines))


def _path(key: str) -> tuple[str, ...]:
    """The keys below the profile's node."""
    return tuple(key.split(".")[1:])


def taken(value: str) -> str:
    """A value as Hydra's grammar takes it: in quotes where it would refuse or change the text."""
    override = _parsed(value)
    if override is None:
        return _literal(value) or _quoted(value)
    read = override._value
    return _quoted(value) if isinstance(read, str) and not isinstance(read, QuotedString) and read != value else value


def _is_choice(key: str, value: str, groups: Collection[str]) -> bool:
    return key in groups and value not in ("", "null") and not value.startswith("{")


def _may_be_added(config: DictConfig, path: tuple[str, ...], adds: Adds | None, *, is_map: bool) -> bool:
    """Whether nobody wrote this key, or keys of the map that it is, and there is no doubt about what is meant."""
    node: object = config[GROUP]
    for depth, key in enumerate(path):
        if not isinstance(node, DictConfig):
            return False  # a text, which has no keys
        if key not in list(node):  # `key in node` hides what is ???
            whole = adds == "entries" and len(path) == 2
            return adds == "anything" or whole or (adds is not None and depth >= 2)
        node = node._get_node(key)
    return is_map and isinstance(node, DictConfig)


def _parsed(value: str) -> Override | None:
    try:
        (override,) = OverridesParser.create().parse_overrides([f"key={value}"])
    except HydraException:
        return None
    return override


def _quoted(value: str) -> str:
    inside = re.sub(r'(\\*)"', lambda found: f'{found[1] * 2}\\"', value)
    return f'"{inside}{_trailing(inside)}"'


def _trailing(text: str) -> str:
    """Backslashes before the closing quote count double."""
    return "\\" * (len(text) - len(text.rstrip("\\")))


def _literal(value: str) -> str | None:
    """A list or a map that is good YAML, ``{expr: length > 512}``, in Hydra's grammar."""
    if value[:1] not in ("[", "{"):
        return None
    try:
        data = yaml.safe_load(value)
    except yaml.YAMLError:
        return None
    line = _written(data)
    return line if isinstance(data, dict | list) and _parsed(line) is not None else None


def _written(data: object) -> str:
    if isinstance(data, dict):
        return "{" + ", ".join(f"{key}: {_written(value)}" for key, value in data.items()) + "}"
    if isinstance(data, list):
        return "[" + ", ".join(map(_written, data)) + "]"
    return _quoted(data) if isinstance(data, str) else json.dumps(data, default=str)
