"""What Hydra makes of files without types, in plain data, which takes a twentieth of the time of OmegaConf's nodes.

Where only the nodes can do it, or can say what is wrong, ``NotPlain`` is raised, and Hydra does it. Imports Hydra's
overrides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override

_MISSING = "???"
_NONE = object()
_KEYS = re.compile(r"\w+(\.\w+)*")


class NotPlain(Exception):
    """A typed node, an interpolation that something is merged into, or a mistake."""


def settled(value: object) -> bool:
    """Whether it is plain data that asks for nothing: OmegaConf gives it back as it is, and takes its time."""
    if type(value) is dict:
        return all(type(key) is str and settled(item) for key, item in value.items())
    if type(value) is list:
        return all(map(settled, value))
    if type(value) is str:
        return "${" not in value and value != _MISSING
    return value is None or type(value) in (bool, int, float)


def merged(layers: Iterable[tuple[str, Any]]) -> dict[Any, Any]:
    """The data of files, each under its package, over those before it."""
    made: dict[Any, Any] = {}
    for package, data in layers:
        layer = data
        if package and not _KEYS.fullmatch(package):
            raise NotPlain
        for key in reversed(package.split(".") if package else ()):
            layer = {key: layer}
        if type(layer) is not dict or "searchpath" in (layer.get("hydra") or ()):
            raise NotPlain  # who may name more places is looked at by Hydra
        laid_over(made, layer, exact=True)
    return made


def overridden(data: Mapping[Any, Any], overrides: Sequence[Override]) -> dict[Any, Any]:
    """``data`` with Hydra's overrides of keys. Adding needs a ``+`` and changing what is there, as with Hydra."""
    made: dict[Any, Any] = _copied(data)
    for each in overrides:
        if each.package is not None or not _KEYS.fullmatch(each.key_or_group):
            raise NotPlain
        *above, last = each.key_or_group.split(".")
        adds = each.is_add() or each.is_force_add()
        node: Any = made
        for key in above:
            node = node.setdefault(key, {}) if adds else node.get(key)
            if type(node) is not dict:
                raise NotPlain
        known, value = node.get(last, _NONE), each.value()
        if not settled(value):
            raise NotPlain
        if each.is_delete():
            if value is not None or known is None or not settled(known):
                raise NotPlain
            del node[last]
        elif known is _NONE if not adds else each.is_add() and known not in (_NONE, None) and type(value) not in _MAPS:
            raise NotPlain  # there is nothing to change, or something where one adds
        elif not adds and type(known) is type(value) is dict:
            raise NotPlain  # which keys of it there are is what Hydra looks at
        else:
            laid_over(node, {last: value}, exact=True)
    return made


_MAPS = (dict, list)


def laid_over(into: dict[Any, Any], layer: Mapping[Any, Any], *, exact: bool = False) -> None:
    """Maps are merged, lists and texts replaced; ``???`` leaves what is there.

    ``exact``: where Hydra refuses a list over a map, or resolves what is there, ``NotPlain`` is raised.
    """
    for key, value in layer.items():
        known = into.get(key, _NONE)
        if known is not _NONE and value == _MISSING:
            continue
        if exact and type(known) is str and "${" in known:
            raise NotPlain
        if type(known) is type(value) is dict:
            laid_over(known, value, exact=exact)
        elif exact and type(known) in _MAPS and type(value) in _MAPS and type(known) is not type(value):
            raise NotPlain
        else:
            into[key] = _copied(value)


def _copied(value: Any) -> Any:
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if type(value) is list else value
