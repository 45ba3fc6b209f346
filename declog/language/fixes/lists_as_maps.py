"""Lists and words in place of maps: entries with ids, columns, profiles, and sinks with their options.

The functions take plain data and return it as the map that a config has, or the YAML of that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from declog.errors import in_flow, nearest
from declog.language.fixes import idioms
from declog.language.notation import over_preset
from declog.language.tree import listed


def as_map(section: str, value: Any, below: Mapping[str, Any] | None = None) -> str:
    """A word, or a list of words or named maps, as a YAML map in flow style with an id for each item.

    ``below`` are the entries of lower layers.
    """
    items = [value] if isinstance(value, str) and section in ("signals", "metrics", "alerts") else value
    entries = [_entry(section, item) for item in items] if isinstance(items, list) else []
    named = [entry for entry in entries if entry is not None]
    if section == "alerts":
        named = [(id, over_preset(id, entry, (below or {}).get(id, ()))) for id, entry in named]
    shown = [f"{id}: {in_flow(entry)}" for id, entry in named[:3] if len(named) == len(entries)]
    return "{" + ", ".join(shown or ["my_id: ..."]) + ", ..." * (len(shown) == 3 < len(entries)) + "}"


_TEXTS = re.compile(  # typical names of signals with labels or texts
    r"(\w+_)?(source|dataset|domain|task|topic|category|subset|split|language|difficulty|kind|type|label|text|prompt|"
    r"answer|response|question|solution)"
)
_NAMES = ("id", "name", "key", "metric", "signal", "kind", "type", "alert")  # keys that name an entry of a list


def _entry(section: str, value: Any) -> tuple[str, Any] | None:
    """The id and the value of a list's entry, to put it into a map. None if the entry has no usable id."""
    if section == "modes":
        return (value, {"prefix": f"{value}/"}) if isinstance(value, str) else None
    if isinstance(value, str):
        id = "_".join(re.findall(r"[a-z_]\w*", value)) or "my_id"
        if section in ("signals", "metrics") and re.match(r"[a-z_]\w*\Z", value):
            ending = idioms.of_ending(value)
            metric = f"{ending[1]}({ending[0]})" if ending else "mean"
            axis = "completion text" if _TEXTS.fullmatch(value) else "completion"
            return id, axis if section == "signals" else metric
        condition = re.fullmatch(r"(\w+)\s*([<>]=?\s*\S+)", value) if section == "alerts" else None
        return (condition[1], condition[2]) if condition else (id, value)
    if not isinstance(value, Mapping):
        return None
    called = next((key for key in _NAMES if isinstance(value.get(key), str)), None)
    if called is None:
        return next(((str(key), value) for key, value in value.items()), None) if len(value) == 1 else None
    renames = {"expr": "when"} if section == "alerts" else {}
    rest = {renames.get(key, key): item for key, item in value.items() if key != called}
    for key in {"for", "every"} & rest.keys():  # both keys count steps or log events
        rest[key] = counted(rest[key]) or rest[key]
    for key in {"labels", "annotations"} & rest.keys() if section == "alerts" else ():
        rest.update([of_prometheus(key, rest.pop(key))])
    id = re.sub(r"[^a-z0-9_]+", "_", value[called].lower()).strip("_") or "my_id"
    return id, rest["expr"] if section == "metrics" and set(rest) == {"expr"} else rest


def of_prometheus(key: str, value: Any) -> tuple[str, str]:
    """The key and value for two keys of Prometheus' alerts: the level for `labels`, the text for `annotations`."""
    texts = [str(text) for text in value.values()] if isinstance(value, Mapping) else []
    if key == "labels":
        return "level", next((near for text in texts if (near := nearest(text, ("info", "warn", "error")))), "error")
    return "text", texts[0] if texts else "an alert"


def counted(text: Any) -> int | None:
    """The number in ``5m`` or ``50 steps``; None for anything else."""
    match = re.fullmatch(r"\s*(\d+) *[a-z]+\s*", str(text))
    return None if match is None else int(match[1])


def columns_of(items: Iterable[Any]) -> dict[str, Any]:
    """The schema for a list of names and maps. A name alone is a column with the signal of that name."""
    columns: dict[str, Any] = {}
    for item in items:
        columns.update([(item, {})] if isinstance(item, str) else filter(None, [_entry("schemas", item)]))
    return columns


def selector_of(word: str) -> str:
    """The selector for a word that means all metrics or all tables; any other word as it is."""
    return {"all": "*", "everything": "*", "metrics": "*", "tables": "table:*"}.get(word, word)


def as_profile(name: str, value: Any) -> Any:
    """A list of metrics as a profile. `slim` exists and shows them in addition; any other profile shows only them."""
    if isinstance(value, Mapping):
        return value
    items = value if isinstance(value, list) else re.split(r"[\s,]+", value) if isinstance(value, str) else [value]
    words = [selector_of(item) if isinstance(item, str) else item for item in items]
    if words == ["*"]:
        return {"only": words} if name == "slim" else {}
    return {"show" if name == "slim" else "only": words}


def sinks_and_options(value: Any) -> tuple[list[str], dict[str, Any]]:
    """Split a list or a map of sinks with options into the names of the sinks and the options by name.

    A sink that is switched off is left out, such as one with `enabled: false`, or `wandb: null` beside `console: {}`.
    """
    null = False if isinstance(value, Mapping) and any(item in ({}, True) for item in value.values()) else None
    items = map(_named, listed(value))
    pairs = [
        (str(name), null if said is None else said)
        for item in items for name, said in (item.items() if isinstance(item, Mapping) else [(item, True)])
    ]  # fmt: skip
    on = {name: _without_switches(item) for name, item in pairs if not is_off(item)}
    options = {name: item for name, item in on.items() if item and item is not True}
    return [*on], options


_SWITCHES = {"enabled": False, "enable": False, "active": False, "use": False, "disabled": True, "disable": True}


def is_off(options: Any) -> bool:
    """Whether the options of a sink switch it off."""
    if not isinstance(options, Mapping):
        return options is False
    return any(options.get(key) is on for key, on in _SWITCHES.items())


def _without_switches(options: Any) -> Any:
    """Options of a sink without the keys that switch it on or off. A text alone is its profile."""
    if isinstance(options, Mapping):
        return {key: value for key, value in options.items() if key not in _SWITCHES}
    return {"profile": options} if isinstance(options, str) else options


def _named(item: Any) -> Any:
    """Rewrite ``{kind: wandb, project: x}`` as ``{wandb: {project: x}}``; any other item stays."""
    called = isinstance(item, Mapping) and not {"kind", "name", "type"}.isdisjoint(item)
    return dict([entry]) if called and (entry := _entry("sinks", item)) is not None else item


def as_sinks(value: Any) -> str:
    """Sinks in YAML: the list `sinks`, and the map `sink_options` if there are options."""
    names, options = sinks_and_options(value)
    return f"sinks: {in_flow(names)}" + (f"\nsink_options: {in_flow(options)}" if options else "")


def without_sink(name: str, data: Mapping[str, Any]) -> str:
    """The fix for a sink that is switched off: the list `sinks` without it."""
    names, _ = sinks_and_options(data.get("sinks") or [])
    return as_sinks([sink for sink in names if sink != name]) if name in names else "drop it: no sink has this id"


def switched(value: Any) -> str:
    """Names of sinks as a YAML map with true for each."""
    return in_flow(value if isinstance(value, Mapping) else dict.fromkeys(sinks_and_options(value)[0], True))
