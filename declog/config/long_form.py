"""Bring files of configs into the long form as soon as they are read, before Hydra merges and overrides them.

A file without a config stays as it is. ``language/shorthand.py`` has the short forms.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from declog.config.search_path import GROUP
from declog.errors import Path
from declog.language.keys import SECTIONS, below, keys, model_of
from declog.language.shorthand import dropped, long
from declog.language.spec import LogSpec, MetricSpec
from declog.language.tree import Node, tree_of


def lengthened(result: ConfigResult, name: str) -> ConfigResult:
    """The file ``name`` (``declog/mine``, ``config``) in the long form."""
    if not isinstance(result.config, DictConfig):
        return result
    data: Any = OmegaConf.to_container(result.config, resolve=False)
    where = _config_in(data, name)
    if where is None:
        return result
    prefix, section = where
    node = data[GROUP] if prefix else data
    layer = tree_of({section: node} if section else node)
    defaults = placed_defaults(data, name)
    held = with_nulls(long(layer)[0])
    node.clear()
    node.update(held[section] if section else held)
    if defaults is not None:
        data["defaults"] = defaults
    config = OmegaConf.create(data)
    if OmegaConf.get_type(result.config) is not dict:  # a dataclass of the ConfigStore, whose types hold
        with suppress(OmegaConfBaseException):  # unless it declares a text where the long form has a map
            config = OmegaConf.merge(result.config, config)
    return replace(result, config=config)


def holds_config(result: ConfigResult, name: str) -> bool:
    """Whether the configuration ``name`` is a config, or has one in it."""
    data = OmegaConf.to_container(result.config, resolve=False)
    return isinstance(data, dict) and _config_in(data, name) is not None


def placed_defaults(data: Mapping[Any, Any], name: str) -> Any:
    """The defaults list of the file ``name`` as Hydra needs it: the group `packs` becomes `packs@_here_`.

    This holds for every group that is not a section of the config: its files are parts of a config. It also holds for
    `/declog`, by which a file in a folder of presets extends a preset of the folder above.
    """
    defaults = data.get("defaults")
    if not name.startswith(f"{GROUP}/") or _config_in(data, name) != ((), "") or not isinstance(defaults, list):
        return defaults
    return [_placed(entry) for entry in defaults]


def with_nulls(layer: Node, type_: Any = LogSpec) -> Any:
    """A layer as plain data for Hydra, which only merges maps: an entry from a text has all keys, null if not set.

    So the text replaces the entry of all lower layers, and an override finds each key of the entry. An entry from a map
    has null for the keys that it drops.
    """
    if not isinstance(layer.value, dict):
        return layer.plain
    data = {key: with_nulls(node, below(type_, key)) for key, node in layer.entries.items()}
    data |= dict.fromkeys(sorted(layer.drops))
    model = model_of(type_) if layer.replaces else None
    return data if model is None else {**data, **{key: None for key in keys(model) if key not in data}}


def without_nulls(data: Any, type_: Any = LogSpec) -> Any:
    """A config that was merged from such layers, without the nulls of entries with all keys, and of dropped keys.

    Nulls of the config's own keys stay: they mean that a section is empty.
    """
    if not isinstance(data, dict):
        return data
    model = None if type_ is LogSpec else model_of(type_)
    full = model is not None and keys(model).keys() <= data.keys()
    drops = dropped(data) if model is MetricSpec else frozenset()
    stated = {key: value for key, value in data.items() if value is not None or not (full or key in drops)}
    return {key: without_nulls(value, below(type_, key)) for key, value in stated.items()}


def _config_in(data: Mapping[Any, Any], name: str) -> tuple[Path, str] | None:
    """The path of the config in a file, and the section that it is a part of, or ""; None if the file has no config."""
    if isinstance(data.get(GROUP), Mapping):
        return (GROUP,), ""
    group, _, rest = name.partition("/")
    if group != GROUP or not rest:
        return None
    section, slash, _ = rest.partition("/")
    return (), section if slash and section in SECTIONS else ""


def _placed(entry: Any) -> Any:
    if isinstance(entry, Mapping):
        return {f"{key}@_here_" if _is_part(str(key).split(" ")[-1]) else key: value for key, value in entry.items()}
    group, slash, _ = entry.rpartition("/") if isinstance(entry, str) else ("", "", "")
    is_part = group == f"/{GROUP}" or _is_part(group)
    return f"{entry}@_here_" if slash and "@" not in entry and is_part else entry


def _is_part(group: str) -> bool:
    """Whether the files of a group are parts of a config: the group is not a section, and names no package."""
    words = group.removeprefix(f"/{GROUP}/").split("/")
    return all(re.fullmatch(r"\w+", word) for word in words) and words[0] not in (GROUP, *LogSpec.model_fields)
