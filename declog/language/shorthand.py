"""What may be written shorter, in its long form: plain data in, plain data out, and where each key of it was written.

The composer applies it to each file before Hydra merges them, so that files in either form extend each other and
overrides address the long form; ``validate`` applies it to all that came by other ways. What it cannot read it leaves
as it is, for the models to refuse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from declog.errors import Path, Problem, did_you_mean
from declog.language import notation
from declog.language.dtypes import AXES
from declog.language.keys import keys
from declog.language.notation import SEVERAL, TYPES, WORD
from declog.language.spec import SignalSpec

SIGNAL_KEYS = frozenset(keys(SignalSpec))
# What `from` says of a metric: a number that the loop has computed, and logs by a name.
REPORTED: Mapping[str, Any] = {"axis": "step", "phase": "reported", "optional": True}


@dataclass(frozen=True)
class Long:
    """A profile in its long form. ``origins`` are the keys that were written elsewhere, each with its place there."""

    data: dict[Any, Any]
    origins: Mapping[Path, Path]
    problems: tuple[Problem, ...] = ()

    def written(self, path: Path) -> Path:
        """Where the key ``path`` of the long form was written; a word holds all that it says."""
        for depth in range(len(path), 0, -1):
            if (place := self.origins.get(path[:depth])) is not None:
                return (*place, *path[depth:])
        return path


def long(data: Mapping[Any, Any], below: Callable[[], Mapping[Any, Any]] = dict, *, whole: bool = True) -> Long:
    """The profile in its long form.

    ``whole`` is false for one layer of several, whose entries may be completed by others. ``below`` are the layers that
    a layer extends, in their long form: what a word or a list replaces there is set to null.
    """
    writer = _Writer(below, whole, frozenset(_signals_of(data)))
    made = {key: writer.section(key, value) for key, value in data.items()}
    for section, entries in writer.beside.items():
        known = made.get(section)
        made[section] = {**(known if isinstance(known, Mapping) else {}), **entries}
    return Long(made, writer.origins, tuple(writer.problems))


@dataclass
class _Writer:
    """Writes sections. ``signals`` are this layer's; ``beside`` entries of other sections that tables hold in place."""

    below: Callable[[], Mapping[Any, Any]]
    whole: bool
    signals: frozenset[Any] = frozenset()
    origins: dict[Path, Path] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    beside: dict[str, dict[str, Any]] = field(default_factory=dict)

    def section(self, name: Any, value: Any) -> Any:
        if name == "sinks":
            value = self._sinks(value)
        elif name == "modes":
            value = self._modes(value)
        if not isinstance(value, Mapping):
            return value
        if name == "signals":
            return self._signals(value)
        entry = {
            "metrics": self._metric, "filters": self._filter, "tables": self._table, "profiles": self._profile,
            "alerts": self._alert, "axes": self._axis,
        }.get(name)  # fmt: skip
        if entry is None:
            return value
        return {key: None if each is None else entry((name, key), each) for key, each in value.items()}

    def _whole(self, path: Path, entry: Mapping[str, Any], at: Path | None = None) -> dict[str, Any]:
        """An entry that a word or a list says as a whole: all its keys stand there, and no other layer's are left."""
        self.origins.update({(*path, key): at or path for key in entry})
        return {**entry, **dict.fromkeys(self._left(path, entry))}

    def _left(self, path: Path, entry: Mapping[str, Any]) -> list[Any]:
        found: Any = self.below()
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        entries = found.items() if isinstance(found, Mapping) else ()
        return [key for key, each in entries if each is not None and key not in entry]

    # -- signals

    def _signals(self, entries: Mapping[Any, Any]) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for name, value in entries.items():
            inside = value if self._is_group(name, value) else {name: value}
            grouped = inside is value
            for key, each in inside.items():
                path, at = ("signals", key), ("signals", name, key) if grouped else ("signals", name)
                if grouped and (key in made or key in entries):
                    self.problems.append(Problem.of("DL202.signal_twice", at, name=key))
                    made.setdefault(name, {})[key] = each
                    continue
                if grouped:
                    self.origins[path] = at
                made[key] = None if each is None else self._signal(path, each, at, name if grouped else None)
        return made

    def _is_group(self, name: Any, value: Any) -> bool:
        """Whether an entry of `signals` is a phase with its signals: no key of it is one of a signal's."""
        if not isinstance(value, Mapping) or not value:
            return False
        keys, first = {str(key) for key in value}, next(iter(value.values()))
        declares = isinstance(first, str) and first.replace("?", " ").partition(" ")[0] in AXES
        if keys & (SIGNAL_KEYS - {"mask"}) or (keys == {"mask"} and not declares):
            return False
        known = self.below().get("signals")
        if isinstance(known, Mapping) and name in known:
            return False
        if len(keys) == 1 and not isinstance(first, Mapping):  # a key that is misspelt? `rewards` is near to one
            known_ones = {"axis"} if declares else SIGNAL_KEYS - {"renamed", "deprecated"}
            return not (did_you_mean(next(iter(keys)), known_ones, what="keys").startswith("did you mean"))
        return True

    def _signal(self, path: Path, value: Any, at: Path, phase: str | None) -> Any:
        if isinstance(value, Mapping):
            if phase is None or "phase" in value or value.get("expr") is not None:
                return dict(value)
            self.origins[(*path, "phase")] = at[:-1]
            return {**value, "phase": phase}
        if _elsewhere(value):
            return value
        entry = {"expr": value}
        words = value.replace("?", " ? ").split() if isinstance(value, str) else []
        if words and words[0] in AXES:
            found = notation.signal_words(words, at)
            if isinstance(found, Problem):
                self.problems.append(found)
                return value
            entry = found or entry
        elif words and not self._declares(words[0]) and (axis := notation.with_axis(words)) is not None:
            fix = f"{path[-1]}: {axis}"
            self.problems.append(Problem.of("DL202.no_axis", at, words=value, fix=fix))
            return value
        if phase is None or "axis" not in entry:
            return self._whole(path, entry, at)
        made = self._whole(path, {**entry, "phase": phase}, at)
        self.origins[(*path, "phase")] = at[:-1]
        return made

    # -- metrics

    def _metric(self, path: Path, value: Any) -> Any:
        if isinstance(value, str) and not _elsewhere(value):
            if own := self._own_reductions(value):
                return self._whole(path, {"reduce": own[0] if len(own) == 1 else own})
            return self._whole(path, notation.reduced(value) or {"expr": value})
        if not isinstance(value, Mapping):
            return value if isinstance(value, str) else self._whole(path, {"expr": value})
        made = dict(value)
        if isinstance(made.get("from"), str):  # what the loop reports under that name
            for key, one in REPORTED.items():
                if key not in made:
                    made[key] = one
                    self.origins[(*path, key)] = (*path, "from")
        if isinstance(made.get("tags"), str):
            made["tags"] = made["tags"].split()
        if isinstance(by := made.get("by"), list) and len(by) == 1:
            made["by"] = by[0]
        if (words := notation.reductions(made.get("reduce"))) is not None:
            made["reduce"] = words
            self.origins[(*path, "reduce")] = (*path, "reduce")
        if isinstance(made.get("reduce"), list) and self._left((*path, "reduce"), {}):  # a list and a map do not merge
            made["reduce"] = self._names((*path, "reduce"), made["reduce"], lambda each: each)
        if isinstance(made.get("alias"), list):
            made["alias"] = self._names((*path, "alias"), made["alias"], lambda each: each)
        return made

    def _own_reductions(self, text: str) -> list[str]:
        """The reductions of the metric's own signal, ``lr: last``; none in an expression, or for a signal's name."""
        words = text.split()
        if not all(WORD.match(each) and not self._declares(each) for each in words):
            return []
        known = all(each in SEVERAL or notation.is_reduction(each, 1) for each in words)
        return [one for each in words for one in SEVERAL.get(each, (each,))] if known else []

    def _declares(self, signal: str) -> bool:
        below = self.below().get("signals")
        return signal in self.signals or (isinstance(below, Mapping) and signal in below)

    def _names(self, path: Path, items: Any, value: Callable[[Any], Any]) -> Any:
        """A list as a map, whose ids are the entries' own names."""
        words = items if isinstance(items, list) else [items]
        if not all(isinstance(each, str) for each in words):
            return items
        made = {}
        for place, each in enumerate(words):
            id = re.sub(r"\W+", "_", each.partition("(")[0].lower()).strip("_") or "it"
            id = id if id not in made else f"{id}_{place}"
            made[id] = value(each)
            self.origins[(*path, id)] = (*path, place) if isinstance(items, list) else path
        return {**made, **dict.fromkeys(self._left(path, made))}

    # -- tables

    def _filter(self, path: Path, value: Any) -> Any:
        if isinstance(value, str) and not WORD.match(value) and not _elsewhere(value):
            return self._whole(path, {"where": value})
        return value

    def _table(self, path: Path, value: Any) -> Any:
        if isinstance(value, list):
            self.origins[(*path, "columns")] = path
            value = {"columns": value}
        if not isinstance(value, Mapping):
            return value
        made = {key: each for key, each in value.items() if key != "columns"}
        for key in ("columns", "schema"):
            if isinstance(inline := value.get(key), Mapping | list):
                made["schema"] = self._inline(path, "schemas", "schema", key, inline, self._columns)
            elif key == "columns" and inline is not None:
                made["schema"] = inline
                self.origins[(*path, "schema")] = (*path, key)
        given = value.get("filter")
        if isinstance(given, Mapping) or (isinstance(given, str) and re.search(r"[<>=() ]", given.strip())):
            made["filter"] = self._inline(path, "filters", "filter", "filter", given, self._filter)
        if isinstance(made.get("to"), list | str):
            made["to"] = self._names((*path, "to"), made["to"], lambda each: True)
        return made

    def _inline(
        self, path: Path, section: str, key: str, written: str, value: Any, entry: Callable[[Path, Any], Any]
    ) -> str:
        """An entry that stands in its table, as one of its section with the table's id, where that is free."""
        table = str(path[-1])
        known, tables = self.below().get(section), self.below().get("tables")
        before = tables.get(table) if isinstance(tables, Mapping) else None
        own = isinstance(before, Mapping) and before.get(key) == table
        shared = own and isinstance(tables, Mapping) and any(
            isinstance(other, Mapping) and other.get(key) == table for name, other in tables.items() if name != table
        )  # fmt: skip
        taken = isinstance(known, Mapping) and known.get(table) is not None and (not own or shared)
        id = f"{table}_{written}" if taken else table
        self.origins[(section, id)] = (*path, written)
        self.origins[(*path, key)] = (*path, written)
        self.beside.setdefault(section, {})[id] = entry((section, id), value)
        return id

    def _columns(self, path: Path, value: Any) -> dict[str, Any]:
        at = self.origins[path]
        if isinstance(value, Mapping):
            return {key: self._column((*path, key), each, (*at, key)) for key, each in value.items()}
        made: dict[str, Any] = {}
        for place, each in enumerate(value):
            pairs = each.items() if isinstance(each, Mapping) else [(each, None)]
            for name, given in pairs:
                plain = isinstance(name, str) and WORD.match(name)
                id = name if plain else re.sub(r"\W+", "_", str(name).lower()).strip("_") or "column"
                entry = {} if plain or given is not None else {"expr": name}
                self.origins[(*path, id)] = (*at, place)
                made[id] = self._column((*path, id), given, (*at, place)) if given is not None else entry
                if isinstance(made[id], dict):
                    made[id].setdefault("nullable", True)
        return {**made, **dict.fromkeys(self._left(path, made))}

    def _column(self, path: Path, value: Any, at: Path) -> Any:
        if not isinstance(value, str) or value in TYPES or _elsewhere(value):
            return value
        entry = {"expr": value, "nullable": True}
        self.origins.update({(*path, key): at for key in entry})
        return entry

    # -- profiles, alerts, sinks

    def _profile(self, path: Path, value: Any) -> Any:
        if isinstance(value, list | str) and not _elsewhere(value):
            value = {"include": self._names((*path, "include"), value, lambda each: each)}
            inside = {at: place for at, place in self.origins.items() if at[:-1] == (*path, "include")}
            self.origins |= {at: (*path, *place[len(path) + 1 :]) for at, place in inside.items()}
            self.origins[(*path, "include")] = path
        if not isinstance(value, Mapping):
            return value
        made = dict(value)
        for key in ("include", "exclude"):
            if isinstance(made.get(key), list | str):
                made[key] = self._names((*path, key), made[key], lambda each: each)
            if isinstance(selectors := made.get(key), Mapping):
                made[key] = {id: _joined(each) for id, each in selectors.items()}
        return made

    def _alert(self, path: Path, value: Any) -> Any:
        if not isinstance(value, str) or _elsewhere(value):
            return value
        return self._whole(path, notation.condition(value.strip(), path[-1]))

    def _sinks(self, value: Any) -> Any:
        """``[console, {wandb: {project: mine}}]``: an entry of each kind, and none of the layers below.

        ``wandb: slim`` names the sink's profile.
        """
        if isinstance(value, Mapping):
            shown = {each: name for each, name in value.items() if isinstance(name, str) and WORD.match(name)}
            self.origins.update({("sinks", each, "profile"): ("sinks", each) for each in shown})
            return {**value, **{each: {"profile": name} for each, name in shown.items()}}
        entries = notation.listed(value)
        if entries is None:
            return value
        made: dict[str, Any] = {each: {"kind": each, **given} for each, given in entries.items()}
        for place, (each, given) in enumerate(entries.items()):
            self.origins[("sinks", each)] = ("sinks", place)
            self.origins.update({("sinks", each, key): ("sinks", place, each, key) for key in given})
        return {**made, **dict.fromkeys(self._left(("sinks",), made))}

    # -- axes, modes

    def _axis(self, path: Path, value: Any) -> Any:
        """``group: 4``, ``group: prompt_id``, ``token: completion_mask``."""
        if isinstance(value, bool) or not isinstance(value, int | str) or _elsewhere(value):
            return value
        words = {"group": "size" if isinstance(value, int) else "of", "token": "mask", "completion": "ids"}
        return self._whole(path, {words[str(path[-1])]: value}) if path[-1] in words else value

    def _modes(self, value: Any) -> Any:
        """``[train, eval]``: modes whose names stand before those of their values; train's as they are."""
        if not isinstance(value, list) or not all(isinstance(each, str) and WORD.match(each) for each in value):
            return value
        self.origins.update({("modes", each): ("modes", place) for place, each in enumerate(value)})
        return {each: {} if each == "train" else {"prefix": f"{each}/"} for each in value}


def _elsewhere(value: Any) -> bool:
    """Whether a text stands for a value from elsewhere, or for one that is to be given."""
    return isinstance(value, str) and ("${" in value or value == "???")


def _signals_of(data: Mapping[Any, Any]) -> set[Any]:
    """Names that may be signals of a profile: those of its phases too."""
    signals = data.get("signals")
    entries = signals.items() if isinstance(signals, Mapping) else ()
    return {name for key, each in entries for name in (key, *(each if isinstance(each, Mapping) else ()))}


def _joined(selector: Any) -> Any:
    several = isinstance(selector, list) and all(isinstance(each, str) for each in selector)
    return " ".join(selector) if several else selector
