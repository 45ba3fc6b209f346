"""Files of profiles in the long form, each as soon as it is read: what Hydra merges and overrides is the long form.

A source of Hydra's reads a file here as everywhere; only what holds a profile is changed, and only where something in
it is written shorter (``language/shorthand.py``). Imports Hydra and OmegaConf.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf

from declog.config.plain import laid_over
from declog.config.search_path import GROUP, is_shipped
from declog.errors import Path
from declog.language.keys import SECTIONS
from declog.language.notation import listed
from declog.language.shorthand import long

Read = Callable[[str], ConfigResult | None]


@dataclass
class LongResult(ConfigResult):
    """A file that was written shorter. ``origins`` are keys of it that were written elsewhere, with their places.

    ``data`` is what it holds, without its defaults list.
    """

    origins: Mapping[Path, Path] = field(default_factory=dict)
    data: Mapping[Any, Any] = field(default_factory=dict)


def lengthened(result: ConfigResult, name: str, read: Read) -> ConfigResult:
    """The file ``name`` (``declog/mine``, ``config``) in the long form; ``read`` reads those that it extends."""
    if not isinstance(result.config, DictConfig):
        return result
    data: Any = OmegaConf.to_container(result.config, resolve=False)
    at = _profile(data, name)
    if at is None:
        return result
    prefix, section = at
    node = data
    for key in prefix:
        node = node[key]
    found = [name] if name.startswith(f"{GROUP}/") else []
    here = bool(found) and not section and _here(data)
    below = cache(lambda: _merged(_parents(data, name, read, [*found])))
    chosen = None if section else _chosen(node, data, name, below)
    made = long({section: node} if section else node, below, whole=False)
    if not made.origins and chosen is None and not here:
        return result
    origins = {(*prefix, *new): (*prefix, *old) for new, old in made.origins.items()}
    node.clear()
    if section:
        if set(made.data) != {section}:  # a table with its columns: it is read when all is composed
            return result
        node.update(made.data[section])
        origins = {new[1:]: old[1:] for new, old in origins.items()}
    else:
        node.update(made.data)
    given = {each.name: getattr(result, each.name) for each in fields(ConfigResult)}
    held = {key: value for key, value in data.items() if key != "defaults"}
    return LongResult(**{**given, "config": OmegaConf.create(data)}, origins=origins | (chosen or {}), data=held)


def _profile(data: Mapping[Any, Any], name: str) -> tuple[Path, str] | None:
    """Where a file holds a profile, and of which section it is, where it is of one; None where it holds none."""
    if isinstance(data.get(GROUP), Mapping):
        return (GROUP,), ""
    group, _, rest = name.partition("/")
    if group != GROUP or not rest:
        return None
    section, slash, _ = rest.partition("/")
    return (), section if slash and section in SECTIONS else ""


def _here(data: dict[Any, Any]) -> bool:
    """`packs: [rewards]` and `packs/rewards` in the defaults as Hydra has them, `packs@_here_`; whether there was one.

    So it is with every group that is no section of the profile: its files are parts of a profile.
    """
    defaults = data.get("defaults")
    made = [_placed(entry) for entry in defaults] if isinstance(defaults, list) else defaults
    data |= {} if defaults is None else {"defaults": made}
    return made != defaults


def _placed(entry: Any) -> Any:
    if isinstance(entry, Mapping):
        return {f"{key}@_here_" if _is_part(str(key).split()[-1:]) else key: value for key, value in entry.items()}
    group, slash, _ = entry.rpartition("/") if isinstance(entry, str) else ("", "", "")
    return f"{entry}@_here_" if slash and "@" not in entry and _is_part([group]) else entry


def _is_part(group: list[str]) -> bool:
    """Whether files of a group are parts of a profile: it is no section of it, and no place is named."""
    from declog.language.spec import LogSpec  # `import declog` does not pay for it

    return all(re.fullmatch(r"\w+", word) and word not in (GROUP, *LogSpec.model_fields) for word in group)


def _chosen(
    node: dict[Any, Any], data: dict[Any, Any], name: str, below: Callable[[], Mapping[Any, Any]]
) -> dict[Path, Path] | None:
    """``sinks: [console, jsonl]`` as a choice of the group `sinks`, in the place of the one that is extended."""
    given = node.get("sinks")
    entries = listed(given) if isinstance(given, list) else None
    if entries is None:
        return None
    words = list(entries)
    if not all(is_shipped(f"{GROUP}/sinks/{each}") for each in words):
        return None
    group = "sinks" if name.startswith(f"{GROUP}/") else f"{GROUP}/sinks"
    extended = bool(below().get("sinks"))
    entry = {f"override {group}" if extended else group: words}
    defaults = data.get("defaults")
    defaults = list(defaults) if isinstance(defaults, list) else ["_self_"]
    data["defaults"] = [*defaults, entry] if extended else [entry, *defaults]
    prefix: Path = () if name.startswith(f"{GROUP}/") else (GROUP,)
    node["sinks"] = {each: options for each, options in entries.items() if options}
    places = {(*prefix, "sinks", each): (*prefix, "sinks", place) for place, each in enumerate(words)}
    inside = {(*at, key): (*places[at], at[-1], key) for at in places for key in entries[str(at[-1])]}
    return places | inside


def _parents(data: Mapping[Any, Any], name: str, read: Read, seen: list[str]) -> Iterator[Mapping[Any, Any]]:
    """The profiles that a file extends, the first ones first; a choice of sinks stands for their entries."""
    defaults = data.get("defaults")
    for entry in defaults if isinstance(defaults, list) else ():
        for group, value in entry.items() if isinstance(entry, Mapping) else [(None, entry)]:
            words = str(group).split()[-1].lstrip("/").partition("@")[0] if group is not None else ""
            options = value if isinstance(value, list) else [value]
            if words in ("sinks", f"{GROUP}/sinks"):
                yield {"sinks": {str(each): {"kind": each} for each in options}}
            elif words == GROUP or (name.startswith(f"{GROUP}/") and (group is None or _is_part([words]))):
                here = f"{GROUP}/" if group is None or words == GROUP else f"{GROUP}/{words}/"
                for option in options:
                    parent = here + str(option).removeprefix(f"/{GROUP}/").partition("@")[0]
                    if option != "_self_" and parent not in seen:
                        yield from _extended(parent, read, [*seen, parent])


def _extended(name: str, read: Read, seen: list[str]) -> Iterator[Mapping[Any, Any]]:
    found = read(name)
    if found is None or not isinstance(found.config, DictConfig):
        return
    data: Any = OmegaConf.to_container(found.config, resolve=False)
    yield from _parents(data, name, read, seen)
    yield {key: value for key, value in data.items() if key != "defaults"}


def _merged(layers: Iterator[Mapping[Any, Any]]) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for layer in layers:
        laid_over(made, layer)
    return made
