"""A composed config with its layers: the value of each key, and where it was set, for all forms of ``show``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from declog.config.composed import Composed
from declog.config.interpolation import has
from declog.config.source_map import Layer, Provenance
from declog.errors import ConfigError, Path
from declog.errors.visible import visible_lines
from declog.language.keys import keys
from declog.language.model import Model
from declog.language.spec import LogSpec
from declog.language.validation import validate


@dataclass(frozen=True)
class Layered:
    """``data`` is the config in effect, ``written`` the same before interpolation, ``prefix`` its path.

    Neither holds a value from the environment: ``data`` has the interpolation instead.
    """

    data: Mapping[str, Any]
    written: Mapping[str, Any]
    provenance: Provenance
    prefix: Path

    def layers(self, path: Path) -> tuple[Layer, ...]:
        """The layers that set exactly this key, the latest last."""
        return self.provenance.layers.get((*self.prefix, *path), ())

    def origin(self, path: Path) -> str | None:
        """The layer that decides a key, as file:line:column or as the override; None if unknown."""
        _, layers = self.provenance.find((*self.prefix, *path))
        return str(layers[-1].location.where) if layers else None

    @cached_property
    def deleted(self) -> list[Path]:
        """Keys that a layer set and a later one deleted."""
        size = len(self.prefix)
        below = [path[size:] for path in self.provenance.layers if path[:size] == self.prefix and len(path) > size]
        return [path for path in below if not has(self.data, path)]


def layered(config: Composed) -> Layered:
    """A composed configuration with its layers."""
    order = list(keys(LogSpec))  # the language's own order
    data = dict(sorted(config.shown.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))
    return Layered(data, config.written, config.provenance or Provenance({}, {}), config.prefix)


def shown_value(value: Any) -> str:
    """A value as one line of YAML."""
    import yaml

    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False, allow_unicode=True)
    return visible_lines(text.removesuffix("\n").removesuffix("\n..."))


def language_key(data: Mapping[str, Any], path: Path) -> tuple[Any, str] | None:
    """The default and the description of a key; None if the language has no such key, or the config is not valid."""
    value: Any
    try:
        value, text = validate(data), ""
    except ConfigError:
        return None
    for key in path:
        if isinstance(value, Model) and (info := keys(type(value)).get(str(key))) is not None:
            value, text = vars(value)[info.name], info.help
        elif isinstance(value, Mapping) and key in value:
            value, text = value[key], ""
        else:
            return None
    return (value.model_dump() if isinstance(value, Model) else value), text


def leaves(data: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every key that holds a value, lists and empty maps included, in order."""
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value
