"""What a profile says to no effect: a `null` that deletes nothing, and keys of a file that its own preset overrides.

Only the layers of a composed configuration tell, so they are read where something is suspicious and else not. Imports
Hydra and OmegaConf.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any

from declog.config.diagnostics import shown_path, written_value
from declog.config.interpolation import at
from declog.config.provenance import defaults_of, provenance_of
from declog.config.source_map import FilePlace, Layer, OverridePlace, Provenance
from declog.config.yaml_pitfalls import own_files
from declog.errors import Path, Problem, did_you_mean

_NULL = ("", "~", "null", "Null", "NULL")
_SELF_FIRST = re.compile(r"\b_self_[\"']?\s*(?:,|(?:#.*)?\n\s*-)")  # something stands behind it


def null_of_nothing(config: object, data: Mapping[str, Any], nulls: Iterable[Path], prefix: Path) -> list[Problem]:
    """Each `null` for an entry that no earlier layer has (DL201). ``nulls`` are those at keys that users name."""
    paths = list(nulls)
    known = provenance_of(config) if paths else None
    if known is None:  # a mapping: nobody knows what it was made of
        return []
    problems = []
    for path in paths:
        layers = known.layers.get((*prefix, *path), ())
        if not layers or any(not _is_null(layer, known) for layer in layers):
            continue
        above = path[:-1]
        beside = [
            str(name)
            for name, entry in at(data, above).items()
            if entry is not None or _had(known, (*prefix, *above, name))
        ]
        what = ".".join(map(str, above))
        message = f"`{path[-1]}: null` deletes nothing: there is no such entry in {what}"
        problems.append(Problem("DL201", message, path, did_you_mean(str(path[-1]), beside, what=f"entries of {what}")))
    return problems


def _had(known: Provenance, path: Path) -> bool:
    """Whether some layer gave an entry that is deleted now."""
    return any(not _is_null(layer, known) for layer in known.layers.get(path, ()))


def _is_null(layer: Layer, known: Provenance) -> bool:
    place = layer.place
    if isinstance(place, FilePlace):
        return place.style is not None and written_value(place, known.texts[place.file]).strip() in _NULL
    if isinstance(place, OverridePlace):
        return place.text.startswith("~") or place.text.partition("=")[2].strip() in _NULL
    return False


def self_first(config: object, prefix: Path) -> Iterator[str]:
    """A warning for each own file whose keys are overridden by what it extends, since `_self_` stands before that."""
    if not any(_SELF_FIRST.search(file.read_text(encoding="utf-8", errors="replace")) for file in own_files(config)):
        return
    known = provenance_of(config)
    if known is None:
        return
    for file, text in known.texts.items():
        later = _behind_self(text) if _SELF_FIRST.search(text) else []
        winners = _extended(later, known.texts)
        lost: dict[str, str] = {}
        for path, layers in known.layers.items():
            *before, last = layers
            places = [layer.place for layer in before if layer.replaces]
            own = any(isinstance(place, FilePlace) and place.file == file for place in places)
            if own and isinstance(last.place, FilePlace) and last.replaces and last.place.file in winners - {file}:
                lost[".".join(map(str, path[len(prefix) :]))] = FilePath(last.place.file).stem
        if lost:
            keys = ", ".join(list(lost)[:3]) + (", ..." if len(lost) > 3 else "")
            message = f"`_self_` stands before `{later[0]}`, which overrides what this file says of {keys}"
            yield f"{shown_path(file)}: {message}; write `_self_` last: [{', '.join(later)}, _self_]"


def _behind_self(text: str) -> list[str]:
    names = [option.value for _, option in defaults_of(text)]
    return names[names.index("_self_") + 1 :] if "_self_" in names else []


def _extended(names: Iterable[str], texts: Mapping[str, str]) -> set[str]:
    """The files of options, and of all that these extend."""
    found: set[str] = set()
    waiting = [name.partition("@")[0].rpartition("/")[2] for name in names]
    while waiting:
        name = waiting.pop()
        for file in [file for file in texts if FilePath(file).stem == name and file not in found]:
            found.add(file)
            waiting += [option.value.partition("@")[0].rpartition("/")[2] for _, option in defaults_of(texts[file])]
    return found
