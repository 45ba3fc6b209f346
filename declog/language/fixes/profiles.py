"""Answers to unknown keys of profiles: `tables: [glance]`, `extends: slim`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from declog.errors import in_flow
from declog.language.fixes.tracker_names import ids_of
from declog.language.keys import keys
from declog.language.spec import ProfileSpec
from declog.language.tree import listed, map_at


def of_tables(key: str, name: str, entry: Mapping[str, Any]) -> str | None:
    """The fix for `tables` of a profile: a list names those that it shows, a map hides its own, and `[]` hides all."""
    value, show = entry[key], _words(entry.get("show"))
    if key != "tables" or value is True:
        return None
    hides = isinstance(value, Mapping) or not value
    named = [f"table:{str(table).removeprefix('table:')}" for table in ([*(value or ())] if hides else _words(value))]
    shown = [] if hides else [*show, *named]
    hidden = [*_words(entry.get("hide")), *(named if hides and named else ["table:*"])]
    if show and name != "slim" and "only" not in entry:
        return f"{name}: {in_flow({'only': shown} if shown else {'only': show, 'hide': hidden})}"
    return in_flow({"hide": hidden, **({"show": shown} if shown else {})})[1:-1]


def of_extended(key: str, name: str, entry: Mapping[str, Any], data: Mapping[str, Any]) -> str | None:
    """The fix for `extends: slim` of a profile: the selections of both profiles in one entry."""
    profiles, metrics = map_at(data, "profiles"), map_at(data, "metrics")
    if key == "every" and entry[key] == 1:  # the default of sinks
        key = next((word for word in _EXTENDING if word in entry), key)
        if key == "every":
            return "drop it: a sink shows each log event anyway"
    if key not in _EXTENDING:
        return None
    (base, *further) = _words(entry[key]) or [None]
    spec = {"only": ["tag:core"], **(profiles.get("slim") or {})} if base == "slim" else profiles.get(base)
    if further or base == name or not isinstance(spec, Mapping) or key in spec:
        return None
    rest = {word: value for of in (spec, entry) for word, value in of.items() if word in _BESIDE_SELECTION}
    shown = [id for of in (spec, entry) for part in ("only", "show") for id in ids_of(_words(of.get(part)), metrics)]
    hidden = [id for of in (spec, entry) for id in ids_of(_words(of.get("hide")), metrics)]
    edit = ({"only": shown} if "only" in spec else {}) | ({"hide": hidden} if hidden else {})
    return f"{name}: {in_flow(edit | rest)}"


_BESIDE_SELECTION = keys(ProfileSpec).keys() - {"only", "show", "hide"}
_EXTENDING = ("extends", "base", "inherit", "inherits", "parent", "from")


def _words(value: Any) -> list[Any]:
    return [] if value is None else listed(value)
