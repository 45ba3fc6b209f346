"""Files of profiles in the long form, each as soon as it is read: what Hydra merges and overrides is the long form.

A source of Hydra's reads a file here as everywhere; only what holds a profile is changed, and only where something in
it is written shorter (``language/shorthand.py``). Imports Hydra and OmegaConf.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf

from declog.config.search_path import GROUP
from declog.errors import Path
from declog.language.keys import SECTIONS
from declog.language.shorthand import long
from declog.language.tree import Node, over, tree_of

Read = Callable[[str], dict[Any, Any] | None]  # a file of the group `declog` as plain data, by its name


def lengthened(result: ConfigResult, name: str, read: Read) -> ConfigResult:
    """The file ``name`` (``declog/mine``, ``config``) in the long form; ``read`` reads those that it extends."""
    if not isinstance(result.config, DictConfig):
        return result
    data: Any = OmegaConf.to_container(result.config, resolve=False)
    where = _profile(data, name)
    if where is None:
        return result
    prefix, section = where
    node = data[GROUP] if prefix else data
    layer = tree_of({section: node} if section else node)
    defaults = placed_defaults(data, name)
    low = Node({})
    for below in _parents(data, name, read, [name]):
        low = over(low, tree_of(below))
    made, _ = long(layer, low)
    held = with_nulls(made, low)
    if section and set(held) != {section}:  # a table with its columns: it is read when all is composed
        return result
    node.clear()
    node.update(held[section] if section else held)
    if defaults is not None:
        data["defaults"] = defaults
    return replace(result, config=OmegaConf.create(data))


def placed_defaults(data: Mapping[Any, Any], name: str) -> Any:
    """The defaults list of the file ``name`` as Hydra has it: `packs: [rewards]` is `packs@_here_`.

    So it is with every group that is no section of the profile: its files are parts of a profile.
    """
    defaults = data.get("defaults")
    if not name.startswith(f"{GROUP}/") or _profile(data, name) != ((), "") or not isinstance(defaults, list):
        return defaults
    return [_placed(entry) for entry in defaults]


def with_nulls(layer: Node, low: Node | None) -> Any:
    """A layer as plain data for whoever merges maps only: what it replaces of the layers below is null there."""
    if not isinstance(layer.value, dict):
        return layer.plain
    below = {} if low is None else low.entries
    data = {key: with_nulls(node, below.get(key)) for key, node in layer.entries.items()}
    removed = [key for key, node in below.items() if node.value is not None and key not in data]
    return {**data, **dict.fromkeys(removed)} if layer.replaces else data


def _profile(data: Mapping[Any, Any], name: str) -> tuple[Path, str] | None:
    """Where a file holds a profile, and of which section it is, where it is of one; None where it holds none."""
    if isinstance(data.get(GROUP), Mapping):
        return (GROUP,), ""
    group, _, rest = name.partition("/")
    if group != GROUP or not rest:
        return None
    section, slash, _ = rest.partition("/")
    return (), section if slash and section in SECTIONS else ""


def _placed(entry: Any) -> Any:
    if isinstance(entry, Mapping):
        return {f"{key}@_here_" if _is_part(str(key).split()[-1:]) else key: value for key, value in entry.items()}
    group, slash, _ = entry.rpartition("/") if isinstance(entry, str) else ("", "", "")
    return f"{entry}@_here_" if slash and "@" not in entry and _is_part([group]) else entry


def _is_part(group: list[str]) -> bool:
    """Whether files of a group are parts of a profile: it is no section of it, and no place is named."""
    from declog.language.spec import LogSpec  # `import declog` does not pay for it

    return all(re.fullmatch(r"\w+", word) and word not in (GROUP, *LogSpec.model_fields) for word in group)


def _parents(data: Mapping[Any, Any], name: str, read: Read, seen: list[str]) -> Iterator[Mapping[Any, Any]]:
    """The profiles that a file extends, the first ones first."""
    defaults = data.get("defaults")
    for entry in defaults if isinstance(defaults, list) else ():
        for group, value in entry.items() if isinstance(entry, Mapping) else [(None, entry)]:
            words = str(group).split()[-1].lstrip("/").partition("@")[0] if group is not None else ""
            options = value if isinstance(value, list) else [value]
            if words == GROUP or (name.startswith(f"{GROUP}/") and (group is None or _is_part([words]))):
                here = f"{GROUP}/" if group is None or words == GROUP else f"{GROUP}/{words}/"
                for option in options:
                    parent = here + str(option).removeprefix(f"/{GROUP}/").partition("@")[0]
                    if option != "_self_" and parent not in seen:
                        yield from _extended(parent, read, [*seen, parent])


def _extended(name: str, read: Read, seen: list[str]) -> Iterator[Mapping[Any, Any]]:
    data = read(name)
    if data is not None:
        yield from _parents(data, name, read, seen)
        yield {key: value for key, value in data.items() if key != "defaults"}
